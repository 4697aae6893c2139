//! Which ports of which addresses are taken in this process.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use rxe_wire::mad::cm::PortSpace;

/// The ports that are given to those who ask for none, unless the host says otherwise.
pub(crate) const EPHEMERAL: RangeInclusive<u16> = 32768..=60999;

/// One who has a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Holder {
    number: u64,
    ip: IpAddr,
    only_v6: bool,
    may_share: bool,
}

impl Holder {
    /// Whether some address belongs to both.
    fn overlaps(&self, other: &Self) -> bool {
        match (self.ip, other.ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => a == b || a.is_unspecified() || b.is_unspecified(),
            (IpAddr::V6(a), IpAddr::V6(b)) => a == b || a.is_unspecified() || b.is_unspecified(),
            // All IPv6 addresses stand for all addresses, unless that is not wanted.
            (IpAddr::V6(a), IpAddr::V4(_)) => a.is_unspecified() && !self.only_v6,
            (IpAddr::V4(_), IpAddr::V6(b)) => b.is_unspecified() && !other.only_v6,
        }
    }
}

/// How an address is bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Sharing {
    /// Others may bind it too, if they may share as well (C: `rdma_set_reuseaddr`).
    pub(crate) reuse: bool,
    /// All IPv6 addresses are not all IPv4 addresses too (C: `rdma_set_afonly`).
    pub(crate) only_v6: bool,
}

/// The ports of this process.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    held: HashMap<(PortSpace, u16), Vec<Holder>>,
    made: u64,
}

impl Ports {
    /// Takes the port of `address`; of port 0, one that nobody has, the search beginning `at`.
    /// Gives the holder's number and the address with its port, or `None` when it is taken.
    pub(crate) fn take(
        &mut self,
        space: PortSpace,
        address: SocketAddr,
        sharing: Sharing,
        range: &RangeInclusive<u16>,
        at: u16,
    ) -> Option<(u64, SocketAddr)> {
        let port = match address.port() {
            0 => self.free_port(space, range, at)?,
            port => port,
        };
        self.made += 1;
        let holder = Holder {
            number: self.made,
            ip: address.ip(),
            only_v6: sharing.only_v6,
            may_share: sharing.reuse,
        };
        let holders = self.held.entry((space, port)).or_default();
        let is_taken = holders
            .iter()
            .any(|other| other.overlaps(&holder) && !(other.may_share && holder.may_share));
        if is_taken {
            return None;
        }
        holders.push(holder);
        let mut address = address;
        address.set_port(port);
        Some((holder.number, address))
    }

    /// A port that nobody has at any address.
    fn free_port(&self, space: PortSpace, range: &RangeInclusive<u16>, at: u16) -> Option<u16> {
        let count = u32::from(range.end().saturating_sub(*range.start())) + 1;
        (0..count)
            .map(|step| *range.start() + ((u32::from(at) + step) % count) as u16)
            .find(|&port| self.held.get(&(space, port)).is_none_or(Vec::is_empty))
    }

    /// Gives a port back.
    pub(crate) fn give_back(&mut self, space: PortSpace, port: u16, number: u64) {
        if let Some(holders) = self.held.get_mut(&(space, port)) {
            holders.retain(|holder| holder.number != number);
            if holders.is_empty() {
                self.held.remove(&(space, port));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(ports: &mut Ports, address: &str, sharing: Sharing) -> Option<(u64, SocketAddr)> {
        ports.take(PortSpace::Tcp, address.parse().unwrap(), sharing, &EPHEMERAL, 0)
    }

    #[test]
    fn an_address_is_taken_once() {
        let mut ports = Ports::default();
        let plain = Sharing::default();
        let (number, _) = take(&mut ports, "10.0.0.1:7", plain).unwrap();
        assert_eq!(take(&mut ports, "10.0.0.1:7", plain), None);
        assert_eq!(take(&mut ports, "0.0.0.0:7", plain), None);
        assert_eq!(take(&mut ports, "[::]:7", plain), None);
        assert!(take(&mut ports, "[::]:7", Sharing { only_v6: true, reuse: false }).is_some());
        assert!(take(&mut ports, "10.0.0.2:7", plain).is_some());
        assert!(take(&mut ports, "10.0.0.1:8", plain).is_some());
        let address = "10.0.0.1:7".parse().unwrap();
        assert!(ports.take(PortSpace::Udp, address, plain, &EPHEMERAL, 0).is_some());
        ports.give_back(PortSpace::Tcp, 7, number);
        assert!(take(&mut ports, "10.0.0.1:7", plain).is_some());
    }

    #[test]
    fn those_who_share_both_have_it() {
        let mut ports = Ports::default();
        let share = Sharing { reuse: true, only_v6: false };
        assert!(take(&mut ports, "10.0.0.1:7", share).is_some());
        assert!(take(&mut ports, "10.0.0.1:7", share).is_some());
        assert_eq!(take(&mut ports, "10.0.0.1:7", Sharing::default()), None);
    }

    #[test]
    fn port_zero_is_one_that_nobody_has() {
        let mut ports = Ports::default();
        let range = 100..=102;
        let address = "10.0.0.1:0".parse().unwrap();
        let mut any = |at| {
            let taken = ports.take(PortSpace::Tcp, address, Sharing::default(), &range, at);
            taken.map(|(_, address)| address.port())
        };
        assert_eq!([any(1), any(1), any(1), any(1)], [Some(101), Some(102), Some(100), None]);
    }
}
