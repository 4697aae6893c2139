//! A network that loses one packet in a hundred, each way, with default socket buffers: all data
//! arrives, and no timer of the long kind fires.
//!
//! What is left of the goodput is printed, beside that without loss. It is judged in simulated time
//! (rxe-core, `tests/rc_loss.rs`): here each loss also waits for threads to be scheduled, so a busy
//! machine takes most of it. What it costs in packets is judged here: however busy the machine is, a
//! READ has little more than the lost packets sent again.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::*;
use ibverbs_api::*;
use rxe_net::faults::{FaultSpec, Probability};

const MESSAGE: usize = 1 << 20;
/// Messages under way.
const DEPTH: u64 = 8;
/// How long one goodput is measured.
const SAMPLE: Duration = Duration::from_millis(200);
/// How often the packets of a READ may be sent on average, where one in a hundred is lost: far less
/// than if all behind a lost one were sent again.
const MOST_TIMES: f64 = 1.1;
/// Rounds, of which the best of each kind is told.
const ROUNDS: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    Write,
    Read,
}

/// Two ends, each on a device of its own, whose packets are lost so often.
fn lossy_pair(mtu: Mtu, drop: Probability) -> (End, End) {
    let setup = Setup { mtu, ..Setup::default() };
    let end = |seed| {
        let mut options = options();
        // The machinery is there without loss too: both kinds are measured alike.
        options.link.faults = Some(FaultSpec { seed, drop, ..FaultSpec::default() });
        End::new(&open_with(options), &setup, None)
    };
    let (one, two) = (end(1), end(2));
    connect(&setup, (&one.context, &one.qp), (&two.context, &two.qp));
    (one, two)
}

/// Bytes a second, while both ends poll, and the messages that were sent.
fn goodput(one: &End, two: &End, operation: Operation) -> (f64, u64) {
    let (near, far) = (one.register(MESSAGE), two.register(MESSAGE));
    let bytes = pattern(MESSAGE, 5);
    let (from, to) = match operation {
        Operation::Write => (&near, &far),
        Operation::Read => (&far, &near),
    };
    from.buffer().write_at(0, &bytes).unwrap();
    let remote = far.remote_addr(0);
    let op = match operation {
        Operation::Write => SendOp::Write { remote, imm: None },
        Operation::Read => SendOp::Read { remote },
    };
    let is_over = AtomicBool::new(false);
    let (rate, messages) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                two.cq.poll(16, &mut Vec::new());
            }
        });
        (0..DEPTH).for_each(|wr_id| one.post(wr_id, op, &[near.sge(0..MESSAGE)]));
        let (start, mut done) = (Instant::now(), 0);
        while start.elapsed() < SAMPLE {
            one.done();
            done += 1;
            one.post(done, op, &[near.sge(0..MESSAGE)]);
        }
        let rate = (done as usize * MESSAGE) as f64 / start.elapsed().as_secs_f64();
        (0..DEPTH).for_each(|_| {
            one.done();
        });
        is_over.store(true, Ordering::Relaxed);
        (rate, done + DEPTH)
    });
    assert_same(&read(to.buffer(), 0, MESSAGE), &bytes, "what came");
    (rate, messages)
}

fn loses_nothing(operation: Operation, mtu: Mtu) {
    let (mut best, mut best_lossy, mut messages) = (0.0_f64, 0.0_f64, 0);
    let whole = lossy_pair(mtu, Probability::NEVER);
    let lossy = lossy_pair(mtu, Probability::from_percent(1));
    for _ in 0..ROUNDS {
        best = best.max(goodput(&whole.0, &whole.1, operation).0);
        let (rate, count) = goodput(&lossy.0, &lossy.1, operation);
        best_lossy = best_lossy.max(rate);
        messages += count;
    }
    let ratio = best_lossy / best;
    let sender = if operation == Operation::Read { &lossy.1 } else { &lossy.0 };
    let sent = sender.context.counters().get(Counter::sent_pkts);
    let needed = messages * (MESSAGE / mtu.bytes()) as u64;
    let times = sent as f64 / needed as f64;
    let gb = |rate: f64| rate / 1e9;
    println!(
        "{operation:?} {mtu:?}: {:.2} of {:.2} GB/s, {ratio:.2}; each packet sent {times:.3} times",
        gb(best_lossy),
        gb(best)
    );
    if operation == Operation::Read {
        assert!(times < MOST_TIMES, "{times}: more than what was lost is sent again");
    }
    for (end, peer) in [(&lossy.0, &lossy.1), (&lossy.1, &lossy.0)] {
        assert!(end.context.link_counters().faults > 0, "packets were lost");
        let timeouts = end.qp.counters().unwrap().get(Counter::completer_retry_err);
        let peer = peer.context.counters();
        assert_eq!(timeouts, 0, "ACK timeouts; the peer:\n{peer}");
    }
}

// One test, since two at a time would share the machine's processors.
#[test]
fn one_percent_lost_each_way_fires_no_long_timer() {
    for mtu in [Mtu::M1024, Mtu::M4096] {
        loses_nothing(Operation::Write, mtu);
        loses_nothing(Operation::Read, mtu);
    }
}
