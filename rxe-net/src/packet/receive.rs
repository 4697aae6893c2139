//! Receiving frames from a packet socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rxe_core::path::Path;
use rxe_core::time::Instant;
use rxe_wire::net::{Frame, Net, SuperFrame};

use super::link::{VNET_GSO_SIZE, VNET_GSO_TYPE, VNET_GSO_UDP, VNET_LEN};
use super::sys as packet_sys;
use crate::batch::{ICRC_LEN, TxBatch};
use crate::frame;
use crate::link::{LinkCounters, Sink};
use crate::pcap::{Capture, CaptureBatch, CapturedPacket};
use crate::slots::fork::Tracked;
use crate::udp::sys;

/// Messages that one round of receiving takes at most.
const MAX_RECEIVE: usize = 32;
/// `struct tpacket_auxdata`: the tag, and the bit of the status that says that there is one.
const AUX_TCI: usize = 16;
const AUX_VLAN_VALID: u32 = 1 << 4;
/// The identifier, of a VLAN tag.
const VLAN_ID: u16 = 0x0fff;

/// A packet socket, with what receiving from it takes.
#[derive(Debug)]
pub(super) struct Receiver {
    /// Declared before the descriptor, so that it is dropped before.
    _tracked: Tracked,
    socket: Arc<OwnedFd>,
    ring: sys::RecvRing,
    /// The VLAN of what is received; `None` for untagged frames.
    vlan: Option<u16>,
}

impl Receiver {
    pub(super) fn new(socket: OwnedFd, vlan: Option<u16>) -> Self {
        let (_tracked, socket) = (Tracked::new(&socket), Arc::new(socket));
        Self { _tracked, socket, ring: sys::RecvRing::new(MAX_RECEIVE), vlan }
    }

    pub(super) fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Does one round, as [`Link::receive`](crate::link::Link::receive).
    pub(super) fn receive(
        &mut self,
        now: Instant,
        counters: &mut LinkCounters,
        capture: Option<&Arc<Capture>>,
        sink: &mut Sink<'_>,
    ) -> io::Result<usize> {
        counters.receive_calls += 1;
        let count = match self.ring.receive(self.socket.as_fd(), 0) {
            Ok(count) => count,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => return Ok(0),
                // The interface was down; it may come up again.
                _ if error.raw_os_error() == Some(libc::ENETDOWN) => return Ok(0),
                _ => return Err(error),
            },
        };
        let before = counters.received;
        let mut capture = capture.map(|capture| capture.batch(now));
        for index in 0..count {
            let Some(message) = self.ring.message(index) else { continue };
            note_overflows(message.control, counters);
            match read_message(&message, self.vlan) {
                Incoming::Good(arrived) => arrived.give(counters, &mut capture, sink),
                Incoming::Foreign => counters.foreign += 1,
                Incoming::Malformed => counters.malformed += 1,
            }
        }
        Ok((counters.received - before) as usize)
    }
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

/// The kernel counts what it dropped since the socket was made.
fn note_overflows(control: &[u8], counters: &mut LinkCounters) {
    let is_count =
        |c: &sys::Control<'_>| (c.level, c.kind) == (libc::SOL_SOCKET, libc::SO_RXQ_OVFL);
    if let Some(count) = sys::controls(control).find(is_count).and_then(|control| control.int()) {
        counters.receive_overflows = u64::from(count.cast_unsigned());
    }
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
            Net::V4 { ip, .. } => ip.dont_fragment,
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
