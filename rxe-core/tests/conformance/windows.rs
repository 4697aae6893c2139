//! Memory windows of both types.

use std::sync::Arc;

use proptest::prelude::*;
use rxe_core::errno;
use rxe_core::mem::{AccessFlags, DeregMrError, DmaBuf, MrKeys, MwBind, MwType};
use rxe_core::pd::PdId;
use rxe_core::qp::QpState;
use rxe_core::wc::WcOpcode;
use rxe_core::wq::{SendData, SendFlags, SendOp, SendWr, Sge};
use rxe_wire::{LKey, RKey};

use crate::registration::{at, mapped, register, renewed};
use crate::script::*;

const WRITE: AccessFlags = AccessFlags::REMOTE_WRITE;
const READ: AccessFlags = AccessFlags::REMOTE_READ;

/// Bytes of the region that windows are bound to, at addresses from 0x4000 on.
const LEN: u64 = 4096;
const BASE: u64 = 0x4000;

struct Windows {
    s: Script,
    buf: Arc<DmaBuf>,
    keys: MrKeys,
}

impl Windows {
    fn new() -> Self {
        Self::of(AccessFlags::MW_BIND | AccessFlags::LOCAL_WRITE)
    }

    fn of(access: AccessFlags) -> Self {
        let s = Script::rts();
        let buf = Arc::new(DmaBuf::zeroed(LEN as usize));
        let keys = s.memory().register(s.host.pd, buf.clone(), 0, LEN, BASE, access).unwrap();
        Self { s, buf, keys }
    }

    fn window(&self, mw_type: MwType) -> RKey {
        self.s.memory().alloc_mw(self.s.host.pd, mw_type).unwrap()
    }

    fn bind(&self, addr: u64, length: u64, access: AccessFlags) -> MwBind {
        MwBind { lkey: self.keys.lkey, addr, length, access }
    }

    /// Binds a window and says under which key.
    #[track_caller]
    fn bound(&mut self, window: RKey, bind: MwBind) -> RKey {
        let rkey = renewed(window);
        self.s.local(90, SendOp::BindMw { window, rkey, bind }).quiet().done([(90, Success)]);
        assert_eq!(self.s.memory().current_key(window), Some(rkey));
        rkey
    }

    /// Binding must fail.
    #[track_caller]
    fn refused(mut self, window: RKey, rkey: RKey, bind: MwBind) {
        let before = self.s.memory().current_key(window);
        self.s.local(90, SendOp::BindMw { window, rkey, bind }).quiet().done([(90, MwBindErr)]);
        assert_eq!(self.s.state(), QpState::Err);
        assert_eq!(self.s.memory().current_key(window), before);
    }
}

const BOTH: [MwType; 2] = [MwType::Type1, MwType::Type2];

#[test]
fn a_window_gives_access_to_its_part_of_the_region() {
    for mw_type in BOTH {
        let mut w = Windows::new();
        let window = w.window(mw_type);
        let rkey = renewed(window);
        let bind = w.bind(BASE + 16, 32, WRITE);
        w.s.local(1, SendOp::BindMw { window, rkey, bind }).quiet();
        let [wc] = w.s.host.completions()[..] else { panic!("one completion") };
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (1, Success, WcOpcode::BindMw));
        w.s.rx(&write_only(0, at(BASE + 16, rkey), &[7; 32]).a()).tx([ack(0, 1)]);
        let mut whole = [0; 64];
        w.buf.read_at(0, &mut whole).unwrap();
        assert_eq!((whole[..16].to_vec(), whole[16..48].to_vec()), (vec![0; 16], vec![7; 32]));
        // Not a byte beyond.
        w.s.rx(&write_only(1, at(BASE + 17, rkey), &[8; 32]).a()).tx([nak(1, ACCESS, 1)]);
    }
}

#[test]
fn a_window_that_is_not_bound_gives_none() {
    for mw_type in BOTH {
        let mut w = Windows::new();
        let window = w.window(mw_type);
        w.s.rx(&write_only(0, at(BASE, window), &[7]).a()).tx([nak(0, ACCESS, 0)]);
    }
}

#[test]
fn r32_access_by_a_window_is_what_its_binding_says() {
    let mut w = Windows::new();
    let window = w.window(MwType::Type2);
    let bind = w.bind(BASE, 64, READ);
    let rkey = w.bound(window, bind);
    w.s.rx(&read(0, at(BASE, rkey), 4)).tx([resp_only(0, 1, &[0; 4])]);
    w.s.rx(&write_only(1, at(BASE, rkey), &[7]).a()).tx([nak(1, ACCESS, 1)]);
    // Atomics too.
    let mut w = Windows::new();
    let window = w.window(MwType::Type2);
    let bind = w.bind(BASE, 64, AccessFlags::REMOTE_ATOMIC);
    let rkey = w.bound(window, bind);
    w.s.rx(&faa(0, at(BASE + 8, rkey), 5)).tx([atomic_ack(0, 1, 0)]);
    assert_eq!(w.buf.load_u64(8), Ok(5));
}

#[test]
fn a_zero_based_window_counts_from_its_first_byte() {
    let mut w = Windows::new();
    let window = w.window(MwType::Type2);
    let bind = w.bind(BASE + 100, 50, WRITE | AccessFlags::ZERO_BASED);
    let rkey = w.bound(window, bind);
    w.s.rx(&write_only(0, at(3, rkey), &[7]).a()).tx([ack(0, 1)]);
    let mut byte = [0];
    w.buf.read_at(103, &mut byte).unwrap();
    assert_eq!(byte, [7]);
    w.s.rx(&write_only(1, at(50, rkey), &[7]).a()).tx([nak(1, ACCESS, 1)]);
}

#[test]
fn r43_a_window_is_bound_under_any_low_byte_the_old_one_too() {
    let mut w = Windows::new();
    let window = w.window(MwType::Type2);
    let bind = w.bind(BASE, 8, WRITE);
    w.s.local(1, SendOp::BindMw { window, rkey: window, bind }).quiet().done([(1, Success)]);
    w.s.rx(&write_only(0, at(BASE, window), &[7]).a()).tx([ack(0, 1)]);
    // Of the upper bytes none may change.
    let w = Windows::new();
    let (window, bind) = (w.window(MwType::Type2), w.bind(BASE, 8, WRITE));
    w.refused(window, RKey::new(window.get() ^ 0x100), bind);
}

#[test]
fn r43_queue_pair_window_and_region_are_of_one_domain() {
    let other = |w: &Windows| -> PdId { w.s.host.device.alloc_pd().unwrap() };
    for mw_type in BOTH {
        let w = Windows::new();
        let window = w.s.memory().alloc_mw(other(&w), mw_type).unwrap();
        let bind = w.bind(BASE, 8, WRITE);
        w.refused(window, renewed(window), bind);
        let mut w = Windows::new();
        let access = AccessFlags::MW_BIND | AccessFlags::LOCAL_WRITE;
        let memory = w.s.memory();
        w.keys = memory.register(other(&w), w.buf.clone(), 0, LEN, BASE, access).unwrap();
        let (window, bind) = (w.window(mw_type), w.bind(BASE, 8, WRITE));
        w.refused(window, renewed(window), bind);
    }
}

#[test]
fn r43_bindings_that_cannot_be_are_refused() {
    let cases: [(MwType, u64, u64, AccessFlags); 8] = [
        // R33: ranges that leave the region.
        (MwType::Type2, BASE - 1, 8, WRITE),
        (MwType::Type2, BASE + LEN - 7, 8, WRITE),
        (MwType::Type2, u64::MAX, 8, WRITE),
        (MwType::Type2, BASE, u64::MAX, WRITE),
        // A window of type 2 is not bound to nothing.
        (MwType::Type2, BASE, 0, WRITE),
        // Only one of type 2 may be zero-based.
        (MwType::Type1, BASE, 8, WRITE.union(AccessFlags::ZERO_BASED)),
        // Windows are for peers.
        (MwType::Type2, BASE, 8, WRITE.union(AccessFlags::LOCAL_WRITE)),
        (MwType::Type1, BASE, 8, AccessFlags::MW_BIND),
    ];
    for (mw_type, addr, length, access) in cases {
        let w = Windows::new();
        let (window, bind) = (w.window(mw_type), w.bind(addr, length, access));
        w.refused(window, renewed(window), bind);
    }
}

#[test]
fn r43_the_region_must_allow_windows_and_what_they_do() {
    let refuse = |access: AccessFlags, asked: AccessFlags| {
        let w = Windows::of(access);
        let (window, bind) = (w.window(MwType::Type2), w.bind(BASE, 8, asked));
        w.refused(window, renewed(window), bind);
    };
    refuse(AccessFlags::LOCAL_WRITE, READ);
    refuse(AccessFlags::MW_BIND, WRITE);
    refuse(AccessFlags::MW_BIND, AccessFlags::REMOTE_ATOMIC);
    // Reading needs no local write, nor any remote access of the region.
    let mut w = Windows::of(AccessFlags::MW_BIND);
    let (window, bind) = (w.window(MwType::Type2), w.bind(BASE, 8, READ));
    w.bound(window, bind);
    // There is nothing to bind to behind a key that is nobody's, nor behind a window.
    let w = Windows::new();
    let window = w.window(MwType::Type2);
    let bind = MwBind { lkey: LKey::new(0x00ff_ff00), ..w.bind(BASE, 8, READ) };
    w.refused(window, renewed(window), bind);
    let mut w = Windows::new();
    let (window, bind) = (w.window(MwType::Type2), w.bind(BASE, 8, READ));
    let rkey = w.bound(window, bind);
    let second = w.window(MwType::Type2);
    let bind = MwBind { lkey: LKey::new(rkey.get()), ..bind };
    w.refused(second, renewed(second), bind);
}

#[test]
fn a_window_of_type_1_is_bound_again_and_unbound_by_an_empty_binding() {
    let mut w = Windows::new();
    let window = w.window(MwType::Type1);
    let bind = w.bind(BASE, 8, WRITE);
    let first = w.bound(window, bind);
    let bind = w.bind(BASE + 64, 8, WRITE);
    let second = w.bound(first, bind);
    w.s.rx(&write_only(0, at(BASE + 64, second), &[7]).a()).tx([ack(0, 1)]);
    let bind = w.bind(0, 0, AccessFlags::empty());
    let third = w.bound(second, bind);
    assert!(w.s.memory().deregister(w.keys).is_ok(), "nothing is bound any more");
    w.s.rx(&write_only(1, at(BASE + 64, third), &[7]).a()).tx([nak(1, ACCESS, 1)]);
}

#[test]
fn a_failed_binding_leaves_the_old_one() {
    let mut w = Windows::new();
    let window = w.window(MwType::Type1);
    let bind = w.bind(BASE, 8, WRITE);
    let first = w.bound(window, bind);
    let bind = w.bind(BASE, LEN + 1, WRITE);
    w.s.local(1, SendOp::BindMw { window: first, rkey: window, bind }).quiet();
    w.s.done([(1, MwBindErr)]);
    assert_eq!(w.s.memory().current_key(window), Some(first));
    let busy = w.s.memory().deregister(w.keys);
    assert_eq!(busy, Err(DeregMrError::WindowsBound { key: w.keys.lkey, windows: 1 }));
}

#[test]
fn a_window_of_type_2_must_be_invalidated_before_it_is_bound_again() {
    let mut w = Windows::new();
    let window = w.window(MwType::Type2);
    let bind = w.bind(BASE, 8, WRITE);
    let first = w.bound(window, bind);
    w.s.local(1, SendOp::LocalInvalidate { key: first }).quiet().done([(1, Success)]);
    let again = w.bound(first, bind);
    w.s.rx(&write_only(0, at(BASE, again), &[7]).a()).tx([ack(0, 1)]);
    w.s.local(2, SendOp::BindMw { window: again, rkey: first, bind }).quiet();
    w.s.done([(2, MwBindErr)]);
}

#[test]
fn r41_a_peer_invalidates_a_window_of_type_2() {
    let mut w = Windows::new();
    let window = w.window(MwType::Type2);
    let bind = w.bind(BASE, 8, WRITE);
    let rkey = w.bound(window, bind);
    w.s.recv(1, 8);
    w.s.rx(&send_only_inv(0, &[], rkey).a()).tx([ack(0, 1)]).done([(1, Success)]);
    w.s.rx(&write_only(1, at(BASE, rkey), &[7]).a()).tx([nak(1, ACCESS, 1)]);
}

#[test]
fn r41_a_window_of_type_1_cannot_be_invalidated() {
    let mut w = Windows::new();
    let window = w.window(MwType::Type1);
    let bind = w.bind(BASE, 8, WRITE);
    let key = w.bound(window, bind);
    w.s.local(1, SendOp::LocalInvalidate { key }).quiet().done([(1, LocQpOpErr)]);
    assert!(w.s.memory().deregister(w.keys).is_err(), "it is still bound");
}

#[test]
fn r42_a_region_with_windows_is_neither_deregistered_nor_invalidated() {
    let mut w = Windows::new();
    let windows = [w.window(MwType::Type1), w.window(MwType::Type2)];
    for window in windows {
        let bind = w.bind(BASE, 8, WRITE);
        w.bound(window, bind);
    }
    let busy = w.s.memory().deregister(w.keys).unwrap_err();
    assert_eq!(busy, DeregMrError::WindowsBound { key: w.keys.lkey, windows: 2 });
    assert_eq!(busy.errno(), errno::EBUSY);
    for window in windows {
        assert!(w.s.memory().deregister(w.keys).is_err());
        w.s.memory().dealloc_mw(window).unwrap();
    }
    assert_eq!(w.s.memory().deregister(w.keys), Ok(()));
    // And one for fast registration.
    let mut w = Windows::new();
    w.keys = mapped(&w.s);
    w.s.local(1, register(w.keys.rkey)).quiet().done([(1, Success)]);
    let window = w.window(MwType::Type2);
    let bind = w.bind(0x9000, 8, WRITE);
    w.bound(window, bind);
    w.s.local(2, SendOp::LocalInvalidate { key: w.keys.rkey }).quiet().done([(2, LocQpOpErr)]);
}

#[test]
fn revoking_a_region_takes_its_windows_along() {
    let mut w = Windows::new();
    let window = w.window(MwType::Type2);
    let bind = w.bind(BASE, 8, WRITE);
    let rkey = w.bound(window, bind);
    assert_eq!(w.s.memory().revoke(w.keys), Ok(()));
    w.s.rx(&write_only(0, at(BASE, rkey), &[7]).a()).tx([nak(0, ACCESS, 0)]);
    let mut byte = [0];
    w.buf.read_at(0, &mut byte).unwrap();
    assert_eq!(byte, [0]);
}

#[test]
fn the_key_of_a_freed_window_is_nobodys() {
    let mut w = Windows::new();
    let window = w.window(MwType::Type1);
    let bind = w.bind(BASE, 8, WRITE);
    let rkey = w.bound(window, bind);
    assert_eq!(w.s.memory().dealloc_mw(rkey), Ok(()));
    let error = w.s.memory().dealloc_mw(rkey).unwrap_err();
    assert_eq!(error.errno(), errno::EINVAL);
    // Its slot is used again, under another key.
    assert_ne!(w.window(MwType::Type1), rkey);
    w.s.rx(&write_only(0, at(BASE, rkey), &[7]).a()).tx([nak(0, ACCESS, 0)]);
}

#[test]
fn windows_are_no_local_buffers() {
    for (op, offset) in [(SendOp::Send { imm: None }, 0), (SendOp::Read { remote: far(0) }, 8)] {
        let mut w = Windows::new();
        let window = w.window(MwType::Type1);
        let bind = w.bind(BASE, 64, WRITE | READ);
        let rkey = w.bound(window, bind);
        let lkey = LKey::new(rkey.get());
        let data = SendData::Sges(&[Sge { addr: BASE + offset, length: 1, lkey }]);
        w.s.host.post_wr(&SendWr {
            wr_id: 1,
            op,
            flags: SendFlags::SIGNALED,
            data,
            srq_number: None,
        });
        w.s.sent();
        w.s.rx(&resp_only(0, 1, &[1])).done([(1, LocProtErr)]);
    }
}

/// A second queue pair of the host: another one than the window's.
fn other_qp(s: &mut Script) -> Arc<rxe_core::QueuePair> {
    let init = s.host.qp.init().clone();
    s.host.shard.create_qp(init).unwrap()
}

#[test]
fn a_window_of_type_2_is_for_its_queue_pair_alone() {
    for (mw_type, allowed) in [(MwType::Type1, true), (MwType::Type2, false)] {
        let mut w = Windows::new();
        let window = w.window(mw_type);
        let bind = w.bind(BASE, 8, WRITE);
        let rkey = w.bound(window, bind);
        // The other one takes the place of the first in the script.
        w.s.host.qp = other_qp(&mut w.s);
        w.s.enter_init();
        w.s.enter_rtr();
        w.s.enter_rts();
        let answer = if allowed { ack(0, 1) } else { nak(0, ACCESS, 0) };
        w.s.rx(&write_only(0, at(BASE, rkey), &[7]).a()).tx([answer]);
    }
}

#[test]
fn a_window_of_type_2_is_not_invalidated_by_another_queue_pair() {
    let mut w = Windows::new();
    let window = w.window(MwType::Type2);
    let bind = w.bind(BASE, 8, WRITE);
    let key = w.bound(window, bind);
    w.s.host.qp = other_qp(&mut w.s);
    w.s.enter_init();
    w.s.enter_rtr();
    w.s.enter_rts();
    w.s.local(1, SendOp::LocalInvalidate { key }).quiet().done([(1, LocQpOpErr)]);
    assert!(w.s.memory().deregister(w.keys).is_err(), "it is still bound");
}

#[test]
fn a_window_of_type_2_ends_with_its_queue_pair() {
    let mut w = Windows::new();
    let (one, two) = (w.window(MwType::Type1), w.window(MwType::Type2));
    for window in [one, two] {
        let bind = w.bind(BASE, 8, WRITE);
        w.bound(window, bind);
    }
    let second = other_qp(&mut w.s);
    let first = std::mem::replace(&mut w.s.host.qp, second);
    w.s.host.shard.destroy_qp(first.qpn()).unwrap();
    // The one of type 1 stays.
    let busy = w.s.memory().deregister(w.keys);
    assert_eq!(busy, Err(DeregMrError::WindowsBound { key: w.keys.lkey, windows: 1 }));
    // The other one is free to be bound by another queue pair.
    w.s.enter_init();
    w.s.enter_rtr();
    w.s.enter_rts();
    let bind = w.bind(BASE, 8, WRITE);
    let key = w.s.memory().current_key(two).unwrap();
    let rkey = w.bound(key, bind);
    w.s.rx(&write_only(0, at(BASE, rkey), &[7]).a()).tx([ack(0, 1)]);
}

#[test]
fn a_queue_pair_of_uc_binds_and_invalidates_too() {
    let mut w = Windows::new();
    let s = Script::uc();
    let access = AccessFlags::MW_BIND | AccessFlags::LOCAL_WRITE;
    w.keys = s.memory().register(s.host.pd, w.buf.clone(), 0, LEN, BASE, access).unwrap();
    w.s = s;
    let (window, data) = (w.window(MwType::Type2), w.s.mem(0, 1));
    let (rkey, bind) = (renewed(window), w.bind(BASE, 8, WRITE));
    w.s.send(1, 1).local(2, SendOp::BindMw { window, rkey, bind }).send(3, 1);
    w.s.tx([send_only(0, &data).uc(), send_only(1, &data).uc()]);
    w.s.done([(1, Success), (2, Success), (3, Success)]);
    w.s.rx(&write_only(0, at(BASE, rkey), &[7]).uc()).quiet();
    let mut byte = [0];
    w.buf.read_at(0, &mut byte).unwrap();
    assert_eq!(byte, [7]);
    w.s.send(4, 1).local(5, SendOp::LocalInvalidate { key: rkey });
    w.s.tx([send_only(2, &data).uc()]).done([(4, Success), (5, Success)]);
    w.s.rx(&write_only(1, at(BASE, rkey), &[8]).uc()).quiet();
    w.buf.read_at(0, &mut byte).unwrap();
    assert_eq!(byte, [7]);
    // One that fails stops the send queue alone.
    w.s.local(6, SendOp::LocalInvalidate { key: renewed(rkey) }).quiet();
    w.s.done([(6, LocQpOpErr)]);
    assert_eq!(w.s.state(), QpState::Sqe);
}

proptest! {
    /// R33, R43: a window can be bound exactly within its region, and then gives exactly its range.
    #[test]
    fn r33_exactly_the_ranges_within_are_accessible(
        addr in BASE - 4..BASE + LEN + 4,
        length in 1..LEN + 8,
        start in -40..40i64,
        len in 1..40usize,
        zero_based: bool,
    ) {
        let mut w = Windows::new();
        let window = w.window(MwType::Type2);
        let based = if zero_based { AccessFlags::ZERO_BASED } else { AccessFlags::empty() };
        let bind = w.bind(addr, length, WRITE | based);
        let bindable = addr >= BASE && addr + length <= BASE + LEN;
        let op = SendOp::BindMw { window, rkey: renewed(window), bind };
        w.s.local(1, op).quiet();
        w.s.done([(1, if bindable { Success } else { MwBindErr })]);
        if !bindable {
            return Ok(());
        }
        let first = if zero_based { 0 } else { addr };
        // Around both ends of the window.
        let around = if start < 0 { first } else { first + length };
        let va = around.wrapping_add_signed(start);
        let inside = u128::from(va) >= u128::from(first)
            && u128::from(va) + len as u128 <= u128::from(first) + u128::from(length);
        let answer = if inside { ack(0, 1) } else { nak(0, ACCESS, 0) };
        w.s.rx(&write_only(0, at(va, renewed(window)), &vec![1; len]).a()).tx([answer]);
    }
}
