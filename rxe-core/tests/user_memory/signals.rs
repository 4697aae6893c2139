//! The handlers, in processes of their own: what is not ours goes on to whom it would have gone to.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Output};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use rxe_core::mem::{Backing, CatchFaultsError, Fault, catch_faults, unblock_faults};

use crate::pages::{PAGE, Pages};

/// The code of a fault on a page that is there, but not for this access.
const SEGV_ACCERR: i32 = 2;
/// Names the test that a process runs as a child.
const CHILD: &str = "URXE_TEST_CHILD";

/// Runs `body` in a process of its own, for the test of that name, and tells how that ended.
fn in_child(name: &str, body: impl FnOnce()) -> ExitStatus {
    if std::env::var(CHILD).is_ok_and(|child| child == name) {
        body();
        std::process::exit(0);
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", &format!("signals::{name}"), "--nocapture", "--test-threads=1"]);
    let Output { status, stdout, stderr } = child.env(CHILD, name).output().unwrap();
    print!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    status
}

/// That a child has run to its end.
fn succeeds(name: &str, body: impl FnOnce()) {
    let status = in_child(name, body);
    assert!(status.success(), "{status:?}");
}

/// That a signal has ended a child.
fn dies_of(signal: c_int, name: &str, body: impl FnOnce()) {
    let status = in_child(name, body);
    assert_eq!(status.signal(), Some(signal), "{status:?}");
}

/// Installs an action, and gives the one before.
fn install(signal: c_int, handler: usize, flags: c_int, masked: &[c_int]) -> libc::sigaction {
    // SAFETY: all fields may be zero.
    let mut action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    (action.sa_sigaction, action.sa_flags) = (handler, flags);
    for &masked in masked {
        // SAFETY: the set is empty, and ours.
        unsafe { libc::sigaddset(&mut action.sa_mask, masked) };
    }
    let mut old = action;
    // SAFETY: both are actions, and the handler is a function, or one of the constants.
    assert_eq!(unsafe { libc::sigaction(signal, &action, &mut old) }, 0);
    old
}

/// Whether a signal is blocked in this thread.
fn is_blocked(signal: c_int) -> bool {
    let mut mask = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: only asks for the mask, which is filled then.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), mask.as_mut_ptr());
        libc::sigismember(mask.as_ptr(), signal) == 1
    }
}

/// What the handlers of a test have seen.
static CALLS: AtomicUsize = AtomicUsize::new(0);
static CODE: AtomicI32 = AtomicI32::new(0);
static ADDR: AtomicU64 = AtomicU64::new(0);
static STACK: AtomicU64 = AtomicU64::new(0);
static SEGV_BLOCKED: AtomicBool = AtomicBool::new(false);
static USR1_BLOCKED: AtomicBool = AtomicBool::new(false);
/// The page that the program's own faults are about: its handlers make it accessible.
static OWN: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// What a handler does that knows the signal alone.
extern "C" fn repair(_signal: c_int) {
    let local = 0_u8;
    STACK.store(ptr::from_ref(&local) as u64, Ordering::SeqCst);
    SEGV_BLOCKED.store(is_blocked(libc::SIGSEGV), Ordering::SeqCst);
    USR1_BLOCKED.store(is_blocked(libc::SIGUSR1), Ordering::SeqCst);
    CALLS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: a page of the test, which nothing refers to.
    unsafe {
        libc::mprotect(OWN.load(Ordering::SeqCst), PAGE, libc::PROT_READ | libc::PROT_WRITE);
    }
}

/// And one that is told more.
extern "C" fn repair_by_info(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    assert!(!context.is_null());
    // SAFETY: the kernel's, or whoever has called us has handed it on.
    let (code, addr) = unsafe { ((*info).si_code, (*info).si_addr()) };
    CODE.store(code, Ordering::SeqCst);
    ADDR.store(addr as u64, Ordering::SeqCst);
    repair(signal);
}

/// A page of the program's own, that it may not access.
fn own_page() -> Pages {
    let own = Pages::anonymous(1);
    own.protect(0, 1, libc::PROT_NONE);
    OWN.store(own.addr() as *mut c_void, Ordering::SeqCst);
    own
}

/// Accesses the page, which is a fault if it may not be accessed.
fn touch(own: &Pages) {
    assert_eq!(own.byte(77), 0);
}

/// Registered memory that is not there.
fn hole() -> (Pages, Arc<dyn Backing>) {
    let pages = Pages::anonymous(1);
    let memory = pages.backing();
    pages.unmap(0, 1);
    (pages, memory)
}

/// That faults of registered memory are caught.
fn copies_fail() {
    let (_pages, memory) = hole();
    assert!(matches!(memory.write_at(0, &[1; 9]), Err(Fault::Unmapped { .. })));
    assert!(matches!(memory.fetch_add_u64(8, 1), Err(Fault::Unmapped { .. })));
}

#[test]
fn a_genuine_crash_is_still_one() {
    dies_of(libc::SIGSEGV, "a_genuine_crash_is_still_one", || {
        copies_fail();
        touch(&own_page());
    });
}

#[test]
fn a_genuine_crash_by_default_is_still_one() {
    dies_of(libc::SIGSEGV, "a_genuine_crash_by_default_is_still_one", || {
        install(libc::SIGSEGV, libc::SIG_DFL, 0, &[]);
        copies_fail();
        touch(&own_page());
    });
}

#[test]
fn a_genuine_bus_error_is_still_one() {
    dies_of(libc::SIGBUS, "a_genuine_bus_error_is_still_one", || {
        install(libc::SIGBUS, libc::SIG_DFL, 0, &[]);
        copies_fail();
        let pages = Pages::of_file(1);
        pages.truncate(0);
        touch(&pages);
    });
}

/// The kernel does not let a fault be ignored, so we do not either.
#[test]
fn a_fault_cannot_be_ignored() {
    dies_of(libc::SIGSEGV, "a_fault_cannot_be_ignored", || {
        install(libc::SIGSEGV, libc::SIG_IGN, 0, &[]);
        copies_fail();
        touch(&own_page());
    });
}

/// But what others send can.
#[test]
fn a_signal_that_is_sent_can_be_ignored() {
    succeeds("a_signal_that_is_sent_can_be_ignored", || {
        install(libc::SIGSEGV, libc::SIG_IGN, 0, &[]);
        copies_fail();
        // SAFETY: sends a signal to ourselves.
        assert_eq!(unsafe { libc::raise(libc::SIGSEGV) }, 0);
        copies_fail();
    });
}

#[test]
fn a_signal_that_is_sent_ends_the_process_by_default() {
    dies_of(libc::SIGSEGV, "a_signal_that_is_sent_ends_the_process_by_default", || {
        install(libc::SIGSEGV, libc::SIG_DFL, 0, &[]);
        copies_fail();
        // SAFETY: sends a signal to ourselves.
        unsafe { libc::kill(libc::getpid(), libc::SIGSEGV) };
        std::thread::sleep(std::time::Duration::from_secs(5));
    });
}

#[test]
fn the_programs_own_handler_gets_its_own_faults() {
    succeeds("the_programs_own_handler_gets_its_own_faults", || {
        let flags = libc::SA_SIGINFO;
        install(libc::SIGSEGV, repair_by_info as *const () as usize, flags, &[libc::SIGUSR1]);
        copies_fail();
        assert_eq!(CALLS.load(Ordering::SeqCst), 0, "ours is not its business");
        let own = own_page();
        touch(&own);
        assert_eq!(CALLS.load(Ordering::SeqCst), 1);
        assert_eq!(ADDR.load(Ordering::SeqCst), own.addr() + 77);
        assert_eq!(CODE.load(Ordering::SeqCst), SEGV_ACCERR);
        // With the mask that it asked for, and the signal itself.
        assert!(USR1_BLOCKED.load(Ordering::SeqCst) && SEGV_BLOCKED.load(Ordering::SeqCst));
        assert!(!is_blocked(libc::SIGSEGV) && !is_blocked(libc::SIGUSR1));
        // What is sent is told as such.
        // SAFETY: sends a signal to ourselves.
        unsafe { libc::kill(libc::getpid(), libc::SIGSEGV) };
        while CALLS.load(Ordering::SeqCst) < 2 {
            std::hint::spin_loop();
        }
        assert_eq!(CODE.load(Ordering::SeqCst), libc::SI_USER);
        copies_fail();
        assert_eq!(CALLS.load(Ordering::SeqCst), 2);
    });
}

#[test]
fn a_handler_of_the_signal_alone_gets_its_faults() {
    succeeds("a_handler_of_the_signal_alone_gets_its_faults", || {
        install(libc::SIGSEGV, repair as *const () as usize, libc::SA_NODEFER, &[]);
        copies_fail();
        touch(&own_page());
        assert_eq!(CALLS.load(Ordering::SeqCst), 1);
        assert!(!SEGV_BLOCKED.load(Ordering::SeqCst), "SA_NODEFER");
        assert!(!USR1_BLOCKED.load(Ordering::SeqCst));
        touch(&own_page());
        assert_eq!(CALLS.load(Ordering::SeqCst), 2);
    });
}

#[test]
fn a_handler_for_one_signal_gets_one() {
    dies_of(libc::SIGSEGV, "a_handler_for_one_signal_gets_one", || {
        install(libc::SIGSEGV, repair as *const () as usize, libc::SA_RESETHAND, &[]);
        copies_fail();
        touch(&own_page());
        assert_eq!(CALLS.load(Ordering::SeqCst), 1);
        copies_fail();
        // Its last word, if the next fault did not end it.
        touch(&own_page());
        std::process::exit(1);
    });
}

#[test]
fn a_handler_runs_on_the_stack_that_it_asked_for() {
    succeeds("a_handler_runs_on_the_stack_that_it_asked_for", || {
        let stack = vec![0_u8; 64 << 10].leak();
        let range = stack.as_ptr_range();
        let range = range.start as u64..range.end as u64;
        let alternate =
            libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
        // SAFETY: the stack is leaked, and used for nothing else.
        assert_eq!(unsafe { libc::sigaltstack(&alternate, ptr::null_mut()) }, 0);
        for (flags, is_on_it) in [(0, false), (libc::SA_ONSTACK, true)] {
            install(libc::SIGSEGV, repair as *const () as usize, flags, &[]);
            copies_fail();
            touch(&own_page());
            assert_eq!(range.contains(&STACK.load(Ordering::SeqCst)), is_on_it, "{flags}");
        }
    });
}

/// Signals that arrive in the middle of a copy are not taken for faults of it.
#[test]
fn a_signal_that_is_sent_in_the_middle_of_a_copy_is_no_fault() {
    succeeds("a_signal_that_is_sent_in_the_middle_of_a_copy_is_no_fault", || {
        let _own = own_page();
        install(libc::SIGSEGV, repair as *const () as usize, 0, &[]);
        let pages = Pages::anonymous(1000);
        let memory = pages.backing();
        // SAFETY: asks who we are.
        let copier = unsafe { libc::pthread_self() };
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    // SAFETY: the thread waits for this one.
                    unsafe { libc::pthread_kill(copier, libc::SIGSEGV) };
                }
            });
            let mut private = vec![0; 1000 * PAGE];
            // Next to nothing is done but copying, so nearly all of them meet a copy.
            while CALLS.load(Ordering::SeqCst) < 100 {
                assert_eq!(memory.read_at(0, &mut private), Ok(()));
                assert_eq!(memory.write_at(0, &private), Ok(()));
            }
            ended.store(true, Ordering::Relaxed);
        });
    });
}

/// What a handler that was installed over ours found.
static BELOW: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// A handler that knows its own page, and hands down everything else, as a good one does.
extern "C" fn polite<const N: usize>(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: the kernel's, or whoever has called us has handed it on.
    let at = unsafe { (*info).si_addr() } as u64;
    let own = OWN.load(Ordering::SeqCst) as u64;
    if (own..own + PAGE as u64).contains(&at) {
        return repair_by_info(signal, info, context);
    }
    CODE.store(-1, Ordering::SeqCst);
    type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    // SAFETY: what was installed, with SA_SIGINFO.
    let below: Handler = unsafe { std::mem::transmute(BELOW[N].load(Ordering::SeqCst)) };
    below(signal, info, context);
}

fn install_polite<const N: usize>() {
    let old = install(libc::SIGSEGV, polite::<N> as *const () as usize, libc::SA_SIGINFO, &[]);
    assert!(old.sa_flags & libc::SA_SIGINFO != 0);
    BELOW[N].store(old.sa_sigaction, Ordering::SeqCst);
}

#[test]
fn a_handler_above_ours_hands_down_to_it() {
    succeeds("a_handler_above_ours_hands_down_to_it", || {
        let (_pages, memory) = hole();
        install_polite::<0>();
        assert!(memory.write_at(0, &[1]).is_err());
        assert_eq!(CODE.swap(0, Ordering::SeqCst), -1, "it went through the one above");
        touch(&own_page());
        assert_eq!(CALLS.load(Ordering::SeqCst), 1);
        // On top again, and above another one.
        CODE.store(0, Ordering::SeqCst);
        catch_faults().unwrap();
        install_polite::<1>();
        catch_faults().unwrap();
        assert!(memory.write_at(0, &[1]).is_err());
        assert_eq!(CODE.load(Ordering::SeqCst), 0, "nobody else has seen it");
        touch(&own_page());
        assert_eq!(CALLS.load(Ordering::SeqCst), 2);
    });
}

/// The same with a fault that is nobody's: it goes down the whole chain, and ends the process.
#[test]
fn a_genuine_crash_goes_down_the_whole_chain() {
    dies_of(libc::SIGSEGV, "a_genuine_crash_goes_down_the_whole_chain", || {
        let _own = own_page();
        catch_faults().unwrap();
        install_polite::<0>();
        catch_faults().unwrap();
        install_polite::<1>();
        copies_fail();
        let other = Pages::anonymous(1);
        other.protect(0, 1, libc::PROT_NONE);
        touch(&other);
        std::process::exit(1);
    });
}

extern "C" fn nobody<const N: usize>(_signal: c_int) {}

/// Who installs the same handler again and again finds ours above it each time; different ones may
/// come above ours seven times.
#[test]
fn handlers_above_ours_are_bounded() {
    succeeds("handlers_above_ours_are_bounded", || {
        for _ in 0..100 {
            install(libc::SIGSEGV, nobody::<0> as *const () as usize, 0, &[]);
            catch_faults().unwrap();
            copies_fail();
        }
        let others: [extern "C" fn(c_int); 7] = [
            nobody::<1>,
            nobody::<2>,
            nobody::<3>,
            nobody::<4>,
            nobody::<5>,
            nobody::<6>,
            nobody::<7>,
        ];
        for other in others {
            install(libc::SIGSEGV, other as usize, 0, &[]);
            catch_faults().unwrap();
            copies_fail();
        }
        install(libc::SIGSEGV, nobody::<8> as *const () as usize, 0, &[]);
        let error = catch_faults().unwrap_err();
        assert!(matches!(error, CatchFaultsError::TooMany { signal: libc::SIGSEGV }));
        assert_eq!(error.errno(), libc::EBUSY);
    });
}

#[test]
fn a_child_process_catches_its_faults_too() {
    succeeds("a_child_process_catches_its_faults_too", || {
        let (_pages, memory) = hole();
        // SAFETY: the child uses what it has, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let fails = memory.write_at(0, &[1]).is_err();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if fails { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: waits for our child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(memory.write_at(0, &[1]).is_err());
    });
}

/// Blocks SIGSEGV in this thread.
fn block() {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: a set of one signal.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGSEGV);
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), ptr::null_mut());
    }
}

#[test]
fn a_thread_that_has_not_blocked_the_signal_survives() {
    succeeds("a_thread_that_has_not_blocked_the_signal_survives", || {
        block();
        assert!(is_blocked(libc::SIGSEGV));
        unblock_faults();
        assert!(!is_blocked(libc::SIGSEGV));
        copies_fail();
    });
}

/// What docs/memory.md says is a limit, is one: should this ever pass, it can be lifted.
#[test]
fn a_thread_that_has_blocked_the_signal_dies() {
    dies_of(libc::SIGSEGV, "a_thread_that_has_blocked_the_signal_dies", || {
        block();
        copies_fail();
    });
}
