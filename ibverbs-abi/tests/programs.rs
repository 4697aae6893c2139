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
