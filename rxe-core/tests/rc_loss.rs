//! Goodput over a network that loses packets, in simulated time: what is left of it does not depend
//! on how busy the machine is that the test runs on.

#![allow(clippy::unwrap_used)] // a test may fail

mod common;

use std::collections::VecDeque;

use common::Host;
use rxe_core::qp::{Mtu, QpAttr};
use rxe_core::wq::SendOp;
use rxe_core::{Counter, Instant, Shard, Transmit};

const MESSAGE: u32 = 1 << 20;
/// Messages under way.
const DEPTH: u64 = 8;
const MESSAGES: u64 = 60;
/// What a sender does in a nanosecond: 3.3 GB/s, and 40 ns for each packet.
const NANOS_PER_KIB: u64 = 300;
const NANOS_PER_PACKET: u64 = 40;
/// What Linux charges a receive buffer of the default size for packets (facts.md).
const BUFFER: usize = 212_992;
/// From one end to the other, threads included.
const DELAY_NANOS: u64 = 15_000;

/// One direction of the wire.
#[derive(Default)]
struct Wire {
    /// The sender is busy until then.
    busy: u64,
    arriving: VecDeque<(u64, Transmit, Vec<u8>)>,
    /// In the receive buffer, which holds so much by Linux's reckoning.
    waiting: VecDeque<(Transmit, Vec<u8>)>,
    used: usize,
    /// The receiver is busy until then.
    receiver_busy: u64,
    lost: u64,
    overflowed: u64,
}

/// A network with two hosts.
struct World {
    hosts: [Host; 2],
    /// To the host of this index.
    wires: [Wire; 2],
    now: u64,
    /// Parts of a thousand that are lost.
    loss: u64,
    /// How much slower receivers are than senders, in percent of their time.
    slowness: u64,
    random: u64,
}

impl World {
    fn new(mtu: Mtu, loss: u64, slowness: u64, seed: u64) -> Self {
        let (mut one, mut two) = (Host::new(1), Host::new(2));
        let (attr_one, attr_two) = (one.attr(&two, 1, mtu), two.attr(&one, 2, mtu));
        let reads = |attr| QpAttr { max_rd_atomic: 16, max_dest_rd_atomic: 16, ..attr };
        one.connect(reads(attr_one));
        two.connect(reads(attr_two));
        let wires = Default::default();
        Self { hosts: [one, two], wires, now: 0, loss, slowness, random: seed }
    }

    fn is_lost(&mut self) -> bool {
        // xorshift64.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) % 1000 < self.loss
    }

    /// Does what is to be done now, and lets time pass until something else is.
    fn step(&mut self) {
        let mut next = u64::MAX;
        for end in 0..2 {
            next = next.min(self.receive_at(end));
        }
        for end in 0..2 {
            next = next.min(self.send_from(end));
        }
        assert!(next < u64::MAX, "nothing will ever happen");
        self.now = next.max(self.now + 1);
        for host in &mut self.hosts {
            host.now = Instant::from_nanos(self.now);
            if host.shard.poll_timeout().is_some_and(|at| at <= host.now) {
                host.shard.handle_timeout(host.now);
            }
        }
    }

    /// Takes in what has arrived; when there is to be looked again.
    fn receive_at(&mut self, end: usize) -> u64 {
        let (now, wire) = (self.now, &mut self.wires[end]);
        let mut next = u64::MAX;
        while let Some((at, transmit, bytes)) = wire.arriving.pop_front() {
            if at > now {
                wire.arriving.push_front((at, transmit, bytes));
                next = at;
                break;
            }
            let cost = truesize(transmit.len);
            if wire.used + cost > BUFFER {
                wire.overflowed += 1;
            } else {
                wire.used += cost;
                wire.waiting.push_back((transmit, bytes));
            }
        }
        while wire.receiver_busy <= now
            && let Some((transmit, bytes)) = wire.waiting.pop_front()
        {
            wire.used -= truesize(transmit.len);
            wire.receiver_busy = now + nanos(transmit.len) * self.slowness / 100;
            self.hosts[end].receive(&(transmit, bytes));
        }
        if wire.waiting.is_empty() { next } else { next.min(wire.receiver_busy) }
    }

    /// Sends one packet, if the sender is idle; when there is to be looked again.
    fn send_from(&mut self, end: usize) -> u64 {
        let (host, to) = (&mut self.hosts[end], 1 - end);
        if self.wires[to].busy <= self.now {
            let mut buf = vec![0; Shard::MAX_PACKET];
            if let Some(transmit) = host.shard.poll_transmit(host.now, &mut buf) {
                buf.truncate(transmit.len);
                let is_lost = self.is_lost();
                let wire = &mut self.wires[to];
                wire.busy = self.now + nanos(transmit.len);
                if is_lost {
                    wire.lost += 1;
                } else {
                    wire.arriving.push_back((wire.busy + DELAY_NANOS, transmit, buf));
                }
            }
        }
        let host = &self.hosts[end];
        let timer = host.shard.poll_timeout().map_or(u64::MAX, Instant::as_nanos);
        let busy = self.wires[to].busy;
        if busy > self.now && host.shard.wants_transmit() { timer.min(busy) } else { timer }
    }
}

/// What a sender needs for a packet.
fn nanos(len: usize) -> u64 {
    len as u64 * NANOS_PER_KIB / 1024 + NANOS_PER_PACKET
}

fn truesize(len: usize) -> usize {
    256 + (len + 384).next_power_of_two().max(576)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    Write,
    Read,
}

/// Bytes a microsecond.
fn goodput(mtu: Mtu, operation: Operation, loss: u64, slowness: u64, seed: u64) -> f64 {
    let mut world = World::new(mtu, loss, slowness, seed);
    let remote = world.hosts[1].remote(0);
    let op = match operation {
        Operation::Write => SendOp::Write { remote, imm: None },
        Operation::Read => SendOp::Read { remote },
    };
    let (mut posted, mut done) = (0, 0);
    while done < MESSAGES {
        while posted < MESSAGES && posted - done < DEPTH {
            world.hosts[0].post(posted, op, 0, MESSAGE);
            posted += 1;
        }
        world.step();
        done += world.hosts[0].completions().len() as u64;
    }
    for (host, wire) in world.hosts.iter().zip(&world.wires) {
        let timeouts = host.shard.counters().get(Counter::completer_retry_err);
        assert_eq!(timeouts, 0, "{operation:?} {mtu:?} loss {loss} seed {seed}: ACK timeouts");
        assert!(loss == 0 || wire.lost > 0, "packets were lost");
    }
    (MESSAGES * u64::from(MESSAGE)) as f64 * 1000.0 / world.now as f64
}

impl Operation {
    /// What is to be left of the goodput where one packet in a hundred is lost, each way: for a
    /// WRITE all behind a lost packet is sent again, for a READ the lost packet alone.
    fn wanted(self) -> f64 {
        match self {
            Self::Write => 0.25,
            Self::Read => 0.7,
        }
    }
}

fn keeps_goodput(operation: Operation, mtu: Mtu) {
    let whole = goodput(mtu, operation, 0, 80, 1);
    for seed in 1..=3 {
        let lossy = goodput(mtu, operation, 10, 80, seed);
        let ratio = lossy / whole;
        println!("{operation:?} {mtu:?} seed {seed}: {lossy:.0} of {whole:.0} MB/s, {ratio:.2}");
        assert!(
            ratio >= operation.wanted(),
            "{operation:?} {mtu:?} seed {seed}: {lossy} of {whole} MB/s"
        );
    }
}

#[test]
fn write_keeps_a_quarter() {
    keeps_goodput(Operation::Write, Mtu::M1024);
    keeps_goodput(Operation::Write, Mtu::M4096);
}

#[test]
fn read_keeps_most_of_it() {
    keeps_goodput(Operation::Read, Mtu::M1024);
    keeps_goodput(Operation::Read, Mtu::M4096);
}

/// A receiver that is slower than the sender: its buffer overflows, but the window sees to it that
/// hardly anything is sent in vain.
#[test]
fn a_slow_receiver_is_not_drowned() {
    for operation in [Operation::Write, Operation::Read] {
        for (mtu, slowness) in [(Mtu::M1024, 150), (Mtu::M1024, 300), (Mtu::M4096, 150)] {
            let possible = goodput(mtu, operation, 0, 80, 1) * 100.0 / slowness as f64;
            let slow = goodput(mtu, operation, 0, slowness, 1);
            let ratio = slow / possible;
            assert!(ratio >= 0.9, "{operation:?} {mtu:?}: {slow:.0} of {possible:.0} MB/s");
        }
    }
}
