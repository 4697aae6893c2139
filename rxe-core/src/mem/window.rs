//! Memory windows: keys of their own for a part of a region, given and taken by work requests.

use rxe_wire::{LKey, RKey};

use super::objects::{Bound, Holder, Objects, Window};
use super::region::{AccessFlags, Region};
use super::{KeyError, MemoryTable, RegMrError};
use crate::pd::PdId;

/// The type of a memory window (`enum ibv_mw_type`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum MwType {
    /// Bound by a verb, again and again, for all queue pairs of its domain.
    Type1 = 1,
    /// Bound by a work request, for that queue pair alone (2B), until it is invalidated.
    Type2 = 2,
}

/// What a window is bound to (`struct ibv_mw_bind_info`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MwBind {
    /// Key of the region.
    pub lkey: LKey,
    /// Address of the first byte, as the region has it.
    pub addr: u64,
    /// Number of bytes; 0 only unbinds a window of type 1.
    pub length: u64,
    /// What a peer may do; with [`AccessFlags::ZERO_BASED`], the window's addresses count from 0.
    pub access: AccessFlags,
}

/// Why a window cannot be freed (`ibv_dealloc_mw`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no memory window with key {rkey}")]
pub struct DeallocMwError {
    /// The key that was given.
    pub rkey: RKey,
}

impl DeallocMwError {
    /// The errno that `ibv_dealloc_mw` returns.
    pub fn errno(&self) -> i32 {
        crate::errno::EINVAL
    }
}

/// What a window may allow.
const GRANTABLE: AccessFlags = AccessFlags::REMOTE.union(AccessFlags::ZERO_BASED);

impl MemoryTable {
    /// Makes a memory window, not bound to anything yet (`ibv_alloc_mw`).
    ///
    /// Binding it gives it another key; of the one returned here, the upper 24 bits stay.
    ///
    /// # Errors
    ///
    /// [`RegMrError::TooMany`]: windows and regions share one limit.
    pub fn alloc_mw(&self, pd: PdId, mw_type: MwType) -> Result<RKey, RegMrError> {
        let (index, variant) = self.allocate()?;
        let key = index << 8 | u32::from(variant);
        self.objects.lock().windows.insert(index, Window { mw_type, pd, key, bound: None });
        Ok(RKey::new(key))
    }

    /// Frees a memory window, bound or not (`ibv_dealloc_mw`); of its key only the upper 24 bits
    /// count.
    ///
    /// # Errors
    ///
    /// [`DeallocMwError`] when there is no such window.
    pub fn dealloc_mw(&self, rkey: RKey) -> Result<(), DeallocMwError> {
        let index = rkey.get() >> 8;
        let mut objects = self.objects.lock();
        if !objects.windows.contains_key(&index) {
            return Err(DeallocMwError { rkey });
        }
        self.unbind(&mut objects, index);
        let last = objects.windows.remove(&index).map_or(0, |window| window.key);
        self.release(last);
        Ok(())
    }

    /// Binds a window under a key of which only the low byte may be new; on an error nothing has
    /// changed.
    ///
    /// R43: the queue pair, the window and the region are of one domain, the access asked for is
    /// checked, and the low byte may be the old one. The checks are those of rdma_rxe.
    pub(crate) fn bind(
        &self,
        holder: Holder,
        window: RKey,
        rkey: RKey,
        bind: &MwBind,
    ) -> Result<(), KeyError> {
        let mut objects = self.objects.lock();
        let (index, key) = (window.get() >> 8, rkey.get());
        let Some(&entry) = objects.windows.get(&index) else {
            return Err(KeyError::WrongKind { key: window.get(), needed: "a memory window" });
        };
        if entry.key != window.get() {
            return Err(KeyError::NoSuchKey { key: window.get() });
        }
        if key >> 8 != index {
            return Err(KeyError::OtherSlot { key, window });
        }
        if entry.pd != holder.pd {
            return Err(KeyError::OtherPd { key });
        }
        let is_type_2 = entry.mw_type == MwType::Type2;
        if is_type_2 && entry.bound.is_some() {
            return Err(KeyError::NotFree { key });
        }
        if !is_type_2 && bind.access.contains(AccessFlags::ZERO_BASED) {
            return Err(KeyError::ZeroBasedType1 { key });
        }
        let qpn = is_type_2.then_some(holder.qpn);
        let bound = if bind.length == 0 {
            if is_type_2 {
                return Err(KeyError::EmptyType2 { key });
            }
            None
        } else {
            let mut region = self.windowed(holder, bind)?;
            (region.variant, region.qpn) = (key as u8, qpn);
            Some(region)
        };
        self.unbind(&mut objects, index);
        if let Some(region) = bound {
            self.fill(index, region);
            let region = bind.lkey.get() >> 8;
            objects.set_bound(index, Some(Bound { region, qpn }));
        }
        if let Some(entry) = objects.windows.get_mut(&index) {
            entry.key = key;
        }
        Ok(())
    }

    /// The part of a region that a window is to be bound to, checked.
    fn windowed(&self, holder: Holder, bind: &MwBind) -> Result<Region, KeyError> {
        let MwBind { lkey, addr, length, access } = *bind;
        let key = lkey.get();
        if !GRANTABLE.contains(access) {
            return Err(KeyError::Access { access, max: GRANTABLE });
        }
        // Windows have no local access, so a window of a window is refused here; R33 too.
        let needed = Region::LOCAL | AccessFlags::MW_BIND;
        let span = self.access(key, holder.pd, addr, length, needed)?;
        let Some((region, offset)) = span.place() else { return Err(KeyError::NoSuchKey { key }) };
        if region.access.contains(AccessFlags::ZERO_BASED) {
            return Err(KeyError::ZeroBasedRegion { key });
        }
        if access.intersects(AccessFlags::REMOTE_CHANGES)
            && !region.access.contains(AccessFlags::LOCAL_WRITE)
        {
            return Err(KeyError::Registration(RegMrError::NeedsLocalWrite { access }));
        }
        let iova = if access.contains(AccessFlags::ZERO_BASED) { 0 } else { addr };
        let (pd, memory) = (region.pd, region.memory.clone());
        Ok(Region { variant: 0, pd, qpn: None, iova, length, access, offset, memory })
    }

    pub(super) fn invalidate_window(
        &self,
        objects: &mut Objects,
        holder: Holder,
        key: u32,
    ) -> Result<(), KeyError> {
        let index = key >> 8;
        let Some(window) = objects.windows.get(&index).filter(|window| window.key == key) else {
            return Err(KeyError::NoSuchKey { key });
        };
        if window.mw_type == MwType::Type1 {
            return Err(KeyError::WrongKind { key, needed: "a window of type 2" });
        }
        if window.pd != holder.pd {
            return Err(KeyError::OtherPd { key });
        }
        if window.bound.and_then(|bound| bound.qpn).is_some_and(|qpn| qpn != holder.qpn) {
            return Err(KeyError::OtherQp { key });
        }
        self.unbind(objects, index);
        Ok(())
    }

    /// Takes a window's memory away; waits for the copies that are under way.
    pub(super) fn unbind(&self, objects: &mut Objects, index: u32) {
        self.empty(index);
        objects.set_bound(index, None);
    }

    /// Unbinds the windows that are for a queue pair alone: it is being destroyed, and its number
    /// may be another one's soon.
    pub(crate) fn forget_qp(&self, qpn: rxe_wire::Qpn) {
        let mut objects = self.objects.lock();
        for window in objects.of_qp(qpn).to_vec() {
            self.unbind(&mut objects, window);
        }
    }
}
