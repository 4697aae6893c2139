//! One-sided work goes on at a host whose program never calls in, or has just stopped doing so.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod common;

use std::time::{Duration, Instant};

use common::*;
use ibverbs_api::*;

/// Below the ACK timeout of 8 times a second, above what the threads of a busy machine wait for.
const SOON: Duration = Duration::from_secs(5);

fn one_sided_round(one: &End, from: &MemoryRegion, to: &MemoryRegion, len: usize) -> Duration {
    let bytes = pattern(len, 77);
    from.buffer().write_at(0, &bytes).unwrap();
    let start = Instant::now();
    one.post(1, SendOp::Write { remote: to.remote_addr(0), imm: None }, &[from.sge(0..len)]);
    one.done();
    one.post(2, SendOp::Read { remote: to.remote_addr(0) }, &[from.sge(len..2 * len)]);
    one.done();
    let took = start.elapsed();
    assert_same(&read(from.buffer(), len, len), &bytes, "back from the peer");
    took
}

#[test]
fn a_peer_that_never_polls_is_written_and_read() {
    let (one, two) = pair(&Setup::default());
    let (from, to) = (one.register(2 << 20), two.register(1 << 20));
    for len in [1, 1000, 100_000, 1 << 20] {
        let took = one_sided_round(&one, &from, &to, len);
        assert!(took < SOON, "{took:?} for {len} bytes there and back");
    }
}

#[test]
fn a_peer_that_has_just_stopped_polling_is_written_and_read() {
    let (one, two) = pair(&Setup::default());
    let (from, to) = (one.register(2048), two.register(1024));
    for round in 0..50 {
        // The sockets are disarmed now; only the lease hands them back.
        let end = Instant::now() + Duration::from_micros(100 * round);
        while Instant::now() < end {
            two.cq.poll(1, &mut Vec::new());
        }
        two.cq.poll(1, &mut Vec::new());
        let took = one_sided_round(&one, &from, &to, 1024);
        assert!(took < SOON, "{took:?} after {round} rounds");
    }
}

#[test]
fn nobody_polls_at_either_end() {
    let (one, two) = pair(&Setup { signal_all: false, ..Setup::default() });
    let (from, to) = (one.register(1 << 20), two.register(1 << 20));
    let bytes = pattern(1 << 20, 4);
    from.buffer().write_at(0, &bytes).unwrap();
    one.post(1, SendOp::Write { remote: to.remote_addr(0), imm: None }, &[from.sge(0..1 << 20)]);
    let mut last = [0; 8];
    // Programs poll on the last byte (R61).
    let took = eventually("the last byte", || {
        to.buffer().read_at((1 << 20) - 8, &mut last).unwrap();
        last == bytes[(1 << 20) - 8..]
    });
    assert!(took < SOON, "{took:?}");
    assert_same(&read(to.buffer(), 0, 1 << 20), &bytes, "all before the last byte");
    one.done();
}

#[test]
fn timers_fire_when_the_poller_stops() {
    // Receiver not ready: the requester waits for the RNR timer, without anyone polling there.
    let setup = Setup { min_rnr_timer: 14, ..Setup::default() };
    let (one, two) = pair(&setup);
    let buffer = two.register(8);
    for id in 0..20 {
        one.qp.post_send(&wr(id, SEND, SendFlags::SIGNALED, SendData::Inline(b"x"))).unwrap();
        // Polls a little, and stops in the middle of the wait.
        one.cq.poll(1, &mut Vec::new());
        std::thread::sleep(Duration::from_millis(1));
        two.recv(id, &[buffer.sge(0..8)]);
        let mut found = Vec::new();
        let took = eventually("the receive", || two.cq.poll(1, &mut found) == 1);
        assert!(took < SOON, "{took:?}");
        one.done();
    }
    assert!(one.context.counter(Counter::rcvd_rnr_err) > 0, "the receiver was never not ready");
}

#[test]
fn a_loss_is_repaired_while_nobody_polls() {
    let mut options = options();
    options.link.faults = Some("drop=5%,seed=7".parse().unwrap());
    let setup = Setup::default();
    let one = End::new(&open_with(options.clone()), &setup, None);
    let two = End::new(&open_with(options), &setup, None);
    connect(&setup, (&one.context, &one.qp), (&two.context, &two.qp));
    let (from, to) = (one.register(400_000), two.register(400_000));
    let bytes = pattern(400_000, 8);
    from.buffer().write_at(0, &bytes).unwrap();
    one.post(1, SendOp::Write { remote: to.remote_addr(0), imm: None }, &[from.sge(0..400_000)]);
    eventually("the last byte", || read(to.buffer(), 399_992, 8) == bytes[399_992..]);
    assert_same(&read(to.buffer(), 0, 400_000), &bytes, "all before the last byte");
    one.done();
    assert!(one.context.link_counters().faults > 0);
}
