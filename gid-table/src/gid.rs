//! The 128-bit global identifier, and the kind of network it is used on.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A global identifier: 128 bits in wire order, of the form of an IPv6 address.
///
/// On RoCE a GID is an IP address of the interface: an IPv6 address as it is, an IPv4 address
/// mapped as `::ffff:a.b.c.d`. Counterpart of `union ibv_gid`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Gid([u8; 16]);

impl Gid {
    /// The GID of all zeros, which stands for an empty table entry.
    pub const ZERO: Self = Self([0; 16]);

    /// Makes a GID of its 16 bytes in wire order.
    pub const fn from_raw(raw: [u8; 16]) -> Self {
        Self(raw)
    }

    /// The 16 bytes in wire order.
    pub const fn raw(self) -> [u8; 16] {
        self.0
    }

    /// The GID of an IP address (`rdma_ip2gid` in Linux).
    pub fn from_ip(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }

    /// The IP address that this GID stands for: IPv4 for a mapped address, otherwise IPv6.
    pub fn to_ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    /// The IPv4 address in a mapped GID.
    pub fn to_ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// Whether all bytes are zero.
    pub const fn is_zero(self) -> bool {
        u128::from_be_bytes(self.0) == 0
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The kind of network a GID is used on; the values are those of `enum ibv_gid_type`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u32)]
pub enum GidType {
    /// InfiniBand (`IBV_GID_TYPE_IB`); no urxe port has one.
    Ib = 0,
    /// RoCE v1: a GRH directly over Ethernet (`IBV_GID_TYPE_ROCE_V1`).
    RoceV1 = 1,
    /// RoCE v2: UDP over IP (`IBV_GID_TYPE_ROCE_V2`).
    RoceV2 = 2,
}
