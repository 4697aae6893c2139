//! The library, as programs find it.

// Each test uses some of it.
#![allow(dead_code)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use testkit::left_out;
use testkit::netns::{Namespace, with_namespaces};
use testkit::process;
use testkit::scratch::Scratch;

/// The library that cargo built with this test.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test.parent().expect("it is in a folder");
    let library = folder.join("libibverbs_abi.so");
    assert!(library.exists(), "{} is missing", library.display());
    library
}

/// Makes a folder for `LD_LIBRARY_PATH`: both names of the library.
pub(crate) fn library_folder(scratch: &Scratch) -> PathBuf {
    let folder = scratch.path().join("lib");
    fs::create_dir(&folder).expect("the folder is new");
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        symlink(library(), folder.join(name)).expect("the folder is empty");
    }
    folder
}

/// A file of this package.
pub(crate) fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// How long a C program may take to build, or to run.
const LIMIT: Duration = Duration::from_secs(120);

/// Whether programs in C can be built here, and `tools` are installed. Otherwise it says what is left
/// out, and fails where nothing may be.
pub(crate) fn can_check_programs(tools: &[&str]) -> bool {
    let mut missing: Vec<&str> = tools.to_vec();
    missing.push("cc");
    missing.retain(|tool| !process::is_installed(tool));
    if !missing.contains(&"cc") {
        missing.extend(HEADERS.iter().filter(|header| !has_header(header)));
    }
    if missing.is_empty() {
        return true;
    }
    let text = format!(
        "programs in C: {} missing (packages build-essential, libibverbs-dev, \
        librdmacm-dev and valgrind)",
        missing.join(", ")
    );
    left_out::missing(&text);
    false
}

/// What programs of tests/c include of rdma-core.
const HEADERS: [&str; 2] = ["infiniband/verbs.h", "rdma/rdma_cma.h"];

fn has_header(header: &str) -> bool {
    let mut command = Command::new("cc");
    command.args(["-include", header, "-fsyntax-only", "-x", "c", "/dev/null"]);
    process::run("cc", &mut command, LIMIT).is_ok_and(|done| done.success().is_ok())
}

/// Builds a program of tests/c against the headers of rdma-core and the library in `folder`.
pub(crate) fn build(scratch: &Scratch, folder: &Path, name: &str, options: &[&str]) -> PathBuf {
    let program = scratch.file(name);
    let mut build = Command::new("cc");
    build.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g"]).args(options);
    build.arg("-o").arg(&program).arg(source(&format!("tests/c/{name}.c")));
    build.arg(folder.join("libibverbs.so.1")).args(["-pthread", "-Wl,-z,now"]);
    let built = process::run("cc", &mut build, LIMIT).and_then(|built| built.success());
    built.unwrap_or_else(|error| panic!("{error}"));
    program
}

/// What memcheck is asked for: leaks are errors, or are not looked for.
pub(crate) const LEAKS: &[&str] =
    &["--leak-check=full", "--errors-for-leak-kinds=definite", "--show-leak-kinds=definite"];
pub(crate) const NO_LEAKS: &[&str] = &["--leak-check=no"];

/// Runs a program of tests/c in a network namespace of its own. `test` is the name of the test that
/// asks.
pub(crate) fn run_alone(test: &str, name: &str) {
    if can_check_programs(&[]) {
        run(test, name, &[], |namespace, program| namespace.command(program));
    }
}

/// As [`run_alone`], without the library, which the program loads itself.
pub(crate) fn run_unlinked(test: &str, name: &str) {
    if can_check_programs(&[]) {
        run(test, name, &["-Wl,--as-needed"], |namespace, program| namespace.command(program));
    }
}

/// As [`run_alone`], under valgrind's memcheck, which must find nothing.
pub(crate) fn run_under_memcheck(test: &str, name: &str, leaks: &[&str]) {
    if !can_check_programs(&["valgrind"]) {
        return;
    }
    run(test, name, &[], |namespace, program| {
        let mut command = namespace.command("valgrind");
        command.args(["--quiet", "--error-exitcode=99", "--fair-sched=yes"]).args(leaks);
        let suppressions = source("tests/data/valgrind.supp");
        command.arg(format!("--suppressions={}", suppressions.display())).arg(program);
        command
    });
}

/// As [`run_alone`], built with the address sanitizer, which must find nothing.
pub(crate) fn run_with_sanitizer(test: &str, name: &str) {
    if can_check_programs(&[]) {
        run(test, name, &["-fsanitize=address"], |namespace, program| namespace.command(program));
    }
}

fn run(
    test: &str,
    name: &str,
    options: &[&str],
    command: impl FnOnce(&Namespace, &Path) -> Command,
) {
    with_namespaces(test, || {
        let scratch = Scratch::new(name).expect("a folder can be made");
        let folder = library_folder(&scratch);
        let program = build(&scratch, &folder, name, options);
        let namespace = Namespace::new("abi").expect("a namespace can be made");
        let mut run = command(&namespace, &program);
        run.env("LD_LIBRARY_PATH", folder);
        let done = process::run(name, &mut run, LIMIT).and_then(|done| done.success());
        let done = done.unwrap_or_else(|error| panic!("{error}"));
        assert!(done.stdout.ends_with("all as it should be\n"), "{}", done.stdout);
    });
}
