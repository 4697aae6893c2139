//! Networks that lose, repeat and reorder packets: every byte arrives, in order, once.
//!
//! `urxe pingpong -c`, which all these run, sends other bytes in each message and checks every byte
//! that the other end sends back, message by message.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::HashSet;

use integration_tests::{Dump, Pingpong};
use testkit::capture::PacketCapture;
use testkit::netns::{Joined, Offloads, Side, VethOptions, with_namespaces};
use testkit::scratch::Scratch;
use testkit::tshark::Tshark;

/// Single packets, some, and many.
const GAMES: [&str; 3] = ["-s 1 -n 500", "-s 4096 -n 300", "-s 100000 -n 60"];

fn play_all(joined: &Joined, faults: Option<&str>) {
    for ipv6 in [false, true] {
        play_games(joined, ipv6, faults);
    }
}

fn play_games(joined: &Joined, ipv6: bool, faults: Option<&str>) {
    for options in GAMES {
        let mut game = Pingpong::new(joined).ipv6(ipv6).options(options);
        if let Some(faults) = faults {
            game = game.faults(faults);
        }
        game.play().unwrap_or_else(|error| panic!("IPv6 {ipv6}, {options}: {error}"));
    }
}

#[test]
fn three_percent_lost_each_way() {
    with_namespaces("three_percent_lost_each_way", || {
        // Without offloads, or the filter would drop whole batches.
        let options = VethOptions { offloads: Offloads::None, ..VethOptions::default() };
        let joined = Joined::new(options).unwrap();
        for namespace in [&joined.left, &joined.right] {
            namespace.drop_arriving(3).unwrap();
        }
        play_all(&joined, None);
        for namespace in [&joined.left, &joined.right] {
            // Of more than 10,000 packets; the chance of fewer is less than one in a million.
            let dropped = namespace.dropped().unwrap();
            assert!(dropped > 200, "{dropped} dropped");
        }
    });
}

#[test]
fn packets_reordered_and_repeated() {
    with_namespaces("packets_reordered_and_repeated", || {
        let options = VethOptions { offloads: Offloads::None, ..VethOptions::default() };
        let joined = Joined::new(options).unwrap();
        let scratch = Scratch::new("reordered").unwrap();
        let wire = PacketCapture::start(&joined.left, &scratch.file("wire.pcap")).unwrap();
        play_all(&joined, Some("reorder=5%,dup=3%"));
        // They were: on the wire, packets are out of order, and some are there twice.
        let wire = wire.stop(&joined.left, Side::Left).unwrap();
        let from_left = format!("ip.src == {}", Side::Left.ipv4());
        let fields = ["ip.id", "infiniband.bth.destqp", "infiniband.bth.psn"];
        let rows = Tshark::new(&wire).fields(&from_left, &fields).unwrap();
        let different: HashSet<_> = rows.iter().map(|row| (&row[1], &row[2])).collect();
        assert!(rows.len() - different.len() > 50, "of {} packets", rows.len());
        let number = |row: &[String]| row[2].parse::<u32>().unwrap();
        let backwards = |pair: &[Vec<String>]| {
            pair[0][1] == pair[1][1] && number(&pair[1]).wrapping_add(1) == number(&pair[0])
        };
        let count = rows.windows(2).filter(|pair| backwards(pair)).count();
        assert!(count > 50, "{count} of {}", rows.len());
    });
}

#[test]
fn packets_lost_corrupted_delayed_reordered_and_repeated() {
    with_namespaces("packets_lost_corrupted_delayed_reordered_and_repeated", || {
        let options = VethOptions { offloads: Offloads::None, ..VethOptions::default() };
        let joined = Joined::new(options).unwrap();
        let scratch = Scratch::new("corrupted").unwrap();
        let wire = PacketCapture::start(&joined.left, &scratch.file("wire.pcap")).unwrap();
        let faults = "drop=1%,reorder=2%,dup=1%,delay=50us..500us,delay-prob=5%";
        play_games(&joined, false, Some(faults));
        // Over IPv4 two corrupt packets in 65,536 pass at a socket (rxe-net, udp/check.rs), which
        // would fail one run in some hundred: only the check of IPv6 is exact.
        play_games(&joined, true, Some(&format!("{faults},corrupt=1%")));
        let wire = wire.stop(&joined.left, Side::Left).unwrap();
        let dump = Dump::of(&wire).unwrap();
        assert_eq!(dump.finished.status.code(), Some(1), "iCRCs are bad");
        assert!(dump.count("icrc_bad") + dump.count("malformed") > 50);
        assert!(dump.count("icrc_bad") < dump.count("roce") / 20);
    });
}
