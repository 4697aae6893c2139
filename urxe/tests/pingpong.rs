//! `urxe pingpong` as a program: both ends in one, and one end against a TCP peer that is none.
//!
//! What both ends make of each other is tested in `game.rs` too, and by the tests between network
//! namespaces.

// A test may unwrap in its helpers too.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// What a run of the program left behind.
#[derive(Debug)]
struct Run {
    status: i32,
    stdout: String,
    stderr: String,
}

fn start(arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_urxe"))
        .arg("pingpong")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn finish(child: Child) -> Run {
    let output = child.wait_with_output().unwrap();
    Run {
        status: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn run(arguments: &[&str]) -> Run {
    finish(start(arguments))
}

/// Runs a game within one program; again while a program of another user has the port.
fn play(arguments: &[&str]) -> Run {
    let start = Instant::now();
    loop {
        let run = run(arguments);
        if !run.stderr.contains("4791") || start.elapsed() > Duration::from_secs(60) {
            return run;
        }
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn both_ends_in_one_program() {
    let run = play(&["-n", "20", "--seconds", "0.3"]);
    assert_eq!(run.status, 0, "{run:?}");
    assert!(run.stdout.contains("all data was right"), "{}", run.stdout);
    // The size or the path MTU that each line of figures is for.
    let first = |line: &str| line.split_whitespace().next()?.parse::<u32>().ok();
    let firsts: Vec<u32> = run.stdout.lines().filter_map(first).collect();
    assert_eq!(firsts, [8, 4096, 1024, 4096], "{}", run.stdout);
    assert_eq!(run.stderr, "");
}

#[test]
fn both_ends_in_one_program_as_json_over_ipv6() {
    let run = play(&["-6", "--json", "-n", "20", "--seconds", "0.2", "-m", "512", "-s", "5000"]);
    assert_eq!(run.status, 0, "{run:?}");
    let value: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((&value["gid"], &value["device"]), (&"::1".into(), &"rxe_lo".into()));
    assert_eq!((&value["message_bytes"], &value["data_right"]), (&5000.into(), &true.into()));
    let rows = value["bandwidth"].as_array().unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["mtu"], 512);
    let rounds = |value: &Value| -> Vec<f64> {
        value.as_array().unwrap().iter().map(|round| round.as_f64().unwrap()).collect()
    };
    let raw = rounds(&rows[0]["raw_rounds"]);
    for operation in ["write", "read", "send"] {
        let figures = rounds(&rows[0][operation]["rounds"]);
        assert!(figures.iter().all(|&figure| figure > 1e5), "{}", run.stdout);
        assert!(figures.contains(&rows[0][operation]["bytes_per_second"].as_f64().unwrap()));
        // The ratio is that of one round, and as many others have more as have less.
        let ratio = rows[0][operation]["ratio"].as_f64().unwrap();
        let mut ratios: Vec<f64> = figures.iter().zip(&raw).map(|(one, raw)| one / raw).collect();
        ratios.sort_unstable_by(f64::total_cmp);
        assert!((ratios[ratios.len() / 2] - ratio).abs() < 1e-9, "{}", run.stdout);
    }
    for latency in value["latency"].as_array().unwrap() {
        let micros = |name: &str| latency[name].as_f64().unwrap();
        assert!(0.5 < micros("min_us"), "{}", run.stdout);
        assert!(micros("min_us") <= micros("median_us"), "{}", run.stdout);
        assert!(micros("median_us") <= micros("p99_us"), "{}", run.stdout);
    }
}

#[test]
fn bad_usage_is_status_2() {
    for (arguments, told) in [
        (&["-t", "--server"][..], "-t (completion timestamps)"),
        (&["-e"], "-e needs --server or HOST"),
        (&["--server", "--seconds", "1"], "--seconds is for both ends in this process"),
        (&["--server", "host"], "cannot be used with"),
        (&["-m", "1000"], "a path MTU is 256, 512, 1024, 2048 or 4096"),
        (&["-n", "0"], "0 is not in"),
        (&["-l", "16", "host"], "16 is not in"),
        (&["-s", "4"], "a message has 8 to 16777216 bytes, not 4"),
        (&["--seconds", "0"], "a number of seconds from 0.01 to 3600"),
    ] {
        let run = run(arguments);
        assert_eq!(run.status, 2, "{arguments:?}: {run:?}");
        assert!(run.stderr.contains(told), "{arguments:?}: {}", run.stderr);
        assert_eq!(run.stdout, "");
    }
}

#[test]
fn what_is_not_there_is_status_1() {
    // A port that nobody listens on, since its listener is gone.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    for (arguments, told) in [
        (&["-d", "mlx5_0"][..], "there is no RDMA device \"mlx5_0\""),
        (&["-i", "2"], "port 2"),
        (&["-g", "200"], "GID index 200"),
        (&["-g", "100000"], "GID index 100000"),
        (&["127.0.0.1", "-p", &port], "Connection refused"),
        (&["127.0.0.1", "-6", "-p", &port], "has no IPv6 address"),
    ] {
        let run = run(arguments);
        assert_eq!(run.status, 1, "{arguments:?}: {run:?}");
        assert!(run.stderr.contains(told), "{arguments:?}: {}", run.stderr);
    }
}

/// A server, and the TCP port that it names.
fn start_server(arguments: &[&str]) -> (Child, u16) {
    let mut server = start(&[&["--server", "-p", "0"], arguments].concat());
    let mut lines = BufReader::new(server.stderr.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    let port = line.trim_end().rsplit(' ').next().and_then(|port| port.parse().ok());
    let Some(port) = port else { panic!("no port in {line:?}") };
    // Its later lines are wanted as well.
    let (reader, mut writer) = std::io::pipe().unwrap();
    thread::spawn(move || std::io::copy(&mut lines, &mut writer));
    server.stderr = Some(std::os::fd::OwnedFd::from(reader).into());
    (server, port)
}

#[test]
fn a_client_that_speaks_another_protocol_is_told() {
    for ip in ["127.0.0.1", "::1"] {
        let (server, port) = start_server(&[]);
        let mut client = TcpStream::connect((ip, port)).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let run = finish(server);
        assert_eq!(run.status, 1, "{run:?}");
        assert!(run.stderr.contains("is no pingpong"), "{}", run.stderr);
        assert!(run.stderr.contains("GET / HTTP/1.1"), "{}", run.stderr);
        // Nothing is told to a program that does not ask for it.
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{answer:?}");
    }
}

#[test]
fn a_client_that_goes_is_told() {
    let (server, port) = start_server(&[]);
    drop(TcpStream::connect(("127.0.0.1", port)).unwrap());
    let run = finish(server);
    assert_eq!(run.status, 1, "{run:?}");
    assert!(run.stderr.contains("closed the TCP connection"), "{}", run.stderr);
}

#[test]
fn a_server_that_speaks_another_protocol_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let banner = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
        // Until the client goes: it must not need the end of what we say.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let run = run(&["127.0.0.1", "-p", &port]);
    banner.join().unwrap();
    assert_eq!(run.status, 1, "{run:?}");
    assert!(run.stderr.contains("it said \"SSH-2.0-OpenSSH_9.2\\r\\n\""), "{}", run.stderr);
}

#[test]
fn a_taken_tcp_port_is_told() {
    let holder = TcpListener::bind("[::]:0").unwrap();
    let port = holder.local_addr().unwrap().port().to_string();
    let run = run(&["--server", "-p", &port]);
    assert_eq!(run.status, 1, "{run:?}");
    assert!(run.stderr.contains("is another server running?"), "{}", run.stderr);
}
