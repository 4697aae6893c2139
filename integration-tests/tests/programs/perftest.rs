//! The programs of the package perftest.

use integration_tests::{Case, Ends, Packages};
use testkit::netns::with_namespaces;

use crate::table::{Row, check};

pub(crate) const RC: &str = "perftest over RC";
pub(crate) const OTHERS: &str = "perftest over UC, UD and XRC";
const NOTE: &str = "\
With `-F -x 1`: whatever the clock of the processor does, and the first GID of an address that is used. These programs do not check data.";

/// The port where all of them listen.
const PORT: u16 = 18515;

/// What each is run with, over RC.
const OVER_RC: &[(&str, &[&str])] = &[
    (
        "ib_send_bw",
        &[
            "-n 200",
            "-n 200 --use_old_post_send",
            "-n 100 -e",
            "-n 200 -q 8",
            "-n 200 -b",
            "-n 5 -a",
            "-n 200 -l 10",
            "-n 200 --use-srq",
            "-n 200 --use-srq -q 4",
            "-n 200 -s 64 -I 64",
            "-n 200 -m 256",
        ],
    ),
    (
        "ib_send_lat",
        &[
            "-n 100",
            "-n 100 --use_old_post_send",
            "-n 100 -e",
            "-n 100 --use-srq",
            "-n 5 -a",
            "-n 100 -s 64 -I 64",
        ],
    ),
    (
        "ib_write_bw",
        &[
            "-n 200",
            "-n 200 --use_old_post_send",
            "-n 200 -q 8",
            "-n 200 -b",
            "-n 5 -a",
            "-n 200 -l 10",
            "-n 200 -s 64 -I 64",
            "-n 200 -m 256",
        ],
    ),
    ("ib_write_lat", &["-n 20", "-n 20 --use_old_post_send", "-n 20 -s 64 -I 64"]),
    (
        "ib_read_bw",
        &[
            "-n 200",
            "-n 200 --use_old_post_send",
            "-n 100 -e",
            "-n 200 -q 8",
            "-n 200 -b",
            "-n 5 -a",
            "-n 200 -l 10",
            "-n 200 -o 1",
        ],
    ),
    ("ib_read_lat", &["-n 100", "-n 100 --use_old_post_send", "-n 100 -e", "-n 5 -a"]),
    (
        "ib_atomic_bw",
        &[
            "-n 200",
            "-n 200 -A CMP_AND_SWAP",
            "-n 200 --use_old_post_send",
            "-n 100 -e",
            "-n 200 -q 8",
            "-n 200 -b",
            "-n 200 -l 10",
        ],
    ),
    (
        "ib_atomic_lat",
        &["-n 100", "-n 100 -A CMP_AND_SWAP", "-n 100 --use_old_post_send", "-n 100 -e"],
    ),
];

/// Over services that lose what the receiver has no room for, no more is sent than it has.
const OVER_OTHERS: &[(&str, &[&str])] = &[
    (
        "ib_send_bw",
        &[
            "-c UC -n 20 -s 4096",
            "-c UC -n 20 -s 4096 --use_old_post_send",
            "-c UC -n 20 -s 4096 -e",
            "-c UC -n 20 -s 1024 -q 2",
            "-c UC -n 20 -s 4096 -b",
            "-c UC -n 20 -s 4096 -l 5",
            "-c UC -n 20 -s 64 -I 64",
            "-c UD -n 20 -s 1024",
            "-c UD -n 20 -s 1024 --use_old_post_send",
            "-c UD -n 20 -s 1024 -e",
            "-c UD -n 20 -s 1024 -q 4",
            "-c UD -n 20 -s 1024 -b",
            "-c UD -n 20 -s 1024 -l 5",
            "-c UD -n 20 -s 64 -I 64",
            "-c UD -n 20 -s 1024 --use-srq",
            "-c XRC -n 200",
        ],
    ),
    (
        "ib_send_lat",
        &[
            "-c UC -n 100",
            "-c UC -n 100 -e",
            "-c UD -n 100",
            "-c UD -n 100 -e",
            "-c UD -n 5 -a",
            "-c XRC -n 100",
        ],
    ),
    (
        "ib_write_bw",
        &[
            "-c UC -n 200",
            "-c UC -n 200 --use_old_post_send",
            "-c UC -n 200 -q 8",
            "-c UC -n 200 -b",
            "-c UC -n 200 -l 10",
            "-c UC -n 200 -s 64 -I 64",
            "-c UC -n 5 -a",
            "-c XRC -n 200",
        ],
    ),
    ("ib_write_lat", &["-c UC -n 20", "-c XRC -n 20"]),
    ("ib_read_bw", &["-c XRC -n 200"]),
    ("ib_atomic_bw", &["-c XRC -n 200"]),
];

/// What does not run yet: words of the options, and what is printed.
const MISSING: &[(&str, &str)] = &[];

/// A program, with options of both ends.
pub(crate) fn case(program: &str, options: &str) -> Case {
    Case::new(program, PORT, "-d DEVICE -F -x 1", options)
}

fn rows(runs: &[(&str, &[&str])]) -> Vec<Row> {
    let rows = runs.iter().flat_map(|(program, runs)| runs.iter().map(move |run| (program, run)));
    let row = |(program, options): (&&str, &&str)| {
        let mut case = case(program, options);
        let missing = MISSING.iter().find(|(with, _)| options.contains(with));
        case.missing = missing.map(|(_, words)| *words);
        // One of each on two hosts: the options concern the program, not the way.
        let on_veth = runs.iter().any(|(_, runs)| runs.first() == Some(options));
        Row { on_veth, ..Row::new(case, measured) }
    };
    rows.map(row).collect()
}

/// Both ends end well, and the client tells of what it has measured.
pub(crate) fn measured(ends: &Ends) -> bool {
    let mut lines = ends.client.stdout.lines().skip_while(|line| !line.contains("#bytes")).skip(1);
    let Some(line) = lines.next() else { return false };
    let numbers: Vec<_> = line.split_whitespace().map(str::parse::<f64>).collect();
    numbers.len() >= 4 && numbers.iter().all(Result::is_ok)
}

fn run(test: &str, title: &str, runs: &[(&str, &[&str])]) {
    with_namespaces(&format!("perftest::{test}"), || {
        let files: Vec<_> = runs.iter().map(|(name, _)| format!("/usr/bin/{name}")).collect();
        let files: Vec<_> = files.iter().map(|file| (file.as_str(), "perftest")).collect();
        let Some(packages) = Packages::find(test, &files) else { return };
        check(title, NOTE, &packages, &rows(runs));
    });
}

#[test]
fn perftest_runs_over_rc() {
    run("perftest_runs_over_rc", RC, OVER_RC);
}

#[test]
fn perftest_runs_over_the_other_services() {
    run("perftest_runs_over_the_other_services", OTHERS, OVER_OTHERS);
}
