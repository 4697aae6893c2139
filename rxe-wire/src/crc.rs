//! CRC-32 arithmetic: the register as a polynomial over GF(2), moved forwards and back.
//!
//! The register is that of the Ethernet CRC, reflected: bit 31 stands for x^0. Taking in a zero
//! byte multiplies it by x^8 modulo the polynomial; taking in other bytes adds (XORs) something
//! that does not depend on the register. So a difference in a few bytes of a packet moves the
//! result by an amount that depends only on the difference and on how many bytes follow. iCRC
//! computations over headers rest on that.

/// The polynomial, reflected, without its x^32.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// The polynomial 1.
const ONE: u32 = 0x8000_0000;

/// `INVERSE_POWERS[0][k]` is x^(-8k), `INVERSE_POWERS[1][k]` is x^(-8 * 256k).
static INVERSE_POWERS: [[u32; 256]; 2] = inverse_powers();

/// Bytes of BTH, which all full packets within a message have.
const BTH_LEN: usize = 12;

/// Lengths of packets with nothing but BTH and a payload of 256, 512, 1024, 2048 or 4096 bytes.
pub(crate) const COMMON_LENGTHS: [usize; 5] =
    [BTH_LEN + 256, BTH_LEN + 512, BTH_LEN + 1024, BTH_LEN + 2048, BTH_LEN + 4096];

/// What each byte of a register makes of a register of zero, once all bytes of a packet of a common
/// length have followed.
static AFTER_COMMON: [[[u32; 256]; 4]; 5] = {
    let [a, b, c, d, e] = COMMON_LENGTHS;
    [
        register_shares(a),
        register_shares(b),
        register_shares(c),
        register_shares(d),
        register_shares(e),
    ]
};

/// The register after `bytes`, from `register` before them. No inversion at either end.
#[inline]
pub(crate) fn update(register: u32, bytes: &[u8]) -> u32 {
    match common_length(bytes.len()) {
        // The library begins with a register of ones. What another register changes depends on it
        // and on the number of bytes alone.
        Some(shares) if cfg!(not(miri)) => {
            !libdeflater::crc32(bytes) ^ advance(shares, register ^ !0)
        }
        _ => update_any(register, bytes),
    }
}

/// The register after `len` bytes of which `sum` is the register after them from one of zero; `None`
/// when that takes longer than going over the bytes.
#[inline]
pub(crate) fn after_summed(register: u32, len: usize, sum: u32) -> Option<u32> {
    Some(advance(common_length(len)?, register) ^ sum)
}

#[inline]
fn common_length(len: usize) -> Option<&'static [[u32; 256]; 4]> {
    AFTER_COMMON.get(common_index(len)?)
}

/// Which of [`COMMON_LENGTHS`] a length is.
#[inline]
pub(crate) fn common_index(len: usize) -> Option<usize> {
    let mtu = len.wrapping_sub(BTH_LEN);
    let index = (mtu.trailing_zeros() as usize).wrapping_sub(8);
    (mtu.is_power_of_two() && index < COMMON_LENGTHS.len()).then_some(index)
}

#[inline]
#[expect(clippy::indexing_slicing, reason = "a u8 cannot leave a table of 256")]
fn advance(shares: &[[u32; 256]; 4], register: u32) -> u32 {
    let [a, b, c, d] = register.to_le_bytes();
    shares[0][usize::from(a)]
        ^ shares[1][usize::from(b)]
        ^ shares[2][usize::from(c)]
        ^ shares[3][usize::from(d)]
}

fn update_any(register: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(!register);
    hasher.update(bytes);
    !hasher.finalize()
}

/// The register before `count` zero bytes, from the one after them. `count` is below 65,536.
#[inline]
#[expect(clippy::indexing_slicing, reason = "a u8 cannot leave a table of 256")]
pub(crate) fn undo_zeros(register: u32, count: u16) -> u32 {
    let [high, low] = count.to_be_bytes();
    let low = INVERSE_POWERS[0][usize::from(low)];
    let high = INVERSE_POWERS[1][usize::from(high)];
    multiply(multiply(register, low), high)
}

/// The table of one byte's share in the register: the byte, then `after` zero bytes.
#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
pub(crate) const fn byte_shares(after: usize) -> [u32; 256] {
    let mut shares = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        shares[byte] = byte_share(byte as u8, after);
        byte += 1;
    }
    shares
}

/// What `byte` and then `after` zero bytes make of a register of zero.
pub(crate) const fn byte_share(byte: u8, after: usize) -> u32 {
    let mut share = byte as u32;
    let mut count = 0;
    while count <= after {
        share = zero_byte(share);
        count += 1;
    }
    share
}

/// The table of what to add to the register so that a difference in the byte `ahead` bytes later,
/// counted from 0, is made up for.
#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
pub(crate) const fn byte_shares_ahead(ahead: usize) -> [u32; 256] {
    let mut shares = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        // A byte is taken in by adding it to the low bits of the register before it.
        shares[byte] = byte as u32;
        let mut count = 0;
        while count < ahead {
            shares[byte] = undo_zero_byte(shares[byte]);
            count += 1;
        }
        byte += 1;
    }
    shares
}

/// The tables of each byte's share in a register, least significant first, after `count` zero bytes.
#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn register_shares(count: usize) -> [[u32; 256]; 4] {
    let power = power(count);
    let mut shares = [[0; 256]; 4];
    let mut at = 0;
    while at < 4 * 256 {
        let (byte, value) = (at / 256, at % 256);
        shares[byte][value] = multiply((value as u32) << (8 * byte), power);
        at += 1;
    }
    shares
}

/// The table of the registers in `before`, each after `count` zero bytes more.
#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
pub(crate) const fn moved(before: &[u32; 256], count: usize) -> [u32; 256] {
    let power = power(count);
    let mut after = [0; 256];
    let mut at = 0;
    while at < 256 {
        after[at] = multiply(before[at], power);
        at += 1;
    }
    after
}

/// What `count` zero bytes multiply a register with.
const fn power(count: usize) -> u32 {
    let mut power = ONE;
    let mut done = 0;
    while done < count {
        power = zero_byte(power);
        done += 1;
    }
    power
}

/// The product of two polynomials modulo the CRC's.
#[inline]
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = ONE;
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = times_x(b);
        bit >>= 1;
    }
    product
}

#[inline]
const fn times_x(register: u32) -> u32 {
    (register >> 1) ^ if register & 1 != 0 { POLYNOMIAL } else { 0 }
}

/// The inverse of [`times_x`]: the polynomial's top reflected bit tells whether it was added.
const fn over_x(register: u32) -> u32 {
    if register & ONE != 0 { ((register ^ POLYNOMIAL) << 1) | 1 } else { register << 1 }
}

const fn zero_byte(mut register: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        register = times_x(register);
        bit += 1;
    }
    register
}

const fn undo_zero_byte(mut register: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        register = over_x(register);
        bit += 1;
    }
    register
}

#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn inverse_powers() -> [[u32; 256]; 2] {
    let mut powers = [[ONE; 256]; 2];
    let mut k = 1;
    while k < 256 {
        powers[0][k] = undo_zero_byte(powers[0][k - 1]);
        k += 1;
    }
    let step = undo_zero_byte(powers[0][255]);
    k = 1;
    while k < 256 {
        powers[1][k] = multiply(powers[1][k - 1], step);
        k += 1;
    }
    powers
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_check_value_of_crc32_comes_out() {
        // The value that every catalogue of CRCs lists for CRC-32 and these nine bytes.
        assert_eq!(!update(!0, b"123456789"), 0xcbf4_3926);
    }

    proptest! {
        #[test]
        fn the_common_lengths_are_no_different(register: u32, seed: u8, mtu in 7_u32..14) {
            for len in [(1 << mtu) + 11, (1 << mtu) + 12, (1 << mtu) + 13] {
                let bytes: Vec<u8> = (0..len).map(|i: usize| seed ^ (i * 7) as u8).collect();
                prop_assert_eq!(update(register, &bytes), update_any(register, &bytes));
            }
        }

        #[test]
        fn zeros_can_be_undone(register: u32, count: u16) {
            let after = update(register, &vec![0; usize::from(count)]);
            prop_assert_eq!(undo_zeros(after, count), register);
        }
    }
}
