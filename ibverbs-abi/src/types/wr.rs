//! Work requests.

use core::ffi::{c_int, c_void};

use super::ah::ibv_ah;
use super::mr::{ibv_mw, ibv_mw_bind_info};

abi_struct! {
    /// A piece of local memory.
    struct ibv_sge(16) {
        0 addr: u64,
        8 length: u32,
        12 lkey: u32,
    }
}

abi_struct! {
    /// A piece of inline data.
    struct ibv_data_buf(16) {
        0 addr: *mut c_void,
        8 length: usize,
    }
}

abi_struct! {
    /// A send request.
    struct ibv_send_wr(128) {
        0 wr_id: u64,
        8 next: *mut ibv_send_wr,
        16 sg_list: *mut ibv_sge,
        24 num_sge: c_int,
        28 opcode: u32,
        32 send_flags: u32,
        36 imm_data: u32,
        40 wr: ibv_send_wr_target,
        72 qp_type: ibv_send_wr_qp_type,
        80 bind_mw: ibv_send_wr_tail,
    }
}

abi_struct! {
    /// A receive request.
    struct ibv_recv_wr(32) {
        0 wr_id: u64,
        8 next: *mut ibv_recv_wr,
        16 sg_list: *mut ibv_sge,
        24 num_sge: c_int,
    }
}

/// Where a send request goes: which member counts follows from its opcode and service.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub(crate) union ibv_send_wr_target {
    pub(crate) rdma: ibv_send_wr_rdma,
    pub(crate) atomic: ibv_send_wr_atomic,
    pub(crate) ud: ibv_send_wr_ud,
}

/// Memory of the peer.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub(crate) struct ibv_send_wr_rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

/// Memory of the peer, and operands.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub(crate) struct ibv_send_wr_atomic {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

/// The destination of a datagram.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub(crate) struct ibv_send_wr_ud {
    pub(crate) ah: *mut ibv_ah,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

/// What the service adds.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub(crate) union ibv_send_wr_qp_type {
    pub(crate) remote_srqn: u32,
}

/// What the opcode adds.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub(crate) union ibv_send_wr_tail {
    pub(crate) bind_mw: ibv_send_wr_bind_mw,
    pub(crate) tso: ibv_send_wr_tso,
}

/// The binding of a memory window of type 2.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub(crate) struct ibv_send_wr_bind_mw {
    pub(crate) mw: *mut ibv_mw,
    pub(crate) rkey: u32,
    pub(crate) bind_info: ibv_mw_bind_info,
}

/// The segmentation of a raw packet.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub(crate) struct ibv_send_wr_tso {
    pub(crate) hdr: *mut c_void,
    pub(crate) hdr_sz: u16,
    pub(crate) mss: u16,
}

const _: () = {
    assert!(size_of::<ibv_send_wr_target>() == 32);
    assert!(core::mem::offset_of!(ibv_send_wr_rdma, rkey) == 8);
    assert!(core::mem::offset_of!(ibv_send_wr_atomic, rkey) == 24);
    assert!(core::mem::offset_of!(ibv_send_wr_ud, remote_qkey) == 12);
    assert!(size_of::<ibv_send_wr_tail>() == 48);
    assert!(core::mem::offset_of!(ibv_send_wr_bind_mw, bind_info) == 16);
};
