//! Keys that work requests make invalid: LOCAL_INV, and SEND with invalidate from both sides.

use rxe_core::Counter;
use rxe_core::mem::MrKeys;
use rxe_core::qp::QpState;
use rxe_core::wc::{WcFlags, WcOpcode};
use rxe_core::wq::{SendFlags, SendOp};
use rxe_wire::RKey;

use crate::registration::{at, mapped, register, renewed};
use crate::script::*;

/// A script with a valid region for fast registration.
fn valid() -> (Script, MrKeys) {
    let mut s = Script::rts();
    let keys = mapped(&s);
    s.local(1, register(keys.rkey)).quiet().done([(1, Success)]);
    (s, keys)
}

#[test]
fn send_with_invalidate_puts_the_key_into_the_last_packet() {
    let mut s = Script::rts();
    let (data, rkey) = (s.mem(0, 300), RKey::new(0x1234_5678));
    let op = SendOp::SendInvalidate { rkey };
    s.post_with(1, op, SendFlags::SIGNALED | SendFlags::SOLICITED, 300);
    s.tx([send_first(0, &data[..256]), send_last_inv(1, &data[256..], rkey).a().se()]);
    s.post_with(2, op, SendFlags::SIGNALED, 3).tx([send_only_inv(2, &data[..3], rkey).a()]);
    s.rx(&ack(2, 2)).quiet();
    let [first, second] = s.host.completions()[..] else { panic!("two completions") };
    assert_eq!((first.wr_id, first.opcode, first.byte_len), (1, WcOpcode::Send, 300));
    assert_eq!((second.wr_id, second.opcode, second.byte_len), (2, WcOpcode::Send, 3));
}

#[test]
fn r41_an_incoming_send_invalidates_the_key_and_tells_it() {
    let (mut s, keys) = valid();
    s.recv(2, 1000);
    let data = bytes(300, 1);
    s.rx(&send_first(0, &data[..256])).quiet();
    // Until the message is complete the key is valid.
    s.rx(&send_last_inv(1, &data[256..], keys.rkey).a()).tx([ack(1, 1)]);
    let [wc] = s.host.completions()[..] else { panic!("one completion") };
    assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len), (2, Success, WcOpcode::Recv, 300));
    assert_eq!((wc.flags, wc.imm), (WcFlags::WITH_INV, keys.rkey.get()));
    assert_eq!(s.mem(INBOX, 300), data);
    s.rx(&write_only(2, at(0x9000, keys.rkey), &[1]).a()).tx([nak(2, ACCESS, 1)]);
}

#[test]
fn r22_a_duplicate_does_not_invalidate_again() {
    let (mut s, keys) = valid();
    s.recv(2, 8).recv(3, 8);
    s.rx(&send_only_inv(0, &[1], keys.rkey).a()).tx([ack(0, 1)]).done([(2, Success)]);
    s.local(4, register(keys.rkey)).quiet().done([(4, Success)]);
    s.rx(&send_only_inv(0, &[1], keys.rkey).a()).tx([ack(0, 1)]).done([]);
    assert_eq!(s.count(Counter::duplicate_request), 1);
    s.rx(&write_only(1, at(0x9000, keys.rkey), &[1]).a()).tx([ack(1, 2)]);
}

#[test]
fn r41_the_whole_key_must_be_right() {
    let (mut s, keys) = valid();
    s.recv(2, 8);
    s.rx(&send_only_inv(0, &[1], renewed(keys.rkey)).a()).tx([nak(0, ACCESS, 0)]);
    // The receive tells, so there is no event.
    s.done([(2, RemInvReqErr)]).events([]);
    assert_eq!(s.state(), QpState::Err);
    let (mut s, keys) = valid();
    s.local(2, SendOp::LocalInvalidate { key: renewed(keys.rkey) }).quiet();
    s.done([(2, LocQpOpErr)]);
}

#[test]
fn r41_plain_regions_cannot_be_invalidated() {
    let mut s = Script::rts();
    let key = s.host.keys.rkey;
    s.recv(1, 8);
    s.rx(&send_only_inv(0, &[1], key).a()).tx([nak(0, ACCESS, 0)]).done([(1, RemInvReqErr)]);
    let mut s = Script::rts();
    let key = s.host.keys.rkey;
    s.local(1, SendOp::LocalInvalidate { key }).quiet().done([(1, LocQpOpErr)]);
    assert!(s.memory().deregister(s.host.keys).is_ok(), "it is still registered");
}

#[test]
fn keys_of_another_domain_cannot_be_invalidated() {
    let mut s = Script::rts();
    let pd = s.host.device.alloc_pd().unwrap();
    let keys = s.memory().alloc_mr(pd, 1).unwrap();
    s.local(1, SendOp::LocalInvalidate { key: keys.rkey }).quiet().done([(1, LocQpOpErr)]);
}

#[test]
fn a_region_is_registered_and_invalidated_in_turn() {
    let (mut s, keys) = valid();
    let mut key = keys.rkey;
    for round in 0..5 {
        s.local(10, SendOp::LocalInvalidate { key }).quiet();
        let [wc] = s.host.completions()[..] else { panic!("one completion") };
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (10, Success, WcOpcode::LocalInv));
        key = RKey::new(key.get() & !0xff | round);
        s.local(11, register(key)).quiet().done([(11, Success)]);
        s.rx(&write_only(round as i32, at(0x9000, key), &[1]).a());
        s.tx([ack(round as i32, round + 1)]);
    }
}

#[test]
fn r10_local_invalidate_waits_for_all_requests_before_it() {
    for flags in [SendFlags::SIGNALED, SendFlags::SIGNALED | SendFlags::FENCE] {
        let (mut s, keys) = valid();
        let (key, data) = (keys.rkey, s.mem(0, 1));
        s.write(2, 1).local_with(3, SendOp::LocalInvalidate { key }, flags).send(4, 1);
        s.tx([write_only(0, far(0), &data).a()]);
        // The peer may still write by the key.
        s.rx(&write_only(0, at(0x9000, key), &[1]).a()).tx([ack(0, 1)]).done([]);
        // A resend of the WRITE finds it waiting.
        s.wait(EARLY).tx([write_only(0, far(0), &data).a()]);
        s.rx(&ack(0, 1)).tx([send_only(1, &data).a()]).done([(2, Success), (3, Success)]);
        s.rx(&write_only(1, at(0x9000, key), &[1]).a()).tx([nak(1, ACCESS, 1)]);
    }
}

#[test]
fn r10_a_fence_holds_local_requests_for_reads() {
    let mut s = Script::rts();
    let key = mapped(&s).rkey;
    let fence = SendFlags::FENCE | SendFlags::SIGNALED;
    s.read(1, 1).local_with(2, register(key), fence).tx([read(0, far(0), 1)]);
    let to = at(0x9000, key);
    s.rx(&resp_only(0, 1, &[1])).quiet().done([(1, Success), (2, Success)]);
    s.rx(&write_only(0, to, &[1]).a()).tx([ack(0, 1)]);
}

#[test]
fn nothing_local_begins_while_the_queue_is_drained() {
    let mut s = Script::rts();
    let key = mapped(&s).rkey;
    let attr = s.attr;
    let mask = rxe_core::qp::QpAttrMask::STATE;
    s.host.modify(rxe_core::qp::QpAttr { state: QpState::Sqd, ..attr }, mask);
    s.local(1, register(key)).quiet().done([]);
    s.host.modify(rxe_core::qp::QpAttr { state: QpState::Rts, ..attr }, mask);
    s.quiet().done([(1, Success)]);
}
