//! AETH, the acknowledge header.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{be24, read_prefix, to_be24, write_prefix};
use crate::Msn;
use crate::error::EmitError;
use crate::syndrome::Syndrome;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct AethBytes {
    syndrome: u8,
    msn: [u8; 3],
}

const _: () = assert!(size_of::<AethBytes>() == Aeth::LEN);

/// The acknowledge extended transport header, 4 bytes (`struct rxe_aeth` in Linux).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Aeth {
    /// Acknowledge, receiver not ready or refusal.
    pub syndrome: Syndrome,
    /// How many messages the responder has completed, modulo 2^24.
    pub msn: Msn,
}

impl Aeth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads it from the start of `bytes`; `None` when they are fewer than [`LEN`](Self::LEN).
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let raw: AethBytes = read_prefix(bytes)?;
        Some(Self { syndrome: Syndrome::from_byte(raw.syndrome), msn: Msn::new(be24(raw.msn)) })
    }

    /// Writes it to the start of `buf`.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    #[inline]
    pub fn write(&self, buf: &mut [u8]) -> Result<(), EmitError> {
        write_prefix(
            &AethBytes { syndrome: self.syndrome.to_byte(), msn: to_be24(self.msn.get()) },
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
        let bytes = [0xe1, 0x0a, 0x0b, 0x0c];
        let value = Aeth { syndrome: Syndrome::from_byte(0xe1), msn: Msn::new(0x0a_0b0c) };
        assert_eq!(Aeth::read(&bytes), Some(value));
        assert_eq!(Aeth::read(&bytes[1..]), None);
        let mut out = [0; Aeth::LEN];
        value.write(&mut out).unwrap();
        assert_eq!(out, bytes);
        assert!(value.write(&mut out[1..]).is_err());
    }
}
