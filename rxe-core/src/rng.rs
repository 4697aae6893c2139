//! Randomness from the seed that the caller gave: one stream that shows on the wire, one that must
//! not be guessed from it.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::config::Seed;

/// Values that everyone may see: first QPN, first PSN.
#[derive(Debug)]
pub(crate) struct PublicRng(ChaCha8Rng);

/// Values that guard something: variants of memory keys.
#[derive(Debug)]
pub(crate) struct SecretRng(ChaCha8Rng);

fn stream(seed: Seed, number: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::from_seed(seed.0);
    rng.set_stream(number);
    rng
}

impl PublicRng {
    pub(crate) fn new(seed: Seed, shard: u8) -> Self {
        Self(stream(seed, 2 + u64::from(shard)))
    }

    pub(crate) fn u32(&mut self) -> u32 {
        self.0.next_u32()
    }
}

impl SecretRng {
    pub(crate) fn new(seed: Seed) -> Self {
        Self(stream(seed, 1))
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.0.next_u32() as u8
    }
}
