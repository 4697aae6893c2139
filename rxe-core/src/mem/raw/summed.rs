//! Copies of registered bytes that compute a CRC on the way.
//!
//! Registered memory is seldom in a near cache: while one line of it comes, the processor has time
//! to take the line before into a CRC. So both in one pass cost hardly more than the copy alone.
//! The bytes that are summed are those that are stored: each is loaded once, whatever others write
//! to the memory meanwhile.
//!
//! The CRC is that of Ethernet, reflected, by carry-less multiplication (V. Gopal et al., "Fast CRC
//! Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009): a block far from
//! the end is folded into one nearer to it, since multiplying it by a power of x modulo the
//! polynomial leaves the remainder as it is. The loop is among the accesses whose faults are caught.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::super::bytes::SUMMED_HEADER as HEADER;
use super::Unmapped;
use super::caught;

/// Bytes that a round of the loop takes.
const STEP: usize = 256;

/// The polynomial, reflected, with its x^32.
const POLYNOMIAL: i64 = 0x1_db71_0641;
/// The quotient of x^64 and the polynomial, reflected.
const QUOTIENT: i64 = 0x1_f701_1641;

/// x^n modulo the polynomial, reflected: one bit higher than it stands in a register, since the
/// product of two reflected numbers comes out one bit too low.
const fn power(n: u32) -> i64 {
    let (mut register, mut left) = (0x8000_0000_u32, n);
    while left > 0 {
        let carry = if register & 1 == 1 { 0xedb8_8320 } else { 0 };
        register = (register >> 1) ^ carry;
        left -= 1;
    }
    (register as i64) << 1
}

/// What the two halves of a block are multiplied with to move it by so many bits: the constant
/// itself has 32 bits where 64 are expected, and the first half stands 64 bits before the other.
const fn fold_by(bits: u32) -> [i64; 2] {
    [power(bits + 32), power(bits - 32)]
}

const BY_128: [i64; 2] = fold_by(128);
const BY_256: [i64; 2] = fold_by(256);
const BY_384: [i64; 2] = fold_by(384);
const BY_512: [i64; 2] = fold_by(512);
const BY_2048: [i64; 2] = fold_by(2048);
const BY_64: i64 = power(64);

/// Whether [`load_summed`] can copy so many bytes, on this processor.
#[inline]
pub(in super::super) fn can_sum(len: usize) -> bool {
    len > 0 && len.is_multiple_of(STEP) && is_supported()
}

fn is_supported() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("pclmulqdq")
}

/// Copies `to.len()` bytes, and gives the register after `header` and these; after a fault `to` has
/// some of them.
///
/// # Safety
///
/// As for [`caught::load`]. [`can_sum`] must have allowed the length.
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq")]
pub(in super::super) unsafe fn load_summed(
    header: &[u8; HEADER],
    from: *const u8,
    to: &mut [u8],
) -> Result<u32, Unmapped> {
    // The header counts as the end of a block of 16 bytes before the first one. It has just been
    // written in two words; put together otherwise than by shifts, it would have to wait for them.
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *header;
    let first = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    let second = u32::from_le_bytes([i, j, k, l]);
    let (low, high) = (first << 32, first >> 32 | u64::from(second) << 32);
    let block = _mm_set_epi64x(high as i64, low as i64);
    let before = fold(block, _mm_set_epi64x(BY_128[1], BY_128[0]));

    let (by_512, by_2048) = (broadcast(BY_512), broadcast(BY_2048));
    // SAFETY: the caller vouches for `from`, and has asked for the length and the processor.
    let lines = unsafe { caught::load_summed(from, to, _mm512_zextsi128_si512(before), by_2048) };
    let [a, mut b, mut c, d] = lines?;
    b = fold_into(a, by_512, b);
    c = fold_into(b, by_512, c);
    Ok(remainder(combine(fold_into(c, by_512, d))))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn broadcast(halves: [i64; 2]) -> __m512i {
    let [low, high] = halves;
    _mm512_set_epi64(high, low, high, low, high, low, high, low)
}

/// Moves a block nearer to the end.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn fold(block: __m128i, by: __m128i) -> __m128i {
    let low = _mm_clmulepi64_si128(block, by, 0x00);
    _mm_xor_si128(low, _mm_clmulepi64_si128(block, by, 0x11))
}

/// Moves four blocks nearer to the end, to where `there` are.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold_into(blocks: __m512i, by: __m512i, there: __m512i) -> __m512i {
    const XOR_OF_ALL: i32 = 0x96;
    let low = _mm512_clmulepi64_epi128(blocks, by, 0x00);
    let high = _mm512_clmulepi64_epi128(blocks, by, 0x11);
    _mm512_ternarylogic_epi64(low, high, there, XOR_OF_ALL)
}

/// The last of four blocks, with those before folded into it.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn combine(blocks: __m512i) -> __m128i {
    let [a, b, c] = [BY_384, BY_256, BY_128];
    let by = _mm512_set_epi64(0, 0, c[1], c[0], b[1], b[0], a[1], a[0]);
    let moved = fold_into(blocks, by, _mm512_setzero_si512());
    let last = _mm512_extracti32x4_epi32(blocks, 3);
    let first = _mm512_extracti32x4_epi32(moved, 0);
    let second = _mm512_extracti32x4_epi32(moved, 1);
    let third = _mm512_extracti32x4_epi32(moved, 2);
    _mm_xor_si128(_mm_xor_si128(last, first), _mm_xor_si128(second, third))
}

/// The register after a block, from a register of zero.
#[inline]
#[target_feature(enable = "avx512f,pclmulqdq")]
fn remainder(block: __m128i) -> u32 {
    let low_32 = _mm_set_epi32(0, 0, 0, !0);
    // 128 bits to 96, and to 64.
    let first_half = _mm_clmulepi64_si128(block, _mm_set_epi64x(BY_128[1], 0), 0x10);
    let sum = _mm_xor_si128(first_half, _mm_srli_si128(block, 8));
    let first = _mm_and_si128(sum, low_32);
    let first = _mm_clmulepi64_si128(first, _mm_set_epi64x(0, BY_64), 0x00);
    let sum = _mm_xor_si128(first, _mm_srli_si128(sum, 4));
    // Barrett's reduction to 32.
    let by = _mm_set_epi64x(QUOTIENT, POLYNOMIAL);
    let quotient = _mm_clmulepi64_si128(_mm_and_si128(sum, low_32), by, 0x10);
    let product = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_32), by, 0x00);
    let rest = _mm_xor_si128(sum, product);
    _mm_cvtsi128_si32(_mm_srli_si128(rest, 4)) as u32
}
