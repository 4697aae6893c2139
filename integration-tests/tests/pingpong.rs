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
    });
}
