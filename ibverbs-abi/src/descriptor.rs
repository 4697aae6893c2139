//! The descriptors that programs sleep on.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::call::Refused;

/// Makes reads of a descriptor wait. The program changes that with `O_NONBLOCK`, as with the
/// descriptors of the kernel.
pub(crate) fn let_block(fd: BorrowedFd<'_>) -> Result<(), Refused> {
    // SAFETY: the descriptor is open, and these two change its flags alone.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(Refused::os("the flags of a descriptor"));
    }
    // SAFETY: as above.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags & !libc::O_NONBLOCK) } < 0 {
        return Err(Refused::os("the flags of a descriptor"));
    }
    Ok(())
}

/// Takes one count of an event descriptor, as the kernel would let a program wait: for ever, not at
/// all (`EAGAIN`), or until a signal (`EINTR`).
pub(crate) fn take_count(fd: c_int) -> Result<(), Refused> {
    let mut count = 0_u64;
    // SAFETY: the buffer has as many bytes.
    let read = unsafe { libc::read(fd, (&raw mut count).cast(), size_of::<u64>()) };
    if read < 0 { Err(Refused::os("waiting for an event")) } else { Ok(()) }
}
