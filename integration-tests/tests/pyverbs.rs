//! rdma-core's own tests on urxe's libibverbs: the packages rdma-core and python3-pyverbs.
//!
//! `URXE_BLESS=1 cargo test -p integration-tests --test pyverbs` writes `docs/pyverbs.md` anew.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use integration_tests::{Document, Outcome, Packages, outcomes};
use testkit::netns::{Namespace, with_namespaces};
use testkit::process::{self, ProcessError};
use testkit::scratch::Scratch;

const LIMIT: Duration = Duration::from_secs(240);
const SUITE: &str = "/usr/share/doc/rdma-core/tests";
const PYTHON: &str = "/usr/bin/python3";
/// They need a connection manager.
const LEFT_OUT: &str = "tests.test_rdmacm.";
/// As many of them as must pass, of what runs on any machine; Linux's software device passes 86. Three
/// more need huge pages.
const PASSED_MIN: usize = 125;

/// Tests that run only where the host has set huge pages aside. The document is the same on all hosts:
/// there they are skipped.
const WANT_HUGE_PAGES: [&str; 3] = [
    "tests.test_odp.OdpTestCase.test_odp_rc_huge_traffic",
    "tests.test_odp.OdpTestCase.test_odp_rc_huge_user_addr_traffic",
    "tests.test_parent_domain.ParentDomainTrafficTest.test_huge_page_traffic",
];
const NO_HUGE_PAGES: &str = "There are no huge pages of size 2M allocated";

/// Tests that do not pass yet, each with what is missing. The list must be exact, so that it shrinks
/// to nothing.
const PENDING: &[(&str, &str)] = &[];

const DOCUMENT: Document = Document {
    name: "pyverbs.md",
    head: "\
# rdma-core's own tests

Made by `URXE_BLESS=1 cargo test -p integration-tests --test pyverbs`; do not edit. That test runs the tests of Debian 12's package
rdma-core, with python3-pyverbs, under `urxe run` on the device rxe_lo, and fails when this is not what it saw. The tests of the connection
manager (test_rdmacm) are left out.
",
    sections: &[PASSED, SKIPPED, FAILED],
    command: "URXE_BLESS=1 cargo test -p integration-tests --test pyverbs",
};
const PASSED: &str = "Passed";
const SKIPPED: &str = "Skipped";
const FAILED: &str = "Failed";

/// Puts the tests, some of which are compressed, into a folder.
fn unpack(suite: &Path, folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(suite)? {
        let entry = entry?;
        fs::copy(entry.path(), folder.join(entry.file_name()))?;
    }
    Ok(())
}

fn run_suite(packages: &Packages) -> Result<String, ProcessError> {
    let scratch = Scratch::new("pyverbs").expect("a folder can be made");
    unpack(&packages.path(SUITE), scratch.path()).expect("the tests can be copied");
    let namespace = Namespace::new("pyverbs").expect("a namespace can be made");
    let mut command = packages.command(&namespace, Path::new("sh"));
    let script = "cd \"$0\" && gunzip -f *.gz && exec \"$@\"";
    command.args(["-c", script]).arg(scratch.path());
    // On the loopback interface, the first GID is of an address that nobody has.
    command.args([PYTHON, "run_tests.py", "-v", "--dev", "rxe_lo", "--gid", "1"]);
    command.env("PYTHONPATH", packages.path("/usr/lib/python3/dist-packages"));
    // They choose numbers at random, of sizes too.
    command.env("PYTHONHASHSEED", "0").env("PYTHONDONTWRITEBYTECODE", "1");
    // The suite fails as a whole for the tests that are left out.
    Ok(process::run("the tests of rdma-core", &mut command, LIMIT)?.stderr)
}

#[test]
fn the_tests_of_rdma_core_pass_or_are_skipped() {
    let test = "the_tests_of_rdma_core_pass_or_are_skipped";
    with_namespaces(test, || {
        let run_tests = format!("{SUITE}/run_tests.py");
        let pyverbs = "/usr/lib/python3/dist-packages/pyverbs/__init__.py";
        let files = [(&*run_tests, "rdma-core"), (pyverbs, "python3-pyverbs")];
        let Some(packages) = Packages::find(test, &files) else { return };
        let printed = run_suite(&packages).unwrap_or_else(|error| panic!("{error}"));
        let mut seen = outcomes(&printed);
        seen.retain(|name, _| !name.starts_with(LEFT_OUT));
        assert!(seen.len() > 200, "only {} tests were run:\n{printed}", seen.len());
        for name in WANT_HUGE_PAGES {
            if seen.get(name) == Some(&Outcome::Passed) {
                seen.insert(name.to_owned(), Outcome::Skipped(NO_HUGE_PAGES.to_owned()));
            }
        }
        let passed: Vec<_> = named(&seen, |outcome| *outcome == Outcome::Passed);
        let failed: Vec<_> = named(&seen, |outcome| *outcome == Outcome::Failed);
        let pending: Vec<_> = PENDING.iter().map(|(name, _)| *name).collect();
        assert_eq!(failed, pending, "those that fail are not those that are known to:\n{printed}");
        assert!(passed.len() >= PASSED_MIN, "{} passed", passed.len());
        let list = |names: &[&str]| {
            let lines: String = names.iter().map(|name| format!("- {name}\n")).collect();
            format!("{} tests.\n\n{lines}", names.len())
        };
        DOCUMENT.check(PASSED, list(&passed));
        let mut skipped = String::from("| test | reason |\n|---|---|\n");
        for (name, outcome) in &seen {
            if let Outcome::Skipped(reason) = outcome {
                writeln!(skipped, "| {name} | {reason} |").expect("to memory");
            }
        }
        DOCUMENT.check(SKIPPED, skipped);
        let why = PENDING.iter().map(|(name, why)| format!("- {name}: {why}\n"));
        DOCUMENT.check(FAILED, format!("{} tests.\n\n{}", failed.len(), why.collect::<String>()));
        DOCUMENT.check_outline();
    });
}

fn named(
    seen: &std::collections::BTreeMap<String, Outcome>,
    is_it: impl Fn(&Outcome) -> bool,
) -> Vec<&str> {
    seen.iter().filter(|(_, outcome)| is_it(outcome)).map(|(name, _)| name.as_str()).collect()
}
