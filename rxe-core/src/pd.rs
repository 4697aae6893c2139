//! Protection domains: which memory goes with which queue pairs.

/// Identifies a protection domain within its device (`struct ibv_pd`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PdId(pub(crate) u32);
