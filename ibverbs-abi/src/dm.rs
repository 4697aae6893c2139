//! Device memory.

use std::ffi::c_void;
use std::fmt::Display;
use std::slice;
use std::sync::Arc;

use ibverbs_api::DeviceMemory;

use crate::call::{Pointer, Positive, Refused, answer};
use crate::context::Context;
use crate::handles::{Held, Object, Shown, Users, live, next_number, object};
use crate::memory::get;
use crate::types::{ibv_alloc_dm_attr, ibv_context, ibv_dm};

/// Device memory.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Dm {
    c: Shown<ibv_dm>,
    /// Shared with those that are imports of it.
    users: Arc<Users>,
    pub(crate) facade: DeviceMemory,
    pub(crate) context: Held<Context>,
    /// What a program imports it by.
    number: u32,
    is_import: bool,
}

object!(Dm, ibv_dm, "piece of device memory");

impl Dm {
    fn new(context: Held<Context>, facade: DeviceMemory, number: u32) -> Self {
        let c = Shown::new(ibv_dm {
            context: context.handle(),
            memcpy_to_dm: Some(memcpy_to_dm),
            memcpy_from_dm: Some(memcpy_from_dm),
            comp_mask: 0,
            handle: number,
        });
        Self { c, users: Arc::default(), facade, context, number, is_import: false }
    }
}

/// `ibv_alloc_dm(3)`, which `verbs.h` calls by a pointer.
pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> Pointer<ibv_dm> {
    answer("ibv_alloc_dm", || {
        // SAFETY: the program points to how it is to be.
        let attr = unsafe { get(attr) }?;
        if attr.comp_mask != 0 {
            return Err(Refused::invalid("comp_mask must be 0: there is nothing more to ask for"));
        }
        let held = Held::<Context>::get(context)?;
        let facade = held.facade()?.alloc_dm(attr.length as u64, attr.log_align_req)?;
        Ok(Dm::table().publish(Arc::new(Dm::new(held, facade, next_number()))))
    })
}

/// `ibv_free_dm(3)`: `EBUSY` while a region of it is registered.
pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> Positive {
    answer("ibv_free_dm", || Dm::table().withdraw(dm).map(drop))
}

/// Device memory is copied by words of so many bytes, as on adapters that have some: programs, and
/// rdma-core's tests, take the rest for an error.
const WORD: usize = 4;

/// An offset into device memory, as a number of this machine.
fn offset(offset: u64, length: usize) -> Result<usize, Refused> {
    let offset = usize::try_from(offset).map_err(beyond)?;
    if !offset.is_multiple_of(WORD) || !length.is_multiple_of(WORD) {
        let why = format!("offset {offset} and length {length} must be multiples of {WORD}");
        return Err(Refused::new(libc::EFAULT, why));
    }
    Ok(offset)
}

/// `EFAULT`: the range leaves the device memory.
fn beyond(error: impl Display) -> Refused {
    Refused::new(libc::EFAULT, format!("the range leaves the device memory: {error}"))
}

/// `ibv_memcpy_to_dm(3)`, which `verbs.h` calls by a pointer.
unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    dm_offset: u64,
    host_addr: *const c_void,
    length: usize,
) -> Positive {
    answer("ibv_memcpy_to_dm", || {
        let dm = live::<Dm>(dm)?;
        let at = offset(dm_offset, length)?;
        if length > dm.facade.len() || host_addr.is_null() && length > 0 {
            return Err(beyond(format!("{length} bytes from {host_addr:p}")));
        }
        // SAFETY: the program says that so many bytes are there.
        let from = unsafe { crate::memory::list(host_addr.cast::<u8>(), length) };
        dm.facade.write_at(at, from).map_err(beyond)
    })
}

/// `ibv_memcpy_from_dm(3)`, which `verbs.h` calls by a pointer.
unsafe extern "C" fn memcpy_from_dm(
    host_addr: *mut c_void,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
) -> Positive {
    answer("ibv_memcpy_from_dm", || {
        let dm = live::<Dm>(dm)?;
        let at = offset(dm_offset, length)?;
        if length > dm.facade.len() || host_addr.is_null() && length > 0 {
            return Err(beyond(format!("{length} bytes to {host_addr:p}")));
        }
        let to: &mut [u8] = match length {
            0 => &mut [],
            // SAFETY: the program says that there is room for so many bytes, and waits.
            _ => unsafe { slice::from_raw_parts_mut(host_addr.cast(), length) },
        };
        dm.facade.read_at(at, to).map_err(beyond)
    })
}

/// `ibv_import_dm(3)`.
pub(crate) unsafe extern "C" fn ibv_import_dm(
    context: *mut ibv_context,
    dm_handle: u32,
) -> Pointer<ibv_dm> {
    answer("ibv_import_dm", || {
        let held = Held::<Context>::get(context)?;
        let is_it = |dm: &Dm| dm.number == dm_handle && dm.context.is_same(&held);
        let Some(known) = Dm::table().find(is_it) else {
            let why = format!("the context has no device memory of handle {dm_handle}");
            return Err(Refused::new(libc::ENOENT, why));
        };
        let import = Dm::new(held, known.facade.clone(), dm_handle);
        let import = Dm { users: known.users.clone(), is_import: true, ..import };
        Ok(Dm::table().publish(Arc::new(import)))
    })
}

/// `ibv_unimport_dm(3)`: the memory itself stays.
pub(crate) unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    answer::<()>("ibv_unimport_dm", || {
        if !live::<Dm>(dm)?.is_import {
            return Err(Refused::invalid("this device memory was not imported"));
        }
        Dm::table().forget(dm).map(drop)
    })
}
