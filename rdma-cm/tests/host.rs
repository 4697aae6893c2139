//! Interfaces and addresses that come and go: each test is a program of its own in a network
//! namespace of its own.

#![allow(clippy::unwrap_used)]

mod ends;

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use ends::*;
use ibverbs_api::QpType;
use rdma_cm::{
    CmId, ConnParam, Event, EventChannel, EventType, JoinState, PortSpace, RejReason, ResolveError,
};
use testkit::netns::{Namespace, with_namespaces};

/// Runs a test of this file that is called `inner_` and the name, in a namespace.
fn in_a_namespace(name: &str) {
    in_a_namespace_as(name, &[]);
}

/// Likewise, by a program that starts it.
fn in_a_namespace_as(name: &str, starter: &[&str]) {
    with_namespaces(name, || {
        let namespace = Namespace::new("cm").unwrap();
        let own = std::env::current_exe().unwrap();
        let words: Vec<_> = starter.iter().map(AsRef::as_ref).chain([own.as_os_str()]).collect();
        let mut command = namespace.command(words[0]);
        command.args(&words[1..]);
        command.args(["--exact", "--ignored", "--nocapture", &format!("inner_{name}")]);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("1 passed"), "{text}");
    });
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// Makes the interfaces cm0, with an address, and its other end cm1.
fn make_interfaces() {
    ip("link add cm0 type veth peer name cm1");
    ip("link set cm0 up");
    ip("link set cm1 up");
    ip("addr add 10.99.0.1/24 dev cm0");
}

/// Binds to an address as soon as a device has it.
fn bind_soon(channel: &EventChannel, address: &str) -> CmId {
    let address: SocketAddr = address.parse().unwrap();
    let start = Instant::now();
    loop {
        let id = CmId::create(channel, PortSpace::Tcp);
        match id.bind_addr(address) {
            Ok(()) => return id,
            Err(error) => assert!(start.elapsed() < SOON, "{address}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Connects to a listener at an address, from whatever address the host chooses; both ends are
/// given, and stay.
fn connect_to(address: &str, channel: &EventChannel) -> (CmId, CmId, (End, End)) {
    let own = EventChannel::new().unwrap();
    let start = Instant::now();
    loop {
        let id = CmId::create(&own, PortSpace::Tcp);
        id.resolve_addr(None, address.parse().unwrap()).unwrap();
        let event = own.wait(SOON).unwrap().unwrap();
        if event.event() == EventType::AddrResolved {
            id.resolve_route().unwrap();
            expect(&own, EventType::RouteResolved);
            let client_end = End::new(&id, QpType::Rc);
            id.connect(&ConnParam::default()).unwrap();
            match either(channel, &own) {
                request if request.event() == EventType::ConnectRequest => {
                    let server = request.id().clone();
                    let server_end = End::new(&server, QpType::Rc);
                    server.accept(&ConnParam::default()).unwrap();
                    expect(&own, EventType::Established);
                    expect(channel, EventType::Established);
                    client_end.send(b"x");
                    assert_eq!(server_end.received(), b"x");
                    return (id, server, (client_end, server_end));
                }
                // Nobody listens there yet.
                other => assert_eq!((other.event(), other.status()), (EventType::Rejected, 8)),
            }
        }
        assert!(start.elapsed() < SOON, "{address}: {event:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The next event of two channels.
fn either(one: &EventChannel, other: &EventChannel) -> Event {
    let start = Instant::now();
    loop {
        if let Some(event) = one.take().or_else(|| other.take()) {
            return event;
        }
        assert!(start.elapsed() < SOON, "no event");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_address_that_comes_later_is_served() {
    in_a_namespace("an_address_that_comes_later_is_served");
}

#[test]
#[ignore = "run by the test of that name"]
fn inner_an_address_that_comes_later_is_served() {
    make_interfaces();
    let channel = EventChannel::new().unwrap();
    let wildcard = CmId::create(&channel, PortSpace::Tcp);
    wildcard.bind_addr("0.0.0.0:7174".parse().unwrap()).unwrap();
    wildcard.listen(0).unwrap();
    let _first = bind_soon(&channel, "10.99.0.1:7000");
    let _made = connect_to("10.99.0.1:7174", &channel);
    ip("addr add 10.99.0.2/24 dev cm0");
    let _second = bind_soon(&channel, "10.99.0.2:7000");
    let _made = connect_to("10.99.0.2:7174", &channel);
    // So is an interface that comes later.
    ip("link add cm2 type veth peer name cm3");
    ip("link set cm2 up");
    ip("link set cm3 up");
    ip("addr add 10.98.0.1/24 dev cm2");
    let _third = bind_soon(&channel, "10.98.0.1:7000");
    let _made = connect_to("10.98.0.1:7174", &channel);
}

#[test]
fn a_device_receives_as_soon_as_its_address_can_be_bound() {
    in_a_namespace("a_device_receives_as_soon_as_its_address_can_be_bound");
}

#[test]
#[ignore = "run by the test of that name"]
fn inner_a_device_receives_as_soon_as_its_address_can_be_bound() {
    make_interfaces();
    for number in 2..40 {
        ip(&format!("addr add 10.99.0.{number}/24 dev cm0"));
        let channel = EventChannel::new().unwrap();
        let address = format!("10.99.0.{number}:7174");
        let id = CmId::create(&channel, PortSpace::Tcp);
        let start = Instant::now();
        id.bind_addr(address.parse().unwrap()).unwrap();
        id.listen(0).unwrap();
        let _made = connect_to(&address, &channel);
        // A message that is lost comes again after 4.6 s.
        assert!(start.elapsed() < Duration::from_secs(2), "{number}: {:?}", start.elapsed());
    }
}

#[test]
fn where_there_is_no_route_it_is_said_at_once() {
    in_a_namespace("where_there_is_no_route_it_is_said_at_once");
}

#[test]
#[ignore = "run by the test of that name"]
fn inner_where_there_is_no_route_it_is_said_at_once() {
    make_interfaces();
    let channel = EventChannel::new().unwrap();
    for source in [None, Some("10.99.0.1:0".parse().unwrap())] {
        let id = CmId::create(&channel, PortSpace::Tcp);
        let error = id.resolve_addr(source, "192.0.2.1:7".parse().unwrap()).unwrap_err();
        assert!(matches!(error, ResolveError::NoRoute { .. }), "{error}");
        assert_eq!(error.errno(), 101);
        // It may be tried again.
        id.resolve_addr(None, "10.99.0.7:7".parse().unwrap()).unwrap();
        expect(&channel, EventType::AddrResolved);
    }
}

#[test]
fn an_address_without_a_device_is_no_way() {
    let name = "an_address_without_a_device_is_no_way";
    in_a_namespace_as(name, &["env", "URXE_DEVICES=cm1"]);
}

#[test]
#[ignore = "run by the test of that name"]
fn inner_an_address_without_a_device_is_no_way() {
    make_interfaces();
    let channel = EventChannel::new().unwrap();
    let id = CmId::create(&channel, PortSpace::Tcp);
    id.resolve_addr(None, "10.99.0.7:7174".parse().unwrap()).unwrap();
    assert_eq!(expect(&channel, EventType::AddrError).status(), -19);
}

#[test]
fn the_host_says_whether_ipv6_is_ipv4_too() {
    in_a_namespace("the_host_says_whether_ipv6_is_ipv4_too");
}

#[test]
#[ignore = "run by the test of that name"]
fn inner_the_host_says_whether_ipv6_is_ipv4_too() {
    make_interfaces();
    let channel = EventChannel::new().unwrap();
    let bind = |address: &str, only: Option<bool>| {
        let id = CmId::create(&channel, PortSpace::Tcp);
        only.map_or(Ok(()), |only| id.set_af_only(only)).unwrap();
        let bound = id.bind_addr(address.parse().unwrap());
        bound.map(|()| id).map_err(|error| error.errno())
    };
    let all = bind("[::]:7001", None).unwrap();
    assert_eq!(bind("0.0.0.0:7001", None).err(), Some(99));
    all.destroy();
    std::fs::write("/proc/sys/net/ipv6/bindv6only", "1").unwrap();
    let _ipv6 = bind("[::]:7001", None).unwrap();
    let _ipv4 = bind("0.0.0.0:7001", None).unwrap();
    // A program may say otherwise.
    let _both = bind("[::]:7002", Some(false)).unwrap();
    assert_eq!(bind("0.0.0.0:7002", None).err(), Some(99));
}

#[test]
fn ports_of_well_known_services_need_a_privilege() {
    in_a_namespace_as(
        "ports_of_well_known_services_need_a_privilege",
        &["setpriv", "--bounding-set=-net_bind_service", "--inh-caps=-net_bind_service"],
    );
}

#[test]
#[ignore = "run by the test of that name"]
fn inner_ports_of_well_known_services_need_a_privilege() {
    let channel = EventChannel::new().unwrap();
    let bind = |port| {
        let id = CmId::create(&channel, PortSpace::Tcp);
        id.bind_addr(lo(port)).map(|()| id).map_err(|error| error.errno())
    };
    assert_eq!(bind(1023).err(), Some(13));
    assert!(bind(1024).is_ok() && bind(0).is_ok());
    std::fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "80").unwrap();
    assert_eq!(bind(79).err(), Some(13));
    assert!(bind(80).is_ok());
}

#[test]
fn an_address_that_goes_before_the_route_is_resolved() {
    in_a_namespace("an_address_that_goes_before_the_route_is_resolved");
}

#[test]
#[ignore = "run by the test of that name"]
fn inner_an_address_that_goes_before_the_route_is_resolved() {
    make_interfaces();
    let channel = EventChannel::new().unwrap();
    let id = CmId::create(&channel, PortSpace::Tcp);
    let source: SocketAddr = "10.99.0.1:0".parse().unwrap();
    id.resolve_addr(Some(source), "10.99.0.7:7174".parse().unwrap()).unwrap();
    expect(&channel, EventType::AddrResolved);
    let member = CmId::create(&channel, PortSpace::Udp);
    member.bind_addr(source).unwrap();
    let verbs = id.verbs().unwrap();
    ip("addr del 10.99.0.1/24 dev cm0");
    let start = Instant::now();
    let has_it = |entry: &ibverbs_api::GidEntry| entry.gid.to_ip() == source.ip();
    while verbs.query_gid_table().unwrap().iter().any(has_it) {
        assert!(start.elapsed() < SOON, "the address stays");
    }
    id.resolve_route().unwrap();
    assert_eq!(expect(&channel, EventType::RouteError).status(), -19);
    let group = "239.1.2.3".parse().unwrap();
    member.join_multicast(group, JoinState::FullMember).unwrap();
    assert_eq!(expect(&channel, EventType::MulticastError).status(), -19);
    assert!(member.leave_multicast(group).is_err());
}

#[test]
fn another_hardware_address_is_told_of() {
    in_a_namespace("another_hardware_address_is_told_of");
}

#[test]
#[ignore = "run by the test of that name"]
fn inner_another_hardware_address_is_told_of() {
    make_interfaces();
    let channel = EventChannel::new().unwrap();
    let id = bind_soon(&channel, "10.99.0.1:7174");
    id.listen(0).unwrap();
    let (client, server, _ends) = connect_to("10.99.0.1:7174", &channel);
    assert!(channel.wait(Duration::from_millis(100)).unwrap().is_none(), "nothing has changed");
    ip("link set cm0 address 02:11:22:33:44:55");
    let told: Vec<_> = (0..2).map(|_| expect(&channel, EventType::AddrChange)).collect();
    for id in [&id, &server] {
        assert_eq!(told.iter().filter(|event| event.id() == id).count(), 1, "{told:?}");
    }
    assert!(client.verbs().is_some());
}

#[test]
fn a_device_that_goes_is_told_of() {
    in_a_namespace("a_device_that_goes_is_told_of");
}

#[test]
#[ignore = "run by the test of that name"]
fn inner_a_device_that_goes_is_told_of() {
    make_interfaces();
    let channel = EventChannel::new().unwrap();
    let wildcard_channel = EventChannel::new().unwrap();
    let wildcard = CmId::create(&wildcard_channel, PortSpace::Tcp);
    wildcard.bind_addr("[::]:7175".parse().unwrap()).unwrap();
    wildcard.listen(0).unwrap();
    let id = bind_soon(&channel, "10.99.0.1:7174");
    id.listen(0).unwrap();
    let (client, server, ends) = connect_to("10.99.0.1:7174", &channel);
    ip("link del cm0");
    let told: Vec<_> = (0..2).map(|_| expect(&channel, EventType::DeviceRemoval)).collect();
    for id in [&id, &server] {
        assert_eq!(told.iter().filter(|event| event.id() == id).count(), 1, "{told:?}");
    }
    drop(told);
    assert!(client.disconnect().is_ok(), "its end is no news");
    assert!(client.reject(&[], RejReason::CONSUMER_DEFINED).is_err(), "it can only be destroyed");
    assert!(server.accept(&ConnParam::default()).is_err());
    let later = CmId::create(&channel, PortSpace::Tcp);
    let resolved = later.resolve_addr(None, "10.99.0.1:7174".parse().unwrap());
    match resolved {
        Ok(()) => assert!(expect(&channel, EventType::AddrError).status() < 0),
        Err(error) => assert!(matches!(error, ResolveError::NoRoute { .. }), "{error}"),
    }
    for id in [client, server, id] {
        id.destroy();
    }
    drop(ends);
    assert!(rdma_cm::finish(Duration::from_secs(5)));
    // One of the same name comes: it is another device, and who listens everywhere does so there.
    make_interfaces();
    let _bound = bind_soon(&channel, "10.99.0.1:7174");
    let _made = connect_to("10.99.0.1:7175", &wildcard_channel);
}

#[test]
fn a_device_that_its_program_declares_lost_is_gone() {
    in_a_namespace("a_device_that_its_program_declares_lost_is_gone");
}

#[test]
#[ignore = "run by the test of that name"]
fn inner_a_device_that_its_program_declares_lost_is_gone() {
    let (channel, id, _port) = listener(PortSpace::Tcp);
    id.verbs().unwrap().declare_lost();
    assert_eq!(expect(&channel, EventType::DeviceRemoval).id(), &id);
    id.destroy();
    // Another one is opened by the same name.
    let (channel, _id, port) = listener(PortSpace::Tcp);
    let _made = connect_to(&lo(port).to_string(), &channel);
}
