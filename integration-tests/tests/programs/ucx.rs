//! UCX: the program `ucx_perftest`, over its transports on verbs.

use integration_tests::{Case, Ends, Packages};
use testkit::netns::with_namespaces;

use crate::table::{Row, check};

pub(crate) const TITLE: &str = "UCX";
const NOTE: &str = "\
With `-n 50 -w 5`. `-x` names the transport of the lower layer; tests of the upper one are limited by `UCX_TLS` and choose their device by
`UCX_NET_DEVICES`. This program does not check data.";

const PORT: u16 = 13337;

/// Tests of the lower layer.
const LOWER: &[&str] = &[
    "-x rc_verbs -t am_lat",
    "-x rc_verbs -t am_bw",
    "-x rc_verbs -t put_lat",
    "-x rc_verbs -t put_bw",
    "-x rc_verbs -t am_bw -D zcopy -s 4096",
    "-x rc_verbs -t put_bw -D zcopy -s 1048576",
    "-x rc_verbs -t get -D bcopy -s 1024",
    "-x rc_verbs -t get -D zcopy -s 1048576",
    "-x rc_verbs -t fadd",
    "-x rc_verbs -t cswap",
    "-x ud_verbs -t am_lat",
    "-x ud_verbs -t am_bw",
    "-x ud_verbs -t am_bw -D zcopy -s 512",
];

/// Tests of the upper layer, over each of its transports.
const UPPER: &[&str] = &[
    "-t tag_lat",
    "-t tag_bw -s 65536",
    "-t tag_lat -s 1048576",
    "-t ucp_put_bw",
    "-t ucp_get -s 65536",
    "-t ucp_fadd",
    "-t stream_lat",
];

/// What does not run yet: words of the options, and what is printed.
const MISSING: &[(&str, &str)] = &[];

fn row(options: &str, transport: Option<&str>) -> Row {
    let fixed = if transport.is_some() { "-n 50 -w 5" } else { "-d DEVICE:1 -n 50 -w 5" };
    let mut case = Case::new("ucx_perftest", PORT, fixed, options);
    // So that the machine's own adapters are not chosen, nor shared memory where both ends are here.
    case.environment.push(("UCX_NET_DEVICES".into(), "DEVICE:1".into()));
    case.environment.extend(transport.map(|name| ("UCX_TLS".into(), name.into())));
    case.missing = MISSING.iter().find(|(with, _)| options.contains(with)).map(|(_, words)| *words);
    let on_veth = options.contains("lat") || options.contains("bw");
    Row { on_veth, ..Row::new(case, measured) }
}

/// The client tells the final numbers.
fn measured(ends: &Ends) -> bool {
    ends.client.stdout.lines().any(|line| {
        let line = line.trim_start();
        let numbers = line.strip_prefix("Final:").map(|rest| rest.split_whitespace().count());
        numbers.is_some_and(|count| count >= 4)
    })
}

#[test]
fn ucx_runs() {
    with_namespaces("ucx::ucx_runs", || {
        let files = [("/usr/bin/ucx_perftest", "ucx-utils")];
        let Some(packages) = Packages::find("ucx_runs", &files) else { return };
        let upper = ["rc_v", "ud_v"].into_iter();
        let upper = upper.flat_map(|name| UPPER.iter().map(move |test| row(test, Some(name))));
        let rows: Vec<_> = LOWER.iter().map(|test| row(test, None)).chain(upper).collect();
        check(TITLE, NOTE, &packages, &rows);
    });
}
