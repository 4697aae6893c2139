//! Changing a registration (`ibv_rereg_mr`).

use rxe_wire::{LKey, RKey};

use super::bytes::Registered;
use super::region::{AccessFlags, Region};
use super::{Mapping, MemoryTable, MrKeys, RegMrError, check_access, check_range};
use crate::pd::PdId;

/// What is changed of a registration; `None` leaves it as it is (`enum ibv_rereg_mr_flags`).
#[derive(Clone, Debug, Default)]
pub struct ReregMr {
    /// Other memory (`IBV_REREG_MR_CHANGE_TRANSLATION`); the keys are others then too.
    pub translation: Option<Mapping>,
    /// Another protection domain (`IBV_REREG_MR_CHANGE_PD`).
    pub pd: Option<PdId>,
    /// Other access (`IBV_REREG_MR_CHANGE_ACCESS`).
    pub access: Option<AccessFlags>,
}

/// Why a registration cannot be changed (`ibv_rereg_mr`); it is as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReregMrError {
    /// There is none with this key, or not one of memory that a program has registered.
    #[error("key {key} is no registration that can be changed")]
    NoSuchKey {
        /// The key that was given.
        key: LKey,
    },
    /// Windows are bound to it (R42).
    #[error("{windows} memory windows are bound to key {key}: unbind, invalidate or free them")]
    WindowsBound {
        /// The key that was given.
        key: LKey,
        /// How many windows.
        windows: usize,
    },
    /// It could not be registered so.
    #[error(transparent)]
    Registration(#[from] RegMrError),
}

impl ReregMrError {
    /// The errno that `ibv_rereg_mr` sets. What it returns is `IBV_REREG_MR_ERR_INPUT`, -1: the old
    /// registration is valid.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoSuchKey { .. } => crate::errno::EINVAL,
            Self::WindowsBound { .. } => crate::errno::EBUSY,
            Self::Registration(error) => error.errno(),
        }
    }
}

impl MemoryTable {
    /// Changes a registration, at once for everybody: an access sees all of the old one or all of
    /// the new one. Gives the keys, which are others if the memory is.
    ///
    /// Counterpart of `ibv_rereg_mr`.
    ///
    /// # Errors
    ///
    /// [`ReregMrError`]; nothing has changed then.
    pub fn reregister(&self, keys: MrKeys, change: ReregMr) -> Result<MrKeys, ReregMrError> {
        let (key, index) = (keys.lkey, keys.lkey.get() >> 8);
        let objects = self.objects.lock();
        let windows = objects.of_region(index).len();
        if windows > 0 {
            return Err(ReregMrError::WindowsBound { key, windows });
        }
        let no_such_key = ReregMrError::NoSuchKey { key };
        let slot = self.slot(index).filter(|_| !objects.fast.contains_key(&index));
        let mut guard = slot.ok_or(no_such_key)?.0.write();
        let Some(region) = guard.as_mut().filter(|region| {
            u32::from(region.variant) == key.get() & 0xff
                && region.access.contains(Region::LOCAL)
                && region.memory.is_some()
        }) else {
            return Err(no_such_key);
        };
        // All checks first, then all changes.
        let access = change.access.unwrap_or(region.access - Region::LOCAL);
        check_access(access)?;
        if let Some(Mapping { backing, offset, length, iova }) = &change.translation {
            check_range(&**backing, *offset, *length, *iova)?;
        }
        if let Some(Mapping { backing, offset, length, iova }) = change.translation {
            (region.memory, region.offset) = (Some(Registered::new(backing)), offset);
            (region.length, region.iova) = (length, iova);
            region.variant = self.another_variant(region.variant);
        }
        if access.contains(AccessFlags::ZERO_BASED) {
            region.iova = 0;
        }
        region.access = access | Region::LOCAL;
        region.pd = change.pd.unwrap_or(region.pd);
        let key = index << 8 | u32::from(region.variant);
        Ok(MrKeys { lkey: LKey::new(key), rkey: RKey::new(key) })
    }
}
