//! What devices and ports say of themselves.

use core::ffi::{c_char, c_int};

abi_struct! {
    /// What a device is and can do.
    struct ibv_device_attr(232) {
        0 fw_ver: [c_char; 64],
        64 node_guid: u64,
        72 sys_image_guid: u64,
        80 max_mr_size: u64,
        88 page_size_cap: u64,
        96 vendor_id: u32,
        100 vendor_part_id: u32,
        104 hw_ver: u32,
        108 max_qp: c_int,
        112 max_qp_wr: c_int,
        116 device_cap_flags: u32,
        120 max_sge: c_int,
        124 max_sge_rd: c_int,
        128 max_cq: c_int,
        132 max_cqe: c_int,
        136 max_mr: c_int,
        140 max_pd: c_int,
        144 max_qp_rd_atom: c_int,
        148 max_ee_rd_atom: c_int,
        152 max_res_rd_atom: c_int,
        156 max_qp_init_rd_atom: c_int,
        160 max_ee_init_rd_atom: c_int,
        164 atomic_cap: u32,
        168 max_ee: c_int,
        172 max_rdd: c_int,
        176 max_mw: c_int,
        180 max_raw_ipv6_qp: c_int,
        184 max_raw_ethy_qp: c_int,
        188 max_mcast_grp: c_int,
        192 max_mcast_qp_attach: c_int,
        196 max_total_mcast_qp_attach: c_int,
        200 max_ah: c_int,
        204 max_fmr: c_int,
        208 max_map_per_fmr: c_int,
        212 max_srq: c_int,
        216 max_srq_wr: c_int,
        220 max_srq_sge: c_int,
        224 max_pkeys: u16,
        226 local_ca_ack_delay: u8,
        227 phys_port_cnt: u8,
    }
}

abi_struct! {
    /// What a caller of `ibv_query_device_ex` wants; nothing yet.
    struct ibv_query_device_ex_input(4) {
        0 comp_mask: u32,
    }
}

abi_struct! {
    /// Which accesses memory need not be pinned for.
    struct ibv_odp_caps(24) {
        0 general_caps: u64,
        8 per_transport_caps: ibv_odp_transport_caps,
    }
}

abi_struct! {
    /// Segmentation of raw packets; there is none.
    struct ibv_tso_caps(8) {
        0 max_tso: u32,
        4 supported_qpts: u32,
    }
}

abi_struct! {
    /// Spreading of raw packets; there is none.
    struct ibv_rss_caps(32) {
        0 supported_qpts: u32,
        4 max_rwq_indirection_tables: u32,
        8 max_rwq_indirection_table_size: u32,
        16 rx_hash_fields_mask: u64,
        24 rx_hash_function: u8,
    }
}

abi_struct! {
    /// Rate limits that a queue pair can have.
    struct ibv_packet_pacing_caps(12) {
        0 qp_rate_limit_min: u32,
        4 qp_rate_limit_max: u32,
        8 supported_qpts: u32,
    }
}

abi_struct! {
    /// Tag matching; there is none.
    struct ibv_tm_caps(20) {
        0 max_rndv_hdr_size: u32,
        4 max_num_tags: u32,
        8 flags: u32,
        12 max_ops: u32,
        16 max_sge: u32,
    }
}

abi_struct! {
    /// How far events can be told to lag.
    struct ibv_cq_moderation_caps(4) {
        0 max_cq_count: u16,
        2 max_cq_period: u16,
    }
}

abi_struct! {
    /// Atomics on the bus.
    struct ibv_pci_atomic_caps(6) {
        0 fetch_add: u16,
        2 swap: u16,
        4 compare_swap: u16,
    }
}

abi_struct! {
    /// What a device is and can do, the later additions included.
    struct ibv_device_attr_ex(400) {
        0 orig_attr: ibv_device_attr,
        232 comp_mask: u32,
        240 odp_caps: ibv_odp_caps,
        264 completion_timestamp_mask: u64,
        272 hca_core_clock: u64,
        280 device_cap_flags_ex: u64,
        288 tso_caps: ibv_tso_caps,
        296 rss_caps: ibv_rss_caps,
        328 max_wq_type_rq: u32,
        332 packet_pacing_caps: ibv_packet_pacing_caps,
        344 raw_packet_caps: u32,
        348 tm_caps: ibv_tm_caps,
        368 cq_mod_caps: ibv_cq_moderation_caps,
        376 max_dm_size: u64,
        384 pci_atomic_caps: ibv_pci_atomic_caps,
        392 xrc_odp_caps: u32,
        396 phys_port_cnt_ex: u32,
    }
}

abi_struct! {
    /// What a port is.
    struct ibv_port_attr(52) {
        0 state: u32,
        4 max_mtu: u32,
        8 active_mtu: u32,
        12 gid_tbl_len: c_int,
        16 port_cap_flags: u32,
        20 max_msg_sz: u32,
        24 bad_pkey_cntr: u32,
        28 qkey_viol_cntr: u32,
        32 pkey_tbl_len: u16,
        34 lid: u16,
        36 sm_lid: u16,
        38 lmc: u8,
        39 max_vl_num: u8,
        40 sm_sl: u8,
        41 subnet_timeout: u8,
        42 init_type_reply: u8,
        43 active_width: u8,
        44 active_speed: u8,
        45 phys_state: u8,
        46 link_layer: u8,
        47 flags: u8,
        48 port_cap_flags2: u16,
    }
}

abi_struct! {
    /// A reading of the device's clock.
    struct ibv_values_ex(24) {
        0 comp_mask: u32,
        8 raw_clock: libc::timespec,
    }
}

/// Which accesses of each service memory need not be pinned for.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub(crate) struct ibv_odp_transport_caps {
    pub(crate) rc_odp_caps: u32,
    pub(crate) uc_odp_caps: u32,
    pub(crate) ud_odp_caps: u32,
}
