//! How long the sockets stay those of a program that polls, after it has polled.

use std::sync::atomic::{AtomicU64, Ordering};

use rxe_core::time::Instant;

/// The longest lease, and the usual one.
const LONGEST_NANOS: u64 = 1_000_000;
/// The lease of a program that has been found watching its memory.
const SHORTEST_NANOS: u64 = 20_000;
/// Who has polled so short a time ago, is about to do so again.
const SPINNING_NANOS: u64 = 5_000;
/// Who has polled so long ago, watches its memory perhaps: longer than the slices of the scheduler,
/// since whoever was to take in the packet may have waited for the processor.
const RECENT_NANOS: u64 = 20_000_000;
/// Packets that wait for a program which watches its memory for them: of an exchange of small
/// messages. Where more wait, the program is about something else for a while.
const FEW: usize = 2;

/// When a program polled last, and how long it has the sockets for itself since then.
///
/// While it polls, nobody else looks at the sockets, so whoever sleeps on them must know when it
/// has stopped. That takes a timer and a thread that wakes for each lease, so a lease is long: what
/// comes in the meantime waits for its end. A program that polls for a while and then watches its
/// memory (`ib_write_lat`) would wait that long each time. So where the end of a lease finds
/// packets of an exchange, leases are short from then on, and double each time that one was of no
/// use.
#[derive(Debug)]
pub(super) struct Lease {
    /// When somebody last polled, in nanoseconds; 0 for never, or not since `req_notify`.
    last_poll: AtomicU64,
    /// How long a lease is.
    nanos: AtomicU64,
}

impl Default for Lease {
    fn default() -> Self {
        Self { last_poll: AtomicU64::new(0), nanos: AtomicU64::new(LONGEST_NANOS) }
    }
}

impl Lease {
    /// Notes that somebody polls.
    pub(super) fn note_poll(&self, now: Instant) {
        self.last_poll.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Ends it: whoever polled is about to sleep. Whoever sees this stored does not leave the
    /// sockets disarmed any more.
    pub(super) fn end_now(&self) {
        self.last_poll.store(0, Ordering::SeqCst);
    }

    /// When the time of whoever polled last is over, if it is not over yet.
    ///
    /// Until then the sockets are theirs, and so are the timers of the shard.
    pub(super) fn end(&self, now: Instant) -> Option<Instant> {
        let end = self.polled()?.plus_nanos(self.nanos.load(Ordering::Relaxed));
        (end > now).then_some(end)
    }

    /// Whether somebody polls, in this very moment or between two things that it does.
    pub(super) fn is_polled(&self, now: Instant) -> bool {
        self.has_polled_within(now, LONGEST_NANOS)
    }

    /// Whether somebody polls these days, who may watch its memory now.
    pub(super) fn may_watch_memory(&self, now: Instant) -> bool {
        self.has_polled_within(now, RECENT_NANOS)
    }

    fn has_polled_within(&self, now: Instant, nanos: u64) -> bool {
        self.polled().is_some_and(|polled| now.nanos_since(polled) < nanos)
    }

    /// Notes that somebody was found polling: then a longer lease would have done.
    pub(super) fn note_unneeded(&self, now: Instant) {
        if self.has_polled_within(now, SPINNING_NANOS) {
            self.lengthen();
        }
    }

    /// Notes that whoever has the sockets sleeps on them: a packet wakes it, whatever the lease.
    pub(super) fn note_sleeper(&self) {
        self.nanos.store(LONGEST_NANOS, Ordering::Relaxed);
    }

    /// Notes that so many packets were found at or after its end, if that is not long ago.
    pub(super) fn note_found(&self, now: Instant, packets: usize) {
        if !self.may_watch_memory(now) {
            return;
        }
        match packets {
            0 => self.lengthen(),
            1..=FEW => self.nanos.store(SHORTEST_NANOS, Ordering::Relaxed),
            _ => self.nanos.store(LONGEST_NANOS, Ordering::Relaxed),
        }
    }

    /// Only the background thread does so.
    fn lengthen(&self) {
        let nanos = 2 * self.nanos.load(Ordering::Relaxed);
        self.nanos.store(nanos.min(LONGEST_NANOS), Ordering::Relaxed);
    }

    fn polled(&self) -> Option<Instant> {
        let nanos = self.last_poll.load(Ordering::SeqCst);
        (nanos > 0).then(|| Instant::from_nanos(nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(1000 * micros)
    }

    /// One of somebody who polled last at 10 µs.
    fn polled() -> Lease {
        let lease = Lease::default();
        assert_eq!(lease.end(at(1)), None, "nobody has polled");
        lease.note_poll(at(10));
        lease
    }

    #[test]
    fn it_lasts_a_millisecond_unless_it_is_ended() {
        let lease = polled();
        assert_eq!((lease.end(at(11)), lease.end(at(1010))), (Some(at(1010)), None));
        assert!(lease.is_polled(at(1009)) && !lease.is_polled(at(1010)));
        assert!(lease.may_watch_memory(at(20_009)) && !lease.may_watch_memory(at(20_010)));
        lease.end_now();
        assert_eq!((lease.end(at(11)), lease.is_polled(at(11))), (None, false));
    }

    #[test]
    fn who_watches_memory_gets_short_ones_while_they_are_of_use() {
        let lease = polled();
        lease.note_found(at(1011), 1);
        lease.note_poll(at(2000));
        assert_eq!(lease.end(at(2001)), Some(at(2020)));
        assert!(lease.is_polled(at(2500)), "these days");
        // Still polling, then neither polling nor a packet: longer ones would have done.
        lease.note_unneeded(at(2003));
        assert_eq!(lease.end(at(2001)), Some(at(2040)));
        lease.note_unneeded(at(2006));
        assert_eq!(lease.end(at(2001)), Some(at(2040)));
        lease.note_found(at(2041), 0);
        assert_eq!(lease.end(at(2001)), Some(at(2080)));
        (0..10).for_each(|_| lease.note_found(at(2081), 0));
        assert_eq!(lease.end(at(2001)), Some(at(3000)), "no longer than the usual one");
        lease.note_found(at(2082), 1);
        assert_eq!(lease.end(at(2001)), Some(at(2020)));
        lease.note_sleeper();
        assert_eq!(lease.end(at(2001)), Some(at(3000)));
    }

    #[test]
    fn many_packets_or_long_silence_say_nothing_of_memory_that_is_watched() {
        let lease = polled();
        lease.note_found(at(20_010), 1);
        assert_eq!(lease.end(at(11)), Some(at(1010)), "it has not polled for long");
        lease.note_found(at(1011), 1);
        assert_eq!(lease.end(at(11)), Some(at(30)));
        lease.note_found(at(1011), FEW + 1);
        assert_eq!(lease.end(at(11)), Some(at(1010)));
    }
}
