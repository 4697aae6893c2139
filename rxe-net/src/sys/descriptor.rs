//! Descriptors of a process that was forked.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// Lets the number `old` stand for what `new` is, and closes what it stood for; closed on exec.
///
/// For numbers of this crate's own descriptors, in a child after fork: whoever owns `old` still owns
/// an open descriptor then, so that nothing is closed twice. Only a system call: a signal handler,
/// and a child of a process with threads, may do it.
pub(crate) fn replace(old: RawFd, new: BorrowedFd<'_>) -> io::Result<()> {
    #[allow(unsafe_code)] // the workspace denies it elsewhere
    // SAFETY: `dup3` takes no pointers. `old` stays an open descriptor, so whoever owns it keeps
    // what ownership promises.
    let result = unsafe { libc::dup3(new.as_raw_fd(), old, libc::O_CLOEXEC) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
