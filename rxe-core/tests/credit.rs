//! UC between two engines: the sender does not outrun the receiver's socket.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod common;

use std::collections::VecDeque;

use common::*;
use rxe_core::Counter;
use rxe_core::path::Transmit;
use rxe_core::qp::{Mtu, QpCaps, QpType};
use rxe_core::wq::SendOp;

/// Packets that a receive buffer of the default size holds (of 1 KiB).
const BUFFER: usize = 92;
const MESSAGES: u64 = 40;
const LENGTH: u32 = 16 * 1024;

fn uc_pair() -> (Host, Host) {
    let host = |number| Host::with_type(number, QpType::Uc, QpCaps::default());
    let (mut one, mut two) = (host(1), host(2));
    let attrs = (one.attr(&two, 1, Mtu::M1024), two.attr(&one, 2, Mtu::M1024));
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
