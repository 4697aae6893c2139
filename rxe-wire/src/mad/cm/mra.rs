//! MRA: a message arrived, the answer takes longer.

use std::fmt;

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::fields::{AnsweredMessage, CommId, FixedBytes, TimeoutExponent};
use crate::ParseError;
use crate::mad::{MAD_DATA_LEN, view};

/// The message as it lies on the wire.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct MraBytes {
    local_comm_id: U32,
    remote_comm_id: U32,
    /// 2 bits message, 6 reserved.
    message: u8,
    /// 5 bits service timeout, 3 reserved.
    timeout: u8,
    private_data: [u8; 222],
}

const _: () = assert!(size_of::<MraBytes>() == MAD_DATA_LEN);

/// Message receipt acknowledgement (IBA vol. 1, chapter 12; facts.md section 2; C: `struct
/// cm_mra_msg`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Mra {
    /// The sender's id of the connection.
    pub local_comm_id: CommId,
    /// The receiver's id.
    pub remote_comm_id: CommId,
    /// The message that arrived.
    pub message: AnsweredMessage,
    /// How long the answer may take from now.
    pub service_timeout: TimeoutExponent,
    /// Private data.
    pub private_data: FixedBytes<222>,
    /// Reserved bits as received; 0 in messages of ours.
    pub reserved: FixedBytes<2>,
}

impl Mra {
    /// Reads the message from the [`MAD_DATA_LEN`] bytes after the MAD header.
    ///
    /// # Errors
    ///
    /// [`ParseError`] when there are fewer.
    pub fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let raw: &MraBytes = view(bytes)?;
        Ok(Self {
            local_comm_id: CommId(raw.local_comm_id.get()),
            remote_comm_id: CommId(raw.remote_comm_id.get()),
            message: AnsweredMessage::from_code(raw.message >> 6),
            service_timeout: TimeoutExponent::new(raw.timeout >> 3),
            private_data: FixedBytes(raw.private_data),
            reserved: FixedBytes([raw.message & 0x3f, raw.timeout & 0b111]),
        })
    }

    /// Writes the message; what [`Mra::read`] took comes out unchanged.
    pub fn write(&self, out: &mut [u8; MAD_DATA_LEN]) {
        let [after_message, after_timeout] = self.reserved.0;
        let raw = MraBytes {
            local_comm_id: self.local_comm_id.0.into(),
            remote_comm_id: self.remote_comm_id.0.into(),
            message: self.message.code() << 6 | after_message & 0x3f,
            timeout: self.service_timeout.get() << 3 | after_timeout & 0b111,
            private_data: self.private_data.0,
        };
        *out = zerocopy::transmute!(raw);
    }
}

impl fmt::Display for Mra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, remote_comm_id, message, service_timeout, .. } = self;
        write!(f, "MRA id {local_comm_id} for {remote_comm_id}")?;
        write!(f, " of {message} timeout {service_timeout}")
    }
}
