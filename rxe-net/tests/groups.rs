//! Multicast groups over UDP sockets, on the loopback interface.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant as Clock};

use gid_table::Gid;
use rxe_core::multicast::MULTICAST_QPN;
use rxe_core::path::{Path, Transmit};
use rxe_core::time::Instant;
use rxe_net::batch::TxBatch;
use rxe_net::link::{Link, TransmitReport};
use rxe_net::udp::{BufferSizes, UdpConfig, UdpGroup, UdpGroupConfig, UdpLink};

/// The index of `lo`.
const LO: u32 = 1;

/// A group, other in test runs at the same time.
fn group(number: u8) -> Gid {
    let run = std::process::id();
    Gid::from_ip(Ipv4Addr::new(239, 77 ^ (run >> 8) as u8, run as u8, number).into())
}

fn join(group: Gid) -> UdpGroup {
    let buffers = BufferSizes::default();
    UdpGroup::open(UdpGroupConfig { group, ifindex: LO, buffers }).expect("joined")
}

/// A link that sends, of a slot of its own for each test.
fn sender(slot: u8) -> UdpLink {
    let run = std::process::id();
    let address: IpAddr = Ipv4Addr::new(127, 99, (run >> 8) as u8, run as u8).into();
    let config = UdpConfig { multicast_ifindex: LO, ..UdpConfig::new(address, slot) };
    UdpLink::open(config).expect("a link")
}

/// Sends packets of `len` bytes to a group, all in one batch.
fn send(link: &mut UdpLink, to: Gid, count: u8, len: usize) -> TransmitReport {
    let path = Path { hop_limit: 7, traffic_class: 0x22, ..Path::new(link.gid(), to) };
    let mut batch = TxBatch::new();
    for number in 0..count {
        let room = batch.room().expect("room");
        room[..len].fill(number);
        room[..12].copy_from_slice(&[0x64, 0, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0, 0, 0, number]);
        batch.commit(Transmit { len, path, dest_qpn: MULTICAST_QPN });
    }
    link.transmit(Instant::ZERO, &mut batch)
}

/// Receives until `count` packets are there, or some seconds have passed, and then what more there
/// is.
fn collect(link: &mut UdpGroup, count: usize) -> Vec<(Path, Vec<u8>)> {
    let mut found = Vec::new();
    let end = Clock::now() + Duration::from_secs(5);
    while found.len() < count && Clock::now() < end {
        let mut sink = |path: &Path, bytes: &[u8]| found.push((*path, bytes.to_vec()));
        if link.receive(Instant::ZERO, &mut sink).expect("receive") == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    std::thread::sleep(Duration::from_millis(20));
    let mut sink = |path: &Path, bytes: &[u8]| found.push((*path, bytes.to_vec()));
    link.receive(Instant::ZERO, &mut sink).expect("receive");
    found
}

#[test]
fn r49_each_socket_of_a_group_gets_all_that_is_sent_to_it_and_nothing_else() {
    let mut sender = sender(1);
    let (mut one, mut two, mut other) = (join(group(1)), join(group(1)), join(group(2)));
    assert_eq!(send(&mut sender, group(1), 20, 100), TransmitReport { sent: 20, lost: 0 });
    for member in [&mut one, &mut two] {
        let came = collect(member, 20);
        assert_eq!(came.len(), 20);
        for (number, (path, bytes)) in (0..).zip(&came) {
            assert_eq!((path.source, path.destination), (sender.gid(), group(1)));
            assert_eq!((path.hop_limit, path.traffic_class), (7, 0x22));
            assert_eq!((bytes.len(), bytes[11], bytes[99]), (100, number, number));
        }
        assert_eq!(member.counters().icrc_errors, 0);
    }
    assert_eq!(collect(&mut other, 0), []);
    // The sender is in no group.
    let alone = sender.receive_with(Instant::ZERO, |_, _| ()).expect("receive");
    assert_eq!(alone, 0);
}

#[test]
fn r49_a_group_that_was_left_gets_nothing_more() {
    let mut sender = sender(2);
    let mut stays = join(group(3));
    drop(join(group(3)));
    send(&mut sender, group(3), 1, 40);
    assert_eq!(collect(&mut stays, 1).len(), 1);
    drop(stays);
    let mut again = join(group(3));
    send(&mut sender, group(3), 2, 40);
    assert_eq!(collect(&mut again, 2).len(), 2);
}

#[test]
fn nothing_leaves_from_a_group() {
    let mut member = join(group(4));
    let path = Path::new(group(4), group(4));
    let mut batch = TxBatch::new();
    batch.room().expect("room")[..12].fill(0);
    batch.commit(Transmit { len: 12, path, dest_qpn: MULTICAST_QPN });
    let report = member.transmit(Instant::ZERO, &mut batch);
    assert_eq!((report, batch.len()), (TransmitReport { sent: 0, lost: 1 }, 0));
}
