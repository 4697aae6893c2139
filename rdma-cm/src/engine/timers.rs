//! When which connection wants to be woken.

use std::collections::BTreeSet;

use rxe_core::Instant;
use rxe_wire::mad::cm::CommId;

/// The deadlines of all connections: each has one at most, and says itself which.
#[derive(Debug, Default)]
pub(super) struct Timers(BTreeSet<(Instant, CommId)>);

impl Timers {
    /// Moves the deadline of `id` from `slot` to `to`, and remembers it there.
    pub(super) fn set(&mut self, id: CommId, slot: &mut Option<Instant>, to: Option<Instant>) {
        if let Some(old) = slot.take() {
            self.0.remove(&(old, id));
        }
        if let Some(new) = to {
            self.0.insert((new, id));
        }
        *slot = to;
    }

    /// The earliest deadline.
    pub(super) fn first(&self) -> Option<Instant> {
        self.0.first().map(|&(when, _)| when)
    }

    /// Who is due at `now`.
    pub(super) fn due(&self, now: Instant) -> Option<CommId> {
        self.0.first().filter(|&&(when, _)| when <= now).map(|&(_, id)| id)
    }

    /// Forgets the earliest deadline.
    pub(super) fn drop_first(&mut self) {
        self.0.pop_first();
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
