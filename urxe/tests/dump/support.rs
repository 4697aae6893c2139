//! What the tests share: running the program, and making frames and captures.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use rxe_wire::hdr::{Bth, Deth};
use rxe_wire::mad::cm::{FixedBytes, GSI_QKEY};
use rxe_wire::net::{
    Ethernet, FrameBuilder, Ipv4, Ipv6, Link, MacAddr, Net, Udp, Vlan, ether_type,
};
use rxe_wire::{Headers, Opcode, Psn, Qpn};
use serde_json::Value;

/// What a run of the program left behind.
pub(crate) struct Run {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    pub(crate) fn lines(&self) -> Vec<&str> {
        self.stdout.lines().collect()
    }

    pub(crate) fn last(&self) -> &str {
        self.stdout.lines().last().unwrap_or_default()
    }

    pub(crate) fn json(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Runs `urxe dump` with arguments, and `stdin` as its standard input.
pub(crate) fn dump(arguments: &[&str], stdin: &[u8]) -> Run {
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
pub(crate) fn dump_bytes(capture: &[u8]) -> Run {
    dump(&["-"], capture)
}

pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../rxe-wire/testdata/golden").join(name)
}

pub(crate) fn golden_captures() -> Vec<PathBuf> {
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
pub(crate) type Timed = (Duration, Vec<u8>);

pub(crate) fn frames_of(name: &str) -> Vec<Timed> {
    let mut reader = PcapReader::new(File::open(golden(name)).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        frames.push((packet.timestamp, packet.data.into_owned()));
    }
    frames
}

pub(crate) fn header(datalink: DataLink) -> PcapHeader {
    PcapHeader { datalink, snaplen: 0x4_0000, ..PcapHeader::default() }
}

pub(crate) fn pcap_with(header: PcapHeader, frames: &[Timed]) -> Vec<u8> {
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    for (time, frame) in frames {
        writer.write_packet(&PcapPacket::new(*time, frame.len() as u32, frame)).unwrap();
    }
    writer.into_writer()
}

/// A capture of Ethernet frames, a second apart.
pub(crate) fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let timed: Vec<Timed> = (0..).map(Duration::from_secs).zip(frames.iter().cloned()).collect();
    pcap_with(header(DataLink::ETHERNET), &timed)
}

pub(crate) fn table(path: &Path) -> Vec<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines().map(|line| line.split('\t').map(str::to_string));
    let names: Vec<String> = lines.next().unwrap().collect();
    lines.map(|cells| names.iter().cloned().zip(cells).collect()).collect()
}

pub(crate) fn link(vlan: Option<Vlan>) -> Link {
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

pub(crate) fn v4_net() -> Net {
    let ip = Ipv4::new([10, 77, 0, 2].into(), [10, 77, 0, 1].into());
    Net::V4 { ip, udp: Udp::new(0xc001) }
}

pub(crate) fn v6_net() -> Net {
    let [source, destination] = [2, 1].map(|last| Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, last));
    Net::V6 { ip: Ipv6::new(source, destination), udp: Udp::new(0xc001) }
}

/// A packet from BTH to its payload's end: no extended headers, `len` bytes of payload.
pub(crate) fn packet(opcode: u8, psn: u32, len: usize) -> Vec<u8> {
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

pub(crate) fn frame(builder: &FrameBuilder, packet: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; builder.frame_len(packet.len())];
    builder.write(packet, &mut bytes).unwrap();
    bytes
}

pub(crate) const RC_SEND_FIRST: u8 = 0;
pub(crate) const RC_SEND_MIDDLE: u8 = 1;
pub(crate) const RC_SEND_LAST: u8 = 2;
pub(crate) const RC_SEND_ONLY: u8 = 4;

/// The frames without their Ethernet header, behind `head`.
pub(crate) fn relinked(frames: &[Timed], head: &[u8]) -> Vec<Timed> {
    let relink = |frame: &[u8]| [head, &frame[Ethernet::LEN..]].concat();
    frames.iter().map(|(time, frame)| (*time, relink(frame))).collect()
}

pub(crate) fn filled<const N: usize>() -> FixedBytes<N> {
    FixedBytes(std::array::from_fn(|place| place as u8))
}

/// A packet from BTH on that carries `payload` from QP1 to QP1.
pub(crate) fn to_gsi(payload: &[u8]) -> Vec<u8> {
    let bth = Bth { opcode: Opcode::new(100), dest_qpn: Qpn::GSI, ..Bth::default() };
    let deth = Some(Deth { qkey: GSI_QKEY, source_qpn: Qpn::GSI, reserved: 0 });
    let headers = Headers { deth, ..Headers::new(bth) };
    let mut bytes = vec![0; headers.len()];
    headers.write(&mut bytes).unwrap();
    bytes.extend(payload);
    bytes
}
