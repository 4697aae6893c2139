//! How long packets wait that the host has no room for.

use rxe_core::time::Instant;

/// How long after a refusal the host is asked again: a few full messages leave in that time.
const RETRY_NANOS: u64 = 100_000;
/// How long the host may refuse everything before what waits is dropped.
///
/// A network of 100 Mbit/s takes a full message in 5 ms.
pub(super) const PATIENCE_NANOS: u64 = 20_000_000;

/// The state of one who sends: at ease, or waiting for room since the last packet that left.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Pressure(Option<Waiting>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Waiting {
    since: Instant,
    retry_at: Instant,
}

/// What becomes of packets that were refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// They wait until [`Pressure::deadline`].
    Wait,
    /// They have waited long enough: they are lost.
    Drop,
}

impl Pressure {
    /// When to try again; `None` at ease.
    pub(super) fn deadline(self) -> Option<Instant> {
        self.0.map(|waiting| waiting.retry_at)
    }

    /// Notes that packets were refused; `progress` says whether others left by the same call.
    pub(super) fn refuse(&mut self, now: Instant, progress: bool) -> Refused {
        let since = self.0.filter(|_| !progress).map_or(now, |waiting| waiting.since);
        if now.nanos_since(since) >= PATIENCE_NANOS {
            // R18: as if the network had dropped them, so that nothing waits for ever.
            self.relieve();
            return Refused::Drop;
        }
        self.0 = Some(Waiting { since, retry_at: now.plus_nanos(RETRY_NANOS) });
        Refused::Wait
    }

    /// Notes that nothing waits any more.
    pub(super) fn relieve(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn r40_what_is_refused_is_tried_again_soon() {
        let mut pressure = Pressure::default();
        assert_eq!(pressure.deadline(), None);
        assert_eq!(pressure.refuse(at(5), false), Refused::Wait);
        assert_eq!(pressure.deadline(), Some(at(5 + RETRY_NANOS)));
        pressure.relieve();
        assert_eq!(pressure, Pressure::default());
    }

    #[test]
    fn r18_patience_ends_and_begins_anew_with_each_packet_that_leaves() {
        let mut pressure = Pressure::default();
        assert_eq!(pressure.refuse(at(0), false), Refused::Wait);
        assert_eq!(pressure.refuse(at(PATIENCE_NANOS - 1), false), Refused::Wait);
        assert_eq!(pressure.refuse(at(PATIENCE_NANOS), true), Refused::Wait);
        assert_eq!(pressure.refuse(at(2 * PATIENCE_NANOS - 1), false), Refused::Wait);
        assert_eq!(pressure.refuse(at(2 * PATIENCE_NANOS), false), Refused::Drop);
        assert_eq!(pressure.deadline(), None, "the next packets have their own time");
        assert_eq!(pressure.refuse(at(2 * PATIENCE_NANOS), false), Refused::Wait);
    }
}
