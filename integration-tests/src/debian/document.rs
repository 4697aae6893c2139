//! A document of `docs/` that tells what tests have seen, and the tests that keep it true.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::{env, fmt};

/// Set to have documents written anew.
pub const BLESS_VARIABLE: &str = "URXE_BLESS";

/// A document whose sections are made by tests: each has a title of the second level.
#[derive(Clone, Copy, Debug)]
pub struct Document {
    /// Its name in `docs/`.
    pub name: &'static str,
    /// What stands before the sections.
    pub head: &'static str,
    /// The titles of the sections, in order.
    pub sections: &'static [&'static str],
    /// The command that writes it anew.
    pub command: &'static str,
}

impl Document {
    /// Checks that a section says this, or, when documents are to be written anew, makes it so.
    ///
    /// # Panics
    ///
    /// When it says something else, or cannot be read or written.
    pub fn check(&self, title: &str, text: impl fmt::Display) {
        let text = format!("## {title}\n\n{text}\n");
        if env::var_os(BLESS_VARIABLE).is_some() {
            self.rewrite(title, &text).unwrap_or_else(|error| self.fail(&error));
        }
        let found = std::fs::read_to_string(self.path()).unwrap_or_else(|error| self.fail(&error));
        let found = self.split(&found).into_iter().find(|(name, _)| *name == title);
        let found = found.map(|(_, text)| text).unwrap_or_default();
        assert!(
            found.trim_end() == text.trim_end(),
            "docs/{}, section {title}, is not what was seen:\n{text}\nIf that is as it should be: {}",
            self.name,
            self.command
        );
    }

    /// Checks the head, and that there are these sections and no other, in this order.
    ///
    /// # Panics
    ///
    /// When it is not so.
    pub fn check_outline(&self) {
        if env::var_os(BLESS_VARIABLE).is_some() {
            // The sections are being written at this time.
            return self.rewrite("", "").unwrap_or_else(|error| self.fail(&error));
        }
        let found = std::fs::read_to_string(self.path()).unwrap_or_else(|error| self.fail(&error));
        assert!(found.starts_with(self.head), "docs/{}: its head; {}", self.name, self.command);
        let titles: Vec<_> = self.split(&found).into_iter().map(|(title, _)| title).collect();
        assert_eq!(titles, self.sections, "docs/{}: its sections; {}", self.name, self.command);
    }

    fn path(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(self.name)
    }

    fn fail(&self, error: &io::Error) -> ! {
        panic!("docs/{}: {error}; {}", self.name, self.command)
    }

    /// The sections of a text, by title.
    fn split<'t>(&self, text: &'t str) -> Vec<(&'t str, String)> {
        let sections = text.split("\n## ").skip(1);
        let split = |section: &'t str| {
            let title = section.split('\n').next().unwrap_or_default();
            (title, format!("## {section}"))
        };
        sections.map(split).collect()
    }

    /// Replaces a section, and puts all in order. Tests do so at the same time, in several
    /// processes.
    fn rewrite(&self, title: &str, text: &str) -> io::Result<()> {
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.path())?;
        file.lock()?;
        let mut old = String::new();
        file.read_to_string(&mut old)?;
        let old = self.split(&old);
        let mut new = self.head.to_owned();
        for &section in self.sections {
            let kept = old.iter().find(|(name, _)| *name == section).map(|(_, text)| &**text);
            let kept = if section == title { Some(text) } else { kept };
            if let Some(kept) = kept {
                new.push('\n');
                new.push_str(kept.trim_end());
                new.push('\n');
            }
        }
        file.rewind()?;
        file.set_len(0)?;
        file.write_all(new.as_bytes())
    }
}
