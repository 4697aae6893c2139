//! The bodies of the fuzz targets: what is done with any bytes, and must go well.
//!
//! `fuzz/` runs them under libFuzzer, `tests/fuzz.rs` over the stored corpus and over
//! pseudo-random inputs. A body panics when a promise is broken: the engine's own contract (nothing
//! panics, see `rxe_core`), and what the bodies check beside it: no byte of memory changes that was
//! not granted, no byte is sent to a peer that was not granted, each work request completes exactly
//! once and in order.

mod arena;
mod keys;
mod ledger;
mod lone;
mod packets;
mod parser;
mod reads;
mod two_engines;

/// A fuzz target: its name, which is that of its folder in `fuzz/corpus`, and its body.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name.
    pub name: &'static str,
    /// Does what the input says.
    ///
    /// # Panics
    ///
    /// When a promise is broken.
    pub run: fn(&[u8]),
}

/// All fuzz targets.
pub const TARGETS: [Target; 4] = [
    Target { name: "parser", run: parser::run },
    Target { name: "responder", run: lone::run_responder },
    Target { name: "completer", run: lone::run_completer },
    Target { name: "two_engines", run: two_engines::run },
];

/// The body of the target of this name.
///
/// # Panics
///
/// When there is no such target, and when the body does.
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.unwrap_or_else(|| panic!("there is no fuzz target {name}")).run)(input);
}

/// The inputs stored for a target.
#[cfg(test)]
fn corpus(target: &str) -> impl Iterator<Item = Vec<u8>> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let mut paths: Vec<_> = std::fs::read_dir(root.join(target))
        .expect("the folder is there")
        .map(|entry| entry.expect("it can be listed").path())
        .collect();
    paths.sort();
    paths.into_iter().map(|path| std::fs::read(path).expect("it can be read"))
}
