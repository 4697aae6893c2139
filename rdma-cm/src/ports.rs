//! Which ports of which addresses are taken in this process.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use rxe_wire::mad::cm::PortSpace;

/// The ports that are given to those who ask for none, unless the host says otherwise.
pub(crate) const EPHEMERAL: RangeInclusive<u16> = 32768..=60999;

/// The first port that needs no privilege, unless the host says otherwise.
pub(crate) const UNPRIVILEGED: u16 = 1024;

/// Why a port is not to be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// Somebody has it at this very address.
    Same,
    /// Somebody has it at all addresses, or somebody has it where it is wanted at all.
    Wildcard,
    /// No port is free.
    NoneFree,
}

/// One who has a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Holder {
    number: u64,
    ip: IpAddr,
    only_family: bool,
    may_share: bool,
}

impl Holder {
    /// Why not both can have the port. The rules are those of Linux, where an address of IPv6 that
    /// is not for its family alone does not go with all of IPv4 either.
    fn conflict(&self, other: &Self) -> Option<Refused> {
        if self.may_share && other.may_share {
            return None;
        }
        let is_one_family = self.ip.is_ipv4() == other.ip.is_ipv4();
        if self.only_family && other.only_family && !is_one_family {
            return None;
        }
        if self.ip.is_unspecified() || other.ip.is_unspecified() {
            return Some(Refused::Wildcard);
        }
        (self.ip == other.ip).then_some(Refused::Same)
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
    /// Gives the holder's number and the address with its port.
    pub(crate) fn take(
        &mut self,
        space: PortSpace,
        address: SocketAddr,
        sharing: Sharing,
        range: &RangeInclusive<u16>,
        at: u16,
    ) -> Result<(u64, SocketAddr), Refused> {
        let port = match address.port() {
            0 => self.free_port(space, range, at).ok_or(Refused::NoneFree)?,
            port => port,
        };
        self.made += 1;
        let holder = Holder {
            number: self.made,
            ip: address.ip(),
            only_family: address.is_ipv4() || sharing.only_v6,
            may_share: sharing.reuse,
        };
        let holders = self.held.entry((space, port)).or_default();
        if let Some(refused) = holders.iter().find_map(|other| other.conflict(&holder)) {
            return Err(refused);
        }
        holders.push(holder);
        let mut address = address;
        address.set_port(port);
        Ok((holder.number, address))
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

    fn take(ports: &mut Ports, address: &str, sharing: Sharing) -> Result<u64, Refused> {
        let address = address.parse().unwrap();
        ports.take(PortSpace::Tcp, address, sharing, &EPHEMERAL, 0).map(|(number, _)| number)
    }

    #[test]
    fn an_address_is_taken_once() {
        let mut ports = Ports::default();
        let (plain, alone) = (Sharing::default(), Sharing { only_v6: true, reuse: false });
        let number = take(&mut ports, "10.0.0.1:7", plain).unwrap();
        assert_eq!(take(&mut ports, "10.0.0.1:7", plain), Err(Refused::Same));
        assert_eq!(take(&mut ports, "0.0.0.0:7", plain), Err(Refused::Wildcard));
        assert_eq!(take(&mut ports, "[::]:7", plain), Err(Refused::Wildcard));
        assert!(take(&mut ports, "[::]:7", alone).is_ok());
        assert_eq!(take(&mut ports, "[fd00::1]:7", alone), Err(Refused::Wildcard));
        assert!(take(&mut ports, "10.0.0.2:7", plain).is_ok());
        assert!(take(&mut ports, "10.0.0.1:8", plain).is_ok());
        let address = "10.0.0.1:7".parse().unwrap();
        assert!(ports.take(PortSpace::Udp, address, plain, &EPHEMERAL, 0).is_ok());
        ports.give_back(PortSpace::Tcp, 7, number);
        assert!(take(&mut ports, "10.0.0.1:7", plain).is_ok());
    }

    #[test]
    fn families_have_ports_of_their_own_where_both_want_it() {
        let (plain, alone) = (Sharing::default(), Sharing { only_v6: true, reuse: false });
        for (sharing, expected) in [(plain, Some(Refused::Wildcard)), (alone, None)] {
            let mut ports = Ports::default();
            take(&mut ports, "0.0.0.0:7", plain).unwrap();
            assert_eq!(take(&mut ports, "[fd00::1]:7", sharing).err(), expected);
            assert_eq!(take(&mut ports, "[fd00::1]:8", sharing).err(), None);
        }
    }

    #[test]
    fn those_who_share_both_have_it() {
        let mut ports = Ports::default();
        let share = Sharing { reuse: true, only_v6: false };
        assert!(take(&mut ports, "10.0.0.1:7", share).is_ok());
        assert!(take(&mut ports, "10.0.0.1:7", share).is_ok());
        assert_eq!(take(&mut ports, "10.0.0.1:7", Sharing::default()), Err(Refused::Same));
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
        assert_eq!([any(1), any(1), any(1)], [Ok(101), Ok(102), Ok(100)]);
        assert_eq!(any(1), Err(Refused::NoneFree));
    }
}
