//! LAP and APR: offer an alternate path for a connection, and answer.

use std::fmt;

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::fields::{CommId, FixedBytes, TimeoutExponent, lowest, upper, word};
use super::path::{LapPathBytes, Path};
use crate::mad::{MAD_DATA_LEN, view};
use crate::{ParseError, Qpn};

/// LAP as it lies on the wire.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LapBytes {
    local_comm_id: U32,
    remote_comm_id: U32,
    reserved_8: [u8; 4],
    /// 24 bits remote QPN, 5 remote timeout, 3 reserved.
    qpn_timeout: U32,
    reserved_16: [u8; 4],
    alternate: LapPathBytes,
    private_data: [u8; 168],
}

/// APR as it lies on the wire.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct AprBytes {
    local_comm_id: U32,
    remote_comm_id: U32,
    info_len: u8,
    status: u8,
    reserved: [u8; 2],
    info: [u8; 72],
    private_data: [u8; 148],
}

const _: () = assert!(size_of::<LapBytes>() == MAD_DATA_LEN);
const _: () = assert!(size_of::<AprBytes>() == MAD_DATA_LEN);

/// Load alternate path (IBA vol. 1, chapter 12; facts.md section 2; C: `struct cm_lap_msg`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Lap {
    /// The sender's id of the connection.
    pub local_comm_id: CommId,
    /// The receiver's id.
    pub remote_comm_id: CommId,
    /// The receiver's QP, or its EE context for RD.
    pub remote_qpn: Qpn,
    /// How long the receiver may take to answer.
    pub remote_response_timeout: TimeoutExponent,
    /// The path to migrate to.
    pub alternate_path: Path,
    /// Private data.
    pub private_data: FixedBytes<168>,
    /// Reserved bits as received; 0 in messages of ours.
    pub reserved: FixedBytes<9>,
}

impl Lap {
    /// Reads the message from the [`MAD_DATA_LEN`] bytes after the MAD header.
    ///
    /// # Errors
    ///
    /// [`ParseError`] when there are fewer.
    pub fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let raw: &LapBytes = view(bytes)?;
        let qpn_timeout = raw.qpn_timeout.get();
        let ([a, b, c, d], [e, f, g, h]) = (raw.reserved_8, raw.reserved_16);
        Ok(Self {
            local_comm_id: CommId(raw.local_comm_id.get()),
            remote_comm_id: CommId(raw.remote_comm_id.get()),
            remote_qpn: Qpn::new(upper(qpn_timeout)),
            remote_response_timeout: TimeoutExponent::new(lowest(qpn_timeout) >> 3),
            alternate_path: Path::from_lap(&raw.alternate),
            private_data: FixedBytes(raw.private_data),
            reserved: FixedBytes([a, b, c, d, lowest(qpn_timeout) & 0b111, e, f, g, h]),
        })
    }

    /// Writes the message; what [`Lap::read`] took comes out unchanged.
    pub fn write(&self, out: &mut [u8; MAD_DATA_LEN]) {
        let [a, b, c, d, after_timeout, e, f, g, h] = self.reserved.0;
        let timeout = self.remote_response_timeout.get() << 3 | after_timeout & 0b111;
        let raw = LapBytes {
            local_comm_id: self.local_comm_id.0.into(),
            remote_comm_id: self.remote_comm_id.0.into(),
            reserved_8: [a, b, c, d],
            qpn_timeout: word(self.remote_qpn.get(), timeout).into(),
            reserved_16: [e, f, g, h],
            alternate: self.alternate_path.to_lap(),
            private_data: self.private_data.0,
        };
        *out = zerocopy::transmute!(raw);
    }
}

impl fmt::Display for Lap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, remote_comm_id, remote_qpn, .. } = self;
        write!(f, "LAP id {local_comm_id} for {remote_comm_id} remote qpn {remote_qpn}")
    }
}

/// What became of a LAP, 8 bits; a code without a name is kept as it came.
///
/// C: `enum ib_cm_apr_status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AprStatus(pub u8);

impl AprStatus {
    /// The path is loaded.
    pub const SUCCESS: Self = Self(0);
    /// The communication id names nothing.
    pub const INVALID_COMM_ID: Self = Self(1);
    /// Alternate paths are not supported.
    pub const UNSUPPORTED: Self = Self(2);
    /// The program refused.
    pub const REJECT: Self = Self(3);
    /// Ask where the additional information says.
    pub const REDIRECT: Self = Self(4);
    /// The path is the current one.
    pub const IS_CURRENT: Self = Self(5);
    /// The QPN or EE context is not right.
    pub const INVALID_QPN_EECN: Self = Self(6);
    /// The LID is not right.
    pub const INVALID_LID: Self = Self(7);
    /// The GID is not right.
    pub const INVALID_GID: Self = Self(8);
    /// The flow label is not right.
    pub const INVALID_FLOW_LABEL: Self = Self(9);
    /// The traffic class is not right.
    pub const INVALID_TRAFFIC_CLASS: Self = Self(10);
    /// The hop limit is not right.
    pub const INVALID_HOP_LIMIT: Self = Self(11);
    /// The packet rate is not right.
    pub const INVALID_PACKET_RATE: Self = Self(12);
    /// The service level is not right.
    pub const INVALID_SL: Self = Self(13);

    /// What the code says, or `None` when it has no meaning.
    pub const fn text(self) -> Option<&'static str> {
        Some(match self {
            Self::SUCCESS => "success",
            Self::INVALID_COMM_ID => "invalid communication id",
            Self::UNSUPPORTED => "unsupported",
            Self::REJECT => "rejected",
            Self::REDIRECT => "redirection",
            Self::IS_CURRENT => "path is current",
            Self::INVALID_QPN_EECN => "invalid QPN or EE context",
            Self::INVALID_LID => "invalid LID",
            Self::INVALID_GID => "invalid GID",
            Self::INVALID_FLOW_LABEL => "invalid flow label",
            Self::INVALID_TRAFFIC_CLASS => "invalid traffic class",
            Self::INVALID_HOP_LIMIT => "invalid hop limit",
            Self::INVALID_PACKET_RATE => "invalid packet rate",
            Self::INVALID_SL => "invalid service level",
            _ => return None,
        })
    }
}

impl fmt::Display for AprStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, self.text().unwrap_or("unknown"))
    }
}

impl fmt::Debug for AprStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Alternate path response (IBA vol. 1, chapter 12; facts.md section 2; C: `struct cm_apr_msg`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Apr {
    /// The sender's id of the connection.
    pub local_comm_id: CommId,
    /// The receiver's id.
    pub remote_comm_id: CommId,
    /// How many bytes of [`Apr::info`] count, as the sender says.
    pub info_len: u8,
    /// What became of the LAP.
    pub status: AprStatus,
    /// Additional information; what it means depends on the status.
    pub info: FixedBytes<72>,
    /// Private data.
    pub private_data: FixedBytes<148>,
    /// Reserved bits as received; 0 in messages of ours.
    pub reserved: FixedBytes<2>,
}

impl Apr {
    /// Reads the message from the [`MAD_DATA_LEN`] bytes after the MAD header.
    ///
    /// # Errors
    ///
    /// [`ParseError`] when there are fewer.
    pub fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let raw: &AprBytes = view(bytes)?;
        Ok(Self {
            local_comm_id: CommId(raw.local_comm_id.get()),
            remote_comm_id: CommId(raw.remote_comm_id.get()),
            info_len: raw.info_len,
            status: AprStatus(raw.status),
            info: FixedBytes(raw.info),
            private_data: FixedBytes(raw.private_data),
            reserved: FixedBytes(raw.reserved),
        })
    }

    /// Writes the message; what [`Apr::read`] took comes out unchanged.
    pub fn write(&self, out: &mut [u8; MAD_DATA_LEN]) {
        let raw = AprBytes {
            local_comm_id: self.local_comm_id.0.into(),
            remote_comm_id: self.remote_comm_id.0.into(),
            info_len: self.info_len,
            status: self.status.0,
            reserved: self.reserved.0,
            info: self.info.0,
            private_data: self.private_data.0,
        };
        *out = zerocopy::transmute!(raw);
    }
}

impl fmt::Display for Apr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, remote_comm_id, status, .. } = self;
        write!(f, "APR id {local_comm_id} for {remote_comm_id} status {status}")
    }
}
