//! ImmDt, the immediate data.

use zerocopy::byteorder::{BE, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{read_prefix, write_prefix};
use crate::error::EmitError;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ImmDtBytes {
    data: U32<BE>,
}

const _: () = assert!(size_of::<ImmDtBytes>() == ImmDt::LEN);

/// Immediate data, 4 bytes (`struct rxe_immdt` in Linux).
///
/// The number is the big-endian field as a host-order value; verbs hand it over as `imm_data`,
/// which C programs convert with `htonl` and `ntohl`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ImmDt(pub u32);

impl ImmDt {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads it from the start of `bytes`; `None` when they are fewer than [`LEN`](Self::LEN).
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let raw: ImmDtBytes = read_prefix(bytes)?;
        Some(Self(raw.data.get()))
    }

    /// Writes it to the start of `buf`.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    #[inline]
    pub fn write(&self, buf: &mut [u8]) -> Result<(), EmitError> {
        write_prefix(&ImmDtBytes { data: U32::new(self.0) }, buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_big_endian_number() {
        // Written by hand from the layout.
        let bytes = [1, 2, 3, 4];
        let value = ImmDt(0x0102_0304);
        assert_eq!(ImmDt::read(&bytes), Some(value));
        assert_eq!(ImmDt::read(&bytes[1..]), None);
        let mut out = [0; ImmDt::LEN];
        value.write(&mut out).unwrap();
        assert_eq!(out, bytes);
        assert!(value.write(&mut out[1..]).is_err());
    }
}
