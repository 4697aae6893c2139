//! GIDs of ports.

use std::ffi::c_int;

use ibverbs_api::{GidEntry, GidType, QueryError, QueryGidError};

use crate::call::{MinusOne, Negative, Positive, Refused, answer};
use crate::context::Context;
use crate::handles::live;
use crate::memory::{put, put_sized};
use crate::types::{ibv_context, ibv_gid, ibv_gid_entry};

fn gid_entry(entry: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: entry.gid.raw() },
        gid_index: entry.gid_index,
        port_num: entry.port_num,
        gid_type: entry.gid_type as u32,
        ndev_ifindex: entry.ifindex,
    }
}

fn index(index: c_int) -> Result<u32, Refused> {
    u32::try_from(index).map_err(|_| Refused::invalid("a GID index is not negative"))
}

/// `ibv_query_gid(3)`: zero where the index has no entry.
pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_num: u8,
    gid_index: c_int,
    gid: *mut ibv_gid,
) -> MinusOne {
    answer("ibv_query_gid", || {
        let found = live::<Context>(context)?.facade()?.query_gid(port_num, index(gid_index)?)?;
        // SAFETY: the program wants the GID there.
        unsafe { put(gid, ibv_gid { raw: found.raw() }) }
    })
}

/// `ibv_query_gid_ex(3)`; the size is that of the program's struct.
pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> Positive {
    answer("ibv_query_gid_ex", || {
        no_flags(flags)?;
        let port = u8::try_from(port_num).map_err(|_| Refused::invalid("there is no such port"))?;
        let found = live::<Context>(context)?.facade()?.query_gid_ex(port, gid_index)?;
        // SAFETY: the program says how much room there is.
        unsafe { put_sized(entry, gid_entry(&found), entry_size) }
    })
}

/// `ibv_query_gid_table(3)`; the size is that of the program's struct.
pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> Negative {
    answer("ibv_query_gid_table", || {
        no_flags(flags)?;
        let found = live::<Context>(context)?.facade()?.query_gid_table()?;
        if found.len() > max_entries {
            let why = format!("{} GIDs do not fit in {max_entries} entries", found.len());
            return Err(Refused::invalid(why));
        }
        for (index, entry) in found.iter().enumerate() {
            // SAFETY: there is room for more entries than that, each of this size.
            unsafe {
                let to = entries.byte_add(index * entry_size);
                put_sized(to, gid_entry(entry), entry_size)?;
            }
        }
        Ok(found.len() as isize)
    })
}

fn no_flags(flags: u32) -> Result<(), Refused> {
    if flags == 0 { Ok(()) } else { Err(Refused::invalid("flags must be 0: there are none")) }
}

/// `IBV_GID_TYPE_SYSFS_IB_ROCE_V1` and `IBV_GID_TYPE_SYSFS_ROCE_V2`.
const SYSFS_ROCE_V1: u32 = 0;
const SYSFS_ROCE_V2: u32 = 1;

/// `ibv_query_gid_type`, which ibv_devinfo uses: the type as sysfs tells it, where an index without
/// an entry counts as RoCE v1.
pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    gid_index: u32,
    to: *mut u32,
) -> MinusOne {
    answer("ibv_query_gid_type", || {
        let found = match live::<Context>(context)?.facade()?.query_gid_ex(port_num, gid_index) {
            Ok(entry) if entry.gid_type == GidType::RoceV2 => SYSFS_ROCE_V2,
            Ok(_) | Err(QueryError::Gid(QueryGidError::Empty { .. })) => SYSFS_ROCE_V1,
            Err(error) => return Err(error.into()),
        };
        // SAFETY: the program wants the type there.
        unsafe { put(to, found) }
    })
}
