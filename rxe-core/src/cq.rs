//! Completion queues, and the channels that tell of them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::event::{AsyncEvent, EventQueue};
use crate::time::Instant;
use crate::wc::{WcStatus, WorkCompletion};

/// Wakes whoever waits for something, for instance by writing to an eventfd.
///
/// The engine calls it with locks held: it must not block, nor call back into the engine.
pub trait Notify: Send + Sync {
    /// Wakes the waiter.
    fn notify(&self);
}

/// Tells the time that completions are stamped with. Whoever runs the engine has one; the engine
/// itself reads no clock.
pub trait StampClock: Send + Sync + fmt::Debug {
    /// The time now.
    fn now(&self) -> Instant;
}

/// What a completion queue does that most do not (`struct ibv_cq_init_attr_ex`).
#[derive(Clone, Debug, Default)]
pub struct CqOptions {
    /// Stamps each completion when it comes (`IBV_WC_EX_WITH_COMPLETION_TIMESTAMP`).
    pub clock: Option<Arc<dyn StampClock>>,
    /// A completion that finds it full takes the place of the oldest, which is lost, and the queue
    /// goes on (`IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`).
    pub ignore_overrun: bool,
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

/// Why a completion queue cannot be resized (`ibv_resize_cq`); it is as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeCqError {
    /// The number of entries is 0 or above the limit.
    #[error("{entries} entries asked for, but a completion queue has 1 to {max} (max_cqe)")]
    Entries {
        /// Entries asked for.
        entries: u32,
        /// The limit (`max_cqe`).
        max: u32,
    },
    /// More completions wait than would fit (R52).
    #[error("{entries} entries are too few for the {waiting} completions that wait: poll first")]
    BelowWaiting {
        /// Entries asked for.
        entries: u32,
        /// Completions in the queue.
        waiting: u32,
    },
    /// It has overflowed, and takes nothing more.
    #[error("the completion queue has overflowed, and completions were lost: make another one")]
    Overflowed,
}

impl ResizeCqError {
    /// The errno that `ibv_resize_cq` returns.
    pub fn errno(&self) -> i32 {
        crate::errno::EINVAL
    }
}

/// How far events lag behind completions (`struct ibv_moderate_cq`).
///
/// The event that was asked for comes with completion number `count` since then, or `period_us`
/// after the first one, whichever is first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moderation {
    /// Completions for one event; 0 and 1 mean that events do not lag.
    pub count: u16,
    /// The longest lag in microseconds; 0 means that only the count ends it.
    pub period_us: u16,
}

/// Where the notifications of one or more completion queues arrive (`struct ibv_comp_channel`).
pub struct CompletionChannel {
    pending: Mutex<VecDeque<Pending>>,
    waker: Arc<dyn Notify>,
}

/// An event that nobody has taken yet.
struct Pending {
    cq: CqId,
    /// The queue's count of events taken.
    taken: Arc<AtomicU32>,
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
        let Pending { cq, taken } = self.pending.lock().pop_front()?;
        taken.fetch_add(1, Ordering::AcqRel);
        Some(cq)
    }

    /// Whether events wait to be taken.
    pub fn has_events(&self) -> bool {
        !self.pending.lock().is_empty()
    }

    /// Drops the events of a queue that is going away.
    pub fn forget(&self, cq: CqId) {
        self.pending.lock().retain(|pending| pending.cq != cq);
    }

    // Bounded by the number of queues, as long as events are taken: a queue is disarmed by its
    // event.
    fn push(&self, pending: Pending) {
        self.pending.lock().push_back(pending);
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
    /// When each came, if the queue has a clock; empty otherwise.
    stamps: VecDeque<Instant>,
    capacity: u32,
    armed: Armed,
    /// A completion was lost: nothing is taken any more.
    overflowed: bool,
    moderation: Moderation,
    /// Completions since it was armed, of those that it is armed for.
    counted: u32,
    /// When the event comes, however few they are.
    event_at: Option<Instant>,
    /// A shard calls [`CompletionQueue::handle_period`] in time.
    is_watched: bool,
}

/// What became of a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pushed {
    /// It waits to be polled, and the event it raises, if any, has been raised.
    Done,
    /// The event is to come later: the shard must ask [`CompletionQueue::begin_period`].
    Lags,
    /// The queue has overflowed: the queue pair fails.
    Lost,
}

/// A completion queue (`struct ibv_cq`), shared by all shards.
///
/// A completion that finds it full is lost, and never silently: the queue has failed then.
/// `CQ_ERR` is raised once, what is in the queue can still be polled, nothing more is taken, and
/// each queue pair that would complete there goes to the error state with `QP_FATAL`. (Linux's
/// driver raises `CQ_ERR` each time, and lets the queue pairs go on.) Only whoever asks for it gets
/// a queue that goes on without what is lost ([`CqOptions::ignore_overrun`]).
#[derive(Debug)]
pub struct CompletionQueue {
    id: CqId,
    max_cqe: u32,
    options: CqOptions,
    ring: Mutex<Ring>,
    channel: Option<Arc<CompletionChannel>>,
    events: Arc<EventQueue>,
    /// Queue pairs that complete here (R50).
    users: AtomicU32,
    /// Events that were taken from the channel, and those of them that were acknowledged.
    taken: Arc<AtomicU32>,
    acknowledged: AtomicU32,
}

impl CompletionQueue {
    pub(crate) fn new(
        id: CqId,
        capacity: u32,
        max_cqe: u32,
        channel: Option<Arc<CompletionChannel>>,
        events: Arc<EventQueue>,
        options: CqOptions,
    ) -> Self {
        let entries = VecDeque::with_capacity(capacity.min(4096) as usize);
        let stamped = if options.clock.is_some() { entries.capacity() } else { 0 };
        let ring = Mutex::new(Ring {
            entries,
            stamps: VecDeque::with_capacity(stamped),
            capacity,
            armed: Armed::No,
            overflowed: false,
            moderation: Moderation::default(),
            counted: 0,
            event_at: None,
            is_watched: false,
        });
        let (users, acknowledged) = (AtomicU32::new(0), AtomicU32::new(0));
        let taken = Arc::default();
        Self { id, max_cqe, options, ring, channel, events, users, taken, acknowledged }
    }

    /// Its identifier, as channels and events name it.
    pub fn id(&self) -> CqId {
        self.id
    }

    /// Entries that it holds at most (`cqe`).
    pub fn capacity(&self) -> u32 {
        self.ring.lock().capacity
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

    /// Changes how many entries it holds, and returns the real number (`ibv_resize_cq`).
    ///
    /// All completions in it stay (R52).
    ///
    /// # Errors
    ///
    /// [`ResizeCqError`]; it is as before.
    pub fn resize(&self, entries: u32) -> Result<u32, ResizeCqError> {
        let max = self.max_cqe;
        if entries == 0 || entries > max {
            return Err(ResizeCqError::Entries { entries, max });
        }
        let mut ring = self.ring.lock();
        if ring.overflowed {
            return Err(ResizeCqError::Overflowed);
        }
        // Fits: no more than `max_cqe`.
        let waiting = ring.entries.len() as u32;
        if entries < waiting {
            return Err(ResizeCqError::BelowWaiting { entries, waiting });
        }
        ring.capacity = entries;
        ring.entries.shrink_to(entries as usize);
        ring.stamps.shrink_to(entries as usize);
        Ok(entries)
    }

    /// Sets how far events lag behind completions (`ibv_modify_cq`).
    ///
    /// An event that lags at this moment comes at once.
    pub fn moderate(&self, moderation: Moderation) {
        let mut ring = self.ring.lock();
        ring.moderation = moderation;
        if ring.counted > 0 {
            self.raise(&mut ring);
        }
    }

    /// How far events lag behind completions.
    pub fn moderation(&self) -> Moderation {
        self.ring.lock().moderation
    }

    /// Says that `count` events that were taken from the channel have been dealt with
    /// (`ibv_ack_cq_events`). More than were taken count as all of them.
    pub fn ack_events(&self, count: u32) {
        let taken = self.taken.load(Ordering::Acquire);
        let add = |acked: u32| Some(acked.wrapping_add(count.min(taken.wrapping_sub(acked))));
        // It cannot fail: `add` always has a value.
        let _ = self.acknowledged.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
    }

    /// Events that were taken from the channel and not acknowledged yet.
    pub fn unacknowledged_events(&self) -> u32 {
        let acknowledged = self.acknowledged.load(Ordering::Acquire);
        self.taken.load(Ordering::Acquire).wrapping_sub(acknowledged)
    }

    /// Moves up to `max` completions, oldest first, to the end of `to`; returns how many.
    ///
    /// Counterpart of `ibv_poll_cq`; it only looks at the queue, the runtime does the receiving.
    pub fn poll(&self, max: usize, to: &mut Vec<WorkCompletion>) -> usize {
        self.poll_each(max, |wc| to.push(wc))
    }

    /// As [`Self::poll`], and gives each completion to `each`, under the lock of the queue: that
    /// must be short, and must not use the queue.
    pub fn poll_each(&self, max: usize, each: impl FnMut(WorkCompletion)) -> usize {
        let mut ring = self.ring.lock();
        let count = max.min(ring.entries.len());
        ring.entries.drain(..count).for_each(each);
        if self.options.clock.is_some() {
            ring.stamps.drain(..count);
        }
        count
    }

    /// As [`Self::poll_each`], with the time at which each completion came; [`Instant::ZERO`] if the
    /// queue has no clock.
    pub fn poll_stamped(&self, max: usize, mut each: impl FnMut(WorkCompletion, Instant)) -> usize {
        let ring = &mut *self.ring.lock();
        let count = max.min(ring.entries.len());
        for wc in ring.entries.drain(..count) {
            each(wc, ring.stamps.pop_front().unwrap_or(Instant::ZERO));
        }
        count
    }

    /// Takes out what waits there of a queue pair.
    ///
    /// For a queue pair that was reset: providers such as libmlx5 do so then, and programs count on
    /// it (those of rdma-core's tests); Linux's software device leaves it to be polled.
    pub fn remove_of(&self, qpn: rxe_wire::Qpn) {
        let ring = &mut *self.ring.lock();
        let stays: Vec<_> = ring.entries.iter().map(|wc| wc.qpn != qpn).collect();
        let mut of_stamps = stays.iter();
        ring.stamps.retain(|_| of_stamps.next().copied().unwrap_or(true));
        ring.entries.retain(|wc| wc.qpn != qpn);
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
    pub(crate) fn push(&self, wc: WorkCompletion, solicited: bool) -> Pushed {
        let mut ring = self.ring.lock();
        // R52: never silently. After a gap nothing more is taken: it would look as if complete.
        if ring.overflowed {
            return Pushed::Lost;
        }
        if ring.entries.len() >= ring.capacity as usize {
            if !self.options.ignore_overrun {
                ring.overflowed = true;
                self.events.push(AsyncEvent::CqErr(self.id));
                return Pushed::Lost;
            }
            ring.entries.pop_front();
            ring.stamps.pop_front();
        }
        ring.entries.push_back(wc);
        if let Some(clock) = &self.options.clock {
            ring.stamps.push_back(clock.now());
        }
        let counts = match ring.armed {
            Armed::No => false,
            Armed::Solicited => solicited || wc.status != WcStatus::Success,
            Armed::Any => true,
        };
        if !counts {
            return Pushed::Done;
        }
        ring.counted += 1;
        if ring.counted >= u32::from(ring.moderation.count) {
            self.raise(&mut ring);
            return Pushed::Done;
        }
        let is_timed = ring.event_at.is_some() || ring.moderation.period_us == 0;
        if is_timed { Pushed::Done } else { Pushed::Lags }
    }

    /// Raises the event that was asked for.
    fn raise(&self, ring: &mut Ring) {
        ring.armed = Armed::No;
        ring.counted = 0;
        ring.event_at = None;
        if let Some(channel) = &self.channel {
            channel.push(Pending { cq: self.id, taken: self.taken.clone() });
        }
    }

    /// Starts the period after [`Pushed::Lags`]; when to call [`Self::handle_period`], unless some
    /// shard will do so already.
    pub(crate) fn begin_period(&self, now: Instant) -> Option<Instant> {
        let mut ring = self.ring.lock();
        if ring.counted == 0 || ring.event_at.is_some() {
            return None;
        }
        let at = now.plus_nanos(u64::from(ring.moderation.period_us) * 1000);
        ring.event_at = Some(at);
        (!std::mem::replace(&mut ring.is_watched, true)).then_some(at)
    }

    /// Raises the event that is due; when to call this again, if another one lags since then.
    pub(crate) fn handle_period(&self, now: Instant) -> Option<Instant> {
        let mut ring = self.ring.lock();
        if ring.event_at.is_some_and(|at| at <= now) {
            self.raise(&mut ring);
        }
        ring.is_watched = ring.event_at.is_some();
        ring.event_at
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use rxe_wire::Qpn;

    use super::*;
    use crate::wc::{NetworkType, WcFlags, WcOpcode};

    #[test]
    fn what_waits_of_a_queue_pair_can_be_taken_out() {
        let (cq, _) = queue(8, CqOptions::default());
        for (wr_id, qpn) in [(1, 5), (2, 6), (3, 5), (4, 7)] {
            cq.push(WorkCompletion { qpn: Qpn::new(qpn), ..completion(wr_id) }, false);
        }
        cq.remove_of(Qpn::new(5));
        let mut left = Vec::new();
        cq.poll(8, &mut left);
        assert_eq!(left.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [2, 4]);
    }

    fn completion(wr_id: u64) -> WorkCompletion {
        WorkCompletion {
            wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Send,
            vendor_err: 0,
            byte_len: 0,
            imm: 0,
            qpn: Qpn::new(1),
            source_qpn: Qpn::new(0),
            flags: WcFlags::empty(),
            network_type: NetworkType::None,
        }
    }

    struct Deaf;

    impl Notify for Deaf {
        fn notify(&self) {}
    }

    /// A clock that is one nanosecond later each time.
    #[derive(Debug, Default)]
    struct Counter(std::sync::atomic::AtomicU64);

    impl StampClock for Counter {
        fn now(&self) -> Instant {
            Instant::from_nanos(self.0.fetch_add(1, Ordering::Relaxed) + 1)
        }
    }

    fn queue(capacity: u32, options: CqOptions) -> (CompletionQueue, Arc<EventQueue>) {
        let events = Arc::new(EventQueue::new(8));
        (CompletionQueue::new(CqId(1), capacity, 10, None, events.clone(), options), events)
    }

    #[test]
    fn each_completion_keeps_the_stamp_of_its_coming() {
        let clock: Option<Arc<dyn StampClock>> = Some(Arc::new(Counter::default()));
        let (cq, _) = queue(4, CqOptions { clock, ..CqOptions::default() });
        let mut stamps = Vec::new();
        let mut poll = |max| cq.poll_stamped(max, |wc, at| stamps.push((wc.wr_id, at.as_nanos())));
        for wr_id in [10, 20, 30] {
            assert_eq!(cq.push(completion(wr_id), false), Pushed::Done);
        }
        assert_eq!(poll(1), 1);
        // Polled without a look at its stamp, which goes with it.
        assert_eq!(cq.poll_each(1, |wc| assert_eq!(wc.wr_id, 20)), 1);
        assert_eq!(cq.push(completion(40), false), Pushed::Done);
        assert_eq!(poll(9), 2);
        assert_eq!(stamps, [(10, 1), (30, 3), (40, 4)]);
    }

    #[test]
    fn a_queue_without_a_clock_stamps_nothing() {
        let (cq, _) = queue(4, CqOptions::default());
        cq.push(completion(1), false);
        assert_eq!(cq.poll_stamped(4, |_, at| assert_eq!(at, Instant::ZERO)), 1);
    }

    #[test]
    fn a_queue_that_ignores_overruns_loses_the_oldest_and_goes_on() {
        let clock: Option<Arc<dyn StampClock>> = Some(Arc::new(Counter::default()));
        let (cq, events) = queue(2, CqOptions { clock, ignore_overrun: true });
        for wr_id in 1..=5 {
            assert_eq!(cq.push(completion(wr_id), false), Pushed::Done);
        }
        assert_eq!(events.take(), None);
        let mut found = Vec::new();
        cq.poll_stamped(9, |wc, at| found.push((wc.wr_id, at.as_nanos())));
        assert_eq!(found, [(4, 4), (5, 5)]);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Push { solicited: bool },
        Poll(usize),
        Resize(u32),
        Arm { solicited_only: bool },
        Moderate(Moderation),
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let moderation = (0..5_u16, 0..4_u16);
        prop_oneof![
            6 => any::<bool>().prop_map(|solicited| Step::Push { solicited }),
            3 => (0..6_usize).prop_map(Step::Poll),
            1 => (0..12_u32).prop_map(Step::Resize),
            3 => any::<bool>().prop_map(|solicited_only| Step::Arm { solicited_only }),
            1 => moderation.prop_map(|(count, period_us)| {
                Step::Moderate(Moderation { count, period_us })
            }),
            2 => (0..3000_u64).prop_map(Step::Wait),
        ]
    }

    /// A queue with its channel, driven as a shard does.
    struct Driver {
        cq: CompletionQueue,
        channel: Arc<CompletionChannel>,
        now: Instant,
        /// When `handle_period` is to be called.
        timer: Option<Instant>,
        /// What the queue must hold, oldest first.
        model: VecDeque<u64>,
        next: u64,
        lost: bool,
        /// Completions that count since it was armed; `None` when it is not armed.
        counted: Option<u32>,
    }

    impl Driver {
        fn new(capacity: u32) -> Self {
            let channel = Arc::new(CompletionChannel::new(Arc::new(Deaf)));
            let events = Arc::new(EventQueue::new(8));
            let on = Some(channel.clone());
            let cq = CompletionQueue::new(CqId(1), capacity, 10, on, events, CqOptions::default());
            let (model, now) = (VecDeque::new(), Instant::from_nanos(1));
            let (timer, next, lost, counted) = (None, 0, false, None);
            Self { cq, channel, now, timer, model, next, lost, counted }
        }

        fn step(&mut self, step: Step) {
            match step {
                Step::Push { solicited } => self.push(solicited),
                Step::Poll(max) => self.poll(max),
                Step::Resize(entries) => {
                    let fits = (1..=10).contains(&entries) && entries as usize >= self.model.len();
                    let resized = self.cq.resize(entries);
                    assert_eq!(resized.is_ok(), fits && !self.lost, "{resized:?}");
                }
                Step::Arm { solicited_only } => {
                    self.cq.req_notify(solicited_only);
                    self.counted.get_or_insert(0);
                }
                Step::Moderate(moderation) => {
                    self.cq.moderate(moderation);
                    // What lags is told at once.
                    self.told(self.counted.is_some_and(|counted| counted > 0));
                }
                Step::Wait(nanos) => {
                    self.now = self.now.plus_nanos(nanos);
                    while let Some(at) = self.timer.filter(|&at| at <= self.now) {
                        assert!(at <= self.now);
                        self.timer = self.cq.handle_period(self.now);
                        let told = self.channel.take().is_some();
                        if told {
                            assert!(self.counted.is_some_and(|counted| counted > 0));
                            self.counted = None;
                        }
                    }
                }
            }
            assert!(self.channel.take().is_none(), "an event that nothing called for");
        }

        fn push(&mut self, solicited: bool) {
            let is_full = self.model.len() >= self.cq.capacity() as usize;
            let was_armed = self.cq.is_armed();
            let pushed = self.cq.push(completion(self.next), solicited);
            self.lost |= is_full;
            assert_eq!(pushed == Pushed::Lost, self.lost);
            if self.lost {
                return;
            }
            self.model.push_back(self.next);
            self.next += 1;
            let told = self.channel.take().is_some();
            if told {
                assert!(was_armed && self.counted.is_some());
                self.counted = None;
            } else if solicited && let Some(counted) = &mut self.counted {
                // A solicited one counts however the queue was armed.
                *counted += 1;
                assert!(*counted < self.cq.moderation().count.into());
            } else if let Some(counted) = &mut self.counted {
                *counted += u32::from(self.cq.ring.lock().counted > *counted);
            }
            if pushed == Pushed::Lags
                && let Some(at) = self.cq.begin_period(self.now)
            {
                assert_eq!(self.timer.replace(at), None, "one watcher");
            }
            let waits = self.counted.is_some_and(|counted| counted > 0);
            if waits && self.cq.moderation().period_us > 0 {
                assert!(self.timer.is_some(), "an event that lags has an end");
            }
        }

        fn poll(&mut self, max: usize) {
            let mut got = Vec::new();
            let count = self.cq.poll(max, &mut got);
            let want: Vec<_> = self.model.drain(..max.min(self.model.len())).collect();
            let got: Vec<_> = got.iter().map(|wc| wc.wr_id).collect();
            assert_eq!((count, got), (want.len(), want));
        }

        /// Whether an event has come, which ends what it was armed for.
        fn told(&mut self, expected: bool) {
            assert_eq!(self.channel.take().is_some(), expected);
            if expected {
                self.counted = None;
            }
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_told_twice(
            capacity in 1..10_u32,
            steps in vec(step(), 1..80),
        ) {
            let mut driver = Driver::new(capacity);
            steps.into_iter().for_each(|step| driver.step(step));
        }
    }
}
