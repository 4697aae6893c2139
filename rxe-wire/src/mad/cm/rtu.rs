//! RTU: the requester is ready to use the connection.

use std::fmt;

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::fields::{CommId, FixedBytes};
use crate::ParseError;
use crate::mad::{MAD_DATA_LEN, view};

/// The message as it lies on the wire.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RtuBytes {
    local_comm_id: U32,
    remote_comm_id: U32,
    private_data: [u8; 224],
}

const _: () = assert!(size_of::<RtuBytes>() == MAD_DATA_LEN);

/// Ready to use (IBA vol. 1, chapter 12; facts.md section 2; C: `struct cm_rtu_msg`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Rtu {
    /// The requester's id of the connection.
    pub local_comm_id: CommId,
    /// The responder's id, from the REP.
    pub remote_comm_id: CommId,
    /// Private data.
    pub private_data: FixedBytes<224>,
}

impl Rtu {
    /// Reads the message from the [`MAD_DATA_LEN`] bytes after the MAD header.
    ///
    /// # Errors
    ///
    /// [`ParseError`] when there are fewer.
    pub fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let raw: &RtuBytes = view(bytes)?;
        Ok(Self {
            local_comm_id: CommId(raw.local_comm_id.get()),
            remote_comm_id: CommId(raw.remote_comm_id.get()),
            private_data: FixedBytes(raw.private_data),
        })
    }

    /// Writes the message; what [`Rtu::read`] took comes out unchanged.
    pub fn write(&self, out: &mut [u8; MAD_DATA_LEN]) {
        let raw = RtuBytes {
            local_comm_id: self.local_comm_id.0.into(),
            remote_comm_id: self.remote_comm_id.0.into(),
            private_data: self.private_data.0,
        };
        *out = zerocopy::transmute!(raw);
    }
}

impl fmt::Display for Rtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RTU id {} for {}", self.local_comm_id, self.remote_comm_id)
    }
}
