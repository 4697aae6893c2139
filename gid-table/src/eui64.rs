//! EUI-64 identifiers made of MAC addresses.

/// The modified EUI-64 of a MAC address, its first byte on the wire in the top byte.
///
/// The universal/local bit is turned over and `ff:fe` put in the middle (RFC 4291 appendix A).
/// It is the lower half of the default GID.
pub const fn modified_from_mac(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([a ^ 0x02, b, c, 0xff, 0xfe, d, e, f])
}

/// The node GUID of a device whose first interface has this MAC address.
///
/// Linux's rdma_rxe takes the modified EUI-64 as well, so both ends of a comparison agree.
pub const fn node_guid(mac: [u8; 6]) -> u64 {
    modified_from_mac(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_bit_is_turned_over() {
        // The example of RFC 4291 appendix A: 34-56-78-9A-BC-DE.
        let guid = modified_from_mac([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]);
        assert_eq!(guid, 0x3656_78ff_fe9a_bcde);
        assert_eq!(node_guid([0x52, 0x54, 0, 0x77, 0, 1]), 0x5054_00ff_fe77_0001);
    }
}
