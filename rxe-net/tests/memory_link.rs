//! The memory link as a network: who gets what, when, and what is lost where.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gid_table::{Gid, GidType};
use proptest::prelude::*;
use rxe_core::path::{Path, Transmit};
use rxe_core::time::Instant;
use rxe_net::batch::TxBatch;
use rxe_net::faults::{FaultSpec, Faults, FaultyLink};
use rxe_net::link::{Link, TransmitReport};
use rxe_net::memory::{
    AddPortError, AttachError, Fabric, MemoryLink, PortConfig, PortCounters, ReceiveLimits,
};
use rxe_wire::Qpn;

const MICRO: u64 = 1_000;

fn path(source: &str, destination: &str) -> Path {
    Path {
        traffic_class: 0x20,
        ..Path::new(source.parse().expect("a GID"), destination.parse().expect("a GID"))
    }
}

fn v4() -> Path {
    path("10.0.0.1", "10.0.0.2")
}

/// An RC SEND_ONLY with immediate to `qpn`, with `number` as its PSN and `payload` behind it.
fn packet(qpn: u32, number: u32, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x05, 0, 0xff, 0xff, 0];
    packet.extend(&qpn.to_be_bytes()[1..]);
    packet.extend(number.to_be_bytes());
    packet.extend([0; 4]);
    packet.extend(payload);
    packet
}

fn psn(packet: &[u8]) -> u32 {
    u32::from_be_bytes(packet[8..12].try_into().expect("4 bytes"))
}

fn send_all(link: &mut impl Link, now: Instant, path: Path, packets: &[Vec<u8>]) -> TransmitReport {
    let mut batch = TxBatch::new();
    for packet in packets {
        let qpn = u32::from_be_bytes([0, packet[5], packet[6], packet[7]]);
        let transmit = Transmit { len: packet.len(), path, dest_qpn: Qpn::new(qpn) };
        assert!(batch.push_copy(packet, transmit, None));
    }
    let report = link.transmit(now, &mut batch);
    assert!(batch.is_empty(), "a transmitted batch is empty");
    report
}

fn numbered(count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|number| packet(0x01_0000, number, b"payload.")).collect()
}

fn receive_all(link: &mut MemoryLink, now: Instant) -> Vec<(Path, Vec<u8>)> {
    let mut got = Vec::new();
    loop {
        let before = got.len();
        let count = link
            .receive(now, &mut |path, packet| got.push((*path, packet.to_vec())))
            .expect("memory does not fail");
        assert_eq!(count, got.len() - before);
        if count == 0 {
            return got;
        }
    }
}

fn psns(got: &[(Path, Vec<u8>)]) -> Vec<u32> {
    got.iter().map(|(_, packet)| psn(packet)).collect()
}

/// Two ports with one link each, of slot 1.
fn pair_of(left: PortConfig, right: PortConfig) -> (Fabric, MemoryLink, MemoryLink) {
    let fabric = Fabric::new();
    let left = fabric.add_port(left).expect("free addresses");
    let right = fabric.add_port(right).expect("free addresses");
    let links = [left, right].map(|port| fabric.attach(port, 1).expect("a free slot"));
    let [left, right] = links;
    (fabric, left, right)
}

fn pair() -> (Fabric, MemoryLink, MemoryLink) {
    pair_of(PortConfig::numbered(1), PortConfig::numbered(2))
}

fn port_counters(link: &MemoryLink) -> PortCounters {
    link.fabric().port_counters(link.port()).expect("its port")
}

#[test]
fn every_encapsulation_arrives_as_it_was_sent() {
    let vlans = PortConfig { vlans: vec![7], ..PortConfig::numbered(2) };
    let (_, mut left, mut right) = pair_of(PortConfig::numbered(1), vlans);
    let default = |number| Gid::default_for_mac([2, 0, 0, 0, 0, number]);
    let v6 = Path { flow_label: 0x12345, ..path("fd00::1", "fd00::2") };
    let v1 = Path { gid_type: GidType::RoceV1, ..v4() };
    let v1_default = Path { source: default(1), destination: default(2), ..v1 };
    for path in [v4(), v6, v1, v1_default] {
        for vlan in [None, Some(7)] {
            let path = Path { vlan, ..path };
            let packet = packet(0x01_0203, 9, b"hello, world");
            let report = send_all(&mut left, Instant::ZERO, path, std::slice::from_ref(&packet));
            assert_eq!(report, TransmitReport { sent: 1, lost: 0 });
            assert_eq!(receive_all(&mut right, Instant::ZERO), [(path, packet)]);
        }
    }
    assert!(receive_all(&mut left, Instant::ZERO).is_empty());
    assert_eq!((left.counters().sent, right.counters().received), (8, 8));
}

#[test]
fn a_port_reaches_itself() {
    let (_, mut left, _right) = pair();
    send_all(&mut left, Instant::ZERO, path("10.0.0.1", "10.0.0.1"), &numbered(1));
    assert_eq!(receive_all(&mut left, Instant::ZERO).len(), 1);
}

#[test]
fn what_cannot_be_sent_is_lost_and_counted() {
    let (fabric, mut left, mut right) = pair();
    let lost = TransmitReport { sent: 0, lost: 1 };
    let one = numbered(1);
    let default = Gid::default_for_mac([2, 0, 0, 0, 0, 1]);
    for (path, packets) in [
        (path("10.0.0.1", "10.0.0.99"), &one),
        (path("10.0.0.1", "fd00::2"), &one),
        (path("10.0.0.77", "10.0.0.2"), &one),
        (Path { source: default, ..path("fd00::1", "fd00::2") }, &one),
        (v4(), &vec![packet(0x01_0000, 0, &[0; 1480])]),
    ] {
        assert_eq!(send_all(&mut left, Instant::ZERO, path, packets), lost, "{path:?}");
    }
    fabric.set_up(left.port(), false);
    assert_eq!(send_all(&mut left, Instant::ZERO, v4(), &one), lost);
    let expected = PortCounters {
        no_neighbour: 2,
        not_owned: 2,
        too_long: 1,
        down: 1,
        ..PortCounters::default()
    };
    assert_eq!(port_counters(&left), expected);
    assert_eq!(left.counters().send_errors, 6);
    assert!(receive_all(&mut right, Instant::ZERO).is_empty());
}

#[test]
fn a_packet_of_the_mtu_fits() {
    let (_, mut left, mut right) = pair();
    // IPv4 20, UDP 8, BTH 12, immediate 4, iCRC 4: 48 bytes around the payload.
    send_all(&mut left, Instant::ZERO, v4(), &[packet(0x01_0000, 0, &[0; 1452])]);
    assert_eq!(receive_all(&mut right, Instant::ZERO).len(), 1);
}

#[test]
fn a_vlan_that_the_port_does_not_take_is_passed_over() {
    let (_, mut left, mut right) = pair();
    send_all(&mut left, Instant::ZERO, Path { vlan: Some(7), ..v4() }, &numbered(1));
    assert!(receive_all(&mut right, Instant::ZERO).is_empty());
    assert_eq!(port_counters(&right).not_for_us, 1);
}

#[test]
fn a_full_receive_queue_drops_like_a_socket() {
    let (_, mut left, mut right) = pair();
    let kilobytes: Vec<_> = (0..100).map(|n| packet(0x01_0000, n, &[0; 1024])).collect();
    send_all(&mut left, Instant::ZERO, v4(), &kilobytes);
    assert_eq!(psns(&receive_all(&mut right, Instant::ZERO)), (0..92).collect::<Vec<_>>());
    assert_eq!(port_counters(&right).receive_overflow, 8);
    // What was fetched made room.
    send_all(&mut left, Instant::ZERO, v4(), &numbered(300));
    assert_eq!(receive_all(&mut right, Instant::ZERO).len(), 256);
}

#[test]
fn latency_and_rate_take_their_time() {
    // An IPv4 frame of 70 bytes: 560 bits, 560 ns at 1 Gbit/s.
    let slow = PortConfig {
        latency_nanos: 10 * MICRO,
        bits_per_second: Some(1_000_000_000),
        ..PortConfig::numbered(1)
    };
    let (fabric, mut left, mut right) = pair_of(slow, PortConfig::numbered(2));
    let start = Instant::from_nanos(5);
    send_all(&mut left, start, v4(), &numbered(2));
    let first = start.plus_nanos(560 + 10 * MICRO);
    assert_eq!(fabric.next_event_time(), Some(first));
    assert_eq!(right.poll_timeout(), Some(first));
    assert!(receive_all(&mut right, Instant::from_nanos(first.as_nanos() - 1)).is_empty());
    assert_eq!(psns(&receive_all(&mut right, first)), [0]);
    let second = first.plus_nanos(560);
    assert_eq!(fabric.next_event_time(), Some(second));
    fabric.advance(second);
    assert_eq!(fabric.next_event_time(), None);
    assert_eq!(psns(&receive_all(&mut right, second)), [1]);
    // The other direction is as fast as its own port.
    send_all(&mut right, second, path("10.0.0.2", "10.0.0.1"), &numbered(1));
    assert_eq!(receive_all(&mut left, second).len(), 1);
}

fn faulty(text: &str) -> PortConfig {
    let faults = text.parse::<FaultSpec>().expect("right faults");
    PortConfig { faults: Some(faults), ..PortConfig::numbered(1) }
}

fn roomy(number: u8) -> PortConfig {
    let receive = ReceiveLimits { packets: usize::MAX, truesize: usize::MAX };
    PortConfig { receive, ..PortConfig::numbered(number) }
}

/// Runs the fabric until nothing is on its way; what came out at the right port.
fn settle(fabric: &Fabric, right: &mut MemoryLink) -> Vec<u32> {
    let mut got = psns(&receive_all(right, Instant::ZERO));
    while let Some(now) = fabric.next_event_time() {
        fabric.advance(now);
        got.extend(psns(&receive_all(right, now)));
    }
    got
}

#[test]
fn faults_lose_double_and_move_packets() {
    let (fabric, mut left, mut right) =
        pair_of(faulty("seed=5,drop=10%,dup=10%,reorder=10%"), roomy(2));
    send_all(&mut left, Instant::ZERO, v4(), &numbered(1000));
    let got = settle(&fabric, &mut right);
    let stats = left.fault_stats();
    assert!(stats.dropped > 50 && stats.duplicated > 50 && stats.reordered > 50, "{stats:?}");
    assert_eq!(got.len() as u64, 1000 - stats.dropped + stats.duplicated);
    assert!(!got.is_sorted());
    assert_eq!(left.counters().faults, stats.total());
}

#[test]
fn delayed_packets_come_later() {
    let (fabric, mut left, mut right) =
        pair_of(faulty("delay=1ms..2ms,until=1packets"), PortConfig::numbered(2));
    send_all(&mut left, Instant::ZERO, v4(), &numbered(2));
    assert_eq!(psns(&receive_all(&mut right, Instant::ZERO)), [1]);
    let due = fabric.next_event_time().expect("one is held");
    assert!((1_000_000..=2_000_000).contains(&due.as_nanos()), "{due:?}");
    left.handle_timeout(due);
    assert_eq!(psns(&receive_all(&mut right, due)), [0]);
}

#[test]
fn corrupt_packets_do_not_get_through_as_they_were() {
    let (_, mut left, mut right) = pair_of(faulty("seed=1,corrupt=100%"), roomy(2));
    let sent = numbered(1000);
    send_all(&mut left, Instant::ZERO, v4(), &sent);
    let got = receive_all(&mut right, Instant::ZERO);
    // One byte of BTH, of 28 in the packet, is not covered: congestion marks change on the way.
    for (_, packet) in &got {
        let mut original = sent[psn(packet) as usize].clone();
        assert_ne!(*packet, original);
        original[4] = packet[4];
        assert_eq!(*packet, original);
    }
    let errors = right.counters().icrc_errors;
    assert!((930..1000).contains(&errors), "{errors}");
    assert_eq!(errors as usize + got.len(), 1000);
}

#[test]
fn any_link_gets_faults_by_one_in_front() {
    let (fabric, left, mut right) = pair_of(PortConfig::numbered(1), roomy(2));
    let spec = "seed=2,drop=20%,dup=20%,delay=1ms,delay-prob=20%";
    let faults = Faults::new(spec.parse().expect("right faults"), 0);
    let mut left = FaultyLink::new(left, faults);
    let report = send_all(&mut left, Instant::ZERO, v4(), &numbered(200));
    assert_eq!(report, TransmitReport { sent: 200, lost: 0 });
    let mut got = psns(&receive_all(&mut right, Instant::ZERO));
    let due = left.poll_timeout().expect("some are held");
    assert_eq!((due, fabric.next_event_time()), (Instant::from_nanos(1_000_000), None));
    left.handle_timeout(due);
    assert_eq!(left.poll_timeout(), None);
    got.extend(psns(&receive_all(&mut right, due)));
    let stats = left.fault_stats();
    assert!(stats.dropped > 0 && stats.duplicated > 0 && stats.delayed > 0, "{stats:?}");
    assert_eq!(got.len() as u64, 200 - stats.dropped + stats.duplicated);
    assert_eq!(left.counters().faults, stats.total());
}

#[test]
fn other_faults_let_go_what_the_old_ones_held() {
    let (fabric, mut left, mut right) = pair_of(faulty("delay=1s"), PortConfig::numbered(2));
    send_all(&mut left, Instant::ZERO, v4(), &numbered(3));
    assert!(receive_all(&mut right, Instant::ZERO).is_empty());
    fabric.set_faults(Instant::ZERO, left.port(), None);
    fabric.advance(Instant::ZERO);
    assert_eq!(psns(&receive_all(&mut right, Instant::ZERO)), [0, 1, 2]);
}

#[test]
fn packets_go_to_the_link_of_their_slot() {
    let (fabric, mut left, mut right) = pair();
    let mut second = fabric.attach(right.port(), 2).expect("a free slot");
    let to = |qpn, number| packet(qpn, number, b"");
    let packets = [to(0x01_0005, 0), to(0x02_0005, 1), to(0x03_0005, 2), to(1, 3)];
    send_all(&mut left, Instant::ZERO, v4(), &packets);
    assert_eq!(psns(&receive_all(&mut second, Instant::ZERO)), [1]);
    assert_eq!(psns(&receive_all(&mut right, Instant::ZERO)), [0, 2, 3]);

    drop(right);
    send_all(&mut left, Instant::ZERO, v4(), &packets);
    assert_eq!(psns(&receive_all(&mut second, Instant::ZERO)), [0, 1, 2, 3]);
}

#[test]
fn links_may_share_a_slot_by_address() {
    let fabric = Fabric::new();
    let left = fabric.add_port(PortConfig::numbered(1)).expect("free addresses");
    let port = fabric.add_port(PortConfig::numbered(2)).expect("free addresses");
    let mut left = fabric.attach(left, 1).expect("a free slot");
    let (v4, v6) = (v4(), path("fd00::1", "fd00::2"));
    let attach = |to: Path| fabric.attach_to(port, 1, to.destination);
    let mut first = attach(v4).expect("free");
    let mut second = attach(v6).expect("free");
    for collision in [attach(v6), fabric.attach(port, 1)] {
        assert_eq!(collision.map(|_| ()), Err(AttachError::SlotInUse { port, slot: 1 }));
    }
    let Err(AttachError::NoSuchAddress { gid, .. }) = attach(path("fd00::1", "fd00::3")) else {
        panic!("port 2 has no such address")
    };
    assert_eq!(gid, path("fd00::1", "fd00::3").destination);

    send_all(&mut left, Instant::ZERO, v6, &numbered(1));
    assert!(receive_all(&mut first, Instant::ZERO).is_empty());
    assert_eq!(receive_all(&mut second, Instant::ZERO).len(), 1);
    // Each sends from its own address only; what is for no link's address is refused.
    let back = Path { source: v4.destination, destination: v4.source, ..v4 };
    assert_eq!(send_all(&mut second, Instant::ZERO, back, &numbered(1)).lost, 1);
    assert_eq!(send_all(&mut first, Instant::ZERO, back, &numbered(1)).sent, 1);
    drop(second);
    send_all(&mut left, Instant::ZERO, v6, &numbered(1));
    assert!(left.poll_unreachable().is_some());
}

#[test]
fn r49_members_of_a_group_get_a_copy_each() {
    for group in ["239.1.2.3", "ff0e::5"] {
        let (fabric, mut left, mut right) = pair();
        let third = fabric.add_port(PortConfig::numbered(3)).expect("free addresses");
        let mut third = fabric.attach(third, 1).expect("a free slot");
        let group: Gid = group.parse().expect("a group");
        let source = if group.to_ipv4().is_some() { "10.0.0.1" } else { "fd00::1" };
        let path = Path { destination: group, ..path(source, source) };
        let packets = [packet(0xff_ffff, 4, b"")];

        assert_eq!(send_all(&mut left, Instant::ZERO, path, &packets).sent, 1);
        right.join(group);
        left.join(group);
        send_all(&mut left, Instant::ZERO, path, &packets);
        for link in [&mut left, &mut right] {
            assert_eq!(receive_all(link, Instant::ZERO), [(path, packets[0].clone())]);
        }
        assert!(receive_all(&mut third, Instant::ZERO).is_empty());
        right.leave(group);
        send_all(&mut left, Instant::ZERO, path, &packets);
        assert!(receive_all(&mut right, Instant::ZERO).is_empty());
    }
}

#[test]
fn r49_a_link_of_a_group_gets_that_groups_packets_alone() {
    let (fabric, mut left, mut right) = pair();
    let group: Gid = "239.1.2.3".parse().expect("a group");
    let path = Path { destination: group, ..v4() };
    let packets = [packet(0xff_ffff, 4, b"")];
    let mut members = fabric.attach_group(right.port(), group).expect("a port");
    assert!(fabric.attach_group(right.port(), group).is_err(), "a port has one");
    send_all(&mut left, Instant::ZERO, path, &packets);
    send_all(&mut left, Instant::ZERO, v4(), &numbered(1));
    assert_eq!(receive_all(&mut members, Instant::ZERO), [(path, packets[0].clone())]);
    assert_eq!(receive_all(&mut right, Instant::ZERO).len(), 1);
    drop(members);
    fabric.attach_group(right.port(), group).expect("free again");
}

#[test]
fn a_port_where_nobody_listens_is_told_of() {
    let (_, mut left, right) = pair();
    drop(right);
    send_all(&mut left, Instant::ZERO, v4(), &[packet(0x01_0203, 77, b"")]);
    let hint = left.poll_unreachable().expect("a hint");
    assert_eq!(hint.destination, v4().destination);
    assert_eq!((hint.dest_qpn.get(), hint.psn.get()), (0x01_0203, 77));
    assert_eq!(left.poll_unreachable(), None);
    assert_eq!(left.counters().unreachable, 1);
}

#[test]
fn an_unplugged_port_swallows_everything() {
    let (fabric, mut left, mut right) = pair();
    fabric.set_up(right.port(), false);
    assert_eq!(send_all(&mut left, Instant::ZERO, v4(), &numbered(3)).sent, 3);
    assert!(receive_all(&mut right, Instant::ZERO).is_empty());
    assert_eq!(port_counters(&right).down, 3);
    assert!(!fabric.interface_info(right.port()).expect("its port").running);
    fabric.set_up(right.port(), true);
    send_all(&mut left, Instant::ZERO, v4(), &numbered(1));
    assert_eq!(receive_all(&mut right, Instant::ZERO).len(), 1);
}

#[test]
fn addresses_belong_to_one_port_and_may_move() {
    let (fabric, mut left, mut right) = pair();
    let other = left.port();
    let addr = "10.0.0.1".parse().expect("an address");
    let taken = PortConfig { mac: [2, 0, 0, 0, 0, 9], ..PortConfig::numbered(1) };
    assert_eq!(fabric.add_port(taken), Err(AddPortError::AddressInUse { addr, other }));
    let same = PortConfig { addrs: vec![], ..PortConfig::numbered(1) };
    assert_eq!(fabric.add_port(same), Err(AddPortError::MacInUse { other }));
    let error = fabric.set_addresses(right.port(), vec![addr]);
    assert_eq!(error, Err(AddPortError::AddressInUse { addr, other }));

    let moved = vec!["10.0.0.9".parse().expect("an address")];
    fabric.set_addresses(right.port(), moved.clone()).expect("free");
    assert_eq!(fabric.interface_info(right.port()).expect("its port").addrs, moved);
    assert_eq!(send_all(&mut left, Instant::ZERO, v4(), &numbered(1)).lost, 1);
    send_all(&mut left, Instant::ZERO, path("10.0.0.1", "10.0.0.9"), &numbered(1));
    assert_eq!(receive_all(&mut right, Instant::ZERO).len(), 1);
}

#[test]
fn a_slot_is_attached_once() {
    let (fabric, left, right) = pair();
    let port = right.port();
    let taken = fabric.attach(port, 1).map(|_| ());
    assert_eq!(taken, Err(AttachError::SlotInUse { port, slot: 1 }));
    drop(right);
    fabric.attach(port, 1).expect("free again");
    let other = Fabric::new();
    let missing = other.attach(left.port(), 1).map(|_| ());
    assert_eq!(missing, Err(AttachError::NoSuchPort { port: left.port() }));
}

#[test]
fn a_sleeper_is_woken() {
    let late = PortConfig { latency_nanos: MICRO, ..PortConfig::numbered(1) };
    let (fabric, mut left, mut right) = pair_of(late, PortConfig::numbered(2));
    let wakes = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&wakes);
    let handle = fabric.clone();
    right.set_waker(Some(Arc::new(move || {
        // The fabric is not locked here.
        handle.next_event_time();
        counter.fetch_add(1, Ordering::Relaxed);
    })));
    send_all(&mut left, Instant::ZERO, v4(), &numbered(3));
    assert_eq!(wakes.load(Ordering::Relaxed), 1, "its timeout has come nearer");
    fabric.advance(Instant::from_nanos(MICRO));
    assert_eq!(wakes.load(Ordering::Relaxed), 2, "something is there");
    assert_eq!(receive_all(&mut right, Instant::from_nanos(MICRO)).len(), 3);
}

#[test]
fn a_file_descriptor_rings_until_it_is_answered() {
    let (_fabric, mut left, mut right) = pair();
    assert!(right.poll_fd().is_none());
    right.open_poll_fd().expect("a pair of sockets");
    let fd = right.poll_fd().expect("opened").try_clone().expect("a descriptor");
    let bell = std::os::unix::net::UnixStream::from(fd);
    let is_ringing = || {
        let mut byte = [0];
        std::io::Read::read(&mut &bell, &mut byte).is_ok_and(|count| count == 1)
    };
    assert!(!is_ringing());
    send_all(&mut left, Instant::ZERO, v4(), &numbered(3));
    assert!(is_ringing());
    assert!(!is_ringing(), "it rings once for what comes together");
    assert_eq!(receive_all(&mut right, Instant::ZERO).len(), 3);
    send_all(&mut left, Instant::ZERO, v4(), &numbered(1));
    assert_eq!(receive_all(&mut right, Instant::ZERO).len(), 1);
    assert!(!is_ringing(), "answered");
}

#[test]
fn threads_may_share_a_fabric() {
    let (_fabric, mut left, mut right) = pair_of(roomy(1), roomy(2));
    let (thread, waker) = (std::thread::current(), AtomicUsize::new(0));
    let waker = Arc::new(waker);
    let woken = Arc::clone(&waker);
    right.set_waker(Some(Arc::new(move || {
        woken.fetch_add(1, Ordering::SeqCst);
        thread.unpark();
    })));
    let sender = std::thread::spawn(move || {
        for number in 0..1000 {
            let packets = [packet(0x01_0000, number, b"")];
            assert_eq!(send_all(&mut left, Instant::ZERO, v4(), &packets).sent, 1);
        }
        left
    });
    let mut got = Vec::new();
    while got.len() < 1000 {
        let seen = waker.load(Ordering::SeqCst);
        got.extend(psns(&receive_all(&mut right, Instant::ZERO)));
        if got.len() < 1000 && waker.load(Ordering::SeqCst) == seen {
            std::thread::park();
        }
    }
    assert_eq!(got, (0..1000).collect::<Vec<_>>());
    sender.join().expect("no panic");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every packet that was sent is accounted for, and equal runs are equal.
    #[test]
    fn packets_are_conserved_and_runs_repeat(
        seed: u64,
        [drop, dup, reorder, corrupt] in [0..30_u32, 0..30_u32, 0..30_u32, 0..30_u32],
        latency_nanos in 0..5 * MICRO,
        bits_per_second in prop::option::of(1_000_000..10_000_000_000_u64),
        batches in prop::collection::vec(1..40_u32, 1..10),
        capacity in 1..100_usize,
    ) {
        let text = format!(
            "seed={seed},drop={drop}%,dup={dup}%,reorder={reorder}%,corrupt={corrupt}%,\
             delay=1us..9us,delay-prob=10%"
        );
        let run = || {
            let left = PortConfig { latency_nanos, bits_per_second, ..faulty(&text) };
            let receive = ReceiveLimits { packets: capacity, truesize: usize::MAX };
            let right = PortConfig { receive, ..PortConfig::numbered(2) };
            let (fabric, mut left, mut right) = pair_of(left, right);
            let mut now = Instant::ZERO;
            for &count in &batches {
                let report = send_all(&mut left, now, v4(), &numbered(count));
                assert_eq!(report, TransmitReport { sent: count as usize, lost: 0 });
                now = now.plus_nanos(3 * MICRO);
            }
            let got = settle(&fabric, &mut right);
            (got, left.fault_stats(), port_counters(&left), port_counters(&right),
                right.counters())
        };
        let first = run();
        prop_assert_eq!(&first, &run());
        let (got, stats, sender, receiver, counters) = first;
        prop_assert_eq!(stats.packets, u64::from(batches.iter().sum::<u32>()));
        prop_assert_eq!(sender.sent, stats.packets - stats.dropped + stats.duplicated);
        prop_assert_eq!(counters.received, got.len() as u64);
        let arrived = counters.received + counters.icrc_errors + receiver.receive_overflow;
        prop_assert_eq!(sender.sent, arrived);
        prop_assert_eq!((receiver.not_for_us, receiver.unattached), (0, 0));
    }
}
