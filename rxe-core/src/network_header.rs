//! The 40 bytes before the data of a datagram: the network header that it came with.
//!
//! Of RoCE v1 the GRH, of v2 the IPv6 header, or 20 zeros and the IPv4 header, as Linux's driver
//! lays them out (`union rdma_network_hdr`). The link has taken the header off, so it is written
//! anew from the addressing; of an IPv4 header that loses the identification, which is 0 here.

use std::net::{Ipv4Addr, Ipv6Addr};

use gid_table::{Gid, GidType};
use rxe_wire::net::{Grh, Ipv4, Ipv6};

use crate::path::Path;
use crate::wc::NetworkType;

/// Bytes before the data.
pub(crate) const HEADER_LEN: usize = 40;
/// Where in them an IPv4 header stands.
const IPV4_AT: usize = HEADER_LEN - Ipv4::LEN;
const UDP: u8 = 17;
const UDP_LEN: usize = 8;
const ICRC_LEN: usize = 4;
/// Next header of a GRH: BTH (facts of the wire, section 3).
const IBA_TRANSPORT: u8 = 0x1b;

/// A network header, read from the head of a receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkHeader(Path);

impl NetworkHeader {
    /// The addressing that it has.
    pub(crate) fn path(&self) -> Path {
        self.0
    }

    /// Reads what [`write`] wrote, or Linux's driver.
    pub(crate) fn parse(bytes: &[u8; HEADER_LEN]) -> Option<Self> {
        let (head, tail) = bytes.split_at(IPV4_AT);
        if let Ok(ip) = Ipv4::read(tail)
            && head.first().is_none_or(|byte| byte >> 4 != 6)
        {
            let gid = |addr: Ipv4Addr| Gid::from_ip(addr.into());
            let path = Path::new(gid(ip.source), gid(ip.destination));
            let (traffic_class, hop_limit) = (ip.traffic_class, ip.ttl);
            return Some(Self(Path { traffic_class, hop_limit, ..path }));
        }
        let grh = Grh::read(bytes).ok()?;
        let gid_type =
            if grh.next_header == IBA_TRANSPORT { GidType::RoceV1 } else { GidType::RoceV2 };
        let path = Path::new(Gid::from_raw(grh.source), Gid::from_raw(grh.destination));
        let Grh { traffic_class, flow_label, hop_limit, .. } = grh;
        Some(Self(Path { gid_type, traffic_class, flow_label, hop_limit, ..path }))
    }
}

/// Which of the headers [`write`] writes.
pub(crate) fn network_type(path: &Path) -> NetworkType {
    match (path.gid_type, path.source.to_ipv4(), path.destination.to_ipv4()) {
        (GidType::RoceV2, Some(_), Some(_)) => NetworkType::Ipv4,
        (GidType::RoceV2, ..) => NetworkType::Ipv6,
        (GidType::RoceV1 | GidType::Ib, ..) => NetworkType::RoceV1,
    }
}

/// The header of a packet that came over `path`, with `len` bytes from BTH to the last pad byte.
pub(crate) fn write(path: &Path, len: usize) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    // All fit: packets have less than 2^13 bytes. A field that did not would leave zeros.
    let with_icrc = (len + ICRC_LEN) as u16;
    let with_udp = with_icrc + UDP_LEN as u16;
    let written = match (path.gid_type, path.source.to_ipv4(), path.destination.to_ipv4()) {
        (GidType::RoceV2, Some(source), Some(destination)) => {
            let total_len = with_udp + Ipv4::LEN as u16;
            let (traffic_class, ttl) = (path.traffic_class, path.hop_limit);
            let mut ip = Ipv4 { traffic_class, ttl, total_len, ..Ipv4::new(source, destination) };
            ip.computed_checksum().and_then(|checksum| {
                ip.checksum = checksum;
                ip.write(&mut bytes[IPV4_AT..])
            })
        }
        (GidType::RoceV2, ..) => {
            let addr = |gid: Gid| Ipv6Addr::from(gid.raw());
            let ip = Ipv6::new(addr(path.source), addr(path.destination));
            let Path { traffic_class, flow_label, hop_limit, .. } = *path;
            let (payload_len, next_header) = (with_udp, UDP);
            let ip = Ipv6 { traffic_class, flow_label, hop_limit, payload_len, next_header, ..ip };
            ip.write(&mut bytes)
        }
        (GidType::RoceV1 | GidType::Ib, ..) => {
            let grh = Grh::new(path.source.raw(), path.destination.raw());
            let Path { traffic_class, flow_label, hop_limit, .. } = *path;
            let (payload_len, next_header) = (with_icrc, IBA_TRANSPORT);
            let grh = Grh { traffic_class, flow_label, hop_limit, payload_len, next_header, ..grh };
            grh.write(&mut bytes)
        }
    };
    debug_assert!(written.is_ok(), "each field is within its range");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        Gid::from_ip(text.parse().unwrap())
    }

    #[test]
    fn ipv4_stands_in_the_last_twenty_bytes() {
        let path = Path { traffic_class: 0x20, ..Path::new(gid("10.0.0.1"), gid("10.0.0.2")) };
        let bytes = write(&path, 24);
        assert_eq!(network_type(&path), NetworkType::Ipv4);
        assert_eq!(bytes[..20], [0; 20]);
        // Total length 20 + 8 + 24 + 4, "don't fragment", TTL 64, UDP; the checksum by hand.
        let head = [0x45, 0x20, 0, 56, 0, 0, 0x40, 0, 64, 17];
        assert_eq!(bytes[20..30], head);
        let words = bytes[20..].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
        let sum: u32 = words.sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the checksum is right");
        assert_eq!(bytes[32..], [10, 0, 0, 1, 10, 0, 0, 2]);
        assert_eq!(NetworkHeader::parse(&bytes).unwrap().path(), path);
    }

    #[test]
    fn ipv6_and_grh_fill_all_forty() {
        let (one, two) = (gid("fe80::1"), gid("ff0e::2"));
        let path =
            Path { flow_label: 0x1_2345, hop_limit: 3, traffic_class: 5, ..Path::new(one, two) };
        let bytes = write(&path, 24);
        assert_eq!(network_type(&path), NetworkType::Ipv6);
        assert_eq!(bytes[..8], [0x60, 0x51, 0x23, 0x45, 0, 36, 17, 3]);
        assert_eq!(NetworkHeader::parse(&bytes).unwrap().path(), path);
        let path = Path { gid_type: GidType::RoceV1, ..path };
        let bytes = write(&path, 24);
        assert_eq!(network_type(&path), NetworkType::RoceV1);
        assert_eq!(bytes[..8], [0x60, 0x51, 0x23, 0x45, 0, 28, 0x1b, 3]);
        assert_eq!(NetworkHeader::parse(&bytes).unwrap().path(), path);
        assert!(NetworkHeader::parse(&[0; 40]).is_none());
    }
}
