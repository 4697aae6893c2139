//! The rules of `docs/rules.md` are implemented and tested where `docs/rule-table.md` says.
//!
//! `URXE_BLESS=1 cargo test -p testkit --test rule_table` writes the table anew.

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

use testkit::rules::{Rule, RuleTable, Sources, parse_rules};

/// Rules that are nothing for the transport to implement, or not yet.
const ELSEWHERE: &[(Rule, &str)] = &[
    (45, "Asks nothing of a transport: it is about programs that read a meaning into keys."),
    (56, "For a device whose queues lie in memory shared with its client; ours do not."),
];

/// Parts of rules that are not the transport's.
const NOTES: &[(Rule, &str)] =
    &[(49, "Joining the group in the network (IGMP, MLD) is the business of links.")];

/// Parts of rules that want a test each, which has these words in its file or name.
const PARTS: &[(Rule, &str)] = &[
    (10, "inv"),
    (34, "rxe-core"),
    (49, "rxe-core"),
    (50, "multicast"),
    (52, "resiz"),
    (57, "qkey"),
    (60, "vlan"),
];

/// Rules that are not done yet. The list must be exact, so that it shrinks to nothing.
const PENDING: &[Rule] = &[];

const HEAD: &str = "\
# Where the rules are implemented and tested

Made from the sources by `URXE_BLESS=1 cargo test -p testkit --test rule_table`; do not edit. A comment of the product that names a
rule of [rules.md](rules.md) counts as its implementation, a test whose name begins with its number as its test. The test
`rule_table` fails when this table is not what the sources say.

";

#[test]
fn the_table_tells_the_truth() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    let read = |name: &str| {
        let path = root.join("docs").join(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let titles = parse_rules(&read("rules.md")).unwrap();
    assert_eq!(titles.len(), 61, "a rule was added or lost: say so here");
    let sources = Sources::read(root).unwrap();
    let (elsewhere, notes, parts) = (ELSEWHERE, NOTES, PARTS);
    let table = RuleTable { titles: &titles, sources: &sources, elsewhere, notes, parts };

    let unknown = table.unknown();
    assert!(unknown.is_empty(), "rules that docs/rules.md does not have: {unknown:#?}");
    let text = format!("{HEAD}{table}");
    if env::var_os("URXE_BLESS").is_some() {
        fs::write(root.join("docs/rule-table.md"), &text).unwrap();
    }
    let pending: BTreeSet<_> = PENDING.iter().copied().collect();
    let missing = table.missing();
    let (lost, done): (Vec<_>, Vec<_>) =
        (missing.difference(&pending).collect(), pending.difference(&missing).collect());
    assert!(lost.is_empty(), "rules without an implementation or without a test: {lost:?}");
    assert!(done.is_empty(), "rules that are done now, to be taken off PENDING: {done:?}");
    for (rule, _) in ELSEWHERE {
        assert!(!table.is_done(*rule), "R{rule} is implemented and tested: take it off ELSEWHERE");
    }
    assert!(
        text == read("rule-table.md"),
        "docs/rule-table.md is not what the sources say; write it anew by:\n  \
         URXE_BLESS=1 cargo test -p testkit --test rule_table"
    );
}
