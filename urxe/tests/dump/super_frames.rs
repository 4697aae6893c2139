//! Super-frames: several packets in one frame.

use rxe_wire::net::{Ethernet, Ipv4, Ipv6, Net, Udp};

use crate::support::{
    RC_SEND_FIRST, RC_SEND_LAST, RC_SEND_MIDDLE, RC_SEND_ONLY, dump, dump_bytes, link, packet,
    pcap, v4_net, v6_net,
};

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
