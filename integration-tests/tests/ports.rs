//! A device made of two interfaces: two ports, each with its own GIDs, state and traffic.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::time::Duration;

use integration_tests::Pingpong;
use serde_json::Value;
use testkit::binary::urxe_binary;
use testkit::netns::{Joined, Namespace, VethOptions, with_namespaces};
use testkit::process;

const LIMIT: Duration = Duration::from_secs(60);
const DUAL: &str = "dual=eth0+eth1";

/// Two namespaces, joined by two pairs of interfaces.
fn doubly_joined() -> Joined {
    let joined = Joined::new(VethOptions::default()).unwrap();
    let peer = joined.right.name();
    let pair = ["link", "add", "eth1", "type", "veth", "peer", "name", "eth1", "netns", peer];
    joined.left.tool("ip", pair).unwrap();
    for (namespace, address) in [(&joined.left, "10.78.0.1/24"), (&joined.right, "10.78.0.2/24")] {
        namespace.tool("ip", ["address", "add", address, "dev", "eth1"]).unwrap();
        namespace.tool("ip", ["link", "set", "eth1", "up"]).unwrap();
    }
    joined
}

fn gids(namespace: &Namespace) -> Value {
    let mut command = namespace.command(urxe_binary());
    command.args(["gids", "dual", "--json"]).env("URXE_DEVICES", DUAL);
    let seen = process::run("urxe gids", &mut command, LIMIT).unwrap().success().unwrap();
    serde_json::from_str(&seen.stdout).unwrap()
}

fn sent_by(namespace: &Namespace, interface: &str) -> u64 {
    let file = format!("/sys/class/net/{interface}/statistics/tx_bytes");
    namespace.tool("cat", [&file]).unwrap().stdout.trim().parse().unwrap()
}

#[test]
fn each_port_has_its_own_gids_and_state() {
    with_namespaces("each_port_has_its_own_gids_and_state", || {
        let joined = doubly_joined();
        let seen = |ports: &Value| {
            let ports = ports.as_array().unwrap().iter();
            let port = |port: &Value| {
                let all = port["gids"].as_array().unwrap().iter();
                let ipv4 = all.filter(|gid| gid["gid"].as_str().unwrap().starts_with("::ffff:"));
                let text = |gid: &Value| format!("{} {}", gid["gid"], gid["interface"]);
                (port["port"].as_u64(), port["state"].clone(), ipv4.map(text).collect::<Vec<_>>())
            };
            ports.map(port).collect::<Vec<_>>()
        };
        let row = |number, state: &str, gid: &str| {
            let gid = gid.split(' ').map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" ");
            (Some(number), Value::from(state), vec![gid])
        };
        let (one, two) = ("::ffff:10.77.0.1 eth0", "::ffff:10.78.0.1 eth1");
        let up = "PORT_ACTIVE";
        assert_eq!(seen(&gids(&joined.left)), [row(1, up, one), row(2, up, two)]);
        joined.right.tool("ip", ["link", "set", "eth1", "down"]).unwrap();
        assert_eq!(seen(&gids(&joined.left)), [row(1, up, one), row(2, "PORT_DOWN", two)]);
    });
}

#[test]
fn each_service_plays_over_each_port() {
    with_namespaces("each_service_plays_over_each_port", || {
        let joined = doubly_joined();
        for (port, interface) in [(1, "eth0"), (2, "eth1")] {
            for service in ["", "--uc", "--ud"] {
                let before = sent_by(&joined.left, interface);
                let game = Pingpong::new(&joined).devices(DUAL).options(service);
                game.options(&format!("-d dual -i {port} -s 1000 -n 200")).play().unwrap();
                let sent = sent_by(&joined.left, interface) - before;
                assert!(sent > 200 * 1000, "{sent} bytes by {interface}");
            }
        }
    });
}

#[test]
fn an_unmodified_program_sees_both_ports() {
    with_namespaces("an_unmodified_program_sees_both_ports", || {
        if !process::is_installed("ibv_devinfo") {
            eprintln!("left out: ibv_devinfo is not installed");
            return;
        }
        let joined = doubly_joined();
        let mut command = joined.left.command(urxe_binary());
        command.args(["run", "--", "ibv_devinfo", "-v"]).env("URXE_DEVICES", DUAL);
        let seen = process::run("ibv_devinfo", &mut command, LIMIT).unwrap().success().unwrap();
        assert!(seen.stdout.contains("phys_port_cnt:\t\t\t2"), "{seen}");
        for port in ["port:\t1", "port:\t2", "::ffff:10.77.0.1", "::ffff:10.78.0.1"] {
            assert!(seen.stdout.contains(port), "{port}: {seen}");
        }
    });
}
