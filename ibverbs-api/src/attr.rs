//! What devices and ports say of themselves.

use bitflags::bitflags;
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
    /// Who made it (`vendor_id`): 0xffffff, nobody, as Linux's software device has it. Programs take
    /// 0 for a device that has not answered.
    pub vendor_id: u32,
    /// Which of the vendor's devices it is: 0 (`vendor_part_id`).
    pub vendor_part_id: u32,
    /// Its revision: 0 (`hw_ver`).
    pub hw_ver: u32,
    /// What it can do (`device_cap_flags`).
    pub capabilities: DeviceCapFlags,
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
    /// How far atomics of peers are atomic (`atomic_cap`): towards each other, at least.
    ///
    /// In fact they are the processor's own, so atomic towards everything. But
    /// [`AtomicCap::Global`] is the word for atomics on the bus of an adapter: UCX 1.13 takes it for
    /// that, and uses none.
    pub atomic_cap: AtomicCap,
    /// Shards that completion queues can be spread over (`num_comp_vectors` of the context).
    pub num_comp_vectors: usize,
    /// What can be done with memory that is not pinned (`odp_caps`): none is, here.
    pub on_demand: OnDemandCaps,
    /// The bits that the time of a completion has (`completion_timestamp_mask`): all.
    pub timestamp_mask: u64,
    /// Ticks of the device's clock in a millisecond (`hca_core_clock`, in kHz).
    pub clock_khz: u64,
    /// The most completions that an event can wait for (`cq_mod_caps.max_cq_count`).
    pub max_moderation_count: u16,
    /// The most microseconds that an event can wait (`cq_mod_caps.max_cq_period`).
    pub max_moderation_period_us: u16,
    /// All other capacities.
    pub limits: Limits,
}

bitflags! {
    /// What a device can do (`enum ibv_device_cap_flags`); those that this one has.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct DeviceCapFlags: u32 {
        /// Changing a queue pair may say which state it is thought to be in.
        const CURR_QP_STATE_MOD = 1 << 7;
        /// The device has a GUID of its system.
        const SYS_IMAGE_GUID = 1 << 11;
        /// Reliable connections send RNR NAKs.
        const RC_RNR_NAK_GEN = 1 << 12;
        /// Shared receive queues can be resized.
        const SRQ_RESIZE = 1 << 13;
        /// Memory windows of type 1.
        const MEM_WINDOW = 1 << 17;
        /// Extended reliable connections.
        const XRC = 1 << 20;
        /// Keys are taken by SEND with invalidate and LOCAL_INV.
        const MEM_MGT_EXTENSIONS = 1 << 21;
        /// Memory windows of type 2B: of one queue pair each.
        const MEM_WINDOW_TYPE_2B = 1 << 24;
    }
}

bitflags! {
    /// Operations on memory that is not pinned (`enum ibv_odp_transport_cap_bits`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct OnDemandOps: u32 {
        /// Messages from it.
        const SEND = 1;
        /// Messages into it.
        const RECV = 1 << 1;
        /// WRITEs, from and into it.
        const WRITE = 1 << 2;
        /// READs, from and into it.
        const READ = 1 << 3;
        /// Atomics.
        const ATOMIC = 1 << 4;
        /// Messages into receives of a shared queue.
        const SRQ_RECV = 1 << 5;
    }
}

/// What can be done with memory that is not pinned (`struct ibv_odp_caps`): here, whatever can be
/// done with memory at all.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OnDemandCaps {
    /// Regions of all memory there are (`IBV_ODP_SUPPORT_IMPLICIT`).
    pub implicit: bool,
    /// Over reliable connections (`rc_odp_caps`).
    pub rc: OnDemandOps,
    /// Over unreliable connections (`uc_odp_caps`).
    pub uc: OnDemandOps,
    /// By datagrams (`ud_odp_caps`).
    pub ud: OnDemandOps,
    /// Over extended reliable connections (`xrc_odp_caps`).
    pub xrc: OnDemandOps,
}

impl OnDemandCaps {
    /// Those of every device here.
    pub(crate) const ALL: Self = {
        let messages = OnDemandOps::SEND.union(OnDemandOps::RECV);
        Self {
            implicit: true,
            rc: OnDemandOps::all(),
            uc: messages.union(OnDemandOps::WRITE),
            ud: messages.union(OnDemandOps::SRQ_RECV),
            xrc: OnDemandOps::all(),
        }
    };
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
    /// What it can do (`port_cap_flags`).
    pub capabilities: PortCapFlags,
    /// Whether addresses are GIDs always (`IBV_QPF_GRH_REQUIRED` of `flags`): they are, on Ethernet.
    pub grh_required: bool,
    /// Virtual lanes (`max_vl_num`): Ethernet has one.
    pub max_vl_num: u8,
    /// Lanes of the link (`active_width`).
    pub active_width: LinkWidth,
    /// Speed of each lane (`active_speed`).
    pub active_speed: LinkSpeed,
    /// What the link does (`phys_state`).
    pub phys_state: PhysState,
}

bitflags! {
    /// What a port can do (`enum ibv_port_cap_flags`); those that this one has.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct PortCapFlags: u32 {
        /// Connection management.
        const CM_SUP = 1 << 16;
        /// GIDs that are IP addresses.
        const IP_BASED_GIDS = 1 << 26;
    }
}

/// What the link of a port does (`phys_state`; the specification's PortInfo).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum PhysState {
    /// It looks for a peer.
    Polling = 2,
    /// It is up.
    LinkUp = 5,
}

/// How many lanes a link has (`active_width`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum LinkWidth {
    /// One.
    X1 = 1,
    /// Four.
    X4 = 2,
}

impl LinkWidth {
    /// Number of lanes.
    pub const fn lanes(self) -> u32 {
        match self {
            Self::X1 => 1,
            Self::X4 => 4,
        }
    }
}

/// The speed of a lane (`active_speed`), by its name on InfiniBand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum LinkSpeed {
    /// 2.5 Gb/s.
    Sdr = 1,
    /// 5 Gb/s.
    Ddr = 2,
    /// 10 Gb/s.
    Fdr10 = 8,
    /// 25 Gb/s.
    Edr = 32,
}

impl LinkSpeed {
    /// Tenths of a Gb/s.
    pub const fn tenths(self) -> u32 {
        match self {
            Self::Sdr => 25,
            Self::Ddr => 50,
            Self::Fdr10 => 100,
            Self::Edr => 250,
        }
    }
}

/// Ethernet's speeds in InfiniBand's terms, as Linux has them (`ib_get_eth_speed`): of a speed up to
/// the first, in Mb/s.
const RATES: [(u32, LinkWidth, LinkSpeed); 6] = [
    (1000, LinkWidth::X1, LinkSpeed::Sdr),
    (10_000, LinkWidth::X1, LinkSpeed::Fdr10),
    (20_000, LinkWidth::X4, LinkSpeed::Ddr),
    (25_000, LinkWidth::X1, LinkSpeed::Edr),
    (40_000, LinkWidth::X4, LinkSpeed::Fdr10),
    (u32::MAX, LinkWidth::X4, LinkSpeed::Edr),
];

/// What Linux takes for the speed of a link that does not tell it, such as `lo`: 1 Gb/s.
const UNKNOWN_MBPS: u32 = 1000;

/// Width and speed of a link of so many Mb/s.
pub(crate) fn link_rate(mbps: Option<u32>) -> (LinkWidth, LinkSpeed) {
    let mbps = mbps.unwrap_or(UNKNOWN_MBPS);
    let row = RATES.iter().find(|(up_to, ..)| mbps <= *up_to);
    row.map_or((LinkWidth::X4, LinkSpeed::Edr), |&(_, width, speed)| (width, speed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_of_ethernet_have_a_width_and_a_speed_of_a_lane() {
        let tenths = |mbps| {
            let (width, speed) = link_rate(mbps);
            width.lanes() * speed.tenths()
        };
        let cases = [
            (None, 25),
            (Some(100), 25),
            (Some(1000), 25),
            (Some(2500), 100),
            (Some(10_000), 100),
            (Some(20_000), 200),
            (Some(25_000), 250),
            (Some(40_000), 400),
            (Some(100_000), 1000),
            (Some(400_000), 1000),
        ];
        for (mbps, expected) in cases {
            assert_eq!(tenths(mbps), expected, "{mbps:?} Mb/s");
        }
    }
}
