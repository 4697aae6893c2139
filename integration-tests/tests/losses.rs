//! True losses end in an error in the time that timeout and retries say, and never earlier, whatever
//! ICMP says of them; what only looks like a loss does no harm.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::ops::Range;
use std::time::{Duration, Instant};

use integration_tests::Member;
use testkit::netns::{Joined, Namespace, Side, VethOptions, with_namespaces};

/// Local ACK timeout and retries of a queue pair.
#[derive(Clone, Copy, Debug)]
struct Patience {
    timeout: u8,
    retries: u8,
}

/// What the tests use that do without others: 67 ms and 7 retries.
const USUAL: Patience = Patience { timeout: 14, retries: 7 };
const LIMIT: Duration = Duration::from_secs(30);

impl Patience {
    /// How long a peer is silent at least, and at most, when the requester gives up: each try waits
    /// for 4.096 µs · 2^timeout at least, and for four times that at most (IBA volume 1, section
    /// 9.7.6.1.3), and the retries follow the first try.
    fn bounds(self) -> Range<Duration> {
        let once = Duration::from_nanos(4096 << self.timeout);
        let soonest = once * (u32::from(self.retries) + 1);
        soonest..soonest * 4
    }
}

/// The links, each with the index of the GID of IPv4 in RoCE v2.
const LINKS: [(&str, u32); 2] = [("udp", 1), ("packet", 3)];

fn start(namespace: &Namespace, number: u32, link: &str) -> Member {
    let mut command = namespace.command(env!("CARGO_BIN_EXE_steady-writer"));
    Member::start(number, command.arg("rxe_eth0").env("URXE_LINK", link)).unwrap()
}

/// Words of an answer behind the first.
fn words(answer: &str) -> Vec<String> {
    answer.split(' ').skip(1).map(String::from).collect()
}

/// Connects a new queue pair of each, and has the left one write to the right one.
fn connect(left: &mut Member, right: &mut Member, index: u32) {
    connect_with(left, right, index, USUAL);
}

/// Likewise, with this patience.
fn connect_with(left: &mut Member, right: &mut Member, index: u32, patience: Patience) {
    let ends = [left.ask("open", "opened"), right.ask("open", "opened")];
    let [of_left, of_right] = ends.map(|answer| words(&answer.unwrap()));
    for (member, peer, side) in
        [(&mut *left, &of_right, Side::Right), (&mut *right, &of_left, Side::Left)]
    {
        let Patience { timeout, retries } = patience;
        let order = format!("connect {index} {} {} {timeout} {retries}", side.ipv4(), peer[0]);
        member.ask(&order, "connected").unwrap();
    }
    left.ask(&format!("write {} {}", of_right[1], of_right[2]), "writing").unwrap();
    assert_writes(left);
}

/// Writes that went well, how it stands, the silence before a failure, ICMP errors.
fn state(member: &mut Member) -> (u64, String, Duration, u64) {
    let said = words(&member.ask("state", "state").unwrap());
    let number = |at: usize| said[at].parse::<u64>().unwrap();
    (number(0), said[1].clone(), Duration::from_micros(number(2)), number(3))
}

/// Waits until more writes have gone well.
fn assert_writes(member: &mut Member) {
    let (before, end) = (state(member).0, Instant::now() + LIMIT);
    loop {
        let (count, status, silence, _) = state(member);
        assert_eq!(status, "ok", "after {silence:?}");
        if count > before + 20 {
            return;
        }
        assert!(Instant::now() < end, "nothing is written");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for the error, and sees that it comes in its time.
fn assert_fails_in_time(member: &mut Member, patience: Patience) {
    let end = Instant::now() + LIMIT;
    let (status, silence) = loop {
        let (_, status, silence, _) = state(member);
        if status != "ok" {
            break (status, silence);
        }
        assert!(Instant::now() < end, "no error comes");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(status, "RetryExcErr");
    let bounds = patience.bounds();
    println!("an error after {silence:?}, where it may come within {bounds:?}");
    assert!(bounds.contains(&silence), "an error after {silence:?}, not within {bounds:?}");
}

#[test]
fn a_true_unreachable_is_a_hint_and_ends_in_its_time() {
    with_namespaces("a_true_unreachable_is_a_hint_and_ends_in_its_time", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        let mut left = start(&joined.left, 0, "udp");
        let mut right = start(&joined.right, 1, "udp");
        connect(&mut left, &mut right, 1);
        assert_eq!(state(&mut left).3, 0);
        // It is killed, and its host says so: port unreachable.
        drop(right);
        assert_fails_in_time(&mut left, USUAL);
        assert!(state(&mut left).3 > 0, "no ICMP error came");
    });
}

#[test]
fn forged_icmp_errors_do_no_harm() {
    with_namespaces("forged_icmp_errors_do_no_harm", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        let mut left = start(&joined.left, 0, "udp");
        let mut right = start(&joined.right, 1, "udp");
        let mut command = joined.right.command(env!("CARGO_BIN_EXE_forge-icmp"));
        let mut forger = Member::start(2, &mut command).unwrap();
        connect(&mut left, &mut right, 1);
        for _ in 0..5 {
            forger.ask("forge 50", "forged").unwrap();
            assert_writes(&mut left);
        }
        let (.., hints) = state(&mut left);
        assert!(hints > 100, "{hints} ICMP errors were believed to be about packets of ours");
    });
}

#[test]
fn a_vanished_peer_ends_in_its_time() {
    with_namespaces("a_vanished_peer_ends_in_its_time", || {
        for (link, index) in LINKS {
            let joined = Joined::new(VethOptions::default()).unwrap();
            let (mut left, mut right) =
                (start(&joined.left, 0, link), start(&joined.right, 1, link));
            connect(&mut left, &mut right, index);
            // For a moment: no harm. (No filter stands before a packet socket.)
            if link == "udp" {
                joined.right.drop_arriving(100).unwrap();
                std::thread::sleep(Duration::from_millis(100));
                assert!(joined.right.dropped().unwrap() > 0);
                joined.right.tool("nft", ["flush", "ruleset"]).unwrap();
                assert_writes(&mut left);
            }
            joined.right.tool("ip", ["link", "set", "eth0", "down"]).unwrap();
            assert_fails_in_time(&mut left, USUAL);
        }
    });
}

#[test]
fn the_time_follows_from_timeout_and_retries() {
    with_namespaces("the_time_follows_from_timeout_and_retries", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        for (timeout, retries) in [(16, 1), (15, 0), (13, 3), (12, 7)] {
            let patience = Patience { timeout, retries };
            let (mut left, mut right) =
                (start(&joined.left, 0, "udp"), start(&joined.right, 1, "udp"));
            connect_with(&mut left, &mut right, 1, patience);
            joined.right.drop_arriving(100).unwrap();
            assert_fails_in_time(&mut left, patience);
            joined.right.tool("nft", ["flush", "ruleset"]).unwrap();
        }
    });
}

#[test]
fn a_vanished_route_ends_in_its_time() {
    with_namespaces("a_vanished_route_ends_in_its_time", || {
        // The packet link sends by its GID's interface, for which Linux takes all that it has no
        // route to for a neighbour, as for its own driver.
        let joined = Joined::new(VethOptions::default()).unwrap();
        let (mut left, mut right) = (start(&joined.left, 0, "udp"), start(&joined.right, 1, "udp"));
        connect(&mut left, &mut right, 1);
        let route = |what: &str| {
            let to = ["route", what, "10.77.0.0/24", "dev", "eth0", "src", "10.77.0.1"];
            joined.left.tool("ip", to).unwrap();
        };
        route("delete");
        std::thread::sleep(Duration::from_millis(100));
        route("add");
        assert_writes(&mut left);
        route("delete");
        assert_fails_in_time(&mut left, USUAL);
    });
}

#[test]
fn a_peer_that_restarts_ends_in_its_time_and_the_new_one_is_unharmed() {
    let name = "a_peer_that_restarts_ends_in_its_time_and_the_new_one_is_unharmed";
    with_namespaces(name, || {
        for (link, index) in LINKS {
            let joined = Joined::new(VethOptions::default()).unwrap();
            let (mut left, mut right) =
                (start(&joined.left, 0, link), start(&joined.right, 1, link));
            connect(&mut left, &mut right, index);
            drop(right);
            let mut right = start(&joined.right, 2, link);
            // Another process over there, while the old connection still sends.
            let mut other = start(&joined.left, 3, link);
            connect(&mut other, &mut right, index);
            assert_fails_in_time(&mut left, USUAL);
            assert_writes(&mut other);
            // The first one can come back.
            connect(&mut left, &mut right, index);
        }
    });
}
