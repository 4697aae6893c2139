//! The sockets of a link: one that receives, and those that send.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rxe_core::multicast::MULTICAST_QPN;

use super::{group, sys};
use crate::slots::fork::Tracked;

/// The first UDP source port of RoCEv2 (facts.md section 3).
const FIRST_SOURCE_PORT: u16 = 0xc000;
/// Ports from the first on that senders choose among: 14 bits.
const SOURCE_PORT_MASK: u16 = 0x3fff;
/// Ports tried when the right one is taken.
const PORT_ATTEMPTS: u16 = 64;
/// Sending sockets that a link keeps at most; the one used least recently goes first.
const MAX_SOCKETS: usize = 64;

/// The UDP source port of packets from the shard `sending` to the slot `destination`.
///
/// With a flow label, the port is what Linux makes of it (`rdma_flow_label_to_udp_sport`), so that
/// the network spreads flows as the program asked. Without, each destination slot has a port of
/// its own for each sending shard: what the receiver's kernel coalesces, it steers as one.
pub fn source_port(sending: u8, destination: u8, flow_label: u32) -> u16 {
    let low14 = match flow_label & 0x000f_ffff {
        0 => (u16::from(sending) << 6) ^ u16::from(destination),
        label => (label as u16 & SOURCE_PORT_MASK) ^ (label >> 14) as u16,
    };
    FIRST_SOURCE_PORT | (low14 & SOURCE_PORT_MASK)
}

/// Sizes of the socket buffers; `None` leaves the system's default.
///
/// In bytes as `SO_RCVBUF` and `SO_SNDBUF` take them; the kernel doubles them for its own needs
/// and caps them at `net.core.rmem_max` and `wmem_max`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BufferSizes {
    /// Receive buffer of the receiving socket.
    pub receive: Option<u32>,
    /// Send buffer of each sending socket.
    pub send: Option<u32>,
}

/// Sets the options of a receiving socket, before it is bound.
pub(super) fn prepare_receiver(fd: &OwnedFd, ip: IpAddr, buffers: BufferSizes) -> io::Result<()> {
    let fd = fd.as_fd();
    sys::set_int(fd, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    sys::set_int(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
    if ip.is_ipv4() {
        sys::set_int(fd, libc::SOL_IP, libc::IP_RECVTTL, 1)?;
        sys::set_int(fd, libc::SOL_IP, libc::IP_RECVTOS, 1)?;
    } else {
        sys::set_int(fd, libc::SOL_IPV6, libc::IPV6_V6ONLY, 1)?;
        sys::set_int(fd, libc::SOL_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
        sys::set_int(fd, libc::SOL_IPV6, libc::IPV6_RECVTCLASS, 1)?;
        sys::set_int(fd, libc::SOL_IPV6, libc::IPV6_FLOWINFO, 1)?;
        // rdma_rxe and adapters send a checksum of 0 (facts.md section 3).
        sys::set_int(fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
    }
    set_size(fd, libc::SO_RCVBUF, buffers.receive)
}

/// Sets the options of a sending socket, before it is bound.
pub(super) fn prepare_sender(fd: &OwnedFd, ip: IpAddr, buffers: BufferSizes) -> io::Result<()> {
    let fd = fd.as_fd();
    if ip.is_ipv4() {
        // Unconnected and with this, the kernel sends identification 0 and DF, and does not
        // believe forged fragmentation-needed messages (facts.md, last section).
        sys::set_int(fd, libc::SOL_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
        sys::set_int(fd, libc::SOL_IP, libc::IP_RECVERR, 1)?;
    } else {
        sys::set_int(fd, libc::SOL_IPV6, libc::IPV6_V6ONLY, 1)?;
        sys::set_int(fd, libc::SOL_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
        sys::set_int(fd, libc::SOL_IPV6, libc::IPV6_RECVERR, 1)?;
        // A flow label that was not asked for is 0, as Linux's rdma_rxe sends.
        sys::set_int(fd, libc::SOL_IPV6, libc::IPV6_AUTOFLOWLABEL, 0)?;
    }
    // Nobody answers to this port: what strangers send must not fill the error queue's space.
    sys::drop_all_input(fd)?;
    set_size(fd, libc::SO_SNDBUF, buffers.send)
}

fn set_size(fd: BorrowedFd<'_>, name: i32, size: Option<u32>) -> io::Result<()> {
    match size {
        None => Ok(()),
        Some(size) => {
            sys::set_int(fd, libc::SOL_SOCKET, name, i32::try_from(size).unwrap_or(i32::MAX))
        }
    }
}

/// What decides which socket sends a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TxKey {
    /// Slot of the destination QP.
    pub(crate) slot: u8,
    /// Flow label; 0 for none.
    pub(crate) flow_label: u32,
}

/// A socket that sends.
#[derive(Debug)]
pub(crate) struct TxSocket {
    /// Declared before the descriptor, so that it is dropped before.
    _tracked: Tracked,
    fd: OwnedFd,
    key: TxKey,
    port: u16,
    is_ipv4: bool,
    /// Traffic class and hop limit set on the socket, where known.
    header: Option<(u8, u8)>,
    last_use: u64,
}

impl TxSocket {
    /// The UDP source port of what it sends: the iCRC covers it.
    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// The socket.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Makes the next packets carry this traffic class and hop limit.
    pub(crate) fn set_header(&mut self, traffic_class: u8, hop_limit: u8) -> io::Result<()> {
        // A hop limit of 0 cannot be set; 1 reaches as far.
        let hop_limit = hop_limit.max(1);
        if self.header == Some((traffic_class, hop_limit)) {
            return Ok(());
        }
        self.header = None;
        let (level, class, hops) = if self.is_ipv4 {
            (libc::SOL_IP, libc::IP_TOS, libc::IP_TTL)
        } else {
            (libc::SOL_IPV6, libc::IPV6_TCLASS, libc::IPV6_UNICAST_HOPS)
        };
        sys::set_int(self.fd(), level, class, i32::from(traffic_class))?;
        sys::set_int(self.fd(), level, hops, i32::from(hop_limit))?;
        // Groups have a hop limit of their own, which is 1 if nobody sets it.
        if self.key.slot == MULTICAST_QPN.slot() {
            let hops =
                if self.is_ipv4 { libc::IP_MULTICAST_TTL } else { libc::IPV6_MULTICAST_HOPS };
            sys::set_int(self.fd(), level, hops, i32::from(hop_limit))?;
        }
        self.header = Some((traffic_class, hop_limit));
        Ok(())
    }
}

/// The sending sockets of a link, made when first needed.
#[derive(Debug)]
pub(crate) struct TxSockets {
    address: SocketAddr,
    slot: u8,
    multicast_ifindex: u32,
    buffers: BufferSizes,
    sockets: Vec<TxSocket>,
    uses: u64,
}

impl TxSockets {
    /// Makes none yet; they will be bound to `address`, whose port does not matter, and send to
    /// groups by the interface given, or, for 0, by the one that the host chooses.
    pub(crate) const fn new(
        address: SocketAddr,
        slot: u8,
        multicast_ifindex: u32,
        buffers: BufferSizes,
    ) -> Self {
        Self { address, slot, multicast_ifindex, buffers, sockets: Vec::new(), uses: 0 }
    }

    /// The socket for `key`.
    ///
    /// # Errors
    ///
    /// When it is a new one and cannot be made.
    pub(crate) fn get(&mut self, key: TxKey) -> io::Result<&mut TxSocket> {
        self.uses += 1;
        let index = match self.sockets.iter().position(|socket| socket.key == key) {
            Some(index) => index,
            None => self.add(key)?,
        };
        let socket = &mut self.sockets[index];
        socket.last_use = self.uses;
        Ok(socket)
    }

    fn add(&mut self, key: TxKey) -> io::Result<usize> {
        let socket = self.open(key)?;
        if self.sockets.len() < MAX_SOCKETS {
            self.sockets.push(socket);
            return Ok(self.sockets.len() - 1);
        }
        let oldest = (0..self.sockets.len()).min_by_key(|index| self.sockets[*index].last_use);
        let oldest = oldest.unwrap_or_default();
        self.sockets[oldest] = socket;
        Ok(oldest)
    }

    fn open(&self, key: TxKey) -> io::Result<TxSocket> {
        let ip = self.address.ip();
        let fd = sys::udp_socket(ip)?;
        prepare_sender(&fd, ip, self.buffers)?;
        if self.multicast_ifindex != 0 {
            group::send_by(fd.as_fd(), ip, self.multicast_ifindex)?;
        }
        if key.flow_label != 0 {
            // The port follows from the label alone, so shards that use the same one share it.
            sys::set_int(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
            if ip.is_ipv6() {
                sys::set_int(fd.as_fd(), libc::SOL_IPV6, libc::IPV6_FLOWINFO_SEND, 1)?;
            }
        }
        let port = self.bind(&fd, source_port(self.slot, key.slot, key.flow_label))?;
        let (_tracked, is_ipv4) = (Tracked::new(&fd), ip.is_ipv4());
        Ok(TxSocket { _tracked, fd, key, port, is_ipv4, header: None, last_use: 0 })
    }

    /// Binds to `port`, or to the next free one: other programs take ports of this range too.
    fn bind(&self, fd: &OwnedFd, port: u16) -> io::Result<u16> {
        let mut result = Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
        for attempt in 0..PORT_ATTEMPTS {
            // A step that is odd and not small, so that neighbours' ports stay theirs.
            let low14 = port.wrapping_add(attempt.wrapping_mul(257)) & SOURCE_PORT_MASK;
            let mut address = self.address;
            address.set_port(FIRST_SOURCE_PORT | low14);
            result = sys::bind(fd.as_fd(), address).map(|()| address.port());
            match &result {
                Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {}
                _ => break,
            }
        }
        result
    }
}

/// The socket address of `ip`; `scope_id` is the interface of a link-local one.
pub(crate) fn socket_address(ip: IpAddr, port: u16, scope_id: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() || v6.is_multicast() => {
            SocketAddrV6::new(v6, port, 0, scope_id).into()
        }
        ip => SocketAddr::new(ip, port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_follows_linux_where_there_is_a_flow_label() {
        // rdma_flow_label_to_udp_sport: the upper 6 bits folded onto the lower 14.
        assert_eq!(source_port(1, 2, 0x0_0001), 0xc001);
        assert_eq!(source_port(9, 9, 0x0_0001), 0xc001);
        assert_eq!(source_port(1, 2, 0xf_ffff), 0xc000 | (0x3fff ^ 0x3f));
        assert_eq!(source_port(1, 2, 0x0_4000), 0xc001);
    }

    #[test]
    fn each_destination_slot_has_its_own_port() {
        for sending in [1, 7, 254] {
            let mut ports: Vec<u16> = (0..=255).map(|to| source_port(sending, to, 0)).collect();
            ports.sort_unstable();
            ports.dedup();
            assert_eq!(ports.len(), 256);
            assert!(ports[0] >= 0xc000);
        }
    }

    #[test]
    fn a_taken_port_is_passed_over_and_sockets_are_bounded() {
        let address = SocketAddr::new(crate::udp::test_address(10), 0);
        let mut sockets = TxSockets::new(address, 3, 0, BufferSizes::default());
        let key = TxKey { slot: 9, flow_label: 0 };
        let wanted = source_port(3, 9, 0);
        let holder = std::net::UdpSocket::bind((address.ip(), wanted)).expect("bind");
        let port = sockets.get(key).expect("socket").port();
        assert_ne!(port, wanted);
        assert!(port >= 0xc000);
        drop(holder);
        for slot in 0..=255 {
            sockets.get(TxKey { slot, flow_label: 0 }).expect("socket");
        }
        assert_eq!(sockets.sockets.len(), MAX_SOCKETS);
        let port = sockets.get(key).expect("socket").port();
        assert_eq!(port, wanted, "made anew, on the port that is free now");
    }

    #[test]
    fn traffic_class_and_hop_limit_are_set_on_the_socket() {
        for (ip, level, class, hops) in [
            ("127.0.0.1:0", libc::SOL_IP, libc::IP_TOS, libc::IP_TTL),
            ("[::1]:0", libc::SOL_IPV6, libc::IPV6_TCLASS, libc::IPV6_UNICAST_HOPS),
        ] {
            let address: SocketAddr = ip.parse().expect("address");
            let mut sockets = TxSockets::new(address, 3, 0, BufferSizes::default());
            let socket = sockets.get(TxKey { slot: 1, flow_label: 5 }).expect("socket");
            for (traffic_class, hop_limit, expected) in [(0xb9, 64, 64), (2, 0, 1)] {
                socket.set_header(traffic_class, hop_limit).expect("set");
                let read = |name| sys::get_int(socket.fd(), level, name).expect("get");
                assert_eq!((read(class), read(hops)), (i32::from(traffic_class), expected));
            }
        }
    }
}
