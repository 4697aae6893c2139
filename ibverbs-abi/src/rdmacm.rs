//! librdmacm: the connection manager. Nothing of it is there yet.

use crate::call::{MinusOne, Pointer, missing};
use crate::types::{ibv_context, rdma_event_channel};

missing! {
    ENOSYS as MinusOne:
        rdma_accept, rdma_ack_cm_event, rdma_bind_addr, rdma_connect, rdma_create_ep,
        rdma_create_id, rdma_create_qp, rdma_create_qp_ex, rdma_create_srq, rdma_create_srq_ex,
        rdma_destroy_id, rdma_disconnect, rdma_establish, rdma_get_cm_event, rdma_get_remote_ece,
        rdma_get_request, rdma_getaddrinfo, rdma_init_qp_attr, rdma_join_multicast,
        rdma_join_multicast_ex, rdma_leave_multicast, rdma_listen, rdma_migrate_id, rdma_notify,
        rdma_reject, rdma_reject_ece, rdma_resolve_addr, rdma_resolve_route, rdma_set_local_ece,
        rdma_set_option;
    ENOSYS as Pointer<rdma_event_channel>:
        rdma_create_event_channel;
    ENOSYS as ():
        rdma_destroy_ep, rdma_destroy_event_channel, rdma_destroy_qp, rdma_destroy_srq,
        rdma_free_devices, rdma_freeaddrinfo;
    ENOSYS as Pointer<*mut ibv_context>:
        rdma_get_devices;
}

/// `rdma_get_src_port`: 0, as of an identifier that is not bound; there are none that are.
pub(crate) extern "C" fn rdma_get_src_port() -> u16 {
    0
}

/// `rdma_get_dst_port`: 0, as of an identifier that is not connected; there are none that are.
pub(crate) extern "C" fn rdma_get_dst_port() -> u16 {
    0
}
