//! UC: no acknowledgement, no retry; what is lost stays lost, and the next message is whole again.

use rxe_core::qp::{QpAttr, QpAttrMask, QpInit, QpState, QpType};
use rxe_core::srq::{SrqAttr, SrqInit};
use rxe_core::wc::{WcFlags, WcOpcode};
use rxe_core::wq::{PostSendError, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge};
use rxe_core::{AsyncEvent, Counter};
use rxe_wire::LKey;

use crate::script::*;

fn go(s: &mut Script, state: QpState) {
    s.host.modify(QpAttr { state, ..s.attr }, QpAttrMask::STATE);
}

/// A SEND of bytes that no registration covers.
fn send_from_nowhere(s: &mut Script, wr_id: u64, before: u32) {
    let good = s.host.sge(0, before);
    let bad = Sge { addr: 0, length: 1, lkey: LKey::new(0xdead_be00) };
    let (op, flags) = (SendOp::Send { imm: None }, SendFlags::SIGNALED);
    let sges = [good, bad];
    s.host.post_wr(&SendWr { wr_id, op, flags, data: SendData::Sges(&sges), srq_number: None });
}

#[test]
fn r16_no_packet_asks_for_an_acknowledgement_and_what_has_left_is_complete() {
    let mut s = Script::uc();
    let data = s.mem(0, 600);
    s.send(1, 600).write(2, 257).send(3, 0);
    s.done([]);
    s.tx([
        send_first(0, &data[..256]).uc(),
        send_middle(1, &data[256..512]).uc(),
        send_last(2, &data[512..]).uc(),
        write_first(3, far(0), 257, &data[..256]).uc(),
        write_last(4, &data[256..257]).uc(),
        send_only(5, &[]).uc(),
    ]);
    s.done([(1, Success), (2, Success), (3, Success)]);
    s.wait(100 * ACK_TIMEOUT).quiet().done([]);
}

#[test]
fn immediate_data_travels_with_the_last_packet() {
    let mut s = Script::uc();
    let data = s.mem(0, 300);
    let (imm, remote) = (Some(0xfeed), far(0));
    for (wr_id, op) in [(1, SendOp::Send { imm }), (2, SendOp::Write { remote, imm })] {
        s.post_with(wr_id, op, SendFlags::SIGNALED | SendFlags::SOLICITED, 300);
    }
    s.post_with(3, SendOp::Write { remote, imm }, SendFlags::empty(), 4);
    s.tx([
        send_first(0, &data[..256]).uc(),
        send_last_imm(1, &data[256..], 0xfeed).se().uc(),
        write_first(2, remote, 300, &data[..256]).uc(),
        write_last_imm(3, &data[256..], 0xfeed).se().uc(),
        write_only_imm(4, remote, &data[..4], 0xfeed).uc(),
    ]);
    // The third was not signaled.
    s.done([(1, Success), (2, Success)]);
}

#[test]
fn a_request_completes_when_its_last_packet_has_left_and_not_before() {
    let mut s = Script::uc();
    let mut buf = vec![0; rxe_core::Shard::MAX_PACKET];
    s.send(1, 300);
    assert!(s.host.shard.poll_transmit(s.host.now, &mut buf).is_some());
    s.done([]);
    assert!(s.host.shard.poll_transmit(s.host.now, &mut buf).is_some());
    s.done([(1, Success)]);
}

#[test]
fn r14_reads_are_refused_when_posted() {
    let s = Script::uc();
    let (op, flags) = (SendOp::Read { remote: far(0) }, SendFlags::SIGNALED);
    let error = s.host.qp.post_send(&SendWr {
        wr_id: 1,
        op,
        flags,
        data: SendData::Sges(&[]),
        srq_number: None,
    });
    assert!(matches!(error, Err(PostSendError::Unsupported { .. })), "{error:?}");
}

#[test]
fn nothing_that_comes_in_is_answered() {
    let mut s = Script::uc();
    s.recv(1, 600).recv(2, 64);
    let to = s.host.remote(INBOX);
    s.rx(&send_first(0, &bytes(256, 1)).uc().a()).quiet();
    s.rx(&send_last_imm(1, &bytes(10, 2), 77).uc().a()).quiet();
    let [wc] = s.host.completions()[..] else { panic!("one completion") };
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (1, Success, WcOpcode::Recv));
    assert_eq!((wc.byte_len, wc.imm, wc.flags), (266, 77, WcFlags::WITH_IMM));
    assert_eq!(s.mem(INBOX, 266), [bytes(256, 1), bytes(10, 2)].concat());
    s.rx(&write_first(2, to, 258, &bytes(256, 3)).uc().a()).quiet();
    s.rx(&write_last_imm(3, &bytes(2, 4), 78).uc().a()).quiet();
    let [wc] = s.host.completions()[..] else { panic!("one completion") };
    assert_eq!((wc.wr_id, wc.opcode, wc.byte_len), (2, WcOpcode::RecvRdmaWithImm, 258), "R38");
    assert_eq!(s.mem(INBOX, 258), [bytes(256, 3), bytes(2, 4)].concat());
    assert_eq!(s.count(Counter::rdma_recvs), 2);
    assert_eq!(s.count(Counter::out_of_seq_request), 0);
}

#[test]
fn r29_a_lost_packet_drops_the_message_and_the_next_one_is_taken() {
    let mut s = Script::uc();
    s.recv(1, 800).recv(2, 64);
    s.rx(&send_first(0, &bytes(256, 1)).uc());
    // The middle packet, PSN 1, is lost.
    s.rx(&send_last(2, &bytes(9, 2)).uc()).quiet().done([]);
    assert_eq!(s.count(Counter::drop_broken_message), 1);
    // The receive that it had is there for the next message, from its beginning.
    s.rx(&send_only(3, &bytes(20, 3)).uc()).quiet().done([(1, Success)]);
    assert_eq!(s.mem(INBOX, 20), bytes(20, 3));
    assert_eq!(s.mem(INBOX + 20, 4), bytes(256, 1)[20..24], "what came before stays where it was");
    s.rx(&send_only(4, &[]).uc()).done([(2, Success)]);
    assert_eq!(s.count(Counter::out_of_seq_request), 1);
}

#[test]
fn r29_a_lost_start_drops_the_whole_message() {
    let mut s = Script::uc();
    s.recv(1, 800);
    s.rx(&send_middle(1, &bytes(256, 1)).uc()).rx(&send_last(2, &bytes(9, 2)).uc());
    s.rx(&write_middle(3, &bytes(256, 1)).uc()).quiet().done([]);
    assert_eq!(s.count(Counter::drop_broken_message), 3);
    s.rx(&send_first(40, &bytes(256, 3)).uc()).rx(&send_last(41, &bytes(1, 4)).uc());
    s.quiet().done([(1, Success)]);
}

#[test]
fn r29_a_lost_end_drops_the_message_and_the_start_after_it_counts() {
    let mut s = Script::uc();
    s.recv(1, 800).recv(2, 800);
    s.rx(&send_first(0, &bytes(256, 1)).uc()).rx(&send_middle(1, &bytes(256, 1)).uc());
    // The last packet, PSN 2, is lost; and then a whole message is.
    s.rx(&send_first(5, &bytes(256, 2)).uc()).rx(&send_last(6, &bytes(30, 3)).uc());
    s.quiet().done([(1, Success)]);
    assert_eq!(s.mem(INBOX, 286), [bytes(256, 2), bytes(30, 3)].concat());
    // Even where no PSN is missing: a sender that gave up in its midst.
    s.rx(&send_first(7, &bytes(256, 1)).uc()).rx(&send_only(8, &[9]).uc());
    s.quiet().done([(2, Success)]);
}

#[test]
fn r29_a_write_that_lost_a_packet_writes_no_more_and_takes_no_receive() {
    let mut s = Script::uc();
    let to = s.host.remote(INBOX);
    s.recv(1, 8);
    s.rx(&write_first(0, to, 600, &bytes(256, 1)).uc());
    s.rx(&write_last_imm(2, &bytes(88, 2), 5).uc()).quiet().done([]);
    assert_eq!(s.mem(INBOX + 256, 344), [0; 344]);
    // A SEND does not go on where a WRITE stood.
    s.rx(&write_first(3, to, 600, &bytes(256, 1)).uc()).rx(&send_last(4, &[1]).uc()).done([]);
    s.rx(&write_only_imm(5, to, &bytes(4, 7), 6).uc()).quiet().done([(1, Success)]);
}

#[test]
fn r29_what_rc_would_nak_is_dropped_in_silence() {
    let mut s = Script::uc();
    let to = s.host.remote(INBOX);
    s.recv(1, 16);
    let mut wrong_key = to;
    wrong_key.rkey = rxe_wire::RKey::new(to.rkey.get() ^ 0x1234_5600);
    let mut beyond = to;
    beyond.addr += (crate::common::BUF_LEN - INBOX) as u64 - 3;
    let mut wraps = to;
    wraps.addr = u64::MAX - 1;
    for (psn, remote) in [(0, wrong_key), (1, beyond), (2, wraps)] {
        s.rx(&write_only(psn, remote, &bytes(4, 1)).uc()).quiet();
    }
    assert_eq!(s.count(Counter::drop_no_access), 3);
    // Lengths: FIRST not one MTU, ONLY above it, LAST empty, RETH that says something else.
    s.rx(&send_first(3, &bytes(255, 1)).uc()).rx(&send_only(4, &bytes(257, 1)).uc());
    s.rx(&send_first(5, &bytes(257, 1)).uc());
    s.rx(&write_only_of(6, to, 5, &bytes(4, 1)).uc());
    s.rx(&write_first(7, to, 256, &bytes(256, 1)).uc());
    assert_eq!(s.count(Counter::drop_bad_length), 5);
    // Longer than the receive.
    s.rx(&send_only(8, &bytes(17, 1)).uc());
    assert_eq!(s.count(Counter::drop_bad_length), 6);
    s.quiet().done([]).events([]);
    assert_eq!(s.mem(INBOX, 600), [0; 600]);
    assert_eq!(s.state(), QpState::Rts);
    // The receive has survived all of it.
    s.rx(&send_only(9, &bytes(16, 8)).uc()).done([(1, Success)]);
    // Without one the message is lost, and nobody is told.
    s.rx(&send_first(10, &bytes(256, 1)).uc()).rx(&send_last(11, &[1]).uc()).quiet();
    assert_eq!(s.count(Counter::drop_no_receive), 1);
    s.rx(&write_only_imm(12, to, &bytes(4, 1), 1).uc()).quiet().done([]);
    assert_eq!(s.count(Counter::drop_no_receive), 2);
    assert_eq!(s.mem(INBOX, 4), bytes(16, 8)[..4], "nothing is written without the receive");
}

#[test]
fn r32_writes_need_the_access_of_the_queue_pair() {
    let mut s = Script::uc();
    let mask = QpAttrMask::STATE | QpAttrMask::ACCESS_FLAGS;
    s.attr.access = rxe_core::mem::AccessFlags::empty();
    s.host.modify(QpAttr { state: QpState::Rts, ..s.attr }, mask);
    s.rx(&write_only(0, s.host.remote(INBOX), &[1]).uc()).quiet();
    assert_eq!((s.count(Counter::drop_no_access), s.mem(INBOX, 1)[0]), (1, 0));
    assert_eq!(s.state(), QpState::Rts);
}

#[test]
fn r28_a_write_of_nothing_needs_no_key() {
    let mut s = Script::uc();
    s.recv(1, 0);
    s.rx(&write_only_imm(0, far(0), &[], 3).uc()).quiet().done([(1, Success)]);
}

#[test]
fn a_receive_into_unregistered_memory_fails_the_queue_pair() {
    let mut s = Script::uc();
    let sges = [Sge { addr: 0, length: 64, lkey: LKey::new(0xdead_be00) }];
    s.host.qp.post_recv(RecvWr { wr_id: 1, sges: &sges }).unwrap();
    s.recv(2, 64);
    s.rx(&send_only(0, &[1]).uc()).quiet().done([(1, LocProtErr), (2, WrFlushErr)]);
    assert_eq!(s.state(), QpState::Err);
}

#[test]
fn r8_a_local_error_leads_to_sqe_where_receiving_goes_on() {
    let mut s = Script::uc();
    let data = s.mem(0, 300);
    s.recv(9, 64).send(1, 1);
    send_from_nowhere(&mut s, 2, 300);
    s.send(3, 1);
    // The part that could be read has left; what follows is flushed.
    s.tx([send_only(0, &data[..1]).uc(), send_first(1, &data[..256]).uc()]);
    s.done([(1, Success), (2, LocProtErr), (3, WrFlushErr)]);
    assert_eq!(s.state(), QpState::Sqe);
    // R9: what is posted meanwhile is flushed too.
    s.send(4, 1).quiet().done([(4, WrFlushErr)]);
    s.rx(&send_only(0, &[1]).uc()).quiet().done([(9, Success)]);
    go(&mut s, QpState::Rts);
    // The PSNs of the message that broke are not used again.
    s.send(5, 1).tx([send_only(3, &data[..1]).uc()]).done([(5, Success)]);
}

#[test]
fn sqe_leads_to_err_and_reset_too() {
    for state in [QpState::Err, QpState::Reset] {
        let mut s = Script::uc();
        s.recv(9, 1);
        send_from_nowhere(&mut s, 1, 0);
        s.quiet().done([(1, LocProtErr)]);
        go(&mut s, state);
        assert_eq!(s.state(), state);
        if state == QpState::Err {
            s.done([(9, WrFlushErr)]);
        } else {
            s.done([]);
        }
    }
}

#[test]
fn r47_the_receive_kept_of_a_broken_message_is_flushed_first() {
    let mut s = Script::uc();
    s.recv(1, 600).recv(2, 1);
    s.rx(&send_first(0, &bytes(256, 1)).uc()).rx(&send_last(2, &[1]).uc()).done([]);
    go(&mut s, QpState::Err);
    s.done([(1, WrFlushErr), (2, WrFlushErr)]);
}

#[test]
fn sqd_finishes_the_message_that_has_begun() {
    let mut s = Script::uc();
    let data = s.mem(0, 300);
    let mut buf = vec![0; rxe_core::Shard::MAX_PACKET];
    s.send(1, 300).send(2, 1);
    assert!(s.host.shard.poll_transmit(s.host.now, &mut buf).is_some());
    let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
    s.host.modify(QpAttr { state: QpState::Sqd, ..s.attr }, mask);
    s.events([]);
    let qpn = s.qpn();
    s.tx([send_last(1, &data[256..]).uc()]).done([(1, Success)]);
    s.events([AsyncEvent::SqDrained(qpn)]);
    go(&mut s, QpState::Rts);
    s.tx([send_only(2, &data[..1]).uc()]).done([(2, Success)]);
}

#[test]
fn a_long_message_goes_on_although_the_peer_does_not_say_how_far_it_is() {
    let mut s = Script::uc();
    // Far more than a receive buffer holds.
    s.send(1, 1 << 19);
    let mut sent = s.sent();
    assert!(sent.len() < 128, "{} packets before an answer", sent.len());
    for _ in 0..16 {
        s.done([]);
        s.wait(2_000_000);
        sent.extend(s.sent());
    }
    assert_eq!(sent.len(), (1 << 19) / MTU);
    assert!(sent.iter().zip(0..).all(|(packet, psn)| packet.psn() == psn && !packet.asks()));
    s.done([(1, Success)]);
}

#[test]
fn r57_packets_of_rc_and_from_strangers_are_dropped() {
    let mut s = Script::uc();
    s.recv(1, 8);
    s.rx(&send_only(0, &[1]).a()).rx(&read(0, far(0), 1)).rx(&ack(0, 1)).quiet();
    assert_eq!(s.count(Counter::drop_wrong_service), 3);
    s.path.source = gid_table::Gid::from_ip([10, 0, 0, 3].into());
    s.rx(&send_only(0, &[1]).uc()).quiet().done([]);
    assert_eq!(s.count(Counter::drop_wrong_address), 1);
}

#[test]
fn a_shared_receive_of_a_broken_message_ends_with_an_error() {
    let mut s = Script::of_type(QpType::Uc, |_| {});
    let attr = SrqAttr { max_wr: 4, max_sge: 1, srq_limit: 0 };
    let srq = s.host.device.create_srq(&SrqInit::new(s.host.pd, attr)).unwrap();
    let init = QpInit::new(QpType::Uc, s.host.pd, &s.host.cq);
    s.host.qp = s.host.shard.create_qp(QpInit { srq: Some(srq.clone()), ..init }).unwrap();
    s.enter_init();
    s.enter_rtr();
    let sges = [s.host.sge(INBOX, 600)];
    for wr_id in [1, 2] {
        srq.post_recv(RecvWr { wr_id, sges: &sges }).unwrap();
    }
    s.rx(&send_first(0, &bytes(256, 1)).uc()).rx(&send_last(2, &[1]).uc());
    s.quiet().done([(1, RemInvReqErr)]);
    s.rx(&send_only(3, &[1]).uc()).quiet().done([(2, Success)]);
}
