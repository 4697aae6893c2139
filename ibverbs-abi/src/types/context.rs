//! Opened devices, and the functions that they offer beside the symbols.

use core::ffi::{c_int, c_void};

use super::attr::{
    ibv_device_attr, ibv_device_attr_ex, ibv_port_attr, ibv_query_device_ex_input, ibv_values_ex,
};
use super::cq::{ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_modify_cq_attr, ibv_wc};
use super::device::ibv_device;
use super::mr::{ibv_alloc_dm_attr, ibv_dm, ibv_mr, ibv_mw, ibv_mw_bind};
use super::pd::{
    ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr, ibv_xrcd, ibv_xrcd_init_attr,
};
use super::qp::{ibv_qp, ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_qp_rate_limit_attr};
use super::srq::{ibv_srq, ibv_srq_init_attr_ex};
use super::wr::{ibv_recv_wr, ibv_send_wr, ibv_sge};
use crate::call::{Count, Pointer, Positive};

abi_struct! {
    /// The functions that the inline ones of `verbs.h` call; the others are NULL.
    struct ibv_context_ops(256) {
        0 _compat_query_device: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> Positive,
        >,
        8 _compat_query_port: Option<unsafe extern "C" fn()>,
        16 _compat_alloc_pd: Option<unsafe extern "C" fn()>,
        24 _compat_dealloc_pd: Option<unsafe extern "C" fn()>,
        32 _compat_reg_mr: Option<unsafe extern "C" fn()>,
        40 _compat_rereg_mr: Option<unsafe extern "C" fn()>,
        48 _compat_dereg_mr: Option<unsafe extern "C" fn()>,
        56 alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, u32) -> Pointer<ibv_mw>>,
        64 bind_mw: Option<
            unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> Positive,
        >,
        72 dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> Positive>,
        80 _compat_create_cq: Option<unsafe extern "C" fn()>,
        88 poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> Count>,
        96 req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> Positive>,
        104 _compat_cq_event: Option<unsafe extern "C" fn()>,
        112 _compat_resize_cq: Option<unsafe extern "C" fn()>,
        120 _compat_destroy_cq: Option<unsafe extern "C" fn()>,
        128 _compat_create_srq: Option<unsafe extern "C" fn()>,
        136 _compat_modify_srq: Option<unsafe extern "C" fn()>,
        144 _compat_query_srq: Option<unsafe extern "C" fn()>,
        152 _compat_destroy_srq: Option<unsafe extern "C" fn()>,
        160 post_srq_recv: Option<
            unsafe extern "C" fn(
                *mut ibv_srq,
                *mut ibv_recv_wr,
                *mut *mut ibv_recv_wr,
            ) -> Positive,
        >,
        168 _compat_create_qp: Option<unsafe extern "C" fn()>,
        176 _compat_query_qp: Option<unsafe extern "C" fn()>,
        184 _compat_modify_qp: Option<unsafe extern "C" fn()>,
        192 _compat_destroy_qp: Option<unsafe extern "C" fn()>,
        200 post_send: Option<
            unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> Positive,
        >,
        208 post_recv: Option<
            unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> Positive,
        >,
        216 _compat_create_ah: Option<unsafe extern "C" fn()>,
        224 _compat_destroy_ah: Option<unsafe extern "C" fn()>,
        232 _compat_attach_mcast: Option<unsafe extern "C" fn()>,
        240 _compat_detach_mcast: Option<unsafe extern "C" fn()>,
        248 _compat_async_event: Option<unsafe extern "C" fn()>,
    }
}

abi_struct! {
    /// An opened device.
    struct ibv_context(328) {
        0 device: *mut ibv_device,
        8 ops: ibv_context_ops,
        264 cmd_fd: c_int,
        268 async_fd: c_int,
        272 num_comp_vectors: c_int,
        280 mutex: libc::pthread_mutex_t,
        320 abi_compat: *mut c_void,
    }
}

abi_struct! {
    /// What stands before an opened device: the functions that came later, the newest first.
    struct verbs_context(648) {
        0 query_port: Option<
            unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> Positive,
        >,
        8 advise_mr: Option<
            unsafe extern "C" fn(*mut ibv_pd, u32, u32, *mut ibv_sge, u32) -> Positive,
        >,
        16 alloc_null_mr: Option<unsafe extern "C" fn(*mut ibv_pd) -> Pointer<ibv_mr>>,
        24 read_counters: Option<unsafe extern "C" fn()>,
        32 attach_counters_point_flow: Option<unsafe extern "C" fn()>,
        40 create_counters: Option<unsafe extern "C" fn()>,
        48 destroy_counters: Option<unsafe extern "C" fn()>,
        56 reg_dm_mr: Option<
            unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, u32) -> Pointer<ibv_mr>,
        >,
        64 alloc_dm: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> Pointer<ibv_dm>,
        >,
        72 free_dm: Option<unsafe extern "C" fn(*mut ibv_dm) -> Positive>,
        80 modify_flow_action_esp: Option<unsafe extern "C" fn()>,
        88 destroy_flow_action: Option<unsafe extern "C" fn()>,
        96 create_flow_action_esp: Option<unsafe extern "C" fn()>,
        104 modify_qp_rate_limit: Option<
            unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_rate_limit_attr) -> Positive,
        >,
        112 alloc_parent_domain: Option<
            unsafe extern "C" fn(
                *mut ibv_context,
                *mut ibv_parent_domain_init_attr,
            ) -> Pointer<ibv_pd>,
        >,
        120 dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> Positive>,
        128 alloc_td: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> Pointer<ibv_td>,
        >,
        136 modify_cq: Option<
            unsafe extern "C" fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> Positive,
        >,
        144 post_srq_ops: Option<unsafe extern "C" fn()>,
        152 destroy_rwq_ind_table: Option<unsafe extern "C" fn()>,
        160 create_rwq_ind_table: Option<unsafe extern "C" fn()>,
        168 destroy_wq: Option<unsafe extern "C" fn()>,
        176 modify_wq: Option<unsafe extern "C" fn()>,
        184 create_wq: Option<unsafe extern "C" fn()>,
        192 query_rt_values: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> Positive,
        >,
        200 create_cq_ex: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> Pointer<ibv_cq_ex>,
        >,
        208 r#priv: *mut c_void,
        216 query_device_ex: Option<
            unsafe extern "C" fn(
                *mut ibv_context,
                *const ibv_query_device_ex_input,
                *mut ibv_device_attr_ex,
                usize,
            ) -> Positive,
        >,
        224 ibv_destroy_flow: Option<unsafe extern "C" fn()>,
        232 ABI_placeholder2: Option<unsafe extern "C" fn()>,
        240 ibv_create_flow: Option<unsafe extern "C" fn()>,
        248 ABI_placeholder1: Option<unsafe extern "C" fn()>,
        256 open_qp: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_open_attr) -> Pointer<ibv_qp>,
        >,
        264 create_qp_ex: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> Pointer<ibv_qp>,
        >,
        272 get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> Positive>,
        280 create_srq_ex: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> Pointer<ibv_srq>,
        >,
        288 open_xrcd: Option<
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> Pointer<ibv_xrcd>,
        >,
        296 close_xrcd: Option<unsafe extern "C" fn(*mut ibv_xrcd) -> Positive>,
        304 _ABI_placeholder3: u64,
        312 sz: usize,
        320 context: ibv_context,
    }
}
