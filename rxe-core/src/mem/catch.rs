//! Catching faults of registered memory: the handlers of SIGSEGV and SIGBUS.
//!
//! A C program may unmap or protect what it has registered, or truncate the file behind it. The
//! processor finds out, in the middle of a copy ([`super::raw`]), and the kernel sends the thread a
//! signal. The handler here lets that copy fail. Every other signal goes on to who would have got
//! it without us, just as the kernel would have delivered it.
//!
//! Handlers form a chain. Whoever installs one after us is above us, and we get what it hands
//! down; so [`catch_faults`] may be called again, to be on top again. Then the old place in the
//! chain must stay as it is, since the one above may hand down to it: each place, a *level*, has a
//! handler function of its own, which knows what was there before.
//!
//! What runs in a handler is async-signal-safe: it reads atomics and what they point to, and makes
//! system calls. What they point to is never freed.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use parking_lot::Mutex;

use super::raw;

/// The signals of memory that is not there.
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
/// How often somebody may come above us, and we above them again.
const LEVELS: usize = 8;

type Action = libc::sigaction;
type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// What was there before, by signal (as [`SIGNALS`]) and level; null where a level is not used. They
/// are leaked, and never written through.
static PREVIOUS: [[AtomicPtr<Action>; LEVELS]; SIGNALS.len()] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; LEVELS] }; SIGNALS.len()];

/// The handlers, by level.
const HANDLERS: [Handler; LEVELS] = [
    on_signal::<0>,
    on_signal::<1>,
    on_signal::<2>,
    on_signal::<3>,
    on_signal::<4>,
    on_signal::<5>,
    on_signal::<6>,
    on_signal::<7>,
];

/// What ends the process: no handler, no flags, an empty mask.
// SAFETY: all fields may be zero, which is `SIG_DFL` for the handler.
static DEFAULT: Action = unsafe { MaybeUninit::zeroed().assume_init() };

/// Serialises installing.
static INSTALLING: Mutex<()> = Mutex::new(());

/// Why faults of registered memory cannot be caught.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatchFaultsError {
    /// The operating system refused the handler.
    #[error("no handler can be installed for signal {signal}")]
    Refused {
        /// The signal: SIGSEGV or SIGBUS.
        signal: i32,
        /// What the system said.
        source: io::Error,
    },
    /// Others have installed handlers over ours again and again.
    #[error(
        "{LEVELS} handlers for signal {signal} were installed one after the other over that of \
         registered memory: install them before memory is registered"
    )]
    TooMany {
        /// The signal: SIGSEGV or SIGBUS.
        signal: i32,
    },
}

impl CatchFaultsError {
    /// The errno of a C function that meets it.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Refused { source, .. } => source.raw_os_error().unwrap_or(crate::errno::EINVAL),
            Self::TooMany { .. } => crate::errno::EBUSY,
        }
    }
}

/// Makes accesses to [`UserMemory`](super::UserMemory) that is not there fail, where they would end
/// the process: installs handlers for SIGSEGV and SIGBUS, which hand down what is not ours.
///
/// It costs two system calls when they are there already, and may be called as often as one likes,
/// by any thread: best before each registration, since others may have installed handlers of their
/// own meanwhile, which then get our faults too. Where a copy needs no handler (all but x86-64, and
/// with `--cfg rxe_strict_mem`), it does nothing.
///
/// A program that registers only [`DmaBuf`](super::DmaBuf)s needs none. See docs/memory.md for the
/// limits.
///
/// # Errors
///
/// [`CatchFaultsError`]; faults are as fatal as before then.
pub fn catch_faults() -> Result<(), CatchFaultsError> {
    if !raw::CATCHES {
        return Ok(());
    }
    let _installing = INSTALLING.lock();
    for (index, signal) in SIGNALS.into_iter().enumerate() {
        install(index, signal)?;
    }
    Ok(())
}

/// Lets this thread get SIGSEGV and SIGBUS: to block them makes a fault fatal, whatever the
/// handler, and a thread inherits what its creator has blocked.
///
/// Threads that run the engine in the background call it first.
pub fn unblock_faults() {
    let mut set = empty_set();
    for signal in SIGNALS {
        // SAFETY: the set is initialised, and ours.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    // SAFETY: the set is initialised; the old mask is not asked for. With these arguments it cannot
    // fail.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, ptr::null_mut()) };
}

/// Puts our handler on top of the chain of a signal, unless it is there.
fn install(index: usize, signal: c_int) -> Result<(), CatchFaultsError> {
    let refused = |source| CatchFaultsError::Refused { signal, source };
    let previous = exchange(signal, None).map_err(refused)?;
    if HANDLERS.iter().any(|&handler| previous.sa_sigaction == handler as usize) {
        return Ok(());
    }
    let levels = &PREVIOUS[index];
    let level = level_for(levels, &previous).ok_or(CatchFaultsError::TooMany { signal })?;
    // Before the handler can run.
    levels[level].store(Box::into_raw(Box::new(previous)), Ordering::Release);
    let replaced = exchange(signal, Some(&ours(level, &previous))).map_err(refused)?;
    if !is_same(&replaced, &previous) {
        // Somebody was faster.
        levels[level].store(Box::into_raw(Box::new(replaced)), Ordering::Release);
    }
    Ok(())
}

/// The level for a handler above `previous`: the one that was there before, or one that is free.
fn level_for(levels: &[AtomicPtr<Action>; LEVELS], previous: &Action) -> Option<usize> {
    let stored = |level: &AtomicPtr<Action>| {
        // SAFETY: null, or a box that was leaked in `install`.
        unsafe { level.load(Ordering::Acquire).as_ref() }
    };
    let same = levels.iter().position(|level| stored(level).is_some_and(|a| is_same(a, previous)));
    same.or_else(|| levels.iter().position(|level| stored(level).is_none()))
}

fn is_same(one: &Action, other: &Action) -> bool {
    one.sa_sigaction == other.sa_sigaction && one.sa_flags == other.sa_flags
}

/// Our action in place of `previous`: the kernel treats both alike, so that a handler that we hand
/// down to finds the stack and the mask that it would have found without us.
fn ours(level: usize, previous: &Action) -> Action {
    let mut action = *previous;
    let kept = libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
    action.sa_sigaction = HANDLERS[level] as usize;
    action.sa_flags = libc::SA_SIGINFO
        | if is_handler(previous) {
            previous.sa_flags & kept
        } else {
            action.sa_mask = empty_set();
            // A thread may run on a stack that has no room for a handler.
            libc::SA_ONSTACK | libc::SA_RESTART
        };
    action
}

fn is_handler(action: &Action) -> bool {
    action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN
}

/// Gives the action of a signal, and sets another one if given.
fn exchange(signal: c_int, new: Option<&Action>) -> io::Result<Action> {
    let new = new.map_or(ptr::null(), ptr::from_ref);
    let mut old = MaybeUninit::<Action>::zeroed();
    // SAFETY: `new` is null or an action, and `old` has room for one.
    if unsafe { libc::sigaction(signal, new, old.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has filled it.
    Ok(unsafe { old.assume_init() })
}

fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the call initialises the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// The handler of a level.
///
/// # Safety
///
/// Called by the kernel, or by whom the kernel has called, with the arguments of that call.
unsafe extern "C" fn on_signal<const LEVEL: usize>(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: the arguments are those of a signal handler.
    let is_fault = is_fault(signal, unsafe { (*info).si_code });
    // SAFETY: as above.
    if is_fault && unsafe { raw::recover(context) } {
        return;
    }
    let Some(index) = SIGNALS.iter().position(|&other| other == signal) else { return };
    // SAFETY: as above.
    unsafe { hand_down(&PREVIOUS[index][LEVEL], is_fault, signal, info, context) }
}

/// Whether a signal of this code is about what its thread does.
///
/// What a program has sent, by kill or sigqueue, is no fault, wherever it arrives; nor is the hint
/// that memory somewhere is going bad.
fn is_fault(signal: c_int, code: c_int) -> bool {
    code > 0 && !(signal == libc::SIGBUS && code == libc::BUS_MCEERR_AO)
}

/// Treats a signal as the kernel would, had the action before ours been there.
///
/// # Safety
///
/// As for [`on_signal`]; `previous` is null or an action that is never freed.
unsafe fn hand_down(
    previous: &AtomicPtr<Action>,
    is_fault: bool,
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    let pointer = previous.load(Ordering::Acquire);
    // SAFETY: as the caller says; nobody writes to it.
    let action = unsafe { pointer.as_ref() };
    let Some(action) = action.filter(|action| is_handler(action)) else {
        // The kernel does not let a program ignore a fault: it would never end.
        let is_ignored = action.is_some_and(|action| action.sa_sigaction == libc::SIG_IGN);
        if is_fault || !is_ignored {
            die_by_default(signal, is_fault);
        }
        return;
    };
    if action.sa_flags & libc::SA_RESETHAND != 0 {
        // It is for one signal alone; who comes later, or at the same time, gets the default.
        let default = (&raw const DEFAULT).cast_mut();
        let taken =
            previous.compare_exchange(pointer, default, Ordering::AcqRel, Ordering::Acquire);
        if taken.is_err() {
            return die_by_default(signal, is_fault);
        }
    }
    if action.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: whoever installed it says by the flag that it is such a function.
        let handler = unsafe { std::mem::transmute::<usize, Handler>(action.sa_sigaction) };
        // SAFETY: the arguments are those of a signal handler.
        unsafe { handler(signal, info, context) }
    } else {
        // SAFETY: whoever installed it says by the missing flag that it is such a function.
        let handler = unsafe {
            std::mem::transmute::<usize, unsafe extern "C" fn(c_int)>(action.sa_sigaction)
        };
        // SAFETY: the argument is that of a signal handler.
        unsafe { handler(signal) }
    }
}

/// Lets the default action end the process, with a core if there is to be one.
fn die_by_default(signal: c_int, is_fault: bool) {
    // SAFETY: an action; the old one is not asked for. The call is async-signal-safe.
    unsafe { libc::sigaction(signal, &DEFAULT, ptr::null_mut()) };
    if !is_fault {
        // A fault happens again when the handler returns, but this does not. Meanwhile it is
        // blocked, if at all.
        // SAFETY: sends a signal to this thread, and is async-signal-safe.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_what_the_kernel_says_of_the_thread_itself() {
        let (segv, bus) = (libc::SIGSEGV, libc::SIGBUS);
        // SEGV_MAPERR, SEGV_ACCERR, BUS_ADRALN, BUS_ADRERR, and what has no address.
        for (signal, code) in [(segv, 1), (segv, 2), (bus, 1), (bus, 2), (segv, libc::SI_KERNEL)] {
            assert!(is_fault(signal, code), "signal {signal}, code {code}");
        }
        assert!(is_fault(bus, libc::BUS_MCEERR_AR), "the memory that it reads is bad");
        assert!(!is_fault(bus, libc::BUS_MCEERR_AO), "some other memory is");
        for code in [libc::SI_USER, libc::SI_QUEUE, libc::SI_TKILL, libc::SI_TIMER] {
            assert!(!is_fault(segv, code) && !is_fault(bus, code), "code {code}");
        }
    }
}
