//! FLUSH, from both sides.

use std::sync::Arc;

use rxe_core::mem::{AccessFlags, DmaBuf, RegMrError};
use rxe_core::wc::WcOpcode;
use rxe_core::wq::{FlushLevel, PostSendError, RemoteAddr, SendData, SendFlags, SendOp, SendWr};
use rxe_core::{AsyncEvent, Counter};
use rxe_wire::RKey;
use rxe_wire::hdr::{FlushPlacement, FlushSelectivity};

use crate::script::*;

const VISIBLE: FlushPlacement = FlushPlacement::GLOBAL_VISIBILITY;
const PERSISTENT: FlushPlacement = FlushPlacement::PERSISTENCE;
const ALLOWED: AccessFlags = AccessFlags::REMOTE_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::FLUSH_GLOBAL)
    .union(AccessFlags::FLUSH_PERSISTENT);

/// A queue pair that allows both placements, and 64 bytes at 0x1000 that can be flushed.
fn flushable() -> (Script, RemoteAddr) {
    let s = Script::with(|attr| attr.access = ALLOWED);
    let buf = Arc::new(DmaBuf::zeroed(64));
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::FLUSH_GLOBAL;
    let keys = s.memory().register(s.host.pd, buf, 0, 64, 0x1000, access).unwrap();
    (s, RemoteAddr { addr: 0x1000, rkey: keys.rkey })
}

fn op(level: FlushLevel, placement: FlushPlacement) -> SendOp {
    SendOp::Flush { remote: far(0), length: 100, placement, level }
}

#[test]
fn the_responder_answers_with_an_empty_read_response() {
    let (mut s, of) = flushable();
    s.rx(&write_only(0, of, &[1; 64])).rx(&flush(1, of, 64, VISIBLE));
    s.tx([resp_only(1, 2, &[])]);
    s.rx(&flush(2, RemoteAddr { addr: 0x1020, ..of }, 32, VISIBLE)).tx([resp_only(2, 3, &[])]);
    s.rx(&flush(3, of, 0, VISIBLE)).tx([resp_only(3, 4, &[])]);
}

#[test]
fn r33_a_range_must_be_within_the_region_a_region_needs_none() {
    let (mut s, of) = flushable();
    s.rx(&flush(0, of, 65, VISIBLE)).tx([nak(0, ACCESS, 0)]);
    let qpn = s.qpn();
    s.events([AsyncEvent::QpAccessErr(qpn)]);
    let (mut s, of) = flushable();
    let whole = flush(0, RemoteAddr { addr: u64::MAX, ..of }, u32::MAX >> 1, VISIBLE);
    s.rx(&flush_of(whole, FlushSelectivity::MemoryRegion)).tx([resp_only(0, 1, &[])]);
    // Its key must be one.
    let nobodys = RemoteAddr { addr: 0, rkey: RKey::new(0x00ab_cd00) };
    let whole = flush(1, nobodys, 0, VISIBLE);
    s.rx(&flush_of(whole, FlushSelectivity::MemoryRegion)).tx([nak(1, ACCESS, 1)]);
}

#[test]
fn r32_region_and_queue_pair_must_allow_the_placement() {
    // No memory here is known to be persistent.
    let (mut s, of) = flushable();
    s.rx(&flush(0, of, 64, VISIBLE | PERSISTENT)).tx([nak(0, ACCESS, 0)]);
    let s = Script::rts();
    let access = AccessFlags::FLUSH_PERSISTENT;
    let refused = s.memory().register(s.host.pd, s.host.buf.clone(), 0, 64, 0, access);
    assert_eq!(refused, Err(RegMrError::NotPersistent { access }));
    // A region that does not allow it.
    let mut s = Script::with(|attr| attr.access = ALLOWED);
    let of = s.host.remote(0);
    s.rx(&flush(0, of, 64, VISIBLE)).tx([nak(0, ACCESS, 0)]);
    // And a queue pair.
    let mut s = Script::rts();
    let of = s.host.remote(0);
    s.rx(&flush(0, of, 64, VISIBLE)).tx([nak(0, INVALID, 0)]);
}

#[test]
fn one_that_does_not_say_how_far_or_what_is_invalid() {
    let nothing = FlushPlacement::empty();
    let unknown = FlushPlacement::from_bits_retain(VISIBLE.bits() | 4);
    for placement in [nothing, unknown] {
        let (mut s, of) = flushable();
        s.rx(&flush(0, of, 64, placement)).tx([nak(0, INVALID, 0)]);
    }
    for reserved in [2, 3] {
        let (mut s, of) = flushable();
        let packet = flush_of(flush(0, of, 64, VISIBLE), FlushSelectivity::Reserved(reserved));
        s.rx(&packet).tx([nak(0, INVALID, 0)]);
    }
}

#[test]
fn a_duplicate_is_answered_again() {
    let (mut s, of) = flushable();
    s.rx(&flush(0, of, 64, VISIBLE)).tx([resp_only(0, 1, &[])]);
    s.rx(&flush(0, of, 64, VISIBLE)).tx([resp_only(0, 1, &[])]);
    assert_eq!(s.count(Counter::duplicate_request), 1);
    // R25: unless it is forgotten.
    for psn in 1..5 {
        s.rx(&flush(psn, of, 64, VISIBLE)).sent();
    }
    s.rx(&flush(0, of, 64, VISIBLE)).quiet();
}

#[test]
fn r26_it_counts_among_reads_and_atomics() {
    let (mut s, of) = flushable();
    for psn in 0..5 {
        s.rx(&flush(psn, of, 64, VISIBLE));
    }
    let done = |psn| resp_only(psn, psn as u32 + 1, &[]);
    s.tx([done(0), done(1), done(2), done(3), nak(4, INVALID, 4)]);
}

#[test]
fn the_requester_says_what_and_how_far() {
    let mut s = Script::rts();
    s.local(1, op(FlushLevel::Range, VISIBLE)).local(2, op(FlushLevel::Region, PERSISTENT));
    let whole = flush_of(flush(1, far(0), 100, PERSISTENT), FlushSelectivity::MemoryRegion);
    s.tx([flush(0, far(0), 100, VISIBLE), whole]);
    s.rx(&resp_only(0, 1, &[])).quiet();
    let [wc] = s.host.completions()[..] else { panic!("one completion") };
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (1, Success, WcOpcode::Flush));
    s.rx(&resp_only(1, 2, &[])).quiet().done([(2, Success)]);
}

#[test]
fn r10_fence_waits_for_it() {
    let mut s = Script::rts();
    let data = s.mem(0, 1);
    let fence = SendFlags::FENCE | SendFlags::SIGNALED;
    let write = SendOp::Write { remote: far(0), imm: None };
    s.local(1, op(FlushLevel::Range, VISIBLE)).post_with(2, write, fence, 1);
    s.tx([flush(0, far(0), 100, VISIBLE)]);
    s.rx(&resp_only(0, 1, &[])).tx([write_only(1, far(0), &data).a()]);
}

#[test]
fn r12_its_refusal_fails_it() {
    let mut s = Script::rts();
    s.local(1, op(FlushLevel::Range, VISIBLE)).sent();
    s.rx(&nak(0, ACCESS, 0)).quiet().done([(1, RemAccessErr)]);
    let mut s = Script::rts();
    s.local(1, op(FlushLevel::Range, VISIBLE)).sent();
    s.rx(&resp_only(0, 1, &[1])).quiet().done([(1, BadRespErr)]);
}

#[test]
fn one_without_a_placement_is_refused_when_it_is_posted() {
    let s = Script::rts();
    for placement in [FlushPlacement::empty(), FlushPlacement::from_bits_retain(8)] {
        let (op, data) = (op(FlushLevel::Range, placement), SendData::Sges(&[]));
        let wr = SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, data, srq_number: None };
        assert_eq!(s.host.qp.post_send(&wr), Err(PostSendError::Placement { placement }));
    }
}
