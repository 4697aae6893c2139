//! What the sources say of rules: comments that name them, and tests named after them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::outline::{Outline, comment};
use super::{Rule, RulesError};

/// Folders whose crates are no product: what they say of a rule implements nothing.
const TEST_CRATES: [&str; 3] = ["testkit", "integration-tests", "fuzz"];
/// Folders within a crate that are no part of the product.
const TEST_FOLDERS: [&str; 3] = ["tests", "benches", "examples"];

/// Where something stands: a file, and the item in it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The file, from the root of the repository on, with `/` between folders.
    pub file: String,
    /// The item, with what it lies in, such as `Type::function`; empty for the file as a whole.
    pub item: String,
}

/// What the sources of the repository say of rules.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Sources {
    /// Where comments of the product name a rule.
    pub implemented: BTreeMap<Rule, BTreeSet<Place>>,
    /// The tests whose names begin with the number of a rule, such as `r22_`.
    pub tested: BTreeMap<Rule, BTreeSet<Place>>,
    /// All that names a rule in any way, tests' comments included.
    pub named: BTreeMap<Rule, BTreeSet<Place>>,
}

impl Sources {
    /// Reads all Rust sources below `root`.
    ///
    /// # Errors
    ///
    /// [`RulesError::Io`] when one cannot be read.
    pub fn read(root: &Path) -> Result<Self, RulesError> {
        let mut files = Vec::new();
        collect(root, &mut files)?;
        let mut sources = Self::default();
        for path in files {
            let text = read(&path, |path| fs::read_to_string(path))?;
            let below = path.strip_prefix(root).unwrap_or(&path);
            let parts: Vec<_> = below.iter().map(|part| part.to_string_lossy()).collect();
            sources.add(&parts.join("/"), &text);
        }
        Ok(sources)
    }

    /// Adds what one file says; `file` is its path from the root on.
    pub fn add(&mut self, file: &str, text: &str) {
        let outline = Outline::new(text);
        for (line, code) in outline.lines() {
            if let Some(name) = function_name(code)
                && outline.is_test(line)
            {
                let place = Place { file: file.to_owned(), item: name.to_owned() };
                for rule in rules_of_test(name) {
                    self.tested.entry(rule).or_default().insert(place.clone());
                    self.named.entry(rule).or_default().insert(place.clone());
                }
            }
            let rules = comment(code).map(|(_, text)| rules_in(text)).unwrap_or_default();
            if rules.is_empty() {
                continue;
            }
            let around = outline.around(line);
            let is_product = !is_test_file(file) && !around.iter().any(|item| item == "tests");
            let place = Place { file: file.to_owned(), item: item(&outline, line, around) };
            for rule in rules {
                if is_product {
                    self.implemented.entry(rule).or_default().insert(place.clone());
                }
                self.named.entry(rule).or_default().insert(place.clone());
            }
        }
    }
}

/// The name of the item that the comment on a line stands in, or before.
fn item(outline: &Outline<'_>, line: usize, mut around: Vec<String>) -> String {
    let is_first = |name: &String| name.starts_with(|c: char| c.is_lowercase() || c == '_');
    let text = outline.lines().nth(line).map_or("", |(_, text)| text).trim_start();
    let in_function = around.last().is_some_and(is_first);
    if text.starts_with("//!") {
        around.clear();
    } else if text.starts_with("///") || (text.starts_with("//") && !in_function) {
        around.extend(outline.described(line));
    }
    around.join("::")
}

fn function_name(line: &str) -> Option<&str> {
    let rest = line.trim_start().trim_start_matches("pub ").strip_prefix("fn ")?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// The rules that a test is named after: 13 and 14 for `r13_r14_refused`.
fn rules_of_test(name: &str) -> Vec<Rule> {
    let number = |part: &str| part.strip_prefix('r').filter(|n| n.len() == 2)?.parse().ok();
    name.split('_').map_while(number).collect()
}

/// The rules that a text names: 5 and 22 for "R5, R22".
fn rules_in(text: &str) -> Vec<Rule> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter_map(|word| word.strip_prefix('R').and_then(|digits| digits.parse().ok())).collect()
}

fn is_test_file(file: &str) -> bool {
    let mut folders: Vec<_> = file.split('/').collect();
    let name = folders.pop();
    name == Some("tests.rs")
        || folders.first().is_some_and(|folder| TEST_CRATES.contains(folder))
        || folders.iter().any(|folder| TEST_FOLDERS.contains(folder))
}

/// This scanner itself, whose own tests have sources as examples.
const SCANNER: &str = "testkit/src/rules";

/// All `.rs` files below a folder, but not those of builds, nor what is hidden.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), RulesError> {
    for entry in read(folder, |path| fs::read_dir(path))? {
        let path = read(folder, |_| entry)?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_default();
        if path.is_dir() {
            if name == "target" || name.starts_with('.') || path.ends_with(SCANNER) {
                continue;
            }
            collect(&path, files)?;
        } else if name.ends_with(".rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn read<T>(path: &Path, how: impl FnOnce(&Path) -> std::io::Result<T>) -> Result<T, RulesError> {
    how(path).map_err(|error| RulesError::Io { path: path.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(file: &str, item: &str) -> BTreeSet<Place> {
        BTreeSet::from([Place { file: file.into(), item: item.into() }])
    }

    #[test]
    fn comments_of_the_product_implement_and_tests_test() {
        let product = "/// R1\nfn one() {\n    // R2, R3: why\n}\n\nmod tests {\n    // R4\n    \
                       #[test]\n    fn r05_r06_it() {}\n}\n";
        let mut sources = Sources::default();
        sources.add("a/src/b.rs", product);
        sources.add("a/tests/c.rs", "// R7\n\n#[test]\nfn r08() {}\n\nfn r09_no_test() {}\n");
        let (b, c) = ("a/src/b.rs", "a/tests/c.rs");
        let implemented = [(1, place(b, "one")), (2, place(b, "one")), (3, place(b, "one"))];
        assert_eq!(sources.implemented, BTreeMap::from(implemented));
        let it = place(b, "r05_r06_it");
        assert_eq!(
            sources.tested,
            BTreeMap::from([(5, it.clone()), (6, it), (8, place(c, "r08"))])
        );
        assert_eq!(sources.named.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn only_numbers_behind_an_r_are_rules() {
        assert_eq!(rules_in("// R5, (R22); R7: XR8 R9x Rnn R_1 R300 r4"), [5, 22, 7]);
        assert_eq!(rules_of_test("r13_r14_x_r15"), [13, 14]);
        assert_eq!(rules_of_test("r1_x"), [0; 0]);
    }
}
