//! `docs/rdma-cm.md` has each function, event and reason to refuse, and the tests that it names are
//! there.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rdma_cm::{EventType, RejReason};

/// The functions of `rdma/rdma_cm.h`, but for the spaces between them as they stand there.
const FUNCTIONS: &str = "rdma_event_msg rdma_create_user_id rdma_create_id rdma_destroy_id \
    rdma_bind_addr rdma_resolve_addr rdma_resolve_route rdma_resolve_ib_service rdma_create_qp \
    rdma_destroy_qp rdma_init_qp_attr rdma_connect rdma_connect_locked rdma_connect_ece \
    rdma_listen rdma_accept rdma_lock_handler rdma_unlock_handler rdma_accept_ece rdma_notify \
    rdma_reject rdma_disconnect rdma_join_multicast rdma_leave_multicast rdma_set_service_type \
    rdma_set_reuseaddr rdma_set_afonly rdma_set_ack_timeout rdma_set_min_rnr_timer \
    rdma_get_service_id rdma_reject_msg rdma_consumer_reject_data rdma_read_gids rdma_iw_cm_id";

fn table() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/rdma-cm.md")).unwrap()
}

/// The cells of the rows whose first cell is this.
fn row<'a>(table: &'a str, first: &str) -> Vec<&'a str> {
    let cells = |line: &'a str| -> Vec<_> { line.split('|').map(str::trim).collect() };
    let mut rows = table.lines().map(cells).filter(|cells| cells.get(1) == Some(&first));
    let found = rows.next().unwrap_or_else(|| panic!("{first} is not in the table"));
    assert!(rows.next().is_none(), "{first} is there twice");
    found
}

/// The functions of the files below a folder.
fn functions_of(folder: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            names.extend(functions_of(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let lines = text.lines().filter_map(|line| line.trim().strip_prefix("fn "));
            names.extend(lines.filter_map(|line| line.split_once('(')).map(|(n, _)| n.to_owned()));
        }
    }
    names
}

#[test]
fn each_function_event_and_reason_is_in_it() {
    let table = table();
    let events = EventType::ALL.map(|event| event.name().replace("RDMA_CM_EVENT_", ""));
    let reasons = RejReason::ALL.iter().map(|reason| reason.0.to_string());
    let functions = FUNCTIONS.split_whitespace().map(str::to_owned);
    for first in functions.chain(events).map(|name| format!("`{name}`")).chain(reasons) {
        assert_eq!(row(&table, &first).len(), 5, "{first}: three cells");
    }
}

#[test]
fn the_tests_that_it_names_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut known = functions_of(&root.join("tests"));
    known.extend(functions_of(&root.join("src")));
    let table = table();
    let mut count = 0;
    for line in table.lines().filter(|line| line.starts_with('|')) {
        let last = line.trim_end_matches('|').rsplit('|').next().unwrap();
        for name in last.split('`').skip(1).step_by(2) {
            assert!(known.contains(name), "no test {name}: {line}");
            count += 1;
        }
    }
    assert!(count > 60, "{count} tests");
}
