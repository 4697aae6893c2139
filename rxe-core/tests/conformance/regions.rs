//! Regions that are changed, that count from zero, or that have no memory.

use std::sync::Arc;

use rxe_core::errno;
use rxe_core::mem::{
    AccessFlags, DeregMrError, DmaBuf, Mapping, MrKeys, MwBind, MwType, RegMrError, ReregMr,
    ReregMrError,
};
use rxe_core::wq::{SendData, SendFlags, SendOp, SendWr, Sge};
use rxe_wire::LKey;

use crate::registration::{at, mapped, renewed};
use crate::script::*;

const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::MW_BIND);

fn region(s: &Script, iova: u64, access: AccessFlags) -> (Arc<DmaBuf>, MrKeys) {
    let buf = Arc::new(DmaBuf::zeroed(64));
    let keys = s.memory().register(s.host.pd, buf.clone(), 0, 64, iova, access).unwrap();
    (buf, keys)
}

fn byte(buf: &DmaBuf, offset: usize) -> u8 {
    let mut byte = [0];
    buf.read_at(offset, &mut byte).unwrap();
    byte[0]
}

fn translation(buf: &Arc<DmaBuf>, length: u64, iova: u64) -> ReregMr {
    let mapping = Mapping { backing: buf.clone(), offset: 0, length, iova };
    ReregMr { translation: Some(mapping), ..ReregMr::default() }
}

#[test]
fn a_zero_based_region_counts_from_its_first_byte() {
    let mut s = Script::rts();
    let (buf, keys) = region(&s, 0x7777, ALL | AccessFlags::ZERO_BASED);
    s.rx(&write_only(0, at(63, keys.rkey), &[5]).a()).tx([ack(0, 1)]);
    assert_eq!(byte(&buf, 63), 5);
    s.rx(&write_only(1, at(0x7777, keys.rkey), &[5]).a()).tx([nak(1, ACCESS, 1)]);
}

#[test]
fn r43_no_window_is_bound_to_a_zero_based_region() {
    let mut s = Script::rts();
    let (_, keys) = region(&s, 0, ALL | AccessFlags::ZERO_BASED);
    let window = s.memory().alloc_mw(s.host.pd, MwType::Type2).unwrap();
    let access = AccessFlags::REMOTE_READ;
    let bind = MwBind { lkey: keys.lkey, addr: 0, length: 8, access };
    s.local(1, SendOp::BindMw { window, rkey: renewed(window), bind }).quiet();
    s.done([(1, MwBindErr)]);
}

#[test]
fn a_null_region_reads_as_zeros() {
    let mut s = Script::rts();
    let lkey = s.memory().alloc_null_mr(s.host.pd).unwrap().lkey;
    // Between two pieces of memory, and at any address.
    let hole = Sge { addr: u64::MAX - 9, length: 8, lkey };
    let sges = [s.host.sge(0, 4), hole, s.host.sge(4, 4)];
    let (op, flags) = (SendOp::Send { imm: None }, SendFlags::SIGNALED);
    s.host.post_wr(&SendWr { wr_id: 1, op, flags, data: SendData::Sges(&sges), srq_number: None });
    let mut data = s.mem(0, 4);
    data.extend([0; 8]);
    data.extend(s.mem(4, 4));
    s.tx([send_only(0, &data).a()]);
    // A long message out of nothing but it, which goes out by the run.
    let sges = [Sge { addr: 0, length: 1024, lkey }];
    s.host.post_wr(&SendWr { wr_id: 2, op, flags, data: SendData::Sges(&sges), srq_number: None });
    let zeros = [0; 256];
    s.tx([
        send_first(1, &zeros),
        send_middle(2, &zeros),
        send_middle(3, &zeros),
        send_last(4, &zeros).a(),
    ]);
}

#[test]
fn what_is_written_to_a_null_region_vanishes() {
    let mut s = Script::rts();
    let lkey = s.memory().alloc_null_mr(s.host.pd).unwrap().lkey;
    let hole = Sge { addr: 0, length: 4, lkey };
    let sges = [hole, s.host.sge(LANDING, 4)];
    let (op, flags) = (SendOp::Read { remote: far(0) }, SendFlags::SIGNALED);
    s.host.post_wr(&SendWr { wr_id: 1, op, flags, data: SendData::Sges(&sges), srq_number: None });
    s.sent();
    s.rx(&resp_only(0, 1, &[1, 2, 3, 4, 5, 6, 7, 8])).done([(1, Success)]);
    assert_eq!(s.mem(LANDING, 4), [5, 6, 7, 8]);
    // It is no memory for peers.
    let rkey = rxe_wire::RKey::new(lkey.get());
    s.rx(&write_only(0, at(0, rkey), &[5]).a()).tx([nak(0, ACCESS, 0)]);
}

#[test]
fn a_null_region_is_deregistered_like_any() {
    let s = Script::rts();
    let keys = s.memory().alloc_null_mr(s.host.pd).unwrap();
    let change = ReregMr { access: Some(ALL), ..ReregMr::default() };
    let error = s.memory().reregister(keys, change).unwrap_err();
    assert_eq!(error, ReregMrError::NoSuchKey { key: keys.lkey });
    assert_eq!(s.memory().deregister(keys), Ok(()));
    let again = s.memory().deregister(keys);
    assert_eq!(again, Err(DeregMrError::NoSuchKey { key: keys.lkey }));
}

#[test]
fn other_memory_comes_with_other_keys() {
    let mut s = Script::rts();
    let (old, keys) = region(&s, 0x1000, ALL);
    let new = Arc::new(DmaBuf::zeroed(32));
    let again = s.memory().reregister(keys, translation(&new, 32, 0x2000)).unwrap();
    assert_ne!(again, keys);
    s.rx(&write_only(0, at(0x2010, again.rkey), &[5]).a()).tx([ack(0, 1)]);
    assert_eq!((byte(&new, 16), byte(&old, 16)), (5, 0));
    s.rx(&write_only(1, at(0x1000, keys.rkey), &[5]).a()).tx([nak(1, ACCESS, 1)]);
    assert_eq!(s.memory().deregister(keys), Err(DeregMrError::NoSuchKey { key: keys.lkey }));
    assert_eq!(s.memory().deregister(again), Ok(()));
}

#[test]
fn r32_other_access_counts_from_the_change_on() {
    let mut s = Script::rts();
    let (buf, keys) = region(&s, 0x1000, AccessFlags::REMOTE_READ);
    let change = ReregMr { access: Some(ALL), ..ReregMr::default() };
    assert_eq!(s.memory().reregister(keys, change), Ok(keys), "the keys stay");
    s.rx(&write_only(0, at(0x1000, keys.rkey), &[5]).a()).tx([ack(0, 1)]);
    assert_eq!(byte(&buf, 0), 5);
    let change = ReregMr { access: Some(AccessFlags::REMOTE_READ), ..ReregMr::default() };
    assert_eq!(s.memory().reregister(keys, change), Ok(keys));
    s.rx(&read(1, at(0x1000, keys.rkey), 1)).tx([resp_only(1, 2, &[5])]);
    s.rx(&write_only(2, at(0x1000, keys.rkey), &[5]).a()).tx([nak(2, ACCESS, 2)]);
}

#[test]
fn another_domain_is_the_only_one_then() {
    let mut s = Script::rts();
    let (_, keys) = region(&s, 0x1000, ALL);
    let (own, other) = (s.host.pd, s.host.device.alloc_pd().unwrap());
    let change = |pd| ReregMr { pd: Some(pd), ..ReregMr::default() };
    assert_eq!(s.memory().reregister(keys, change(other)), Ok(keys));
    assert_eq!(s.memory().reregister(keys, change(own)), Ok(keys));
    s.rx(&write_only(0, at(0x1000, keys.rkey), &[5]).a()).tx([ack(0, 1)]);
    assert_eq!(s.memory().reregister(keys, change(other)), Ok(keys));
    s.rx(&write_only(1, at(0x1000, keys.rkey), &[5]).a()).tx([nak(1, ACCESS, 1)]);
}

#[test]
fn a_change_that_is_refused_leaves_the_old_registration() {
    let mut s = Script::rts();
    let (buf, keys) = region(&s, 0x1000, ALL);
    let other = s.host.device.alloc_pd().unwrap();
    let memory = s.memory();
    let wrong = AccessFlags::REMOTE_WRITE;
    let cases = [
        (ReregMr { pd: Some(other), ..translation(&buf, 65, 0) }, errno::EINVAL),
        (ReregMr { pd: Some(other), ..translation(&buf, 64, u64::MAX - 63) }, errno::EINVAL),
        (ReregMr { access: Some(wrong), ..translation(&buf, 64, 0) }, errno::EINVAL),
    ];
    for (change, errno) in cases {
        let error = memory.reregister(keys, change).unwrap_err();
        assert!(matches!(error, ReregMrError::Registration(_)), "{error}");
        assert_eq!(error.errno(), errno);
    }
    let contradiction = ReregMr { access: Some(wrong), ..ReregMr::default() };
    let error = memory.reregister(keys, contradiction).unwrap_err();
    let needs = RegMrError::NeedsLocalWrite { access: wrong };
    assert_eq!(error, ReregMrError::Registration(needs));
    // R42: nor one with windows.
    let window = memory.alloc_mw(s.host.pd, MwType::Type1).unwrap();
    let access = AccessFlags::REMOTE_READ;
    let bind = MwBind { lkey: keys.lkey, addr: 0x1000, length: 8, access };
    s.local(1, SendOp::BindMw { window, rkey: window, bind }).quiet().done([(1, Success)]);
    let error = s.memory().reregister(keys, translation(&buf, 8, 0)).unwrap_err();
    assert_eq!(error, ReregMrError::WindowsBound { key: keys.lkey, windows: 1 });
    assert_eq!(error.errno(), errno::EBUSY);
    s.rx(&write_only(0, at(0x103f, keys.rkey), &[5]).a()).tx([ack(0, 1)]);
    assert_eq!(byte(&buf, 63), 5);
}

#[test]
fn only_registrations_of_memory_can_be_changed() {
    let s = Script::rts();
    let (buf, keys) = region(&s, 0x1000, ALL);
    let stale = LKey::new(keys.lkey.get() ^ 1);
    let nobodys = MrKeys { lkey: stale, rkey: keys.rkey };
    for keys in [mapped(&s), nobodys] {
        let error = s.memory().reregister(keys, translation(&buf, 8, 0)).unwrap_err();
        assert_eq!(error, ReregMrError::NoSuchKey { key: keys.lkey });
    }
}
