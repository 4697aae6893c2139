//! pcap and pcapng in every byte order, resolution and link type.

use std::net::Ipv6Addr;
use std::time::Duration;

use pcap_file::pcap::PcapHeader;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::simple_packet::SimplePacketBlock;
use pcap_file::pcapng::{PcapNgBlock, PcapNgWriter};
use pcap_file::{DataLink, Endianness, TsResolution};
use rxe_wire::net::{FrameBuilder, Grh, Net, Vlan};
use serde_json::Value;

use crate::support::{
    RC_SEND_ONLY, Timed, dump, dump_bytes, frame, frames_of, golden, header, link, packet, pcap,
    pcap_with, relinked, v4_net,
};

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

#[test]
fn an_unknown_link_type_is_told() {
    let run = dump_bytes(&pcap_with(header(DataLink::PPP), &[(Duration::ZERO, vec![0; 40])]));
    assert_eq!(run.status, 0);
    assert!(run.lines()[0].contains("not RoCE: link type 9"), "{}", run.stdout);
}
