//! Identifiers end: what of them waits ends with them, and nothing is told of them any more.

#![allow(clippy::unwrap_used)]

mod ends;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use ends::*;
use ibverbs_api::{QpInit, QpType, SendOp, SrqAttr};
use rdma_cm::{CmId, ConnParam, EventChannel, EventParam, EventType, PortSpace, Verdict};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

fn is_readable(channel: &EventChannel) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(channel, PollFlags::IN)], Some(&now)).unwrap() > 0
}

#[test]
fn who_is_dropped_while_events_wait_is_gone_all_the_same() {
    let (channel, id, port) = listener(PortSpace::Tcp);
    let (_client_channel, client) = resolved(PortSpace::Tcp, port);
    let _end = End::new(&client, QpType::Rc);
    client.connect(&ConnParam::default()).unwrap();
    let start = Instant::now();
    while !is_readable(&channel) {
        assert!(start.elapsed() < SOON, "no request");
    }
    drop(id);
    assert!(!is_readable(&channel), "the request went with its listener");
    assert!(channel.take().is_none());
    let again = CmId::create(&channel, PortSpace::Tcp);
    again.bind_addr(lo(port)).unwrap();
    again.listen(0).unwrap();
}

#[test]
fn a_channel_that_is_dropped_lets_go_of_its_identifiers() {
    let (_channel, _listener, port) = listener(PortSpace::Tcp);
    let (channel, client) = resolved(PortSpace::Tcp, port);
    let end = End::new(&client, QpType::Rc);
    client.disconnect().unwrap_err();
    client.connect(&ConnParam::default()).unwrap();
    let weak = Arc::downgrade(&end.qp);
    drop((channel, client, end));
    assert!(weak.upgrade().is_none(), "the identifier has kept its queue pair");
}

#[test]
fn a_handler_is_not_called_once_its_identifier_is_destroyed() {
    let calls = Arc::new(AtomicUsize::new(0));
    let of_handler = calls.clone();
    let id = CmId::create_with_handler(PortSpace::Tcp, move |_| {
        of_handler.fetch_add(1, Ordering::SeqCst);
        Verdict::Keep
    })
    .unwrap();
    let lock = id.lock_handler();
    id.resolve_addr(None, lo(1)).unwrap();
    // The thread of handlers has the event now, and waits for the lock with it.
    std::thread::sleep(Duration::from_millis(100));
    id.destroy();
    drop(lock);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

#[test]
fn a_port_is_free_as_soon_as_its_listener_is_gone() {
    let (channel, first, port) = listener(PortSpace::Tcp);
    first.destroy();
    for round in 0..100 {
        let id = CmId::create(&channel, PortSpace::Tcp);
        id.bind_addr(lo(port)).unwrap();
        id.listen(0).unwrap_or_else(|error| panic!("round {round}: {error}"));
        id.destroy();
    }
}

#[test]
fn a_shared_receive_queue_is_told_of_without_asking() {
    let (server_channel, _listener, port) = listener(PortSpace::Tcp);
    let (_channel, id) = resolved(PortSpace::Tcp, port);
    let context = id.verbs().unwrap();
    let cq = context.create_cq(16, None, 0).unwrap();
    let pd = context.alloc_pd().unwrap();
    let srq = pd.create_srq(SrqAttr { max_wr: 4, max_sge: 1, srq_limit: 0 }).unwrap();
    let mut init = QpInit::new(QpType::Rc, &cq, &cq);
    init.srq = Some(srq);
    id.create_qp(Some(&pd), init).unwrap();
    id.connect(&ConnParam::default()).unwrap();
    let request = expect(&server_channel, EventType::ConnectRequest);
    let EventParam::Conn(asked) = request.param() else { panic!("{request:?}") };
    assert!(asked.srq);
}

#[test]
fn data_makes_the_connection_where_the_last_message_is_lost() {
    let (server_channel, _listener, port) = listener(PortSpace::Tcp);
    let (channel, id) = resolved(PortSpace::Tcp, port);
    let (sender, (_server, end)) = connect_by_hand(&id, &channel, &server_channel);
    assert!(server_channel.wait(Duration::from_millis(50)).unwrap().is_none());
    // No `establish`: as if the RTU were lost. The REP would come again after 5 seconds.
    let start = Instant::now();
    sender.post(SendOp::Send { imm: None }, b"early");
    assert_eq!(end.received(), b"early");
    expect(&server_channel, EventType::Established);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[test]
fn an_identifier_can_be_destroyed_in_each_state() {
    let (server_channel, _listener, port) = listener(PortSpace::Tcp);
    let (done, ends) = mpsc::channel();
    // Until which step a connection is made, before one side is destroyed.
    for (step, is_client) in (0..8).flat_map(|step| [(step, true), (step, false)]) {
        let channel = EventChannel::new().unwrap();
        let id = CmId::create(&channel, PortSpace::Tcp);
        let server = go(&channel, &id, &server_channel, port, step);
        let gone = if is_client { Some(id.clone()) } else { server.clone() };
        let Some(gone) = gone else { continue };
        gone.destroy();
        assert!(gone.connect(&ConnParam::default()).is_err());
        assert!(gone.accept(&ConnParam::default()).is_err());
        assert!(gone.listen(0).is_err());
        done.send((step, is_client)).unwrap();
        id.destroy();
        if let Some(server) = server {
            server.destroy();
        }
        while server_channel.take().is_some() {}
    }
    drop(done);
    assert_eq!(ends.iter().count(), 12, "8 of the client, 4 of the server");
}

/// The request of an identifier; those of earlier ones may come before.
fn request_of(id: &CmId, channel: &EventChannel) -> CmId {
    loop {
        let event = channel.wait(SOON).unwrap().unwrap();
        let is_request = event.event() == EventType::ConnectRequest;
        if is_request && event.id().peer_addr() == id.local_addr() {
            return event.id().clone();
        }
    }
}

/// Makes a connection up to a step; gives the server's end, if there is one.
fn go(
    channel: &EventChannel,
    id: &CmId,
    server_channel: &EventChannel,
    port: u16,
    step: usize,
) -> Option<CmId> {
    if step == 0 {
        return None;
    }
    id.resolve_addr(None, lo(port)).unwrap();
    expect(channel, EventType::AddrResolved);
    if step == 1 {
        return None;
    }
    id.resolve_route().unwrap();
    expect(channel, EventType::RouteResolved);
    if step == 2 {
        return None;
    }
    End::new(id, QpType::Rc);
    id.connect(&ConnParam::default()).unwrap();
    if step == 3 {
        return None;
    }
    let server = request_of(id, server_channel);
    if step == 4 {
        return Some(server);
    }
    End::new(&server, QpType::Rc);
    server.accept(&ConnParam::default()).unwrap();
    if step == 5 {
        return Some(server);
    }
    expect(channel, EventType::Established);
    expect(server_channel, EventType::Established);
    if step == 6 {
        return Some(server);
    }
    id.disconnect().unwrap();
    expect(server_channel, EventType::Disconnected);
    Some(server)
}

#[test]
fn a_handler_that_sleeps_holds_up_nobody_else() {
    let (told, events) = mpsc::channel();
    let (go_on, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let first_told = told.clone();
    let sleeper = CmId::create_with_handler(PortSpace::Tcp, move |event| {
        first_told.send(("sleeper", event.event())).unwrap();
        wait.lock().unwrap().recv().unwrap();
        Verdict::Keep
    })
    .unwrap();
    let other = CmId::create_with_handler(PortSpace::Tcp, move |event| {
        told.send(("other", event.event())).unwrap();
        Verdict::Keep
    })
    .unwrap();
    let next = || events.recv_timeout(SOON).unwrap();
    sleeper.resolve_addr(None, lo(1)).unwrap();
    assert_eq!(next(), ("sleeper", EventType::AddrResolved));
    sleeper.resolve_route().unwrap();
    other.resolve_addr(None, lo(1)).unwrap();
    assert_eq!(next(), ("other", EventType::AddrResolved));
    // Its own next event waits for it.
    assert!(events.recv_timeout(Duration::from_millis(50)).is_err());
    go_on.send(()).unwrap();
    assert_eq!(next(), ("sleeper", EventType::RouteResolved));
    go_on.send(()).unwrap();
}
