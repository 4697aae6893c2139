//! Multicast groups over packet sockets.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use gid_table::Gid;
use rxe_core::multicast::MULTICAST_QPN;
use rxe_core::time::Instant;

use super::filter::Accepted;
use super::link::OpenPacketError;
use super::receive::Receiver;
use super::socket::{self, SocketConfig};
use super::sys as packet_sys;
use crate::batch::TxBatch;
use crate::link::{Link, LinkCounters, Sink, TransmitReport};
use crate::pcap::Capture;
use crate::slots::fork::Tracked;
use crate::udp::{BufferSizes, group, sys};

/// What a [`PacketGroup`] needs to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketGroupConfig {
    /// The group.
    pub group: Gid,
    /// Index of the interface that its packets are to come by.
    pub ifindex: u32,
    /// The VLAN of its frames; `None` for untagged frames.
    pub vlan: Option<u16>,
    /// Sizes of the socket buffers.
    pub buffers: BufferSizes,
}

/// What comes to a multicast group by one interface, over a packet socket, of RoCE v1 and v2. R49.
///
/// As [`UdpGroup`](crate::udp::UdpGroup) in all else. What this host sends to the group is seen as
/// it leaves.
pub struct PacketGroup {
    group: Gid,
    receiver: Receiver,
    /// The host's membership in the IP group, where it can be in it.
    _membership: Option<(Tracked, OwnedFd)>,
    counters: LinkCounters,
    capture: Option<Arc<Capture>>,
}

impl fmt::Debug for PacketGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketGroup").field("group", &self.group).finish_non_exhaustive()
    }
}

impl PacketGroup {
    /// Joins a group and opens its socket.
    ///
    /// # Errors
    ///
    /// [`OpenPacketError`], without `CAP_NET_RAW` above all.
    pub fn open(config: PacketGroupConfig) -> Result<Self, OpenPacketError> {
        let PacketGroupConfig { group, ifindex, vlan, buffers } = config;
        let os = |what| move |source| OpenPacketError::Os { ifindex, what, source };
        let slots = &[MULTICAST_QPN.slot()];
        // Of what other processes here send to the group by themselves, tags and all.
        let tag_may_stand = vlan.is_some();
        let accepted = Accepted { gid: group, slots, ifindexes: &[ifindex], tag_may_stand };
        let socket = SocketConfig { ifindex, accepted, hears_own_host: true, buffers };
        let socket = socket::open(&socket)?;
        if let Some(mac) = group.multicast_mac() {
            packet_sys::join(socket.as_fd(), ifindex, mac)
                .map_err(os("receive a group's frames"))?;
        }
        // So that the network knows of it (IGMP, MLD): switches may send it nowhere else. RoCE v1
        // does without, on interfaces that have no IP.
        let membership = join_ip_group(group, ifindex).inspect_err(|error| {
            tracing::debug!(target: "rxe::net", %group, ifindex, %error, "is in no IP group");
        });
        tracing::debug!(target: "rxe::net", %group, ifindex, "joins a group");
        Ok(Self {
            group,
            receiver: Receiver::new(socket, vlan),
            _membership: membership.ok(),
            counters: LinkCounters::default(),
            capture: None,
        })
    }

    /// Sets where all packets received are written, bad ones too; `None` for nowhere.
    pub fn set_capture(&mut self, capture: Option<Arc<Capture>>) {
        self.capture = capture;
    }
}

/// Joins an IP group by a socket that receives nothing.
fn join_ip_group(gid: Gid, ifindex: u32) -> io::Result<(Tracked, OwnedFd)> {
    let ip = gid.to_ip();
    let fd = sys::udp_socket(ip)?;
    sys::drop_all_input(fd.as_fd())?;
    group::join(fd.as_fd(), ip, ifindex)?;
    Ok((Tracked::new(&fd), fd))
}

impl Link for PacketGroup {
    /// Sends nothing: no packet has a group as its source.
    fn transmit(&mut self, _: Instant, batch: &mut TxBatch) -> TransmitReport {
        let lost = batch.len();
        self.counters.foreign += lost as u64;
        batch.clear();
        TransmitReport { sent: 0, lost }
    }

    fn receive(&mut self, now: Instant, sink: &mut Sink<'_>) -> io::Result<usize> {
        let Self { receiver, counters, capture, .. } = self;
        receiver.receive(now, counters, capture.as_ref(), sink)
    }

    fn poll_fd(&self) -> Option<Arc<OwnedFd>> {
        Some(self.receiver.socket().clone())
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}
