//! Two namespaces, joined by a veth pair.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Namespace, NetnsError};

/// The name of the interface in each namespace.
pub const INTERFACE: &str = "eth0";

/// For an interface to notice that the other end is up, on a busy machine.
const UP_LIMIT: Duration = Duration::from_secs(20);

/// What the two namespaces are like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VethOptions {
    /// MTU of the interfaces, in bytes.
    pub mtu: u16,
    /// What is left to the interfaces.
    pub offloads: Offloads,
}

impl Default for VethOptions {
    fn default() -> Self {
        Self { mtu: 1500, offloads: Offloads::All }
    }
}

/// What a veth interface does for those who send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offloads {
    /// All it can: a batch of UDP segments crosses as one frame, and has no checksums.
    All,
    /// Nothing that changes a frame: each packet crosses alone, and as it would on a wire.
    None,
}

/// One end of the pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Side {
    /// The first: 10.77.0.1 and fd00:77::1.
    Left,
    /// The second: 10.77.0.2 and fd00:77::2.
    Right,
}

impl Side {
    /// The IPv4 address of this side.
    pub const fn ipv4(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, self.number())
    }

    /// The IPv6 address of this side.
    pub const fn ipv6(self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, self.number() as u16)
    }

    /// Both addresses.
    pub const fn addresses(self) -> [IpAddr; 2] {
        [IpAddr::V4(self.ipv4()), IpAddr::V6(self.ipv6())]
    }

    const fn number(self) -> u8 {
        match self {
            Self::Left => 1,
            Self::Right => 2,
        }
    }
}

/// Two namespaces with an interface each, the two joined.
#[derive(Debug)]
pub struct Joined {
    /// The namespace of [`Side::Left`].
    pub left: Namespace,
    /// The namespace of [`Side::Right`].
    pub right: Namespace,
}

impl Joined {
    /// Makes both, with their addresses, ready for use.
    ///
    /// # Errors
    ///
    /// That a tool fails.
    pub fn new(options: VethOptions) -> Result<Self, NetnsError> {
        let joined = Self { left: Namespace::new("left")?, right: Namespace::new("right")? };
        let mtu = options.mtu.to_string();
        let peer = joined.right.name();
        // Both are made in their namespaces, so the host's own never sees a name of ours.
        joined.left.tool(
            "ip",
            [
                "link", "add", INTERFACE, "mtu", &mtu, "type", "veth", //
                "peer", "name", INTERFACE, "mtu", &mtu, "netns", peer,
            ],
        )?;
        for (namespace, side) in [(&joined.left, Side::Left), (&joined.right, Side::Right)] {
            set_up(namespace, side, options)?;
        }
        wait_until_up(&joined.left)?;
        wait_until_up(&joined.right)?;
        Ok(joined)
    }
}

fn set_up(namespace: &Namespace, side: Side, options: VethOptions) -> Result<(), NetnsError> {
    // Duplicate detection would keep the link-local address unusable for a second.
    let no_detection = format!("echo 0 > /proc/sys/net/ipv6/conf/{INTERFACE}/accept_dad");
    namespace.tool("sh", ["-c", &no_detection])?;
    if options.offloads == Offloads::None {
        namespace.tool("ethtool", ["-K", INTERFACE, "tx-udp-segmentation", "off"])?;
        namespace.tool("ethtool", ["-K", INTERFACE, "tx", "off"])?;
    }
    let ipv4 = format!("{}/24", side.ipv4());
    let ipv6 = format!("{}/64", side.ipv6());
    namespace.tool("ip", ["address", "add", &ipv4, "dev", INTERFACE])?;
    namespace.tool("ip", ["address", "add", &ipv6, "dev", INTERFACE, "nodad"])?;
    namespace.tool("ip", ["link", "set", INTERFACE, "up"])?;
    Ok(())
}

/// Waits until the interface sends what it is given. Linux notes within a second that there is a
/// carrier, and drops everything before that.
fn wait_until_up(namespace: &Namespace) -> Result<(), NetnsError> {
    let (file, end) = (format!("/sys/class/net/{INTERFACE}/operstate"), Instant::now() + UP_LIMIT);
    loop {
        let state = namespace.tool("cat", [&file])?.stdout;
        if state.trim() == "up" {
            return Ok(());
        }
        if Instant::now() >= end {
            let (tool, expected) = ("cat operstate", "`up`");
            return Err(NetnsError::Output { tool, expected, output: state });
        }
        sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::with_namespaces;

    #[test]
    fn the_sides_reach_each_other() {
        with_namespaces("netns::veth::tests::the_sides_reach_each_other", || {
            let options = VethOptions { mtu: 9000, offloads: Offloads::None };
            let joined = Joined::new(options).unwrap();
            for address in Side::Right.addresses() {
                let route = joined.left.tool("ip", ["route", "get", &address.to_string()]);
                assert!(route.unwrap().stdout.contains("dev eth0"));
            }
            for address in Side::Left.addresses() {
                let text = joined.left.tool("ip", ["address", "show", INTERFACE]).unwrap().stdout;
                assert!(text.contains(&address.to_string()) && text.contains("mtu 9000"), "{text}");
            }
            let features = joined.right.tool("ethtool", ["-k", INTERFACE]).unwrap().stdout;
            assert!(features.contains("tx-udp-segmentation: off"), "{features}");
            assert!(features.contains("tx-checksumming: off"), "{features}");
        });
    }
}
