//! Memory regions.

use std::ops::Range;
use std::sync::Arc;

use rxe_core::mem::{AccessFlags, DmaBuf, MrKeys, RegMrError};
use rxe_core::wq::{RemoteAddr, Sge};
use rxe_wire::{LKey, RKey};

use crate::pd::PdInner;

/// A registered buffer (`struct ibv_mr`).
///
/// Dropping it ends the registration (`ibv_dereg_mr`), after the copies under way: work requests
/// and peers that still use its keys get errors. The buffer lives on while anyone holds it.
#[derive(Debug)]
pub struct MemoryRegion {
    pd: Arc<PdInner>,
    buffer: Arc<DmaBuf>,
    iova: u64,
    keys: MrKeys,
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        self.pd.context.core.memory().deregister(self.keys);
    }
}

impl MemoryRegion {
    pub(crate) fn new(
        pd: Arc<PdInner>,
        buffer: Arc<DmaBuf>,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Self, RegMrError> {
        let len = buffer.len() as u64;
        let memory = pd.context.core.memory();
        let keys = memory.register(pd.id, buffer.clone(), 0, len, iova, access)?;
        Ok(Self { pd, buffer, iova, keys })
    }

    /// The buffer: read and write it at any time.
    pub fn buffer(&self) -> &Arc<DmaBuf> {
        &self.buffer
    }

    /// The address that its first byte goes by.
    pub fn addr(&self) -> u64 {
        self.iova
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The key for own work requests.
    pub fn lkey(&self) -> LKey {
        self.keys.lkey
    }

    /// The key for peers.
    pub fn rkey(&self) -> RKey {
        self.keys.rkey
    }

    /// A piece of it for a work request. A range beyond its end makes the request fail.
    pub fn sge(&self, range: Range<usize>) -> Sge {
        let length = range.end.saturating_sub(range.start);
        Sge {
            addr: self.iova.wrapping_add(range.start as u64),
            // Longer than any message: refused when it is posted.
            length: u32::try_from(length).unwrap_or(u32::MAX),
            lkey: self.keys.lkey,
        }
    }

    /// What a peer needs to write to it, or read from it, from `offset` on.
    pub fn remote_addr(&self, offset: usize) -> RemoteAddr {
        let addr = self.iova.wrapping_add(offset as u64);
        RemoteAddr { addr, rkey: self.keys.rkey }
    }
}
