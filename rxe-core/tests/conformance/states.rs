//! States of a queue pair: what may be posted, what is answered, what is flushed.

use gid_table::Gid;
use rxe_core::qp::{AddressVector, MigState, QpAttr, QpAttrMask, QpCaps, QpInit, QpState};
use rxe_core::wq::{PostRecvError, PostSendError, RecvWr, SendData, SendFlags, SendOp, SendWr};
use rxe_core::{AsyncEvent, Counter, CreateQpError, errno};
use rxe_wire::{NakCode, RKey};

use crate::script::*;

fn post_send(s: &Script) -> Result<(), PostSendError> {
    let (op, flags) = (SendOp::Send { imm: None }, SendFlags::SIGNALED);
    s.host.qp.post_send(&SendWr {
        wr_id: 1,
        op,
        flags,
        data: SendData::Sges(&[]),
        srq_number: None,
    })
}

fn post_recv(s: &Script) -> Result<bool, PostRecvError> {
    s.host.qp.post_recv(RecvWr { wr_id: 2, sges: &[] })
}

fn go(s: &mut Script, state: QpState) {
    s.host.modify(QpAttr { state, ..s.attr }, QpAttrMask::STATE);
}

#[test]
fn r13_posting_in_every_state() {
    let mut s = Script::reset(|_| {});
    let send_refused = |s: &Script, state| {
        let error = post_send(s).unwrap_err();
        assert_eq!(error, PostSendError::State { state });
        assert_eq!(error.errno(), errno::EINVAL);
    };
    send_refused(&s, QpState::Reset);
    let error = post_recv(&s).unwrap_err();
    assert_eq!(error, PostRecvError::State { state: QpState::Reset });
    assert_eq!(error.errno(), errno::EINVAL);
    s.enter_init();
    send_refused(&s, QpState::Init);
    assert_eq!(post_recv(&s), Ok(false));
    s.enter_rtr();
    send_refused(&s, QpState::Rtr);
    assert_eq!(post_recv(&s), Ok(false));
    s.enter_rts();
    assert_eq!((post_send(&s), post_recv(&s)), (Ok(()), Ok(false)));
    go(&mut s, QpState::Sqd);
    assert_eq!((post_send(&s), post_recv(&s)), (Ok(()), Ok(false)));
    go(&mut s, QpState::Err);
    assert_eq!((post_send(&s), post_recv(&s)), (Ok(()), Ok(true)));
    s.quiet();
    let qpn = s.qpn();
    s.host.shard.kick(s.host.now, qpn);
    // The two sends and four receives of before were flushed when it came here.
    let all: Vec<u64> = s.host.completions().iter().map(|wc| wc.wr_id).collect();
    assert_eq!(all, [1, 1, 2, 2, 2, 2, 1, 2]);
    go(&mut s, QpState::Reset);
    send_refused(&s, QpState::Reset);
    s.done([]);
}

#[test]
fn r47_both_queues_are_flushed_in_order() {
    let mut s = Script::rts();
    s.recv(10, 1).recv(11, 1).send(1, 1).write(2, 1).read(3, 1).send(4, 1).sent();
    go(&mut s, QpState::Err);
    s.quiet().done([
        (1, WrFlushErr),
        (2, WrFlushErr),
        (3, WrFlushErr),
        (4, WrFlushErr),
        (10, WrFlushErr),
        (11, WrFlushErr),
    ]);
    // What was on its way means nothing any more.
    s.rx(&ack(1, 2)).rx(&send_only(0, &[1]).a()).quiet().done([]);
}

#[test]
fn r47_a_message_that_was_half_here_is_flushed_first() {
    let mut s = Script::rts();
    s.recv(10, 600).recv(11, 1);
    s.rx(&send_first(0, &[1; 256])).quiet();
    go(&mut s, QpState::Err);
    s.done([(10, WrFlushErr), (11, WrFlushErr)]);
}

#[test]
fn unsignaled_requests_complete_when_flushed() {
    let mut s = Script::rts();
    s.post_with(1, SendOp::Send { imm: None }, SendFlags::empty(), 1).sent();
    go(&mut s, QpState::Err);
    s.done([(1, WrFlushErr)]);
}

#[test]
fn reset_forgets_everything_and_the_qp_can_be_used_again() {
    let mut s = Script::rts();
    s.recv(10, 1).send(1, 1).read(2, 1).sent();
    go(&mut s, QpState::Reset);
    s.quiet().done([]);
    s.rx(&ack(0, 1)).rx(&send_only(0, &[1]).a()).quiet().done([]);
    s.wait(10 * ACK_TIMEOUT).quiet();
    s.enter_init();
    s.enter_rtr();
    s.enter_rts();
    let data = s.mem(0, 1);
    s.recv(11, 1).send(3, 1).tx([send_only(0, &data).a()]);
    s.rx(&ack(0, 1)).rx(&send_only(0, &[1]).a()).tx([ack(0, 1)]);
    s.done([(3, Success), (11, Success)]);
}

#[test]
fn r50_completion_queues_count_their_users() {
    let s = Script::rts();
    // One queue pair, for its sends and its receives.
    assert_eq!(s.host.cq.users(), 2);
    let crate::common::Host { mut shard, qp, cq, .. } = s.host;
    shard.destroy_qp(qp.qpn()).unwrap();
    drop(qp);
    assert_eq!(cq.users(), 0);
}

#[test]
fn r19_a_queue_pair_goes_with_what_it_had_to_send() {
    let mut s = Script::rts();
    s.recv(10, 1).send(1, 10 * 256).read(2, 1);
    // It sends no more than the first packet.
    let mut buf = vec![0; rxe_core::Shard::MAX_PACKET];
    assert!(s.host.shard.poll_transmit(s.host.now, &mut buf).is_some());
    assert!(s.host.shard.wants_transmit());
    let qpn = s.qpn();
    s.host.shard.destroy_qp(qpn).unwrap();
    assert!(!s.host.shard.wants_transmit());
    // What comes for it is dropped, and none of its timers does anything.
    s.rx(&ack(0, 1)).rx(&send_only(0, &[1]).a()).wait(10 * ACK_TIMEOUT).quiet().done([]).events([]);
    assert_eq!(s.host.shard.poll_timeout(), None, "no timer is left");
    assert_eq!(s.count(Counter::drop_no_such_qp), 2);
}

#[test]
fn r55_what_could_not_be_made_leaves_nothing_behind() {
    let mut s = Script::rts();
    let init = s.host.qp.init().clone();
    let caps = QpCaps { max_send_wr: s.host.device.limits().max_qp_wr + 1, ..init.caps };
    let refused = s.host.shard.create_qp(QpInit { caps, ..init.clone() });
    assert!(matches!(refused, Err(CreateQpError::Capacity { what: "max_send_wr", .. })));
    assert_eq!(s.host.cq.users(), 2, "nothing else completes here");
    // The number that it would have had is not taken, nor found.
    let next = s.host.shard.create_qp(init).unwrap().qpn();
    assert_eq!(next.get() & 0xffff, (s.qpn().get() + 1) & 0xffff);
    s.host.shard.destroy_qp(next).unwrap();
    let mut bytes = s.request_bytes(&send_only(0, &[1]).a());
    bytes[5..8].copy_from_slice(&next.get().to_be_bytes()[1..]);
    s.rx_bytes(&bytes).quiet();
    assert_eq!(s.count(Counter::drop_no_such_qp), 1);
}

#[test]
fn r53_query_tells_the_state_and_the_attributes() {
    let mut s = Script::reset(|_| {});
    let state = |s: &Script| {
        let attr = s.host.shard.query_qp(s.qpn()).unwrap();
        assert_eq!(attr.state, attr.cur_state);
        attr.state
    };
    assert_eq!(state(&s), QpState::Reset);
    s.enter_init();
    assert_eq!(state(&s), QpState::Init);
    s.enter_rtr();
    s.enter_rts();
    let attr = s.host.shard.query_qp(s.qpn()).unwrap();
    let expected = QpAttr { state: QpState::Rts, cur_state: QpState::Rts, ..s.attr };
    assert_eq!(attr, expected);
    s.send(1, 1).sent();
    s.rx(&nak(0, NakCode::InvalidRequest, 0));
    assert_eq!(state(&s), QpState::Err);
    assert_eq!(rxe_core::wq::MAX_MESSAGE, 1 << 31);
}

#[test]
fn r54_a_failed_completion_has_its_four_fields() {
    let mut s = Script::rts();
    s.recv(9, 8).send(77, 8).sent();
    s.rx(&nak(0, NakCode::RemoteAccessError, 0));
    let [wc, flushed] = s.host.completions()[..] else { panic!("two completions") };
    let qpn = s.qpn();
    assert_eq!((wc.wr_id, wc.status, wc.qpn, wc.vendor_err), (77, RemAccessErr, qpn, 0));
    assert_eq!((flushed.wr_id, flushed.status, flushed.qpn), (9, WrFlushErr, qpn));
}

#[test]
fn r58_requests_below_rtr_and_responses_below_rts_are_dropped() {
    let mut s = Script::reset(|_| {});
    let packet = write_only(0, s.host.remote(INBOX), &[1]).a();
    s.rx(&packet).rx(&ack(0, 1)).quiet();
    s.enter_init();
    s.rx(&packet).rx(&ack(0, 1)).quiet();
    assert_eq!(s.count(Counter::drop_wrong_state), 4);
    s.enter_rtr();
    s.rx(&ack(0, 1)).quiet();
    assert_eq!(s.count(Counter::drop_wrong_state), 5);
    let qpn = s.qpn();
    s.events([]).rx(&packet).tx([ack(0, 1)]).events([AsyncEvent::CommEst(qpn)]);
    s.rx(&packet).tx([ack(0, 1)]).events([]);
    s.enter_rts();
    s.rx(&packet).tx([ack(0, 1)]).events([]);
    go(&mut s, QpState::Err);
    s.rx(&packet).quiet();
    assert_eq!(s.count(Counter::drop_wrong_state), 6);
}

#[test]
fn sqd_finishes_what_has_begun_and_begins_nothing() {
    let mut s = Script::rts();
    let data = s.mem(0, 300);
    let mut buf = vec![0; rxe_core::Shard::MAX_PACKET];
    s.send(1, 300).send(2, 1);
    assert!(s.host.shard.poll_transmit(s.host.now, &mut buf).is_some());
    let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
    s.host.modify(QpAttr { state: QpState::Sqd, ..s.attr }, mask);
    s.tx([send_last(1, &data[256..]).a()]);
    s.send(3, 1).quiet().events([]);
    // Losses of what has begun are repaired.
    s.wait(EARLY).tx([send_first(0, &data[..256]).a()]);
    let qpn = s.qpn();
    s.rx(&ack(1, 1)).quiet().done([(1, Success)]).events([AsyncEvent::SqDrained(qpn)]);
    // The other direction goes on.
    s.recv(9, 1).rx(&send_only(0, &[1]).a()).tx([ack(0, 1)]).done([(9, Success)]);
    go(&mut s, QpState::Rts);
    s.tx([send_only(2, &data[..1]).a(), send_only(3, &data[..1]).a()]);
    s.rx(&ack(3, 3)).done([(2, Success), (3, Success)]).events([]);
}

#[test]
fn sqd_with_nothing_outstanding_is_drained_at_once() {
    let mut s = Script::rts();
    let qpn = s.qpn();
    let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
    s.host.modify(QpAttr { state: QpState::Sqd, ..s.attr }, mask);
    s.events([AsyncEvent::SqDrained(qpn)]);
    go(&mut s, QpState::Rts);
    // Nobody asked this time.
    go(&mut s, QpState::Sqd);
    s.events([]);
}

#[test]
fn a_drain_that_was_called_off_raises_no_event() {
    let mut s = Script::rts();
    s.send(1, 1).sent();
    let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
    s.host.modify(QpAttr { state: QpState::Sqd, ..s.attr }, mask);
    go(&mut s, QpState::Rts);
    s.rx(&ack(0, 1)).done([(1, Success)]).events([]);
}

#[test]
fn destroyed_while_busy_it_is_gone_without_a_trace() {
    let mut s = Script::rts();
    s.recv(10, 1).send(1, 1).read(2, 1).sent();
    s.rx(&read(0, s.host.remote(0), 600));
    let qpn = s.qpn();
    s.host.shard.destroy_qp(qpn).unwrap();
    s.quiet().rx(&ack(0, 1)).wait(10 * ACK_TIMEOUT).quiet().done([]);
    assert_eq!(s.count(Counter::drop_no_such_qp), 1);
    assert!(s.host.shard.query_qp(qpn).is_none());
    // A peer that still sends meets silence, and what is posted goes nowhere.
    let to = rxe_core::wq::RemoteAddr { addr: 0, rkey: RKey::new(0) };
    s.rx(&write_only(0, to, &[]).a()).quiet();
    s.host.shard.kick(s.host.now, qpn);
    s.quiet();
}

#[test]
fn r50_a_completion_queue_in_use_is_not_destroyed() {
    let s = Script::rts();
    let crate::common::Host { device, mut shard, qp, cq, .. } = s.host;
    let error = device.destroy_cq(&cq).unwrap_err();
    assert_eq!((error.users, error.errno()), (2, errno::EBUSY));
    shard.destroy_qp(qp.qpn()).unwrap();
    drop(qp);
    assert_eq!(device.destroy_cq(&cq), Ok(()));
}

#[test]
fn the_alternate_path_and_its_state_are_kept_and_told() {
    let mut s = Script::rts();
    let mask = QpAttrMask::PATH_MIG_STATE | QpAttrMask::ALT_PATH;
    let alt = QpAttr {
        path_mig_state: MigState::Rearm,
        alt_av: AddressVector { traffic_class: 9, ..s.attr.av },
        alt_pkey_index: 0,
        alt_port_num: 1,
        alt_timeout: 17,
        ..s.attr
    };
    let told = |s: &Script| {
        let attr = s.host.shard.query_qp(s.qpn()).unwrap();
        let path = (attr.alt_av, attr.alt_pkey_index, attr.alt_port_num, attr.alt_timeout);
        (attr.path_mig_state, path)
    };
    assert_eq!(told(&s).0, MigState::Migrated);
    s.host.modify(alt, mask);
    assert_eq!(told(&s), (MigState::Rearm, (alt.alt_av, 0, 1, 17)));
    // The path in use is as before, and nothing migrates.
    let data = s.mem(0, 1);
    s.send(1, 1).tx([send_only(0, &data).a()]).events([]);
    let armed = QpAttr { path_mig_state: MigState::Armed, ..alt };
    s.host.modify(armed, QpAttrMask::PATH_MIG_STATE);
    assert_eq!(told(&s).0, MigState::Armed);
    // Values are checked.
    let no_gid = AddressVector { sgid_index: 9, ..alt.alt_av };
    for (bad, error) in [
        (QpAttr { alt_timeout: 32, ..alt }, errno::EINVAL),
        (QpAttr { alt_pkey_index: 1, ..alt }, errno::EINVAL),
        (QpAttr { alt_port_num: 2, ..alt }, errno::EINVAL),
        (QpAttr { alt_av: no_gid, ..alt }, errno::EINVAL),
    ] {
        let (now, qpn) = (s.host.now, s.qpn());
        let refused = s.host.shard.modify_qp(now, qpn, &bad, mask).unwrap_err();
        assert_eq!(refused.errno(), error, "{refused}");
    }
    assert_eq!(told(&s), (MigState::Armed, (alt.alt_av, 0, 1, 17)), "as before");
    go(&mut s, QpState::Reset);
    assert_eq!(told(&s).0, MigState::Migrated);
}

#[test]
fn rts_to_rts_changes_what_it_allows_and_disturbs_nothing() {
    let mut s = Script::rts();
    let data = s.mem(0, 1);
    s.send(1, 1).tx([send_only(0, &data).a()]);
    let mask = QpAttrMask::STATE | QpAttrMask::MIN_RNR_TIMER | QpAttrMask::ACCESS_FLAGS;
    let access = rxe_core::mem::AccessFlags::REMOTE_READ;
    s.host.modify(QpAttr { state: QpState::Rts, min_rnr_timer: 20, access, ..s.attr }, mask);
    s.quiet();
    // The new values count at once: the RNR timer, and what the peer may do.
    s.rx(&send_only(0, &[1])).tx([rnr(0, 20, 0)]);
    let to = s.host.remote(INBOX);
    s.rx(&ack(0, 1)).done([(1, Success)]);
    s.rx(&write_only(0, to, &[1])).tx([nak(0, NakCode::InvalidRequest, 0)]);
    // Attributes of another transition are not allowed.
    let mut s = Script::rts();
    let (now, qpn) = (s.host.now, s.qpn());
    let mask = QpAttrMask::STATE | QpAttrMask::TIMEOUT;
    let attr = QpAttr { state: QpState::Rts, ..s.attr };
    assert!(s.host.shard.modify_qp(now, qpn, &attr, mask).is_err());
}

#[test]
fn sqd_to_sqd_changes_the_path_and_the_timers() {
    let mut s = Script::rts();
    let data = s.mem(0, 1);
    go(&mut s, QpState::Sqd);
    let mask = QpAttrMask::STATE
        | QpAttrMask::AV
        | QpAttrMask::TIMEOUT
        | QpAttrMask::RETRY_CNT
        | QpAttrMask::MAX_QP_RD_ATOMIC;
    let peer = Gid::from_ip([10, 0, 0, 9].into());
    let attr = QpAttr {
        state: QpState::Sqd,
        av: AddressVector::new(peer, 0),
        timeout: 15,
        retry_cnt: 0,
        max_rd_atomic: 1,
        ..s.attr
    };
    s.host.modify(attr, mask);
    let old = std::mem::replace(&mut s.path, rxe_core::Path::new(peer, s.host.gid));
    go(&mut s, QpState::Rts);
    s.send(1, 1).tx([send_only(0, &data).a()]);
    s.rx(&ack(0, 1)).done([(1, Success)]);
    // One READ at a time now, and the timer is twice as long, and the last.
    s.read(2, 1).read(3, 1).tx([read(1, far(0), 1)]);
    s.path = old;
    s.rx(&resp_only(1, 2, &data)).done([]);
    s.wait(2 * ACK_TIMEOUT - 1).done([]);
    s.wait(1).done([(2, RetryExcErr), (3, WrFlushErr)]);
}

#[test]
fn a_query_tells_whether_the_send_queue_is_being_drained() {
    let mut s = Script::rts();
    let draining = |s: &Script| s.host.shard.query_qp(s.qpn()).unwrap().sq_draining;
    s.send(1, 1).sent();
    assert!(!draining(&s));
    go(&mut s, QpState::Sqd);
    s.send(2, 1);
    assert!(draining(&s));
    s.rx(&ack(0, 1)).done([(1, Success)]);
    assert!(!draining(&s), "what has not begun waits for RTS");
}
