//! The background thread of a runner.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle, available_parallelism, sleep, yield_now};
use std::time::Duration;

use rxe_core::mem::unblock_faults;
use rxe_core::time::Instant;

use super::clock::Clock;
use super::runner::{Round, Runner};
use crate::sys::thread::spawn_deaf;

/// How long the thread looks for more after a packet, where a core is free for that.
const LINGER_NANOS: u64 = 50_000;
/// Who offers the core to others and has not got it back after so long shares it with one that
/// computes. Then lingering does harm: a sleeper that a packet wakes gets the core at once, one
/// that has yielded waits for the end of the other's time slice, some milliseconds.
const FREE_CORE_NANOS: u64 = 20_000;
/// How long the thread does without lingering once the core was not free; twice as long each time
/// that it is not free soon after, at most [`LONGEST_BUSY_NANOS`]. A peer that comes to this core
/// for a moment does not cost a second of wake-ups, and one that computes here costs a time slice a
/// second.
const BUSY_NANOS: u64 = 20_000_000;
const LONGEST_BUSY_NANOS: u64 = 1_000_000_000;
/// How often the thread looks by itself when it cannot wait for events.
const BLIND_PAUSE: Duration = Duration::from_millis(1);

pub(super) fn spawn(runner: Arc<Runner>) -> io::Result<JoinHandle<()>> {
    let builder = Builder::new().name(format!("urxe-{}", runner.slot()));
    spawn_deaf(builder, move || run(&runner))
}

/// Sleeps until there is something to do, and does it.
///
/// The contract with those who poll: a socket wakes this thread once, and is armed again only when
/// nobody has polled for the length of the lease. While somebody polls, a timer alone wakes the
/// thread, at the end of each lease, to see whether they still do; it takes no lock for that, so
/// that it is in nobody's way.
fn run(runner: &Runner) {
    // Whatever the thread blocks that has opened the device.
    unblock_faults();
    let cores = available_parallelism().map_or(1, usize::from);
    let mut linger = if cores > 1 { Linger::default() } else { Linger::NEVER };
    let mut is_blind = false;
    loop {
        if let Err(error) = runner.sleeper.sleep() {
            if !is_blind {
                tracing::error!(target: "rxe::net", %error,
                    "cannot wait for packets: looks for them every millisecond instead");
            }
            is_blind = true;
            sleep(BLIND_PAUSE);
        } else {
            is_blind = false;
        }
        if runner.is_stopping() {
            return;
        }
        let mut now = Clock::now();
        if let Some(end) = runner.lease.end(now) {
            if runner.has_sleeper() {
                runner.lease.note_sleeper();
            } else {
                runner.lease.note_unneeded(now);
            }
            runner.sleeper.put_away();
            runner.send_late(now);
            runner.serve_sleeper(now, end);
            runner.sleeper.set_lease(end, now);
            continue;
        }
        let mut is_first = true;
        loop {
            let (round, received) = runner.background_round(linger.nanos(now));
            // What wakes a thread that sleeps on events says nothing of memory that is watched.
            if std::mem::take(&mut is_first) && !runner.has_sleeper() {
                runner.lease.note_found(now, received);
            }
            match round {
                Round::Sleep => break,
                Round::Linger => {
                    let before = Clock::now();
                    yield_now();
                    now = Clock::now();
                    linger.note_absence(before, now);
                }
                Round::More => {}
            }
            if runner.is_stopping() {
                return;
            }
        }
    }
}

/// Whether it makes sense to look for more after a packet.
struct Linger {
    /// When it makes sense again.
    from: Instant,
    /// How long it did not make sense the last time.
    pause_nanos: u64,
}

impl Default for Linger {
    fn default() -> Self {
        Self { from: Instant::ZERO, pause_nanos: 0 }
    }
}

impl Linger {
    /// On a single core whoever sends waits for this very core.
    const NEVER: Self = Self { from: Instant::from_nanos(u64::MAX), pause_nanos: 0 };

    /// How long to look for more after a packet.
    fn nanos(&self, now: Instant) -> u64 {
        if now >= self.from { LINGER_NANOS } else { 0 }
    }

    /// Notes that the core was offered to others in between.
    fn note_absence(&mut self, before: Instant, now: Instant) {
        if now.nanos_since(before) <= FREE_CORE_NANOS {
            return;
        }
        // As long as it was done without, it went well since then: the core was taken for a moment.
        let went_well = now.nanos_since(self.from) > self.pause_nanos;
        let twice = (2 * self.pause_nanos).min(LONGEST_BUSY_NANOS);
        self.pause_nanos = if went_well { BUSY_NANOS } else { twice.max(BUSY_NANOS) };
        self.from = now.plus_nanos(self.pause_nanos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(1_000_000 * millis)
    }

    #[test]
    fn it_lingers_less_and_less_where_the_core_is_not_free() {
        let mut linger = Linger::default();
        assert_eq!(linger.nanos(at(0)), LINGER_NANOS);
        linger.note_absence(at(5), at(5));
        assert_eq!(linger.nanos(at(5)), LINGER_NANOS, "the core came back at once");
        let mut now = 9;
        for pause in [20, 40, 80, 160, 320, 640, 1000, 1000] {
            linger.note_absence(at(now - 4), at(now));
            assert_eq!(linger.nanos(at(now + pause - 1)), 0);
            assert_eq!(linger.nanos(at(now + pause)), LINGER_NANOS);
            now += pause + 4;
        }
        // It is back for as long as it was away, and then again taken for a moment.
        now += 1000;
        linger.note_absence(at(now - 4), at(now));
        assert_eq!((linger.nanos(at(now + 19)), linger.nanos(at(now + 20))), (0, LINGER_NANOS));
    }

    #[test]
    fn it_never_lingers_on_a_single_core() {
        assert_eq!(Linger::NEVER.nanos(at(1_000_000)), 0);
    }
}
