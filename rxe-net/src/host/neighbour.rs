//! The Ethernet address that leads to an IP address: of the neighbour itself, or of the router.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};

use rxe_core::time::Instant;

use super::message::{Message, Neighbour, Route, request_neighbour, request_route};
use super::socket::RouteSocket;

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
const GOOD: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
/// `RTN_UNICAST`, of `<linux/rtnetlink.h>`.
const UNICAST: u8 = 1;
/// The port of the discard service (RFC 863): what comes there is of no importance.
const DISCARD_PORT: u16 = 9;

/// Finds out Ethernet addresses, from the tables of the kernel, and never waits.
///
/// What the kernel does not know is asked of the network by it, not by this: an empty datagram for
/// that address makes it do so, and needs no privileges. Until then there is no answer.
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
    mac: Option<[u8; 6]>,
    /// When it is to be asked again.
    until: Instant,
    /// When the kernel may be asked to find it out again.
    next_probe: Instant,
}

impl Neighbours {
    /// Of those behind an interface, for packets from `source`.
    pub(crate) fn new(ifindex: u32, source: IpAddr) -> io::Result<Self> {
        Ok(Self { socket: RouteSocket::open(false)?, ifindex, source, known: HashMap::new() })
    }

    /// The Ethernet address for packets to `destination`; `None` while it is unknown.
    pub(crate) fn mac(&mut self, now: Instant, destination: IpAddr) -> Option<[u8; 6]> {
        let before = self.known.get(&destination).copied();
        if let Some(known) = before.filter(|known| known.until > now) {
            return known.mac;
        }
        let next_probe = before.map_or(Instant::ZERO, |known| known.next_probe);
        let known = self.ask(now, destination, next_probe).unwrap_or_else(|error| {
            tracing::debug!(target: "rxe::net", %destination, %error, "no answer of netlink");
            Known { mac: None, until: now.plus_nanos(UNKNOWN_NANOS), next_probe }
        });
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(destination, known);
        known.mac
    }

    fn ask(&mut self, now: Instant, to: IpAddr, next_probe: Instant) -> io::Result<Known> {
        let unknown = Known { mac: None, until: now.plus_nanos(UNKNOWN_NANOS), next_probe };
        let Some(hop) = self.next_hop(to)? else { return Ok(unknown) };
        let ifindex = self.ifindex;
        let answer = self.socket.ask_one(|sequence| request_neighbour(ifindex, hop, sequence))?;
        match answer {
            Some(Message::Neighbour(Neighbour { state, mac: Some(mac) })) if state & GOOD != 0 => {
                Ok(Known { mac: Some(mac), until: now.plus_nanos(KNOWN_NANOS), next_probe })
            }
            _ if next_probe <= now => {
                self.probe(hop)?;
                Ok(Known { next_probe: now.plus_nanos(PROBE_NANOS), ..unknown })
            }
            _ => Ok(unknown),
        }
    }

    /// The address on the link that packets for `to` go to; `None` where they do not go this way.
    fn next_hop(&mut self, to: IpAddr) -> io::Result<Option<IpAddr>> {
        let ifindex = self.ifindex;
        match self.socket.ask_one(|sequence| request_route(ifindex, to, sequence))? {
            Some(Message::Route(Route { kind: UNICAST, ifindex: Some(by), gateway }))
                if by == ifindex =>
            {
                Ok(Some(gateway.unwrap_or(to)))
            }
            _ => Ok(None),
        }
    }

    /// Makes the kernel look for a neighbour.
    fn probe(&self, hop: IpAddr) -> io::Result<()> {
        let scoped = |ip: IpAddr, port| match ip {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => {
                SocketAddr::from(SocketAddrV6::new(v6, port, 0, self.ifindex))
            }
            ip => SocketAddr::new(ip, port),
        };
        let socket = UdpSocket::bind(scoped(self.source, 0))?;
        socket.set_nonblocking(true)?;
        socket.send_to(&[], scoped(hop, DISCARD_PORT))?;
        Ok(())
    }
}
