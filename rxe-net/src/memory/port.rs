//! A port of the fabric: its addresses, its properties, and the links attached to it.

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use gid_table::{Gid, GidType, InterfaceInfo, LinkGidTypes};
use rxe_core::path::{Path, Unreachable};
use rxe_core::time::Instant;

use super::queue::{ReceiveLimits, ReceiveQueue};
use crate::faults::{FaultSpec, Faults};
use crate::link::LinkCounters;

/// Names a port of a [`Fabric`](super::Fabric).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(pub(super) usize);

/// What a port of the fabric is like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// Its Ethernet address; no other port has it.
    pub mac: [u8; 6],
    /// Its IP addresses; no other port has one of them.
    pub addrs: Vec<IpAddr>,
    /// The longest IP packet, in bytes: what the MTU of a network interface is.
    pub mtu: u32,
    /// The VLANs that it takes packets of, beside packets without one.
    pub vlans: Vec<u16>,
    /// How much each link attached to it receives before it must be fetched.
    pub receive: ReceiveLimits,
    /// What goes wrong with packets that it sends.
    pub faults: Option<FaultSpec>,
    /// How long a packet that it sent is on its way, in nanoseconds.
    pub latency_nanos: u64,
    /// How fast it sends, in bits per second; `None` for at once.
    pub bits_per_second: Option<u64>,
}

impl PortConfig {
    /// A port with an IPv4 and an IPv6 address, both ending in `number`: `10.0.0.n`, `fd00::n`.
    ///
    /// MTU 1500, the buffer of a socket, no faults, no latency, infinitely fast.
    pub fn numbered(number: u8) -> Self {
        Self {
            mac: [0x02, 0, 0, 0, 0, number],
            addrs: vec![
                IpAddr::from([10, 0, 0, number]),
                IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(number)]),
            ],
            mtu: 1500,
            vlans: Vec::new(),
            receive: ReceiveLimits::default(),
            faults: None,
            latency_nanos: 0,
            bits_per_second: None,
        }
    }
}

/// What happened at a port, in packets; beside the [`LinkCounters`] of its links.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PortCounters {
    /// Packets put on the wire.
    pub sent: u64,
    /// Packets not sent: the source is no address of the port.
    pub not_owned: u64,
    /// Packets not sent: no port has the destination address.
    pub no_neighbour: u64,
    /// Packets not sent: longer than the MTU.
    pub too_long: u64,
    /// Packets not sent: too many are on their way already.
    pub send_overflow: u64,
    /// Packets not sent or not received: the port is down.
    pub down: u64,
    /// Packets that arrived and found the receive queue full.
    pub receive_overflow: u64,
    /// Packets that arrived but were for another address or VLAN, or malformed.
    pub not_for_us: u64,
    /// Packets that arrived where no link is attached.
    pub unattached: u64,
}

/// Called when a link has something to receive, or will have.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// A port and its state.
#[derive(Debug)]
pub(super) struct Port {
    pub config: PortConfig,
    pub up: bool,
    /// When it has sent what it was given.
    pub busy_until: Instant,
    /// Packets that it sent and that are still on their way.
    pub in_flight: usize,
    /// The IPv4 identification of the next packet.
    pub identification: u16,
    pub endpoints: Vec<Endpoint>,
    pub counters: PortCounters,
}

impl Port {
    pub(super) fn new(config: PortConfig) -> Self {
        Self {
            config,
            up: true,
            busy_until: Instant::ZERO,
            in_flight: 0,
            identification: 0,
            endpoints: Vec::new(),
            counters: PortCounters::default(),
        }
    }

    /// Whether a packet may be sent from this GID or to it here.
    ///
    /// With RoCE v1 the default GID needs no IP address: it is the MAC address in other words.
    pub(super) fn has_gid(&self, gid: Gid, gid_type: GidType) -> bool {
        self.config.addrs.contains(&gid.to_ip())
            || gid_type == GidType::RoceV1 && gid == Gid::default_for_mac(self.config.mac)
    }

    /// Whether a link of this port has joined a multicast group.
    pub(super) fn has_joined(&self, group: Gid) -> bool {
        self.attached().any(|(_, endpoint)| endpoint.groups.contains(&group))
    }

    pub(super) fn takes_vlan(&self, vlan: Option<u16>) -> bool {
        vlan.is_none_or(|vlan| self.config.vlans.contains(&vlan))
    }

    /// The links that a packet to `path` and a slot goes to, written into `found`.
    ///
    /// To a group: all that have joined it. Otherwise one of those for the address: that of the
    /// slot, or the first, which so gets what names no slot of theirs, such as management (QP 1).
    pub(super) fn endpoints_for(&self, path: &Path, slot: u8, found: &mut Vec<usize>) {
        found.clear();
        let destination = path.destination;
        if destination.is_multicast() {
            let joined = self.attached().filter(|(_, link)| link.groups.contains(&destination));
            found.extend(joined.map(|(index, _)| index));
            return;
        }
        let mut open = self.attached().filter(|(_, link)| link.is_for(destination));
        let of_slot = open.clone().find(|(_, link)| link.slot == slot);
        found.extend(of_slot.or_else(|| open.next()).map(|(index, _)| index));
    }

    pub(super) fn attached(&self) -> impl Iterator<Item = (usize, &Endpoint)> + Clone {
        self.endpoints.iter().enumerate().filter(|(_, endpoint)| endpoint.attached)
    }

    /// The port as a network interface, for the GID table.
    pub(super) fn interface_info(&self, id: PortId) -> InterfaceInfo {
        InterfaceInfo {
            name: format!("mem{}", id.0),
            // 0 is no interface index. A fabric has fewer ports than a u32 can number.
            ifindex: u32::try_from(id.0 + 1).unwrap_or(u32::MAX),
            mac: Some(self.config.mac),
            mtu: self.config.mtu,
            up: self.up,
            running: self.up,
            addrs: self.config.addrs.clone(),
            ..InterfaceInfo::default()
        }
    }
}

/// What ports of a fabric can send, for the GID table: whole frames, so both versions.
pub const GID_TYPES: LinkGidTypes = LinkGidTypes::V1AndV2;

/// One link attached to a port.
pub(super) struct Endpoint {
    pub slot: u8,
    /// The address that it is for alone; `None` for all of the port.
    pub address: Option<Gid>,
    pub attached: bool,
    pub queue: ReceiveQueue,
    pub faults: Option<Faults>,
    pub groups: Vec<Gid>,
    pub unreachable: VecDeque<Unreachable>,
    pub waker: Option<Waker>,
    pub counters: LinkCounters,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("slot", &self.slot)
            .field("address", &self.address)
            .field("attached", &self.attached)
            .field("groups", &self.groups)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    pub(super) fn new(
        slot: u8,
        address: Option<Gid>,
        limits: ReceiveLimits,
        faults: Option<Faults>,
    ) -> Self {
        Self {
            slot,
            address,
            attached: true,
            queue: ReceiveQueue::new(limits),
            faults,
            groups: Vec::new(),
            unreachable: VecDeque::new(),
            waker: None,
            counters: LinkCounters::default(),
        }
    }

    /// Whether it sends from this address and receives for it.
    pub(super) fn is_for(&self, gid: Gid) -> bool {
        self.address.is_none_or(|address| address == gid)
    }

    /// Whether another link, for `address`, would take packets that come to this one.
    pub(super) fn collides_with(&self, slot: u8, address: Option<Gid>) -> bool {
        self.slot == slot
            && (self.address == address || self.address.is_none() != address.is_none())
    }
}
