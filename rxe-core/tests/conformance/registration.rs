//! Fast registration: REG_MR and what it makes of keys.

use std::sync::Arc;

use proptest::prelude::*;
use rxe_core::errno;
use rxe_core::mem::{AccessFlags, DmaBuf, MapMrError, MrKeys, PAGE_SIZE, RegMrError};
use rxe_core::qp::QpState;
use rxe_core::wc::WcOpcode;
use rxe_core::wq::{RemoteAddr, SendOp};
use rxe_wire::RKey;

use crate::script::*;

const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::MW_BIND);

/// A region of two pages, to which the host's INBOX is mapped under addresses from 0x9000 on.
pub fn mapped(s: &Script) -> MrKeys {
    let keys = s.memory().alloc_mr(s.host.pd, 2).unwrap();
    s.memory().map_mr(keys, s.host.buf.clone(), INBOX, 0x1800, 0x9000).unwrap();
    keys
}

/// The same key with another low byte.
pub fn renewed(key: RKey) -> RKey {
    RKey::new(key.get() ^ 0x5a)
}

pub fn register(key: RKey) -> SendOp {
    SendOp::RegisterMr { key, access: ALL }
}

pub fn at(addr: u64, rkey: RKey) -> RemoteAddr {
    RemoteAddr { addr, rkey }
}

#[test]
fn a_region_is_valid_from_its_registration_on() {
    let mut s = Script::rts();
    let keys = mapped(&s);
    let key = renewed(keys.rkey);
    s.local(1, register(key)).quiet();
    let [wc] = s.host.completions()[..] else { panic!("one completion") };
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (1, Success, WcOpcode::RegMr));
    s.rx(&write_only(0, at(0x9004, key), &[7; 5]).a()).tx([ack(0, 1)]);
    assert_eq!(s.mem(INBOX + 4, 5), [7; 5]);
    let data = s.mem(INBOX, 16);
    s.rx(&read(1, at(0x9000, key), 16)).tx([resp_only(1, 2, &data)]);
    // The key that it had before is nobody's.
    s.rx(&write_only(2, at(0x9004, keys.rkey), &[7; 5]).a()).tx([nak(2, ACCESS, 2)]);
}

#[test]
fn a_zero_based_region_counts_from_its_first_byte() {
    let mut s = Script::rts();
    let key = mapped(&s).rkey;
    let access = ALL | AccessFlags::ZERO_BASED;
    s.local(1, SendOp::RegisterMr { key, access }).quiet().done([(1, Success)]);
    s.rx(&write_only(0, at(4, key), &[7; 5]).a()).tx([ack(0, 1)]);
    assert_eq!(s.mem(INBOX + 4, 5), [7; 5]);
    s.rx(&write_only(1, at(0x9004, key), &[7; 5]).a()).tx([nak(1, ACCESS, 1)]);
}

#[test]
fn before_that_nothing_can_be_accessed_by_its_key() {
    let mut s = Script::rts();
    let keys = mapped(&s);
    s.rx(&write_only(0, at(0x9000, keys.rkey), &[7; 5]).a()).tx([nak(0, ACCESS, 0)]);
}

#[test]
fn a_registration_happens_in_the_order_of_the_queue() {
    let mut s = Script::rts();
    let (key, data) = (mapped(&s).rkey, s.mem(0, 10));
    // Requests go out around it at once; it completes between them.
    s.write(1, 10).local(2, register(key)).send(3, 10);
    s.tx([write_only(0, far(0), &data).a(), send_only(1, &data).a()]).done([]);
    s.rx(&ack(0, 1)).done([(1, Success), (2, Success)]);
    s.rx(&ack(1, 2)).done([(3, Success)]);
}

#[test]
fn a_resend_goes_over_what_was_carried_out_here() {
    let mut s = Script::rts();
    let (key, data) = (mapped(&s).rkey, s.mem(0, 10));
    s.write(1, 10).local(2, register(key)).send(3, 10).sent();
    s.rx(&nak_seq(0, 0)).tx([write_only(0, far(0), &data).a(), send_only(1, &data).a()]);
    s.rx(&ack(1, 2)).quiet().done([(1, Success), (2, Success), (3, Success)]);
    assert_eq!(s.state(), QpState::Rts, "registered once, or the second time would have failed");
}

#[test]
fn an_unsignaled_one_completes_silently() {
    let mut s = Script::rts();
    let key = mapped(&s).rkey;
    s.local_with(1, register(key), rxe_core::wq::SendFlags::empty()).quiet().done([]);
    s.rx(&write_only(0, at(0x9000, key), &[7]).a()).tx([ack(0, 1)]);
}

#[test]
fn what_cannot_be_registered_fails_in_its_turn() {
    let other_pd = |s: &Script| {
        let pd = s.host.device.alloc_pd().unwrap();
        let keys = s.memory().alloc_mr(pd, 2).unwrap();
        s.memory().map_mr(keys, s.host.buf.clone(), 0, 16, 0).unwrap();
        register(keys.rkey)
    };
    let not_mapped = |s: &Script| register(s.memory().alloc_mr(s.host.pd, 2).unwrap().rkey);
    let a_plain_region = |s: &Script| register(s.host.keys.rkey);
    let contradiction =
        |s: &Script| SendOp::RegisterMr { key: mapped(s).rkey, access: AccessFlags::REMOTE_WRITE };
    let nothing = |_: &Script| register(RKey::new(0x00ff_ff00));
    let cases: [fn(&Script) -> SendOp; 5] =
        [other_pd, not_mapped, a_plain_region, contradiction, nothing];
    for case in cases {
        let mut s = Script::rts();
        let (op, data) = (case(&s), s.mem(0, 1));
        s.write(1, 1).local(2, op).send(3, 1).tx([write_only(0, far(0), &data).a()]).done([]);
        s.rx(&ack(0, 1)).quiet();
        s.done([(1, Success), (2, LocQpOpErr), (3, WrFlushErr)]);
        assert_eq!(s.state(), QpState::Err);
    }
    // Nor one that is valid.
    let mut s = Script::rts();
    let key = mapped(&s).rkey;
    s.local(1, register(key)).local(2, register(key)).quiet();
    s.done([(1, Success), (2, LocQpOpErr)]);
}

#[test]
fn r32_access_is_what_the_registration_says() {
    let mut s = Script::rts();
    let key = mapped(&s).rkey;
    let access = AccessFlags::REMOTE_READ;
    s.local(1, SendOp::RegisterMr { key, access }).quiet().done([(1, Success)]);
    s.rx(&write_only(0, at(0x9000, key), &[7]).a()).tx([nak(0, ACCESS, 0)]);
}

#[test]
fn r33_mapping_checks_its_range() {
    let s = Script::rts();
    let (memory, buf) = (s.memory(), s.host.buf.clone());
    let keys = memory.alloc_mr(s.host.pd, 1).unwrap();
    let max = PAGE_SIZE;
    let error = memory.map_mr(keys, buf.clone(), 0, max + 1, 0).unwrap_err();
    assert_eq!(error, MapMrError::TooLong { length: max + 1, max });
    let error = memory.map_mr(keys, buf.clone(), buf.len() - 1, 2, 0).unwrap_err();
    assert!(matches!(error, MapMrError::Range(RegMrError::OutOfBounds { .. })), "{error}");
    let error = memory.map_mr(keys, buf.clone(), 0, 2, u64::MAX - 1).unwrap_err();
    assert!(matches!(error, MapMrError::Range(RegMrError::Wraps { .. })), "{error}");
    let error = memory.map_mr(s.host.keys, buf.clone(), 0, 2, 0).unwrap_err();
    assert_eq!(error, MapMrError::NoSuchRegion { key: s.host.keys.lkey });
    assert_eq!(error.errno(), errno::EINVAL);
    assert_eq!(memory.map_mr(keys, buf, 0, max, u64::MAX - max), Ok(()));
}

#[test]
fn a_valid_region_keeps_its_memory() {
    let mut s = Script::rts();
    let keys = mapped(&s);
    s.local(1, register(keys.rkey)).quiet().done([(1, Success)]);
    let error = s.memory().map_mr(keys, s.host.buf.clone(), 0, 16, 0).unwrap_err();
    assert_eq!(error, MapMrError::Valid { key: keys.lkey });
}

#[test]
fn a_region_for_fast_registration_is_deregistered_like_any() {
    let mut s = Script::rts();
    let (idle, valid) = (mapped(&s), mapped(&s));
    s.local(1, register(valid.rkey)).quiet().done([(1, Success)]);
    for keys in [idle, valid] {
        assert_eq!(s.memory().deregister(keys), Ok(()));
        assert!(s.memory().deregister(keys).is_err());
    }
    s.rx(&write_only(0, at(0x9000, valid.rkey), &[7]).a()).tx([nak(0, ACCESS, 0)]);
}

proptest! {
    /// R33: of every range, the responder takes exactly those that lie within the region.
    #[test]
    fn r33_exactly_the_ranges_within_a_region_are_accessible(
        iova in prop_oneof![0..64u64, Just(u64::MAX - 64), any::<u64>()],
        length in 0..64u64,
        start in -70..140i64,
        len in 1..80usize,
    ) {
        let mut s = Script::rts();
        let buf = Arc::new(DmaBuf::zeroed(64));
        let Ok(keys) = s.memory().register(s.host.pd, buf, 0, length, iova, ALL) else {
            prop_assert!(iova.checked_add(length).is_none());
            return Ok(());
        };
        let addr = iova.wrapping_add_signed(start);
        // In 128 bits nothing wraps.
        let (first, end) = (u128::from(addr), u128::from(addr) + len as u128);
        let inside = first >= u128::from(iova) && end <= u128::from(iova) + u128::from(length);
        let answer = if inside { ack(0, 1) } else { nak(0, ACCESS, 0) };
        s.rx(&write_only(0, at(addr, keys.rkey), &vec![1; len]).a()).tx([answer]);
    }
}
