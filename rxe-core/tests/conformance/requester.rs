//! What the requester sends, and what it makes of the answers.

use rxe_core::qp::QpState;
use rxe_core::wc::WcOpcode;
use rxe_core::wq::{
    PostRecvError, PostSendError, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge,
};
use rxe_core::{Counter, errno};
use rxe_wire::{LKey, NakCode};

use crate::script::*;

const SEND: SendOp = SendOp::Send { imm: None };

#[test]
fn messages_are_cut_at_the_path_mtu() {
    let mut s = Script::rts();
    let data = s.mem(0, 600);
    s.send(1, 600).tx([
        send_first(0, &data[..256]),
        send_middle(1, &data[256..512]),
        send_last(2, &data[512..]).a(),
    ]);
    s.write(2, 600).tx([
        write_first(3, far(0), 600, &data[..256]),
        write_middle(4, &data[256..512]),
        write_last(5, &data[512..]).a(),
    ]);
    s.send(3, 256).tx([send_only(6, &data[..256]).a()]);
    s.send(4, 0).tx([send_only(7, &[]).a()]);
    s.done([]);
    s.rx(&ack(7, 4)).quiet().done([(1, Success), (2, Success), (3, Success), (4, Success)]);
}

#[test]
fn immediate_data_rides_on_the_last_packet() {
    let mut s = Script::rts();
    let data = s.mem(0, 300);
    s.host.post(1, SendOp::Send { imm: Some(7) }, 0, 300);
    s.host.post(2, SendOp::Write { remote: far(0), imm: Some(8) }, 0, 300);
    s.host.post(3, SendOp::Write { remote: far(0), imm: Some(9) }, 0, 3);
    let sent = s.sent();
    assert_eq!(sent[0], send_first(0, &data[..256]));
    assert_eq!(
        sent[2..],
        [
            write_first(2, far(0), 300, &data[..256]),
            write_last_imm(3, &data[256..], 8).a(),
            write_only_imm(4, far(0), &data[..3], 9).a(),
        ]
    );
}

#[test]
fn solicited_events_are_asked_for_only_where_a_receive_is_taken() {
    let mut s = Script::rts();
    let data = s.mem(0, 300);
    let flags = SendFlags::SOLICITED | SendFlags::SIGNALED;
    s.post_with(1, SEND, flags, 300)
        .tx([send_first(0, &data[..256]), send_last(1, &data[256..]).a().se()]);
    let write = SendOp::Write { remote: far(0), imm: None };
    s.post_with(2, write, flags, 300)
        .tx([write_first(2, far(0), 300, &data[..256]), write_last(3, &data[256..]).a()]);
    s.post_with(3, write, flags, 1).tx([write_only(4, far(0), &data[..1]).a()]);
    let with_imm = SendOp::Write { remote: far(0), imm: Some(1) };
    s.post_with(4, with_imm, flags, 1).tx([write_only_imm(5, far(0), &data[..1], 1).a().se()]);
}

#[test]
fn an_unsignaled_request_completes_only_in_silence() {
    let mut s = Script::rts();
    s.post_with(1, SEND, SendFlags::empty(), 1).send(2, 1).sent();
    s.rx(&ack(0, 1)).done([]);
    s.rx(&ack(1, 2)).done([(2, Success)]);
}

#[test]
fn an_acknowledgement_is_asked_for_at_least_every_half_window() {
    let mut s = Script::rts();
    s.send(1, 40 * 256);
    let asked: Vec<usize> = (0..).zip(s.sent()).filter(|(_, p)| p.asks()).map(|(i, _)| i).collect();
    // The first window has 64 packets.
    assert_eq!(asked, [32, 39]);
}

/// Bytes of a message of 16 packets, the fewest that may be acknowledged with the next message.
const LARGE: u32 = 16 * 256;

/// A QP that has sent 300 packets, so that its window holds many more; the next one has PSN 300.
fn with_large_window() -> Script {
    let mut s = Script::rts();
    for wr_id in 0..300 {
        s.send(wr_id, 1);
    }
    let mut acked = 0;
    while acked < 300 {
        let count = s.sent().len() as i32;
        acked += count;
        s.rx(&ack(acked - 1, acked as u32));
    }
    assert_eq!(s.host.completions().len(), 300);
    s
}

/// The PSNs of the packets that leave now and ask for an acknowledgement.
fn asking(s: &mut Script) -> Vec<i32> {
    s.sent().iter().filter(|packet| packet.asks()).map(P::psn).collect()
}

#[test]
fn large_messages_are_acknowledged_together_but_for_the_last_ones() {
    let mut s = with_large_window();
    for wr_id in 0..8 {
        s.write(wr_id, LARGE);
    }
    // The first one, as no answer is due before; then those behind which there are not four more.
    assert_eq!(asking(&mut s), [315, 379, 395, 411, 427]);
    s.rx(&ack(315, 301)).done([(0, Success)]);
    s.rx(&ack(379, 305)).done([(1, Success), (2, Success), (3, Success), (4, Success)]);
    s.rx(&ack(427, 308)).done([(5, Success), (6, Success), (7, Success)]);
    s.wait(MS).quiet();
    // Each message that is posted when the one before has left asks.
    for wr_id in 0..8 {
        s.send(wr_id, LARGE);
        assert_eq!(asking(&mut s).len(), 1);
    }
}

#[test]
fn small_messages_ask_each_for_an_acknowledgement() {
    let mut s = with_large_window();
    for wr_id in 0..8 {
        s.write(wr_id, LARGE - 256);
    }
    assert_eq!(asking(&mut s).len(), 8);
}

#[test]
fn a_message_asks_before_one_that_may_have_to_wait() {
    let write = SendOp::Write { remote: far(0), imm: None };
    // Without one that has to wait, the second one does not ask.
    for (case, expected) in [(0, [315, 379]), (1, [315, 331]), (2, [315, 331]), (3, [315, 331])] {
        let mut s = with_large_window();
        s.write(0, LARGE).write(1, LARGE);
        match case {
            0 => s.write(2, LARGE),
            1 => s.post_with(2, write, SendFlags::SIGNALED | SendFlags::FENCE, LARGE),
            2 => s.read(2, 256),
            _ => s.faa(2, 1),
        };
        for wr_id in 3..12 {
            s.write(wr_id, LARGE);
        }
        assert_eq!(asking(&mut s)[..2], expected, "case {case}");
    }
}

#[test]
fn a_quarter_of_the_window_is_left_to_what_asks() {
    // The first window has 64 packets.
    let mut s = Script::rts();
    for wr_id in 0..12 {
        s.write(wr_id, LARGE);
    }
    assert_eq!(asking(&mut s), [15, 31, 47, 63]);
    // And a large one has a part in which each message asks, before it is full.
    let mut s = with_large_window();
    for wr_id in 0..200 {
        s.write(wr_id, LARGE);
    }
    let asked = asking(&mut s);
    let steps: Vec<i32> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!((steps[0], steps.iter().rev().take(3).max()), (64, Some(&16)), "{steps:?}");
    // All that asked is answered: there is room for those that wait.
    let last = asked[asked.len() - 1];
    s.rx(&ack(last, 300));
    assert!(s.sent().len() >= 16);
}

#[test]
fn messages_ask_when_they_are_sent_again() {
    let mut s = with_large_window();
    for wr_id in 0..8 {
        s.write(wr_id, LARGE);
    }
    s.sent();
    s.rx(&nak_seq(316, 301)).done([(0, Success)]);
    // The first packet too: whether it arrives is what everything else hangs on. (The window, which
    // has been cut, ends in the last one.)
    assert_eq!(asking(&mut s)[..7], [316, 331, 347, 363, 379, 395, 411]);
}

#[test]
fn a_message_before_one_that_cannot_be_sent_is_asked_for_by_the_short_timer() {
    let mut s = with_large_window();
    let write = SendOp::Write { remote: far(0), imm: None };
    s.write(0, LARGE).write(1, LARGE);
    // A key that is nobody's.
    let sges = [Sge { lkey: LKey::new(0x1234), ..s.host.sge(0, LARGE) }];
    s.host.post_wr(&SendWr {
        wr_id: 2,
        op: write,
        flags: SendFlags::SIGNALED,
        data: SendData::Sges(&sges),
        srq_number: None,
    });
    for wr_id in 3..8 {
        s.write(wr_id, LARGE);
    }
    assert_eq!(asking(&mut s), [315]);
    s.rx(&ack(315, 301)).done([(0, Success)]);
    let data = s.mem(0, 256);
    s.wait(MS).tx([write_first(316, far(0), LARGE, &data).a()]);
    // It has all of the message, and acknowledges that.
    s.rx(&ack(331, 302));
    let flushed = WrFlushErr;
    s.done([
        (1, Success),
        (2, LocProtErr),
        (3, flushed),
        (4, flushed),
        (5, flushed),
        (6, flushed),
        (7, flushed),
    ]);
}

#[test]
fn r01_read_retry_asks_only_for_the_rest() {
    // The answer to a retry may begin with FIRST, or with ONLY when one packet is missing.
    let data = bytes(1000, 3);
    let mut s = Script::rts();
    s.read(1, 1000).tx([read(0, far(0), 1000)]);
    s.rx(&resp_first(0, 1, &data[..256])).quiet();
    s.wait(MS).tx([read(1, far(256), 744)]);
    s.rx(&resp_first(1, 1, &data[256..512]));
    s.rx(&resp_middle(2, &data[512..768]));
    s.rx(&resp_last(3, 1, &data[768..])).quiet().done([(1, Success)]);
    assert_eq!(s.mem(LANDING, 1000), data);

    let mut s = Script::rts();
    s.read(1, 500).tx([read(0, far(0), 500)]);
    s.rx(&resp_first(0, 1, &data[..256])).quiet();
    s.wait(MS).tx([read(1, far(256), 244)]);
    s.rx(&resp_only(1, 1, &data[256..500])).quiet().done([(1, Success)]);
    assert_eq!(s.mem(LANDING, 500), data[..500]);
}

#[test]
fn r01_a_long_read_is_asked_for_in_parts() {
    let data = bytes(PACKETS * MTU, 6);
    let mut s = Script::rts();
    s.read(1, data.len() as u32);
    let part = |psn: u32| read(psn as i32, far(u64::from(psn) * 256), 16 * 256);
    s.tx([part(0), part(16), part(32), part(48)]);
    for psn in 0..40 {
        let response = match psn {
            0 | 16 | 32 => resp_first(psn, 1, packet(&data, psn)),
            15 | 31 => resp_last(psn, 1, packet(&data, psn)),
            _ => resp_middle(psn, packet(&data, psn)),
        };
        s.rx(&response);
    }
    s.sent();
    // The rest of the third part is lost, and all after it.
    s.wait(MS).tx([read(40, far(40 * 256), 8 * 256)]);
    answer(&mut s, &data, read(40, far(40 * 256), 8 * 256));
    // So nothing behind it comes by itself: all is asked for again, in the same parts.
    let mut requests = s.sent();
    assert_eq!(requests[0], part(48));
    for _ in 0..10 {
        requests.into_iter().for_each(|request| answer(&mut s, &data, request));
        requests = s.sent();
        assert!(requests.iter().all(|request| request.psn() % 16 == 0), "{requests:?}");
    }
    s.done([(1, Success)]);
    assert_eq!(s.mem(LANDING, data.len()), data);
}

/// Packets of a long READ.
const PACKETS: usize = 100;

fn packet(data: &[u8], psn: i32) -> &[u8] {
    &data[psn as usize * MTU..(psn as usize + 1) * MTU]
}

/// All packets of the response to a request for a part of a READ that begins with PSN 0.
fn answer(s: &mut Script, data: &[u8], request: P) {
    let first = request.psn();
    let last = first + (request.asked() / 256) as i32 - 1;
    for psn in first..=last {
        let payload = packet(data, psn);
        s.rx(&match (psn == first, psn == last) {
            (true, true) => resp_only(psn, 1, payload),
            (true, false) => resp_first(psn, 1, payload),
            (false, true) => resp_last(psn, 1, payload),
            (false, false) => resp_middle(psn, payload),
        });
    }
}

#[test]
fn r02_acknowledgement_beyond_an_open_read_does_not_skip_it() {
    let mut s = Script::rts();
    let data = s.mem(0, 10);
    let response = bytes(10, 9);
    s.write(1, 10).read(2, 10).send(3, 10).tx([
        write_only(0, far(0), &data).a(),
        read(1, far(0), 10),
        send_only(2, &data).a(),
    ]);
    // The READ is asked for again; what is behind it is acknowledged, and completes behind it.
    s.rx(&ack(2, 3)).done([(1, Success)]).tx([read(1, far(0), 10)]);
    s.rx(&ack(2, 3)).quiet().done([]);
    s.rx(&resp_only(1, 2, &response)).quiet().done([(2, Success), (3, Success)]);
    assert_eq!(s.mem(LANDING, 10), response);
}

#[test]
fn r02_nak_beyond_an_open_read_asks_for_it_again() {
    let mut s = Script::rts();
    let data = s.mem(0, 10);
    s.read(1, 10).send(2, 10).sent();
    s.rx(&nak(1, NakCode::InvalidRequest, 1)).done([]);
    s.tx([read(0, far(0), 10), send_only(1, &data).a()]);
    s.rx(&resp_only(0, 1, &bytes(10, 1))).done([(1, Success)]);
    s.rx(&nak(1, NakCode::InvalidRequest, 1)).done([(2, RemInvReqErr)]);
}

#[test]
fn r03_a_second_read_retry_counts_from_what_was_received() {
    let data = bytes(1200, 5);
    let mut s = Script::rts();
    s.read(1, 1200).tx([read(0, far(0), 1200)]);
    s.rx(&resp_first(0, 1, &data[..256]));
    s.wait(MS).tx([read(1, far(256), 944)]);
    s.rx(&resp_first(1, 1, &data[256..512]));
    s.rx(&resp_middle(2, &data[512..768])).quiet();
    s.wait(MS).tx([read(3, far(768), 432)]);
    s.rx(&resp_first(3, 1, &data[768..1024]));
    s.rx(&resp_last(4, 1, &data[1024..])).quiet().done([(1, Success)]);
    assert_eq!(s.mem(LANDING, 1200), data);
}

#[test]
fn r04_only_the_first_retry_is_immediate() {
    let mut s = Script::rts();
    let data = s.mem(0, 1);
    let packet = |psn| send_only(psn, &data).a();
    s.send(1, 1).send(2, 1).send(3, 1).tx([packet(0), packet(1), packet(2)]);
    s.rx(&nak_seq(1, 1)).tx([packet(1), packet(2)]).done([(1, Success)]);
    s.rx(&nak_seq(1, 1)).quiet();
    s.rx(&nak_seq(1, 1)).quiet();
    // The timer has the oldest sent again, and a further NAK is still about the same loss.
    s.wait(MS).tx([packet(1)]);
    s.rx(&nak_seq(1, 1)).quiet();
    // With progress the next loss is a new one.
    s.rx(&nak_seq(2, 2)).tx([packet(2)]).done([(2, Success)]);
    s.rx(&ack(2, 3)).quiet().done([(3, Success)]);
}

#[test]
fn r08_a_request_that_fails_here_completes_in_its_turn_and_the_rest_is_flushed() {
    let mut s = Script::rts();
    let data = s.mem(0, 300);
    s.send(1, 300);
    let bad = [Sge { lkey: LKey::new(0x0bad), ..s.host.sge(0, 300) }];
    let flags = SendFlags::SIGNALED;
    s.host.post_wr(&SendWr {
        wr_id: 2,
        op: SEND,
        flags,
        data: SendData::Sges(&bad),
        srq_number: None,
    });
    s.send(3, 1);
    s.tx([send_first(0, &data[..256]), send_last(1, &data[256..]).a()]).done([]);
    assert_eq!(s.state(), QpState::Rts);
    s.rx(&ack(1, 1)).quiet().done([(1, Success), (2, LocProtErr), (3, WrFlushErr)]);
    assert_eq!(s.state(), QpState::Err);
}

#[test]
fn r08_what_came_before_a_failed_request_is_still_resent() {
    let mut s = Script::rts();
    let data = s.mem(0, 1);
    s.send(1, 1);
    let bad = [Sge { addr: 0, ..s.host.sge(0, 1) }];
    let flags = SendFlags::SIGNALED;
    s.host.post_wr(&SendWr {
        wr_id: 2,
        op: SEND,
        flags,
        data: SendData::Sges(&bad),
        srq_number: None,
    });
    s.tx([send_only(0, &data).a()]).done([]);
    s.wait(EARLY).tx([send_only(0, &data).a()]).done([]);
    s.rx(&ack(0, 1)).quiet().done([(1, Success), (2, LocProtErr)]);
}

#[test]
fn r09_requests_posted_in_error_are_flushed_in_order() {
    let mut s = Script::rts();
    s.recv(10, 64).send(1, 1).send(2, 1).sent();
    s.rx(&nak(0, NakCode::RemoteOperationalError, 0)).quiet();
    s.done([(1, RemOpErr), (2, WrFlushErr), (10, WrFlushErr)]);
    for round in 0..3 {
        s.send(20 + round, 1).recv(30 + round, 1).write(40 + round, 1).quiet();
        s.done([(20 + round, WrFlushErr), (30 + round, WrFlushErr), (40 + round, WrFlushErr)]);
    }
}

#[test]
fn r10_fence_waits_for_reads_and_only_for_those() {
    let fence = SendFlags::FENCE | SendFlags::SIGNALED;
    let mut s = Script::rts();
    let data = s.mem(0, 1);
    // A WRITE that is not acknowledged holds nothing up.
    s.write(1, 1).post_with(2, SEND, fence, 1);
    s.tx([write_only(0, far(0), &data).a(), send_only(1, &data).a()]);
    // A READ does; and what is behind the fence waits with it.
    s.read(3, 300).post_with(4, SEND, fence, 1).send(5, 1).tx([read(2, far(0), 300)]);
    s.rx(&ack(1, 2)).quiet();
    s.rx(&resp_first(2, 3, &[0; 256])).quiet();
    s.rx(&resp_last(3, 3, &[0; 44])).tx([send_only(4, &data).a(), send_only(5, &data).a()]);
    s.done([(1, Success), (2, Success), (3, Success)]);
}

#[test]
fn r10_fence_holds_when_the_read_is_asked_for_again() {
    let fence = SendFlags::FENCE | SendFlags::SIGNALED;
    let mut s = Script::rts();
    let data = s.mem(0, 1);
    s.read(1, 1).post_with(2, SEND, fence, 1).tx([read(0, far(0), 1)]);
    s.wait(EARLY).tx([read(0, far(0), 1)]);
    s.wait(2 * EARLY).tx([read(0, far(0), 1)]);
    s.rx(&resp_only(0, 1, &[1])).tx([send_only(1, &data).a()]);
}

#[test]
fn r11_bad_local_key_of_a_read_is_a_completion_error() {
    let mut s = Script::rts();
    let sges = [Sge { lkey: LKey::new(0x0bad), ..s.host.sge(LANDING, 8) }];
    let op = SendOp::Read { remote: far(0) };
    let flags = SendFlags::SIGNALED;
    s.host.post_wr(&SendWr { wr_id: 1, op, flags, data: SendData::Sges(&sges), srq_number: None });
    s.send(2, 1).sent();
    s.rx(&resp_only(0, 1, &[1; 8])).quiet().done([(1, LocProtErr), (2, WrFlushErr)]);
    assert_eq!(s.state(), QpState::Err);
}

#[test]
fn r12_nak_in_a_read_response_ends_the_read() {
    for (code, status) in [
        (NakCode::RemoteAccessError, RemAccessErr),
        (NakCode::RemoteOperationalError, RemOpErr),
        (NakCode::InvalidRequest, RemInvReqErr),
    ] {
        let mut s = Script::rts();
        s.read(1, 1000).send(2, 1).sent();
        s.rx(&resp_first(0, 1, &[0; 256]));
        s.rx(&nak(1, code, 0)).quiet().done([(1, status), (2, WrFlushErr)]);
        s.wait(10 * ACK_TIMEOUT).quiet();
    }
}

#[test]
fn r12_nak_ends_the_read_also_when_responses_before_it_were_lost() {
    let mut s = Script::rts();
    s.read(1, 1000).send(2, 1).sent();
    // The peer is in error and will not answer again: asking would be in vain.
    s.rx(&nak(2, NakCode::RemoteOperationalError, 0)).quiet();
    s.done([(1, RemOpErr), (2, WrFlushErr)]);
}

#[test]
fn responses_that_do_not_fit_the_request_are_bad() {
    let wrong = [
        resp_first(0, 1, &[0; 255]),
        resp_only(0, 1, &[0; 256]),
        resp_last(0, 1, &[0; 244]),
        resp_only(0, 1, &[]),
        resp_only_nak(0, NakCode::RemoteAccessError),
    ];
    for packet in wrong {
        let mut s = Script::rts();
        s.read(1, 500).sent();
        s.rx(&packet).quiet().done([(1, BadRespErr)]);
        assert_eq!(s.mem(LANDING, 8), s.mem(LANDING + 8, 8), "nothing was stored");
    }
    // A response where there was no READ.
    let mut s = Script::rts();
    s.send(1, 1).sent();
    s.rx(&resp_only(0, 1, &[1])).quiet().done([(1, BadRespErr)]);
}

fn try_post(s: &Script, op: SendOp, data: SendData<'_>) -> Result<(), PostSendError> {
    s.host.qp.post_send(&SendWr {
        wr_id: 9,
        op,
        flags: SendFlags::SIGNALED,
        data,
        srq_number: None,
    })
}

#[test]
fn r13_of_a_list_those_before_the_bad_request_are_posted() {
    let mut s = Script::rts();
    let (data, sge) = (s.mem(0, 1), s.host.sge(0, 1));
    let (good, long) = ([sge], [0; 65]);
    let wr = |wr_id, data| SendWr {
        wr_id,
        op: SEND,
        flags: SendFlags::SIGNALED,
        data,
        srq_number: None,
    };
    let list = [
        wr(1, SendData::Sges(&good)),
        wr(2, SendData::Sges(&good)),
        wr(3, SendData::Inline(&long)),
        wr(4, SendData::Sges(&good)),
    ];
    let error = s.host.qp.post_send_list(&list).unwrap_err();
    assert_eq!(error, (2, PostSendError::InlineTooLong { len: 65, max: 64 }));
    s.host.shard.kick(s.host.now, s.host.qp.qpn());
    s.tx([send_only(0, &data).a(), send_only(1, &data).a()]);
    s.rx(&ack(1, 2)).done([(1, Success), (2, Success)]);
    assert_eq!(s.host.qp.post_send_list(&[]), Ok(()));
}

#[test]
fn r13_a_list_ends_where_the_queue_is_full() {
    let mut s = Script::rts();
    let sges = [s.host.sge(0, 1)];
    let data = SendData::Sges(&sges);
    let wr = SendWr { wr_id: 1, op: SEND, flags: SendFlags::SIGNALED, data, srq_number: None };
    let error = s.host.qp.post_send_list(&vec![wr; 600]).unwrap_err();
    assert_eq!(error, (512, PostSendError::Full { max: 512 }));
    s.quiet();
}

#[test]
fn r13_of_a_list_of_receives_too() {
    let mut s = Script::rts();
    let sge = s.host.sge(INBOX, 8);
    let (good, bad) = ([sge], [sge; 5]);
    let wr = |wr_id, sges| RecvWr { wr_id, sges };
    let list = [wr(1, &good[..]), wr(2, &bad), wr(3, &good)];
    let error = s.host.qp.post_recv_list(&list).unwrap_err();
    assert_eq!(error, (1, PostRecvError::TooManySges { count: 5, max: 4 }));
    assert_eq!(error.1.errno(), errno::EINVAL);
    s.rx(&send_only(0, &[7]).a()).tx([ack(0, 1)]).done([(1, Success)]);
    s.rx(&send_only(1, &[7]).a()).tx([rnr(1, 12, 1)]);
    // In RESET none is taken.
    let s = Script::reset(|_| {});
    let error = s.host.qp.post_recv_list(&list).unwrap_err();
    assert_eq!(error, (0, PostRecvError::State { state: QpState::Reset }));
}

#[test]
fn r13_r14_requests_that_cannot_be_are_refused_and_change_nothing() {
    let mut s = Script::rts();
    let read = SendOp::Read { remote: far(0) };
    let error = try_post(&s, read, SendData::Inline(&[1])).unwrap_err();
    assert_eq!(error, PostSendError::InlineResult { operation: "READ" });
    assert_eq!(error.errno(), errno::EINVAL);
    let sge = s.host.sge(0, 1);
    let error = try_post(&s, SEND, SendData::Sges(&[sge; 5])).unwrap_err();
    assert_eq!(error, PostSendError::TooManySges { count: 5, max: 4 });
    let error = try_post(&s, SEND, SendData::Inline(&[0; 65])).unwrap_err();
    assert_eq!(error, PostSendError::InlineTooLong { len: 65, max: 64 });
    let huge = Sge { length: 1 << 31, ..sge };
    let error = try_post(&s, SEND, SendData::Sges(&[huge, sge])).unwrap_err();
    assert_eq!(error, PostSendError::TooLong { len: (1 << 31) + 1 });
    assert_eq!(error.errno(), errno::EINVAL);
    s.quiet().done([]);
    for wr_id in 0..512 {
        s.send(wr_id, 0);
    }
    let error = try_post(&s, SEND, SendData::Sges(&[])).unwrap_err();
    assert_eq!(error, PostSendError::Full { max: 512 });
    assert_eq!(error.errno(), errno::ENOMEM);
}

#[test]
fn r15_inline_data_is_that_of_the_moment_of_posting() {
    let mut s = Script::rts();
    let mut data = [1, 2, 3];
    let op = SendOp::Write { remote: far(0), imm: None };
    let flags = SendFlags::SIGNALED;
    s.host.post_wr(&SendWr {
        wr_id: 1,
        op,
        flags,
        data: SendData::Inline(&data),
        srq_number: None,
    });
    data.fill(0xff);
    s.tx([write_only(0, far(0), &[1, 2, 3]).a()]);
    // Also when it is sent again.
    s.wait(EARLY).tx([write_only(0, far(0), &[1, 2, 3]).a()]);
}

#[test]
fn acknowledgements_of_what_was_never_sent_are_ignored() {
    let mut s = Script::rts();
    s.rx(&ack(0, 1)).rx(&nak(0, NakCode::RemoteAccessError, 0)).rx(&rnr(0, 1, 0)).quiet();
    s.send(1, 1).send(2, 1).sent();
    for psn in [2, 3, 1000, 0x40_0000, -1, -1000] {
        s.rx(&ack(psn, 2)).quiet().done([]);
    }
    s.rx(&nak(3, NakCode::RemoteAccessError, 0)).quiet().done([]);
    s.rx(&resp_only(2, 1, &[])).quiet().done([]);
    assert_eq!(s.count(Counter::drop_stale_response), 11);
    s.rx(&ack(1, 2)).quiet().done([(1, Success), (2, Success)]);
    // All done: a late copy means nothing.
    s.rx(&ack(1, 2)).quiet().done([]);
    assert_eq!(s.state(), QpState::Rts);
}

#[test]
fn reserved_syndromes_and_codes_are_ignored() {
    let mut s = Script::rts();
    s.send(1, 1).sent();
    s.rx(&nak(0, NakCode::Reserved(9), 0)).quiet().done([]);
    s.rx(&ack(0, 1)).done([(1, Success)]);
}

#[test]
fn reads_outstanding_are_at_most_max_rd_atomic() {
    let mut s = Script::with(|attr| attr.max_rd_atomic = 2);
    s.read(1, 1).read(2, 1).read(3, 1).send(4, 1);
    s.tx([read(0, far(0), 1), read(1, far(0), 1)]);
    let data = s.mem(0, 1);
    s.rx(&resp_only(0, 1, &[1])).tx([read(2, far(0), 1), send_only(3, &data).a()]);
    let mut s = Script::with(|attr| attr.max_rd_atomic = 0);
    s.read(1, 1).quiet().done([(1, LocQpOpErr)]);
}

#[test]
fn completions_tell_what_was_done() {
    let mut s = Script::rts();
    s.send(1, 5).write(2, 6).read(3, 7).sent();
    s.rx(&resp_only(2, 3, &[0; 7]));
    let all: Vec<_> =
        s.host.completions().iter().map(|wc| (wc.opcode, wc.byte_len, wc.qpn)).collect();
    let qpn = s.qpn();
    assert_eq!(all[0].0, WcOpcode::Send);
    assert_eq!(all[1].0, WcOpcode::RdmaWrite);
    assert_eq!(all[2], (WcOpcode::RdmaRead, 7, qpn));
}
