//! Where things end: full backlogs, too much private data, listeners that go while requests wait.

#![allow(clippy::unwrap_used)]

mod ends;

use std::time::{Duration, Instant};

use ends::*;
use ibverbs_api::QpType;
use rdma_cm::{BindError, CmId, ConnParam, EventChannel, EventType, IdError, PortSpace, RejReason};

/// One whose request is out, and comes again soon.
fn connecting(port: u16) -> (EventChannel, CmId, End) {
    let (channel, id) = resolved(PortSpace::Tcp, port);
    let end = End::new(&id, QpType::Rc);
    id.set_ack_timeout(10);
    id.set_patience(12, 15);
    id.connect(&ConnParam::default()).unwrap();
    (channel, id, end)
}

#[test]
fn too_much_private_data_is_refused() {
    let (server_channel, _listener, port) = listener(PortSpace::Tcp);
    let param = |length| ConnParam { private_data: vec![1; length], ..ConnParam::default() };
    let (_channel, id) = resolved(PortSpace::Tcp, port);
    let _end = End::new(&id, QpType::Rc);
    let error = id.connect(&param(57)).unwrap_err();
    assert!(matches!(error, IdError::PrivateData(_)), "{error}");
    assert_eq!(error.errno(), 22);
    // It can be tried again with less.
    id.connect(&param(56)).unwrap();
    let request = expect(&server_channel, EventType::ConnectRequest);
    assert_eq!(request.private_data(), [1; 56]);
    let server = request.id().clone();
    let _server_end = End::new(&server, QpType::Rc);
    assert_eq!(server.reject(&[0; 149], RejReason::CONSUMER_DEFINED).unwrap_err().errno(), 22);
    server.accept(&param(196)).unwrap();
    let (_channel, id) = resolved(PortSpace::Udp, port);
    assert_eq!(id.connect(&param(181)).unwrap_err().errno(), 22);
}

#[test]
fn more_requests_than_the_backlog_wait_outside() {
    let channel = EventChannel::new().unwrap();
    let listener = CmId::create(&channel, PortSpace::Tcp);
    listener.bind_addr(lo(0)).unwrap();
    listener.listen(2).unwrap();
    let port = listener.local_addr().unwrap().port();
    let clients: Vec<_> = (0..3).map(|_| connecting(port)).collect();
    // Two have come; the third asks again after 0.15 s, and would give up after 2.4 s.
    std::thread::sleep(Duration::from_millis(100));
    let first = expect(&channel, EventType::ConnectRequest);
    let second = expect(&channel, EventType::ConnectRequest);
    let third = channel.wait(SOON).unwrap().unwrap();
    assert_eq!(third.event(), EventType::ConnectRequest);
    let asked: Vec<_> = [&first, &second, &third].map(|event| event.id().peer_addr()).to_vec();
    for (_, client, _) in &clients {
        assert!(asked.contains(&client.local_addr()));
    }
}

#[test]
fn nobody_is_refused_for_a_full_backlog() {
    let channel = EventChannel::new().unwrap();
    let listener = CmId::create(&channel, PortSpace::Tcp);
    listener.bind_addr(lo(0)).unwrap();
    listener.listen(1).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (waiting_channel, _waiting, _end) = connecting(port);
    let (outside_channel, _outside, _outside_end) = connecting(port);
    // Who waits, is told to by an MRA; who does not, gives up at last.
    let event = expect(&outside_channel, EventType::Unreachable);
    assert_eq!(event.status(), -110);
    assert!(waiting_channel.take().is_none());
}

#[test]
fn requests_that_wait_go_with_their_listener() {
    let (channel, listener, port) = listener(PortSpace::Tcp);
    let clients: Vec<_> = (0..3).map(|_| connecting(port)).collect();
    // One has been taken: it is its owner's. Two wait.
    let taken = expect(&channel, EventType::ConnectRequest).id().clone();
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(100) {
        std::thread::yield_now();
    }
    listener.destroy();
    let mut refused = 0;
    for (client_channel, client, _) in &clients {
        if client.local_addr() == taken.peer_addr() {
            continue;
        }
        let event = expect(client_channel, EventType::Rejected);
        assert_eq!(event.status(), i32::from(RejReason::CONSUMER_DEFINED.0));
        refused += 1;
    }
    assert_eq!(refused, 2);
    // The one that was taken goes on without the listener.
    let _end = End::new(&taken, QpType::Rc);
    taken.accept(&ConnParam::default()).unwrap();
    let of_taken =
        |(_, client, _): &&(EventChannel, CmId, End)| client.local_addr() == taken.peer_addr();
    let (client_channel, _, _) = clients.iter().find(of_taken).unwrap();
    expect(client_channel, EventType::Established);
    expect(&channel, EventType::Established);
}

#[test]
fn one_address_has_one_listener_even_where_it_is_shared() {
    let channel = EventChannel::new().unwrap();
    let bound = |port| {
        let id = CmId::create(&channel, PortSpace::Tcp);
        id.set_reuse_addr(true).unwrap();
        id.bind_addr(lo(port)).unwrap();
        id
    };
    let first = bound(0);
    let port = first.local_addr().unwrap().port();
    let second = bound(port);
    first.listen(0).unwrap();
    let error = second.listen(0).unwrap_err();
    assert_eq!(error.errno(), 98, "{error}");
    assert!(matches!(first.listen(0), Err(BindError::State(_))), "once");
    // When the first has gone, the second may.
    first.destroy();
    second.listen(0).unwrap();
}
