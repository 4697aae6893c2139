//! UC between two engines: the sender does not outrun the receiver's socket.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod common;

use std::collections::VecDeque;
use std::sync::Arc;

use common::*;
use gid_table::Gid;
use rxe_core::path::Transmit;
use rxe_core::qp::{Mtu, QpAttr, QpCaps, QpInit, QpType, steps_to_rts};
use rxe_core::wq::{SendData, SendFlags, SendOp, SendWr, Sge};
use rxe_core::{Counter, QueuePair};
use rxe_wire::Qpn;

/// Packets that a receive buffer of the default size holds (of 1 KiB).
const BUFFER: usize = 92;
const MESSAGES: u64 = 40;
const LENGTH: u32 = 16 * 1024;

fn uc_pair() -> (Host, Host) {
    uc_pair_of(Mtu::M1024)
}

fn uc_pair_of(mtu: Mtu) -> (Host, Host) {
    let host = |number| Host::with_type(number, QpType::Uc, QpCaps::default());
    let (mut one, mut two) = (host(1), host(2));
    let attrs = (one.attr(&two, 1, mtu), two.attr(&one, 2, mtu));
    one.connect(attrs.0);
    two.connect(attrs.1);
    (one, two)
}

fn post_all(one: &mut Host, two: &mut Host) {
    for wr_id in 0..MESSAGES {
        two.post_recv(wr_id, 0, LENGTH);
        one.post(wr_id, SendOp::Send { imm: None }, 0, LENGTH);
    }
}

#[test]
fn a_receiver_that_comes_late_loses_nothing() {
    let (mut one, mut two) = uc_pair();
    one.pattern(0, LENGTH as usize, 3);
    post_all(&mut one, &mut two);
    let mut socket: VecDeque<(Transmit, Vec<u8>)> = VecDeque::new();
    let mut rounds = 0;
    loop {
        // The sender has the processor for as long as it has anything to do.
        let sent = one.transmit();
        let is_over = sent.is_empty() && socket.is_empty();
        socket.extend(sent);
        assert!(socket.len() <= BUFFER, "{} packets: some would be lost", socket.len());
        for packet in socket.drain(..) {
            two.receive(&packet);
        }
        two.transmit().iter().for_each(|packet| one.receive(packet));
        rounds += 1;
        if is_over {
            break;
        }
    }
    assert!(rounds > 5, "it was never held up");
    assert_eq!(one.completions().len() as u64, MESSAGES);
    assert_eq!(two.completions().len() as u64, MESSAGES);
    assert_eq!(two.bytes(0, LENGTH as usize), one.bytes(0, LENGTH as usize));
    assert_eq!(two.device.counter(Counter::out_of_seq_request), 0);
}

#[test]
fn a_lost_question_is_repeated() {
    let (mut one, mut two) = uc_pair();
    post_all(&mut one, &mut two);
    // All of it is lost.
    let lost = one.transmit().len();
    assert!((32..=BUFFER).contains(&lost), "{lost} packets before an answer");
    assert!(one.transmit().is_empty());
    one.now = one.shard.poll_timeout().unwrap();
    let again = {
        one.shard.handle_timeout(one.now);
        one.transmit()
    };
    assert_eq!(again.len(), 1, "the question alone");
    two.receive(&again[0]);
    two.transmit().iter().for_each(|packet| one.receive(packet));
    exchange(&mut one, &mut two);
    assert_eq!(one.completions().len() as u64, MESSAGES);
}

#[test]
fn a_peer_that_does_not_know_the_question_gets_everything() {
    let (mut one, mut two) = uc_pair();
    post_all(&mut one, &mut two);
    let begun = one.now;
    let mut packets = one.transmit().len();
    while let Some(at) = one.shard.poll_timeout() {
        one.now = at;
        one.shard.handle_timeout(at);
        packets += one.transmit().len();
    }
    assert!(packets as u64 >= MESSAGES * 16, "{packets} packets");
    assert_eq!(one.completions().len() as u64, MESSAGES);
    assert!(one.now.nanos_since(begun) < 50_000_000, "and soon");
}

#[test]
fn who_has_much_to_send_does_not_keep_others_from_it() {
    // A window is less than a turn.
    let (mut one, mut two) = uc_pair_of(Mtu::M4096);
    // A second and a third queue pair of the same two hosts.
    let others: Vec<_> = (0..2).map(|_| second_pair(&mut one, &mut two)).collect();
    let mut delivered = [0; 2];
    for round in 0..40 {
        // The first has always something to send.
        while one.qp.post_send(&send(&one.sge(0, LENGTH))).is_ok() {}
        one.shard.kick(one.now, one.qp.qpn());
        if round == 0 {
            for (qp, _) in &others {
                for _ in 0..4 {
                    qp.post_send(&send(&one.sge(0, LENGTH))).unwrap();
                }
                one.shard.kick(one.now, qp.qpn());
            }
        }
        for packet in one.transmit() {
            let (transmit, bytes) = &packet;
            let other = others.iter().position(|(_, peer)| transmit.dest_qpn == *peer);
            if let Some(index) = other.filter(|_| bytes.len() > 500) {
                delivered[index] += 1;
            }
            two.receive(&packet);
        }
        two.transmit().iter().for_each(|packet| one.receive(packet));
        one.completions();
    }
    assert_eq!(delivered, [16; 2], "packets of the others in 40 windows");
}

fn send(sge: &Sge) -> SendWr<'_> {
    let (op, flags) = (SendOp::Send { imm: None }, SendFlags::SIGNALED);
    let data = SendData::Sges(std::slice::from_ref(sge));
    SendWr { wr_id: 1, op, flags, data, srq_number: None }
}

/// Another queue pair of `one`, connected, and its peer.
fn second_pair(one: &mut Host, two: &mut Host) -> (Arc<QueuePair>, Qpn) {
    let make =
        |host: &mut Host| host.shard.create_qp(QpInit::new(QpType::Uc, host.pd, &host.cq)).unwrap();
    let (qp, peer) = (make(one), make(two));
    let attr = QpAttr { dest_qpn: peer.qpn(), ..one.attr(two, 1, Mtu::M4096) };
    for (state, mask) in steps_to_rts(QpType::Uc) {
        one.shard.modify_qp(one.now, qp.qpn(), &QpAttr { state, ..attr }, mask).unwrap();
    }
    (qp, peer.qpn())
}

#[test]
fn a_peer_whose_queue_pair_is_gone_answers_for_its_socket() {
    let (mut one, mut two) = uc_pair();
    post_all(&mut one, &mut two);
    two.shard.destroy_qp(two.qp.qpn()).unwrap();
    exchange(&mut one, &mut two);
    assert_eq!(one.completions().len() as u64, MESSAGES, "nobody waited for a timer");
}

#[test]
fn a_question_to_a_group_is_not_answered() {
    let (mut one, mut two) = uc_pair();
    post_all(&mut one, &mut two);
    let question = one.transmit().into_iter().find(|(_, bytes)| bytes[0] == 0xd0).unwrap();
    let (mut transmit, bytes) = question;
    transmit.path.destination = Gid::from_ip([224, 0, 0, 9].into());
    two.receive(&(transmit, bytes));
    assert!(two.transmit().is_empty(), "a group is no source");
}
