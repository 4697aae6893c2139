//! Timers of a queue pair, and the index that finds the next one of all.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::Instant;

/// The timers that a queue pair has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Timer {
    /// The peer has not acknowledged for the local ACK timeout: counts against `retry_cnt`.
    AckTimeout,
    /// The peer has not acknowledged for a few round trips: resends, but counts nothing.
    EarlyResend,
    /// The peer was not ready to receive, and asked for this pause (R5).
    RnrWait,
    /// The next packet may leave, after congestion (DCQCN).
    Pace,
}

impl Timer {
    pub(crate) const ALL: [Self; 4] =
        [Self::AckTimeout, Self::EarlyResend, Self::RnrWait, Self::Pace];
}

/// When each timer of a queue pair fires.
#[derive(Debug, Default)]
pub(crate) struct TimerTable {
    deadlines: [Option<Instant>; Timer::ALL.len()],
    /// The earliest entry that the index has for this queue pair.
    indexed: Option<Instant>,
}

impl TimerTable {
    pub(crate) fn set(&mut self, timer: Timer, at: Instant) {
        self.deadlines[timer as usize] = Some(at);
    }

    pub(crate) fn stop(&mut self, timer: Timer) {
        self.deadlines[timer as usize] = None;
    }

    pub(crate) fn stop_all(&mut self) {
        self.deadlines = [None; Timer::ALL.len()];
    }

    pub(crate) fn is_set(&self, timer: Timer) -> bool {
        self.deadlines[timer as usize].is_some()
    }

    /// Takes one timer that is due.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Timer> {
        Timer::ALL.into_iter().find(|&timer| {
            let deadline = &mut self.deadlines[timer as usize];
            let due = deadline.is_some_and(|at| at <= now);
            if due {
                *deadline = None;
            }
            due
        })
    }

    /// Whether one of them is set, and the index will find it in time.
    pub(crate) fn is_running(&self) -> bool {
        let indexed = self.indexed;
        self.earliest().is_some_and(|at| indexed.is_some_and(|indexed| indexed <= at))
    }

    fn earliest(&self) -> Option<Instant> {
        self.deadlines.iter().flatten().min().copied()
    }
}

/// All deadlines of a shard, earliest first.
///
/// Entries go stale instead of being removed: the queue pair's table is the truth. An entry is
/// added only when it is earlier than what the index has for that queue pair, so a timer that every
/// acknowledgement pushes into the future costs nothing here.
#[derive(Debug, Default)]
pub(crate) struct DeadlineIndex(BinaryHeap<Reverse<(Instant, u32)>>);

impl DeadlineIndex {
    /// Sees to it that queue pair `key` is found when its earliest timer is due.
    pub(crate) fn cover(&mut self, key: u32, timers: &mut TimerTable) {
        let Some(at) = timers.earliest() else { return };
        if timers.indexed.is_none_or(|indexed| at < indexed) {
            timers.indexed = Some(at);
            self.0.push(Reverse((at, key)));
        }
    }

    /// When to look again; may be too early, never too late.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes a queue pair whose entry is due. The caller finds its timers, calls
    /// [`Self::reached`], handles those that are due, and covers it again.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(Instant, u32)> {
        if self.next()? > now {
            return None;
        }
        self.0.pop().map(|Reverse(entry)| entry)
    }

    /// Notes that the entry `at` of a queue pair is gone from the index.
    pub(crate) fn reached(at: Instant, timers: &mut TimerTable) {
        if timers.indexed == Some(at) {
            timers.indexed = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_postponed_timer_is_found_late_but_found() {
        let at = Instant::from_nanos;
        let (mut index, mut timers) = (DeadlineIndex::default(), TimerTable::default());
        timers.set(Timer::AckTimeout, at(10));
        index.cover(7, &mut timers);
        timers.set(Timer::AckTimeout, at(30));
        index.cover(7, &mut timers);
        assert_eq!(index.next(), Some(at(10)), "one entry, not two");
        assert_eq!(index.pop_due(at(12)), Some((at(10), 7)));
        DeadlineIndex::reached(at(10), &mut timers);
        assert_eq!(timers.take_due(at(12)), None);
        index.cover(7, &mut timers);
        assert_eq!(index.next(), Some(at(30)));
        assert_eq!(index.pop_due(at(29)), None);
        assert_eq!(index.pop_due(at(30)), Some((at(30), 7)));
        DeadlineIndex::reached(at(30), &mut timers);
        assert_eq!(timers.take_due(at(30)), Some(Timer::AckTimeout));
        assert_eq!(timers.take_due(at(30)), None);
        assert_eq!(index.next(), None);
    }
}
