//! What devices and ports say of themselves.

use rxe_core::config::Limits;
use rxe_core::qp::Mtu;

/// What a device is and can do (`struct ibv_device_attr`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceAttr {
    /// Version of this software (`fw_ver`).
    pub fw_ver: String,
    /// EUI-64 of the interface, in host order (`node_guid`).
    pub node_guid: u64,
    /// The same (`sys_image_guid`).
    pub sys_image_guid: u64,
    /// The longest region: all of memory (`max_mr_size`).
    pub max_mr_size: u64,
    /// Page sizes: any (`page_size_cap`).
    pub page_size_cap: u64,
    /// Number of ports (`phys_port_cnt`).
    pub phys_port_cnt: u8,
    /// Entries of the partition key table (`max_pkeys`).
    pub max_pkeys: u16,
    /// Exponent of the time that an acknowledgement may take here (`local_ca_ack_delay`).
    pub local_ca_ack_delay: u8,
    /// How far atomics of peers are atomic (`atomic_cap`).
    pub atomic_cap: AtomicCap,
    /// Shards that completion queues can be spread over (`num_comp_vectors` of the context).
    pub num_comp_vectors: usize,
    /// All other capacities.
    pub limits: Limits,
}

/// Towards whom an atomic of a peer is atomic (`enum ibv_atomic_cap`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum AtomicCap {
    /// There are no atomics.
    None = 0,
    /// Only towards other atomics of the same device.
    Device = 1,
    /// Towards everything, the host's processors included: it is one operation of theirs.
    Global = 2,
}

/// The state of a port (`enum ibv_port_state`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum PortState {
    /// No carrier, or the interface is down.
    Down = 1,
    /// Packets can be sent and received.
    Active = 4,
}

/// The link layer of a port (`IBV_LINK_LAYER_*`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum LinkLayer {
    /// Ethernet, always.
    Ethernet = 2,
}

/// What a port is (`struct ibv_port_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortAttr {
    /// Whether it is up.
    pub state: PortState,
    /// The largest path MTU of any port.
    pub max_mtu: Mtu,
    /// The largest path MTU that the interface can carry.
    pub active_mtu: Mtu,
    /// Entries of the GID table.
    pub gid_tbl_len: u32,
    /// The longest message, in bytes.
    pub max_msg_sz: u32,
    /// Entries of the partition key table.
    pub pkey_tbl_len: u16,
    /// Local identifier: 0 on Ethernet.
    pub lid: u16,
    /// Ethernet.
    pub link_layer: LinkLayer,
}
