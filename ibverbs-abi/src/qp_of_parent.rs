//! Queue pairs of the parent whose requests were put together call by call, in the child of a fork.

use std::ffi::c_void;

use crate::call::Positive;
use crate::qp::Block;
use crate::types::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};

/// Lets the builders and setters do nothing, and `ibv_wr_complete` refuse.
pub(crate) fn refuse(block: &mut Block) {
    let ex = &mut block.ex;
    if ex.wr_start.is_none() {
        return;
    }
    ex.wr_atomic_cmp_swp = Some(atomic_cmp_swp);
    ex.wr_atomic_fetch_add = Some(atomic_fetch_add);
    ex.wr_local_inv = Some(word);
    ex.wr_rdma_read = Some(rdma);
    ex.wr_rdma_write = Some(rdma);
    ex.wr_rdma_write_imm = Some(rdma_write_imm);
    ex.wr_send = Some(nothing);
    ex.wr_bind_mw = Some(bind_mw);
    ex.wr_send_imm = Some(word);
    ex.wr_send_inv = Some(word);
    ex.wr_set_ud_addr = Some(set_ud_addr);
    ex.wr_set_xrc_srqn = Some(word);
    ex.wr_set_inline_data = Some(set_inline_data);
    ex.wr_set_inline_data_list = Some(set_inline_data_list);
    ex.wr_set_sge = Some(set_sge);
    ex.wr_set_sge_list = Some(set_sge_list);
    ex.wr_start = Some(nothing);
    ex.wr_complete = Some(complete);
    ex.wr_abort = Some(nothing);
    ex.wr_atomic_write = Some(atomic_write);
    block.wr_flush = Some(flush);
}

// Functions of each form.

unsafe extern "C" fn nothing(_: *mut ibv_qp_ex) {}

/// Of a key, an immediate, or a number.
unsafe extern "C" fn word(_: *mut ibv_qp_ex, _: u32) {}

unsafe extern "C" fn rdma(_: *mut ibv_qp_ex, _: u32, _: u64) {}

unsafe extern "C" fn rdma_write_imm(_: *mut ibv_qp_ex, _: u32, _: u64, _: u32) {}

unsafe extern "C" fn atomic_fetch_add(_: *mut ibv_qp_ex, _: u32, _: u64, _: u64) {}

unsafe extern "C" fn atomic_cmp_swp(_: *mut ibv_qp_ex, _: u32, _: u64, _: u64, _: u64) {}

unsafe extern "C" fn atomic_write(_: *mut ibv_qp_ex, _: u32, _: u64, _: *const c_void) {}

unsafe extern "C" fn flush(_: *mut ibv_qp_ex, _: u32, _: u64, _: usize, _: u8, _: u8) {}

unsafe extern "C" fn bind_mw(
    _: *mut ibv_qp_ex,
    _: *mut ibv_mw,
    _: u32,
    _: *const ibv_mw_bind_info,
) {
}

unsafe extern "C" fn set_ud_addr(_: *mut ibv_qp_ex, _: *mut ibv_ah, _: u32, _: u32) {}

unsafe extern "C" fn set_inline_data(_: *mut ibv_qp_ex, _: *mut c_void, _: usize) {}

unsafe extern "C" fn set_inline_data_list(_: *mut ibv_qp_ex, _: usize, _: *const ibv_data_buf) {}

unsafe extern "C" fn set_sge(_: *mut ibv_qp_ex, _: u32, _: u64, _: u32) {}

unsafe extern "C" fn set_sge_list(_: *mut ibv_qp_ex, _: usize, _: *const ibv_sge) {}

unsafe extern "C" fn complete(_: *mut ibv_qp_ex) -> Positive {
    Positive(libc::EINVAL)
}
