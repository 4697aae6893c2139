//! Memory that somebody else owns: a C program, or any other part of this process.

#![allow(unsafe_code)]

use super::RegMrError;
use super::backing::Backing;
use super::bytes::Bytes;
use super::fault::Fault;

/// Memory of this process that its owner keeps: what `ibv_reg_mr` gets.
///
/// Nothing is allocated, copied or pinned, and dropping it frees nothing. Once
/// [`catch_faults`](super::catch_faults) has been called, the memory may be unmapped, protected or
/// truncated while it is registered: an access that it does not allow is an error then
/// ([`Fault::Unmapped`]), by which the work request fails, or the peer's.
///
/// All of memory, as `ibv_reg_mr` with address 0, length `SIZE_MAX` and `IBV_ACCESS_ON_DEMAND`
/// wants it, is `UserMemory::new(null_mut(), usize::MAX)`.
#[derive(Debug)]
pub struct UserMemory {
    base: *mut u8,
    len: usize,
}

// SAFETY: it is an address and a length; whoever makes one promises (`new`) that the bytes may be
// accessed as `Backing` says, by any thread.
unsafe impl Send for UserMemory {}
// SAFETY: as for `Send`.
unsafe impl Sync for UserMemory {}

// SAFETY: base and length never change, `new` refuses a range that wraps, and its caller vouches
// for the bytes.
unsafe impl Backing for UserMemory {
    fn base(&self) -> *mut u8 {
        self.base
    }

    fn len(&self) -> usize {
        self.len
    }

    fn can_fault(&self) -> bool {
        true
    }
}

impl UserMemory {
    /// Takes note of the `len` bytes from `base` on.
    ///
    /// # Errors
    ///
    /// [`RegMrError::Wraps`] when the range leaves the address space.
    ///
    /// # Safety
    ///
    /// From when the memory is registered until its last registration has ended:
    ///
    /// * Every byte that a work request or a peer may access by a key is mapped: for reading, and
    ///   if it may be written, for writing. Or [`catch_faults`](super::catch_faults) has been
    ///   called, and nobody has come above its handlers who does not hand down to them.
    /// * No Rust reference to such a byte exists, and no Rust code but raw pointers and atomics
    ///   accesses it. Rust memory is of an allocation whose provenance was exposed.
    ///
    /// Whoever has a key may change all bytes that it gives access to: the caller sees to it that
    /// nothing relies on them. That is whatever is mapped there at that time, when the memory has
    /// been unmapped since; and all of the program for a region of all of memory.
    pub unsafe fn new(base: *mut u8, len: usize) -> Result<Self, RegMrError> {
        if (base as usize).checked_add(len).is_none() {
            return Err(RegMrError::Wraps { iova: base as u64, length: len as u64 });
        }
        Ok(Self { base, len })
    }

    /// Touches each page, for writing if it is to be written to (`to_write`), so that it is there.
    ///
    /// To register memory in hardware does this, since it pins the pages: `ibv_reg_mr` fails with
    /// `EFAULT` for memory that is not there, or cannot be written to. Here that is the caller's
    /// choice; it costs a page fault for each page that was not there.
    ///
    /// # Errors
    ///
    /// [`Fault::Unmapped`] with the first address that is not there.
    pub fn populate(&self, to_write: bool) -> Result<(), Fault> {
        Bytes::of(self).touch(0, self.len, to_write)
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_the_owner_writes_is_read_and_the_other_way_round() {
        let mut owned = vec![0_u64; 8];
        let base = ptr::from_mut(&mut owned[0]).cast::<u8>();
        // SAFETY: the vector outlives the backing, and is accessed by `base` alone until then.
        let memory = unsafe { UserMemory::new(owned.as_mut_ptr().cast(), 64) }.unwrap();
        let memory: Arc<dyn Backing> = Arc::new(memory);
        assert_eq!((memory.addr(), memory.len()), (base as u64, 64));
        memory.write_at(3, b"abc").unwrap();
        memory.write_at(8, &7_u64.to_ne_bytes()).unwrap();
        assert_eq!(memory.load_u64(8), Ok(7));
        assert!(memory.write_at(62, b"abc").is_err());
        let mut back = [0; 3];
        memory.read_at(3, &mut back).unwrap();
        assert_eq!(&back, b"abc");
        drop(memory);
        assert_eq!(owned[..2], [u64::from_ne_bytes(*b"\0\0\0abc\0\0"), 7]);
    }

    #[test]
    fn a_range_that_wraps_is_refused() {
        let addr = ptr::without_provenance_mut(usize::MAX - 9);
        // SAFETY: nobody accesses it.
        let (fits, wraps) = unsafe { (UserMemory::new(addr, 9), UserMemory::new(addr, 10)) };
        assert!(fits.is_ok());
        let error = wraps.unwrap_err();
        assert_eq!(error, RegMrError::Wraps { iova: u64::MAX - 9, length: 10 });
        assert_eq!(error.errno(), crate::errno::EINVAL);
    }

    #[test]
    fn all_of_memory_is_one_range() {
        // SAFETY: nobody accesses it.
        let all = unsafe { UserMemory::new(ptr::null_mut(), usize::MAX) }.unwrap();
        assert_eq!((all.base().addr(), all.len()), (0, usize::MAX));
    }
}
