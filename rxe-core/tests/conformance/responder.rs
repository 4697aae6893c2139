//! What the responder makes of requests.

use rxe_core::mem::AccessFlags;
use rxe_core::qp::{QpAttr, QpAttrMask, QpState};
use rxe_core::wc::{WcFlags, WcOpcode};
use rxe_core::wq::{RecvWr, RemoteAddr, Sge};
use rxe_core::{AsyncEvent, Counter};
use rxe_wire::{LKey, RKey};

use crate::script::*;

#[test]
fn a_send_goes_into_the_oldest_receive() {
    let mut s = Script::rts();
    let data = bytes(600, 1);
    s.recv(1, 1000).recv(2, 10);
    s.rx(&send_first(0, &data[..256])).quiet();
    s.rx(&send_middle(1, &data[256..512]).a()).tx([ack(1, 0)]).done([]);
    s.rx(&send_last(2, &data[512..]).a()).tx([ack(2, 1)]).done([(1, Success)]);
    assert_eq!(s.mem(INBOX, 600), data);
    s.rx(&send_only_imm(3, &[], 0xfeed).a()).tx([ack(3, 2)]);
    let [wc] = s.host.completions()[..] else { panic!("one completion") };
    assert_eq!((wc.wr_id, wc.opcode, wc.byte_len), (2, WcOpcode::Recv, 0));
    assert_eq!((wc.imm, wc.flags), (0xfeed, WcFlags::WITH_IMM));
}

#[test]
fn acknowledgements_of_a_batch_are_one() {
    let mut s = Script::rts();
    let to = inbox(&s);
    for psn in 0..20 {
        s.rx(&write_only(psn, to, &[1]).a());
    }
    s.tx([ack(19, 20)]);
    // None is sent that nobody asked for.
    s.rx(&write_only(20, to, &[1])).quiet();
    s.rx(&write_only(21, to, &[1]).a()).tx([ack(21, 22)]);
}

#[test]
fn an_acknowledgement_never_overtakes_a_read_response() {
    let mut s = Script::rts();
    let (to, data) = (inbox(&s), s.mem(0, 600));
    s.rx(&write_only(0, to, &[1]).a());
    s.rx(&read(1, s.host.remote(0), 600));
    s.rx(&write_only(4, to, &[2]).a());
    s.rx(&write_only(5, to, &[3]).a());
    s.tx([
        ack(0, 1),
        resp_first(1, 2, &data[..256]),
        resp_middle(2, &data[256..512]),
        resp_last(3, 2, &data[512..]),
        ack(5, 4),
    ]);
    // Nor does that of a duplicate.
    s.rx(&read(6, s.host.remote(0), 1));
    s.rx(&write_only(4, to, &[2]).a());
    s.tx([resp_only(6, 5, &data[..1]), ack(5, 4)]);
}

#[test]
fn r20_errors_of_requests_without_a_receive_are_reported() {
    let bad = RemoteAddr { addr: 0x1000, rkey: RKey::new(0x00ab_cd00) };
    for packet in
        [write_only(0, bad, &[1]).a(), read(0, bad, 8), write_first(0, bad, 600, &[0; 256])]
    {
        let mut s = Script::rts();
        s.rx(&packet).tx([nak(0, ACCESS, 0)]);
        assert_eq!(s.state(), QpState::Err);
        let qpn = s.qpn();
        s.events([AsyncEvent::QpAccessErr(qpn)]);
    }
}

#[test]
fn r21_a_gap_is_reported_once() {
    let mut s = Script::rts();
    let to = inbox(&s);
    let packet = |psn| write_only(psn, to, &[1]).a();
    s.rx(&packet(0)).tx([ack(0, 1)]);
    s.rx(&packet(2)).tx([nak_seq(1, 1)]);
    s.rx(&packet(3)).rx(&packet(4)).rx(&packet(2)).quiet();
    assert_eq!(s.count(Counter::drop_after_nak), 3);
    s.rx(&packet(1)).rx(&packet(2)).tx([ack(2, 3)]);
    // The next gap is a new one.
    s.rx(&packet(4)).tx([nak_seq(3, 3)]);
}

#[test]
fn r21_a_gap_after_what_is_owed_comes_after_it() {
    let mut s = Script::rts();
    let to = inbox(&s);
    s.rx(&write_only(0, to, &[1]).a());
    s.rx(&read(1, s.host.remote(0), 1));
    s.rx(&write_only(3, to, &[1]).a());
    let data = s.mem(0, 1);
    s.tx([ack(0, 1), resp_only(1, 2, &data), nak_seq(2, 2)]);
}

#[test]
fn r22_duplicate_send_and_write_are_acked_not_executed() {
    let mut s = Script::rts();
    let to = inbox(&s);
    s.recv(1, 8).recv(2, 8);
    s.rx(&send_only(0, &[1; 8]).a()).tx([ack(0, 1)]).done([(1, Success)]);
    s.rx(&write_only(1, to, &[2; 8]).a()).tx([ack(1, 2)]);
    s.host.buf.write_at(INBOX, &[9; 8]).unwrap();
    s.rx(&send_only(0, &[1; 8]).a()).tx([ack(1, 2)]).done([]);
    s.rx(&write_only(1, to, &[2; 8]).a()).tx([ack(1, 2)]);
    assert_eq!(s.mem(INBOX, 8), [9; 8]);
    assert_eq!(s.count(Counter::duplicate_request), 2);
}

/// A requester that has lost the response would take it for that, and miss the data.
#[test]
fn r22_the_number_of_a_read_is_never_acknowledged() {
    let mut s = Script::rts();
    let (to, from) = (inbox(&s), s.host.remote(0));
    s.recv(1, 8);
    s.rx(&send_only(0, &[1; 8]).a()).tx([ack(0, 1)]).done([(1, Success)]);
    s.rx(&read(1, from, 300)).sent();
    s.rx(&send_only(0, &[1; 8]).a()).tx([ack(0, 1)]).done([]);
    s.rx(&read(3, from, 1)).sent();
    s.rx(&send_only(0, &[1; 8]).a()).tx([ack(0, 1)]);
    // What comes behind them is acknowledged as ever.
    s.rx(&write_only(4, to, &[2; 8]).a()).tx([ack(4, 4)]);
    s.rx(&send_only(0, &[1; 8]).a()).tx([ack(4, 4)]);
}

#[test]
fn r22_duplicates_in_the_midst_of_a_message_do_not_disturb_it() {
    let mut s = Script::rts();
    let data = bytes(600, 2);
    s.recv(1, 600);
    s.rx(&send_first(0, &data[..256])).rx(&send_middle(1, &data[256..512])).quiet();
    s.rx(&send_first(0, &data[..256])).tx([ack(1, 0)]);
    s.rx(&send_middle(1, &data[256..512])).tx([ack(1, 0)]);
    s.rx(&send_last(2, &data[512..]).a()).tx([ack(2, 1)]).done([(1, Success)]);
    assert_eq!(s.mem(INBOX, 600), data);
}

#[test]
fn r24_duplicate_read_is_answered_again_whole_or_in_part() {
    let mut s = Script::rts();
    let (data, from) = (s.mem(0, 600), s.host.remote(0));
    let later = s.host.remote(256);
    s.rx(&read(0, from, 600)).sent();
    s.rx(&read(0, from, 600)).tx([
        resp_first(0, 1, &data[..256]),
        resp_middle(1, &data[256..512]),
        resp_last(2, 1, &data[512..]),
    ]);
    s.rx(&read(1, later, 344))
        .tx([resp_first(1, 1, &data[256..512]), resp_last(2, 1, &data[512..])]);
    s.rx(&read(1, later, 256)).tx([resp_only(1, 1, &data[256..512])]);
}

#[test]
fn r24_a_read_asked_for_again_while_its_answer_leaves_goes_on_from_there() {
    let mut s = Script::rts();
    let from = s.host.remote(0);
    let data = s.mem(0, 4 * MTU);
    let part = |psn: usize| &data[psn * MTU..(psn + 1) * MTU];
    s.rx(&read(0, from, 4 * MTU as u32));
    let mut buf = vec![0; rxe_core::Shard::MAX_PACKET];
    for _ in 0..3 {
        s.host.shard.poll_transmit(s.host.now, &mut buf).unwrap();
    }
    // The second packet was lost: what was left behind it would come in vain.
    let again = RemoteAddr { addr: from.addr + MTU as u64, ..from };
    s.rx(&read(1, again, 3 * MTU as u32));
    s.tx([resp_first(1, 1, part(1)), resp_middle(2, part(2)), resp_last(3, 1, part(3))]);
}

#[test]
fn r24_duplicate_read_that_asks_for_something_else_is_dropped() {
    let mut s = Script::rts();
    let from = s.host.remote(0);
    s.rx(&read(0, from, 600)).sent();
    let other_key = RemoteAddr { rkey: RKey::new(from.rkey.get() ^ 1), ..from };
    let before = RemoteAddr { addr: from.addr - 1, ..from };
    for (psn, from, len) in [
        (0, from, 601),
        (0, other_key, 600),
        (0, before, 600),
        (1, from, 344),
        (1, s.host.remote(256), 345),
        (1, s.host.remote(256), u32::MAX),
        (0, RemoteAddr { addr: u64::MAX, ..from }, 2),
    ] {
        s.rx(&read(psn, from, len)).quiet();
    }
    assert_eq!(s.count(Counter::drop_unknown_duplicate), 7);
    assert_eq!(s.state(), QpState::Rts);
}

#[test]
fn r24_the_key_of_a_duplicate_read_is_checked_anew() {
    let mut s = Script::rts();
    let from = s.host.remote(0);
    s.rx(&read(0, from, 600)).sent();
    s.host.device.memory().deregister(s.host.keys).unwrap();
    s.rx(&read(0, from, 600)).tx([nak(0, OPERATION, 1)]);
    // A requester that still waits for the data fails by the NAK; to one that has it all, this was
    // a copy made by the network, and must break nothing.
    assert_eq!(s.state(), QpState::Rts);
}

#[test]
fn r24_a_duplicate_read_whose_answer_is_still_to_leave_adds_nothing() {
    let mut s = Script::rts();
    let (data, from) = (s.mem(0, 300), s.host.remote(0));
    s.rx(&read(0, from, 300)).rx(&read(0, from, 300));
    s.tx([resp_first(0, 1, &data[..256]), resp_last(1, 1, &data[256..])]);
}

#[test]
fn r25_duplicate_read_that_is_forgotten_is_dropped() {
    let mut s = Script::rts();
    let from = s.host.remote(0);
    for psn in 0..5 {
        s.rx(&read(psn, from, 1)).sent();
    }
    // Four may be outstanding, so the first one is answered for good.
    s.rx(&read(0, from, 1)).quiet();
    let data = s.mem(0, 1);
    s.rx(&read(1, from, 1)).tx([resp_only(1, 2, &data)]);
    assert_eq!(s.count(Counter::drop_unknown_duplicate), 1);
}

#[test]
fn r26_more_reads_than_max_dest_rd_atomic_are_invalid() {
    let mut s = Script::with(|attr| attr.max_dest_rd_atomic = 2);
    let (from, data) = (s.host.remote(0), s.mem(0, 1));
    s.rx(&read(0, from, 1)).rx(&read(1, from, 1)).rx(&read(2, from, 1));
    s.tx([resp_only(0, 1, &data), resp_only(1, 2, &data), nak(2, INVALID, 2)]);
    let qpn = s.qpn();
    s.events([AsyncEvent::QpReqErr(qpn)]);
    // None at all is a legal limit.
    let mut s = Script::with(|attr| attr.max_dest_rd_atomic = 0);
    s.rx(&read(0, s.host.remote(0), 1)).tx([nak(0, INVALID, 0)]);
}

#[test]
fn r27_lowering_max_dest_rd_atomic_loses_no_answer() {
    let mut s = Script::rts();
    let (from, data) = (s.host.remote(0), s.mem(0, 1));
    for psn in 0..4 {
        s.rx(&read(psn, from, 1));
    }
    let attr = s.attr;
    s.host.modify(QpAttr { state: QpState::Sqd, ..attr }, QpAttrMask::STATE);
    let mask = QpAttrMask::STATE | QpAttrMask::MAX_DEST_RD_ATOMIC;
    s.host.modify(QpAttr { state: QpState::Sqd, max_dest_rd_atomic: 1, ..attr }, mask);
    let answer = |psn| resp_only(psn, psn as u32 + 1, &data);
    s.tx([answer(0), answer(1), answer(2), answer(3)]);
    // Nor what may have to be said again.
    s.rx(&read(0, from, 1)).tx([answer(0)]);
    s.rx(&read(3, from, 1)).tx([answer(3)]);
}

#[test]
fn r28_the_key_of_nothing_is_ignored() {
    let nowhere = RemoteAddr { addr: u64::MAX, rkey: RKey::new(0) };
    let mut s = Script::rts();
    s.rx(&write_only(0, nowhere, &[]).a()).tx([ack(0, 1)]);
    s.rx(&read(1, nowhere, 0)).tx([resp_only(1, 2, &[])]);
    s.rx(&read(1, nowhere, 0)).tx([resp_only(1, 2, &[])]);
    let sge = Sge { addr: 0, length: 8, lkey: LKey::new(0) };
    s.host.qp.post_recv(RecvWr { wr_id: 1, sges: &[sge] }).unwrap();
    s.rx(&send_only(2, &[]).a()).tx([ack(2, 3)]).done([(1, Success)]);
    // The requester asks for nothing either.
    s.host.post(2, rxe_core::wq::SendOp::Read { remote: nowhere }, 0, 0);
    s.tx([read(0, nowhere, 0)]);
    s.rx(&resp_only(0, 1, &[])).done([(2, Success)]);
}

#[test]
fn r29_lengths_that_break_the_rules_are_invalid() {
    let to = inbox(&Script::rts());
    let full = [0; MTU];
    let over = [0; MTU + 4];
    // One packet, or several of which the last is wrong.
    let scripts: Vec<Vec<P>> = vec![
        vec![send_first(0, &full[..255])],
        vec![send_first(0, &over)],
        vec![send_only(0, &over)],
        vec![send_first(0, &full), send_middle(1, &full[..100])],
        vec![send_first(0, &full), send_last(1, &[])],
        vec![send_first(0, &full), send_last(1, &over)],
        vec![write_first(0, to, 600, &full[..255])],
        vec![write_first(0, to, 256, &full)],
        vec![write_first(0, to, 100, &full)],
        vec![write_only_of(0, to, 9, &full[..8])],
        vec![write_only_of(0, to, 7, &full[..8])],
        vec![write_only_of(0, to, u32::MAX, &full)],
        vec![write_first(0, to, u32::MAX, &full)],
        vec![write_first(0, to, 300, &full), write_last(1, &full[..43])],
        vec![write_first(0, to, 300, &full), write_last(1, &full[..45])],
        vec![write_first(0, to, 300, &full), write_last(1, &[])],
        vec![write_first(0, to, 512, &full), write_middle(1, &full)],
        vec![read(0, to, (1 << 31) + 1)],
        // Order of the packets of a message.
        vec![send_middle(0, &full)],
        vec![send_last(0, &full)],
        vec![write_middle(0, &full)],
        vec![write_last(0, &full)],
        vec![send_first(0, &full), send_only(1, &[])],
        vec![send_first(0, &full), write_last(1, &full)],
        vec![send_first(0, &full), read(1, to, 1)],
        vec![write_first(0, to, 600, &full), send_last(1, &full)],
        vec![write_first(0, to, 600, &full), write_first(1, to, 600, &full)],
    ];
    for script in scripts {
        let mut s = Script::rts();
        // The address of each script's own buffer.
        let shift = inbox(&s);
        let mut last = 0;
        s.recv(1, 1000);
        for packet in &script {
            last = packet.psn();
            s.rx(&packet.clone().moved(to, shift));
        }
        assert_eq!(s.sent(), [nak(last, INVALID, 0)], "{script:?}");
        assert_eq!(s.state(), QpState::Err, "{script:?}");
        let qpn = s.qpn();
        s.events([AsyncEvent::QpReqErr(qpn)]);
    }
}

#[test]
fn a_send_longer_than_the_receive_fails_both_sides() {
    let mut s = Script::rts();
    s.recv(1, 300).recv(2, 300);
    s.rx(&send_first(0, &[1; 256])).quiet();
    s.rx(&send_last(1, &[1; 45]).a()).tx([nak(1, INVALID, 0)]);
    s.done([(1, LocLenErr), (2, WrFlushErr)]);
}

#[test]
fn a_receive_with_a_bad_key_fails_both_sides() {
    let mut s = Script::rts();
    let sge = Sge { addr: 0, length: 8, lkey: LKey::new(0) };
    s.host.qp.post_recv(RecvWr { wr_id: 1, sges: &[sge] }).unwrap();
    s.rx(&send_only(0, &[1]).a()).tx([nak(0, OPERATION, 0)]).done([(1, LocProtErr)]);
}

#[test]
fn r31_a_read_that_fails_on_the_way_ends_in_a_nak() {
    let mut s = Script::rts();
    let from = s.host.remote(0);
    s.rx(&read(0, from, 600));
    let mut buf = vec![0; rxe_core::Shard::MAX_PACKET];
    assert!(s.host.shard.poll_transmit(s.host.now, &mut buf).is_some());
    s.host.device.memory().deregister(s.host.keys).unwrap();
    s.tx([nak(1, OPERATION, 1)]);
    assert_eq!(s.state(), QpState::Err);
    let qpn = s.qpn();
    s.events([AsyncEvent::QpFatal(qpn)]);
}

#[test]
fn r32_access_must_have_been_granted_by_region_and_qp() {
    // By the region.
    let mut s = Script::rts();
    let pd = s.host.pd;
    let register = |s: &Script, access| {
        let buf = s.host.buf.clone();
        let keys = s.host.device.memory().register(pd, buf.clone(), 0, 64, buf.addr(), access);
        RemoteAddr { addr: buf.addr(), rkey: keys.unwrap().rkey }
    };
    let read_only = register(&s, AccessFlags::REMOTE_READ);
    let data = s.mem(0, 1);
    s.rx(&read(0, read_only, 1)).tx([resp_only(0, 1, &data)]);
    s.rx(&write_only(1, read_only, &[1]).a()).tx([nak(1, ACCESS, 1)]);
    let mut s = Script::rts();
    let local = register(&s, AccessFlags::LOCAL_WRITE);
    s.rx(&read(0, local, 1)).tx([nak(0, ACCESS, 0)]);
    // By the QP.
    let mut s = Script::with(|attr| attr.access = AccessFlags::REMOTE_READ);
    s.rx(&write_only(0, inbox(&s), &[1]).a()).tx([nak(0, INVALID, 0)]);
    let mut s = Script::with(|attr| attr.access = AccessFlags::REMOTE_WRITE);
    s.rx(&read(0, inbox(&s), 1)).tx([nak(0, INVALID, 0)]);
}

#[test]
fn r33_ranges_do_not_wrap() {
    let s = Script::rts();
    let (start, end) = (s.host.remote(0), s.host.remote(crate::common::BUF_LEN));
    let at = |remote: RemoteAddr, by: i64| RemoteAddr {
        addr: remote.addr.wrapping_add_signed(by),
        ..remote
    };
    for (from, len) in [
        (at(start, -1), 1),
        (at(end, -1), 2),
        (at(end, 0), 1),
        (RemoteAddr { addr: u64::MAX, ..start }, 2),
        (RemoteAddr { addr: u64::MAX - 7, ..start }, 1 << 31),
        (RemoteAddr { addr: 0, ..start }, 1),
    ] {
        let mut s = Script::rts();
        // Each script has a buffer of its own: place the range by its distance from the start.
        let addr = s.host.remote(0).addr.wrapping_add(from.addr.wrapping_sub(start.addr));
        let from = RemoteAddr { addr, rkey: s.host.keys.rkey };
        s.rx(&read(0, from, len)).tx([nak(0, ACCESS, 0)]);
    }
    let mut s = Script::rts();
    let last = s.host.remote(crate::common::BUF_LEN - 1);
    s.rx(&write_only(0, last, &[1]).a()).tx([ack(0, 1)]);
}

#[test]
fn r35_runts_and_unknown_opcodes_are_dropped() {
    let mut s = Script::rts();
    let whole = s.request_bytes(&write_only(0, inbox(&s), &[1, 2, 3, 4]).a());
    for len in 0..whole.len() - 4 {
        s.rx_bytes(&whole[..len]).quiet();
    }
    assert_eq!(s.count(Counter::drop_malformed), whole.len() as u64 - 4);
    let mut bytes = s.request_bytes(&send_only(0, &[]).a());
    for opcode in 0..=255u8 {
        bytes[0] = opcode;
        if rxe_wire::Opcode::new(opcode).info().is_none() {
            s.rx_bytes(&bytes).quiet();
        }
    }
    // Pad bytes that are not there.
    let mut padded = s.request_bytes(&send_only(0, &[]).a());
    padded[1] |= 3 << 4;
    s.rx_bytes(&padded).quiet();
    assert_eq!(s.state(), QpState::Rts);
    s.rx_bytes(&whole).tx([ack(0, 1)]);
}

#[test]
fn r36_an_access_violation_raises_an_event_unless_a_receive_tells() {
    let mut s = Script::rts();
    let bad = RemoteAddr { rkey: RKey::new(1), ..inbox(&s) };
    let qpn = s.qpn();
    s.rx(&write_only(0, bad, &[1]).a()).tx([nak(0, ACCESS, 0)]);
    s.events([AsyncEvent::QpAccessErr(qpn)]).done([]);

    let mut s = Script::rts();
    s.recv(7, 0);
    s.rx(&write_only_imm(0, bad, &[1], 5).a()).tx([nak(0, ACCESS, 0)]);
    s.events([]).done([(7, LocAccessErr)]);
}

#[test]
fn r37_nothing_is_executed_again_in_error() {
    let mut s = Script::rts();
    s.recv(1, 8).recv(2, 8).recv(3, 8);
    s.rx(&send_only(0, &[1]).a());
    s.rx(&read(1, far(0), 1));
    s.done([(1, Success), (2, WrFlushErr), (3, WrFlushErr)]);
    s.tx([ack(0, 1), nak(1, ACCESS, 1)]);
    s.recv(4, 8).done([(4, WrFlushErr)]);
    for psn in [0, 1, 2] {
        s.rx(&send_only(psn, &[1]).a()).quiet().done([]);
    }
    s.wait(10 * ACK_TIMEOUT).quiet().done([]);
}

#[test]
fn r38_the_length_of_a_write_with_immediate_is_what_was_written() {
    let mut s = Script::rts();
    let to = inbox(&s);
    s.recv(1, 0).recv(2, 0);
    s.rx(&write_first(0, to, 300, &[7; 256])).rx(&write_last_imm(1, &[7; 44], 0x1234).a());
    s.rx(&write_only_imm(2, to, &[], 1).a()).tx([ack(2, 2)]);
    let [first, second] = s.host.completions()[..] else { panic!("two completions") };
    assert_eq!((first.opcode, first.byte_len), (WcOpcode::RecvRdmaWithImm, 300));
    assert_eq!((first.imm, first.flags), (0x1234, WcFlags::WITH_IMM));
    assert_eq!((second.wr_id, second.byte_len), (2, 0));
    assert_eq!(s.mem(INBOX, 300), [7; 300]);
}

#[test]
fn a_missing_receive_is_told_each_time_and_later_packets_meet_silence() {
    let mut s = Script::rts();
    s.rx(&send_only(0, &[1]).a()).tx([rnr(0, 12, 0)]);
    s.rx(&send_only(1, &[2]).a()).rx(&send_only(2, &[3]).a()).quiet();
    // Copies that come together are answered together.
    s.rx(&send_only(0, &[1]).a()).rx(&send_only(0, &[1]).a()).tx([rnr(0, 12, 0)]);
    s.rx(&send_only(0, &[1]).a()).tx([rnr(0, 12, 0)]);
    s.recv(1, 8).recv(2, 8);
    s.rx(&send_only(1, &[2]).a()).quiet().done([]);
    s.rx(&send_only(0, &[1]).a()).rx(&send_only(1, &[2]).a()).tx([ack(1, 2)]);
    s.done([(1, Success), (2, Success)]);
    assert_eq!(s.count(Counter::send_rnr_err), 4);
}

#[test]
fn what_is_owed_behind_a_read_is_bounded_whatever_the_peer_sends() {
    let mut s = Script::rts();
    let (to, data) = (inbox(&s), s.mem(0, 300));
    s.rx(&write_only(0, to, &[1]).a()).tx([ack(0, 1)]);
    s.rx(&read(1, s.host.remote(0), 300));
    for _ in 0..100 {
        // Each duplicate calls for an ACK, and each SEND, which meets no receive, for a NAK.
        s.rx(&write_only(0, to, &[1]).a()).rx(&send_only(3, &[1]).a());
    }
    s.tx([resp_first(1, 2, &data[..256]), resp_last(2, 2, &data[256..]), ack(0, 1), rnr(3, 12, 2)]);
}

#[test]
fn a_write_with_immediate_needs_its_receive_at_the_last_packet() {
    let mut s = Script::rts();
    let to = inbox(&s);
    s.rx(&write_first(0, to, 300, &[1; 256])).quiet();
    s.rx(&write_last_imm(1, &[1; 44], 3).a()).tx([rnr(1, 12, 0)]);
    s.recv(1, 0);
    s.rx(&write_last_imm(1, &[1; 44], 3).a()).tx([ack(1, 1)]).done([(1, Success)]);
}

#[test]
fn a_lost_acknowledgement_is_said_again() {
    let mut s = Script::rts();
    s.recv(1, 8);
    s.rx(&send_only(0, &[1]).a()).tx([ack(0, 1)]);
    s.rx(&send_only(0, &[1]).a()).tx([ack(0, 1)]).done([(1, Success)]);
}
