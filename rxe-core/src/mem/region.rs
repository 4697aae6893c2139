//! A registered memory region: bytes, the addresses they go by, and what may be done to them.

use bitflags::bitflags;
use rxe_wire::Qpn;

use super::bytes::Registered;
use crate::pd::PdId;

bitflags! {
    /// What may be done to a memory region or through a QP (`enum ibv_access_flags`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct AccessFlags: u32 {
        /// The host's own receives and READs may write (`IBV_ACCESS_LOCAL_WRITE`).
        const LOCAL_WRITE = 1;
        /// A peer may write (`IBV_ACCESS_REMOTE_WRITE`).
        const REMOTE_WRITE = 1 << 1;
        /// A peer may read (`IBV_ACCESS_REMOTE_READ`).
        const REMOTE_READ = 1 << 2;
        /// A peer may do atomics (`IBV_ACCESS_REMOTE_ATOMIC`).
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound (`IBV_ACCESS_MW_BIND`).
        const MW_BIND = 1 << 4;
        /// Addresses count from 0 (`IBV_ACCESS_ZERO_BASED`).
        const ZERO_BASED = 1 << 5;
        /// No pinning (`IBV_ACCESS_ON_DEMAND`); memory is never pinned here.
        const ON_DEMAND = 1 << 6;
        /// Huge pages (`IBV_ACCESS_HUGETLB`); makes no difference here.
        const HUGETLB = 1 << 7;
        /// A peer may flush to where all see it (`IBV_ACCESS_FLUSH_GLOBAL`).
        const FLUSH_GLOBAL = 1 << 8;
        /// A peer may flush to where it outlasts a loss of power (`IBV_ACCESS_FLUSH_PERSISTENT`).
        /// A queue pair may allow it, but no memory here is known to be so.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Writes may be reordered (`IBV_ACCESS_RELAXED_ORDERING`); they never are.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl AccessFlags {
    /// The flags that let a peer change memory, which also need [`Self::LOCAL_WRITE`].
    pub const REMOTE_CHANGES: Self = Self::REMOTE_WRITE.union(Self::REMOTE_ATOMIC);

    /// All that a peer may be allowed.
    pub const REMOTE: Self = Self::REMOTE_CHANGES.union(Self::REMOTE_READ);
}

/// A live registration, behind one slot of the memory table.
#[derive(Debug)]
pub(crate) struct Region {
    /// Low byte of both keys: changes whenever the slot is used anew.
    pub(crate) variant: u8,
    pub(crate) pd: PdId,
    /// The one queue pair that may use it: a window of type 2.
    pub(crate) qpn: Option<Qpn>,
    /// The address that the first byte goes by.
    pub(crate) iova: u64,
    pub(crate) length: u64,
    /// With [`Region::LOCAL`] unless it is a window.
    pub(crate) access: AccessFlags,
    /// Offset of the first byte within the backing.
    pub(crate) offset: usize,
    /// `None`: it reads as zeros, and what is written vanishes (`ibv_alloc_null_mr`).
    pub(super) memory: Option<Registered>,
}

impl Region {
    /// The host's own requests may use the key: of regions, not of windows. No flag of the C API,
    /// but beside those it costs nothing to check.
    pub(crate) const LOCAL: AccessFlags = AccessFlags::from_bits_retain(1 << 31);
}
