//! Several processes on one address.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use integration_tests::{Mesh, Report};
use testkit::binary::urxe_binary;
use testkit::left_out::left_out;
use testkit::netns::{Namespace, with_namespaces};
use testkit::process::{self, Running};
use testkit::scratch::Scratch;

/// Microseconds that a pair waits after each message: what 56 ends send and check must be far less
/// than two cores can do, since all waits on each other here.
const PAUSE: &str = "10000";
/// Processes that share an address.
const MEMBERS: usize = 8;

/// Starts a member in a namespace, as a user who may do nothing special, where that can be.
fn member(namespace: &Namespace) -> Command {
    let mut command = namespace.command("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--"]);
    command.arg(env!("CARGO_BIN_EXE_mesh-member")).args(["rxe_lo", PAUSE]);
    command
}

/// One mesh at a time, for the same reason.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn new_mesh(namespace: &Namespace) -> Mesh<impl Fn() -> Command> {
    let mut mesh = Mesh::new(|| member(namespace));
    for _ in 0..MEMBERS {
        mesh.add().unwrap_or_else(|error| panic!("{error}"));
    }
    mesh
}

type Messages = BTreeMap<(u32, u32), (u64, u64)>;

/// What each member has seen of each other one, and the sum of all packets.
fn reports<F: Fn() -> Command>(mesh: &mut Mesh<F>) -> (Messages, Report) {
    let (mut messages, mut sum) = (Messages::new(), Report::default());
    for number in mesh.members() {
        let report = mesh.report(number).unwrap();
        sum.received += report.received;
        sum.forwarded += report.forwarded;
        sum.astray += report.astray;
        for (other, counts) in report.messages {
            messages.insert((number, other), counts);
        }
    }
    (messages, sum)
}

/// Each pair goes on: within a time that is long enough for a busy machine, messages come both
/// ways.
fn assert_progress<F: Fn() -> Command>(mesh: &mut Mesh<F>) {
    let (before, _) = reports(mesh);
    let count = mesh.members().len();
    assert_eq!(before.len(), count * (count - 1), "each is joined with each");
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        assert_eq!(mesh.failures(), [""; 0]);
        let (now, _) = reports(mesh);
        let stuck: Vec<_> = before
            .iter()
            .filter(|(pair, (sent, came))| now[pair].0 < sent + 3 || now[pair].1 < came + 3)
            .map(|(pair, _)| pair)
            .collect();
        if stuck.is_empty() {
            return;
        }
        assert!(Instant::now() < end, "nothing comes through between {stuck:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The names of slots that somebody has.
fn slots(namespace: &Namespace) -> usize {
    let listed = namespace.tool("cat", ["/proc/net/unix"]).unwrap();
    listed.stdout.lines().filter(|line| line.contains("@urxe/1/slot/")).count()
}

/// Waits until so many slots are taken: a process that was killed may take a moment to be gone.
fn assert_slots(namespace: &Namespace, expected: usize) {
    let end = Instant::now() + Duration::from_secs(10);
    while slots(namespace) != expected {
        assert!(Instant::now() < end, "{} slots are taken, not {expected}", slots(namespace));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The share of packets that came to the wrong process, since `before`.
fn misdelivered(before: &Report, after: &Report) -> f64 {
    let wrong = (after.forwarded + after.astray) - (before.forwarded + before.astray);
    wrong as f64 / (after.received - before.received).max(1) as f64
}

#[test]
fn eight_processes_share_an_address() {
    let _alone = alone();
    with_namespaces("eight_processes_share_an_address", || {
        let namespace = Namespace::new("mesh").unwrap();
        let mut mesh = new_mesh(&namespace);
        assert_progress(&mut mesh);
        let (_, before) = reports(&mut mesh);
        std::thread::sleep(Duration::from_secs(2));
        assert_progress(&mut mesh);
        let (_, after) = reports(&mut mesh);
        let share = misdelivered(&before, &after);
        println!("while all join: {before:?}; afterwards {share:.6} at the wrong process");
        assert!(after.received > before.received + 300, "{after:?}");
        assert!(share < 0.01, "the order of the sockets is not known: {share}");
        assert_slots(&namespace, MEMBERS);
        drop(mesh);
        assert_slots(&namespace, 0);
    });
}

/// Members are killed and replaced for `time`, by chance but each time in the same way.
fn kill_and_replace(name: &str, time: Duration) {
    let namespace = Namespace::new(name).unwrap();
    let mut mesh = new_mesh(&namespace);
    let end = Instant::now() + time;
    let mut random = 0x9e37_79b9_u32;
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        random as usize % below
    };
    let mut rounds = 0;
    while Instant::now() < end {
        // One to three at once: several deaths leave an order that cannot be reckoned.
        for _ in 0..=next(3) {
            let members = mesh.members();
            mesh.kill(members[next(members.len())]).unwrap();
        }
        std::thread::sleep(Duration::from_millis(next(300) as u64));
        while mesh.members().len() < MEMBERS {
            mesh.add().unwrap_or_else(|error| panic!("a newcomer did not get in: {error}"));
        }
        assert_eq!(mesh.failures(), [""; 0], "pairs whose ends both live lose nothing");
        std::thread::sleep(Duration::from_millis(next(300) as u64));
        rounds += 1;
    }
    assert_progress(&mut mesh);
    // The order is found again, however many have died.
    let (_, before) = reports(&mut mesh);
    std::thread::sleep(Duration::from_secs(1));
    assert_progress(&mut mesh);
    let (_, after) = reports(&mut mesh);
    let share = misdelivered(&before, &after);
    println!("{rounds} rounds; all in all {before:?}; afterwards {share:.6} at the wrong process");
    assert!(share < 0.01, "the order of the sockets is not known: {share}");
    assert_slots(&namespace, MEMBERS);
    drop(mesh);
    assert_slots(&namespace, 0);
}

#[test]
fn survivors_lose_nothing_when_members_are_killed_and_replaced() {
    let _alone = alone();
    with_namespaces("survivors_lose_nothing_when_members_are_killed_and_replaced", || {
        kill_and_replace("kill", Duration::from_secs(5));
    });
}

/// Nobody joins, whose survey would tell the others too: packets that go astray tell them, and are
/// passed on meanwhile.
#[test]
fn survivors_find_out_by_themselves_that_members_were_killed() {
    let _alone = alone();
    with_namespaces("survivors_find_out_by_themselves_that_members_were_killed", || {
        let namespace = Namespace::new("alone").unwrap();
        let mut mesh = new_mesh(&namespace);
        assert_progress(&mut mesh);
        // The first ones: the kernel puts the last ones into their places.
        let members = mesh.members();
        let (killed, survivors) = members.split_at(2);
        let mut before = 0;
        for &number in survivors {
            before += mesh.report(number).unwrap().forwarded;
        }
        for &number in killed {
            mesh.kill(number).unwrap();
        }
        assert_progress(&mut mesh);
        let (_, found) = reports(&mut mesh);
        assert!(found.forwarded > before, "{before} before, nothing went astray: {found:?}");
        std::thread::sleep(Duration::from_secs(1));
        assert_progress(&mut mesh);
        let (_, after) = reports(&mut mesh);
        let share = misdelivered(&found, &after);
        println!("{before} passed on, then {found:?}; afterwards {share:.6} at the wrong process");
        assert!(share < 0.01, "the order of the sockets is not known: {share}");
    });
}

/// As long as the issue asks for: `cargo test --test processes -- --ignored`.
#[test]
#[ignore = "takes more than a minute"]
fn survivors_lose_nothing_for_a_minute() {
    let _alone = alone();
    with_namespaces("survivors_lose_nothing_for_a_minute", || {
        kill_and_replace("minute", Duration::from_secs(60));
    });
}

const LIMIT: Duration = Duration::from_secs(120);

/// Starts `urxe pingpong` in a namespace, on a TCP port of its own.
fn pingpong(namespace: &Namespace, label: &str, port: u16, end: &str) -> Running {
    let mut command = namespace.command(urxe_binary());
    let size = if port.is_multiple_of(2) { "100000" } else { "64" };
    command.args(["pingpong", "-c", "-n", "2000", "-s", size, "-p", &port.to_string(), end]);
    Running::start(label, &mut command).unwrap()
}

#[test]
fn two_games_at_once_on_one_address() {
    with_namespaces("two_games_at_once_on_one_address", || {
        let namespace = Namespace::new("games").unwrap();
        let ports = [20_001, 20_002];
        let mut servers = ports.map(|port| pingpong(&namespace, "a server", port, "--server"));
        for server in &mut servers {
            server.wait_for_text("waiting for a client", LIMIT).unwrap();
        }
        let clients = ports.map(|port| pingpong(&namespace, "a client", port, "127.0.0.1"));
        for end in clients.into_iter().chain(servers) {
            let finished = end.wait(LIMIT).unwrap().success().unwrap();
            assert!(finished.stdout.contains("2000 iters in"), "{finished}");
        }
        assert_slots(&namespace, 0);
    });
}

/// Somebody else's sockets cannot be shared, and the kernel tells whose they are.
#[test]
fn a_second_user_on_an_address_is_told_who_has_it() {
    with_namespaces("a_second_user_on_an_address_is_told_who_has_it", || {
        let namespace = Namespace::new("users").unwrap();
        // Where that user can run it.
        let scratch = Scratch::new("users").unwrap();
        let program = scratch.file("urxe");
        std::fs::copy(urxe_binary(), &program).unwrap();
        std::fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let as_other = || {
            let mut command = namespace.command("setpriv");
            command.args(["--reuid", "65534", "--clear-groups", "--"]);
            command
        };
        if !process::run("true", as_other().arg("true"), LIMIT).unwrap().status.success() {
            // In a user namespace there is but one.
            left_out("a part: this user cannot be another one");
            return;
        }
        let _mesh = {
            let mut mesh = Mesh::new(|| member(&namespace));
            mesh.add().unwrap();
            mesh.add().unwrap();
            mesh
        };
        let mut command = as_other();
        command.arg(&program).args(["pingpong", "-n", "10", "--seconds", "0.1"]);
        let finished = process::run("the other user", &mut command, LIMIT).unwrap();
        assert_eq!(finished.status.code(), Some(1), "{finished}");
        let own = "user 0 has UDP port 4791 on 127.0.0.1: processes of one user may share";
        assert!(finished.stderr.contains(own), "{finished}");
    });
}
