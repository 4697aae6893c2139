//! Ports and their partition keys.

use std::ffi::c_int;

use ibverbs_api::PortAttr;

use crate::call::{Count, MinusOne, Positive, Refused, answer};
use crate::context::Context;
use crate::handles::live;
use crate::memory::{put, put_sized};
use crate::types::{ibv_context, ibv_port_attr};

/// Bytes of the struct that programs had before `port_cap_flags2` (`_compat_ibv_port_attr`).
const COMPAT_SIZE: usize = 48;

/// `IBV_QPF_GRH_REQUIRED`: addresses are GIDs.
const GRH_REQUIRED: u8 = 1;

fn port_attr(facade: &PortAttr) -> ibv_port_attr {
    ibv_port_attr {
        state: facade.state as u32,
        max_mtu: facade.max_mtu as u32,
        active_mtu: facade.active_mtu as u32,
        gid_tbl_len: c_int::try_from(facade.gid_tbl_len).unwrap_or(c_int::MAX),
        port_cap_flags: facade.capabilities.bits(),
        max_msg_sz: facade.max_msg_sz,
        pkey_tbl_len: facade.pkey_tbl_len,
        lid: facade.lid,
        max_vl_num: facade.max_vl_num,
        active_width: facade.active_width as u8,
        active_speed: facade.active_speed as u8,
        phys_state: facade.phys_state as u8,
        link_layer: facade.link_layer as u8,
        flags: if facade.grh_required { GRH_REQUIRED } else { 0 },
        ..ibv_port_attr::zeroed()
    }
}

/// `ibv_query_port(3)`, which `verbs.h` calls by a pointer.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    attr_size: usize,
) -> Positive {
    answer("ibv_query_port", || {
        let port = live::<Context>(context)?.facade()?.query_port(port_num)?;
        // SAFETY: the program says how much room there is.
        unsafe { put_sized(attr, port_attr(&port), attr_size) }
    })
}

/// `ibv_query_port(3)`, as older programs call it: their struct is shorter.
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
) -> Positive {
    // SAFETY: the program's struct has as many bytes.
    unsafe { query_port(context, port_num, attr, COMPAT_SIZE) }
}

fn pkey(context: *mut ibv_context, port_num: u8, index: c_int) -> Result<u16, Refused> {
    let index = u16::try_from(index);
    let index = index.map_err(|_| Refused::invalid("a partition key index is a number of 16 bits"));
    Ok(live::<Context>(context)?.facade()?.query_pkey(port_num, index?)?.get())
}

/// `ibv_query_pkey(3)`: in network order.
pub(crate) unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    to: *mut u16,
) -> MinusOne {
    answer("ibv_query_pkey", || {
        let found = pkey(context, port_num, index)?;
        // SAFETY: the program wants the key there.
        unsafe { put(to, found.to_be()) }
    })
}

/// `ibv_get_pkey_index(3)`: of a key in network order.
pub(crate) unsafe extern "C" fn ibv_get_pkey_index(
    context: *mut ibv_context,
    port_num: u8,
    wanted: u16,
) -> Count {
    answer("ibv_get_pkey_index", || {
        let mut index = 0;
        // Ends with the table.
        while pkey(context, port_num, index)? != u16::from_be(wanted) {
            index += 1;
        }
        Ok(index)
    })
}
