//! How long a message takes: SEND and WRITE there and back, READ and atomics by themselves.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use ibverbs_api::{WaitError, WcOpcode, WcStatus, WorkCompletion};

use super::end::{Group, Pair};
use super::error::PerfError;
use super::histogram::Histogram;
use super::load::{Amount, Load, Operation};
use super::worker::Shared;

/// Messages before those that count.
const WARM_UP: u64 = 100;
/// Looks at the memory between two at the clock.
const LOOKS: u32 = 4096;
/// Empty polls in a row between two looks at the clock.
const POLLS: u32 = 1024;
/// How long a thread sleeps on events before it looks whether all is over.
const NAP: Duration = Duration::from_millis(50);

/// One end.
pub(super) struct Player<'a> {
    load: &'a Load,
    shared: &'a Shared,
    group: &'a mut Group,
    /// Messages sent, and those that are complete.
    sent: u64,
    done: u64,
    /// Messages that came, and of these those that were taken.
    arrived: u64,
    taken: u64,
    completions: Vec<WorkCompletion>,
}

/// What made a wait end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waited {
    /// What was awaited.
    Came,
    /// The other end has finished.
    Over,
}

impl<'a> Player<'a> {
    pub(super) fn new(load: &'a Load, group: &'a mut Group, shared: &'a Shared) -> Self {
        let completions = Vec::with_capacity(16);
        Self { load, shared, group, sent: 0, done: 0, arrived: 0, taken: 0, completions }
    }

    /// Plays as the end that sends first; returns how long each message took.
    pub(super) fn play(&mut self) -> Result<Histogram, PerfError> {
        let mut times = Histogram::default();
        let (mut counted, start) = (0, Instant::now());
        let mut warm = 0;
        loop {
            let begun = Instant::now();
            let is_over = match self.load.amount {
                Amount::Messages(count) => counted >= count,
                Amount::Seconds(seconds) => (begun - start).as_secs_f64() >= seconds && counted > 0,
            };
            if is_over {
                self.settle()?;
                return Ok(times);
            }
            let time = self.exchange(begun)?;
            if warm < WARM_UP {
                warm += 1;
            } else {
                times.record(time);
                counted += 1;
            }
        }
    }

    /// One message, and the answer to it where there is one.
    fn exchange(&mut self, begun: Instant) -> Result<Duration, PerfError> {
        self.send()?;
        if self.load.operation.fetches() {
            while self.done < self.sent {
                self.poll(false)?;
            }
            return Ok(begun.elapsed());
        }
        self.await_message(false)?;
        let time = begun.elapsed() / 2;
        self.repost()?;
        Ok(time)
    }

    /// Messages sent.
    pub(super) const fn sent(&self) -> u64 {
        self.sent
    }

    /// Messages that came.
    pub(super) const fn taken(&self) -> u64 {
        self.taken
    }

    /// Answers each message until the other end has finished.
    pub(super) fn answer(&mut self) -> Result<(), PerfError> {
        loop {
            if self.await_message(true)? == Waited::Over {
                return self.settle();
            }
            self.send()?;
            self.repost()?;
        }
    }

    fn pair(&self) -> &Pair {
        &self.group.pairs[0]
    }

    fn send(&mut self) -> Result<(), PerfError> {
        // The send queue may be of one request only.
        while self.sent - self.done >= u64::from(self.load.depth) {
            self.poll(false)?;
        }
        if self.load.operation == Operation::Write {
            self.group.pairs[0].stamp(stamp(self.sent))?;
        }
        let pair = self.pair();
        // Always of the first slot, which is the one that the other end looks at.
        let mut request = pair.request(0, 0, true);
        request.wr_id = self.sent;
        if let ibverbs_api::SendOp::CompareSwap { compare, swap, .. } = &mut request.op {
            (*compare, *swap) = (self.sent, self.sent + 1);
        }
        pair.qp.post_send(&request)?;
        self.sent += 1;
        Ok(())
    }

    /// Waits for the next message of the other end.
    fn await_message(&mut self, may_end: bool) -> Result<Waited, PerfError> {
        let waited = if self.load.operation == Operation::Write {
            self.watch_memory(may_end)?
        } else {
            self.watch_queue(may_end)?
        };
        self.taken += u64::from(waited == Waited::Came);
        Ok(waited)
    }

    fn watch_queue(&mut self, may_end: bool) -> Result<Waited, PerfError> {
        while self.arrived == self.taken {
            if self.poll(may_end)? == Waited::Over {
                return Ok(Waited::Over);
            }
        }
        Ok(Waited::Came)
    }

    /// As `ib_write_lat` waits: first for the completion of its own message, by polling, then on the
    /// memory, without.
    fn watch_memory(&mut self, may_end: bool) -> Result<Waited, PerfError> {
        while self.done < self.sent {
            self.poll(false)?;
        }
        let (wanted, since) = (stamp(self.taken), Instant::now());
        loop {
            for _ in 0..LOOKS {
                if self.pair().stamped()? == wanted {
                    return Ok(Waited::Came);
                }
                std::hint::spin_loop();
            }
            if may_end && self.shared.peer_done.load(Ordering::Acquire) {
                return Ok(Waited::Over);
            }
            self.shared.check(since, self.load)?;
        }
    }

    /// Polls until something completes; where `may_end`, or until the other end has finished.
    fn poll(&mut self, may_end: bool) -> Result<Waited, PerfError> {
        let since = Instant::now();
        let mut polls = 0u32;
        loop {
            self.completions.clear();
            if self.group.cq.poll(16, &mut self.completions) > 0 {
                return self.take().map(|()| Waited::Came);
            }
            polls += 1;
            let is_time = if self.group.channel.is_some() {
                self.sleep(polls)?
            } else {
                polls.is_multiple_of(POLLS)
            };
            if is_time {
                if may_end && self.shared.peer_done.load(Ordering::Acquire) {
                    return Ok(Waited::Over);
                }
                self.shared.check(since, self.load)?;
            }
        }
    }

    fn take(&mut self) -> Result<(), PerfError> {
        for completion in &self.completions {
            match (completion.status, completion.opcode) {
                (WcStatus::Success, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm) => {
                    self.arrived += 1;
                }
                (WcStatus::Success, _) => self.done = completion.wr_id + 1,
                (status, _) => return Err(PerfError::Completion { status }),
            }
        }
        Ok(())
    }

    /// Arms the queue at the first poll in vain, sleeps at the next; whether it slept in vain.
    fn sleep(&self, polls: u32) -> Result<bool, PerfError> {
        let Some(channel) = &self.group.channel else { return Ok(true) };
        if !polls.is_multiple_of(2) {
            self.group.cq.req_notify(false);
            return Ok(false);
        }
        match channel.wait(NAP) {
            Ok(_) => {
                self.group.cq.ack_events(1);
                Ok(false)
            }
            Err(WaitError::TimedOut(_)) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Posts a receive in place of the one that was used.
    fn repost(&self) -> Result<(), PerfError> {
        if self.load.operation.takes_receive() {
            self.pair().qp.post_recv(self.pair().receive(0, self.taken))?;
        }
        Ok(())
    }

    /// Waits until all that was sent is complete.
    fn settle(&mut self) -> Result<(), PerfError> {
        while self.done < self.sent {
            self.poll(false)?;
            thread::yield_now();
        }
        Ok(())
    }
}

/// The last byte of a message; never that of the one before, nor 0, which is there at first.
const fn stamp(message: u64) -> u8 {
    (message % 255) as u8 + 1
}
