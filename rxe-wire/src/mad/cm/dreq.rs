//! DREQ and DREP: ask for the end of a connection, and agree.

use std::fmt;

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::fields::{CommId, FixedBytes, lowest, upper, word};
use crate::mad::{MAD_DATA_LEN, view};
use crate::{ParseError, Qpn};

/// DREQ as it lies on the wire.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DreqBytes {
    local_comm_id: U32,
    remote_comm_id: U32,
    /// 24 bits remote QPN, 8 reserved.
    remote_qpn: U32,
    private_data: [u8; 220],
}

/// DREP as it lies on the wire.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DrepBytes {
    local_comm_id: U32,
    remote_comm_id: U32,
    private_data: [u8; 224],
}

const _: () = assert!(size_of::<DreqBytes>() == MAD_DATA_LEN);
const _: () = assert!(size_of::<DrepBytes>() == MAD_DATA_LEN);

/// Disconnect request (IBA vol. 1, chapter 12; facts.md section 2; C: `struct cm_dreq_msg`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Dreq {
    /// The sender's id of the connection.
    pub local_comm_id: CommId,
    /// The receiver's id.
    pub remote_comm_id: CommId,
    /// The receiver's QP, or its EE context for RD.
    pub remote_qpn: Qpn,
    /// Private data.
    pub private_data: FixedBytes<220>,
    /// Reserved bits as received; 0 in messages of ours.
    pub reserved: FixedBytes<1>,
}

impl Dreq {
    /// Reads the message from the [`MAD_DATA_LEN`] bytes after the MAD header.
    ///
    /// # Errors
    ///
    /// [`ParseError`] when there are fewer.
    pub fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let raw: &DreqBytes = view(bytes)?;
        let qpn = raw.remote_qpn.get();
        Ok(Self {
            local_comm_id: CommId(raw.local_comm_id.get()),
            remote_comm_id: CommId(raw.remote_comm_id.get()),
            remote_qpn: Qpn::new(upper(qpn)),
            private_data: FixedBytes(raw.private_data),
            reserved: FixedBytes([lowest(qpn)]),
        })
    }

    /// Writes the message; what [`Dreq::read`] took comes out unchanged.
    pub fn write(&self, out: &mut [u8; MAD_DATA_LEN]) {
        let [after_qpn] = self.reserved.0;
        let raw = DreqBytes {
            local_comm_id: self.local_comm_id.0.into(),
            remote_comm_id: self.remote_comm_id.0.into(),
            remote_qpn: word(self.remote_qpn.get(), after_qpn).into(),
            private_data: self.private_data.0,
        };
        *out = zerocopy::transmute!(raw);
    }
}

impl fmt::Display for Dreq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, remote_comm_id, remote_qpn, .. } = self;
        write!(f, "DREQ id {local_comm_id} for {remote_comm_id} remote qpn {remote_qpn}")
    }
}

/// Disconnect reply (IBA vol. 1, chapter 12; facts.md section 2; C: `struct cm_drep_msg`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Drep {
    /// The sender's id of the connection.
    pub local_comm_id: CommId,
    /// The receiver's id.
    pub remote_comm_id: CommId,
    /// Private data.
    pub private_data: FixedBytes<224>,
}

impl Drep {
    /// Reads the message from the [`MAD_DATA_LEN`] bytes after the MAD header.
    ///
    /// # Errors
    ///
    /// [`ParseError`] when there are fewer.
    pub fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let raw: &DrepBytes = view(bytes)?;
        Ok(Self {
            local_comm_id: CommId(raw.local_comm_id.get()),
            remote_comm_id: CommId(raw.remote_comm_id.get()),
            private_data: FixedBytes(raw.private_data),
        })
    }

    /// Writes the message; what [`Drep::read`] took comes out unchanged.
    pub fn write(&self, out: &mut [u8; MAD_DATA_LEN]) {
        let raw = DrepBytes {
            local_comm_id: self.local_comm_id.0.into(),
            remote_comm_id: self.remote_comm_id.0.into(),
            private_data: self.private_data.0,
        };
        *out = zerocopy::transmute!(raw);
    }
}

impl fmt::Display for Drep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DREP id {} for {}", self.local_comm_id, self.remote_comm_id)
    }
}
