//! The header that the IP connection manager puts before a program's private data.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::fields::Bits;

/// The length of the header in bytes; in a REQ 56 bytes of private data remain, in a SIDR_REQ 180.
pub const CMA_HEADER_LEN: usize = 36;

/// The header as it lies on the wire.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct CmaHeaderBytes {
    version: u8,
    /// 4 bits IP version, 4 reserved.
    ip_version: u8,
    source_port: U16,
    source: [u8; 16],
    destination: [u8; 16],
}

const _: () = assert!(size_of::<CmaHeaderBytes>() == CMA_HEADER_LEN);

/// Who connects, in terms of IP: the first bytes of the private data of a REQ or SIDR_REQ whose
/// service id belongs to a port space (facts.md section 2; C: `struct cma_hdr`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CmaHeader {
    /// Version of this header; 0 is the only one there is.
    pub version: u8,
    /// 4 or 6; other values may arrive.
    pub ip_version: Bits<4>,
    /// The requester's port. The listener's is in the service id.
    pub source_port: u16,
    /// The requester's address; an IPv4 address fills the last four bytes.
    pub source: [u8; 16],
    /// The listener's address, likewise.
    pub destination: [u8; 16],
    /// Reserved bits as received; 0 in messages of ours.
    pub reserved: Bits<4>,
}

impl CmaHeader {
    /// A header of IPv4.
    pub fn v4(source_port: u16, source: Ipv4Addr, destination: Ipv4Addr) -> Self {
        let ip_version = Bits::new(4);
        let [source, destination] = [in_last_bytes(source), in_last_bytes(destination)];
        Self { ip_version, source_port, source, destination, ..Self::default() }
    }

    /// A header of IPv6.
    pub fn v6(source_port: u16, source: Ipv6Addr, destination: Ipv6Addr) -> Self {
        let ip_version = Bits::new(6);
        let [source, destination] = [source.octets(), destination.octets()];
        Self { ip_version, source_port, source, destination, ..Self::default() }
    }

    /// Reads the header from the beginning of private data. Every bit pattern is a header; whether
    /// it makes sense, the versions say.
    pub fn read(bytes: &[u8; CMA_HEADER_LEN]) -> Self {
        let raw: CmaHeaderBytes = zerocopy::transmute!(*bytes);
        Self {
            version: raw.version,
            ip_version: Bits::new(raw.ip_version >> 4),
            source_port: raw.source_port.get(),
            source: raw.source,
            destination: raw.destination,
            reserved: Bits::new(raw.ip_version),
        }
    }

    /// Writes the header; what [`CmaHeader::read`] took comes out unchanged.
    pub fn write(&self, out: &mut [u8; CMA_HEADER_LEN]) {
        let raw = CmaHeaderBytes {
            version: self.version,
            ip_version: self.ip_version.get() << 4 | self.reserved.get(),
            source_port: self.source_port.into(),
            source: self.source,
            destination: self.destination,
        };
        *out = zerocopy::transmute!(raw);
    }

    /// The requester's address, or `None` when the IP version is neither 4 nor 6.
    pub fn source_ip(&self) -> Option<IpAddr> {
        self.ip(self.source)
    }

    /// The listener's address, or `None` when the IP version is neither 4 nor 6.
    pub fn destination_ip(&self) -> Option<IpAddr> {
        self.ip(self.destination)
    }

    fn ip(&self, address: [u8; 16]) -> Option<IpAddr> {
        match self.ip_version.get() {
            4 => {
                let [.., a, b, c, d] = address;
                Some(Ipv4Addr::new(a, b, c, d).into())
            }
            6 => Some(Ipv6Addr::from(address).into()),
            _ => None,
        }
    }
}

fn in_last_bytes(address: Ipv4Addr) -> [u8; 16] {
    let [a, b, c, d] = address.octets();
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]
}

impl fmt::Display for CmaHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.source_ip(), self.destination_ip()) {
            (Some(source), Some(destination)) => {
                write!(f, "{source} port {} > {destination}", self.source_port)
            }
            _ => write!(f, "of version {}", self.ip_version),
        }
    }
}

impl fmt::Debug for CmaHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CmaHeader(version {}, {self}, reserved {})", self.version, self.reserved)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ipv4_addresses_fill_the_last_four_bytes() {
        let header = CmaHeader::v4(0x1234, [10, 77, 0, 2].into(), [10, 77, 0, 1].into());
        let mut bytes = [0xff; CMA_HEADER_LEN];
        header.write(&mut bytes);
        let mut expected = [0; CMA_HEADER_LEN];
        expected[1..4].copy_from_slice(&[0x40, 0x12, 0x34]);
        expected[16..20].copy_from_slice(&[10, 77, 0, 2]);
        expected[32..36].copy_from_slice(&[10, 77, 0, 1]);
        assert_eq!(bytes, expected);
        assert_eq!(header.to_string(), "10.77.0.2 port 4660 > 10.77.0.1");
    }

    #[test]
    fn ipv6_addresses_are_whole() {
        let [source, destination]: [Ipv6Addr; 2] =
            ["fd00:77::2".parse().unwrap(), "fd00:77::1".parse().unwrap()];
        let header = CmaHeader::v6(7, source, destination);
        assert_eq!(header.source_ip(), Some(source.into()));
        assert_eq!(header.destination_ip(), Some(destination.into()));
    }

    proptest! {
        #[test]
        fn any_bytes_round_trip(bytes in proptest::array::uniform(any::<u8>())) {
            let mut out = [0; CMA_HEADER_LEN];
            CmaHeader::read(&bytes).write(&mut out);
            prop_assert_eq!(out, bytes);
        }
    }
}
