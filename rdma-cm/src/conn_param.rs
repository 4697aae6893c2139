//! What the two sides tell each other when they connect.

use ibverbs_api::{AddressVector, QKey, Qpn};

/// What a caller wants of a connection, and what an event tells of the peer's wishes (C: `struct
/// rdma_conn_param`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnParam {
    /// The program's own data: 56 bytes at most in a request (180 for datagrams), 196 in an
    /// acceptance (136). In an event it is filled up with zeros.
    pub private_data: Vec<u8>,
    /// READs and atomics of the other side that this side serves at once, or
    /// [`Self::AS_MANY_AS_CAN_BE`]. In an event: those that the receiver of the event should serve.
    pub responder_resources: u8,
    /// READs and atomics that this side has under way at once, or [`Self::AS_MANY_AS_CAN_BE`]. In an
    /// event: those that the receiver of the event may have.
    pub initiator_depth: u8,
    /// Whether there is end-to-end flow control.
    pub flow_control: bool,
    /// How often requests are sent again; not used in an acceptance. 7 at most counts.
    pub retry_count: u8,
    /// How often the other side sends again after RNR. 7 at most counts, and means for ever.
    pub rnr_retry_count: u8,
    /// Whether the queue pair has a shared receive queue; not used where the identifier has one.
    pub srq: bool,
    /// The queue pair; not used where the identifier has one.
    pub qpn: Qpn,
    /// Of an acceptance of datagrams: the queue key that the peer is told. 0 stands for that of the
    /// identifier's queue pair, or where it has none, of its port space (0x01234567).
    pub qkey: QKey,
}

impl ConnParam {
    /// As many READs and atomics as there can be: what the device can do, and in an acceptance what
    /// the peer asks for (C: `RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`).
    pub const AS_MANY_AS_CAN_BE: u8 = 0xff;
}

impl Default for ConnParam {
    /// No private data, one READ at once, no end of retries.
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            qpn: Qpn::new(0),
            qkey: QKey::new(0),
        }
    }
}

/// Where datagrams go (C: `struct rdma_ud_param`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UdParam {
    /// The other side's data.
    pub private_data: Vec<u8>,
    /// The way there: what an address handle is made of.
    pub av: AddressVector,
    /// The queue pair there, or that of all multicast groups.
    pub qpn: Qpn,
    /// Its queue key.
    pub qkey: QKey,
}
