//! The socket addresses in an address vector.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{arm_of, assert_layout, union_of};

/// The address family of IPv4 on Linux.
pub const AF_INET: u16 = 2;

/// The address family of IPv6 on Linux.
pub const AF_INET6: u16 = 10;

/// An address of a family that is not said here (C: `struct sockaddr`).
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Sockaddr {
    /// Address family, in the byte order of the host.
    pub family: u16,
    /// What the family defines.
    pub data: [u8; 14],
}

assert_layout!(Sockaddr, size 16, align 2, family at 0, data at 2);

/// An IPv4 address (C: `struct sockaddr_in`).
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C, align(4))]
pub struct SockaddrIn {
    /// [`AF_INET`].
    pub family: u16,
    /// Port.
    pub port: U16,
    /// Address.
    pub address: [u8; 4],
    /// Fills up to the size of `struct sockaddr`.
    pub zero: [u8; 8],
}

assert_layout!(SockaddrIn, size 16, align 4, family at 0, port at 2, address at 4, zero at 8);

/// An IPv6 address (C: `struct sockaddr_in6`).
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct SockaddrIn6 {
    /// [`AF_INET6`].
    pub family: u16,
    /// Port.
    pub port: U16,
    /// Flow information, in network byte order as the socket API keeps it.
    pub flow_info: [u8; 4],
    /// Address.
    pub address: [u8; 16],
    /// Interface that a link-local address belongs to; 0 is none.
    pub scope_id: u32,
}

assert_layout!(
    SockaddrIn6, size 28, align 4,
    family at 0, port at 2, flow_info at 4, address at 8, scope_id at 24
);

/// The union of the three addresses, tagged by the family that they all begin with (C: the unions
/// `sgid_addr` and `dgid_addr` of `struct rxe_av`).
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C, align(4))]
pub struct RxeSockaddr {
    /// The bytes of the arm, and what follows it.
    pub bytes: [u8; 28],
}

assert_layout!(RxeSockaddr, size 28, align 4, bytes at 0);

impl RxeSockaddr {
    /// A union whose arm is IPv4; the bytes after the arm are 0.
    pub fn from_in(arm: SockaddrIn) -> Self {
        Self { bytes: union_of(&arm) }
    }

    /// A union whose arm is IPv6.
    pub fn from_in6(arm: SockaddrIn6) -> Self {
        zerocopy::transmute!(arm)
    }

    /// A union for an address without port, flow information and scope.
    pub fn from_ip(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => {
                let (family, address) = (AF_INET, v4.octets());
                Self::from_in(SockaddrIn { family, address, ..SockaddrIn::default() })
            }
            IpAddr::V6(v6) => {
                let (family, address) = (AF_INET6, v6.octets());
                Self::from_in6(SockaddrIn6 { family, address, ..SockaddrIn6::default() })
            }
        }
    }

    /// The arm without a family of its own; any address can be read so.
    pub fn as_sockaddr(&self) -> Sockaddr {
        arm_of(&self.bytes)
    }

    /// The IPv4 arm, whatever the family says.
    pub fn as_in(&self) -> SockaddrIn {
        arm_of(&self.bytes)
    }

    /// The IPv6 arm, whatever the family says.
    pub fn as_in6(&self) -> SockaddrIn6 {
        zerocopy::transmute!(*self)
    }

    /// The family that all arms begin with.
    pub fn family(&self) -> u16 {
        self.as_sockaddr().family
    }

    /// The IP address, or `None` when the family is neither IPv4 nor IPv6.
    pub fn ip(&self) -> Option<IpAddr> {
        match self.family() {
            AF_INET => Some(Ipv4Addr::from(self.as_in().address).into()),
            AF_INET6 => Some(Ipv6Addr::from(self.as_in6().address).into()),
            _ => None,
        }
    }
}
