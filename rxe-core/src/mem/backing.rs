//! What memory must be like to be registered.

#![allow(unsafe_code)]

use std::fmt::Debug;
use std::sync::Arc;

use super::bytes::Bytes;
use super::fault::Fault;

/// Memory that can be registered.
///
/// [`DmaBuf`](super::DmaBuf) is memory of our own, [`UserMemory`](super::UserMemory) memory of
/// somebody else.
///
/// # Safety
///
/// For as long as the value lives, the `len()` bytes from `base()` on must stay mapped for reading
/// and writing, unless [`can_fault`](Self::can_fault) says otherwise. They must only be accessed by
/// raw pointers, atomics, or code outside Rust: never through a Rust reference while a work request
/// or a peer may touch them. All methods must return the same values every time, and the range must
/// not wrap around the end of the address space.
pub unsafe trait Backing: Send + Sync + Debug {
    /// Address of the first byte; null where the memory begins at address 0.
    fn base(&self) -> *mut u8;

    /// Number of bytes.
    fn len(&self) -> usize;

    /// Whether bytes may not be there: an access is an error then ([`Fault::Unmapped`]).
    ///
    /// Such memory is only accessed where [`catch_faults`](super::catch_faults) has been called.
    fn can_fault(&self) -> bool {
        false
    }

    /// Whether there are no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl dyn Backing + '_ {
    /// Address of the first byte, as work requests and peers name it.
    pub fn addr(&self) -> u64 {
        self.base() as u64
    }

    /// Copies bytes from `offset` on out into `to`.
    ///
    /// # Errors
    ///
    /// [`Fault`]: when the range leaves the memory, nothing is copied; when the memory has gone
    /// away, some may be.
    pub fn read_at(&self, offset: usize, to: &mut [u8]) -> Result<(), Fault> {
        Bytes::of(self).read(offset, to)
    }

    /// Copies `from` into the memory from `offset` on, the last byte last.
    ///
    /// # Errors
    ///
    /// [`Fault`]: when the range leaves the memory, nothing is copied; when the memory has gone
    /// away, some may be.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<(), Fault> {
        Bytes::of(self).write(offset, from)
    }

    /// Reads the aligned 64-bit word at `offset` with acquire ordering.
    ///
    /// # Errors
    ///
    /// [`Fault`] when the word leaves the memory, its address is not a multiple of 8, or it has gone
    /// away.
    pub fn load_u64(&self, offset: usize) -> Result<u64, Fault> {
        Bytes::of(self).load_u64(offset)
    }

    /// Stores `swap` in the aligned 64-bit word at `offset` if it holds `compare`; gives what it
    /// held. Atomic also towards a peer's atomics.
    ///
    /// # Errors
    ///
    /// As `load_u64`.
    pub fn compare_swap_u64(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, Fault> {
        Bytes::of(self).compare_swap(offset, compare, swap)
    }

    /// Adds to the aligned 64-bit word at `offset`, wrapping; gives what it held. Atomic also
    /// towards a peer's atomics.
    ///
    /// # Errors
    ///
    /// As `load_u64`.
    pub fn fetch_add_u64(&self, offset: usize, add: u64) -> Result<u64, Fault> {
        Bytes::of(self).fetch_add(offset, add)
    }
}

/// What can be registered as it is: memory, or a handle to it that others have too.
pub trait IntoBacking {
    /// The memory, shared.
    fn into_backing(self) -> Arc<dyn Backing>;
}

impl<B: Backing + 'static> IntoBacking for B {
    fn into_backing(self) -> Arc<dyn Backing> {
        Arc::new(self)
    }
}

impl<B: Backing + 'static> IntoBacking for Arc<B> {
    fn into_backing(self) -> Arc<dyn Backing> {
        self
    }
}

impl IntoBacking for Arc<dyn Backing> {
    fn into_backing(self) -> Self {
        self
    }
}
