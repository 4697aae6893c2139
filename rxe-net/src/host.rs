//! The network interfaces of this host, how they change, and what a RoCE port makes of one.

mod follow;
mod message;
pub(crate) mod neighbour;
mod scan;
mod socket;
mod table;

use std::io;

use gid_table::InterfaceInfo;

pub use follow::{Following, follow};
use socket::RouteSocket;

use crate::sys::ifreq::InterfaceRequests;

/// A question about the interfaces of this host that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// No interface of this name in this network namespace.
    #[error("no network interface `{name}` here: this network namespace has {}", list(known))]
    NoSuchInterface {
        /// The name asked for.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// The host lists no interface, which not even a host without a network does.
    #[error("the host lists no network interface, not even lo: is /proc hidden in a sandbox?")]
    NoInterfaces,
    /// Netlink is refused, and what stands in for it does not serve either.
    #[error("cannot ask the host about its network interfaces, by netlink or without: {0}")]
    Scan(#[source] io::Error),
    /// No thread or descriptor to follow changes with.
    #[error("cannot follow the changes of network interfaces: {0}")]
    Follow(#[source] io::Error),
}

impl HostError {
    /// The errno for a caller in C, positive.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoSuchInterface { .. } | Self::NoInterfaces => libc::ENODEV,
            Self::Scan(source) | Self::Follow(source) => os_errno(source),
        }
    }
}

/// The errno of an error of the OS; `EIO` for one that came from elsewhere.
pub(crate) fn os_errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// How the host was asked about its interfaces.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HostSource {
    /// By netlink, which also tells of changes.
    Netlink,
    /// By ioctls and `/proc/net`, since netlink is refused, for the reason given: changes show when
    /// the host is asked again, and interfaces on top of others are unknown.
    Scan {
        /// Why netlink does not serve.
        reason: String,
    },
}

/// All interfaces of this network namespace with their addresses, by index; also those down.
///
/// Where netlink is refused, as in some sandboxes, a scan by other means serves.
///
/// # Errors
///
/// [`HostError`], when the host does not answer.
pub fn interfaces() -> Result<Vec<InterfaceInfo>, HostError> {
    Ok(interfaces_and_source()?.0)
}

/// As [`interfaces`], with how they were found.
///
/// # Errors
///
/// As [`interfaces`].
pub fn interfaces_and_source() -> Result<(Vec<InterfaceInfo>, HostSource), HostError> {
    match by_netlink() {
        Ok(found) if !found.is_empty() => Ok((found, HostSource::Netlink)),
        // Some sandboxes have netlink, but tell nothing there.
        Ok(_) => by_scan("it lists no interface".to_owned()),
        Err(error) => by_scan(error.to_string()),
    }
}

fn by_netlink() -> io::Result<Vec<InterfaceInfo>> {
    Ok(RouteSocket::open(false)?.read_table()?.interfaces())
}

fn by_scan(reason: String) -> Result<(Vec<InterfaceInfo>, HostSource), HostError> {
    let found = scan::scan().map_err(HostError::Scan)?;
    if found.is_empty() {
        return Err(HostError::NoInterfaces);
    }
    Ok((found, HostSource::Scan { reason }))
}

/// The interface of this name.
///
/// # Errors
///
/// [`HostError::NoSuchInterface`], which lists those that there are, and as [`interfaces`].
pub fn interface(name: &str) -> Result<InterfaceInfo, HostError> {
    let mut all = interfaces()?;
    match all.iter().position(|interface| interface.name == name) {
        Some(index) => Ok(all.swap_remove(index)),
        None => Err(HostError::NoSuchInterface {
            name: name.to_owned(),
            known: all.into_iter().map(|interface| interface.name).collect(),
        }),
    }
}

/// The speed in Mb/s of an interface of this network namespace; `None` where its link has none, as
/// `lo`, does not tell it, or is not there.
pub fn link_speed(name: &str) -> Option<u32> {
    InterfaceRequests::new().and_then(|requests| requests.speed(name)).ok().flatten()
}

/// Bytes of the longest headers around a payload: GRH 40, UDP 8, BTH 12, XRCETH 4, AtomicETH 28,
/// iCRC 4 (facts.md section 3, "MTU"; the same for every encapsulation, as in Linux).
const HEADERS_MAX: u32 = 40 + 8 + 12 + 4 + 28 + 4;

/// The active path MTU in bytes of a port whose interface has this MTU.
///
/// The largest of 256, 512, 1024, 2048 and 4096 that leaves room for the headers; `None` when
/// not even 256 does: such an interface can be no RoCE port. Counterpart of `iboe_get_mtu`.
pub fn active_mtu(netdev_mtu: u32) -> Option<u32> {
    let room = netdev_mtu.checked_sub(HEADERS_MAX)?;
    [4096, 2048, 1024, 512, 256].into_iter().find(|&mtu| mtu <= room)
}

fn list(names: &[String]) -> String {
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn active_mtu_leaves_room_for_the_headers() {
        let cases = [
            (0, None),
            (96, None),
            (351, None),
            (352, Some(256)),
            (607, Some(256)),
            (608, Some(512)),
            (1119, Some(512)),
            (1120, Some(1024)),
            (1400, Some(1024)),
            (1500, Some(1024)),
            (2143, Some(1024)),
            (2144, Some(2048)),
            (4191, Some(2048)),
            (4192, Some(4096)),
            (9000, Some(4096)),
            (65536, Some(4096)),
            (u32::MAX, Some(4096)),
        ];
        for (netdev_mtu, expected) in cases {
            assert_eq!(active_mtu(netdev_mtu), expected, "netdev MTU {netdev_mtu}");
        }
    }

    #[test]
    fn loopback_is_found_with_its_addresses() {
        let lo = interface("lo").expect("every host has lo");
        assert_eq!((lo.ifindex, lo.mac), (1, Some([0; 6])));
        // In a fresh network namespace lo is down and has no address.
        if lo.up {
            assert!(lo.running && lo.addrs.contains(&IpAddr::from([127, 0, 0, 1])), "{lo:?}");
        }
    }

    #[test]
    fn a_missing_interface_names_those_there_are() {
        let error = interface("nosuch0").expect_err("no such interface");
        assert!(error.to_string().contains("`nosuch0`") && error.to_string().contains("lo"));
        assert_eq!(error.errno(), libc::ENODEV);
    }
}
