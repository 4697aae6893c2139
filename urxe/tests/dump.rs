//! `urxe dump` as a program: over the captures of the Linux driver, over captures made here in
//! every format and link type, over damaged ones and over garbage.

// A test may unwrap in its helpers too.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter, RawPcapPacket};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::simple_packet::SimplePacketBlock;
use pcap_file::pcapng::{PcapNgBlock, PcapNgWriter};
use pcap_file::{DataLink, Endianness, TsResolution};
use proptest::prelude::*;
use rxe_wire::hdr::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, FlushPlacement, FlushSelectivity, Ieth, ImmDt,
    Rdeth, Reth, Xrceth,
};
use rxe_wire::mad::cm::{
    AnsweredMessage, Apr, AprStatus, Bits, CMA_HEADER_LEN, CmMessage, CmaHeader, CommId, Drep,
    Dreq, FixedBytes, FlowLabel, GSI_QKEY, Guid, Lap, Mra, PathMtu, PortSpace, Rej, RejReason, Rep,
    Req, Rtu, ServiceId, SidrRep, SidrReq, SidrStatus, TimeoutExponent, TransportService, U24,
};
use rxe_wire::mad::{MAD_LEN, TransactionId};
use rxe_wire::net::{
    Ethernet, FrameBuilder, Grh, Ipv4, Ipv6, Link, MacAddr, Net, Udp, Vlan, ether_type,
};
use rxe_wire::{
    ExtHeaders, Headers, Msn, OPCODES, Opcode, OpcodeInfo, PKey, PayloadRule, Psn, QKey, Qpn, RKey,
    RnrTimer, Syndrome,
};
use serde_json::Value;

/// What a run of the program left behind.
struct Run {
    status: i32,
    stdout: String,
    stderr: String,
}

impl Run {
    fn lines(&self) -> Vec<&str> {
        self.stdout.lines().collect()
    }

    fn last(&self) -> &str {
        self.stdout.lines().last().unwrap_or_default()
    }

    fn json(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Runs `urxe dump` with arguments, and `stdin` as its standard input.
fn dump(arguments: &[&str], stdin: &[u8]) -> Run {
    let mut child = Command::new(env!("CARGO_BIN_EXE_urxe"))
        .arg("dump")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let stdin = stdin.to_vec();
    // A program that gives up early closes the pipe: that is no fault of the writer's.
    let writer = std::thread::spawn(move || drop(input.write_all(&stdin)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    Run {
        status: output.status.code().expect("ended by itself, not by a signal"),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Dumps a capture that is in memory.
fn dump_bytes(capture: &[u8]) -> Run {
    dump(&["-"], capture)
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../rxe-wire/testdata/golden").join(name)
}

fn golden_captures() -> Vec<PathBuf> {
    let mut captures: Vec<PathBuf> = std::fs::read_dir(golden(""))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap"))
        .collect();
    captures.sort();
    assert_eq!(captures.len(), 24);
    captures
}

/// A frame and its time.
type Timed = (Duration, Vec<u8>);

fn frames_of(name: &str) -> Vec<Timed> {
    let mut reader = PcapReader::new(File::open(golden(name)).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        frames.push((packet.timestamp, packet.data.into_owned()));
    }
    frames
}

fn header(datalink: DataLink) -> PcapHeader {
    PcapHeader { datalink, snaplen: 0x4_0000, ..PcapHeader::default() }
}

fn pcap_with(header: PcapHeader, frames: &[Timed]) -> Vec<u8> {
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    for (time, frame) in frames {
        writer.write_packet(&PcapPacket::new(*time, frame.len() as u32, frame)).unwrap();
    }
    writer.into_writer()
}

/// A capture of Ethernet frames, a second apart.
fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let timed: Vec<Timed> = (0..).map(Duration::from_secs).zip(frames.iter().cloned()).collect();
    pcap_with(header(DataLink::ETHERNET), &timed)
}

fn table(path: &Path) -> Vec<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines().map(|line| line.split('\t').map(str::to_string));
    let names: Vec<String> = lines.next().unwrap().collect();
    lines.map(|cells| names.iter().cloned().zip(cells).collect()).collect()
}

#[test]
fn golden_captures_have_as_many_good_packets_as_rows() {
    for capture in golden_captures() {
        let rows = table(&capture.with_extension("tsv")).len();
        let run = dump(&[capture.to_str().unwrap()], b"");
        assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{}", capture.display());
        assert_eq!(run.lines().len(), rows + 1, "{}", capture.display());
        let expected =
            format!("{rows} packets, {rows} RoCE, iCRC {rows} good 0 bad, 0 malformed, 0 foreign");
        assert_eq!(run.last(), expected, "{}", capture.display());
        assert!(!run.stdout.contains("odd:"), "{}", capture.display());
    }
}

/// A cell of a table as a number: 0x-hex or decimal.
fn number(cell: &str) -> u64 {
    match cell.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
        None => cell.parse().unwrap(),
    }
}

#[test]
fn json_says_what_the_tables_say() {
    for capture in golden_captures() {
        let rows = table(&capture.with_extension("tsv"));
        let run = dump(&["--json", capture.to_str().unwrap()], b"");
        assert_eq!(run.status, 0);
        let objects = run.json();
        assert_eq!(objects.len(), rows.len() + 1);
        for (row, object) in rows.iter().zip(&objects) {
            let at = format!("{} {object}", capture.display());
            let bth = &object["bth"];
            for (column, field) in [
                ("opcode", "opcode"),
                ("padcnt", "pad"),
                ("p_key", "pkey"),
                ("destqp", "dest_qpn"),
                ("psn", "psn"),
            ] {
                let cell = &row[&format!("infiniband.bth.{column}")];
                assert_eq!(bth[field].as_u64(), Some(number(cell)), "{column} {at}");
            }
            let ack_req = number(&row["infiniband.bth.a"]) != 0;
            assert_eq!(bth["ack_req"].as_bool(), Some(ack_req), "{at}");
            let source_port = number(&row["udp.srcport"]);
            assert_eq!(object["udp"]["source_port"].as_u64(), Some(source_port), "{at}");
            // The table has the bytes of the wire in order, the value is little-endian.
            let crc = (number(&row["infiniband.invariant.crc"]) as u32).swap_bytes();
            assert_eq!(object["icrc"]["carried"], format!("0x{crc:08x}"), "{at}");
            assert_eq!(object["kind"], "roce", "{at}");
        }
        let summary = objects.last().unwrap();
        assert_eq!(summary["kind"], "summary");
        assert_eq!(summary["icrc_good"].as_u64(), Some(rows.len() as u64));
        assert_eq!(summary["icrc_bad"].as_u64(), Some(0));
    }
}

#[test]
fn the_output_for_one_capture_is_this() {
    let capture = golden("rdma_client.pcap");
    let text = dump(&[capture.to_str().unwrap()], b"").stdout;
    insta::assert_snapshot!("rdma_client_text", text);
    let verbose = dump(&["--verbose", capture.to_str().unwrap()], b"").stdout;
    insta::assert_snapshot!("rdma_client_verbose", verbose);
    let json = dump(&["--json", capture.to_str().unwrap()], b"").stdout;
    insta::assert_snapshot!("rdma_client_json", json);
}

#[test]
fn a_flipped_bit_makes_the_exit_status_1() {
    let frames: Vec<Vec<u8>> =
        frames_of("rping.pcap").into_iter().map(|(_, frame)| frame).collect();
    // The last byte before the iCRC, one in the middle, one of the iCRC itself, the UDP port.
    for (index, from_end) in [(0, 5), (3, 10), (6, 1), (9, 4)] {
        let mut changed = frames.clone();
        let place = changed[index].len() - from_end;
        changed[index][place] ^= 0x10;
        let run = dump_bytes(&pcap(&changed));
        assert_eq!(run.status, 1, "{}", run.stdout);
        let bad: Vec<_> = run.lines().into_iter().filter(|line| line.contains("BAD")).collect();
        assert_eq!(bad.len(), 1, "{}", run.stdout);
        assert!(bad[0].starts_with(&format!("{} ", index + 1)), "{}", bad[0]);
        let good = frames.len() - 1;
        assert!(run.last().contains(&format!("iCRC {good} good 1 bad")), "{}", run.last());
    }
}

#[test]
fn a_truncated_file_tells_how_far_it_got() {
    let capture =
        pcap(&frames_of("rdma_client.pcap").into_iter().map(|it| it.1).collect::<Vec<_>>());
    let whole = dump_bytes(&capture);
    for len in (0..capture.len()).step_by(23) {
        let run = dump_bytes(&capture[..len]);
        let shown = run.lines().len();
        match run.status {
            // Cut between two frames: nothing tells that something is missing.
            0 => assert!(shown >= 1 && run.stderr.is_empty(), "{len}: {}", run.stderr),
            2 if len < 4 => assert!(run.stderr.contains("not a capture"), "{}", run.stderr),
            2 if len < 24 => {
                assert!(run.stderr.contains("inside its own header"), "{}", run.stderr)
            }
            2 => {
                let frames = shown - 1;
                let expected = format!("in the middle of a record, {frames} frames are whole");
                assert!(run.stderr.contains(&expected), "{len}: {}", run.stderr);
                assert_eq!(run.lines()[..frames], whole.lines()[..frames], "{len}");
                assert!(run.last().starts_with(&format!("{frames} packets")), "{}", run.last());
            }
            other => panic!("exit status {other} at {len}: {}", run.stderr),
        }
    }
}

#[test]
fn frames_that_the_capture_cut_are_told() {
    let cut = |len: usize| {
        let mut writer = PcapWriter::with_header(Vec::new(), header(DataLink::ETHERNET)).unwrap();
        for (time, frame) in frames_of("rping.pcap") {
            let data = &frame[..len.min(frame.len())];
            writer.write_packet(&PcapPacket::new(time, frame.len() as u32, data)).unwrap();
        }
        dump_bytes(&writer.into_writer())
    };
    for len in 0..100 {
        let run = cut(len);
        assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{len}");
        assert!(run.stdout.contains("truncated: "), "{len} {}", run.stdout);
        assert!(!run.stdout.contains("BAD"), "{len}");
    }
    // Ethernet, IPv4, UDP, BTH and DETH are 62 bytes: enough for the headers of the first packet.
    let first = "UD SEND_ONLY qp 0x000001 psn 0 pkey 0xffff ackreq | DETH qkey 0x80010000 from \
        0x000001 | payload 256 | icrc not captured | truncated: 62 of 322 bytes captured";
    assert!(cut(62).lines()[0].ends_with(first), "{}", cut(62).lines()[0]);
    let first = "1 20:34:15.594475 truncated: 61 of 322 bytes captured";
    assert_eq!(cut(61).lines()[0], first);
    let run = cut(321);
    assert!(run.lines()[0].ends_with("not captured | truncated: 321 of 322 bytes captured"));
    assert!(!run.lines()[0].contains(" CM "), "half a message is not read");
    assert!(run.last().ends_with("5 cut before the iCRC"), "{}", run.last());
}

fn link(vlan: Option<Vlan>) -> Link {
    Link {
        ethernet: Ethernet {
            destination: MacAddr([2, 0, 0, 0, 0, 1]),
            source: MacAddr([2, 0, 0, 0, 0, 2]),
            ether_type: ether_type::VLAN,
        },
        vlan,
        inner_vlan: None,
    }
}

fn v4_net() -> Net {
    let ip = Ipv4::new([10, 77, 0, 2].into(), [10, 77, 0, 1].into());
    Net::V4 { ip, udp: Udp::new(0xc001) }
}

fn v6_net() -> Net {
    let [source, destination] = [2, 1].map(|last| Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, last));
    Net::V6 { ip: Ipv6::new(source, destination), udp: Udp::new(0xc001) }
}

/// A packet from BTH to its payload's end: no extended headers, `len` bytes of payload.
fn packet(opcode: u8, psn: u32, len: usize) -> Vec<u8> {
    let bth = Bth {
        opcode: Opcode::new(opcode),
        dest_qpn: Qpn::new(0x12),
        psn: Psn::new(psn),
        ..Bth::default()
    };
    let mut bytes = vec![0; Bth::LEN + len];
    bth.write(&mut bytes).unwrap();
    for (place, byte) in bytes[Bth::LEN..].iter_mut().enumerate() {
        *byte = (psn as usize + place) as u8;
    }
    bytes
}

fn frame(builder: &FrameBuilder, packet: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; builder.frame_len(packet.len())];
    builder.write(packet, &mut bytes).unwrap();
    bytes
}

const RC_SEND_FIRST: u8 = 0;
const RC_SEND_MIDDLE: u8 = 1;
const RC_SEND_LAST: u8 = 2;
const RC_SEND_ONLY: u8 = 4;

/// A batch as a capture shows it before segmentation: one IP packet with the lengths of all, each
/// RoCE packet with its own iCRC. `identification` is the first; it counts up by `step`.
fn super_frame(net: Net, packets: &[Vec<u8>], identification: u16, step: u16) -> Vec<u8> {
    let flow = net.icrc_flow();
    let mut content = Vec::new();
    for (packet, index) in packets.iter().zip(0..) {
        content.extend(packet);
        let icrc = flow.icrc(identification + index * step, packet);
        content.extend(icrc.to_le_bytes());
    }
    let udp_len = (Udp::LEN + content.len()) as u16;
    let net = match net {
        Net::V4 { ip, udp } => Net::V4 {
            ip: Ipv4 { identification, total_len: udp_len + 20, ..ip },
            // Unfinished: what offload leaves is the sum over the pseudo-header alone.
            udp: Udp { length: udp_len, checksum: 0x1234, ..udp },
        },
        Net::V6 { ip, udp } => Net::V6 {
            ip: Ipv6 { payload_len: udp_len, ..ip },
            udp: Udp { length: udp_len, checksum: 0x1234, ..udp },
        },
        Net::V1(_) => panic!("RoCEv1 is not segmented"),
    };
    let mut link = link(None);
    link.ethernet.ether_type = net.ether_type();
    let mut bytes = vec![0; Ethernet::LEN + net.header_len()];
    link.write(&mut bytes).unwrap();
    net.write(&mut bytes[Ethernet::LEN..]).unwrap();
    bytes.extend(content);
    bytes
}

#[test]
fn a_super_frame_is_taken_apart() {
    let packets = [
        packet(RC_SEND_FIRST, 7, 1024),
        packet(RC_SEND_MIDDLE, 8, 1024),
        packet(RC_SEND_MIDDLE, 9, 1024),
        packet(RC_SEND_LAST, 10, 100),
    ];
    let cases = [
        (v4_net(), 0, 1),
        (v4_net(), 0xfff0, 1),
        // What a receiver's coalescing makes of packets of one identification.
        (v4_net(), 7, 0),
        (v6_net(), 0, 0),
    ];
    for (net, identification, step) in cases {
        let capture = pcap(&[super_frame(net, &packets, identification, step)]);
        let run = dump_bytes(&capture);
        assert_eq!(run.status, 0, "{}", run.stdout);
        let lines = run.lines();
        assert_eq!(
            lines[0],
            "1 00:00:00.000000 super-frame: 4 packets, 1040 bytes each from BTH to iCRC but the \
             last, joined by segmentation offload"
        );
        for (index, name) in ["FIRST", "MIDDLE", "MIDDLE", "LAST"].iter().enumerate() {
            let line = lines[index + 1];
            assert!(line.starts_with(&format!("1.{} ", index + 1)), "{line}");
            let packet = format!("RC SEND_{name} qp 0x000012 psn {} pkey", 7 + index);
            assert!(line.contains(&packet) && line.ends_with(" good"), "{line}");
        }
        let summary =
            "1 packets, 4 RoCE, iCRC 4 good 0 bad, 0 malformed, 0 foreign, 1 super-frames";
        assert_eq!(run.last(), summary);

        let objects = dump(&["--json", "-"], &capture).json();
        assert_eq!(objects[0]["kind"], "super-frame");
        assert_eq!(objects[0]["segment_length"], 1040);
        assert_eq!(objects[4]["segment"], 3);
        assert_eq!(objects[4]["udp"]["length"], 8 + 12 + 100 + 4);
        if objects[4]["encapsulation"] == "RoCEv2 IPv6" {
            assert_eq!(objects[4]["ip"]["payload_length"], 8 + 12 + 100 + 4);
        } else {
            assert_eq!(objects[4]["ip"]["total_length"], 20 + 8 + 12 + 100 + 4);
            assert_eq!(objects[4]["ip"]["identification"], identification + 3 * step);
        }
    }
}

#[test]
fn a_corrupt_packet_in_a_super_frame_is_found() {
    let packets = [10, 11, 12].map(|psn| packet(RC_SEND_ONLY, psn, 256));
    let mut bytes = super_frame(v4_net(), &packets, 0, 1);
    let place = bytes.len() - 20;
    bytes[place] ^= 1;
    let run = dump_bytes(&pcap(&[bytes]));
    assert_eq!(run.status, 1, "{}", run.stdout);
    assert!(run.last().contains("3 RoCE, iCRC 2 good 1 bad"), "{}", run.last());
    // The one that is expected is that of the third segment, so of identification 2.
    let mut third = packets[2].clone();
    let place = third.len() - (20 - 4);
    third[place] ^= 1;
    let expected = v4_net().icrc_flow().icrc(2, &third);
    let ending = format!("BAD, 0x{expected:08x} expected");
    assert!(run.lines()[3].ends_with(&ending), "{ending} {}", run.stdout);
}

/// The frames without their Ethernet header, behind `head`.
fn relinked(frames: &[Timed], head: &[u8]) -> Vec<Timed> {
    let relink = |frame: &[u8]| [head, &frame[Ethernet::LEN..]].concat();
    frames.iter().map(|(time, frame)| (*time, relink(frame))).collect()
}

fn pcapng(
    endianness: Endianness,
    link: DataLink,
    resolution: Option<u8>,
    frames: &[Timed],
) -> Vec<u8> {
    let mut writer = PcapNgWriter::with_endianness(Vec::new(), endianness).unwrap();
    let mut interface = InterfaceDescriptionBlock::new(link, 0);
    interface.options.extend(resolution.map(InterfaceDescriptionOption::IfTsResol));
    writer.write_block(&interface.into_block()).unwrap();
    for (time, frame) in frames {
        let units = match resolution {
            None | Some(6) => time.as_micros(),
            Some(9) => time.as_nanos(),
            // Units of 2^-20 s, rounded up so that cutting them down to microseconds is exact.
            Some(0x94) => (time.as_nanos() << 20).div_ceil(1_000_000_000),
            Some(other) => panic!("no frames are made in resolution {other}"),
        };
        let packet = EnhancedPacketBlock {
            interface_id: 0,
            // The library writes nanoseconds as units, whatever the unit is.
            timestamp: Duration::from_nanos(units as u64),
            original_len: frame.len() as u32,
            data: frame.into(),
            options: Vec::new(),
        };
        writer.write_block(&packet.into_block()).unwrap();
    }
    writer.into_inner()
}

#[test]
fn every_format_and_link_type_reads_the_same() {
    let frames = frames_of("rping.pcap");
    let expected = dump(&[golden("rping.pcap").to_str().unwrap()], b"").stdout;
    let cooked = [0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 2, 0, 0, 0x08, 0x00];
    let cooked2 = [0x08, 0x00, 0, 0, 0, 0, 0, 3, 0, 1, 0, 6, 2, 0, 0, 0, 0, 2, 0, 0];
    let links = [
        (DataLink::ETHERNET, frames.clone()),
        (DataLink::LINUX_SLL, relinked(&frames, &cooked)),
        (DataLink::LINUX_SLL2, relinked(&frames, &cooked2)),
        (DataLink::RAW, relinked(&frames, &[])),
        (DataLink::IPV4, relinked(&frames, &[])),
        (DataLink::Unknown(12), relinked(&frames, &[])),
    ];
    for endianness in [Endianness::Little, Endianness::Big] {
        for (link, frames) in &links {
            for ts_resolution in [TsResolution::MicroSecond, TsResolution::NanoSecond] {
                let header = PcapHeader { endianness, ts_resolution, ..header(*link) };
                let run = dump_bytes(&pcap_with(header, frames));
                assert_eq!((run.status, &run.stdout), (0, &expected), "{header:?}");
            }
            for resolution in [None, Some(6), Some(9), Some(0x94)] {
                let run = dump_bytes(&pcapng(endianness, *link, resolution, frames));
                let at = format!("pcapng {endianness:?} {link:?} {resolution:?} {}", run.stderr);
                assert_eq!((run.status, &run.stdout), (0, &expected), "{at}");
            }
        }
    }
}

#[test]
fn a_cooked_header_has_a_source_alone() {
    let frame = frame(&FrameBuilder::new(Some(link(None)), v4_net()), &packet(RC_SEND_ONLY, 1, 4));
    let timed = [(Duration::ZERO, frame)];
    let cooked = [0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 9, 0, 0, 0x08, 0x00];
    let cooked2 = [0x08, 0x00, 0, 0, 0, 0, 0, 3, 0, 1, 0, 6, 2, 0, 0, 0, 0, 9, 0, 0];
    for (link, head) in [(DataLink::LINUX_SLL, &cooked[..]), (DataLink::LINUX_SLL2, &cooked2)] {
        let capture = pcap_with(header(link), &relinked(&timed, head));
        let object = &dump(&["--json", "-"], &capture).json()[0];
        assert_eq!(object["link"]["source"], "02:00:00:00:00:09");
        assert_eq!(object["link"]["destination"], Value::Null);
        let verbose = dump(&["-v", "-"], &capture).stdout;
        assert!(verbose.contains(" 02:00:00:00:00:09 > ? 10.77.0.2"), "{verbose}");
    }
    // Less than a header.
    let capture = pcap_with(header(DataLink::LINUX_SLL), &[(Duration::ZERO, vec![0; 15])]);
    let expected = "truncated: 15 bytes are no whole cooked header";
    assert!(dump_bytes(&capture).lines()[0].ends_with(expected));
}

/// A packet with every header that the opcode takes, and a value in every field.
fn packet_of(info: &OpcodeInfo) -> Vec<u8> {
    let (payload_len, pad) = match info.payload {
        PayloadRule::None => (0, 0),
        PayloadRule::ExactlyMtu => (256, 0),
        PayloadRule::AtLeastOne | PayloadRule::UpToMtu => (5, 3),
        PayloadRule::Exactly(len) => (usize::from(len), 0),
    };
    let number = info.opcode.get();
    let bth = Bth {
        opcode: info.opcode,
        solicited: number.is_multiple_of(2),
        migreq: number.is_multiple_of(3),
        pad,
        pkey: PKey::new(0x7fff),
        fecn: number.is_multiple_of(5),
        becn: number.is_multiple_of(7),
        dest_qpn: Qpn::new(0x10_0000 + u32::from(number)),
        ack_req: !number.is_multiple_of(2),
        psn: Psn::new(1000 + u32::from(number)),
        ..Bth::default()
    };
    let syndrome = match number % 3 {
        0 => Syndrome::ack(11),
        1 => Syndrome::rnr(RnrTimer::new(12)),
        _ => Syndrome::from_byte(0x62),
    };
    let has = |header: ExtHeaders| info.headers.contains(header);
    let rkey = RKey::new(0x0102_0300);
    let va = 0x7fff_0000_1000;
    let (qkey, source_qpn) = (QKey::new(0x1111_1111), Qpn::new(0x22_2222));
    let atomic = AtomicEth { va, rkey, swap_or_add: 0xaaaa, compare: 0xbbbb };
    let placement = FlushPlacement::all();
    let selectivity = FlushSelectivity::MemoryRegion;
    let headers = Headers {
        bth,
        rdeth: has(ExtHeaders::RDETH).then_some(Rdeth { ee_context: 0x33_3333, reserved: 0 }),
        deth: has(ExtHeaders::DETH).then_some(Deth { qkey, source_qpn, reserved: 0 }),
        xrceth: has(ExtHeaders::XRCETH).then_some(Xrceth { srqn: 0x44_4444, reserved: 0 }),
        feth: has(ExtHeaders::FETH).then_some(Feth { placement, selectivity, reserved: 0 }),
        reth: has(ExtHeaders::RETH).then_some(Reth { va, rkey, len: 8192 }),
        atomic: has(ExtHeaders::ATOMIC_ETH).then_some(atomic),
        aeth: has(ExtHeaders::AETH).then_some(Aeth { syndrome, msn: Msn::new(77) }),
        atomic_ack: has(ExtHeaders::ATOMIC_ACK_ETH).then_some(AtomicAckEth { original: 0xcccc }),
        imm: has(ExtHeaders::IMM_DT).then_some(ImmDt(0xdddd_dddd)),
        ieth: has(ExtHeaders::IETH).then_some(Ieth(rkey)),
    };
    let mut bytes = vec![0; headers.len()];
    headers.write(&mut bytes).unwrap();
    bytes.extend(vec![0xee; payload_len]);
    bytes.extend(vec![0; pad.into()]);
    bytes
}

#[test]
fn every_opcode_and_header_looks_like_this() {
    let builder = FrameBuilder::new(Some(link(None)), v4_net());
    let frames: Vec<Vec<u8>> =
        OPCODES.iter().flatten().map(|info| frame(&builder, &packet_of(info))).collect();
    let capture = pcap(&frames);
    let run = dump_bytes(&capture);
    assert_eq!(run.status, 0);
    assert!(!run.stdout.contains("odd"), "{}", run.stdout);
    insta::assert_snapshot!("every_opcode_text", run.stdout);
    insta::assert_snapshot!("every_opcode_json", dump(&["--json", "-"], &capture).stdout);
}

fn filled<const N: usize>() -> FixedBytes<N> {
    FixedBytes(std::array::from_fn(|place| place as u8))
}

/// A request with a value in every field.
fn cm_req() -> Req {
    let mut private_data = filled::<92>();
    let mut cma = [0; CMA_HEADER_LEN];
    CmaHeader::v4(0x1234, [10, 0, 0, 1].into(), [10, 0, 0, 2].into()).write(&mut cma);
    private_data.0[..CMA_HEADER_LEN].copy_from_slice(&cma);
    let path = rxe_wire::mad::cm::Path {
        local_lid: 1,
        remote_lid: 2,
        local_gid: [3; 16],
        remote_gid: [4; 16],
        flow_label: FlowLabel::new(5),
        packet_rate: Bits::new(6),
        traffic_class: 7,
        hop_limit: 8,
        service_level: Bits::new(9),
        subnet_local: true,
        local_ack_timeout: TimeoutExponent::new(10),
        reserved: FixedBytes([1, 2, 3]),
    };
    Req {
        local_comm_id: CommId(11),
        vendor_id: U24::new(12),
        service_id: ServiceId::ip(PortSpace::Tcp, 13),
        local_ca_guid: Guid(14),
        local_qkey: QKey::new(15),
        local_qpn: Qpn::new(16),
        responder_resources: 17,
        local_eecn: U24::new(18),
        initiator_depth: 19,
        remote_eecn: U24::new(20),
        remote_response_timeout: TimeoutExponent::new(21),
        service: TransportService::Uc,
        flow_control: true,
        starting_psn: Psn::new(22),
        local_response_timeout: TimeoutExponent::new(23),
        retry_count: Bits::new(4),
        pkey: PKey::new(25),
        path_mtu: PathMtu(Bits::new(5)),
        rdc_exists: true,
        rnr_retry_count: Bits::new(6),
        max_cm_retries: Bits::new(7),
        srq: true,
        extended_transport: Bits::new(1),
        primary_path: path,
        alternate_path: rxe_wire::mad::cm::Path { local_lid: 26, ..path },
        private_data,
        reserved: FixedBytes([5; 5]),
    }
}

fn cm_rep() -> Rep {
    Rep {
        local_comm_id: CommId(1),
        remote_comm_id: CommId(2),
        local_qkey: QKey::new(3),
        local_qpn: Qpn::new(4),
        local_eecn: U24::new(5),
        starting_psn: Psn::new(6),
        vendor_id: U24::new(7),
        responder_resources: 8,
        initiator_depth: 9,
        target_ack_delay: TimeoutExponent::new(10),
        failover_accepted: Bits::new(1),
        flow_control: true,
        rnr_retry_count: Bits::new(2),
        srq: true,
        local_ca_guid: Guid(11),
        private_data: filled(),
        reserved: Bits::new(3),
    }
}

/// One message of each kind, with a value in every field.
fn cm_messages() -> [CmMessage; 11] {
    let (local_comm_id, remote_comm_id) = (CommId(1), CommId(2));
    let remote_qpn = Qpn::new(3);
    let message = AnsweredMessage::Rep;
    let service_id = ServiceId::ip(PortSpace::Udp, 4);
    let Req { alternate_path, .. } = cm_req();
    let timeout = TimeoutExponent::new(24);
    let status = AprStatus::INVALID_GID;
    let private_data = filled();
    let rej = Rej {
        local_comm_id,
        remote_comm_id,
        message,
        info_len: Bits::new(5),
        reason: RejReason::STALE_CONNECTION,
        info: filled(),
        private_data: filled(),
        reserved: FixedBytes([6, 1]),
    };
    let mra = Mra {
        local_comm_id,
        remote_comm_id,
        message,
        service_timeout: timeout,
        private_data: filled(),
        reserved: FixedBytes([7, 1]),
    };
    let lap = Lap {
        local_comm_id,
        remote_comm_id,
        remote_qpn,
        remote_response_timeout: timeout,
        alternate_path,
        private_data: filled(),
        reserved: FixedBytes([1; 9]),
    };
    let apr = Apr {
        local_comm_id,
        remote_comm_id,
        info_len: 8,
        status,
        info: filled(),
        private_data: filled(),
        reserved: FixedBytes([9, 9]),
    };
    let sidr_req = SidrReq {
        request_id: local_comm_id,
        pkey: PKey::new(0x8001),
        service_id,
        private_data: filled(),
        reserved: FixedBytes([10, 10]),
    };
    let sidr_rep = SidrRep {
        request_id: local_comm_id,
        status: SidrStatus::NO_QP,
        info_len: 11,
        vendor_id: U24::new(12),
        qpn: remote_qpn,
        service_id,
        qkey: QKey::new(13),
        info: filled(),
        private_data: filled(),
    };
    let dreq = Dreq {
        local_comm_id,
        remote_comm_id,
        remote_qpn,
        private_data: filled(),
        reserved: FixedBytes([14]),
    };
    [
        CmMessage::Req(cm_req()),
        CmMessage::Mra(mra),
        CmMessage::Rej(rej),
        CmMessage::Rep(cm_rep()),
        CmMessage::Rtu(Rtu { local_comm_id, remote_comm_id, private_data }),
        CmMessage::Dreq(dreq),
        CmMessage::Drep(Drep { local_comm_id, remote_comm_id, private_data }),
        CmMessage::SidrReq(sidr_req),
        CmMessage::SidrRep(sidr_rep),
        CmMessage::Lap(lap),
        CmMessage::Apr(apr),
    ]
}

/// A packet from BTH on that carries `payload` from QP1 to QP1.
fn to_gsi(payload: &[u8]) -> Vec<u8> {
    let bth = Bth { opcode: Opcode::new(100), dest_qpn: Qpn::GSI, ..Bth::default() };
    let deth = Some(Deth { qkey: GSI_QKEY, source_qpn: Qpn::GSI, reserved: 0 });
    let headers = Headers { deth, ..Headers::new(bth) };
    let mut bytes = vec![0; headers.len()];
    headers.write(&mut bytes).unwrap();
    bytes.extend(payload);
    bytes
}

#[test]
fn every_cm_message_looks_like_this() {
    let builder = FrameBuilder::new(Some(link(None)), v4_net());
    let mut frames = Vec::new();
    for message in cm_messages() {
        let mut mad = [0; MAD_LEN];
        message.write_mad(TransactionId(0x1122_3344_5566_7788), &mut mad);
        frames.push(frame(&builder, &to_gsi(&mad)));
    }
    let capture = pcap(&frames);
    insta::assert_snapshot!("every_cm_message_text", dump_bytes(&capture).stdout);
    insta::assert_snapshot!("every_cm_message_json", dump(&["--json", "-"], &capture).stdout);
}

#[test]
fn odd_packets_are_told() {
    let builder = FrameBuilder::new(Some(link(None)), v4_net());
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = packet(RC_SEND_ONLY, 1, 16);
        change(&mut bytes);
        frame(&builder, &bytes)
    };
    let mut rtu = [0; MAD_LEN + 4];
    let mut mad = [0; MAD_LEN];
    CmMessage::Rtu(Rtu::default()).write_mad(TransactionId(1), &mut mad);
    rtu[..MAD_LEN].copy_from_slice(&mad);
    let mut other_class = mad;
    other_class[1] = 3;
    let frames = [
        (with(&|bytes| bytes[1] |= 0x03), "odd: transport version 3"),
        (with(&|bytes| bytes[4] |= 0x01), "odd: reserved bits of BTH are set"),
        (with(&|bytes| bytes[8] |= 0x01), "odd: reserved bits of BTH are set"),
        // The pad is 2 bytes; the last of the payload are no zeros.
        (with(&|bytes| bytes[1] |= 0x20), "odd: pad is not zero"),
        (with(&|bytes| bytes[0] = RC_SEND_FIRST), "16 bytes, the opcode takes a path MTU"),
        (
            with(&|bytes| {
                bytes[0] = RC_SEND_LAST;
                bytes.truncate(Bth::LEN);
            }),
            "odd: a payload of 0 bytes, the opcode takes 1 to 4096 bytes",
        ),
        (with(&|bytes| bytes.resize(12 + 5000, 0)), "5000 bytes, the opcode takes up to 4096"),
        // An acknowledge: 4 bytes of AETH, and 12 too many.
        (with(&|bytes| bytes[0] = 17), "odd: a payload of 12 bytes, the opcode takes none"),
        (
            with(&|bytes| {
                bytes[0] = 0x81;
                bytes.truncate(Bth::LEN + 12);
            }),
            "odd: a payload of 12 bytes, the opcode takes 16 bytes",
        ),
        (frame(&builder, &to_gsi(&rtu)), "odd: a MAD of 260 bytes instead of 256"),
        (frame(&builder, &to_gsi(&mad[..40])), "| MAD: 256 bytes needed, 40 there"),
        (frame(&builder, &to_gsi(&other_class)), "class 0x03, method 0x03 is not connection"),
    ];
    let bytes: Vec<Vec<u8>> = frames.iter().map(|(bytes, _)| bytes.clone()).collect();
    let run = dump_bytes(&pcap(&bytes));
    assert_eq!(run.status, 0, "{}", run.stdout);
    for (index, ((_, expected), line)) in frames.iter().zip(run.lines()).enumerate() {
        assert!(line.contains(expected), "{index} {expected}: {line}");
    }
    for object in &dump(&["--json", "-"], &pcap(&bytes[..10])).json()[..10] {
        assert!(object["odd"].as_array().is_some_and(|odd| !odd.is_empty()), "{object}");
    }
}

#[test]
fn a_simple_packet_has_no_time() {
    let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
    let interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
    writer.write_block(&interface.into_block()).unwrap();
    let bytes = frame(&FrameBuilder::new(Some(link(None)), v4_net()), &packet(RC_SEND_ONLY, 1, 4));
    let original_len = bytes.len() as u32;
    let simple = SimplePacketBlock { original_len, data: bytes.into() };
    writer.write_block(&simple.into_block()).unwrap();
    let run = dump_bytes(&writer.into_inner());
    assert_eq!(run.status, 0, "{}", run.stderr);
    assert!(run.lines()[0].starts_with("1 - 10.77.0.2:49153 > 10.77.0.1:4791 RoCEv2 RC SEND_ONLY"));
    assert!(run.lines()[0].ends_with("good"), "{}", run.stdout);
}

#[test]
fn rocev1_and_vlans_are_shown() {
    let gid = |last: u16| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last).octets();
    let tag = Vlan { id: 5, priority: 3, ..Vlan::default() };
    let v1 = Net::V1(Grh::new(gid(2), gid(1)));
    let send = packet(RC_SEND_ONLY, 9, 16);
    let frames = [
        frame(&FrameBuilder::new(Some(link(None)), v1), &send),
        frame(&FrameBuilder::new(Some(link(Some(tag))), v4_net()), &send),
        frame(&FrameBuilder::new(Some(link(Some(tag))), v1), &send),
    ];
    let run = dump_bytes(&pcap(&frames));
    assert_eq!(run.status, 0, "{}", run.stdout);
    let lines = run.lines();
    assert!(lines[0].contains(" fe80::2 > fe80::1 RoCEv1 RC SEND_ONLY"), "{}", lines[0]);
    assert!(lines[1].contains(" vlan 5 priority 3 10.77.0.2:49153 > "), "{}", lines[1]);
    assert!(lines[2].contains(" vlan 5 priority 3 fe80::2 > "), "{}", lines[2]);
    assert!(lines[..3].iter().all(|line| line.ends_with("good")), "{}", run.stdout);
    let verbose = dump(&["-v", "-"], &pcap(&frames)).stdout;
    assert!(verbose.contains("02:00:00:00:00:02 > 02:00:00:00:00:01 fe80::2"), "{verbose}");

    // RoCEv1 in a cooked capture: the EtherType is where the protocol stands.
    let cooked = [0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 2, 0, 0, 0x89, 0x15];
    let timed = relinked(&[(Duration::ZERO, frames[0].clone())], &cooked);
    let run = dump_bytes(&pcap_with(header(DataLink::LINUX_SLL), &timed));
    assert_eq!(run.lines()[0], lines[0]);
}

/// An IPv4 packet of `protocol` in an Ethernet frame.
fn ipv4_frame(protocol: u8, header_words: u8, flags: u16, rest: &[u8]) -> Vec<u8> {
    let header_len = usize::from(header_words) * 4;
    let total_len = (header_len + rest.len()) as u16;
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00];
    bytes.extend([0x40 | header_words, 0]);
    bytes.extend(total_len.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(flags.to_be_bytes());
    bytes.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.resize(14 + header_len, 0);
    bytes.extend(rest);
    bytes
}

/// UDP to `port` with eight bytes.
fn udp_to(port: u16) -> Vec<u8> {
    [&[0xc0, 0], &port.to_be_bytes()[..], &[0, 16, 0, 0], &[0; 8]].concat()
}

#[test]
fn foreign_and_odd_frames_are_told() {
    let mut arp = vec![0xff; 12];
    arp.extend([0x08, 0x06]);
    arp.resize(60, 0);
    let mut length = vec![0xff; 12];
    length.extend([0x00, 0x26]);
    length.resize(60, 0);
    let builder = FrameBuilder::new(Some(link(None)), v4_net());
    let mut unknown = frame(&builder, &packet(RC_SEND_ONLY, 1, 16));
    unknown[14 + 28] = 0xff;
    rxe_wire::icrc::seal_l3(&mut unknown[14..]).unwrap();
    let mut wrong_length = frame(&builder, &packet(RC_SEND_ONLY, 1, 16));
    wrong_length[14 + 24 + 1] += 8;
    let mut trailing = frame(&builder, &packet(RC_SEND_ONLY, 1, 16));
    trailing.extend([0; 4]);
    let neighbour = {
        let mut bytes =
            vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 58];
        bytes.resize(14 + 40 + 8, 0);
        bytes
    };
    let frames = [
        (arp, "not RoCE: ARP"),
        (length, "not RoCE: 802.3 frame, length 38"),
        (ipv4_frame(6, 5, 0x4000, &[0; 20]), "not RoCE: TCP"),
        (ipv4_frame(17, 5, 0x4000, &udp_to(53)), "not RoCE: UDP port 53"),
        (ipv4_frame(2, 6, 0x4000, &[0; 8]), "not RoCE: IGMP"),
        (ipv4_frame(17, 6, 0x4000, &udp_to(53)), "not RoCE: UDP port 53"),
        (ipv4_frame(17, 5, 0x2000, &udp_to(53)), "not RoCE: fragment to UDP port 53"),
        (ipv4_frame(17, 5, 0x0010, &[0; 16]), "not RoCE: IPv4 fragment at offset 128"),
        (neighbour, "not RoCE: ICMPv6"),
        (ipv4_frame(17, 6, 0x4000, &udp_to(4791)), "malformed: IPv4: a header of 24 bytes"),
        (ipv4_frame(17, 5, 0x2000, &udp_to(4791)), "malformed: IPv4: a fragment"),
        (ipv4_frame(17, 5, 0x4000, &udp_to(4791)), "truncated: BTH needs 8 more bytes"),
        (wrong_length, "malformed: UDP: its length field says"),
        (unknown, "| malformed: opcode 0xff is not defined | icrc"),
        (trailing, "good | odd: 4 bytes behind the iCRC"),
        (vec![], "truncated: Ethernet needs 14 more bytes"),
        (vec![0xff; 13], "truncated: Ethernet needs 1 more bytes"),
    ];
    let bytes: Vec<Vec<u8>> = frames.iter().map(|(bytes, _)| bytes.clone()).collect();
    let run = dump_bytes(&pcap(&bytes));
    assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{}", run.stdout);
    for ((_, expected), line) in frames.iter().zip(run.lines()) {
        assert!(line.contains(expected), "{expected}: {line}");
    }
    let summary = "17 packets, 2 RoCE, iCRC 2 good 0 bad, 4 malformed, 9 foreign, 3 truncated";
    assert_eq!(run.last(), summary);
}

#[test]
fn an_unknown_link_type_is_told() {
    let run = dump_bytes(&pcap_with(header(DataLink::PPP), &[(Duration::ZERO, vec![0; 40])]));
    assert_eq!(run.status, 0);
    assert!(run.lines()[0].contains("not RoCE: link type 9"), "{}", run.stdout);
}

#[test]
fn a_closed_pipe_ends_it_quietly() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_urxe"))
        .args(["dump", golden("l_atomic_loss.pcap").to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    let mut stdout = BufReader::with_capacity(64, child.stdout.take().unwrap());
    stdout.read_line(&mut first).unwrap();
    assert!(first.starts_with("1 "), "{first}");
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn wrong_use_is_exit_status_2() {
    assert_eq!(dump(&[], b"").status, 2);
    assert_eq!(dump(&["--no-such-option", "-"], b"").status, 2);
    let run = dump(&["/no/such/file.pcap"], b"");
    assert_eq!(run.status, 2);
    assert!(run.stderr.contains("/no/such/file.pcap: cannot open the file"), "{}", run.stderr);
    let run = dump_bytes(b"");
    assert_eq!(run.status, 2);
    assert!(run.stderr.contains("the file is empty"), "{}", run.stderr);
    let run = dump_bytes(b"this is a letter to the editor");
    assert_eq!(run.status, 2);
    assert!(run.stderr.contains("not a capture"), "{}", run.stderr);
}

/// Frames with arbitrary bytes in them, in a capture that is well-formed itself.
fn raw_pcap(link: u32, frames: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let mut writer = PcapWriter::with_header(Vec::new(), header(link.into())).unwrap();
    for (orig_len, data) in frames {
        let packet = RawPcapPacket {
            ts_sec: u32::MAX,
            ts_frac: u32::MAX,
            incl_len: data.len() as u32,
            orig_len: *orig_len,
            data: data.into(),
        };
        writer.write_raw_packet(&packet).unwrap();
    }
    writer.into_writer()
}

proptest! {
    // Each case is a run of the program.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn garbage_never_crashes_it(
        magic in prop::sample::select(vec![
            vec![],
            vec![0xd4, 0xc3, 0xb2, 0xa1],
            vec![0x0a, 0x0d, 0x0d, 0x0a, 0x1c, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a],
        ]),
        garbage in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        let run = dump_bytes(&[magic, garbage].concat());
        prop_assert!([0, 1, 2].contains(&run.status), "{} {}", run.status, run.stderr);
        prop_assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
    }

    #[test]
    fn garbage_in_frames_never_crashes_it(
        link in prop::sample::select(vec![1_u32, 101, 113, 276, 228, 12, 0xf000_0001]),
        frames in prop::collection::vec(
            (any::<u32>(), prop::collection::vec(any::<u8>(), 0..200)),
            0..20,
        ),
    ) {
        let run = dump_bytes(&raw_pcap(link, &frames));
        prop_assert_eq!(run.status & !1, 0, "{}", &run.stderr);
        prop_assert_eq!(run.lines().len(), frames.len() + 1);
    }

    #[test]
    fn damaged_frames_never_crash_it(
        flips in prop::collection::vec(
            (0_usize..65, any::<prop::sample::Index>(), any::<u8>()),
            1..30,
        ),
    ) {
        let mut frames: Vec<Vec<u8>> =
            frames_of("rping6.pcap").into_iter().map(|(_, frame)| frame).collect();
        for (index, place, value) in flips {
            let frame = &mut frames[index];
            let place = place.index(frame.len());
            frame[place] = value;
        }
        let capture = pcap(&frames);
        for arguments in [&["-v", "-"][..], &["--json", "-"]] {
            let run = dump(arguments, &capture);
            prop_assert_eq!(run.status & !1, 0, "{}", &run.stderr);
            prop_assert!(run.lines().len() > frames.len());
        }
    }
}

#[test]
fn addresses_of_the_tables_are_those_of_the_lines() {
    for capture in ["rping.pcap", "rc_v6.pcap"].map(golden) {
        let run = dump(&["--json", capture.to_str().unwrap()], b"");
        for (row, object) in table(&capture.with_extension("tsv")).iter().zip(run.json()) {
            let cell = [&row["ip.src"], &row["ipv6.src"]].into_iter().find(|cell| !cell.is_empty());
            let expected: IpAddr = cell.unwrap().parse().unwrap();
            assert_eq!(object["ip"]["source"], expected.to_string());
        }
    }
}
