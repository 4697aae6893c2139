//! The packet link between two namespaces: RoCE v1 and v2, VLAN tags, and against the UDP link.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::Path;
use std::time::{Duration, Instant};

use integration_tests::{Dump, Pingpong};
use testkit::capture::PacketCapture;
use testkit::netns::{Joined, Namespace, Offloads, Side, VethOptions, with_namespaces};
use testkit::process::Running;
use testkit::scratch::Scratch;
use testkit::tshark::Tshark;

/// Indices in the table of an interface that makes its link-local address of its MAC, and has one
/// of IPv4 and one more of IPv6: each address in both versions.
const DEFAULT_V1: u32 = 0;
const IPV4_V1: u32 = 2;
const IPV4_V2: u32 = 3;
const IPV6_V2: u32 = 5;
/// Over the UDP link, which has v2 alone.
const UDP_IPV4: u32 = 1;

/// Checks that all packets of a capture are well-formed to tshark and to `urxe dump`, each with a
/// good iCRC, and that so many of them, at least, match a filter of tshark.
fn check(capture: &Path, filter: &str, least: usize) {
    let tshark = Tshark::new(capture);
    assert_eq!(tshark.malformed().unwrap(), Vec::<String>::new());
    let all = tshark.count("").unwrap();
    assert_eq!(tshark.count("infiniband.bth").unwrap(), all);
    assert_eq!(tshark.count(filter).unwrap(), all, "{filter}");
    assert!(all >= least, "{all} packets");
    let dump = Dump::of(capture).unwrap();
    assert_eq!(dump.finished.status.code(), Some(0), "{}", dump.finished);
    assert_eq!((dump.count("roce"), dump.count("icrc_good")), (all as u64, all as u64));
    assert_eq!(dump.count("malformed") + dump.count("foreign") + dump.count("super_frames"), 0);
}

/// Plays over a wire without offloads, with checked data, and checks what crosses it.
///
/// Of tagged frames a capture at the left sees those that come: the kernel takes their tag out
/// before the capture's filter looks, but not of those that leave.
fn play(client: (&str, u32), server: (&str, u32), ipv6: bool, filter: &str) {
    let options = VethOptions { offloads: Offloads::None, ..VethOptions::default() };
    let joined = Joined::new(options).unwrap();
    let scratch = Scratch::new("packet").unwrap();
    let wire = PacketCapture::start(&joined.left, &scratch.file("wire.pcap")).unwrap();
    let game = Pingpong::new(&joined).ipv6(ipv6).links(client, server);
    game.options("-s 20000 -n 40 -m 1024").play().unwrap();
    let wire = wire.stop(&joined.left, Side::Left).unwrap();
    let ways = if filter.starts_with("vlan") { 1 } else { 2 };
    check(&wire, filter, ways * 40 * 20);
}

#[test]
fn roce_v1() {
    with_namespaces("roce_v1", || {
        let link = ("packet", IPV4_V1);
        play(link, link, false, "eth.type == 0x8915");
    });
}

#[test]
fn roce_v1_by_the_mac_in_the_default_gid() {
    with_namespaces("roce_v1_by_the_mac_in_the_default_gid", || {
        let link = ("packet", DEFAULT_V1);
        play(link, link, true, "eth.type == 0x8915 && infiniband.grh.sgid[0:2] == fe:80");
    });
}

#[test]
fn roce_v2() {
    with_namespaces("roce_v2", || {
        let link = ("packet", IPV4_V2);
        play(link, link, false, "ip && udp.dstport == 4791");
        let link = ("packet", IPV6_V2);
        play(link, link, true, "ipv6 && udp.dstport == 4791");
    });
}

#[test]
fn vlan_tags() {
    with_namespaces("vlan_tags", || {
        let link = ("packet,vlan=7", IPV4_V1);
        play(link, link, false, "vlan.id == 7");
    });
}

#[test]
fn the_packet_link_and_the_udp_link_meet() {
    with_namespaces("the_packet_link_and_the_udp_link_meet", || {
        let (packet, udp) = (("packet", IPV4_V2), ("udp", UDP_IPV4));
        play(packet, udp, false, "udp.dstport == 4791");
        play(udp, packet, false, "udp.dstport == 4791");
        // A whole batch of the peer comes as one frame where the interface has offloads.
        let joined = Joined::new(VethOptions::default()).unwrap();
        for service in ["", "--uc", "--ud"] {
            for (client, server) in [(packet, udp), (udp, packet), (packet, packet)] {
                let size = if service == "--ud" { "-s 1000" } else { "-s 100000 -m 1024" };
                let game = Pingpong::new(&joined).links(client, server).options(service);
                game.options(size).options("-n 100").play().unwrap();
            }
        }
    });
}

#[test]
fn a_host_reaches_itself() {
    with_namespaces("a_host_reaches_itself", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        for index in [DEFAULT_V1, IPV4_V1, IPV4_V2, IPV6_V2] {
            let link = ("packet", index);
            let game = Pingpong::new(&joined).links(link, link).on_one_host();
            game.options("-s 20000 -n 40 -m 1024").play().unwrap();
        }
        let tagged = ("packet,vlan=7", IPV4_V2);
        Pingpong::new(&joined).links(tagged, tagged).on_one_host().play().unwrap();
    });
}

#[test]
fn both_kinds_of_link_meet_on_one_host() {
    with_namespaces("both_kinds_of_link_meet_on_one_host", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        for (other, ipv6, own) in
            [("10.77.0.9", false, "10.77.0.1"), ("fd00:77::9", true, "fd00:77::1")]
        {
            let length = if ipv6 { 64 } else { 24 };
            let mut add = vec!["address".to_owned(), "add".into(), format!("{other}/{length}")];
            add.extend(["dev", "eth0"].map(String::from));
            add.extend(ipv6.then(|| "nodad".to_owned()));
            joined.left.tool("ip", add).unwrap();
            for (client, server) in [("packet", "udp"), ("udp", "packet"), ("packet", "packet")] {
                let of = |link, address| index_in(&joined.left, link, address);
                let (client, server) = ((client, of(client, own)), (server, of(server, other)));
                let game = Pingpong::new(&joined).ipv6(ipv6).links(client, server).on_one_host();
                game.clone().options("-s 20000 -n 100 -m 1024").play().unwrap();
                // Datagrams come to all addresses of the port, and a UDP link has none whose port is
                // held by a packet link: so it has to be first, as the server is. Of what comes to
                // an address of both, each gets all, but once.
                if client.0 == "packet" {
                    game.options("--ud -s 1000 -n 100").play().unwrap();
                }
            }
        }
    });
}

/// The index of an address in the table of the packet link, in RoCE v2.
fn index_of(host: &Namespace, address: &str) -> u32 {
    index_in(host, "packet", address)
}

/// The index of an address in the table of a kind of link, in RoCE v2.
fn index_in(host: &Namespace, link: &str, address: &str) -> u32 {
    let mut command = host.command(testkit::binary::urxe_binary());
    command.args(["gids", "rxe_eth0", "--json", "--find", address, "--type", "v2"]);
    let limit = Duration::from_secs(60);
    let seen = testkit::process::run("urxe gids", command.env("URXE_LINK", link), limit);
    let seen = seen.unwrap();
    let all: serde_json::Value = serde_json::from_str(&seen.stdout).unwrap();
    let index = all[0]["gids"][0]["index"].as_u64();
    u32::try_from(index.unwrap_or_else(|| panic!("{address}: {seen}"))).unwrap()
}

#[test]
fn r60_an_address_of_a_macvlan_sends_and_receives_by_it() {
    with_namespaces("r60_an_address_of_a_macvlan_sends_and_receives_by_it", || {
        let options = VethOptions { offloads: Offloads::None, ..VethOptions::default() };
        let joined = Joined::new(options).unwrap();
        // Linux would answer for an address by each interface of the network, not by its own alone.
        let own_alone = "echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore";
        joined.left.tool("sh", ["-c", own_alone]).unwrap();
        for command in [
            "link add mv0 link eth0 address 52:54:00:77:99:01 type macvlan mode bridge",
            "address add 10.77.0.9/24 dev mv0",
            "link set mv0 up",
        ] {
            joined.left.tool("ip", command.split(' ')).unwrap();
        }
        let index = index_of(&joined.left, "10.77.0.9");
        let scratch = Scratch::new("packet").unwrap();
        let wire = PacketCapture::start(&joined.left, &scratch.file("wire.pcap")).unwrap();
        let game = Pingpong::new(&joined).links(("packet", index), ("udp", UDP_IPV4));
        game.options("-d rxe_eth0 -s 20000 -n 40 -m 1024").play().unwrap();
        let wire = wire.stop(&joined.left, Side::Left).unwrap();
        check(&wire, "eth.addr == 52:54:00:77:99:01 && ip.addr == 10.77.0.9", 2 * 40 * 20);
    });
}

#[test]
fn a_stale_neighbour_is_confirmed() {
    with_namespaces("a_stale_neighbour_is_confirmed", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        // An address for RoCE alone: the TCP of the two ends would have Linux confirm the other one.
        let peer = "10.77.0.102";
        joined.right.tool("ip", ["address", "add", "10.77.0.102/24", "dev", "eth0"]).unwrap();
        let shown = joined.right.tool("cat", ["/sys/class/net/eth0/address"]).unwrap().stdout;
        let entry = ["neighbour", "replace", peer, "lladdr", shown.trim(), "dev", "eth0"];
        joined.left.tool("ip", entry.into_iter().chain(["nud", "stale"])).unwrap();
        let server = index_of(&joined.right, peer);
        Pingpong::new(&joined).links(("packet", IPV4_V2), ("packet", server)).play().unwrap();
        let state = joined.left.tool("ip", ["neighbour", "show", peer]).unwrap().stdout;
        assert!(!state.contains("STALE") && state.contains("lladdr"), "{state}");
    });
}

#[test]
fn datagrams() {
    with_namespaces("datagrams", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        for index in [IPV4_V1, IPV4_V2] {
            let game = Pingpong::new(&joined).links(("packet", index), ("packet", index));
            game.options("--ud -s 1000 -n 40").play().unwrap();
        }
    });
}

#[test]
fn without_the_capability_the_udp_link_is_named() {
    with_namespaces("without_the_capability_the_udp_link_is_named", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        let mut command = joined.left.command("setpriv");
        command.args(["--bounding-set", "-net_raw", "--inh-caps", "-net_raw"]);
        command.arg(testkit::binary::urxe_binary()).args(["pingpong", "-n", "10"]);
        command.env("URXE_LINK", "packet");
        let limit = Duration::from_secs(60);
        let seen = testkit::process::run("urxe pingpong", &mut command, limit).unwrap();
        assert_eq!(seen.status.code(), Some(1), "{seen}");
        assert!(
            seen.stderr.contains("CAP_NET_RAW") && seen.stderr.contains("URXE_LINK=udp"),
            "{seen}"
        );
    });
}

/// Plays `urxe rping` with these links of the server, on the right, and of the client.
fn rping(joined: &Joined, server: &str, client: &str, address: &str) {
    let limit = Duration::from_secs(60);
    let start = |namespace: &Namespace, link: &str, options: &str| {
        let mut command = namespace.command(testkit::binary::urxe_binary());
        command.arg("rping").args(options.split(' ')).args(["-a", address, "-V", "-C", "20"]);
        Running::start("urxe rping", command.env("URXE_LINK", link)).unwrap()
    };
    let server = start(&joined.right, server, "-s");
    let end = Instant::now() + limit;
    let listens = || {
        let names = joined.right.tool("cat", ["/proc/net/unix"]).unwrap().stdout;
        names.contains("/service/")
    };
    while !listens() {
        assert!(Instant::now() < end, "the server does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    let client = start(&joined.left, client, "-c").wait(limit).unwrap();
    let server = server.wait(limit).unwrap();
    assert!(client.status.success() && server.status.success(), "{client}\n{server}");
}

#[test]
fn the_connection_manager_goes_over_it() {
    with_namespaces("the_connection_manager_goes_over_it", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        for address in Side::Right.addresses() {
            for (server, client) in [("packet", "packet"), ("packet", "udp"), ("udp", "packet")] {
                rping(&joined, server, client, &address.to_string());
            }
        }
    });
}
