//! What can go wrong.

use std::io;
use std::time::Duration;

use ibverbs_api::{
    AllocPdError, CreateAhError, CreateCqError, CreateQpError, DeviceError, Fault, ModifyError,
    OpenError, PostRecvError, PostRecvListError, PostSendError, PostSendListError, RegMrError,
    WaitError, WcStatus,
};
use thiserror::Error;

use super::control::ControlError;
use super::load::LoadError;
use crate::pingpong::PingpongError;

/// Why nothing was measured.
#[derive(Debug, Error)]
pub(super) enum PerfError {
    /// Of what `urxe pingpong` does too: devices, GIDs, the way to a server.
    #[error(transparent)]
    Meeting(#[from] PingpongError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Pd(#[from] AllocPdError),
    #[error(transparent)]
    Register(#[from] RegMrError),
    #[error(transparent)]
    Cq(#[from] CreateCqError),
    #[error(transparent)]
    Qp(#[from] CreateQpError),
    #[error(transparent)]
    Address(#[from] CreateAhError),
    #[error("cannot make a completion channel: {0}")]
    Channel(#[source] io::Error),
    #[error(transparent)]
    Modify(#[from] ModifyError),
    #[error("cannot post: {0}")]
    PostSend(#[from] PostSendError),
    #[error("cannot post: {0}")]
    PostSendList(#[from] PostSendListError),
    #[error("cannot post: {0}")]
    PostRecv(#[from] PostRecvError),
    #[error("cannot post: {0}")]
    PostRecvList(#[from] PostRecvListError),
    #[error(transparent)]
    Memory(#[from] Fault),
    #[error(transparent)]
    Wait(#[from] WaitError),
    #[error("a request failed: {status} (status {})", *status as u32)]
    Completion { status: WcStatus },
    #[error(
        "nothing completed for {:.0} seconds: is the other end still running?{}", after.as_secs_f64(),
        if *unreliable { " Without a reliable connection a lost message is not sent again" } else { "" }
    )]
    Stalled { after: Duration, unreliable: bool },
    #[error("the other end has {theirs} queue pairs, {ours} are here")]
    Places { ours: usize, theirs: usize },
    #[error("the other end named a GID that is none: {0:?}")]
    Gid(String),
    #[error("what came is not what was sent: byte {offset} of slot {slot} of queue pair {pair}")]
    Data { pair: usize, slot: usize, offset: usize },
    #[error("{counted} atomics were carried out on queue pair {pair}, but {sent} were sent")]
    Atomics { pair: usize, counted: u64, sent: u64 },
    #[error("of {sent} messages on a reliable connection {received} arrived")]
    Missing { sent: u64, received: u64 },
    #[error("cannot measure what sockets carry: {0}")]
    Limit(#[source] io::Error),
    #[error(
        "the table needs both ends on this host: name the server's network namespace with --netns"
    )]
    Far,
    #[error("cannot count what wakes up: {0}")]
    Idle(#[source] io::Error),
    #[error("cannot draw {file}: {why}")]
    Plot { file: String, why: String },
    #[error("a thread of the measurement panicked")]
    Panicked,
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}
