//! Threads of this library in a program that may not know of them.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::thread::{Builder, JoinHandle};

/// Signals that a thread raises by what it does itself: blocked ones would be fatal, whatever the
/// program's handler makes of them.
const OWN_SIGNALS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Starts a thread that blocks the signals of others, so that these go to the program's threads:
/// one that waits for SIGTERM with `sigwait`, or counts on a call being interrupted, gets its own.
///
/// # Errors
///
/// As [`Builder::spawn`].
pub(crate) fn spawn_deaf<T: Send + 'static>(
    builder: Builder,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let old = block_others();
    // The new thread has the mask of the one that makes it.
    let spawned = builder.spawn(body);
    restore(&old);
    spawned
}

/// Blocks the signals of others in this thread, and gives the mask that it had.
#[allow(unsafe_code)]
fn block_others() -> libc::sigset_t {
    let (mut others, mut old) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the set is written before it is read; with these arguments no call can fail, so the
    // old mask is written too.
    unsafe {
        libc::sigfillset(others.as_mut_ptr());
        for signal in OWN_SIGNALS {
            libc::sigdelset(others.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, others.as_ptr(), old.as_mut_ptr());
        old.assume_init()
    }
}

/// Gives this thread a mask that it had before.
#[allow(unsafe_code)]
fn restore(mask: &libc::sigset_t) {
    // SAFETY: the mask is initialised; the one before is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether this thread blocks a signal.
    #[allow(unsafe_code)]
    fn blocks(signal: libc::c_int) -> bool {
        let mut now = MaybeUninit::uninit();
        // SAFETY: no new mask is given, and the present one is written before it is read.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), now.as_mut_ptr());
            libc::sigismember(now.as_ptr(), signal) == 1
        }
    }

    #[test]
    fn the_new_thread_is_deaf_and_its_maker_is_not() {
        let look = || (blocks(libc::SIGTERM), blocks(libc::SIGSEGV));
        let thread = spawn_deaf(Builder::new(), look).expect("a thread");
        assert_eq!(thread.join().expect("an end"), (true, false));
        assert_eq!(look(), (false, false));
    }
}
