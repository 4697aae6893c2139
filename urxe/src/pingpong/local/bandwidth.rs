//! How much one queue pair carries: WRITE, READ and SEND, with many messages under way.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ibverbs_api::{SendData, SendFlags, SendOp, SendWr, Sge, WaitError, WcOpcode, WorkCompletion};

use super::end::{End, Pair};
use crate::pingpong::error::PingpongError;
use crate::pingpong::pattern;

/// How long nothing may complete.
const PATIENCE: Duration = Duration::from_secs(10);
/// Every so many messages of SEND and READ are compared whole while the clock runs: a message
/// takes about as long as comparing it, so more often would distort the figure.
const SAMPLE: u64 = 64;
/// Bytes of the number that each message begins with.
const STAMP: usize = 8;
/// Receives posted for each message that may be under way: a message counts as sent when it has
/// arrived, and its receive is posted again a little later.
pub(super) const RECEIVES: usize = 2;
/// Polls in a row where nothing completes, before the core is offered to others.
const POLLS: u32 = 8;
/// Completions taken at a time.
const POLL_BATCH: usize = 16;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    Write,
    Read,
    Send,
}

impl Operation {
    pub(super) const ALL: [Self; 3] = [Self::Write, Self::Read, Self::Send];

    /// Its name, as the specification spells it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Write => "WRITE",
            Self::Read => "READ",
            Self::Send => "SEND",
        }
    }
}

/// Bytes a second of an operation that runs for `duration`. The data is checked.
///
/// The active end fills its buffer with a pattern (of READ: the passive one), and each message
/// begins with its number, which it has when it is posted. `seed` differs from one measurement to
/// the next, so that bytes left from an earlier one are wrong.
pub(super) fn measure(
    pair: &Pair,
    depth: usize,
    operation: Operation,
    duration: Duration,
    seed: u64,
) -> Result<f64, PingpongError> {
    let run = Run::new(pair, depth, operation, seed);
    run.prepare()?;
    let (messages, elapsed) = thread::scope(|scope| {
        let serving = scope.spawn(|| run.guard(|| run.serve()));
        let driven = run.guard(|| {
            let driven = run.drive(duration)?;
            run.total.store(driven.0, Ordering::Release);
            Ok(driven)
        });
        let served = serving.join().map_err(|_| PingpongError::Panicked)?;
        match (driven, served) {
            // The active end only gave up since the other one had failed.
            (Err(PingpongError::Wait(_)), Err(served)) => Err(served),
            (driven, served) => driven.and_then(|driven| served.map(|()| driven)),
        }
    })?;
    run.check_all(messages)?;
    Ok((messages * pair.active.size as u64) as f64 / elapsed.as_secs_f64())
}

/// One measurement.
struct Run<'a> {
    pair: &'a Pair,
    operation: Operation,
    seed: u64,
    depth: usize,
    /// Messages that the active end completed, once it has finished; before that, the maximum.
    total: AtomicU64,
    /// Messages whose receives the passive end has posted again. It stands for the credits that a
    /// program grants its peer: whoever sends more than receives are posted runs into RNR NAKs, and
    /// then waits for the RNR timer.
    received: AtomicU64,
    /// Set when one end cannot go on.
    failed: AtomicBool,
}

impl<'a> Run<'a> {
    const fn new(pair: &'a Pair, depth: usize, operation: Operation, seed: u64) -> Self {
        Self {
            pair,
            operation,
            seed: seed << 40,
            depth,
            total: AtomicU64::new(u64::MAX),
            received: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        }
    }

    /// Tells the other end when this one cannot go on.
    fn guard<T>(
        &self,
        play: impl FnOnce() -> Result<T, PingpongError>,
    ) -> Result<T, PingpongError> {
        let result = play();
        if result.is_err() {
            self.failed.store(true, Ordering::Release);
        }
        result
    }

    /// The end that the bytes come from.
    fn source(&self) -> &End {
        match self.operation {
            Operation::Read => &self.pair.passive,
            Operation::Write | Operation::Send => &self.pair.active,
        }
    }

    /// The end that the bytes go to.
    fn target(&self) -> &End {
        match self.operation {
            Operation::Read => &self.pair.active,
            Operation::Write | Operation::Send => &self.pair.passive,
        }
    }

    fn slot_seed(&self, slot: usize) -> u64 {
        // Far apart, since neighbouring patterns resemble each other.
        self.seed | (slot as u64) << 24
    }

    /// Fills the source and clears the target.
    fn prepare(&self) -> Result<(), PingpongError> {
        let (source, target) = (self.source(), self.target());
        let mut bytes = vec![0; source.size];
        let nothing = vec![0; target.size];
        for slot in 0..self.target_slots() {
            target.mr.buffer().write_at(target.offset(slot), &nothing)?;
        }
        for slot in 0..self.depth {
            pattern::fill(self.slot_seed(slot), &mut bytes);
            // What READ fetches is not stamped one by one: no one says when it was fetched.
            bytes[..STAMP].copy_from_slice(&(slot as u64).to_le_bytes());
            source.mr.buffer().write_at(source.offset(slot), &bytes)?;
        }
        Ok(())
    }

    /// Keeps the send queue full until the time is over, then until all is done; returns how many
    /// messages it were, and how long they took.
    fn drive(&self, duration: Duration) -> Result<(u64, Duration), PingpongError> {
        let end = &self.pair.active;
        let depth = self.depth as u64;
        // Whole rounds of the slots, so that the next measurement begins at the first one.
        let round = self.target_slots() as u64;
        let sges: Vec<[Sge; 1]> = (0..self.depth).map(|slot| end.sge(slot)).collect();
        // Some lists are under way while the next is posted.
        let batch = (depth / 4).clamp(1, POLL_BATCH as u64);
        let mut list = Vec::with_capacity(POLL_BATCH);
        let mut completions = Vec::with_capacity(POLL_BATCH);
        let mut scratch = vec![0; end.size];
        let (mut posted, mut done) = (0u64, 0u64);
        let start = Instant::now();
        let (mut last_progress, mut is_over) = (start, false);
        let mut polls = 0u32;
        loop {
            if is_over && done == posted && posted % round == 0 {
                return Ok((done, last_progress - start));
            }
            while !(is_over && posted % round == 0) {
                let next = posted + batch.min(depth - posted % depth);
                if next - done > depth || next > self.granted() {
                    break;
                }
                list.clear();
                for message in posted..next {
                    list.push(self.request(message, message + 1 == next, &sges)?);
                }
                end.qp.post_send_list(&list)?;
                posted = next;
            }
            completions.clear();
            end.poll(POLL_BATCH, &mut completions)?;
            let now = Instant::now();
            is_over = now - start >= duration;
            if let Some(last) = completions.last() {
                let until = last.wr_id + 1;
                if self.operation == Operation::Read {
                    self.check_samples(done..until, &mut scratch)?;
                }
                (done, last_progress, polls) = (until, now, 0);
                continue;
            }
            if now - last_progress > PATIENCE || self.failed.load(Ordering::Relaxed) {
                return Err(WaitError::TimedOut(now - last_progress).into());
            }
            // What a poll did is not known here: between two completions there are many that
            // send. But what serves the other end may be waiting for this very core.
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(POLLS) {
                thread::yield_now();
            }
        }
    }

    /// How many messages may be sent, all in all.
    fn granted(&self) -> u64 {
        match self.operation {
            Operation::Send => self.received.load(Ordering::Acquire) + self.target_slots() as u64,
            Operation::Write | Operation::Read => u64::MAX,
        }
    }

    /// The request of a message; one completion tells of a whole list, that of its last one.
    fn request<'s>(
        &self,
        message: u64,
        is_last: bool,
        sges: &'s [[Sge; 1]],
    ) -> Result<SendWr<'s>, PingpongError> {
        let slot = self.source_slot(message);
        let (active, passive) = (&self.pair.active, &self.pair.passive);
        let remote = passive.mr.remote_addr(passive.offset(slot));
        let op = match self.operation {
            Operation::Write => SendOp::Write { remote, imm: None },
            Operation::Read => SendOp::Read { remote },
            Operation::Send => SendOp::Send { imm: None },
        };
        if self.operation != Operation::Read {
            active.mr.buffer().write_at(active.offset(slot), &message.to_le_bytes())?;
        }
        let data = SendData::Sges(&sges[slot]);
        let flags = if is_last { SendFlags::SIGNALED } else { SendFlags::empty() };
        Ok(SendWr { wr_id: message, op, flags, data, srq_number: None })
    }

    /// The slot that a message comes from.
    const fn source_slot(&self, message: u64) -> usize {
        (message % self.depth as u64) as usize
    }

    /// The slot that a message goes to.
    fn target_slot(&self, message: u64) -> usize {
        (message % self.target_slots() as u64) as usize
    }

    /// Slots that messages go to in turn.
    fn target_slots(&self) -> usize {
        match self.operation {
            Operation::Send => RECEIVES * self.depth,
            Operation::Write | Operation::Read => self.depth,
        }
    }

    /// The passive end, until the active one has finished.
    fn serve(&self) -> Result<(), PingpongError> {
        match self.operation {
            Operation::Send => self.receive(),
            Operation::Write | Operation::Read => self.lend_thread(),
        }
    }

    /// Polls at the end that is written to or read from, where nothing ever completes.
    ///
    /// That end would be served without: by the background thread of its device. But a thread that
    /// polls is faster, as the device works in it, and the bare pipe polls at both ends too.
    fn lend_thread(&self) -> Result<(), PingpongError> {
        let mut completions = Vec::new();
        let mut polls = 0u32;
        while self.total.load(Ordering::Acquire) == u64::MAX && !self.failed.load(Ordering::Relaxed)
        {
            self.pair.passive.poll(POLL_BATCH, &mut completions)?;
            if let Some(completion) = completions.first() {
                return Err(PingpongError::UnknownCompletion { wr_id: completion.wr_id });
            }
            // What a poll did is not known here; most find something.
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(POLLS) {
                thread::yield_now();
            }
        }
        Ok(())
    }

    /// Takes messages in, and posts their receives again, in lists.
    fn receive(&self) -> Result<(), PingpongError> {
        let end = &self.pair.passive;
        let sges: Vec<[Sge; 1]> = (0..self.target_slots()).map(|slot| end.sge(slot)).collect();
        let mut completions = Vec::with_capacity(POLL_BATCH);
        let mut scratch = vec![0; end.size];
        let (mut received, mut last_progress) = (0u64, Instant::now());
        while received < self.total.load(Ordering::Acquire) {
            completions.clear();
            let count = end.poll(POLL_BATCH, &mut completions)?;
            if count == 0 {
                if last_progress.elapsed() > PATIENCE || self.failed.load(Ordering::Relaxed) {
                    return Err(WaitError::TimedOut(last_progress.elapsed()).into());
                }
                thread::yield_now();
                continue;
            }
            for (message, completion) in (received..).zip(&completions) {
                self.check_arrival(message, completion)?;
            }
            let next = received + count as u64;
            self.check_samples(received..next, &mut scratch)?;
            let slots = (received..next).map(|message| self.target_slot(message));
            let list: Vec<_> = slots.map(|slot| End::receive(slot, &sges[slot])).collect();
            end.qp.post_recv_list(&list)?;
            self.received.store(next, Ordering::Release);
            (received, last_progress) = (next, Instant::now());
        }
        Ok(())
    }

    fn check_arrival(
        &self,
        message: u64,
        completion: &WorkCompletion,
    ) -> Result<(), PingpongError> {
        let end = self.target();
        let wanted = end.size;
        if completion.opcode != WcOpcode::Recv || completion.byte_len as usize != wanted {
            return Err(PingpongError::Length { message, got: completion.byte_len, wanted });
        }
        let mut stamp = [0; STAMP];
        end.mr.buffer().read_at(end.offset(self.target_slot(message)), &mut stamp)?;
        if u64::from_le_bytes(stamp) != message {
            return Err(PingpongError::Data { what: self.operation.name(), message, offset: 0 });
        }
        Ok(())
    }

    fn check_samples(
        &self,
        messages: std::ops::Range<u64>,
        scratch: &mut [u8],
    ) -> Result<(), PingpongError> {
        let mut sampled = messages.filter(|message| message % SAMPLE == 0);
        sampled.try_for_each(|message| self.check_whole(message, scratch))
    }

    /// Checks every byte of a message in its slot of the target.
    fn check_whole(&self, message: u64, scratch: &mut [u8]) -> Result<(), PingpongError> {
        let (end, slot) = (self.target(), self.source_slot(message));
        end.mr.buffer().read_at(end.offset(self.target_slot(message)), scratch)?;
        let what = self.operation.name();
        let stamp = if self.operation == Operation::Read { slot as u64 } else { message };
        if scratch[..STAMP] != stamp.to_le_bytes() {
            return Err(PingpongError::Data { what, message, offset: 0 });
        }
        // The pattern is as if the number did not stand over its start.
        pattern::fill(self.slot_seed(slot), &mut scratch[..STAMP]);
        match pattern::first_difference(self.slot_seed(slot), scratch) {
            Some(offset) => Err(PingpongError::Data { what, message, offset }),
            None => Ok(()),
        }
    }

    /// Checks every byte of the last message of each slot.
    fn check_all(&self, messages: u64) -> Result<(), PingpongError> {
        let mut scratch = vec![0; self.target().size];
        let first = messages.saturating_sub(self.target_slots() as u64);
        (first..messages).try_for_each(|message| self.check_whole(message, &mut scratch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pingpong::test_port;

    /// Ends for `depth` messages of `size` bytes, over IPv4.
    fn connected(depth: usize, size: usize) -> Pair {
        test_port::retried(|| {
            let device = ibverbs_api::Device::by_name("rxe_lo")?;
            let contexts = [device.open()?, device.open()?];
            let wanted = crate::pingpong::port::Wanted::Family { ipv6: false };
            let gid = crate::pingpong::port::choose_gid(&contexts[0], 1, wanted)?;
            let slots = [depth, RECEIVES * depth];
            let pair = Pair::connect(&contexts, &gid, ibverbs_api::Mtu::M1024, slots, size)?;
            pair.passive.post_receives(0..slots[1])?;
            Ok(pair)
        })
        .expect("a pair")
    }

    #[test]
    fn every_operation_again_and_again_at_odd_depths() {
        for (depth, size) in [(1, 8), (3, 2000), (7, 5000)] {
            let pair = connected(depth, size);
            for round in 0..2 {
                for operation in Operation::ALL {
                    let slice = Duration::from_millis(5);
                    let speed = measure(&pair, depth, operation, slice, round).expect("right");
                    assert!(speed > 0.0);
                }
            }
        }
    }

    #[test]
    fn one_wrong_byte_is_found() {
        let (depth, size) = (4, 3000);
        let pair = connected(depth, size);
        for operation in Operation::ALL {
            let run = Run::new(&pair, depth, operation, 1);
            run.prepare().expect("prepared");
            thread::scope(|scope| {
                scope.spawn(|| run.guard(|| run.serve()));
                let (messages, _) = run.drive(Duration::ZERO).expect("driven");
                run.total.store(messages, Ordering::Release);
            });
            let messages = run.total.load(Ordering::Acquire);
            assert!(messages >= depth as u64);
            run.check_all(messages).expect("all right");
            let wrong = run.target().offset(run.target_slot(messages - 1)) + 2500;
            let buffer = run.target().mr.buffer();
            let mut byte = [0];
            buffer.read_at(wrong, &mut byte).expect("reads");
            buffer.write_at(wrong, &[!byte[0]]).expect("writes");
            let error = run.check_all(messages).expect_err("found");
            assert!(matches!(error, PingpongError::Data { offset: 2500, .. }), "{error}");
            // What an earlier measurement left is no better.
            let stale = Run::new(&pair, depth, operation, 2).check_all(messages);
            assert!(stale.is_err(), "{operation:?}");
        }
    }
}
