//! ATOMIC WRITE, from both sides.

use rxe_core::mem::{AccessFlags, DmaBuf};
use rxe_core::qp::QpState;
use rxe_core::wc::WcOpcode;
use rxe_core::wq::{PostSendError, RemoteAddr, SendData, SendFlags, SendOp, SendWr};
use rxe_core::{AsyncEvent, Counter, errno};
use rxe_wire::RKey;

use crate::script::*;

const BYTES: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

fn write(wr_id: u64, data: SendData<'_>) -> SendWr<'_> {
    let op = SendOp::AtomicWrite { remote: far(0) };
    SendWr { wr_id, op, flags: SendFlags::SIGNALED, data, srq_number: None }
}

#[test]
fn the_responder_stores_the_bytes_and_answers_with_an_empty_read_response() {
    let mut s = Script::rts();
    let to = inbox(&s);
    s.rx(&atomic_write(0, to, &BYTES)).tx([resp_only(0, 1, &[])]);
    assert_eq!(s.mem(INBOX, 9), [1, 2, 3, 4, 5, 6, 7, 8, 0]);
    s.rx(&write_only(1, to, &[9]).a()).tx([ack(1, 2)]);
}

#[test]
fn the_requester_sends_eight_bytes_from_memory_or_inline() {
    let mut s = Script::rts();
    let data = s.mem(16, 8);
    let sges = [s.host.sge(16, 3), s.host.sge(19, 5)];
    s.host.post_wr(&write(1, SendData::Sges(&sges)));
    s.host.post_wr(&write(2, SendData::Inline(&BYTES)));
    s.tx([atomic_write(0, far(0), &data), atomic_write(1, far(0), &BYTES)]).done([]);
    s.rx(&resp_only(0, 1, &[])).quiet();
    let [wc] = s.host.completions()[..] else { panic!("one completion") };
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (1, Success, WcOpcode::AtomicWrite));
    // What acknowledges it says as much.
    s.rx(&ack(1, 2)).quiet().done([(2, Success)]);
}

#[test]
fn r34_it_is_exactly_eight_bytes_at_a_multiple_of_eight() {
    for payload in [&BYTES[..4], &[0; 12], &[]] {
        let mut s = Script::rts();
        let to = inbox(&s);
        s.rx(&atomic_write(0, to, payload)).tx([nak(0, INVALID, 0)]);
        let qpn = s.qpn();
        s.events([AsyncEvent::QpReqErr(qpn)]);
        assert_eq!(s.mem(INBOX, 12), [0; 12]);
    }
    // RETH must say so too.
    let mut s = Script::rts();
    let mut bytes = s.request_bytes(&atomic_write(0, inbox(&s), &BYTES));
    bytes[27] = 4;
    s.rx_bytes(&bytes).tx([nak(0, INVALID, 0)]);
    for shift in 1..8 {
        let mut s = Script::rts();
        let to = s.host.remote(INBOX + shift);
        s.rx(&atomic_write(0, to, &BYTES)).tx([nak(0, INVALID, 0)]);
        assert_eq!(s.mem(INBOX, 16), [0; 16]);
    }
}

#[test]
fn r34_what_is_not_is_refused_when_it_is_posted() {
    let mut s = Script::rts();
    let post = |s: &Script, remote: RemoteAddr, data: SendData<'_>| {
        let op = SendOp::AtomicWrite { remote };
        let wr = SendWr { op, ..write(1, data) };
        let error = s.host.qp.post_send(&wr).unwrap_err();
        assert_eq!(error.errno(), errno::EINVAL);
        error
    };
    for len in [0, 7, 9] {
        let error = post(&s, far(0), SendData::Inline(&vec![0; len]));
        assert_eq!(error, PostSendError::Atomic { addr: far(0).addr, len: len as u64 });
    }
    let error = post(&s, far(4), SendData::Inline(&BYTES));
    assert_eq!(error, PostSendError::Atomic { addr: far(4).addr, len: 8 });
    s.quiet().done([]);
}

#[test]
fn r20_r32_refusals_are_those_of_a_write() {
    let bad = RemoteAddr { addr: 0x1000, rkey: RKey::new(0x00ab_cd00) };
    let mut s = Script::rts();
    s.rx(&atomic_write(0, bad, &BYTES)).tx([nak(0, ACCESS, 0)]);
    let qpn = s.qpn();
    s.events([AsyncEvent::QpAccessErr(qpn)]);
    // R33: at the end of the region.
    let mut s = Script::rts();
    let end = s.host.remote(crate::common::BUF_LEN);
    s.rx(&atomic_write(0, end, &BYTES)).tx([nak(0, ACCESS, 0)]);
    // The queue pair must allow it.
    let mut s = Script::with(|attr| attr.access = AccessFlags::REMOTE_ATOMIC);
    let to = inbox(&s);
    s.rx(&atomic_write(0, to, &BYTES)).tx([nak(0, INVALID, 0)]);
    // And the memory must have such words.
    let mut s = Script::rts();
    let buf = std::sync::Arc::new(DmaBuf::zeroed(64));
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let keys = s.memory().register(s.host.pd, buf, 4, 32, 0x1000, access).unwrap();
    let to = RemoteAddr { addr: 0x1000, rkey: keys.rkey };
    s.rx(&atomic_write(0, to, &BYTES)).tx([nak(0, OPERATION, 0)]);
    assert_eq!(s.state(), QpState::Err);
}

#[test]
fn r22_a_duplicate_is_answered_and_not_executed() {
    let mut s = Script::rts();
    let to = inbox(&s);
    s.rx(&atomic_write(0, to, &BYTES)).tx([resp_only(0, 1, &[])]);
    s.rx(&write_only(1, to, &[9; 8]).a()).tx([ack(1, 2)]);
    s.rx(&atomic_write(0, to, &BYTES)).tx([resp_only(0, 1, &[])]);
    assert_eq!(s.mem(INBOX, 8), [9; 8]);
    assert_eq!(s.count(Counter::duplicate_request), 1);
}

#[test]
fn r25_a_duplicate_that_is_forgotten_is_dropped() {
    let mut s = Script::with(|attr| attr.max_dest_rd_atomic = 1);
    let to = inbox(&s);
    s.rx(&atomic_write(0, to, &BYTES)).tx([resp_only(0, 1, &[])]);
    s.rx(&faa(1, s.host.remote(INBOX + 8), 1)).tx([atomic_ack(1, 2, 0)]);
    s.rx(&atomic_write(0, to, &BYTES)).quiet();
    s.rx(&atomic_write(1, to, &BYTES)).quiet();
    assert_eq!(s.count(Counter::drop_unknown_duplicate), 2);
}

#[test]
fn r26_it_counts_among_reads_and_atomics() {
    let mut s = Script::with(|attr| attr.max_dest_rd_atomic = 1);
    let to = inbox(&s);
    s.rx(&atomic_write(0, to, &BYTES)).rx(&atomic_write(1, to, &[9; 8]));
    s.tx([resp_only(0, 1, &[]), nak(1, INVALID, 1)]);
    assert_eq!(s.mem(INBOX, 8), BYTES);
    // At the requester too.
    let mut s = Script::with(|attr| attr.max_rd_atomic = 1);
    s.host.post_wr(&write(1, SendData::Inline(&BYTES)));
    s.faa(2, 1).tx([atomic_write(0, far(0), &BYTES)]);
    s.rx(&resp_only(0, 1, &[])).tx([faa(1, far(0), 1)]).done([(1, Success)]);
    // A place that an acknowledgement has freed is free.
    let mut s = Script::with(|attr| attr.max_rd_atomic = 1);
    s.host.post_wr(&write(1, SendData::Inline(&BYTES)));
    s.faa(2, 1).tx([atomic_write(0, far(0), &BYTES)]);
    s.rx(&ack(0, 1)).tx([faa(1, far(0), 1)]).done([(1, Success)]);
}

#[test]
fn r10_fence_waits_for_it() {
    let mut s = Script::rts();
    let data = s.mem(0, 1);
    let (send, fence) = (SendOp::Send { imm: None }, SendFlags::FENCE | SendFlags::SIGNALED);
    s.host.post_wr(&write(1, SendData::Inline(&BYTES)));
    s.post_with(2, send, fence, 1).tx([atomic_write(0, far(0), &BYTES)]);
    s.rx(&resp_only(0, 1, &[])).tx([send_only(1, &data).a()]);
}

#[test]
fn a_lost_response_is_asked_for_again() {
    let mut s = Script::rts();
    s.host.post_wr(&write(1, SendData::Inline(&BYTES)));
    s.tx([atomic_write(0, far(0), &BYTES)]);
    s.wait(EARLY).tx([atomic_write(0, far(0), &BYTES)]);
    s.rx(&resp_only(0, 1, &[])).quiet().done([(1, Success)]);
}

#[test]
fn r12_a_response_with_data_is_a_bad_one() {
    for answer in [resp_only(0, 1, &BYTES), resp_last(0, 1, &[]), atomic_ack(0, 1, 0)] {
        let mut s = Script::rts();
        s.host.post_wr(&write(1, SendData::Inline(&BYTES)));
        s.sent();
        s.rx(&answer).done([(1, BadRespErr)]);
    }
}
