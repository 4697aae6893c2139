//! GIDs.

abi_struct! {
    /// A GID with its place, type and interface.
    struct ibv_gid_entry(32) {
        0 gid: ibv_gid,
        16 gid_index: u32,
        20 port_num: u32,
        24 gid_type: u32,
        28 ndev_ifindex: u32,
    }
}

/// A GID: 16 bytes in network order, at a multiple of 8.
#[repr(C, align(8))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(non_camel_case_types)]
pub(crate) struct ibv_gid {
    pub(crate) raw: [u8; 16],
}

const _: () = assert!(size_of::<ibv_gid>() == 16 && align_of::<ibv_gid>() == 8);
