//! An entry of a GID table as the kernel gives it to user space.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::assert_layout;

/// The kind of a GID (C: `enum ib_uverbs_gid_entry_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum UverbsGidType {
    /// InfiniBand link layer.
    Ib = 0,
    /// RoCEv1 on Ethernet.
    RoceV1 = 1,
    /// RoCEv2 on Ethernet.
    RoceV2 = 2,
}

/// A valid entry of a GID table (C: `struct ib_uverbs_gid_entry`).
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct IbUverbsGidEntry {
    /// The GID in network order.
    pub gid: [u8; 16],
    /// Index in the table of the port.
    pub gid_index: u32,
    /// Port of the device, from 1.
    pub port_num: u32,
    /// A number of [`UverbsGidType`].
    pub gid_type: u32,
    /// Index of the network interface; negative when there is none.
    pub netdev_ifindex: i32,
}

assert_layout!(
    IbUverbsGidEntry, size 32, align 4,
    gid at 0, gid_index at 16, port_num at 20, gid_type at 24, netdev_ifindex at 28
);

impl IbUverbsGidEntry {
    /// The kind of the GID, or `None` for a number that means none.
    pub const fn known_type(&self) -> Option<UverbsGidType> {
        match self.gid_type {
            0 => Some(UverbsGidType::Ib),
            1 => Some(UverbsGidType::RoceV1),
            2 => Some(UverbsGidType::RoceV2),
            _ => None,
        }
    }

    /// The network interface, or `None` when the entry has none (a negative index).
    pub fn ifindex(&self) -> Option<u32> {
        u32::try_from(self.netdev_ifindex).ok()
    }
}
