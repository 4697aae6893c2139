//! Memory regions.

use std::ops::Range;
use std::sync::Arc;

use rxe_core::mem::{
    AccessFlags, Backing, DeregMrError, Mapping, MrKeys, MwBind, RegMrError, ReregMr, ReregMrError,
};
use rxe_core::wq::{RemoteAddr, Sge};
use rxe_wire::{LKey, RKey};

use crate::dm::DeviceMemory;
use crate::error::InUse;
use crate::pd::{PdInner, ProtectionDomain};

/// Registered memory: a buffer, or a part of one (`struct ibv_mr`).
///
/// Dropping it ends the registration, after the copies under way: work requests and peers that
/// still use its keys get errors, and so do those that use windows bound to it. The buffer lives on
/// while anyone holds it.
#[derive(Debug)]
pub struct MemoryRegion {
    pd: Arc<PdInner>,
    buffer: Arc<dyn Backing>,
    len: usize,
    iova: u64,
    access: AccessFlags,
    keys: MrKeys,
    /// It is registered.
    is_live: bool,
    /// What the buffer is of, if it is device memory.
    device_memory: Option<DeviceMemory>,
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if self.is_live {
            // It is registered until now, so there is nothing that could be refused.
            let ended = self.pd.context.core.memory().revoke(self.keys);
            debug_assert_eq!(ended, Ok(()));
        }
    }
}

/// What [`MemoryRegion::reregister`] changes; `None` leaves it (`enum ibv_rereg_mr_flags`).
#[derive(Clone, Debug, Default)]
pub struct Rereg<'a> {
    /// Another buffer, under its own addresses, or from 0 on if the region is zero-based.
    pub buffer: Option<Arc<dyn Backing>>,
    /// Another protection domain.
    pub pd: Option<&'a ProtectionDomain>,
    /// Other access.
    pub access: Option<AccessFlags>,
}

impl MemoryRegion {
    pub(crate) fn new(
        pd: Arc<PdInner>,
        buffer: Arc<dyn Backing>,
        range: Range<usize>,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Self, RegMrError> {
        let (offset, size) = (range.start, buffer.len());
        let out_of_bounds = RegMrError::OutOfBounds { offset, length: 0, size };
        let len = range.end.checked_sub(range.start).ok_or(out_of_bounds)?;
        let memory = pd.context.core.memory();
        let backing = buffer.clone();
        let keys = memory.register(pd.id, backing, offset, len as u64, iova, access)?;
        let iova = if access.contains(AccessFlags::ZERO_BASED) { 0 } else { iova };
        let (is_live, device_memory) = (true, None);
        Ok(Self { pd, buffer, len, iova, access, keys, is_live, device_memory })
    }

    pub(crate) fn of_device_memory(mut self, device_memory: DeviceMemory) -> Self {
        self.device_memory = Some(device_memory);
        self
    }

    /// Ends the registration (`ibv_dereg_mr`).
    ///
    /// # Errors
    ///
    /// [`InUse`] with the region, while memory windows are bound to it (R42); dropping it ends
    /// their access too.
    pub fn deregister(mut self) -> Result<(), InUse<Self>> {
        match self.pd.context.core.memory().deregister(self.keys) {
            Err(DeregMrError::WindowsBound { .. }) => {
                Err(InUse { what: "memory region", object: self })
            }
            _ => {
                self.is_live = false;
                Ok(())
            }
        }
    }

    /// Changes what is registered, under which domain and with which access (`ibv_rereg_mr`); with
    /// another buffer the keys are others too.
    ///
    /// # Errors
    ///
    /// [`ReregMrError`]; everything is as before then.
    pub fn reregister(&mut self, change: Rereg<'_>) -> Result<(), ReregMrError> {
        if change.pd.is_some_and(|pd| !Arc::ptr_eq(&pd.inner.context, &self.pd.context)) {
            return Err(RegMrError::OtherDevice.into());
        }
        let access = change.access.unwrap_or(self.access);
        let translation = change.buffer.as_ref().map(|buffer| {
            let is_zero_based = access.contains(AccessFlags::ZERO_BASED);
            let iova = if is_zero_based { 0 } else { buffer.addr() };
            let length = buffer.len() as u64;
            Mapping { backing: buffer.clone(), offset: 0, length, iova }
        });
        let iova = translation.as_ref().map(|mapping| mapping.iova);
        let pd = change.pd.map(|pd| pd.inner.id);
        let core = ReregMr { translation, pd, access: change.access };
        self.keys = self.pd.context.core.memory().reregister(self.keys, core)?;
        self.access = access;
        if access.contains(AccessFlags::ZERO_BASED) {
            self.iova = 0;
        }
        if let (Some(buffer), Some(iova)) = (change.buffer, iova) {
            (self.len, self.iova) = (buffer.len(), iova);
            self.buffer = buffer;
            self.device_memory = None;
        }
        if let Some(pd) = change.pd {
            self.pd = pd.inner.clone();
        }
        Ok(())
    }

    /// The buffer: read and write it at any time.
    pub fn buffer(&self) -> &Arc<dyn Backing> {
        &self.buffer
    }

    /// What may be done with it.
    pub fn access(&self) -> AccessFlags {
        self.access
    }

    /// The address that its first byte goes by.
    pub fn addr(&self) -> u64 {
        self.iova
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
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
        sge(self.iova, range, self.keys.lkey)
    }

    /// What a peer needs to write to it, or read from it, from `offset` on.
    pub fn remote_addr(&self, offset: usize) -> RemoteAddr {
        let addr = self.iova.wrapping_add(offset as u64);
        RemoteAddr { addr, rkey: self.keys.rkey }
    }

    /// A piece of it for a memory window. A range beyond its end makes the binding fail.
    pub fn window(&self, range: Range<usize>, access: AccessFlags) -> MwBind {
        let length = range.end.saturating_sub(range.start) as u64;
        let addr = self.iova.wrapping_add(range.start as u64);
        MwBind { lkey: self.keys.lkey, addr, length, access }
    }
}

/// A region without memory, for own work requests (`ibv_alloc_null_mr`): it reads as zeros, and
/// what is written to it vanishes. Dropping it ends it.
#[derive(Debug)]
pub struct NullRegion {
    pd: Arc<PdInner>,
    keys: MrKeys,
}

impl Drop for NullRegion {
    fn drop(&mut self) {
        let ended = self.pd.context.core.memory().revoke(self.keys);
        debug_assert_eq!(ended, Ok(()));
    }
}

impl NullRegion {
    pub(crate) fn new(pd: Arc<PdInner>) -> Result<Self, RegMrError> {
        let keys = pd.context.core.memory().alloc_null_mr(pd.id)?;
        Ok(Self { pd, keys })
    }

    /// The key for own work requests.
    pub fn lkey(&self) -> LKey {
        self.keys.lkey
    }

    /// A piece of it for a work request.
    pub fn sge(&self, length: u32) -> Sge {
        Sge { addr: 0, length, lkey: self.keys.lkey }
    }
}

/// A piece of a region that goes by the addresses from `iova` on.
pub(crate) fn sge(iova: u64, range: Range<usize>, lkey: LKey) -> Sge {
    let length = range.end.saturating_sub(range.start);
    Sge {
        addr: iova.wrapping_add(range.start as u64),
        // Longer than any message: refused when it is posted.
        length: u32::try_from(length).unwrap_or(u32::MAX),
        lkey,
    }
}
