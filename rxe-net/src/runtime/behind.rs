//! Acknowledgements that answers leave behind.

use rxe_core::time::Instant;

/// How long the next message may take to come: longer than there and back on one host takes.
pub(super) const NEXT_NANOS: u64 = 25_000;
/// How long answers leave an acknowledgement behind at most. Peers send again what is not acknowledged
/// after 200 µs at the earliest, and a program that stops polling lets it wait for 0.1 ms more.
const OLDEST_NANOS: u64 = 75_000;
/// Messages that leave without those that are owed, at most.
const MOST: u32 = 16;
/// How long none is left behind after one was in vain, for the first time, and at most.
const FIRST_PAUSE_NANOS: u64 = 500_000;
const LONGEST_PAUSE_NANOS: u64 = 1_000_000_000;
/// So many times in a row show that what made a pause was an accident: a try in vain takes as long as
/// a hundred of use save, and programs that ask for one completion in a hundred messages are many.
const ENOUGH: u32 = 512;

/// Whether the peer gets an answer without the acknowledgement of what it answers.
///
/// Where two programs send small messages to and fro, and each waits for the other's message alone,
/// acknowledgements tell nothing that anybody waits for: one for some messages will do. Answer and
/// acknowledgement in one send take half a microsecond more than the answer alone.
///
/// Whether the peer's program does wait for the acknowledgement, as one that asks for the completion
/// of each message before it goes on, only a try can tell: then its next message does not come, and
/// the try was in vain. So after each such try all is sent together for a while, and for four times
/// as long each time, until many in a row were of use.
#[derive(Debug, Default)]
pub(super) struct Behind {
    /// Since when the oldest one is owed; `None` where none was left behind.
    oldest: Option<Instant>,
    messages: u32,
    /// Tries of use since the last one in vain.
    of_use: u32,
    /// None is left behind before this.
    from: Instant,
    pause_nanos: u64,
}

impl Behind {
    /// Whether the answer to a message that came at `owed_since` may leave alone.
    pub(super) fn may_leave(&self, now: Instant, owed_since: Instant) -> bool {
        let oldest = self.oldest.unwrap_or(owed_since);
        now >= self.from && self.messages < MOST && now.nanos_since(oldest) < OLDEST_NANOS
    }

    /// Notes that such an answer has left alone.
    pub(super) fn note_left(&mut self, owed_since: Instant) {
        self.oldest.get_or_insert(owed_since);
        self.messages += 1;
    }

    /// Whether some are owed that an answer has left behind.
    pub(super) const fn is_any(&self) -> bool {
        self.oldest.is_some()
    }

    /// Notes that something has come although they are still owed: nobody waits for them.
    pub(super) fn note_of_use(&mut self) {
        if self.is_any() {
            self.of_use += 1;
            if self.of_use >= ENOUGH {
                self.pause_nanos = 0;
            }
        }
    }

    /// Notes that nothing has come while they were owed.
    pub(super) fn note_vain(&mut self, now: Instant) {
        let longer = self.pause_nanos.saturating_mul(4);
        self.pause_nanos = longer.clamp(FIRST_PAUSE_NANOS, LONGEST_PAUSE_NANOS);
        self.from = now.plus_nanos(self.pause_nanos);
        self.of_use = 0;
    }

    /// Notes that all that is owed has left.
    pub(super) const fn note_sent(&mut self) {
        (self.oldest, self.messages) = (None, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn some_messages_leave_alone_and_for_a_while_only() {
        let mut behind = Behind::default();
        assert!(!behind.is_any());
        let alone = |behind: &mut Behind, now| {
            let may_leave = behind.may_leave(at(now), at(now));
            if may_leave {
                behind.note_left(at(now));
            }
            may_leave
        };
        let count = (0..100).take_while(|now| alone(&mut behind, *now)).count();
        assert_eq!((count, behind.is_any()), (MOST as usize, true));
        behind.note_sent();
        assert!(!behind.is_any() && alone(&mut behind, 1000));
        assert!(alone(&mut behind, 999 + OLDEST_NANOS) && !alone(&mut behind, 1000 + OLDEST_NANOS));
    }

    #[test]
    fn what_was_in_vain_is_not_tried_for_longer_each_time() {
        let mut behind = Behind::default();
        let (mut now, mut pauses) = (at(1), Vec::new());
        for _ in 0..7 {
            assert!(behind.may_leave(now, now));
            behind.note_left(now);
            // The peer may have more than one message under way, and wait for all of them.
            (0..ENOUGH - 1).for_each(|_| behind.note_of_use());
            behind.note_vain(now);
            behind.note_sent();
            pauses.push(behind.from.nanos_since(now));
            assert!(!behind.may_leave(now, now));
            now = behind.from;
        }
        assert_eq!(pauses[..3], [500_000, 2_000_000, 8_000_000]);
        assert_eq!(pauses[6], LONGEST_PAUSE_NANOS);
        behind.note_left(now);
        (0..ENOUGH).for_each(|_| behind.note_of_use());
        behind.note_vain(now);
        assert_eq!(behind.from.nanos_since(now), FIRST_PAUSE_NANOS);
    }
}
