//! Lost packets, the timers that bring them back, and when a request fails in the end.

use rxe_core::Counter;
use rxe_core::qp::QpState;

use crate::script::*;

/// 0.64 ms.
const RNR_SHORT: u8 = 12;
const RNR_SHORT_NANOS: u64 = 640_000;
/// 655.36 ms, longer than all ACK timeouts of a request together.
const RNR_LONG: u8 = 0;
const RNR_LONG_NANOS: u64 = 655_360_000;

/// Lets all timers fire in turn until the QP fails, and gives the times of resends and failure.
fn silence(s: &mut Script) -> (Vec<u64>, u64) {
    let start = s.host.now;
    let mut resends = Vec::new();
    for _ in 0..1000 {
        let at = s.host.shard.poll_timeout().expect("it waits for something");
        s.wait(at.nanos_since(s.host.now));
        if s.state() == QpState::Err {
            return (resends, at.nanos_since(start));
        }
        if !s.sent().is_empty() {
            resends.push(at.nanos_since(start));
        }
    }
    panic!("it never fails: {resends:?}");
}

#[test]
fn a_request_fails_after_retry_cnt_and_one_more_timeouts() {
    let mut s = Script::rts();
    s.send(1, 1).send(2, 1).sent();
    let (resends, failed) = silence(&mut s);
    assert_eq!(failed, (RETRY_CNT + 1) * ACK_TIMEOUT);
    // The short timer, twice as long each time, and the ACK timer: each has all sent again.
    let mut expected = vec![EARLY, 3 * EARLY, 7 * EARLY, ACK_TIMEOUT, 2 * ACK_TIMEOUT];
    expected.push(3 * ACK_TIMEOUT);
    expected.sort_unstable();
    assert_eq!(resends, expected);
    assert_eq!(s.count(Counter::early_resend), 3);
    assert_eq!(s.count(Counter::completer_retry_err), RETRY_CNT);
    assert_eq!(s.count(Counter::retry_exceeded_err), 1);
    s.quiet().done([(1, RetryExcErr), (2, WrFlushErr)]);
    s.wait(100 * ACK_TIMEOUT).quiet().done([]);
}

#[test]
fn retry_cnt_0_fails_at_the_first_timeout_and_early_resends_do_not_count() {
    let mut s = Script::with(|attr| attr.retry_cnt = 0);
    s.read(1, 1).sent();
    let (resends, failed) = silence(&mut s);
    assert_eq!(failed, ACK_TIMEOUT);
    assert_eq!(resends, [EARLY, 3 * EARLY]);
    s.done([(1, RetryExcErr)]);
}

#[test]
fn timeout_0_waits_for_ever() {
    let mut s = Script::with(|attr| attr.timeout = 0);
    s.send(1, 1).sent();
    for _ in 0..200 {
        s.wait(ACK_TIMEOUT * 16);
    }
    assert_eq!(s.state(), QpState::Rts);
    s.rx(&ack(0, 1)).done([(1, Success)]);
}

#[test]
fn a_lost_last_packet_is_sent_again_by_the_short_timer() {
    let mut s = Script::rts();
    let data = s.mem(0, 600);
    s.send(1, 600).sent();
    // The first two have come: the peer says so only when asked.
    s.wait(EARLY - 1).quiet();
    s.wait(1).tx([send_first(0, &data[..256]).a()]);
    s.rx(&ack(1, 0)).quiet().done([]);
    // A packet that was sent twice measures no round trip, so the timer is as before.
    s.wait(EARLY - 1).quiet();
    s.wait(1).tx([send_last(2, &data[512..]).a()]);
    s.rx(&ack(2, 1)).quiet().done([(1, Success)]);
    assert_eq!(s.count(Counter::completer_retry_err), 0);
}

#[test]
fn a_lost_acknowledgement_costs_one_short_timer() {
    let mut s = Script::rts();
    let data = s.mem(0, 1);
    s.send(1, 1).sent();
    s.wait(EARLY).tx([send_only(0, &data).a()]);
    // The peer answers the duplicate, and perhaps the original too.
    s.rx(&ack(0, 1)).rx(&ack(0, 1)).quiet().done([(1, Success)]);
    assert_eq!(s.host.shard.poll_timeout().map(|_| ()), Some(()), "stale entries may remain");
    s.wait(100 * ACK_TIMEOUT).quiet().done([]);
}

#[test]
fn a_lost_nak_is_made_up_for_by_the_timer() {
    let mut s = Script::rts();
    let data = s.mem(0, 1);
    s.send(1, 1).send(2, 1).sent();
    // Packet 0 was lost, so was the NAK for it, and the peer is silent now.
    s.wait(EARLY).tx([send_only(0, &data).a()]);
    // It answers to that one alone, so it has dropped what came behind.
    s.rx(&ack(0, 1)).tx([send_only(1, &data).a()]).done([(1, Success)]);
    s.rx(&ack(1, 2)).quiet().done([(2, Success)]);
}

#[test]
fn the_short_timer_of_a_full_window_resends_the_oldest_packet_only() {
    let mut s = Script::rts();
    let data = s.mem(0, 256);
    s.send(1, 100 * 256);
    assert_eq!(s.sent().len(), 64);
    s.wait(EARLY).tx([send_first(0, &data).a()]);
    // The answers were late, nothing was lost: nothing else is sent twice.
    s.rx(&ack(63, 0));
    assert_eq!(s.sent()[0].psn(), 64);
}

#[test]
fn a_lost_read_request_or_last_response_is_asked_for_again() {
    let mut s = Script::rts();
    let data = bytes(300, 1);
    s.read(1, 300).tx([read(0, far(0), 300)]);
    s.wait(EARLY).tx([read(0, far(0), 300)]);
    s.rx(&resp_first(0, 1, &data[..256])).quiet();
    s.wait(EARLY).tx([read(1, far(256), 44)]);
    s.rx(&resp_only(1, 1, &data[256..])).quiet().done([(1, Success)]);
    assert_eq!(s.mem(LANDING, 300), data);
}

#[test]
fn what_was_lost_behind_a_read_follows_when_its_answer_is_complete() {
    let mut s = Script::rts();
    let (data, answer) = (s.mem(0, 1), bytes(600, 1));
    s.read(1, 600).send(2, 1).sent();
    // The READ request and the NAK for it were lost, so the peer has dropped the SEND.
    s.wait(EARLY).tx([read(0, far(0), 600)]);
    s.rx(&resp_first(0, 1, &answer[..256])).quiet();
    s.rx(&resp_middle(1, &answer[256..512])).quiet();
    s.rx(&resp_last(2, 1, &answer[512..])).tx([send_only(3, &data).a()]).done([(1, Success)]);
    s.rx(&ack(3, 2)).quiet().done([(2, Success)]);
}

#[test]
fn the_short_timer_follows_the_round_trip() {
    let mut s = Script::rts();
    s.send(1, 1).sent();
    s.wait(4 * MS).rx(&ack(0, 1)).done([(1, Success)]);
    s.send(2, 1).sent();
    // srtt + 4 rttvar = 4 ms + 4 * 2 ms.
    s.wait(12 * MS - 1).quiet();
    assert_eq!(s.wait(1).sent().len(), 1);
}

#[test]
fn packets_that_were_sent_twice_measure_no_round_trip() {
    let mut s = Script::rts();
    s.send(1, 1).send(2, 1).sent();
    s.wait(5 * MS).rx(&nak_seq(0, 0));
    assert_eq!(s.sent().len(), 2);
    // To which copy is this the answer?
    s.wait(5 * MS).rx(&ack(1, 2)).done([(1, Success), (2, Success)]);
    s.send(3, 1).sent();
    s.wait(EARLY - 1).quiet();
    assert_eq!(s.wait(1).sent().len(), 1);
}

#[test]
fn r05_nothing_leaves_before_the_rnr_time_is_over() {
    let mut s = Script::rts();
    let data = s.mem(0, 1);
    let packet = |psn| send_only(psn, &data).a();
    s.send(1, 1).send(2, 1).sent();
    s.rx(&rnr(0, RNR_LONG, 0)).quiet();
    // Neither a post, nor a NAK, nor the ACK timer, which would have failed the request by now.
    s.send(3, 1).quiet();
    s.rx(&nak_seq(0, 0)).quiet();
    for _ in 0..9 {
        s.wait(ACK_TIMEOUT).quiet().done([]);
    }
    s.wait(RNR_LONG_NANOS - 9 * ACK_TIMEOUT - 1).quiet();
    s.wait(1).tx([packet(0), packet(1), packet(2)]);
    s.rx(&ack(2, 3)).quiet().done([(1, Success), (2, Success), (3, Success)]);
}

#[test]
fn r05_an_rnr_nak_acknowledges_what_came_before() {
    let mut s = Script::rts();
    let data = s.mem(0, 1);
    s.send(1, 1).send(2, 1).sent();
    s.rx(&rnr(1, RNR_SHORT, 1)).quiet().done([(1, Success)]);
    s.wait(RNR_SHORT_NANOS).tx([send_only(1, &data).a()]);
}

#[test]
fn r05_progress_while_waiting_starts_no_timer() {
    // The network doubled packet 0: one copy met no receive, the other one did. Packet 1 fell
    // into the silence between.
    let mut s = Script::rts();
    let data = s.mem(0, 1);
    s.send(1, 1).send(2, 1).sent();
    s.rx(&rnr(0, RNR_LONG, 0)).rx(&ack(0, 1)).quiet().done([(1, Success)]);
    for _ in 0..9 {
        s.wait(ACK_TIMEOUT).quiet().done([]);
    }
    s.wait(RNR_LONG_NANOS - 9 * ACK_TIMEOUT).tx([send_only(1, &data).a()]);
    s.rx(&ack(1, 2)).quiet().done([(2, Success)]);
}

#[test]
fn r05_a_second_copy_of_an_rnr_nak_counts_and_delays_nothing() {
    let mut s = Script::with(|attr| attr.rnr_retry = 1);
    s.send(1, 1).sent();
    s.rx(&rnr(0, RNR_SHORT, 0)).rx(&rnr(0, RNR_SHORT, 0)).quiet().done([]);
    s.wait(RNR_SHORT_NANOS / 2).rx(&rnr(0, RNR_SHORT, 0)).quiet().done([]);
    assert_eq!(s.wait(RNR_SHORT_NANOS / 2).sent().len(), 1);
}

#[test]
fn r06_progress_starts_the_ack_timer_anew() {
    let mut s = Script::rts();
    s.send(1, 1).send(2, 1).send(3, 1).sent();
    for _ in 0..RETRY_CNT {
        s.wait(ACK_TIMEOUT);
    }
    s.rx(&ack(0, 1)).done([(1, Success)]).sent();
    // A whole set of timeouts from here on, not what was left.
    let (_, failed) = silence(&mut s);
    assert_eq!(failed, (RETRY_CNT + 1) * ACK_TIMEOUT);
    s.done([(2, RetryExcErr), (3, WrFlushErr)]);
}

#[test]
fn r06_a_long_read_is_not_retried_while_it_comes_in() {
    let mut s = Script::with(|attr| attr.retry_cnt = 0);
    s.read(1, 3 * 256).sent();
    s.wait(EARLY - 1);
    s.rx(&resp_first(0, 1, &[1; 256])).quiet();
    // The round trip is known now: a short timer of 60 ms.
    for psn in [1, 2] {
        s.wait(ACK_TIMEOUT - 10 * MS).quiet();
        let last = resp_last(psn, 1, &[1; 256]);
        s.rx(&if psn == 1 { resp_middle(psn, &[1; 256]) } else { last }).quiet();
    }
    s.done([(1, Success)]);
    assert_eq!(s.count(Counter::early_resend), 0);
}

#[test]
fn r06_no_timer_runs_when_nothing_is_outstanding() {
    let mut s = Script::rts();
    s.send(1, 1).sent();
    s.rx(&ack(0, 1)).done([(1, Success)]);
    for _ in 0..10 {
        s.wait(ACK_TIMEOUT).quiet().done([]);
    }
    assert_eq!(s.host.shard.poll_timeout(), None);
    assert_eq!(s.state(), QpState::Rts);
}

#[test]
fn r07_rnr_retry_is_finite_below_7() {
    for rnr_retry in [0, 1, 6] {
        let mut s = Script::with(|attr| attr.rnr_retry = rnr_retry);
        s.send(1, 1).send(2, 1).sent();
        for _ in 0..rnr_retry {
            s.rx(&rnr(0, RNR_SHORT, 0)).quiet().done([]);
            assert_eq!(s.wait(RNR_SHORT_NANOS).sent().len(), 2);
        }
        s.rx(&rnr(0, RNR_SHORT, 0)).quiet().done([(1, RnrRetryExcErr), (2, WrFlushErr)]);
        assert_eq!(s.count(Counter::retry_rnr_exceeded_err), 1);
    }
}

#[test]
fn r07_rnr_retries_count_for_one_request() {
    let mut s = Script::with(|attr| attr.rnr_retry = 1);
    s.send(1, 1).send(2, 1).sent();
    s.rx(&rnr(0, RNR_SHORT, 0)).wait(RNR_SHORT_NANOS).sent();
    s.rx(&rnr(1, RNR_SHORT, 1)).done([(1, Success)]);
    s.wait(RNR_SHORT_NANOS).sent();
    s.rx(&rnr(1, RNR_SHORT, 1)).done([(2, RnrRetryExcErr)]);
}

#[test]
fn r07_rnr_retry_7_is_for_ever() {
    let mut s = Script::with(|attr| attr.rnr_retry = 7);
    s.send(1, 1).sent();
    for _ in 0..1000 {
        s.rx(&rnr(0, RNR_SHORT, 0)).quiet();
        assert_eq!(s.wait(RNR_SHORT_NANOS).sent().len(), 1);
    }
    s.rx(&ack(0, 1)).done([(1, Success)]);
}

#[test]
fn a_peer_that_is_not_ready_is_alive_and_retry_cnt_starts_anew() {
    let mut s = Script::with(|attr| attr.rnr_retry = 7);
    s.send(1, 1).sent();
    for _ in 0..20 {
        // An answer is lost now and then, never retry_cnt times over.
        s.wait(ACK_TIMEOUT).sent();
        s.rx(&rnr(0, RNR_SHORT, 0)).done([]);
        assert_eq!(s.wait(RNR_SHORT_NANOS).sent().len(), 1);
    }
    s.rx(&ack(0, 1)).done([(1, Success)]);
}
