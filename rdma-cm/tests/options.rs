//! What is set, asked for and told on beside connections: options by number, vendors' options,
//! names, events of the program's own, extended reliable connections.

#![allow(clippy::unwrap_used)]

mod ends;

use std::sync::Arc;

use ends::*;
use ibverbs_api::{
    AccessFlags, AsyncEvent, DmaBuf, Gid, QpInit, QpState, QpType, RecvWr, SendData, SendFlags,
    SendOp, SendWr, SrqAttr,
};
use rdma_cm::{
    AddrHints, CmId, ConnParam, Ece, EventChannel, EventParam, EventType, IbService, IdError,
    OptionError, OptionLevel, PortSpace, ResolveError,
};
use rxe_wire::mad::cm::ServiceId;

const ID: OptionLevel = OptionLevel::Id;

#[test]
fn options_have_the_numbers_and_lengths_of_c() {
    let channel = EventChannel::new().unwrap();
    let id = CmId::create(&channel, PortSpace::Tcp);
    let yes = 1i32.to_ne_bytes();
    id.set_option(ID, 0, &[0x20]).unwrap();
    id.set_option(ID, 1, &yes).unwrap();
    id.set_option(ID, 2, &yes).unwrap();
    id.set_option(ID, 3, &[10]).unwrap();
    let errno = |level, name, value: &[u8]| id.set_option(level, name, value).unwrap_err().errno();
    assert_eq!(errno(ID, 4, &[0]), 38, "no such option");
    assert_eq!(errno(OptionLevel::Ib, 1, &[0; 80]), 38);
    assert_eq!(errno(ID, 1, &[1]), 22, "an int");
    assert_eq!(errno(ID, 0, &yes), 22, "a byte");
    assert_eq!(errno(ID, 3, &[32]), 22, "5 bits");
    let datagrams = CmId::create(&channel, PortSpace::Udp);
    assert_eq!(datagrams.set_option(ID, 3, &[10]), Err(OptionError::Datagrams));
}

#[test]
fn options_count() {
    let channel = EventChannel::new().unwrap();
    let id = CmId::create(&channel, PortSpace::Tcp);
    let (yes, no) = (1i32.to_ne_bytes(), 0i32.to_ne_bytes());
    id.set_option(ID, 1, &yes).unwrap();
    id.bind_addr(lo(0)).unwrap();
    let port = id.local_addr().unwrap().port();
    let other = CmId::create(&channel, PortSpace::Tcp);
    assert!(other.bind_addr(lo(port)).is_err());
    other.set_option(ID, 1, &yes).unwrap();
    other.bind_addr(lo(port)).unwrap();
    // Who is bound shares for good, and may begin to.
    assert!(matches!(other.set_option(ID, 1, &no), Err(OptionError::State(_))));
    other.set_option(ID, 1, &yes).unwrap();
    id.listen(0).unwrap();
    assert!(matches!(id.set_option(ID, 1, &yes), Err(OptionError::State(_))));
    assert!(matches!(id.set_option(ID, 2, &yes), Err(OptionError::State(_))));

    let (client_channel, client) = resolved(PortSpace::Tcp, port);
    client.set_option(ID, 3, &[9]).unwrap();
    let end = End::new(&client, QpType::Rc);
    client.connect(&ConnParam::default()).unwrap();
    let server = expect(&channel, EventType::ConnectRequest).id().clone();
    let _server_end = End::new(&server, QpType::Rc);
    server.accept(&ConnParam::default()).unwrap();
    expect(&client_channel, EventType::Established);
    assert_eq!(end.qp.query().unwrap().timeout, 9);
}

#[test]
fn what_vendors_say_is_carried_both_ways() {
    let (server_channel, _listener, port) = listener(PortSpace::Tcp);
    let (channel, client) = resolved(PortSpace::Tcp, port);
    let _end = End::new(&client, QpType::Rc);
    assert_eq!(client.remote_ece(), None);
    let offer = Ece::new(0x15b3, 0xdead_beef);
    client.connect_ece(&ConnParam::default(), offer).unwrap();
    let server = expect(&server_channel, EventType::ConnectRequest).id().clone();
    assert_eq!(server.remote_ece(), Some(offer));
    let _server_end = End::new(&server, QpType::Rc);
    let answer = Ece::new(0x15b3, 0x0bad_cafe);
    server.accept_ece(&ConnParam::default(), answer).unwrap();
    expect(&channel, EventType::Established);
    assert_eq!(client.remote_ece(), Some(answer));
}

#[test]
fn datagram_services_say_it_too() {
    let (server_channel, _listener, port) = listener(PortSpace::Udp);
    let (channel, client) = resolved(PortSpace::Udp, port);
    client.connect(&ConnParam::default()).unwrap();
    let server = expect(&server_channel, EventType::ConnectRequest).id().clone();
    let _server_end = End::new(&server, QpType::Ud);
    let answer = Ece::new(0x0002_c900, 7);
    server.accept_ece(&ConnParam::default(), answer).unwrap();
    expect(&channel, EventType::Established);
    assert_eq!(client.remote_ece(), Some(answer));
}

#[test]
fn roce_has_no_administrator_to_ask_for_services() {
    let channel = EventChannel::new().unwrap();
    let id = CmId::create(&channel, PortSpace::Tcp);
    let service = IbService::Name("storage".to_owned());
    let error = id.resolve_ib_service(&service).unwrap_err();
    assert!(matches!(error, ResolveError::State(_)), "{error}");
    id.resolve_addr(None, lo(7)).unwrap();
    expect(&channel, EventType::AddrResolved);
    let error = id.resolve_ib_service(&service).unwrap_err();
    assert_eq!(error.errno(), 95);
    // It is as before.
    id.resolve_route().unwrap();
}

#[test]
fn names_are_looked_up_meanwhile() {
    let channel = EventChannel::new().unwrap();
    let id = CmId::create(&channel, PortSpace::Tcp);
    let hints = AddrHints { numeric_host: true, ..AddrHints::default() };
    id.resolve_addrinfo(Some("127.0.0.1"), Some("7174"), &hints).unwrap();
    assert_eq!(expect(&channel, EventType::AddrinfoResolved).id(), &id);
    let [info] = id.query_addrinfo()[..] else { panic!() };
    assert_eq!(info.destination, Some(lo(7174)));
    id.resolve_addrinfo(Some("no address"), None, &hints).unwrap();
    assert_eq!(expect(&channel, EventType::AddrinfoError).status(), -22);
    id.bind_addr(lo(0)).unwrap();
    let error = id.resolve_addrinfo(Some("127.0.0.1"), None, &hints).unwrap_err();
    assert!(matches!(error, IdError::State(_)), "{error}");
}

#[test]
fn programs_write_events_of_their_own_and_no_others() {
    let channel = EventChannel::new().unwrap();
    let id = CmId::create(&channel, PortSpace::Tcp);
    id.write_event(EventType::User, -5, u64::MAX).unwrap();
    id.write_event(EventType::Internal, 0, 1).unwrap();
    let event = expect(&channel, EventType::User);
    assert_eq!((event.status(), event.param()), (-5, &EventParam::Arg(u64::MAX)));
    assert_eq!(expect(&channel, EventType::Internal).param(), &EventParam::Arg(1));
    drop(event);
    let error = id.write_event(EventType::Established, 0, 0).unwrap_err();
    assert_eq!(error.errno(), 22);
    id.destroy();
    assert!(id.write_event(EventType::User, 0, 0).is_err());
}

#[test]
fn a_listener_of_one_transport_takes_no_other() {
    let channel = EventChannel::new().unwrap();
    let listener = CmId::create_of_type(&channel, PortSpace::Tcp, QpType::Uc);
    listener.bind_addr(lo(0)).unwrap();
    listener.listen(0).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (client_channel, client) = resolved(PortSpace::Tcp, port);
    let _end = End::new(&client, QpType::Rc);
    client.connect(&ConnParam::default()).unwrap();
    assert_eq!(expect(&client_channel, EventType::Rejected).status(), 9, "transport");
    let (_client_channel, client) = resolved(PortSpace::Tcp, port);
    let _end = End::new(&client, QpType::Uc);
    client.connect(&ConnParam::default()).unwrap();
    assert_eq!(expect(&channel, EventType::ConnectRequest).id().qp_type(), QpType::Uc);
}

#[test]
fn extended_reliable_connections() {
    let (server_channel, _listener, port) = listener(PortSpace::Tcp);
    let (channel, client) = resolved(PortSpace::Tcp, port);
    let context = client.verbs().unwrap();
    let cq = context.create_cq(16, None, 0).unwrap();
    let pd = context.alloc_pd().unwrap();
    let initiator = client.create_qp(Some(&pd), QpInit::new(QpType::XrcSend, &cq, &cq)).unwrap();
    client.connect(&ConnParam::default()).unwrap();

    let server = expect(&server_channel, EventType::ConnectRequest).id().clone();
    assert_eq!(server.qp_type(), QpType::XrcRecv);
    let domain = server.verbs().unwrap().open_xrcd(0).unwrap();
    let recv_cq = context.create_cq(16, None, 0).unwrap();
    let attr = SrqAttr { max_wr: 4, max_sge: 1, srq_limit: 0 };
    let srq = pd.create_xrc_srq(attr, &domain, &recv_cq).unwrap();
    let memory = pd.register(DmaBuf::zeroed(64), AccessFlags::LOCAL_WRITE).unwrap();
    srq.post_recv(RecvWr { wr_id: 7, sges: &[memory.sge(0..64)] }).unwrap();
    server.attach_qp(Arc::new(domain.create_qp().unwrap())).unwrap();
    server.accept(&ConnParam::default()).unwrap();
    expect(&channel, EventType::Established);
    expect(&server_channel, EventType::Established);

    let (op, flags) = (SendOp::Send { imm: None }, SendFlags::empty());
    let data = SendData::Inline(b"extended");
    let srq_number = Some(srq.id());
    initiator.post_send(&SendWr { wr_id: 1, op, flags, data, srq_number }).unwrap();
    let wc = recv_cq.wait_one(SOON).unwrap();
    assert_eq!((wc.wr_id, wc.byte_len), (7, 8));
    client.disconnect().unwrap();
    expect(&server_channel, EventType::Disconnected);
    assert_eq!(initiator.state(), QpState::Err);
}

#[test]
fn the_type_of_service_is_the_traffic_class_of_both_ends() {
    let (server_channel, _listener, port) = listener(PortSpace::Tcp);
    let channel = EventChannel::new().unwrap();
    let client = CmId::create(&channel, PortSpace::Tcp);
    client.resolve_addr(None, lo(port)).unwrap();
    expect(&channel, EventType::AddrResolved);
    client.set_service_type(0x28);
    client.resolve_route().unwrap();
    expect(&channel, EventType::RouteResolved);
    let end = End::new(&client, QpType::Rc);
    client.connect(&ConnParam::default()).unwrap();
    let server = expect(&server_channel, EventType::ConnectRequest).id().clone();
    let server_end = End::new(&server, QpType::Rc);
    server.accept(&ConnParam::default()).unwrap();
    expect(&channel, EventType::Established);
    for end in [&end, &server_end] {
        assert_eq!(end.qp.query().unwrap().av.traffic_class, 0x28);
    }
}

#[test]
fn a_port_and_a_way_have_their_names_in_infiniband() {
    let channel = EventChannel::new().unwrap();
    for (space, number) in [(PortSpace::Tcp, 0x0106_1c06), (PortSpace::Udp, 0x0111_1c06)] {
        let id = CmId::create(&channel, space);
        assert_eq!(id.service_id(7174), ServiceId(number));
        assert_eq!(id.gids(), None);
        id.resolve_addr(None, lo(7174)).unwrap();
        expect(&channel, EventType::AddrResolved);
        let gid = Gid::from_ip(lo(0).ip());
        assert_eq!(id.gids(), Some((gid, gid)));
    }
}

#[test]
fn an_identifier_has_one_queue_pair_at_a_time() {
    let (_channel, id) = resolved(PortSpace::Tcp, 1);
    let end = End::new(&id, QpType::Rc);
    let (cq, pd) = (&end.cq, &end.pd);
    let error = id.create_qp(Some(pd), QpInit::new(QpType::Rc, cq, cq)).unwrap_err();
    assert!(matches!(error, IdError::HasQp), "{error}");
    id.destroy_qp();
    assert!(id.qp().is_none());
    id.create_qp(Some(pd), QpInit::new(QpType::Rc, cq, cq)).unwrap();
}

#[test]
fn a_program_may_say_that_data_has_come() {
    let (server_channel, _listener, port) = listener(PortSpace::Tcp);
    let (channel, client) = resolved(PortSpace::Tcp, port);
    assert!(client.notify(AsyncEvent::PortActive(1)).is_err(), "no connection");
    let (_end, (server, server_end)) = connect_by_hand(&client, &channel, &server_channel);
    // The client is not ready, so there is no RTU.
    let number = server_end.qp.qpn();
    server.notify(AsyncEvent::QpLastWqeReached(number)).unwrap();
    assert!(server_channel.take().is_none(), "that means nothing");
    server.notify(AsyncEvent::CommEst(number)).unwrap();
    assert_eq!(expect(&server_channel, EventType::Established).id(), &server);
    client.establish().unwrap();
}
