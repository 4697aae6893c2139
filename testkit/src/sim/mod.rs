//! Whole devices on a network in memory, with a virtual clock: everything from one seed.
//!
//! [`run`] draws hosts, links with faults, queue pairs of all services, shared receive queues and
//! work requests from a seed, and lets them run until all is done. The same seed gives the same
//! run, to the last packet.
//!
//! | file | what |
//! |---|---|
//! | [`dice`] | random choices |
//! | `scenario` | hosts, faults, and who talks to whom |
//! | [`plan`] | what two ends are to do, and the one flaw that a connection may have |
//! | `connect` | makes queue pairs, ends them, and makes them again |
//! | `world`, `node`, `end`, `supply` | time; shards; what queue pairs and receive queues post |
//! | [`keys`] | memory windows and fast registration: keys that come and go |
//! | [`memory`], [`cells`] | the model: every byte of registered memory, and the atomics done |
//! | `check` | the judge: each completion, and what must have come of it |
//!
//! What is judged: each request and receive completes exactly once, in order, with what it is due;
//! its effect is there by then. Atomics are executed exactly once. A key that was taken away is
//! refused. After a flaw both ends fail as they must, everything posted is flushed, the program is
//! told, and queue pairs made again work. What UC and UD bring is whole, what was sent, in order on
//! an orderly network, and no more often than the network doubled packets. No byte changes that no
//! request was to change, also between the places granted. No queue pair ever waits for what may not
//! come, with nothing that makes it go on. And all of it ends once faults have stopped.

pub mod cells;
mod check;
mod connect;
pub mod dice;
mod end;
pub mod keys;
pub mod memory;
mod node;
pub mod plan;
mod scenario;
mod supply;
mod together;
mod world;

use std::fmt;
use std::ops::AddAssign;
use std::path::Path;

use rxe_core::Counter;

/// What happened in a run, to show that simulations meet what they are for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Report {
    /// Runs that are added up here.
    pub runs: u64,
    /// Work requests that completed.
    pub requests: u64,
    /// Queue pairs, each life of one counted.
    pub queue_pairs: u64,
    /// Atomics that completed.
    pub atomics: u64,
    /// Keys that were made invalid by requests, or by the peer.
    pub invalidations: u64,
    /// Messages of UC and UD that arrived.
    pub arrivals: u64,
    /// Ends of reliable connections that failed, as planned.
    pub failed: u64,
    /// Requests that were flushed.
    pub flushes: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Packets that engines sent.
    pub packets: u64,
    /// Packets dropped, doubled, moved, corrupted or delayed.
    pub faults: u64,
    /// Hosts that were cut off for a while.
    pub blackouts: u64,
    /// Packets that met a full receive buffer.
    pub overflows: u64,
    /// NAKs of the sequence received, and READs asked for again.
    pub sequence_naks: u64,
    /// RNR NAKs received.
    pub rnr_naks: u64,
    /// Duplicate requests received.
    pub duplicates: u64,
    /// Resends of the short timer.
    pub early_resends: u64,
    /// Resends of the ACK timer.
    pub timeouts: u64,
    /// Virtual time, in nanoseconds.
    pub nanos: u64,
}

impl Report {
    fn count(&mut self, counter: Counter, value: u64) {
        let field = match counter {
            Counter::sent_pkts => &mut self.packets,
            Counter::rcvd_seq_err => &mut self.sequence_naks,
            Counter::rcvd_rnr_err => &mut self.rnr_naks,
            Counter::duplicate_request => &mut self.duplicates,
            Counter::early_resend => &mut self.early_resends,
            Counter::completer_retry_err => &mut self.timeouts,
            _ => return,
        };
        *field += value;
    }
}

impl AddAssign for Report {
    fn add_assign(&mut self, other: Self) {
        self.runs += other.runs;
        self.requests += other.requests;
        self.queue_pairs += other.queue_pairs;
        self.atomics += other.atomics;
        self.invalidations += other.invalidations;
        self.arrivals += other.arrivals;
        self.failed += other.failed;
        self.flushes += other.flushes;
        self.bytes += other.bytes;
        self.packets += other.packets;
        self.faults += other.faults;
        self.blackouts += other.blackouts;
        self.overflows += other.overflows;
        self.sequence_naks += other.sequence_naks;
        self.rnr_naks += other.rnr_naks;
        self.duplicates += other.duplicates;
        self.early_resends += other.early_resends;
        self.timeouts += other.timeouts;
        self.nanos += other.nanos;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.nanos as f64 / 1e9;
        write!(f, "{} runs, {:.1} s of virtual time: ", self.runs, seconds)?;
        write!(f, "{} requests, {} bytes, {} packets; ", self.requests, self.bytes, self.packets)?;
        write!(f, "{} queue pairs, {} atomics, ", self.queue_pairs, self.atomics)?;
        write!(f, "{} invalidations, ", self.invalidations)?;
        write!(f, "{} unacknowledged messages arrived, ", self.arrivals)?;
        write!(f, "{} connections failed, {} requests flushed; ", self.failed, self.flushes)?;
        write!(f, "{} faults, {} blackouts, ", self.faults, self.blackouts)?;
        write!(f, "{} overflows; ", self.overflows)?;
        write!(f, "{} sequence NAKs, {} RNR NAKs, ", self.sequence_naks, self.rnr_naks)?;
        write!(f, "{} duplicates, ", self.duplicates)?;
        write!(f, "{} early resends, {} timeouts", self.early_resends, self.timeouts)
    }
}

/// What went wrong in a run, or hindered it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("at {}.{:09} s: {what}", .at_nanos / 1_000_000_000, .at_nanos % 1_000_000_000)]
pub struct Failure {
    /// Virtual time, in nanoseconds.
    pub at_nanos: u64,
    /// What is not as it must be.
    pub what: String,
}

/// Runs the simulation of a seed; writes its frames to a file if one is given.
///
/// # Errors
///
/// [`Failure`]: the engine is wrong, or the simulation is.
pub fn run(seed: u64, capture: Option<&Path>) -> Result<Report, Failure> {
    let mut world = scenario::world(seed)?;
    if let Some(path) = capture {
        world.capture(path)?;
    }
    world.run()?;
    Ok(world.report())
}

/// What the scenario of a seed is, in words.
///
/// # Errors
///
/// [`Failure`] when it cannot be set up.
pub fn describe(seed: u64) -> Result<String, Failure> {
    Ok(scenario::world(seed)?.describe())
}
