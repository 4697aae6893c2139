//! The bodies of the fuzz targets, over the stored corpus and over pseudo-random inputs.
//!
//! `URXE_FUZZ_INPUTS=1000000` runs so many of those instead of 5000 for each target. `fuzz/` runs
//! the same bodies under libFuzzer.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::{Path, PathBuf};
use std::{env, fs, panic};

use testkit::fuzz::{TARGETS, Target};
use testkit::sim::dice::Dice;

/// The inputs stored for a target, with their names.
fn corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    let folder = root.join("fuzz/corpus").join(target.name);
    let entries = fs::read_dir(&folder);
    let entries = entries.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Runs the body, and says which input it was when it fails.
fn run(target: &Target, name: &str, input: &[u8]) {
    if let Err(cause) = panic::catch_unwind(|| (target.run)(input)) {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.input", target.name));
        fs::write(&kept, input).unwrap();
        eprintln!("{}: {name} fails; the input is kept in {}", target.name, kept.display());
        panic::resume_unwind(cause);
    }
}

#[test]
fn the_stored_inputs_go_well() {
    for target in &TARGETS {
        let corpus = corpus(target);
        assert!(corpus.len() >= 10, "{}: only {} inputs are stored", target.name, corpus.len());
        for (path, input) in corpus {
            run(target, &path.display().to_string(), &input);
        }
    }
}

#[test]
fn random_inputs_go_well() {
    let inputs = env::var("URXE_FUZZ_INPUTS").map_or(5000, |text| text.parse().unwrap());
    for target in &TARGETS {
        let corpus = corpus(target);
        for seed in 0..inputs {
            let mut dice = Dice::new(seed);
            let mut input = Vec::new();
            // Half of them are stored inputs with changes.
            if dice.once_in(2) {
                input.clone_from(&corpus[dice.below(corpus.len() as u64) as usize].1);
                for _ in 0..dice.range(1, 8) {
                    let at = dice.below(input.len() as u64) as usize;
                    if let Some(byte) = input.get_mut(at) {
                        *byte = dice.word() as u8;
                    }
                }
            }
            let more = dice.below(400) as usize;
            dice.fill(&mut input, more);
            run(target, &format!("pseudo-random input {seed}"), &input);
        }
    }
}
