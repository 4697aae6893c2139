//! The background thread of a runner.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use super::clock::Clock;
use super::runner::Runner;

/// How long the sockets stay disarmed after somebody has polled.
const LEASE_NANOS: u64 = 1_000_000;
/// Rounds that the thread does before it looks whether somebody polls.
const ROUNDS: usize = 64;

pub(super) fn spawn(runner: Arc<Runner>) -> io::Result<JoinHandle<()>> {
    Builder::new().name(format!("urxe-{}", runner.slot())).spawn(move || run(&runner))
}

/// Sleeps until there is something to do, and does it.
///
/// The contract with those who poll: a socket wakes this thread once, and is armed again only when
/// nobody has polled for the length of the lease. While somebody polls, the timer alone wakes the
/// thread, at the end of each lease, to see whether they still do.
fn run(runner: &Runner) {
    loop {
        if let Err(error) = runner.sleeper.sleep() {
            tracing::error!(target: "rxe::net", %error, "the background thread cannot sleep");
            return;
        }
        if runner.is_stopping() {
            return;
        }
        let mut core = runner.lock();
        let mut now = Clock::now();
        for _ in 0..ROUNDS {
            if core.turn(now) == 0 {
                break;
            }
            now = Clock::now();
        }
        let lease_end = runner
            .last_poll()
            .map(|polled| polled.plus_nanos(LEASE_NANOS))
            .filter(|&end| end > now);
        runner.set_timer(&core, lease_end, now);
        if lease_end.is_none() {
            runner.sleeper.arm_sockets();
        }
        runner.release(core, now);
    }
}
