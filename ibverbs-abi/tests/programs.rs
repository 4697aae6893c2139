//! Programs in C walk through the calls, wrong arguments included.

mod common;

use std::fs;
use std::process::Command;
use std::time::Duration;

use common::{build, can_check_programs, library_folder, run_alone, source};
use testkit::process;
use testkit::scratch::Scratch;

#[test]
fn pointers_that_are_no_objects() {
    run_alone("pointers_that_are_no_objects", "wrong");
}

#[test]
fn events_and_their_acknowledgement() {
    run_alone("events_and_their_acknowledgement", "events");
}

#[test]
fn names_and_rates_are_those_of_the_real_libraries() {
    if !can_check_programs(&[]) {
        return;
    }
    let scratch = Scratch::new("abi-names").expect("a folder can be made");
    let folder = library_folder(&scratch);
    let program = build(&scratch, &folder, "names", &[]);
    let mut run = Command::new(program);
    run.env("LD_LIBRARY_PATH", folder);
    let done = process::run("names", &mut run, Duration::from_secs(60));
    let done = done.and_then(|done| done.success()).unwrap_or_else(|error| panic!("{error}"));
    let real = fs::read_to_string(source("tests/data/names.txt")).expect("the file is there");
    assert_eq!(done.stdout, real);
}

#[test]
fn domains_device_memory_and_imports() {
    run_alone("domains_device_memory_and_imports", "domains");
}

#[test]
fn memory_that_the_program_supplies() {
    run_alone("memory_that_the_program_supplies", "allocators");
}

#[test]
fn the_child_of_a_fork_has_objects_of_its_own_alone() {
    run_alone("the_child_of_a_fork_has_objects_of_its_own_alone", "forks");
}

#[test]
fn extended_completion_queues() {
    run_alone("extended_completion_queues", "cq_ex");
}

#[test]
fn queues_posting_polling_and_events() {
    run_alone("queues_posting_polling_and_events", "queues");
}

#[test]
fn requests_that_are_put_together_call_by_call() {
    run_alone("requests_that_are_put_together_call_by_call", "built");
}

#[test]
fn windows_and_other_memory() {
    run_alone("windows_and_other_memory", "memory");
}

#[test]
fn extended_reliable_connections() {
    run_alone("extended_reliable_connections", "xrc");
}

#[test]
fn threads_that_are_cancelled() {
    run_alone("threads_that_are_cancelled", "cancel");
}

#[test]
fn threads_that_sleep_on_events() {
    run_alone("threads_that_sleep_on_events", "sleepers");
}

#[test]
fn a_log_that_nobody_takes() {
    run_alone("a_log_that_nobody_takes", "mute");
}

#[test]
fn signals_are_the_programs() {
    run_alone("signals_are_the_programs", "signals");
}

#[test]
fn structs_of_older_headers() {
    run_alone("structs_of_older_headers", "older");
}

#[test]
fn threads_that_call_at_once() {
    run_alone("threads_that_call_at_once", "threads");
}
