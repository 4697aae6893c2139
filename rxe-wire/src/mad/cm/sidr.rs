//! SIDR_REQ and SIDR_REP: ask which QP serves a service id, and answer (unreliable datagrams).

use std::fmt;

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::fields::{CommId, FixedBytes, U24, lowest, upper, word};
use super::service_id::ServiceId;
use crate::mad::{MAD_DATA_LEN, view};
use crate::{PKey, ParseError, QKey, Qpn};

/// SIDR_REQ as it lies on the wire.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SidrReqBytes {
    request_id: U32,
    pkey: U16,
    reserved: [u8; 2],
    service_id: U64,
    private_data: [u8; 216],
}

/// SIDR_REP as it lies on the wire.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SidrRepBytes {
    request_id: U32,
    status: u8,
    info_len: u8,
    /// The upper 16 bits of the vendor id.
    vendor_high: U16,
    /// 24 bits QPN, 8 vendor id (low).
    qpn_vendor: U32,
    service_id: U64,
    qkey: U32,
    info: [u8; 72],
    private_data: [u8; 136],
}

const _: () = assert!(size_of::<SidrReqBytes>() == MAD_DATA_LEN);
const _: () = assert!(size_of::<SidrRepBytes>() == MAD_DATA_LEN);

/// Service id resolution request (IBA vol. 1, chapter 12; facts.md section 2; C: `struct
/// cm_sidr_req_msg`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct SidrReq {
    /// The requester's id of the request.
    pub request_id: CommId,
    /// Partition of the datagrams.
    pub pkey: PKey,
    /// The service asked for.
    pub service_id: ServiceId,
    /// Private data; the IP connection manager's begins with its header ([`super::CmaHeader`]).
    pub private_data: FixedBytes<216>,
    /// Reserved bits as received; 0 in messages of ours.
    pub reserved: FixedBytes<2>,
}

impl SidrReq {
    /// Reads the message from the [`MAD_DATA_LEN`] bytes after the MAD header.
    ///
    /// # Errors
    ///
    /// [`ParseError`] when there are fewer.
    pub fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let raw: &SidrReqBytes = view(bytes)?;
        Ok(Self {
            request_id: CommId(raw.request_id.get()),
            pkey: PKey::new(raw.pkey.get()),
            service_id: ServiceId(raw.service_id.get()),
            private_data: FixedBytes(raw.private_data),
            reserved: FixedBytes(raw.reserved),
        })
    }

    /// Writes the message; what [`SidrReq::read`] took comes out unchanged.
    pub fn write(&self, out: &mut [u8; MAD_DATA_LEN]) {
        let raw = SidrReqBytes {
            request_id: self.request_id.0.into(),
            pkey: self.pkey.get().into(),
            reserved: self.reserved.0,
            service_id: self.service_id.0.into(),
            private_data: self.private_data.0,
        };
        *out = zerocopy::transmute!(raw);
    }
}

impl fmt::Display for SidrReq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request_id, pkey, service_id, .. } = self;
        write!(f, "SIDR_REQ id {request_id} service {service_id} pkey {pkey}")
    }
}

/// What became of a SIDR_REQ, 8 bits; a code without a name is kept as it came.
///
/// C: `enum ib_cm_sidr_status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// QPN and Q_Key are in the answer.
    pub const SUCCESS: Self = Self(0);
    /// The service id is not supported.
    pub const UNSUPPORTED: Self = Self(1);
    /// The program refused.
    pub const REJECT: Self = Self(2);
    /// There is no QP to be had.
    pub const NO_QP: Self = Self(3);
    /// Ask where the additional information says.
    pub const REDIRECT: Self = Self(4);
    /// The class version is not spoken here.
    pub const UNSUPPORTED_VERSION: Self = Self(5);

    /// What the code says, or `None` when it has no meaning.
    pub const fn text(self) -> Option<&'static str> {
        Some(match self {
            Self::SUCCESS => "success",
            Self::UNSUPPORTED => "unsupported service id",
            Self::REJECT => "rejected",
            Self::NO_QP => "no QP",
            Self::REDIRECT => "redirection",
            Self::UNSUPPORTED_VERSION => "unsupported version",
            _ => return None,
        })
    }
}

impl fmt::Display for SidrStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, self.text().unwrap_or("unknown"))
    }
}

impl fmt::Debug for SidrStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Service id resolution response (IBA vol. 1, chapter 12; facts.md section 2; C: `struct
/// cm_sidr_rep_msg`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct SidrRep {
    /// The requester's id, from the SIDR_REQ.
    pub request_id: CommId,
    /// What became of the request.
    pub status: SidrStatus,
    /// How many bytes of [`SidrRep::info`] count, as the sender says.
    pub info_len: u8,
    /// Vendor of optional extensions; 0 is none. Its bytes lie apart.
    pub vendor_id: U24,
    /// The QP that serves, when the status is success.
    pub qpn: Qpn,
    /// The service.
    pub service_id: ServiceId,
    /// Q_Key of the QP.
    pub qkey: QKey,
    /// Additional information; what it means depends on the status.
    pub info: FixedBytes<72>,
    /// Private data.
    pub private_data: FixedBytes<136>,
}

impl SidrRep {
    /// Reads the message from the [`MAD_DATA_LEN`] bytes after the MAD header.
    ///
    /// # Errors
    ///
    /// [`ParseError`] when there are fewer.
    pub fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let raw: &SidrRepBytes = view(bytes)?;
        let qpn_vendor = raw.qpn_vendor.get();
        Ok(Self {
            request_id: CommId(raw.request_id.get()),
            status: SidrStatus(raw.status),
            info_len: raw.info_len,
            vendor_id: U24::new(word(u32::from(raw.vendor_high.get()), lowest(qpn_vendor))),
            qpn: Qpn::new(upper(qpn_vendor)),
            service_id: ServiceId(raw.service_id.get()),
            qkey: QKey::new(raw.qkey.get()),
            info: FixedBytes(raw.info),
            private_data: FixedBytes(raw.private_data),
        })
    }

    /// Writes the message; what [`SidrRep::read`] took comes out unchanged.
    pub fn write(&self, out: &mut [u8; MAD_DATA_LEN]) {
        let [_, high, middle, low] = self.vendor_id.get().to_be_bytes();
        let raw = SidrRepBytes {
            request_id: self.request_id.0.into(),
            status: self.status.0,
            info_len: self.info_len,
            vendor_high: U16::from_bytes([high, middle]),
            qpn_vendor: word(self.qpn.get(), low).into(),
            service_id: self.service_id.0.into(),
            qkey: self.qkey.get().into(),
            info: self.info.0,
            private_data: self.private_data.0,
        };
        *out = zerocopy::transmute!(raw);
    }
}

impl fmt::Display for SidrRep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request_id, status, qpn, service_id, qkey, .. } = self;
        write!(f, "SIDR_REP id {request_id} service {service_id} status {status}")?;
        write!(f, " qpn {qpn} qkey {qkey}")
    }
}
