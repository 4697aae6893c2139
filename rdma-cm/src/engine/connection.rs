//! One connection or lookup, as an engine keeps it.

use gid_table::Gid;
use rxe_core::Instant;
use rxe_wire::mad::TransactionId;
use rxe_wire::mad::cm::{CmMessage, CommId, Guid, Req, TimeoutExponent};
use rxe_wire::{Psn, Qpn};

use super::listener::ListenerId;
use super::path::CmPath;
use super::state::{ConnState, Input};

/// How a peer names one of its connections or lookups.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct PeerId {
    /// The peer's address: nobody speaks for another host.
    pub(super) gid: Gid,
    /// Its device; zero for lookups, which do not say.
    pub(super) guid: Guid,
    /// Its id.
    pub(super) id: CommId,
    /// Whether it is a lookup.
    pub(super) is_lookup: bool,
}

/// A queue pair of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct PeerQp {
    pub(super) gid: Gid,
    pub(super) guid: Guid,
    pub(super) qpn: Qpn,
}

/// A message that is sent again until it is answered.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) message: CmMessage,
    pub(super) tid: TransactionId,
    pub(super) retries_left: u8,
}

/// The answer to a message, sent again whenever that comes again.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) to: Input,
    pub(super) message: CmMessage,
}

/// One connection or lookup.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: CommId,
    pub(super) state: ConnState,
    pub(super) path: CmPath,
    /// The exchange that made it.
    pub(super) tid: TransactionId,
    /// The peer's id, once it is known.
    pub(super) remote_id: Option<CommId>,
    /// How it is entered among the peers' ids.
    pub(super) peer_id: Option<PeerId>,
    /// How it is entered among the peers' queue pairs.
    pub(super) peer_qp: Option<PeerQp>,
    /// How it is entered among our queue pairs.
    pub(super) local_qpn: Option<Qpn>,
    /// Of one that a peer asked for: what tells its REQ from another with the same id.
    pub(super) asked: Option<Asked>,
    /// The listener in whose backlog it is.
    pub(super) in_backlog_of: Option<ListenerId>,
    /// Local ACK timeout of the path: how long packets and their answers live.
    pub(super) ack_timeout: TimeoutExponent,
    /// How long an answer may take, in nanoseconds.
    pub(super) patience_nanos: u64,
    /// How often a message is sent again.
    pub(super) retries: u8,
    pub(super) pending: Option<Pending>,
    pub(super) answer: Option<Answer>,
    pub(super) deadline: Option<Instant>,
    /// The options of our device's vendor.
    pub(super) ece_options: u32,
    /// The caller does not want to hear of it.
    pub(super) is_orphan: bool,
}

/// What makes a REQ the same as another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Asked {
    qpn: Qpn,
    psn: Psn,
    service: u64,
    /// Whether there was an alternate path, which is not used here.
    pub(super) alternate: bool,
}

impl Asked {
    pub(super) fn of(req: &Req) -> Self {
        Self {
            qpn: req.local_qpn,
            psn: req.starting_psn,
            service: req.service_id.0,
            alternate: req.alternate_path != Default::default(),
        }
    }
}

impl Connection {
    pub(super) fn new(id: CommId, state: ConnState, path: CmPath, tid: TransactionId) -> Self {
        Self {
            id,
            state,
            path,
            tid,
            remote_id: None,
            peer_id: None,
            peer_qp: None,
            local_qpn: None,
            asked: None,
            in_backlog_of: None,
            ack_timeout: TimeoutExponent::default(),
            patience_nanos: 0,
            retries: 0,
            pending: None,
            answer: None,
            deadline: None,
            ece_options: 0,
            is_orphan: false,
        }
    }

    /// The peer's id as messages carry it: 0 while it is not known.
    pub(super) fn remote_id_or_zero(&self) -> CommId {
        self.remote_id.unwrap_or_default()
    }

    /// Whether a message that comes from `remote_id` can be of this connection's peer.
    pub(super) fn is_with(&self, remote_id: CommId) -> bool {
        self.remote_id.is_none_or(|known| known == remote_id)
    }
}
