//! IETH, the invalidate header.

use zerocopy::byteorder::{BE, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{read_prefix, write_prefix};
use crate::RKey;
use crate::error::EmitError;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct IethBytes {
    rkey: U32<BE>,
}

const _: () = assert!(size_of::<IethBytes>() == Ieth::LEN);

/// The invalidate extended transport header, 4 bytes (`struct rxe_ieth` in Linux).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ieth(
    /// The remote key that the responder is to invalidate (rule R41).
    pub RKey,
);

impl Ieth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads it from the start of `bytes`; `None` when they are fewer than [`LEN`](Self::LEN).
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let raw: IethBytes = read_prefix(bytes)?;
        Some(Self(RKey::new(raw.rkey.get())))
    }

    /// Writes it to the start of `buf`.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    #[inline]
    pub fn write(&self, buf: &mut [u8]) -> Result<(), EmitError> {
        write_prefix(&IethBytes { rkey: U32::new(self.0.get()) }, buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_big_endian_key() {
        // Written by hand from the layout.
        let bytes = [1, 2, 3, 4];
        let value = Ieth(RKey::new(0x0102_0304));
        assert_eq!(Ieth::read(&bytes), Some(value));
        assert_eq!(Ieth::read(&bytes[1..]), None);
        let mut out = [0; Ieth::LEN];
        value.write(&mut out).unwrap();
        assert_eq!(out, bytes);
        assert!(value.write(&mut out[1..]).is_err());
    }
}
