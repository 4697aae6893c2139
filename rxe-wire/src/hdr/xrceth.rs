//! XRCETH, the header of requests on an extended reliable connection.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{be24, read_prefix, to_be24, write_prefix};
use crate::error::EmitError;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct XrcethBytes {
    reserved: u8,
    srqn: [u8; 3],
}

const _: () = assert!(size_of::<XrcethBytes>() == Xrceth::LEN);

/// The extended reliable connection extended transport header, 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Xrceth {
    /// The shared receive queue at the responder, 24 bits; higher bits are dropped in writing.
    pub srqn: u32,
    /// Reserved byte before it; sent as 0.
    pub reserved: u8,
}

impl Xrceth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads it from the start of `bytes`; `None` when they are fewer than [`LEN`](Self::LEN).
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let raw: XrcethBytes = read_prefix(bytes)?;
        Some(Self { srqn: be24(raw.srqn), reserved: raw.reserved })
    }

    /// Writes it to the start of `buf`.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    #[inline]
    pub fn write(&self, buf: &mut [u8]) -> Result<(), EmitError> {
        write_prefix(&XrcethBytes { reserved: self.reserved, srqn: to_be24(self.srqn) }, buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_stands_where_the_layout_says() {
        // Written by hand from the layout.
        let bytes = [0xee, 1, 2, 3];
        let value = Xrceth { srqn: 0x01_0203, reserved: 0xee };
        assert_eq!(Xrceth::read(&bytes), Some(value));
        assert_eq!(Xrceth::read(&bytes[1..]), None);
        let mut out = [0; Xrceth::LEN];
        value.write(&mut out).unwrap();
        assert_eq!(out, bytes);
        assert!(value.write(&mut out[1..]).is_err());
    }
}
