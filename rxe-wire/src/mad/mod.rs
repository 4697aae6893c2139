//! Management datagrams (MADs): the common header, and the messages of connection management.
//!
//! A MAD is 256 bytes: a 24-byte header ([`MadHeader`]) and 232 bytes whose meaning the class and
//! the attribute define. Over RoCE it is the payload of one UD packet from QP1 to QP1. [`Mad`] is a
//! view that borrows the bytes; [`cm::CmMessage`] is what they say when the class is connection
//! management. Reading never panics and never allocates, whatever the bytes; writing what was read
//! gives the same bytes, reserved bits of foreign messages included.
//!
//! ```
//! use rxe_wire::mad::cm::{CmMessage, CommId, Rtu};
//! use rxe_wire::mad::{MAD_LEN, Mad, TransactionId};
//!
//! let ready = Rtu { local_comm_id: CommId(1), remote_comm_id: CommId(2), ..Rtu::default() };
//! let mut bytes = [0; MAD_LEN];
//! CmMessage::Rtu(ready).write_mad(TransactionId(7), &mut bytes);
//!
//! let mad = Mad::parse(&bytes)?;
//! assert_eq!(mad.header.transaction_id, TransactionId(7));
//! assert_eq!(CmMessage::parse(&mad), Ok(CmMessage::Rtu(ready)));
//! # Ok::<(), rxe_wire::ParseError>(())
//! ```

pub mod cm;
mod header;

pub use header::{AttributeId, MAD_HEADER_LEN, MadHeader, ManagementClass, Method, TransactionId};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ParseError;
use crate::error::Layer;

/// The length of a management datagram in bytes; there is no other.
pub const MAD_LEN: usize = 256;

/// The length of what follows the header, in bytes.
pub const MAD_DATA_LEN: usize = MAD_LEN - MAD_HEADER_LEN;

/// The datagram as it lies on the wire.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct MadBytes {
    header: [u8; MAD_HEADER_LEN],
    data: [u8; MAD_DATA_LEN],
}

const _: () = assert!(size_of::<MadBytes>() == MAD_LEN);

/// A management datagram over borrowed bytes (C: `struct ib_mad`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mad<'a> {
    /// The common header.
    pub header: MadHeader,
    /// What the class and the attribute define.
    pub data: &'a [u8; MAD_DATA_LEN],
}

impl<'a> Mad<'a> {
    /// Takes the first [`MAD_LEN`] of `bytes`, the payload of a packet for QP1, for a datagram.
    ///
    /// Bytes behind them are not looked at. No datagram is longer: who serves QP1 drops such a
    /// packet, who shows packets says so.
    ///
    /// # Errors
    ///
    /// [`ParseError`] when there are fewer than [`MAD_LEN`] bytes.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let raw: &MadBytes = view(bytes)?;
        Ok(Self { header: MadHeader::read(&raw.header), data: &raw.data })
    }

    /// Writes the datagram; what [`Mad::parse`] took comes out unchanged.
    pub fn write(&self, out: &mut [u8; MAD_LEN]) {
        let mut header = [0; MAD_HEADER_LEN];
        self.header.write(&mut header);
        *out = zerocopy::transmute!(MadBytes { header, data: *self.data });
    }
}

/// The beginning of the bytes as the layout `T`.
fn view<T>(bytes: &[u8]) -> Result<&T, ParseError>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    T::ref_from_prefix(bytes).map(|(raw, _behind)| raw).map_err(|_| ParseError::Truncated {
        layer: Layer::Mad,
        needed: size_of::<T>(),
        have: bytes.len(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shorter_bytes_are_refused() {
        for have in [0, 1, MAD_HEADER_LEN, MAD_LEN - 1] {
            let expected = ParseError::Truncated { layer: Layer::Mad, needed: MAD_LEN, have };
            assert_eq!(Mad::parse(&vec![0; have]), Err(expected));
        }
        assert!(Mad::parse(&[0; MAD_LEN]).is_ok());
    }

    proptest! {
        #[test]
        fn any_datagram_round_trips(bytes in proptest::collection::vec(any::<u8>(), MAD_LEN)) {
            let mut out = [0; MAD_LEN];
            Mad::parse(&bytes).unwrap().write(&mut out);
            prop_assert_eq!(&out[..], &bytes[..]);
        }
    }
}
