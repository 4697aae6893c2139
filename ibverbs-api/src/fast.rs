//! Regions for fast registration.

use std::ops::Range;
use std::sync::Arc;

use rxe_core::mem::{AccessFlags, IntoBacking, MapMrError, MrKeys, RegMrError};
use rxe_core::wq::SendOp;
use rxe_wire::{LKey, RKey};

use crate::pd::PdInner;

/// A region that work requests make valid and invalid, in the order of their queue: what
/// `ib_alloc_mr` of the kernel's API makes, which libibverbs has not.
///
/// [`map`](Self::map) says which memory it stands for, [`registration`](Self::registration) makes
/// it valid under a new key, and [`SendOp::LocalInvalidate`] or a peer's
/// [`SendOp::SendInvalidate`] makes it invalid. Dropping it ends it whatever it is.
#[derive(Debug)]
pub struct FastRegion {
    pd: Arc<PdInner>,
    /// The first key.
    keys: MrKeys,
}

impl Drop for FastRegion {
    fn drop(&mut self) {
        let ended = self.pd.context.core.memory().revoke(self.current());
        debug_assert_eq!(ended, Ok(()));
    }
}

impl FastRegion {
    pub(crate) fn new(pd: Arc<PdInner>, max_pages: u32) -> Result<Self, RegMrError> {
        let keys = pd.context.core.memory().alloc_mr(pd.id, max_pages)?;
        Ok(Self { pd, keys })
    }

    fn current(&self) -> MrKeys {
        let first = self.keys.rkey;
        let rkey = self.pd.context.core.memory().current_key(first).unwrap_or(first);
        MrKeys { lkey: LKey::new(rkey.get()), rkey }
    }

    /// The key that it has, or had last: for own work requests and for peers alike.
    pub fn key(&self) -> RKey {
        self.current().rkey
    }

    /// Maps the bytes `range` of `memory` to it, under the addresses from `iova` on
    /// (`ib_map_mr_sg`).
    ///
    /// # Errors
    ///
    /// [`MapMrError`] when it is valid, or is made for fewer pages.
    pub fn map(
        &self,
        memory: impl IntoBacking,
        range: Range<usize>,
        iova: u64,
    ) -> Result<(), MapMrError> {
        let memory = memory.into_backing();
        let (offset, size) = (range.start, memory.len());
        let out_of_bounds = RegMrError::OutOfBounds { offset, length: 0, size };
        let length = range.end.checked_sub(range.start).ok_or(out_of_bounds)? as u64;
        let table = self.pd.context.core.memory();
        table.map_mr(self.current(), memory, offset, length, iova)
    }

    /// The request that makes it valid (`IB_WR_REG_MR`), and the key that it has then: the one it
    /// has with the next low byte (`ib_inc_rkey`).
    pub fn registration(&self, access: AccessFlags) -> (SendOp, RKey) {
        let key = next_key(self.key());
        (SendOp::RegisterMr { key, access }, key)
    }
}

/// A key with the next low byte (`ibv_inc_rkey`).
pub(crate) fn next_key(key: RKey) -> RKey {
    RKey::new(key.get() & !0xff | key.get().wrapping_add(1) & 0xff)
}
