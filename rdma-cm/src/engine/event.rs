//! What an engine tells its owner.

use rxe_wire::mad::cm::{CommId, Drep, Dreq, Rej, Rep, Req, Rtu, SidrRep, SidrReq};

use super::listener::ListenerId;
use super::param::Ece;
use super::path::CmPath;

/// Something that happened to a connection or a lookup (C: `struct ib_cm_event`).
///
/// Of each connection these come in this order, and nothing after the last:
///
/// - of one that we ask for: [`Response`](Self::Response), or one of `Rejected` and `Unreachable`,
///   which are the end of it;
/// - of one that a peer asks for: [`Request`](Self::Request), then, once accepted,
///   [`Ready`](Self::Ready), or one of `Rejected` and `Unreachable`, or `Disconnecting` at once;
/// - of both, while they are connected: `Disconnecting` (the peer's wish), `Disconnected` (ours was
///   granted), `NotAnswered` (it had no answer) or `Rejected`; then
///   [`TimewaitExit`](Self::TimewaitExit).
///
/// `TimewaitExit` comes of every connection that was in timewait, unless it was destroyed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CmEvent {
    /// A peer asks a listener for a connection; `id` is new.
    Request {
        /// Who is asked.
        listener: ListenerId,
        /// The connection.
        id: CommId,
        /// Between which addresses.
        path: CmPath,
        /// What the peer wants.
        request: Box<Req>,
        /// What its vendor offers.
        ece: Ece,
    },
    /// The peer has accepted: make the queue pair ready, then call `ready`.
    Response {
        /// The connection.
        id: CommId,
        /// What the peer says.
        reply: Box<Rep>,
        /// What its vendor offers.
        ece: Ece,
    },
    /// The connection is there, on the side that was asked.
    Ready {
        /// The connection.
        id: CommId,
        /// The peer's last word; `None` when data came first, or the caller said so.
        rtu: Option<Box<Rtu>>,
    },
    /// The peer has refused, or given up.
    Rejected {
        /// The connection.
        id: CommId,
        /// Why.
        rej: Box<Rej>,
    },
    /// The peer has not answered, however often it was asked.
    Unreachable {
        /// The connection.
        id: CommId,
    },
    /// The peer wants the end: call `agree`, once nothing is to be sent any more.
    Disconnecting {
        /// The connection.
        id: CommId,
        /// What the peer says.
        dreq: Box<Dreq>,
    },
    /// The end that we asked for has come.
    Disconnected {
        /// The connection.
        id: CommId,
        /// What the peer says; `None` when it asked for the end too, or does not know the connection.
        drep: Option<Box<Drep>>,
    },
    /// The end that we asked for has come, and the peer has not answered (C: `IB_CM_DREQ_ERROR`).
    NotAnswered {
        /// The connection.
        id: CommId,
    },
    /// Late packets are gone; the queue pair's number may be used again.
    TimewaitExit {
        /// The connection, which exists no more.
        id: CommId,
    },
    /// A peer asks a listener which queue pair serves.
    Lookup {
        /// Who is asked.
        listener: ListenerId,
        /// The lookup, to be answered.
        id: CommId,
        /// Between which addresses.
        path: CmPath,
        /// What the peer says.
        request: Box<SidrReq>,
    },
    /// The answer to a lookup of ours.
    Found {
        /// The lookup, which is over.
        id: CommId,
        /// The answer: success or not, as its status says.
        reply: Box<SidrRep>,
        /// What the peer's vendor offers.
        ece: Ece,
    },
}

impl CmEvent {
    /// The connection or lookup that it is about.
    pub const fn id(&self) -> CommId {
        match self {
            Self::Request { id, .. }
            | Self::Response { id, .. }
            | Self::Ready { id, .. }
            | Self::Rejected { id, .. }
            | Self::Unreachable { id }
            | Self::Disconnecting { id, .. }
            | Self::Disconnected { id, .. }
            | Self::NotAnswered { id }
            | Self::TimewaitExit { id }
            | Self::Lookup { id, .. }
            | Self::Found { id, .. } => *id,
        }
    }
}
