//! Fast registration: regions that work requests make valid and invalid, in the order of a queue.

use std::sync::Arc;

use rxe_wire::{LKey, RKey};

use super::Backing;
use super::bytes::Registered;
use super::objects::{FastRegion, Holder, Mapping};
use super::region::{AccessFlags, Region};
use super::{KeyError, MemoryTable, MrKeys, RegMrError, check_access, check_range};
use crate::pd::PdId;

/// Bytes of a page, in which the capacity of a region for fast registration is counted.
pub const PAGE_SIZE: u64 = 4096;

/// Why memory cannot be mapped to a region for fast registration (`ib_map_mr_sg`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapMrError {
    /// There is no such region.
    #[error("key {key} is no region for fast registration: make one with alloc_mr")]
    NoSuchRegion {
        /// The key that was given.
        key: LKey,
    },
    /// It is valid, so its memory may be in use.
    #[error("key {key} is valid: invalidate it before other memory is mapped to it")]
    Valid {
        /// The key that was given.
        key: LKey,
    },
    /// It is made for less.
    #[error("{length} bytes, but the region was made for at most {max}")]
    TooLong {
        /// Bytes to map.
        length: u64,
        /// Bytes it can stand for.
        max: u64,
    },
    /// The range is not one.
    #[error(transparent)]
    Range(#[from] RegMrError),
}

impl MapMrError {
    /// The errno of the C function.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Range(error) => error.errno(),
            Self::NoSuchRegion { .. } | Self::Valid { .. } | Self::TooLong { .. } => {
                crate::errno::EINVAL
            }
        }
    }
}

impl MemoryTable {
    /// Makes a region for fast registration of at most `max_pages` pages of [`PAGE_SIZE`] bytes;
    /// nothing can be accessed by its keys yet.
    ///
    /// Counterpart of `ib_alloc_mr` with `IB_MR_TYPE_MEM_REG`.
    /// [`deregister`](Self::deregister) frees it.
    ///
    /// # Errors
    ///
    /// [`RegMrError::TooMany`].
    pub fn alloc_mr(&self, pd: PdId, max_pages: u32) -> Result<MrKeys, RegMrError> {
        let (index, variant) = self.allocate()?;
        let key = index << 8 | u32::from(variant);
        let max_length = u64::from(max_pages) * PAGE_SIZE;
        let region = FastRegion { pd, key, max_length, mapping: None };
        self.objects.lock().fast.insert(index, region);
        Ok(MrKeys { lkey: LKey::new(key), rkey: RKey::new(key) })
    }

    /// Says which memory a region stands for once a REG_MR request has made it valid: `length`
    /// bytes of `backing` from `offset` on, under the addresses from `iova` on.
    ///
    /// Counterpart of `ib_map_mr_sg`, with one piece of memory.
    ///
    /// # Errors
    ///
    /// [`MapMrError`]; the region is as before.
    pub fn map_mr(
        &self,
        keys: MrKeys,
        backing: Arc<dyn Backing>,
        offset: usize,
        length: u64,
        iova: u64,
    ) -> Result<(), MapMrError> {
        check_range(&*backing, offset, length, iova)?;
        let (key, index) = (keys.lkey, keys.lkey.get() >> 8);
        let mut objects = self.objects.lock();
        let region = objects.fast.get_mut(&index).filter(|region| region.key == key.get());
        let Some(region) = region else { return Err(MapMrError::NoSuchRegion { key }) };
        if self.is_filled(index) {
            return Err(MapMrError::Valid { key });
        }
        if length > region.max_length {
            return Err(MapMrError::TooLong { length, max: region.max_length });
        }
        region.mapping = Some(Mapping { backing, offset, length, iova });
        Ok(())
    }

    /// Makes a region valid, under a key of which only the low byte may be new (REG_MR).
    pub(crate) fn register_fast(
        &self,
        holder: Holder,
        key: u32,
        access: AccessFlags,
    ) -> Result<(), KeyError> {
        let mut objects = self.objects.lock();
        let index = key >> 8;
        let Some(region) = objects.fast.get_mut(&index) else {
            return Err(KeyError::WrongKind { key, needed: "a region for fast registration" });
        };
        if region.pd != holder.pd {
            return Err(KeyError::OtherPd { key });
        }
        if self.is_filled(index) {
            return Err(KeyError::NotFree { key });
        }
        check_access(access)?;
        let Some(Mapping { backing, offset, length, iova }) = region.mapping.clone() else {
            return Err(KeyError::NotMapped { key });
        };
        region.key = key;
        let iova = if access.contains(AccessFlags::ZERO_BASED) { 0 } else { iova };
        let (access, memory) = (access | Region::LOCAL, Some(Registered::new(backing)));
        let (variant, pd, qpn) = (key as u8, region.pd, None);
        self.fill(index, Region { variant, pd, qpn, iova, length, access, offset, memory });
        Ok(())
    }

    /// Makes a key invalid, for a request of the own queue (LOCAL_INV) or of the peer (SEND with
    /// invalidate): of a region for fast registration, or of a window of type 2.
    ///
    /// R41: nothing else can be invalidated, and the whole key must be right.
    pub(crate) fn invalidate(&self, holder: Holder, key: u32) -> Result<(), KeyError> {
        let mut objects = self.objects.lock();
        let index = key >> 8;
        if objects.windows.contains_key(&index) {
            return self.invalidate_window(&mut objects, holder, key);
        }
        let Some(region) = objects.fast.get(&index) else {
            let needed = "a region for fast registration, or a window of type 2";
            return Err(KeyError::WrongKind { key, needed });
        };
        if region.key != key {
            return Err(KeyError::NoSuchKey { key });
        }
        if region.pd != holder.pd {
            return Err(KeyError::OtherPd { key });
        }
        // R42.
        let windows = objects.of_region(index).len();
        if windows > 0 {
            return Err(KeyError::WindowsBound { key, windows });
        }
        self.empty(index);
        Ok(())
    }
}
