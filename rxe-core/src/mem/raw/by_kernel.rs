//! Copies that the kernel does from this process to itself, for memory that may go away: where it
//! is not there, the call fails, and nobody faults. Each costs more than a microsecond.

use std::io;

use super::Unmapped;

/// Copies bytes from `from` on into `to`; after a fault `to` has some of them.
///
/// # Safety
///
/// No Rust reference to the bytes from `from` on is written through meanwhile.
pub(super) unsafe fn load(from: *mut u8, to: &mut [u8]) -> Result<(), Unmapped> {
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: from.cast(), iov_len: to.len() };
    // SAFETY: both vectors have one entry, and `to` is exclusive and valid. What `remote` names is
    // read by the kernel, as the caller allows; it fails where it cannot.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    all_of(to.len(), copied)
}

/// Copies `from` to the bytes from `to` on; after a fault some are written, from the first on.
///
/// # Safety
///
/// The bytes from `to` on are not mapped, or may be written, and there is no Rust reference to
/// them.
pub(super) unsafe fn store(from: &[u8], to: *mut u8) -> Result<(), Unmapped> {
    // R61: in which order the kernel writes is its own business, so the last byte goes by itself.
    let Some((last, rest)) = from.split_last() else { return Ok(()) };
    // SAFETY: the caller vouches for the bytes.
    unsafe { store_in_any_order(rest, to) }?;
    // SAFETY: as above.
    unsafe { store_in_any_order(std::slice::from_ref(last), to.wrapping_add(rest.len())) }
}

/// As [`store`], with the last byte at any time.
unsafe fn store_in_any_order(from: &[u8], to: *mut u8) -> Result<(), Unmapped> {
    let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
    let remote = libc::iovec { iov_base: to.cast(), iov_len: from.len() };
    // SAFETY: both vectors have one entry; `from` is valid, and only read. What `remote` names is
    // written by the kernel, as the caller allows; it fails where it cannot.
    let copied = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
    all_of(from.len(), copied)
}

/// Whether all was copied.
fn all_of(len: usize, copied: isize) -> Result<(), Unmapped> {
    if usize::try_from(copied).is_ok_and(|copied| copied == len) {
        return Ok(());
    }
    if copied < 0 {
        // Where the call is not allowed, all memory of others looks as if it were away.
        let error = io::Error::last_os_error();
        tracing::debug!(target: "rxe::mem", %error, "the kernel does not copy");
    }
    Err(Unmapped)
}
