//! RDETH, the reliable datagram header.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{be24, read_prefix, to_be24, write_prefix};
use crate::error::EmitError;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RdethBytes {
    reserved: u8,
    ee_context: [u8; 3],
}

const _: () = assert!(size_of::<RdethBytes>() == Rdeth::LEN);

/// The reliable datagram extended transport header, 4 bytes (`struct rxe_rdeth` in Linux).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rdeth {
    /// Number of the end-to-end context, 24 bits; higher bits are dropped in writing.
    pub ee_context: u32,
    /// Reserved byte before it; sent as 0.
    pub reserved: u8,
}

impl Rdeth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads it from the start of `bytes`; `None` when they are fewer than [`LEN`](Self::LEN).
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let raw: RdethBytes = read_prefix(bytes)?;
        Some(Self { ee_context: be24(raw.ee_context), reserved: raw.reserved })
    }

    /// Writes it to the start of `buf`.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    #[inline]
    pub fn write(&self, buf: &mut [u8]) -> Result<(), EmitError> {
        write_prefix(
            &RdethBytes { reserved: self.reserved, ee_context: to_be24(self.ee_context) },
            buf,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_stands_where_the_layout_says() {
        // Written by hand from the layout.
        let bytes = [0xee, 1, 2, 3];
        let value = Rdeth { ee_context: 0x01_0203, reserved: 0xee };
        assert_eq!(Rdeth::read(&bytes), Some(value));
        assert_eq!(Rdeth::read(&bytes[1..]), None);
        let mut out = [0; Rdeth::LEN];
        value.write(&mut out).unwrap();
        assert_eq!(out, bytes);
        assert!(value.write(&mut out[1..]).is_err());
    }
}
