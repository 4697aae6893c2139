//! Completions.

use core::ffi::{c_int, c_void};

use super::context::ibv_context;
use super::pd::ibv_pd;
use crate::call::Positive;

abi_struct! {
    /// A work completion.
    struct ibv_wc(48) {
        0 wr_id: u64,
        8 status: u32,
        12 opcode: u32,
        16 vendor_err: u32,
        20 byte_len: u32,
        24 imm_data: u32,
        28 qp_num: u32,
        32 src_qp: u32,
        36 wc_flags: u32,
        40 pkey_index: u16,
        42 slid: u16,
        44 sl: u8,
        45 dlid_path_bits: u8,
    }
}

abi_struct! {
    /// Where events of completion queues arrive.
    struct ibv_comp_channel(16) {
        0 context: *mut ibv_context,
        8 fd: c_int,
        12 refcnt: c_int,
    }
}

abi_struct! {
    /// A completion queue.
    struct ibv_cq(128) {
        0 context: *mut ibv_context,
        8 channel: *mut ibv_comp_channel,
        16 cq_context: *mut c_void,
        24 handle: u32,
        28 cqe: c_int,
        32 mutex: libc::pthread_mutex_t,
        72 cond: libc::pthread_cond_t,
        120 comp_events_completed: u32,
        124 async_events_completed: u32,
    }
}

abi_struct! {
    /// How `start_poll` polls; nothing yet.
    struct ibv_poll_cq_attr(4) {
        0 comp_mask: u32,
    }
}

abi_struct! {
    /// What tag matching found; nothing here.
    struct ibv_wc_tm_info(16) {
        0 tag: u64,
        8 r#priv: u32,
    }
}

abi_struct! {
    /// A completion queue that is read one completion after the other.
    struct ibv_cq_ex(288) {
        0 context: *mut ibv_context,
        8 channel: *mut ibv_comp_channel,
        16 cq_context: *mut c_void,
        24 handle: u32,
        28 cqe: c_int,
        32 mutex: libc::pthread_mutex_t,
        72 cond: libc::pthread_cond_t,
        120 comp_events_completed: u32,
        124 async_events_completed: u32,
        128 comp_mask: u32,
        132 status: u32,
        136 wr_id: u64,
        144 start_poll: Option<
            unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> Positive,
        >,
        152 next_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> Positive>,
        160 end_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex)>,
        168 read_opcode: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        176 read_vendor_err: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        184 read_byte_len: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        192 read_imm_data: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        200 read_qp_num: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        208 read_src_qp: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        216 read_wc_flags: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        224 read_slid: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        232 read_sl: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u8>,
        240 read_dlid_path_bits: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u8>,
        248 read_completion_ts: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u64>,
        256 read_cvlan: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u16>,
        264 read_flow_tag: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        272 read_tm_info: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_wc_tm_info)>,
        280 read_completion_wallclock_ns: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u64>,
    }
}

abi_struct! {
    /// How an extended completion queue is made.
    struct ibv_cq_init_attr_ex(56) {
        0 cqe: u32,
        8 cq_context: *mut c_void,
        16 channel: *mut ibv_comp_channel,
        24 comp_vector: u32,
        32 wc_flags: u64,
        40 comp_mask: u32,
        44 flags: u32,
        48 parent_domain: *mut ibv_pd,
    }
}

abi_struct! {
    /// How far events lag behind completions.
    struct ibv_moderate_cq(4) {
        0 cq_count: u16,
        2 cq_period: u16,
    }
}

abi_struct! {
    /// What `ibv_modify_cq` changes.
    struct ibv_modify_cq_attr(8) {
        0 attr_mask: u32,
        4 moderate: ibv_moderate_cq,
    }
}
