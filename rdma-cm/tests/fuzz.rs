//! The body of the fuzz target `mads` over its stored corpus, and over pseudo-random inputs.
//!
//! `URXE_CM_INPUTS=1000000` runs so many of those.

#![allow(clippy::unwrap_used)]

mod mads;

use std::path::{Path, PathBuf};

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// The inputs that are stored.
fn corpus() -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/mads");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

fn run(name: &str, input: &[u8]) {
    if let Err(panic) = std::panic::catch_unwind(|| mads::run(input)) {
        eprintln!("{name} fails");
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn the_stored_inputs_go_well() {
    let corpus = corpus();
    assert!(corpus.len() >= 10, "only {} inputs are stored", corpus.len());
    for (path, input) in corpus {
        run(&path.display().to_string(), &input);
    }
}

#[test]
fn random_inputs_go_well() {
    let count = std::env::var("URXE_CM_INPUTS").map_or(3000, |text| text.parse().unwrap());
    let corpus = corpus();
    for seed in 0..count {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut more = vec![0; (rng.next_u32() % 1500) as usize];
        rng.fill_bytes(&mut more);
        let mut input = Vec::new();
        // Half of them begin as a stored one, with changes.
        if rng.next_u32() % 2 == 0 {
            input.clone_from(&corpus[rng.next_u32() as usize % corpus.len()].1);
            for _ in 0..8 {
                let at = rng.next_u32() as usize % input.len().max(1);
                if let Some(byte) = input.get_mut(at) {
                    *byte = rng.next_u32() as u8;
                }
            }
        }
        input.extend(more);
        run(&format!("pseudo-random input {seed}"), &input);
    }
}
