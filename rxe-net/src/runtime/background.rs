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
/// How long the thread does without lingering once the core was not free.
const BUSY_NANOS: u64 = 1_000_000_000;
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
    // When lingering makes sense again; on a single core never.
    let mut linger_from = if cores > 1 { Instant::ZERO } else { Instant::from_nanos(u64::MAX) };
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
            let linger_nanos = if now >= linger_from { LINGER_NANOS } else { 0 };
            let (round, received) = runner.background_round(linger_nanos);
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
                    if now.nanos_since(before) > FREE_CORE_NANOS {
                        linger_from = now.plus_nanos(BUSY_NANOS);
                    }
                }
                Round::More => {}
            }
            if runner.is_stopping() {
                return;
            }
        }
    }
}
