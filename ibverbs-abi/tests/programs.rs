//! Programs in C walk through the calls, wrong arguments included.

mod common;

use common::run_alone;

#[test]
fn domains_device_memory_and_imports() {
    run_alone("domains_device_memory_and_imports", "domains");
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
