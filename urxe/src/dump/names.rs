//! Names of what is not RoCE.

/// What an EtherType announces.
pub(super) fn ether_type(ether_type: u16) -> String {
    let name = match ether_type {
        0..=0x05ff => return format!("802.3 frame, length {ether_type}"),
        0x0806 => "ARP",
        0x8035 => "RARP",
        0x8808 => "flow control",
        0x8847 | 0x8848 => "MPLS",
        0x8863 | 0x8864 => "PPPoE",
        0x888e => "802.1X",
        0x88cc => "LLDP",
        0x88e5 => "MACsec",
        0x88f7 => "PTP",
        0x8906 => "FCoE",
        _ => return format!("EtherType 0x{ether_type:04x}"),
    };
    name.to_string()
}

/// What an IP protocol number, or an IPv6 next header, announces.
pub(super) fn ip_protocol(protocol: u8) -> String {
    let name = match protocol {
        0 => "IPv6 hop-by-hop options",
        1 => "ICMP",
        2 => "IGMP",
        4 | 41 => "IP in IP",
        6 => "TCP",
        43 | 60 => "IPv6 extension headers",
        44 => "IPv6 fragment",
        47 => "GRE",
        50 => "ESP",
        58 => "ICMPv6",
        89 => "OSPF",
        132 => "SCTP",
        _ => return format!("IP protocol {protocol}"),
    };
    name.to_string()
}
