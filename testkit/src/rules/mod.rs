//! The rules of `docs/rules.md`, and where the sources implement and test them.
//!
//! [`parse_rules`] reads the rules, [`Sources`] finds what names them, and [`RuleTable`] puts both
//! together: as `docs/rule-table.md`, and as the list of what is still missing.

mod outline;
mod sources;
mod table;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

pub use sources::{Place, Sources};
pub use table::RuleTable;

/// The number of a rule: 22 for R22.
pub type Rule = u8;

/// Why the rules or the sources cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// A file or folder cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A line of the rules looks like a rule, and is none.
    #[error("line {line} of the rules should be like `- **R7: A title.** …`: {text}")]
    Rule {
        /// The line, counted from 1.
        line: usize,
        /// What stands there.
        text: String,
    },
    /// A number is given to two rules.
    #[error("there are two rules R{0}")]
    Twice(Rule),
}

/// The titles of the rules in the text of `docs/rules.md`, by number.
///
/// # Errors
///
/// [`RulesError`] when a rule has no title, or two have one number.
pub fn parse_rules(text: &str) -> Result<BTreeMap<Rule, String>, RulesError> {
    let mut rules = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        let Some(rest) = line.strip_prefix("- **R") else { continue };
        let parsed = rest.split_once(": ").and_then(|(number, rest)| {
            let (title, _) = rest.split_once(".**")?;
            Some((number.parse().ok()?, title))
        });
        let (number, title) =
            parsed.ok_or_else(|| RulesError::Rule { line: index + 1, text: line.to_owned() })?;
        if rules.insert(number, title.to_owned()).is_some() {
            return Err(RulesError::Twice(number));
        }
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_a_number_and_a_title() {
        let text =
            "# Rules\n\n- **R1: One: a title.** And more.\n  R9\n- **R22: Two.** Text.\n- R3\n";
        let rules = parse_rules(text).unwrap();
        assert_eq!(rules, BTreeMap::from([(1, "One: a title".into()), (22, "Two".into())]));
        let error = parse_rules("\n- **R1 without a title**\n").unwrap_err();
        assert!(matches!(error, RulesError::Rule { line: 2, .. }), "{error}");
        let error = parse_rules("- **R1: A.**\n- **R1: B.**\n").unwrap_err();
        assert!(matches!(error, RulesError::Twice(1)), "{error}");
    }
}
