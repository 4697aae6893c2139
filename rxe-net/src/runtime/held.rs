//! What waits a little, so that it leaves with what comes next: small posts, and acknowledgements.

use rxe_core::shard::Posted;
use rxe_core::time::Instant;

use super::behind::{Behind, NEXT_NANOS};

/// How long something waits at most: whatever the program posts or polls after that sends all.
const GATHER_NANOS: u64 = 10_000;
/// When the background thread sends what waits, of a program that does neither.
///
/// A timer that is set and a thread that wakes cost a few microseconds of both processors' time.
const LATEST_NANOS: u64 = 100_000;
/// How long acknowledgements wait, and when the background thread sends them, for a program that
/// sleeps on events: it is told of the message by one descriptor more, and takes the event before it
/// polls; and an acknowledgement that leaves before the answer wakes the peer once more.
const GATHER_FOR_EVENT_NANOS: u64 = 50_000;
pub(super) const LATEST_FOR_EVENT_NANOS: u64 = 1_000_000;
/// How long nothing waits after that thread had to help, for the first time.
const FIRST_PAUSE_NANOS: u64 = 500_000;
/// And at most.
const LONGEST_PAUSE_NANOS: u64 = 1_000_000_000;
/// A send is full with so many packets, or bytes: more would not make it cheaper.
const FULL_PACKETS: u32 = 64;
const FULL_BYTES: u64 = 60_000;
/// Whoever awaits so many answers streams, and does not wait for this one.
const MANY: u32 = 16;
/// Packets that came at once and whose acknowledgement may wait: of an exchange of small messages.
const FEW: usize = 2;

/// What of a shard could be sent and waits.
///
/// A send costs the host as much as 150 packets in it do. So what a program posts while answers to
/// earlier requests of the queue pair are awaited waits for what it posts next, until the send is
/// full, it polls and finds nothing, some microseconds have gone by, or a timer fires. What it
/// posts first since it polled leaves at once, unless many answers are awaited: so the question of
/// somebody who waits for an answer does not wait, nor does that answer.
///
/// An acknowledgement of small messages waits for the answer that the program may post to what it
/// has just polled: the two leave in one send, and the program sees its completion before. The same
/// where the background thread took them in, if the program polls at other times: it may watch its
/// memory for them. Then the peer, if it polls for the completion of its own message first, finds
/// this and the answer at once, and need not be woken for the answer.
///
/// While nobody waits for acknowledgements, answers leave them behind ([`Behind`]): then they wait for
/// the next message, and its answer.
///
/// This needs a program that polls. One that posts twice and then watches memory, without a poll,
/// would wait for the timer: where that has happened, nothing waits for a while, and for four
/// times as long each time until sends are full again, or an answer comes that was waited for.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Since when something waits; `None` when nothing does.
    since: Option<Instant>,
    packets: u32,
    bytes: u64,
    /// What waits are acknowledgements, for the program to answer.
    awaits_answer: bool,
    /// They are of a message that an event tells of.
    awaits_sleeper: bool,
    /// Acknowledgements that waited, and go on waiting since an answer has left without them.
    behind: Behind,
    /// Something has left since the program polled last.
    has_sent: bool,
    /// Nothing waits before this.
    from: Instant,
    pause_nanos: u64,
}

impl Held {
    /// Whether what was just posted waits; `is_polled` says that the program polls these days.
    pub(super) fn holds_post(&mut self, now: Instant, posted: Posted, is_polled: bool) -> bool {
        if std::mem::take(&mut self.awaits_answer) {
            // It was worth it: what made a pause was an accident.
            self.pause_nanos = 0;
        }
        let streams = posted.awaited >= MANY || posted.awaited > 0 && self.has_sent;
        let may_wait = streams && is_polled && now >= self.from;
        self.packets += posted.packets;
        self.bytes += posted.bytes;
        if self.packets >= FULL_PACKETS || self.bytes >= FULL_BYTES {
            // This program fills sends: what made a pause was an accident.
            self.pause_nanos = 0;
            return false;
        }
        let since = *self.since.get_or_insert(now);
        may_wait && now.nanos_since(since) < GATHER_NANOS
    }

    /// Since when acknowledgements are owed that what was just posted answers, if it may leave
    /// without them; `is_polled` says that the program polls these days.
    pub(super) fn leaves_acks(
        &self,
        now: Instant,
        posted: Posted,
        is_polled: bool,
    ) -> Option<Instant> {
        let is_answer = self.awaits_answer && !self.awaits_sleeper && posted.packets == 1;
        let owed_since = self.since.filter(|_| is_answer && is_polled)?;
        self.behind.may_leave(now, owed_since).then_some(owed_since)
    }

    /// Notes that an answer has left without the acknowledgements that are owed since then.
    pub(super) fn note_left(&mut self, now: Instant, owed_since: Instant) {
        self.note_gone();
        self.since = Some(now);
        self.behind.note_left(owed_since);
    }

    /// Whether acknowledgements that an answer has left behind go on waiting, after a poll in which
    /// nothing came.
    pub(super) fn keeps_acks(&mut self, now: Instant) -> bool {
        let Some(since) = self.since.filter(|_| self.behind.is_any()) else { return false };
        let is_over = now.nanos_since(since) >= NEXT_NANOS;
        if is_over {
            self.behind.note_vain(now);
        }
        !is_over
    }

    /// Whether the acknowledgements that are all that is to be sent wait, after a poll in which
    /// `received` packets came and that found a completion.
    pub(super) fn holds_acks(&mut self, now: Instant, received: usize) -> bool {
        // Of messages that get no answer, the second one sends what is owed.
        let is_free = self.since.is_none() || self.behind.is_any() && !self.awaits_answer;
        let holds = is_free && (1..=FEW).contains(&received) && now >= self.from;
        if holds {
            self.behind.note_of_use();
            (self.since, self.awaits_answer) = (Some(now), true);
        }
        holds
    }

    /// As [`Self::holds_acks`], where an event tells of what was received.
    pub(super) fn holds_acks_for_event(&mut self, now: Instant, received: usize) -> bool {
        self.awaits_sleeper = self.holds_acks(now, received);
        self.awaits_sleeper
    }

    /// Whether what waits goes on waiting, although nobody has posted or polled: in the background
    /// thread, for a program that watches its memory. Where it has waited long enough, it was in
    /// vain.
    pub(super) fn goes_on_holding(&mut self, now: Instant) -> bool {
        let Some(since) = self.since else { return false };
        let is_over = now.nanos_since(since) >= GATHER_NANOS;
        if is_over {
            self.note_late(now);
        }
        !is_over
    }

    /// Notes that all that waited was handed on.
    pub(super) fn note_sent(&mut self) {
        self.note_gone();
        self.behind.note_sent();
    }

    fn note_gone(&mut self) {
        (self.since, self.packets, self.bytes) = (None, 0, 0);
        (self.awaits_answer, self.awaits_sleeper, self.has_sent) = (false, false, true);
    }

    /// Notes that the program has polled, and that nothing came of its own.
    pub(super) fn note_polled(&mut self) {
        self.has_sent = false;
    }

    /// Whether acknowledgements wait for the program to answer.
    pub(super) fn awaits_answer(&self) -> bool {
        self.awaits_answer
    }

    /// When what waits has waited long enough, for a program that posts or polls; `None` when
    /// nothing waits.
    pub(super) fn end(&self) -> Option<Instant> {
        let nanos = match () {
            () if self.awaits_sleeper => GATHER_FOR_EVENT_NANOS,
            () if self.behind.is_any() => NEXT_NANOS,
            () => GATHER_NANOS,
        };
        self.since.map(|since| since.plus_nanos(nanos))
    }

    /// When it has waited too long, so that the background thread sends it; `None` when nothing
    /// waits.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let nanos = if self.awaits_sleeper { LATEST_FOR_EVENT_NANOS } else { LATEST_NANOS };
        self.since.map(|since| since.plus_nanos(nanos))
    }

    /// Whether something has waited too long.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.deadline().is_some_and(|at| at <= now)
    }

    /// Notes that the background thread found that something had waited too long.
    pub(super) fn note_late(&mut self, now: Instant) {
        if self.behind.is_any() {
            // What an answer left behind, nobody has waited for here.
            return self.behind.note_vain(now);
        }
        let longer = self.pause_nanos.saturating_mul(4);
        self.pause_nanos = longer.clamp(FIRST_PAUSE_NANOS, LONGEST_PAUSE_NANOS);
        self.from = now.plus_nanos(self.pause_nanos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    const fn small(awaited: u32) -> Posted {
        Posted { packets: 1, bytes: 8, awaited }
    }

    /// One that has sent since it polled, at time 0.
    fn busy() -> Held {
        let mut held = Held::default();
        held.note_sent();
        held
    }

    #[test]
    fn the_first_one_after_a_poll_leaves_at_once() {
        let mut held = Held::default();
        assert!(!held.holds_post(at(0), small(1), true));
        held.note_sent();
        assert!(held.holds_post(at(1), small(1), true));
        assert_eq!(held.end(), Some(at(1 + GATHER_NANOS)));
        assert_eq!(held.deadline(), Some(at(1 + LATEST_NANOS)));
        held.note_sent();
        held.note_polled();
        assert!(!held.holds_post(at(2), small(MANY - 1), true));
        assert!(held.holds_post(at(2), small(MANY), true), "it streams");
    }

    #[test]
    fn only_who_waits_anyway_and_polls_is_held_up() {
        assert!(!busy().holds_post(at(1), small(0), true));
        assert!(!busy().holds_post(at(1), small(1), false));
    }

    #[test]
    fn a_full_send_and_a_long_time_end_it() {
        let mut held = busy();
        let held = (0..200).take_while(|_| held.holds_post(at(1), small(1), true)).count();
        assert_eq!(held, FULL_PACKETS as usize - 1);
        let mut held = busy();
        assert!(!held.holds_post(
            at(1),
            Posted { packets: 1, bytes: FULL_BYTES, awaited: 1 },
            true
        ));
        let mut held = busy();
        assert!(held.holds_post(at(1), small(1), true));
        assert!(held.holds_post(at(GATHER_NANOS), small(1), true));
        assert!(!held.holds_post(at(1 + GATHER_NANOS), small(1), true));
    }

    #[test]
    fn acknowledgements_of_a_few_packets_wait_once() {
        let mut held = Held::default();
        assert!(!held.holds_acks(at(1), 0));
        assert!(!held.holds_acks(at(1), FEW + 1));
        assert!(held.holds_acks(at(1), FEW));
        assert!(!held.holds_acks(at(2), 1), "what waits leaves with the next poll");
        held.note_sent();
        held.note_late(at(2));
        assert!(!held.holds_acks(at(3), 1));
    }

    #[test]
    fn those_of_an_event_wait_longer_for_this_once() {
        let mut held = Held::default();
        assert!(held.holds_acks_for_event(at(1), 1));
        assert_eq!(held.end(), Some(at(1 + GATHER_FOR_EVENT_NANOS)));
        assert_eq!(held.deadline(), Some(at(1 + LATEST_FOR_EVENT_NANOS)));
        assert!(!held.holds_acks_for_event(at(2), 1), "the next message sends them");
        held.note_sent();
        assert!(held.holds_acks(at(3), 1));
        assert_eq!(held.deadline(), Some(at(3 + LATEST_NANOS)));
    }

    #[test]
    fn an_answer_leaves_its_acknowledgement_behind_until_that_is_in_vain() {
        let mut held = Held::default();
        assert_eq!(held.leaves_acks(at(1), small(0), true), None, "nothing is owed");
        assert!(held.holds_acks(at(1), 1));
        assert_eq!(held.leaves_acks(at(2), small(0), false), None, "it does not poll");
        let two = Posted { packets: 2, ..small(0) };
        assert_eq!(held.leaves_acks(at(2), two, true), None, "more than an answer");
        assert_eq!(held.leaves_acks(at(2), small(0), true), Some(at(1)));
        held.note_left(at(3), at(1));
        assert!(held.keeps_acks(at(2 + NEXT_NANOS)));
        assert_eq!(held.end(), Some(at(3 + NEXT_NANOS)));
        // The next message, and its answer.
        assert!(held.holds_acks(at(10), 1) && held.awaits_answer());
        assert_eq!(held.leaves_acks(at(11), small(0), true), Some(at(10)));
        held.note_left(at(12), at(10));
        assert!(!held.keeps_acks(at(12 + NEXT_NANOS)));
        held.note_sent();
        assert!(held.holds_acks(at(50_000), 1), "it waits for the answer as before");
        assert_eq!(held.leaves_acks(at(50_001), small(0), true), None, "and leaves with it");
        held.note_sent();
        assert!(held.holds_acks_for_event(at(1_000_000), 1));
        assert_eq!(held.leaves_acks(at(1_000_001), small(0), true), None, "it sleeps");
    }

    #[test]
    fn what_was_left_behind_too_long_makes_no_pause_of_all_else() {
        let mut held = Held::default();
        assert!(held.holds_acks(at(1), 1));
        held.note_left(at(2), at(1));
        held.note_late(at(100_000));
        held.note_sent();
        assert!(held.holds_acks(at(100_001), 1));
        assert_eq!(held.leaves_acks(at(100_002), small(0), true), None);
    }

    #[test]
    fn messages_that_get_no_answer_do_not_wait_for_what_was_left_behind() {
        let mut held = Held::default();
        assert!(held.holds_acks(at(1), 1));
        held.note_left(at(2), at(1));
        // The peer goes on alone, with a message every 5 us.
        let mut messages = (1..1000).map(|message| at(2 + 5_000 * message));
        let waiting = messages.by_ref().take_while(|now| held.holds_acks(*now, 1)).count();
        assert_eq!(waiting, 1, "the next message sends them");
    }

    #[test]
    fn who_watches_memory_has_some_microseconds_to_answer() {
        let mut held = Held::default();
        assert!(!held.goes_on_holding(at(1)), "nothing waits");
        assert!(held.holds_acks(at(1), 1));
        assert!(held.goes_on_holding(at(GATHER_NANOS)));
        assert!(!held.goes_on_holding(at(1 + GATHER_NANOS)));
        held.note_sent();
        assert!(!held.holds_acks(at(2 + GATHER_NANOS), 1), "it does not answer");
    }

    #[test]
    fn an_answer_that_was_waited_for_ends_the_pauses() {
        let mut held = busy();
        (0..3).for_each(|_| held.note_late(at(0)));
        let later = held.from;
        // A post without anything that waited for it is no answer.
        held.holds_post(later, small(0), true);
        held.note_sent();
        assert_eq!(held.pause_nanos, 16 * FIRST_PAUSE_NANOS);
        assert!(held.holds_acks(later, 1) && held.awaits_answer());
        held.holds_post(later, small(0), true);
        held.note_sent();
        held.note_late(later);
        assert_eq!((held.pause_nanos, held.awaits_answer()), (FIRST_PAUSE_NANOS, false));
    }

    #[test]
    fn who_has_to_be_helped_is_left_alone_for_longer_each_time() {
        let mut held = busy();
        let mut now = at(0);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            held.note_late(now);
            assert!(!held.holds_post(now, small(1), true));
            held.note_sent();
            pauses.push(held.from.nanos_since(now));
            now = held.from;
            assert!(held.holds_post(now, small(1), true));
            held.note_sent();
        }
        assert_eq!(pauses[..3], [500_000, 2_000_000, 8_000_000]);
        assert_eq!(pauses[7], LONGEST_PAUSE_NANOS);
        // Full sends show that it was an accident.
        held.holds_post(now, Posted { packets: 64, bytes: 0, awaited: 1 }, true);
        held.note_late(now);
        assert_eq!(held.from.nanos_since(now), FIRST_PAUSE_NANOS);
    }

    /// What it saves and what it costs, in nanoseconds, where the peer waits for the acknowledgement
    /// of one message in `period`, and messages go to and fro in 4.5 us.
    fn saved_and_lost(period: u64) -> (u64, u64) {
        const SAVED: u64 = 260;
        let (mut held, mut now, mut saved, mut lost) = (Held::default(), 1, 0, 0);
        for message in 1..=100_000 {
            assert!(held.holds_acks(at(now), 1));
            let owed_since = held.leaves_acks(at(now), small(0), true);
            now += 4_460;
            match owed_since {
                Some(since) => {
                    held.note_left(at(now), since);
                    saved += SAVED;
                }
                None => {
                    now += SAVED;
                    held.note_sent();
                }
            }
            if owed_since.is_some() && message % period == 0 {
                let from = now;
                while held.keeps_acks(at(now)) {
                    now += 100;
                }
                held.note_sent();
                lost += now - from;
            }
        }
        (saved, lost)
    }

    #[test]
    fn a_peer_that_waits_now_and_then_loses_no_more_than_is_saved() {
        // What the first tries cost, until they are as seldom as can be.
        const TRIES: u64 = 10 * (NEXT_NANOS + 100);
        for period in [1, 8, 20, 65, 80, 100, 128, 256, 500, 1000, 5000] {
            let (saved, lost) = saved_and_lost(period);
            assert!(lost <= saved + TRIES, "period {period}: saved {saved} ns, lost {lost} ns");
        }
    }
}
