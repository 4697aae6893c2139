//! Registered memory, windows and device memory.

use core::ffi::c_void;

use super::context::ibv_context;
use super::pd::ibv_pd;
use crate::call::Positive;

abi_struct! {
    /// Registered memory.
    struct ibv_mr(48) {
        0 context: *mut ibv_context,
        8 pd: *mut ibv_pd,
        16 addr: *mut c_void,
        24 length: usize,
        32 handle: u32,
        36 lkey: u32,
        40 rkey: u32,
    }
}

abi_struct! {
    /// What a memory window is bound to.
    struct ibv_mw_bind_info(32) {
        0 mr: *mut ibv_mr,
        8 addr: u64,
        16 length: u64,
        24 mw_access_flags: u32,
    }
}

abi_struct! {
    /// A request to bind a memory window of type 1.
    struct ibv_mw_bind(48) {
        0 wr_id: u64,
        8 send_flags: u32,
        16 bind_info: ibv_mw_bind_info,
    }
}

abi_struct! {
    /// A memory window.
    struct ibv_mw(32) {
        0 context: *mut ibv_context,
        8 pd: *mut ibv_pd,
        16 rkey: u32,
        20 handle: u32,
        24 r#type: u32,
    }
}

abi_struct! {
    /// How much device memory is asked for.
    struct ibv_alloc_dm_attr(16) {
        0 length: usize,
        8 log_align_req: u32,
        12 comp_mask: u32,
    }
}

abi_struct! {
    /// Device memory.
    struct ibv_dm(32) {
        0 context: *mut ibv_context,
        8 memcpy_to_dm: Option<
            unsafe extern "C" fn(*mut ibv_dm, u64, *const c_void, usize) -> Positive,
        >,
        16 memcpy_from_dm: Option<
            unsafe extern "C" fn(*mut c_void, *mut ibv_dm, u64, usize) -> Positive,
        >,
        24 comp_mask: u32,
        28 handle: u32,
    }
}
