//! Frames of other protocols, and what is nearly RoCE.

use rxe_wire::net::FrameBuilder;

use crate::support::{RC_SEND_ONLY, dump, dump_bytes, frame, link, packet, pcap, v4_net};

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
fn questions_and_answers_of_flow_control_are_no_malformed_packets() {
    let builder = FrameBuilder::new(Some(link(None)), v4_net());
    let note = |opcode: u8, len: usize| {
        let mut bytes = frame(&builder, &packet(RC_SEND_ONLY, 1, len));
        bytes[14 + 28] = opcode;
        bytes[14 + 28 + 12..][..4].copy_from_slice(&0x02_0005_u32.to_be_bytes());
        bytes[14 + 28 + 16..][..8].copy_from_slice(&73_728_u64.to_be_bytes());
        rxe_wire::icrc::seal_l3(&mut bytes[14..]).unwrap();
        bytes
    };
    // The last one is as another manufacturer may have it.
    let capture = pcap(&[note(0xd0, 12), note(0xd1, 12), note(0xd0, 16)]);
    let run = dump_bytes(&capture);
    let lines = run.lines();
    assert!(
        lines[0].contains("| urxe flow control question from 0x020005 mark 73728"),
        "{lines:?}"
    );
    assert!(lines[1].contains("| urxe flow control answer from 0x020005 mark 73728"), "{lines:?}");
    assert!(lines[2].contains("| malformed: opcode 0xd0 is not defined"), "{lines:?}");
    let summary = "3 packets, 3 RoCE, iCRC 3 good 0 bad, 1 malformed, 0 foreign";
    assert_eq!(run.last(), summary);
    let json = dump(&["--json", "-"], &capture).json();
    assert_eq!(json[1]["flow_control"]["kind"], "answer", "{json:?}");
    assert_eq!(json[1]["flow_control"]["mark"], 73_728);
    assert_eq!(json[1].get("malformed"), None);
}
