//! Simulations: random work over a random network with faults, one seed each.
//!
//! `URXE_SIM_SEEDS=100000` runs so many seeds instead of 300, `URXE_SIM_FIRST` is where they begin.
//! A failure prints the command that replays its seed.

use std::env;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use testkit::sim::{self, Report};

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable}={text}: a number is wanted")))
}

#[test]
fn every_seed_ends_well() {
    let first = number("URXE_SIM_FIRST").unwrap_or(0);
    let count = number("URXE_SIM_SEEDS").unwrap_or(300);
    let next = AtomicU64::new(first);
    let work = || {
        let mut sum = Report::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count {
                return sum;
            }
            match sim::run(seed, None) {
                Ok(report) => sum += report,
                Err(failure) => panic!(
                    "seed {seed}: {failure}\nreplay it, with a capture, by:\n  \
                     URXE_SIM_SEED={seed} cargo test -p testkit --test sim replay -- --nocapture"
                ),
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(8);
    let sum = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut sum = Report::default();
        for thread in threads {
            match thread.join() {
                Ok(report) => sum += report,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        sum
    });
    println!("{sum}");
    if count >= 300 {
        // The simulations must meet what they are for.
        let Report { faults, sequence_naks, rnr_naks, duplicates, .. } = sum;
        let Report {
            early_resends,
            timeouts,
            atomics,
            invalidations,
            arrivals,
            failed,
            flushes,
            ..
        } = sum;
        for (what, times) in [
            ("faults", faults),
            ("sequence NAKs", sequence_naks),
            ("RNR NAKs", rnr_naks),
            ("duplicates", duplicates),
            ("early resends", early_resends),
            ("timeouts", timeouts),
            ("atomics", atomics),
            ("invalidations", invalidations),
            ("messages of UC and UD", arrivals),
            ("connections that failed", failed),
            ("flushes", flushes),
        ] {
            assert!(times > 0, "no {what} in {count} seeds: {sum}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [1, 2, 3] {
        assert_eq!(sim::run(seed, None), sim::run(seed, None));
    }
}

/// Replays the seed that `URXE_SIM_SEED` names, and writes its frames to a capture.
#[test]
fn replay() {
    let Some(seed) = number("URXE_SIM_SEED") else {
        println!("URXE_SIM_SEED names no seed to replay");
        return;
    };
    let capture = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("sim-{seed}.pcap"));
    println!("{}", sim::describe(seed).expect("the scenario can be set up"));
    println!("frames: {}", capture.display());
    match sim::run(seed, Some(&capture)) {
        Ok(report) => println!("{report}"),
        Err(failure) => panic!("seed {seed}: {failure}"),
    }
}
