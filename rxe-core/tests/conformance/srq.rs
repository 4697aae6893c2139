//! Shared receive queues.

use std::sync::Arc;

use rxe_core::mem::AccessFlags;
use rxe_core::qp::{QpAttr, QpAttrMask, QpCaps, QpInit, QpState, QpType};
use rxe_core::srq::{SrqAttr, SrqAttrMask, SrqError, SrqInit};
use rxe_core::wq::{PostRecvError, RecvWr, Sge};
use rxe_core::{
    AsyncEvent, Device, DeviceConfig, Limits, QueuePair, Seed, SharedReceiveQueue, errno,
};
use rxe_wire::NakCode;

use crate::script::*;

const ATTR: SrqAttr = SrqAttr { max_wr: 4, max_sge: 2, srq_limit: 0 };

/// A QP in RTS that takes its receives from a queue of `attr`.
fn script(attr: SrqAttr) -> (Script, Arc<SharedReceiveQueue>) {
    let mut s = Script::reset(|_| {});
    let srq = s.host.device.create_srq(&SrqInit::new(s.host.pd, attr)).unwrap();
    s.host.qp = make_qp(&mut s, &srq);
    s.enter_init();
    s.enter_rtr();
    s.enter_rts();
    (s, srq)
}

fn make_qp(s: &mut Script, srq: &Arc<SharedReceiveQueue>) -> Arc<QueuePair> {
    let init = QpInit {
        srq: Some(srq.clone()),
        caps: QpCaps { max_recv_wr: 7, max_recv_sge: 3, ..QpCaps::default() },
        ..QpInit::new(QpType::Rc, s.host.pd, &s.host.cq)
    };
    s.host.shard.create_qp(init).unwrap()
}

/// Posts receives of 600 bytes with these numbers.
fn post(s: &Script, srq: &SharedReceiveQueue, ids: impl IntoIterator<Item = u64>) {
    for wr_id in ids {
        srq.post_recv(RecvWr { wr_id, sges: &[s.host.sge(INBOX, 600)] }).unwrap();
    }
}

fn go(s: &mut Script, state: QpState) {
    s.host.modify(QpAttr { state, ..s.attr }, QpAttrMask::STATE);
}

#[test]
fn queue_pairs_take_turns_at_one_queue() {
    let (mut s, srq) = script(ATTR);
    post(&s, &srq, 1..=3);
    s.rx(&send_only(0, &[1, 2]).a()).tx([ack(0, 1)]).done([(1, Success)]);
    let other = make_qp(&mut s, &srq);
    assert_eq!(srq.users(), 2);
    let first = std::mem::replace(&mut s.host.qp, other);
    s.enter_init();
    s.enter_rtr();
    s.rx(&send_only(0, &[3, 4]).a()).tx([ack(0, 1)]).done([(2, Success)]);
    s.host.qp = first;
    let to = s.host.remote(0);
    s.rx(&write_only_imm(1, to, &[5], 9).a()).tx([ack(1, 2)]).done([(3, Success)]);
    assert_eq!(s.mem(INBOX, 2), [3, 4]);
}

#[test]
fn an_empty_queue_is_told_by_an_rnr_nak_and_the_sender_tries_again() {
    let (mut s, srq) = script(ATTR);
    let packet = send_only(0, &[1]).a();
    s.rx(&packet).tx([rnr(0, 12, 0)]);
    post(&s, &srq, [1]);
    // Posting wakes nobody.
    s.quiet().done([]);
    s.rx(&packet).tx([ack(0, 1)]).done([(1, Success)]);
}

#[test]
fn a_queue_pair_with_a_shared_queue_takes_no_receives_of_its_own() {
    let (s, _srq) = script(ATTR);
    let error = s.host.qp.post_recv(RecvWr { wr_id: 1, sges: &[] }).unwrap_err();
    assert_eq!((error, error.errno()), (PostRecvError::Shared, errno::EINVAL));
    assert_eq!((s.host.qp.caps().max_recv_wr, s.host.qp.caps().max_recv_sge), (0, 0));
}

#[test]
fn receives_are_checked_when_they_are_posted() {
    let (s, srq) = script(ATTR);
    let sges = [s.host.sge(INBOX, 1); 3];
    let error = srq.post_recv(RecvWr { wr_id: 1, sges: &sges }).unwrap_err();
    assert_eq!(error, PostRecvError::TooManySges { count: 3, max: 2 });
    post(&s, &srq, 1..=4);
    let error = srq.post_recv(RecvWr { wr_id: 5, sges: &[] }).unwrap_err();
    assert_eq!((error, error.errno()), (PostRecvError::Full { max: 4 }, errno::ENOMEM));
}

#[test]
fn memory_is_that_of_the_domain_of_the_shared_queue() {
    let mut s = Script::reset(|_| {});
    let pd = s.host.device.alloc_pd().unwrap();
    let srq = s.host.device.create_srq(&SrqInit::new(pd, ATTR)).unwrap();
    s.host.qp = make_qp(&mut s, &srq);
    s.enter_init();
    s.enter_rtr();
    let (buf, memory) = (s.host.buf.clone(), s.host.device.memory());
    let (addr, access) = (buf.addr(), AccessFlags::LOCAL_WRITE);
    let keys = memory.register(pd, buf, 0, 1 << 20, addr, access).unwrap();
    let sge = Sge { addr: addr + INBOX as u64, length: 8, lkey: keys.lkey };
    srq.post_recv(RecvWr { wr_id: 1, sges: &[sge] }).unwrap();
    // The key of the QP's own domain will not do.
    srq.post_recv(RecvWr { wr_id: 2, sges: &[s.host.sge(INBOX, 8)] }).unwrap();
    s.rx(&send_only(0, &[7]).a()).tx([ack(0, 1)]).done([(1, Success)]);
    assert_eq!(s.mem(INBOX, 1), [7]);
    s.rx(&send_only(1, &[8]).a()).tx([nak(1, NakCode::RemoteOperationalError, 1)]);
    s.done([(2, LocProtErr)]);
    assert_eq!(s.mem(INBOX, 1), [7]);
}

#[test]
fn r46_the_last_receive_is_told_when_the_queue_pair_fails() {
    let (mut s, srq) = script(ATTR);
    let qpn = s.qpn();
    post(&s, &srq, 1..=3);
    s.rx(&send_first(0, &[1; MTU])).quiet().events([]);
    s.send(9, 1).sent();
    s.rx(&nak(0, NakCode::InvalidRequest, 0));
    // The half-received message is flushed; what is left in the queue is for others.
    s.done([(9, RemInvReqErr), (1, WrFlushErr)]).events([AsyncEvent::QpLastWqeReached(qpn)]);
    go(&mut s, QpState::Err);
    s.done([]).events([]);
    go(&mut s, QpState::Reset);
    s.events([]);
    s.enter_init();
    s.enter_rtr();
    s.rx(&send_only(0, &[1]).a()).tx([ack(0, 1)]).done([(2, Success)]);
    assert_eq!(s.host.device.events().take(), Some(AsyncEvent::CommEst(qpn)));
    go(&mut s, QpState::Err);
    s.done([]).events([AsyncEvent::QpLastWqeReached(qpn)]);
}

#[test]
fn r46_without_a_shared_queue_nothing_is_told() {
    let mut s = Script::rts();
    go(&mut s, QpState::Err);
    s.events([]);
}

#[test]
fn r48_the_limit_is_told_once_then_disarmed() {
    let (mut s, srq) = script(SrqAttr { srq_limit: 3, ..ATTR });
    let reached = AsyncEvent::SrqLimitReached(srq.id());
    post(&s, &srq, 1..=4);
    assert_eq!(srq.query(), SrqAttr { srq_limit: 3, ..ATTR });
    s.rx(&send_only(0, &[1])).events([]);
    s.rx(&send_only(1, &[1])).events([reached]);
    assert_eq!(srq.query(), ATTR, "disarmed");
    s.rx(&send_only(2, &[1])).events([]);
    // Armed again while it is below already: the next taking tells.
    let armed = srq.modify(&SrqAttr { srq_limit: 2, ..ATTR }, SrqAttrMask::LIMIT).unwrap();
    assert_eq!(armed, SrqAttr { srq_limit: 2, ..ATTR });
    s.events([]).rx(&send_only(3, &[1])).events([reached]);
    // On an empty queue a message that finds nothing tells.
    srq.modify(&SrqAttr { srq_limit: 1, ..ATTR }, SrqAttrMask::LIMIT).unwrap();
    s.rx(&send_only(4, &[1])).events([reached]).rx(&send_only(4, &[1])).events([]);
    // 0 disarms.
    srq.modify(&SrqAttr { srq_limit: 4, ..ATTR }, SrqAttrMask::LIMIT).unwrap();
    srq.modify(&SrqAttr { srq_limit: 0, ..ATTR }, SrqAttrMask::LIMIT).unwrap();
    s.rx(&send_only(4, &[1])).events([]);
}

#[test]
fn r48_modify_returns_the_real_size_and_keeps_the_receives() {
    let (mut s, srq) = script(ATTR);
    post(&s, &srq, 1..=4);
    let resize = |max_wr| srq.modify(&SrqAttr { max_wr, ..ATTR }, SrqAttrMask::MAX_WR);
    assert_eq!(resize(5), Ok(SrqAttr { max_wr: 5, ..ATTR }));
    post(&s, &srq, [5]);
    assert!(srq.post_recv(RecvWr { wr_id: 6, sges: &[] }).is_err());
    assert_eq!(resize(4), Err(SrqError::BelowPosted { max_wr: 4, posted: 5 }));
    assert_eq!(srq.query().max_wr, 5, "as before");
    for psn in 0..5 {
        s.rx(&send_only(psn, &[1]));
    }
    s.done([(1, Success), (2, Success), (3, Success), (4, Success), (5, Success)]);
    assert_eq!(resize(1), Ok(SrqAttr { max_wr: 1, ..ATTR }));
    post(&s, &srq, [6]);
    assert!(srq.post_recv(RecvWr { wr_id: 7, sges: &[] }).is_err());
}

#[test]
fn r48_what_it_is_made_of_is_checked() {
    let s = Script::reset(|_| {});
    let (device, pd) = (&s.host.device, s.host.pd);
    let limits = *device.limits();
    let create = |attr| device.create_srq(&SrqInit::new(pd, attr));
    let (max, max_sge) = (limits.max_srq_wr, limits.max_srq_sge);
    for (attr, error) in [
        (SrqAttr { max_wr: 0, ..ATTR }, SrqError::Size { max_wr: 0, max }),
        (SrqAttr { max_wr: max + 1, ..ATTR }, SrqError::Size { max_wr: max + 1, max }),
        (
            SrqAttr { max_sge: max_sge + 1, ..ATTR },
            SrqError::Sges { max_sge: max_sge + 1, max: max_sge },
        ),
        (SrqAttr { srq_limit: 5, ..ATTR }, SrqError::Limit { srq_limit: 5, max_wr: 4 }),
    ] {
        assert_eq!(create(attr).unwrap_err(), error);
        assert_eq!(error.errno(), errno::EINVAL);
    }
    let srq = create(SrqAttr { max_wr: max, max_sge, srq_limit: max }).unwrap();
    let modify = |max_wr, srq_limit, mask| {
        srq.modify(&SrqAttr { max_wr, max_sge: 0, srq_limit }, mask).unwrap_err()
    };
    assert_eq!(modify(0, 0, SrqAttrMask::MAX_WR), SrqError::Size { max_wr: 0, max });
    // The limit that is armed stands in the way of a queue that is shorter.
    let limit = SrqError::Limit { srq_limit: max, max_wr: 8 };
    assert_eq!(modify(8, 0, SrqAttrMask::MAX_WR), limit);
    assert_eq!(
        modify(0, max + 1, SrqAttrMask::LIMIT),
        SrqError::Limit { srq_limit: max + 1, max_wr: max }
    );
    assert_eq!(srq.query(), SrqAttr { max_wr: max, max_sge, srq_limit: max });
}

#[test]
fn a_queue_that_is_in_use_is_not_destroyed() {
    let (s, srq) = script(ATTR);
    let error = s.host.device.destroy_srq(&srq).unwrap_err();
    assert_eq!((error.users, error.errno()), (1, errno::EBUSY));
    let crate::common::Host { device, mut shard, qp, .. } = s.host;
    shard.destroy_qp(qp.qpn()).unwrap();
    drop(qp);
    assert_eq!(device.destroy_srq(&srq), Ok(()));
}

#[test]
fn there_are_as_many_as_the_device_has() {
    let limits = Limits { max_srq: 2, ..Limits::default() };
    let config = DeviceConfig { limits, ..DeviceConfig::new(Seed::for_test(1)) };
    let device = Device::new(config, vec![]);
    let init = SrqInit::new(device.alloc_pd().unwrap(), ATTR);
    let first = device.create_srq(&init).unwrap();
    let second = device.create_srq(&init).unwrap();
    assert_ne!(first.id(), second.id());
    let error = device.create_srq(&init).unwrap_err();
    assert_eq!((error, error.errno()), (SrqError::TooMany { max: 2 }, errno::ENOMEM));
    device.destroy_srq(&first).unwrap();
    device.create_srq(&init).unwrap();
}
