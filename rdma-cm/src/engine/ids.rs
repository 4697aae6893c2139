//! Communication ids: who has which.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use rxe_core::Seed;
use rxe_wire::mad::TransactionId;
use rxe_wire::mad::cm::CommId;

/// Bits of a communication id below the slot.
const SERIAL_BITS: u32 = 24;
const SERIAL_MASK: u32 = (1 << SERIAL_BITS) - 1;

/// Gives out communication ids: the slot on top, then a serial number from a random start, so that
/// a process that takes over the slot of another does not use the ids that its peers remember.
#[derive(Debug)]
pub(super) struct CommIds {
    slot: u8,
    next: u32,
    /// The upper half of transaction ids.
    agent: u32,
}

impl CommIds {
    pub(super) fn new(seed: Seed, slot: u8) -> Self {
        let mut rng = ChaCha8Rng::from_seed(seed.0);
        Self { slot, next: rng.next_u32() & SERIAL_MASK, agent: rng.next_u32() }
    }

    /// The next id for which `is_used` is false; `None` when all are used.
    pub(super) fn next(&mut self, is_used: impl Fn(CommId) -> bool) -> Option<CommId> {
        for _ in 0..=SERIAL_MASK {
            let id = CommId(u32::from(self.slot) << SERIAL_BITS | self.next);
            self.next = (self.next + 1) & SERIAL_MASK;
            // 0 means "no id" in a REJ.
            if id.0 != 0 && !is_used(id) {
                return Some(id);
            }
        }
        None
    }

    /// The transaction id of exchanges that the connection `id` begins.
    pub(super) const fn transaction(&self, id: CommId) -> TransactionId {
        TransactionId((self.agent as u64) << 32 | id.0 as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_the_slot_on_top_start_anywhere_and_go_round() {
        let starts: Vec<CommId> = (0..8)
            .map(|seed| CommIds::new(Seed::for_test(seed), 9).next(|_| false).unwrap())
            .collect();
        assert!(starts.iter().all(|id| id.0 >> 24 == 9));
        let mut distinct = starts.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), starts.len());

        let mut ids = CommIds::new(Seed::for_test(1), 9);
        ids.next = SERIAL_MASK;
        assert_eq!(ids.next(|_| false), Some(CommId(0x09ff_ffff)));
        assert_eq!(ids.next(|id| id.0 < 0x0900_0005), Some(CommId(0x0900_0005)));
    }

    #[test]
    fn no_id_is_zero() {
        let mut ids = CommIds::new(Seed::for_test(1), 0);
        ids.next = 0;
        assert_eq!(ids.next(|_| false), Some(CommId(1)));
    }
}
