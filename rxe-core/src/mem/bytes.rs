//! Registered bytes: every access to them goes through here.
//!
//! The program and its peers may read and write registered memory at any time, so no Rust
//! reference to it ever exists (ARCHITECTURE.md, "Memory"). Everything goes through copies
//! between it and private buffers:
//!
//! * copies never hold a `&[u8]` or `&mut [u8]` of registered memory, only a raw pointer;
//! * on x86-64 they are assembly, which the compiler can neither reorder into something else nor
//!   assume anything about; elsewhere, under Miri, and with `--cfg rxe_strict_mem`, each byte is a
//!   relaxed atomic access ([`raw`]);
//! * they go in ascending order, the last byte last, since programs poll on it (R61). x86-64 keeps
//!   the order of stores; elsewhere the last byte is stored with release ordering;
//! * they are fallible: a range outside the backing is a [`Fault`], and so is memory that has been
//!   unmapped or protected, or whose file has been truncated.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::sync::Arc;

use super::backing::Backing;
use super::fault::Fault;
use super::raw::{self, Unmapped};

/// Bytes of the smallest page that a processor has.
const PAGE: usize = 4096;

/// Bytes in front of those copied that [`Bytes::read_summed`] sums too: those of BTH.
pub(super) const SUMMED_HEADER: usize = 12;

/// The bytes of some memory, as long as it is borrowed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes<'a> {
    base: *mut u8,
    size: usize,
    /// They may go away at any time.
    can_fault: bool,
    memory: PhantomData<&'a dyn Backing>,
}

impl<'a> Bytes<'a> {
    pub(super) fn of(memory: &'a (impl Backing + ?Sized)) -> Self {
        let (base, size, can_fault) = (memory.base(), memory.len(), memory.can_fault());
        Self { base, size, can_fault, memory: PhantomData }
    }
}

impl Bytes<'_> {
    /// Checks a range, and gives the address of its first byte.
    #[inline]
    fn locate(self, offset: usize, len: usize) -> Result<*mut u8, Fault> {
        let size = self.size;
        match offset.checked_add(len) {
            // Within the memory or one past its end, so it does not wrap.
            Some(end) if end <= size => Ok(self.base.wrapping_add(offset)),
            _ => Err(Fault::Outside { offset, len, size }),
        }
    }

    /// The address of the aligned 64-bit word at `offset`.
    fn locate_word(self, offset: usize) -> Result<*mut u8, Fault> {
        let at = self.locate(offset, 8)?;
        if at.addr().is_multiple_of(8) {
            Ok(at)
        } else {
            Err(Fault::Misaligned { addr: at.addr() as u64 })
        }
    }

    /// Copies bytes from `offset` on out into `to`.
    ///
    /// # Errors
    ///
    /// [`Fault`]: where the range leaves the memory, nothing is copied; where the memory has gone
    /// away, some may be.
    #[inline]
    pub(super) fn read(self, offset: usize, to: &mut [u8]) -> Result<(), Fault> {
        let (from, len) = (self.locate(offset, to.len())?, to.len());
        // SAFETY: `from` is valid for `to.len()` bytes by the check and the backing's contract, or
        // can fault. Private buffers are not registered.
        unsafe { raw::load(from, to, self.can_fault) }.map_err(|Unmapped| unmapped(from, len))
    }

    /// Copies bytes from `offset` on out to behind the first [`SUMMED_HEADER`] bytes of `packet`.
    ///
    /// It gives the CRC register after all bytes of `packet`, from a register of zero and without
    /// inversion; `None` where the processor or the length is not fit for that.
    ///
    /// # Errors
    ///
    /// As [`Self::read`]; also where `packet` is shorter than its header.
    #[inline]
    pub(super) fn read_summed(
        self,
        offset: usize,
        packet: &mut [u8],
    ) -> Result<Option<u32>, Fault> {
        let Some((header, to)) = packet.split_first_chunk_mut::<SUMMED_HEADER>() else {
            return Err(Fault::Outside { offset, len: packet.len(), size: self.size });
        };
        #[cfg(all(target_arch = "x86_64", not(miri), not(rxe_strict_mem)))]
        if raw::can_sum(to.len()) {
            let (from, len) = (self.locate(offset, to.len())?, to.len());
            // SAFETY: as in `read`, and the length has been asked for.
            let sum = unsafe { raw::load_summed(header, from, to) };
            return sum.map(Some).map_err(|Unmapped| unmapped(from, len));
        }
        let _ = header;
        self.read(offset, to).map(|()| None)
    }

    /// Copies `from` to the bytes from `offset` on, the last byte last (R61).
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    #[inline]
    pub(super) fn write(self, offset: usize, from: &[u8]) -> Result<(), Fault> {
        let to = self.locate(offset, from.len())?;
        // SAFETY: as in `read`, with the roles exchanged.
        unsafe { raw::store(from, to, self.can_fault) }.map_err(|Unmapped| unmapped(to, from.len()))
    }

    /// Reads the word at `offset` with acquire ordering.
    ///
    /// # Errors
    ///
    /// [`Fault`] when the word leaves the memory, its address is not a multiple of 8, or it has
    /// gone away.
    pub(super) fn load_u64(self, offset: usize) -> Result<u64, Fault> {
        let at = self.locate_word(offset)?;
        // SAFETY: aligned, and valid as in `read`.
        unsafe { raw::load_u64(at, self.can_fault) }.map_err(|Unmapped| unmapped(at, 8))
    }

    /// Stores eight bytes at `offset` at once: nobody sees a part of them.
    ///
    /// # Errors
    ///
    /// As [`Self::load_u64`].
    pub(super) fn store_u64(self, offset: usize, bytes: [u8; 8]) -> Result<(), Fault> {
        let (at, value) = (self.locate_word(offset)?, u64::from_ne_bytes(bytes));
        // SAFETY: aligned, and valid as in `read`.
        unsafe { raw::store_u64(at, value, self.can_fault) }.map_err(|Unmapped| unmapped(at, 8))
    }

    /// Stores `swap` in the word at `offset` if it holds `compare`, and gives what it held.
    ///
    /// One atomic operation of the processor, also towards the program's own atomics.
    ///
    /// # Errors
    ///
    /// As [`Self::load_u64`].
    pub(super) fn compare_swap(self, offset: usize, compare: u64, swap: u64) -> Result<u64, Fault> {
        let at = self.locate_word(offset)?;
        // SAFETY: aligned, and valid as in `read`.
        unsafe { raw::compare_swap(at, compare, swap, self.can_fault) }
            .map_err(|Unmapped| unmapped(at, 8))
    }

    /// Adds to the word at `offset`, wrapping, and gives what it held.
    ///
    /// # Errors
    ///
    /// As [`Self::load_u64`].
    pub(super) fn fetch_add(self, offset: usize, add: u64) -> Result<u64, Fault> {
        let at = self.locate_word(offset)?;
        // SAFETY: aligned, and valid as in `read`.
        unsafe { raw::fetch_add(at, add, self.can_fault) }.map_err(|Unmapped| unmapped(at, 8))
    }
}

impl Bytes<'_> {
    /// Touches each page of a range, so that it is there: `to_write`, for writing.
    ///
    /// Nothing is changed, also where others write at the same time.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    pub(super) fn touch(self, offset: usize, len: usize, to_write: bool) -> Result<(), Fault> {
        let first = self.locate(offset, len)?;
        // The first byte, and the first one of each page behind it.
        let to_next_page = PAGE - first.addr() % PAGE;
        let pages = (0..len.min(1)).chain((to_next_page..len).step_by(PAGE));
        for skip in pages {
            let at = first.wrapping_add(skip);
            let touched = if to_write {
                // SAFETY: valid as in `read`.
                unsafe { raw::touch_to_write(at, self.can_fault) }
            } else {
                // SAFETY: valid as in `read`.
                unsafe { raw::touch(at, self.can_fault) }
            };
            touched.map_err(|Unmapped| unmapped(at, (len - skip).min(PAGE)))?;
        }
        Ok(())
    }
}

fn unmapped(at: *mut u8, len: usize) -> Fault {
    Fault::Unmapped { addr: at.addr() as u64, len }
}

/// Memory behind a key: a handle, and where its bytes are, so that an access need not ask.
#[derive(Clone, Debug)]
pub(super) struct Registered {
    /// Keeps the bytes.
    _backing: Arc<dyn Backing>,
    base: *mut u8,
    size: usize,
    can_fault: bool,
}

// SAFETY: the pointer is used by the accesses of this file alone, which any thread may do, as
// `Backing: Send + Sync` says of the memory.
unsafe impl Send for Registered {}
// SAFETY: as for `Send`.
unsafe impl Sync for Registered {}

impl Registered {
    pub(super) fn new(backing: Arc<dyn Backing>) -> Self {
        raw::prepare();
        let Bytes { base, size, can_fault, .. } = Bytes::of(&*backing);
        Self { _backing: backing, base, size, can_fault }
    }

    /// Its bytes: `Backing` promises that they are always the same.
    #[inline]
    pub(super) const fn bytes(&self) -> Bytes<'_> {
        let Self { base, size, can_fault, .. } = *self;
        Bytes { base, size, can_fault, memory: PhantomData }
    }
}
#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::super::DmaBuf;
    use super::*;

    /// Every length across the loop's steps, at every misalignment, against a plain copy.
    #[test]
    fn copies_every_length_and_alignment() {
        let memory = DmaBuf::zeroed(512);
        let pattern: Vec<u8> = (0..400u32).map(|i| (i * 7 + 3) as u8).collect();
        let lengths = if cfg!(miri) { 0..40 } else { 0..300 };
        for len in lengths {
            for shift in [0, 1, 3, 8, 15] {
                memory.write_at(0, &[0xee; 512]).unwrap();
                memory.write_at(shift, &pattern[..len]).unwrap();
                let mut whole = [0; 512];
                memory.read_at(0, &mut whole).unwrap();
                assert!(whole[..shift].iter().all(|&b| b == 0xee));
                assert_eq!(whole[shift..shift + len], pattern[..len]);
                assert!(whole[shift + len..].iter().all(|&b| b == 0xee));
                let mut back = vec![0; len];
                memory.read_at(shift, &mut back).unwrap();
                assert_eq!(back, pattern[..len]);
            }
        }
    }

    /// The register after `bytes`, from a register of zero, bit by bit.
    fn register(bytes: &[u8]) -> u32 {
        bytes.iter().fold(0, |register, &byte| {
            (0..8).fold(register ^ u32::from(byte), |register, _| {
                (register >> 1) ^ if register & 1 == 1 { 0xedb8_8320 } else { 0 }
            })
        })
    }

    #[test]
    fn what_is_copied_is_summed() {
        let memory = DmaBuf::zeroed(3 * 4096);
        let mut random = 1_u64;
        let mut byte = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 56) as u8
        };
        let content: Vec<u8> = (0..memory.len()).map(|_| byte()).collect();
        memory.write_at(0, &content).expect("written");
        let mut summed = 0_u32;
        for len in [256, 512, 1024, 2048, 4096, 768, 255, 0, 100] {
            for offset in [0, 1, 63, 4096] {
                let mut packet: Vec<u8> = (0..SUMMED_HEADER + len).map(|_| byte()).collect();
                let header = packet[..SUMMED_HEADER].to_vec();
                let sum = Bytes::of(&memory).read_summed(offset, &mut packet).expect("copied");
                assert_eq!(packet[..SUMMED_HEADER], header);
                assert_eq!(packet[SUMMED_HEADER..], content[offset..offset + len]);
                if let Some(sum) = sum {
                    assert_eq!(sum, register(&packet), "{len} bytes from {offset}");
                    summed += 1;
                }
            }
        }
        #[cfg(all(target_arch = "x86_64", not(miri), not(rxe_strict_mem)))]
        assert_eq!(summed, if raw::can_sum(256) { 24 } else { 0 });
        let _ = summed;
    }

    #[test]
    #[cfg_attr(miri, ignore = "it has no pages to unmap")]
    fn what_is_gone_is_a_fault_and_not_summed() {
        const LEN: usize = 1024;
        super::super::catch_faults().expect("faults are caught");
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel chooses where, and nobody else knows of these pages.
        let pages = unsafe { libc::mmap(std::ptr::null_mut(), 2 * PAGE, access, flags, -1, 0) };
        assert_ne!(pages, libc::MAP_FAILED);
        let base = pages.cast::<u8>();
        // SAFETY: faults are caught.
        let memory = unsafe { super::super::UserMemory::new(base, 2 * PAGE) }.expect("memory");
        Bytes::of(&memory).write(0, &[5; 2 * PAGE]).expect("written");
        let mut packet = [7; SUMMED_HEADER + LEN];
        let whole = Bytes::of(&memory).read_summed(PAGE - LEN, &mut packet).expect("it is there");
        assert!(whole.is_none_or(|sum| sum == register(&packet)));
        // SAFETY: as above; there is no reference to them.
        assert_eq!(unsafe { libc::munmap(base.wrapping_add(PAGE).cast(), PAGE) }, 0);
        for behind in (0..=LEN).step_by(64) {
            let offset = PAGE - LEN + behind;
            let mut packet = [7; SUMMED_HEADER + LEN];
            let copied = Bytes::of(&memory).read_summed(offset, &mut packet);
            let addr = base.addr() + offset;
            match behind {
                0 => assert_eq!(copied, Ok(whole)),
                _ => assert_eq!(copied, Err(Fault::Unmapped { addr: addr as u64, len: LEN })),
            }
            // Some of what is there, from the first byte on.
            let some = packet[SUMMED_HEADER..].iter().take_while(|&&byte| byte == 5).count();
            assert!(some <= LEN - behind && packet[SUMMED_HEADER + some..].iter().all(|&b| b == 7));
            assert_eq!(packet[..SUMMED_HEADER], [7; SUMMED_HEADER]);
        }
        // SAFETY: as above.
        assert_eq!(unsafe { libc::munmap(pages, PAGE) }, 0);
    }

    #[test]
    fn what_is_not_there_is_not_copied() {
        let memory = DmaBuf::zeroed(4096);
        let mut packet = [7; SUMMED_HEADER + 1024];
        assert!(Bytes::of(&memory).read_summed(4096 - 1023, &mut packet).is_err());
        assert!(Bytes::of(&memory).read_summed(0, &mut packet[..SUMMED_HEADER - 1]).is_err());
        assert_eq!(packet, [7; SUMMED_HEADER + 1024]);
    }

    #[test]
    fn ranges_outside_fault_and_copy_nothing() {
        let memory = DmaBuf::zeroed(16);
        assert_eq!(
            memory.write_at(9, &[1; 8]),
            Err(Fault::Outside { offset: 9, len: 8, size: 16 })
        );
        assert!(memory.write_at(usize::MAX, &[1; 8]).is_err());
        assert!(memory.read_at(17, &mut []).is_err());
        assert!(memory.read_at(16, &mut []).is_ok());
        let mut all = [9; 16];
        memory.read_at(0, &mut all).unwrap();
        assert_eq!(all, [0; 16]);
    }

    /// A reader that waits for the last byte, as programs do, finds all bytes before it.
    #[test]
    #[cfg_attr(miri, ignore = "bytes are written and a word is read at the same time")]
    fn r61_the_last_byte_appears_last() {
        const LEN: usize = 4096;
        let (memory, seen) = (DmaBuf::zeroed(LEN), AtomicU64::new(0));
        let mut torn = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=2000_u64 {
                    let len = 8 * (1 + round as usize * 37 % (LEN / 8));
                    memory.write_at(LEN - len, &vec![round as u8; len]).unwrap();
                    while seen.load(Ordering::Acquire) != round {
                        std::thread::yield_now();
                    }
                }
            });
            for round in 1..=2000_u64 {
                let len = 8 * (1 + round as usize * 37 % (LEN / 8));
                while memory.load_u64(LEN - 8).unwrap().to_ne_bytes()[7] != round as u8 {
                    std::hint::spin_loop();
                }
                let mut bytes = vec![0; len];
                memory.read_at(LEN - len, &mut bytes).unwrap();
                seen.store(round, Ordering::Release);
                if bytes.iter().any(|&byte| byte != round as u8) {
                    torn.push((round, len));
                }
            }
        });
        assert_eq!(torn, [], "rounds, with their lengths, whose last byte was not the last");
    }

    #[test]
    fn atomics_are_those_of_the_processor() {
        let memory = DmaBuf::zeroed(16);
        let bytes = Bytes::of(&memory);
        assert_eq!(bytes.fetch_add(8, u64::MAX), Ok(0));
        assert_eq!(bytes.fetch_add(8, 2), Ok(u64::MAX), "it wraps");
        assert_eq!(bytes.compare_swap(8, 2, 7), Ok(1), "not what it holds");
        assert_eq!(bytes.compare_swap(8, 1, 7), Ok(1));
        assert_eq!(memory.load_u64(8), Ok(7));
        assert_eq!(bytes.store_u64(8, [1, 2, 3, 4, 5, 6, 7, 8]), Ok(()));
        assert_eq!(memory.load_u64(8), Ok(u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8])));
        for offset in [1, 4, 12, 16, usize::MAX - 7] {
            assert!(bytes.fetch_add(offset, 1).is_err(), "{offset}");
            assert!(bytes.compare_swap(offset, 0, 1).is_err(), "{offset}");
            assert!(bytes.store_u64(offset, [1; 8]).is_err(), "{offset}");
        }
        // From several threads, nothing is lost.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..1000).for_each(|_| assert!(Bytes::of(&memory).fetch_add(0, 1).is_ok()));
                });
            }
        });
        assert_eq!(memory.load_u64(0), Ok(4000));
    }

    #[test]
    fn words_must_be_aligned() {
        let memory = DmaBuf::zeroed(24);
        memory.write_at(8, &0x1122_3344_5566_7788_u64.to_ne_bytes()).unwrap();
        assert_eq!(memory.load_u64(8), Ok(0x1122_3344_5566_7788));
        assert!(memory.load_u64(4).is_err());
        assert!(memory.load_u64(24).is_err());
    }
}
