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

/// The register after `bytes`, from `register` before them. No inversion at either end.
#[inline]
pub(crate) fn update(register: u32, bytes: &[u8]) -> u32 {
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
        fn zeros_can_be_undone(register: u32, count: u16) {
            let after = update(register, &vec![0; usize::from(count)]);
            prop_assert_eq!(undo_zeros(after, count), register);
        }
    }
}
