//! AtomicETH, the request of an atomic, and AtomicAckETH, its answer.

use zerocopy::byteorder::{BE, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{read_prefix, write_prefix};
use crate::RKey;
use crate::error::EmitError;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct AtomicEthBytes {
    va: U64<BE>,
    rkey: U32<BE>,
    swap_or_add: U64<BE>,
    compare: U64<BE>,
}

const _: () = assert!(size_of::<AtomicEthBytes>() == AtomicEth::LEN);

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct AtomicAckEthBytes {
    original: U64<BE>,
}

const _: () = assert!(size_of::<AtomicAckEthBytes>() == AtomicAckEth::LEN);

/// The atomic extended transport header, 28 bytes (`struct rxe_atmeth` in Linux).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AtomicEth {
    /// Virtual address at the responder; a multiple of eight, or the request is refused.
    pub va: u64,
    /// Remote key.
    pub rkey: RKey,
    /// What compare and swap stores, or fetch and add adds.
    pub swap_or_add: u64,
    /// What compare and swap compares with; fetch and add does not use it.
    pub compare: u64,
}

impl AtomicEth {
    /// Length in bytes.
    pub const LEN: usize = 28;

    /// Reads it from the start of `bytes`; `None` when they are fewer than [`LEN`](Self::LEN).
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let raw: AtomicEthBytes = read_prefix(bytes)?;
        Some(Self {
            va: raw.va.get(),
            rkey: RKey::new(raw.rkey.get()),
            swap_or_add: raw.swap_or_add.get(),
            compare: raw.compare.get(),
        })
    }

    /// Writes it to the start of `buf`.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    #[inline]
    pub fn write(&self, buf: &mut [u8]) -> Result<(), EmitError> {
        write_prefix(
            &AtomicEthBytes {
                va: U64::new(self.va),
                rkey: U32::new(self.rkey.get()),
                swap_or_add: U64::new(self.swap_or_add),
                compare: U64::new(self.compare),
            },
            buf,
        )
    }
}

/// The atomic acknowledge extended transport header, 8 bytes (`struct rxe_atmack` in Linux).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AtomicAckEth {
    /// The value in memory before the operation.
    pub original: u64,
}

impl AtomicAckEth {
    /// Length in bytes.
    pub const LEN: usize = 8;

    /// Reads it from the start of `bytes`; `None` when they are fewer than [`LEN`](Self::LEN).
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let raw: AtomicAckEthBytes = read_prefix(bytes)?;
        Some(Self { original: raw.original.get() })
    }

    /// Writes it to the start of `buf`.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    #[inline]
    pub fn write(&self, buf: &mut [u8]) -> Result<(), EmitError> {
        write_prefix(&AtomicAckEthBytes { original: U64::new(self.original) }, buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_of_the_request_stands_where_the_layout_says() {
        // Written by hand from the layout.
        let bytes = [
            0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19, 20, 21, 22, 23, 32, 33, 34, 35,
            36, 37, 38, 39,
        ];
        let value = AtomicEth {
            va: 0x0001_0203_0405_0607,
            rkey: RKey::new(0x0809_0a0b),
            swap_or_add: 0x1011_1213_1415_1617,
            compare: 0x2021_2223_2425_2627,
        };
        assert_eq!(AtomicEth::read(&bytes), Some(value));
        assert_eq!(AtomicEth::read(&bytes[1..]), None);
        let mut out = [0; AtomicEth::LEN];
        value.write(&mut out).unwrap();
        assert_eq!(out, bytes);
        assert!(value.write(&mut out[1..]).is_err());
    }

    #[test]
    fn the_answer_is_one_big_endian_number() {
        // Written by hand from the layout.
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        let value = AtomicAckEth { original: 0x0102_0304_0506_0708 };
        assert_eq!(AtomicAckEth::read(&bytes), Some(value));
        assert_eq!(AtomicAckEth::read(&bytes[1..]), None);
        let mut out = [0; AtomicAckEth::LEN];
        value.write(&mut out).unwrap();
        assert_eq!(out, bytes);
        assert!(value.write(&mut out[1..]).is_err());
    }
}
