//! Errors of the calls that make, change and destroy queue pairs.

use gid_table::{Gid, QueryGidError};
use rxe_wire::Qpn;

use crate::errno::{EADDRNOTAVAIL, EBUSY, EINVAL, EIO, ENOMEM};
use crate::qp::{QpAttrMask, QpState, QpType};

/// Why a queue pair cannot be made (`ibv_create_qp`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateQpError {
    /// A queue or domain is missing.
    #[error("a queue pair of type {qp_type:?} needs {what}")]
    Missing {
        /// Its service.
        qp_type: QpType,
        /// What it needs: `send_cq`, `recv_cq` or `xrcd`.
        what: &'static str,
    },
    /// The shared receive queue is one for extended reliable connections.
    #[error("SRQ {srq} is for XRC, where messages name it: a queue pair is not made with it")]
    XrcSrq {
        /// Its number.
        srq: u32,
    },
    /// A capacity is above the device's limit.
    #[error("{what} {asked} is above the device's limit of {max}")]
    Capacity {
        /// Which capacity.
        what: &'static str,
        /// What was asked for.
        asked: u32,
        /// The limit.
        max: u32,
    },
    /// A queue is of another device than the protection domain.
    #[error("{which} belongs to another context than the protection domain: make it there")]
    OtherContext {
        /// Which one: `send_cq`, `recv_cq` or `srq`.
        which: &'static str,
    },
    /// The device is lost, or it is that of the process that this one was forked from.
    #[error("the device is lost, or was opened before this process was forked: open it here")]
    DeviceLost,
    /// QP1 is asked for of a port that there is not.
    #[error("there is no port {port} to have QP1 of: ports count from 1")]
    NoPort {
        /// What was asked for.
        port: u8,
    },
    /// QP1 of the port is in use.
    #[error("QP1 of port {port} is in use: somebody has it already")]
    NoGsi {
        /// What was asked for.
        port: u8,
    },
    /// The device's limit of queue pairs is reached.
    #[error("all {max} queue pairs are in use (max_qp): destroy some")]
    TooMany {
        /// The limit.
        max: u32,
    },
}

impl CreateQpError {
    /// The errno that `ibv_create_qp` would set.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Missing { .. }
            | Self::XrcSrq { .. }
            | Self::Capacity { .. }
            | Self::NoPort { .. }
            | Self::OtherContext { .. } => EINVAL,
            Self::DeviceLost => EIO,
            Self::NoGsi { .. } => EBUSY,
            Self::TooMany { .. } => ENOMEM,
        }
    }
}

/// Why a queue pair cannot be changed (`ibv_modify_qp`); it is as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyQpError {
    /// There is no such queue pair.
    #[error("there is no QP {0}")]
    NoSuchQp(Qpn),
    /// The device is lost.
    #[error("the device is lost: a QP can go to Err or Reset only; close it, and open it again")]
    DeviceLost,
    /// There is no such transition.
    #[error("a QP of type {qp_type:?} cannot go from {from:?} to {to:?}: {hint}")]
    Transition {
        /// Its service.
        qp_type: QpType,
        /// The state it is in.
        from: QpState,
        /// The state asked for.
        to: QpState,
        /// What would be right.
        hint: &'static str,
    },
    /// Attributes are missing, or there are some that the transition does not allow.
    #[error("from {from:?} to {to:?}: missing attributes [{}], not allowed [{}]",
        names(*.missing), names(*.not_allowed))]
    Attributes {
        /// The state it is in.
        from: QpState,
        /// The state asked for.
        to: QpState,
        /// Attributes that must be given and were not.
        missing: QpAttrMask,
        /// Attributes that were given and must not be.
        not_allowed: QpAttrMask,
    },
    /// The state is not the one that the caller named as the current one.
    #[error("the QP is in state {actual:?}, not {expected:?} as cur_state says")]
    CurrentState {
        /// What the caller believes.
        expected: QpState,
        /// What is.
        actual: QpState,
    },
    /// An attribute's value is out of range.
    #[error("{what} is {value}, but must be at most {max}")]
    Value {
        /// Which attribute.
        what: &'static str,
        /// Its value.
        value: u32,
        /// The largest that there is.
        max: u32,
    },
    /// There is no such port.
    #[error("port {port} does not exist: this device has ports 1 to {ports}")]
    Port {
        /// What was asked for.
        port: u8,
        /// How many there are.
        ports: u8,
    },
    /// The path MTU is above what the port can send.
    #[error("path MTU {asked} is above the port's active MTU of {active}: use {active} or less")]
    PathMtu {
        /// Bytes asked for.
        asked: usize,
        /// Bytes that the port can send.
        active: usize,
    },
    /// The source GID index has no entry.
    #[error("{error}{}", suggestion(*.suggested))]
    GidIndex {
        /// What is wrong with the index.
        error: QueryGidError,
        /// An index that would work.
        suggested: Option<(u32, Gid)>,
    },
    /// The source GID is not an address of this host, so nothing can be sent from it.
    #[error("GID index {index} ({gid}) is not an address of this host{}", suggestion(*.suggested))]
    GidNotOwned {
        /// The index asked for.
        index: u32,
        /// Its GID.
        gid: Gid,
        /// An index that would work.
        suggested: Option<(u32, Gid)>,
    },
    /// Source and destination are of different families.
    #[error("no way from {source_gid} to {dgid}: one is IPv4, the other IPv6{}",
        suggestion(*.suggested))]
    Family {
        /// The source GID.
        source_gid: Gid,
        /// The destination GID.
        dgid: Gid,
        /// An index that would work.
        suggested: Option<(u32, Gid)>,
    },
    /// The destination GID is zero.
    #[error("the destination GID is zero: set av.dgid to a GID of the peer")]
    NoDestination,
}

impl ModifyQpError {
    /// The errno that `ibv_modify_qp` returns.
    pub fn errno(&self) -> i32 {
        match self {
            Self::DeviceLost => EIO,
            Self::GidNotOwned { .. } => EADDRNOTAVAIL,
            Self::NoSuchQp(_)
            | Self::Port { .. }
            | Self::Transition { .. }
            | Self::Attributes { .. }
            | Self::CurrentState { .. }
            | Self::Value { .. }
            | Self::PathMtu { .. }
            | Self::GidIndex { .. }
            | Self::Family { .. }
            | Self::NoDestination => EINVAL,
        }
    }
}

/// Why an object cannot be destroyed (`ibv_destroy_cq` and the like): others are made of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the {what} is in use {users} times: destroy first what was made with it")]
pub struct BusyError {
    /// What kind of object it is.
    pub what: &'static str,
    /// How often it is in use.
    pub users: u32,
}

impl BusyError {
    pub(crate) fn check(what: &'static str, users: u32) -> Result<(), Self> {
        if users == 0 { Ok(()) } else { Err(Self { what, users }) }
    }

    /// The errno that the C functions return.
    pub fn errno(&self) -> i32 {
        EBUSY
    }
}

fn names(mask: QpAttrMask) -> String {
    mask.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
}

fn suggestion(suggested: Option<(u32, Gid)>) -> String {
    suggested.map_or_else(String::new, |(index, gid)| format!("; index {index} ({gid}) would work"))
}
