//! Identifiers that have accepted: their queue pair may hear from the peer before the RTU comes.

use std::sync::Weak;

use ibverbs_api::{Counter, QueuePair};
use rxe_core::Instant;

use super::{CmId, IdInner, Phase};
use crate::device::now;

/// When a queue pair is looked at first: an RTU that is not lost has come by then.
const FIRST_NANOS: u64 = 1_000_000;
/// How long there is between two looks at most.
const MOST_NANOS: u64 = 100_000_000;

/// An identifier that waits for its peer to be ready.
///
/// Linux has the event `IBV_EVENT_COMM_EST` for it, and programs that hand it to `rdma_notify`.
/// Queue pairs here are ready to send before the peer can know of them, so they raise none; and
/// what the engine has counted says the same.
#[derive(Debug)]
pub(crate) struct Watched {
    id: Weak<IdInner>,
    /// What the queue pair had received before.
    packets: u64,
    /// When it is looked at next.
    next: Instant,
    /// How long after the last time that is.
    interval: u64,
}

impl Watched {
    /// Looks from now on; to be made before the peer is told that it may send.
    pub(super) fn new(id: &CmId, qp: &QueuePair) -> Option<Self> {
        Some(Self {
            id: std::sync::Arc::downgrade(&id.inner),
            packets: packets(qp)?,
            next: now().plus_nanos(FIRST_NANOS),
            interval: FIRST_NANOS,
        })
    }

    /// How long to wait before the next look.
    pub(crate) fn wait_nanos(&self) -> u64 {
        self.next.nanos_since(now())
    }

    /// Looks, if it is time. It comes back unless nothing more is to be waited for.
    pub(crate) fn look(self) -> Option<Self> {
        if self.wait_nanos() > 0 {
            return Some(self);
        }
        let id = CmId { inner: self.id.upgrade()? };
        let state = id.inner.state.lock();
        if state.phase != Phase::Accepting {
            return None;
        }
        let has_heard = packets(state.qp.as_ref()?)? > self.packets;
        if has_heard && let Ok((device, connection)) = state.connection() {
            tracing::debug!(target: "rxe::cm", ?id, "data before the RTU");
            // Where it means nothing, the RTU has come meanwhile, or the end.
            let _ = device.with(|core, now| core.engine.heard_from_peer(now, connection));
            return None;
        }
        let interval = (self.interval * 2).min(MOST_NANOS);
        Some(Self { next: now().plus_nanos(interval), interval, ..self })
    }
}

/// Packets that a queue pair has received; `None` when it is gone.
fn packets(qp: &QueuePair) -> Option<u64> {
    qp.counters().ok().map(|counters| counters.get(Counter::rcvd_pkts))
}
