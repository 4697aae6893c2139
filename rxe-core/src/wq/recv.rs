//! Receive requests.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Sge, SgeList, total_length};
use crate::cq::CompletionQueue;
use crate::pd::PdId;
use crate::qp::{QpState, QpType};

/// A receive request to post (`struct ibv_recv_wr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: &'a [Sge],
}

/// Why a receive request was not taken (`ibv_post_recv`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostRecvError {
    /// The device is lost, or it is that of the process that this one was forked from.
    #[error("the device is lost, or was opened before this process was forked: open it here")]
    DeviceLost,
    /// The QP is in the RESET state (R13).
    #[error("the QP is in state {state:?}: receives can be posted from INIT on")]
    State {
        /// The QP's state.
        state: QpState,
    },
    /// The QP has no receive queue of its own: it takes from a shared one.
    #[error("the QP takes its receives from a shared receive queue: post them there")]
    Shared,
    /// The target of an extended reliable connection takes receives from the shared queue that a
    /// message names; the initiator gets none.
    #[error("a QP of type {qp_type:?} has no receives: post to the shared receive queue (XRC)")]
    Unsupported {
        /// The QP's type.
        qp_type: QpType,
    },
    /// The receive queue is full.
    #[error(
        "the receive queue is full: all {max} entries (max_recv_wr; max_wr of an SRQ) are posted"
    )]
    Full {
        /// Entries of the queue.
        max: u32,
    },
    /// Too many scatter/gather entries.
    #[error(
        "{count} scatter/gather entries, but the queue takes at most {max} (max_recv_sge; \
         max_sge of an SRQ)"
    )]
    TooManySges {
        /// Entries given.
        count: usize,
        /// The queue's limit.
        max: u32,
    },
}

impl PostRecvError {
    /// The errno that `ibv_post_recv` returns.
    pub fn errno(&self) -> i32 {
        match self {
            Self::State { .. }
            | Self::Shared
            | Self::Unsupported { .. }
            | Self::TooManySges { .. } => crate::errno::EINVAL,
            Self::Full { .. } => crate::errno::ENOMEM,
            Self::DeviceLost => crate::errno::EIO,
        }
    }
}

/// A receive request in its queue.
#[derive(Clone, Debug)]
pub(crate) struct RecvWqe {
    pub(crate) wr_id: u64,
    /// The domain of its memory: that of the queue it was posted to.
    pub(crate) pd: PdId,
    /// Where it completes, if not where its queue pair's receives do.
    pub(crate) cq: Option<Arc<CompletionQueue>>,
    pub(crate) sges: SgeList,
}

/// The oldest receive is too short for a message, and stays (R30).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooLong;

/// The receive queue of a QP, or a shared one.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    pub(crate) wqes: VecDeque<RecvWqe>,
    pd: PdId,
    cq: Option<Arc<CompletionQueue>>,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
}

impl RecvQueue {
    pub(crate) fn new(
        pd: PdId,
        cq: Option<Arc<CompletionQueue>>,
        max_wr: u32,
        max_sge: u32,
    ) -> Self {
        Self { wqes: VecDeque::new(), pd, cq, max_wr, max_sge }
    }

    pub(crate) fn post(&mut self, wr: RecvWr<'_>) -> Result<(), PostRecvError> {
        if wr.sges.len() > self.max_sge as usize {
            return Err(PostRecvError::TooManySges { count: wr.sges.len(), max: self.max_sge });
        }
        if self.wqes.len() >= self.max_wr as usize {
            return Err(PostRecvError::Full { max: self.max_wr });
        }
        let (wr_id, sges) = (wr.wr_id, SgeList::from_slice(wr.sges));
        let (pd, cq) = (self.pd, self.cq.clone());
        self.wqes.push_back(RecvWqe { wr_id, pd, cq, sges });
        Ok(())
    }

    /// Whether the oldest receive holds `len` bytes; true when there is none.
    pub(crate) fn fits(&self, len: u64) -> bool {
        self.wqes.front().is_none_or(|wqe| len <= total_length(&wqe.sges))
    }
}
