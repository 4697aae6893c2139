//! Accesses by Rust's atomics, byte by byte, for memory that stays where it is.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Copies registered bytes from `from` on into `to`, each by an atomic load.
///
/// # Safety
///
/// `from` must be valid for `to.len()` bytes, which others may access atomically at the same time.
pub(super) unsafe fn load(from: *mut u8, to: &mut [u8]) {
    for (i, to) in to.iter_mut().enumerate() {
        // SAFETY: `i` is below the length for which the caller vouches, for reading and writing; a
        // byte is aligned anywhere.
        let from = unsafe { AtomicU8::from_ptr(from.add(i)) };
        *to = from.load(Ordering::Relaxed);
    }
}

/// Copies `from` into the registered bytes from `to` on in ascending order, each by an atomic
/// store, and the last one with release ordering (R61).
///
/// # Safety
///
/// `to` must be valid for `from.len()` bytes, which others may access atomically at the same time,
/// and `from` must not be among them.
pub(super) unsafe fn store(from: &[u8], to: *mut u8) {
    let last = from.len().saturating_sub(1);
    for (i, from) in from.iter().enumerate() {
        let order = if i == last { Ordering::Release } else { Ordering::Relaxed };
        // SAFETY: as in `load`.
        let to = unsafe { AtomicU8::from_ptr(to.add(i)) };
        to.store(*from, order);
    }
}

/// A word of registered memory.
///
/// # Safety
///
/// `at` must be a multiple of 8, and valid for eight bytes as long as the reference lives.
pub(super) unsafe fn word<'a>(at: *mut u8) -> &'a AtomicU64 {
    // SAFETY: the caller vouches for alignment and validity; others access it atomically too.
    unsafe { AtomicU64::from_ptr(at.cast()) }
}

/// A byte of registered memory.
///
/// # Safety
///
/// `at` must be valid as long as the reference lives.
pub(super) unsafe fn byte<'a>(at: *mut u8) -> &'a AtomicU8 {
    // SAFETY: the caller vouches for validity; a byte is aligned anywhere.
    unsafe { AtomicU8::from_ptr(at) }
}
