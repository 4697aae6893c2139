//! The address vector: where a work request or a queue pair sends to.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::assert_layout;
use super::sockaddr::RxeSockaddr;

/// A GID (C: `union rxe_gid`).
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C, align(8))]
pub struct RxeGid {
    /// The 16 bytes in network order.
    pub raw: [u8; 16],
}

assert_layout!(RxeGid, size 16, align 8, raw at 0);

impl RxeGid {
    /// The upper 64 bits (C: `global.subnet_prefix`).
    pub fn subnet_prefix(&self) -> u64 {
        (self.value() >> 64) as u64
    }

    /// The lower 64 bits (C: `global.interface_id`).
    pub fn interface_id(&self) -> u64 {
        (self.value() & u128::from(u64::MAX)) as u64
    }

    fn value(&self) -> u128 {
        u128::from_be_bytes(self.raw)
    }
}

/// What a global route header is made of (C: `struct rxe_global_route`).
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct RxeGlobalRoute {
    /// GID of the destination.
    pub dgid: RxeGid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Index of the source in the port's GID table.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Padding that C leaves unnamed.
    pub padding: u8,
}

assert_layout!(
    RxeGlobalRoute, size 24, align 8,
    dgid at 0, flow_label at 16, sgid_index at 20, hop_limit at 21, traffic_class at 22,
    padding at 23
);

/// An address vector (C: `struct rxe_av`).
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct RxeAv {
    /// Port of the device, from 1.
    pub port_num: u8,
    /// Kind of network; which number means which kind, the header as first published does not say.
    pub network_type: u8,
    /// Padding that C leaves unnamed.
    pub padding: [u8; 6],
    /// Route.
    pub grh: RxeGlobalRoute,
    /// Source GID as a socket address.
    pub sgid_addr: RxeSockaddr,
    /// Destination GID as a socket address.
    pub dgid_addr: RxeSockaddr,
}

assert_layout!(
    RxeAv, size 88, align 8,
    port_num at 0, network_type at 1, padding at 2, grh at 8, sgid_addr at 32, dgid_addr at 60
);
