//! `urxe rping` as two programs over the loopback interface.

// A test may unwrap in its helpers too.
#![allow(clippy::unwrap_used)]

use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The time for a server to listen.
const SOON: Duration = Duration::from_secs(30);

fn start(arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_urxe"))
        .arg("rping")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A port of this test's own: others may run on this host.
fn port(offset: u32) -> String {
    (20_000 + (std::process::id() * 4 + offset) % 10_000).to_string()
}

/// Runs a client; again while nobody listens yet.
fn client(arguments: &[&str]) -> Output {
    let begin = Instant::now();
    loop {
        let output = start(arguments).wait_with_output().unwrap();
        let refused = String::from_utf8_lossy(&output.stderr).contains("invalid service id");
        if !refused || begin.elapsed() > SOON {
            return output;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

#[track_caller]
fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn messages_go_to_and_fro() {
    for (offset, own_qp) in [(0, None), (1, Some("-q"))] {
        let port = port(offset);
        let mut server = vec!["-s", "-v", "-a", "127.0.0.1", "-p", &port];
        let mut ours =
            vec!["-c", "-v", "-V", "-a", "127.0.0.1", "-p", &port, "-C", "3", "-S", "40"];
        server.extend(own_qp);
        ours.extend(own_qp);
        let server = start(&server);
        let said = succeeded(&client(&ours));
        let expected = [
            "ping data: rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ",
            "ping data: rdma-ping-1: BCDEFGHIJKLMNOPQRSTUVWXYZ[",
            "ping data: rdma-ping-2: CDEFGHIJKLMNOPQRSTUVWXYZ[\\",
        ];
        assert_eq!(said.lines().collect::<Vec<_>>(), expected);
        let said = succeeded(&server.wait_with_output().unwrap());
        assert_eq!(said.lines().count(), 3, "{said}");
        assert!(said.starts_with("server ping data: rdma-ping-0: "), "{said}");
    }
}

#[test]
fn a_persistent_server_serves_many_and_a_second_one_cannot_listen() {
    let port = port(2);
    let mut server = start(&["-s", "-P", "-a", "127.0.0.1", "-p", &port]);
    let ours = ["-c", "-V", "-a", "127.0.0.1", "-p", &port, "-C", "2"];
    succeeded(&client(&ours));
    let second = start(&["-s", "-a", "127.0.0.1", "-p", &port]).wait_with_output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains("is served"), "{second:?}");
    succeeded(&client(&ours));
    // Killed, it is replaced at once.
    server.kill().unwrap();
    server.wait().unwrap();
    let server = start(&["-s", "-a", "127.0.0.1", "-p", &port]);
    succeeded(&client(&ours));
    succeeded(&server.wait_with_output().unwrap());
}

#[test]
fn nobody_listens() {
    let output = start(&["-c", "-a", "127.0.0.1", "-p", "1"]).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, "urxe rping: the server has refused: 8 (invalid service id)\n");
}
