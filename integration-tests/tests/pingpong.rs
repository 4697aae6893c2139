//! `urxe pingpong` between two hosts, which are namespaces.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use integration_tests::Pingpong;
use testkit::netns::{Joined, Offloads, VethOptions, with_namespaces};

/// Plays over IPv4 and IPv6 with messages of less than a packet, some packets, and many.
fn play_all(mtu: u16, path_mtu: u32) {
    let joined = Joined::new(VethOptions { mtu, offloads: Offloads::All }).unwrap();
    for ipv6 in [false, true] {
        for (size, count) in [(1, 300), (4096, 300), (100_000, 50)] {
            let options = format!("-m {path_mtu} -s {size} -n {count}");
            let game = Pingpong::new(&joined).ipv6(ipv6).options(&options);
            let played = game.play().unwrap_or_else(|e| panic!("IPv6 {ipv6}, {options}: {e}"));
            for end in [played.client, played.server] {
                assert!(end.stdout.contains(&format!("{count} iters in")), "{end}");
                let family = if ipv6 { "fd00:77::" } else { "::ffff:10.77.0." };
                assert!(end.stdout.contains(family), "{end}");
            }
        }
    }
}

#[test]
fn two_hosts_with_mtu_1500() {
    with_namespaces("two_hosts_with_mtu_1500", || play_all(1500, 1024));
}

#[test]
fn two_hosts_with_mtu_9000() {
    with_namespaces("two_hosts_with_mtu_9000", || play_all(9000, 4096));
}

/// Each game of the family, with the data checked; the shared queue with few receives and many
/// queue pairs.
#[test]
fn the_whole_family() {
    with_namespaces("the_whole_family", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        for options in [
            "--uc -s 10 -n 300",
            "--uc -s 3000 -m 256 -n 300",
            "--uc -e -s 3000 -n 100",
            "--ud -s 10 -n 300",
            "--ud -s 1024 -n 300",
            "--ud -e -s 1000 -n 100",
            "--xrc",
            "--xrc -e -s 100000 -n 50",
            "--xrc -s 3000 -m 256 -n 300",
            "--srq -s 4096 -n 500",
            "--srq -q 64 -r 70 -s 3000 -m 256 -n 500",
            "--srq -e -q 3 -s 100000 -n 50",
        ] {
            for ipv6 in [false, true] {
                let game = Pingpong::new(&joined).ipv6(ipv6).options(options);
                let played = game.play().unwrap_or_else(|e| panic!("IPv6 {ipv6}, {options}: {e}"));
                for end in [played.client, played.server] {
                    assert!(end.stdout.contains(" iters in"), "{end}");
                }
            }
        }
    });
}

/// A game with other queue pairs at the other end is told so by both.
#[test]
fn the_numbers_of_queue_pairs_must_agree() {
    with_namespaces("the_numbers_of_queue_pairs_must_agree", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        let server = Pingpong::new(&joined).options("--srq -q 2").start_server().unwrap();
        let client = Pingpong::new(&joined).options("--srq -q 3").start_client().unwrap();
        let limit = std::time::Duration::from_secs(60);
        let (client, server) = (client.wait(limit).unwrap(), server.wait(limit).unwrap());
        assert!(server.stderr.contains("3 queue pairs, but 2 are here"), "{server}");
        assert!(!client.status.success() && !server.status.success(), "{client}");
    });
}

#[test]
fn both_ends_sleep_on_events() {
    with_namespaces("both_ends_sleep_on_events", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        Pingpong::new(&joined).options("-e -s 10000 -n 200").play().unwrap();
    });
}

#[test]
fn a_path_mtu_beyond_the_interface_is_refused() {
    with_namespaces("a_path_mtu_beyond_the_interface_is_refused", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        let error = Pingpong::new(&joined).options("-m 2048").play().unwrap_err().to_string();
        assert!(error.contains("2048") && error.contains("1024"), "{error}");
        // What ibv_ud_pingpong sends where nothing else is said.
        let error = Pingpong::new(&joined).options("--ud").play().unwrap_err().to_string();
        assert!(error.contains("2048") && error.contains("use -s 1024"), "{error}");
    });
}
