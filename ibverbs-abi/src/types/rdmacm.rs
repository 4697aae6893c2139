//! The connection manager.

use core::ffi::{c_char, c_int, c_void};

use super::ah::ibv_ah_attr;
use super::context::ibv_context;
use super::cq::{ibv_comp_channel, ibv_cq};
use super::gid::ibv_gid;
use super::pd::ibv_pd;
use super::qp::ibv_qp;
use super::sa::ibv_sa_path_rec;
use super::srq::ibv_srq;

abi_struct! {
    /// GIDs and partition key of a connection.
    struct rdma_ib_addr(40) {
        0 sgid: ibv_gid,
        16 dgid: ibv_gid,
        32 pkey: u16,
    }
}

abi_struct! {
    /// Addresses of both ends.
    struct rdma_addr(296) {
        0 src_storage: libc::sockaddr_storage,
        128 dst_storage: libc::sockaddr_storage,
        256 addr: rdma_ib_addr,
    }
}

abi_struct! {
    /// Addresses and paths of a connection.
    struct rdma_route(312) {
        0 addr: rdma_addr,
        296 path_rec: *mut ibv_sa_path_rec,
        304 num_paths: c_int,
    }
}

abi_struct! {
    /// Where events of identifiers arrive.
    struct rdma_event_channel(4) {
        0 fd: c_int,
    }
}

abi_struct! {
    /// An identifier: the end of a connection, or who listens for one.
    struct rdma_cm_id(416) {
        0 verbs: *mut ibv_context,
        8 channel: *mut rdma_event_channel,
        16 context: *mut c_void,
        24 qp: *mut ibv_qp,
        32 route: rdma_route,
        344 ps: u32,
        348 port_num: u8,
        352 event: *mut rdma_cm_event,
        360 send_cq_channel: *mut ibv_comp_channel,
        368 send_cq: *mut ibv_cq,
        376 recv_cq_channel: *mut ibv_comp_channel,
        384 recv_cq: *mut ibv_cq,
        392 srq: *mut ibv_srq,
        400 pd: *mut ibv_pd,
        408 qp_type: u32,
    }
}

abi_struct! {
    /// Parameters of a connection.
    struct rdma_conn_param(24) {
        0 private_data: *const c_void,
        8 private_data_len: u8,
        9 responder_resources: u8,
        10 initiator_depth: u8,
        11 flow_control: u8,
        12 retry_count: u8,
        13 rnr_retry_count: u8,
        14 srq: u8,
        16 qp_num: u32,
    }
}

abi_struct! {
    /// Parameters of datagrams.
    struct rdma_ud_param(56) {
        0 private_data: *const c_void,
        8 private_data_len: u8,
        16 ah_attr: ibv_ah_attr,
        48 qp_num: u32,
        52 qkey: u32,
    }
}

abi_struct! {
    /// Something that happened to an identifier.
    struct rdma_cm_event(80) {
        0 id: *mut rdma_cm_id,
        8 listen_id: *mut rdma_cm_id,
        16 event: u32,
        20 status: c_int,
        24 param: rdma_cm_event_param,
    }
}

abi_struct! {
    /// Where to connect, or to listen.
    struct rdma_addrinfo(96) {
        0 ai_flags: c_int,
        4 ai_family: c_int,
        8 ai_qp_type: c_int,
        12 ai_port_space: c_int,
        16 ai_src_len: libc::socklen_t,
        20 ai_dst_len: libc::socklen_t,
        24 ai_src_addr: *mut libc::sockaddr,
        32 ai_dst_addr: *mut libc::sockaddr,
        40 ai_src_canonname: *mut c_char,
        48 ai_dst_canonname: *mut c_char,
        56 ai_route_len: usize,
        64 ai_route: *mut c_void,
        72 ai_connect_len: usize,
        80 ai_connect: *mut c_void,
        88 ai_next: *mut rdma_addrinfo,
    }
}

abi_struct! {
    /// How a multicast group is joined.
    struct rdma_cm_join_mc_attr_ex(16) {
        0 comp_mask: u32,
        4 join_flags: u32,
        8 addr: *mut libc::sockaddr,
    }
}

/// What an event carries: which member counts follows from the port space.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub(crate) union rdma_cm_event_param {
    pub(crate) conn: rdma_conn_param,
    pub(crate) ud: rdma_ud_param,
}
