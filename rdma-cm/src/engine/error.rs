//! Why a message is ignored, and why a request of the caller is refused.

use std::fmt;

use rxe_core::errno::{EADDRINUSE, EBUSY, EINVAL, ENOMEM};
use rxe_wire::Qpn;
use rxe_wire::mad::cm::{CommId, FieldTooLong, NotCm, TransportService};
use thiserror::Error;

use super::state::{ConnState, Input};

/// Why a message has had no effect. It is not an error: peers, networks and strangers send such
/// messages, and each is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ignored {
    /// It is no message of connection management.
    NotCm(NotCm),
    /// It names no connection of ours.
    Unknown,
    /// It does not come from the connection's peer, or not to its address.
    OtherAddress,
    /// It names the connection, but not both of its ids.
    OtherId,
    /// A DREQ that names another queue pair than the connection's.
    OtherQpn,
    /// The connection is in a state that has no use for it.
    State(ConnState),
    /// It was heard before.
    Known,
    /// As many requests wait for the listener's owner as it allows; the peer will try again.
    BacklogFull,
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotCm(why) => write!(f, "{why}"),
            Self::Unknown => f.write_str("it names no connection"),
            Self::OtherAddress => f.write_str("it does not come from the connection's peer"),
            Self::OtherId => f.write_str("it names another connection of the peer"),
            Self::OtherQpn => f.write_str("it names another queue pair"),
            Self::State(state) => write!(f, "the connection is {state}"),
            Self::Known => f.write_str("it was heard before"),
            Self::BacklogFull => f.write_str("the backlog is full"),
        }
    }
}

/// Why a connection or a lookup cannot be begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Peer-to-peer connections (both sides send a REQ, one connection comes of it) are not made
    /// here, nor by Linux.
    #[error("peer-to-peer connections are not supported: let one side listen")]
    PeerToPeer,
    /// That transport is not there.
    #[error("transport {0:?} is not supported: connections are RC, UC or XRC")]
    Transport(TransportService),
    /// The queue pair has a connection, or had one whose late packets may still come.
    #[error("QP {qpn} has the connection {holder} until its timewait is over: take another one")]
    QpnInUse {
        /// The queue pair.
        qpn: Qpn,
        /// Its connection.
        holder: CommId,
    },
    /// The private data is too long.
    #[error("private data: {0}")]
    PrivateData(#[from] FieldTooLong),
    /// There are as many connections as the configuration allows.
    #[error("there are {0} connections already: end some, or allow more (connections_max)")]
    TooMany(usize),
}

impl ConnectError {
    /// The errno that `rdma_connect` would set.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::PeerToPeer | Self::Transport(_) | Self::PrivateData(_) => EINVAL,
            Self::QpnInUse { .. } => EBUSY,
            Self::TooMany(_) => ENOMEM,
        }
    }
}

/// Why a request about a connection is refused; nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum CommandError {
    /// There is no such connection any more.
    #[error("there is no connection {0}: it was destroyed, or its timewait is over")]
    Unknown(CommId),
    /// The connection is in a state where that means nothing.
    #[error("the connection is {state}: {input:?} means nothing there")]
    State {
        /// The state.
        state: ConnState,
        /// What was asked for.
        input: Input,
    },
    /// The queue pair has another connection.
    #[error("QP {qpn} has the connection {holder} until its timewait is over: take another one")]
    QpnInUse {
        /// The queue pair.
        qpn: Qpn,
        /// Its connection.
        holder: CommId,
    },
    /// The private data or the additional information is too long.
    #[error("private data: {0}")]
    PrivateData(#[from] FieldTooLong),
}

impl CommandError {
    /// The errno that the C function would set.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Unknown(_) | Self::State { .. } | Self::PrivateData(_) => EINVAL,
            Self::QpnInUse { .. } => EBUSY,
        }
    }
}

/// Why nobody can listen so.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Somebody does already.
    #[error("{service:?} is listened for on these addresses already: take another port")]
    Taken {
        /// The service.
        service: rxe_wire::mad::cm::ServiceId,
    },
}

impl ListenError {
    /// The errno that `rdma_listen` would set.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Taken { .. } => EADDRINUSE,
        }
    }
}
