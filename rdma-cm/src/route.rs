//! Which of the host's addresses leads to a destination.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Any port: nothing is sent.
const DISCARD: u16 = 9;

/// The address from which packets to `destination` leave: that of `bound`, unless it is for all
/// addresses; otherwise the one that the host's routes choose.
///
/// # Errors
///
/// That of `connect(2)`: there is no route.
pub(crate) fn route_to(bound: Option<SocketAddr>, destination: SocketAddr) -> io::Result<IpAddr> {
    let Some(bound) = bound.filter(|bound| !bound.ip().is_unspecified()) else {
        return source_for(destination);
    };
    let mut from = bound;
    from.set_port(0);
    match connected(from, destination) {
        // Whatever else there may be, the routes have not said no: a device that is no interface's
        // has addresses that a socket cannot have.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable
            ) =>
        {
            Err(error)
        }
        _ => Ok(bound.ip()),
    }
}

/// The address that the host's routes choose for packets to `destination` (an unspecified one
/// stands for this host).
///
/// A UDP socket that is connected there has it; no packet is sent for that.
///
/// # Errors
///
/// That of `connect(2)`: there is no route.
fn source_for(destination: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match destination {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    Ok(connected(SocketAddr::new(any, 0), destination)?.local_addr()?.ip())
}

/// A socket that would send from `source` to `destination`.
fn connected(source: SocketAddr, destination: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(source)?;
    let mut destination = destination;
    destination.set_port(DISCARD);
    socket.connect(destination)?;
    Ok(socket)
}

/// Whether an address is one of this host's, whatever interface has it.
pub(crate) fn is_of_this_host(ip: IpAddr) -> bool {
    // Other errors say something else: of a link-local address, that it needs a scope.
    UdpSocket::bind((ip, 0)).err().is_none_or(|error| error.kind() != ErrorKind::AddrNotAvailable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_hosts_have_other_addresses() {
        assert!(is_of_this_host([127, 0, 0, 99].into()));
        assert!(!is_of_this_host([192, 0, 2, 1].into()));
    }

    #[test]
    fn who_is_bound_leaves_from_there() {
        let bound = |ip: &str| Some(SocketAddr::new(ip.parse().unwrap(), 7));
        let lo: SocketAddr = "127.0.0.1:7".parse().unwrap();
        assert_eq!(route_to(bound("127.0.0.2"), lo).unwrap(), bound("127.0.0.2").unwrap().ip());
        assert_eq!(route_to(bound("0.0.0.0"), lo).unwrap(), lo.ip());
        assert_eq!(route_to(None, lo).unwrap(), lo.ip());
    }

    #[test]
    fn this_host_is_reached_by_itself() {
        let lo: IpAddr = [127, 0, 0, 1].into();
        assert_eq!(source_for(SocketAddr::new(lo, 0)).unwrap(), lo);
        assert_eq!(source_for("0.0.0.0:7".parse().unwrap()).unwrap(), lo);
    }
}
