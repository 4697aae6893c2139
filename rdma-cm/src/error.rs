//! Why a call is refused. Each error has the errno that the C function would set.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use ibverbs_api::{
    AttachMulticastError, CreateQpError, ModifyError, MulticastError, QKey, QpState, QpType,
    RegisterServiceError,
};
use rustix::io::Errno;
use rxe_core::errno::{EADDRINUSE, EADDRNOTAVAIL, EINVAL, EIO, ENODEV, EOPNOTSUPP};
use rxe_wire::mad::cm::FieldTooLong;
use thiserror::Error;

use crate::engine::{CommandError, ConnectError, ListenError};
use crate::event_type::EventType;
use crate::id::{IbService, OptionLevel};
use crate::qp_plan::NoPlan;

/// Why an address cannot be bound, or not be listened at.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BindError {
    /// The identifier has an address already, or it is being destroyed.
    #[error("the identifier is {0}: an address is bound once, and before anything else")]
    State(&'static str),
    /// Somebody has the port.
    #[error("{0} is taken: take another port, or let both sides share it (set_reuse_addr)")]
    Taken(SocketAddr),
    /// Somebody has the port at all addresses, or has it where all are wanted.
    #[error(
        "the port of {0} is taken, there or here at all addresses: take another port, or let both \
         sides share it (set_reuse_addr)"
    )]
    TakenForAll(SocketAddr),
    /// Of the ports that are given to those who ask for none, all are taken.
    #[error("the ports {} to {} are all taken", .0.start(), .0.end())]
    NoPort(RangeInclusive<u16>),
    /// The port is not for everybody.
    #[error(
        "the port of {0} needs CAP_NET_BIND_SERVICE: take one from \
         net.ipv4.ip_unprivileged_port_start on"
    )]
    Privileged(SocketAddr),
    /// No device has the address.
    #[error("no RDMA device here has the address {0}: `urxe devices` lists those that there are")]
    NoDevice(IpAddr),
    /// It is not an address of this host.
    #[error("{0} is no address of this host: `ip addr` lists those that there are")]
    OtherHost(IpAddr),
    /// A device cannot be opened.
    #[error("cannot open the device: {0}")]
    Open(#[source] io::Error),
    /// The engine has a listener there.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Another process of the host listens there.
    #[error(transparent)]
    Service(#[from] RegisterServiceError),
}

impl BindError {
    /// The errno that `rdma_bind_addr` or `rdma_listen` would set.
    pub fn errno(&self) -> i32 {
        match self {
            Self::State(_) => EINVAL,
            Self::Taken(_) => EADDRINUSE,
            Self::NoDevice(_) => ENODEV,
            Self::OtherHost(_) | Self::TakenForAll(_) | Self::NoPort(_) => EADDRNOTAVAIL,
            Self::Privileged(_) => Errno::ACCESS.raw_os_error(),
            Self::Open(error) => error.raw_os_error().unwrap_or(EIO),
            Self::Listen(error) => error.errno(),
            Self::Service(error) => error.errno(),
        }
    }
}

/// Why a destination cannot be resolved.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// The identifier is in a state where that means nothing.
    #[error("the identifier is {0}: first the address is resolved, then the route, each once")]
    State(&'static str),
    /// The source cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Source and destination are not of one family.
    #[error("{from} and {to} are not both IPv4 or both IPv6")]
    Families {
        /// The source.
        from: IpAddr,
        /// The destination.
        to: IpAddr,
    },
    /// The host has no route to the destination.
    #[error("there is no route to {to}: {error}")]
    NoRoute {
        /// The destination.
        to: IpAddr,
        /// What the host says.
        error: io::Error,
    },
    /// RoCE has no subnet administrator that could be asked for a service.
    #[error("{0:?} cannot be looked up: RoCE has no subnet administrator to be asked")]
    NoAdministrator(IbService),
}

impl ResolveError {
    /// The errno that `rdma_resolve_addr` or `rdma_resolve_route` would set.
    pub fn errno(&self) -> i32 {
        match self {
            Self::State(_) | Self::Families { .. } => EINVAL,
            Self::Bind(error) => error.errno(),
            Self::NoRoute { error, .. } => error.raw_os_error().unwrap_or(EIO),
            Self::NoAdministrator(_) => EOPNOTSUPP,
        }
    }
}

/// Why a request about a connection or its queue pair is refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum IdError {
    /// The identifier is in a state where that means nothing.
    #[error("the identifier is {0}: that means nothing there")]
    State(&'static str),
    /// The identifier has no device yet.
    #[error("the identifier has no device yet: resolve or bind an address first")]
    NoDevice,
    /// The identifier has a queue pair already.
    #[error("the identifier has a queue pair already")]
    HasQp,
    /// The identifier has none, and none is named.
    #[error("the identifier has no queue pair: create one, or name yours in the parameters")]
    NoQp,
    /// The protection domain, or a queue, is of another opened device.
    #[error("that is of another opened device than the identifier's: make it of its `verbs()`")]
    OtherDevice,
    /// The private data is too long.
    #[error("private data: {0}")]
    PrivateData(#[from] FieldTooLong),
    /// The device serves fewer READs and atomics at once.
    #[error("{asked} READs at once are asked for, the device can do {most}")]
    TooManyReads {
        /// Asked for.
        asked: u8,
        /// What the device can do.
        most: u8,
    },
    /// The queue pair cannot be made.
    #[error(transparent)]
    CreateQp(#[from] CreateQpError),
    /// The queue pair cannot be moved on.
    #[error("the queue pair cannot go to {to:?}: {error}")]
    ModifyQp {
        /// The state.
        to: QpState,
        /// Why not.
        error: ModifyError,
    },
    /// There are no attributes for that state.
    #[error(transparent)]
    Plan(#[from] NoPlan),
    /// The queue pair has another queue key.
    #[error("the queue pair has the queue key {have}, and {asked} is to be told: set one of them")]
    OtherQKey {
        /// What the parameters say.
        asked: QKey,
        /// That of the queue pair.
        have: QKey,
    },
    /// Groups are for datagrams.
    #[error("an identifier of {0:?} joins no multicast group, only one of UD does")]
    NotDatagrams(QpType),
    /// The address is no multicast address, or of a group that the identifier has not joined.
    #[error("{0} is no multicast group, or none that the identifier has joined")]
    NoGroup(IpAddr),
    /// The queue pair cannot join.
    #[error(transparent)]
    JoinMulticast(#[from] AttachMulticastError),
    /// The queue pair cannot leave.
    #[error(transparent)]
    Multicast(#[from] MulticastError),
    /// A program writes events of its own only.
    #[error("a program writes no {0}, only RDMA_CM_EVENT_USER and RDMA_CM_EVENT_INTERNAL")]
    EventType(EventType),
    /// The system has no thread left.
    #[error("the system refused: {0}")]
    Os(#[source] io::Error),
    /// The connection cannot be asked for.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The connection is in a state where that means nothing.
    #[error(transparent)]
    Command(#[from] CommandError),
}

impl IdError {
    /// The errno that the C function would set.
    pub fn errno(&self) -> i32 {
        match self {
            Self::State(_)
            | Self::HasQp
            | Self::NoQp
            | Self::OtherDevice
            | Self::PrivateData(_)
            | Self::TooManyReads { .. }
            | Self::NoGroup(_)
            | Self::NotDatagrams(_)
            | Self::OtherQKey { .. }
            // As Linux, where that comes to the wrong state too.
            | Self::NoDevice
            | Self::EventType(_)
            | Self::Plan(_) => EINVAL,
            Self::JoinMulticast(error) => error.errno(),
            Self::Multicast(error) => error.errno(),
            Self::Os(error) => error.raw_os_error().unwrap_or(EIO),
            Self::CreateQp(error) => error.errno(),
            Self::ModifyQp { error, .. } => error.errno(),
            Self::Connect(error) => error.errno(),
            Self::Command(error) => error.errno(),
        }
    }
}

/// Why an option cannot be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum OptionError {
    /// There is no such option here.
    #[error("option {name} of {level:?} is not there")]
    Unknown {
        /// Its level.
        level: OptionLevel,
        /// Its number.
        name: i32,
    },
    /// The value has the wrong length.
    #[error("the value has {have} bytes, option {name} has {expected}")]
    Length {
        /// The option.
        name: i32,
        /// What was given.
        have: usize,
        /// What it has.
        expected: usize,
    },
    /// The value is out of range.
    #[error("{value} is out of range: 0 to {most}")]
    Range {
        /// What was given.
        value: i32,
        /// The greatest.
        most: i32,
    },
    /// The identifier is in a state in which that cannot be set any more.
    #[error("the identifier is {0}: that is set before")]
    State(&'static str),
    /// The identifier is of datagrams, which nobody acknowledges.
    #[error("datagrams are not acknowledged: there is no ACK timeout")]
    Datagrams,
}

impl OptionError {
    /// The errno that `rdma_set_option` would set.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Unknown { .. } => Errno::NOSYS.raw_os_error(),
            Self::Length { .. } | Self::Range { .. } | Self::State(_) | Self::Datagrams => EINVAL,
        }
    }
}
