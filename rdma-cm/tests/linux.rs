//! Details that programs know from Linux: what each event says, and which events do not come.

#![allow(clippy::unwrap_used)]

mod ends;

use std::time::Duration;

use ends::*;
use ibverbs_api::{QKey, QpAttr, QpAttrMask, QpInit, QpState, QpType, Qpn};
use rdma_cm::{
    CmId, ConnParam, EventChannel, EventParam, EventType, IdError, JoinState, PortSpace, RejReason,
};

#[test]
fn what_is_set_of_a_request_counts_for_its_queue_pair() {
    let (server_channel, _listener, port) = listener(PortSpace::Tcp);
    let (channel, client) = resolved(PortSpace::Tcp, port);
    let client_end = End::new(&client, QpType::Rc);
    client.connect(&ConnParam::default()).unwrap();
    let server = expect(&server_channel, EventType::ConnectRequest).id().clone();
    let end = End::new(&server, QpType::Rc);
    server.set_ack_timeout(9);
    server.set_min_rnr_timer(12);
    // Also where the caller moves a queue pair of its own, before it accepts.
    let (rtr, _) = server.init_qp_attr(QpState::Rtr).unwrap();
    let (rts, _) = server.init_qp_attr(QpState::Rts).unwrap();
    assert_eq!((rtr.min_rnr_timer, rts.timeout), (12, 9));
    // What is too great does not become little, or none at all.
    client.set_ack_timeout(32);
    client.set_min_rnr_timer(33);
    server.accept(&ConnParam::default()).unwrap();
    expect(&channel, EventType::Established);
    let attr = end.qp.query().unwrap();
    assert_eq!((attr.min_rnr_timer, attr.timeout), (12, 9));
    let attr = client_end.qp.query().unwrap();
    assert_eq!((attr.min_rnr_timer, attr.timeout), (31, 31));
}

#[test]
fn an_end_that_nobody_has_agreed_to_says_so() {
    let (server_channel, _listener, port) = listener(PortSpace::Tcp);
    let (channel, client) = resolved(PortSpace::Tcp, port);
    let _end = End::new(&client, QpType::Rc);
    client.set_ack_timeout(10);
    client.set_patience(12, 3);
    client.connect(&ConnParam::default()).unwrap();
    let server = expect(&server_channel, EventType::ConnectRequest).id().clone();
    let _server_end = End::new(&server, QpType::Rc);
    server.accept(&ConnParam::default()).unwrap();
    expect(&channel, EventType::Established);
    expect(&server_channel, EventType::Established);
    client.disconnect().unwrap();
    // The server is told, and says nothing.
    assert_eq!(expect(&server_channel, EventType::Disconnected).status(), 0);
    assert_eq!(expect(&channel, EventType::Disconnected).status(), -110);
}

#[test]
fn the_end_of_timewait_is_told_only_after_the_end_of_a_connection() {
    let (server_channel, _listener, port) = listener(PortSpace::Tcp);
    let (channel, client) = resolved(PortSpace::Tcp, port);
    let context = client.verbs().unwrap();
    let cq = context.create_cq(16, None, 0).unwrap();
    let qp = context.alloc_pd().unwrap().create_qp(QpInit::new(QpType::Rc, &cq, &cq)).unwrap();
    client.set_ack_timeout(10);
    client.connect(&ConnParam { qpn: qp.qpn(), ..ConnParam::default() }).unwrap();
    let server = expect(&server_channel, EventType::ConnectRequest).id().clone();
    let _server_end = End::new(&server, QpType::Rc);
    server.accept(&ConnParam::default()).unwrap();
    expect(&channel, EventType::ConnectResponse);
    server.reject(b"no", RejReason::CONSUMER_DEFINED).unwrap();
    assert_eq!(expect(&channel, EventType::Rejected).status(), 28);
    // Timewait is 4 ms here.
    for channel in [&channel, &server_channel] {
        let more = channel.wait(Duration::from_millis(300)).unwrap();
        assert!(more.is_none(), "{more:?}");
    }
}

#[test]
fn a_datagram_service_that_refuses_may_say_why() {
    let (server_channel, _listener, port) = listener(PortSpace::Udp);
    let (channel, client) = resolved(PortSpace::Udp, port);
    client.connect(&ConnParam::default()).unwrap();
    let server = expect(&server_channel, EventType::ConnectRequest).id().clone();
    server.reject(b"full", RejReason::CONSUMER_DEFINED).unwrap();
    let refused = expect(&channel, EventType::Unreachable);
    assert_eq!((refused.status(), refused.private_data().len()), (2, 136));
    assert!(refused.private_data().starts_with(b"full"));
}

#[test]
fn an_address_of_another_host_is_not_available_here() {
    let channel = EventChannel::new().unwrap();
    let id = CmId::create(&channel, PortSpace::Tcp);
    let error = id.bind_addr("192.0.2.1:0".parse().unwrap()).unwrap_err();
    assert_eq!(error.errno(), 99, "{error}");
}

#[test]
fn an_acceptance_that_fails_refuses_the_peer() {
    let too_much = |bytes| ConnParam { private_data: vec![1; bytes], ..ConnParam::default() };
    let (server_channel, _listener, port) = listener(PortSpace::Tcp);
    let (channel, client) = resolved(PortSpace::Tcp, port);
    let _end = End::new(&client, QpType::Rc);
    client.connect(&ConnParam::default()).unwrap();
    let server = expect(&server_channel, EventType::ConnectRequest).id().clone();
    // What librdmacm finds wrong by itself changes nothing.
    assert_eq!(server.accept(&ConnParam::default()).unwrap_err().errno(), 22, "no queue pair");
    let end = End::new(&server, QpType::Rc);
    let greedy = ConnParam { responder_resources: 200, ..ConnParam::default() };
    assert!(matches!(server.accept(&greedy), Err(IdError::TooManyReads { .. })));
    assert_eq!(end.qp.state(), QpState::Init);
    let error = server.accept(&too_much(197)).unwrap_err();
    assert!(matches!(error, IdError::PrivateData(_)), "{error}");
    let refused = expect(&channel, EventType::Rejected);
    assert_eq!(refused.status(), i32::from(RejReason::CONSUMER_DEFINED.0));
    assert_eq!(end.qp.state(), QpState::Err);
    assert!(matches!(server.accept(&ConnParam::default()), Err(IdError::State(_))));

    let (server_channel, _listener, port) = listener(PortSpace::Udp);
    let (channel, client) = resolved(PortSpace::Udp, port);
    client.connect(&ConnParam::default()).unwrap();
    let server = expect(&server_channel, EventType::ConnectRequest).id().clone();
    let _end = End::new(&server, QpType::Ud);
    assert_eq!(server.accept(&too_much(137)).unwrap_err().errno(), 22);
    assert_eq!(expect(&channel, EventType::Unreachable).status(), 2);
}

#[test]
fn a_peer_that_gives_up_is_told_of_though_an_acceptance_has_failed() {
    let (server_channel, _listener, port) = listener(PortSpace::Tcp);
    let (_channel, client) = resolved(PortSpace::Tcp, port);
    let _end = End::new(&client, QpType::Rc);
    client.connect(&ConnParam::default()).unwrap();
    let server = expect(&server_channel, EventType::ConnectRequest).id().clone();
    let _server_end = End::new(&server, QpType::Rc);
    client.destroy();
    let gone = expect(&server_channel, EventType::Rejected);
    assert_eq!((gone.id(), gone.status()), (&server, 4));
    assert!(server.accept(&ConnParam::default()).is_err());
}

#[test]
fn who_looks_up_datagrams_is_told_the_queue_key_of_the_queue_pair() {
    let (server_channel, _listener, port) = listener(PortSpace::Udp);
    let found = |accept: &dyn Fn(&CmId)| {
        let (channel, client) = resolved(PortSpace::Udp, port);
        client.connect(&ConnParam::default()).unwrap();
        accept(expect(&server_channel, EventType::ConnectRequest).id());
        let event = channel.wait(SOON).unwrap().unwrap();
        match event.param() {
            EventParam::Ud(param) if event.event() == EventType::Established => {
                Ok((param.qpn.get(), param.qkey.get()))
            }
            _ => Err((event.event(), event.status())),
        }
    };
    let of = |qpn, qkey| ConnParam { qpn, qkey: QKey::new(qkey), ..ConnParam::default() };
    let another = Qpn::new(0x1234);
    assert_eq!(found(&|id| id.accept(&of(another, 0)).unwrap()), Ok((0x1234, 0x0123_4567)));
    assert_eq!(found(&|id| id.accept(&of(another, 7)).unwrap()), Ok((0x1234, 7)));
    let (_, qkey) = found(&|id| {
        let end = End::new(id, QpType::Ud);
        let attr = QpAttr { state: QpState::Rts, qkey: 0x77, ..QpAttr::default() };
        end.qp.modify(&attr, QpAttrMask::STATE | QpAttrMask::QKEY).unwrap();
        id.accept(&ConnParam::default()).unwrap();
    })
    .unwrap();
    assert_eq!(qkey, 0x77);
    let refused = found(&|id| {
        let _end = End::new(id, QpType::Ud);
        let error = id.accept(&of(another, 0x78)).unwrap_err();
        assert!(matches!(error, IdError::OtherQKey { .. }), "{error}");
        assert_eq!(error.errno(), 22);
    });
    assert_eq!(refused, Err((EventType::Unreachable, 2)));
}

#[test]
fn a_port_that_is_somebodys_at_all_addresses_is_not_available() {
    let channel = EventChannel::new().unwrap();
    let bind = |address: &str, port| {
        let id = CmId::create(&channel, PortSpace::Tcp);
        let address = format!("{address}:{port}").parse().unwrap();
        id.bind_addr(address).map(|()| id).map_err(|error| error.errno())
    };
    let one = bind("127.0.0.1", 0).unwrap();
    let port = one.local_addr().unwrap().port();
    assert_eq!(bind("127.0.0.1", port).err(), Some(98));
    assert_eq!(bind("0.0.0.0", port).err(), Some(99));
    one.destroy();
    let _all = bind("0.0.0.0", port).unwrap();
    assert_eq!(bind("127.0.0.1", port).err(), Some(99));
}

#[test]
fn groups_are_for_datagrams_and_left_as_often_as_joined() {
    let channel = EventChannel::new().unwrap();
    let group = "239.1.2.5".parse().unwrap();
    let errno = |id: &CmId| id.join_multicast(group, JoinState::FullMember).unwrap_err().errno();
    let connections = CmId::create(&channel, PortSpace::Tcp);
    connections.bind_addr(lo(0)).unwrap();
    assert_eq!(errno(&connections), 22);
    let id = CmId::create(&channel, PortSpace::Udp);
    assert_eq!(errno(&id), 22, "no device");
    id.bind_addr(lo(0)).unwrap();
    let end = End::new(&id, QpType::Ud);
    for _ in 0..2 {
        id.join_multicast(group, JoinState::FullMember).unwrap();
        expect(&channel, EventType::MulticastJoin);
    }
    id.leave_multicast(group).unwrap();
    let gid = ibverbs_api::Gid::from_ip(group);
    // It is a member still: so it can be taken out by hand.
    end.qp.detach_multicast(gid).unwrap();
    end.qp.attach_multicast(gid).unwrap();
    id.leave_multicast(group).unwrap();
    assert!(end.qp.detach_multicast(gid).is_err());
    assert_eq!(id.leave_multicast(group).unwrap_err().errno(), 22);
}

#[test]
fn what_a_consumer_says_to_its_refusal_is_no_other_data() {
    let (server_channel, _listener, port) = listener(PortSpace::Tcp);
    for (reason, expected) in
        [(RejReason::CONSUMER_DEFINED, Some(&b"no"[..])), (RejReason::NO_RESOURCES, None)]
    {
        let (channel, client) = resolved(PortSpace::Tcp, port);
        let _end = End::new(&client, QpType::Rc);
        client.connect(&ConnParam::default()).unwrap();
        let request = expect(&server_channel, EventType::ConnectRequest);
        assert_eq!(request.consumer_reject_data(), None);
        request.id().reject(b"no", reason).unwrap();
        let refused = expect(&channel, EventType::Rejected);
        assert_eq!(refused.consumer_reject_data().map(|data| &data[..2]), expected);
    }
}

#[test]
fn what_is_past_its_time_is_not_set() {
    let (_channel, listener, _) = listener(PortSpace::Tcp);
    assert_eq!(listener.set_reuse_addr(true).unwrap_err().errno(), 22);
    assert_eq!(listener.set_af_only(true).unwrap_err().errno(), 22);
}

#[test]
fn a_queue_pair_that_cannot_be_made_ready_is_an_error_of_the_connection() {
    let (server_channel, _listener, port) = listener(PortSpace::Tcp);
    let (channel, client) = resolved(PortSpace::Tcp, port);
    let end = End::new(&client, QpType::Rc);
    client.connect(&ConnParam::default()).unwrap();
    let server = expect(&server_channel, EventType::ConnectRequest).id().clone();
    let _server_end = End::new(&server, QpType::Rc);
    let failed = QpAttr { state: QpState::Err, ..QpAttr::default() };
    end.qp.modify(&failed, QpAttrMask::STATE).unwrap();
    server.accept(&ConnParam::default()).unwrap();
    assert_eq!(expect(&channel, EventType::ConnectError).status(), -22);
    let refused = expect(&server_channel, EventType::Rejected);
    assert_eq!(refused.status(), i32::from(RejReason::CONSUMER_DEFINED.0));
}
