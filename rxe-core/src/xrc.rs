//! Domains of extended reliable connections: which shared receive queues a target reaches.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::RwLock;

use crate::errno::ENOMEM;
use crate::srq::SharedReceiveQueue;

/// Identifies an XRC domain within its device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct XrcdId(pub u32);

/// Why an XRC domain cannot be opened (`ibv_open_xrcd`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("all {max} XRC domains of the device are in use (max_xrcd)")]
pub struct OpenXrcdError {
    /// The limit.
    pub max: u32,
}

impl OpenXrcdError {
    /// The errno that `ibv_open_xrcd` would set.
    pub fn errno(&self) -> i32 {
        ENOMEM
    }
}

/// A domain of extended reliable connections (`struct ibv_xrcd`), shared by all shards.
///
/// A message to a target queue pair of the domain names one of the domain's shared receive queues;
/// that queue gives the receive, the protection domain, and the completion queue.
#[derive(Debug)]
pub struct XrcDomain {
    id: XrcdId,
    srqs: RwLock<HashMap<u32, Weak<SharedReceiveQueue>>>,
    /// Shared receive queues and target queue pairs in it.
    users: AtomicU32,
}

impl XrcDomain {
    pub(crate) fn new(id: XrcdId) -> Self {
        Self { id, srqs: RwLock::default(), users: AtomicU32::new(0) }
    }

    /// Its identifier.
    pub fn id(&self) -> XrcdId {
        self.id
    }

    /// Number of shared receive queues and target queue pairs in it.
    pub fn users(&self) -> u32 {
        self.users.load(Ordering::Acquire)
    }

    pub(crate) fn attach(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn detach(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Lets messages find a shared receive queue.
    pub(crate) fn publish(&self, srq: &Arc<SharedReceiveQueue>) {
        self.srqs.write().insert(srq.id().0, Arc::downgrade(srq));
    }

    /// Lets no message find it any more.
    pub(crate) fn withdraw(&self, number: u32) {
        self.srqs.write().remove(&number);
    }

    /// The shared receive queue of this number, if it is in this domain.
    pub(crate) fn find(&self, number: u32) -> Option<Arc<SharedReceiveQueue>> {
        self.srqs.read().get(&number)?.upgrade()
    }
}
