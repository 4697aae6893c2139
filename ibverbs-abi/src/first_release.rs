//! The symbols of the first release (2006), whose structs were others. Nothing built since uses them.

use std::ffi::c_void;

use crate::call::{MinusOne, Pointer, Positive, missing};

missing! {
    ENOSYS as ():
        ibv_ack_async_event, ibv_ack_cq_events, ibv_free_device_list, ibv_register_driver;
    ENOSYS as Pointer<c_void>:
        ibv_alloc_pd, ibv_create_ah, ibv_create_cq, ibv_create_qp, ibv_create_srq,
        ibv_get_device_list, ibv_get_device_name, ibv_open_device, ibv_reg_mr;
    ENOSYS as Positive:
        ibv_attach_mcast, ibv_dealloc_pd, ibv_dereg_mr, ibv_destroy_ah, ibv_destroy_cq,
        ibv_destroy_qp, ibv_destroy_srq, ibv_detach_mcast, ibv_get_device_guid, ibv_modify_qp,
        ibv_modify_srq, ibv_query_device, ibv_query_port, ibv_query_qp, ibv_query_srq,
        ibv_resize_cq;
    ENOSYS as MinusOne:
        ibv_close_device, ibv_get_async_event, ibv_get_cq_event, ibv_query_gid, ibv_query_pkey;
}
