//! READ responses behind a gap: what comes is kept, and only the gap is asked for again.

use rxe_core::Counter;
use rxe_core::qp::{QpAttr, QpAttrMask, QpState};
use rxe_core::wq::{SendData, SendFlags, SendOp, SendWr};
use rxe_wire::NakCode;

use crate::script::*;

/// A QP that has asked for so many packets, and what they bring.
fn reading(packets: usize) -> (Script, Vec<u8>) {
    reading_with(packets, |_| {})
}

fn reading_with(packets: usize, change: impl FnOnce(&mut QpAttr)) -> (Script, Vec<u8>) {
    let data = bytes(packets * MTU, 3);
    let mut s = Script::with(change);
    s.read(1, data.len() as u32);
    (s, data)
}

fn payload(data: &[u8], psn: i32) -> &[u8] {
    &data[psn as usize * MTU..(psn as usize + 1) * MTU]
}

/// Packet `psn` of the response to one request of PSNs 0 to `end`.
fn resp(data: &[u8], end: i32, psn: i32) -> P {
    let payload = payload(data, psn);
    match psn {
        0 => resp_first(0, 1, payload),
        psn if psn + 1 == end => resp_last(psn, 1, payload),
        psn => resp_middle(psn, payload),
    }
}

/// What asks for packets `first..end` of the READ.
fn ask(first: i32, end: i32) -> P {
    read(first, far(first as u64 * 256), (end - first) as u32 * 256)
}

fn landed(s: &Script, psn: i32) -> Vec<u8> {
    s.mem(LANDING + psn as usize * MTU, MTU)
}

#[test]
fn r01_only_what_is_missing_is_asked_for_again() {
    let (mut s, data) = reading(6);
    let at = |psn| resp(&data, 6, psn);
    s.tx([ask(0, 6)]);
    s.rx(&at(0)).quiet().rx(&at(3)).tx([ask(1, 3)]);
    s.rx(&at(4)).rx(&at(5)).done([]);
    // Any position may be that of the answer to a part.
    s.rx(&resp_first(1, 1, payload(&data, 1))).done([]);
    s.rx(&resp_last(2, 1, payload(&data, 2)));
    s.sent();
    // The last packet came when others were missing.
    s.rx(&resp_only(5, 1, payload(&data, 5))).quiet().done([(1, Success)]);
    assert_eq!(s.mem(LANDING, data.len()), data);
}

#[test]
fn r01_the_first_response_is_asked_for_again_alone() {
    let (mut s, data) = reading(3);
    s.tx([ask(0, 3)]).rx(&resp(&data, 3, 1)).tx([ask(0, 1)]);
    s.rx(&resp_only(0, 1, payload(&data, 0))).quiet().done([]);
    s.rx(&resp(&data, 3, 2)).quiet().done([(1, Success)]);
    assert_eq!(s.mem(LANDING, data.len()), data);
}

#[test]
fn r61_the_last_byte_of_a_read_is_seen_last() {
    let (mut s, data) = reading(4);
    s.sent();
    s.rx(&resp(&data, 4, 0)).rx(&resp(&data, 4, 2)).rx(&resp(&data, 4, 3));
    assert_eq!(landed(&s, 2), payload(&data, 2), "kept");
    assert_eq!(landed(&s, 3), [0; MTU], "not before packet 1");
    s.tx([ask(1, 4)]).rx(&resp_first(1, 1, payload(&data, 1))).done([]);
    assert_eq!(landed(&s, 3), [0; MTU]);
    s.rx(&resp_last(3, 1, payload(&data, 3))).quiet().done([(1, Success)]);
    assert_eq!(s.mem(LANDING, data.len()), data);
}

#[test]
fn a_later_read_that_is_whole_completes_with_the_one_before_it() {
    let (mut s, data) = reading(2);
    let sges = [s.host.sge(INBOX, 300)];
    let (op, flags) = (SendOp::Read { remote: far(0) }, SendFlags::SIGNALED);
    s.host.post_wr(&SendWr { wr_id: 2, op, flags, data: SendData::Sges(&sges), srq_number: None });
    s.send(3, 1).sent();
    let later = bytes(300, 8);
    s.rx(&resp(&data, 2, 0));
    s.rx(&resp_first(2, 2, &later[..256])).rx(&resp_last(3, 2, &later[256..])).done([]);
    assert_eq!(s.mem(INBOX, 300), later);
    // The SEND is acknowledged, and completes in its turn as well.
    s.rx(&ack(4, 3)).done([]).tx([ask(1, 2)]);
    s.rx(&resp_only(1, 1, payload(&data, 1))).quiet();
    s.done([(1, Success), (2, Success), (3, Success)]);
}

#[test]
fn r24_no_request_for_a_part_begins_before_an_earlier_one() {
    // Linux's responder drops those. So two gaps in what one request asked for are one.
    let (mut s, data) = reading(12);
    let at = |psn| resp(&data, 12, psn);
    s.tx([ask(0, 12)]).rx(&at(0)).rx(&at(2)).tx([ask(1, 2)]);
    s.rx(&at(3)).rx(&at(5)).tx([ask(1, 5)]);
    s.rx(&at(6)).quiet();
    // Silence: the rest is asked for as well, since its request has been carried out.
    s.wait(MS).tx([ask(1, 12)]);
    s.rx(&resp_first(1, 1, payload(&data, 1))).quiet();
    s.wait(MS).tx([ask(4, 12)]);
    for psn in 4..12 {
        s.rx(&at(psn));
    }
    s.quiet().done([(1, Success)]);
    assert_eq!(s.mem(LANDING, data.len()), data);
}

#[test]
fn r04_a_gap_is_asked_for_once_until_something_shows_that_it_is_lost_again() {
    let (mut s, data) = reading(200);
    s.tx([ask(0, 16), ask(16, 32), ask(32, 48), ask(48, 64)]);
    s.rx(&resp_first(0, 1, payload(&data, 0)));
    for psn in 2..15 {
        s.rx(&resp_middle(psn, payload(&data, psn)));
    }
    s.tx([ask(1, 2)]);
    for psn in 15..64 {
        s.rx(&resp_middle(psn, payload(&data, psn)));
        if psn % 16 == 15 {
            s.rx(&resp_last(psn, 1, payload(&data, psn)));
        }
    }
    // The limit is the peer's memory for requests, of which the first is not done.
    s.quiet();
    // An answer that was asked for after it would be behind it: there is none, so time decides.
    s.wait(MS).tx([ask(1, 2)]);
    s.wait(MS).tx([ask(1, 2)]);
    s.rx(&resp_only(1, 1, payload(&data, 1)));
    assert_eq!(s.sent()[0].psn(), 64);
}

#[test]
fn r04_an_answer_to_a_later_request_shows_that_a_gap_is_lost_again() {
    let (mut s, data) = reading_with(200, |attr| attr.max_rd_atomic = 16);
    s.tx([ask(0, 16), ask(16, 32), ask(32, 48), ask(48, 64)]);
    s.rx(&resp_first(0, 1, payload(&data, 0))).rx(&resp_middle(2, payload(&data, 2)));
    s.tx([ask(1, 2)]);
    let mut asked_after = Vec::new();
    for psn in 3..64 {
        let payload = payload(&data, psn);
        let is_last = psn % 16 == 15;
        s.rx(&if is_last { resp_last(psn, 1, payload) } else { resp_middle(psn, payload) });
        asked_after.extend(s.sent());
    }
    // What came has made room for more of it.
    assert_eq!(asked_after[0], ask(64, 80));
    assert!(asked_after.iter().all(|request| request.psn() >= 64), "{asked_after:?}");
    s.rx(&resp_first(64, 1, payload(&data, 64)));
    assert!(s.sent().contains(&ask(1, 2)));
}

#[test]
fn r04_an_acknowledgement_of_a_later_request_shows_it_too() {
    let (mut s, data) = reading(2);
    s.read(2, 256).sent();
    s.rx(&resp(&data, 2, 0)).rx(&resp_only(2, 2, payload(&data, 0))).tx([ask(1, 2)]);
    s.send(3, 1).sent();
    s.rx(&ack(3, 3)).done([]).tx([ask(1, 2)]);
    // Once more it is no news.
    s.rx(&ack(3, 3)).quiet();
    s.rx(&resp_only(1, 1, payload(&data, 1))).quiet();
    s.done([(1, Success), (2, Success), (3, Success)]);
}

#[test]
fn a_lost_request_is_sent_again_with_what_is_behind_it() {
    let (mut s, data) = reading(64);
    s.tx([ask(0, 16), ask(16, 32), ask(32, 48), ask(48, 64)]);
    s.rx(&resp_first(0, 1, payload(&data, 0)));
    for psn in 2..16 {
        let payload = payload(&data, psn);
        s.rx(&if psn == 15 { resp_last(psn, 1, payload) } else { resp_middle(psn, payload) });
    }
    s.tx([ask(1, 2)]);
    // The peer expects the second part: neither the gap nor what came is asked for again.
    s.rx(&nak_seq(16, 1));
    assert_eq!(s.sent()[0], ask(16, 32));
    s.rx(&resp_only(1, 1, payload(&data, 1)));
    let first = resp_first(16, 2, payload(&data, 16));
    s.rx(&first);
    assert_eq!(landed(&s, 16), payload(&data, 16));
    // One that is late is about what has come.
    s.sent();
    s.rx(&nak_seq(16, 1)).quiet().rx(&first).quiet();
    assert_eq!(s.count(Counter::drop_stale_response), 2);
}

#[test]
fn r05_nothing_is_asked_for_while_the_peer_is_not_ready() {
    let (mut s, data) = reading(3);
    s.send(2, 1).sent();
    let sent = s.mem(0, 1);
    s.rx(&resp(&data, 3, 1)).tx([ask(0, 1)]);
    // It says that packet 2 is lost too, which must wait.
    s.rx(&rnr(3, 12, 1)).quiet().wait(600_000).quiet();
    s.wait(100_000).tx([ask(0, 3), send_only(3, &sent).a()]);
    s.rx(&resp(&data, 3, 0)).rx(&ack(3, 2)).done([]).quiet();
    s.rx(&resp(&data, 3, 2)).quiet().done([(1, Success), (2, Success)]);
}

#[test]
fn r11_a_local_key_that_is_gone_fails_the_read_in_its_turn() {
    let (mut s, data) = reading(3);
    s.sent();
    s.rx(&resp(&data, 3, 0));
    s.memory().deregister(s.host.keys).unwrap();
    s.rx(&resp(&data, 3, 2)).tx([ask(1, 3)]).done([]);
    s.rx(&resp_first(1, 1, payload(&data, 1))).quiet().done([(1, LocProtErr)]);
    assert_eq!(s.state(), QpState::Err);
    assert_eq!(landed(&s, 1), [0; MTU]);
}

#[test]
fn r12_a_refusal_in_a_gap_ends_the_read() {
    for code in [NakCode::RemoteAccessError, NakCode::RemoteOperationalError] {
        let (mut s, data) = reading(6);
        s.send(2, 1).sent();
        s.rx(&resp(&data, 6, 0)).rx(&resp(&data, 6, 2)).rx(&resp(&data, 6, 4));
        s.tx([ask(1, 4)]).rx(&nak(1, code, 1)).quiet();
        let status = if code == NakCode::RemoteAccessError { RemAccessErr } else { RemOpErr };
        s.done([(1, status), (2, WrFlushErr)]);
    }
}

#[test]
fn a_response_that_cannot_be_right_fails_the_read_in_its_turn() {
    let (mut s, data) = reading(3);
    s.sent();
    s.rx(&resp_middle(1, &data[..100])).done([]).tx([ask(0, 2)]);
    s.rx(&resp_first(0, 1, payload(&data, 0))).done([]);
    s.rx(&resp_last(1, 1, &data[..100])).quiet().done([(1, BadRespErr)]);
    // Nor does a response end before its time, if no part was asked for that ends there.
    let (mut s, data) = reading(3);
    s.sent();
    s.rx(&resp_only(0, 1, payload(&data, 0))).quiet().done([(1, BadRespErr)]);
}

#[test]
fn an_atomic_behind_a_gap_is_asked_for_again() {
    let (mut s, data) = reading(2);
    s.write(2, 1).faa(3, 1).send(4, 1).sent();
    s.rx(&resp(&data, 2, 0)).rx(&atomic_ack(3, 3, 77)).done([]);
    s.tx([ask(1, 2), faa(3, far(0), 1)]);
    s.rx(&resp_only(1, 1, payload(&data, 1))).done([(1, Success), (2, Success)]);
    s.rx(&atomic_ack(3, 3, 78)).quiet().done([(3, Success)]);
    assert_eq!(s.word(LANDING), 78);
    s.rx(&ack(4, 4)).quiet().done([(4, Success)]);
}

#[test]
fn r25_no_more_requests_than_the_peer_remembers_follow_one_with_a_gap() {
    let (mut s, data) = reading_with(2, |attr| attr.max_rd_atomic = 1);
    s.read(2, 256).tx([ask(0, 2)]);
    s.rx(&resp(&data, 2, 1)).tx([ask(0, 2)]).wait(EARLY).tx([ask(0, 2)]);
    s.rx(&resp(&data, 2, 0)).quiet();
    s.rx(&resp(&data, 2, 1)).done([(1, Success)]).tx([read(2, far(0), 256)]);
}

#[test]
fn after_the_ack_timer_all_that_is_missing_is_asked_for() {
    let (mut s, data) = reading(12);
    s.read(2, 256).sent();
    s.rx(&resp(&data, 12, 0)).rx(&resp(&data, 12, 2)).tx([ask(1, 2)]);
    s.wait(ACK_TIMEOUT);
    let sent = s.sent();
    assert_eq!(sent[0], ask(1, 12));
    assert_eq!(s.count(Counter::completer_retry_err), 1);
    for psn in (1..12).filter(|&psn| psn != 2) {
        s.rx(&resp(&data, 12, psn));
    }
    assert_eq!(s.sent(), [read(12, far(0), 256)]);
    s.done([(1, Success)]);
}

#[test]
fn a_peer_that_has_been_away_is_asked_for_the_gap_after_each_timeout() {
    let (mut s, data) = reading(4);
    s.sent();
    s.rx(&resp(&data, 4, 0)).rx(&resp(&data, 4, 2)).tx([ask(1, 2)]);
    // It counts as silent long before the ACK timer, and the short one has become long.
    for _ in 0..60 {
        s.wait(MS).sent();
    }
    s.wait(8 * MS).tx([ask(1, 4)]);
    assert_eq!(s.count(Counter::completer_retry_err), 1);
    s.rx(&resp(&data, 4, 1)).rx(&resp(&data, 4, 3)).quiet().done([(1, Success)]);
}

#[test]
fn r47_a_read_with_a_gap_is_flushed_like_any_other() {
    let (mut s, data) = reading(3);
    s.read(2, 256).sent();
    s.rx(&resp(&data, 3, 1));
    s.host.modify(QpAttr { state: QpState::Err, ..s.attr }, QpAttrMask::STATE);
    s.quiet().done([(1, WrFlushErr), (2, WrFlushErr)]);
    s.rx(&resp(&data, 3, 0)).wait(10 * ACK_TIMEOUT).quiet().done([]);
}
