//! Details that programs know from Linux: what each event says, and which events do not come.

#![allow(clippy::unwrap_used)]

mod ends;

use std::time::Duration;

use ends::*;
use ibverbs_api::{QpInit, QpState, QpType};
use rdma_cm::{CmId, ConnParam, EventChannel, EventType, PortSpace, RejReason};

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
