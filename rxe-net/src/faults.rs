//! Faults on purpose: packets dropped, doubled, moved, corrupted and delayed, all from one seed.
//!
//! [`FaultSpec`] says what, [`Faults`] does it to the batches that leave, before they get their
//! iCRC; [`FaultyLink`] puts it in front of any link. Nothing here knows a clock or a network.

mod link;
mod spec;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use rxe_core::path::Transmit;
use rxe_core::time::Instant;

pub use link::FaultyLink;
pub use spec::{FAULTS_VARIABLE, FaultSpec, ParseFaultsError, Probability, Until};

use crate::batch::TxBatch;

/// What the faults have done so far, in packets.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FaultStats {
    /// Packets seen, after faults have stopped as well.
    pub packets: u64,
    /// Packets dropped.
    pub dropped: u64,
    /// Packets that left twice.
    pub duplicated: u64,
    /// Packets held back until others had passed.
    pub reordered: u64,
    /// Packets with a bit flipped.
    pub corrupted: u64,
    /// Packets held back for a time.
    pub delayed: u64,
    /// Packets that were to be held back, but too many were held already: they left at once.
    pub not_held: u64,
}

impl FaultStats {
    /// How many faults there were.
    pub const fn total(&self) -> u64 {
        self.dropped + self.duplicated + self.reordered + self.corrupted + self.delayed
    }
}

/// Does to packets what a [`FaultSpec`] says.
///
/// What happens to a packet depends on the seed, the stream and how many packets came before it,
/// and on nothing else: the same run gives the same faults, and raising one probability leaves
/// the other faults where they were.
///
/// Of a packet that is both doubled and held back, one copy leaves at once and one later. A
/// packet that is both delayed and moved is delayed. A dropped one has no other fault.
#[derive(Debug)]
pub struct Faults {
    spec: FaultSpec,
    rng: ChaCha8Rng,
    /// When the first packet came, from which `until` counts.
    started: Option<Instant>,
    stats: FaultStats,
    /// Packets that are to leave now and had no room in the batch yet.
    ready: VecDeque<Packet>,
    /// Packets that wait for others to pass.
    passing: Vec<Passing>,
    /// Packets that wait for a time, the earliest first.
    delayed: BinaryHeap<Reverse<Delayed>>,
    /// Numbers the delayed packets, so that those of one time leave in order.
    delayed_count: u64,
    /// What is to happen to the packets of the batch at hand; kept for its memory.
    verdicts: Vec<Verdict>,
    /// Buffers of packets that have left, for the next ones.
    spare: Vec<Vec<u8>>,
}

/// A packet out of its batch.
#[derive(Debug, PartialEq, Eq)]
struct Packet {
    transmit: Transmit,
    bytes: Vec<u8>,
    flip: Option<u32>,
}

/// A packet that waits for others to pass.
#[derive(Debug)]
struct Passing {
    packet: Packet,
    /// How many more must pass.
    left: u32,
    /// When it leaves even if they have not.
    deadline: Instant,
}

/// A packet that waits for a time.
#[derive(Debug)]
struct Delayed {
    due: Instant,
    number: u64,
    packet: Packet,
}

impl Delayed {
    const fn key(&self) -> (Instant, u64) {
        (self.due, self.number)
    }
}

impl PartialEq for Delayed {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Delayed {}

impl PartialOrd for Delayed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Delayed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// What is to happen to one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Drop,
    Keep { flip: Option<u32>, duplicate: bool, hold: Hold },
}

/// Whether a packet is held back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hold {
    No,
    /// Until so many others have passed.
    Packets(u32),
    /// For so many nanoseconds.
    Nanos(u64),
}

impl Verdict {
    /// The packet leaves as it is.
    const UNTOUCHED: Self = Self::Keep { flip: None, duplicate: false, hold: Hold::No };
}

impl Faults {
    /// How many packets are held back at most; more leave at once. About 17 MiB at path MTU 4096.
    pub const HELD_MAX: usize = 4096;

    /// Faults of a specification.
    ///
    /// `stream` tells apart the links of one process, which otherwise would all lose their first
    /// packet together: give each its own number, such as that of its shard.
    pub fn new(spec: FaultSpec, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(spec.seed);
        rng.set_stream(stream);
        Self {
            spec,
            rng,
            started: None,
            stats: FaultStats::default(),
            ready: VecDeque::new(),
            passing: Vec::new(),
            delayed: BinaryHeap::new(),
            delayed_count: 0,
            verdicts: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Does faults to a batch about to leave; what is due of earlier packets is put into it too.
    ///
    /// What the batch has no room for leaves with the next one or by [`Faults::release`], when
    /// [`Faults::poll_timeout`] says. A batch that nothing happens to stays as it is in memory.
    pub fn apply(&mut self, now: Instant, batch: &mut TxBatch) {
        self.judge(now, batch.len());
        self.take_due(now);
        let untouched = self.verdicts.iter().all(|verdict| *verdict == Verdict::UNTOUCHED);
        if untouched && self.ready.is_empty() && self.passing.is_empty() {
            return;
        }
        let verdicts = std::mem::take(&mut self.verdicts);
        for ((packet, bytes), &verdict) in batch.iter().zip(&verdicts) {
            let transmit = packet.transmit();
            let kept = packet.flip();
            self.route(now, verdict, |flip, mut buffer| {
                buffer.extend_from_slice(bytes);
                Packet { transmit, bytes: buffer, flip: flip.or(kept) }
            });
        }
        self.verdicts = verdicts;
        batch.clear();
        self.fill(batch);
    }

    /// Appends to a batch what was held back until now; false when there is nothing.
    ///
    /// To be called with an empty batch, until it says false, when [`Faults::poll_timeout`] is
    /// due. A call too early does nothing.
    pub fn release(&mut self, now: Instant, batch: &mut TxBatch) -> bool {
        self.take_due(now);
        let before = batch.len();
        self.fill(batch);
        batch.len() > before
    }

    /// When [`Faults::release`] has something to give; `None` when nothing is held.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.ready.is_empty() {
            return Some(Instant::ZERO);
        }
        let passing = self.passing.iter().map(|held| held.deadline).min();
        let delayed = self.delayed.peek().map(|Reverse(held)| held.due);
        [passing, delayed].into_iter().flatten().min()
    }

    /// What was done so far.
    pub const fn stats(&self) -> FaultStats {
        self.stats
    }

    /// Whether faults have stopped for good; what is held back still leaves at its time.
    pub fn is_over(&self, now: Instant) -> bool {
        match self.spec.until {
            None => false,
            Some(Until::Packets(count)) => self.stats.packets >= count,
            Some(Until::Nanos(nanos)) => {
                self.started.is_some_and(|started| now >= started.plus_nanos(nanos))
            }
        }
    }

    /// Draws what is to happen to the next `count` packets.
    fn judge(&mut self, now: Instant, count: usize) {
        self.verdicts.clear();
        for _ in 0..count {
            self.started.get_or_insert(now);
            let verdict = self.verdict(now);
            self.stats.packets += 1;
            self.verdicts.push(verdict);
        }
    }

    fn verdict(&mut self, now: Instant) -> Verdict {
        // Always as many words, so that one probability does not move the faults of another.
        let mut draw = || self.rng.next_u32();
        let [drop, duplicate, reorder, corrupt, delay] = std::array::from_fn(|_| draw());
        let [by, bit] = std::array::from_fn(|_| draw());
        let amount = (u64::from(draw()) << 32) | u64::from(draw());
        if self.is_over(now) {
            return Verdict::UNTOUCHED;
        }
        let spec = &self.spec;
        if spec.drop.hits(drop) {
            return Verdict::Drop;
        }
        let hold = match &spec.delay_nanos {
            Some(range) if spec.delay.hits(delay) => {
                let span = u128::from(range.end() - range.start()) + 1;
                // Below `span`, so the sum is at most the end of the range.
                let part = (u128::from(amount) * span) >> 64;
                Hold::Nanos(range.start() + part as u64)
            }
            _ if spec.reorder.hits(reorder) => {
                let span = u64::from(spec.reorder_by_max.max(1));
                // Below `span`, which was a u32.
                Hold::Packets(1 + ((u64::from(by) * span) >> 32) as u32)
            }
            _ => Hold::No,
        };
        Verdict::Keep {
            flip: spec.corrupt.hits(corrupt).then_some(bit),
            duplicate: spec.duplicate.hits(duplicate),
            hold,
        }
    }

    /// Sends a packet the way of its verdict; `make` copies it into a buffer.
    fn route(
        &mut self,
        now: Instant,
        verdict: Verdict,
        make: impl Fn(Option<u32>, Vec<u8>) -> Packet,
    ) {
        let Verdict::Keep { flip, duplicate, hold } = verdict else {
            self.stats.dropped += 1;
            return;
        };
        self.stats.corrupted += u64::from(flip.is_some());
        if duplicate {
            self.stats.duplicated += 1;
            let copy = make(flip, self.buffer());
            self.pass(copy);
        }
        let packet = make(flip, self.buffer());
        if hold != Hold::No && self.passing.len() + self.delayed.len() >= Self::HELD_MAX {
            self.stats.not_held += 1;
            self.pass(packet);
            return;
        }
        match hold {
            Hold::No => self.pass(packet),
            Hold::Packets(left) => {
                self.stats.reordered += 1;
                let deadline = now.plus_nanos(self.spec.reorder_wait_nanos);
                self.passing.push(Passing { packet, left, deadline });
            }
            Hold::Nanos(nanos) => {
                self.stats.delayed += 1;
                let (due, number) = (now.plus_nanos(nanos), self.delayed_count);
                self.delayed_count += 1;
                self.delayed.push(Reverse(Delayed { due, number, packet }));
            }
        }
    }

    /// Lets a packet leave, and after it those that waited for it to pass.
    fn pass(&mut self, packet: Packet) {
        self.ready.push_back(packet);
        for held in &mut self.passing {
            held.left = held.left.saturating_sub(1);
        }
        let passed = self.passing.extract_if(.., |held| held.left == 0);
        self.ready.extend(passed.map(|held| held.packet));
    }

    /// Lets the packets leave whose time has come.
    fn take_due(&mut self, now: Instant) {
        let expired = self.passing.extract_if(.., |held| held.deadline <= now);
        self.ready.extend(expired.map(|held| held.packet));
        while self.delayed.peek().is_some_and(|Reverse(held)| held.due <= now) {
            self.ready.extend(self.delayed.pop().map(|Reverse(held)| held.packet));
        }
    }

    /// Puts what is ready into the batch, as much as it has room for.
    fn fill(&mut self, batch: &mut TxBatch) {
        while let Some(Packet { transmit, bytes, flip }) = self.ready.pop_front() {
            if !batch.push_copy(&bytes, transmit, flip) {
                self.ready.push_front(Packet { transmit, bytes, flip });
                return;
            }
            if self.spare.len() < Self::HELD_MAX {
                self.spare.push(bytes);
            }
        }
    }

    fn buffer(&mut self) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }
}

#[cfg(test)]
mod tests {
    use gid_table::Gid;
    use proptest::prelude::*;
    use rxe_core::path::Path;
    use rxe_wire::Qpn;

    use super::*;

    const MILLI: u64 = 1_000_000;

    fn transmit(len: usize) -> Transmit {
        Transmit { len, path: Path::new(Gid::ZERO, Gid::ZERO), dest_qpn: Qpn::new(0x11) }
    }

    fn fill(batch: &mut TxBatch, numbers: impl IntoIterator<Item = u32>) {
        for number in numbers {
            assert!(batch.push_copy(&number.to_be_bytes(), transmit(4), None));
        }
    }

    fn drain(batch: &mut TxBatch) -> Vec<u32> {
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("4 bytes"));
        let numbers = batch.iter().map(|(_, bytes)| number(bytes)).collect();
        batch.clear();
        numbers
    }

    /// Sends the numbers below `count`, ten a batch and a batch a millisecond; all that comes out.
    fn run(faults: &mut Faults, count: u32) -> Vec<u32> {
        let mut batch = TxBatch::new();
        let mut out = Vec::new();
        let mut now = Instant::ZERO;
        for first in (0..count).step_by(10) {
            fill(&mut batch, first..count.min(first + 10));
            faults.apply(now, &mut batch);
            out.extend(drain(&mut batch));
            now = now.plus_nanos(MILLI);
        }
        while let Some(due) = faults.poll_timeout() {
            now = now.max(due);
            assert!(faults.release(now, &mut batch), "a timeout releases something");
            out.extend(drain(&mut batch));
        }
        out
    }

    fn faults(text: &str) -> Faults {
        Faults::new(text.parse().expect("a right text"), 0)
    }

    #[test]
    fn without_faults_the_batch_is_untouched_in_memory() {
        let mut batch = TxBatch::new();
        fill(&mut batch, 0..3);
        let before = batch.sealed_run(0, 3).map(<[u8]>::as_ptr);
        let mut faults = faults("seed=1");
        faults.apply(Instant::ZERO, &mut batch);
        assert_eq!(batch.sealed_run(0, 3).map(<[u8]>::as_ptr), before);
        assert_eq!(faults.stats(), FaultStats { packets: 3, ..FaultStats::default() });
        assert_eq!(faults.poll_timeout(), None);
    }

    #[test]
    fn drops_lose_about_their_share() {
        let mut faults = faults("seed=1,drop=10%");
        let out = run(&mut faults, 10_000);
        let dropped = faults.stats().dropped;
        assert!((900..1100).contains(&dropped), "{dropped}");
        assert_eq!(out.len() as u64 + dropped, 10_000);
        assert!(out.is_sorted());
    }

    #[test]
    fn a_seed_and_a_stream_decide_everything() {
        let spec = "drop=5%,dup=5%,reorder=5%,corrupt=5%,delay=1us..3ms,delay-prob=10%";
        let run_of = |seed: u64, stream| {
            let spec = FaultSpec { seed, ..spec.parse().expect("a right text") };
            run(&mut Faults::new(spec, stream), 2000)
        };
        assert_eq!(run_of(1, 0), run_of(1, 0));
        assert_ne!(run_of(1, 0), run_of(2, 0));
        assert_ne!(run_of(1, 0), run_of(1, 1));
    }

    #[test]
    fn one_probability_does_not_move_the_faults_of_another() {
        let lost = |text: &str| {
            let out = run(&mut faults(text), 1000);
            (0..1000).filter(|number| !out.contains(number)).collect::<Vec<_>>()
        };
        assert_eq!(lost("seed=3,drop=5%"), lost("seed=3,drop=5%,dup=20%,reorder=20%"));
    }

    #[test]
    fn a_moved_packet_leaves_after_so_many_others() {
        let mut batch = TxBatch::new();
        let mut faults = faults("reorder=100%,until=1packets,reorder-by=1");
        fill(&mut batch, 0..4);
        faults.apply(Instant::ZERO, &mut batch);
        assert_eq!(drain(&mut batch), [1, 0, 2, 3]);
        assert_eq!((faults.stats().reordered, faults.poll_timeout()), (1, None));
    }

    #[test]
    fn a_moved_packet_that_nothing_passes_leaves_in_time() {
        let mut batch = TxBatch::new();
        let mut faults = faults("reorder=100%,until=1packets,reorder-wait=2ms");
        fill(&mut batch, [7]);
        let now = Instant::from_nanos(MILLI);
        faults.apply(now, &mut batch);
        assert!(batch.is_empty());
        assert_eq!(faults.poll_timeout(), Some(now.plus_nanos(2 * MILLI)));
        assert!(!faults.release(now.plus_nanos(2 * MILLI - 1), &mut batch), "too early");
        assert!(faults.release(now.plus_nanos(2 * MILLI), &mut batch));
        assert_eq!(drain(&mut batch), [7]);
    }

    #[test]
    fn a_moved_packet_is_passed_across_batches() {
        let mut batch = TxBatch::new();
        let mut faults = faults("reorder=100%,until=1packets,reorder-by=1");
        fill(&mut batch, [0]);
        faults.apply(Instant::ZERO, &mut batch);
        fill(&mut batch, [1, 2]);
        faults.apply(Instant::ZERO, &mut batch);
        assert_eq!(drain(&mut batch), [1, 0, 2]);
    }

    #[test]
    fn a_delay_holds_until_its_time() {
        let mut batch = TxBatch::new();
        let mut faults = faults("delay=1ms..1ms,dup=100%,until=1packets");
        fill(&mut batch, [1, 2]);
        faults.apply(Instant::ZERO, &mut batch);
        assert_eq!(drain(&mut batch), [1, 2], "the copy leaves at once");
        fill(&mut batch, [3]);
        faults.apply(Instant::from_nanos(MILLI), &mut batch);
        assert_eq!(drain(&mut batch), [1, 3], "what is due leaves before what is new");
    }

    #[test]
    fn corruption_is_marked_and_the_bytes_stay() {
        let mut batch = TxBatch::new();
        let mut faults = faults("corrupt=100%,until=1packets");
        fill(&mut batch, [1, 2]);
        faults.apply(Instant::ZERO, &mut batch);
        let flip = |index| batch.packet(index).expect("a packet").flip();
        assert!(flip(0).is_some() && flip(1).is_none());
        assert_eq!(drain(&mut batch), [1, 2]);
        assert_eq!(faults.stats().corrupted, 1);
    }

    #[test]
    fn a_full_batch_loses_nothing() {
        let mut faults = faults("dup=100%");
        let mut batch = TxBatch::new();
        let count = TxBatch::MAX_PACKETS as u32;
        fill(&mut batch, 0..count);
        faults.apply(Instant::ZERO, &mut batch);
        let mut out = drain(&mut batch);
        assert!(faults.poll_timeout().is_some());
        while faults.release(Instant::ZERO, &mut batch) {
            out.extend(drain(&mut batch));
        }
        assert_eq!(out, (0..count).flat_map(|n| [n, n]).collect::<Vec<_>>());
    }

    #[test]
    fn faults_stop_after_a_time() {
        let mut faults = faults("drop=100%,until=5ms");
        // Ten packets a millisecond: the first five batches fall into the time of faults.
        assert_eq!(run(&mut faults, 100), (50..100).collect::<Vec<_>>());
        assert!(faults.is_over(Instant::from_nanos(5 * MILLI)));
    }

    #[test]
    fn no_more_is_held_than_the_limit() {
        let mut faults = faults("delay=1s");
        let mut batch = TxBatch::new();
        let mut out = 0;
        for _ in 0..5 {
            fill(&mut batch, 0..1024);
            faults.apply(Instant::ZERO, &mut batch);
            out += drain(&mut batch).len();
        }
        assert_eq!((out, faults.stats().not_held), (1024, 1024));
    }

    proptest! {
        /// Whatever the faults, every packet comes out as often as the statistics say.
        #[test]
        fn packets_are_conserved(
            seed: u64,
            [drop, dup, reorder, delay] in [0..100_u32, 0..100_u32, 0..100_u32, 0..100_u32],
            count in 0..300_u32,
        ) {
            let spec = FaultSpec {
                seed,
                drop: Probability::from_percent(drop),
                duplicate: Probability::from_percent(dup),
                reorder: Probability::from_percent(reorder),
                delay_nanos: Some(0..=5 * MILLI),
                delay: Probability::from_percent(delay),
                ..FaultSpec::default()
            };
            let mut faults = Faults::new(spec, 0);
            let mut out = run(&mut faults, count);
            let stats = faults.stats();
            prop_assert_eq!(stats.packets, u64::from(count));
            let expected = stats.packets - stats.dropped + stats.duplicated;
            prop_assert_eq!(out.len() as u64, expected);
            out.sort_unstable();
            out.dedup();
            prop_assert_eq!(out.len() as u64, stats.packets - stats.dropped);
        }
    }
}
