//! Completion queues, and the channels that tell of them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::event::{AsyncEvent, EventQueue};
use crate::wc::WorkCompletion;

/// Wakes whoever waits for something, for instance by writing to an eventfd.
///
/// The engine calls it with locks held: it must not block, nor call back into the engine.
pub trait Notify: Send + Sync {
    /// Wakes the waiter.
    fn notify(&self);
}

/// Identifies a completion queue within its device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CqId(pub u32);

/// Why a completion queue cannot be made (`ibv_create_cq`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CreateCqError {
    /// The number of entries is 0 or above the limit.
    #[error("{entries} entries asked for, but a completion queue has 1 to {max} (max_cqe)")]
    Entries {
        /// Entries asked for.
        entries: u32,
        /// The limit (`max_cqe`).
        max: u32,
    },
    /// The device's limit of completion queues is reached.
    #[error("all {max} completion queues of the device are in use (max_cq)")]
    TooMany {
        /// The limit (`max_cq`).
        max: u32,
    },
}

impl CreateCqError {
    /// The errno that `ibv_create_cq` would set.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Entries { .. } => crate::errno::EINVAL,
            Self::TooMany { .. } => crate::errno::ENOMEM,
        }
    }
}

/// Where the notifications of one or more completion queues arrive (`struct ibv_comp_channel`).
pub struct CompletionChannel {
    pending: Mutex<VecDeque<CqId>>,
    waker: Arc<dyn Notify>,
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel").field("pending", &self.pending.lock().len()).finish()
    }
}

impl CompletionChannel {
    /// Makes a channel that calls `waker` once for each event.
    pub fn new(waker: Arc<dyn Notify>) -> Self {
        Self { pending: Mutex::new(VecDeque::new()), waker }
    }

    /// Takes the oldest event: the queue that it concerns.
    pub fn take(&self) -> Option<CqId> {
        self.pending.lock().pop_front()
    }

    /// Drops the events of a queue that is going away.
    pub fn forget(&self, cq: CqId) {
        self.pending.lock().retain(|&pending| pending != cq);
    }

    // Bounded by the number of queues: a queue is disarmed by its event.
    fn push(&self, cq: CqId) {
        self.pending.lock().push_back(cq);
        self.waker.notify();
    }
}

/// Which completions raise the next event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Armed {
    No,
    Solicited,
    Any,
}

#[derive(Debug)]
struct Ring {
    entries: VecDeque<WorkCompletion>,
    armed: Armed,
    overflowed: bool,
}

/// A completion queue (`struct ibv_cq`), shared by all shards.
#[derive(Debug)]
pub struct CompletionQueue {
    id: CqId,
    capacity: u32,
    ring: Mutex<Ring>,
    channel: Option<Arc<CompletionChannel>>,
    events: Arc<EventQueue>,
    /// Queue pairs that complete here (R50).
    users: AtomicU32,
}

impl CompletionQueue {
    pub(crate) fn new(
        id: CqId,
        capacity: u32,
        channel: Option<Arc<CompletionChannel>>,
        events: Arc<EventQueue>,
    ) -> Self {
        let entries = VecDeque::with_capacity(capacity.min(4096) as usize);
        let ring = Mutex::new(Ring { entries, armed: Armed::No, overflowed: false });
        Self { id, capacity, ring, channel, events, users: AtomicU32::new(0) }
    }

    /// Its identifier, as channels and events name it.
    pub fn id(&self) -> CqId {
        self.id
    }

    /// Entries that it holds at most (`cqe`).
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The channel given at creation.
    pub fn channel(&self) -> Option<&Arc<CompletionChannel>> {
        self.channel.as_ref()
    }

    /// Number of queue pairs that complete here.
    pub fn users(&self) -> u32 {
        self.users.load(Ordering::Acquire)
    }

    pub(crate) fn attach(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn detach(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Moves up to `max` completions, oldest first, to the end of `to`; returns how many.
    ///
    /// Counterpart of `ibv_poll_cq`; it only looks at the queue, the runtime does the receiving.
    pub fn poll(&self, max: usize, to: &mut Vec<WorkCompletion>) -> usize {
        let mut ring = self.ring.lock();
        let count = max.min(ring.entries.len());
        to.extend(ring.entries.drain(..count));
        count
    }

    /// Whether no completion waits.
    pub fn is_empty(&self) -> bool {
        self.ring.lock().entries.is_empty()
    }

    /// Asks for one event at the next completion, or the next solicited or failed one.
    ///
    /// Completions that are already there raise none: poll once more after arming (R51).
    /// Counterpart of `ibv_req_notify_cq`; asking for any completion overrides solicited only.
    pub fn req_notify(&self, solicited_only: bool) {
        let mut ring = self.ring.lock();
        ring.armed = match (solicited_only, ring.armed) {
            (true, Armed::No | Armed::Solicited) => Armed::Solicited,
            (false, _) | (true, Armed::Any) => Armed::Any,
        };
    }

    /// Whether an event was asked for and has not come yet.
    pub fn is_armed(&self) -> bool {
        self.ring.lock().armed != Armed::No
    }

    /// Adds a completion; `solicited` says that it ends a receive whose sender asked for an event.
    ///
    /// On overflow the completion is lost, the queue is marked, and `CQ_ERR` is raised once: never
    /// a silent loss (R52).
    pub(crate) fn push(&self, wc: WorkCompletion, solicited: bool) {
        let mut ring = self.ring.lock();
        if ring.entries.len() >= self.capacity as usize {
            if !std::mem::replace(&mut ring.overflowed, true) {
                self.events.push(AsyncEvent::CqErr(self.id));
            }
            return;
        }
        ring.entries.push_back(wc);
        let raise = match ring.armed {
            Armed::No => false,
            Armed::Solicited => solicited || wc.status != crate::wc::WcStatus::Success,
            Armed::Any => true,
        };
        if raise {
            ring.armed = Armed::No;
            if let Some(channel) = &self.channel {
                channel.push(self.id);
            }
        }
    }
}
