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
            let skipped = psn.distance_from(record.psn);
            let within = skipped >= 0 && (skipped as u32) < packets_of(record.len, mtu);
            // In u64, where nothing wraps: at most 2^23 packets of 4096 bytes.
            let offset = skipped as u64 * mtu as u64;
            within
                && reth.rkey == record.rkey
                && reth.va == record.va.wrapping_add(offset)
                && offset + u64::from(reth.len) <= u64::from(record.len)
        })
    }
}
