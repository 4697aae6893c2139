//! What the responder keeps so that it can answer READs and atomics again.

use std::collections::VecDeque;

use rxe_wire::hdr::Reth;
use rxe_wire::{Msn, Psn, RKey};

use super::responder::packets_of;
use crate::pd::PdId;

/// A READ that was accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReadRecord {
    pub(crate) psn: Psn,
    pub(crate) msn: Msn,
    /// The domain that the key must be of.
    pub(crate) pd: PdId,
    pub(crate) va: u64,
    pub(crate) rkey: RKey,
    pub(crate) len: u32,
}

/// An atomic that was executed (R23).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AtomicRecord {
    pub(crate) psn: Psn,
    pub(crate) msn: Msn,
    /// What the memory held before.
    pub(crate) original: u64,
}

/// A request whose answer may be asked for again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Record {
    Read(ReadRecord),
    Atomic(AtomicRecord),
    /// An ATOMIC WRITE or a FLUSH, which is answered by nothing but its being done.
    Done {
        psn: Psn,
        msn: Msn,
    },
}

/// The last READs and atomics, as many as the peer may have outstanding.
#[derive(Debug, Default)]
pub(crate) struct ReplayRing {
    records: VecDeque<Record>,
}

impl ReplayRing {
    /// The most that are ever kept (`max_dest_rd_atomic` has 8 bits).
    const MAX: usize = 255;

    pub(crate) fn push(&mut self, record: Record) {
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

    /// R22: PSN and MSN before the READs and atomics that the requests up to `psn` end with; `None`
    /// where `psn` is that of another request.
    pub(crate) fn before_last(&self, psn: Psn, mtu: usize) -> Option<(Psn, Msn)> {
        let mut before = None;
        let mut last = psn;
        for record in self.records.iter().rev() {
            let (first, count, msn) = match *record {
                Record::Read(ReadRecord { psn, msn, len, .. }) => (psn, packets_of(len, mtu), msn),
                Record::Atomic(AtomicRecord { psn, msn, .. }) | Record::Done { psn, msn } => {
                    (psn, 1, msn)
                }
            };
            if first.plus(count) != last.plus(1) {
                break;
            }
            last = first.minus(1);
            before = Some((last, Msn::new(msn.get().wrapping_sub(1))));
        }
        before
    }

    /// R24: the READ of which a duplicate asks for all or a part, under the same key.
    pub(crate) fn find_read(&self, psn: Psn, reth: Reth, mtu: usize) -> Option<ReadRecord> {
        self.records.iter().rev().find_map(|record| {
            let Record::Read(record) = *record else { return None };
            // None when it lies before the record: PSNs are the peer's to choose.
            let skipped = u32::try_from(psn.distance_from(record.psn)).ok()?;
            // In u64, where nothing wraps: at most 2^23 packets of 4096 bytes.
            let offset = u64::from(skipped) * mtu as u64;
            let is_part = skipped < packets_of(record.len, mtu)
                && reth.rkey == record.rkey
                && reth.va == record.va.wrapping_add(offset)
                && offset + u64::from(reth.len) <= u64::from(record.len);
            is_part.then_some(record)
        })
    }

    /// R23: the atomic that a duplicate repeats.
    pub(crate) fn find_atomic(&self, psn: Psn) -> Option<AtomicRecord> {
        self.records.iter().rev().find_map(|record| match *record {
            Record::Atomic(record) if record.psn == psn => Some(record),
            Record::Atomic(_) | Record::Read(_) | Record::Done { .. } => None,
        })
    }

    /// The MSN of the ATOMIC WRITE or FLUSH that a duplicate repeats.
    pub(crate) fn find_done(&self, psn: Psn) -> Option<Msn> {
        self.records.iter().rev().find_map(|record| match *record {
            Record::Done { psn: done, msn } if done == psn => Some(msn),
            Record::Atomic(_) | Record::Read(_) | Record::Done { .. } => None,
        })
    }
}
