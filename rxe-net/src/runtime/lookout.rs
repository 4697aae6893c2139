//! When the background thread looks after what a program has left waiting.

use std::sync::atomic::{AtomicU64, Ordering};

use rxe_core::time::Instant;

/// How much later than it has waited too long, the first time.
const FIRST_NANOS: u64 = 50_000;
/// Who has always been in time is looked after at the end of each lease only, which is a millisecond
/// long.
const LONGEST_NANOS: u64 = 500_000;
/// Who was late once is looked after in time for so long: peers ask again for an acknowledgement
/// that does not come, and may do so for each.
const MEMORY_NANOS: u64 = 100_000_000;

/// How soon the background thread looks whether something has waited too long, while a program
/// polls that sends it in time.
///
/// Each look takes a processor for 10 to 20 µs, from a program that polls there: that is four round
/// trips. So the more looks are in vain, the fewer there are.
#[derive(Debug, Default)]
pub(super) struct Lookout {
    /// How much later; 0 as long as no look was in vain.
    nanos: AtomicU64,
    /// When something was late last, in nanoseconds; 0 for never.
    late: AtomicU64,
}

impl Lookout {
    /// When to look after what has waited too long at `late`; `None` if the end of the lease is
    /// early enough.
    pub(super) fn at(&self, late: Option<Instant>) -> Option<Instant> {
        let nanos = self.nanos.load(Ordering::Relaxed);
        late.filter(|_| nanos < LONGEST_NANOS).map(|late| late.plus_nanos(nanos))
    }

    /// Notes that a look was in vain. Only the background thread does so.
    pub(super) fn note_in_time(&self, now: Instant) {
        let late = self.late.load(Ordering::Relaxed);
        if late > 0 && now.nanos_since(Instant::from_nanos(late)) < MEMORY_NANOS {
            return;
        }
        let longer = 2 * self.nanos.load(Ordering::Relaxed);
        self.nanos.store(longer.clamp(FIRST_NANOS, LONGEST_NANOS), Ordering::Relaxed);
    }

    /// Notes that something had waited too long.
    pub(super) fn note_late(&self, now: Instant) {
        self.late.store(now.as_nanos(), Ordering::Relaxed);
        self.nanos.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(1_000_000 * millis)
    }

    #[test]
    fn there_are_ever_fewer_looks_until_one_is_of_use() {
        let (lookout, late) = (Lookout::default(), Instant::from_nanos(7));
        assert_eq!(lookout.at(Some(late)), Some(late));
        for nanos in [50_000, 100_000, 200_000, 400_000] {
            lookout.note_in_time(at(0));
            assert_eq!(lookout.at(Some(late)), Some(late.plus_nanos(nanos)));
        }
        (0..3).for_each(|_| lookout.note_in_time(at(0)));
        assert_eq!(lookout.at(Some(late)), None);
        lookout.note_late(at(1));
        assert_eq!((lookout.at(Some(late)), lookout.at(None)), (Some(late), None));
        (0..9).for_each(|_| lookout.note_in_time(at(100)));
        assert_eq!(lookout.at(Some(late)), Some(late), "it may be late again");
        lookout.note_in_time(at(101));
        assert_eq!(lookout.at(Some(late)), Some(late.plus_nanos(FIRST_NANOS)));
    }
}
