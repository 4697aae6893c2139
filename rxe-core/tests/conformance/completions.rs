//! Completion queues, and the channels that tell of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rxe_core::cq::CreateCqError;
use rxe_core::qp::{QpCaps, QpInit, QpType};
use rxe_core::{CompletionChannel, CompletionQueue, CreateQpError, Notify, errno};

use crate::script::*;

/// Counts how often it was told.
#[derive(Default)]
struct Told(AtomicU32);

impl Notify for Told {
    fn notify(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn init(s: &Script, cq: &Arc<CompletionQueue>, caps: QpCaps) -> QpInit {
    QpInit { caps, ..QpInit::new(QpType::Rc, s.host.pd, cq) }
}

/// A script whose QP completes to a queue of `entries` with a channel.
fn script(entries: u32) -> (Script, Arc<CompletionChannel>, Arc<Told>) {
    let mut s = Script::reset(|_| {});
    let told = Arc::new(Told::default());
    let channel = Arc::new(CompletionChannel::new(told.clone()));
    let cq = s.host.device.create_cq(entries, Some(channel.clone())).unwrap();
    let qp = s.host.shard.create_qp(init(&s, &cq, QpCaps::default())).unwrap();
    (s.host.cq, s.host.qp) = (cq, qp);
    s.enter_init();
    s.enter_rtr();
    s.enter_rts();
    (s, channel, told)
}

#[test]
fn r51_one_event_for_each_time_of_asking() {
    let (mut s, channel, told) = script(64);
    let id = s.host.cq.id();
    s.recv(1, 8).recv(2, 8).recv(3, 8);
    s.rx(&send_only(0, &[]));
    assert_eq!(channel.take(), None, "nobody asked");
    // What is there already raises none: whoever asks polls once more.
    s.host.cq.req_notify(false);
    assert_eq!(channel.take(), None);
    s.done([(1, Success)]);
    s.rx(&send_only(1, &[])).rx(&send_only(2, &[]));
    assert_eq!((channel.take(), channel.take()), (Some(id), None));
    assert_eq!(told.0.load(Ordering::Relaxed), 1);
    s.done([(2, Success), (3, Success)]);
}

#[test]
fn solicited_events_are_for_solicited_and_failed_completions() {
    let (mut s, channel, _) = script(64);
    s.recv(1, 8).recv(2, 8).recv(3, 8).recv(4, 8);
    s.host.cq.req_notify(true);
    s.rx(&send_only(0, &[]));
    s.send(9, 1).sent();
    s.rx(&ack(0, 1));
    assert_eq!(channel.take(), None);
    s.rx(&send_only(1, &[]).se());
    assert!(channel.take().is_some());
    s.host.cq.req_notify(true);
    s.rx(&send_only(2, &[0; 9]));
    assert!(channel.take().is_some(), "it failed: too long for the receive");
    // Any completion is more than solicited ones, in whatever order they are asked for.
    let (mut s, channel, _) = script(64);
    s.recv(1, 8);
    s.host.cq.req_notify(false);
    s.host.cq.req_notify(true);
    s.rx(&send_only(0, &[]));
    assert!(channel.take().is_some());
}

#[test]
fn objects_that_cannot_be_made_are_refused() {
    let mut s = Script::reset(|_| {});
    let error = s.host.device.create_cq(0, None).unwrap_err();
    assert_eq!(error, CreateCqError::Entries { entries: 0, max: 1 << 22 });
    assert_eq!(error.errno(), errno::EINVAL);
    let cq = s.host.cq.clone();
    let users = cq.users();
    let bare = QpInit { qp_type: QpType::XrcRecv, ..init(&s, &cq, QpCaps::default()) };
    let error = s.host.shard.create_qp(bare).unwrap_err();
    assert_eq!(error, CreateQpError::Missing { qp_type: QpType::XrcRecv, what: "xrcd" });
    assert_eq!(error.errno(), errno::EINVAL);
    let caps = QpCaps { max_send_sge: 33, ..QpCaps::default() };
    let many = init(&s, &cq, caps);
    let error = s.host.shard.create_qp(many).unwrap_err();
    assert_eq!(error, CreateQpError::Capacity { what: "max_send_sge", asked: 33, max: 32 });
    assert_eq!(error.errno(), errno::EINVAL);
    // R55: nothing half-made is left.
    assert_eq!(cq.users(), users);
}
