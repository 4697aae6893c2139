//! Which work requests are outstanding: each completes exactly once, and in order.

use std::collections::{BTreeSet, VecDeque};

use rxe_core::wc::WorkCompletion;

/// The bit of a request's identifier that says that it is a receive.
const RECEIVE: u64 = 1 << 63;
/// The bit that says that it is a receive of a shared queue.
const SHARED: u64 = 1 << 62;

/// The requests of one queue pair, or the receives of a shared queue.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Identifier, and whether a success completes too.
    sends: VecDeque<(u64, bool)>,
    receives: VecDeque<u64>,
    shared: BTreeSet<u64>,
    last: u64,
}

impl Ledger {
    /// An identifier for a send request.
    pub(super) fn send_id(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// An identifier for a receive.
    pub(super) fn receive_id(&mut self) -> u64 {
        self.send_id() | RECEIVE
    }

    /// An identifier for a receive of a shared queue.
    pub(super) fn shared_id(&mut self) -> u64 {
        self.send_id() | RECEIVE | SHARED
    }

    /// Whether a completion belongs to a shared queue.
    pub(super) const fn is_shared(id: u64) -> bool {
        id & SHARED != 0
    }

    /// A request has been taken.
    pub(super) fn posted(&mut self, id: u64, signaled: bool) {
        if Self::is_shared(id) {
            self.shared.insert(id);
        } else if id & RECEIVE != 0 {
            self.receives.push_back(id);
        } else {
            self.sends.push_back((id, signaled));
        }
    }

    /// A request has completed.
    pub(super) fn completed(&mut self, wc: &WorkCompletion) {
        let id = wc.wr_id;
        if Self::is_shared(id) {
            assert!(self.shared.remove(&id), "a shared receive completed twice: {wc:?}");
        } else if id & RECEIVE != 0 {
            assert_eq!(self.receives.pop_front(), Some(id), "left: the oldest receive; {wc:?}");
        } else {
            loop {
                let (oldest, signaled) =
                    self.sends.pop_front().unwrap_or_else(|| panic!("nothing is posted: {wc:?}"));
                if oldest == id {
                    break;
                }
                assert!(!signaled, "request {oldest} did not complete, but one behind it: {wc:?}");
            }
        }
    }

    /// Everything was flushed: nothing that must complete is left.
    pub(super) fn check_flushed(&self) {
        let left: Vec<_> = self.sends.iter().filter(|(_, signaled)| *signaled).collect();
        assert!(left.is_empty() && self.receives.is_empty(), "never completed: {self:?}");
    }
}
