//! What the caller says when it asks for a connection, accepts one, or looks a service up.

use rxe_wire::mad::cm::{
    Bits, FixedBytes, PathMtu, ServiceId, SidrStatus, TimeoutExponent, TransportService, U24,
};
use rxe_wire::{PKey, Psn, QKey, Qpn};

use super::path::CmPath;

/// Enhanced connection establishment: what the vendors of both devices may agree on, options of
/// theirs (C: `struct ibv_ece`, `struct rdma_ucm_ece`). Devices here have no such options: what a
/// program says is carried to the other one, which may make of it what it likes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Ece {
    /// The vendor; 0 is none.
    pub vendor_id: U24,
    /// The vendor's options. They travel as the attribute modifier of the datagram.
    pub options: u32,
}

impl Ece {
    /// The options of a vendor, of whose number 24 bits count.
    pub const fn new(vendor_id: u32, options: u32) -> Self {
        Self { vendor_id: U24::new(vendor_id), options }
    }
}

/// A connection that is asked for (C: `struct ib_cm_req_param`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectParam {
    /// Between which addresses.
    pub path: CmPath,
    /// The service.
    pub service_id: ServiceId,
    /// Our queue pair.
    pub qpn: Qpn,
    /// Its transport.
    pub transport: TransportService,
    /// Whether it has a shared receive queue.
    pub srq: bool,
    /// PSN that the peer's queue pair is to start with.
    pub starting_psn: Psn,
    /// Greatest payload of a packet.
    pub path_mtu: PathMtu,
    /// READs and atomics of the peer that we serve at once.
    pub responder_resources: u8,
    /// READs and atomics that we want to have under way at once.
    pub initiator_depth: u8,
    /// Whether we do end-to-end flow control.
    pub flow_control: bool,
    /// How often the peer should retry.
    pub retry_count: Bits<3>,
    /// How often the peer should retry after RNR.
    pub rnr_retry_count: Bits<3>,
    /// Partition.
    pub pkey: PKey,
    /// Local ACK timeout of the path.
    pub ack_timeout: TimeoutExponent,
    /// How long either side may take to answer a message.
    pub response_timeout: TimeoutExponent,
    /// How often a message is sent again.
    pub max_cm_retries: Bits<4>,
    /// What the vendors of both devices may agree on.
    pub ece: Ece,
    /// Private data, the header of the IP connection manager included.
    pub private_data: FixedBytes<92>,
    /// Whether a REQ of the peer for the same service is to meet this one; refused.
    pub peer_to_peer: bool,
}

/// The acceptance of a connection (C: `struct ib_cm_rep_param`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AcceptParam {
    /// Our queue pair.
    pub qpn: Qpn,
    /// Whether it has a shared receive queue.
    pub srq: bool,
    /// PSN that the peer's queue pair is to start with.
    pub starting_psn: Psn,
    /// READs and atomics of the peer that we serve at once.
    pub responder_resources: u8,
    /// READs and atomics that we want to have under way at once.
    pub initiator_depth: u8,
    /// Whether we do end-to-end flow control.
    pub flow_control: bool,
    /// How often the peer should retry after RNR.
    pub rnr_retry_count: Bits<3>,
    /// What the vendors of both devices may agree on.
    pub ece: Ece,
    /// Private data.
    pub private_data: FixedBytes<196>,
}

/// A lookup of a datagram service (C: `struct ib_cm_sidr_req_param`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LookupParam {
    /// Between which addresses.
    pub path: CmPath,
    /// The service.
    pub service_id: ServiceId,
    /// Partition.
    pub pkey: PKey,
    /// Local ACK timeout of the path.
    pub ack_timeout: TimeoutExponent,
    /// How long the peer may take to answer.
    pub response_timeout: TimeoutExponent,
    /// How often the message is sent again.
    pub max_cm_retries: Bits<4>,
    /// Private data, the header of the IP connection manager included.
    pub private_data: FixedBytes<216>,
}

/// The answer to a lookup (C: `struct ib_cm_sidr_rep_param`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LookupAnswer {
    /// Whether there is a queue pair.
    pub status: SidrStatus,
    /// The queue pair.
    pub qpn: Qpn,
    /// Its queue key.
    pub qkey: QKey,
    /// What the vendors of both devices may agree on.
    pub ece: Ece,
    /// Private data.
    pub private_data: FixedBytes<136>,
}

impl LookupAnswer {
    /// An answer that there is none.
    pub fn refusal(status: SidrStatus) -> Self {
        let private_data = FixedBytes::default();
        let (qpn, qkey) = (Qpn::new(0), QKey::new(0));
        Self { status, qpn, qkey, ece: Ece::default(), private_data }
    }
}
