//! What has a key without being a plain registration: regions for fast registration, and memory
//! windows; and who depends on whom.
//!
//! None of this is on the data path: an access looks at its key's slot alone. A slot of these
//! objects is filled while they may be accessed, and empty while they may not.

use std::collections::HashMap;
use std::sync::Arc;

use rxe_wire::Qpn;

use super::Backing;
use super::window::MwType;
use crate::pd::PdId;

/// Who works with keys: a queue pair, in its protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    pub(crate) pd: PdId,
    pub(crate) qpn: Qpn,
}

/// Memory, and the addresses that it goes by.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// The memory.
    pub backing: Arc<dyn Backing>,
    /// Offset of the first byte in it.
    pub offset: usize,
    /// Number of bytes.
    pub length: u64,
    /// Address of the first byte.
    pub iova: u64,
}

/// A region that work requests register and invalidate (`ib_alloc_mr`).
#[derive(Debug)]
pub(super) struct FastRegion {
    pub(super) pd: PdId,
    /// Its key, or the last one it had.
    pub(super) key: u32,
    /// The most bytes that it can stand for.
    pub(super) max_length: u64,
    /// What it stands for, once it is valid.
    pub(super) mapping: Option<Mapping>,
}

/// A memory window (`struct ibv_mw`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) mw_type: MwType,
    pub(super) pd: PdId,
    /// Its key, or the last one it had.
    pub(super) key: u32,
    pub(super) bound: Option<Bound>,
}

/// What a window is bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bound {
    /// Slot of the region.
    pub(super) region: u32,
    /// The one queue pair that it is for, if its type has one.
    pub(super) qpn: Option<Qpn>,
}

/// All of them, by slot.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) fast: HashMap<u32, FastRegion>,
    pub(super) windows: HashMap<u32, Window>,
    /// Windows that are bound, by the slot of their region.
    by_region: HashMap<u32, Vec<u32>>,
    /// Windows of type 2 that are bound, by their queue pair.
    by_qp: HashMap<Qpn, Vec<u32>>,
}

impl Objects {
    /// Notes what a window is bound to now, or that it is not bound any more.
    pub(super) fn set_bound(&mut self, window: u32, bound: Option<Bound>) {
        let Some(entry) = self.windows.get_mut(&window) else { return };
        if let Some(old) = std::mem::replace(&mut entry.bound, bound) {
            remove(&mut self.by_region, old.region, window);
            if let Some(qpn) = old.qpn {
                remove(&mut self.by_qp, qpn, window);
            }
        }
        if let Some(new) = bound {
            self.by_region.entry(new.region).or_default().push(window);
            if let Some(qpn) = new.qpn {
                self.by_qp.entry(qpn).or_default().push(window);
            }
        }
    }

    /// The windows that are bound to a region.
    pub(super) fn of_region(&self, region: u32) -> &[u32] {
        self.by_region.get(&region).map_or(&[], Vec::as_slice)
    }

    /// The windows that are bound for one queue pair alone.
    pub(super) fn of_qp(&self, qpn: Qpn) -> &[u32] {
        self.by_qp.get(&qpn).map_or(&[], Vec::as_slice)
    }
}

fn remove<K: std::hash::Hash + Eq>(map: &mut HashMap<K, Vec<u32>>, key: K, window: u32) {
    if let Some(windows) = map.get_mut(&key) {
        windows.retain(|&other| other != window);
        if windows.is_empty() {
            map.remove(&key);
        }
    }
}
