//! Queue pairs that send at the same time: whose packets leave together, and who has which share.
#![allow(clippy::unwrap_used)] // a test

mod common;

use std::collections::VecDeque;
use std::sync::Arc;

use common::{Host, exchange};
use rxe_core::qp::{Mtu, QpInit, QpType};
use rxe_core::wq::SendOp;
use rxe_core::{Instant, QueuePair, Transmit};
use rxe_wire::{Opcode, Packet};

/// Two hosts with queue pairs that are connected to those of the other, one by one.
struct Hosts {
    host: Host,
    peer: Host,
    /// Of the host, and of the peer.
    qps: Vec<[Arc<QueuePair>; 2]>,
}

/// A message of so many bytes.
#[derive(Clone, Copy)]
enum What {
    Write(u32),
    Send(u32),
}

impl Hosts {
    fn new(pairs: usize) -> Self {
        Self::with_mtu(pairs, Mtu::M1024)
    }

    fn with_mtu(pairs: usize, mtu: Mtu) -> Self {
        let mut hosts = Self { host: Host::new(1), peer: Host::new(2), qps: Vec::new() };
        for pair in 0..pairs {
            let Self { host, peer, qps } = &mut hosts;
            for host in [&mut *host, &mut *peer] {
                if pair > 0 {
                    let init = QpInit::new(QpType::Rc, host.pd, &host.cq);
                    host.qp = host.shard.create_qp(init).unwrap();
                }
            }
            let of_host = host.attr(peer, 1, mtu);
            let of_peer = peer.attr(host, 2, mtu);
            host.connect(of_host);
            peer.connect(of_peer);
            qps.push([host.qp.clone(), peer.qp.clone()]);
        }
        hosts
    }

    /// Posts a message on the queue pair of this number.
    fn post(&mut self, number: usize, what: What) {
        let [qp, qp_of_peer] = self.qps[number].clone();
        (self.host.qp, self.peer.qp) = (qp, qp_of_peer);
        let remote = self.peer.remote(0);
        match what {
            What::Write(len) => self.host.post(0, SendOp::Write { remote, imm: None }, 0, len),
            What::Send(len) => {
                self.peer.post_recv(0, 0, len);
                self.host.post(0, SendOp::Send { imm: None }, 0, len);
            }
        }
    }

    /// The queue pair, by its number, and the opcode of a packet of the host.
    fn name(&self, (_, bytes): &(Transmit, Vec<u8>)) -> (usize, Opcode) {
        let bth = Packet::parse(bytes).unwrap().bth();
        let number = self.qps.iter().position(|[_, of_peer]| of_peer.qpn() == bth.dest_qpn);
        (number.unwrap(), bth.opcode)
    }
}

/// Segmented sends that packets take in this order: of one length, but that the last may be shorter.
fn sends(packets: &[(Transmit, Vec<u8>)]) -> usize {
    let (mut count, mut longest) = (0, 0);
    for (transmit, _) in packets {
        if longest == 0 || transmit.len > longest {
            (count, longest) = (count + 1, transmit.len);
        } else if transmit.len < longest {
            // It is at its end.
            longest = 0;
        }
    }
    count
}

#[test]
fn the_first_packets_of_writes_leave_together() {
    let mut hosts = Hosts::new(5);
    for number in 0..5 {
        (0..3).for_each(|_| hosts.post(number, What::Write(4096)));
    }
    let packets = hosts.host.transmit();
    let order: Vec<_> = packets.iter().map(|packet| hosts.name(packet)).collect();
    let firsts = |at: usize| {
        let mut of: Vec<_> = order[at..at + 5].iter().map(|(number, _)| *number).collect();
        of.sort_unstable();
        assert_eq!(of, [0, 1, 2, 3, 4]);
        order[at..at + 5].iter().all(|(_, opcode)| *opcode == Opcode::RC_WRITE_FIRST)
    };
    assert!(firsts(0) && firsts(20) && firsts(40), "{order:?}");
    // The first ones with one behind them, and the others: of one by one it would be 30.
    assert_eq!((packets.len(), sends(&packets)), (60, 6));
    packets.iter().for_each(|packet| hosts.peer.receive(packet));
    exchange(&mut hosts.host, &mut hosts.peer);
    assert_eq!(hosts.host.completions().len(), 15);
}

/// Who sends short WRITEs has the same share as who sends long messages.
#[test]
fn each_sends_as_much_in_a_round() {
    let mut hosts = Hosts::new(4);
    let short = What::Write(16384);
    for (number, what, count) in [
        (0, short, 128),
        (1, What::Send(1 << 20), 8),
        (2, short, 128),
        (3, What::Write(1 << 20), 8),
    ] {
        (0..count).for_each(|_| hosts.post(number, what));
    }
    let mut sent = [0_u32; 4];
    while sent.iter().sum::<u32>() < 6000 {
        let packets = hosts.host.transmit();
        packets.iter().for_each(|packet| sent[hosts.name(packet).0] += 1);
        packets.iter().for_each(|packet| hosts.peer.receive(packet));
        hosts.peer.transmit().iter().for_each(|packet| hosts.host.receive(packet));
    }
    let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
    assert!(2 * most <= 3 * least, "{sent:?}");
}

/// Whoever waits for the room of a full send has asked for the acknowledgement that makes it: no
/// timer has to do so.
#[test]
fn who_waits_for_a_full_send_waits_for_an_acknowledgement_that_was_asked_for() {
    const MESSAGES: usize = 12;
    // Packets of a message, one more than a full send has, and those that come through at a time.
    let (packets, pairs) = (63, 3);
    for at_once in 1..=124 {
        let mut hosts = Hosts::new(pairs);
        for number in 0..pairs {
            (0..MESSAGES).for_each(|_| hosts.post(number, What::Send(packets * 1024)));
        }
        let mut under_way = VecDeque::new();
        let mut completed = 0;
        while completed < pairs * MESSAGES {
            under_way.extend(hosts.host.transmit());
            assert!(!under_way.is_empty(), "{at_once} at once: {completed} completed");
            let arrived = under_way.drain(..under_way.len().min(at_once));
            arrived.for_each(|packet| hosts.peer.receive(&packet));
            hosts.peer.transmit().iter().for_each(|packet| hosts.host.receive(packet));
            completed += hosts.host.completions().len();
        }
    }
}

/// Where the window is so small that room comes packet by packet, who has sent one is behind those
/// who have not.
#[test]
fn a_small_window_is_for_all() {
    const PAIRS: usize = 3;
    let mut hosts = Hosts::with_mtu(PAIRS, Mtu::M4096);
    for number in 0..PAIRS {
        (0..30).for_each(|_| hosts.post(number, What::Write(4096)));
    }
    // All is lost until the timers have made it small.
    while hosts.host.now < Instant::from_nanos(100_000_000) {
        hosts.host.transmit();
        hosts.host.now = hosts.host.shard.poll_timeout().unwrap();
        hosts.host.shard.handle_timeout(hosts.host.now);
    }
    let (mut under_way, mut arrived) = (VecDeque::new(), [0; PAIRS]);
    for _ in 0..40 {
        under_way.extend(hosts.host.transmit());
        let packet = under_way.pop_front().unwrap();
        arrived[hosts.name(&packet).0] += 1;
        hosts.peer.receive(&packet);
        hosts.peer.transmit().iter().for_each(|packet| hosts.host.receive(packet));
    }
    assert!(arrived.iter().all(|&count| count >= 10), "{arrived:?}");
}
