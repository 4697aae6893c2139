//! What is on its way from a shard to its links.

use gid_table::Gid;
use rxe_core::path::TransmitRun;
use rxe_core::shard::Shard;
use rxe_core::time::Instant;

use super::pressure::{Pressure, Refused};
use super::runner::OpenedLink;
use crate::batch::{ICRC_LEN, TxBatch};

/// The batch that is being filled, and what the host had no room for.
///
/// While something waits, the shard is asked for nothing more: what it has stays there, where
/// windows and priorities still apply to it, and nothing overtakes what was taken from it.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    batch: TxBatch,
    /// The link that the batch is for: the source of its packets.
    target: Option<Gid>,
    /// Packets that are for the next batch, taken from the shard before this one could leave.
    behind: Option<TransmitRun>,
    /// Their bytes: kept, so that nothing is allocated for them.
    behind_bytes: Vec<u8>,
    pressure: Pressure,
    dropped: u64,
}

/// Packets that begin another send than those before are copied to the next batch, so that these
/// leave at once, if they are no more than that: it takes far less time than a send.
const COPIED_BYTES: usize = 2 * TxBatch::MAX_PACKET;

/// When a shard has sent enough.
#[derive(Clone, Copy, Debug)]
pub(super) struct Until {
    /// After about so many packets.
    pub(super) packets: usize,
    /// When nothing is left but acknowledgements.
    pub(super) acks_are_left: bool,
}

/// Whether a batch has left, or has to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flushed {
    Gone,
    Waits,
}

impl Outbox {
    /// Sends what the shard has to send, `until` that is enough, after what has been waiting.
    ///
    /// It ends early when the host has no room; then there is a [`Self::deadline`].
    pub(super) fn transmit(
        &mut self,
        shard: &mut Shard,
        links: &mut [OpenedLink],
        now: Instant,
        until: Until,
    ) {
        if self.batch.is_empty() && !shard.wants_transmit() {
            return;
        }
        if self.try_again(shard, links, now) == Flushed::Waits {
            return;
        }
        let mut left = until.packets;
        while shard.wants_transmit() && left > 0 {
            if until.acks_are_left && shard.owes_acks_only() {
                break;
            }
            let is_first = self.batch.is_empty();
            let (max, longest) = (self.batch.max_run(), self.batch.longest_awaited());
            let Some(room) = self.batch.run_room() else {
                if self.flush(shard, links, now) == Flushed::Waits {
                    return;
                }
                continue;
            };
            let Some(run) = shard.poll_transmit_run(now, room, ICRC_LEN, max) else { break };
            left = left.saturating_sub(run.count as usize);
            let bytes = &room[..run.len(ICRC_LEN)];
            let is_foreign = self.target != Some(run.first.path.source);
            let is_next = run.first.len > longest && bytes.len() <= COPIED_BYTES;
            if is_first || !is_foreign && !is_next {
                self.commit(&run);
            } else {
                self.behind_bytes.clear();
                self.behind_bytes.extend_from_slice(bytes);
                self.behind = Some(run);
                if self.flush(shard, links, now) == Flushed::Waits {
                    return;
                }
                self.take_behind();
            }
            if self.batch.fills_message() && self.flush(shard, links, now) == Flushed::Waits {
                return;
            }
        }
        self.flush(shard, links, now);
    }

    /// When the host is to be asked again for room; `None` when nothing waits.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.pressure.deadline()
    }

    /// Packets that have waited in vain and were dropped.
    pub(super) const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Sends what has been waiting, once it is time.
    fn try_again(&mut self, shard: &Shard, links: &mut [OpenedLink], now: Instant) -> Flushed {
        let Some(at) = self.deadline() else { return Flushed::Gone };
        if at > now || self.flush(shard, links, now) == Flushed::Waits {
            return Flushed::Waits;
        }
        self.take_behind();
        if self.batch.is_empty() { Flushed::Gone } else { self.flush(shard, links, now) }
    }

    fn commit(&mut self, run: &TransmitRun) {
        self.batch.commit_run(run);
        self.target = Some(run.first.path.source);
    }

    /// Puts the packets that were left for the next batch into it; it is empty.
    fn take_behind(&mut self) {
        let Some(run) = self.behind.take() else { return };
        let bytes = &self.behind_bytes;
        match self.batch.run_room().and_then(|room| room.get_mut(..bytes.len())) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.commit(&run);
            }
            None => tracing::error!(target: "rxe::net", "an empty batch has no room"),
        }
    }

    /// Sends the batch by its link. Afterwards it is empty, or has to wait.
    fn flush(&mut self, shard: &Shard, links: &mut [OpenedLink], now: Instant) -> Flushed {
        let Self { batch, target, pressure, .. } = self;
        if batch.is_empty() {
            return Flushed::Gone;
        }
        let Some(opened) = links.iter_mut().find(|opened| Some(opened.gid) == *target) else {
            // A queue pair has a path only once its link is open.
            tracing::error!(target: "rxe::net", ?target, "no link for packets to send");
            batch.clear();
            pressure.relieve();
            return Flushed::Gone;
        };
        let report = match pressure.deadline() {
            None => opened.link.transmit(now, batch),
            Some(_) => opened.link.transmit_rest(now, batch),
        };
        if report.lost > 0 {
            shard.count_send_errors(report.lost);
        }
        if batch.is_empty() {
            pressure.relieve();
            return Flushed::Gone;
        }
        self.wait(shard, now, report.done() > 0)
    }

    /// Lets what the link has left in the batch wait, or drops it.
    fn wait(&mut self, shard: &Shard, now: Instant, progress: bool) -> Flushed {
        // R40: READ responses too leave without the peer having to ask again.
        match self.pressure.refuse(now, progress) {
            Refused::Wait => Flushed::Waits,
            Refused::Drop => {
                let lost = self.batch.len();
                tracing::debug!(target: "rxe::net", lost, "no room in this host: packets lost");
                shard.count_send_errors(lost);
                self.dropped += lost as u64;
                self.batch.clear();
                Flushed::Gone
            }
        }
    }
}
