//! DETH, the datagram header of UD (and RD).

use zerocopy::byteorder::{BE, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{be24, read_prefix, to_be24, write_prefix};
use crate::error::EmitError;
use crate::{QKey, Qpn};

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DethBytes {
    qkey: U32<BE>,
    reserved: u8,
    source_qpn: [u8; 3],
}

const _: () = assert!(size_of::<DethBytes>() == Deth::LEN);

/// The datagram extended transport header, 8 bytes (`struct rxe_deth` in Linux).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Deth {
    /// Queue key; must be that of the receiving QP (rule R57).
    pub qkey: QKey,
    /// The QP that sent it.
    pub source_qpn: Qpn,
    /// Reserved byte before the QPN; sent as 0.
    pub reserved: u8,
}

impl Deth {
    /// Length in bytes.
    pub const LEN: usize = 8;

    /// Reads it from the start of `bytes`; `None` when they are fewer than [`LEN`](Self::LEN).
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let raw: DethBytes = read_prefix(bytes)?;
        Some(Self {
            qkey: QKey::new(raw.qkey.get()),
            source_qpn: Qpn::new(be24(raw.source_qpn)),
            reserved: raw.reserved,
        })
    }

    /// Writes it to the start of `buf`.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    #[inline]
    pub fn write(&self, buf: &mut [u8]) -> Result<(), EmitError> {
        write_prefix(
            &DethBytes {
                qkey: U32::new(self.qkey.get()),
                reserved: self.reserved,
                source_qpn: to_be24(self.source_qpn.get()),
            },
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
        let bytes = [0x80, 1, 0, 2, 0xee, 4, 5, 6];
        let value =
            Deth { qkey: QKey::new(0x8001_0002), source_qpn: Qpn::new(0x04_0506), reserved: 0xee };
        assert_eq!(Deth::read(&bytes), Some(value));
        assert_eq!(Deth::read(&bytes[1..]), None);
        let mut out = [0; Deth::LEN];
        value.write(&mut out).unwrap();
        assert_eq!(out, bytes);
        assert!(value.write(&mut out[1..]).is_err());
    }
}
