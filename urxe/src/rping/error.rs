//! What can go wrong.

use std::io;

use ibverbs_api::{
    AllocPdError, CreateCqError, CreateQpError, Fault, PostRecvError, PostSendError, RegMrError,
    WcStatus,
};
use rdma_cm::{BindError, EventType, IdError, RejReason, ResolveError};
use thiserror::Error;

/// Why a ping-pong ended early, or with wrong data.
#[derive(Debug, Error)]
pub(super) enum RpingError {
    #[error("cannot find the address of {name}: {source}")]
    Name { name: String, source: io::Error },
    #[error("cannot make or wait for a channel: {0}")]
    Channel(#[from] io::Error),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error(transparent)]
    Id(#[from] IdError),
    #[error("there is no device")]
    NoDevice,
    #[error(transparent)]
    Pd(#[from] AllocPdError),
    #[error(transparent)]
    Cq(#[from] CreateCqError),
    #[error(transparent)]
    Qp(#[from] CreateQpError),
    #[error("cannot move the queue pair: {0}")]
    Modify(#[from] ibverbs_api::ModifyError),
    #[error(transparent)]
    Register(#[from] RegMrError),
    #[error("cannot post: {0}")]
    PostSend(#[from] PostSendError),
    #[error("cannot post: {0}")]
    PostRecv(#[from] PostRecvError),
    #[error("cannot touch the memory: {0}")]
    Memory(#[from] Fault),
    #[error("the work failed: {}", .0.as_str())]
    Work(WcStatus),
    #[error("the server has refused: {reason}")]
    Refused { reason: RejReason },
    #[error("{event} came with status {status}, {wanted} was waited for")]
    Event { event: EventType, status: i32, wanted: EventType },
    #[error("the peer has ended the connection")]
    Disconnected,
    #[error("a message of {0} bytes came, of 16 is right")]
    Message(u32),
    #[error("the client wants {wanted} bytes to be read, {most} are possible")]
    TooLong { wanted: u32, most: usize },
    #[error("message {0} came back with other data")]
    Data(u64),
}
