//! Paths, as the connection manager tells them.

use core::ffi::c_int;

use super::gid::ibv_gid;

abi_struct! {
    /// A path, unpacked.
    struct ibv_sa_path_rec(64) {
        0 dgid: ibv_gid,
        16 sgid: ibv_gid,
        32 dlid: u16,
        34 slid: u16,
        36 raw_traffic: c_int,
        40 flow_label: u32,
        44 hop_limit: u8,
        45 traffic_class: u8,
        48 reversible: c_int,
        52 numb_path: u8,
        54 pkey: u16,
        56 sl: u8,
        57 mtu_selector: u8,
        58 mtu: u8,
        59 rate_selector: u8,
        60 rate: u8,
        61 packet_life_time_selector: u8,
        62 packet_life_time: u8,
        63 preference: u8,
    }
}

abi_struct! {
    /// A path, as on the wire.
    struct ibv_path_record(64) {
        0 service_id: u64,
        8 dgid: ibv_gid,
        24 sgid: ibv_gid,
        40 dlid: u16,
        42 slid: u16,
        44 flowlabel_hoplimit: u32,
        48 tclass: u8,
        49 reversible_numpath: u8,
        50 pkey: u16,
        52 qosclass_sl: u16,
        54 mtu: u8,
        55 rate: u8,
        56 packetlifetime: u8,
        57 preference: u8,
        58 reserved: [u8; 6],
    }
}

abi_struct! {
    /// A path, and what it is for.
    struct ibv_path_data(72) {
        0 flags: u32,
        4 reserved: u32,
        8 path: ibv_path_record,
    }
}
