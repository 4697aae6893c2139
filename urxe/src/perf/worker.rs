//! What a thread does of a bandwidth: keeps the send queues of its queue pairs full, takes in what
//! comes, and posts receives again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use ibverbs_api::{SendWr, WaitError, WcOpcode, WcStatus, WorkCompletion};

use super::end::{Group, Pair, lane_and_count};
use super::error::PerfError;
use super::load::{Amount, Load};

/// How long nothing may complete.
const PATIENCE: Duration = Duration::from_secs(10);
/// Without a reliable connection: how long after the last arrival nothing more is awaited.
const QUIET: Duration = Duration::from_millis(100);
/// How long a thread sleeps on events before it looks whether all is over.
const NAP: Duration = Duration::from_millis(50);
/// Polls in a row in vain, before the core is offered to others.
const POLLS: u32 = 8;
/// The same of an end that has more threads than processors: one of its own is waiting then.
const POLLS_CROWDED: u32 = 1;
/// Polls in a row in vain, between two looks whether it is time to give up.
const LOOKS: u32 = 1024;
/// Completions taken at a time.
const BATCH: usize = 32;

/// What the threads of an end know of the other end, and of each other.
#[derive(Debug)]
pub(super) struct Shared {
    /// The other end has sent all that it sends.
    pub(super) peer_done: AtomicBool,
    /// Messages that it sent, thread by thread, once it has.
    pub(super) peer_sent: Vec<AtomicU64>,
    /// A thread of this end cannot go on.
    pub(super) failed: AtomicBool,
}

impl Shared {
    pub(super) fn new(threads: u32) -> Self {
        let peer_sent = (0..threads).map(|_| AtomicU64::new(0)).collect();
        Self { peer_done: AtomicBool::new(false), peer_sent, failed: AtomicBool::new(false) }
    }

    /// Whether to stop at once.
    pub(super) fn check(&self, since: Instant, load: &Load) -> Result<(), PerfError> {
        let after = since.elapsed();
        if after > PATIENCE || self.failed.load(Ordering::Relaxed) {
            return Err(PerfError::Stalled { after, unreliable: !load.service.is_reliable() });
        }
        Ok(())
    }
}

/// What a thread did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Messages sent, all complete.
    pub(super) sent: u64,
    /// Messages received.
    pub(super) received: u64,
    /// When it began to send, and when the last message was complete.
    pub(super) span: Option<(Instant, Instant)>,
}

/// A queue pair of the thread.
struct Lane<'a> {
    pair: &'a Pair,
    posted: u64,
    done: u64,
    /// Receives posted again.
    reposted: u64,
}

/// A thread's part of an end.
pub(super) struct Worker<'a> {
    load: &'a Load,
    group: &'a Group,
    shared: &'a Shared,
    number: usize,
    lanes: Vec<Lane<'a>>,
    /// One message in so many asks for a completion.
    period: u64,
    received: u64,
    last_progress: Instant,
    completions: Vec<WorkCompletion>,
    list: Vec<SendWr<'a>>,
    idle: u32,
    /// Polls in a row in vain, before the core is offered to others.
    polls: u32,
}

impl<'a> Worker<'a> {
    /// The thread of this number; where the end `is_crowded`, it has more threads than processors.
    pub(super) fn new(
        load: &'a Load,
        group: &'a Group,
        shared: &'a Shared,
        number: usize,
        is_crowded: bool,
    ) -> Self {
        let receives = if load.operation.takes_receive() { load.receives.into() } else { 0 };
        let lane = |pair| Lane { pair, posted: 0, done: 0, reposted: receives };
        // A list must find room while what was posted before it asks for no completion.
        let most = load.depth - load.list + 1;
        Self {
            load,
            group,
            shared,
            number,
            lanes: group.pairs.iter().map(lane).collect(),
            period: load.moderation.min(most).into(),
            received: 0,
            last_progress: Instant::now(),
            completions: Vec::with_capacity(BATCH),
            list: Vec::with_capacity(load.list as usize),
            idle: 0,
            polls: if is_crowded { POLLS_CROWDED } else { POLLS },
        }
    }

    /// Sends, if this end does, and says through `finished` how many it were; then serves the other
    /// end until it has finished.
    pub(super) fn run(
        mut self,
        is_active: bool,
        finished: &Sender<(usize, u64)>,
    ) -> Result<Work, PerfError> {
        let result = self.work(is_active, finished);
        if result.is_err() {
            self.shared.failed.store(true, Ordering::Release);
        }
        result
    }

    fn work(
        &mut self,
        is_active: bool,
        finished: &Sender<(usize, u64)>,
    ) -> Result<Work, PerfError> {
        let mut span = None;
        if is_active {
            let start = Instant::now();
            self.drive(start)?;
            span = Some((start, self.last_progress));
        }
        let sent = self.lanes.iter().map(|lane| lane.done).sum();
        // The main thread is there as long as this one.
        let _ = finished.send((self.number, sent));
        self.serve()?;
        Ok(Work { sent, received: self.received, span })
    }

    /// Sends until it is over, then until all is complete.
    fn drive(&mut self, start: Instant) -> Result<(), PerfError> {
        self.last_progress = start;
        let (mut limit, end) = match self.load.amount {
            Amount::Messages(count) => (count, None),
            Amount::Seconds(seconds) => (u64::MAX, Some(start + Duration::from_secs_f64(seconds))),
        };
        let mut now = start;
        loop {
            let is_over = end.is_some_and(|end| now >= end);
            if is_over && limit == u64::MAX {
                // Up to the next that asks for a completion.
                limit = 0;
            }
            let mut under_way = false;
            for index in 0..self.lanes.len() {
                self.fill(index, limit)?;
                let lane = &self.lanes[index];
                under_way |= lane.posted > lane.done;
            }
            if !under_way {
                return Ok(());
            }
            now = self.poll()?;
            if self.idle % LOOKS == 1 || self.group.channel.is_some() {
                self.shared.check(self.last_progress, self.load)?;
            }
        }
    }

    /// Posts what there is room for. `limit` 0: only what the last completion needs.
    fn fill(&mut self, index: usize, limit: u64) -> Result<(), PerfError> {
        let (depth, list) = (u64::from(self.load.depth), u64::from(self.load.list));
        let (period, last) = (self.period, limit);
        let lane = &mut self.lanes[index];
        let limit = if limit == 0 { lane.posted.next_multiple_of(period) } else { limit };
        loop {
            let count = list.min(limit - lane.posted);
            if count == 0 || lane.posted + count - lane.done > depth {
                return Ok(());
            }
            let request = |message: u64| {
                let signaled = (message + 1).is_multiple_of(period) || message + 1 == last;
                lane.pair.request(index, message, signaled)
            };
            if self.load.list == 1 {
                lane.pair.qp.post_send(&request(lane.posted))?;
            } else {
                self.list.clear();
                self.list.extend((lane.posted..lane.posted + count).map(request));
                lane.pair.qp.post_send_list(&self.list)?;
            }
            lane.posted += count;
        }
    }

    /// Takes completions in; where there are none, rests. Returns the time.
    fn poll(&mut self) -> Result<Instant, PerfError> {
        let mut completions = std::mem::take(&mut self.completions);
        completions.clear();
        self.group.cq.poll(BATCH, &mut completions);
        let taken = completions.iter().try_for_each(|completion| self.take(completion));
        let count = completions.len();
        self.completions = completions;
        taken?;
        let now = Instant::now();
        if count > 0 {
            (self.last_progress, self.idle) = (now, 0);
            self.repost()?;
            return Ok(now);
        }
        self.idle = self.idle.wrapping_add(1);
        if self.group.channel.is_some() {
            self.sleep()?;
        } else if self.idle.is_multiple_of(self.polls) {
            // What serves the other end may be waiting for this very core.
            thread::yield_now();
        }
        Ok(now)
    }

    fn take(&mut self, completion: &WorkCompletion) -> Result<(), PerfError> {
        if completion.status != WcStatus::Success {
            return Err(PerfError::Completion { status: completion.status });
        }
        let (index, count) = lane_and_count(completion.wr_id);
        match (completion.opcode, self.lanes.get_mut(index)) {
            (WcOpcode::Recv | WcOpcode::RecvRdmaWithImm, Some(_)) => self.received += 1,
            (_, Some(lane)) => lane.done = count,
            (_, None) => {}
        }
        Ok(())
    }

    /// Posts the receives of the completions again, those of a queue pair as a list.
    fn repost(&mut self) -> Result<(), PerfError> {
        let is_receive =
            |wc: &&WorkCompletion| matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm);
        let mut lanes =
            self.completions.iter().filter(is_receive).map(|wc| lane_and_count(wc.wr_id).0);
        let mut next = lanes.next();
        while let Some(index) = next {
            let mut count = 1;
            next = loop {
                match lanes.next() {
                    Some(same) if same == index => count += 1,
                    other => break other,
                }
            };
            let Some(lane) = self.lanes.get_mut(index) else { continue };
            let pair = lane.pair;
            let mut list = [pair.receive(index, lane.reposted); BATCH];
            for (place, at) in list.iter_mut().zip(lane.reposted..).take(count) {
                *place = pair.receive(index, at);
            }
            pair.qp.post_recv_list(&list[..count])?;
            lane.reposted += count as u64;
        }
        Ok(())
    }

    /// Sleeps until something completes, for a while at most.
    fn sleep(&mut self) -> Result<(), PerfError> {
        let Some(channel) = &self.group.channel else { return Ok(()) };
        if self.idle == 1 {
            // What came before this is found by one more poll.
            self.group.cq.req_notify(false);
            return Ok(());
        }
        match channel.wait(NAP) {
            Ok(_) => self.group.cq.ack_events(1),
            Err(WaitError::TimedOut(_)) => {}
            Err(error) => return Err(error.into()),
        }
        self.idle = 0;
        Ok(())
    }

    /// Serves the other end until it has finished, and what it sent has come.
    fn serve(&mut self) -> Result<(), PerfError> {
        let is_reliable = self.load.service.is_reliable();
        let mut over = None;
        loop {
            let now = self.poll()?;
            if self.shared.failed.load(Ordering::Relaxed) {
                self.shared.check(now, self.load)?;
            }
            if !self.shared.peer_done.load(Ordering::Acquire) {
                continue;
            }
            let since = *over.get_or_insert(now);
            let sent = self.shared.peer_sent[self.number].load(Ordering::Acquire);
            let wanted = if self.load.operation.takes_receive() { sent } else { 0 };
            if self.received >= wanted {
                return Ok(());
            }
            if !is_reliable && now.duration_since(since.max(self.last_progress)) > QUIET {
                return Ok(());
            }
            self.shared.check(since.max(self.last_progress), self.load)?;
        }
    }
}
