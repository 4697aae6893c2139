//! Calls that wait for their end: identifiers without an event channel.

#![allow(clippy::unwrap_used)]

mod ends;

use std::thread;
use std::time::{Duration, Instant};

use ends::*;
use ibverbs_api::{AccessFlags, DmaBuf, QpType, RecvWr, SendData, SendFlags, SendOp, SendWr};
use rdma_cm::{
    AddrHints, AddrInfo, ConnParam, Endpoint, EndpointError, EndpointQp, EventParam, EventType,
    JoinState, PortSpace, RejReason, addr_info,
};

fn info(service: &str, passive: bool, qp_type: QpType) -> AddrInfo {
    let port_space = if qp_type == QpType::Ud { PortSpace::Udp } else { PortSpace::Tcp };
    let hints = AddrHints { passive, port_space, qp_type, ..AddrHints::default() };
    addr_info(Some("127.0.0.1"), Some(service), &hints).unwrap()[0]
}

/// An endpoint that listens, and its port.
fn listening(qp_type: QpType) -> (Endpoint, String) {
    let endpoint = Endpoint::create(&info("0", true, qp_type), recipe(qp_type)).unwrap();
    endpoint.listen(0).unwrap();
    let port = endpoint.id().local_addr().unwrap().port();
    (endpoint, port.to_string())
}

fn recipe(qp_type: QpType) -> Option<EndpointQp> {
    Some(EndpointQp::new(qp_type))
}

fn client(port: &str, qp_type: QpType) -> Endpoint {
    Endpoint::create(&info(port, false, qp_type), recipe(qp_type)).unwrap()
}

#[test]
fn a_conversation_without_one_event() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let (listener, port) = listening(qp_type);
        let server = thread::spawn(move || {
            let (server, asked) = listener.get_request().unwrap();
            let EventParam::Conn(asked) = asked else { panic!("{asked:?}") };
            assert!(asked.private_data.starts_with(b"hello"));
            assert_eq!(server.id().qp_type(), qp_type);
            let param = ConnParam { private_data: b"welcome".to_vec(), ..ConnParam::default() };
            server.accept(&param).unwrap();
            server
        });
        let client = client(&port, qp_type);
        let param = ConnParam { private_data: b"hello".to_vec(), ..ConnParam::default() };
        let EventParam::Conn(answer) = client.connect(&param).unwrap() else { panic!() };
        assert!(answer.private_data.starts_with(b"welcome"));
        let server = server.join().unwrap();
        let both = thread::spawn(move || server.disconnect().map(|()| server));
        client.disconnect().unwrap();
        let server = both.join().unwrap().unwrap();
        // Once more there is nothing to wait for.
        client.disconnect().unwrap();
        server.disconnect().unwrap();
    }
}

#[test]
fn messages_complete_in_the_queues_that_were_made() {
    let (listener, port) = listening(QpType::Rc);
    let server = thread::spawn(move || {
        let (server, _) = listener.get_request().unwrap();
        server.accept(&ConnParam::default()).unwrap();
        server
    });
    let endpoint = Endpoint::create(&info(&port, false, QpType::Rc), None).unwrap();
    let pd = endpoint.id().verbs().unwrap().alloc_pd().unwrap();
    let recipe = EndpointQp { pd: Some(pd.clone()), ..EndpointQp::new(QpType::Rc) };
    endpoint.create_qp(&recipe).unwrap();
    let memory = pd.register(DmaBuf::zeroed(64), AccessFlags::LOCAL_WRITE).unwrap();
    let qp = endpoint.id().qp().unwrap();
    qp.post_recv(RecvWr { wr_id: 1, sges: &[memory.sge(0..64)] }).unwrap();
    endpoint.connect(&ConnParam::default()).unwrap();
    let server = server.join().unwrap();
    let (flags, data) = (SendFlags::SIGNALED, SendData::Inline(b"x"));
    let op = SendOp::Send { imm: None };
    let wr = SendWr { wr_id: 2, op, flags, data, srq_number: None };
    server.id().qp().unwrap().post_send(&wr).unwrap();
    assert_eq!(endpoint.recv_cq().unwrap().wait_one(SOON).unwrap().wr_id, 1);
    assert_eq!(server.send_cq().unwrap().wait_one(SOON).unwrap().wr_id, 2);
}

#[test]
fn datagrams_wait_for_their_answer_alone() {
    let (listener, port) = listening(QpType::Ud);
    let server = thread::spawn(move || {
        let (server, _) = listener.get_request().unwrap();
        server.accept(&ConnParam::default()).unwrap();
        server.id().qp().unwrap().qpn()
    });
    let client = client(&port, QpType::Ud);
    let EventParam::Ud(found) = client.connect(&ConnParam::default()).unwrap() else { panic!() };
    assert_eq!(found.qpn, server.join().unwrap());
    let group = "239.1.2.4".parse().unwrap();
    let error = client.join_multicast(group, JoinState::FullMember).unwrap_err();
    assert_eq!(error.errno(), 22, "groups come first, as in Linux");
    let member = Endpoint::new(PortSpace::Udp).unwrap();
    member.resolve_addr(None, "127.0.0.1:7".parse().unwrap()).unwrap();
    let joined = member.join_multicast(group, JoinState::FullMember).unwrap();
    assert_eq!((joined.av.dgid.to_ip(), joined.qpn.get()), (group, 0xff_ffff));
}

#[test]
fn a_refusal_is_an_error_that_says_why() {
    let (listener, port) = listening(QpType::Rc);
    let server = thread::spawn(move || {
        let (server, _) = listener.get_request().unwrap();
        server.id().reject(b"no", RejReason::CONSUMER_DEFINED).unwrap();
    });
    let error = client(&port, QpType::Rc).connect(&ConnParam::default()).unwrap_err();
    server.join().unwrap();
    assert_eq!(error.errno(), 111);
    let EndpointError::Event { event, status, private_data } = error else { panic!("{error}") };
    assert_eq!((event, status), (EventType::Rejected, 28));
    assert!(private_data.starts_with(b"no"));
    // Nobody listens there.
    let error = client("1", QpType::Rc).connect(&ConnParam::default()).unwrap_err();
    assert_eq!(error.errno(), 111);
}

/// Of the disconnection of what is not connected nothing would come, and librdmacm waits for it.
#[test]
fn what_is_not_connected_yet_cannot_be_ended_by_waiting() {
    let (listener, port) = listening(QpType::Rc);
    let asking = client(&port, QpType::Rc);
    asking.id().connect(&ConnParam::default()).unwrap();
    let (server, _) = listener.get_request().unwrap();
    let start = Instant::now();
    for end in [&asking, &server] {
        let error = end.disconnect().unwrap_err();
        assert_eq!(error.errno(), 22, "{error}");
        assert!(end.id().disconnect().is_ok(), "as in Linux");
    }
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[test]
fn a_call_that_waits_is_ended_by_destroying() {
    let (listener, _) = listening(QpType::Rc);
    let id = listener.id().clone();
    let start = Instant::now();
    let call = thread::spawn(move || listener.get_request().map(drop));
    thread::sleep(Duration::from_millis(50));
    assert!(!call.is_finished());
    id.destroy();
    let error = call.join().unwrap().unwrap_err();
    assert!(matches!(error, EndpointError::Destroyed), "{error}");
    assert_eq!(error.errno(), 125);

    // A request that nobody answers is waited for a minute, unless it is given up.
    let (_channel, _silent, port) = ends::listener(PortSpace::Tcp);
    let connecting = client(&port.to_string(), QpType::Rc);
    let id = connecting.id().clone();
    let call = thread::spawn(move || connecting.connect(&ConnParam::default()).map(drop));
    thread::sleep(Duration::from_millis(50));
    assert!(!call.is_finished());
    id.destroy();
    assert!(matches!(call.join().unwrap().unwrap_err(), EndpointError::Destroyed));
    assert!(start.elapsed() < Duration::from_secs(10));
}
