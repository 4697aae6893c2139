//! What is missing of responses of which later ones have come.
//!
//! Responses come in the order of the requests. One that comes behind a gap says that the peer has
//! carried out all before it, and that what should have come before it is lost. So it is kept, and
//! only the gap is asked for again:
//!
//! ```text
//!   PSN   oldest missing                              reached
//!    -----------|xxx|...............|xxxxx|.............|------------
//!      complete  gap   received or    gap                not answered
//!                     acknowledged                       so far
//! ```
//!
//! The send queue owns this, and is alone in knowing which request a PSN belongs to.

use std::collections::VecDeque;

use rxe_wire::Psn;

use crate::window::Load;

/// More gaps than this are not kept. A request has one at first, and up to 255 may be under way;
/// those that split make more.
const MAX_GAPS: usize = 256;

/// Missing packets in a row, all of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Gap {
    first: Psn,
    /// One past the last PSN.
    end: Psn,
    /// The first PSN of the request: of an atomic, or of one part of a READ.
    request: Psn,
    /// Estimated cost of one packet in a receive buffer.
    packet_cost: u32,
    /// Where new requests went on when it was asked for again; `None` when that is still to be
    /// done.
    asked_at: Option<Psn>,
}

impl Gap {
    fn load(&self) -> Load {
        // Not negative, as no gap is empty.
        let packets = u32::try_from(self.end.distance_from(self.first)).unwrap_or(0);
        Load::of(packets, self.packet_cost)
    }
}

/// What is to be asked for again: all that is missing of one request, from the first gap in it to
/// the end of the last.
///
/// What has come in between comes again. But it is one request, and none for the same request ever
/// begins before an earlier one: Linux's responder drops those (R24, with the range that was asked
/// for last in place of the first).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Repair {
    pub(crate) first: Psn,
    /// One past the last PSN.
    pub(crate) end: Psn,
    /// It begins with the oldest packet that is missing.
    pub(crate) is_oldest: bool,
}

/// The gaps, oldest first. The first one begins with the oldest packet that is missing.
#[derive(Debug, Default)]
pub(crate) struct ReadGaps {
    gaps: VecDeque<Gap>,
}

impl ReadGaps {
    pub(crate) fn is_empty(&self) -> bool {
        self.gaps.is_empty()
    }

    /// The first PSN that is missing.
    pub(crate) fn first(&self) -> Option<Psn> {
        self.gaps.front().map(|gap| gap.first)
    }

    /// The gap that `psn` lies in, if any.
    fn find(&self, psn: Psn) -> Option<usize> {
        let index = self.gaps.partition_point(|gap| !gap.end.is_after(psn));
        self.gaps.get(index).filter(|gap| !gap.first.is_after(psn)).map(|_| index)
    }

    /// Whether `psn` is missing.
    pub(crate) fn contains(&self, psn: Psn) -> bool {
        self.find(psn).is_some()
    }

    /// Whether anything from `first` on, and before `psn`, is missing.
    pub(crate) fn is_any_between(&self, first: Psn, psn: Psn) -> bool {
        let index = self.gaps.partition_point(|gap| !gap.end.is_after(first));
        first.is_before(psn) && self.gaps.get(index).is_some_and(|gap| gap.first.is_before(psn))
    }

    /// Notes that the packets from `first` on, and before `end`, are missing of the request that
    /// begins with `request`; they lie behind all other gaps. False when there is no room for more.
    pub(crate) fn push(&mut self, request: Psn, packet_cost: u32, first: Psn, end: Psn) -> bool {
        if let Some(last) = self.gaps.back_mut()
            && (last.request, last.end, last.asked_at) == (request, first, None)
        {
            last.end = end;
            return true;
        }
        let has_room = self.gaps.len() < MAX_GAPS;
        if has_room {
            self.gaps.push_back(Gap { first, end, request, packet_cost, asked_at: None });
        }
        has_room
    }

    /// Notes that a missing packet has come; false when it was not missing, or when there is no
    /// room for one more gap.
    pub(crate) fn fill(&mut self, psn: Psn) -> bool {
        let Some(index) = self.find(psn) else { return false };
        let gap = self.gaps[index];
        let after = Gap { first: psn.plus(1), ..gap };
        match (gap.first == psn, after.first == gap.end) {
            (true, true) => {
                self.gaps.remove(index);
            }
            (true, false) => self.gaps[index] = after,
            (false, true) => self.gaps[index].end = psn,
            (false, false) if self.gaps.len() < MAX_GAPS => {
                self.gaps[index].end = psn;
                self.gaps.insert(index + 1, after);
            }
            (false, false) => return false,
        }
        true
    }

    /// Notes an answer to `psn`: what was asked for again before the request for that, and has not
    /// come, is lost once more. Whether there is such.
    pub(crate) fn overtaken_by(&mut self, psn: Psn) -> bool {
        let mut is_any = false;
        for gap in &mut self.gaps {
            if gap.asked_at.is_some_and(|asked_at| !asked_at.is_after(psn)) {
                gap.asked_at = None;
                is_any = true;
            }
        }
        is_any
    }

    /// Has all that is missing asked for again.
    pub(crate) fn forget_asked(&mut self) {
        self.gaps.iter_mut().for_each(|gap| gap.asked_at = None);
    }

    /// What is to be asked for again next.
    pub(crate) fn due(&self) -> Option<Repair> {
        let due = self.gaps.iter().find(|gap| gap.asked_at.is_none())?;
        self.repair_of(due.request)
    }

    /// All that is missing of the oldest request, whether it was asked for again or not.
    pub(crate) fn oldest(&self) -> Option<Repair> {
        self.repair_of(self.gaps.front()?.request)
    }

    fn repair_of(&self, request: Psn) -> Option<Repair> {
        let mut of_request = self.gaps.iter().filter(|gap| gap.request == request);
        let first = of_request.next()?;
        let end = of_request.next_back().unwrap_or(first).end;
        Some(Repair { first: first.first, end, is_oldest: Some(first) == self.gaps.front() })
    }

    /// Notes that it was asked for again, while new requests go on with `next`.
    pub(crate) fn note_asked(&mut self, repair: Repair, next: Psn) {
        for gap in &mut self.gaps {
            if !gap.first.is_before(repair.first) && !gap.end.is_after(repair.end) {
                gap.asked_at = Some(next);
            }
        }
    }

    /// What has been asked for again, and is under way.
    pub(crate) fn in_flight(&self) -> Load {
        let mut load = Load::default();
        for gap in self.gaps.iter().filter(|gap| gap.asked_at.is_some()) {
            load += gap.load();
        }
        load
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Near the wrap.
    fn psn(number: u32) -> Psn {
        Psn::new(0xff_fff0).plus(number)
    }

    fn repair(first: u32, end: u32, is_oldest: bool) -> Option<Repair> {
        Some(Repair { first: psn(first), end: psn(end), is_oldest })
    }

    #[test]
    fn what_is_due_is_all_of_one_request_and_the_oldest_first() {
        let mut gaps = ReadGaps::default();
        assert_eq!((gaps.due(), gaps.first()), (None, None));
        assert!(gaps.push(psn(0), 10, psn(5), psn(8)));
        assert!(gaps.push(psn(16), 10, psn(20), psn(21)));
        assert_eq!(gaps.due(), repair(5, 8, true));
        gaps.note_asked(gaps.due().expect("it is"), psn(32));
        assert_eq!(gaps.due(), repair(20, 21, false));
        assert_eq!(gaps.in_flight(), Load::of(3, 10));
        assert!(gaps.push(psn(16), 10, psn(24), psn(26)));
        assert_eq!(gaps.due(), repair(20, 26, false));
        gaps.note_asked(gaps.due().expect("it is"), psn(40));
        assert_eq!((gaps.due(), gaps.in_flight()), (None, Load::of(6, 10)));
        assert!(!gaps.overtaken_by(psn(31)));
        assert!(gaps.overtaken_by(psn(32)));
        assert_eq!(gaps.due(), repair(5, 8, true));
        gaps.forget_asked();
        assert_eq!(gaps.in_flight(), Load::default());
    }

    #[test]
    fn gaps_in_a_row_are_one_until_one_is_asked_for() {
        let mut gaps = ReadGaps::default();
        assert!(gaps.push(psn(0), 10, psn(5), psn(8)));
        assert!(gaps.push(psn(0), 10, psn(8), psn(9)));
        assert_eq!(gaps.gaps.len(), 1);
        gaps.note_asked(gaps.due().expect("it is"), psn(32));
        assert!(gaps.push(psn(0), 10, psn(9), psn(10)));
        assert_eq!(gaps.due(), repair(5, 10, true));
    }

    #[test]
    fn the_number_of_gaps_is_limited() {
        let mut gaps = ReadGaps::default();
        for number in 0..MAX_GAPS as u32 {
            assert!(gaps.push(psn(0), 10, psn(4 * number), psn(4 * number + 3)));
        }
        let next = 4 * MAX_GAPS as u32;
        assert!(!gaps.push(psn(0), 10, psn(next), psn(next + 1)));
        assert!(!gaps.fill(psn(1)), "a gap would become two");
        assert!(gaps.contains(psn(1)));
        assert!(gaps.fill(psn(0)) && gaps.fill(psn(2)) && gaps.fill(psn(1)));
        assert!(gaps.push(psn(0), 10, psn(next), psn(next + 1)));
    }

    /// Packets of each request in the model.
    const PART: u32 = 8;
    const PACKETS: u32 = 64;

    /// One gap after the other, of `(skipped, missing)` packets, each cut where a request ends.
    fn filled_with(runs: &[(u32, u32)]) -> (ReadGaps, Vec<bool>) {
        let (mut gaps, mut missing) = (ReadGaps::default(), vec![false; PACKETS as usize]);
        let mut at = 0;
        for &(skipped, count) in runs {
            let first = (at + skipped).min(PACKETS);
            let end = (first + count).min(PACKETS).min(first / PART * PART + PART);
            if first < end {
                assert!(gaps.push(psn(first / PART * PART), 10, psn(first), psn(end)));
                missing[first as usize..end as usize].fill(true);
            }
            at = end;
        }
        (gaps, missing)
    }

    proptest! {
        /// A bitmap says what is missing.
        #[test]
        fn what_is_missing_is_what_has_not_come(
            runs in vec((0..4u32, 1..7u32), 1..12),
            coming in vec(0..PACKETS, 0..80),
        ) {
            let (mut gaps, mut missing) = filled_with(&runs);
            for number in coming {
                let was_missing = std::mem::take(&mut missing[number as usize]);
                prop_assert_eq!(gaps.fill(psn(number)), was_missing);
                let left: Vec<u32> =
                    (0..PACKETS).filter(|&number| missing[number as usize]).collect();
                for number in 0..PACKETS {
                    prop_assert_eq!(gaps.contains(psn(number)), missing[number as usize]);
                    let is_any = left.iter().any(|left| (10..number).contains(left));
                    prop_assert_eq!(gaps.is_any_between(psn(10), psn(number)), is_any);
                }
                prop_assert_eq!(gaps.first(), left.first().map(|&number| psn(number)));
                prop_assert_eq!(gaps.is_empty(), left.is_empty());
            }
        }

        /// All that is missing is asked for, in requests of which none crosses an end, and none for
        /// the same begins before an earlier one (R24), whatever comes and is lost meanwhile.
        #[test]
        fn everything_is_asked_for_and_never_from_an_earlier_place(
            runs in vec((0..4u32, 1..7u32), 1..12),
            coming in vec((0..PACKETS, any::<bool>()), 0..80),
        ) {
            let (mut gaps, missing) = filled_with(&runs);
            let total = missing.iter().filter(|&&missing| missing).count() as u32;
            let mut begun = [0; (PACKETS / PART) as usize];
            for (number, is_lost) in coming {
                if is_lost {
                    gaps.forget_asked();
                }
                while let Some(due) = gaps.due() {
                    let first = due.first.distance_from(psn(0)) as u32;
                    let end = due.end.distance_from(psn(0)) as u32;
                    prop_assert!(first < end && first / PART == (end - 1) / PART);
                    let begun = &mut begun[(first / PART) as usize];
                    prop_assert!(first >= *begun, "{} after {}", first, begun);
                    *begun = first;
                    prop_assert_eq!(due.is_oldest, gaps.first() == Some(due.first));
                    gaps.note_asked(due, psn(PACKETS));
                }
                let left = (0..PACKETS).filter(|&number| gaps.contains(psn(number))).count();
                prop_assert_eq!(gaps.in_flight(), Load::of(left as u32, 10));
                prop_assert!(left as u32 <= total);
                gaps.fill(psn(number));
            }
        }
    }
}
