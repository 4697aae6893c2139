//! RETH, the RDMA header of WRITE, READ request, FLUSH and ATOMIC WRITE.

use zerocopy::byteorder::{BE, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{read_prefix, write_prefix};
use crate::RKey;
use crate::error::EmitError;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RethBytes {
    va: U64<BE>,
    rkey: U32<BE>,
    len: U32<BE>,
}

const _: () = assert!(size_of::<RethBytes>() == Reth::LEN);

/// The RDMA extended transport header, 16 bytes (`struct rxe_reth` in Linux).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Reth {
    /// Virtual address at the responder.
    pub va: u64,
    /// Remote key.
    pub rkey: RKey,
    /// Length in bytes of the whole transfer (tshark's `dmalen`).
    pub len: u32,
}

impl Reth {
    /// Length in bytes.
    pub const LEN: usize = 16;

    /// Reads it from the start of `bytes`; `None` when they are fewer than [`LEN`](Self::LEN).
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let raw: RethBytes = read_prefix(bytes)?;
        Some(Self { va: raw.va.get(), rkey: RKey::new(raw.rkey.get()), len: raw.len.get() })
    }

    /// Writes it to the start of `buf`.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    #[inline]
    pub fn write(&self, buf: &mut [u8]) -> Result<(), EmitError> {
        write_prefix(
            &RethBytes {
                va: U64::new(self.va),
                rkey: U32::new(self.rkey.get()),
                len: U32::new(self.len),
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
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 1, 0, 2];
        let value = Reth { va: 0x0102_0304_0506_0708, rkey: RKey::new(0x090a_0b0c), len: 0x1_0002 };
        assert_eq!(Reth::read(&bytes), Some(value));
        assert_eq!(Reth::read(&bytes[1..]), None);
        let mut out = [0; Reth::LEN];
        value.write(&mut out).unwrap();
        assert_eq!(out, bytes);
        assert!(value.write(&mut out[1..]).is_err());
    }
}
