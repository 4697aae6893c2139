//! Shared receive queues.

use core::ffi::c_void;

use super::context::ibv_context;
use super::cq::ibv_cq;
use super::pd::{ibv_pd, ibv_xrcd};

abi_struct! {
    /// What a shared receive queue can hold, and when it warns.
    struct ibv_srq_attr(12) {
        0 max_wr: u32,
        4 max_sge: u32,
        8 srq_limit: u32,
    }
}

abi_struct! {
    /// How a shared receive queue is made.
    struct ibv_srq_init_attr(24) {
        0 srq_context: *mut c_void,
        8 attr: ibv_srq_attr,
    }
}

abi_struct! {
    /// Tag matching of a shared receive queue; there is none.
    struct ibv_tm_cap(8) {
        0 max_num_tags: u32,
        4 max_ops: u32,
    }
}

abi_struct! {
    /// How a shared receive queue is made, the later additions included.
    struct ibv_srq_init_attr_ex(64) {
        0 srq_context: *mut c_void,
        8 attr: ibv_srq_attr,
        20 comp_mask: u32,
        24 srq_type: u32,
        32 pd: *mut ibv_pd,
        40 xrcd: *mut ibv_xrcd,
        48 cq: *mut ibv_cq,
        56 tm_cap: ibv_tm_cap,
    }
}

abi_struct! {
    /// A shared receive queue.
    struct ibv_srq(128) {
        0 context: *mut ibv_context,
        8 srq_context: *mut c_void,
        16 pd: *mut ibv_pd,
        24 handle: u32,
        32 mutex: libc::pthread_mutex_t,
        72 cond: libc::pthread_cond_t,
        120 events_completed: u32,
    }
}
