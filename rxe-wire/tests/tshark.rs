//! Packets of our own, read by tshark: what the captures of Linux lack. Each opcode that tshark 4.0
//! knows, each encapsulation, with and without a VLAN tag, all syndromes.
//!
//! tshark 4.0 does not decode XRC, FLUSH, ATOMIC WRITE and CNP, and looks for RD's headers eight
//! bytes too late: those are in `vectors.rs`.
#![allow(clippy::unwrap_used, reason = "a test may panic in its helpers too")]

mod common;

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use common::packets::{Sequence, packet};
use common::{Reading, Value};
use pcap_file::pcap::{PcapPacket, PcapWriter};
use rxe_wire::net::{
    Ethernet, Frame, FrameBuilder, Grh, Ipv4, Ipv6, Link, MacAddr, Net, Udp, Vlan,
};
use rxe_wire::{OPCODES, Opcode, OpcodeInfo, Operation, Service, Syndrome};

/// The fields compared: all that the tables of the captures have, and those below BTH.
const FIELDS: &[&str] = &[
    "eth.src",
    "eth.dst",
    "vlan.id",
    "vlan.priority",
    "vlan.dei",
    "ip.src",
    "ip.dst",
    "ip.dsfield",
    "ip.len",
    "ip.id",
    "ip.flags.df",
    "ip.ttl",
    "ip.checksum",
    "ip.checksum.status",
    "ipv6.src",
    "ipv6.dst",
    "ipv6.tclass",
    "ipv6.flow",
    "ipv6.plen",
    "ipv6.hlim",
    "udp.srcport",
    "udp.dstport",
    "udp.length",
    "infiniband.grh.tclass",
    "infiniband.grh.flowlabel",
    "infiniband.grh.paylen",
    "infiniband.grh.nxthdr",
    "infiniband.grh.hoplmt",
    "infiniband.grh.sgid",
    "infiniband.grh.dgid",
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.tver",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.reserved7",
    "infiniband.bth.psn",
    "infiniband.deth.q_key",
    "infiniband.deth.srcqp",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.immdt",
    "infiniband.ieth",
    "infiniband.atomiceth.swapdt",
    "infiniband.atomiceth.cmpdt",
    "infiniband.atomicacketh.origremdt",
    "infiniband.invariant.crc",
    // Ours has none of these two: tshark must not either.
    "_ws.malformed",
    "_ws.short",
];

/// Whether tshark 4.0 decodes the opcode's headers.
fn is_known_to_tshark(info: &OpcodeInfo) -> bool {
    let service = matches!(info.service, Service::Rc | Service::Uc | Service::Ud);
    service && !matches!(info.operation, Operation::Flush | Operation::AtomicWrite)
}

/// The way of the `index`-th packet: RoCE v1, IPv4 and IPv6 in turn, every second with a tag.
fn builder(index: usize, seq: &mut Sequence) -> FrameBuilder {
    let vlan = Vlan {
        priority: (seq.next() % 8) as u8,
        drop_eligible: seq.next().is_multiple_of(2),
        id: (seq.next() % 4096) as u16,
        ether_type: 0,
    };
    let link = Link {
        ethernet: Ethernet {
            destination: MacAddr([0x52, 0x54, 0, 0x77, 0, 1]),
            source: MacAddr([0x52, 0x54, 0, 0x77, 0, 2]),
            ether_type: 0,
        },
        vlan: (index % 2 == 1).then_some(vlan),
        inner_vlan: None,
    };
    let traffic_class = seq.next() as u8;
    let flow_label = seq.next() as u32 & 0xf_ffff;
    let hop_limit = 1 + (seq.next() % 255) as u8;
    let (source, destination) =
        ([0xfd, 0, 0, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], [0xfd; 16]);
    let udp = Udp::new(0xc000 | seq.next() as u16);
    let net = match index % 3 {
        0 => Net::V1(Grh { traffic_class, flow_label, hop_limit, ..Grh::new(source, destination) }),
        1 => Net::V4 {
            ip: Ipv4 {
                traffic_class,
                ttl: hop_limit,
                identification: seq.next() as u16,
                dont_fragment: !seq.next().is_multiple_of(4),
                ..Ipv4::new([10, 77, 0, 1].into(), [10, 77, 0, 2].into())
            },
            udp,
        },
        _ => Net::V6 {
            ip: Ipv6 {
                traffic_class,
                flow_label,
                hop_limit,
                ..Ipv6::new(source.into(), destination.into())
            },
            udp,
        },
    };
    FrameBuilder { udp_checksum: index % 4 == 3, ..FrameBuilder::new(Some(link), net) }
}

/// Two frames of each opcode in each of the six ways, and an acknowledge of each syndrome.
fn frames() -> Vec<Vec<u8>> {
    let mut seq = Sequence(4791);
    let mut frames = Vec::new();
    let mut add = |packet: &[u8], way: usize, seq: &mut Sequence| {
        let builder = builder(way, seq);
        let mut frame = vec![0; builder.frame_len(packet.len())];
        builder.write(packet, &mut frame).unwrap();
        frames.push(frame);
    };
    for info in OPCODES.iter().flatten().filter(|info| is_known_to_tshark(info)) {
        for way in 0..12 {
            let (_, packet) = packet(info, &mut seq);
            add(&packet, way, &mut seq);
        }
    }
    let info = Opcode::RC_ACKNOWLEDGE.info().unwrap();
    for byte in 0..128 {
        let (mut headers, mut packet) = packet(info, &mut seq);
        headers.aeth.as_mut().unwrap().syndrome = Syndrome::from_byte(byte);
        headers.write(&mut packet).unwrap();
        add(&packet, byte.into(), &mut seq);
    }
    frames
}

/// A file that is removed when the test is over, however it ends.
struct TemporaryFile(PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // Nothing depends on it being gone.
        let _ = fs::remove_file(&self.0);
    }
}

fn write_capture(frames: &[Vec<u8>]) -> TemporaryFile {
    let name = format!("rxe-wire-tshark-{}.pcap", std::process::id());
    let capture = TemporaryFile(env::temp_dir().join(name));
    let mut writer = PcapWriter::new(File::create(&capture.0).unwrap()).unwrap();
    for (index, frame) in frames.iter().enumerate() {
        let time = Duration::from_micros(index as u64);
        writer.write_packet(&PcapPacket::new(time, frame.len() as u32, frame)).unwrap();
    }
    capture
}

/// tshark's reading of a capture, one line a frame; `None` when tshark is not installed.
fn tshark(capture: &OsStr) -> Option<String> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(capture);
    command.args(["--disable-protocol", "rpcordma", "-o", "ip.check_checksum:TRUE"]);
    command.args(["-T", "fields", "-E", "occurrence=f"]);
    for field in FIELDS {
        command.args(["-e", field]);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            let ci = env::var_os("CI").is_some_and(|ci| ci == "true");
            assert!(!ci, "tshark cannot be run ({error}), and CI is true: install it");
            // Not by a macro: what a test prints by one is seen only when it fails.
            let _ = writeln!(std::io::stderr(), "left out: tshark cannot be run ({error})");
            return None;
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn tshark_reads_our_packets_as_we_do() {
    let frames = frames();
    let capture = write_capture(&frames);
    let Some(text) = tshark(capture.0.as_os_str()) else { return };
    assert_eq!(text.lines().count(), frames.len());
    for (line, bytes) in text.lines().zip(&frames) {
        let frame = Frame::parse_ethernet(bytes).unwrap();
        let reading = Reading::of(&frame);
        if frame.link.unwrap().vlan.is_some() {
            assert!(reading.get("vlan.id").is_some());
        }
        let name = format!("{:?}", frame.packet().unwrap());
        let values: Vec<_> = line.split('\t').collect();
        assert_eq!(values.len(), FIELDS.len());
        reading.assert_equals(&name, FIELDS.iter().copied().zip(values));
    }
    // What the captures of Linux lack is among them.
    let some = |field, value| {
        frames.iter().any(|bytes| {
            let reading = Reading::of(&Frame::parse_ethernet(bytes).unwrap());
            reading.get(field).is_some_and(|found| value == 0 || *found == Value::Number(value))
        })
    };
    for (field, value) in [
        ("infiniband.bth.se", 1),
        ("infiniband.bth.m", 1),
        ("infiniband.ieth", 0),
        ("infiniband.aeth.syndrome", 0x2c),
        ("vlan.id", 0),
        ("infiniband.grh.sgid", 0),
        ("infiniband.bth.opcode", u64::from(Opcode::RC_SEND_ONLY_WITH_IMM.get())),
    ] {
        assert!(some(field, value), "{field} {value}");
    }
}
