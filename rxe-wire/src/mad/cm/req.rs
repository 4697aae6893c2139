//! REQ: asks for a connection.

use std::fmt;

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::fields::{
    Bits, CommId, FixedBytes, Guid, PathMtu, TimeoutExponent, TransportService, U24, lowest, upper,
    word,
};
use super::path::{Path, ReqPathBytes};
use super::service_id::ServiceId;
use crate::mad::{MAD_DATA_LEN, view};
use crate::{PKey, ParseError, Psn, QKey, Qpn};

/// The message as it lies on the wire.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ReqBytes {
    local_comm_id: U32,
    /// 8 bits reserved, 24 vendor id.
    vendor: U32,
    service_id: U64,
    local_ca_guid: U64,
    reserved: U32,
    local_qkey: U32,
    /// 24 bits local QPN, 8 responder resources.
    qpn_resources: U32,
    /// 24 bits local EE context, 8 initiator depth.
    eecn_depth: U32,
    /// 24 bits remote EE context, 5 remote timeout, 2 transport service, 1 flow control.
    remote_eecn_service: U32,
    /// 24 bits starting PSN, 5 local timeout, 3 retry count.
    psn_retry: U32,
    pkey: U16,
    /// 4 bits path MTU, 1 RDC exists, 3 RNR retry count.
    mtu_rnr: u8,
    /// 4 bits CM retries, 1 SRQ, 3 extended transport.
    retries_srq: u8,
    primary: ReqPathBytes,
    alternate: ReqPathBytes,
    private_data: [u8; 92],
}

const _: () = assert!(size_of::<ReqBytes>() == MAD_DATA_LEN);

/// Connection request (IBA vol. 1, chapter 12; facts.md section 2; C: `struct cm_req_msg`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Req {
    /// The requester's id of the connection.
    pub local_comm_id: CommId,
    /// Vendor of optional extensions; 0 is none.
    pub vendor_id: U24,
    /// The service asked for.
    pub service_id: ServiceId,
    /// GUID of the requester's adapter.
    pub local_ca_guid: Guid,
    /// Q_Key, of RD only.
    pub local_qkey: QKey,
    /// The requester's QP.
    pub local_qpn: Qpn,
    /// READs and atomics that the requester can serve at once.
    pub responder_resources: u8,
    /// The requester's EE context, of RD only.
    pub local_eecn: U24,
    /// READs and atomics that the requester wants to have under way at once.
    pub initiator_depth: u8,
    /// The responder's EE context, of RD only.
    pub remote_eecn: U24,
    /// How long the responder may take to answer.
    pub remote_response_timeout: TimeoutExponent,
    /// Transport of the connection.
    pub service: TransportService,
    /// Whether the requester does end-to-end flow control.
    pub flow_control: bool,
    /// PSN that the responder is to start with, as the captures show: not the sender's own.
    pub starting_psn: Psn,
    /// How long the requester takes to answer.
    pub local_response_timeout: TimeoutExponent,
    /// How often the responder should retry.
    pub retry_count: Bits<3>,
    /// Partition of the connection.
    pub pkey: PKey,
    /// Greatest payload of a packet on both paths.
    pub path_mtu: PathMtu,
    /// Whether an RD channel exists already.
    pub rdc_exists: bool,
    /// How often the responder should retry after RNR; 7 is for ever.
    pub rnr_retry_count: Bits<3>,
    /// How often this message is sent again at most.
    pub max_cm_retries: Bits<4>,
    /// Whether the requester's QP has a shared receive queue.
    pub srq: bool,
    /// Which transport, when [`Req::service`] is extended; 1 is XRC.
    pub extended_transport: Bits<3>,
    /// The path of the connection.
    pub primary_path: Path,
    /// A path for migration; all zero is none.
    pub alternate_path: Path,
    /// Private data; the IP connection manager's begins with its header ([`super::CmaHeader`]).
    pub private_data: FixedBytes<92>,
    /// Reserved bits as received; 0 in messages of ours.
    pub reserved: FixedBytes<5>,
}

impl Req {
    /// Reads the message from the [`MAD_DATA_LEN`] bytes after the MAD header.
    ///
    /// # Errors
    ///
    /// [`ParseError`] when there are fewer.
    pub fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let raw: &ReqBytes = view(bytes)?;
        let [vendor, remote] = [raw.vendor.get(), raw.remote_eecn_service.get()];
        let [psn_retry, qpn, eecn] =
            [raw.psn_retry.get(), raw.qpn_resources.get(), raw.eecn_depth.get()];
        let [r0, r1, r2, r3] = raw.reserved.to_bytes();
        Ok(Self {
            local_comm_id: CommId(raw.local_comm_id.get()),
            vendor_id: U24::new(vendor),
            service_id: ServiceId(raw.service_id.get()),
            local_ca_guid: Guid(raw.local_ca_guid.get()),
            local_qkey: QKey::new(raw.local_qkey.get()),
            local_qpn: Qpn::new(upper(qpn)),
            responder_resources: lowest(qpn),
            local_eecn: U24::new(upper(eecn)),
            initiator_depth: lowest(eecn),
            remote_eecn: U24::new(upper(remote)),
            remote_response_timeout: TimeoutExponent::new(lowest(remote) >> 3),
            service: TransportService::from_code(lowest(remote) >> 1),
            flow_control: remote & 1 != 0,
            starting_psn: Psn::new(upper(psn_retry)),
            local_response_timeout: TimeoutExponent::new(lowest(psn_retry) >> 3),
            retry_count: Bits::new(lowest(psn_retry)),
            pkey: PKey::new(raw.pkey.get()),
            path_mtu: PathMtu(Bits::new(raw.mtu_rnr >> 4)),
            rdc_exists: raw.mtu_rnr & 0b1000 != 0,
            rnr_retry_count: Bits::new(raw.mtu_rnr),
            max_cm_retries: Bits::new(raw.retries_srq >> 4),
            srq: raw.retries_srq & 0b1000 != 0,
            extended_transport: Bits::new(raw.retries_srq),
            primary_path: Path::from_req(&raw.primary),
            alternate_path: Path::from_req(&raw.alternate),
            private_data: FixedBytes(raw.private_data),
            reserved: FixedBytes([(vendor >> 24) as u8, r0, r1, r2, r3]),
        })
    }

    /// Writes the message; what [`Req::read`] took comes out unchanged.
    pub fn write(&self, out: &mut [u8; MAD_DATA_LEN]) {
        let [before_vendor, r0, r1, r2, r3] = self.reserved.0;
        let service = self.remote_response_timeout.get() << 3
            | self.service.code() << 1
            | u8::from(self.flow_control);
        let retry = self.local_response_timeout.get() << 3 | self.retry_count.get();
        let raw = ReqBytes {
            local_comm_id: self.local_comm_id.0.into(),
            vendor: (u32::from(before_vendor) << 24 | self.vendor_id.get()).into(),
            service_id: self.service_id.0.into(),
            local_ca_guid: self.local_ca_guid.0.into(),
            reserved: U32::from_bytes([r0, r1, r2, r3]),
            local_qkey: self.local_qkey.get().into(),
            qpn_resources: word(self.local_qpn.get(), self.responder_resources).into(),
            eecn_depth: word(self.local_eecn.get(), self.initiator_depth).into(),
            remote_eecn_service: word(self.remote_eecn.get(), service).into(),
            psn_retry: word(self.starting_psn.get(), retry).into(),
            pkey: self.pkey.get().into(),
            mtu_rnr: self.path_mtu.0.get() << 4
                | u8::from(self.rdc_exists) << 3
                | self.rnr_retry_count.get(),
            retries_srq: self.max_cm_retries.get() << 4
                | u8::from(self.srq) << 3
                | self.extended_transport.get(),
            primary: self.primary_path.to_req(),
            alternate: self.alternate_path.to_req(),
            private_data: self.private_data.0,
        };
        *out = zerocopy::transmute!(raw);
    }
}

impl fmt::Display for Req {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, service_id, local_qpn, starting_psn, .. } = self;
        write!(
            f,
            "REQ id {local_comm_id} service {service_id} qpn {local_qpn} psn {starting_psn}"
        )?;
        match self.path_mtu.bytes() {
            Some(bytes) => write!(f, " mtu {bytes}")?,
            None => write!(f, " mtu code {}", self.path_mtu.0)?,
        }
        write!(
            f,
            " resources {} depth {} retry {} rnr {}",
            self.responder_resources, self.initiator_depth, self.retry_count, self.rnr_retry_count
        )
    }
}
