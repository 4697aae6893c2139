//! Messages of connection management, where several processes share an address.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::time::{Duration, Instant};

use integration_tests::Member;
use testkit::netns::{Namespace, with_namespaces};

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

#[test]
fn messages_find_the_process_that_they_are_for() {
    with_namespaces("messages_find_the_process_that_they_are_for", || {
        let namespace = Namespace::new("gsi").unwrap();
        let start = |number| {
            let mut command = namespace.command(env!("CARGO_BIN_EXE_gsi-member"));
            Member::start(number, command.arg("rxe_lo")).unwrap()
        };
        let mut members: Vec<_> = (0..4).map(start).collect();
        members[1].ask("serve 7 any", "serving").unwrap();
        members[2].ask("serve 8 127.0.0.1", "serving").unwrap();
        // A service on one address comes before that on all.
        members[3].ask("serve 8 any", "serving").unwrap();
        for (member, service) in [(0, "7 any"), (3, "8 127.0.0.1"), (2, "8 any")] {
            members[member].ask(&format!("serve {service}"), "taken").unwrap();
        }
        let mut number = 0;
        for round in 0..3 {
            for from in 0..members.len() {
                for (service, to) in [(7, 1), (8, 2)] {
                    number += 1;
                    members[from].ask(&format!("request {service} {number}"), "sent").unwrap();
                    let message = format!("req:{service}:{number}");
                    assert_eq!(arrival(&mut members, &message), to, "round {round}, from {from}");
                }
                for to in 0..members.len() {
                    let slot = members[to].ask("slot", "slot").unwrap();
                    let slot = slot.split(' ').nth(1).unwrap();
                    number += 1;
                    members[from].ask(&format!("reply {slot} {number}"), "sent").unwrap();
                    let message = format!("rep:{slot}:{number}");
                    assert_eq!(arrival(&mut members, &message), to, "round {round}, from {from}");
                }
                // What nobody claims comes to one of them.
                number += 1;
                members[from].ask(&format!("request 9 {number}"), "sent").unwrap();
                arrival(&mut members, &format!("req:9:{number}"));
            }
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
