//! The network interfaces of this host, and what a RoCE port makes of one.

use std::io;
use std::net::IpAddr;

use gid_table::InterfaceInfo;
use pnet_datalink::NetworkInterface;

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
    #[error("the host lists no network interface, not even lo: is netlink filtered in a sandbox?")]
    NoInterfaces,
    /// No socket to ask with.
    #[error("cannot make a socket to ask the host about its network interfaces")]
    Socket(#[source] io::Error),
    /// A question about one interface.
    #[error("cannot ask the host about the network interface `{name}`")]
    Query {
        /// The interface.
        name: String,
        /// What the system said.
        source: io::Error,
    },
}

impl HostError {
    /// The errno for a caller in C, positive.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoSuchInterface { .. } | Self::NoInterfaces => libc::ENODEV,
            Self::Socket(source) | Self::Query { source, .. } => os_errno(source),
        }
    }
}

/// The errno of an error of the OS; `EIO` for one that came from elsewhere.
pub(crate) fn os_errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// All interfaces of this network namespace with their addresses, by index; also those down.
///
/// One that goes away while it is being asked about is left out. An address still in duplicate
/// address detection is listed too, although the host cannot send from it for a second or two.
///
/// # Errors
///
/// [`HostError`], when the host does not answer.
pub fn interfaces() -> Result<Vec<InterfaceInfo>, HostError> {
    let requests = InterfaceRequests::new().map_err(HostError::Socket)?;
    let listed = merge_labels(pnet_datalink::interfaces());
    if listed.is_empty() {
        return Err(HostError::NoInterfaces);
    }
    let mut found = Vec::with_capacity(listed.len());
    for interface in listed {
        match describe(&requests, &interface) {
            Ok(info) => found.push(info),
            Err(error) if is_gone(&error) => {}
            Err(source) => return Err(HostError::Query { name: interface.name, source }),
        }
    }
    Ok(found)
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

fn describe(
    requests: &InterfaceRequests,
    interface: &NetworkInterface,
) -> io::Result<InterfaceInfo> {
    Ok(InterfaceInfo {
        name: interface.name.clone(),
        ifindex: interface.index,
        mac: requests.mac(&interface.name)?,
        mtu: requests.mtu(&interface.name)?,
        up: interface.is_up(),
        // The carrier; IFF_RUNNING comes up to a second later.
        running: interface.is_lower_up(),
        addrs: interface.ips.iter().map(|network| network.ip()).collect::<Vec<IpAddr>>(),
    })
}

/// Joins what the C library lists apart: an IPv4 address with a label (`eth0:1`) comes as an
/// interface of that name, with the index of the real one, which has no colon.
fn merge_labels(listed: Vec<NetworkInterface>) -> Vec<NetworkInterface> {
    let (labels, mut real): (Vec<_>, Vec<_>) =
        listed.into_iter().partition(|interface| interface.name.contains(':'));
    for label in labels {
        if let Some(owner) = real.iter_mut().find(|interface| interface.index == label.index) {
            owner.ips.extend(label.ips);
        }
    }
    // An index of 0 means that the interface went away since it was listed.
    real.retain(|interface| interface.index != 0);
    real.sort_by_key(|interface| interface.index);
    real
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO))
}

fn list(names: &[String]) -> String {
    names.join(", ")
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn labelled_addresses_belong_to_the_interface() {
        let named = |name: &str, index, ip: &str| NetworkInterface {
            name: name.to_owned(),
            description: String::new(),
            index,
            mac: None,
            ips: vec![ip.parse().expect("a network")],
            flags: 0,
        };
        let merged = merge_labels(vec![
            named("eth0:1", 2, "10.0.0.2/24"),
            named("eth0", 2, "10.0.0.1/24"),
            named("lo", 1, "127.0.0.1/8"),
            named("gone", 0, "10.9.9.9/24"),
        ]);
        let seen: Vec<_> = merged.iter().map(|i| (i.name.as_str(), i.ips.len())).collect();
        assert_eq!(seen, [("lo", 1), ("eth0", 2)]);
        assert_eq!(merged[1].ips[1].ip(), IpAddr::from([10, 0, 0, 2]));
    }
}
