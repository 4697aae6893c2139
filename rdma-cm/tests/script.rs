//! Conversations with one engine: a message in, exactly these out.

#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use rdma_cm::engine::state::Input;
use rdma_cm::engine::{
    CmEvent, CmPath, CmSizes, CommandError, ConnState, ConnectError, ConnectParam, Ece, Ignored,
    ListenFor, ListenOn, ListenerId,
};
use rxe_wire::mad::cm::{
    AnsweredMessage, Apr, Bits, CmMessage, CommId, Drep, Dreq, FixedBytes, Lap, Mra, NotCm, Path,
    PathMtu, Rej, RejReason, Rep, Req, Rtu, ServiceId, SidrRep, SidrReq, SidrStatus,
    TimeoutExponent, TransportService, U24,
};
use rxe_wire::mad::{AttributeId, MAD_LEN, Mad, TransactionId};
use rxe_wire::{PKey, Psn, Qpn};

/// An answer of the peer's: 0.5 s both ways, and 4.3 s to think.
const PATIENCE: u64 = (4096 << 20) + (4096 << 17);

fn listen(bench: &mut Bench) -> ListenerId {
    bench.engine.listen(SERVICE, ListenOn::Any, ListenFor::AnyConnections, 10).unwrap()
}

/// The bench listens, and has got a REQ.
fn asked(bench: &mut Bench) -> CommId {
    listen(bench);
    ask(bench, req())
}

fn ask(bench: &mut Bench, req: Req) -> CommId {
    bench.hears(CmMessage::Req(req)).unwrap();
    let CmEvent::Request { id, request, .. } = bench.tells_one() else { panic!() };
    assert_eq!(*request, req);
    id
}

fn rtu(id: CommId) -> CmMessage {
    let private_data = FixedBytes::default();
    CmMessage::Rtu(Rtu { local_comm_id: PEER_ID, remote_comm_id: id, private_data })
}

fn dreq(id: CommId, qpn: u32) -> CmMessage {
    let (local_comm_id, remote_comm_id, remote_qpn) = (PEER_ID, id, Qpn::new(qpn));
    CmMessage::Dreq(Dreq { local_comm_id, remote_comm_id, remote_qpn, ..Dreq::default() })
}

fn drep(id: CommId) -> CmMessage {
    let private_data = FixedBytes::default();
    CmMessage::Drep(Drep { local_comm_id: PEER_ID, remote_comm_id: id, private_data })
}

fn rep(id: CommId) -> Rep {
    Rep {
        local_comm_id: PEER_ID,
        remote_comm_id: id,
        local_qpn: Qpn::new(0x19),
        local_ca_guid: PEER_GUID,
        starting_psn: Psn::new(0x99),
        ..Rep::default()
    }
}

fn mra(id: CommId, message: AnsweredMessage, timeout: u8) -> CmMessage {
    let service_timeout = TimeoutExponent::new(timeout);
    let (local_comm_id, remote_comm_id) = (PEER_ID, id);
    CmMessage::Mra(Mra {
        local_comm_id,
        remote_comm_id,
        message,
        service_timeout,
        ..Mra::default()
    })
}

fn rej(id: CommId, message: AnsweredMessage, reason: RejReason) -> CmMessage {
    let (local_comm_id, remote_comm_id) = (PEER_ID, id);
    CmMessage::Rej(Rej { local_comm_id, remote_comm_id, message, reason, ..Rej::default() })
}

fn reason(message: CmMessage) -> (AnsweredMessage, RejReason) {
    let CmMessage::Rej(rej) = message else { panic!("{message:?}") };
    (rej.message, rej.reason)
}

/// The bench has asked, and its REQ was sent.
fn asks(bench: &mut Bench) -> CommId {
    let param = connect_param(bench.path, 0x90001);
    let id = bench.engine.connect(bench.now, &param).unwrap();
    assert!(matches!(bench.says_one(), CmMessage::Req(_)));
    id
}

/// The bench has asked and is connected.
fn connected_by_asking(bench: &mut Bench) -> CommId {
    let id = asks(bench);
    bench.hears(CmMessage::Rep(rep(id))).unwrap();
    assert!(matches!(bench.tells_one(), CmEvent::Response { .. }));
    bench.engine.ready(bench.now, id, &[]).unwrap();
    assert!(matches!(bench.says_one(), CmMessage::Rtu(_)));
    id
}

/// The bench was asked and is connected.
fn connected_by_accepting(bench: &mut Bench) -> CommId {
    let id = asked(bench);
    bench.engine.accept(bench.now, id, &accept_param(0x90001)).unwrap();
    assert!(matches!(bench.says_one(), CmMessage::Rep(_)));
    bench.hears(rtu(id)).unwrap();
    assert!(matches!(bench.tells_one(), CmEvent::Ready { rtu: Some(_), .. }));
    id
}

#[test]
fn who_asks_says_all_that_it_was_told() {
    let mut bench = Bench::new();
    let param = connect_param(bench.path, 0x90001);
    let id = bench.engine.connect(bench.now, &param).unwrap();
    assert_eq!(id.0 >> 24, u32::from(SLOT));
    let expected = Req {
        local_comm_id: id,
        local_ca_guid: bench.engine.config().ca_guid,
        local_qpn: Qpn::new(0x90001),
        starting_psn: Psn::new(0x1234),
        primary_path: Path {
            local_gid: gid(1).raw(),
            remote_gid: gid(2).raw(),
            ..req().primary_path
        },
        ..req()
    };
    assert_eq!(bench.says_one(), CmMessage::Req(expected));
    bench.is_quiet();
}

#[test]
fn a_vendors_options_travel_in_the_datagrams_head() {
    let mut bench = Bench::new();
    let ece = Ece::new(0x15b3, 0x0102_0304);
    let param = ConnectParam { ece, ..connect_param(bench.path, 0x90001) };
    let id = bench.engine.connect(bench.now, &param).unwrap();
    let head = |bench: &mut Bench| {
        let sent = bench.engine.poll_transmit().unwrap();
        let mut mad = [0; MAD_LEN];
        sent.write(&mut mad);
        let mad = Mad::parse(&mad).unwrap().header;
        (mad.attribute_id, mad.attribute_modifier)
    };
    assert_eq!(head(&mut bench), (AttributeId::CM_REQ, 0x0102_0304));
    bench.waits();
    assert_eq!(head(&mut bench), (AttributeId::CM_REQ, 0x0102_0304), "again");
    // What the peer's vendor says comes with the response.
    let mut mad = [0; MAD_LEN];
    let reply = Rep { vendor_id: U24::new(0x15b3), ..rep(id) };
    CmMessage::Rep(reply).write_mad(PEER_TID, &mut mad);
    mad[20..24].copy_from_slice(&9u32.to_be_bytes());
    bench.engine.handle_mad(bench.now, &bench.path, &mad).unwrap();
    let CmEvent::Response { ece, .. } = bench.tells_one() else { panic!() };
    assert_eq!(ece, Ece::new(0x15b3, 9));
    bench.engine.ready(bench.now, id, &[]).unwrap();
    assert_eq!(head(&mut bench), (AttributeId::CM_RTU, 0));
}

#[test]
fn asking_being_accepted_and_ending() {
    let mut bench = Bench::new();
    let id = asks(&mut bench);
    bench.hears(CmMessage::Rep(rep(id))).unwrap();
    let CmEvent::Response { id: told, reply, .. } = bench.tells_one() else { panic!() };
    assert_eq!((told, *reply), (id, rep(id)));
    bench.is_quiet();

    bench.engine.ready(bench.now, id, b"go").unwrap();
    let expected = Rtu {
        local_comm_id: id,
        remote_comm_id: PEER_ID,
        private_data: FixedBytes::new(b"go").unwrap(),
    };
    assert_eq!(bench.says_one(), CmMessage::Rtu(expected));
    assert_eq!(bench.engine.state(id), Some(ConnState::Established));
    assert_eq!(bench.engine.poll_timeout(), None);

    bench.engine.disconnect(bench.now, id, &[]).unwrap();
    let CmMessage::Dreq(sent) = bench.says_one() else { panic!() };
    assert_eq!((sent.remote_comm_id, sent.remote_qpn), (PEER_ID, Qpn::new(0x19)));
    bench.hears(drep(id)).unwrap();
    assert!(matches!(bench.tells_one(), CmEvent::Disconnected { drep: Some(_), .. }));
    assert_eq!(bench.engine.state(id), Some(ConnState::TimeWait));
    assert_eq!(bench.waits(), 4096 << 17);
    assert_eq!(bench.tells_one(), CmEvent::TimewaitExit { id });
    assert_eq!(bench.engine.sizes(), CmSizes::default());
}

#[test]
fn being_asked_accepting_and_agreeing_to_the_end() {
    let mut bench = Bench::new();
    let id = asked(&mut bench);
    bench.is_quiet();
    bench.engine.accept(bench.now, id, &accept_param(0x90001)).unwrap();
    let expected = Rep {
        local_comm_id: id,
        remote_comm_id: PEER_ID,
        local_qpn: Qpn::new(0x90001),
        starting_psn: Psn::new(0x4321),
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: TimeoutExponent::new(15),
        rnr_retry_count: Bits::new(7),
        local_ca_guid: bench.engine.config().ca_guid,
        ..Rep::default()
    };
    let sent = bench.engine.poll_transmit().unwrap();
    assert_eq!(sent.message, CmMessage::Rep(expected));
    assert_eq!(sent.transaction_id, PEER_TID, "an answer belongs to the exchange of its question");
    bench.hears(rtu(id)).unwrap();
    assert!(matches!(bench.tells_one(), CmEvent::Ready { .. }));
    assert_eq!(bench.engine.poll_timeout(), None);

    bench.hears(dreq(id, 0x90001)).unwrap();
    assert!(matches!(bench.tells_one(), CmEvent::Disconnecting { .. }));
    bench.is_quiet();
    bench.engine.agree(bench.now, id, &[]).unwrap();
    assert!(matches!(bench.says_one(), CmMessage::Drep(drep) if drep.remote_comm_id == PEER_ID));
    bench.waits();
    assert_eq!(bench.tells_one(), CmEvent::TimewaitExit { id });
    assert_eq!(bench.engine.sizes(), CmSizes { listeners: 1, ..CmSizes::default() });
}

#[test]
fn a_req_without_answer_is_sent_sixteen_times_and_taken_back() {
    let mut bench = Bench::new();
    let id = asks(&mut bench);
    for _ in 0..15 {
        assert_eq!(bench.waits(), PATIENCE);
        assert!(matches!(bench.says_one(), CmMessage::Req(_)));
        bench.is_quiet();
    }
    bench.waits();
    let CmMessage::Rej(sent) = bench.says_one() else { panic!() };
    assert_eq!((sent.message, sent.reason), (AnsweredMessage::Req, RejReason::TIMEOUT));
    assert_eq!((sent.local_comm_id, sent.remote_comm_id), (id, CommId(0)));
    assert_eq!(sent.info.0[..8], bench.engine.config().ca_guid.0.to_be_bytes());
    assert_eq!(sent.info_len.get(), 8);
    assert_eq!(bench.tells_one(), CmEvent::Unreachable { id });
    assert_eq!(bench.engine.poll_timeout(), None);
    bench.engine.destroy(bench.now, id);
    assert_eq!(bench.engine.sizes(), CmSizes::default());
    assert_eq!(bench.engine.counters().resent, 15);
}

#[test]
fn retries_and_timeouts_are_those_of_the_caller() {
    let mut bench = Bench::new();
    let mut param = connect_param(bench.path, 0x90001);
    param.response_timeout = TimeoutExponent::new(10);
    param.ack_timeout = TimeoutExponent::new(5);
    param.max_cm_retries = Bits::new(1);
    let id = bench.engine.connect(bench.now, &param).unwrap();
    bench.says();
    assert_eq!(bench.waits(), (4096 << 10) + (4096 << 5));
    assert!(matches!(bench.says_one(), CmMessage::Req(_)));
    bench.waits();
    assert_eq!(bench.tells_one(), CmEvent::Unreachable { id });
}

#[test]
fn an_mra_makes_the_requester_wait_as_long_as_it_says_and_goes_on() {
    let mut bench = Bench::new();
    let id = asks(&mut bench);
    bench.hears(mra(id, AnsweredMessage::Req, 24)).unwrap();
    assert_eq!(bench.engine.state(id), Some(ConnState::MraReqReceived));
    bench.is_quiet();
    assert_eq!(bench.waits(), (4096 << 24) + (4096 << 17));
    assert!(matches!(bench.says_one(), CmMessage::Req(_)), "one more time");
    bench.hears(mra(id, AnsweredMessage::Req, 24)).unwrap();
    bench.hears(CmMessage::Rep(rep(id))).unwrap();
    assert!(matches!(bench.tells_one(), CmEvent::Response { .. }));
    assert_eq!(bench.hears(mra(id, AnsweredMessage::Req, 24)), Err(Ignored::Known), "late");
}

#[test]
fn an_mra_of_another_message_means_nothing() {
    let mut bench = Bench::new();
    let id = asks(&mut bench);
    for message in [AnsweredMessage::Rep, AnsweredMessage::Other, AnsweredMessage::Reserved] {
        let error = bench.hears(mra(id, message, 24)).unwrap_err();
        assert_eq!(error, Ignored::State(ConnState::ReqSent));
    }
    assert_eq!(bench.waits(), PATIENCE);
}

#[test]
fn a_rep_without_rtu_is_sent_again_and_given_up() {
    let mut bench = Bench::new();
    let id = asked(&mut bench);
    bench.engine.accept(bench.now, id, &accept_param(0x90001)).unwrap();
    let rep = bench.says_one();
    for _ in 0..15 {
        assert_eq!(bench.waits(), PATIENCE);
        assert_eq!(bench.says_one(), rep);
    }
    bench.waits();
    assert_eq!(reason(bench.says_one()), (AnsweredMessage::Rep, RejReason::TIMEOUT));
    assert_eq!(bench.tells_one(), CmEvent::Unreachable { id });
}

#[test]
fn an_mra_of_the_rep_makes_the_responder_wait() {
    let mut bench = Bench::new();
    let id = asked(&mut bench);
    bench.engine.accept(bench.now, id, &accept_param(0x90001)).unwrap();
    bench.says();
    bench.hears(mra(id, AnsweredMessage::Rep, 22)).unwrap();
    assert_eq!(bench.hears(CmMessage::Req(req())), Err(Ignored::Known), "it has the REP");
    assert_eq!(bench.waits(), (4096 << 22) + (4096 << 17));
    assert!(matches!(bench.says_one(), CmMessage::Rep(_)));
    bench.hears(rtu(id)).unwrap();
    assert!(matches!(bench.tells_one(), CmEvent::Ready { .. }));
}

#[test]
fn a_req_that_comes_again_makes_no_second_connection() {
    let mut bench = Bench::new();
    let id = asked(&mut bench);
    assert_eq!(bench.hears(CmMessage::Req(req())), Err(Ignored::Known), "the caller thinks");
    bench.is_quiet();

    bench.engine.hold(bench.now, id, TimeoutExponent::new(24), true).unwrap();
    bench.is_quiet();
    bench.hears(CmMessage::Req(req())).unwrap();
    let CmMessage::Mra(sent) = bench.says_one() else { panic!() };
    assert_eq!((sent.message, sent.service_timeout.get()), (AnsweredMessage::Req, 24));

    bench.engine.accept(bench.now, id, &accept_param(0x90001)).unwrap();
    let rep = bench.says_one();
    bench.hears(CmMessage::Req(req())).unwrap();
    assert_eq!(bench.says_one(), rep, "the REP was lost");

    bench.hears(rtu(id)).unwrap();
    bench.tells();
    assert_eq!(bench.hears(CmMessage::Req(req())), Err(Ignored::Known));
    assert_eq!(bench.engine.counters().duplicates, 2);
    bench.is_quiet();
}

#[test]
fn an_undelayed_mra_goes_at_once() {
    let mut bench = Bench::new();
    let id = asked(&mut bench);
    bench.engine.hold(bench.now, id, TimeoutExponent::new(20), false).unwrap();
    assert!(matches!(bench.says_one(), CmMessage::Mra(mra) if mra.remote_comm_id == PEER_ID));
}

#[test]
fn a_rep_that_comes_again_is_answered_again() {
    let mut bench = Bench::new();
    let id = asks(&mut bench);
    bench.hears(CmMessage::Rep(rep(id))).unwrap();
    bench.tells();
    assert_eq!(bench.hears(CmMessage::Rep(rep(id))), Err(Ignored::Known));
    bench.engine.hold(bench.now, id, TimeoutExponent::new(24), true).unwrap();
    bench.hears(CmMessage::Rep(rep(id))).unwrap();
    assert!(matches!(bench.says_one(), CmMessage::Mra(mra) if mra.message == AnsweredMessage::Rep));
    bench.engine.ready(bench.now, id, &[]).unwrap();
    let rtu = bench.says_one();
    bench.hears(CmMessage::Rep(rep(id))).unwrap();
    assert_eq!(bench.says_one(), rtu, "the RTU was lost");
    bench.is_quiet();
}

#[test]
fn a_rep_of_somebody_else_is_refused_when_there_is_one_already() {
    let mut bench = Bench::new();
    let id = connected_by_asking(&mut bench);
    let other = Rep { local_comm_id: CommId(5), local_qpn: Qpn::new(0x20), ..rep(id) };
    bench.hears(CmMessage::Rep(other)).unwrap();
    let refused = (AnsweredMessage::Rep, RejReason::INVALID_COMM_INSTANCE);
    assert_eq!(reason(bench.says_one()), refused);
    assert_eq!(bench.engine.state(id), Some(ConnState::Established));
}

#[test]
fn a_rep_for_what_was_given_up_is_refused() {
    let mut bench = Bench::new();
    let id = asks(&mut bench);
    bench.engine.destroy(bench.now, id);
    assert_eq!(reason(bench.says_one()), (AnsweredMessage::Req, RejReason::TIMEOUT));
    assert_eq!(bench.engine.sizes(), CmSizes::default());
    bench.hears(CmMessage::Rep(rep(id))).unwrap();
    let CmMessage::Rej(sent) = bench.says_one() else { panic!() };
    assert_eq!(sent.reason, RejReason::INVALID_COMM_ID);
    assert_eq!((sent.local_comm_id, sent.remote_comm_id), (id, PEER_ID));
}

#[test]
fn an_rtu_that_comes_again_changes_nothing() {
    let mut bench = Bench::new();
    let id = connected_by_accepting(&mut bench);
    assert_eq!(bench.hears(rtu(id)), Err(Ignored::Known));
    bench.is_quiet();
}

#[test]
fn data_before_the_rtu_makes_the_connection() {
    let mut bench = Bench::new();
    let id = asked(&mut bench);
    bench.engine.accept(bench.now, id, &accept_param(0x90001)).unwrap();
    bench.says();
    bench.engine.heard_from_peer(bench.now, id).unwrap();
    assert_eq!(bench.tells_one(), CmEvent::Ready { id, rtu: None });
    bench.engine.heard_from_peer(bench.now, id).unwrap();
    assert_eq!(bench.hears(rtu(id)), Err(Ignored::Known));
    bench.is_quiet();
}

#[test]
fn a_dreq_instead_of_a_lost_rtu_is_taken() {
    let mut bench = Bench::new();
    let id = asked(&mut bench);
    bench.engine.accept(bench.now, id, &accept_param(0x90001)).unwrap();
    bench.says();
    bench.hears(dreq(id, 0x90001)).unwrap();
    assert!(matches!(bench.tells_one(), CmEvent::Disconnecting { .. }));
    assert_eq!(bench.hears(dreq(id, 0x90001)), Err(Ignored::Known));
    bench.is_quiet();
}

#[test]
fn a_dreq_that_comes_again_in_timewait_is_answered_again() {
    let mut bench = Bench::new();
    let id = connected_by_accepting(&mut bench);
    bench.hears(dreq(id, 0x90001)).unwrap();
    bench.tells();
    bench.engine.agree(bench.now, id, &[]).unwrap();
    bench.says();
    bench.hears(dreq(id, 0x90001)).unwrap();
    assert!(matches!(bench.says_one(), CmMessage::Drep(_)));
    bench.is_quiet();
}

#[test]
fn a_dreq_for_what_is_gone_is_agreed_to() {
    let mut bench = Bench::new();
    bench.hears(dreq(CommId(0x0900_0001), 0x90001)).unwrap();
    let expected = Drep {
        local_comm_id: CommId(0x0900_0001),
        remote_comm_id: PEER_ID,
        private_data: FixedBytes::default(),
    };
    assert_eq!(bench.says_one(), CmMessage::Drep(expected));
    assert_eq!(bench.engine.sizes(), CmSizes::default());
}

#[test]
fn a_dreq_for_another_queue_pair_is_ignored() {
    let mut bench = Bench::new();
    let id = connected_by_accepting(&mut bench);
    assert_eq!(bench.hears(dreq(id, 0x90002)), Err(Ignored::OtherQpn));
    bench.is_quiet();
}

#[test]
fn both_may_want_the_end_at_once() {
    let mut bench = Bench::new();
    let id = connected_by_asking(&mut bench);
    bench.engine.disconnect(bench.now, id, &[]).unwrap();
    bench.says();
    bench.hears(dreq(id, 0x90001)).unwrap();
    assert!(matches!(bench.says_one(), CmMessage::Drep(_)));
    assert_eq!(bench.tells_one(), CmEvent::Disconnected { id, drep: None });
    assert_eq!(bench.hears(drep(id)), Err(Ignored::Known), "theirs");
    bench.is_quiet();
}

#[test]
fn a_dreq_without_answer_ends_all_the_same() {
    let mut bench = Bench::new();
    let id = connected_by_asking(&mut bench);
    bench.engine.disconnect(bench.now, id, &[]).unwrap();
    bench.says();
    for _ in 0..15 {
        assert_eq!(bench.waits(), PATIENCE);
        assert!(matches!(bench.says_one(), CmMessage::Dreq(_)));
    }
    bench.waits();
    assert_eq!(bench.tells_one(), CmEvent::NotAnswered { id });
    assert_eq!(bench.engine.state(id), Some(ConnState::TimeWait));
}

#[test]
fn refusals_end_each_state_that_waits() {
    // While asking.
    let mut bench = Bench::new();
    let id = asks(&mut bench);
    let refusal = Rej { local_comm_id: CommId(0), ..Rej::default() };
    let refusal = Rej { remote_comm_id: id, reason: RejReason::INVALID_SERVICE_ID, ..refusal };
    bench.hears(CmMessage::Rej(refusal)).unwrap();
    let CmEvent::Rejected { rej: told, .. } = bench.tells_one() else { panic!() };
    assert_eq!(told.reason.0, 8);
    assert_eq!(bench.engine.state(id), Some(ConnState::Idle));
    assert_eq!(bench.hears(CmMessage::Rej(refusal)), Err(Ignored::State(ConnState::Idle)));
    bench.engine.destroy(bench.now, id);
    bench.is_quiet();

    // After accepting.
    let id = asked(&mut bench);
    bench.engine.accept(bench.now, id, &accept_param(0x90001)).unwrap();
    bench.says();
    bench.hears(rej(id, AnsweredMessage::Rep, RejReason::CONSUMER_DEFINED)).unwrap();
    assert!(matches!(bench.tells_one(), CmEvent::Rejected { .. }));
    assert_eq!(bench.engine.state(id), Some(ConnState::Idle));
    bench.engine.destroy(bench.now, id);

    // While connected.
    let id = connected_by_asking(&mut bench);
    bench.hears(rej(id, AnsweredMessage::Other, RejReason::CONSUMER_DEFINED)).unwrap();
    assert!(matches!(bench.tells_one(), CmEvent::Rejected { .. }));
    assert_eq!(bench.engine.state(id), Some(ConnState::TimeWait));
    bench.engine.destroy(bench.now, id);
    bench.is_quiet();
    bench.waits();
    assert_eq!(bench.engine.sizes(), CmSizes { listeners: 1, ..CmSizes::default() });
}

#[test]
fn a_requester_that_gives_up_early_names_itself() {
    let mut bench = Bench::new();
    let id = asked(&mut bench);
    let info = FixedBytes::new(&PEER_GUID.0.to_be_bytes()).unwrap();
    let gives_up = Rej {
        local_comm_id: PEER_ID,
        reason: RejReason::TIMEOUT,
        info,
        info_len: Bits::new(8),
        ..Rej::default()
    };
    bench.hears(CmMessage::Rej(gives_up)).unwrap();
    assert!(matches!(bench.tells_one(), CmEvent::Rejected { id: told, .. } if told == id));
    assert_eq!(bench.engine.state(id), Some(ConnState::Idle));
    let error = bench.engine.accept(bench.now, id, &accept_param(1)).unwrap_err();
    let (state, input) = (ConnState::Idle, Input::Accept);
    assert_eq!(error, CommandError::State { state, input });
}

#[test]
fn a_stale_connection_is_kept_in_timewait() {
    let mut bench = Bench::new();
    let id = asks(&mut bench);
    bench.hears(rej(id, AnsweredMessage::Req, RejReason::STALE_CONNECTION)).unwrap();
    assert!(matches!(bench.tells_one(), CmEvent::Rejected { .. }));
    assert_eq!(bench.engine.state(id), Some(ConnState::TimeWait));
    let param = connect_param(bench.path, 0x90001);
    let error = bench.engine.connect(bench.now, &param).unwrap_err();
    assert_eq!(error, ConnectError::QpnInUse { qpn: Qpn::new(0x90001), holder: id });
    assert_eq!(error.errno(), 16);
    bench.waits();
    bench.engine.connect(bench.now, &param).unwrap();
}

#[test]
fn the_callers_refusal_says_why() {
    let mut bench = Bench::new();
    let id = asked(&mut bench);
    let reason = RejReason::CONSUMER_DEFINED;
    bench.engine.reject(bench.now, id, reason, &[], b"no").unwrap();
    let CmMessage::Rej(sent) = bench.says_one() else { panic!() };
    assert_eq!((sent.reason, sent.message), (reason, AnsweredMessage::Req));
    assert_eq!((sent.local_comm_id, sent.remote_comm_id), (id, PEER_ID));
    assert_eq!(sent.private_data.trimmed(), b"no");
    let too_long = bench.engine.reject(bench.now, id, reason, &[], &[0; 149]).unwrap_err();
    assert!(matches!(too_long, CommandError::PrivateData(_)));
    bench.engine.destroy(bench.now, id);
    bench.is_quiet();
    // The REJ was lost: the requester asks again, and is a new one.
    let again = ask(&mut bench, req());
    assert_ne!(again, id);
}

/// What a REQ that is wrong in one way is answered with.
#[track_caller]
fn refused(bench: &mut Bench, req: Req) -> Rej {
    bench.hears(CmMessage::Req(req)).unwrap();
    let CmMessage::Rej(rej) = bench.says_one() else { panic!() };
    assert_eq!(bench.tells(), []);
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (CommId(0), req.local_comm_id));
    assert_eq!(rej.message, AnsweredMessage::Req);
    rej
}

#[test]
fn each_wrong_request_has_its_reason() {
    let mut bench = Bench::new();
    listen(&mut bench);
    let service_id = ServiceId(SERVICE.0 + 1);
    assert_eq!(refused(&mut bench, Req { service_id, ..req() }).reason.0, 8);
    let rd = Req { service: TransportService::Rd, ..req() };
    assert_eq!(refused(&mut bench, rd).reason.0, 9);
    let extended = Req { service: TransportService::Extended, ..req() };
    assert_eq!(refused(&mut bench, extended).reason.0, 9);

    for (local, remote) in [(gid(2), gid(3)), (gid(3), gid(1))] {
        let mut wrong = req();
        (wrong.primary_path.local_gid, wrong.primary_path.remote_gid) = (local.raw(), remote.raw());
        let rej = refused(&mut bench, wrong);
        assert_eq!((rej.reason.0, rej.info_len.get()), (12, 16));
        assert_eq!(rej.info.0[..16], gid(1).raw(), "the right one");
    }
    for mtu in [0, 4, 5, 6] {
        let path_mtu = PathMtu(Bits::new(mtu));
        let rej = refused(&mut bench, Req { path_mtu, ..req() });
        assert_eq!((rej.reason.0, rej.info_len.get(), rej.info.0[0]), (26, 1, 3), "the greatest");
    }
    for qpn in [0, 1, 0xff_ffff] {
        let rej = refused(&mut bench, Req { local_qpn: Qpn::new(qpn), ..req() });
        assert_eq!(rej.reason.0, 5);
    }
    assert_eq!(bench.engine.sizes().connections, 0);
    ask(&mut bench, req());
}

#[test]
fn a_listener_may_want_one_transport() {
    let mut bench = Bench::new();
    let takes = ListenFor::Connections(TransportService::Uc);
    bench.engine.listen(SERVICE, ListenOn::Ipv4, takes, 10).unwrap();
    assert_eq!(refused(&mut bench, req()).reason.0, 9);
    ask(&mut bench, Req { service: TransportService::Uc, ..req() });
}

#[test]
fn an_id_that_the_peer_uses_already_is_refused() {
    let mut bench = Bench::new();
    asked(&mut bench);
    let other = Req { local_qpn: Qpn::new(0x20), ..req() };
    assert_eq!(refused(&mut bench, other).reason.0, 30);
}

#[test]
fn a_class_version_that_is_not_spoken_is_refused() {
    let mut bench = Bench::new();
    listen(&mut bench);
    let mut mad = [0; MAD_LEN];
    CmMessage::Req(req()).write_mad(TransactionId(5), &mut mad);
    mad[2] = 3;
    let (now, path) = (bench.now, bench.path);
    let error = bench.engine.handle_mad(now, &path, &mad).unwrap_err();
    assert_eq!(error, Ignored::NotCm(NotCm::ClassVersion(3)));
    let CmMessage::Rej(rej) = bench.says_one() else { panic!() };
    assert_eq!((rej.reason.0, rej.remote_comm_id), (31, PEER_ID));
    CmMessage::Rtu(Rtu::default()).write_mad(TransactionId(5), &mut mad);
    mad[2] = 3;
    assert!(bench.engine.handle_mad(now, &path, &mad).is_err());
    bench.is_quiet();
}

#[test]
fn a_new_connection_of_a_queue_pair_ends_its_old_one() {
    let mut bench = Bench::new();
    let old = connected_by_accepting(&mut bench);
    let new = Req { local_comm_id: CommId(7), ..req() };
    bench.hears(CmMessage::Req(new)).unwrap();
    let said = bench.says();
    assert!(matches!(&said[..], [CmMessage::Dreq(dreq), CmMessage::Rej(rej)]
        if dreq.local_comm_id == old && rej.reason.0 == 10 && rej.remote_comm_id == CommId(7)));
    bench.is_quiet();
    // The peer knows nothing of it.
    bench.hears(drep(old)).unwrap();
    assert!(matches!(bench.tells_one(), CmEvent::Disconnected { .. }));
    // In timewait the queue pair is still no good, and after it, it is.
    assert_eq!(refused(&mut bench, new).reason.0, 10);
    bench.engine.destroy(bench.now, old);
    bench.waits();
    ask(&mut bench, new);
}

#[test]
fn a_new_request_of_a_queue_pair_ends_one_that_waits_for_its_answer() {
    let mut bench = Bench::new();
    let old = asked(&mut bench);
    let new = Req { local_comm_id: CommId(7), ..req() };
    assert_eq!(
        {
            bench.hears(CmMessage::Req(new)).unwrap();
            reason(bench.says_one())
        },
        (AnsweredMessage::Req, RejReason::STALE_CONNECTION)
    );
    let CmEvent::Rejected { id, rej } = bench.tells_one() else { panic!() };
    assert_eq!((id, rej.reason.0), (old, 10));
    ask(&mut bench, new);
}

#[test]
fn a_response_of_a_queue_pair_that_is_connected_already_ends_both() {
    let mut bench = Bench::new();
    let old = connected_by_asking(&mut bench);
    let new = bench.engine.connect(bench.now, &connect_param(bench.path, 0x90002)).unwrap();
    bench.says();
    bench.hears(CmMessage::Rep(Rep { local_comm_id: CommId(7), ..rep(new) })).unwrap();
    let said = bench.says();
    assert!(matches!(&said[..], [CmMessage::Dreq(dreq), CmMessage::Rej(rej)]
        if dreq.local_comm_id == old
            && (rej.reason.0, rej.message) == (10, AnsweredMessage::Rep)
            && (rej.local_comm_id, rej.remote_comm_id) == (new, CommId(7))));
    assert!(matches!(bench.tells_one(), CmEvent::Rejected { id, .. } if id == new));
}

#[test]
fn a_req_in_timewait_is_called_stale() {
    let mut bench = Bench::new();
    let id = connected_by_accepting(&mut bench);
    bench.hears(dreq(id, 0x90001)).unwrap();
    bench.engine.agree(bench.now, id, &[]).unwrap();
    bench.says();
    bench.hears(CmMessage::Req(req())).unwrap();
    assert_eq!(reason(bench.says_one()), (AnsweredMessage::Req, RejReason::STALE_CONNECTION));
    // Another one with the id is answered in its own exchange.
    let (mut mad, tid) = ([0; MAD_LEN], TransactionId(0x77));
    CmMessage::Req(Req { starting_psn: Psn::new(1), ..req() }).write_mad(tid, &mut mad);
    bench.engine.handle_mad(bench.now, &bench.path, &mad).unwrap();
    let said = bench.engine.poll_transmit().unwrap();
    assert_eq!(said.transaction_id, tid);
    assert_eq!(reason(said.message), (AnsweredMessage::Req, RejReason::STALE_CONNECTION));
}

#[test]
fn simultaneous_requests_make_two_connections() {
    let mut bench = Bench::new();
    listen(&mut bench);
    let ours = asks(&mut bench);
    let theirs = ask(&mut bench, req());
    assert_ne!(ours, theirs);
    bench.engine.accept(bench.now, theirs, &accept_param(0x90002)).unwrap();
    bench.says();
    let reply = Rep { local_comm_id: CommId(7), local_qpn: Qpn::new(0x20), ..rep(ours) };
    bench.hears(CmMessage::Rep(reply)).unwrap();
    assert!(matches!(bench.tells_one(), CmEvent::Response { id, .. } if id == ours));
    bench.hears(rtu(theirs)).unwrap();
    assert!(matches!(bench.tells_one(), CmEvent::Ready { id, .. } if id == theirs));
}

#[test]
fn peer_to_peer_is_refused_clearly() {
    let mut bench = Bench::new();
    let mut param = connect_param(bench.path, 0x90001);
    param.peer_to_peer = true;
    let error = bench.engine.connect(bench.now, &param).unwrap_err();
    assert_eq!((error, error.errno()), (ConnectError::PeerToPeer, 22));
    assert!(error.to_string().contains("let one side listen"), "{error}");
    param.peer_to_peer = false;
    param.transport = TransportService::Rd;
    let error = bench.engine.connect(bench.now, &param).unwrap_err();
    assert_eq!(error, ConnectError::Transport(TransportService::Rd));
    bench.is_quiet();
    // On the wire: neither listens, so each is refused.
    asks(&mut bench);
    assert_eq!(refused(&mut bench, req()).reason, RejReason::INVALID_SERVICE_ID);
}

#[test]
fn a_full_backlog_drops_requests_until_one_is_taken() {
    let mut bench = Bench::new();
    bench.engine.listen(SERVICE, ListenOn::Any, ListenFor::AnyConnections, 2).unwrap();
    let number = |n: u32| Req { local_comm_id: CommId(n), local_qpn: Qpn::new(100 + n), ..req() };
    let first = ask(&mut bench, number(1));
    ask(&mut bench, number(2));
    assert_eq!(bench.hears(CmMessage::Req(number(3))), Err(Ignored::BacklogFull));
    bench.is_quiet();
    bench.engine.request_taken(first);
    bench.engine.request_taken(first);
    let third = ask(&mut bench, number(3));
    assert_eq!(bench.hears(CmMessage::Req(number(4))), Err(Ignored::BacklogFull));
    // Refusing one without looking at it makes room, too.
    bench.engine.destroy(bench.now, third);
    bench.says();
    ask(&mut bench, number(4));
}

#[test]
fn a_listener_that_stops_leaves_its_requests_to_their_owner() {
    let mut bench = Bench::new();
    let listener = listen(&mut bench);
    let id = ask(&mut bench, req());
    bench.engine.stop_listening(listener);
    assert_eq!(
        refused(&mut bench, Req { local_comm_id: CommId(7), local_qpn: Qpn::new(77), ..req() })
            .reason
            .0,
        8
    );
    bench.engine.accept(bench.now, id, &accept_param(0x90001)).unwrap();
    assert!(matches!(bench.says_one(), CmMessage::Rep(_)));
}

#[test]
fn beyond_the_limit_there_are_no_resources() {
    let mut bench = Bench::with(rdma_cm::engine::CmConfig { connections_max: 1, ..config(1) });
    asked(&mut bench);
    let other = Req { local_comm_id: CommId(7), local_qpn: Qpn::new(77), ..req() };
    assert_eq!(refused(&mut bench, other).reason, RejReason::NO_RESOURCES);
    let error = bench.engine.connect(bench.now, &connect_param(bench.path, 5)).unwrap_err();
    assert_eq!((error, error.errno()), (ConnectError::TooMany(1), 12));
}

#[test]
fn timewait_is_bounded() {
    let mut bench = Bench::with(rdma_cm::engine::CmConfig { timewait_max: 2, ..config(1) });
    let mut ids = Vec::new();
    for n in 0..4 {
        let param = connect_param(bench.path, 0x90001 + n);
        let id = bench.engine.connect(bench.now, &param).unwrap();
        bench.says();
        bench.now = bench.now.plus_nanos(1);
        bench.hears(rej(id, AnsweredMessage::Req, RejReason::STALE_CONNECTION)).unwrap();
        assert!(matches!(
            bench.tells().last(),
            Some(CmEvent::Rejected { .. } | CmEvent::TimewaitExit { .. })
        ));
        ids.push(id);
    }
    assert_eq!(bench.engine.sizes().timewait, 2);
    assert_eq!(bench.engine.state(ids[1]), None, "the first two have left early");
    assert!(!bench.engine.uses_qpn(Qpn::new(0x90002)) && bench.engine.uses_qpn(Qpn::new(0x90003)));
}

#[test]
fn an_alternate_path_is_not_used() {
    let mut bench = Bench::new();
    listen(&mut bench);
    let alternate_path = Path { local_gid: gid(3).raw(), ..Path::default() };
    let id = ask(&mut bench, Req { alternate_path, ..req() });
    bench.engine.accept(bench.now, id, &accept_param(0x90001)).unwrap();
    assert!(matches!(bench.says_one(), CmMessage::Rep(rep) if rep.failover_accepted.get() == 1));
}

#[test]
fn lap_and_apr_are_dropped_as_linux_does_on_roce() {
    let mut bench = Bench::new();
    let id = connected_by_asking(&mut bench);
    let (local_comm_id, remote_comm_id) = (PEER_ID, id);
    let lap = CmMessage::Lap(Lap { local_comm_id, remote_comm_id, ..Lap::default() });
    let apr = CmMessage::Apr(Apr { local_comm_id, remote_comm_id, ..Apr::default() });
    for message in [lap, apr] {
        assert_eq!(bench.hears(message), Err(Ignored::State(ConnState::Established)));
    }
    bench.is_quiet();
}

#[test]
fn other_hosts_change_nothing() {
    let mut bench = Bench::new();
    let id = connected_by_asking(&mut bench);
    let strangers = [CmPath::new(gid(1), gid(3)), CmPath::new(gid(3), gid(2))];
    for stranger in strangers {
        for message in [
            dreq(id, 0x90001),
            drep(id),
            rtu(id),
            CmMessage::Rep(rep(id)),
            rej(id, AnsweredMessage::Other, RejReason::CONSUMER_DEFINED),
            mra(id, AnsweredMessage::Req, 31),
        ] {
            assert_eq!(bench.hears_from(&stranger, message), Err(Ignored::OtherAddress));
        }
    }
    // Nor does the peer, about another connection of its own.
    let other = Dreq { local_comm_id: CommId(7), remote_comm_id: id, ..Dreq::default() };
    assert_eq!(bench.hears(CmMessage::Dreq(other)), Err(Ignored::OtherId));
    assert_eq!(bench.engine.state(id), Some(ConnState::Established));
    bench.is_quiet();
}

#[test]
fn messages_about_nothing_are_ignored() {
    let mut bench = Bench::new();
    let id = CommId(0x0900_0001);
    for message in [
        drep(id),
        rtu(id),
        rej(id, AnsweredMessage::Req, RejReason::CONSUMER_DEFINED),
        rej(CommId(0), AnsweredMessage::Req, RejReason::TIMEOUT),
        mra(id, AnsweredMessage::Req, 31),
        CmMessage::SidrRep(SidrRep { request_id: id, ..SidrRep::default() }),
        CmMessage::Lap(Lap { remote_comm_id: id, ..Lap::default() }),
    ] {
        assert_eq!(bench.hears(message), Err(Ignored::Unknown), "{message}");
    }
    assert!(matches!(
        bench.engine.handle_mad(bench.now, &bench.path, &[1; 255]),
        Err(Ignored::NotCm(NotCm::Malformed(_)))
    ));
    assert!(matches!(
        bench.engine.handle_mad(bench.now, &bench.path, &[0; 256]),
        Err(Ignored::NotCm(NotCm::Kind { .. }))
    ));
    bench.is_quiet();
    assert_eq!(bench.engine.sizes(), CmSizes::default());
    assert_eq!(bench.engine.counters().ignored, 9);
}

#[test]
fn destroying_tells_the_peer_what_it_needs_to_know() {
    let expected = |bench: &mut Bench, id, said: &str, state: Option<ConnState>| {
        bench.tells();
        bench.engine.destroy(bench.now, id);
        let all: Vec<String> = bench
            .says()
            .iter()
            .map(|message| {
                let text = message.to_string();
                let reason = match message {
                    CmMessage::Rej(rej) => format!(" {}", rej.reason.0),
                    _ => String::new(),
                };
                format!("{}{reason}", text.split(' ').next().unwrap())
            })
            .collect();
        assert_eq!(all.join(","), said);
        assert_eq!(bench.engine.state(id), state);
        bench.engine.destroy(bench.now, id);
        bench.is_quiet();
        while bench.engine.poll_timeout().is_some() {
            bench.waits();
        }
        assert_eq!(bench.tells(), []);
        bench.says();
        let CmSizes { connections, indices, timers, .. } = bench.engine.sizes();
        assert_eq!((connections, indices, timers), (0, 0, 0));
    };
    let fresh = || {
        let mut bench = Bench::new();
        listen(&mut bench);
        bench
    };
    let mut bench = fresh();
    let id = asks(&mut bench);
    expected(&mut bench, id, "REJ 4", None);

    let mut bench = fresh();
    let id = asks(&mut bench);
    bench.hears(CmMessage::Rep(rep(id))).unwrap();
    expected(&mut bench, id, "REJ 28", None);

    let mut bench = fresh();
    let id = ask(&mut bench, req());
    expected(&mut bench, id, "REJ 28", None);

    let mut bench = fresh();
    let id = ask(&mut bench, req());
    bench.engine.accept(bench.now, id, &accept_param(0x90001)).unwrap();
    bench.says();
    expected(&mut bench, id, "REJ 28", Some(ConnState::TimeWait));

    let mut bench = Bench::new();
    let id = connected_by_accepting(&mut bench);
    expected(&mut bench, id, "DREQ", Some(ConnState::DreqSent));

    let mut bench = Bench::new();
    let id = connected_by_accepting(&mut bench);
    bench.hears(dreq(id, 0x90001)).unwrap();
    expected(&mut bench, id, "DREP", Some(ConnState::TimeWait));

    let mut bench = Bench::new();
    let id = connected_by_asking(&mut bench);
    bench.engine.disconnect(bench.now, id, &[]).unwrap();
    bench.says();
    expected(&mut bench, id, "", Some(ConnState::DreqSent));

    let mut bench = Bench::new();
    let id = connected_by_asking(&mut bench);
    bench.hears(rej(id, AnsweredMessage::Other, RejReason::CONSUMER_DEFINED)).unwrap();
    expected(&mut bench, id, "", Some(ConnState::TimeWait));
}

#[test]
fn an_owner_that_has_left_is_not_waited_for_long() {
    let mut bench = Bench::new();
    let id = connected_by_asking(&mut bench);
    bench.engine.destroy(bench.now, id);
    let mut sent = bench.says().len();
    while bench.engine.state(id) == Some(ConnState::DreqSent) {
        bench.waits();
        sent += bench.says().len();
    }
    assert_eq!(sent, 4);
}

#[test]
fn a_request_that_is_destroyed_is_not_told_of_any_more() {
    let mut bench = Bench::new();
    listen(&mut bench);
    // The next id is the only one: the first of this seed, which the other bench shows.
    let id = asked(&mut Bench::new());
    bench.hears(CmMessage::Req(req())).unwrap();
    assert_eq!(bench.engine.state(id), Some(ConnState::ReqReceived));
    bench.engine.destroy(bench.now, id);
    assert_eq!(bench.tells(), []);
}

#[test]
fn looking_a_service_up() {
    let mut bench = Bench::new();
    let id = bench.engine.look_up(bench.now, &lookup_param(bench.path)).unwrap();
    let expected = SidrReq {
        request_id: id,
        pkey: PKey::DEFAULT,
        service_id: LOOKED_UP,
        ..SidrReq::default()
    };
    assert_eq!(bench.says_one(), CmMessage::SidrReq(expected));
    assert_eq!(bench.waits(), PATIENCE);
    assert_eq!(bench.says_one(), CmMessage::SidrReq(expected));
    let reply = SidrRep { request_id: id, qpn: Qpn::new(5), ..SidrRep::default() };
    let stranger = CmPath::new(gid(1), gid(3));
    let error = bench.hears_from(&stranger, CmMessage::SidrRep(reply)).unwrap_err();
    assert_eq!(error, Ignored::OtherAddress);
    bench.hears(CmMessage::SidrRep(reply)).unwrap();
    assert_eq!(
        bench.tells_one(),
        CmEvent::Found { id, reply: Box::new(reply), ece: Ece::default() }
    );
    assert_eq!(bench.hears(CmMessage::SidrRep(reply)), Err(Ignored::State(ConnState::Idle)));
    bench.engine.destroy(bench.now, id);
    bench.is_quiet();
    assert_eq!(bench.engine.sizes(), CmSizes::default());
}

#[test]
fn a_lookup_without_answer_is_given_up() {
    let mut bench = Bench::new();
    let id = bench.engine.look_up(bench.now, &lookup_param(bench.path)).unwrap();
    let mut sent = bench.says().len();
    while bench.engine.poll_timeout().is_some() {
        bench.waits();
        sent += bench.says().len();
    }
    assert_eq!(sent, 16);
    assert_eq!(bench.tells_one(), CmEvent::Unreachable { id });
}

#[test]
fn being_looked_up() {
    let mut bench = Bench::new();
    let ask = SidrReq { request_id: PEER_ID, service_id: LOOKED_UP, ..SidrReq::default() };
    bench.hears(CmMessage::SidrReq(ask)).unwrap();
    let CmMessage::SidrRep(refusal) = bench.says_one() else { panic!() };
    assert_eq!((refusal.status, refusal.request_id), (SidrStatus::UNSUPPORTED, PEER_ID));

    bench.engine.listen(LOOKED_UP, ListenOn::Any, ListenFor::Lookups, 1).unwrap();
    bench.hears(CmMessage::SidrReq(ask)).unwrap();
    let CmEvent::Lookup { id, request, .. } = bench.tells_one() else { panic!() };
    assert_eq!(*request, ask);
    assert_eq!(bench.hears(CmMessage::SidrReq(ask)), Err(Ignored::Known));
    let other = SidrReq { request_id: CommId(7), ..ask };
    assert_eq!(bench.hears(CmMessage::SidrReq(other)), Err(Ignored::BacklogFull));

    bench.engine.answer_lookup(bench.now, id, &lookup_answer(0x90001)).unwrap();
    let answer = bench.says_one();
    let CmMessage::SidrRep(sent) = answer else { panic!() };
    assert_eq!((sent.request_id, sent.service_id, sent.status.0), (PEER_ID, LOOKED_UP, 0));
    assert_eq!((sent.qpn, sent.qkey.get()), (Qpn::new(0x90001), 0x0123_4567));
    bench.hears(CmMessage::SidrReq(ask)).unwrap();
    assert_eq!(bench.says_one(), answer, "the answer was lost");
    let error = bench.engine.answer_lookup(bench.now, id, &lookup_answer(1)).unwrap_err();
    assert_eq!(error, CommandError::Unknown(id));

    bench.hears(CmMessage::SidrReq(other)).unwrap();
    let CmEvent::Lookup { id, .. } = bench.tells_one() else { panic!() };
    bench.engine.destroy(bench.now, id);
    assert!(matches!(bench.says_one(),
        CmMessage::SidrRep(rep) if rep.status == SidrStatus::REJECT));
    while bench.engine.poll_timeout().is_some() {
        bench.waits();
    }
    bench.is_quiet();
    assert_eq!(bench.engine.sizes(), CmSizes { listeners: 1, ..CmSizes::default() });
}

#[test]
fn connections_and_lookups_do_not_mix() {
    let mut bench = Bench::new();
    bench.engine.listen(LOOKED_UP, ListenOn::Any, ListenFor::Lookups, 1).unwrap();
    assert_eq!(refused(&mut bench, Req { service_id: LOOKED_UP, ..req() }).reason.0, 9);
    listen(&mut bench);
    let ask = SidrReq { request_id: PEER_ID, service_id: SERVICE, ..SidrReq::default() };
    bench.hears(CmMessage::SidrReq(ask)).unwrap();
    assert!(matches!(bench.says_one(),
        CmMessage::SidrRep(rep) if rep.status == SidrStatus::UNSUPPORTED));
}
