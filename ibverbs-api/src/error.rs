//! Errors of this layer; those of the engine and of links come through as they are.

use std::sync::Arc;

use rxe_core::srq::SrqError;
use rxe_core::wq::{PostRecvError, PostSendError};
use rxe_net::host::HostError;
use rxe_net::runtime::{OptionsError, StartError};
use rxe_wire::Qpn;
use thiserror::Error;

use crate::selection::SelectionError;

/// Why a device cannot be found.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The host does not say which interfaces it has.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The choice of devices is no good.
    #[error("the devices chosen (URXE_DEVICES): {0}")]
    Selection(#[from] SelectionError),
    /// There is no such device.
    #[error("there is no RDMA device {name:?}; there {}", list(known))]
    NoSuchDevice {
        /// The name asked for.
        name: String,
        /// The devices there are.
        known: Vec<String>,
    },
}

impl DeviceError {
    /// The errno that the C functions set.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Host(error) => error.errno(),
            Self::Selection(error) => error.errno(),
            Self::NoSuchDevice { .. } => rxe_core::errno::ENODEV,
        }
    }
}

fn list(known: &[String]) -> String {
    match known {
        [] => "is none: no interface is up and has an address (ip link set lo up)".to_owned(),
        [one] => format!("is {one}"),
        many => format!("are {}", many.join(", ")),
    }
}

/// Why a device cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The options in the environment are no good.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// No thread, descriptor or slot is left.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The host does not give descriptors or random bytes.
    #[error("cannot open {device}: {source}")]
    Os {
        /// The device.
        device: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The number of shards is out of range.
    #[error("{shards} shards asked for, but a context has 1 to 64")]
    Shards {
        /// The number asked for.
        shards: usize,
    },
}

impl OpenError {
    /// The errno that `ibv_open_device` would set.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Options(_) | Self::Shards { .. } => rxe_core::errno::EINVAL,
            Self::Start(error) => error.errno(),
            Self::Os { source, .. } => {
                source.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error())
            }
        }
    }
}

/// Why a port cannot be asked about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum QueryError {
    /// There is no such port.
    #[error("port {port} does not exist: this device has ports 1 to {ports}")]
    Port {
        /// The port asked for.
        port: u8,
        /// How many there are.
        ports: usize,
    },
    /// The partition key table has one entry.
    #[error("partition key index {index} is out of range: there is index 0 only")]
    PKeyIndex {
        /// The index asked for.
        index: u16,
    },
    /// The GID index is out of range, or has no entry.
    #[error(transparent)]
    Gid(#[from] gid_table::QueryGidError),
    /// There is no such queue pair any more.
    #[error("the queue pair does not exist any more")]
    NoSuchQp,
}

impl QueryError {
    /// The errno of the C functions.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Gid(error) => error.errno(),
            Self::Port { .. } | Self::PKeyIndex { .. } | Self::NoSuchQp => rxe_core::errno::EINVAL,
        }
    }
}

/// Why waiting ended without what was waited for.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WaitError {
    /// It did not come in time.
    #[error("nothing came within {0:?}")]
    TimedOut(std::time::Duration),
    /// The system cannot wait.
    #[error("cannot wait: {0}")]
    Os(#[from] std::io::Error),
}

/// An object that cannot be destroyed, since others are made with it, or other handles to it are
/// there; it is as before.
#[derive(Debug, Error)]
#[error("the {what} is in use: destroy first what was made with it, and drop other handles to it")]
pub struct InUse<T> {
    /// What kind of object it is.
    pub what: &'static str,
    /// The object, to go on with.
    pub object: T,
}

impl<T> InUse<T> {
    /// Drops what `inner` holds, if this is the last reference to it.
    pub(crate) fn unwrap<I>(
        what: &'static str,
        inner: Arc<I>,
        object: impl FnOnce(Arc<I>) -> T,
    ) -> Result<(), Self> {
        match Arc::try_unwrap(inner) {
            Ok(last) => {
                drop(last);
                Ok(())
            }
            Err(inner) => Err(Self { what, object: object(inner) }),
        }
    }

    /// The errno that the C functions return.
    pub fn errno(&self) -> i32 {
        rxe_core::errno::EBUSY
    }
}

/// Why a shared receive queue for extended reliable connections cannot be made
/// (`ibv_create_srq_ex`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum CreateXrcSrqError {
    /// As for any shared receive queue.
    #[error(transparent)]
    Srq(#[from] SrqError),
    /// Domain or completion queue are of another context than the protection domain.
    #[error("{which} belongs to another context than the protection domain: make it there")]
    OtherContext {
        /// Which one: `xrcd` or `cq`.
        which: &'static str,
    },
}

impl CreateXrcSrqError {
    /// The errno that `ibv_create_srq_ex` would set.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Srq(error) => error.errno(),
            Self::OtherContext { .. } => rxe_core::errno::EINVAL,
        }
    }
}

/// Why the binding of a memory window was not posted (`ibv_bind_mw`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum BindMwError {
    /// The window is of another context.
    #[error("the window belongs to another context than the queue pair: make it there")]
    OtherContext,
    /// The request was not taken.
    #[error(transparent)]
    Post(#[from] PostSendError),
}

impl BindMwError {
    /// The errno that `ibv_bind_mw` returns.
    pub fn errno(&self) -> i32 {
        match self {
            Self::OtherContext => rxe_core::errno::EINVAL,
            Self::Post(error) => error.errno(),
        }
    }
}

/// Why a parent domain cannot be made (`ibv_alloc_parent_domain`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the thread domain belongs to another context than the protection domain: make it there")]
pub struct AllocParentError;

impl AllocParentError {
    /// The errno that `ibv_alloc_parent_domain` would set.
    pub fn errno(&self) -> i32 {
        rxe_core::errno::EINVAL
    }
}

/// Why a target queue pair cannot be shared (`ibv_open_qp`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("there is no target queue pair {qpn} in this XRC domain")]
pub struct OpenQpError {
    /// The number asked for.
    pub qpn: Qpn,
}

impl OpenQpError {
    /// The errno that `ibv_open_qp` would set.
    pub fn errno(&self) -> i32 {
        rxe_core::errno::EINVAL
    }
}

/// A list of send requests of which one was not taken; those before it were (R13).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("send request {index} of the list: {error}")]
pub struct PostSendListError {
    /// Index of the request that was not taken (`bad_wr`).
    pub index: usize,
    /// Why.
    #[source]
    pub error: PostSendError,
}

impl PostSendListError {
    /// The errno that `ibv_post_send` returns, positive (R13).
    pub fn errno(&self) -> i32 {
        self.error.errno()
    }
}

/// A list of receive requests of which one was not taken; those before it were (R13).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("receive request {index} of the list: {error}")]
pub struct PostRecvListError {
    /// Index of the request that was not taken (`bad_wr`).
    pub index: usize,
    /// Why.
    #[source]
    pub error: PostRecvError,
}

impl PostRecvListError {
    /// The errno that `ibv_post_recv` returns, positive (R13).
    pub fn errno(&self) -> i32 {
        self.error.errno()
    }
}
