//! The background thread of a runner.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use super::runner::Runner;

/// How long the sockets stay disarmed after somebody has polled.
const LEASE_NANOS: u64 = 1_000_000;

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
        while runner.background_round(LEASE_NANOS) {
            if runner.is_stopping() {
                return;
            }
        }
    }
}
