//! The UDP link over the loopback interface, each test on addresses of its own, or where the one
//! address of IPv6 is its own.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant as Clock};

use gid_table::{Gid, GidType};
use rxe_core::path::{Path, Transmit};
use rxe_core::time::Instant;
use rxe_net::batch::TxBatch;
use rxe_net::link::{Link, TransmitReport};
use rxe_net::udp::{BindError, ROCE_PORT, UdpConfig, UdpLink};
use rxe_wire::icrc::{IcrcFlow, seal_l3};
use rxe_wire::{Psn, Qpn};
use testkit::netns::alone;

/// Address `host` of test `test`: in 127/8, and different in test runs at the same time.
fn address(test: u8, host: u8) -> IpAddr {
    let run = (std::process::id() % 0x1000) as u16;
    Ipv4Addr::new(127, 64 + (run >> 6) as u8, (run << 2) as u8 | test >> 4, test << 4 | host).into()
}

/// The one IPv6 address that every host has: for tests that are alone.
fn ipv6() -> IpAddr {
    std::net::Ipv6Addr::LOCALHOST.into()
}

fn open(config: UdpConfig) -> UdpLink {
    UdpLink::open(config).expect("a link")
}

fn link(address: IpAddr, slot: u8) -> UdpLink {
    open(UdpConfig::new(address, slot))
}

fn path(from: IpAddr, to: IpAddr) -> Path {
    Path { traffic_class: 0x22, hop_limit: 33, ..Path::new(Gid::from_ip(from), Gid::from_ip(to)) }
}

/// A packet from BTH on: a BTH to `qpn` with PSN `seed`, then bytes that depend on `seed`.
fn packet(qpn: u32, seed: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0x0a, 0, 0xff, 0xff];
    bytes.extend(qpn.to_be_bytes());
    bytes.extend(seed.to_be_bytes());
    bytes.extend((12..len).map(|at| (at as u32).wrapping_mul(seed | 1).to_le_bytes()[1]));
    bytes
}

fn put(batch: &mut TxBatch, path: &Path, bytes: &[u8]) {
    batch.room().expect("room")[..bytes.len()].copy_from_slice(bytes);
    let dest_qpn = Qpn::new(u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]));
    batch.commit(Transmit { len: bytes.len(), path: *path, dest_qpn });
}

/// Receives until `count` packets are there, or some seconds have passed.
fn collect(link: &mut UdpLink, count: usize) -> Vec<(Path, Vec<u8>)> {
    let mut found = Vec::new();
    let end = Clock::now() + Duration::from_secs(5);
    while found.len() < count && Clock::now() < end {
        let got =
            link.receive_with(Instant::ZERO, |path, bytes| found.push((*path, bytes.to_vec())));
        if got.expect("receive") == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    found
}

fn bytes_of(found: &[(Path, Vec<u8>)]) -> Vec<Vec<u8>> {
    found.iter().map(|(_, bytes)| bytes.clone()).collect()
}

/// Nothing more comes, in the time that loopback takes many times over.
fn assert_quiet(link: &mut UdpLink) {
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(link.receive_with(Instant::ZERO, |_, _| ()).expect("receive"), 0);
}

#[test]
fn packets_arrive_equal_over_ipv4_and_ipv6() {
    alone(|| {
        for (address, slot) in [(address(1, 1), 9), (ipv6(), 11)] {
            for gso in [true, false] {
                let mut link = open(UdpConfig { gso, ..UdpConfig::new(address, slot) });
                let path = path(address, address);
                let qpn = u32::from(slot) << 16 | 0x11;
                let mut batch = TxBatch::new();
                let sent: Vec<_> = (0..50).map(|seed| packet(qpn, seed, 1048)).collect();
                sent.iter().for_each(|bytes| put(&mut batch, &path, bytes));
                let report = link.transmit(Instant::ZERO, &mut batch);
                assert_eq!(report, TransmitReport { sent: 50, lost: 0 });
                assert!(batch.is_empty());
                let found = collect(&mut link, 50);
                assert_eq!(bytes_of(&found), sent);
                for (came, _) in &found {
                    assert_eq!(*came, path);
                }
                let counters = link.counters();
                assert_eq!((counters.received, counters.icrc_errors), (50, 0));
                assert_eq!(counters.received_bytes, 50 * 1048);
                assert_eq!((counters.sent, counters.sent_bytes), (50, 50 * 1052));
                assert_eq!(counters.send_calls, if gso { 1 } else { 2 });
            }
        }
    });
}

#[test]
fn each_packet_of_a_batch_keeps_its_ecn_bits() {
    alone(|| {
        for (address, slot) in [(address(1, 2), 9), (ipv6(), 13)] {
            let mut link = link(address, slot);
            let mut batch = TxBatch::new();
            // ECN capable (2), and "congestion experienced" (3): coalesced runs never mix them.
            let classes = [2, 2, 3, 3, 3, 2, 3, 2];
            for (seed, class) in (0..).zip(classes) {
                let path = Path { traffic_class: class, ..path(address, address) };
                put(&mut batch, &path, &packet(u32::from(slot) << 16, seed, 200));
            }
            link.transmit(Instant::ZERO, &mut batch);
            let found = collect(&mut link, classes.len());
            let came: Vec<u8> = found.iter().map(|(path, _)| path.traffic_class).collect();
            assert_eq!(came, classes);
        }
    });
}

#[test]
fn the_flow_label_travels_over_ipv6() {
    alone(|| {
        let mut link = link(ipv6(), 12);
        let labelled = Path { flow_label: 0x1_2345, ..path(ipv6(), ipv6()) };
        let mut batch = TxBatch::new();
        put(&mut batch, &labelled, &packet(0x0c_0001, 1, 64));
        assert_eq!(link.transmit(Instant::ZERO, &mut batch).sent, 1);
        assert_eq!(collect(&mut link, 1)[0].0, labelled);
    });
}

#[test]
fn mixed_sizes_and_destinations_keep_their_order() {
    let mut sender = link(address(2, 1), 7);
    let mut receivers = [link(address(2, 2), 9), link(address(2, 3), 9)];
    let paths = [2, 3].map(|host| path(address(2, 1), address(2, host)));
    let sizes = [12, 16, 1048, 1048, 300, 4112, 4112, 4112, 20, 1048, 1048, 12, 12, 12];
    let mut batch = TxBatch::new();
    let mut sent = [Vec::new(), Vec::new()];
    for seed in 0..90_u32 {
        let to = (seed / 5) as usize % 2;
        // Slots change within the batch too, so the sockets that send do.
        let qpn = 0x09_0000 + (seed % 3 / 2) * 0x01_0000;
        let bytes = packet(qpn, seed, sizes[seed as usize % sizes.len()]);
        put(&mut batch, &paths[to], &bytes);
        sent[to].push(bytes);
    }
    assert_eq!(sender.transmit(Instant::ZERO, &mut batch).sent, 90);
    for (receiver, sent) in receivers.iter_mut().zip(sent) {
        assert_eq!(bytes_of(&collect(receiver, sent.len())), sent);
        assert_eq!(receiver.counters().icrc_errors, 0);
    }
}

#[test]
fn packets_of_every_length_arrive() {
    let (mut sender, mut receiver) = (link(address(3, 1), 7), link(address(3, 2), 9));
    let path = path(address(3, 1), address(3, 2));
    let mut batch = TxBatch::new();
    for base in (12..=4096_usize).step_by(172) {
        let sent: Vec<_> =
            (0..20).map(|seed| packet(0x09_0000, seed, base + seed as usize / 7)).collect();
        sent.iter().for_each(|bytes| put(&mut batch, &path, bytes));
        sender.transmit(Instant::ZERO, &mut batch);
        assert_eq!(bytes_of(&collect(&mut receiver, 20)), sent, "from {base} bytes");
    }
    let largest = packet(0x09_0000, 1, TxBatch::MAX_PACKET);
    put(&mut batch, &path, &largest);
    sender.transmit(Instant::ZERO, &mut batch);
    assert_eq!(bytes_of(&collect(&mut receiver, 1)), [largest]);
}

#[test]
fn corrupted_packets_are_dropped_and_counted() {
    alone(|| {
        // Bits of 200 bytes and the iCRC. Byte 4 is not covered; bytes 5 to 7 decide the steering.
        // Over IPv4 none of these is explained by an identification, or this fails each time.
        let bits = [0, 31, 64, 96, 500, 8 * 200 - 1, 8 * 200, 8 * 204 - 1];
        for (address, slot) in [(address(4, 1), 9), (ipv6(), 14)] {
            let mut link = link(address, slot);
            let qpn = u32::from(slot) << 16 | 1;
            let mut batch = TxBatch::new();
            let mut good = Vec::new();
            for (seed, bit) in (0..).zip(bits) {
                put(&mut batch, &path(address, address), &packet(qpn, seed, 200));
                batch.set_flip(batch.len() - 1, Some(bit));
                good.push(packet(qpn, 1000 + seed, 200));
                put(&mut batch, &path(address, address), &good[seed as usize]);
            }
            assert_eq!(link.transmit(Instant::ZERO, &mut batch).sent, 2 * bits.len());
            assert_eq!(bytes_of(&collect(&mut link, good.len())), good);
            assert_quiet(&mut link);
            assert_eq!(link.counters().icrc_errors, bits.len() as u64);
        }
    });
}

#[test]
fn every_flipped_bit_is_found_over_ipv6() {
    alone(|| {
        let mut link = link(ipv6(), 15);
        let mut batch = TxBatch::new();
        let bytes = packet(0x0f_0001, 9, 60);
        let path = path(ipv6(), ipv6());
        // The slot must stay, and byte 4 is not covered.
        let bits: Vec<u32> = (0..64 * 8).filter(|bit| !(32..48).contains(bit)).collect();
        for chunk in bits.chunks(64) {
            for (index, bit) in chunk.iter().enumerate() {
                put(&mut batch, &path, &bytes);
                batch.set_flip(index, Some(*bit));
            }
            link.transmit(Instant::ZERO, &mut batch);
            assert_quiet(&mut link);
        }
        assert_eq!(link.counters().icrc_errors, bits.len() as u64);
    });
}

#[test]
fn r35_runts_and_giants_are_dropped_and_counted() {
    let mut link = link(address(5, 1), 9);
    let stranger = UdpSocket::bind((address(5, 2), 0)).expect("bind");
    for len in [0, 1, 7, 15, 5000] {
        stranger.send_to(&vec![0x5a; len], (address(5, 1), ROCE_PORT)).expect("send");
    }
    stranger.send_to(&[0x5a; 48], (address(5, 1), ROCE_PORT)).expect("send");
    assert_quiet(&mut link);
    assert_eq!(link.counters().malformed, 5);
    assert_eq!(link.counters().icrc_errors, 1);
}

#[test]
fn what_does_not_belong_on_the_link_is_lost_not_sent() {
    let mut link = link(address(6, 1), 9);
    let good = path(address(6, 1), address(6, 1));
    let mut batch = TxBatch::new();
    for wrong in [
        Path { gid_type: GidType::RoceV1, ..good },
        Path { source: Gid::from_ip(address(6, 2)), ..good },
        Path { destination: Gid::from_ip(ipv6()), ..good },
        Path { vlan: Some(5), ..good },
    ] {
        put(&mut batch, &wrong, &packet(0x09_0001, 1, 40));
        put(&mut batch, &good, &packet(0x09_0001, 2, 40));
    }
    let report = link.transmit(Instant::ZERO, &mut batch);
    assert_eq!(report, TransmitReport { sent: 4, lost: 4 });
    assert_eq!(link.counters().foreign, 4);
    assert_eq!(collect(&mut link, 4).len(), 4);
}

#[test]
fn what_came_to_a_link_for_other_shards_is_given_away_when_it_closes() {
    let to = address(23, 1);
    let mut sender = link(address(23, 2), 1);
    let mut stays = link(to, 9);
    // One in the middle, and the last: each leaves another way of numbering.
    let mut found = Vec::new();
    for slots in [[5, 200], [200, 5]] {
        let leaving = slots.map(|slot| link(to, slot));
        let mut batch = TxBatch::new();
        for slot in 20..80 {
            // Slots that nobody has: the kernel spreads them by their source ports.
            put(&mut batch, &path(address(23, 2), to), &packet(slot << 16, slot, 60));
        }
        assert_eq!(sender.transmit(Instant::ZERO, &mut batch).sent, 60);
        let before = found.len();
        for link in leaving {
            Box::new(link).close(Instant::ZERO, &mut |_, bytes| found.push(bytes.to_vec()));
        }
        assert!(found.len() > before, "all came to the one that stays: the test shows nothing");
    }
    let rest = collect(&mut stays, 120 - found.len());
    assert_eq!(found.len() + rest.len(), 120);
    // The one that stays gets what is for it.
    let mut batch = TxBatch::new();
    put(&mut batch, &path(address(23, 2), to), &packet(0x09_0001, 1, 60));
    sender.transmit(Instant::ZERO, &mut batch);
    assert_eq!(collect(&mut stays, 1).len(), 1);
}

#[test]
fn packets_go_to_the_shard_of_their_slot() {
    let to = address(7, 1);
    let mut sender = link(address(7, 2), 1);
    let slots = [5, 9, 200];
    let mut shards: Vec<_> = slots.into_iter().map(|slot| (slot, link(to, slot))).collect();
    let mut check = |shards: &mut Vec<(u8, UdpLink)>| {
        let mut batch = TxBatch::new();
        let path = path(address(7, 2), to);
        for seed in 0..60_u32 {
            let slot = shards[seed as usize % shards.len()].0;
            put(&mut batch, &path, &packet(u32::from(slot) << 16 | 3, seed, 100));
        }
        sender.transmit(Instant::ZERO, &mut batch);
        let count = 60 / shards.len();
        for (slot, shard) in shards {
            let found = collect(shard, count);
            assert_eq!(found.len(), count);
            assert!(found.iter().all(|(_, bytes)| bytes[5] == *slot));
            assert_quiet(shard);
        }
    };
    check(&mut shards);
    // The first leaves: the kernel moves the last into its place.
    shards.remove(0);
    check(&mut shards);
    shards.push((77, link(to, 77)));
    check(&mut shards);

    // A packet to a slot that nobody has comes to some shard, which can forward it.
    let mut batch = TxBatch::new();
    put(&mut batch, &path(address(7, 2), to), &packet(1, 8, 100));
    sender.transmit(Instant::ZERO, &mut batch);
    std::thread::sleep(Duration::from_millis(20));
    let came: usize = shards
        .iter_mut()
        .map(|(_, shard)| shard.receive_with(Instant::ZERO, |_, _| ()).expect("receive"))
        .sum();
    assert_eq!(came, 1);
}

#[test]
fn bad_addresses_and_taken_ports_are_told_apart() {
    let open = |address, slot| UdpLink::open(UdpConfig::new(address, slot));
    let taken = address(8, 1);
    let holder = UdpSocket::bind((taken, ROCE_PORT)).expect("bind");
    let error = open(taken, 1).expect_err("taken");
    assert!(matches!(error, BindError::PortTaken { address } if address == taken));
    assert!(error.to_string().contains("is rdma_rxe loaded on this host?"), "{error}");
    drop(holder);
    let first = open(taken, 1).expect("free again");
    let error = open(taken, 1).expect_err("the slot");
    assert!(matches!(error, BindError::SlotTaken { slot: 1, .. }), "{error}");
    open(taken, 2).expect("another slot");
    drop(first);
    open(taken, 1).expect("the slot is free again");

    // An address of documentation, RFC 5737.
    let error = open("192.0.2.1".parse().expect("ip"), 1).expect_err("not local");
    assert!(matches!(error, BindError::NotLocal { .. }), "{error}");
}

#[test]
fn a_dead_peer_does_not_disturb_a_healthy_one() {
    let (from, dead) = (address(9, 1), address(9, 3));
    let mut sender = link(from, 1);
    let mut healthy = link(address(9, 2), 9);
    let mut batch = TxBatch::new();
    let mut hints = BTreeSet::new();
    for round in 0..10_u32 {
        // One slot, so all share a socket, where the errors wait.
        let sent: Vec<_> = (0..10).map(|n| packet(0x09_0042, round * 100 + n, 64)).collect();
        for (seed, bytes) in (0..).zip(&sent) {
            put(&mut batch, &path(from, dead), &packet(0x09_0666, round * 100 + seed, 64));
            put(&mut batch, &path(from, address(9, 2)), bytes);
        }
        let report = sender.transmit(Instant::ZERO, &mut batch);
        assert_eq!(report, TransmitReport { sent: 20, lost: 0 });
        assert_eq!(bytes_of(&collect(&mut healthy, 10)), sent, "round {round}");
        while let Some(hint) = sender.poll_unreachable() {
            assert_eq!(hint.destination, Gid::from_ip(dead));
            assert_eq!(hint.dest_qpn, Qpn::new(0x09_0666));
            hints.insert(hint.psn.get());
        }
    }
    assert!(hints.len() > 50, "{} of 100 were told", hints.len());
    assert!(hints.contains(&Psn::new(203).get()));
    assert!(sender.counters().unreachable >= hints.len() as u64);
}

/// Sends IPv4 packets with a header of its own making; `None` without the right to.
struct RawSender(std::os::fd::OwnedFd);

impl RawSender {
    fn open() -> Option<Self> {
        use std::os::fd::FromRawFd;
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_RAW) };
        if fd < 0 {
            let ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
            assert!(!ci, "raw sockets are needed under CI: {}", std::io::Error::last_os_error());
            eprintln!("SKIPPED: a foreign sender needs a raw socket, which needs root");
            return None;
        }
        // SAFETY: `fd` is open, and nobody else's.
        Some(Self(unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) }))
    }

    /// Sends `bth` in IPv4 and UDP with this identification, "don't fragment" and checksum 0.
    fn send(&self, from: Ipv4Addr, to: Ipv4Addr, id: u16, dont_fragment: bool, bth: &[u8]) {
        use std::os::fd::AsRawFd;
        let udp_len = 8 + bth.len() + 4;
        let mut bytes = vec![0x45, 0x02];
        bytes.extend((20 + udp_len as u16).to_be_bytes());
        bytes.extend(id.to_be_bytes());
        bytes.extend([if dont_fragment { 0x40 } else { 0 }, 0, 61, 17, 0, 0]);
        bytes.extend(from.octets());
        bytes.extend(to.octets());
        bytes.extend(0xd123_u16.to_be_bytes());
        bytes.extend(ROCE_PORT.to_be_bytes());
        bytes.extend((udp_len as u16).to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(bth);
        bytes.extend([0; 4]);
        seal_l3(&mut bytes).expect("a packet");
        let mut name = [0; 16];
        name[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        name[4..8].copy_from_slice(&to.octets());
        // SAFETY: both pointers are to initialised bytes of the lengths given, which outlive the
        // call; the kernel only reads them.
        let sent = unsafe {
            libc::sendto(
                self.0.as_raw_fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                0,
                name.as_ptr().cast(),
                16,
            )
        };
        assert_eq!(sent, bytes.len() as isize, "{}", std::io::Error::last_os_error());
    }
}

fn v4(address: IpAddr) -> Ipv4Addr {
    match address {
        IpAddr::V4(v4) => v4,
        IpAddr::V6(_) => panic!("an IPv4 address is wanted"),
    }
}

#[test]
fn foreign_senders_with_any_identification_are_accepted() {
    let Some(raw) = RawSender::open() else { return };
    let to = address(10, 1);
    let mut receiver = link(to, 9);
    // 0 is left out: the kernel replaces it even here. Each sender counts, from anywhere and with
    // gaps, and sets "don't fragment" or does not.
    let senders: [(&[u16], bool); 4] = [
        (&[1, 2, 3, 38, 77, 76], true),
        (&[0x8000, 0x8001, 0x8003, 0x8100], true),
        (&[0xfffe, 0xffff, 5, 300], true),
        (&[0x1234, 0x1235, 0x1240], false),
    ];
    let mut seed = 0;
    for (number, (ids, dont_fragment)) in (2..).zip(senders) {
        let from = address(10, number);
        for &id in ids {
            let bytes = packet(0x09_0001, seed, 12 + 60 * seed as usize);
            raw.send(v4(from), v4(to), id, dont_fragment, &bytes);
            let found = collect(&mut receiver, 1);
            assert_eq!(bytes_of(&found), [bytes], "identification {id}");
            assert_eq!(found[0].0, Path { hop_limit: 61, traffic_class: 2, ..path(from, to) });
            seed += 1;
        }
    }
    // One that follows no order is believed from its third packet on.
    let from = address(10, 9);
    for id in [0x4000, 0x9000, 0x2000] {
        raw.send(v4(from), v4(to), id, true, &packet(0x09_0001, seed, 100));
    }
    for id in [0xc000, 0x6000] {
        raw.send(v4(from), v4(to), id, true, &packet(0x09_0001, seed, 100));
    }
    assert_eq!(collect(&mut receiver, 3).len(), 3);
    assert_eq!(receiver.counters().icrc_errors, 2);
    assert_eq!(receiver.counters().received, seed as u64 + 3);
}

#[test]
fn the_identification_is_0_and_up_as_an_exact_checker_expects() {
    // What the link sends is checked by the rules of the wire: packet k of a segmented send
    // carries identification k. A socket shows the iCRC, and so which identification it is for.
    let (from, to) = (address(11, 1), address(11, 2));
    let receiver = UdpSocket::bind((to, ROCE_PORT)).expect("bind");
    receiver.set_read_timeout(Some(Duration::from_secs(5))).expect("timeout");
    let mut sender = link(from, 1);
    let mut batch = TxBatch::new();
    for seed in 0..5 {
        // Two equal ones, a shorter one that ends the run, then two of another run.
        let len = [100, 100, 60, 80, 80][seed as usize];
        put(&mut batch, &path(from, to), &packet(0x09_0001, seed, len));
    }
    assert_eq!(sender.transmit(Instant::ZERO, &mut batch).sent, 5);
    for (seed, identification) in [0, 1, 2, 0, 1].into_iter().enumerate() {
        let mut bytes = [0; 200];
        let (len, source) = receiver.recv_from(&mut bytes).expect("a packet");
        assert_eq!(source.ip(), from);
        assert!(source.port() >= 0xc000);
        let (bytes, icrc) = bytes[..len].split_last_chunk().expect("an iCRC");
        assert_eq!(bytes[11], seed as u8);
        let flow = IcrcFlow::v4(v4(from), v4(to), source.port());
        assert_eq!(flow.icrc(identification, bytes), u32::from_le_bytes(*icrc), "packet {seed}");
    }
}
