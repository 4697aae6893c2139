//! GID tables, port states, events and queue pairs, as the interfaces of a namespace change.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::time::{Duration, Instant};

use integration_tests::{Member, Pingpong, compile};
use serde_json::Value;
use testkit::binary::urxe_binary;
use testkit::netns::{Joined, Namespace, VethOptions, with_namespaces};
use testkit::process::{self, Finished, Running};
use testkit::scratch::Scratch;

const LIMIT: Duration = Duration::from_secs(60);
/// What comes that should not, comes within this time.
const QUIET: Duration = Duration::from_millis(300);

/// One thing that is done, and what comes of it.
struct Step {
    /// Commands of ip(8).
    ip: &'static str,
    /// The events, in their order.
    events: &'static [&'static str],
    /// The table then: index, GID, interface; a `-` after those that cannot be sent from.
    table: &'static str,
    state: &'static str,
}

const fn step(
    ip: &'static str,
    events: &'static [&'static str],
    table: &'static str,
    state: &'static str,
) -> Step {
    Step { ip, events, table, state }
}

const UP: &str = "PORT_ACTIVE";
const DOWN: &str = "PORT_DOWN";
const GIDS: &[&str] = &["GID_CHANGE"];

/// What is done to an interface that begins with the address 10.77.0.1, and what comes of it.
const STEPS: [Step; 17] = [
    step(
        "address add 10.77.0.2/24 dev eth0",
        GIDS,
        "0 fe80::5054:ff:fe77:1 eth0 -, 1 ::ffff:10.77.0.1 eth0, 2 ::ffff:10.77.0.2 eth0",
        UP,
    ),
    step(
        "address add fd00:77::1/64 dev eth0 nodad",
        GIDS,
        "0 fe80::5054:ff:fe77:1 eth0 -, 1 ::ffff:10.77.0.1 eth0, 2 ::ffff:10.77.0.2 eth0, \
         3 fd00:77::1 eth0",
        UP,
    ),
    // A hole.
    step(
        "address delete 10.77.0.2/24 dev eth0",
        GIDS,
        "0 fe80::5054:ff:fe77:1 eth0 -, 1 ::ffff:10.77.0.1 eth0, 3 fd00:77::1 eth0",
        UP,
    ),
    // The address that the interface would have by its MAC.
    step(
        "address add fe80::5054:ff:fe77:1/64 dev eth0 nodad",
        GIDS,
        "0 fe80::5054:ff:fe77:1 eth0, 1 ::ffff:10.77.0.1 eth0, 3 fd00:77::1 eth0",
        UP,
    ),
    // An interface on top: nothing, as long as it has no address.
    step(
        "link add mv0 link eth0 type macvlan mode bridge",
        &[],
        "0 fe80::5054:ff:fe77:1 eth0, 1 ::ffff:10.77.0.1 eth0, 3 fd00:77::1 eth0",
        UP,
    ),
    // It fills the hole.
    step(
        "address add 10.78.0.1/24 dev mv0",
        GIDS,
        "0 fe80::5054:ff:fe77:1 eth0, 1 ::ffff:10.77.0.1 eth0, 2 ::ffff:10.78.0.1 mv0, \
         3 fd00:77::1 eth0",
        UP,
    ),
    // The same address with another length is no other GID.
    step(
        "address add 10.77.0.1/16 dev eth0",
        &[],
        "0 fe80::5054:ff:fe77:1 eth0, 1 ::ffff:10.77.0.1 eth0, 2 ::ffff:10.78.0.1 mv0, \
         3 fd00:77::1 eth0",
        UP,
    ),
    step(
        "address delete 10.77.0.1/24 dev eth0",
        &[],
        "0 fe80::5054:ff:fe77:1 eth0, 1 ::ffff:10.77.0.1 eth0, 2 ::ffff:10.78.0.1 mv0, \
         3 fd00:77::1 eth0",
        UP,
    ),
    // The other end loses its carrier, and so does this one.
    step(
        "link set peer0 down",
        &["PORT_ERR"],
        "0 fe80::5054:ff:fe77:1 eth0, 1 ::ffff:10.77.0.1 eth0, 2 ::ffff:10.78.0.1 mv0, \
         3 fd00:77::1 eth0",
        DOWN,
    ),
    step(
        "link set peer0 up",
        &["PORT_ACTIVE"],
        "0 fe80::5054:ff:fe77:1 eth0, 1 ::ffff:10.77.0.1 eth0, 2 ::ffff:10.78.0.1 mv0, \
         3 fd00:77::1 eth0",
        UP,
    ),
    // Linux drops IPv6 addresses with the link, one after the other, but not those of IPv4.
    step(
        "link set eth0 down",
        &["PORT_ERR", "GID_CHANGE", "GID_CHANGE"],
        "0 fe80::5054:ff:fe77:1 eth0 -, 1 ::ffff:10.77.0.1 eth0, 2 ::ffff:10.78.0.1 mv0",
        DOWN,
    ),
    step(
        "link set eth0 name eth9",
        &[],
        "0 fe80::5054:ff:fe77:1 eth9 -, 1 ::ffff:10.77.0.1 eth9, 2 ::ffff:10.78.0.1 mv0",
        DOWN,
    ),
    step(
        "link set eth9 up",
        &["PORT_ACTIVE"],
        "0 fe80::5054:ff:fe77:1 eth9 -, 1 ::ffff:10.77.0.1 eth9, 2 ::ffff:10.78.0.1 mv0",
        UP,
    ),
    step(
        "link set eth9 address 52:54:00:77:00:09",
        GIDS,
        "0 fe80::5054:ff:fe77:9 eth9 -, 1 ::ffff:10.77.0.1 eth9, 2 ::ffff:10.78.0.1 mv0",
        UP,
    ),
    step("link delete mv0", GIDS, "0 fe80::5054:ff:fe77:9 eth9 -, 1 ::ffff:10.77.0.1 eth9", UP),
    step("address flush dev eth9", GIDS, "0 fe80::5054:ff:fe77:9 eth9 -", UP),
    step("link delete eth9", &["PORT_ERR", "GID_CHANGE", "DEVICE_FATAL"], "", DOWN),
];

/// A namespace with `eth0`, which has 10.77.0.1 and no other address, and its other end.
fn namespace() -> Namespace {
    let namespace = Namespace::new("gids").expect("namespaces can be made");
    for command in [
        "link add eth0 address 52:54:00:77:00:01 type veth peer name peer0",
        "link set eth0 addrgenmode none",
        "link set peer0 addrgenmode none",
        "address add 10.77.0.1/24 dev eth0",
        "link set peer0 up",
        "link set eth0 up",
    ] {
        namespace.tool("ip", command.split(' ')).expect(command);
    }
    namespace
}

fn gids(namespace: &Namespace, arguments: &[&str]) -> Finished {
    let mut command = namespace.command(urxe_binary());
    process::run("urxe gids", command.arg("gids").args(arguments), LIMIT).expect("it ends")
}

/// A table, in the form of [`Step::table`].
fn shown(port: &Value) -> String {
    let entries = port["gids"].as_array().into_iter().flatten().map(|entry| {
        let mark = if entry["owned"] == true { "" } else { " -" };
        let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        format!("{} {} {}{mark}", entry["index"], text("gid"), text("interface"))
    });
    entries.collect::<Vec<_>>().join(", ")
}

#[test]
fn r60_tables_and_events_follow_the_interfaces() {
    with_namespaces("r60_tables_and_events_follow_the_interfaces", || {
        let namespace = namespace();
        let mut command = namespace.command(urxe_binary());
        command.args(["gids", "rxe_eth0", "--follow", "--json"]);
        let mut following = Running::start("urxe gids --follow", &mut command).unwrap();
        let first = following.wait_for_lines(1, LIMIT).unwrap();
        let first: Value = serde_json::from_str(&first[0]).unwrap();
        assert_eq!(first["event"], Value::Null);
        let begin = "0 fe80::5054:ff:fe77:1 eth0 -, 1 ::ffff:10.77.0.1 eth0";
        assert_eq!(shown(&first["ports"][0]), begin);

        let mut told = 1;
        for Step { ip, events, table, state } in STEPS {
            namespace.tool("ip", ip.split(' ')).unwrap();
            told += events.len();
            let lines = following.wait_for_lines(told, LIMIT);
            let lines = lines.unwrap_or_else(|error| panic!("{ip}: {error}"));
            // Nothing but what is expected.
            if !ip.ends_with("delete eth9") {
                std::thread::sleep(QUIET);
                assert!(following.wait_for_lines(told + 1, Duration::ZERO).is_err(), "{ip}");
            }
            let lines: Vec<Value> =
                lines.iter().map(|l| serde_json::from_str(l).unwrap()).collect();
            let names: Vec<_> = lines[told - events.len()..].iter().map(|l| &l["event"]).collect();
            assert_eq!(names, events, "{ip}");
            if !events.is_empty() {
                let port = &lines[told - 1]["ports"][0];
                assert_eq!(shown(port), table, "{ip}");
                assert_eq!(port["state"], state, "{ip}");
            }
        }
        let finished = following.wait(LIMIT).unwrap().success().unwrap();
        assert_eq!(finished.stdout.lines().count(), told, "{finished}");
    });
}

#[test]
fn a_table_is_read_at_a_glance() {
    with_namespaces("a_table_is_read_at_a_glance", || {
        let namespace = namespace();
        let text = gids(&namespace, &["rxe_eth0"]).success().unwrap().stdout;
        for part in [
            "rxe_eth0 port 1: PORT_ACTIVE, 2 of 1024 entries\n",
            "fe80::5054:ff:fe77:1  not (yet) an address of this host",
            "*     1  RoCE v2     eth0             ::ffff:10.77.0.1  the one to take",
        ] {
            assert!(text.contains(part), "{part:?} is not in:\n{text}");
        }
        assert!(!text.contains("rxe_lo") && !text.contains("Netlink is refused"), "{text}");

        let found = gids(&namespace, &["--find", "10.77.0.1", "--type", "v2", "--json"]);
        let found: Value = serde_json::from_str(&found.success().unwrap().stdout).unwrap();
        assert_eq!(found.as_array().map(Vec::len), Some(1), "{found}");
        assert_eq!(
            (&found[0]["device"], &found[0]["gids"][0]["index"]),
            (&"rxe_eth0".into(), &1.into())
        );
        for arguments in [&["--find", "10.77.0.9"][..], &["--find", "10.77.0.1", "--type", "v1"]] {
            let missing = gids(&namespace, arguments);
            assert_eq!(missing.status.code(), Some(1), "{missing}");
            assert!(missing.stderr.contains("is no GID of rxe_lo or rxe_eth0"), "{missing}");
        }
    });
}

#[test]
fn a_connection_whose_address_goes_ends_in_retry_exceeded() {
    with_namespaces("a_connection_whose_address_goes_ends_in_retry_exceeded", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        let game = Pingpong::new(&joined).options("-n 100000000");
        let mut server = game.start_server().unwrap();
        let mut client = game.start_client().unwrap();
        for end in [&mut server, &mut client] {
            end.wait_for_text("remote", LIMIT).unwrap();
        }
        std::thread::sleep(QUIET);
        joined.left.tool("ip", ["address", "flush", "dev", "eth0"]).unwrap();
        // An end of which all was acknowledged waits for the other, as on hardware, until it is tired:
        // for half a minute, since without an address no word of TCP comes either.
        let ends = [server, client].map(|end| end.wait(LIMIT).unwrap());
        for end in &ends {
            assert_eq!(end.status.code(), Some(1), "{end}");
            let is_told = ["retries exceeded", "nothing came for"];
            assert!(is_told.iter().any(|told| end.stderr.contains(told)), "{end}");
        }
        let has_failed = ends.iter().any(|end| end.stderr.contains("retries exceeded"));
        assert!(has_failed, "{} {}", ends[0], ends[1]);
    });
}

/// One thing that is done to a device of two ports on the packet link, and what comes of it.
struct PortStep {
    /// A command of ip(8), or an order to the process that has the device open, behind a `!`.
    act: &'static str,
    /// The events, in their order, with their ports.
    events: &'static str,
    /// What the table is then, where it is another one than before: [`Ports`].
    becomes: fn(&mut Ports),
}

/// What each port shows: state and path MTU, and its entries, some of which are changed by a step.
#[derive(Clone, Debug)]
struct Ports([(&'static str, Vec<&'static str>); 2]);

impl Ports {
    fn state(&mut self, port: usize, state: &'static str) {
        self.0[port - 1].0 = state;
    }

    /// Puts entries in, in the place of those of the same index, in order of their indices.
    fn put(&mut self, port: usize, entries: &[&'static str]) {
        let number = |entry: &str| entry.split(' ').next().unwrap().parse::<u32>().unwrap();
        let all = &mut self.0[port - 1].1;
        all.retain(|old| entries.iter().all(|new| number(new) != number(old)));
        all.extend(entries);
        all.sort_by_key(|entry| number(entry));
    }

    fn remove(&mut self, port: usize, word: &str) {
        self.0[port - 1].1.retain(|entry| !entry.contains(word));
    }

    fn shown(&self) -> String {
        let port =
            |(state, entries): &(&str, Vec<&str>)| format!("{state}: {}", entries.join(", "));
        format!("table {}", self.0.iter().map(port).collect::<Vec<_>>().join("; "))
    }
}

const fn port_step(act: &'static str, events: &'static str, becomes: fn(&mut Ports)) -> PortStep {
    PortStep { act, events, becomes }
}

/// Both versions of RoCE, each with its own index; tentative addresses; two ports, of which each
/// step changes one; interfaces on top of either; an index that is in use; a port that is lost, and
/// the other one.
const PORT_STEPS: &[PortStep] = &[
    port_step("address add 10.78.0.1/24 dev eth1", "GID_CHANGE 2", |t| {
        t.put(2, &["2 v1 ::ffff:10.78.0.1 eth1", "3 v2 ::ffff:10.78.0.1 eth1"]);
    }),
    // Nothing can be sent from it until Linux has seen that nobody else has it.
    port_step("address add fd00:78::1/64 dev eth1", "GID_CHANGE 2, GID_CHANGE 2", |t| {
        t.put(2, &["4 v1 fd00:78::1 eth1", "5 v2 fd00:78::1 eth1"]);
    }),
    port_step("link set eth1 mtu 9000", "", |t| t.state(2, "up 4096")),
    port_step("link set eth1 mtu 1500", "", |t| t.state(2, "up 1024")),
    port_step("address delete fd00:78::1/64 dev eth1", "GID_CHANGE 2", |t| {
        t.remove(2, "fd00:78::1");
    }),
    port_step("link add mv1 link eth1 type macvlan mode bridge", "", |_| ()),
    port_step("link set mv1 addrgenmode none", "", |_| ()),
    port_step("address add 10.79.0.1/24 dev mv1", "GID_CHANGE 2", |t| {
        t.put(2, &["4 v1 ::ffff:10.79.0.1 mv1", "5 v2 ::ffff:10.79.0.1 mv1"]);
    }),
    port_step("link set peer1 down", "PORT_ERR 2", |t| t.state(2, "down 1024")),
    port_step("link set peer0 down", "PORT_ERR 1", |t| t.state(1, "down 1024")),
    port_step("link set peer1 up", "PORT_ACTIVE 2", |t| t.state(2, "up 1024")),
    port_step("link set peer0 up", "PORT_ACTIVE 1", |t| t.state(1, "up 1024")),
    // Connections of both ports, from the second version.
    port_step("!pair 1 3", "", |_| ()),
    port_step("!pair 2 3", "", |_| ()),
    port_step("address add 10.80.0.1/24 dev eth0", "GID_CHANGE 1", |t| {
        t.put(1, &["4 v1 ::ffff:10.80.0.1 eth0", "5 v2 ::ffff:10.80.0.1 eth0"]);
    }),
    port_step("address delete 10.77.0.1/24 dev eth0", "GID_CHANGE 1", |t| t.remove(1, "10.77.0.1")),
    // Index 3 is in use, so nothing else is put there; index 2 is not.
    port_step("address add 10.81.0.1/24 dev eth0", "GID_CHANGE 1", |t| {
        t.put(1, &["2 v1 ::ffff:10.81.0.1 eth0", "6 v2 ::ffff:10.81.0.1 eth0"]);
    }),
    port_step("!part 0", "", |_| ()),
    port_step("address add 10.82.0.1/24 dev eth0", "GID_CHANGE 1", |t| {
        t.put(1, &["3 v1 ::ffff:10.82.0.1 eth0", "7 v2 ::ffff:10.82.0.1 eth0"]);
    }),
    port_step("!pair 1 7", "", |_| ()),
    // One after the other; what is left is what needs no address.
    port_step("address flush dev eth0", "GID_CHANGE 1, GID_CHANGE 1, GID_CHANGE 1", |t| {
        t.remove(1, "::ffff:");
    }),
    port_step("link delete mv1", "GID_CHANGE 2", |t| t.remove(2, "mv1")),
    port_step("address delete 10.78.0.1/24 dev eth1", "GID_CHANGE 2", |t| t.remove(2, "10.78.")),
    // It goes to another namespace: here it is gone. The other port goes on, and so does the device.
    port_step("link set eth0 netns OTHER", "PORT_ERR 1, GID_CHANGE 1", |t| {
        t.state(1, "down 1024");
        t.remove(1, " ");
    }),
];

/// What is told, until it is that, or until the limit.
fn told_until(watcher: &mut Member, order: &str, expected: &str, told: &mut Vec<String>) {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let answer = watcher.ask(order, order).unwrap();
        let news = answer[order.len()..].trim();
        if order == "events" {
            told.extend(news.split(", ").filter(|event| !event.is_empty()).map(String::from));
        } else {
            *told = vec![answer.clone()];
        }
        if told.join(", ") == expected || Instant::now() >= end {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn r60_two_ports_of_both_versions_follow_their_interfaces() {
    with_namespaces("r60_two_ports_of_both_versions_follow_their_interfaces", || {
        let (namespace, other) = (namespace(), Namespace::new("other").unwrap());
        for command in [
            "link add eth1 address 52:54:00:77:00:02 type veth peer name peer1",
            "link set eth1 addrgenmode none",
            "link set peer1 addrgenmode none",
            "link set peer1 up",
            "link set eth1 up",
        ] {
            namespace.tool("ip", command.split(' ')).unwrap();
        }
        wait_until_up(&namespace, &["eth0", "eth1"]);
        // An interface without an address is no device by itself.
        namespace.tool("ip", "address add 10.78.0.9/24 dev eth1".split(' ')).unwrap();
        let mut command = namespace.command(env!("CARGO_BIN_EXE_port-watcher"));
        command.arg("dual").env("URXE_DEVICES", "dual=eth0+eth1").env("URXE_LINK", "packet");
        let mut watcher = Member::start(0, &mut command).unwrap();
        namespace.tool("ip", "address delete 10.78.0.9/24 dev eth1".split(' ')).unwrap();
        told_until(&mut watcher, "events", "GID_CHANGE 2", &mut Vec::new());

        // In RoCE v1 nothing has to be an address of IP.
        let mut ports = Ports([
            ("up 1024", vec!["0 v1 fe80::5054:ff:fe77:1 eth0", "1 v2 fe80::5054:ff:fe77:1 eth0 -"]),
            ("up 1024", vec!["0 v1 fe80::5054:ff:fe77:2 eth1", "1 v2 fe80::5054:ff:fe77:2 eth1 -"]),
        ]);
        ports.put(1, &["2 v1 ::ffff:10.77.0.1 eth0", "3 v2 ::ffff:10.77.0.1 eth0"]);
        assert_eq!(watcher.ask("table", "table").unwrap(), ports.shown());
        for PortStep { act, events, becomes } in PORT_STEPS {
            match act.strip_prefix('!') {
                Some(order) => drop(watcher.ask(order, "pa").unwrap()),
                None => {
                    let act = act.replace("OTHER", other.name());
                    namespace.tool("ip", act.split(' ')).unwrap();
                }
            }
            becomes(&mut ports);
            let (mut told, mut seen) = (Vec::new(), Vec::new());
            told_until(&mut watcher, "events", events, &mut told);
            told_until(&mut watcher, "table", &ports.shown(), &mut seen);
            // Nothing but what is expected.
            std::thread::sleep(QUIET);
            told_until(&mut watcher, "events", events, &mut told);
            assert_eq!(told.join(", "), *events, "{act}");
            assert_eq!(watcher.ask("table", "table").unwrap(), ports.shown(), "{act}");
        }
        // Connections are left alone, as on hardware, until the last port is lost.
        assert_eq!(watcher.ask("pairs", "pairs").unwrap(), "pairs Rts, Rts");
        namespace.tool("ip", ["link", "delete", "eth1"]).unwrap();
        let mut told = Vec::new();
        let fatal = "PORT_ERR 2, GID_CHANGE 2, DEVICE_FATAL";
        told_until(&mut watcher, "events", fatal, &mut told);
        assert_eq!(told.join(", "), fatal);
        let failed = "pairs Err WrFlushErr, Err WrFlushErr";
        told_until(&mut watcher, "pairs", failed, &mut told);
        assert_eq!(told, [failed]);
        assert_eq!(watcher.ask("table", "table").unwrap(), "table down 1024: ; down 1024: ");
    });
}

/// Waits until these interfaces have a carrier.
fn wait_until_up(namespace: &Namespace, interfaces: &[&str]) {
    for interface in interfaces {
        let file = format!("/sys/class/net/{interface}/operstate");
        let end = Instant::now() + LIMIT;
        while namespace.tool("cat", [&file]).unwrap().stdout.trim() != "up" {
            assert!(Instant::now() < end, "{interface} has no carrier");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A program that runs another one without netlink, as sandboxes do (`RestrictAddressFamilies=` of
/// systemd.exec(5)).
const DEAF: &str = r#"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv) {
  struct sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog filter = {sizeof program / sizeof program[0], program};
  if (argc < 2 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) {
    perror("no filter");
    return 1;
  }
  execv(argv[1], argv + 1);
  perror(argv[1]);
  return 1;
}
"#;

#[test]
fn without_netlink_a_scan_serves_and_says_so() {
    with_namespaces("without_netlink_a_scan_serves_and_says_so", || {
        let scratch = Scratch::new("deaf").unwrap();
        let Some(deaf) = compile(&scratch, "deaf", DEAF, &[]).unwrap() else { return };
        let namespace = namespace();
        wait_until_up(&namespace, &["eth0"]);
        let run = |arguments: &str| {
            let mut command = namespace.command(&deaf);
            command.arg(urxe_binary()).args(arguments.split(' '));
            command
        };
        let limit = Duration::from_secs(60);
        let text = process::run("urxe gids", &mut run("gids rxe_eth0"), limit).unwrap();
        let text = text.success().unwrap().stdout;
        assert!(text.contains("::ffff:10.77.0.1  the one to take"), "{text}");
        assert!(text.contains("Netlink is refused here ("), "{text}");

        // The same table, and the same events, within some seconds.
        let mut following = run("gids rxe_eth0 --follow --json");
        let mut following = Running::start("urxe gids --follow", &mut following).unwrap();
        let mut told = 1;
        following.wait_for_lines(told, LIMIT).unwrap();
        let begin = "0 fe80::5054:ff:fe77:1 eth0 -, 1 ::ffff:10.77.0.1 eth0";
        let more = "0 fe80::5054:ff:fe77:1 eth0 -, 1 ::ffff:10.77.0.1 eth0, 2 fd00:77::1 eth0";
        for (ip, events, table) in [
            ("address add fd00:77::1/64 dev eth0 nodad", &["GID_CHANGE"][..], more),
            ("address delete fd00:77::1/64 dev eth0", &["GID_CHANGE"], begin),
            ("link set peer0 down", &["PORT_ERR"], begin),
            ("link set peer0 up", &["PORT_ACTIVE"], begin),
            ("link delete eth0", &["PORT_ERR", "GID_CHANGE", "DEVICE_FATAL"], ""),
        ] {
            namespace.tool("ip", ip.split(' ')).unwrap();
            told += events.len();
            let lines = following.wait_for_lines(told, LIMIT);
            let lines = lines.unwrap_or_else(|error| panic!("{ip}: {error}"));
            let lines: Vec<Value> =
                lines.iter().map(|l| serde_json::from_str(l).unwrap()).collect();
            let names: Vec<_> = lines[told - events.len()..].iter().map(|l| &l["event"]).collect();
            assert_eq!(names, events, "{ip}");
            assert_eq!(shown(&lines[told - 1]["ports"][0]), table, "{ip}");
        }
        following.wait(LIMIT).unwrap().success().unwrap();
    });
}
