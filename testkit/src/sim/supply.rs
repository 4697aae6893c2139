//! Receives: the queue of one queue pair, or a shared one.

use std::sync::Arc;

use rxe_core::wq::{PostRecvError, RecvWr};
use rxe_core::{Instant, QueuePair, SharedReceiveQueue};

use super::memory::Memory;
use super::plan::{Receive, ReceiveFlaw};

/// How far something that is posted in order has come.
#[derive(Clone, Copy, Default)]
pub(super) struct Progress {
    pub(super) count: usize,
    pub(super) due: Instant,
    /// The queue is full: a completion makes room, not time.
    pub(super) blocked: bool,
}

impl Progress {
    pub(super) fn next_time(&self, of: usize) -> Option<Instant> {
        (self.count < of && !self.blocked).then_some(self.due)
    }

    pub(super) fn advance(&mut self, now: Instant, pause_nanos: Option<u64>) {
        self.count += 1;
        self.due = now.plus_nanos(pause_nanos.unwrap_or(0));
    }
}

/// Where receives are posted.
#[derive(Clone)]
pub(super) enum Inlet {
    /// The queue of one queue pair.
    Own(Arc<QueuePair>),
    /// A shared queue.
    Shared(Arc<SharedReceiveQueue>),
}

/// Receives that are posted one after the other, those of a shared queue again and again.
pub(super) struct Supply {
    pub(super) inlet: Inlet,
    /// Where they are posted, by its place in the world: the shard that must be kicked.
    pub(super) node: usize,
    /// Their memory, by its place in the world.
    pub(super) memory: usize,
    pub(super) receives: Vec<Receive>,
    pub(super) posted: Progress,
    /// Of each place, the number of the receive that is outstanding there.
    outstanding: Vec<Option<usize>>,
    /// Receives that have completed.
    pub(super) done: usize,
}

/// Set in the identifiers of receives; beneath it the place of the supply, and the number.
const RECEIVE: u64 = 1 << 63;

/// What an identifier names, if it is of a receive: the supply and the number.
pub(super) fn receive_of(wr_id: u64) -> Option<(usize, usize)> {
    let is_receive = wr_id & RECEIVE != 0;
    is_receive.then_some(((wr_id & !RECEIVE) as usize >> 32, wr_id as u32 as usize))
}

impl Supply {
    pub(super) fn new(inlet: Inlet, node: usize, memory: usize, receives: Vec<Receive>) -> Self {
        let outstanding = vec![None; receives.len()];
        let posted = Progress::default();
        Self { inlet, node, memory, receives, posted, outstanding, done: 0 }
    }

    /// When the next one is posted.
    pub(super) fn next_time(&self) -> Option<Instant> {
        self.posted.next_time(if self.is_shared() { usize::MAX } else { self.receives.len() })
    }

    /// The receive of this number.
    pub(super) fn receive(&self, number: usize) -> &Receive {
        &self.receives[number % self.receives.len()]
    }

    pub(super) fn is_shared(&self) -> bool {
        matches!(self.inlet, Inlet::Shared(_))
    }

    /// Whether all have been posted and have completed.
    pub(super) fn is_done(&self) -> bool {
        self.done == self.receives.len()
    }

    /// Posts the next one: `None` when the queue is full, else whether the shard must be kicked.
    pub(super) fn post(&mut self, own: usize, memory: &Memory) -> Result<Option<bool>, String> {
        let number = self.posted.count;
        let place = number % self.receives.len();
        if self.outstanding[place].is_some() {
            return Ok(None);
        }
        let receive = &self.receives[place];
        let is_bad = receive.flaw == Some(ReceiveFlaw::Key);
        let lkey = if is_bad { memory.stale_lkey() } else { memory.lkey() };
        let sges = memory.sges(&receive.pieces, lkey);
        let wr_id = RECEIVE | (own as u64) << 32 | number as u64;
        let wr = RecvWr { wr_id, sges: &sges };
        let result = match &self.inlet {
            Inlet::Own(qp) => qp.post_recv(wr),
            Inlet::Shared(srq) => srq.post_recv(wr).map(|()| false),
        };
        match result {
            Ok(kick) => {
                self.outstanding[place] = Some(number);
                Ok(Some(kick))
            }
            Err(PostRecvError::Full { .. }) => Ok(None),
            Err(error) => Err(format!("post_recv: {error}")),
        }
    }

    /// Notes that one has completed: each does so once, those of a queue pair's own in order.
    pub(super) fn complete(&mut self, number: usize) -> Result<(), String> {
        let place = number % self.receives.len().max(1);
        if self.outstanding.get(place) != Some(&Some(number)) {
            return Err(format!("receive {number} is not outstanding"));
        }
        if !self.is_shared() && number != self.done {
            return Err(format!("receive {} was to complete next", self.done));
        }
        self.outstanding[place] = None;
        self.done += 1;
        Ok(())
    }
}
