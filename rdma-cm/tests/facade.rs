//! Identifiers over the loopback interface: both ends in one process.

#![allow(clippy::unwrap_used)]

mod ends;

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ends::*;
use ibverbs_api::{QpState, QpType, SendOp};
use rdma_cm::{
    BindError, CmId, ConnParam, EventChannel, EventParam, EventType, JoinState, PortSpace,
    RejReason, Verdict,
};

#[test]
fn a_connection_from_the_beginning_to_the_end() {
    let Connected { client, server, _listener } = connect();
    let (client_channel, client, client_end) = client;
    let (server_channel, server, server_end) = server;
    client_end.send(b"ping");
    assert_eq!(server_end.received(), b"ping");
    server_end.send(b"pong");
    assert_eq!(client_end.received(), b"pong");

    let attr = client_end.qp.query().unwrap();
    assert_eq!(attr.state, QpState::Rts);
    assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (1, 1), "what the server accepts");
    assert_eq!(attr.timeout, 17);
    let attr = server_end.qp.query().unwrap();
    assert_eq!((attr.retry_cnt, attr.rnr_retry), (7, 7));

    client.disconnect().unwrap();
    assert_eq!(client_end.qp.state(), QpState::Err);
    expect(&server_channel, EventType::Disconnected);
    server.disconnect().unwrap();
    expect(&client_channel, EventType::Disconnected);
    // Both leave timewait.
    expect(&client_channel, EventType::TimewaitExit);
    expect(&server_channel, EventType::TimewaitExit);
    client.destroy();
    server.destroy();
}

#[test]
fn nobody_listens() {
    let (channel, id) = resolved(PortSpace::Tcp, 1);
    End::new(&id, QpType::Rc);
    id.connect(&ConnParam::default()).unwrap();
    let event = expect(&channel, EventType::Rejected);
    assert_eq!(event.status(), 8);
    assert_eq!(RejReason(8).text(), Some("invalid service id"));
}

#[test]
fn a_refusal_says_why() {
    let (server_channel, _listener, port) = listener(PortSpace::Tcp);
    let (channel, id) = resolved(PortSpace::Tcp, port);
    let end = End::new(&id, QpType::Rc);
    id.connect(&ConnParam::default()).unwrap();
    let request = expect(&server_channel, EventType::ConnectRequest);
    request.id().reject(b"no", RejReason::CONSUMER_DEFINED).unwrap();
    let event = expect(&channel, EventType::Rejected);
    assert_eq!((event.status(), &event.private_data()[..2]), (28, &b"no"[..]));
    assert_eq!(end.qp.state(), QpState::Err);
    // One that is dropped without a word is refused too.
    drop(request);
    let (channel, id) = resolved(PortSpace::Tcp, port);
    let _end = End::new(&id, QpType::Rc);
    id.connect(&ConnParam::default()).unwrap();
    drop(expect(&server_channel, EventType::ConnectRequest));
    assert_eq!(expect(&channel, EventType::Rejected).status(), 28);
}

#[test]
fn a_queue_pair_of_the_callers_own() {
    let (server_channel, _listener, port) = listener(PortSpace::Tcp);
    let (channel, id) = resolved(PortSpace::Tcp, port);
    assert!(id.connect(&ConnParam::default()).is_err(), "no queue pair, and none named");
    let _ends = connect_by_hand(&id, &channel, &server_channel);
    id.establish().unwrap();
    expect(&server_channel, EventType::Established);
}

#[test]
fn datagrams_find_their_queue_pair() {
    let (server_channel, _listener, port) = listener(PortSpace::Udp);
    let (channel, id) = resolved(PortSpace::Udp, port);
    let client = End::new(&id, QpType::Ud);
    id.connect(&ConnParam { private_data: b"who".to_vec(), ..ConnParam::default() }).unwrap();
    let request = expect(&server_channel, EventType::ConnectRequest);
    assert_eq!((&request.private_data()[..3], request.private_data().len()), (&b"who"[..], 180));
    let server_id = request.id().clone();
    let server = End::new(&server_id, QpType::Ud);
    server_id.accept(&ConnParam { private_data: b"me".to_vec(), ..ConnParam::default() }).unwrap();
    let found = expect(&channel, EventType::Established);
    let EventParam::Ud(param) = found.param() else { panic!("{found:?}") };
    assert_eq!((param.qpn, param.qkey.get()), (server.qp.qpn(), 0x0123_4567));
    assert_eq!((&param.private_data[..2], param.private_data.len()), (&b"me"[..], 136));

    let to = client.pd.create_ah(&param.av).unwrap().to(param.qpn, param.qkey);
    client.post(SendOp::SendTo { to, imm: None }, b"datagram");
    // Before the data stands the network header.
    assert_eq!(server.received()[40..], *b"datagram");
}

#[test]
fn no_datagram_service_there() {
    let (channel, id) = resolved(PortSpace::Udp, 1);
    let _end = End::new(&id, QpType::Ud);
    id.connect(&ConnParam::default()).unwrap();
    assert_eq!(expect(&channel, EventType::Unreachable).status(), 1);
}

#[test]
fn groups_are_joined_and_left() {
    let channel = EventChannel::new().unwrap();
    let id = CmId::create(&channel, PortSpace::Udp);
    let group = "239.1.2.3".parse().unwrap();
    assert!(id.join_multicast(group, JoinState::FullMember).is_err(), "no device");
    id.bind_addr(lo(0)).unwrap();
    let end = End::new(&id, QpType::Ud);
    assert!(id.join_multicast("10.0.0.1".parse().unwrap(), JoinState::FullMember).is_err());
    id.join_multicast(group, JoinState::FullMember).unwrap();
    let joined = expect(&channel, EventType::MulticastJoin);
    let EventParam::Ud(param) = joined.param() else { panic!("{joined:?}") };
    assert_eq!((param.qpn.get(), param.qkey.get()), (0xff_ffff, 0x0123_4567));
    assert_eq!(param.av.dgid.to_ip(), group);
    let gid = param.av.dgid;
    assert!(end.qp.detach_multicast(gid).is_ok(), "it was attached");
    end.qp.attach_multicast(gid).unwrap();
    id.leave_multicast(group).unwrap();
    assert!(end.qp.detach_multicast(gid).is_err(), "it has left");
    assert!(id.leave_multicast(group).is_err());
    id.join_multicast(group, JoinState::SendOnly).unwrap();
    assert!(end.qp.detach_multicast(gid).is_err(), "it only sends");
}

#[test]
fn as_many_reads_as_can_be() {
    let most = ConnParam::AS_MANY_AS_CAN_BE;
    let param = |responder_resources, initiator_depth| ConnParam {
        responder_resources,
        initiator_depth,
        ..ConnParam::default()
    };
    let (server_channel, _listener, port) = listener(PortSpace::Tcp);
    let (channel, client) = resolved(PortSpace::Tcp, port);
    let end = End::new(&client, QpType::Rc);
    assert_eq!(client.connect(&param(200, 1)).unwrap_err().errno(), 22);
    client.connect(&param(most, 3)).unwrap();
    let request = expect(&server_channel, EventType::ConnectRequest);
    let limits = client.verbs().unwrap().query_device().limits;
    let EventParam::Conn(asked) = request.param() else { panic!("{request:?}") };
    let expected = (3, limits.max_qp_rd_atom);
    assert_eq!((asked.responder_resources, asked.initiator_depth), expected);
    let server = request.id().clone();
    let server_end = End::new(&server, QpType::Rc);
    server.accept(&param(most, most)).unwrap();
    expect(&channel, EventType::Established);
    let attr = server_end.qp.query().unwrap();
    assert_eq!((attr.max_dest_rd_atomic, attr.max_rd_atomic), expected);
    assert_eq!(end.qp.query().unwrap().max_rd_atomic, 3);
}

#[test]
fn ports_are_bound_once() {
    let (channel, _listener, port) = listener(PortSpace::Tcp);
    let id = CmId::create(&channel, PortSpace::Tcp);
    let error = id.bind_addr(lo(port)).unwrap_err();
    assert!(matches!(error, BindError::Taken(_)), "{error}");
    assert_eq!(error.errno(), 98);
    let other = CmId::create(&channel, PortSpace::Udp);
    other.bind_addr(lo(port)).unwrap();
    let error = other.bind_addr(lo(port)).unwrap_err();
    assert!(matches!(error, BindError::State(_)), "{error}");
    let nowhere: SocketAddr = "192.0.2.1:0".parse().unwrap();
    let error = CmId::create(&channel, PortSpace::Tcp).bind_addr(nowhere).unwrap_err();
    assert_eq!(error.errno(), 99);
}

#[test]
fn a_request_that_is_not_answered_can_be_taken_back_at_once() {
    let (server_channel, _listener, port) = listener(PortSpace::Tcp);
    let (channel, id) = resolved(PortSpace::Tcp, port);
    let _end = End::new(&id, QpType::Rc);
    id.set_patience(14, 2);
    let start = Instant::now();
    id.connect(&ConnParam::default()).unwrap();
    // Repetitions are answered by an MRA, which asks for a minute: leaving is possible at once.
    let request = expect(&server_channel, EventType::ConnectRequest);
    std::thread::sleep(Duration::from_millis(1500));
    assert!(channel.take().is_none());
    id.destroy();
    assert!(start.elapsed() < Duration::from_secs(5));
    let gone = expect(&server_channel, EventType::Rejected);
    assert_eq!((gone.id(), gone.status()), (request.id(), 4));
}

#[test]
fn a_host_that_does_not_answer_is_given_up_as_soon_as_asked() {
    let channel = EventChannel::new().unwrap();
    let id = CmId::create(&channel, PortSpace::Tcp);
    // Nobody has a RoCE port at this address of the loopback interface.
    id.resolve_addr(Some(lo(0)), "127.0.0.99:7".parse().unwrap()).unwrap();
    expect(&channel, EventType::AddrResolved);
    id.resolve_route().unwrap();
    expect(&channel, EventType::RouteResolved);
    let end = End::new(&id, QpType::Rc);
    id.set_ack_timeout(10);
    id.set_patience(14, 3);
    let start = Instant::now();
    id.connect(&ConnParam::default()).unwrap();
    let event = expect(&channel, EventType::Unreachable);
    assert_eq!(event.status(), -110);
    let took = start.elapsed();
    assert!((250..5000).contains(&took.as_millis()), "{took:?}");
    assert_eq!(end.qp.state(), QpState::Err);
}

#[test]
fn destroying_waits_for_events_that_were_taken() {
    let (channel, id) = resolved(PortSpace::Tcp, 1);
    let _end = End::new(&id, QpType::Rc);
    id.connect(&ConnParam::default()).unwrap();
    let event = expect(&channel, EventType::Rejected);
    let other = id.clone();
    let thread = std::thread::spawn(move || other.destroy());
    std::thread::sleep(Duration::from_millis(100));
    assert!(!thread.is_finished());
    event.ack();
    thread.join().unwrap();
    assert!(id.connect(&ConnParam::default()).is_err());
}

#[test]
fn events_move_with_their_identifier() {
    let (first, id) = resolved(PortSpace::Tcp, 1);
    let _end = End::new(&id, QpType::Rc);
    id.connect(&ConnParam::default()).unwrap();
    let mut fd = [rustix::event::PollFd::new(&first, rustix::event::PollFlags::IN)];
    let timeout = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut fd, Some(&timeout)), Ok(1), "readable");
    let second = EventChannel::new().unwrap();
    id.migrate(&second);
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut fd, Some(&now)), Ok(0), "no more");
    assert_eq!(expect(&second, EventType::Rejected).id(), &id);
    assert!(second.as_fd().try_clone_to_owned().is_ok());
}

#[test]
fn many_connections_one_after_another() {
    let (server_channel, _listener, port) = listener(PortSpace::Tcp);
    let start = Instant::now();
    for _ in 0..200 {
        let (channel, client) = resolved(PortSpace::Tcp, port);
        let client_end = End::new(&client, QpType::Rc);
        client.connect(&ConnParam::default()).unwrap();
        let server = expect(&server_channel, EventType::ConnectRequest).id().clone();
        let server_end = End::new(&server, QpType::Rc);
        server.accept(&ConnParam::default()).unwrap();
        expect(&channel, EventType::Established);
        expect(&server_channel, EventType::Established);
        client_end.send(b"x");
        assert_eq!(server_end.received(), b"x");
        client.disconnect().unwrap();
        expect(&server_channel, EventType::Disconnected);
        server.disconnect().unwrap();
        expect(&channel, EventType::Disconnected);
        client.destroy();
        server.destroy();
    }
    println!("200 connections in {:?}", start.elapsed());
}

#[test]
fn a_handler_is_told_instead_of_a_channel() {
    let (told, events) = std::sync::mpsc::channel();
    let server_told = told.clone();
    let listener = CmId::create_with_handler(PortSpace::Tcp, move |event| {
        server_told.send(("server", event.event(), event.id().clone())).unwrap();
        // The second request is refused: its identifier is destroyed.
        match event.event() {
            EventType::ConnectRequest if event.private_data()[0] == 2 => Verdict::Destroy,
            _ => Verdict::Keep,
        }
    })
    .unwrap();
    listener.bind_addr(lo(0)).unwrap();
    listener.listen(0).unwrap();
    let port = listener.local_addr().unwrap().port();
    let next = |who, wanted| {
        let (from, event, id): (_, _, CmId) = events.recv_timeout(SOON).unwrap();
        assert_eq!((from, event), (who, wanted));
        id
    };
    let client = |number| {
        let told = told.clone();
        let id = CmId::create_with_handler(PortSpace::Tcp, move |event| {
            told.send(("client", event.event(), event.id().clone())).unwrap();
            // The end of a connection that was refused is the end of its identifier.
            if event.event() == EventType::Rejected { Verdict::Destroy } else { Verdict::Keep }
        })
        .unwrap();
        id.resolve_addr(None, lo(port)).unwrap();
        next("client", EventType::AddrResolved);
        id.resolve_route().unwrap();
        next("client", EventType::RouteResolved);
        let end = End::new(&id, QpType::Rc);
        let param = ConnParam { private_data: vec![number], ..ConnParam::default() };
        id.connect(&param).unwrap();
        (id, end)
    };
    let (first, _end) = client(1);
    let server = next("server", EventType::ConnectRequest);
    let _server_end = End::new(&server, QpType::Rc);
    let lock = first.lock_handler();
    server.accept(&ConnParam::default()).unwrap();
    next("server", EventType::Established);
    assert!(events.recv_timeout(Duration::from_millis(100)).is_err(), "it is locked");
    drop(lock);
    assert_eq!(next("client", EventType::Established), first);

    let (second, _end) = client(2);
    next("server", EventType::ConnectRequest);
    next("client", EventType::Rejected);
    // It was destroyed, or is about to be.
    let start = Instant::now();
    while second.verbs().is_some() && second.qp().is_some() {
        assert!(start.elapsed() < SOON);
        std::thread::yield_now();
    }
    first.destroy();
}
