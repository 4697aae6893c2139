//! Completion queues: resizing, overflow, and events that lag.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rxe_core::cq::{Moderation, Notify, ResizeCqError};
use rxe_core::qp::{QpAttr, QpAttrMask, QpCaps, QpInit, QpState, QpType};
use rxe_core::{AsyncEvent, CompletionChannel, CompletionQueue, CqId, errno};
use rxe_wire::NakCode;

use crate::script::*;

#[derive(Default)]
struct Told(AtomicU32);

impl Notify for Told {
    fn notify(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A script whose QP sends and receives into a queue of `entries` with a channel.
fn script(entries: u32) -> (Script, Arc<CompletionChannel>) {
    let mut s = Script::reset(|_| {});
    let channel = Arc::new(CompletionChannel::new(Arc::new(Told::default())));
    let cq = s.host.device.create_cq(entries, Some(channel.clone())).unwrap();
    let recv_cq = cq.clone();
    connect(&mut s, cq, recv_cq);
    (s, channel)
}

fn connect(s: &mut Script, send_cq: Arc<CompletionQueue>, recv_cq: Arc<CompletionQueue>) {
    let caps = QpCaps { max_send_wr: 64, ..QpCaps::default() };
    let init =
        QpInit { caps, send_cq: Some(send_cq), ..QpInit::new(QpType::Rc, s.host.pd, &recv_cq) };
    s.host.qp = s.host.shard.create_qp(init).unwrap();
    s.host.cq = recv_cq;
    s.enter_init();
    s.enter_rtr();
    s.enter_rts();
}

/// Posts receives of 8 bytes with these numbers.
fn recvs(s: &mut Script, ids: std::ops::RangeInclusive<u64>) {
    ids.for_each(|id| {
        s.recv(id, 8);
    });
}

/// The next messages come in, from this PSN on.
fn messages(s: &mut Script, psns: std::ops::Range<i32>) {
    psns.for_each(|psn| {
        s.rx(&send_only(psn, &[]));
    });
}

fn taken(channel: &CompletionChannel) -> Vec<CqId> {
    std::iter::from_fn(|| channel.take()).collect()
}

#[test]
fn r52_resizing_keeps_all_completions() {
    let (mut s, _) = script(4);
    let cq = s.host.cq.clone();
    recvs(&mut s, 1..=7);
    messages(&mut s, 0..4);
    assert_eq!((cq.resize(6), cq.capacity()), (Ok(6), 6));
    messages(&mut s, 4..6);
    assert_eq!(cq.resize(5), Err(ResizeCqError::BelowWaiting { entries: 5, waiting: 6 }));
    assert_eq!(cq.capacity(), 6, "as before");
    s.events([]).done([
        (1, Success),
        (2, Success),
        (3, Success),
        (4, Success),
        (5, Success),
        (6, Success),
    ]);
    assert_eq!(cq.resize(1), Ok(1));
    messages(&mut s, 6..7);
    s.events([]).done([(7, Success)]);
    for entries in [0, (1 << 22) + 1] {
        let error = cq.resize(entries).unwrap_err();
        assert_eq!(error, ResizeCqError::Entries { entries, max: 1 << 22 });
        assert_eq!(error.errno(), errno::EINVAL);
    }
}

#[test]
fn r52_an_overflow_fails_the_queue_and_the_queue_pair() {
    let (mut s, _) = script(2);
    let (id, qpn) = (s.host.cq.id(), s.qpn());
    recvs(&mut s, 1..=4);
    s.rx(&send_only(0, &[]).a()).rx(&send_only(1, &[]).a()).tx([ack(1, 2)]).events([]);
    // The sender is not told that a message has arrived whose completion is lost.
    s.rx(&send_only(2, &[]).a()).tx([nak(2, NakCode::RemoteOperationalError, 2)]);
    assert_eq!(s.state(), QpState::Err);
    s.events([AsyncEvent::CqErr(id), AsyncEvent::QpFatal(qpn)]);
    // What is there can be polled. Nothing follows the gap.
    s.done([(1, Success), (2, Success)]);
    s.host.modify(QpAttr { state: QpState::Reset, ..s.attr }, QpAttrMask::STATE);
    s.enter_init();
    s.enter_rtr();
    s.enter_rts();
    recvs(&mut s, 5..=5);
    s.rx(&write_only(0, s.host.remote(0), &[1]).a()).tx([ack(0, 1)]);
    s.rx(&send_only(1, &[]).a()).tx([nak(1, NakCode::RemoteOperationalError, 1)]);
    s.done([]).events([AsyncEvent::QpFatal(qpn)]);
    assert_eq!(s.host.cq.resize(10), Err(ResizeCqError::Overflowed));
}

#[test]
fn r52_a_write_with_immediate_that_overflows_is_refused_too() {
    let (mut s, _) = script(1);
    recvs(&mut s, 1..=2);
    let to = s.host.remote(0);
    s.rx(&write_only_imm(0, to, &[1], 5).a()).tx([ack(0, 1)]);
    s.rx(&write_only_imm(1, to, &[2], 5).a()).tx([nak(1, NakCode::RemoteOperationalError, 1)]);
    s.done([(1, Success)]);
}

#[test]
fn r52_a_send_queue_that_overflows_fails_and_the_other_queue_is_flushed() {
    let mut s = Script::reset(|_| {});
    let send_cq = s.host.device.create_cq(1, None).unwrap();
    let recv_cq = s.host.cq.clone();
    connect(&mut s, send_cq.clone(), recv_cq);
    s.recv(10, 8).write(1, 1).write(2, 1).write(3, 1).sent();
    s.rx(&ack(2, 3)).quiet();
    let mut sends = Vec::new();
    assert_eq!(send_cq.poll(10, &mut sends), 1);
    assert_eq!((sends[0].wr_id, sends[0].status), (1, Success));
    assert_eq!(s.state(), QpState::Err);
    let qpn = s.qpn();
    s.done([(10, WrFlushErr)]);
    s.events([AsyncEvent::CqErr(send_cq.id()), AsyncEvent::QpFatal(qpn)]);
}

#[test]
fn r52_a_flush_that_overflows_is_told_once() {
    let (mut s, _) = script(2);
    let id = s.host.cq.id();
    recvs(&mut s, 1..=4);
    s.host.modify(QpAttr { state: QpState::Err, ..s.attr }, QpAttrMask::STATE);
    s.events([AsyncEvent::CqErr(id)]).done([(1, WrFlushErr), (2, WrFlushErr)]);
    recvs(&mut s, 5..=5);
    s.events([]).done([]);
}

#[test]
fn r52_an_overflow_fails_an_unreliable_queue_pair_too() {
    let mut s = Script::of_type(QpType::Uc, |_| {});
    let cq = s.host.device.create_cq(1, None).unwrap();
    s.host.qp = s.host.shard.create_qp(QpInit::new(QpType::Uc, s.host.pd, &cq)).unwrap();
    s.host.cq = cq;
    s.enter_init();
    s.enter_rtr();
    recvs(&mut s, 1..=2);
    s.rx(&send_only(0, &[]).uc());
    let (id, qpn) = (s.host.cq.id(), s.qpn());
    s.events([AsyncEvent::CommEst(qpn)]);
    s.rx(&send_only(1, &[]).uc()).quiet();
    s.events([AsyncEvent::CqErr(id), AsyncEvent::QpFatal(qpn)]).done([(1, Success)]);
    assert_eq!(s.state(), QpState::Err);
}

const MODERATION: Moderation = Moderation { count: 3, period_us: 100 };
const US: u64 = 1000;

#[test]
fn a_moderated_event_comes_with_the_count() {
    let (mut s, channel) = script(64);
    let (cq, id) = (s.host.cq.clone(), s.host.cq.id());
    cq.moderate(MODERATION);
    assert_eq!(cq.moderation(), MODERATION);
    recvs(&mut s, 1..=10);
    // Those that came unasked do not count.
    messages(&mut s, 0..2);
    cq.req_notify(false);
    messages(&mut s, 2..4);
    assert_eq!(taken(&channel), []);
    messages(&mut s, 4..6);
    assert_eq!(taken(&channel), [id], "with the third, once");
    // Its period is over: nothing is left to tell.
    s.wait(200 * US);
    assert_eq!(taken(&channel), []);
    assert_eq!(s.host.shard.poll_timeout(), None);
}

#[test]
fn a_moderated_event_comes_after_the_period() {
    let (mut s, channel) = script(64);
    let (cq, id) = (s.host.cq.clone(), s.host.cq.id());
    cq.moderate(MODERATION);
    recvs(&mut s, 1..=10);
    cq.req_notify(false);
    let start = s.host.now;
    messages(&mut s, 0..1);
    assert_eq!(s.host.shard.poll_timeout(), Some(start.plus_nanos(100 * US)));
    s.wait(60 * US);
    messages(&mut s, 1..2);
    s.wait(39 * US);
    assert_eq!(taken(&channel), []);
    s.wait(US);
    assert_eq!(taken(&channel), [id], "counted from the first");
    s.wait(1000 * US);
    messages(&mut s, 2..3);
    assert_eq!(taken(&channel), [], "nobody asked again");
    // A count that is reached ends one period; the next begins with the next completion.
    cq.req_notify(false);
    messages(&mut s, 3..4);
    s.wait(50 * US);
    messages(&mut s, 4..6);
    assert_eq!(taken(&channel), [id]);
    cq.req_notify(false);
    messages(&mut s, 6..7);
    s.wait(99 * US);
    assert_eq!(taken(&channel), []);
    s.wait(US);
    assert_eq!(taken(&channel), [id]);
    assert_eq!(s.host.shard.poll_timeout(), None);
}

#[test]
fn a_flush_is_moderated_too_and_ends() {
    let (mut s, channel) = script(64);
    let (cq, id) = (s.host.cq.clone(), s.host.cq.id());
    cq.moderate(MODERATION);
    cq.req_notify(true);
    s.send(1, 8).send(2, 8);
    // The memory is gone: the first request fails while its packet is built.
    s.host.device.memory().deregister(s.host.keys).unwrap();
    s.quiet();
    assert_eq!(taken(&channel), []);
    s.wait(100 * US);
    assert_eq!(taken(&channel), [id]);
    s.done([(1, LocProtErr), (2, WrFlushErr)]);
}

#[test]
fn moderation_that_changes_lets_no_event_wait() {
    let (mut s, channel) = script(64);
    let (cq, id) = (s.host.cq.clone(), s.host.cq.id());
    // Without a period the count alone ends the lag.
    cq.moderate(Moderation { count: 3, period_us: 0 });
    recvs(&mut s, 1..=10);
    cq.req_notify(false);
    messages(&mut s, 0..1);
    s.wait(10 * MS);
    assert_eq!(taken(&channel), []);
    cq.moderate(Moderation::default());
    assert_eq!(taken(&channel), [id]);
    cq.req_notify(false);
    messages(&mut s, 1..2);
    assert_eq!(taken(&channel), [id], "at once");
}

#[test]
fn one_channel_for_several_queues_and_events_are_acknowledged() {
    let (mut s, channel) = script(64);
    let one = s.host.cq.clone();
    let two = s.host.device.create_cq(8, Some(channel.clone())).unwrap();
    let first = s.host.qp.clone();
    connect(&mut s, two.clone(), two.clone());
    s.recv(1, 8);
    one.req_notify(false);
    two.req_notify(false);
    s.rx(&send_only(0, &[]));
    s.host.qp = first;
    s.recv(2, 8).rx(&send_only(0, &[]));
    assert_eq!((one.unacknowledged_events(), two.unacknowledged_events()), (0, 0));
    assert_eq!(taken(&channel), [two.id(), one.id()]);
    assert_eq!((one.unacknowledged_events(), two.unacknowledged_events()), (1, 1));
    two.ack_events(1);
    assert_eq!((one.unacknowledged_events(), two.unacknowledged_events()), (1, 0));
    two.ack_events(5);
    assert_eq!(two.unacknowledged_events(), 0, "more than there were");
}
