//! The library exports the symbols of the real ones, each with its version, and no others.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod common;

use std::collections::BTreeSet;
use std::process::Command;

use common::{library, source};

/// What later releases call the node of the private symbols.
const LATER: [&str; 2] = ["IBVERBS_PRIVATE_59", "IBVERBS_PRIVATE_64"];

/// The symbols of tests/data/exports.txt, as readelf prints them: `@` before a version that is not
/// the default one of its name.
fn wanted() -> BTreeSet<String> {
    let text = std::fs::read_to_string(source("tests/data/exports.txt")).unwrap();
    let mut wanted = BTreeSet::new();
    for line in text.lines() {
        let Some((node, symbols)) = line.split_once(": ") else { continue };
        let Some((node, _)) = node.split_once(" (") else { continue };
        for symbol in symbols.split(", ") {
            // "name", "name (old,@)", "name <OBJECT 1B>"
            let (name, old) = match symbol.split_once(" (old") {
                Some((name, _)) => (name, true),
                None => (symbol.split(' ').next().unwrap(), false),
            };
            wanted.insert(format!("{name}{}{node}", if old { "@" } else { "@@" }));
            if node == "IBVERBS_PRIVATE_34" {
                for later in LATER {
                    let generation = later.trim_start_matches("IBVERBS_PRIVATE_");
                    let name = name.replace("driver_34", &format!("driver_{generation}"));
                    wanted.insert(format!("{name}@{later}"));
                }
            }
        }
    }
    wanted
}

/// The symbols and version nodes that the library defines.
fn exported() -> BTreeSet<String> {
    let readelf = Command::new("readelf").args(["-W", "--dyn-syms"]).arg(library()).output();
    let output = readelf.expect("binutils are installed, as they are where there is a linker");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut exported = BTreeSet::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Num: Value Size Type Bind Vis Ndx Name
        let &[_, _, _, _, "GLOBAL", _, index, name] = fields.as_slice() else { continue };
        // The nodes themselves are symbols too, of no section.
        if !["UND", "ABS"].contains(&index) {
            exported.insert(name.to_owned());
        }
    }
    exported
}

#[test]
fn all_symbols_and_no_others() {
    let (wanted, exported) = (wanted(), exported());
    assert_eq!(wanted.len(), 180 + 68 + 2 * 71);
    let missing: Vec<_> = wanted.difference(&exported).collect();
    let extra: Vec<_> = exported.difference(&wanted).collect();
    assert!(missing.is_empty() && extra.is_empty(), "missing {missing:#?}, not wanted {extra:#?}");
}
