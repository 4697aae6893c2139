//! What can go wrong.

use std::io;
use std::time::Duration;

use ibverbs_api::{
    AllocPdError, CreateAhError, CreateCqError, CreateQpError, CreateXrcSrqError, DeviceError,
    Fault, Gid, ModifyError, OpenError, OpenXrcdError, PostRecvError, PostRecvListError,
    PostSendError, PostSendListError, QueryError, QueryGidTableError, RegMrError, SrqError,
    WaitError, WcStatus,
};
use thiserror::Error;

use super::exchange::ExchangeError;
use super::port::PortError;

/// Why a pingpong ended early, or with wrong data.
#[derive(Debug, Error)]
pub(crate) enum PingpongError {
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error(transparent)]
    Port(#[from] PortError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error(transparent)]
    GidTable(QueryGidTableError),
    #[error(transparent)]
    Pd(#[from] AllocPdError),
    #[error(transparent)]
    Register(#[from] RegMrError),
    #[error(transparent)]
    Cq(#[from] CreateCqError),
    #[error(transparent)]
    Qp(#[from] CreateQpError),
    #[error(transparent)]
    Srq(#[from] SrqError),
    #[error(transparent)]
    Address(#[from] CreateAhError),
    #[error(transparent)]
    Xrcd(#[from] OpenXrcdError),
    #[error(transparent)]
    XrcSrq(#[from] CreateXrcSrqError),
    #[error("cannot make a completion channel: {0}")]
    Channel(#[source] io::Error),
    #[error(transparent)]
    Modify(#[from] ModifyError),
    #[error("cannot post: {0}")]
    PostSend(#[from] PostSendError),
    #[error("cannot post: {0}")]
    PostRecv(#[from] PostRecvError),
    #[error("cannot post: {0}")]
    PostSendList(#[from] PostSendListError),
    #[error("cannot post: {0}")]
    PostRecvList(#[from] PostRecvListError),
    #[error(transparent)]
    Memory(#[from] Fault),
    #[error(transparent)]
    Wait(#[from] WaitError),
    #[error(
        "the other end named no GID, which RoCE needs: start ibv_rc_pingpong there with -g INDEX"
    )]
    NoRemoteGid,
    #[error(
        "our GID {own} and the other end's, {remote}, are of different IP versions: choose with -g"
    )]
    FamiliesDiffer { own: Gid, remote: Gid },
    #[error("{what} failed: {status} (status {}){}", *status as u32, hint(*status, *after))]
    Completion { what: &'static str, status: WcStatus, after: Option<Duration> },
    #[error("a completion of work that nobody posted: wr_id {wr_id}")]
    UnknownCompletion { wr_id: u64 },
    #[error(
        "message {message} has {got} bytes, but {wanted} were sent: is -s the same at both ends?"
    )]
    Length { message: u64, got: u32, wanted: usize },
    #[error("{what} {message} has wrong data from byte {offset} on")]
    Data { what: &'static str, message: u64, offset: usize },
    #[error("byte {offset} is 0x{got:02x}, but 0 was wanted: is the client run with -c too?")]
    PageStart { offset: usize, got: u8 },
    #[error(
        "nothing came for {:.0} seconds, after {received} messages received and {sent} sent: is \
         the other end still running, with the same -n?", stall.as_secs_f64()
    )]
    Stalled { stall: Duration, received: u64, sent: u64 },
    #[error(
        "the other end gave up after {received} messages received and {sent} sent here: see what \
         it says there"
    )]
    PeerGone { received: u64, sent: u64 },
    #[error("cannot measure what bare sockets carry: {0}")]
    RawPipe(#[source] io::Error),
    #[error("a thread of the measurement panicked")]
    Panicked,
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

/// What may stand behind a failed completion, `after` so long without progress.
fn hint(status: WcStatus, after: Option<Duration>) -> String {
    let when = match after {
        Some(after) => format!(", {:.1} s after the last progress", after.as_secs_f64()),
        None => String::new(),
    };
    match status {
        WcStatus::RetryExcErr => format!(
            "{when}: is the other end gone, does a firewall drop UDP port 4791, or is the path MTU \
             larger than the network carries (try -m 256)?"
        ),
        WcStatus::RnrRetryExcErr => format!("{when}: the other end posts no receives"),
        WcStatus::RemInvReqErr | WcStatus::LocLenErr => ": is -s the same at both ends?".to_owned(),
        _ => when,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_completion_says_how_long_it_took_and_what_may_be_wrong() {
        let failed =
            |status, after| PingpongError::Completion { what: "a SEND", status, after }.to_string();
        let unanswered = failed(WcStatus::RetryExcErr, Some(Duration::from_millis(2149)));
        assert!(
            unanswered.starts_with(
                "a SEND failed: no answer: retries exceeded (status 12), 2.1 s after the last \
                 progress: is the other end gone"
            ),
            "{unanswered}"
        );
        assert_eq!(
            failed(WcStatus::LocProtErr, None),
            "a SEND failed: local protection error (status 4)"
        );
    }
}
