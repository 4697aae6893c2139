//! Which Ethernet address a packet goes to.

use std::io;

use gid_table::{Gid, GidType};
use rxe_core::path::Path;
use rxe_core::time::Instant;

use crate::host::neighbour::{Hop, Neighbours};

/// The index of `lo`, in every network namespace.
pub(super) const LOOPBACK_IFINDEX: u32 = 1;

/// Where a frame goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Way {
    /// The interface that it leaves by.
    pub ifindex: u32,
    /// The Ethernet address of whoever is to get it.
    pub mac: [u8; 6],
}

impl Way {
    /// Back to this host. On `lo` all addresses are zero.
    pub(super) const OWN: Self = Self { ifindex: LOOPBACK_IFINDEX, mac: [0; 6] };
}

/// Resolves the destinations of one link.
#[derive(Debug)]
pub(super) struct Resolver {
    neighbours: Neighbours,
    ifindex: u32,
    gid: Gid,
}

impl Resolver {
    pub(super) fn new(ifindex: u32, gid: Gid) -> io::Result<Self> {
        Ok(Self { neighbours: Neighbours::new(ifindex, gid.to_ip())?, ifindex, gid })
    }

    /// The way of a packet; `None` while the network has not told it.
    pub(super) fn way(&mut self, now: Instant, path: &Path) -> Option<Way> {
        let destination = path.destination;
        // Also where the host does not have the address: that of a GID that is made of a MAC.
        if self.ifindex == LOOPBACK_IFINDEX || destination == self.gid {
            return Some(Way::OWN);
        }
        let by = |mac| Way { ifindex: self.ifindex, mac };
        // R49.
        if let Some(mac) = destination.multicast_mac() {
            return Some(by(mac));
        }
        if path.gid_type == GidType::RoceV1
            && let Some(mac) = mac_in(destination)
        {
            return Some(by(mac));
        }
        Some(match self.neighbours.hop(now, destination.to_ip())? {
            Hop::Mac(mac) => by(mac),
            Hop::Own => Way::OWN,
        })
    }
}

/// The Ethernet address in a link-local GID of RoCE v1 that is made of one (RFC 4291, appendix A):
/// no neighbour has to be asked for it.
fn mac_in(gid: Gid) -> Option<[u8; 6]> {
    let raw = gid.raw();
    let [_, _, _, _, _, _, _, _, a, b, c, 0xff, 0xfe, d, e, f] = raw else { return None };
    gid.is_link_local().then_some([a ^ 0x02, b, c, d, e, f])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_local_gid_gives_its_mac() {
        let mac = [0x52, 0x54, 0, 0x77, 0, 1];
        assert_eq!(mac_in(Gid::default_for_mac(mac)), Some(mac));
        for other in ["fe80::1", "10.77.0.1", "fd00::5054:ff:fe77:1"] {
            assert_eq!(mac_in(other.parse().expect("a GID")), None, "{other}");
        }
    }
}
