//! Registered memory.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use ibverbs_api::{
    AccessFlags, Backing, MemoryRegion, NullRegion, Rereg, UserMemory, catch_faults,
};
use parking_lot::{Mutex, MutexGuard};

use crate::call::{MinusOne, Pointer, Positive, Refused, answer, missing};
use crate::dm::Dm;
use crate::handles::{Held, Object, Shown, Users, live, object};
use crate::memory::list;
use crate::pd::Pd;
use crate::types::{ibv_dm, ibv_mr, ibv_pd, ibv_sge};

missing! {
    EOPNOTSUPP as Pointer<ibv_mr>:
        ibv_reg_dmabuf_mr;
}

/// Registered memory.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Mr {
    pub(crate) c: Shown<ibv_mr>,
    users: Users,
    /// Shared with those that are imports of it. None when it has been deregistered.
    region: Arc<Mutex<Option<Region>>>,
    pub(crate) pd: Mutex<Held<Pd>>,
    _dm: Option<Held<Dm>>,
    is_import: bool,
}

/// What is registered.
#[derive(Debug)]
enum Region {
    Memory(MemoryRegion),
    Null(NullRegion),
}

object!(Mr, ibv_mr, "memory region");

/// The low bits of a key, which change with each registration under its number.
const VARIANT_BITS: u32 = 8;

impl Region {
    /// The local key and the remote one.
    fn keys(&self) -> (u32, u32) {
        match self {
            Self::Memory(region) => (region.lkey().get(), region.rkey().get()),
            // No peer can have it.
            Self::Null(region) => (region.lkey().get(), 0),
        }
    }
}

/// Flags that a device may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
const OPTIONAL: u32 = 0x3ff0_0000;

/// Access as the program names it.
pub(crate) fn access_flags(access: u32) -> Result<AccessFlags, Refused> {
    let access = access & !(OPTIONAL & !AccessFlags::RELAXED_ORDERING.bits());
    AccessFlags::from_bits(access)
        .ok_or_else(|| Refused::invalid(format!("access 0x{access:x} has unknown flags")))
}

/// Memory of the program. It is there now, as an adapter wants it, unless it is on demand.
pub(crate) fn user_memory(
    addr: *mut c_void,
    length: usize,
    access: AccessFlags,
) -> Result<UserMemory, Refused> {
    // Each time: the program may have installed handlers of its own since the last one.
    catch_faults()?;
    // SAFETY: the program promises, by registering it, that the memory is its own to share, and
    // stays until it is deregistered; where that does not hold, the access faults, and the fault is
    // caught (rxe-core, `mem`).
    let memory = unsafe { UserMemory::new(addr.cast(), length) }?;
    if !access.contains(AccessFlags::ON_DEMAND) {
        let populated = memory.populate(access.intersects(WRITES));
        populated.map_err(|fault| Refused::new(libc::EFAULT, fault.to_string()))?;
    }
    Ok(memory)
}

/// What memory must be writable for (`ib_access_writable` of Linux).
const WRITES: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::MW_BIND);

fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> Result<*mut ibv_mr, Refused> {
    let held = Held::<Pd>::get(pd)?;
    let access = access_flags(access)?;
    let memory = user_memory(addr, length, access)?;
    let region = held.facade.register_at(memory, iova, access)?;
    Ok(publish(held, addr, length, Region::Memory(region), None))
}

/// Lets the program have a region that the facade has made.
fn publish(
    pd: Held<Pd>,
    addr: *mut c_void,
    length: usize,
    region: Region,
    dm: Option<Held<Dm>>,
) -> *mut ibv_mr {
    let (lkey, rkey) = region.keys();
    let c = Shown::new(ibv_mr {
        context: pd.context.handle(),
        pd: pd.handle(),
        addr,
        length,
        handle: lkey >> VARIANT_BITS,
        lkey,
        rkey,
    });
    let region = Arc::new(Mutex::new(Some(region)));
    let (users, pd, is_import) = (Users::default(), Mutex::new(pd), false);
    Mr::table().publish(Arc::new(Mr { c, users, region, pd, _dm: dm, is_import }))
}

impl Mr {
    /// What the program imports it by: the part of its keys that never changes.
    fn handle_number(&self) -> u32 {
        // SAFETY: it is there, and this word never changes.
        unsafe { (*self.c.as_ptr()).handle }
    }

    /// What the program sees of it. Another thread may register it anew, but for the lock.
    fn shown(&self, _region: &MutexGuard<'_, Option<Region>>) -> ibv_mr {
        // SAFETY: it is there, and only changes with the lock held.
        unsafe { *self.c.as_ptr() }
    }

    /// Whether it is registered, under this local key.
    fn has_key(&self, lkey: u32) -> bool {
        self.handle_number() == lkey >> VARIANT_BITS
            && self.region.lock().as_ref().is_some_and(|region| region.keys().0 == lkey)
    }

    /// Ends the registration, unless an import of it has already done so.
    fn end(&self) -> Result<(), Refused> {
        let mut region = self.region.lock();
        match region.take() {
            Some(Region::Memory(memory)) => {
                if let Err(error) = memory.deregister() {
                    let refused = Refused::new(error.errno(), error.to_string());
                    *region = Some(Region::Memory(error.object));
                    return Err(refused);
                }
            }
            Some(Region::Null(null)) => drop(null),
            None => {}
        }
        Ok(())
    }
}

/// `ibv_reg_mr(3)`.
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> Pointer<ibv_mr> {
    answer("ibv_reg_mr", || register(pd, addr, length, addr.addr() as u64, access as u32))
}

/// `ibv_reg_mr_iova(3)`.
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> Pointer<ibv_mr> {
    answer("ibv_reg_mr_iova", || register(pd, addr, length, iova, access as u32))
}

/// `ibv_reg_mr_iova2`, which the macros of `verbs.h` call.
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> Pointer<ibv_mr> {
    answer("ibv_reg_mr_iova2", || register(pd, addr, length, iova, access))
}

/// `ibv_dereg_mr(3)`: `EBUSY` while a memory window is bound to it (R42).
///
/// Deregistering an import deregisters the memory itself; whoever has other handles of it can only
/// let go of them, as the man page of `ibv_import_mr` demands.
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> Positive {
    answer("ibv_dereg_mr", || {
        live::<Mr>(mr)?.end()?;
        Mr::table().withdraw(mr).map(drop)
    })
}

/// Bits of `flags` (`enum ibv_rereg_mr_flags`).
const CHANGE_TRANSLATION: c_int = 1;
const CHANGE_PD: c_int = 1 << 1;
const CHANGE_ACCESS: c_int = 1 << 2;

/// `ibv_rereg_mr(3)`: whatever is refused leaves the old registration as it was, which is what -1
/// says (`IBV_REREG_MR_ERR_INPUT`); errno says why.
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> MinusOne {
    answer("ibv_rereg_mr", || {
        if flags == 0 || flags & !(CHANGE_TRANSLATION | CHANGE_PD | CHANGE_ACCESS) != 0 {
            return Err(Refused::invalid("flags must say what changes, with no unknown bits"));
        }
        if flags & CHANGE_TRANSLATION != 0 && (addr.is_null() || length == 0) {
            return Err(Refused::invalid("another translation needs an address and a length"));
        }
        if flags & CHANGE_ACCESS == 0 && access != 0 {
            return Err(Refused::invalid("access is given, but IBV_REREG_MR_CHANGE_ACCESS is not"));
        }
        let object = live::<Mr>(mr)?;
        let new_pd = (flags & CHANGE_PD != 0).then(|| Held::<Pd>::get(pd)).transpose()?;
        let mut region = object.region.lock();
        let Some(Region::Memory(memory)) = &mut *region else {
            return Err(Refused::invalid("a null region cannot be changed"));
        };
        let access = (flags & CHANGE_ACCESS != 0).then(|| access_flags(access as u32));
        let access = access.transpose()?;
        let buffer = if flags & CHANGE_TRANSLATION != 0 {
            let access = access.unwrap_or_else(|| memory.access());
            Some(Arc::new(user_memory(addr, length, access)?) as Arc<dyn Backing>)
        } else {
            None
        };
        memory.reregister(Rereg { buffer, pd: new_pd.as_ref().map(|pd| &pd.facade), access })?;
        let (lkey, rkey) = (memory.lkey().get(), memory.rkey().get());
        let mut shown = object.shown(&region);
        (shown.lkey, shown.rkey) = (lkey, rkey);
        if flags & CHANGE_TRANSLATION != 0 {
            (shown.addr, shown.length) = (addr, length);
        }
        if let Some(new_pd) = new_pd {
            shown.pd = pd;
            *object.pd.lock() = new_pd;
        }
        // SAFETY: it is there, and the program expects these words to change.
        unsafe { *object.c.as_ptr() = shown };
        Ok(())
    })
}

/// `ibv_alloc_null_mr(3)`, which `verbs.h` calls by a pointer.
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> Pointer<ibv_mr> {
    answer("ibv_alloc_null_mr", || {
        let held = Held::<Pd>::get(pd)?;
        let region = held.facade.alloc_null_mr()?;
        Ok(publish(held, ptr::null_mut(), usize::MAX, Region::Null(region), None))
    })
}

/// `ibv_reg_dm_mr(3)`, which `verbs.h` calls by a pointer.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
    access: c_uint,
) -> Pointer<ibv_mr> {
    answer("ibv_reg_dm_mr", || {
        let access = access_flags(access)?;
        if !access.contains(AccessFlags::ZERO_BASED) {
            return Err(Refused::invalid("access to device memory needs IBV_ACCESS_ZERO_BASED"));
        }
        let (held, dm) = (Held::<Pd>::get(pd)?, Held::<Dm>::get(dm)?);
        let start = usize::try_from(dm_offset).ok();
        let end = start.and_then(|start| start.checked_add(length));
        let (Some(start), Some(end)) = (start, end) else {
            return Err(Refused::invalid("the range leaves the device memory"));
        };
        let region = held.facade.register_dm(&dm.facade, start..end, access)?;
        Ok(publish(held, ptr::null_mut(), length, Region::Memory(region), Some(dm)))
    })
}

/// `ibv_import_mr(3)`: the address of an import is NULL.
pub(crate) unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> Pointer<ibv_mr> {
    answer("ibv_import_mr", || {
        let held = Held::<Pd>::get(pd)?;
        let is_it = |mr: &Mr| {
            mr.handle_number() == mr_handle
                && mr.region.lock().is_some()
                && mr.pd.lock().context.is_same(&held.context)
        };
        let Some(known) = Mr::table().find(is_it) else {
            let why = format!("the context has no memory region of handle {mr_handle}");
            return Err(Refused::new(libc::ENOENT, why));
        };
        let c = Shown::new(ibv_mr {
            context: held.context.handle(),
            pd,
            addr: ptr::null_mut(),
            ..known.shown(&known.region.lock())
        });
        let (region, pd) = (known.region.clone(), Mutex::new(held));
        let import = Mr { c, users: Users::default(), region, pd, _dm: None, is_import: true };
        Ok(Mr::table().publish(Arc::new(import)))
    })
}

/// `ibv_unimport_mr(3)`: the registration itself stays.
pub(crate) unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    answer::<()>("ibv_unimport_mr", || {
        if !live::<Mr>(mr)?.is_import {
            return Err(Refused::invalid("this memory region was not imported"));
        }
        Mr::table().forget(mr).map(drop)
    })
}

/// Values of `enum ibv_advise_mr_advice`.
const PREFETCH: u32 = 0;
const PREFETCH_WRITE: u32 = 1;
const PREFETCH_NO_FAULT: u32 = 2;

/// `IBV_ADVISE_MR_FLAG_FLUSH`: the call returns when it is done, as it does anyway.
const FLUSH: u32 = 1;

/// `ibv_advise_mr(3)`, which `verbs.h` calls by a pointer.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: u32,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sge: u32,
) -> Positive {
    answer("ibv_advise_mr", || {
        if flags & !FLUSH != 0 {
            return Err(Refused::invalid("flags has unknown bits"));
        }
        if !matches!(advice, PREFETCH | PREFETCH_WRITE | PREFETCH_NO_FAULT) {
            return Err(Refused::new(libc::EOPNOTSUPP, format!("there is no advice {advice}")));
        }
        let pd = live::<Pd>(pd)?;
        if num_sge == 0 || sg_list.is_null() {
            return Err(Refused::invalid("no range is given"));
        }
        // SAFETY: the program has a list of so many.
        for sge in unsafe { list(sg_list, num_sge as usize) } {
            prefetch(&pd, advice, sge)?;
        }
        Ok(())
    })
}

/// Makes pages of a region for on-demand paging present. The errors are those of the man page.
fn prefetch(pd: &Pd, advice: u32, sge: &ibv_sge) -> Result<(), Refused> {
    let is_it = |mr: &Mr| mr.has_key(sge.lkey) && mr.pd.lock().context.is_same(&pd.context);
    let Some(mr) = Mr::table().find(is_it) else {
        return Err(Refused::new(libc::EFAULT, format!("0x{:x} is no local key", sge.lkey)));
    };
    if !mr.pd.lock().is_within(pd) {
        return Err(Refused::new(libc::EPERM, "the region is of another protection domain"));
    }
    let region = mr.region.lock();
    let Some(Region::Memory(memory)) = &*region else {
        return Err(Refused::invalid("the region has no memory"));
    };
    if !memory.access().contains(AccessFlags::ON_DEMAND) {
        return Err(Refused::invalid("the region was not registered with IBV_ACCESS_ON_DEMAND"));
    }
    let writes = advice == PREFETCH_WRITE;
    if writes && !memory.access().intersects(WRITES) {
        return Err(Refused::new(libc::EPERM, "the region is not registered as writable"));
    }
    let from = sge.addr.checked_sub(memory.addr()).and_then(|at| usize::try_from(at).ok());
    let end = from.and_then(|from| from.checked_add(sge.length as usize));
    let (Some(from), Some(end)) = (from, end) else {
        return Err(Refused::new(libc::EFAULT, "the range leaves the region"));
    };
    if end > memory.len() {
        return Err(Refused::new(libc::EFAULT, "the range leaves the region"));
    }
    if advice == PREFETCH_NO_FAULT {
        // What is not there stays so; what is there needs nothing.
        return Ok(());
    }
    let base = memory.buffer().base().wrapping_add(from);
    // SAFETY: a part of what the program has registered; faults are caught since then.
    let pages = unsafe { UserMemory::new(base, sge.length as usize) }?;
    pages.populate(writes).map_err(|fault| Refused::new(libc::EFAULT, fault.to_string()))
}
