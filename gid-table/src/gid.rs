//! The 128-bit global identifier, and the kind of network it is used on.

use std::fmt;
use std::net::{AddrParseError, IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::eui64;

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

    /// The default GID of an interface: `fe80::/64` and the modified EUI-64 of its MAC address.
    ///
    /// Counterpart of `make_default_gid` in Linux. Many hosts do not own this address, since they
    /// make link-local addresses otherwise (RFC 7217).
    pub fn default_for_mac(mac: [u8; 6]) -> Self {
        let prefix = 0xfe80_u128 << 112;
        let identifier = u128::from(eui64::modified_from_mac(mac));
        Self((prefix | identifier).to_be_bytes())
    }

    /// Whether all bytes are zero.
    pub const fn is_zero(self) -> bool {
        u128::from_be_bytes(self.0) == 0
    }

    /// Whether this names a multicast group: `ff00::/8`, or a mapped IPv4 address in 224.0.0.0/4.
    ///
    /// Counterpart of `rdma_is_multicast_addr` in Linux.
    pub fn is_multicast(self) -> bool {
        self.to_ip().is_multicast()
    }

    /// Whether this is a link-local IPv6 address, of `fe80::/64`.
    ///
    /// Counterpart of `rdma_link_local_addr` in Linux. RFC 4291 section 2.5.6 reserves
    /// `fe80::/10`, and sets the 54 bits after it to zero.
    pub const fn is_link_local(self) -> bool {
        u128::from_be_bytes(self.0) >> 64 == 0xfe80_0000_0000_0000
    }

    /// Whether this is a loopback address: `::1`, or a mapped address in 127.0.0.0/8.
    pub fn is_loopback(self) -> bool {
        self.to_ip().is_loopback()
    }

    /// The Ethernet address of this multicast group; `None` when it is not multicast.
    ///
    /// A mapped IPv4 group gives `01:00:5e` and the low 23 bits of the address (RFC 1112 section
    /// 6.4), any other `33:33` and the last four bytes (RFC 2464 section 7). R49.
    pub fn multicast_mac(self) -> Option<[u8; 6]> {
        if !self.is_multicast() {
            return None;
        }
        let [.., a, b, c, d] = self.0;
        Some(match self.to_ipv4() {
            Some(_) => [0x01, 0x00, 0x5e, b & 0x7f, c, d],
            None => [0x33, 0x33, a, b, c, d],
        })
    }

    /// The GID written as 32 hex digits in wire order, as the example programs exchange it.
    pub fn to_hex(self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
    }

    /// Reads a GID of 32 hex digits in wire order, as `to_hex` writes it.
    ///
    /// # Errors
    ///
    /// [`ParseGidError::Hex`] when the text is anything but 32 hex digits.
    pub fn from_hex(text: &str) -> Result<Self, ParseGidError> {
        let error = || ParseGidError::Hex { text: text.to_owned() };
        // from_str_radix would take a sign as well.
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(error());
        }
        let value = u128::from_str_radix(text, 16).map_err(|_| error())?;
        Ok(Self(value.to_be_bytes()))
    }
}

impl FromStr for Gid {
    type Err = ParseGidError;

    /// Reads an IPv6 address (in any of its forms, so also as sysfs prints a GID), or an IPv4
    /// address, which becomes a mapped one.
    fn from_str(text: &str) -> Result<Self, ParseGidError> {
        match text.parse() {
            Ok(ip) => Ok(Self::from_ip(ip)),
            Err(source) => Err(ParseGidError::Address { text: text.to_owned(), source }),
        }
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        Self::from_ip(ip)
    }
}

/// A text that is no GID.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParseGidError {
    /// Neither an IPv6 nor an IPv4 address.
    #[error("`{text}` is no GID: give an IPv6 or IPv4 address without a zone or prefix length")]
    Address {
        /// What was given.
        text: String,
        /// What the parser of addresses says.
        source: AddrParseError,
    },
    /// Not 32 hex digits.
    #[error("`{text}` is no GID in wire form: it needs 32 hex digits and nothing else")]
    Hex {
        /// What was given.
        text: String,
    },
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

impl fmt::Display for GidType {
    /// The words of sysfs (`gid_attrs/types`): Linux calls both IB and RoCE v1 "IB/RoCE v1".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ib | Self::RoceV1 => "IB/RoCE v1",
            Self::RoceV2 => "RoCE v2",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn gid(text: &str) -> Gid {
        text.parse().expect("a GID in a test")
    }

    #[test]
    fn addresses_become_gids_and_back() {
        let v4 = gid("10.77.0.1");
        assert_eq!(v4.raw(), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1]);
        assert_eq!(v4.to_string(), "::ffff:10.77.0.1");
        assert_eq!(v4.to_ip(), IpAddr::from([10, 77, 0, 1]));
        assert_eq!(v4, gid("::ffff:10.77.0.1"));
        assert_eq!(gid("fd00:77::2").to_ipv4(), None);
        assert_eq!(gid("fe80:0000:0000:0000:5054:00ff:fe77:0001"), gid("fe80::5054:ff:fe77:1"));
        assert!(Gid::ZERO.is_zero() && !v4.is_zero());
    }

    #[test]
    fn wire_form_is_32_hex_digits() {
        assert_eq!(gid("10.77.0.1").to_hex(), "00000000000000000000ffff0a4d0001");
        let long = "+0000000000000000000ffff0a4d0001";
        for bad in ["", "00", long, "0x000000000000000000ffff0a4d0001"] {
            assert_eq!(Gid::from_hex(bad), Err(ParseGidError::Hex { text: bad.to_owned() }));
        }
    }

    #[test]
    fn bad_text_says_what_would_be_right() {
        let error = "fe80::1%eth0".parse::<Gid>().expect_err("has a zone");
        assert!(error.to_string().contains("without a zone"), "{error}");
    }

    #[test]
    fn default_gid_of_a_mac() {
        let mac = [0x52, 0x54, 0x00, 0x77, 0x00, 0x01];
        assert_eq!(Gid::default_for_mac(mac), gid("fe80::5054:ff:fe77:1"));
        assert_eq!(Gid::default_for_mac([0; 6]), gid("fe80::200:ff:fe00:0"));
        assert!(Gid::default_for_mac(mac).is_link_local());
    }

    #[test]
    fn classes_of_addresses() {
        for multicast in ["ff02::1", "ff0e::ffff:239.1.2.3", "224.0.0.1", "239.255.255.255"] {
            assert!(gid(multicast).is_multicast(), "{multicast}");
        }
        for unicast in ["fe80::1", "10.0.0.1", "223.255.255.255", "240.0.0.1", "::"] {
            assert!(!gid(unicast).is_multicast(), "{unicast}");
            assert_eq!(gid(unicast).multicast_mac(), None);
        }
        assert!(gid("fe80::1").is_link_local());
        assert!(!gid("fe80:0:0:1::1").is_link_local());
        assert!(!gid("169.254.0.1").is_link_local());
        assert!(gid("127.3.4.5").is_loopback() && gid("::1").is_loopback());
    }

    #[test]
    fn r49_multicast_groups_map_to_ethernet_addresses() {
        let mac = |text: &str| gid(text).multicast_mac();
        assert_eq!(mac("239.129.2.3"), Some([0x01, 0x00, 0x5e, 0x01, 2, 3]));
        assert_eq!(mac("ff02::1:ff00:1234"), Some([0x33, 0x33, 0xff, 0x00, 0x12, 0x34]));
        assert_eq!(mac("ff0e::ffff:239.129.2.3"), Some([0x33, 0x33, 239, 129, 2, 3]));
    }

    proptest! {
        #[test]
        fn text_and_hex_round_trip(raw: [u8; 16]) {
            let gid = Gid::from_raw(raw);
            prop_assert_eq!(gid.to_string().parse::<Gid>(), Ok(gid));
            prop_assert_eq!(Gid::from_hex(&gid.to_hex()), Ok(gid));
            prop_assert_eq!(Gid::from_ip(gid.to_ip()), gid);
        }
    }
}
