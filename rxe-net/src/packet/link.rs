//! The link: packets of a shard as whole Ethernet frames.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use gid_table::{Gid, GidType};
use rxe_core::path::{Path, Transmit};
use rxe_core::time::Instant;
use rxe_wire::Qpn;
use thiserror::Error;

use super::by_udp::ByUdp;
use super::filter::{self, Accepted};
use super::office::Office;
use super::receive::Receiver;
use super::resolve::{LOOPBACK_IFINDEX, Resolver, Way};
use super::socket::{self, SocketConfig};
use crate::batch::{ICRC_LEN, TxBatch};
use crate::frame::{self, FrameHeaders, UDP_CHECKSUM};
use crate::host::os_errno;
use crate::link::{Link, LinkCounters, Sink, TransmitReport};
use crate::pcap::{Capture, CapturedPacket};
use crate::udp::{BufferSizes, source_port, sys};

/// `struct virtio_net_hdr`, which stands before each frame, and where its fields are.
pub(super) const VNET_LEN: usize = 10;
pub(super) const VNET_GSO_TYPE: usize = 1;
const VNET_HEADERS_LEN: usize = 2;
pub(super) const VNET_GSO_SIZE: usize = 4;
const VNET_CSUM_START: usize = 6;
const VNET_CSUM_OFFSET: usize = 8;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum is to be completed.
const VNET_NEEDS_CSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`: datagrams of one size, but that the last may be shorter.
pub(super) const VNET_GSO_UDP: u8 = 5;
/// Bytes of a UDP header.
const UDP_LEN: usize = 8;
/// Packets that leave as one frame at most, as many as each Linux takes from UDP sockets too.
const MAX_SEGMENTS: usize = 64;
/// IPv4 identification of a frame, which counts up where the kernel makes several of one: with DF
/// set it means nothing (RFC 6864 section 4.1).
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
    /// Whether runs of packets leave as one frame, which the kernel cuts apart; see
    /// [`UdpConfig::gso`](crate::udp::UdpConfig::gso).
    pub gso: bool,
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
    /// The interface is gone.
    #[error("there is no interface #{ifindex} any more, of which the address was")]
    NoInterface {
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
            Self::NoInterface { .. } => libc::ENODEV,
            Self::Os { source, .. } => os_errno(source),
        }
    }
}

/// Packets of one shard over a packet socket, for one GID, of RoCE v1 and v2.
///
/// A packet whose destination's Ethernet address is not known yet is lost, like one that the
/// network dropped, and the kernel is asked to find the address out: the engine sends it again,
/// soon after. Packets for an address of this host go by `lo`, and those for groups may come back to
/// it: those of RoCE v2 leave by UDP, so that links of both kinds get them, and others, or with a
/// VLAN tag, as frames, which reach packet links alone.
///
/// Port 4791 of the GID's address is held by a socket that drops all, so that the kernel does not
/// answer what comes there with ICMP errors; where somebody else has it, it is held already, and
/// when that one ends, this link takes over. Whoever has the port takes in packets to QP1.
pub struct PacketLink {
    config: PacketConfig,
    receiver: Receiver,
    office: Office,
    resolver: Resolver,
    by_udp: ByUdp,
    /// Frames about to leave, each behind its virtio header, kept for its memory.
    frames: Vec<u8>,
    /// Packets in one frame at most; 1 when segmentation is off, or was refused.
    max_segments: usize,
    counters: LinkCounters,
    capture: Option<Arc<Capture>>,
    /// Packets at the start of the batch that were captured when they were to leave before.
    captured: usize,
}

impl fmt::Debug for PacketLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketLink")
            .field("config", &self.config)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// Packets of a batch in one frame, or a single one.
#[derive(Clone, Copy, Default, Debug)]
struct Outgoing {
    /// How many.
    count: usize,
    /// The interface that it leaves by.
    ifindex: u32,
    /// Where it ends in the memory of the frames.
    end: usize,
}

/// What to do about a send that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// There is no room for it, nor for what is behind it: all that waits.
    Wait,
    /// It is written anew, smaller.
    Again,
    /// It is lost.
    Lost,
}

/// Why packets have no frame. But for those that go another way they are lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Frameless {
    /// They leave by UDP ([`ByUdp`]).
    ByUdp,
    /// They cannot go out here at all.
    Foreign,
    /// Nobody knows where to.
    NoNeighbour,
    /// They cannot be written.
    Unwritable,
}

impl PacketLink {
    /// Opens the socket of a shard.
    ///
    /// # Errors
    ///
    /// [`OpenPacketError`], without `CAP_NET_RAW` above all.
    pub fn open(config: PacketConfig) -> Result<Self, OpenPacketError> {
        let PacketConfig { ifindex, gid, slot, vlan, gso, buffers, .. } = config;
        let os = |what| move |source| OpenPacketError::Os { ifindex, what, source };
        let accepted = Accepted {
            gid,
            slots: &[slot],
            ifindexes: &[ifindex, LOOPBACK_IFINDEX],
            tag_may_stand: false,
        };
        let socket = SocketConfig { ifindex, accepted, hears_own_host: false, buffers };
        let receiver = Receiver::new(socket::open(&socket)?, vlan);
        tracing::debug!(target: "rxe::net", %gid, slot, "opens a packet link");
        let mut link = Self {
            config,
            receiver,
            office: Office::new(gid, ifindex),
            resolver: Resolver::new(ifindex, gid).map_err(os("ask for neighbours"))?,
            by_udp: ByUdp::new(gid, ifindex, slot, buffers),
            frames: Vec::new(),
            max_segments: if gso { MAX_SEGMENTS } else { 1 },
            counters: LinkCounters::default(),
            capture: None,
            captured: 0,
        };
        link.hope_for_office(Instant::ZERO);
        Ok(link)
    }

    /// Sets where all packets sent and received are written, bad ones too; `None` for nowhere.
    pub fn set_capture(&mut self, capture: Option<Arc<Capture>>) {
        self.capture = capture;
    }

    /// Packets that leave in one frame at most at present; 1 when segmentation is off.
    pub fn max_segments(&self) -> usize {
        self.max_segments
    }

    /// Whether it is this link, of all of its GID, that takes in packets to QP1.
    pub fn takes_gsi(&self) -> bool {
        self.office.is_held()
    }

    /// Takes the office that another link has left, if it has: then packets to QP1 come here.
    fn hope_for_office(&mut self, now: Instant) {
        if !self.office.try_again(now) {
            return;
        }
        let PacketConfig { ifindex, gid, slot, .. } = self.config;
        let (slots, ifindexes) = (&[slot, Qpn::GSI.slot()], &[ifindex, LOOPBACK_IFINDEX]);
        let accepted = Accepted { gid, slots, ifindexes, tag_may_stand: false };
        let program = filter::program(&accepted);
        match sys::attach_filter(self.receiver.socket().as_fd(), &program) {
            Ok(()) => tracing::debug!(target: "rxe::net", %gid, slot, "takes packets to QP1"),
            Err(error) => {
                tracing::error!(target: "rxe::net", %gid, %error, "gets no packets to QP1");
            }
        }
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

    /// How many packets from `first` on leave in one frame.
    fn run_len(&self, batch: &TxBatch, first: usize) -> usize {
        let head = batch.packet(first);
        // RoCE v1 is cut apart by nobody.
        match head.map(|packet| packet.path().gid_type) {
            Some(GidType::RoceV2) => batch.run_len(first, self.max_segments),
            _ => 1,
        }
    }

    /// Writes the frame of `count` packets from `first` on, behind those that are written.
    fn write_frame(
        &mut self,
        now: Instant,
        batch: &mut TxBatch,
        first: usize,
        count: usize,
    ) -> Result<Outgoing, Frameless> {
        let packet = batch.packet(first).ok_or(Frameless::Unwritable)?.transmit();
        if !self.can_send(&packet.path) {
            return Err(Frameless::Foreign);
        }
        let way = self.resolver.way(now, &packet.path).ok_or(Frameless::NoNeighbour)?;
        let path = Path { vlan: packet.path.vlan.or(self.config.vlan), ..packet.path };
        // R49: the host's own members of a group get it too.
        let is_for_own = way == Way::OWN || path.destination.is_multicast();
        if is_for_own && path.gid_type == GidType::RoceV2 && path.vlan.is_none() {
            return Err(Frameless::ByUdp);
        }
        let headers = self.headers(&packet, way.mac);
        let sealed = self.seal(now, batch, first..first + count, &path, &headers)?;
        let start = self.frames.len();
        let written = match count {
            1 => self.write_single(&path, &headers, sealed),
            _ => self.write_super(&path, &headers, sealed, packet.len + ICRC_LEN),
        };
        if let Err(error) = written {
            self.frames.truncate(start);
            tracing::debug!(target: "rxe::net", %error, "a packet that has no frame");
            return Err(Frameless::Unwritable);
        }
        Ok(Outgoing { count, ifindex: way.ifindex, end: self.frames.len() })
    }

    /// Gives packets that leave as one their iCRCs, and gives all their bytes.
    fn seal<'b>(
        &self,
        now: Instant,
        batch: &'b mut TxBatch,
        packets: Range<usize>,
        path: &Path,
        headers: &FrameHeaders,
    ) -> Result<&'b [u8], Frameless> {
        let flow = frame::icrc_flow(path, headers).map_err(|error| {
            tracing::debug!(target: "rxe::net", %error, "a packet that has no iCRC");
            Frameless::Unwritable
        })?;
        // In the batch, so that a bit that is to be flipped by injected faults is flipped there.
        batch.seal_run(packets.start, packets.len(), |segment, body, _| {
            flow.icrc(IDENTIFICATION + segment as u16, body).to_le_bytes()
        });
        self.capture_sent(now, batch, packets.clone(), path, headers);
        batch.sealed_run(packets.start, packets.len()).ok_or(Frameless::Unwritable)
    }

    /// Sends packets by UDP; returns how many, and what became of them.
    fn send_by_udp(
        &mut self,
        now: Instant,
        batch: &mut TxBatch,
        first: usize,
        count: usize,
    ) -> (usize, TransmitReport) {
        self.counters.send_calls += 1;
        let sent = match batch.packet(first).map(|packet| packet.transmit()) {
            Some(packet) => self.try_by_udp(now, batch, first..first + count, &packet),
            None => Err(io::ErrorKind::InvalidInput.into()),
        };
        self.captured = self.captured.max(first + count);
        match sent {
            Ok(()) => {
                self.count_sent(batch, first..first + count);
                (count, TransmitReport { sent: count, lost: 0 })
            }
            Err(error) => match self.judge(&error, count) {
                Verdict::Wait => (count, TransmitReport::default()),
                Verdict::Again => (0, TransmitReport::default()),
                Verdict::Lost => (count, TransmitReport { sent: 0, lost: count }),
            },
        }
    }

    fn try_by_udp(
        &mut self,
        now: Instant,
        batch: &mut TxBatch,
        packets: Range<usize>,
        packet: &Transmit,
    ) -> io::Result<()> {
        let source_port = self.by_udp.prepare(packet)?;
        let no_mac = Way::OWN.mac;
        let headers = FrameHeaders { source_port, ..self.headers(packet, no_mac) };
        let sealed = self.seal(now, batch, packets, &packet.path, &headers);
        self.by_udp.send(packet, sealed.map_err(|_| io::ErrorKind::InvalidData)?)
    }

    /// What to do about a send of so many packets that failed.
    fn judge(&mut self, error: &io::Error, count: usize) -> Verdict {
        match error.raw_os_error() {
            // R40: the host has no room at present.
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                self.counters.send_waits += 1;
                Verdict::Wait
            }
            // Linux before 6.2 does not know such frames. They are written anew.
            Some(libc::EINVAL | libc::EIO) if count > 1 => {
                tracing::info!(target: "rxe::net", %error, "single packets from now on");
                self.max_segments = 1;
                self.counters.gso_fallbacks += 1;
                Verdict::Again
            }
            _ => {
                tracing::debug!(target: "rxe::net", %error, "packets lost");
                self.counters.send_errors += count as u64;
                Verdict::Lost
            }
        }
    }

    fn headers(&self, packet: &Transmit, destination_mac: [u8; 6]) -> FrameHeaders {
        let slot = packet.dest_qpn.slot();
        FrameHeaders {
            source_mac: self.config.mac,
            destination_mac,
            source_port: source_port(self.config.slot, slot, packet.path.flow_label),
            identification: IDENTIFICATION,
            dont_fragment: true,
        }
    }

    /// Nothing is left to the kernel: neither checksums nor segmentation.
    fn write_single(
        &mut self,
        path: &Path,
        headers: &FrameHeaders,
        sealed: &[u8],
    ) -> Result<(), frame::FrameError> {
        self.frames.resize(self.frames.len() + VNET_LEN, 0);
        let (body, icrc) = match sealed.split_last_chunk::<ICRC_LEN>() {
            Some((body, icrc)) => (body, Some(*icrc)),
            // Refused below, as too short.
            None => (sealed, None),
        };
        frame::write(&mut self.frames, path, headers, body, icrc).map(drop)
    }

    /// One frame of several packets, all of `segment_len` bytes but the last, which may be shorter.
    fn write_super(
        &mut self,
        path: &Path,
        headers: &FrameHeaders,
        sealed: &[u8],
        segment_len: usize,
    ) -> Result<(), frame::FrameError> {
        let start = self.frames.len();
        self.frames.resize(start + VNET_LEN, 0);
        let udp = frame::write_super(&mut self.frames, path, headers, sealed)?;
        let vnet = &mut self.frames[start..start + VNET_LEN];
        vnet[0] = VNET_NEEDS_CSUM;
        vnet[VNET_GSO_TYPE] = VNET_GSO_UDP;
        let mut put = |at: usize, value: usize| {
            // Headers and packets are far shorter.
            vnet[at..at + 2].copy_from_slice(&(value as u16).to_ne_bytes());
        };
        put(VNET_HEADERS_LEN, udp + UDP_LEN);
        put(VNET_GSO_SIZE, segment_len);
        put(VNET_CSUM_START, udp);
        put(VNET_CSUM_OFFSET, UDP_CHECKSUM);
        Ok(())
    }

    /// Writes packets to the capture, as they are about to leave.
    fn capture_sent(
        &self,
        now: Instant,
        batch: &TxBatch,
        packets: Range<usize>,
        path: &Path,
        headers: &FrameHeaders,
    ) {
        let Some(capture) = &self.capture else { return };
        let mut capture = capture.batch(now);
        let first = packets.start;
        for index in packets.filter(|index| *index >= self.captured) {
            let Some(sealed) = batch.sealed(index) else { continue };
            let FrameHeaders { source_port, identification, dont_fragment, .. } = *headers;
            let identification = identification + (index - first) as u16;
            capture.packet(&CapturedPacket {
                path,
                source_port,
                identification,
                dont_fragment,
                sealed,
            });
        }
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
        let mut all = [Outgoing::default(); sys::MAX_SEND];
        let (mut used, mut next) = (0, first);
        while used < sys::MAX_SEND && next < batch.len() {
            let count = self.run_len(batch, next);
            match self.write_frame(now, batch, next, count) {
                Ok(outgoing) => all[used] = outgoing,
                // Those before it leave first, and it is lost in its turn.
                Err(_) if used > 0 => break,
                Err(Frameless::ByUdp) => return self.send_by_udp(now, batch, next, count),
                Err(why) => {
                    tracing::trace!(target: "rxe::net", ?why, count, "packets lost");
                    match why {
                        Frameless::Foreign => self.counters.foreign += count as u64,
                        _ => self.counters.send_errors += count as u64,
                    }
                    return (count, TransmitReport { sent: 0, lost: count });
                }
            }
            used += 1;
            next += count;
        }
        self.captured = self.captured.max(next);
        self.deliver(batch, first, &all[..used])
    }

    /// Sends frames that are written, of the packets from `first` on.
    fn deliver(
        &mut self,
        batch: &TxBatch,
        first: usize,
        all: &[Outgoing],
    ) -> (usize, TransmitReport) {
        let given = all.iter().map(|outgoing| outgoing.count).sum();
        let mut report = TransmitReport::default();
        let mut done = 0;
        while let Some(next) = all.get(done) {
            match self.send_frames(all, done) {
                Ok(sent) => {
                    for outgoing in &all[done..done + sent] {
                        let packets = first + report.done()..first + report.done() + outgoing.count;
                        self.count_sent(batch, packets);
                        report.sent += outgoing.count;
                    }
                    done += sent;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => match self.judge(&error, next.count) {
                    Verdict::Wait => return (given, report),
                    Verdict::Again => return (report.done(), report),
                    Verdict::Lost => {
                        report.lost += next.count;
                        done += 1;
                    }
                },
            }
        }
        (given, report)
    }

    fn count_sent(&mut self, batch: &TxBatch, packets: Range<usize>) {
        let sent = packets.filter_map(|index| batch.sealed(index));
        for sealed in sent {
            self.counters.sent += 1;
            self.counters.sent_bytes += sealed.len() as u64;
        }
    }

    /// One system call: the frames from number `first` on.
    fn send_frames(&mut self, all: &[Outgoing], first: usize) -> io::Result<usize> {
        self.counters.send_calls += 1;
        let mut messages = [sys::OutMessage::EMPTY; sys::MAX_SEND];
        let mut start = if first == 0 { 0 } else { all[first - 1].end };
        let count = all.len() - first;
        for (message, outgoing) in messages.iter_mut().zip(&all[first..]) {
            message.to = sys::RawAddress::interface(outgoing.ifindex);
            message.bytes = &self.frames[start..outgoing.end];
            start = outgoing.end;
        }
        sys::send_messages(self.receiver.socket().as_fd(), &messages[..count])
    }
}

impl Link for PacketLink {
    fn transmit(&mut self, now: Instant, batch: &mut TxBatch) -> TransmitReport {
        self.captured = 0;
        self.transmit_rest(now, batch)
    }

    fn transmit_rest(&mut self, now: Instant, batch: &mut TxBatch) -> TransmitReport {
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
        self.captured = self.captured.saturating_sub(report.done());
        batch.drop_front(report.done());
        report
    }

    fn receive(&mut self, now: Instant, sink: &mut Sink<'_>) -> io::Result<usize> {
        let Self { receiver, counters, capture, .. } = self;
        receiver.receive(now, counters, capture.as_ref(), sink)
    }

    fn hears_all(&self) -> bool {
        true
    }

    fn poll_fd(&self) -> Option<Arc<OwnedFd>> {
        Some(self.receiver.socket().clone())
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.office.next_try()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.hope_for_office(now);
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}
