//! A device made of two interfaces: two ports, each with its own GIDs, state and traffic.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::time::{Duration, Instant};

use integration_tests::{Member, Pingpong};
use serde_json::Value;
use testkit::binary::urxe_binary;
use testkit::netns::{Joined, Namespace, VethOptions, with_namespaces};
use testkit::process::{self, Running};

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
            return testkit::left_out::missing("what C programs see: ibv_devinfo is not installed");
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

#[test]
fn the_connection_manager_goes_over_each_port() {
    with_namespaces("the_connection_manager_goes_over_each_port", || {
        let joined = doubly_joined();
        // Path MTU 1024 by the one port, 256 by the other, which the manager has to know.
        for namespace in [&joined.left, &joined.right] {
            namespace.tool("ip", ["link", "set", "eth1", "mtu", "400"]).unwrap();
        }
        let start = |namespace: &Namespace, options: &str| {
            let mut command = namespace.command(urxe_binary());
            command.arg("rping").args(options.split(' ')).env("URXE_DEVICES", DUAL);
            Running::start("urxe rping", &mut command).unwrap()
        };
        let serve = |options: &str| {
            let server = start(&joined.right, options);
            let end = Instant::now() + LIMIT;
            let names = || joined.right.tool("cat", ["/proc/net/unix"]).unwrap().stdout;
            while !names().contains("/service/") {
                assert!(Instant::now() < end, "the server does not listen");
                std::thread::sleep(Duration::from_millis(20));
            }
            server
        };
        for (address, interface) in [("10.77.0.2", "eth0"), ("10.78.0.2", "eth1")] {
            let server = serve(&format!("-s -a {address} -V -C 20 -S 2000"));
            let before = sent_by(&joined.left, interface);
            let client = start(&joined.left, &format!("-c -a {address} -V -C 20 -S 2000"));
            let (client, server) = (client.wait(LIMIT).unwrap(), server.wait(LIMIT).unwrap());
            assert!(client.status.success() && server.status.success(), "{client}\n{server}");
            let sent = sent_by(&joined.left, interface) - before;
            assert!(sent > 20 * 2000, "{sent} bytes by {interface}");
        }
        // To all addresses of both ports by one listener.
        let server = serve("-s -P -V -C 5");
        for address in ["10.77.0.2", "10.78.0.2"] {
            let client = start(&joined.left, &format!("-c -a {address} -V -C 5"));
            let client = client.wait(LIMIT).unwrap();
            assert!(client.status.success(), "{client}");
        }
        drop(server);
    });
}

#[test]
fn one_call_tells_of_four_ports_with_256_gids_each() {
    with_namespaces("one_call_tells_of_four_ports_with_256_gids_each", || {
        let namespace = Namespace::new("quad").unwrap();
        let mut commands = Vec::new();
        for port in 0..4 {
            commands.push(format!("link add q{port} type veth peer name p{port}"));
            commands.push(format!("link set q{port} addrgenmode none"));
            commands.push(format!("link set q{port} up"));
            // With the default GID, in both versions of RoCE.
            for host in 1..=127 {
                commands.push(format!("address add 10.{port}.0.{host}/32 dev q{port}"));
            }
        }
        let batch = commands.join("\n");
        let script = format!("ip -batch - <<'END'\n{batch}\nEND");
        namespace.tool("sh", ["-c", &script]).unwrap();
        let devices = ("URXE_DEVICES", "quad=q0+q1+q2+q3");
        let mut command = namespace.command(env!("CARGO_BIN_EXE_port-watcher"));
        command.arg("quad").envs([devices, ("URXE_LINK", "packet")]);
        let mut watcher = Member::start(0, &mut command).unwrap();
        let answer = watcher.ask("all", "all").unwrap();
        println!("{answer} ns for one call of query_gid_table");
        assert_eq!(answer.split(' ').nth(1), Some("1024"), "{answer}");
        if !process::is_installed("ibv_devinfo") {
            return testkit::left_out::missing("what C programs see: ibv_devinfo is not installed");
        }
        let mut command = namespace.command(urxe_binary());
        command.args(["run", "--", "ibv_devinfo", "-v"]).envs([devices, ("URXE_LINK", "packet")]);
        let seen = process::run("ibv_devinfo", &mut command, LIMIT).unwrap().success().unwrap();
        assert_eq!(seen.stdout.matches("GID[").count(), 1024, "{seen}");
        assert_eq!(seen.stdout.matches("RoCE v1").count(), 512);
    });
}
