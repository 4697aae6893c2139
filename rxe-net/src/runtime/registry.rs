//! The slots of this process: which runner a destination QPN belongs to.
//!
//! Slots are the top byte of QPNs, 1 to 254, each for one shard. A packet that the kernel gave to
//! the wrong socket of the process is handed over here. Processes do not share an address yet, so
//! each has all the slots for itself.

use std::collections::HashMap;
use std::sync::{LazyLock, Weak};

use parking_lot::{Mutex, RwLock};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use rxe_core::path::Path;

use super::runner::Runner;

/// All 254 slots of this process are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("all 254 slots of this process are in use: close a device, or use fewer shards")]
pub struct NoSlotError;

static RUNNERS: LazyLock<RwLock<HashMap<u8, Weak<Runner>>>> = LazyLock::new(RwLock::default);
static RESERVED: LazyLock<Mutex<Vec<bool>>> = LazyLock::new(|| Mutex::new(vec![false; 256]));

/// A slot, taken until it is dropped.
#[derive(Debug)]
pub(super) struct SlotGuard(u8);

impl SlotGuard {
    /// Takes a free slot; begins at a random place, chosen by `seed`.
    pub(super) fn take(seed: [u8; 32]) -> Result<Self, NoSlotError> {
        let mut reserved = RESERVED.lock();
        let first = ChaCha8Rng::from_seed(seed).next_u32() % 254;
        let slot = (0..254)
            .map(|i| ((first + i) % 254 + 1) as u8)
            .find(|&slot| !reserved[usize::from(slot)])
            .ok_or(NoSlotError)?;
        reserved[usize::from(slot)] = true;
        Ok(Self(slot))
    }

    pub(super) fn slot(&self) -> u8 {
        self.0
    }

    /// Says who runs the slot.
    pub(super) fn publish(&self, runner: Weak<Runner>) {
        RUNNERS.write().insert(self.0, runner);
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        RUNNERS.write().remove(&self.0);
        RESERVED.lock()[usize::from(self.0)] = false;
    }
}

/// Hands a packet to the runner of another slot; false when this process has none.
pub(super) fn forward(slot: u8, path: &Path, bytes: &[u8]) -> bool {
    let runner = RUNNERS.read().get(&slot).and_then(Weak::upgrade);
    match runner {
        Some(runner) => {
            runner.hand_over(path, bytes);
            true
        }
        None => false,
    }
}
