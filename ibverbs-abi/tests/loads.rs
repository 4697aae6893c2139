//! Programs find the library by the names of the real ones, with every symbol bound at once.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod common;

use std::process::Command;
use std::time::Duration;

use common::{can_check_programs, library_folder, run_unlinked, source};
use testkit::process;
use testkit::scratch::Scratch;

#[test]
fn a_program_finds_it_by_both_names() {
    if !can_check_programs(&[]) {
        return;
    }
    let scratch = Scratch::new("abi-loads").unwrap();
    let (folder, program) = (library_folder(&scratch), scratch.file("load"));
    let mut build = Command::new("cc");
    build.args(["-Wall", "-Wextra", "-o"]).arg(&program).arg(source("tests/c/load.c"));
    build.arg(folder.join("libibverbs.so.1")).arg("-Wl,-z,now");
    process::run("cc", &mut build, Duration::from_secs(60)).unwrap().success().unwrap();
    let mut run = Command::new(program);
    run.env("LD_LIBRARY_PATH", folder).env("LD_BIND_NOW", "1");
    let done = process::run("load", &mut run, Duration::from_secs(60)).unwrap().success().unwrap();
    // The dynamic linker's complaint about a library without versions.
    assert!(!done.stderr.contains("no version information"), "{}", done.stderr);
    assert!(done.stdout.contains("device rxe_lo\n"), "{}", done.stdout);
}

#[test]
fn a_program_that_unloads_it_keeps_what_it_has_started() {
    run_unlinked("a_program_that_unloads_it_keeps_what_it_has_started", "unload");
}
