//! What the responder keeps so that it can answer a READ again.

use std::collections::VecDeque;

use rxe_wire::hdr::Reth;
use rxe_wire::{Msn, Psn, RKey};

use super::responder::packets_of;

/// A READ that was accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReadRecord {
    pub(crate) psn: Psn,
    pub(crate) msn: Msn,
    pub(crate) va: u64,
    pub(crate) rkey: RKey,
    pub(crate) len: u32,
}

/// The last READs, as many as the peer may have outstanding.
#[derive(Debug, Default)]
pub(crate) struct ReplayRing {
    records: VecDeque<ReadRecord>,
}

impl ReplayRing {
    /// The most that are ever kept (`max_dest_rd_atomic` has 8 bits).
    const MAX: usize = 255;

    pub(crate) fn push(&mut self, record: ReadRecord) {
        if self.records.len() >= Self::MAX {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }

    /// R27: forgets all but the last `max`, which the peer may still ask for again.
    pub(crate) fn keep_last(&mut self, max: usize) {
        while self.records.len() > max {
            self.records.pop_front();
        }
    }

    /// R24: the READ of which a duplicate asks for all or a part, under the same key.
    pub(crate) fn find(&self, psn: Psn, reth: Reth, mtu: usize) -> Option<ReadRecord> {
        self.records.iter().rev().copied().find(|record| {
            // None when it lies before the record: PSNs are the peer's to choose.
            let Ok(skipped) = u32::try_from(psn.distance_from(record.psn)) else { return false };
            // In u64, where nothing wraps: at most 2^23 packets of 4096 bytes.
            let offset = u64::from(skipped) * mtu as u64;
            skipped < packets_of(record.len, mtu)
                && reth.rkey == record.rkey
                && reth.va == record.va.wrapping_add(offset)
                && offset + u64::from(reth.len) <= u64::from(record.len)
        })
    }
}
