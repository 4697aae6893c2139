//! `urxe perf`: small runs of each operation and service, whose JSON is read. Speed is not judged.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::time::Duration;

use serde_json::Value;
use testkit::binary::urxe_binary;
use testkit::netns::{Joined, Namespace, Side, VethOptions, with_namespaces};
use testkit::process::{Finished, Running};

/// For a run of some tenths of a second, on a machine that does other things too.
const LIMIT: Duration = Duration::from_secs(120);

fn start(namespace: &Namespace, name: &'static str, options: &str) -> Running {
    let mut command = namespace.command(urxe_binary());
    command.arg("perf").args(options.split_whitespace());
    for variable in ["URXE_FAULTS", "URXE_PCAP", "URXE_GSO", "URXE_DEVICES"] {
        command.env_remove(variable);
    }
    Running::start(name, &mut command).unwrap()
}

/// Both ends in one process.
fn alone(namespace: &Namespace, options: &str) -> Finished {
    start(namespace, "urxe perf", options).wait(LIMIT).unwrap()
}

/// A server in one namespace, a client in the other; the client's end.
fn together(joined: &Joined, options: &str) -> Finished {
    let mut server = start(&joined.right, "the server", "--server");
    server.wait_for_text("waiting for a client", LIMIT).unwrap();
    let host = Side::Right.ipv4();
    let client = start(&joined.left, "the client", &format!("{options} --host {host}"));
    let client = client.wait(LIMIT).unwrap();
    let server = server.wait(LIMIT).unwrap();
    assert!(server.status.success(), "{options}: {server}\n{client}");
    client
}

/// The results of a run that went well.
fn results(finished: &Finished, options: &str) -> Vec<Value> {
    assert!(finished.status.success(), "{options}: {finished}");
    let value: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(value["data_right"], true);
    value["results"].as_array().unwrap().clone()
}

/// Checks that a result is of `messages` messages, and what it says fits together.
fn check(result: &Value, service: &str, operation: &str, messages: u64) {
    let load = &result["load"];
    assert_eq!((&load["service"], &load["operation"]), (&service.into(), &operation.into()));
    if load["kind"] == "latency" {
        let latency = &result["latency"];
        assert_eq!(latency["count"], messages, "{result}");
        let time = |name: &str| latency[name].as_f64().unwrap();
        let (min, median, max) = (time("min_us"), time("p50_us"), time("max_us"));
        assert!(0.1 < min && min <= median && median <= max, "{result}");
        let classes = latency["histogram"].as_array().unwrap();
        let counted: u64 = classes.iter().map(|class| class[1].as_u64().unwrap()).sum();
        assert_eq!(counted, messages, "{result}");
    } else {
        assert_eq!(result["sent"], messages, "{result}");
        let (size, rate) = (load["size"].as_f64().unwrap(), &result["messages_per_second"]);
        let (bytes, rate) = (result["bytes_per_second"].as_f64().unwrap(), rate.as_f64().unwrap());
        assert!(rate > 0.0 && (bytes / rate / size - 1.0).abs() < 1e-6, "{result}");
        if service == "rc" && !result["arrived"].is_null() {
            assert_eq!(result["arrived"], messages, "{result}");
        }
    }
}

/// Each test by its name, with the services that have it.
const TESTS: [(&str, &str, &[&str]); 6] = [
    ("send", "send", &["rc", "uc", "ud"]),
    ("write", "write", &["rc", "uc"]),
    ("write_imm", "write_imm", &["rc", "uc"]),
    ("read", "read", &["rc"]),
    ("fetch_add", "fetch_add", &["rc"]),
    ("cmp_swap", "compare_swap", &["rc"]),
];

/// Every operation over every service, in one process and between two hosts.
#[test]
fn every_operation_over_every_service() {
    with_namespaces("every_operation_over_every_service", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        for (test, operation, services) in TESTS {
            for service in services {
                // Few enough under way that datagrams find room.
                let options =
                    format!("{test}_lat {test}_bw -c {service} -n 200 -t 16 -s 8 -d DEVICE --json");
                let one = alone(&joined.left, &options.replace("DEVICE", "rxe_lo"));
                let two = together(&joined, &options.replace("DEVICE", "rxe_eth0"));
                for finished in [one, two] {
                    let results = results(&finished, &options);
                    assert_eq!(results.len(), 2);
                    results.iter().for_each(|result| check(result, service, operation, 200));
                }
            }
        }
    });
}

/// What else there is to choose: queue pairs, threads, lists, directions, events, sizes, a path MTU.
#[test]
fn everything_that_can_be_chosen() {
    with_namespaces("everything_that_can_be_chosen", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        for (options, messages) in [
            ("send_bw -n 300 -q 5 --threads 2 -l 7 -Q 3 -s 3000", 1500),
            ("write_bw -n 300 -b -q 2 -l 4 -s 100", 1200),
            ("send_bw -n 300 -b -s 100000 -t 3 -Q 3 -r 9", 600),
            ("send_bw -n 300 -e -s 5000", 300),
            ("write_bw -n 300 -e -s 5000 -m 256", 300),
            ("write_imm_bw -n 300 -I 64 -s 64 -l 16", 300),
            ("write_bw -n 100 --idle-peer -s 8M -t 2", 100),
            ("read_bw -n 100 -o 2 -s 65536 -t 8", 100),
        ] {
            let options = format!("{options} --json");
            for finished in [alone(&joined.left, &options), together(&joined, &options)] {
                let result = &results(&finished, &options)[0];
                let load = &result["load"];
                let (service, operation) = (&load["service"], &load["operation"]);
                check(result, service.as_str().unwrap(), operation.as_str().unwrap(), messages);
            }
        }
        for options in ["send_lat -n 100 -e --json", "write_lat -n 100 -s 5000 -I 0 --json"] {
            let result = &results(&together(&joined, options), options)[0];
            assert_eq!(result["latency"]["count"], 100, "{result}");
        }
        let all = results(&alone(&joined.left, "write_bw -a -n 10 --json"), "-a");
        let sizes: Vec<_> = all.iter().map(|row| row["load"]["size"].as_u64().unwrap()).collect();
        assert_eq!((sizes.len(), sizes[0], sizes[22]), (23, 2, 8 << 20));
    });
}

/// Limits are measured beside, and each figure is a share of them; a drawing has a line for each.
#[test]
fn limits_and_a_drawing() {
    with_namespaces("limits_and_a_drawing", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        let file = std::env::temp_dir().join(format!("urxe-perf-{}.svg", std::process::id()));
        let options =
            format!("write_bw send_lat --limits -D 0.1 --rounds 1 --json --svg {}", file.display());
        let finished = alone(&joined.left, &options);
        let drawing = std::fs::read_to_string(&file);
        let _ = std::fs::remove_file(&file);
        let drawing = drawing.unwrap();
        assert!(drawing.starts_with("<svg") && drawing.contains("RC WRITE"), "{drawing}");
        assert!(drawing.contains("Latency, median") && drawing.contains("GB/s"), "{drawing}");
        assert!(drawing.contains("how many messages took how long"), "{drawing}");
        let rows = results(&finished, &options);
        let names = |row: &Value| -> Vec<String> {
            let limits = row["limits"].as_array().unwrap();
            let name = |limit: &Value| {
                let (value, share) = (limit["value"].as_f64(), limit["share"].as_f64());
                assert!(value.unwrap() > 0.0 && share.unwrap() > 0.0, "{limit}");
                limit["limit"].as_str().unwrap().to_owned()
            };
            limits.iter().map(name).collect()
        };
        assert_eq!((names(&rows[0]).len(), names(&rows[1]).len()), (4, 2), "{rows:?}");
        let value: Value = serde_json::from_str(&finished.stdout).unwrap();
        assert_eq!(value["machine"].as_array().unwrap().len(), 2);
        // The client does not know the server's namespace: as between two hosts.
        let options = "write_bw send_lat send_lat -e --limits -D 0.1 --rounds 1 --json";
        let finished = together(&joined, options);
        let rows = results(&finished, options);
        assert_eq!((names(&rows[0]), names(&rows[1]).len()), (vec!["TCP".to_owned()], 1));
        assert!(finished.stderr.contains("the bare pipe is left out"), "{finished}");
    });
}

/// Connected queue pairs that nobody uses wake nobody, in either process.
#[test]
fn idle_queue_pairs_cost_nothing() {
    with_namespaces("idle_queue_pairs_cost_nothing", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        let options = "write_bw -q 20 -n 20 -s 5000 --idle 2 --json";
        let row = &results(&together(&joined, options), options)[0];
        for end in ["own", "peer"] {
            let (wakings, processor) =
                (row["idle"][end]["wake_ups"].as_u64(), row["idle"][end]["processor"].as_f64());
            // The host may change meanwhile. One timer of a millisecond would be two thousand.
            assert!(wakings.unwrap() < 20 && processor.unwrap() < 0.1, "{row}");
        }
    });
}

/// What is wrong at one end is told at both.
#[test]
fn an_error_is_told_at_both_ends() {
    with_namespaces("an_error_is_told_at_both_ends", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        let mut server = start(&joined.right, "the server", "--server -d rxe_lo");
        server.wait_for_text("waiting for a client", LIMIT).unwrap();
        let host = Side::Right.ipv4();
        // The server sends from its loopback interface, which has no such way.
        let client = start(&joined.left, "the client", &format!("send_bw -n 10 --host {host}"));
        let (client, server) = (client.wait(LIMIT).unwrap(), server.wait(LIMIT).unwrap());
        assert_eq!((client.status.code(), server.status.code()), (Some(1), Some(1)), "{client}");
        assert!(client.stderr.contains("urxe perf: "), "{client}");
        assert!(server.stderr.contains("urxe perf: "), "{server}");
        let wrong = alone(&joined.left, "read_bw -c UC");
        assert_eq!(wrong.status.code(), Some(2), "{wrong}");
        let nobody = alone(&joined.left, "send_bw --host 127.0.0.1");
        assert!(nobody.stderr.contains("--server"), "{nobody}");
    });
}
