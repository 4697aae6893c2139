//! Names of hosts and services, turned into the addresses of an identifier.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use ibverbs_api::QpType;
use rustix::io::Errno;
use rxe_core::errno::EINVAL;
use rxe_wire::mad::cm::PortSpace;
use thiserror::Error;

/// Where names of services are, on most hosts (`services(5)`).
const SERVICES: &str = "/etc/services";

/// What is wanted of [`addr_info`] (C: the hints of `rdma_getaddrinfo`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddrHints {
    /// The addresses are to be listened at (`RAI_PASSIVE`): without a node, all of this host.
    pub passive: bool,
    /// The node is an address, and no name is looked up (`RAI_NUMERICHOST`).
    pub numeric_host: bool,
    /// Only addresses of this family.
    pub family: Option<Family>,
    /// What the port is of.
    pub port_space: PortSpace,
    /// What the queue pair is to be of.
    pub qp_type: QpType,
    /// Where to connect from, if that is to be told on.
    pub source: Option<SocketAddr>,
}

impl Default for AddrHints {
    /// To connect to any address, by RC.
    fn default() -> Self {
        Self {
            passive: false,
            numeric_host: false,
            family: None,
            port_space: PortSpace::Tcp,
            qp_type: QpType::Rc,
            source: None,
        }
    }
}

/// A family of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Family {
    /// `AF_INET`.
    Ipv4,
    /// `AF_INET6`.
    Ipv6,
}

impl Family {
    fn has(family: Option<Self>, ip: IpAddr) -> bool {
        match family {
            Some(Self::Ipv4) => ip.is_ipv4(),
            Some(Self::Ipv6) => ip.is_ipv6(),
            None => true,
        }
    }
}

/// Addresses for an identifier (C: `struct rdma_addrinfo`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddrInfo {
    /// Whether it is for a listener (`RAI_PASSIVE`).
    pub passive: bool,
    /// What the port is of.
    pub port_space: PortSpace,
    /// What the queue pair is to be of.
    pub qp_type: QpType,
    /// Where to listen, or to connect from; `None` where the host's routes are to decide.
    pub source: Option<SocketAddr>,
    /// Where to connect to; `None` of a listener.
    pub destination: Option<SocketAddr>,
}

/// Why there are no addresses.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AddrInfoError {
    /// Neither a node nor a service is named.
    #[error("neither a node nor a service is named: name one")]
    Nothing,
    /// The node is to be an address, and is none.
    #[error("{0} is no IPv4 or IPv6 address, and no name is to be looked up (numeric_host)")]
    NotNumeric(String),
    /// The service is no number, and has no name that this host knows.
    #[error("service {0} is unknown: give a number from 0 to 65535, or a name of /etc/services")]
    Service(String),
    /// The node has no address of the family that is wanted.
    #[error("{0} has no address of the family that is wanted")]
    Family(String),
    /// The node is not known.
    #[error("no address of {node}: {source}")]
    Unknown {
        /// The node.
        node: String,
        /// What the resolver says.
        source: io::Error,
    },
}

impl AddrInfoError {
    /// The errno that `rdma_getaddrinfo` would set.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Nothing | Self::NotNumeric(_) | Self::Service(_) => EINVAL,
            Self::Family(_) | Self::Unknown { .. } => Errno::ADDRNOTAVAIL.raw_os_error(),
        }
    }
}

/// Finds the addresses of a node and a service (C: `rdma_getaddrinfo`), in the resolver's order.
/// It waits for the resolver, which may take seconds.
///
/// A node is a name or an address; a service, a number or a name of `/etc/services`. One of both
/// is needed. Without a node they are those of this host: all to listen at, loopback to connect to.
///
/// # Errors
///
/// [`AddrInfoError`].
pub fn addr_info(
    node: Option<&str>,
    service: Option<&str>,
    hints: &AddrHints,
) -> Result<Vec<AddrInfo>, AddrInfoError> {
    if node.is_none() && service.is_none() {
        return Err(AddrInfoError::Nothing);
    }
    let port = service.map_or(Ok(0), port_of)?;
    let mut addresses = match node {
        Some(node) => addresses_of(node, port, hints.numeric_host)?,
        None => own_addresses(hints.passive).map(|ip| SocketAddr::new(ip, port)).to_vec(),
    };
    addresses.retain(|address| Family::has(hints.family, address.ip()));
    if addresses.is_empty() {
        return Err(AddrInfoError::Family(node.unwrap_or("this host").to_owned()));
    }
    let info = |address| AddrInfo {
        passive: hints.passive,
        port_space: hints.port_space,
        qp_type: hints.qp_type,
        source: if hints.passive { Some(address) } else { hints.source },
        destination: (!hints.passive).then_some(address),
    };
    Ok(addresses.into_iter().map(info).collect())
}

fn own_addresses(passive: bool) -> [IpAddr; 2] {
    if passive {
        [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]
    } else {
        [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
    }
}

fn addresses_of(
    node: &str,
    port: u16,
    numeric_host: bool,
) -> Result<Vec<SocketAddr>, AddrInfoError> {
    if let Ok(ip) = node.parse() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    // What has a scope (`fe80::1%eth0`) the resolver reads too, without asking anybody.
    if numeric_host && !node.contains('%') {
        return Err(AddrInfoError::NotNumeric(node.to_owned()));
    }
    let unknown = |source| AddrInfoError::Unknown { node: node.to_owned(), source };
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in (node, port).to_socket_addrs().map_err(unknown)? {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

fn port_of(service: &str) -> Result<u16, AddrInfoError> {
    let named = || {
        // A host without the file knows no names.
        let text = fs::read_to_string(SERVICES).ok()?;
        port_in(&text, service)
    };
    let port = service.parse().ok().or_else(named);
    port.ok_or_else(|| AddrInfoError::Service(service.to_owned()))
}

/// The port of a service in a text like `/etc/services`: `name port/protocol aliases # comment`.
fn port_in(text: &str, service: &str) -> Option<u16> {
    text.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let name = words.next()?;
        let port = words.next()?.split('/').next()?;
        let is_it = name == service || words.any(|alias| alias == service);
        if is_it { port.parse().ok() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hints() -> AddrHints {
        AddrHints { numeric_host: true, ..AddrHints::default() }
    }

    #[test]
    fn who_connects_gets_a_destination_and_who_listens_a_source() {
        let [info] = addr_info(Some("10.0.0.1"), Some("7174"), &hints()).unwrap()[..] else {
            panic!()
        };
        assert_eq!(info.destination, Some("10.0.0.1:7174".parse().unwrap()));
        assert_eq!((info.source, info.passive), (None, false));
        let passive = AddrHints { passive: true, ..hints() };
        let [info] = addr_info(Some("fd00::1"), Some("7"), &passive).unwrap()[..] else { panic!() };
        assert_eq!(info.source, Some("[fd00::1]:7".parse().unwrap()));
        assert_eq!((info.destination, info.passive), (None, true));
    }

    #[test]
    fn without_a_node_it_is_this_host() {
        let addresses = |passive, family| {
            let hints = AddrHints { passive, family, ..hints() };
            let infos = addr_info(None, Some("7"), &hints).unwrap();
            let address = |info: &AddrInfo| info.source.or(info.destination).unwrap().to_string();
            infos.iter().map(address).collect::<Vec<_>>()
        };
        assert_eq!(addresses(true, None), ["0.0.0.0:7", "[::]:7"]);
        assert_eq!(addresses(true, Some(Family::Ipv6)), ["[::]:7"]);
        assert_eq!(addresses(false, Some(Family::Ipv4)), ["127.0.0.1:7"]);
    }

    #[test]
    fn what_cannot_be_found_is_said() {
        let error = |node, service, hints: AddrHints| {
            addr_info(node, service, &hints).map(|_| ()).unwrap_err()
        };
        assert!(matches!(error(None, None, hints()), AddrInfoError::Nothing));
        assert!(matches!(error(Some("x"), None, hints()), AddrInfoError::NotNumeric(_)));
        let no_service = error(None, Some("no-such-service"), hints());
        assert!(matches!(no_service, AddrInfoError::Service(_)), "{no_service}");
        assert_eq!(no_service.errno(), 22);
        let v6 = AddrHints { family: Some(Family::Ipv6), ..hints() };
        assert_eq!(error(Some("10.0.0.1"), None, v6).errno(), 99);
    }

    #[test]
    fn services_have_names() {
        let text = "# names\nhttp\t80/tcp\t\twww # web\nntp 123/udp\n";
        assert_eq!(port_in(text, "www"), Some(80));
        assert_eq!(port_in(text, "ntp"), Some(123));
        assert_eq!((port_in(text, "web"), port_in(text, "#")), (None, None));
    }
}
