//! The ping-pongs of the package ibverbs-utils.

use integration_tests::{Case, Ends, Packages};
use testkit::netns::with_namespaces;

use crate::table::{Row, check};

pub(crate) const TITLE: &str = "The ping-pongs of ibverbs-utils";
const NOTE: &str = "\
With `-g 1`, the first GID of an address that is used. `-c` checks the data. `-t` and `-e` do not go together: then the program takes it for
an error that an event comes for a completion that it has polled already, which may happen on any device.";

/// The port where all of them listen.
const PORT: u16 = 18515;

/// What each is run with.
const RUNS: &[(&str, &[&str])] = &[
    (
        "ibv_rc_pingpong",
        &[
            "",
            "-c",
            "-c -e",
            "-c -s 1",
            "-c -s 65536 -n 100",
            "-c -s 1048576 -n 20",
            "-c -m 256",
            "-c -m 512",
            "-c -m 2048 -s 65536 -n 100",
            "-c -m 4096 -s 65536 -n 100",
            "-c -N",
            "-c -t",
            "-c -o",
            "-c -O",
            "-c -o -P",
            "-c -j",
            "-c -N -t",
            "-c -N -e",
        ],
    ),
    (
        "ibv_uc_pingpong",
        &[
            "",
            "-c",
            "-c -e",
            "-c -s 1",
            "-c -s 65536 -n 20",
            "-c -s 1048576 -n 20",
            "-c -m 256",
            "-c -m 512",
            "-c -m 2048 -s 65536 -n 20",
            "-c -m 4096 -s 65536 -n 20",
        ],
    ),
    ("ibv_ud_pingpong", &["", "-c", "-c -e", "-c -s 1", "-c -s 1000 -n 100"]),
    (
        "ibv_srq_pingpong",
        &[
            "",
            "-c",
            "-c -e",
            "-c -s 1 -n 100",
            "-c -s 1048576 -n 2",
            "-c -m 256",
            "-c -m 512",
            "-c -m 2048 -n 100",
            "-c -m 4096 -n 100",
            "-c -q 4",
            "-c -o",
        ],
    ),
    (
        "ibv_xsrq_pingpong",
        &["", "-e", "-s 1", "-s 1048576", "-m 256", "-m 512", "-m 2048", "-m 4096", "-n 100", "-o"],
    ),
];

/// On one host, an MTU of the interface of 1500 allows no more.
const VETH_MTU_MAX: &str = "1024";

pub(crate) fn row(program: &str, options: &str) -> Row {
    let mut case = Case::new(program, PORT, "-d DEVICE -g 1", options);
    case.missing = MISSING
        .iter()
        .find(|(missing, with, _)| *missing == program && options.contains(with))
        .map(|(_, _, words)| *words);
    let larger = options.split("-m ").nth(1).is_some_and(|rest| {
        !rest.starts_with("256") && !rest.starts_with("512") && !rest.starts_with(VETH_MTU_MAX)
    });
    let judge = if program == "ibv_xsrq_pingpong" { played_xrc } else { played };
    Row { on_veth: !larger && program != "ibv_xsrq_pingpong", ..Row::new(case, judge) }
}

/// What does not run yet: the program, an option, and what is printed.
const MISSING: &[(&str, &str, &str)] = &[];

/// Both ends tell of all exchanges, and of no wrong data.
fn played(ends: &Ends) -> bool {
    let Ends { client, server } = ends;
    [client, server].into_iter().all(|end| {
        let text = &end.stdout;
        text.contains(" iters in ") && text.contains(" bytes in ") && !text.contains("invalid data")
    })
}

/// Both ends tell of success, which they do when their last message was answered.
fn played_xrc(ends: &Ends) -> bool {
    [&ends.client, &ends.server].into_iter().all(|end| {
        let text = format!("{}{}", end.stdout, end.stderr);
        text.contains("success") && !text.contains("Invalid")
    })
}

#[test]
fn the_ping_pongs_run() {
    with_namespaces("pingpongs::the_ping_pongs_run", || {
        let files = RUNS.iter().map(|(program, _)| format!("/usr/bin/{program}"));
        let files: Vec<_> = files.collect();
        let files: Vec<_> = files.iter().map(|file| (file.as_str(), "ibverbs-utils")).collect();
        let Some(packages) = Packages::find("the_ping_pongs_run", &files) else { return };
        let rows = RUNS.iter().flat_map(|(program, runs)| runs.iter().map(|run| row(program, run)));
        check(TITLE, NOTE, &packages, &rows.collect::<Vec<_>>());
    });
}
