//! The clock of this process, as the engine counts time.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use rxe_core::time::Instant;

/// Maps the monotonic clock of the OS to [`Instant`]s that count from the first use in the process.
///
/// All shards of a process share it, so that their packets stand in one order in a capture.
#[derive(Clone, Copy, Debug)]
pub struct Clock;

static START: OnceLock<(std::time::Instant, Duration)> = OnceLock::new();

impl Clock {
    fn start() -> &'static (std::time::Instant, Duration) {
        START.get_or_init(|| {
            let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            // A host whose clock stands before 1970 gets captures that begin in 1970.
            (std::time::Instant::now(), since_epoch.unwrap_or_default())
        })
    }

    /// The time now.
    pub fn now() -> Instant {
        let elapsed = Self::start().0.elapsed().as_nanos();
        // One is added so that no time is 0, which stands for "never" in atomics.
        Instant::from_nanos(u64::try_from(elapsed).unwrap_or(u64::MAX).saturating_add(1))
    }

    /// When the clock started, as time since 1970: what captures count from.
    pub fn epoch() -> Duration {
        Self::start().1
    }
}
