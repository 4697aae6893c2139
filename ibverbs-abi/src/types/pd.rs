//! Protection domains and their kin.

use core::ffi::{c_int, c_void};

use super::context::ibv_context;

abi_struct! {
    /// A protection domain.
    struct ibv_pd(16) {
        0 context: *mut ibv_context,
        8 handle: u32,
    }
}

/// A program's function that gives memory: of a domain, for its own word; size, alignment, and what
/// it is for.
pub(crate) type Alloc =
    unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void;

/// The one that takes it back.
pub(crate) type Free = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64);

abi_struct! {
    /// How a thread domain is made.
    struct ibv_td_init_attr(4) {
        0 comp_mask: u32,
    }
}

abi_struct! {
    /// A thread domain.
    struct ibv_td(8) {
        0 context: *mut ibv_context,
    }
}

abi_struct! {
    /// How a parent domain is made.
    struct ibv_parent_domain_init_attr(48) {
        0 pd: *mut ibv_pd,
        8 td: *mut ibv_td,
        16 comp_mask: u32,
        24 alloc: Option<Alloc>,
        32 free: Option<Free>,
        40 pd_context: *mut c_void,
    }
}

abi_struct! {
    /// How a domain of extended reliable connections is opened.
    struct ibv_xrcd_init_attr(12) {
        0 comp_mask: u32,
        4 fd: c_int,
        8 oflags: c_int,
    }
}

abi_struct! {
    /// A domain of extended reliable connections.
    struct ibv_xrcd(8) {
        0 context: *mut ibv_context,
    }
}
