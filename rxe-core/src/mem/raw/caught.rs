//! Accesses whose faults can be caught: x86-64 assembly between two labels.
//!
//! Each function is a leaf that leaves the stack alone, so wherever an instruction of it faults,
//! the caller's return address is on top of the stack. `super::super::catch` lets the thread go on
//! at `urxe_memory_fault` then, which returns to that caller and says so. Without a handler a fault
//! here is as fatal as anywhere.
//!
//! To the compiler the functions are opaque: they may touch any memory, so it assumes nothing about
//! bytes that others write at the same time.

use std::arch::x86_64::__m512i;
use std::arch::{asm, global_asm};
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Unmapped;

/// What a function gives: in `rax` and `rdx`.
#[repr(C)]
struct Outcome {
    value: u64,
    /// 1 after a fault, else 0.
    fault: u64,
}

impl Outcome {
    #[inline]
    fn done(self) -> Result<u64, Unmapped> {
        if self.fault == 0 { Ok(self.value) } else { Err(Unmapped) }
    }
}

unsafe extern "sysv64" {
    fn urxe_memory_copy(to: *mut u8, from: *const u8, len: usize) -> Outcome;
    /// Not to be called as C does: what it takes and gives is in vector registers.
    fn urxe_memory_copy_summed();
    fn urxe_memory_load(at: *mut u8) -> Outcome;
    fn urxe_memory_store(at: *mut u8, value: u64) -> Outcome;
    fn urxe_memory_fetch_add(at: *mut u8, add: u64) -> Outcome;
    fn urxe_memory_compare_swap(at: *mut u8, compare: u64, swap: u64) -> Outcome;
    fn urxe_memory_touch(at: *mut u8) -> Outcome;
    fn urxe_memory_touch_to_write(at: *mut u8) -> Outcome;
    /// Not to be called: the landing pad.
    fn urxe_memory_fault() -> Outcome;
    /// Not to be called: the end.
    fn urxe_memory_end();
}

// Nothing before `urxe_memory_copy` and nothing behind `urxe_memory_end` is ours. The names are
// hidden: each library that has this crate in it has its own.
//
// The copies go in ascending order. What is left of a copy of 16 bytes or more, less than 16, is
// the end of the last 16, stored once more: so the last byte is in the last store (R61), and a copy
// of 1, 2, 4, 8 or 16 bytes is one store. x86-64 makes stores visible in program order.
global_asm!(
    ".pushsection .text.urxe_memory,\"ax\",@progbits",
    ".p2align 6",
    ".hidden urxe_memory_copy",
    ".globl urxe_memory_copy",
    ".type urxe_memory_copy,@function",
    "urxe_memory_copy:",
    ".cfi_startproc",
    "cmp rdx, 16",
    "jb 60f",
    "cmp rdx, 64",
    "jb 3f",
    "cmp rdx, [rip + {wide_from}]",
    "jae 30f",
    "2:",
    // Registered memory is seldom in the cache, and the hardware fetches ahead only within a page:
    // worth a twentieth of the throughput of large messages. Beyond the end these do nothing: a
    // prefetch never faults.
    "prefetcht0 [rsi + 512]",
    "prefetchw [rdi + 512]",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "sub rdx, 64",
    "cmp rdx, 64",
    "jae 2b",
    "3:",
    "cmp rdx, 16",
    "jb 4f",
    "movups xmm0, [rsi]",
    "movups [rdi], xmm0",
    "add rsi, 16",
    "add rdi, 16",
    "sub rdx, 16",
    "jmp 3b",
    "4:",
    "test rdx, rdx",
    "jz 5f",
    "movups xmm0, [rsi + rdx - 16]",
    "movups [rdi + rdx - 16], xmm0",
    "5:",
    "xor edx, edx",
    "ret",
    // Less than 16: the first half and the last half, which may overlap.
    "60:",
    "cmp edx, 8",
    "ja 62f",
    "je 61f",
    "cmp edx, 4",
    "ja 64f",
    "je 63f",
    "cmp edx, 2",
    "ja 66f",
    "je 65f",
    "test edx, edx",
    "jz 5b",
    "movzx eax, byte ptr [rsi]",
    "mov [rdi], al",
    "xor edx, edx",
    "ret",
    "61:",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "xor edx, edx",
    "ret",
    "62:",
    "mov rax, [rsi]",
    "mov rcx, [rsi + rdx - 8]",
    "mov [rdi], rax",
    "mov [rdi + rdx - 8], rcx",
    "xor edx, edx",
    "ret",
    "63:",
    "mov eax, [rsi]",
    "mov [rdi], eax",
    "xor edx, edx",
    "ret",
    "64:",
    "mov eax, [rsi]",
    "mov ecx, [rsi + rdx - 4]",
    "mov [rdi], eax",
    "mov [rdi + rdx - 4], ecx",
    "xor edx, edx",
    "ret",
    "65:",
    "movzx eax, word ptr [rsi]",
    "mov [rdi], ax",
    "xor edx, edx",
    "ret",
    "66:",
    "movzx eax, word ptr [rsi]",
    "movzx ecx, byte ptr [rsi + 2]",
    "mov [rdi], ax",
    "mov [rdi + 2], cl",
    "xor edx, edx",
    "ret",
    // At least 128 bytes, and the processor has AVX.
    ".p2align 6",
    "30:",
    "prefetcht0 [rsi + 512]",
    "prefetcht0 [rsi + 576]",
    "prefetchw [rdi + 512]",
    "prefetchw [rdi + 576]",
    "vmovups ymm0, [rsi]",
    "vmovups ymm1, [rsi + 32]",
    "vmovups ymm2, [rsi + 64]",
    "vmovups ymm3, [rsi + 96]",
    "vmovups [rdi], ymm0",
    "vmovups [rdi + 32], ymm1",
    "vmovups [rdi + 64], ymm2",
    "vmovups [rdi + 96], ymm3",
    "sub rsi, -128",
    "sub rdi, -128",
    "add rdx, -128",
    "cmp rdx, 128",
    "jae 30b",
    "vzeroupper",
    "cmp rdx, 64",
    "jb 3b",
    "jmp 2b",
    ".cfi_endproc",
    ".size urxe_memory_copy, . - urxe_memory_copy",
    // A multiple of 256 bytes, at least so many, by a processor with AVX-512 and VPCLMULQDQ: four
    // lines at a time, into each of which those before are folded. Takes to, from and length as in
    // C, the block before the first line in zmm0, and in zmm4 what moves a line by four; gives the
    // last four lines in zmm0 to zmm3.
    ".p2align 6",
    ".hidden urxe_memory_copy_summed",
    ".globl urxe_memory_copy_summed",
    ".type urxe_memory_copy_summed,@function",
    "urxe_memory_copy_summed:",
    ".cfi_startproc",
    "prefetcht0 [rsi + 512]",
    "prefetcht0 [rsi + 576]",
    "prefetcht0 [rsi + 640]",
    "prefetcht0 [rsi + 704]",
    "vmovdqu64 zmm5, [rsi]",
    "vmovdqu64 zmm1, [rsi + 64]",
    "vmovdqu64 zmm2, [rsi + 128]",
    "vmovdqu64 zmm3, [rsi + 192]",
    "vmovdqu64 [rdi], zmm5",
    "vmovdqu64 [rdi + 64], zmm1",
    "vmovdqu64 [rdi + 128], zmm2",
    "vmovdqu64 [rdi + 192], zmm3",
    "vpxorq zmm0, zmm0, zmm5",
    "sub rdx, 256",
    "jz 3f",
    ".p2align 5",
    "2:",
    "add rsi, 256",
    "add rdi, 256",
    "prefetcht0 [rsi + 512]",
    "vmovdqu64 zmm5, [rsi]",
    "vmovdqu64 [rdi], zmm5",
    "vpclmulqdq zmm6, zmm0, zmm4, 0x00",
    "vpclmulqdq zmm0, zmm0, zmm4, 0x11",
    // Exclusive or of all three.
    "vpternlogq zmm0, zmm6, zmm5, 0x96",
    "prefetcht0 [rsi + 576]",
    "vmovdqu64 zmm5, [rsi + 64]",
    "vmovdqu64 [rdi + 64], zmm5",
    "vpclmulqdq zmm6, zmm1, zmm4, 0x00",
    "vpclmulqdq zmm1, zmm1, zmm4, 0x11",
    "vpternlogq zmm1, zmm6, zmm5, 0x96",
    "prefetcht0 [rsi + 640]",
    "vmovdqu64 zmm5, [rsi + 128]",
    "vmovdqu64 [rdi + 128], zmm5",
    "vpclmulqdq zmm6, zmm2, zmm4, 0x00",
    "vpclmulqdq zmm2, zmm2, zmm4, 0x11",
    "vpternlogq zmm2, zmm6, zmm5, 0x96",
    "prefetcht0 [rsi + 704]",
    "vmovdqu64 zmm5, [rsi + 192]",
    "vmovdqu64 [rdi + 192], zmm5",
    "vpclmulqdq zmm6, zmm3, zmm4, 0x00",
    "vpclmulqdq zmm3, zmm3, zmm4, 0x11",
    "vpternlogq zmm3, zmm6, zmm5, 0x96",
    "sub rdx, 256",
    "jnz 2b",
    "3:",
    // rdx is 0: no fault.
    "ret",
    ".cfi_endproc",
    ".size urxe_memory_copy_summed, . - urxe_memory_copy_summed",
    ".p2align 4",
    ".hidden urxe_memory_load",
    ".globl urxe_memory_load",
    ".type urxe_memory_load,@function",
    "urxe_memory_load:",
    ".cfi_startproc",
    "mov rax, [rdi]",
    "xor edx, edx",
    "ret",
    ".cfi_endproc",
    ".size urxe_memory_load, . - urxe_memory_load",
    ".p2align 4",
    ".hidden urxe_memory_store",
    ".globl urxe_memory_store",
    ".type urxe_memory_store,@function",
    "urxe_memory_store:",
    ".cfi_startproc",
    "mov [rdi], rsi",
    "xor edx, edx",
    "ret",
    ".cfi_endproc",
    ".size urxe_memory_store, . - urxe_memory_store",
    ".p2align 4",
    ".hidden urxe_memory_fetch_add",
    ".globl urxe_memory_fetch_add",
    ".type urxe_memory_fetch_add,@function",
    "urxe_memory_fetch_add:",
    ".cfi_startproc",
    "mov rax, rsi",
    "lock xadd [rdi], rax",
    "mov edx, 0",
    "ret",
    ".cfi_endproc",
    ".size urxe_memory_fetch_add, . - urxe_memory_fetch_add",
    ".p2align 4",
    ".hidden urxe_memory_compare_swap",
    ".globl urxe_memory_compare_swap",
    ".type urxe_memory_compare_swap,@function",
    "urxe_memory_compare_swap:",
    ".cfi_startproc",
    "mov rax, rsi",
    "lock cmpxchg [rdi], rdx",
    "mov edx, 0",
    "ret",
    ".cfi_endproc",
    ".size urxe_memory_compare_swap, . - urxe_memory_compare_swap",
    ".p2align 4",
    ".hidden urxe_memory_touch",
    ".globl urxe_memory_touch",
    ".type urxe_memory_touch,@function",
    "urxe_memory_touch:",
    ".cfi_startproc",
    "movzx eax, byte ptr [rdi]",
    "xor edx, edx",
    "ret",
    ".cfi_endproc",
    ".size urxe_memory_touch, . - urxe_memory_touch",
    // An atomic that changes nothing, but needs a page to write to.
    ".p2align 4",
    ".hidden urxe_memory_touch_to_write",
    ".globl urxe_memory_touch_to_write",
    ".type urxe_memory_touch_to_write,@function",
    "urxe_memory_touch_to_write:",
    ".cfi_startproc",
    "lock or byte ptr [rdi], 0",
    "xor edx, edx",
    "ret",
    ".cfi_endproc",
    ".size urxe_memory_touch_to_write, . - urxe_memory_touch_to_write",
    ".p2align 4",
    ".hidden urxe_memory_fault",
    ".globl urxe_memory_fault",
    ".type urxe_memory_fault,@function",
    "urxe_memory_fault:",
    ".cfi_startproc",
    "xor eax, eax",
    "mov edx, 1",
    "ret",
    ".cfi_endproc",
    ".size urxe_memory_fault, . - urxe_memory_fault",
    ".hidden urxe_memory_end",
    ".globl urxe_memory_end",
    "urxe_memory_end:",
    "nop",
    ".popsection",
    wide_from = sym WIDE_FROM,
);

/// A fault can be caught: by [`recover`].
pub(in super::super) const CATCHES: bool = true;

/// From how many bytes on a copy uses AVX: it pays for long ones, where the processor has it.
static WIDE_FROM: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Finds out how this processor copies best; copies before that are right too.
pub(in super::super) fn prepare() {
    if std::arch::is_x86_feature_detected!("avx") {
        WIDE_FROM.store(256, Ordering::Relaxed);
    }
}

/// Copies `len` bytes in ascending order, the last byte last.
///
/// # Safety
///
/// One of the ranges is private to the caller and valid; the other may be anything if faults are
/// caught, and must be valid otherwise. They must not overlap. Others may access the bytes of the
/// other one at the same time, but not by Rust references.
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> Result<(), Unmapped> {
    let fault: u64;
    // SAFETY: it reads and writes exactly `len` bytes at each pointer, as the caller allows. It
    // uses the registers that are named and no more, which is why it is called like this: a short
    // copy costs less than to save what a function may use. (`vzeroupper` changes all of `xmm0` to
    // `xmm15`, of which it clears the upper halves.)
    unsafe {
        asm!(
            "call {copy}",
            copy = sym urxe_memory_copy,
            inout("rdi") to => _,
            inout("rsi") from => _,
            inout("rdx") len => fault,
            out("rax") _,
            out("rcx") _,
            out("xmm0") _,
            out("xmm1") _,
            out("xmm2") _,
            out("xmm3") _,
            out("xmm4") _,
            out("xmm5") _,
            out("xmm6") _,
            out("xmm7") _,
            out("xmm8") _,
            out("xmm9") _,
            out("xmm10") _,
            out("xmm11") _,
            out("xmm12") _,
            out("xmm13") _,
            out("xmm14") _,
            out("xmm15") _,
        );
    }
    if fault == 0 { Ok(()) } else { Err(Unmapped) }
}

/// Copies registered bytes from `from` on into `to`; after a fault `to` has some of them.
///
/// # Safety
///
/// If `can_fault` is false, or faults are not caught, `from` is valid for `to.len()` bytes. Others
/// may write to them at the same time, but not by Rust references.
#[inline]
pub(in super::super) unsafe fn load(
    from: *mut u8,
    to: &mut [u8],
    _can_fault: bool,
) -> Result<(), Unmapped> {
    // SAFETY: the caller vouches for `from`; `to` is exclusive, so they do not overlap.
    unsafe { copy(from, to.as_mut_ptr(), to.len()) }
}

/// As [`load`], and gives the last four lines of 64 bytes, with all that was before folded into them
/// ([`super::summed`]): `before` is added to the first line, and `by` moves lines by four.
///
/// # Safety
///
/// As for [`load`]; the length is a multiple of 256, and not 0, and the processor has VPCLMULQDQ.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn load_summed(
    from: *const u8,
    to: &mut [u8],
    before: __m512i,
    by: __m512i,
) -> Result<[__m512i; 4], Unmapped> {
    let (a, b, c, d);
    let fault: u64;
    // SAFETY: it reads and writes exactly as many bytes at `from` and `to` as the caller allows;
    // `to` is exclusive, so they do not overlap. It changes no registers but those named here, and
    // the landing pad changes rax and rdx alone. What `call` pushes is above what is used here.
    unsafe {
        asm!(
            "call {summed}",
            summed = sym urxe_memory_copy_summed,
            inout("rdi") to.as_mut_ptr() => _,
            inout("rsi") from => _,
            inout("rdx") to.len() => fault,
            out("rax") _,
            inout("zmm0") before => a,
            out("zmm1") b,
            out("zmm2") c,
            out("zmm3") d,
            in("zmm4") by,
            out("zmm5") _,
            out("zmm6") _,
        );
    }
    if fault == 0 { Ok([a, b, c, d]) } else { Err(Unmapped) }
}

/// Copies `from` into the registered bytes from `to` on; after a fault some are written, from the
/// first on.
///
/// # Safety
///
/// As for [`load`], of `to`; and `from` is not among the registered bytes.
#[inline]
pub(in super::super) unsafe fn store(
    from: &[u8],
    to: *mut u8,
    _can_fault: bool,
) -> Result<(), Unmapped> {
    // SAFETY: the caller vouches for `to`, and that the two do not overlap.
    unsafe { copy(from.as_ptr(), to, from.len()) }
}

/// Reads a word, with acquire ordering.
///
/// # Safety
///
/// `at` is a multiple of 8, and eight bytes from there on are as [`load`] wants them.
pub(in super::super) unsafe fn load_u64(at: *mut u8, _can_fault: bool) -> Result<u64, Unmapped> {
    // SAFETY: it reads one word, which the caller vouches for. Every load of x86-64 acquires.
    unsafe { urxe_memory_load(at) }.done()
}

/// Writes a word, with release ordering.
///
/// # Safety
///
/// As for [`load_u64`].
pub(in super::super) unsafe fn store_u64(
    at: *mut u8,
    value: u64,
    _can_fault: bool,
) -> Result<(), Unmapped> {
    // SAFETY: it writes one word, which the caller vouches for. Every store of x86-64 releases.
    unsafe { urxe_memory_store(at, value) }.done().map(|_| ())
}

/// Adds to a word, wrapping, and gives what it held: one atomic operation.
///
/// # Safety
///
/// As for [`load_u64`].
pub(in super::super) unsafe fn fetch_add(
    at: *mut u8,
    add: u64,
    _can_fault: bool,
) -> Result<u64, Unmapped> {
    // SAFETY: it works on one word, which the caller vouches for.
    unsafe { urxe_memory_fetch_add(at, add) }.done()
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
    _can_fault: bool,
) -> Result<u64, Unmapped> {
    // SAFETY: it works on one word, which the caller vouches for.
    unsafe { urxe_memory_compare_swap(at, compare, swap) }.done()
}

/// Reads a byte, so that its page is there.
///
/// # Safety
///
/// The byte at `at` is as [`load`] wants it.
pub(in super::super) unsafe fn touch(at: *mut u8, _can_fault: bool) -> Result<(), Unmapped> {
    // SAFETY: it reads one byte, which the caller vouches for.
    unsafe { urxe_memory_touch(at) }.done().map(|_| ())
}

/// Makes the page of a byte one that can be written to, and changes nothing.
///
/// # Safety
///
/// The byte at `at` is as [`load`] wants it.
pub(in super::super) unsafe fn touch_to_write(
    at: *mut u8,
    _can_fault: bool,
) -> Result<(), Unmapped> {
    // SAFETY: it works on one byte, which the caller vouches for.
    unsafe { urxe_memory_touch_to_write(at) }.done().map(|_| ())
}

/// Whether a fault is one of these functions; then its caller gets [`Unmapped`] once the handler
/// has returned. It calls nothing, so a signal handler may call it.
///
/// # Safety
///
/// `context` is what the handler of the fault got (`SA_SIGINFO`).
pub(in super::super) unsafe fn recover(context: *mut c_void) -> bool {
    // SAFETY: the caller vouches for it, and nobody else has it meanwhile.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let registers = &mut context.uc_mcontext.gregs;
    let Some(at) = registers.get_mut(libc::REG_RIP as usize) else { return false };
    let begin = urxe_memory_copy as *const () as i64;
    let end = urxe_memory_end as *const () as i64;
    if !(begin..end).contains(at) {
        return false;
    }
    *at = urxe_memory_fault as *const () as i64;
    true
}
