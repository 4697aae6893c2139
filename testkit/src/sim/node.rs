//! A shard of a host with its link: it takes turns as its thread would.

use std::sync::Arc;

use gid_table::Gid;
use rxe_core::{CompletionQueue, Instant, Shard};
use rxe_net::batch::TxBatch;
use rxe_net::link::Link;
use rxe_net::memory::{MemoryLink, PortId};

use super::together::Together;

/// A shard of a host with its link.
pub(super) struct Node {
    pub(super) shard: Shard,
    pub(super) gid: Gid,
    pub(super) cqs: Vec<Arc<CompletionQueue>>,
    pub(super) port: PortId,
    /// The cells of its host, by their place in the world.
    pub(super) cells: usize,
    pub(super) link: MemoryLink,
    batch: TxBatch,
    together: Together,
    /// Its thread comes around this often at most, so that packets gather meanwhile.
    pub(super) pace_nanos: u64,
    pub(super) next_turn: Instant,
}

impl Node {
    pub(super) fn new(
        shard: Shard,
        link: MemoryLink,
        port: PortId,
        gid: Gid,
        cells: usize,
        pace_nanos: u64,
    ) -> Self {
        let (batch, cqs, next_turn) = (TxBatch::new(), Vec::new(), Instant::ZERO);
        let together = Together::new(shard.slot());
        Self { together, shard, gid, cqs, link, port, cells, batch, pace_nanos, next_turn }
    }

    /// Receives, handles timers and sends; returns whether there was anything to do.
    pub(super) fn take_turn(&mut self, now: Instant) -> Result<bool, String> {
        let Self { shard, link, batch, together, .. } = self;
        let mut busy = false;
        loop {
            let received = link.receive(now, &mut |path, bytes| {
                together.add(now, path, bytes, shard);
            });
            together.give(now, shard);
            match received {
                Ok(0) => break,
                Ok(_) => busy = true,
                Err(error) => return Err(format!("receive: {error}")),
            }
        }
        while let Some(hint) = link.poll_unreachable() {
            shard.handle_unreachable(now, &hint);
        }
        if shard.poll_timeout().is_some_and(|at| at <= now) {
            shard.handle_timeout(now);
        }
        loop {
            while let Some(room) = batch.room() {
                let Some(transmit) = shard.poll_transmit(now, room) else { break };
                batch.commit(transmit);
            }
            if batch.is_empty() {
                return match shard.stalled_qp() {
                    None => Ok(busy),
                    Some(qpn) => Err(format!("{qpn} waits for what may never come")),
                };
            }
            busy = true;
            link.transmit(now, batch);
        }
    }

    /// When it has something to do by itself.
    pub(super) fn next_time(&self, now: Instant) -> Option<Instant> {
        let paced = (self.next_turn > now).then_some(self.next_turn);
        let timer = self.shard.poll_timeout().map(|at| at.max(self.next_turn));
        [paced, timer].into_iter().flatten().min()
    }
}
