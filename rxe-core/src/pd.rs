//! Protection domains: which memory goes with which queue pairs.

/// Identifies a protection domain within its device (`struct ibv_pd`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PdId(pub(crate) u32);

impl PdId {
    /// No domain: what the target of an extended reliable connection has. Each message to it goes
    /// by the domain of the shared receive queue that it names.
    pub const NONE: Self = Self(0);
}
