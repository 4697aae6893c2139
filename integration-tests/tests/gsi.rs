//! Messages of connection management, where several processes share an address.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::time::{Duration, Instant};

use integration_tests::Member;
use testkit::netns::{Joined, Namespace, VethOptions, with_namespaces};

/// What each member has got so far.
fn come(members: &mut [Member]) -> Vec<Vec<String>> {
    let words = |member: &mut Member| {
        let line = member.ask("come", "come").unwrap();
        line.split(' ').skip(1).filter(|word| !word.is_empty()).map(String::from).collect()
    };
    members.iter_mut().map(words).collect()
}

/// Waits until `message` has come, and returns to whom.
fn arrival(members: &mut [Member], message: &str) -> usize {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let come = come(members);
        let at: Vec<_> = (0..come.len())
            .flat_map(|index| vec![index; come[index].iter().filter(|m| *m == message).count()])
            .collect();
        match at[..] {
            [] => assert!(Instant::now() < end, "{message} has not come: {come:?}"),
            [index] => return index,
            _ => panic!("{message} has come more than once: {at:?}"),
        }
    }
}

/// Starts members of one host.
fn start(namespace: &Namespace, device: &str, link: &str) -> Vec<Member> {
    let start = |number| {
        let mut command = namespace.command(env!("CARGO_BIN_EXE_gsi-member"));
        Member::start(number, command.arg(device).env("URXE_LINK", link)).unwrap()
    };
    (0..4).map(start).collect()
}

/// Has each member send to each: requests for services of these members, and replies. What nobody
/// claims comes to one of them. `number` counts the messages.
fn exchange(members: &mut [Member], services: &[(u32, usize)], number: &mut u32) {
    let mut next = || {
        *number += 1;
        *number
    };
    for from in 0..members.len() {
        for &(service, to) in services {
            let number = next();
            members[from].ask(&format!("request {service} {number}"), "sent").unwrap();
            assert_eq!(arrival(members, &format!("req:{service}:{number}")), to, "from {from}");
        }
        for to in 0..members.len() {
            let slot = members[to].ask("slot", "slot").unwrap();
            let slot = slot.split(' ').nth(1).unwrap();
            let number = next();
            members[from].ask(&format!("reply {slot} {number}"), "sent").unwrap();
            assert_eq!(arrival(members, &format!("rep:{slot}:{number}")), to, "from {from}");
        }
        let number = next();
        members[from].ask(&format!("request 9 {number}"), "sent").unwrap();
        arrival(members, &format!("req:9:{number}"));
    }
}

#[test]
fn messages_find_the_process_that_they_are_for() {
    with_namespaces("messages_find_the_process_that_they_are_for", || {
        let namespace = Namespace::new("gsi").unwrap();
        let mut members = start(&namespace, "rxe_lo", "udp");
        members[1].ask("serve 7 any", "serving").unwrap();
        members[2].ask("serve 8 127.0.0.1", "serving").unwrap();
        // A service on one address comes before that on all.
        members[3].ask("serve 8 any", "serving").unwrap();
        for (member, service) in [(0, "7 any"), (3, "8 127.0.0.1"), (2, "8 any")] {
            members[member].ask(&format!("serve {service}"), "taken").unwrap();
        }
        let mut number = 0;
        for _ in 0..3 {
            exchange(&mut members, &[(7, 1), (8, 2)], &mut number);
        }
        // A listener that was killed leaves its service to others, at once.
        drop(members.remove(1));
        members[0].ask("serve 7 any", "serving").unwrap();
        members[1].ask("request 7 999", "sent").unwrap();
        assert_eq!(arrival(&mut members, "req:7:999"), 0);
        members[0].ask("stop", "stopped").unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while members[2].ask("serve 7 127.0.0.1", "").unwrap() != "serving 7" {
            assert!(Instant::now() < end, "the service is not free");
        }
    });
}

/// Whether somebody holds the RoCE port of the left side's address.
fn is_port_held(joined: &Joined) -> bool {
    let sockets = joined.left.tool("ss", ["-Huln", "sport = :4791"]).unwrap().stdout;
    sockets.lines().any(|line| line.contains("10.77.0.1:4791"))
}

#[test]
fn over_the_packet_link_one_takes_messages_in_and_the_next_one_when_it_ends() {
    let name = "over_the_packet_link_one_takes_messages_in_and_the_next_one_when_it_ends";
    with_namespaces(name, || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        let mut members = start(&joined.left, "rxe_eth0", "packet");
        members[2].ask("serve 7 any", "serving").unwrap();
        members[3].ask("serve 8 10.77.0.1", "serving").unwrap();
        let mut number = 0;
        exchange(&mut members, &[(7, 2), (8, 3)], &mut number);
        for left in [3, 2] {
            // Whoever was first takes them in, until it is killed.
            drop(members.remove(0));
            let end = Instant::now() + Duration::from_secs(10);
            while !is_port_held(&joined) {
                assert!(Instant::now() < end, "nobody has taken over");
                std::thread::sleep(Duration::from_millis(20));
            }
            exchange(&mut members, &[(7, left - 2), (8, left - 1)], &mut number);
        }
    });
}
