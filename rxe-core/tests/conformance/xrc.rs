//! Extended reliable connections: an initiator names a shared receive queue in each request, and
//! the target takes receives, protection domain and completion queue from there.

use std::sync::Arc;

use gid_table::Gid;
use rxe_core::pd::PdId;
use rxe_core::qp::{QpAttr, QpAttrMask, QpInit, QpState, QpType};
use rxe_core::srq::{SrqAttr, SrqInit, XrcSrq};
use rxe_core::wq::{PostRecvError, PostSendError, RecvWr, SendData, SendFlags, SendOp, SendWr};
use rxe_core::{
    AsyncEvent, CompletionQueue, Counter, CreateQpError, SharedReceiveQueue, SrqId, XrcDomain,
    errno,
};
use rxe_wire::NakCode;

use crate::script::*;

/// A script whose QP is an initiator in RTS.
fn initiator() -> Script {
    let mut s = Script::reset(|_| {});
    let init = QpInit::new(QpType::XrcSend, s.host.pd, &s.host.cq);
    s.host.qp = s.host.shard.create_qp(init).unwrap();
    go_on(&mut s);
    s
}

fn go_on(s: &mut Script) {
    s.enter_init();
    s.enter_rtr();
    s.enter_rts();
}

/// A target in RTS, with the domain it is in.
struct Target {
    s: Script,
    xrcd: Arc<XrcDomain>,
}

/// A shared receive queue of the domain, with its completion queue.
struct Inbox {
    srq: Arc<SharedReceiveQueue>,
    cq: Arc<CompletionQueue>,
}

impl Target {
    fn new() -> Self {
        let mut s = Script::reset(|_| {});
        let xrcd = s.host.device.open_xrcd().unwrap();
        s.host.qp = s.host.shard.create_qp(QpInit::xrc_recv(&xrcd)).unwrap();
        go_on(&mut s);
        Self { s, xrcd }
    }

    fn inbox(&self) -> Inbox {
        self.inbox_of(self.s.host.pd, &self.xrcd, 64)
    }

    fn inbox_of(&self, pd: PdId, xrcd: &Arc<XrcDomain>, entries: u32) -> Inbox {
        let device = &self.s.host.device;
        let cq = device.create_cq(entries, None).unwrap();
        let attr = SrqAttr { max_wr: 16, max_sge: 1, srq_limit: 0 };
        let xrc = Some(XrcSrq { xrcd: xrcd.clone(), cq: cq.clone() });
        Inbox { srq: device.create_srq(&SrqInit { pd, attr, xrc }).unwrap(), cq }
    }

    fn post(&self, inbox: &Inbox, wr_id: u64) {
        inbox.srq.post_recv(RecvWr { wr_id, sges: &[self.s.host.sge(INBOX, 600)] }).unwrap();
    }

    /// It is refused as invalid, and the target fails.
    fn refuses(&mut self, packet: &P, psn: i32) {
        let qpn = self.s.qpn();
        self.s.events([]).rx(packet).tx([nak(psn, INVALID, psn as u32).xrc()]);
        self.s.events([AsyncEvent::QpReqErr(qpn)]);
        assert_eq!(self.s.state(), QpState::Err);
    }
}

impl Inbox {
    fn number(&self) -> u32 {
        self.srq.id().0
    }

    /// The completions since last asked: request and status.
    fn done(&self) -> Vec<(u64, rxe_core::wc::WcStatus)> {
        let mut all = Vec::new();
        self.cq.poll(usize::MAX, &mut all);
        all.iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }
}

#[test]
fn every_request_packet_of_an_initiator_names_the_shared_queue() {
    let mut s = initiator();
    let data = s.mem(0, 600);
    let mut post = |wr_id, op, offset, len| {
        let sges = [s.host.sge(offset, len)];
        let (flags, data) = (SendFlags::SIGNALED, SendData::Sges(&sges));
        s.host.post_wr(&SendWr { wr_id, op, flags, data, srq_number: Some(SrqId(0x01_0203)) });
    };
    post(1, SendOp::Send { imm: None }, 0, 600);
    post(2, SendOp::Write { remote: far(0), imm: Some(7) }, 0, 4);
    post(3, SendOp::Read { remote: far(8) }, LANDING, 300);
    post(4, SendOp::FetchAdd { remote: far(8), add: 5 }, LANDING + 512, 8);
    let named = |packet: P| packet.xrc_to(0x01_0203);
    let sent = s.sent();
    assert_eq!(
        sent[..3],
        [
            named(send_first(0, &data[..256])),
            named(send_middle(1, &data[256..512])),
            named(send_last(2, &data[512..]).a()),
        ]
    );
    assert_eq!(sent[3], named(write_only_imm(3, far(0), &data[..4], 7).a()));
    assert_eq!(sent[4], named(read(4, far(8), 300)));
    assert_eq!(sent[5], named(faa(6, far(8), 5)));
    assert_eq!(sent.len(), 6);
    // What is answered names none.
    s.rx(&resp_first(4, 3, &[1; 256]).xrc()).rx(&resp_last(5, 3, &[2; 44]).xrc());
    s.rx(&atomic_ack(6, 4, 9).xrc());
    s.done([(1, Success), (2, Success), (3, Success), (4, Success)]);
    assert_eq!(s.mem(LANDING + 255, 2), [1, 2]);
}

#[test]
fn an_initiator_resends_and_fails_as_rc_does() {
    let mut s = initiator();
    let data = s.mem(0, 1);
    let sges = [s.host.sge(0, 1)];
    let (op, flags) = (SendOp::Send { imm: None }, SendFlags::SIGNALED);
    let wr = SendWr { wr_id: 1, op, flags, data: SendData::Sges(&sges), srq_number: None };
    assert_eq!(s.host.qp.post_send(&wr), Err(PostSendError::NoSrqNumber));
    s.host.post_wr(&SendWr { srq_number: Some(SrqId(5)), ..wr });
    let packet = send_only(0, &data).a().xrc_to(5);
    s.tx([packet.clone()]).rx(&rnr(0, 1, 0).xrc()).wait(10_000).tx([packet]);
    s.rx(&nak(0, INVALID, 0).xrc()).done([(1, RemInvReqErr)]);
    assert_eq!(s.state(), QpState::Err);
}

#[test]
fn a_message_goes_to_the_shared_queue_that_it_names() {
    let mut t = Target::new();
    let (one, two) = (t.inbox(), t.inbox());
    t.post(&one, 1);
    t.post(&one, 2);
    t.post(&two, 3);
    t.s.rx(&send_only(0, &[9]).a().xrc_to(two.number())).tx([ack(0, 1).xrc()]);
    assert_eq!((one.done(), two.done()), (vec![], vec![(3, Success)]));
    assert_eq!(t.s.mem(INBOX, 1), [9]);
    // A long one, and a WRITE with immediate.
    let name = |packet: P| packet.xrc_to(one.number());
    t.s.rx(&name(send_first(1, &[1; MTU]))).rx(&name(send_last(2, &[2, 3]).a()));
    let to = t.s.host.remote(0);
    t.s.rx(&name(write_only_imm(3, to, &[4], 5).a())).tx([ack(3, 3).xrc()]);
    let mut all = Vec::new();
    one.cq.poll(9, &mut all);
    let told: Vec<_> = all.iter().map(|wc| (wc.wr_id, wc.byte_len, wc.qpn)).collect();
    let qpn = t.s.qpn();
    assert_eq!(told, [(1, MTU as u32 + 2, qpn), (2, 1, qpn)]);
    // An empty queue is told by an RNR NAK, whatever the others have.
    t.post(&two, 4);
    t.s.rx(&name(send_only(4, &[]).a())).tx([rnr(4, 12, 3).xrc()]);
    t.post(&one, 5);
    t.s.rx(&name(send_only(4, &[]).a())).tx([ack(4, 4).xrc()]);
    assert_eq!((one.done(), two.done()), (vec![(5, Success)], vec![]));
    t.s.done([]);
}

#[test]
fn a_shared_queue_that_is_not_in_the_domain_is_an_invalid_request() {
    let other = Target::new();
    let mut t = Target::new();
    t.refuses(&send_only(0, &[]).a().xrc_to(0x77), 0);
    // One of another domain of the same device.
    let mut t = Target::new();
    let xrcd = t.s.host.device.open_xrcd().unwrap();
    let foreign = t.inbox_of(t.s.host.pd, &xrcd, 8);
    t.post(&foreign, 1);
    t.refuses(&send_only(0, &[]).a().xrc_to(foreign.number()), 0);
    assert_eq!(foreign.done(), []);
    // One without a domain.
    let mut t = Target::new();
    let attr = SrqAttr { max_wr: 1, max_sge: 1, srq_limit: 0 };
    let plain = t.s.host.device.create_srq(&SrqInit::new(t.s.host.pd, attr)).unwrap();
    t.refuses(&send_only(0, &[]).a().xrc_to(plain.id().0), 0);
    // One that is gone; also for what takes no receive.
    let mut t = Target::new();
    let gone = t.inbox();
    t.s.host.device.destroy_srq(&gone.srq).unwrap();
    let to = t.s.host.remote(0);
    t.refuses(&write_only(0, to, &[1]).a().xrc_to(gone.number()), 0);
    // Another one in the midst of a message.
    let mut t = Target::new();
    let (one, two) = (t.inbox(), t.inbox());
    t.post(&one, 1);
    t.post(&two, 2);
    t.s.rx(&send_first(0, &[1; MTU]).xrc_to(one.number()));
    t.s.rx(&send_last(1, &[1]).a().xrc_to(two.number())).tx([nak(1, INVALID, 0).xrc()]);
    assert_eq!((one.done(), two.done()), (vec![(1, RemInvReqErr)], vec![]));
    drop(other);
}

#[test]
fn memory_is_that_of_the_domain_of_the_shared_queue() {
    let mut t = Target::new();
    let inbox = t.inbox();
    let stranger = t.s.host.device.alloc_pd().unwrap();
    let other = t.inbox_of(stranger, &t.xrcd.clone(), 8);
    let (to, data) = (t.s.host.remote(0), t.s.mem(0, 300));
    let name = |packet: P| packet.xrc_to(inbox.number());
    t.s.rx(&name(write_only(0, t.s.host.remote(INBOX), &[7]).a())).tx([ack(0, 1).xrc()]);
    assert_eq!(t.s.mem(INBOX, 1), [7]);
    let asked = name(read(1, to, 300));
    let answer = || [resp_first(1, 2, &data[..256]).xrc(), resp_last(2, 2, &data[256..]).xrc()];
    t.s.rx(&asked).tx(answer());
    // R24: also when it is asked for again, and after a message to the other queue.
    other.srq.post_recv(RecvWr { wr_id: 1, sges: &[] }).unwrap();
    t.s.rx(&send_only(3, &[]).a().xrc_to(other.number())).tx([ack(3, 3).xrc()]);
    t.s.rx(&asked).tx(answer());
    // The same memory in the name of the other queue is out of reach.
    let refused = write_only(4, t.s.host.remote(INBOX), &[8]).a().xrc_to(other.number());
    t.s.rx(&refused).tx([nak(4, NakCode::RemoteAccessError, 3).xrc()]);
    assert_eq!(t.s.mem(INBOX, 1), [7]);
}

#[test]
fn r47_a_half_received_message_is_flushed_to_the_queue_of_its_receive() {
    let mut t = Target::new();
    let inbox = t.inbox();
    t.post(&inbox, 1);
    t.post(&inbox, 2);
    t.s.rx(&send_first(0, &[1; MTU]).xrc_to(inbox.number()));
    let attr = QpAttr { state: QpState::Err, ..t.s.attr };
    t.s.host.modify(attr, QpAttrMask::STATE);
    assert_eq!(inbox.done(), [(1, WrFlushErr)]);
    // The rest is for other targets.
    t.s.host.modify(QpAttr { state: QpState::Reset, ..t.s.attr }, QpAttrMask::STATE);
    go_on(&mut t.s);
    t.s.rx(&send_only(0, &[]).a().xrc_to(inbox.number())).tx([ack(0, 1).xrc()]);
    assert_eq!(inbox.done(), [(2, Success)]);
}

#[test]
fn r52_a_shared_queue_whose_completion_queue_is_full_fails_the_target() {
    let mut t = Target::new();
    let inbox = t.inbox_of(t.s.host.pd, &t.xrcd.clone(), 1);
    t.post(&inbox, 1);
    t.post(&inbox, 2);
    let name = |packet: P| packet.xrc_to(inbox.number());
    t.s.rx(&name(send_only(0, &[]).a())).tx([ack(0, 1).xrc()]);
    let refused = nak(1, NakCode::RemoteOperationalError, 1).xrc();
    t.s.rx(&name(send_only(1, &[]).a())).tx([refused]);
    let qpn = t.s.qpn();
    t.s.events([AsyncEvent::CqErr(inbox.cq.id()), AsyncEvent::QpFatal(qpn)]);
    assert_eq!(inbox.done(), [(1, Success)]);
}

#[test]
fn each_end_takes_its_half_of_the_packets() {
    let mut s = initiator();
    s.rx(&send_only(0, &[]).a().xrc_to(1)).quiet();
    assert_eq!(s.count(Counter::drop_wrong_service), 1);
    s.rx(&send_only(0, &[]).a()).quiet();
    assert_eq!(s.count(Counter::drop_wrong_service), 2, "RC");
    let mut t = Target::new();
    t.s.rx(&ack(0, 1).xrc()).rx(&send_only(0, &[]).a()).quiet();
    assert_eq!(t.s.count(Counter::drop_wrong_service), 2);
    assert_eq!(t.s.state(), QpState::Rts);
}

#[test]
fn what_an_end_does_not_have_is_refused() {
    let s = initiator();
    let error = s.host.qp.post_recv(RecvWr { wr_id: 1, sges: &[] }).unwrap_err();
    assert_eq!(error, PostRecvError::Unsupported { qp_type: QpType::XrcSend });
    let mut t = Target::new();
    let error = t.s.host.qp.post_recv(RecvWr { wr_id: 1, sges: &[] }).unwrap_err();
    assert_eq!(error.errno(), errno::EINVAL);
    let (op, flags, data) = (SendOp::Send { imm: None }, SendFlags::empty(), SendData::Sges(&[]));
    let wr = SendWr { wr_id: 1, op, flags, data, srq_number: Some(SrqId(1)) };
    let error = t.s.host.qp.post_send(&wr).unwrap_err();
    assert!(matches!(error, PostSendError::Unsupported { qp_type: QpType::XrcRecv, .. }));
    // What it needs must be there.
    let bare = QpInit { xrcd: None, ..QpInit::xrc_recv(&t.xrcd) };
    let (qp_type, what) = (QpType::XrcRecv, "xrcd");
    let error = t.s.host.shard.create_qp(bare).unwrap_err();
    assert_eq!(error, CreateQpError::Missing { qp_type, what });
    assert_eq!(error.errno(), errno::EINVAL);
    let init = QpInit { send_cq: None, ..QpInit::new(QpType::Rc, t.s.host.pd, &t.s.host.cq) };
    let error = t.s.host.shard.create_qp(init).unwrap_err();
    assert_eq!(error, CreateQpError::Missing { qp_type: QpType::Rc, what: "send_cq" });
    // A shared queue that messages name is no queue of a queue pair.
    let srq = t.inbox().srq;
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let init = QpInit::new(qp_type, t.s.host.pd, &t.s.host.cq);
        let init = QpInit { srq: Some(srq.clone()), ..init };
        let error = t.s.host.shard.create_qp(init).unwrap_err();
        assert_eq!(error, CreateQpError::XrcSrq { srq: srq.id().0 });
        assert_eq!((error.errno(), srq.users()), (errno::EINVAL, 0));
    }
    assert_eq!(t.s.host.qp.caps().max_send_wr, 0);
}

#[test]
fn a_domain_in_use_is_not_closed() {
    let t = Target::new();
    let inbox = t.inbox();
    let Target { s, xrcd } = t;
    let crate::common::Host { device, mut shard, qp, .. } = s.host;
    assert_eq!(device.close_xrcd(&xrcd).unwrap_err().users, 2);
    assert_eq!(device.destroy_cq(&inbox.cq).unwrap_err().errno(), errno::EBUSY);
    device.destroy_srq(&inbox.srq).unwrap();
    device.destroy_cq(&inbox.cq).unwrap();
    assert_eq!(device.close_xrcd(&xrcd).unwrap_err().errno(), errno::EBUSY);
    shard.destroy_qp(qp.qpn()).unwrap();
    drop(qp);
    assert_eq!(device.close_xrcd(&xrcd), Ok(()));
    // It has let go only once.
    drop(inbox);
    assert_eq!(xrcd.users(), 0);
}

#[test]
fn a_target_is_as_choosy_about_its_peer_as_any() {
    let mut t = Target::new();
    let inbox = t.inbox();
    t.post(&inbox, 1);
    t.s.path.source = Gid::from_ip([10, 0, 0, 77].into());
    t.s.rx(&send_only(0, &[]).a().xrc_to(inbox.number()));
    assert_eq!(t.s.count(Counter::drop_wrong_address), 1);
    assert_eq!(inbox.done(), []);
}
