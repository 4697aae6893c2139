//! Shared receive queues over the loopback interface, and objects that are in use.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod common;

use common::*;
use ibverbs_api::*;

const ATTR: SrqAttr = SrqAttr { max_wr: 64, max_sge: 2, srq_limit: 0 };

fn srq_end(context: &Context, srq: &SharedReceiveQueue, pd: &ProtectionDomain) -> End {
    let cq = context.create_cq(256, None, 0).unwrap();
    let init = QpInit { srq: Some(srq.clone()), ..QpInit::new(QpType::Rc, &cq, &cq) };
    let qp = pd.create_qp(init).unwrap();
    End { qp, cq, pd: pd.clone(), context: context.clone() }
}

#[test]
fn two_queue_pairs_receive_from_one_queue() {
    let setup = Setup::default();
    let (context, far) = (open(), open());
    let pd = context.alloc_pd().unwrap();
    let srq = pd.create_srq(ATTR).unwrap();
    let ends = [srq_end(&context, &srq, &pd), srq_end(&context, &srq, &pd)];
    let senders = [End::new(&far, &setup, None), End::new(&far, &setup, None)];
    for (end, sender) in ends.iter().zip(&senders) {
        connect(&setup, (&end.context, &end.qp), (&sender.context, &sender.qp));
    }
    let buffer = pd.register(DmaBuf::zeroed(16 * 8), ALL).unwrap();
    let sges: Vec<_> = (0..16).map(|i| [buffer.sge(i * 8..i * 8 + 8)]).collect();
    let wrs: Vec<_> = (0..16).map(|i| RecvWr { wr_id: i, sges: &sges[i as usize] }).collect();
    srq.post_recv_list(&wrs).unwrap();
    srq.modify(&SrqAttr { srq_limit: 4, ..ATTR }, SrqAttrMask::LIMIT).unwrap();
    for round in 0..8_u64 {
        for (i, (end, sender)) in ends.iter().zip(&senders).enumerate() {
            let message = (round * 2 + i as u64).to_le_bytes();
            let data = SendData::Inline(&message);
            sender.qp.post_send(&wr(round, SEND, SendFlags::SIGNALED, data)).unwrap();
            sender.done();
            let received = end.done();
            assert_eq!((received.wr_id, received.qpn), (round * 2 + i as u64, end.qp.qpn()));
            let at = received.wr_id as usize * 8;
            assert_eq!(read(buffer.buffer(), at, 8), message);
        }
    }
    let events: Vec<_> = std::iter::from_fn(|| context.take_event()).collect();
    let limit = AsyncEvent::SrqLimitReached(srq.id());
    assert_eq!(events.iter().filter(|&&event| event == limit).count(), 1, "R48: {events:?}");
}

#[test]
fn r46_a_failed_queue_pair_tells_that_it_takes_no_more() {
    let (context, setup) = (open(), Setup::default());
    let pd = context.alloc_pd().unwrap();
    let srq = pd.create_srq(ATTR).unwrap();
    let end = srq_end(&context, &srq, &pd);
    let far = End::new(&open(), &setup, None);
    connect(&setup, (&end.context, &end.qp), (&far.context, &far.qp));
    let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
    end.qp.modify(&error, QpAttrMask::STATE).unwrap();
    let event = context.wait_event(LONG).unwrap();
    assert_eq!(event, AsyncEvent::QpLastWqeReached(end.qp.qpn()));
}

#[test]
fn the_bad_receive_of_a_list_is_named_and_those_before_it_are_posted() {
    let pd = open().alloc_pd().unwrap();
    let srq = pd.create_srq(SrqAttr { max_wr: 2, ..ATTR }).unwrap();
    let error = srq.post_recv_list(&[RecvWr { wr_id: 0, sges: &[] }; 3]).unwrap_err();
    assert_eq!((error.index, error.errno()), (2, 12), "ENOMEM");
    let error = srq.post_recv(RecvWr { wr_id: 0, sges: &[] }).unwrap_err();
    assert_eq!(error, PostRecvError::Full { max: 2 });
    let resized = srq.modify(&SrqAttr { max_wr: 3, ..ATTR }, SrqAttrMask::MAX_WR).unwrap();
    assert_eq!((resized.max_wr, srq.query()), (3, resized));
    srq.post_recv(RecvWr { wr_id: 0, sges: &[] }).unwrap();
}

#[test]
fn r50_what_is_in_use_is_not_destroyed() {
    let context = open();
    let pd = context.alloc_pd().unwrap();
    let srq = pd.create_srq(ATTR).unwrap();
    let End { qp, cq, .. } = srq_end(&context, &srq, &pd);
    let busy = srq.destroy().unwrap_err();
    assert_eq!(busy.errno(), 16, "EBUSY");
    let srq = busy.object;
    let busy = cq.destroy().unwrap_err();
    assert_eq!(busy.to_string().split(':').next(), Some("the completion queue is in use"));
    let cq = busy.object;
    let mr = pd.register(DmaBuf::zeroed(8), ALL).unwrap();
    let pd = pd.dealloc().unwrap_err().object;
    drop(qp);
    cq.destroy().unwrap();
    let pd = pd.dealloc().unwrap_err().object;
    srq.destroy().unwrap();
    let pd = pd.dealloc().unwrap_err().object;
    drop(mr);
    pd.dealloc().unwrap();
}

#[test]
fn a_shared_queue_of_another_context_is_refused() {
    let (context, other) = (open(), open());
    let srq = other.alloc_pd().unwrap().create_srq(ATTR).unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(1, None, 0).unwrap();
    let init = QpInit { srq: Some(srq), ..QpInit::new(QpType::Rc, &cq, &cq) };
    assert_eq!(pd.create_qp(init).unwrap_err(), CreateQpError::OtherContext { which: "srq" });
}
