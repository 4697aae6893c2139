//! rdma-core's own tests, which are written in Python on pyverbs.

use std::collections::BTreeMap;

/// How a test of the suite ended.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// It passed.
    Passed,
    /// It was left out, for this reason.
    Skipped(String),
    /// It failed.
    Failed,
}

/// Reads what Python's unittest prints with `-v`: each test's full name and how it ended.
///
/// A line is `name (module.Class.name) ... ok`; where the test has a description, this follows on a
/// second line, and the outcome behind it.
pub fn outcomes(printed: &str) -> BTreeMap<String, Outcome> {
    let mut outcomes = BTreeMap::new();
    let mut name = None;
    for line in printed.lines() {
        let full = line.split_once(" (").and_then(|(short, rest)| {
            let full = rest.split(')').next()?;
            full.ends_with(&format!(".{short}")).then(|| full.to_owned())
        });
        // After the tests, those that failed are named again.
        name = if line.starts_with("====") { break } else { full.or(name) };
        let Some((_, end)) = line.rsplit_once("... ") else { continue };
        if let (Some(outcome), Some(name)) = (outcome(end), name.take()) {
            outcomes.insert(name, outcome);
        }
    }
    outcomes
}

fn outcome(text: &str) -> Option<Outcome> {
    match text.trim() {
        "ok" => Some(Outcome::Passed),
        "FAIL" | "ERROR" => Some(Outcome::Failed),
        other => {
            let reason = other.strip_prefix("skipped ")?;
            Some(Outcome::Skipped(reason.trim_matches(['\'', '"']).to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_unittest_are_read() {
        let printed = "\
test_a (tests.test_x.X.test_a) ... ok
test_b (tests.test_x.X.test_b)
What it is about. ... skipped 'No device (none)'
test_c (tests.test_x.X.test_c) ... ERROR
======================================================================
ERROR: test_c (tests.test_x.X.test_c)
";
        let seen: Vec<_> = outcomes(printed).into_iter().collect();
        let expected = [
            ("tests.test_x.X.test_a", Outcome::Passed),
            ("tests.test_x.X.test_b", Outcome::Skipped("No device (none)".into())),
            ("tests.test_x.X.test_c", Outcome::Failed),
        ];
        assert_eq!(seen, expected.map(|(name, outcome)| (name.to_owned(), outcome)));
    }
}
