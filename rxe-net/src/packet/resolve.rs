//! Which Ethernet address a packet goes to.

use std::io;

use gid_table::{Gid, GidType};
use rxe_core::path::Path;
use rxe_core::time::Instant;

use crate::host::neighbour::Neighbours;

/// Resolves the destinations of one link.
#[derive(Debug)]
pub(super) struct Resolver {
    neighbours: Neighbours,
    /// On `lo` all addresses are zero.
    is_loopback: bool,
}

impl Resolver {
    pub(super) fn new(ifindex: u32, own_mac: [u8; 6], gid: Gid) -> io::Result<Self> {
        let neighbours = Neighbours::new(ifindex, gid.to_ip())?;
        Ok(Self { neighbours, is_loopback: own_mac == [0; 6] })
    }

    /// The Ethernet address for a packet; `None` while the network has not told it.
    pub(super) fn mac(&mut self, now: Instant, path: &Path) -> Option<[u8; 6]> {
        let destination = path.destination;
        if self.is_loopback {
            return Some([0; 6]);
        }
        // R49.
        if let Some(mac) = destination.multicast_mac() {
            return Some(mac);
        }
        if path.gid_type == GidType::RoceV1
            && let Some(mac) = mac_in(destination)
        {
            return Some(mac);
        }
        self.neighbours.mac(now, destination.to_ip())
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
