//! What signals do to a program that sleeps.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

/// How many questions one look at the handlers answers.
const LASTS: u8 = 63;
/// The last signal.
const LAST_SIGNAL: c_int = 64;
/// Signals that a fault of the thread itself raises: they come to nobody who sleeps.
const OF_FAULTS: [c_int; 5] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];

/// What the handlers of this process do to a read that waits: `SA_RESTART` of sigaction(2).
///
/// A read goes on after a handler with it, and ends with `EINTR` after one without; poll(2) ends
/// after both. So who sleeps by the latter in place of the former has to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Handlers {
    /// It goes on.
    Restart,
    /// It ends.
    Interrupt,
    /// That depends on the signal.
    Differ,
}

impl Handlers {
    /// As they are now.
    pub(crate) fn now() -> Self {
        let of_others = |signal: &c_int| !OF_FAULTS.contains(signal);
        Self::of((1..=LAST_SIGNAL).filter(of_others).filter_map(flags_of_handler))
    }

    fn of(mut flags: impl Iterator<Item = c_int>) -> Self {
        let restarts = |flags: c_int| flags & libc::SA_RESTART != 0;
        let Some(first) = flags.next().map(restarts) else { return Self::Restart };
        match (flags.all(|flags| restarts(flags) == first), first) {
            (false, _) => Self::Differ,
            (true, true) => Self::Restart,
            (true, false) => Self::Interrupt,
        }
    }

    /// Whether all do the same, as they were a short time ago.
    pub(crate) fn agree() -> bool {
        static LEFT: AtomicU8 = AtomicU8::new(0);
        // What differs is looked at each time, and so is what has lasted long enough.
        if LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |l| l.checked_sub(1)).is_ok() {
            return true;
        }
        let agree = Self::now() != Self::Differ;
        LEFT.store(if agree { LASTS } else { 0 }, Ordering::Relaxed);
        agree
    }
}

/// The flags of the handler of a signal, if it has one.
fn flags_of_handler(signal: c_int) -> Option<c_int> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: it changes nothing, and there is room for the answer.
    if unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) } != 0 {
        // Those that the C library keeps for itself.
        return None;
    }
    // SAFETY: the call has filled it in; zeroed, it was valid before, too.
    let action = unsafe { action.assume_init() };
    let is_handled = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
    is_handled.then_some(action.sa_flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_handlers_do_together() {
        let of = |flags: &[c_int]| Handlers::of(flags.iter().copied());
        assert_eq!(of(&[]), Handlers::Restart, "nothing is interrupted");
        assert_eq!(of(&[libc::SA_RESTART, libc::SA_RESTART | libc::SA_SIGINFO]), Handlers::Restart);
        assert_eq!(of(&[0, libc::SA_SIGINFO]), Handlers::Interrupt);
        assert_eq!(of(&[0, libc::SA_RESTART]), Handlers::Differ);
    }
}
