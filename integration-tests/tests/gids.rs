//! GID tables, port states and events, as the interfaces of a namespace change: `urxe gids`.

use std::time::Duration;

use integration_tests::Pingpong;
use serde_json::Value;
use testkit::binary::urxe_binary;
use testkit::netns::{Joined, Namespace, VethOptions, with_namespaces};
use testkit::process::{self, Finished, Running};

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
        let _ = server.wait_for_text("remote", LIMIT);
        let _ = client.wait_for_text("remote", LIMIT);
        std::thread::sleep(QUIET);
        joined.left.tool("ip", ["address", "flush", "dev", "eth0"]).unwrap();
        // An end of which all was acknowledged waits for the other, as on hardware, until it is tired.
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
