//! The UDP link in a host that has no room for what it is to send.
//!
//! Packets to a neighbour that does not answer wait in the kernel, charged to the socket, until it
//! does: so a small send buffer is full for as long as the test wants. It runs in a network
//! namespace of its own.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::env;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use gid_table::Gid;
use rxe_core::path::{Path, Transmit};
use rxe_core::time::Instant;
use rxe_net::batch::TxBatch;
use rxe_net::link::Link;
use rxe_net::udp::{UdpConfig, UdpLink};
use rxe_wire::Qpn;

const INSIDE: &str = "URXE_TEST_UDP_PRESSURE";
const HERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const COUNT: usize = 40;

fn sh(script: &str) {
    let status = Command::new("sh").args(["-ec", script]).status().unwrap();
    assert!(status.success(), "{script}");
}

#[test]
fn r40_packets_that_a_full_socket_refuses_stay_in_the_batch_and_leave_later() {
    if env::var_os(INSIDE).is_some() {
        return fill_the_socket();
    }
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--net"]);
        command
    };
    if !unshare().arg("true").status().is_ok_and(|status| status.success()) {
        assert!(env::var("CI").as_deref() != Ok("true"), "no namespaces (CI leaves nothing out)");
        // Not by a macro: what a test prints by one is seen only when it fails.
        let _ = writeln!(std::io::stderr(), "left out: network namespaces cannot be made here");
        return;
    }
    let name = "r40_packets_that_a_full_socket_refuses_stay_in_the_batch_and_leave_later";
    let status = unshare()
        .arg(env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .unwrap();
    assert!(status.success(), "inside: {status}");
}

fn fill_the_socket() {
    sh("ip link add left type veth peer name right
        ip link set right up
        ip link set left up
        ip address add 192.0.2.1/24 dev left");
    for (gso, host) in [(true, 2), (false, 3)] {
        let neighbour = Ipv4Addr::new(192, 0, 2, host);
        let mut config = UdpConfig::new(IpAddr::V4(HERE), 9);
        (config.gso, config.buffers.send) = (gso, Some(4096));
        let mut link = UdpLink::open(config).unwrap();
        let mut batch = full_batch(neighbour);
        let report = link.transmit(Instant::ZERO, &mut batch);
        assert!(report.sent > 0 && report.sent < COUNT && report.lost == 0, "{report:?}");
        assert_eq!(psns(&batch), (report.sent..COUNT).collect::<Vec<_>>(), "in their order");
        assert_eq!(link.counters().send_waits, 1);

        let again = link.transmit_rest(Instant::ZERO, &mut batch);
        assert_eq!((again.done(), batch.len()), (0, COUNT - report.sent), "still no room");

        sh(&format!("ip neighbour replace {neighbour} dev left lladdr 02:00:00:00:00:02"));
        while !batch.is_empty() {
            assert_eq!(link.transmit_rest(Instant::ZERO, &mut batch).lost, 0);
        }
        let counters = link.counters();
        assert_eq!((counters.sent, counters.send_errors), (COUNT as u64, 0), "gso: {gso}");
    }
}

/// Packets of different lengths, so that they make several messages; the PSN is their number.
fn full_batch(to: Ipv4Addr) -> TxBatch {
    let mut batch = TxBatch::new();
    let path = Path::new(Gid::from_ip(HERE.into()), Gid::from_ip(to.into()));
    for index in 0..COUNT {
        let mut bytes = vec![0; 600 + index / 2 * 4];
        bytes[8..12].copy_from_slice(&(index as u32).to_be_bytes());
        let transmit = Transmit { len: bytes.len(), path, dest_qpn: Qpn::new(0x07_0001) };
        assert!(batch.push_copy(&bytes, transmit, None));
    }
    batch
}

fn psns(batch: &TxBatch) -> Vec<usize> {
    batch.iter().map(|(_, bytes)| usize::from(bytes[11])).collect()
}
