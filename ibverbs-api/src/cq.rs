//! Completion queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use rxe_core::cq::{
    CompletionQueue as CoreQueue, CqId, CqOptions as CoreOptions, CreateCqError, Moderation,
    ResizeCqError, StampClock,
};
use rxe_core::time::Instant as EngineTime;
use rxe_core::wc::WorkCompletion;
use rxe_net::runtime::{Clock, Runner};

use crate::channel::CompletionChannel;
use crate::context::ContextInner;
use crate::error::{InUse, WaitError};

/// Empty polls in a row for each offer of the processor to others: some 0.1 ms.
///
/// Answers that are awaited on a core of one's own come sooner, and are not disturbed. Where client
/// and server share a core, the one gives it to the other after this time, not at the end of its
/// slice (4 ms).
const POLLS_PER_YIELD: u32 = 256;

/// What a completion queue does that most do not (`struct ibv_cq_init_attr_ex`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CqOptions {
    /// Stamps each completion with [`Context::clock_nanos`](crate::Context::clock_nanos) when it
    /// comes (`IBV_WC_EX_WITH_COMPLETION_TIMESTAMP`).
    pub timestamps: bool,
    /// A completion that finds it full takes the place of the oldest, which is lost, and the queue
    /// goes on; without it, the queue fails (`IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`).
    pub ignore_overrun: bool,
}

/// The clock of all devices, for stamps.
#[derive(Debug)]
struct DeviceClock;

impl StampClock for DeviceClock {
    fn now(&self) -> EngineTime {
        Clock::now()
    }
}

/// A completion queue (`struct ibv_cq`). Cloning gives another handle to the same one.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    pub(crate) inner: Arc<CqInner>,
}

#[derive(Debug)]
pub(crate) struct CqInner {
    pub(crate) context: Arc<ContextInner>,
    pub(crate) core: Arc<CoreQueue>,
    channel: Option<CompletionChannel>,
    /// The shard that queue pairs which receive here live on.
    pub(crate) home: Arc<Runner>,
    /// The shards with queue pairs that complete here: those that polling must visit.
    visited: RwLock<Vec<(Arc<Runner>, usize)>>,
    /// Polls in a row that found nothing.
    empty_polls: AtomicU32,
}

impl Drop for CqInner {
    fn drop(&mut self) {
        if let Some(channel) = &self.channel {
            channel.core.forget(self.core.id());
        }
        if let Err(error) = self.context.core.destroy_cq(&self.core) {
            // Every queue pair holds this object until it has let go of the queue.
            tracing::error!(target: "rxe::cq", %error, "a completion queue is lost");
        }
    }
}

impl CqInner {
    /// Counts one more queue pair of `runner` that completes here.
    pub(crate) fn attach(&self, runner: &Arc<Runner>) {
        if let Some(channel) = &self.channel {
            channel.attach(runner);
        }
        let mut visited = self.visited.write();
        match visited.iter_mut().find(|(known, _)| Arc::ptr_eq(known, runner)) {
            Some((_, count)) => *count += 1,
            None => visited.push((runner.clone(), 1)),
        }
    }

    /// After so many polls that found nothing, offers the processor to others: a program that spins
    /// may have it in place of the peer that it waits for.
    fn give_way(&self, found: bool) {
        if found {
            self.empty_polls.store(0, Ordering::Relaxed);
            return;
        }
        let empty = self.empty_polls.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if empty.is_multiple_of(POLLS_PER_YIELD) {
            std::thread::yield_now();
        }
    }

    /// Counts one queue pair less.
    pub(crate) fn detach(&self, runner: &Arc<Runner>) {
        if let Some(channel) = &self.channel {
            channel.detach(runner);
        }
        let mut visited = self.visited.write();
        if let Some(index) = visited.iter().position(|(known, _)| Arc::ptr_eq(known, runner)) {
            visited[index].1 -= 1;
            if visited[index].1 == 0 {
                visited.swap_remove(index);
            }
        }
    }
}

impl CompletionQueue {
    pub(crate) fn new(
        context: Arc<ContextInner>,
        entries: u32,
        channel: Option<&CompletionChannel>,
        vector: usize,
        options: CqOptions,
    ) -> Result<Self, CreateCqError> {
        let CqOptions { timestamps, ignore_overrun } = options;
        let clock = timestamps.then(|| Arc::new(DeviceClock) as Arc<dyn StampClock>);
        let options = CoreOptions { clock, ignore_overrun };
        let on = channel.map(|channel| channel.core.clone());
        let core = context.core.create_cq_with(entries, on, options)?;
        let channel = channel.cloned();
        let home = context.runners[vector % context.runners.len()].clone();
        let (visited, empty_polls) = (RwLock::default(), AtomicU32::new(0));
        let inner = CqInner { context, core, channel, home, visited, empty_polls };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Destroys it (`ibv_destroy_cq`). Dropping it does so too, once nothing uses it any more.
    ///
    /// # Errors
    ///
    /// [`InUse`] with the queue, while a queue pair completes there (R50), another handle is there,
    /// or events of it are not acknowledged (where C waits for [`Self::ack_events`]).
    pub fn destroy(self) -> Result<(), InUse<Self>> {
        if self.inner.core.unacknowledged_events() > 0 {
            return Err(InUse { what: "completion queue", object: self });
        }
        InUse::unwrap("completion queue", self.inner, |inner| Self { inner })
    }

    /// Changes how many entries it holds, and returns the real number (`ibv_resize_cq`).
    ///
    /// # Errors
    ///
    /// [`ResizeCqError`]; all completions in it stay, also when it is resized (R52).
    pub fn resize(&self, entries: u32) -> Result<u32, ResizeCqError> {
        self.inner.core.resize(entries)
    }

    /// Sets how far events lag behind completions (`ibv_modify_cq`).
    pub fn moderate(&self, moderation: Moderation) {
        self.inner.core.moderate(moderation);
    }

    /// Says that `count` events that were taken from the channel have been dealt with
    /// (`ibv_ack_cq_events`); needed before [`Self::destroy`], not before it is dropped.
    pub fn ack_events(&self, count: u32) {
        self.inner.core.ack_events(count);
    }

    /// Its identifier, as channels and events name it.
    pub fn id(&self) -> CqId {
        self.inner.core.id()
    }

    /// Entries that it holds at most (`cqe`).
    pub fn capacity(&self) -> u32 {
        self.inner.core.capacity()
    }

    /// Moves up to `max` completions, oldest first, to the end of `to`; returns how many
    /// (`ibv_poll_cq`).
    ///
    /// When there is none, this thread receives and processes what has come for the queue pairs
    /// that complete here, and looks again. It never blocks.
    pub fn poll(&self, max: usize, to: &mut Vec<WorkCompletion>) -> usize {
        self.poll_each(max, |wc| to.push(wc))
    }

    /// Takes out what waits here of a queue pair, as some providers do when it is reset.
    pub fn remove_of(&self, qpn: crate::Qpn) {
        if self.inner.home.is_ours() {
            self.inner.core.remove_of(qpn);
        }
    }

    /// As [`Self::poll`], and gives each completion to `each`, under the lock of the queue: that
    /// must be short, and must not use the queue.
    pub fn poll_each(&self, max: usize, mut each: impl FnMut(WorkCompletion)) -> usize {
        if !self.inner.home.is_ours() {
            // In a child after fork the queue may be locked for ever, and is the parent's.
            return 0;
        }
        let count = self.inner.core.poll_each(max, &mut each);
        if count > 0 || max == 0 {
            self.send_held();
            return count;
        }
        self.receive();
        let count = self.inner.core.poll_each(max, each);
        self.inner.give_way(count > 0);
        count
    }

    /// As [`Self::poll_each`], with the time at which each completion came
    /// ([`Context::clock_nanos`](crate::Context::clock_nanos)); 0 if the queue does not stamp them
    /// ([`CqOptions::timestamps`]).
    pub fn poll_stamped(&self, max: usize, mut each: impl FnMut(WorkCompletion, u64)) -> usize {
        let count = self.take_stamped(max, &mut each);
        if count > 0 || max == 0 {
            self.send_held();
            return count;
        }
        self.receive();
        let count = self.take_stamped(max, each);
        self.inner.give_way(count > 0);
        count
    }

    /// As [`Self::poll_stamped`], of the completions that are there already: nothing is received
    /// for it (`ibv_next_poll`).
    pub fn take_stamped(&self, max: usize, mut each: impl FnMut(WorkCompletion, u64)) -> usize {
        if !self.inner.home.is_ours() {
            // As in `poll_each`.
            return 0;
        }
        self.inner.core.poll_stamped(max, |wc, at| each(wc, at.as_nanos()))
    }

    /// Sends what waits since some microseconds ago for what is posted next.
    fn send_held(&self) {
        for (runner, _) in &*self.inner.visited.read() {
            runner.send_held();
        }
    }

    /// Receives and processes what has come for the queue pairs that complete here.
    fn receive(&self) {
        if self.inner.channel.as_ref().is_some_and(CompletionChannel::spares_look) {
            return;
        }
        let is_armed = self.inner.core.is_armed();
        for (runner, _) in &*self.inner.visited.read() {
            if is_armed {
                runner.poll_before_sleep();
            } else {
                runner.poll_for(&self.inner.core);
            }
        }
    }

    /// Polls until a completion comes.
    ///
    /// It spins: for tests and short programs. Others want a [`CompletionChannel`].
    ///
    /// # Errors
    ///
    /// [`WaitError::TimedOut`] when none comes in time.
    pub fn wait_one(&self, timeout: Duration) -> Result<WorkCompletion, WaitError> {
        let deadline = Instant::now().checked_add(timeout);
        let mut one = Vec::with_capacity(1);
        loop {
            if self.poll(1, &mut one) > 0 {
                return Ok(one[0]);
            }
            if deadline.is_some_and(|deadline| Instant::now() > deadline) {
                return Err(WaitError::TimedOut(timeout));
            }
            std::thread::yield_now();
        }
    }

    /// Asks for one event on the channel at the next completion, or the next that is solicited or
    /// failed (`ibv_req_notify_cq`).
    ///
    /// Completions that are there already raise none: poll once more after arming (R51).
    pub fn req_notify(&self, solicited_only: bool) {
        self.inner.core.req_notify(solicited_only);
        let waits = self.inner.channel.as_ref().is_some_and(CompletionChannel::believes_in_wait);
        for (runner, _) in &*self.inner.visited.read() {
            if waits {
                runner.finish_posts();
            } else {
                runner.stop_polling();
            }
        }
    }
}
