//! Memory for registration that this crate allocates.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use super::backing::Backing;
use super::bytes::Bytes;
use super::fault::Fault;
use super::raw;

/// Owned memory for registration: zeroed, page-aligned, reachable only by copies.
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
    /// memory ends the process, as for any Rust allocation.
    pub fn zeroed(len: usize) -> Self {
        raw::prepare();
        // At least one byte, so that the allocation has an address of its own.
        let layout = Layout::from_size_align(len.max(1), Self::ALIGN)
            .expect("a buffer must be smaller than half of the address space");
        // SAFETY: the layout's size is not zero.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(raw) else { handle_alloc_error(layout) };
        Self { base, len, layout }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte, as work requests and peers name it.
    pub fn addr(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Copies bytes from `offset` on out into `to`.
    ///
    /// # Errors
    ///
    /// [`Fault`] when the range leaves the buffer; nothing is copied then.
    pub fn read_at(&self, offset: usize, to: &mut [u8]) -> Result<(), Fault> {
        Bytes::of(self).read(offset, to)
    }

    /// Copies `from` into the buffer from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Fault`] when the range leaves the buffer; nothing is copied then.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<(), Fault> {
        Bytes::of(self).write(offset, from)
    }

    /// Reads the aligned 64-bit word at `offset` with acquire ordering.
    ///
    /// # Errors
    ///
    /// [`Fault`] when the word leaves the buffer or `offset` is not a multiple of 8.
    pub fn load_u64(&self, offset: usize) -> Result<u64, Fault> {
        Bytes::of(self).load_u64(offset)
    }

    /// Stores `swap` in the aligned 64-bit word at `offset` if it holds `compare`; gives what it
    /// held. Atomic also towards a peer's atomics.
    ///
    /// # Errors
    ///
    /// As [`load_u64`](Self::load_u64).
    pub fn compare_swap_u64(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, Fault> {
        Bytes::of(self).compare_swap(offset, compare, swap)
    }

    /// Adds to the aligned 64-bit word at `offset`, wrapping; gives what it held. Atomic also
    /// towards a peer's atomics.
    ///
    /// # Errors
    ///
    /// As [`load_u64`](Self::load_u64).
    pub fn fetch_add_u64(&self, offset: usize, add: u64) -> Result<u64, Fault> {
        Bytes::of(self).fetch_add(offset, add)
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this very layout, and freed only here.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}
