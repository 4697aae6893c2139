//! What a game puts on the wire, as tshark and `urxe dump` read it.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::Path;

use integration_tests::{Dump, Pingpong};
use testkit::capture::PacketCapture;
use testkit::netns::{Joined, Offloads, Side, VethOptions, with_namespaces};
use testkit::scratch::Scratch;
use testkit::tshark::Tshark;

/// Five packets and more of each size of message, so that all positions in a message are seen.
const OPTIONS: &str = "-s 20000 -n 40";

/// Checks that both decoders read each packet as RoCE, well-formed; ours, that its iCRC is good.
/// Returns how many packets there are.
fn check(capture: &Path) -> usize {
    let tshark = Tshark::new(capture);
    assert_eq!(tshark.malformed().unwrap(), Vec::<String>::new());
    let all = tshark.count("").unwrap();
    assert_eq!(tshark.count("infiniband.bth").unwrap(), all);
    let dump = Dump::of(capture).unwrap();
    assert_eq!(dump.finished.status.code(), Some(0), "{}", dump.finished);
    for (name, expected) in [("packets", all), ("roce", all), ("icrc_good", all)] {
        assert_eq!(dump.count(name), expected as u64, "{name}");
    }
    for name in ["icrc_bad", "malformed", "truncated", "foreign", "super_frames"] {
        assert_eq!(dump.count(name), 0, "{name}");
    }
    all
}

/// The packets that the left side sent: opcode, PSN and iCRC of each, in their order.
fn sent(capture: &Path, ipv6: bool) -> Vec<Vec<String>> {
    let filter = if ipv6 {
        format!("ipv6.src == {}", Side::Left.ipv6())
    } else {
        format!("ip.src == {}", Side::Left.ipv4())
    };
    let fields = ["infiniband.bth.opcode", "infiniband.bth.psn", "infiniband.invariant.crc"];
    Tshark::new(capture).fields(&filter, &fields).unwrap()
}

/// On a wire without offloads, the interface and `URXE_PCAP` tell the same.
fn wire_and_own_capture(mtu: u16, path_mtu: u32) {
    let options = VethOptions { mtu, offloads: Offloads::None };
    let joined = Joined::new(options).unwrap();
    let scratch = Scratch::new("wire").unwrap();
    for ipv6 in [false, true] {
        let wire = PacketCapture::start(&joined.left, &scratch.file("wire.pcap")).unwrap();
        let own = scratch.file("own.pcap");
        let game = Pingpong::new(&joined).ipv6(ipv6).client_pcap(own.clone());
        game.options(&format!("{OPTIONS} -m {path_mtu}")).play().unwrap();
        let wire = wire.stop(&joined.left, Side::Left).unwrap();
        // 40 messages each way, each of 20,000 bytes.
        let least = 2 * 40 * 20_000_usize.div_ceil(path_mtu as usize);
        assert!(check(&wire) > least);
        assert!(check(&own) > least);
        assert_eq!(sent(&wire, ipv6), sent(&own, ipv6));
    }
}

#[test]
fn the_wire_and_our_capture_agree_with_mtu_1500() {
    with_namespaces("the_wire_and_our_capture_agree_with_mtu_1500", || {
        wire_and_own_capture(1500, 1024);
    });
}

#[test]
fn the_wire_and_our_capture_agree_with_mtu_9000() {
    with_namespaces("the_wire_and_our_capture_agree_with_mtu_9000", || {
        wire_and_own_capture(9000, 4096);
    });
}

/// With segmentation offload the interface sees batches, `URXE_PCAP` still packets.
#[test]
fn batches_are_recognised_in_a_foreign_capture() {
    with_namespaces("batches_are_recognised_in_a_foreign_capture", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        let scratch = Scratch::new("batches").unwrap();
        for ipv6 in [false, true] {
            let wire = PacketCapture::start(&joined.left, &scratch.file("wire.pcap")).unwrap();
            let own = scratch.file("own.pcap");
            let game = Pingpong::new(&joined).ipv6(ipv6).client_pcap(own.clone());
            game.options(OPTIONS).play().unwrap();
            let wire = wire.stop(&joined.left, Side::Left).unwrap();

            check(&own);
            let dump = Dump::of(&wire).unwrap();
            assert_eq!(dump.finished.status.code(), Some(0), "{}", dump.finished);
            assert!(dump.count("super_frames") >= 40, "{}", dump.finished);
            assert!(dump.count("roce") > dump.count("packets"));
            assert_eq!(dump.count("icrc_good"), dump.count("roce"));
            assert_eq!(dump.count("malformed") + dump.count("foreign"), 0);
        }
    });
}

/// `dump` is no rubber stamp: a flipped bit in one packet of a capture is found.
#[test]
fn a_flipped_bit_is_found() {
    with_namespaces("a_flipped_bit_is_found", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        let scratch = Scratch::new("flipped").unwrap();
        let own = scratch.file("own.pcap");
        let game = Pingpong::new(&joined).client_pcap(own.clone());
        game.options("-s 100 -n 5").play().unwrap();
        let mut bytes = std::fs::read(&own).unwrap();
        // The last byte but the iCRC of the last packet.
        let place = bytes.len() - 5;
        bytes[place] ^= 0x10;
        std::fs::write(&own, bytes).unwrap();
        let dump = Dump::of(&own).unwrap();
        assert_eq!(dump.finished.status.code(), Some(1), "{}", dump.finished);
        assert_eq!(dump.count("icrc_bad"), 1);
    });
}
