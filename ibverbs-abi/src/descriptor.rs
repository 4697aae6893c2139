//! The descriptors that programs sleep on.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::call::{Convention, Count, MinusOne, Number, Refused, answer, last_errno};

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

unsafe extern "C-unwind" {
    /// `read(2)` of the C library, where a thread that waits ends when it is cancelled.
    #[link_name = "read"]
    fn read_or_end(fd: c_int, to: *mut c_void, room: usize) -> isize;
}

/// Takes one event off the count of an event descriptor; waits for it, if the descriptor lets it,
/// and then the thread may be cancelled: see [`wait_for`]. The errno, if there is none.
pub(crate) fn read_one(fd: c_int) -> Result<(), c_int> {
    let mut count = 0_u64;
    // SAFETY: there is room for as many bytes. It may unwind, and there is nothing to drop.
    if unsafe { read_or_end(fd, (&raw mut count).cast(), size_of::<u64>()) } < 0 {
        return Err(last_errno());
    }
    Ok(())
}

/// Waits at an event descriptor for each call of `take`, until that has found something; as the
/// kernel would let a program wait: for ever, not at all (`EAGAIN`), or until a signal (`EINTR`).
///
/// While it waits, the thread may be cancelled (see src/call.rs), which leaves this function and its
/// caller as they are: so neither may have anything then that is to be dropped. Therefore nothing is
/// held that belongs to the descriptor: `descriptor` looks it up each time.
pub(crate) fn wait_for(
    call: &'static str,
    descriptor: impl Fn() -> Result<c_int, Refused> + Copy,
    take: impl Fn() -> Result<bool, Refused> + Copy,
) -> MinusOne {
    loop {
        let Number(fd) = answer::<Count>(call, descriptor);
        if fd < 0 {
            return MinusOne::AS_ERRNO_SAYS;
        }
        if let Err(errno) = read_one(fd) {
            return MinusOne::failed(errno);
        }
        match answer::<Count>(call, || take().map(c_int::from)) {
            Number(0) => {}
            Number(1..) => return MinusOne::done(()),
            Number(_) => return MinusOne::AS_ERRNO_SAYS,
        }
    }
}
