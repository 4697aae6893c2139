//! The outline of a Rust source: what item each line lies in.
//!
//! It reads indentation, not syntax, and so relies on rustfmt, which CI demands.

/// Words that may stand before the word that says what an item is.
const MODIFIERS: [&str; 6] = ["pub", "pub(crate)", "pub(super)", "const", "async", "unsafe"];

/// The lines of a source.
pub(super) struct Outline<'a> {
    lines: Vec<&'a str>,
}

impl<'a> Outline<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { lines: text.lines().collect() }
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &'a str)> {
        self.lines.iter().copied().enumerate()
    }

    /// The items around a line, outermost first: types, traits, functions, modules, macros.
    pub(super) fn around(&self, line: usize) -> Vec<String> {
        let mut limit = indent(self.lines[line]);
        let mut items = Vec::new();
        for &text in self.lines[..line].iter().rev() {
            if text.trim().is_empty() || comment(text).is_some_and(|(at, _)| at == indent(text)) {
                continue;
            }
            let here = indent(text);
            if here < limit {
                // A line such as `) -> T {` ends the head of an item: its name stands above, at
                // the same depth.
                let is_end = text.trim_start().starts_with([')', '{', ']', '}', '>'])
                    || text.trim_start().starts_with("where");
                limit = if is_end { here + 1 } else { here };
                items.extend(item_name(text));
            }
        }
        items.reverse();
        items
    }

    /// The item, field or variant that a comment in front of it describes.
    pub(super) fn described(&self, line: usize) -> Option<String> {
        let depth = indent(self.lines[line]);
        let mut in_attribute = false;
        for &text in &self.lines[line..] {
            let code = text.trim();
            if code.starts_with("//") {
                continue;
            }
            if in_attribute || code.starts_with("#[") {
                in_attribute = !code.ends_with(']');
                continue;
            }
            return if indent(text) == depth { name_of(text) } else { None };
        }
        None
    }

    /// Whether the function on this line has the attribute `#[test]`, and not `#[ignore]`.
    pub(super) fn is_test(&self, line: usize) -> bool {
        let above = self.lines[..line].iter().rev();
        let attributes: Vec<_> =
            above.map(|text| text.trim()).take_while(|text| text.starts_with(['#', '/'])).collect();
        attributes.contains(&"#[test]")
            && !attributes.iter().any(|text| text.starts_with("#[ignore"))
    }
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Where the comment of a line starts, and its text.
pub(super) fn comment(line: &str) -> Option<(usize, &str)> {
    // Addresses such as in a string have their two slashes behind a colon.
    let at = line.match_indices("//").map(|(at, _)| at).find(|&at| !line[..at].ends_with(':'))?;
    Some((at, &line[at..]))
}

/// The name that a line gives to an item.
fn item_name(line: &str) -> Option<String> {
    let mut words = line.split_whitespace().skip_while(|word| MODIFIERS.contains(word));
    let kind = words.next()?;
    let rest = line.split_once(kind)?.1.trim_start();
    match kind {
        "fn" | "struct" | "enum" | "trait" | "mod" | "union" => identifier(rest),
        "macro_rules!" => identifier(rest).map(|name| name + "!"),
        _ if kind == "impl" || kind.starts_with("impl<") => {
            let head = line.trim_end().trim_end_matches('{').trim_end();
            // `impl Trait for Type`, else `impl<T> Type`.
            let named = match head.split_once(" for ") {
                Some((_, named)) => named,
                None => head.rsplit(' ').next()?,
            };
            identifier(named.rsplit("::").next()?)
        }
        _ => None,
    }
}

/// The name on a line: of an item, a constant, a field or a variant.
fn name_of(line: &str) -> Option<String> {
    if let Some(name) = item_name(line) {
        return Some(name);
    }
    let mut rest = line.trim();
    for word in ["pub(crate) ", "pub(super) ", "pub ", "const ", "static ", "type "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    identifier(rest)
}

fn identifier(text: &str) -> Option<String> {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    (end > 0).then(|| text[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
//! R1 of the file.

/// R2 of a type.
#[derive(
    Debug,
)]
pub struct Type<'a> {
    /// R3 of a field.
    pub(crate) field: u8,
}

impl<'a> fmt::Display for crate::Type<'a> {
    /// R4 of a function.
    fn short(&self) {
        // R5
        let x = 0; // R6
    }

    pub const fn long(
        &self,
    ) -> bool {
        match self {
            // R7
            Self => {
                // R8
            }
        }
    }
}

#[cfg(test)]
mod tests {
    /// Text.
    #[test]
    fn r09_one() {
        // R9
    }

    #[test]
    #[ignore]
    fn r10_two() {}
}
";

    fn line_of(text: &str) -> usize {
        SOURCE.lines().position(|line| line.contains(text)).unwrap()
    }

    #[test]
    fn lines_know_what_is_around_them() {
        let outline = Outline::new(SOURCE);
        let around = |text| outline.around(line_of(text)).join("::");
        assert_eq!(around("R1 of"), "");
        assert_eq!(around("R3 of"), "Type");
        assert_eq!(around("R4 of"), "Type");
        assert_eq!(around("// R5"), "Type::short");
        assert_eq!(around("// R6"), "Type::short");
        assert_eq!(around("// R7"), "Type::long");
        assert_eq!(around("// R8"), "Type::long");
        assert_eq!(around("// R9"), "tests::r09_one");
    }

    #[test]
    fn comments_know_what_they_describe() {
        let outline = Outline::new(SOURCE);
        let described = |text| outline.described(line_of(text));
        assert_eq!(described("R2 of").as_deref(), Some("Type"));
        assert_eq!(described("R3 of").as_deref(), Some("field"));
        assert_eq!(described("R4 of").as_deref(), Some("short"));
    }

    #[test]
    fn tests_have_the_attribute() {
        let outline = Outline::new(SOURCE);
        assert!(outline.is_test(line_of("fn r09")));
        assert!(!outline.is_test(line_of("fn r10")));
        assert!(!outline.is_test(line_of("fn short")));
    }

    #[test]
    fn an_address_is_no_comment() {
        assert_eq!(comment("let x = \"http://x\"; // R1"), Some((20, "// R1")));
        assert_eq!(comment("let x = \"http://x\";"), None);
    }
}
