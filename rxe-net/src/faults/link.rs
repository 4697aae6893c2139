//! A link with faults in front of another link.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rxe_core::path::Unreachable;
use rxe_core::time::Instant;

use super::{FaultStats, Faults};
use crate::batch::TxBatch;
use crate::link::{Link, LinkCounters, Sink, TransmitReport};

/// Any link, with [`Faults`] done to what it sends.
///
/// A packet that is dropped or held back counts as sent: like on a real network, the sender
/// does not learn of it.
#[derive(Debug)]
pub struct FaultyLink<L> {
    link: L,
    faults: Faults,
    /// Holds what is released until the link has sent it.
    released: TxBatch,
    /// Packets released for which the host had no room.
    lost: u64,
}

impl<L: Link> FaultyLink<L> {
    /// Puts faults in front of a link.
    pub fn new(link: L, faults: Faults) -> Self {
        Self { link, faults, released: TxBatch::new(), lost: 0 }
    }

    /// What the faults have done.
    pub const fn fault_stats(&self) -> FaultStats {
        self.faults.stats()
    }
}

impl<L: Link> Link for FaultyLink<L> {
    fn transmit(&mut self, now: Instant, batch: &mut TxBatch) -> TransmitReport {
        let given = batch.len();
        self.faults.apply(now, batch);
        let report = self.link.transmit(now, batch);
        // What leaves is more or less than what was given; what the caller hears of is the
        // packets given, and that the host lost some of those that were to leave.
        let lost = report.lost.min(given);
        TransmitReport { sent: given.saturating_sub(lost + batch.len()), lost }
    }

    /// Past the faults: they have been done to what is left.
    fn transmit_rest(&mut self, now: Instant, batch: &mut TxBatch) -> TransmitReport {
        self.link.transmit_rest(now, batch)
    }

    fn receive(&mut self, now: Instant, sink: &mut Sink<'_>) -> io::Result<usize> {
        self.link.receive(now, sink)
    }

    fn poll_fd(&self) -> Option<Arc<OwnedFd>> {
        self.link.poll_fd()
    }

    fn hears_all(&self) -> bool {
        self.link.hears_all()
    }

    fn poll_unreachable(&mut self) -> Option<Unreachable> {
        self.link.poll_unreachable()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        [self.faults.poll_timeout(), self.link.poll_timeout()].into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        // Bounded: each round empties the batch, and nothing new comes to be due at `now`.
        while self.faults.release(now, &mut self.released) {
            // Losses are counted by the link; there is no caller to tell.
            let _ = self.link.transmit(now, &mut self.released);
            // What comes late is lost where there is no room for it (R18).
            self.lost += self.released.len() as u64;
            self.released.clear();
        }
        self.link.handle_timeout(now);
    }

    fn close(self: Box<Self>, now: Instant, sink: &mut Sink<'_>) {
        Box::new(self.link).close(now, sink);
    }

    fn counters(&self) -> LinkCounters {
        let mut counters = self.link.counters();
        counters.send_errors += self.lost;
        counters.faults += self.faults.stats().total();
        counters
    }
}
