//! Between which addresses messages go.

use gid_table::Gid;

/// The way of a message between two QP1s, as the network layer sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CmPath {
    /// Our address.
    pub local: Gid,
    /// The peer's address.
    pub remote: Gid,
    /// Traffic class of what we send.
    pub traffic_class: u8,
    /// Flow label of what we send, 20 bits.
    pub flow_label: u32,
    /// Hop limit of what we send.
    pub hop_limit: u8,
}

impl CmPath {
    /// The plain way: no class, no label, 64 hops.
    pub const fn new(local: Gid, remote: Gid) -> Self {
        Self { local, remote, traffic_class: 0, flow_label: 0, hop_limit: 64 }
    }

    /// Whether both are between the same addresses.
    pub fn joins_the_same(&self, other: &Self) -> bool {
        (self.local, self.remote) == (other.local, other.remote)
    }
}
