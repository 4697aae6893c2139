//! Memory for registration that this crate allocates.

#![allow(unsafe_code)]

use std::alloc::{Layout, LayoutError, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Deref;
use std::ptr::NonNull;

use super::backing::Backing;
use super::raw;

/// There is not so much memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no memory for {len} bytes: ask for less, or free some")]
pub struct OutOfMemory {
    /// The number of bytes that was asked for.
    pub len: usize,
}

impl OutOfMemory {
    /// `ENOMEM`.
    pub const fn errno(self) -> i32 {
        crate::errno::ENOMEM
    }
}

/// Owned memory for registration: zeroed, page-aligned, reachable only by copies, which are the
/// methods of every [`Backing`].
///
/// Any thread may copy in or out at any time, also while the engine does; bytes that are written
/// at the same time come out as either value.
#[derive(Debug)]
pub struct DmaBuf {
    base: NonNull<u8>,
    len: usize,
    layout: Layout,
}

// SAFETY: `DmaBuf` owns its allocation, and gives access to it only by the copies and atomics of
// `bytes`, which are free of data races by construction (see `bytes`).
unsafe impl Send for DmaBuf {}
// SAFETY: as for `Send`.
unsafe impl Sync for DmaBuf {}

// SAFETY: the allocation lives as long as the value, `base` and `len` never change, an allocation
// never wraps, and no method hands out a reference to its bytes.
unsafe impl Backing for DmaBuf {
    fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl DmaBuf {
    /// Alignment of the first byte.
    pub const ALIGN: usize = 4096;

    /// Allocates `len` zero bytes.
    ///
    /// # Panics
    ///
    /// When `len` exceeds `isize::MAX` less a page, which no allocator could serve. Running out of
    /// memory ends the process, as for any Rust allocation. [`Self::try_zeroed`] does neither.
    pub fn zeroed(len: usize) -> Self {
        let layout = Self::layout(len).expect("less than half of the address space");
        Self::allocate(len, layout).unwrap_or_else(|| handle_alloc_error(layout))
    }

    /// Allocates `len` zero bytes, if there are as many.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`]; a length that no allocator could serve is such a case.
    pub fn try_zeroed(len: usize) -> Result<Self, OutOfMemory> {
        let layout = Self::layout(len).map_err(|_| OutOfMemory { len })?;
        Self::allocate(len, layout).ok_or(OutOfMemory { len })
    }

    /// At least one byte, so that the allocation has an address of its own.
    fn layout(len: usize) -> Result<Layout, LayoutError> {
        Layout::from_size_align(len.max(1), Self::ALIGN)
    }

    fn allocate(len: usize, layout: Layout) -> Option<Self> {
        raw::prepare();
        // SAFETY: the layout's size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { base, len, layout })
    }
}

impl Deref for DmaBuf {
    type Target = dyn Backing;

    fn deref(&self) -> &Self::Target {
        self
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this very layout, and freed only here.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_allocated_is_an_error() {
        let buffer = DmaBuf::try_zeroed(5000).unwrap();
        assert_eq!((buffer.len(), buffer.addr() % DmaBuf::ALIGN as u64), (5000, 0));
        buffer.write_at(4999, &[7]).unwrap();
        let mut last = [1, 1];
        buffer.read_at(4998, &mut last).unwrap();
        assert_eq!(last, [0, 7]);
        assert!(DmaBuf::try_zeroed(0).unwrap().is_empty());
        for len in [usize::MAX, isize::MAX as usize, 1 << 60] {
            let error = DmaBuf::try_zeroed(len).unwrap_err();
            assert_eq!((error, error.errno()), (OutOfMemory { len }, 12));
        }
    }
}
