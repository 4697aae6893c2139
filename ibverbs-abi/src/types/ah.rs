//! Addresses.

use super::context::ibv_context;
use super::gid::ibv_gid;
use super::pd::ibv_pd;

abi_struct! {
    /// Where a packet goes, between networks.
    struct ibv_global_route(24) {
        0 dgid: ibv_gid,
        16 flow_label: u32,
        20 sgid_index: u8,
        21 hop_limit: u8,
        22 traffic_class: u8,
    }
}

abi_struct! {
    /// The header before the data of a datagram.
    struct ibv_grh(40) {
        0 version_tclass_flow: u32,
        4 paylen: u16,
        6 next_hdr: u8,
        7 hop_limit: u8,
        8 sgid: ibv_gid,
        24 dgid: ibv_gid,
    }
}

abi_struct! {
    /// An address.
    struct ibv_ah_attr(32) {
        0 grh: ibv_global_route,
        24 dlid: u16,
        26 sl: u8,
        27 src_path_bits: u8,
        28 static_rate: u8,
        29 is_global: u8,
        30 port_num: u8,
    }
}

abi_struct! {
    /// An address handle.
    struct ibv_ah(24) {
        0 context: *mut ibv_context,
        8 pd: *mut ibv_pd,
        16 handle: u32,
    }
}
