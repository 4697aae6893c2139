//! Queue pairs.

use core::ffi::{c_int, c_void};

use super::ah::{ibv_ah, ibv_ah_attr};
use super::context::ibv_context;
use super::cq::ibv_cq;
use super::mr::{ibv_mw, ibv_mw_bind_info};
use super::pd::{ibv_pd, ibv_xrcd};
use super::srq::ibv_srq;
use super::wr::{ibv_data_buf, ibv_sge};
use crate::call::Positive;

abi_struct! {
    /// Capacities of a queue pair.
    struct ibv_qp_cap(20) {
        0 max_send_wr: u32,
        4 max_recv_wr: u32,
        8 max_send_sge: u32,
        12 max_recv_sge: u32,
        16 max_inline_data: u32,
    }
}

abi_struct! {
    /// How a queue pair is made.
    struct ibv_qp_init_attr(64) {
        0 qp_context: *mut c_void,
        8 send_cq: *mut ibv_cq,
        16 recv_cq: *mut ibv_cq,
        24 srq: *mut ibv_srq,
        32 cap: ibv_qp_cap,
        52 qp_type: u32,
        56 sq_sig_all: c_int,
    }
}

abi_struct! {
    /// Spreading of raw packets; there is none.
    struct ibv_rx_hash_conf(24) {
        0 rx_hash_function: u8,
        1 rx_hash_key_len: u8,
        8 rx_hash_key: *mut u8,
        16 rx_hash_fields_mask: u64,
    }
}

abi_struct! {
    /// How a queue pair is made, the later additions included.
    struct ibv_qp_init_attr_ex(136) {
        0 qp_context: *mut c_void,
        8 send_cq: *mut ibv_cq,
        16 recv_cq: *mut ibv_cq,
        24 srq: *mut ibv_srq,
        32 cap: ibv_qp_cap,
        52 qp_type: u32,
        56 sq_sig_all: c_int,
        60 comp_mask: u32,
        64 pd: *mut ibv_pd,
        72 xrcd: *mut ibv_xrcd,
        80 create_flags: u32,
        84 max_tso_header: u16,
        88 rwq_ind_tbl: *mut c_void,
        96 rx_hash_conf: ibv_rx_hash_conf,
        120 source_qpn: u32,
        128 send_ops_flags: u64,
    }
}

abi_struct! {
    /// Which shared queue pair is opened.
    struct ibv_qp_open_attr(32) {
        0 comp_mask: u32,
        4 qp_num: u32,
        8 xrcd: *mut ibv_xrcd,
        16 qp_context: *mut c_void,
        24 qp_type: u32,
    }
}

abi_struct! {
    /// Attributes of a queue pair.
    struct ibv_qp_attr(144) {
        0 qp_state: u32,
        4 cur_qp_state: u32,
        8 path_mtu: u32,
        12 path_mig_state: u32,
        16 qkey: u32,
        20 rq_psn: u32,
        24 sq_psn: u32,
        28 dest_qp_num: u32,
        32 qp_access_flags: u32,
        36 cap: ibv_qp_cap,
        56 ah_attr: ibv_ah_attr,
        88 alt_ah_attr: ibv_ah_attr,
        120 pkey_index: u16,
        122 alt_pkey_index: u16,
        124 en_sqd_async_notify: u8,
        125 sq_draining: u8,
        126 max_rd_atomic: u8,
        127 max_dest_rd_atomic: u8,
        128 min_rnr_timer: u8,
        129 port_num: u8,
        130 timeout: u8,
        131 retry_cnt: u8,
        132 rnr_retry: u8,
        133 alt_port_num: u8,
        134 alt_timeout: u8,
        136 rate_limit: u32,
    }
}

abi_struct! {
    /// A rate limit of a queue pair.
    struct ibv_qp_rate_limit_attr(16) {
        0 rate_limit: u32,
        4 max_burst_sz: u32,
        8 typical_pkt_sz: u16,
        12 comp_mask: u32,
    }
}

abi_struct! {
    /// Options that a vendor's adapters agree on; there are none.
    struct ibv_ece(12) {
        0 vendor_id: u32,
        4 options: u32,
        8 comp_mask: u32,
    }
}

abi_struct! {
    /// A queue pair.
    struct ibv_qp(160) {
        0 context: *mut ibv_context,
        8 qp_context: *mut c_void,
        16 pd: *mut ibv_pd,
        24 send_cq: *mut ibv_cq,
        32 recv_cq: *mut ibv_cq,
        40 srq: *mut ibv_srq,
        48 handle: u32,
        52 qp_num: u32,
        56 state: u32,
        60 qp_type: u32,
        64 mutex: libc::pthread_mutex_t,
        104 cond: libc::pthread_cond_t,
        152 events_completed: u32,
    }
}

abi_struct! {
    /// A queue pair whose requests are put together call by call.
    struct ibv_qp_ex(352) {
        0 qp_base: ibv_qp,
        160 comp_mask: u64,
        168 wr_id: u64,
        176 wr_flags: u32,
        184 wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64)>,
        192 wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64)>,
        200 wr_bind_mw: Option<
            unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_mw, u32, *const ibv_mw_bind_info),
        >,
        208 wr_local_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
        216 wr_rdma_read: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
        224 wr_rdma_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
        232 wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
        240 wr_send: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
        248 wr_send_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
        256 wr_send_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
        264 wr_send_tso: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, u16, u16)>,
        272 wr_set_ud_addr: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32)>,
        280 wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
        288 wr_set_inline_data: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize)>,
        296 wr_set_inline_data_list: Option<
            unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf),
        >,
        304 wr_set_sge: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
        312 wr_set_sge_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge)>,
        320 wr_start: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
        328 wr_complete: Option<unsafe extern "C" fn(*mut ibv_qp_ex) -> Positive>,
        336 wr_abort: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
        344 wr_atomic_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const c_void)>,
    }
}
