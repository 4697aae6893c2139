//! Compare-and-swap and fetch-and-add, from both sides.

use rxe_core::mem::{AccessFlags, DmaBuf};
use rxe_core::qp::QpState;
use rxe_core::wc::WcOpcode;
use rxe_core::wq::{PostSendError, RemoteAddr, SendData, SendFlags, SendOp, SendWr, Sge};
use rxe_core::{AsyncEvent, Counter, errno};
use rxe_wire::{LKey, NakCode, RKey};

use crate::script::*;

#[test]
fn the_responder_swaps_if_equal_and_adds_wrapping() {
    let mut s = Script::rts();
    let to = inbox(&s);
    s.set_word(INBOX, 5);
    s.rx(&cas(0, to, 5, 0x1122_3344_5566_7788)).tx([atomic_ack(0, 1, 5)]);
    assert_eq!(s.word(INBOX), 0x1122_3344_5566_7788, "big-endian on the wire, ours in memory");
    s.rx(&cas(1, to, 5, 9)).tx([atomic_ack(1, 2, 0x1122_3344_5566_7788)]);
    assert_eq!(s.word(INBOX), 0x1122_3344_5566_7788, "not what it held: unchanged");
    s.rx(&faa(2, to, 0x10)).tx([atomic_ack(2, 3, 0x1122_3344_5566_7788)]);
    s.rx(&faa(3, to, u64::MAX)).tx([atomic_ack(3, 4, 0x1122_3344_5566_7798)]);
    assert_eq!(s.word(INBOX), 0x1122_3344_5566_7797);
    assert_eq!(s.state(), QpState::Rts);
}

#[test]
fn the_requester_stores_what_was_there_and_completes_with_eight_bytes() {
    let mut s = Script::rts();
    s.cas(1, 3, 4).faa(2, 7).tx([cas(0, far(0), 3, 4), faa(1, far(0), 7)]);
    s.rx(&atomic_ack(0, 1, 0x0102_0304_0506_0708)).quiet();
    assert_eq!(s.word(LANDING), 0x0102_0304_0506_0708);
    s.rx(&atomic_ack(1, 2, 0xfedc));
    assert_eq!(s.word(LANDING), 0xfedc);
    let [swap, add] = s.host.completions()[..] else { panic!("two completions") };
    assert_eq!((swap.wr_id, swap.opcode, swap.byte_len), (1, WcOpcode::CompSwap, 8));
    assert_eq!((add.wr_id, add.opcode, add.byte_len), (2, WcOpcode::FetchAdd, 8));
    assert_eq!((swap.status, add.status), (Success, Success));
}

#[test]
fn a_longer_buffer_gets_eight_bytes() {
    let mut s = Script::rts();
    s.host.buf.write_at(LANDING, &[0xee; 24]).unwrap();
    let sges = [s.host.sge(LANDING, 3), s.host.sge(LANDING + 8, 16)];
    let (op, flags) = (SendOp::FetchAdd { remote: far(0), add: 1 }, SendFlags::SIGNALED);
    s.host.post_wr(&SendWr { wr_id: 1, op, flags, data: SendData::Sges(&sges), srq_number: None });
    s.tx([faa(0, far(0), 1)]).rx(&atomic_ack(0, 1, u64::MAX)).done([(1, Success)]);
    let mut expected = [0xee; 24];
    expected[..3].fill(0xff);
    expected[8..13].fill(0xff);
    assert_eq!(s.mem(LANDING, 24), expected);
}

#[test]
fn r02_acknowledgement_beyond_an_open_atomic_does_not_skip_it() {
    let mut s = Script::rts();
    s.write(1, 10).faa(2, 1).send(3, 10).sent();
    s.rx(&ack(2, 3)).done([(1, Success)]).tx([faa(1, far(0), 1)]);
    s.rx(&atomic_ack(1, 2, 8)).quiet().done([(2, Success), (3, Success)]);
    assert_eq!(s.word(LANDING), 8);
    // Not even one that names the atomic itself: it does not bring the value.
    let mut s = Script::rts();
    s.faa(1, 1).sent();
    s.rx(&ack(0, 1)).done([]).tx([faa(0, far(0), 1)]);
    s.rx(&atomic_ack(0, 1, 8)).done([(1, Success)]);
}

#[test]
fn a_response_acknowledges_what_is_before_it() {
    let mut s = Script::rts();
    s.write(1, 10).send(2, 10).faa(3, 1).sent();
    s.rx(&atomic_ack(2, 3, 8)).quiet().done([(1, Success), (2, Success), (3, Success)]);
}

#[test]
fn r10_fence_waits_for_atomics() {
    let mut s = Script::rts();
    let data = s.mem(0, 1);
    let (send, fence) = (SendOp::Send { imm: None }, SendFlags::FENCE | SendFlags::SIGNALED);
    s.faa(1, 1).post_with(2, send, fence, 1).tx([faa(0, far(0), 1)]);
    s.rx(&atomic_ack(0, 1, 0)).tx([send_only(1, &data).a()]).done([(1, Success)]);
}

#[test]
fn r11_bad_local_key_of_an_atomic_is_a_completion_error() {
    let mut s = Script::rts();
    let sges = [Sge { lkey: LKey::new(0x0bad), ..s.host.sge(LANDING, 8) }];
    let (op, flags) = (SendOp::FetchAdd { remote: far(0), add: 1 }, SendFlags::SIGNALED);
    s.host.post_wr(&SendWr { wr_id: 1, op, flags, data: SendData::Sges(&sges), srq_number: None });
    s.send(2, 1).sent();
    s.rx(&atomic_ack(0, 1, 1)).quiet().done([(1, LocProtErr), (2, WrFlushErr)]);
    assert_eq!(s.state(), QpState::Err);
}

#[test]
fn r12_a_response_of_the_other_kind_is_a_bad_response() {
    let mut s = Script::rts();
    s.faa(1, 1).sent();
    s.rx(&resp_only(0, 1, &[0; 8])).done([(1, BadRespErr)]);
    let mut s = Script::rts();
    s.read(1, 8).sent();
    s.rx(&atomic_ack(0, 1, 1)).done([(1, BadRespErr)]);
    let mut s = Script::rts();
    s.write(1, 8).sent();
    s.rx(&atomic_ack(0, 1, 1)).done([(1, BadRespErr)]);
}

#[test]
fn r20_refused_atomics_are_reported() {
    let bad = RemoteAddr { addr: 0x1000, rkey: RKey::new(0x00ab_cd00) };
    for packet in [cas(0, bad, 0, 1), faa(0, bad, 1)] {
        let mut s = Script::rts();
        s.rx(&packet).tx([nak(0, ACCESS, 0)]);
        let qpn = s.qpn();
        s.events([AsyncEvent::QpAccessErr(qpn)]);
        assert_eq!(s.state(), QpState::Err);
    }
}

#[test]
fn r23_a_duplicate_atomic_is_answered_with_the_saved_value_and_not_executed() {
    let mut s = Script::rts();
    let to = inbox(&s);
    s.set_word(INBOX, 100);
    s.rx(&faa(0, to, 1)).tx([atomic_ack(0, 1, 100)]);
    s.rx(&cas(1, to, 101, 7)).tx([atomic_ack(1, 2, 101)]);
    // Meanwhile the program changes it too.
    s.set_word(INBOX, 101);
    for _ in 0..3 {
        s.rx(&faa(0, to, 1)).tx([atomic_ack(0, 1, 100)]);
        s.rx(&cas(1, to, 101, 7)).tx([atomic_ack(1, 2, 101)]);
    }
    assert_eq!(s.word(INBOX), 101);
    assert_eq!(s.count(Counter::duplicate_request), 6);
    s.rx(&faa(2, to, 1)).tx([atomic_ack(2, 3, 101)]);
}

#[test]
fn r23_a_lost_response_is_asked_for_again_with_the_same_psn() {
    let mut s = Script::rts();
    s.faa(1, 1).tx([faa(0, far(0), 1)]);
    s.wait(EARLY).tx([faa(0, far(0), 1)]);
    s.rx(&atomic_ack(0, 1, 6)).quiet().done([(1, Success)]);
    // The response to the other copy says nothing new.
    s.rx(&atomic_ack(0, 1, 6)).quiet().done([]);
    assert_eq!(s.word(LANDING), 6);
}

#[test]
fn r23_a_duplicate_whose_answer_is_still_to_leave_adds_nothing() {
    let mut s = Script::rts();
    let to = inbox(&s);
    s.rx(&faa(0, to, 1)).rx(&faa(0, to, 1)).rx(&faa(0, to, 1)).tx([atomic_ack(0, 1, 0)]);
    assert_eq!(s.word(INBOX), 1);
}

#[test]
fn r25_a_duplicate_atomic_that_is_forgotten_is_dropped() {
    let mut s = Script::with(|attr| attr.max_dest_rd_atomic = 2);
    let to = inbox(&s);
    for psn in 0..3 {
        s.rx(&faa(psn, to, 1)).sent();
    }
    s.rx(&faa(0, to, 1)).quiet();
    // Nor is one that is no atomic, or a READ that was one.
    s.rx(&write_only(3, to, &[3; 8]).a()).sent();
    s.rx(&faa(3, to, 1)).quiet();
    s.rx(&read(2, to, 8)).quiet();
    assert_eq!(s.count(Counter::drop_unknown_duplicate), 3);
    assert_eq!(s.mem(INBOX, 8), [3; 8]);
    s.rx(&faa(2, to, 1)).tx([atomic_ack(2, 3, 2)]);
}

#[test]
fn r26_reads_and_atomics_count_together() {
    let mut s = Script::with(|attr| attr.max_dest_rd_atomic = 2);
    let (to, data) = (inbox(&s), s.mem(0, 1));
    s.rx(&read(0, s.host.remote(0), 1)).rx(&faa(1, to, 1)).rx(&faa(2, to, 1));
    s.tx([resp_only(0, 1, &data), atomic_ack(1, 2, 0), nak(2, INVALID, 2)]);
    assert_eq!(s.word(INBOX), 1, "the third was not executed");
    let mut s = Script::with(|attr| attr.max_dest_rd_atomic = 0);
    s.rx(&faa(0, to, 1)).tx([nak(0, INVALID, 0)]);
}

#[test]
fn max_rd_atomic_bounds_what_is_outstanding() {
    let mut s = Script::with(|attr| attr.max_rd_atomic = 2);
    s.faa(1, 1).read(2, 1).cas(3, 1, 2).tx([faa(0, far(0), 1), read(1, far(0), 1)]);
    s.rx(&atomic_ack(0, 1, 0)).tx([cas(2, far(0), 1, 2)]);
    // With none allowed, one cannot be carried out.
    let mut s = Script::with(|attr| attr.max_rd_atomic = 0);
    s.faa(1, 1).quiet().done([(1, LocQpOpErr)]);
}

#[test]
fn r32_an_atomic_needs_remote_atomic_access() {
    // Of the region.
    let mut s = Script::rts();
    let buf = std::sync::Arc::new(DmaBuf::zeroed(64));
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let (memory, pd) = (s.host.device.memory(), s.host.pd);
    let keys = memory.register(pd, buf.clone(), 0, 64, 0x1000, access).unwrap();
    let to = RemoteAddr { addr: 0x1000, rkey: keys.rkey };
    s.rx(&faa(0, to, 1)).tx([nak(0, ACCESS, 0)]);
    assert_eq!(buf.load_u64(0), Ok(0));
    // And of the queue pair.
    let mut s = Script::with(|attr| attr.access = AccessFlags::REMOTE_WRITE);
    let to = inbox(&s);
    s.rx(&faa(0, to, 1)).tx([nak(0, INVALID, 0)]);
    assert_eq!(s.word(INBOX), 0);
}

#[test]
fn r33_an_atomic_at_the_edge_of_the_region() {
    let last = crate::common::BUF_LEN - 8;
    let mut s = Script::rts();
    let to = s.host.remote(last);
    s.rx(&faa(0, to, 9)).tx([atomic_ack(0, 1, 0)]);
    assert_eq!(s.word(last), 9);
    let beyond = RemoteAddr { addr: to.addr + 8, ..to };
    s.rx(&faa(1, beyond, 9)).tx([nak(1, ACCESS, 1)]);
    let mut s = Script::rts();
    let wraps = RemoteAddr { addr: u64::MAX - 7, ..s.host.remote(0) };
    s.rx(&faa(0, wraps, 9)).tx([nak(0, ACCESS, 0)]);
}

#[test]
fn a_misaligned_atomic_is_an_invalid_request() {
    for shift in 1..8 {
        let mut s = Script::rts();
        let to = s.host.remote(INBOX + shift);
        s.rx(&faa(0, to, 1)).tx([nak(0, INVALID, 0)]);
        let qpn = s.qpn();
        s.events([AsyncEvent::QpReqErr(qpn)]);
        assert_eq!(s.mem(INBOX, 16), [0; 16]);
    }
}

#[test]
fn memory_that_is_aligned_otherwise_than_its_addresses_has_no_atomics() {
    let mut s = Script::rts();
    let buf = std::sync::Arc::new(DmaBuf::zeroed(64));
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_ATOMIC;
    let (memory, pd) = (s.host.device.memory(), s.host.pd);
    let keys = memory.register(pd, buf, 4, 32, 0x1000, access).unwrap();
    let to = RemoteAddr { addr: 0x1000, rkey: keys.rkey };
    s.rx(&faa(0, to, 1)).tx([nak(0, OPERATION, 0)]);
    assert_eq!(s.state(), QpState::Err);
    // Nothing else tells the program.
    let qpn = s.qpn();
    s.events([AsyncEvent::QpFatal(qpn)]);
}

#[test]
fn r39_the_refusal_of_an_atomic_is_accepted_in_either_form() {
    for (code, status) in [(ACCESS, RemAccessErr), (INVALID, RemInvReqErr), (OPERATION, RemOpErr)] {
        for refusal in [nak(0, code, 0), atomic_nak(0, code, 0)] {
            let mut s = Script::rts();
            s.faa(1, 1).sent();
            s.rx(&refusal).quiet().done([(1, status)]);
            assert_eq!(s.word(LANDING), 0, "nothing was stored");
        }
    }
    // A gap is reported in either form too.
    let mut s = Script::rts();
    s.faa(1, 1).sent();
    s.rx(&atomic_nak(0, NakCode::PsnSequenceError, 0)).tx([faa(0, far(0), 1)]);
}

#[test]
fn acknowledgements_do_not_overtake_the_response_to_an_atomic() {
    let mut s = Script::rts();
    let (to, beside) = (inbox(&s), s.host.remote(INBOX + 8));
    s.rx(&faa(0, to, 1)).rx(&write_only(1, beside, &[1]).a());
    s.rx(&write_only(2, beside, &[1]).a());
    s.tx([atomic_ack(0, 1, 0), ack(2, 3)]);
}

#[test]
fn an_atomic_that_cannot_be_right_is_refused_when_it_is_posted() {
    let mut s = Script::rts();
    let post = |s: &mut Script, remote: RemoteAddr, data: SendData<'_>| {
        let (op, flags) = (SendOp::FetchAdd { remote, add: 1 }, SendFlags::SIGNALED);
        let error = s
            .host
            .qp
            .post_send(&SendWr { wr_id: 1, op, flags, data, srq_number: None })
            .unwrap_err();
        assert_eq!(error.errno(), errno::EINVAL);
        error
    };
    let sges = [s.host.sge(LANDING, 7)];
    let short = post(&mut s, far(0), SendData::Sges(&sges));
    assert_eq!(short, PostSendError::Atomic { addr: far(0).addr, len: 7 });
    let sges = [s.host.sge(LANDING, 8)];
    let misaligned = post(&mut s, far(4), SendData::Sges(&sges));
    assert_eq!(misaligned, PostSendError::Atomic { addr: far(4).addr, len: 8 });
    let inline = post(&mut s, far(0), SendData::Inline(&[0; 8]));
    assert!(matches!(inline, PostSendError::InlineResult { .. }), "{inline}");
    s.quiet().done([]);
}
