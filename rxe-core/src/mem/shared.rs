//! Registered bytes: the one file of this crate that touches them.
//!
//! The program and its peers may read and write registered memory at any time, so no Rust
//! reference to it ever exists (ARCHITECTURE.md, "Memory"). Everything goes through copies
//! between it and private buffers:
//!
//! * copies never hold a `&[u8]` or `&mut [u8]` of registered memory, only a raw pointer;
//! * on x86-64 they are a loop in assembly, which the compiler can neither reorder into something
//!   else nor assume anything about; elsewhere, under Miri, and with `--cfg rxe_strict_mem`, each
//!   byte is a relaxed atomic access;
//! * they go in ascending order, the last byte last, since programs poll on it (R61). x86-64 keeps
//!   the order of stores; elsewhere the last byte is stored with release ordering;
//! * they are fallible: a range outside the backing is a [`Fault`], and so is, later, memory that a
//!   C program has unmapped.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use super::backing::Backing;
use super::fault::Fault;

/// Checks a range against a backing and gives the address of its first byte.
fn locate(memory: &(impl Backing + ?Sized), offset: usize, len: usize) -> Result<*mut u8, Fault> {
    let size = memory.len();
    match offset.checked_add(len) {
        // Within the backing or one past its end, so it does not wrap.
        Some(end) if end <= size => Ok(memory.base().wrapping_add(offset)),
        _ => Err(Fault::Outside { offset, len, size }),
    }
}

/// The aligned 64-bit word at `offset`, as an atomic.
fn word(memory: &(impl Backing + ?Sized), offset: usize) -> Result<&AtomicU64, Fault> {
    let at = locate(memory, offset, 8)?;
    if !(at as usize).is_multiple_of(8) {
        return Err(Fault::Misaligned { addr: at as u64 });
    }
    // SAFETY: in bounds and aligned; the backing lives as long as the borrow of `memory`, and its
    // contract excludes non-atomic Rust accesses meanwhile.
    Ok(unsafe { AtomicU64::from_ptr(at.cast()) })
}

/// Reads the word at `offset` with acquire ordering.
///
/// # Errors
///
/// As [`compare_swap`].
pub fn load(memory: &(impl Backing + ?Sized), offset: usize) -> Result<u64, Fault> {
    Ok(word(memory, offset)?.load(Ordering::Acquire))
}

/// Stores `swap` in the word at `offset` if it holds `compare`, and gives what it held.
///
/// One atomic operation of the processor, also towards the program's own atomics.
///
/// # Errors
///
/// [`Fault`] when the word leaves the backing or its address is not a multiple of 8.
pub fn compare_swap(
    memory: &(impl Backing + ?Sized),
    offset: usize,
    compare: u64,
    swap: u64,
) -> Result<u64, Fault> {
    let word = word(memory, offset)?;
    let done = word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire);
    Ok(done.unwrap_or_else(|held| held))
}

/// Adds to the word at `offset`, wrapping, and gives what it held.
///
/// # Errors
///
/// As [`compare_swap`].
pub fn fetch_add(memory: &(impl Backing + ?Sized), offset: usize, add: u64) -> Result<u64, Fault> {
    Ok(word(memory, offset)?.fetch_add(add, Ordering::AcqRel))
}

/// Stores eight bytes at `offset` at once: nobody sees a part of them.
///
/// # Errors
///
/// As [`compare_swap`].
pub fn store(memory: &(impl Backing + ?Sized), offset: usize, bytes: [u8; 8]) -> Result<(), Fault> {
    word(memory, offset)?.store(u64::from_ne_bytes(bytes), Ordering::Release);
    Ok(())
}

/// Copies registered bytes from `offset` on out into `to`.
///
/// # Errors
///
/// [`Fault`] when the range leaves the backing; nothing is copied then.
#[inline]
pub fn read(memory: &(impl Backing + ?Sized), offset: usize, to: &mut [u8]) -> Result<(), Fault> {
    let from = locate(memory, offset, to.len())?;
    // SAFETY: `from` is valid for `to.len()` bytes by the check and the backing's contract; `to` is
    // an exclusive private buffer, so the two do not overlap.
    unsafe { copy::load(from, to) }
    Ok(())
}

/// Copies `from` into registered memory from `offset` on, the last byte last (R61).
///
/// # Errors
///
/// [`Fault`] when the range leaves the backing; nothing is copied then.
#[inline]
pub fn write(memory: &(impl Backing + ?Sized), offset: usize, from: &[u8]) -> Result<(), Fault> {
    let to = locate(memory, offset, from.len())?;
    // SAFETY: as in `read`, with the roles exchanged: `from` is a private buffer.
    unsafe { copy::store(from, to) }
    Ok(())
}

#[cfg(all(target_arch = "x86_64", not(miri), not(rxe_strict_mem)))]
mod copy {
    use std::arch::asm;

    /// Copies registered bytes from `from` on into `to`.
    ///
    /// # Safety
    ///
    /// `from` must be valid for `to.len()` bytes, which others may write to at the same time.
    #[inline]
    pub(super) unsafe fn load(from: *mut u8, to: &mut [u8]) {
        // SAFETY: the caller vouches for `from`; `to` is exclusive, so they do not overlap.
        unsafe { ascending(from, to.as_mut_ptr(), to.len()) }
    }

    /// Copies `from` into the registered bytes from `to` on.
    ///
    /// # Safety
    ///
    /// `to` must be valid for `from.len()` bytes, which others may access at the same time, and
    /// `from` must not be among them.
    #[inline]
    pub(super) unsafe fn store(from: &[u8], to: *mut u8) {
        // SAFETY: the caller vouches for `to`, and that the two do not overlap.
        unsafe { ascending(from.as_ptr(), to, from.len()) }
    }

    /// Copies `len` bytes in ascending order: 64 at a time, then 16, 8, 4, 2 and 1.
    ///
    /// # Safety
    ///
    /// `from` must be readable and `to` writable for `len` bytes, and they must not overlap.
    /// Others may access the bytes at the same time.
    #[inline]
    unsafe fn ascending(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: the loop reads and writes exactly `len` bytes at each pointer, which the caller
        // vouches for. To the compiler the block is opaque: it may touch any memory, so no
        // assumption about the racing bytes is made. Each word is loaded and stored whole, and
        // x86-64 makes stores visible in program order, hence ascending.
        unsafe {
            asm!(
                "cmp {n}, 64",
                "jb 3f",
                "2:",
                // Registered memory is seldom in the cache, and the hardware fetches ahead only
                // within a page: worth a twentieth of the throughput of large messages. Beyond
                // the end these do nothing: a prefetch never faults.
                "prefetcht0 [{s} + 512]",
                "prefetchw [{t} + 512]",
                "movups {a}, [{s}]",
                "movups {b}, [{s} + 16]",
                "movups {c}, [{s} + 32]",
                "movups {d}, [{s} + 48]",
                "movups [{t}], {a}",
                "movups [{t} + 16], {b}",
                "movups [{t} + 32], {c}",
                "movups [{t} + 48], {d}",
                "add {s}, 64",
                "add {t}, 64",
                "sub {n}, 64",
                "cmp {n}, 64",
                "jae 2b",
                "3:",
                "cmp {n}, 16",
                "jb 4f",
                "movups {a}, [{s}]",
                "movups [{t}], {a}",
                "add {s}, 16",
                "add {t}, 16",
                "sub {n}, 16",
                "jmp 3b",
                "4:",
                "test {n}, 8",
                "jz 5f",
                "mov {w}, [{s}]",
                "mov [{t}], {w}",
                "add {s}, 8",
                "add {t}, 8",
                "5:",
                "test {n}, 4",
                "jz 6f",
                "mov {w:e}, [{s}]",
                "mov [{t}], {w:e}",
                "add {s}, 4",
                "add {t}, 4",
                "6:",
                "test {n}, 2",
                "jz 7f",
                "movzx {w:e}, word ptr [{s}]",
                "mov [{t}], {w:x}",
                "add {s}, 2",
                "add {t}, 2",
                "7:",
                "test {n}, 1",
                "jz 8f",
                "movzx {w:e}, byte ptr [{s}]",
                "mov [{t}], {w:l}",
                "8:",
                s = inout(reg) from => _,
                t = inout(reg) to => _,
                n = inout(reg) len => _,
                w = out(reg) _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack),
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri), not(rxe_strict_mem))))]
mod copy {
    use std::sync::atomic::{AtomicU8, Ordering};

    /// Copies registered bytes from `from` on into `to`, each by an atomic load.
    ///
    /// # Safety
    ///
    /// `from` must be valid for `to.len()` bytes, which others may access atomically at the same
    /// time.
    pub(super) unsafe fn load(from: *mut u8, to: &mut [u8]) {
        for (i, to) in to.iter_mut().enumerate() {
            // SAFETY: `i` is below the length for which the caller vouches, for reading and
            // writing; a byte is aligned anywhere.
            let from = unsafe { AtomicU8::from_ptr(from.add(i)) };
            *to = from.load(Ordering::Relaxed);
        }
    }

    /// Copies `from` into the registered bytes from `to` on in ascending order, each by an atomic
    /// store, and the last one with release ordering.
    ///
    /// # Safety
    ///
    /// `to` must be valid for `from.len()` bytes, which others may access atomically at the same
    /// time, and `from` must not be among them.
    pub(super) unsafe fn store(from: &[u8], to: *mut u8) {
        let last = from.len().saturating_sub(1);
        for (i, from) in from.iter().enumerate() {
            let order = if i == last { Ordering::Release } else { Ordering::Relaxed };
            // SAFETY: as in `load`.
            let to = unsafe { AtomicU8::from_ptr(to.add(i)) };
            to.store(*from, order);
        }
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(fetch_add(&memory, 8, u64::MAX), Ok(0));
        assert_eq!(fetch_add(&memory, 8, 2), Ok(u64::MAX), "it wraps");
        assert_eq!(compare_swap(&memory, 8, 2, 7), Ok(1), "not what it holds");
        assert_eq!(compare_swap(&memory, 8, 1, 7), Ok(1));
        assert_eq!(memory.load_u64(8), Ok(7));
        assert_eq!(store(&memory, 8, [1, 2, 3, 4, 5, 6, 7, 8]), Ok(()));
        assert_eq!(memory.load_u64(8), Ok(u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8])));
        for offset in [1, 4, 12, 16, usize::MAX - 7] {
            assert!(fetch_add(&memory, offset, 1).is_err(), "{offset}");
            assert!(compare_swap(&memory, offset, 0, 1).is_err(), "{offset}");
            assert!(store(&memory, offset, [1; 8]).is_err(), "{offset}");
        }
        // From several threads, nothing is lost.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| assert!(fetch_add(&memory, 0, 1).is_ok())));
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
