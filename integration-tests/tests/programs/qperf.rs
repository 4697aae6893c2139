//! The program qperf, whose server lives on and serves one test after the other.

use std::fmt::Write;
use std::time::Duration;

use integration_tests::{Case, Packages, Place};
use testkit::netns::{Namespace, with_namespaces};

use crate::PROGRAMS;

pub(crate) const TITLE: &str = "qperf";
const NOTE: &str = "\
Without `-cm 1`, qperf knows its peer by a LID alone, and gives no GID: so its tests of RDMA run on no RoCE device, and `is_global` 0 is
refused here as by Linux: on its rdma_rxe (6.1, in the guest) the tests below end with the same words. With it, it needs librdmacm.";

const PORT: u16 = 19765;
const LIMIT: Duration = Duration::from_secs(30);

/// A test, and what is printed where it cannot run; `conf` only asks both ends who they are.
const TESTS: &[(&str, Option<&str>)] = &[
    ("conf", None),
    ("rc_lat", Some("failed to modify QP to RTR")),
    ("rc_rdma_write_bw", Some("failed to modify QP to RTR")),
    ("uc_bw", Some("failed to modify QP to RTR")),
    ("ud_lat", Some("failed to create address handle: Invalid argument")),
];

#[test]
fn qperf_runs_as_far_as_on_any_roce_device() {
    with_namespaces("qperf::qperf_runs_as_far_as_on_any_roce_device", || {
        let files = [("/usr/bin/qperf", "qperf")];
        let Some(packages) = Packages::find("qperf_runs", &files) else { return };
        let namespace = Namespace::new("qperf").unwrap();
        let place = Place::Loopback(&namespace);
        let mut case = Case::new("qperf", PORT, "", "");
        let server = case.start_server(place, &packages).unwrap_or_else(|error| panic!("{error}"));
        let mut text = format!("{NOTE}\n\n| test | lo |\n|---|---|\n");
        for (test, missing) in TESTS {
            case.arguments = format!("-t 1 -i rxe_lo:1 {test}");
            let client = case.start_client(place, &packages).unwrap_or_else(|e| panic!("{e}"));
            let seen = client.wait(LIMIT).unwrap();
            let printed = format!("{}{}", seen.stdout, seen.stderr);
            match missing {
                None => assert!(seen.status.success() && printed.contains("loc_node"), "{seen}"),
                Some(words) => assert!(!seen.status.success() && printed.contains(words), "{seen}"),
            }
            let told = missing.map_or_else(|| "yes".to_owned(), |words| format!("no: {words}"));
            writeln!(text, "| {test} | {told} |").unwrap();
        }
        drop(server);
        PROGRAMS.check(TITLE, text);
    });
}
