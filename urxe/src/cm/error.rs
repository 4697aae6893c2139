//! What can go wrong.

use std::io;

use ibverbs_api::{
    AllocPdError, CreateAhError, CreateCqError, CreateQpError, Fault, ModifyError, PostRecvError,
    PostSendError, QueryError, RegMrError, WcStatus,
};
use rdma_cm::{BindError, EventType, IdError, RejReason, ResolveError};
use rxe_wire::mad::cm::SidrStatus;
use thiserror::Error;

/// Why a program of the connection manager ended early, or with wrong data.
#[derive(Debug, Error)]
pub(crate) enum CmError {
    #[error("cannot find the address of {name}: {source}")]
    Name { name: String, source: io::Error },
    #[error("{name} is no address of the family that -f asks for: leave -f out, or give one")]
    Format { name: String },
    #[error(
        "{0}: RoCE has no addresses that are GIDs, give the IP address that the GID is made of"
    )]
    GidAddress(String),
    #[error("there is no way to the destination: {0}")]
    NoWay(io::Error),
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
    #[error(transparent)]
    Ah(#[from] CreateAhError),
    #[error("cannot move the queue pair: {0}")]
    Modify(#[from] ModifyError),
    #[error("cannot query: {0}")]
    Query(#[from] QueryError),
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
    #[error("the server has refused: {status}")]
    NoService { status: SidrStatus },
    #[error(
        "nobody has answered: is the host up, and does its firewall let UDP port 4791 through?"
    )]
    NoAnswer,
    #[error("{event} came with status {status}, {wanted} was waited for")]
    Event { event: EventType, status: i32, wanted: EventType },
    #[error("the peer has ended the connection")]
    Disconnected,
    #[error("a message of {bytes} bytes came, of {wanted} is right: use the same -S at both ends")]
    Message { bytes: u32, wanted: u32 },
    #[error("the client wants {wanted} bytes to be read, {most} are possible")]
    TooLong { wanted: u32, most: usize },
    #[error("messages of {size} bytes are too long for datagrams: {most} are possible here")]
    Datagram { size: u32, most: usize },
    #[error(
        "{came} of {wanted} datagrams came, and no more for {seconds} s: datagrams may be lost; are \
         -c, -C and -S the same at both ends?"
    )]
    Lost { came: u32, wanted: u32, seconds: u64 },
    #[error("-l: the device cannot keep messages from other receivers of this host: leave it out")]
    Loopback,
    #[error("a message came without the number of its queue pair: the peer is no udaddy")]
    NoSender,
    #[error("message {0} came with other data")]
    Data(u64),
}
