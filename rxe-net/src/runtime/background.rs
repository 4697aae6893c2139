//! The background thread of a runner.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle, available_parallelism, yield_now};

use super::clock::Clock;
use super::runner::{Round, Runner};

/// How long the thread looks for more after a packet, where another core is there for the rest.
const LINGER_NANOS: u64 = 50_000;

pub(super) fn spawn(runner: Arc<Runner>) -> io::Result<JoinHandle<()>> {
    Builder::new().name(format!("urxe-{}", runner.slot())).spawn(move || run(&runner))
}

/// Sleeps until there is something to do, and does it.
///
/// The contract with those who poll: a socket wakes this thread once, and is armed again only when
/// nobody has polled for the length of the lease. While somebody polls, a timer alone wakes the
/// thread, at the end of each lease, to see whether they still do; it takes no lock for that, so
/// that it is in nobody's way.
fn run(runner: &Runner) {
    let cores = available_parallelism().map_or(1, usize::from);
    let linger_nanos = if cores > 1 { LINGER_NANOS } else { 0 };
    loop {
        if let Err(error) = runner.sleeper.sleep() {
            tracing::error!(target: "rxe::net", %error, "the background thread cannot sleep");
            return;
        }
        if runner.is_stopping() {
            return;
        }
        let now = Clock::now();
        if let Some(end) = runner.lease_end(now) {
            runner.sleeper.set_lease(end, now);
            continue;
        }
        loop {
            match runner.background_round(linger_nanos) {
                Round::Sleep => break,
                Round::Linger => yield_now(),
                Round::More => {}
            }
            if runner.is_stopping() {
                return;
            }
        }
    }
}
