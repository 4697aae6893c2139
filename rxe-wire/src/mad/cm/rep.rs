//! REP: accepts a connection.

use std::fmt;

use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::fields::{Bits, CommId, FixedBytes, Guid, TimeoutExponent, U24, lowest, upper, word};
use crate::mad::{MAD_DATA_LEN, view};
use crate::{ParseError, Psn, QKey, Qpn};

/// The message as it lies on the wire.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RepBytes {
    local_comm_id: U32,
    remote_comm_id: U32,
    local_qkey: U32,
    /// 24 bits local QPN, 8 vendor id (high).
    qpn_vendor: U32,
    /// 24 bits local EE context, 8 vendor id (middle).
    eecn_vendor: U32,
    /// 24 bits starting PSN, 8 vendor id (low).
    psn_vendor: U32,
    responder_resources: u8,
    initiator_depth: u8,
    /// 5 bits target ACK delay, 2 failover accepted, 1 flow control.
    delay_failover: u8,
    /// 3 bits RNR retry count, 1 SRQ, 4 reserved.
    rnr_srq: u8,
    local_ca_guid: U64,
    private_data: [u8; 196],
}

const _: () = assert!(size_of::<RepBytes>() == MAD_DATA_LEN);

/// Connection reply (IBA vol. 1, chapter 12; facts.md section 2; C: `struct cm_rep_msg`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Rep {
    /// The responder's id of the connection.
    pub local_comm_id: CommId,
    /// The requester's id, from the REQ.
    pub remote_comm_id: CommId,
    /// Q_Key, of RD only.
    pub local_qkey: QKey,
    /// The responder's QP.
    pub local_qpn: Qpn,
    /// The responder's EE context, of RD only.
    pub local_eecn: U24,
    /// PSN that the requester is to start with, as the captures show: not the sender's own.
    pub starting_psn: Psn,
    /// Vendor of optional extensions; 0 is none. Its bytes lie apart.
    pub vendor_id: U24,
    /// READs and atomics that the responder can serve at once.
    pub responder_resources: u8,
    /// READs and atomics that the responder wants to have under way at once.
    pub initiator_depth: u8,
    /// How long the responder's adapter delays an acknowledgement.
    pub target_ack_delay: TimeoutExponent,
    /// Whether the alternate path was accepted; 0 is yes.
    pub failover_accepted: Bits<2>,
    /// Whether the responder does end-to-end flow control.
    pub flow_control: bool,
    /// How often the requester should retry after RNR; 7 is for ever.
    pub rnr_retry_count: Bits<3>,
    /// Whether the responder's QP has a shared receive queue.
    pub srq: bool,
    /// GUID of the responder's adapter.
    pub local_ca_guid: Guid,
    /// Private data.
    pub private_data: FixedBytes<196>,
    /// Reserved bits as received; 0 in messages of ours.
    pub reserved: Bits<4>,
}

impl Rep {
    /// Reads the message from the [`MAD_DATA_LEN`] bytes after the MAD header.
    ///
    /// # Errors
    ///
    /// [`ParseError`] when there are fewer.
    pub fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let raw: &RepBytes = view(bytes)?;
        let [qpn, eecn, psn] = [raw.qpn_vendor.get(), raw.eecn_vendor.get(), raw.psn_vendor.get()];
        let vendor = u32::from_be_bytes([0, lowest(qpn), lowest(eecn), lowest(psn)]);
        Ok(Self {
            local_comm_id: CommId(raw.local_comm_id.get()),
            remote_comm_id: CommId(raw.remote_comm_id.get()),
            local_qkey: QKey::new(raw.local_qkey.get()),
            local_qpn: Qpn::new(upper(qpn)),
            local_eecn: U24::new(upper(eecn)),
            starting_psn: Psn::new(upper(psn)),
            vendor_id: U24::new(vendor),
            responder_resources: raw.responder_resources,
            initiator_depth: raw.initiator_depth,
            target_ack_delay: TimeoutExponent::new(raw.delay_failover >> 3),
            failover_accepted: Bits::new(raw.delay_failover >> 1),
            flow_control: raw.delay_failover & 1 != 0,
            rnr_retry_count: Bits::new(raw.rnr_srq >> 5),
            srq: raw.rnr_srq & 0b1_0000 != 0,
            local_ca_guid: Guid(raw.local_ca_guid.get()),
            private_data: FixedBytes(raw.private_data),
            reserved: Bits::new(raw.rnr_srq),
        })
    }

    /// Writes the message; what [`Rep::read`] took comes out unchanged.
    pub fn write(&self, out: &mut [u8; MAD_DATA_LEN]) {
        let [_, high, middle, low] = self.vendor_id.get().to_be_bytes();
        let raw = RepBytes {
            local_comm_id: self.local_comm_id.0.into(),
            remote_comm_id: self.remote_comm_id.0.into(),
            local_qkey: self.local_qkey.get().into(),
            qpn_vendor: word(self.local_qpn.get(), high).into(),
            eecn_vendor: word(self.local_eecn.get(), middle).into(),
            psn_vendor: word(self.starting_psn.get(), low).into(),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            delay_failover: self.target_ack_delay.get() << 3
                | self.failover_accepted.get() << 1
                | u8::from(self.flow_control),
            rnr_srq: self.rnr_retry_count.get() << 5
                | u8::from(self.srq) << 4
                | self.reserved.get(),
            local_ca_guid: self.local_ca_guid.0.into(),
            private_data: self.private_data.0,
        };
        *out = zerocopy::transmute!(raw);
    }
}

impl fmt::Display for Rep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, remote_comm_id, local_qpn, starting_psn, .. } = self;
        write!(
            f,
            "REP id {local_comm_id} for {remote_comm_id} qpn {local_qpn} psn {starting_psn}"
        )?;
        write!(
            f,
            " resources {} depth {} rnr {}",
            self.responder_resources, self.initiator_depth, self.rnr_retry_count
        )
    }
}
