//! Atomics for memory that stays where it is; the kernel for memory that may go away.
//!
//! An atomic on memory that may go away is refused: only the processor could do it, and its fault
//! would be fatal.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

#[cfg(not(miri))]
use super::by_kernel;
use super::{Unmapped, atomic};

/// No fault is caught: there is none.
pub(in super::super) const CATCHES: bool = false;

/// There is nothing to find out.
pub(in super::super) fn prepare() {}

/// Whether the kernel must be asked.
const fn ask(can_fault: bool) -> bool {
    can_fault && cfg!(not(miri))
}

#[cfg(miri)]
mod by_kernel {
    //! Never called: see `ask`.
    use super::Unmapped;

    pub(super) unsafe fn load(_: *mut u8, _: &mut [u8]) -> Result<(), Unmapped> {
        Err(Unmapped)
    }

    pub(super) unsafe fn store(_: &[u8], _: *mut u8) -> Result<(), Unmapped> {
        Err(Unmapped)
    }
}

/// Copies registered bytes from `from` on into `to`; after a fault `to` has some of them.
///
/// # Safety
///
/// Unless `can_fault`, `from` is valid for `to.len()` bytes. Others may access them atomically at
/// the same time.
pub(in super::super) unsafe fn load(
    from: *mut u8,
    to: &mut [u8],
    can_fault: bool,
) -> Result<(), Unmapped> {
    if ask(can_fault) {
        // SAFETY: the caller vouches for it.
        return unsafe { by_kernel::load(from, to) };
    }
    // SAFETY: the caller vouches for it.
    unsafe { atomic::load(from, to) }
    Ok(())
}

/// Copies `from` into the registered bytes from `to` on, the last one last; after a fault some are
/// written, from the first on.
///
/// # Safety
///
/// As for [`load`], of `to`; and `from` is not among the registered bytes.
pub(in super::super) unsafe fn store(
    from: &[u8],
    to: *mut u8,
    can_fault: bool,
) -> Result<(), Unmapped> {
    if ask(can_fault) {
        // SAFETY: the caller vouches for it.
        return unsafe { by_kernel::store(from, to) };
    }
    // SAFETY: the caller vouches for it.
    unsafe { atomic::store(from, to) }
    Ok(())
}

/// Reads a word, with acquire ordering.
///
/// # Safety
///
/// `at` is a multiple of 8, and eight bytes from there on are as [`load`] wants them.
pub(in super::super) unsafe fn load_u64(at: *mut u8, can_fault: bool) -> Result<u64, Unmapped> {
    if ask(can_fault) {
        let mut bytes = [0; 8];
        // SAFETY: the caller vouches for it.
        unsafe { by_kernel::load(at, &mut bytes) }?;
        return Ok(u64::from_ne_bytes(bytes));
    }
    // SAFETY: the caller vouches for it.
    Ok(unsafe { atomic::word(at) }.load(Ordering::Acquire))
}

/// Writes a word, with release ordering.
///
/// # Safety
///
/// As for [`load_u64`].
pub(in super::super) unsafe fn store_u64(
    at: *mut u8,
    value: u64,
    can_fault: bool,
) -> Result<(), Unmapped> {
    if ask(can_fault) {
        return Err(Unmapped);
    }
    // SAFETY: the caller vouches for it.
    unsafe { atomic::word(at) }.store(value, Ordering::Release);
    Ok(())
}

/// Adds to a word, wrapping, and gives what it held: one atomic operation.
///
/// # Safety
///
/// As for [`load_u64`].
pub(in super::super) unsafe fn fetch_add(
    at: *mut u8,
    add: u64,
    can_fault: bool,
) -> Result<u64, Unmapped> {
    if ask(can_fault) {
        return Err(Unmapped);
    }
    // SAFETY: the caller vouches for it.
    Ok(unsafe { atomic::word(at) }.fetch_add(add, Ordering::AcqRel))
}

/// Stores `swap` in a word if it holds `compare`, and gives what it held: one atomic operation.
///
/// # Safety
///
/// As for [`load_u64`].
pub(in super::super) unsafe fn compare_swap(
    at: *mut u8,
    compare: u64,
    swap: u64,
    can_fault: bool,
) -> Result<u64, Unmapped> {
    if ask(can_fault) {
        return Err(Unmapped);
    }
    // SAFETY: the caller vouches for it.
    let word = unsafe { atomic::word(at) };
    let done = word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire);
    Ok(done.unwrap_or_else(|held| held))
}

/// Reads a byte, so that its page is there.
///
/// # Safety
///
/// The byte at `at` is as [`load`] wants it.
pub(in super::super) unsafe fn touch(at: *mut u8, can_fault: bool) -> Result<(), Unmapped> {
    if ask(can_fault) {
        // SAFETY: the caller vouches for it.
        return unsafe { by_kernel::load(at, &mut [0]) };
    }
    // SAFETY: the caller vouches for it.
    unsafe { atomic::byte(at) }.load(Ordering::Relaxed);
    Ok(())
}

/// Makes the page of a byte one that can be written to, and changes nothing.
///
/// # Safety
///
/// The byte at `at` is as [`load`] wants it.
pub(in super::super) unsafe fn touch_to_write(
    at: *mut u8,
    can_fault: bool,
) -> Result<(), Unmapped> {
    if ask(can_fault) {
        // Reading is all that can be tried without changing what others write meanwhile.
        // SAFETY: the caller vouches for it.
        return unsafe { by_kernel::load(at, &mut [0]) };
    }
    // SAFETY: the caller vouches for it.
    unsafe { atomic::byte(at) }.fetch_or(0, Ordering::Relaxed);
    Ok(())
}

/// Whether a fault is one of these functions: never, since there is none.
///
/// # Safety
///
/// None is needed here; `caught` has the same signature.
pub(in super::super) unsafe fn recover(_context: *mut c_void) -> bool {
    false
}
