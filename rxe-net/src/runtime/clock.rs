//! The clock of this process, as the engine counts time.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};
use rxe_core::time::Instant;

/// Maps the monotonic clock of the OS to [`Instant`]s that count from the first use in the process.
///
/// All shards of a process share it, so that their packets stand in one order in a capture.
#[derive(Clone, Copy, Debug)]
pub struct Clock;

/// What the OS's clock showed, in nanoseconds, and the time since 1970.
static START: OnceLock<(u64, Duration)> = OnceLock::new();

impl Clock {
    fn start() -> &'static (u64, Duration) {
        START.get_or_init(|| {
            let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            // A host whose clock stands before 1970 gets captures that begin in 1970.
            (monotonic_nanos(), since_epoch.unwrap_or_default())
        })
    }

    /// The time now.
    pub fn now() -> Instant {
        let (start, _) = *Self::start();
        // One is added so that no time is 0, which stands for "never" in atomics.
        Instant::from_nanos(monotonic_nanos().saturating_sub(start).saturating_add(1))
    }

    /// When the clock started, as time since 1970: what captures count from.
    pub fn epoch() -> Duration {
        Self::start().1
    }
}

/// The monotonic clock of the OS. (The standard library's way to a difference takes twice as long, and a
/// program that polls asks at each look.)
fn monotonic_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither is negative: it counts from the start of the machine.
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_as_the_standard_clock_does() {
        let (before, ours) = (std::time::Instant::now(), Clock::now());
        assert!(ours > Instant::ZERO);
        while before.elapsed() < Duration::from_millis(2) {
            std::hint::spin_loop();
        }
        let nanos = Clock::now().nanos_since(ours);
        assert!((1_900_000..1_000_000_000).contains(&nanos), "{nanos}");
    }
}
