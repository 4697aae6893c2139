//! Extended reliable connections over the loopback interface; thread domains and parent domains.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod common;

use common::*;
use ibverbs_api::*;

const ATTR: SrqAttr = SrqAttr { max_wr: 64, max_sge: 1, srq_limit: 0 };

/// A target with two shared receive queues, connected to an initiator.
struct Xrc {
    client: End,
    server: Context,
    pd: ProtectionDomain,
    xrcd: XrcDomain,
    target: QueuePair,
    inboxes: [(SharedReceiveQueue, CompletionQueue); 2],
}

fn xrc() -> Xrc {
    let (setup, context, server) = (Setup::default(), open(), open());
    let client_pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64, None, 0).unwrap();
    let qp = client_pd.create_qp(QpInit::new(QpType::XrcSend, &cq, &cq)).unwrap();
    let client = End { qp, cq, pd: client_pd, context };
    let pd = server.alloc_pd().unwrap();
    let xrcd = server.open_xrcd(0).unwrap();
    let inboxes = [0, 1].map(|_| {
        let cq = server.create_cq(64, None, 0).unwrap();
        (pd.create_xrc_srq(ATTR, &xrcd, &cq).unwrap(), cq)
    });
    let target = xrcd.create_qp().unwrap();
    connect(&setup, (&client.context, &client.qp), (&server, &target));
    Xrc { client, server, pd, xrcd, target, inboxes }
}

/// Posts a signaled request to a shared receive queue, and waits for it.
fn send(x: &Xrc, inbox: usize, op: SendOp, data: SendData<'_>) {
    let request = SendWr {
        srq_number: Some(x.inboxes[inbox].0.id()),
        ..wr(1, op, SendFlags::SIGNALED, data)
    };
    x.client.qp.post_send(&request).unwrap();
    x.client.done();
}

#[test]
fn one_connection_reaches_several_shared_queues() {
    let x = xrc();
    let buffer = x.pd.register(DmaBuf::zeroed(1 << 16), ALL).unwrap();
    let message = pattern(10_000, 7);
    let source = x.client.register(message.len());
    source.buffer().write_at(0, &message).unwrap();
    let sges = [source.sge(0..message.len())];
    for (round, inbox) in [1, 0, 0, 1].into_iter().enumerate() {
        let (srq, cq) = &x.inboxes[inbox];
        let at = round * 16_000;
        let wr_id = round as u64;
        srq.post_recv(RecvWr { wr_id, sges: &[buffer.sge(at..at + 16_000)] }).unwrap();
        send(&x, inbox, SEND, SendData::Sges(&sges));
        let completion = cq.wait_one(LONG).unwrap();
        assert_eq!((completion.wr_id, completion.status), (wr_id, WcStatus::Success));
        assert_eq!((completion.qpn, completion.byte_len), (x.target.qpn(), 10_000));
        assert_same(&read(buffer.buffer(), at, message.len()), &message, "a message");
    }
    // One-sided, by the protection domain of the shared queue.
    let remote = buffer.remote_addr(64_000);
    send(&x, 0, SendOp::Write { remote, imm: None }, SendData::Inline(b"xrc"));
    assert_eq!(read(buffer.buffer(), 64_000, 3), b"xrc");
    let landing = x.client.register(3);
    send(&x, 1, SendOp::Read { remote }, SendData::Sges(&[landing.sge(0..3)]));
    assert_eq!(read(landing.buffer(), 0, 3), b"xrc");
}

#[test]
fn a_shared_queue_that_is_not_there_fails_both_ends() {
    let x = xrc();
    let data = SendData::Inline(b"x");
    let request =
        SendWr { srq_number: Some(SrqId(0xff_fff0)), ..wr(1, SEND, SendFlags::SIGNALED, data) };
    x.client.qp.post_send(&request).unwrap();
    let completion = x.client.cq.wait_one(LONG).unwrap();
    assert_eq!(completion.status, WcStatus::RemInvReqErr);
    let qpn = x.target.qpn();
    assert_eq!(x.server.wait_event(LONG).unwrap(), AsyncEvent::QpReqErr(qpn));
    assert_eq!(x.target.state(), QpState::Err);
    // Each request must name one.
    let end = xrc();
    let error = end.client.qp.post_send(&wr(1, SEND, SendFlags::empty(), data)).unwrap_err();
    assert_eq!((error, error.errno()), (PostSendError::NoSrqNumber, 22));
}

#[test]
fn a_target_is_shared_by_its_number_and_lives_as_long_as_its_last_handle() {
    let x = xrc();
    let qpn = x.target.qpn();
    let shared = x.xrcd.open_qp(qpn).unwrap();
    assert_eq!((shared.qpn(), shared.qp_type()), (qpn, QpType::XrcRecv));
    let (srq, cq) = &x.inboxes[0];
    srq.post_recv(RecvWr { wr_id: 5, sges: &[] }).unwrap();
    let Xrc { client, server, pd, xrcd, target, inboxes } = &x;
    let _ = (client, server, pd, inboxes);
    assert_eq!(xrcd.open_qp(Qpn::new(qpn.get() ^ 1)).unwrap_err().errno(), 22);
    let stranger = server.open_xrcd(0).unwrap();
    assert!(stranger.open_qp(qpn).is_err(), "it is in another domain");
    assert_eq!(target.state(), QpState::Rts);
    send(&x, 0, SEND, SendData::Inline(b""));
    assert_eq!(cq.wait_one(LONG).unwrap().wr_id, 5);
    let Xrc { target, xrcd, inboxes, .. } = x;
    drop(target);
    assert_eq!(shared.state(), QpState::Rts);
    let xrcd = xrcd.close().unwrap_err().object;
    drop(shared);
    assert!(xrcd.open_qp(qpn).is_err());
    let xrcd = xrcd.close().unwrap_err().object;
    let [(srq, cq), other] = inboxes;
    let cq = cq.destroy().unwrap_err().object;
    srq.destroy().unwrap();
    cq.destroy().unwrap();
    drop(other);
    xrcd.close().unwrap();
}

#[test]
fn what_belongs_to_different_contexts_does_not_mix() {
    let (one, two) = (open(), open());
    let pd = one.alloc_pd().unwrap();
    let (xrcd, far) = (one.open_xrcd(0).unwrap(), two.open_xrcd(0).unwrap());
    let (cq, far_cq) = (one.create_cq(1, None, 0).unwrap(), two.create_cq(1, None, 0).unwrap());
    let refused = |xrcd, cq| pd.create_xrc_srq(ATTR, xrcd, cq).unwrap_err();
    assert_eq!(refused(&far, &cq), CreateXrcSrqError::OtherContext { which: "xrcd" });
    assert_eq!(refused(&xrcd, &far_cq), CreateXrcSrqError::OtherContext { which: "cq" });
    let bad = SrqAttr { max_wr: 0, ..ATTR };
    assert_eq!(pd.create_xrc_srq(bad, &xrcd, &cq).unwrap_err().errno(), 22);
    // Nothing of it stays.
    cq.destroy().unwrap();
    xrcd.close().unwrap();
    let error = pd.alloc_parent(Some(&two.alloc_td())).unwrap_err();
    assert_eq!(error.errno(), 22);
}

#[test]
fn a_parent_domain_is_the_domain_that_it_stands_for() {
    let setup = Setup::default();
    let context = open();
    let pd = context.alloc_pd().unwrap();
    let td = context.alloc_td();
    let parent = pd.alloc_parent(Some(&td)).unwrap();
    let cq = context.create_cq(8, None, 0).unwrap();
    let qp = parent.create_qp(QpInit::new(QpType::Rc, &cq, &cq)).unwrap();
    let far = End::new(&open(), &setup, None);
    connect(&setup, (&context, &qp), (&far.context, &far.qp));
    // Memory of the one, a queue pair of the other.
    let region = pd.register(DmaBuf::zeroed(8), ALL).unwrap();
    qp.post_recv(RecvWr { wr_id: 1, sges: &[region.sge(0..8)] }).unwrap();
    let data = SendData::Inline(b"parent");
    far.qp.post_send(&wr(1, SEND, SendFlags::SIGNALED, data)).unwrap();
    far.done();
    assert_eq!(cq.wait_one(LONG).unwrap().status, WcStatus::Success);
    assert_eq!(read(region.buffer(), 0, 6), b"parent");
    // Each is in use as long as what was made with it is there.
    drop(region);
    let parent = parent.dealloc().unwrap_err().object;
    let td = td.dealloc().unwrap_err().object;
    let pd = pd.dealloc().unwrap_err().object;
    drop(qp);
    parent.dealloc().unwrap();
    td.dealloc().unwrap();
    let error = pd.clone().dealloc().unwrap_err();
    assert_eq!(error.errno(), 16, "EBUSY");
    drop(error);
    pd.dealloc().unwrap();
}
