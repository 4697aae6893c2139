//! The Ethernet address that leads to an IP address: of the neighbour itself, or of the router.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsFd;

use rxe_core::time::Instant;

use super::message::{Message, Neighbour, Route, request_neighbour, request_route};
use super::socket::RouteSocket;
use crate::udp::sys;

/// How long an answer is taken for true.
const KNOWN_NANOS: u64 = 1_000_000_000;
/// How long nothing is asked again after a question in vain: a neighbour answers the kernel within
/// some ten microseconds to milliseconds.
const UNKNOWN_NANOS: u64 = 200_000;
/// How often the kernel is asked to find a neighbour out.
const PROBE_NANOS: u64 = 100_000_000;
/// Neighbours remembered; beyond that, all is asked anew.
const KNOWN_MAX: usize = 4096;
/// The states in which a neighbour's Ethernet address is good: `NUD_REACHABLE`, `_STALE`, `_DELAY`,
/// `_PROBE`, `_NOARP`, `_PERMANENT`.
const GOOD: u16 = 0x02 | STALE | 0x08 | 0x10 | 0x40 | 0x80;
/// `NUD_STALE`: it was good, and nobody has asked for a while.
const STALE: u16 = 0x04;
/// `RTN_UNICAST` and `RTN_LOCAL`, of `<linux/rtnetlink.h>`.
const UNICAST: u8 = 1;
const LOCAL: u8 = 2;
/// Which interface packets leave by (`<linux/in.h>`, `<linux/in6.h>`).
const IP_UNICAST_IF: i32 = 50;
const IPV6_UNICAST_IF: i32 = 76;
/// The port of the discard service (RFC 863): what comes there is of no importance.
const DISCARD_PORT: u16 = 9;

/// Where the frames of packets to an address go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hop {
    /// To this Ethernet address.
    Mac([u8; 6]),
    /// To this host itself.
    Own,
}

/// Finds out Ethernet addresses, from the tables of the kernel, and never waits.
///
/// What the kernel does not know is asked of the network by it, not by this: an empty datagram for
/// that address makes it do so, and needs no privileges. Until then there is no answer. The same
/// makes the kernel confirm what it holds for stale: our frames pass it by, so that it would never
/// notice that a neighbour is another one now.
#[derive(Debug)]
pub(crate) struct Neighbours {
    socket: RouteSocket,
    ifindex: u32,
    source: IpAddr,
    known: HashMap<IpAddr, Known>,
}

/// What is known of an address.
#[derive(Clone, Copy, Debug)]
struct Known {
    hop: Option<Hop>,
    /// When it is to be asked again.
    until: Instant,
    /// When the kernel may be asked to find it out again.
    next_probe: Instant,
}

/// What the kernel tells of the way to an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    /// This is it; a neighbour's may be stale.
    Hop(Hop, Option<IpAddr>),
    /// Not known: this neighbour has not been found yet.
    Unknown(IpAddr),
    /// There is none by this interface.
    NoWay,
}

impl Neighbours {
    /// Of those behind an interface, for packets from `source`.
    pub(crate) fn new(ifindex: u32, source: IpAddr) -> io::Result<Self> {
        Ok(Self { socket: RouteSocket::open(false)?, ifindex, source, known: HashMap::new() })
    }

    /// Where packets to `destination` go; `None` while it is unknown.
    pub(crate) fn hop(&mut self, now: Instant, destination: IpAddr) -> Option<Hop> {
        let before = self.known.get(&destination).copied();
        if let Some(known) = before.filter(|known| known.until > now) {
            return known.hop;
        }
        let told = self.ask(destination).unwrap_or_else(|error| {
            tracing::debug!(target: "rxe::net", %destination, %error, "no answer of netlink");
            Told::NoWay
        });
        let mut next_probe = before.map_or(Instant::ZERO, |known| known.next_probe);
        let (hop, nanos, to_probe) = match told {
            Told::Hop(hop, stale) => (Some(hop), KNOWN_NANOS, stale),
            Told::Unknown(neighbour) => (None, UNKNOWN_NANOS, Some(neighbour)),
            Told::NoWay => (None, UNKNOWN_NANOS, None),
        };
        if let Some(neighbour) = to_probe.filter(|_| next_probe <= now) {
            next_probe = now.plus_nanos(PROBE_NANOS);
            if let Err(error) = self.probe(neighbour) {
                tracing::debug!(target: "rxe::net", %neighbour, %error, "cannot look for it");
            }
        }
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        let until = now.plus_nanos(nanos);
        self.known.insert(destination, Known { hop, until, next_probe });
        hop
    }

    fn ask(&mut self, to: IpAddr) -> io::Result<Told> {
        // By whatever interface: an address of another one is this host's too.
        let any = self.socket.ask_one(|n| request_route(None, to, n))?;
        if matches!(any, Some(Message::Route(Route { kind: LOCAL, .. }))) {
            return Ok(Told::Hop(Hop::Own, None));
        }
        let ifindex = self.ifindex;
        let neighbour = match self.socket.ask_one(|n| request_route(Some(ifindex), to, n))? {
            Some(Message::Route(Route { kind: UNICAST, ifindex: Some(by), gateway }))
                if by == ifindex =>
            {
                gateway.unwrap_or(to)
            }
            _ => return Ok(Told::NoWay),
        };
        let answer = self.socket.ask_one(|n| request_neighbour(ifindex, neighbour, n))?;
        Ok(match answer {
            Some(Message::Neighbour(Neighbour { state, mac: Some(mac) })) if state & GOOD != 0 => {
                Told::Hop(Hop::Mac(mac), (state & STALE != 0).then_some(neighbour))
            }
            _ => Told::Unknown(neighbour),
        })
    }

    /// Makes the kernel look for a neighbour, or confirm that it is there.
    fn probe(&self, neighbour: IpAddr) -> io::Result<()> {
        let scoped = |ip: IpAddr, port| match ip {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => {
                SocketAddr::from(SocketAddrV6::new(v6, port, 0, self.ifindex))
            }
            ip => SocketAddr::new(ip, port),
        };
        let any = || match neighbour {
            IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        // The host may not have the source: the GID that is made of the Ethernet address.
        let socket = match UdpSocket::bind(scoped(self.source, 0)) {
            Ok(socket) if self.source.is_ipv4() == neighbour.is_ipv4() => socket,
            _ => UdpSocket::bind(SocketAddr::new(any(), 0))?,
        };
        socket.set_nonblocking(true)?;
        // By this interface, where another one leads to the same network too.
        let (level, option) = match neighbour {
            IpAddr::V4(_) => (libc::SOL_IP, IP_UNICAST_IF),
            IpAddr::V6(_) => (libc::SOL_IPV6, IPV6_UNICAST_IF),
        };
        // In network order. (No index is above 2^31.)
        let ifindex = self.ifindex.to_be().cast_signed();
        sys::set_int(socket.as_fd(), level, option, ifindex)?;
        socket.send_to(&[], scoped(neighbour, DISCARD_PORT))?;
        Ok(())
    }
}
