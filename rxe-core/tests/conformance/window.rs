//! How much is under way at once.

use std::sync::Arc;

use rxe_core::QueuePair;
use rxe_core::qp::{Mtu, QpAttr, QpAttrMask, QpInit, QpState, QpType};
use rxe_core::wq::{SendData, SendFlags, SendOp, SendWr};
use rxe_wire::Packet;
use rxe_wire::{Psn, Qpn};

use crate::common::{init_mask, rtr_mask, rts_mask};
use crate::script::*;

#[test]
fn no_more_than_64_packets_leave_at_first() {
    for mtu in Mtu::ALL {
        for len in [0, 64, mtu.bytes() as u32] {
            let mut s = Script::with(|attr| attr.path_mtu = mtu);
            for wr_id in 0..200 {
                s.send(wr_id, len);
            }
            let sent = s.host.transmit();
            assert!(sent.len() <= 64, "{} packets of {len} bytes", sent.len());
            // Nor more than the buffer of a socket holds (facts.md): 92 packets of 1 KiB.
            let bytes: usize = sent.iter().map(|(_, bytes)| bytes.len() + 64).sum();
            assert!(bytes < 92 * 1100, "{bytes} bytes");
            assert!(sent.len() >= 8);
        }
    }
}

#[test]
fn the_window_grows_on_progress() {
    let mut s = Script::rts();
    for wr_id in 0..500 {
        s.send(wr_id, 1);
    }
    let first = s.sent().len();
    assert_eq!(first, 64);
    s.rx(&ack(63, 64));
    let second = s.sent().len();
    assert!((65..=128).contains(&second), "{second}");
}

#[test]
fn the_window_is_cut_on_loss() {
    let mut s = Script::with(|attr| attr.path_mtu = Mtu::M1024);
    for wr_id in 0..500 {
        s.send(wr_id, 1024);
    }
    assert_eq!(s.sent().len(), 64);
    s.rx(&nak_seq(32, 32));
    let after = s.sent().len();
    assert!(after <= 48, "{after}");
    // After silence it starts small again.
    s.wait(MS);
    let after = s.sent().len();
    assert!(after <= 4, "{after}");
}

#[test]
fn bytes_that_reads_have_asked_for_count() {
    let mut s = Script::rts();
    s.read(1, 200 * 256).read(2, 200 * 256);
    let asked: u32 = s.sent().iter().map(P::asked).sum();
    assert!((8 * 256..=64 * 256).contains(&asked), "{asked}");
    let mut s = Script::rts();
    for wr_id in 0..64 {
        s.send(wr_id, 1);
    }
    s.sent();
    s.read(1, 256).quiet();
    s.rx(&ack(63, 64)).tx([read(64, far(0), 256)]);
}

/// A second QP of the same shard, to the same peer.
fn second_qp(s: &mut Script, change: impl FnOnce(&mut QpAttr)) -> Arc<QueuePair> {
    let init = QpInit { signal_all: true, ..QpInit::new(QpType::Rc, s.host.pd, &s.host.cq) };
    let qp = s.host.shard.create_qp(init).unwrap();
    let mut attr = QpAttr { dest_qpn: SECOND_PEER, sq_psn: Psn::new(5), ..s.attr };
    change(&mut attr);
    for (state, mask) in
        [(QpState::Init, init_mask()), (QpState::Rtr, rtr_mask()), (QpState::Rts, rts_mask())]
    {
        let attr = QpAttr { state, ..attr };
        s.host.shard.modify_qp(s.host.now, qp.qpn(), &attr, mask).unwrap();
    }
    qp
}

/// What the second QP is connected to.
const SECOND_PEER: Qpn = Qpn::new(0x02_0043);

fn post(s: &mut Script, qp: &QueuePair) {
    let (op, flags) = (SendOp::Send { imm: None }, SendFlags::empty());
    qp.post_send(&SendWr { wr_id: 1, op, flags, data: SendData::Inline(&[1]), srq_number: None })
        .unwrap();
    s.host.shard.kick(s.host.now, qp.qpn());
}

/// The first QP has filled the window, and the second one waits for room.
fn waiting() -> (Script, Arc<QueuePair>) {
    let mut s = Script::rts();
    let second = second_qp(&mut s, |_| {});
    for wr_id in 0..100 {
        s.send(wr_id, 1);
    }
    assert_eq!(s.sent().len(), 64);
    post(&mut s, &second);
    s.quiet();
    (s, second)
}

fn sent_by_second(s: &mut Script) -> usize {
    s.host.transmit().iter().filter(|(transmit, _)| transmit.dest_qpn == SECOND_PEER).count()
}

#[test]
fn a_resend_needs_no_room() {
    // The first QP has no ACK timer, and keeps the window full while nothing is answered.
    let mut s = Script::with(|attr| attr.timeout = 0);
    let second = second_qp(&mut s, |attr| attr.timeout = 11);
    post(&mut s, &second);
    assert_eq!(sent_by_second(&mut s), 1);
    for wr_id in 0..100 {
        s.send(wr_id, 1);
    }
    assert_eq!(s.sent().len(), 63);
    for timeout in 1..=RETRY_CNT {
        s.wait(4096 << 11);
        assert_eq!(s.state(), QpState::Rts);
        assert!(sent_by_second(&mut s) >= 1, "at timeout {timeout}");
    }
}

#[test]
fn a_peer_that_does_not_answer_takes_no_room_from_others() {
    let mut s = Script::rts();
    let second = second_qp(&mut s, |_| {});
    // The round trip is known: short timers of 0.2 ms and more, five of them in vain.
    s.send(0, 1).sent();
    s.rx(&ack(0, 1));
    for wr_id in 1..=100 {
        s.send(wr_id, 1);
    }
    assert_eq!(s.sent().len(), 64);
    post(&mut s, &second);
    for _ in 0..8 {
        let sent = s.wait(MS).host.transmit();
        assert!(sent.iter().all(|(transmit, _)| transmit.dest_qpn == PEER_QPN));
    }
    s.wait(MS);
    assert_eq!(sent_by_second(&mut s), 1, "long before the ACK timer");
    // Nor does it get anything new until it answers; then all goes on.
    s.send(1000, 1);
    assert_eq!(sent_by_first(&mut s), 0);
    s.rx(&ack(64, 65));
    assert_eq!(sent_by_first(&mut s), 37);
}

#[test]
fn what_was_asked_for_again_is_watched_over_though_the_window_is_full() {
    let mut s = Script::rts();
    let second = second_qp(&mut s, |_| {});
    let data = bytes(2 * MTU, 3);
    s.read(1, data.len() as u32).send(2, 1).sent();
    s.rx(&resp_last(1, 1, &data[MTU..])).tx([read(0, far(0), data.len() as u32)]);
    // While the peer is not ready for the SEND, another queue pair fills the window.
    s.rx(&rnr(2, 12, 1)).quiet();
    (0..100).for_each(|_| post(&mut s, &second));
    assert!(sent_by_second(&mut s) < 100);
    // The answer to what was asked for is lost, and nothing else may go.
    let asked = [MS, EARLY].map(|nanos| sent_by_first(s.wait(nanos)));
    assert_eq!(asked, [0, 1], "a timer ran");
    s.rx(&resp_first(0, 1, &data[..MTU])).rx(&resp_last(1, 1, &data[MTU..]));
    s.done([(1, Success)]);
}

fn sent_by_first(s: &mut Script) -> usize {
    s.host.transmit().iter().filter(|(transmit, _)| transmit.dest_qpn == PEER_QPN).count()
}

#[test]
fn queue_pairs_to_one_peer_share_the_window() {
    let (mut s, _second) = waiting();
    // The first one fills the room again, but then it is the other's turn.
    s.rx(&ack(10, 11));
    let mut sent = sent_by_second(&mut s);
    s.rx(&ack(40, 41));
    sent += sent_by_second(&mut s);
    assert_eq!(sent, 1);
}

#[test]
fn a_full_window_is_filled_again_only_when_a_quarter_of_it_is_free() {
    let (mut s, _second) = waiting();
    for psn in 0..7 {
        s.rx(&ack(psn, u32::from(psn as u8) + 1));
        assert!(s.host.transmit().is_empty(), "after packet {psn}");
    }
    s.rx(&ack(16, 17));
    assert!(s.host.transmit().len() > 16, "in one go");
}

#[test]
fn a_read_does_not_starve_while_another_queue_pair_sends_small_packets() {
    let (mut s, second) = waiting();
    let sges = [s.host.sge(LANDING, 60 * 256)];
    let (op, flags) = (SendOp::Read { remote: far(0) }, SendFlags::empty());
    second
        .post_send(&SendWr { wr_id: 2, op, flags, data: SendData::Sges(&sges), srq_number: None })
        .unwrap();
    s.host.shard.kick(s.host.now, second.qpn());
    // Every acknowledgement of one packet is followed by a new packet to send.
    let mut asked = 0;
    for psn in 0..300 {
        s.send(1000, 1).rx(&ack(psn, 0));
        for (_, bytes) in s.host.transmit() {
            let packet = Packet::parse(&bytes).expect("a packet");
            asked += packet.reth().map_or(0, |reth| reth.len);
        }
    }
    assert_eq!(asked, 60 * 256, "all parts of the READ of the second, each once");
}

#[test]
fn a_queue_pair_that_goes_away_leaves_its_room_to_others() {
    let (mut s, _second) = waiting();
    s.host.modify(QpAttr { state: QpState::Reset, ..s.attr }, QpAttrMask::STATE);
    assert_eq!(sent_by_second(&mut s), 1, "after a move to RESET");
    let (mut s, _second) = waiting();
    s.host.modify(QpAttr { state: QpState::Err, ..s.attr }, QpAttrMask::STATE);
    assert_eq!(sent_by_second(&mut s), 1, "after a move to ERR");
    let (mut s, _second) = waiting();
    let qpn = s.qpn();
    s.host.shard.destroy_qp(qpn).unwrap();
    assert_eq!(sent_by_second(&mut s), 1, "after its end");
}

#[test]
fn a_hint_that_a_packet_did_not_arrive_counts_only_while_it_is_awaited() {
    let mut s = Script::rts();
    s.send(1, 1).sent();
    let hint = |s: &mut Script, destination, dest_qpn, psn| {
        let hint = rxe_core::Unreachable { destination, dest_qpn, psn };
        s.host.shard.handle_unreachable(s.host.now, &hint);
        s.count(rxe_core::Counter::unreachable_hints)
    };
    let peer = s.path.source;
    assert_eq!(hint(&mut s, peer, Qpn::new(PEER_QPN.get() + 1), HOST_PSN), 0);
    assert_eq!(hint(&mut s, peer, PEER_QPN, HOST_PSN.plus(1)), 0);
    let own = s.host.gid;
    assert_eq!(hint(&mut s, own, PEER_QPN, HOST_PSN), 0);
    assert_eq!(hint(&mut s, peer, PEER_QPN, HOST_PSN), 1);
    let own = s.host.shard.qp_counters(s.qpn()).unwrap();
    assert_eq!(own.get(rxe_core::Counter::unreachable_hints), 1);
    s.rx(&ack(0, 1)).done([(1, Success)]);
    assert_eq!(hint(&mut s, peer, PEER_QPN, HOST_PSN), 1);
}
