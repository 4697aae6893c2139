//! The table of rules: each with where it is implemented and tested.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use super::{Place, Rule, Sources};

/// The rules with what the sources say of them.
#[derive(Clone, Debug)]
pub struct RuleTable<'a> {
    /// The title of each rule.
    pub titles: &'a BTreeMap<Rule, String>,
    /// What the sources say.
    pub sources: &'a Sources,
    /// Rules that are not asked for here, with the reason.
    pub elsewhere: &'a [(Rule, &'a str)],
    /// Parts of rules that are not asked for here, with the reason.
    pub notes: &'a [(Rule, &'a str)],
    /// Parts of rules that want a test each: a part of such a test's file and name.
    pub parts: &'a [(Rule, &'a str)],
}

impl RuleTable<'_> {
    /// Whether a rule is implemented, and tested in each of its parts.
    pub fn is_done(&self, rule: Rule) -> bool {
        let Sources { implemented, tested, .. } = self.sources;
        let Some(tests) = tested.get(&rule) else { return false };
        let mut parts = self.parts.iter().filter(|(other, _)| *other == rule);
        let has =
            |part| tests.iter().any(|test| test.file.contains(part) || test.item.contains(part));
        implemented.contains_key(&rule) && parts.all(|(_, part)| has(part))
    }

    /// Rules that are asked for here, and are not done.
    pub fn missing(&self) -> BTreeSet<Rule> {
        let here = |rule: &&Rule| !self.elsewhere.iter().any(|(other, _)| other == *rule);
        self.titles.keys().filter(here).filter(|&&rule| !self.is_done(rule)).copied().collect()
    }

    /// What names a rule that does not exist.
    pub fn unknown(&self) -> BTreeMap<Rule, BTreeSet<Place>> {
        let named = self.sources.named.iter();
        let unknown = named.filter(|(rule, _)| !self.titles.contains_key(rule));
        unknown.map(|(&rule, places)| (rule, places.clone())).collect()
    }
}

impl fmt::Display for RuleTable<'_> {
    /// The table in Markdown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| rule | title | implemented | tested |\n|---|---|---|---|")?;
        for (&rule, title) in self.titles {
            let notes = self.elsewhere.iter().chain(self.notes);
            let note = notes
                .filter(|(other, _)| *other == rule)
                .fold(String::new(), |all, (_, n)| format!("{all} *{n}*"));
            let implemented = cell(self.sources.implemented.get(&rule));
            let tested = cell(self.sources.tested.get(&rule));
            writeln!(f, "| R{rule} | {title}.{note} | {implemented} | {tested} |")?;
        }
        Ok(())
    }
}

/// The places, by file; a dash for none.
fn cell(places: Option<&BTreeSet<Place>>) -> String {
    let mut by_file: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Place { file, item } in places.into_iter().flatten() {
        by_file.entry(file).or_default().push(item);
    }
    if by_file.is_empty() {
        return "—".to_owned();
    }
    let mut text = String::new();
    for (file, items) in by_file {
        let gap = if text.is_empty() { "" } else { "<br>" };
        let _ = write!(text, "{gap}{file}");
        let items: Vec<_> = items.into_iter().filter(|item| !item.is_empty()).collect();
        if !items.is_empty() {
            let _ = write!(text, ": `{}`", items.join("`, `"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_done_when_it_is_implemented_and_tested() {
        let titles = (1..=4).map(|rule| (rule, format!("Title {rule}"))).collect();
        let mut sources = Sources::default();
        sources.add("a/src/b.rs", "// R1, R2, R9\nfn one() {}\n");
        sources.add("a/src/c.rs", "//! R1\n");
        sources.add("a/tests/c.rs", "#[test]\nfn r01_x() {}\n#[test]\nfn r03_y() {}\n");
        let (elsewhere, notes): (&[_], &[_]) = (&[(4, "Later.")], &[(1, "In part.")]);
        let parts = &[(1, "a/tests"), (1, "_x")];
        let table = RuleTable { titles: &titles, sources: &sources, elsewhere, notes, parts };
        assert_eq!(table.missing(), BTreeSet::from([2, 3]));
        let parts = &[(1, "_x"), (1, "_z")];
        assert_eq!(RuleTable { parts, ..table.clone() }.missing(), BTreeSet::from([1, 2, 3]));
        assert_eq!(table.unknown().keys().collect::<Vec<_>>(), [&9]);
        let expected = "\
| rule | title | implemented | tested |
|---|---|---|---|
| R1 | Title 1. *In part.* | a/src/b.rs: `one`<br>a/src/c.rs | a/tests/c.rs: `r01_x` |
| R2 | Title 2. | a/src/b.rs: `one` | — |
| R3 | Title 3. | — | a/tests/c.rs: `r03_y` |
| R4 | Title 4. *Later.* | — | — |
";
        assert_eq!(table.to_string(), expected);
    }
}
