//! What the vendors' libraries take from libibverbs: ways to the kernel's drivers, of which there are
//! none here. They ask for them when they are loaded, and use them for devices of their own only.

use std::ffi::c_void;

use crate::call::{Pointer, Positive, missing};

missing! {
    EOPNOTSUPP as ():
        __verbs_log, verbs_init_cq, verbs_set_ops, verbs_uninit_context;
    EOPNOTSUPP as Pointer<c_void>:
        _verbs_init_and_alloc_context, verbs_open_device;
    EOPNOTSUPP as Positive:
        execute_ioctl, ibv_cmd_advise_mr, ibv_cmd_alloc_dm, ibv_cmd_alloc_mw, ibv_cmd_alloc_pd,
        ibv_cmd_attach_mcast, ibv_cmd_close_xrcd, ibv_cmd_create_ah, ibv_cmd_create_counters,
        ibv_cmd_create_cq, ibv_cmd_create_cq_ex, ibv_cmd_create_flow,
        ibv_cmd_create_flow_action_esp, ibv_cmd_create_qp, ibv_cmd_create_qp_ex,
        ibv_cmd_create_qp_ex2, ibv_cmd_create_rwq_ind_table, ibv_cmd_create_srq,
        ibv_cmd_create_srq_ex, ibv_cmd_create_wq, ibv_cmd_dealloc_mw, ibv_cmd_dealloc_pd,
        ibv_cmd_dereg_mr, ibv_cmd_destroy_ah, ibv_cmd_destroy_counters, ibv_cmd_destroy_cq,
        ibv_cmd_destroy_flow, ibv_cmd_destroy_flow_action, ibv_cmd_destroy_qp,
        ibv_cmd_destroy_rwq_ind_table, ibv_cmd_destroy_srq, ibv_cmd_destroy_wq,
        ibv_cmd_detach_mcast, ibv_cmd_free_dm, ibv_cmd_get_context, ibv_cmd_modify_cq,
        ibv_cmd_modify_flow_action_esp, ibv_cmd_modify_qp, ibv_cmd_modify_qp_ex,
        ibv_cmd_modify_srq, ibv_cmd_modify_wq, ibv_cmd_open_qp, ibv_cmd_open_xrcd, ibv_cmd_poll_cq,
        ibv_cmd_post_recv, ibv_cmd_post_send, ibv_cmd_post_srq_recv, ibv_cmd_query_context,
        ibv_cmd_query_device_any, ibv_cmd_query_mr, ibv_cmd_query_port, ibv_cmd_query_qp,
        ibv_cmd_query_srq, ibv_cmd_read_counters, ibv_cmd_reg_dm_mr, ibv_cmd_reg_dmabuf_mr,
        ibv_cmd_reg_mr, ibv_cmd_req_notify_cq, ibv_cmd_rereg_mr, ibv_cmd_resize_cq;
}

/// `verbs_register_driver_34`: what a vendor's library calls when it is loaded. Its driver is for
/// devices of the kernel, so it is not asked for anything.
pub(crate) extern "C" fn verbs_register_driver_34() {}

/// As [`verbs_register_driver_34`], of later releases.
pub(crate) extern "C" fn verbs_register_driver_59() {}

/// As [`verbs_register_driver_34`], of later releases.
pub(crate) extern "C" fn verbs_register_driver_64() {}

/// `__ioctl_final_num_attrs`: how long a command to the kernel is; there are none.
pub(crate) extern "C" fn __ioctl_final_num_attrs() -> std::ffi::c_uint {
    0
}
