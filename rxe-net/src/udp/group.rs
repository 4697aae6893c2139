//! Multicast groups over UDP sockets: joining them, receiving, and where packets to them leave.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use gid_table::Gid;
use rxe_core::time::Instant;

use super::check::IcrcChecker;
use super::link::{MAX_RECEIVE, one_by_one, take_messages};
use super::socket::{self, BufferSizes};
use super::steer::{BindError, ROCE_PORT};
use super::sys::{self, RecvRing};
use crate::batch::TxBatch;
use crate::link::{Link, LinkCounters, Sink, TransmitReport};
use crate::pcap::Capture;
use crate::slots::fork::Tracked;

/// Options of `<linux/in.h>` and `<linux/in6.h>`: whether also what other sockets have joined comes.
const IP_MULTICAST_ALL: i32 = 49;
const IPV6_MULTICAST_ALL: i32 = 29;

/// What a [`UdpGroup`] needs to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpGroupConfig {
    /// The group.
    pub group: Gid,
    /// Index of the interface that its packets are to come by.
    pub ifindex: u32,
    /// Sizes of the socket buffers.
    pub buffers: BufferSizes,
}

/// What comes to a multicast group by one interface, over a UDP socket. R49.
///
/// There is one for each device that is opened, group and interface, whoever of the device's shards
/// has members; several such sockets on a host each get everything. It only receives. What this host
/// sends to the group comes too: the engine knows the sender.
///
/// While it lives, the host is in the IP group (IGMP, RFC 3376; MLD, RFC 3810).
pub struct UdpGroup {
    group: Gid,
    /// Declared before the descriptor, so that it is dropped before.
    _tracked: Tracked,
    receiver: Arc<OwnedFd>,
    ring: RecvRing,
    checker: IcrcChecker,
    counters: LinkCounters,
    capture: Option<Arc<Capture>>,
}

impl fmt::Debug for UdpGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpGroup").field("group", &self.group).finish_non_exhaustive()
    }
}

impl UdpGroup {
    /// Joins a group and opens its socket.
    ///
    /// # Errors
    ///
    /// [`BindError`]: the port is somebody's who does not share it, or the host cannot join.
    pub fn open(config: UdpGroupConfig) -> Result<Self, BindError> {
        let UdpGroupConfig { group, ifindex, buffers } = config;
        let ip = group.to_ip();
        let os = |what| BindError::os(ip, what);
        let fd = sys::udp_socket(ip).map_err(os("make a socket"))?;
        prepare(&fd, ip, buffers).map_err(os("set the options of a group's socket"))?;
        let address = socket::socket_address(ip, ROCE_PORT, ifindex);
        sys::bind(fd.as_fd(), address).map_err(|error| match error.raw_os_error() {
            Some(libc::EADDRINUSE) => BindError::PortTaken { address: ip },
            _ => os("bind the RoCE port")(error),
        })?;
        join(fd.as_fd(), ip, ifindex).map_err(os("join the group"))?;
        tracing::debug!(target: "rxe::net", %group, ifindex, "joins a group");
        Ok(Self {
            group,
            _tracked: Tracked::new(&fd),
            receiver: Arc::new(fd),
            ring: RecvRing::new(MAX_RECEIVE),
            checker: IcrcChecker::new(ip),
            counters: LinkCounters::default(),
            capture: None,
        })
    }

    /// Sets where all packets received are written, bad ones too; `None` for nowhere.
    pub fn set_capture(&mut self, capture: Option<Arc<Capture>>) {
        self.capture = capture;
    }
}

impl Link for UdpGroup {
    /// Sends nothing: no packet has a group as its source.
    fn transmit(&mut self, _: Instant, batch: &mut TxBatch) -> TransmitReport {
        let lost = batch.len();
        self.counters.foreign += lost as u64;
        batch.clear();
        TransmitReport { sent: 0, lost }
    }

    fn receive(&mut self, now: Instant, sink: &mut Sink<'_>) -> io::Result<usize> {
        let Self { group, receiver, ring, checker, counters, capture, .. } = self;
        let capture = capture.as_deref();
        let mut sink = one_by_one(sink);
        take_messages(now, receiver, ring, (*group, checker, counters, capture), &mut sink)
    }

    fn poll_fd(&self) -> Option<Arc<OwnedFd>> {
        Some(self.receiver.clone())
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}

/// Sets the options of a group's socket, before it is bound.
fn prepare(fd: &OwnedFd, ip: IpAddr, buffers: BufferSizes) -> io::Result<()> {
    socket::prepare_receiver(fd, ip, buffers)?;
    let fd = fd.as_fd();
    // All that bind the group with this option get all that comes, of whatever user they are.
    sys::set_int(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    match ip {
        IpAddr::V4(_) => sys::set_int(fd, libc::SOL_IP, IP_MULTICAST_ALL, 0),
        IpAddr::V6(_) => sys::set_int(fd, libc::SOL_IPV6, IPV6_MULTICAST_ALL, 0),
    }
}

/// Joins an IP group on an interface (`ip(7)`, `ipv6(7)`): as long as the socket is open.
pub(crate) fn join(fd: BorrowedFd<'_>, group: IpAddr, ifindex: u32) -> io::Result<()> {
    match group {
        IpAddr::V4(v4) => {
            let request = mreqn(v4.octets(), ifindex);
            sys::set_bytes(fd, libc::SOL_IP, libc::IP_ADD_MEMBERSHIP, &request)
        }
        IpAddr::V6(v6) => {
            // struct ipv6_mreq: the group, the interface.
            let request = [&v6.octets()[..], &ifindex.to_ne_bytes()].concat();
            sys::set_bytes(fd, libc::SOL_IPV6, libc::IPV6_ADD_MEMBERSHIP, &request)
        }
    }
}

/// Has a socket, of an address of this family, send packets to groups by an interface.
pub(super) fn send_by(fd: BorrowedFd<'_>, ip: IpAddr, ifindex: u32) -> io::Result<()> {
    match ip {
        IpAddr::V4(_) => {
            let request = mreqn([0; 4], ifindex);
            sys::set_bytes(fd, libc::SOL_IP, libc::IP_MULTICAST_IF, &request)
        }
        IpAddr::V6(_) => {
            sys::set_bytes(fd, libc::SOL_IPV6, libc::IPV6_MULTICAST_IF, &ifindex.to_ne_bytes())
        }
    }
}

/// `struct ip_mreqn`: the group, an address that is not used where an interface is given, and that.
fn mreqn(group: [u8; 4], ifindex: u32) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&group);
    bytes[8..].copy_from_slice(&ifindex.to_ne_bytes());
    bytes
}
