//! Registered memory.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use ibverbs_api::{AccessFlags, MemoryRegion, UserMemory, catch_faults};
use parking_lot::Mutex;

use crate::call::{Count, Pointer, Positive, Refused, answer, missing};
use crate::handles::{Held, Object, Shown, Users, object};
use crate::pd::Pd;
use crate::types::{ibv_mr, ibv_pd};

missing! {
    EOPNOTSUPP as Pointer<ibv_mr>:
        ibv_reg_dmabuf_mr, ibv_import_mr;
    EOPNOTSUPP as Count:
        ibv_rereg_mr;
    EOPNOTSUPP as ():
        ibv_unimport_mr;
}

/// Registered memory.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Mr {
    pub(crate) c: Shown<ibv_mr>,
    users: Users,
    /// None only when it is being deregistered.
    pub(crate) facade: Mutex<Option<MemoryRegion>>,
    pub(crate) pd: Mutex<Held<Pd>>,
}

object!(Mr, ibv_mr, "memory region");

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
    let c = Shown::new(ibv_mr {
        context: held.context.handle(),
        pd,
        addr,
        length,
        handle: region.lkey().get() >> 8,
        lkey: region.lkey().get(),
        rkey: region.rkey().get(),
    });
    let (facade, pd) = (Mutex::new(Some(region)), Mutex::new(held));
    Ok(Mr::table().publish(Arc::new(Mr { c, users: Users::default(), facade, pd })))
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
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> Positive {
    answer("ibv_dereg_mr", || {
        let object = Mr::table().withdraw(mr)?;
        let region = object.facade.lock().take();
        let Some(Err(error)) = region.map(MemoryRegion::deregister) else { return Ok(()) };
        let refused = Refused::new(error.errno(), error.to_string());
        *object.facade.lock() = Some(error.object);
        Mr::table().publish(object);
        Err(refused)
    })
}
