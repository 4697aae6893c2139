//! Packets and frames written by hand, before this crate was read, by someone who knew only the
//! layouts (`vectors_blind.txt`), against what this crate makes of them.
//!
//! The iCRCs in that file come from `testdata/icrc_frames.py`, which shares no code with it.
#![allow(clippy::unwrap_used, reason = "a test may panic in its helpers too")]

use std::collections::BTreeMap;

use rxe_wire::icrc::Encapsulation;
use rxe_wire::net::{Frame, FrameBuilder, Net};
use rxe_wire::{ExtHeaders, NakCode, Operation, Packet, Service, Syndrome, SyndromeKind};

const FILE: &str = include_str!("vectors_blind.txt");

/// One section of the file.
#[derive(Default)]
struct Vector {
    /// `packet` or `frame`.
    kind: String,
    name: String,
    bytes: Vec<u8>,
    expected: BTreeMap<String, String>,
}

/// What was decoded: a number, or text and hex that are compared letter by letter.
#[derive(PartialEq, Debug)]
enum Found {
    Number(u64),
    Text(String),
}

type FoundMap = BTreeMap<&'static str, Found>;

/// The sections of the file of one kind. Panics on a line that is not of its format.
fn vectors(kind: &str) -> Vec<Vector> {
    let mut all: Vec<Vector> = Vec::new();
    for line in FILE.lines() {
        let text = line.split('#').next().unwrap_or_default().trim();
        if text.is_empty() {
            continue;
        }
        if let Some(title) = text.strip_prefix('[') {
            let (kind, name) = title.strip_suffix(']').unwrap().split_once(' ').unwrap();
            all.push(Vector { kind: kind.into(), name: name.into(), ..Vector::default() });
            continue;
        }
        let vector = all.last_mut().unwrap();
        if let Some((key, value)) = text.split_once('=') {
            let old = vector.expected.entry(key.into()).or_default();
            assert!(old.is_empty() || key == "payload", "{}: {key} twice", vector.name);
            old.push_str(value);
        } else {
            let byte = |text| u8::from_str_radix(text, 16).unwrap();
            vector.bytes.extend(text.split_whitespace().map(byte));
        }
    }
    all.retain(|vector| vector.kind == kind);
    all
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn number(text: &str) -> u64 {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
        None => text.parse().unwrap(),
    }
}

/// The headers' names in the order of the wire. CNP's 16 reserved bytes count as one where they
/// are all zero.
fn header_names(packet: &Packet<'_>) -> String {
    let mut names = vec![(0, "BTH")];
    for (header, name) in [
        (ExtHeaders::RDETH, "RDETH"),
        (ExtHeaders::DETH, "DETH"),
        (ExtHeaders::XRCETH, "XRCETH"),
        (ExtHeaders::FETH, "FETH"),
        (ExtHeaders::RETH, "RETH"),
        (ExtHeaders::ATOMIC_ETH, "AtomicETH"),
        (ExtHeaders::AETH, "AETH"),
        (ExtHeaders::ATOMIC_ACK_ETH, "AtomicAckETH"),
        (ExtHeaders::IMM_DT, "ImmDt"),
        (ExtHeaders::IETH, "IETH"),
    ] {
        if let Some(offset) = packet.info().offset_of(header) {
            names.push((offset, name));
        }
    }
    if packet.info().operation == Operation::Cnp && packet.payload() == [0; 16] {
        names.push((packet.info().header_len(), "CNP"));
    }
    names.sort_unstable();
    names.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(",")
}

fn service_name(service: Service) -> &'static str {
    match service {
        Service::Rc => "RC",
        Service::Uc => "UC",
        Service::Rd => "RD",
        Service::Ud => "UD",
        Service::Cnp => "CNP",
        Service::Xrc => "XRC",
    }
}

/// All that a decoded packet tells, under the names of the file.
fn decoded(packet: &Packet<'_>) -> FoundMap {
    let bth = packet.bth();
    let mut found = FoundMap::new();
    let mut put = |key, value: u64| assert!(found.insert(key, Found::Number(value)).is_none());
    put("opcode", bth.opcode.get().into());
    put("se", bth.solicited.into());
    put("migreq", bth.migreq.into());
    put("pad", bth.pad.into());
    put("tver", bth.tver.into());
    put("pkey", bth.pkey.get().into());
    put("fecn", bth.fecn.into());
    put("becn", bth.becn.into());
    put("dqpn", bth.dest_qpn.get().into());
    put("ackreq", bth.ack_req.into());
    put("psn", bth.psn.get().into());
    put_datagram(packet, &mut put);
    put_memory(packet, &mut put);
    if let Some(imm) = packet.imm() {
        put("immdt", imm.into());
    }
    if let Some(ieth) = packet.ieth() {
        put("ieth.rkey", ieth.0.get().into());
    }
    if let Some(aeth) = packet.aeth() {
        put("aeth.syndrome", aeth.syndrome.to_byte().into());
        put("aeth.msn", aeth.msn.get().into());
        put_syndrome(aeth.syndrome, &mut found);
    }
    found.insert("headers", Found::Text(header_names(packet)));
    found.insert("service", Found::Text(service_name(packet.info().service).into()));
    if packet.info().operation != Operation::Cnp {
        found.insert("payload", Found::Text(hex(packet.payload())));
    }
    found
}

/// Headers that address a datagram or a shared receive queue.
fn put_datagram(packet: &Packet<'_>, put: &mut impl FnMut(&'static str, u64)) {
    if let Some(rdeth) = packet.rdeth() {
        put("rdeth.ee", rdeth.ee_context.into());
    }
    if let Some(deth) = packet.deth() {
        put("deth.qkey", deth.qkey.get().into());
        put("deth.srcqp", deth.source_qpn.get().into());
    }
    if let Some(xrceth) = packet.xrceth() {
        put("xrceth.xrcsrq", xrceth.srqn.into());
    }
}

/// Headers that name memory or carry its content.
fn put_memory(packet: &Packet<'_>, put: &mut impl FnMut(&'static str, u64)) {
    if let Some(feth) = packet.feth() {
        use rxe_wire::hdr::FlushSelectivity::{MemoryRegion, Range, Reserved};
        put("feth.placement", feth.placement.bits().into());
        let selectivity = match feth.selectivity {
            Range => 0,
            MemoryRegion => 1,
            Reserved(bits) => bits.into(),
        };
        put("feth.selectivity", selectivity);
    }
    if let Some(reth) = packet.reth() {
        put("reth.va", reth.va);
        put("reth.rkey", reth.rkey.get().into());
        put("reth.len", reth.len.into());
    }
    if let Some(atomic) = packet.atomic_eth() {
        put("atomiceth.va", atomic.va);
        put("atomiceth.rkey", atomic.rkey.get().into());
        put("atomiceth.swap_add", atomic.swap_or_add);
        put("atomiceth.compare", atomic.compare);
    }
    if let Some(ack) = packet.atomic_ack_eth() {
        put("atomicack.original", ack.original);
    }
}

/// What the syndrome means.
fn put_syndrome(syndrome: Syndrome, found: &mut FoundMap) {
    let (kind, value) = match syndrome.kind() {
        SyndromeKind::Ack { credits } => ("ack", credits),
        SyndromeKind::Rnr { timer } => {
            found.insert("aeth.rnr_us", Found::Number(timer.as_nanos() / 1000));
            ("rnr", timer.get())
        }
        SyndromeKind::Nak(code) => {
            let name = match code {
                NakCode::PsnSequenceError => "psn_sequence_error",
                NakCode::InvalidRequest => "invalid_request",
                NakCode::RemoteAccessError => "remote_access_error",
                NakCode::RemoteOperationalError => "remote_operational_error",
                NakCode::InvalidRdRequest => "invalid_rd_request",
                NakCode::Reserved(_) => "reserved",
            };
            found.insert("aeth.nak", Found::Text(name.into()));
            ("nak", code.value())
        }
        SyndromeKind::Reserved(byte) => ("reserved", byte),
    };
    found.insert("aeth.kind", Found::Text(kind.into()));
    found.insert("aeth.value", Found::Number(value.into()));
}

/// All that is below BTH, under the names of the file.
fn decoded_below(frame: &Frame<'_>) -> FoundMap {
    let link = frame.link.unwrap();
    let net = &frame.net;
    let (encapsulation, source, destination) = match net {
        Net::V1(grh) => ("v1", hex(&grh.source), hex(&grh.destination)),
        Net::V4 { ip, .. } => ("v2-ipv4", hex(&ip.source.octets()), hex(&ip.destination.octets())),
        Net::V6 { ip, .. } => ("v2-ipv6", hex(&ip.source.octets()), hex(&ip.destination.octets())),
    };
    let mut found = FoundMap::from([
        ("encapsulation", Found::Text(encapsulation.into())),
        ("eth.dst", Found::Text(hex(&link.ethernet.destination.0))),
        ("eth.src", Found::Text(hex(&link.ethernet.source.0))),
        ("ip.src", Found::Text(source)),
        ("ip.dst", Found::Text(destination)),
        ("ip.tclass", Found::Number(net.traffic_class().into())),
        ("ip.hop", Found::Number(net.hop_limit().into())),
    ]);
    if let Some(vlan) = link.vlan {
        found.insert("vlan.pcp", Found::Number(vlan.priority.into()));
        found.insert("vlan.vid", Found::Number(vlan.id.into()));
    }
    if let Net::V4 { ip, .. } = net {
        found.insert("ip.id", Found::Number(ip.identification.into()));
        found.insert("ip.df", Found::Number(ip.dont_fragment.into()));
    } else {
        found.insert("ip.flow", Found::Number(net.flow_label().into()));
    }
    if let Some(udp) = net.udp() {
        found.insert("udp.sport", Found::Number(udp.source_port.into()));
        found.insert("udp.checksum", Found::Number(udp.checksum.into()));
    }
    found.insert("icrc", Found::Number(frame.icrc().unwrap().computed.into()));
    found.insert("trailer", Found::Number(frame.trailing.len() as u64));
    found
}

/// Asserts that each expected value was found.
fn assert_found(vector: &Vector, found: &FoundMap) {
    for (key, expected) in &vector.expected {
        let name = &vector.name;
        match found.get(key.as_str()) {
            Some(Found::Number(value)) => assert_eq!(*value, number(expected), "{name}: {key}"),
            Some(Found::Text(text)) => assert_eq!(text, expected, "{name}: {key}"),
            None => panic!("{name}: {key} was not decoded"),
        }
    }
}

#[test]
fn packets_written_by_hand_decode_to_their_values() {
    let vectors = vectors("packet");
    assert_eq!(vectors.len(), 34);
    for vector in vectors {
        let packet = Packet::parse(&vector.bytes).unwrap();
        let found = decoded(&packet);
        assert_found(&vector, &found);
        let expected: Vec<_> = vector.expected.keys().map(String::as_str).collect();
        let decoded: Vec<_> = found.keys().copied().collect();
        assert_eq!(decoded, expected, "{}: nothing more than expected", vector.name);
        // All of them are legal at the smallest path MTU.
        assert!(packet.info().payload.check(packet.payload().len(), 256), "{}", vector.name);
    }
}

#[test]
fn packets_written_by_hand_encode_to_the_same_bytes() {
    for vector in vectors("packet") {
        let packet = Packet::parse(&vector.bytes).unwrap();
        let mut written = [0; 512];
        let mut len = packet.headers().write(&mut written).unwrap();
        assert_eq!(len, packet.headers().len());
        written[len..][..packet.payload().len()].copy_from_slice(packet.payload());
        len += packet.payload().len() + packet.pad_len();
        assert_eq!(hex(&written[..len]), hex(&vector.bytes), "{}", vector.name);
    }
}

#[test]
fn packets_cut_short_anywhere_in_their_headers_are_refused() {
    for vector in vectors("packet") {
        let packet = Packet::parse(&vector.bytes).unwrap();
        for len in 0..packet.info().header_len() + packet.pad_len() {
            assert!(Packet::parse(&vector.bytes[..len]).is_err(), "{} at {len}", vector.name);
        }
    }
}

#[test]
fn frames_written_by_hand_decode_to_their_values() {
    let vectors = vectors("frame");
    assert_eq!(vectors.len(), 8);
    for vector in vectors {
        let frame = Frame::parse_ethernet(&vector.bytes).unwrap();
        let mut found = decoded_below(&frame);
        found.extend(decoded(&frame.packet().unwrap()));
        assert_found(&vector, &found);
        assert!(vector.expected.contains_key("icrc"), "{}", vector.name);
        assert!(frame.icrc().unwrap().is_good(), "{}", vector.name);
    }
}

#[test]
fn the_icrc_of_a_flow_is_that_of_the_independent_script() {
    for vector in vectors("frame") {
        let frame = Frame::parse_ethernet(&vector.bytes).unwrap();
        let flow = frame.net.icrc_flow();
        let icrc = flow.icrc(frame.net.identification(), frame.roce);
        assert_eq!(u64::from(icrc), number(&vector.expected["icrc"]), "{}", vector.name);
        let named = match flow.encapsulation() {
            Encapsulation::V1 => "v1",
            Encapsulation::V2Ipv4 => "v2-ipv4",
            Encapsulation::V2Ipv6 => "v2-ipv6",
        };
        assert_eq!(named, vector.expected["encapsulation"]);
    }
}

#[test]
fn frames_written_by_hand_encode_to_the_same_bytes() {
    for vector in vectors("frame") {
        let frame = Frame::parse_ethernet(&vector.bytes).unwrap();
        let mut written = [0; 256];
        let len = frame.write(&mut written).unwrap();
        assert_eq!(hex(&written[..len]), hex(&vector.bytes), "{}", vector.name);
    }
}

#[test]
fn the_builder_makes_the_same_frames() {
    for vector in vectors("frame") {
        let frame = Frame::parse_ethernet(&vector.bytes).unwrap();
        let checksum = frame.net.udp().map_or(0, |udp| udp.checksum);
        let mut builder = FrameBuilder::new(frame.link, without_derived(frame.net));
        builder.udp_checksum = checksum != 0;
        let mut written = [0xa5; 256];
        let len = builder.write(frame.roce, &mut written).unwrap();
        let end = vector.bytes.len() - frame.trailing.len();
        assert_eq!(hex(&written[..len]), hex(&vector.bytes[..end]), "{}", vector.name);
    }
}

/// The same without what the builder has to find itself.
fn without_derived(mut net: Net) -> Net {
    match &mut net {
        Net::V1(grh) => (grh.payload_len, grh.next_header) = (0, 0),
        Net::V4 { ip, udp } => {
            (ip.total_len, ip.protocol, ip.checksum) = (0, 0, 0);
            (udp.length, udp.checksum) = (0, 0);
        }
        Net::V6 { ip, udp } => {
            (ip.payload_len, ip.next_header) = (0, 0);
            (udp.length, udp.checksum) = (0, 0);
        }
    }
    net
}
