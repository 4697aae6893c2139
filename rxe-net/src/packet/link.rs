//! The link: packets of a shard as whole Ethernet frames.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use gid_table::{Gid, GidType};
use rxe_core::path::Path;
use rxe_core::time::Instant;
use rxe_wire::net::{Frame, SuperFrame};
use thiserror::Error;

use super::resolve::Resolver;
use super::{filter, sys as packet_sys};
use crate::batch::{ICRC_LEN, TxBatch};
use crate::frame::{self, FrameHeaders};
use crate::host::os_errno;
use crate::link::{Link, LinkCounters, Sink, TransmitReport};
use crate::pcap::{Capture, CaptureBatch, CapturedPacket};
use crate::slots::fork::Tracked;
use crate::udp::{BufferSizes, ROCE_PORT, socket_address, source_port, sys};

/// Messages that one round of receiving takes at most.
const MAX_RECEIVE: usize = 32;
/// `struct virtio_net_hdr`, which stands before each frame, and where its fields are.
const VNET_LEN: usize = 10;
const VNET_GSO_TYPE: usize = 1;
const VNET_GSO_SIZE: usize = 4;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`: datagrams of one size, but that the last may be shorter.
const VNET_GSO_UDP: u8 = 5;
/// `struct tpacket_auxdata`: the tag, and the bit of the status that says that there is one.
const AUX_TCI: usize = 16;
const AUX_VLAN_VALID: u32 = 1 << 4;
/// The identifier, of a VLAN tag.
const VLAN_ID: u16 = 0x0fff;
/// IPv4 identification of all that is sent: with DF set it means nothing (RFC 6864 section 4.1).
const IDENTIFICATION: u16 = 0;

/// What a [`PacketLink`] needs to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketConfig {
    /// Index of the interface that frames leave by and come from.
    pub ifindex: u32,
    /// Its Ethernet address.
    pub mac: [u8; 6],
    /// The local GID.
    pub gid: Gid,
    /// The shard's slot: the top byte of the QPNs that live on it.
    pub slot: u8,
    /// The VLAN that frames are sent with, and received of; `None` for untagged frames.
    pub vlan: Option<u16>,
    /// Sizes of the socket buffers.
    pub buffers: BufferSizes,
}

/// Why a packet link cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenPacketError {
    /// `CAP_NET_RAW` is missing.
    #[error(
        "the packet link needs the capability CAP_NET_RAW in the user namespace of this network: \
         run as root, or use the UDP link, which needs none (URXE_LINK=udp)"
    )]
    NotPermitted,
    /// The interface has no Ethernet address.
    #[error("the interface #{ifindex} has no Ethernet frames: use the UDP link (URXE_LINK=udp)")]
    NotEthernet {
        /// The interface.
        ifindex: u32,
    },
    /// The operating system refused something else.
    #[error("cannot {what} on the interface #{ifindex}: {source}")]
    Os {
        /// The interface.
        ifindex: u32,
        /// What was attempted.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
}

impl OpenPacketError {
    /// The errno that stands for it.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotPermitted => libc::EPERM,
            Self::NotEthernet { .. } => libc::EOPNOTSUPP,
            Self::Os { source, .. } => os_errno(source),
        }
    }
}

/// Packets of one shard over a packet socket, for one GID, of RoCE v1 and v2.
///
/// A packet whose destination's Ethernet address is not known yet is lost, like one that the
/// network dropped, and the kernel is asked to find the address out: the engine sends it again,
/// soon after.
///
/// Port 4791 of the GID's address is held by a socket that drops all, so that the kernel does not
/// answer what comes there with ICMP errors; where somebody else has it, it is held already.
pub struct PacketLink {
    config: PacketConfig,
    /// Declared before the descriptors, so that it is dropped before.
    _tracked: Vec<Tracked>,
    socket: Arc<OwnedFd>,
    _holder: Option<OwnedFd>,
    ring: sys::RecvRing,
    resolver: Resolver,
    /// Frames about to leave, each behind its virtio header, kept for its memory.
    frames: Vec<u8>,
    counters: LinkCounters,
    capture: Option<Arc<Capture>>,
}

impl fmt::Debug for PacketLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketLink")
            .field("config", &self.config)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl PacketLink {
    /// Opens the socket of a shard.
    ///
    /// # Errors
    ///
    /// [`OpenPacketError`], without `CAP_NET_RAW` above all.
    pub fn open(config: PacketConfig) -> Result<Self, OpenPacketError> {
        let PacketConfig { ifindex, mac, gid, slot, .. } = config;
        let os = |what| move |source| OpenPacketError::Os { ifindex, what, source };
        let socket = packet_sys::packet_socket().map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => OpenPacketError::NotPermitted,
            _ => os("make a packet socket")(error),
        })?;
        let mut tracked = vec![Tracked::new(&socket)];
        prepare(&socket, &config).map_err(os("set the options of a packet socket"))?;
        packet_sys::bind(socket.as_fd(), ifindex).map_err(os("receive frames"))?;
        let holder = hold_port(&config);
        tracked.extend(holder.as_ref().map(Tracked::new));
        tracing::debug!(target: "rxe::net", %gid, slot, "opens a packet link");
        Ok(Self {
            config,
            _tracked: tracked,
            socket: Arc::new(socket),
            _holder: holder,
            ring: sys::RecvRing::new(MAX_RECEIVE),
            resolver: Resolver::new(ifindex, mac, gid).map_err(os("ask for neighbours"))?,
            frames: Vec::new(),
            counters: LinkCounters::default(),
            capture: None,
        })
    }

    /// Sets where all packets sent and received are written, bad ones too; `None` for nowhere.
    pub fn set_capture(&mut self, capture: Option<Arc<Capture>>) {
        self.capture = capture;
    }

    /// Whether the packet can go out here at all: from our GID, to one of its family on v2.
    fn can_send(&self, path: &Path) -> bool {
        let gid = self.config.gid;
        let is_v4 = |gid: Gid| gid.to_ipv4().is_some();
        path.source == gid
            && match path.gid_type {
                GidType::RoceV1 => true,
                GidType::RoceV2 => is_v4(path.destination) == is_v4(gid),
                GidType::Ib => false,
            }
    }

    /// Writes the frame of packet `index`; false when there is none, which is lost then.
    fn write_frame(&mut self, now: Instant, batch: &mut TxBatch, index: usize) -> bool {
        let Some(packet) = batch.packets().get(index).copied() else { return false };
        if !self.can_send(packet.path()) {
            self.counters.foreign += 1;
            return false;
        }
        let Some(destination_mac) = self.resolver.mac(now, packet.path()) else {
            tracing::trace!(target: "rxe::net", to = %packet.path().destination, "no neighbour yet");
            self.counters.send_errors += 1;
            return false;
        };
        let path = Path { vlan: packet.path().vlan.or(self.config.vlan), ..*packet.path() };
        let slot = packet.dest_qpn().slot();
        let headers = FrameHeaders {
            source_mac: self.config.mac,
            destination_mac,
            source_port: source_port(self.config.slot, slot, path.flow_label),
            identification: IDENTIFICATION,
            dont_fragment: true,
        };
        let Ok(flow) = frame::icrc_flow(&path, &headers) else { return false };
        // In the batch, so that a bit that is to be flipped by injected faults is flipped there.
        batch.seal(index, |body, _| flow.icrc(IDENTIFICATION, body).to_le_bytes());
        let Some(sealed) = batch.sealed(index) else { return false };
        if let Some(capture) = &self.capture {
            let FrameHeaders { source_port, identification, dont_fragment, .. } = headers;
            let path = &path;
            let captured =
                CapturedPacket { path, source_port, identification, dont_fragment, sealed };
            capture.batch(now).packet(&captured);
        }
        let Some((body, icrc)) = sealed.split_last_chunk::<ICRC_LEN>() else { return false };
        let start = self.frames.len();
        // Nothing is left to the kernel: neither checksums nor segmentation.
        self.frames.resize(start + VNET_LEN, 0);
        if let Err(error) = frame::write(&mut self.frames, &path, &headers, body, Some(*icrc)) {
            tracing::debug!(target: "rxe::net", %error, "a packet that has no frame");
            self.frames.truncate(start);
            self.counters.send_errors += 1;
            return false;
        }
        true
    }

    /// Sends the packets from `first` on, as many as one call takes; returns how many these are,
    /// and what became of them. Some may have to wait.
    fn send_group(
        &mut self,
        now: Instant,
        batch: &mut TxBatch,
        first: usize,
    ) -> (usize, TransmitReport) {
        self.frames.clear();
        let (mut ends, mut used) = ([0; sys::MAX_SEND], 0);
        let count = (batch.len() - first).min(sys::MAX_SEND);
        for index in first..first + count {
            if !self.write_frame(now, batch, index) {
                // Those before it leave first, and it is lost in its turn.
                if used == 0 {
                    return (1, TransmitReport { sent: 0, lost: 1 });
                }
                break;
            }
            ends[used] = self.frames.len();
            used += 1;
        }
        let mut report = TransmitReport::default();
        let mut done = 0;
        while done < used {
            match self.send_frames(&ends[..used], done) {
                Ok(sent) => {
                    for end in done..done + sent {
                        self.counters.sent += 1;
                        let len = batch.packets().get(first + end).map_or(0, |p| p.sealed_len());
                        self.counters.sent_bytes += len as u64;
                    }
                    report.sent += sent;
                    done += sent;
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // R40: the host has no room at present.
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                        self.counters.send_waits += 1;
                        break;
                    }
                    _ => {
                        tracing::debug!(target: "rxe::net", %error, "a packet is lost");
                        self.counters.send_errors += 1;
                        report.lost += 1;
                        done += 1;
                    }
                },
            }
        }
        (used, report)
    }

    /// One system call: the frames from number `first` on.
    fn send_frames(&mut self, ends: &[usize], first: usize) -> io::Result<usize> {
        self.counters.send_calls += 1;
        let empty = sys::OutMessage { to: sys::RawAddress::EMPTY, bytes: &[], segment: 0 };
        let mut messages = [empty; sys::MAX_SEND];
        let mut start = if first == 0 { 0 } else { ends[first - 1] };
        let count = ends.len() - first;
        for (message, &end) in messages.iter_mut().zip(&ends[first..]) {
            message.bytes = &self.frames[start..end];
            start = end;
        }
        sys::send_messages(self.socket.as_fd(), &messages[..count])
    }
}

impl Link for PacketLink {
    fn transmit(&mut self, now: Instant, batch: &mut TxBatch) -> TransmitReport {
        let mut report = TransmitReport::default();
        let mut end = 0;
        while end < batch.len() {
            let (count, group) = self.send_group(now, batch, end);
            end += count;
            report += group;
            if group.done() < count {
                break;
            }
        }
        batch.drop_front(report.done());
        report
    }

    fn receive(&mut self, now: Instant, sink: &mut Sink<'_>) -> io::Result<usize> {
        let Self { config, socket, ring, counters, capture, .. } = self;
        counters.receive_calls += 1;
        let count = match ring.receive(socket.as_fd(), 0) {
            Ok(count) => count,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => return Ok(0),
                // The interface was down; it may come up again.
                _ if error.raw_os_error() == Some(libc::ENETDOWN) => return Ok(0),
                _ => return Err(error),
            },
        };
        let before = counters.received;
        let mut capture = capture.as_ref().map(|capture| capture.batch(now));
        for index in 0..count {
            let Some(message) = ring.message(index) else { continue };
            match read_message(&message, config.vlan) {
                Incoming::Good(arrived) => arrived.give(counters, &mut capture, sink),
                Incoming::Foreign => counters.foreign += 1,
                Incoming::Malformed => counters.malformed += 1,
            }
        }
        Ok((counters.received - before) as usize)
    }

    fn poll_fd(&self) -> Option<Arc<OwnedFd>> {
        Some(self.socket.clone())
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}

/// Sets options, buffers and filter of a packet socket, before it is bound.
fn prepare(socket: &OwnedFd, config: &PacketConfig) -> io::Result<()> {
    let fd = socket.as_fd();
    for option in packet_sys::OPTIONS {
        sys::set_int(fd, libc::SOL_PACKET, option, 1)?;
    }
    let BufferSizes { receive, send } = config.buffers;
    for (name, size) in [(libc::SO_RCVBUF, receive), (libc::SO_SNDBUF, send)] {
        if let Some(size) = size {
            sys::set_int(fd, libc::SOL_SOCKET, name, i32::try_from(size).unwrap_or(i32::MAX))?;
        }
    }
    sys::attach_filter(fd, &filter::program(config.gid, config.slot))
}

/// Holds the RoCE port of the GID's address; `None` when it cannot be held: somebody has it, or the
/// host does not have the address, as that of a default GID.
fn hold_port(config: &PacketConfig) -> Option<OwnedFd> {
    let ip = config.gid.to_ip();
    let scope_id = if config.gid.is_link_local() { config.ifindex } else { 0 };
    let hold = || {
        let socket = sys::udp_socket(ip)?;
        sys::drop_all_input(socket.as_fd())?;
        sys::bind(socket.as_fd(), socket_address(ip, ROCE_PORT, scope_id))?;
        Ok(socket)
    };
    let held: io::Result<OwnedFd> = hold();
    held.inspect_err(|error| {
        tracing::debug!(target: "rxe::net", %ip, %error, "port 4791 is not held here");
    })
    .ok()
}

/// What a message of the socket is.
enum Incoming<'a> {
    Good(Arrived<'a>),
    /// Of another VLAN, or no packet of RoCE's.
    Foreign,
    Malformed,
}

/// One packet, or several in one frame.
struct Arrived<'a> {
    path: Path,
    frame: Frame<'a>,
    /// Bytes of each packet but the last, from BTH to iCRC, where there are several.
    segment_len: Option<usize>,
}

fn read_message<'a>(message: &'a sys::InMessage<'_>, vlan: Option<u16>) -> Incoming<'a> {
    let Some((header, bytes)) = message.bytes.split_first_chunk::<VNET_LEN>() else {
        return Incoming::Malformed;
    };
    if message.truncated {
        return Incoming::Malformed;
    }
    let frame = match Frame::parse_ethernet(bytes) {
        Ok(frame) => frame,
        Err(error) if error.is_foreign() => return Incoming::Foreign,
        Err(_) => return Incoming::Malformed,
    };
    // The kernel takes the outer tag out; where it does not, it is in the frame.
    let told = vlan_of(message.control);
    let path = frame::path_of(&frame);
    let path = Path { vlan: told.or(path.vlan), ..path };
    if path.vlan != vlan {
        return Incoming::Foreign;
    }
    let size = usize::from(u16::from_ne_bytes([header[VNET_GSO_SIZE], header[VNET_GSO_SIZE + 1]]));
    let is_several = header[VNET_GSO_TYPE] == VNET_GSO_UDP && size > ICRC_LEN;
    Incoming::Good(Arrived { path, frame, segment_len: is_several.then_some(size) })
}

/// The identifier in the VLAN tag of a frame, as the kernel tells of it; none for 0, which carries
/// a priority alone (IEEE 802.1Q).
fn vlan_of(control: &[u8]) -> Option<u16> {
    let is_auxdata =
        |c: &sys::Control<'_>| (c.level, c.kind) == (libc::SOL_PACKET, packet_sys::PACKET_AUXDATA);
    let data = sys::controls(control).find(is_auxdata)?.data;
    let status = u32::from_ne_bytes(*data.first_chunk()?);
    let tci = u16::from_ne_bytes(*data.get(AUX_TCI..)?.first_chunk()?);
    Some(tci & VLAN_ID).filter(|id| status & AUX_VLAN_VALID != 0 && *id != 0)
}

impl Arrived<'_> {
    /// Checks the iCRC of each packet, and gives the good ones to the sink.
    fn give(
        &self,
        counters: &mut LinkCounters,
        capture: &mut Option<CaptureBatch<'_>>,
        sink: &mut Sink<'_>,
    ) {
        let Self { path, frame, segment_len } = self;
        let Some(segment_len) = *segment_len else {
            let is_good = frame.icrc().is_ok_and(|check| check.is_good());
            let l3 = frame.l3();
            let sealed = l3.get(frame.net.header_len()..).unwrap_or_default();
            self.capture(capture, frame.net.identification(), sealed);
            return count_and_give(path, frame.roce, is_good, counters, sink);
        };
        let segments = SuperFrame::with_segment_len(frame, segment_len);
        for segment in segments.iter().flat_map(SuperFrame::segments) {
            self.capture(capture, segment.identification, segment.sealed);
            count_and_give(path, segment.packet, segment.icrc.is_good(), counters, sink);
        }
    }

    fn capture(&self, capture: &mut Option<CaptureBatch<'_>>, identification: u16, sealed: &[u8]) {
        let Some(capture) = capture else { return };
        let source_port = self.frame.net.udp().map_or(0, |udp| udp.source_port);
        let dont_fragment = match self.frame.net {
            rxe_wire::net::Net::V4 { ip, .. } => ip.dont_fragment,
            _ => true,
        };
        let path = &self.path;
        capture.packet(&CapturedPacket {
            path,
            source_port,
            identification,
            dont_fragment,
            sealed,
        });
    }
}

fn count_and_give(
    path: &Path,
    packet: &[u8],
    is_good: bool,
    counters: &mut LinkCounters,
    sink: &mut Sink<'_>,
) {
    if packet.len() > TxBatch::MAX_PACKET {
        counters.malformed += 1;
    } else if !is_good {
        counters.icrc_errors += 1;
    } else {
        counters.received += 1;
        counters.received_bytes += packet.len() as u64;
        sink(path, packet);
    }
}
