//! The programs of the connection manager between two hosts, which are namespaces, and on one.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::time::Duration;

use testkit::binary::urxe_binary;
use testkit::netns::{Joined, Namespace, Side, VethOptions, with_namespaces};
use testkit::process::{Finished, Running};
use testkit::scratch::Scratch;

/// For a server to listen.
const START_LIMIT: Duration = Duration::from_secs(20);
/// For both ends, on a machine that does other things too.
const LIMIT: Duration = Duration::from_secs(60);

fn start(namespace: &Namespace, program: &str, arguments: &str) -> Running {
    start_with(namespace, program, arguments, None)
}

/// Starts a program, some of whose packets are lost.
fn start_with(
    namespace: &Namespace,
    program: &str,
    arguments: &str,
    faults: Option<&str>,
) -> Running {
    let mut command = namespace.command(urxe_binary());
    command.arg(program).args(arguments.split_whitespace());
    for variable in ["URXE_FAULTS", "URXE_PCAP", "URXE_GSO", "URXE_LINK"] {
        command.env_remove(variable);
    }
    command.envs(faults.map(|faults| ("URXE_FAULTS", faults)));
    Running::start(program, &mut command).unwrap()
}

/// Plays in `hosts` (of the client, and of the server): what each end printed.
fn play(
    hosts: (&Namespace, &Namespace),
    program: &str,
    client: &str,
    server: &str,
) -> [Finished; 2] {
    let mut server = start(hosts.1, program, server);
    server.wait_for_text("waiting at", START_LIMIT).unwrap();
    let client = start(hosts.0, program, client).wait(LIMIT).unwrap();
    [client, server.wait(LIMIT).unwrap()]
}

/// Plays, and expects both ends to end well.
#[track_caller]
fn play_well(hosts: (&Namespace, &Namespace), program: &str, client: &str, server: &str) {
    for end in play(hosts, program, client, server) {
        assert!(end.status.success(), "{program} {client}: {end}");
        assert!(end.stdout.contains("messages of"), "{end}");
    }
}

/// One and many at once, over IPv4 and IPv6.
fn play_all(program: &str, options: &[&str]) {
    let joined = Joined::new(VethOptions::default()).unwrap();
    for host in Side::Right.addresses() {
        for options in options {
            let client = format!("-s {host} {options}");
            let server = format!("-b {host} {options}");
            play_well((&joined.left, &joined.right), program, &client, &server);
        }
    }
    let [ipv4, _] = Side::Right.addresses();
    let client = format!("-s {ipv4} -c 200");
    play_well((&joined.right, &joined.right), program, &client, "-c 200");
}

#[test]
fn cmatose_makes_one_and_many_connections() {
    with_namespaces("cmatose_makes_one_and_many_connections", || {
        play_all(
            "cmatose",
            &["", "-c 200", "-c 5 -m -P ib -a 16", "-S 100000 -C 5 -t 8", "-C 0 -c 3"],
        );
    });
}

/// Both programs of many connections on one host: all of them are asked for at once, and what comes to
/// the wrong process waits for room in the right one.
#[test]
fn many_connections_at_once_on_one_host_lose_no_message() {
    with_namespaces("many_connections_at_once_on_one_host_lose_no_message", || {
        let namespace = Namespace::new("cm").unwrap();
        for program in ["cmatose", "udaddy"] {
            let mut server = start(&namespace, program, "-b 127.0.0.1 -c 200");
            server.wait_for_text("waiting at", START_LIMIT).unwrap();
            let client = start(&namespace, program, "-s 127.0.0.1 -c 200").wait(LIMIT).unwrap();
            let server = server.wait(LIMIT).unwrap();
            assert!(client.status.success() && server.status.success(), "{client}{server}");
            // One that was lost would come again after 4.6 s.
            assert!(client.elapsed < Duration::from_secs(4), "{client}");
        }
    });
}

#[test]
fn udaddy_finds_one_and_many_queue_pairs() {
    with_namespaces("udaddy_finds_one_and_many_queue_pairs", || {
        play_all("udaddy", &["", "-c 200", "-S 1024 -t 8", "-p 0x0002 -S 10", "-C 0 -c 3"]);
    });
}

/// Of what mckey sends, and two members at a time.
fn count_sent(namespace: &Namespace, options: &str, group: &str) -> usize {
    let scratch = Scratch::new("mckey").unwrap();
    let pcap = scratch.file("sent.pcap");
    let mut command = namespace.command(urxe_binary());
    command.args(["mckey", "-s", "-c", "2"]).args(options.split_whitespace());
    let sender = Running::start("mckey", command.env("URXE_PCAP", &pcap)).unwrap();
    let sender = sender.wait(LIMIT).unwrap();
    assert!(sender.status.success(), "{options}: {sender}");
    assert_eq!(sender.stderr.matches("joined ").count(), 2, "{options}: {sender}");
    let mut dump = namespace.command(urxe_binary());
    let dump = Running::start("dump", dump.arg("dump").arg(&pcap)).unwrap().wait(LIMIT).unwrap();
    let to = format!("> {group}:4791 RoCEv2 UD SEND_ONLY_WITH_IMM qp 0xffffff ");
    let lines = dump.stdout.lines().filter(|line| line.contains(&to));
    // What comes back from the network is in the file too: once for each is enough.
    let of_one = |line: &str| line.split_once(" UD ").map(|(_, packet)| packet.to_owned());
    let packets: BTreeSet<_> = lines.filter_map(of_one).collect();
    packets.iter().filter(|packet| packet.contains("qkey 0x01234567")).count()
}

#[test]
fn mckey_receives_what_another_one_sends() {
    with_namespaces("mckey_receives_what_another_one_sends", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        let addresses = Side::Left.addresses().into_iter().zip(Side::Right.addresses());
        for ((left, right), group) in addresses.zip(["224.0.77.1", "ff05::77"]) {
            let receive = |host, address| {
                let options = format!("-m {group} -b {address} -c 2 -C 5 -S 500");
                let mut receiver = start(host, "mckey", &options);
                receiver.wait_for_text("joined", START_LIMIT).unwrap();
                receiver
            };
            // One on the host of the sender, and one on the other.
            let receivers = [receive(&joined.left, left), receive(&joined.right, right)];
            let options = format!("-s -m {group} -b {left} -C 5 -S 500");
            let sender = start(&joined.left, "mckey", &options).wait(LIMIT).unwrap();
            assert!(sender.status.success(), "{sender}");
            for receiver in receivers {
                let receiver = receiver.wait(LIMIT).unwrap();
                assert!(receiver.status.success(), "{receiver}");
            }
        }
    });
}

#[test]
fn mckey_joins_and_its_messages_leave_for_the_group() {
    with_namespaces("mckey_joins_and_its_messages_leave_for_the_group", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        let host = &joined.left;
        let [ipv4, ipv6] = Side::Left.addresses();
        for (options, group) in [
            (format!("-C 3 -m 224.0.77.1 -b {ipv4}"), "224.0.77.1"),
            (format!("-C 3 -m ff05::77 -b {ipv6} -o"), "[ff05::77]"),
            (format!("-C 3 -M ::ffff:224.0.77.1 -b {ipv4}"), "224.0.77.1"),
        ] {
            assert_eq!(count_sent(host, &options, group), 6, "{options}");
        }
        // A receiver that wants nothing.
        let receiver = start(host, "mckey", &format!("-m 224.0.77.1 -b {ipv4} -C 0"));
        let receiver = receiver.wait(LIMIT).unwrap();
        assert!(receiver.status.success(), "{receiver}");
        for (options, said) in [
            ("-m 224.0.77.1 -s", "no route to 224.0.77.1"),
            ("-m 10.77.0.1 -s", "no multicast group"),
            ("-m 224.0.77.1 -s -l", "leave it out"),
        ] {
            let refused = start(host, "mckey", options).wait(LIMIT).unwrap();
            assert!(refused.stderr.contains(said), "{options}: {refused}");
            assert_eq!(refused.status.code(), Some(1), "{options}");
        }
    });
}

#[test]
fn ends_that_do_not_agree_say_so() {
    with_namespaces("ends_that_do_not_agree_say_so", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        let hosts = (&joined.left, &joined.right);
        let [ipv4, _] = Side::Right.addresses();
        for (program, size, server_size) in [("cmatose", 60, 50), ("udaddy", 50, 60)] {
            // Whoever receives first finds it.
            let mut server = start(hosts.1, program, &format!("-S {server_size}"));
            server.wait_for_text("waiting at", START_LIMIT).unwrap();
            let mut client = start(hosts.0, program, &format!("-s {ipv4} -S {size}"));
            let finder = if program == "cmatose" { &mut client } else { &mut server };
            finder.wait_for_text("use the same -S at both ends", LIMIT).unwrap();
        }
        // Datagrams have the length of a packet.
        let client = start(hosts.0, "udaddy", &format!("-s {ipv4} -S 1025")).wait(LIMIT).unwrap();
        assert!(client.stderr.contains("1025 bytes are too long for datagrams: 1024"), "{client}");
    });
}

/// Who does not get the answer of a server, asks again, and gets the same one.
#[test]
fn an_answer_that_is_lost_comes_again() {
    with_namespaces("an_answer_that_is_lost_comes_again", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        let [ipv4, _] = Side::Right.addresses();
        for program in ["cmatose", "udaddy"] {
            let first_packet = Some("seed=1,drop=100%,until=1packets");
            let mut server = start_with(&joined.right, program, "-C 3", first_packet);
            server.wait_for_text("waiting at", START_LIMIT).unwrap();
            let client = start(&joined.left, program, &format!("-s {ipv4} -C 3"));
            let (client, server) = (client.wait(LIMIT).unwrap(), server.wait(LIMIT).unwrap());
            assert!(client.status.success() && server.status.success(), "{client}{server}");
            // The time after which one asks again: so the answer was lost.
            assert!(client.elapsed > Duration::from_secs(4), "{client}");
        }
    });
}

#[test]
fn more_clients_than_a_server_wants_are_refused() {
    with_namespaces("more_clients_than_a_server_wants_are_refused", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        let [ipv4, _] = Side::Right.addresses();
        let client = format!("-s {ipv4} -c 3");
        for (program, refusal) in
            [("cmatose", "the server has refused: "), ("udaddy", "has refused: 2 (rejected)")]
        {
            let mut server = start(&joined.right, program, "-c 2");
            server.wait_for_text("waiting at", START_LIMIT).unwrap();
            let client = start(&joined.left, program, &client).wait(LIMIT).unwrap();
            assert!(client.stderr.contains(refusal), "{client}");
            assert_eq!(client.status.code(), Some(1), "{client}");
            // The others have ended as well: nobody waits for an answer that does not come.
            assert!(client.elapsed < Duration::from_secs(4), "{client}");
        }
    });
}
