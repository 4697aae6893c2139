//! Connections between processes that share an address.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::time::{Duration, Instant};

use testkit::netns::{Namespace, with_namespaces};
use testkit::process::Running;

const LIMIT: Duration = Duration::from_secs(60);

fn member(namespace: &Namespace, words: &str) -> Running {
    let mut command = namespace.command(env!("CARGO_BIN_EXE_cm-member"));
    Running::start(words, command.args(words.split(' '))).unwrap()
}

/// One that listens; dropping it kills it with SIGKILL.
fn listener(namespace: &Namespace, how: &str, port: u16) -> Running {
    let mut member = member(namespace, &format!("{how} {port}"));
    member.wait_for_text("listening", LIMIT).unwrap();
    member
}

/// Makes so many connections to a port.
fn ask(namespace: &Namespace, port: u16, count: usize) {
    let words = format!("ask {port} {count}");
    let finished = member(namespace, &words).wait(LIMIT).unwrap().success().unwrap();
    assert!(finished.stdout.contains(&format!("done {count}")), "{}", finished.stdout);
}

#[test]
fn two_processes_serve_one_address_and_others_find_both() {
    with_namespaces("two_processes_serve_one_address_and_others_find_both", || {
        let namespace = Namespace::new("cm").unwrap();
        let _first = listener(&namespace, "serve", 7001);
        let _second = listener(&namespace, "serve", 7002);
        for _ in 0..3 {
            ask(&namespace, 7001, 10);
            ask(&namespace, 7002, 10);
        }
        // At once, too.
        let words = ["ask 7001 20", "ask 7002 20", "ask 7001 20", "ask 7002 20"];
        let all: Vec<_> = words.iter().map(|words| member(&namespace, words)).collect();
        for asking in all {
            asking.wait(LIMIT).unwrap().success().unwrap();
        }
    });
}

#[test]
fn a_port_that_another_process_serves_is_taken() {
    with_namespaces("a_port_that_another_process_serves_is_taken", || {
        let namespace = Namespace::new("cm").unwrap();
        let _first = listener(&namespace, "serve", 7001);
        member(&namespace, "serve 7001").wait_for_text("taken 98", LIMIT).unwrap();
        ask(&namespace, 7001, 1);
    });
}

#[test]
fn a_listener_that_is_killed_is_replaced_at_once() {
    with_namespaces("a_listener_that_is_killed_is_replaced_at_once", || {
        let namespace = Namespace::new("cm").unwrap();
        // Somebody else stays on the address all the time.
        let _other = listener(&namespace, "serve", 7002);
        for _ in 0..5 {
            let first = listener(&namespace, "serve", 7001);
            ask(&namespace, 7001, 2);
            drop(first);
            let start = Instant::now();
            let _second = listener(&namespace, "serve", 7001);
            ask(&namespace, 7001, 2);
            // A message is sent again after 4.6 s: none was lost.
            assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
        }
        ask(&namespace, 7002, 2);
    });
}

#[test]
fn a_request_outlives_the_listener_that_was_killed_with_it() {
    with_namespaces("a_request_outlives_the_listener_that_was_killed_with_it", || {
        let namespace = Namespace::new("cm").unwrap();
        let mut silent = listener(&namespace, "hold", 7001);
        let asking = member(&namespace, "ask 7001 1");
        silent.wait_for_text("held", LIMIT).unwrap();
        drop(silent);
        // The request comes again after 4.6 s, and finds the successor.
        let _second = listener(&namespace, "serve", 7001);
        asking.wait(LIMIT).unwrap().success().unwrap();
    });
}

/// Who gives up before it has heard of the other side's id, can name its own alone.
#[test]
fn whoever_holds_a_request_hears_that_it_was_taken_back() {
    with_namespaces("whoever_holds_a_request_hears_that_it_was_taken_back", || {
        let namespace = Namespace::new("cm").unwrap();
        let ports = [7001, 7002, 7003];
        let mut holders = ports.map(|port| listener(&namespace, "hold", port));
        // The message comes to one of four processes, always the same one.
        for (holder, port) in holders.iter_mut().zip(ports) {
            let asking = member(&namespace, &format!("leave {port}"));
            holder.wait_for_text("held", LIMIT).unwrap();
            asking.wait(LIMIT).unwrap().success().unwrap();
            holder.wait_for_text("let go 4", Duration::from_secs(5)).unwrap();
        }
    });
}
