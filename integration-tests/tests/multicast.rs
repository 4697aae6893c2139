//! Multicast groups between two namespaces, with two processes on one of them.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::time::{Duration, Instant};

use integration_tests::Member;
use testkit::netns::{Joined, Namespace, VethOptions, with_namespaces};

/// What comes that should not, comes within this time.
const QUIET: Duration = Duration::from_millis(200);

/// A way to send to a group.
struct Way {
    /// `URXE_LINK` of the two processes on the left, and of the one on the right.
    links: [&'static str; 3],
    /// The indices of the GIDs that they send from.
    indices: [u32; 3],
    group: &'static str,
    /// How `ip maddress` shows that the host has joined it.
    joined: &'static str,
}

fn start(number: u32, namespace: &Namespace, link: &str, group: &str, index: u32) -> Member {
    let mut command = namespace.command(env!("CARGO_BIN_EXE_multicast-member"));
    command.args(["rxe_eth0", group, &index.to_string()]).env("URXE_LINK", link);
    Member::start(number, &mut command).unwrap()
}

/// Waits until each member has got what it is to get, and sees that nothing else comes.
fn expect(members: &mut [Member], expected: &[Vec<String>]) {
    let end = Instant::now() + Duration::from_secs(10);
    let mut come = vec![Vec::new(); members.len()];
    let mut take = |members: &mut [Member]| {
        for (member, come) in members.iter_mut().zip(&mut come) {
            let line = member.ask("come", "come").unwrap();
            come.extend(line.split(' ').skip(1).filter(|w| !w.is_empty()).map(String::from));
            come.sort();
        }
        come.clone()
    };
    while take(members) != expected {
        assert!(Instant::now() < end, "{:?} have come, not {expected:?}", take(members));
    }
    std::thread::sleep(QUIET);
    assert_eq!(take(members), expected, "and nothing more");
}

fn play(way: &Way) {
    let joined = Joined::new(VethOptions::default()).unwrap();
    let hosts = [&joined.left, &joined.left, &joined.right];
    let mut members: Vec<_> = (0..3)
        .map(|at| start(at as u32, hosts[at], way.links[at], way.group, way.indices[at]))
        .collect();
    let groups_of = |host: &Namespace| host.tool("ip", ["maddress", "show"]).unwrap().stdout;
    assert!(!groups_of(&joined.left).contains(way.joined));
    for member in &mut members {
        member.ask("attach", "attached").unwrap();
    }
    assert!(groups_of(&joined.left).contains(way.joined), "{}", groups_of(&joined.left));
    // R49: all queue pairs that are attached get a copy, on all hosts, but the sender.
    for sender in 0..3 {
        let word = format!("from-{sender}");
        members[sender].ask(&format!("send {word}"), "sent").unwrap();
        let of = |member| {
            let pairs = if member == sender { &[1][..] } else { &[0, 1] };
            pairs.iter().map(|pair| format!("{pair}:{word}")).collect()
        };
        expect(&mut members, &[of(0), of(1), of(2)]);
    }
    // One who has left gets nothing more; the other process there still does.
    members[0].ask("detach", "detached").unwrap();
    assert!(groups_of(&joined.left).contains(way.joined));
    members[2].ask("send again", "sent").unwrap();
    let both = vec!["0:again".to_owned(), "1:again".to_owned()];
    expect(&mut members, &[vec![], both, vec!["1:again".into()]]);
    members[1].ask("detach", "detached").unwrap();
    let groups = groups_of(&joined.left);
    assert!(!groups.contains(way.joined), "{groups}");
    members[2].ask("send last", "sent").unwrap();
    expect(&mut members, &[vec![], vec![], vec!["1:last".into()]]);
}

#[test]
fn r49_over_the_udp_link() {
    with_namespaces("r49_over_the_udp_link", || {
        let links = ["udp"; 3];
        play(&Way { links, indices: [1; 3], group: "239.77.1.1", joined: "239.77.1.1" });
        play(&Way { links, indices: [2; 3], group: "ff1e::77:1", joined: "ff1e::77:1" });
        // Of one link only.
        play(&Way { links, indices: [2; 3], group: "ff12::77:2", joined: "ff12::77:2" });
    });
}

#[test]
fn r49_over_the_packet_link() {
    with_namespaces("r49_over_the_packet_link", || {
        let links = ["packet"; 3];
        let group = "239.77.1.1";
        play(&Way { links, indices: [2; 3], group, joined: "01:00:5e:4d:01:01" });
        play(&Way { links, indices: [3; 3], group, joined: group });
        play(&Way { links, indices: [5; 3], group: "ff1e::77:1", joined: "33:33:00:77:00:01" });
        // As the connection manager names an IPv4 group on RoCE v1.
        let group = "ff0e::ffff:239.77.1.1";
        play(&Way { links, indices: [2; 3], group, joined: "33:33:ef:4d:01:01" });
        // With tags that the link puts on: what leaves still has them where this host hears itself.
        let links = ["packet,vlan=7"; 3];
        let group = "239.77.1.1";
        play(&Way { links, indices: [2; 3], group, joined: "01:00:5e:4d:01:01" });
        play(&Way { links, indices: [3; 3], group, joined: group });
    });
}

#[test]
fn r49_between_the_links() {
    with_namespaces("r49_between_the_links", || {
        let group = "239.77.1.1";
        let links = ["packet", "packet", "udp"];
        play(&Way { links, indices: [3, 3, 1], group, joined: group });
        let links = ["udp", "udp", "packet"];
        play(&Way { links, indices: [1, 1, 3], group, joined: group });
        // Both kinds on one host.
        let links = ["udp", "packet", "packet"];
        play(&Way { links, indices: [1, 3, 3], group, joined: group });
        let group = "ff1e::77:1";
        play(&Way { links, indices: [2, 5, 5], group, joined: "33:33:00:77:00:01" });
    });
}
