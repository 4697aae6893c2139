//! What is behind the lock of a fabric: ports, and frames on their way between them.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fmt;
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;

use gid_table::{Gid, GidType};
use rxe_core::path::{Path, Unreachable};
use rxe_core::time::Instant;
use rxe_wire::hdr::Bth;

use super::fabric::{AddPortError, AttachError};
use super::port::{Endpoint, Port, PortConfig, PortCounters, PortId, Waker};
use super::queue::{ReceiveLimits, Received};
use crate::batch::{ICRC_LEN, TxBatch, TxPacket};
use crate::faults::{FaultSpec, Faults};
use crate::frame::{self, FrameHeaders};
use crate::link::TransmitReport;
use crate::pcap::Capture;
use crate::udp::source_port;

/// Packets of one port on their way at the same time; more are lost.
const IN_FLIGHT_MAX: usize = 65_536;
/// Hints of unreachable peers kept for a link; more are lost.
const UNREACHABLE_MAX: usize = 64;
/// Buffers kept for the next frames.
const SPARE_MAX: usize = 4096;

/// Who sends: a link of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sender {
    pub port: usize,
    pub endpoint: usize,
}

/// A frame on its way.
#[derive(Debug)]
struct InFlight {
    due: Instant,
    number: u64,
    from: Sender,
    to: usize,
    frame: Vec<u8>,
}

impl InFlight {
    const fn key(&self) -> (Instant, u64) {
        (self.due, self.number)
    }
}

impl PartialEq for InFlight {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for InFlight {}

impl PartialOrd for InFlight {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for InFlight {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// Why a packet did not get onto the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NotSent {
    Down,
    NotOwned,
    NoNeighbour,
    TooLong,
    Overflow,
}

impl NotSent {
    const fn counter(self, counters: &mut PortCounters) -> &mut u64 {
        match self {
            Self::Down => &mut counters.down,
            Self::NotOwned => &mut counters.not_owned,
            Self::NoNeighbour => &mut counters.no_neighbour,
            Self::TooLong => &mut counters.too_long,
            Self::Overflow => &mut counters.send_overflow,
        }
    }
}

/// Everything behind the lock.
#[derive(Default)]
pub(super) struct State {
    ports: Vec<Port>,
    in_flight: BinaryHeap<Reverse<InFlight>>,
    /// Numbers the frames, so that those of one time arrive in the order they were sent.
    sent_count: u64,
    /// The latest time there was: threads come with times a little apart.
    now: Instant,
    capture: Option<Arc<Capture>>,
    spare: Vec<Vec<u8>>,
    /// Where faults release packets to, on their way to the wire; `None` while in use.
    released: Option<TxBatch>,
    /// To be called when the lock is free.
    wakers: Vec<Waker>,
    /// The ports or links that the packet at hand goes to; kept for its memory.
    targets: Vec<usize>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("ports", &self.ports)
            .field("in_flight", &self.in_flight.len())
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

/// Setting up.
impl State {
    pub(super) fn add_port(&mut self, config: PortConfig) -> Result<PortId, AddPortError> {
        if let Some(index) = self.ports.iter().position(|port| port.config.mac == config.mac) {
            return Err(AddPortError::MacInUse { other: PortId(index) });
        }
        let id = PortId(self.ports.len());
        self.check_addresses(id, &config.addrs)?;
        self.ports.push(Port::new(config));
        Ok(id)
    }

    pub(super) fn set_addresses(
        &mut self,
        port: PortId,
        addrs: Vec<IpAddr>,
    ) -> Result<(), AddPortError> {
        self.check_addresses(port, &addrs)?;
        if let Some(port) = self.port_mut(port) {
            port.config.addrs = addrs;
        }
        Ok(())
    }

    fn check_addresses(&self, port: PortId, addrs: &[IpAddr]) -> Result<(), AddPortError> {
        for (index, other) in self.ports.iter().enumerate().filter(|(index, _)| *index != port.0) {
            if let Some(&addr) = addrs.iter().find(|addr| other.config.addrs.contains(addr)) {
                return Err(AddPortError::AddressInUse { addr, other: PortId(index) });
            }
        }
        Ok(())
    }

    pub(super) fn attach(
        &mut self,
        port: PortId,
        slot: u8,
        address: Option<Gid>,
    ) -> Result<Sender, AttachError> {
        let found = self.ports.get_mut(port.0).ok_or(AttachError::NoSuchPort { port })?;
        // Those of RoCE v1 are all there are. Groups are nobody's.
        let is_other = |gid: &Gid| !gid.is_multicast() && !found.has_gid(*gid, GidType::RoceV1);
        if let Some(gid) = address.filter(is_other) {
            return Err(AttachError::NoSuchAddress { port, gid });
        }
        if found.attached().any(|(_, other)| other.collides_with(slot, address)) {
            return Err(AttachError::SlotInUse { port, slot });
        }
        let free = found.endpoints.iter().position(|endpoint| !endpoint.attached);
        let index = free.unwrap_or(found.endpoints.len());
        let sender = Sender { port: port.0, endpoint: index };
        let faults = found.config.faults.clone().map(|spec| faults_of(sender, spec));
        let endpoint = Endpoint::new(slot, address, found.config.receive, faults);
        match found.endpoints.get_mut(index) {
            Some(place) => *place = endpoint,
            None => found.endpoints.push(endpoint),
        }
        Ok(sender)
    }

    /// Forgets a link: what it held and what it has not received is lost, as when a process ends.
    pub(super) fn detach(&mut self, link: Sender) {
        if let Some(endpoint) = self.endpoint_mut(link) {
            let Endpoint { slot, .. } = *endpoint;
            *endpoint = Endpoint::new(slot, None, ReceiveLimits::default(), None);
            endpoint.attached = false;
        }
    }

    pub(super) fn set_capture(&mut self, capture: Option<Arc<Capture>>) {
        self.capture = capture;
    }

    pub(super) fn set_faults(&mut self, now: Instant, port: PortId, spec: Option<FaultSpec>) {
        let Some(found) = self.ports.get_mut(port.0) else { return };
        found.config.faults = spec.clone();
        for endpoint in 0..found.endpoints.len() {
            let sender = Sender { port: port.0, endpoint };
            self.release(sender, Instant::from_nanos(u64::MAX), now);
            if let Some(endpoint) = self.endpoint_mut(sender) {
                endpoint.faults = spec.clone().map(|spec| faults_of(sender, spec));
            }
        }
    }

    pub(super) fn port(&self, id: PortId) -> Option<&Port> {
        self.ports.get(id.0)
    }

    pub(super) fn port_mut(&mut self, id: PortId) -> Option<&mut Port> {
        self.ports.get_mut(id.0)
    }

    pub(super) fn endpoint(&self, link: Sender) -> Option<&Endpoint> {
        self.ports.get(link.port)?.endpoints.get(link.endpoint)
    }

    pub(super) fn endpoint_mut(&mut self, link: Sender) -> Option<&mut Endpoint> {
        self.ports.get_mut(link.port)?.endpoints.get_mut(link.endpoint)
    }

    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        mem::take(&mut self.wakers)
    }

    /// Keeps the memory of frames that are done with, for the next ones.
    pub(super) fn recycle(&mut self, frames: impl Iterator<Item = Vec<u8>>) {
        let room = SPARE_MAX.saturating_sub(self.spare.len());
        self.spare.extend(frames.take(room));
    }

    fn buffer(&mut self) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }
}

/// Time.
impl State {
    pub(super) fn next_event_time(&self) -> Option<Instant> {
        let arrival = self.in_flight.peek().map(|Reverse(frame)| frame.due);
        let release = self.next_release().map(|(due, _)| due);
        // What was due in the past, or as soon as possible, is due now.
        [arrival, release].into_iter().flatten().min().map(|due| due.max(self.now))
    }

    /// Lets everything happen that is due, in order of time; arrivals before releases.
    pub(super) fn advance(&mut self, now: Instant) {
        loop {
            let arrival = self.in_flight.peek().map(|Reverse(frame)| frame.due);
            let release = self.next_release();
            match (arrival, release) {
                (Some(due), next) if due <= now && next.is_none_or(|(other, _)| due <= other) => {
                    self.now = self.now.max(due);
                    if let Some(Reverse(frame)) = self.in_flight.pop() {
                        self.arrive(frame);
                    }
                }
                (_, Some((due, sender))) if due <= now => {
                    self.now = self.now.max(due);
                    self.release(sender, self.now, self.now);
                }
                (_, _) => break,
            }
        }
        self.now = self.now.max(now);
    }

    /// Whose faults release a packet next, and when.
    fn next_release(&self) -> Option<(Instant, Sender)> {
        let endpoints = self.ports.iter().enumerate().flat_map(|(port, found)| {
            let attached = found.endpoints.iter().enumerate();
            attached.map(move |(endpoint, found)| (Sender { port, endpoint }, found))
        });
        let due = |(sender, endpoint): (Sender, &Endpoint)| {
            let due = endpoint.faults.as_ref()?.poll_timeout()?;
            Some((due, sender))
        };
        // Of equal times the first port and link, so that the order is always the same.
        endpoints.filter_map(due).min_by_key(|&(due, _)| due)
    }

    /// Sends at `now` what the faults of a link have held until `due`.
    fn release(&mut self, sender: Sender, due: Instant, now: Instant) {
        let mut batch = self.released.take().unwrap_or_default();
        batch.clear();
        loop {
            let faults = self.endpoint_mut(sender).and_then(|found| found.faults.as_mut());
            if !faults.is_some_and(|faults| faults.release(due, &mut batch)) {
                break;
            }
            self.send_all(sender, now, &batch);
            batch.clear();
        }
        self.released = Some(batch);
    }
}

/// Sending.
impl State {
    pub(super) fn transmit(
        &mut self,
        sender: Sender,
        now: Instant,
        batch: &mut TxBatch,
    ) -> TransmitReport {
        // First what was due before: it left earlier, and may arrive earlier.
        self.advance(now);
        let now = self.now;
        let given = batch.len();
        if let Some(faults) = self.endpoint_mut(sender).and_then(|found| found.faults.as_mut()) {
            faults.apply(now, batch);
        }
        // Faults may have added packets; the caller hears of those that it gave.
        let lost = self.send_all(sender, now, batch).min(given);
        batch.clear();
        self.advance(now);
        TransmitReport { sent: given - lost, lost }
    }

    /// Sends a batch; returns how many of it did not get onto the wire.
    fn send_all(&mut self, sender: Sender, now: Instant, batch: &TxBatch) -> usize {
        let mut lost = 0;
        for (packet, bytes) in batch.iter() {
            if let Err(reason) = self.send(sender, now, &packet, bytes) {
                lost += 1;
                if let Some(port) = self.ports.get_mut(sender.port) {
                    *reason.counter(&mut port.counters) += 1;
                }
                if let Some(endpoint) = self.endpoint_mut(sender) {
                    endpoint.counters.send_errors += 1;
                }
            }
        }
        lost
    }

    fn send(
        &mut self,
        sender: Sender,
        now: Instant,
        packet: &TxPacket<'_>,
        bytes: &[u8],
    ) -> Result<(), NotSent> {
        let mut targets = mem::take(&mut self.targets);
        let sent = self.send_to(&mut targets, sender, now, packet, bytes);
        self.targets = targets;
        sent
    }

    fn send_to(
        &mut self,
        targets: &mut Vec<usize>,
        sender: Sender,
        now: Instant,
        packet: &TxPacket<'_>,
        bytes: &[u8],
    ) -> Result<(), NotSent> {
        let destination_mac = self.route(sender, packet.path(), targets)?;
        let mut frame = self.buffer();
        self.build(sender, destination_mac, packet, bytes, &mut frame)?;
        if let Some(bit) = packet.flip() {
            flip_bit(&mut frame, bytes.len() + ICRC_LEN, bit);
        }
        if let Some(capture) = &self.capture {
            capture.batch(now).frame(&frame);
        }
        let port = self.ports.get_mut(sender.port).ok_or(NotSent::Down)?;
        port.counters.sent += 1;
        port.in_flight += targets.len();
        let start = port.busy_until.max(now);
        port.busy_until = start.plus_nanos(serialization_nanos(&port.config, frame.len()));
        let due = port.busy_until.plus_nanos(port.config.latency_nanos);
        if let Some(endpoint) = self.endpoint_mut(sender) {
            endpoint.counters.sent += 1;
            endpoint.counters.sent_bytes += (bytes.len() + ICRC_LEN) as u64;
        }
        // A group that nobody has joined: the frame is on the wire, and goes nowhere.
        let Some((&last, others)) = targets.split_last() else {
            self.recycle(std::iter::once(frame));
            return Ok(());
        };
        for &to in others {
            self.put_in_flight(due, sender, to, frame.clone());
        }
        self.put_in_flight(due, sender, last, frame);
        Ok(())
    }

    fn put_in_flight(&mut self, due: Instant, from: Sender, to: usize, frame: Vec<u8>) {
        let number = self.sent_count;
        self.sent_count += 1;
        self.in_flight.push(Reverse(InFlight { due, number, from, to, frame }));
        if due <= self.now {
            // It arrives before the lock is free, and whoever gets it is woken then.
            return;
        }
        // The receiver's timeout may have come nearer; which of its links it is for is read later.
        let Self { ports, wakers, .. } = self;
        if let Some(port) = ports.get(to) {
            port.attached().for_each(|(_, endpoint)| wake(wakers, endpoint));
        }
    }

    /// The Ethernet address that a packet goes to; the ports that have it are put into `targets`.
    fn route(
        &self,
        sender: Sender,
        path: &Path,
        targets: &mut Vec<usize>,
    ) -> Result<[u8; 6], NotSent> {
        targets.clear();
        let port = self.ports.get(sender.port).ok_or(NotSent::Down)?;
        if !port.up {
            return Err(NotSent::Down);
        }
        let link = port.endpoints.get(sender.endpoint).ok_or(NotSent::Down)?;
        if !port.has_gid(path.source, path.gid_type) || !link.is_for(path.source) {
            return Err(NotSent::NotOwned);
        }
        if port.in_flight >= IN_FLIGHT_MAX {
            return Err(NotSent::Overflow);
        }
        let mut ports = self.ports.iter().enumerate();
        let destination = path.destination;
        if let Some(mac) = destination.multicast_mac() {
            // Whoever has joined, on this port too: it is the engine that knows its own packets.
            targets.extend(ports.filter(|(_, port)| port.has_joined(destination)).map(|(i, _)| i));
            return Ok(mac);
        }
        let (index, port) = ports
            .find(|(_, port)| port.has_gid(destination, path.gid_type))
            .ok_or(NotSent::NoNeighbour)?;
        targets.push(index);
        Ok(port.config.mac)
    }

    /// Builds the frame of a packet, with its iCRC.
    fn build(
        &mut self,
        sender: Sender,
        destination_mac: [u8; 6],
        packet: &TxPacket<'_>,
        bytes: &[u8],
        frame: &mut Vec<u8>,
    ) -> Result<(), NotSent> {
        let slot = self.endpoint(sender).ok_or(NotSent::Down)?.slot;
        let port = self.ports.get_mut(sender.port).ok_or(NotSent::Down)?;
        let headers = FrameHeaders {
            source_mac: port.config.mac,
            destination_mac,
            source_port: source_port(slot, packet.dest_qpn().slot(), packet.path().flow_label),
            identification: port.identification,
            dont_fragment: true,
        };
        port.identification = port.identification.wrapping_add(1);
        let network = frame::write(frame, packet.path(), &headers, bytes, None)
            // What has no frame has mixed IP versions: no neighbour speaks the other one.
            .map_err(|_| NotSent::NoNeighbour)?;
        if frame.len() - network > port.config.mtu as usize {
            return Err(NotSent::TooLong);
        }
        Ok(())
    }
}

/// Receiving.
impl State {
    /// Puts a frame that arrived into the queue of the link that it is for.
    fn arrive(&mut self, in_flight: InFlight) {
        let InFlight { from, to, frame, .. } = in_flight;
        if let Some(port) = self.ports.get_mut(from.port) {
            port.in_flight -= 1;
        }
        let Some(port) = self.ports.get_mut(to) else { return };
        if !port.up {
            port.counters.down += 1;
            self.recycle(std::iter::once(frame));
            return;
        }
        let parsed = frame::parse(&frame);
        let Some(parsed) = parsed.ok().filter(|parsed| is_for(port, parsed)) else {
            port.counters.not_for_us += 1;
            self.recycle(std::iter::once(frame));
            return;
        };
        let bth = frame.get(parsed.packet.clone()).and_then(Bth::read);
        let slot = bth.map_or(0, |bth| bth.dest_qpn.slot());
        let mut endpoints = mem::take(&mut self.targets);
        port.endpoints_for(&parsed.path, slot, &mut endpoints);
        match endpoints.split_last() {
            Some((&last, others)) => {
                for &endpoint in others {
                    self.enqueue(to, endpoint, frame.clone(), &parsed);
                }
                self.enqueue(to, last, frame, &parsed);
            }
            None => {
                port.counters.unattached += 1;
                self.tell_unreachable(from, &parsed.path, bth);
                self.recycle(std::iter::once(frame));
            }
        }
        self.targets = endpoints;
    }

    fn enqueue(&mut self, port: usize, endpoint: usize, frame: Vec<u8>, parsed: &frame::Parsed) {
        let frame::Parsed { path, l3, packet, .. } = parsed.clone();
        let Some(port) = self.ports.get_mut(port) else { return };
        let Some(endpoint) = port.endpoints.get_mut(endpoint) else { return };
        let was_empty = endpoint.queue.is_empty();
        match endpoint.queue.push(Received { frame, path, l3, packet }) {
            Ok(()) if was_empty => wake(&mut self.wakers, endpoint),
            Ok(()) => {}
            Err(refused) => {
                port.counters.receive_overflow += 1;
                self.recycle(std::iter::once(refused.frame));
            }
        }
    }

    /// Does what ICMP does ("port unreachable") when nobody listens; RoCE v1 has nothing like it.
    fn tell_unreachable(&mut self, from: Sender, path: &Path, bth: Option<Bth>) {
        let (GidType::RoceV2, Some(bth)) = (path.gid_type, bth) else { return };
        let Some(endpoint) = self.endpoint_mut(from) else { return };
        if path.destination.is_multicast() || endpoint.unreachable.len() >= UNREACHABLE_MAX {
            return;
        }
        endpoint.counters.unreachable += 1;
        endpoint.unreachable.push_back(Unreachable {
            destination: path.destination,
            dest_qpn: bth.dest_qpn,
            psn: bth.psn,
        });
        let Self { ports, wakers, .. } = self;
        if let Some(endpoint) = ports.get(from.port).and_then(|p| p.endpoints.get(from.endpoint)) {
            wake(wakers, endpoint);
        }
    }
}

/// Remembers to wake the owner of a link, once.
fn wake(wakers: &mut Vec<Waker>, endpoint: &Endpoint) {
    if let Some(waker) = &endpoint.waker
        && !wakers.iter().any(|known| Arc::ptr_eq(known, waker))
    {
        wakers.push(Arc::clone(waker));
    }
}

/// Whether a frame is for a port: by Ethernet address, VLAN and GID.
fn is_for(port: &Port, parsed: &frame::Parsed) -> bool {
    let Path { destination, gid_type, vlan, .. } = parsed.path;
    let addressed = match destination.multicast_mac() {
        Some(mac) => parsed.destination_mac == mac && port.has_joined(destination),
        None => parsed.destination_mac == port.config.mac && port.has_gid(destination, gid_type),
    };
    addressed && port.takes_vlan(vlan)
}

fn faults_of(sender: Sender, spec: FaultSpec) -> Faults {
    // Slots are a byte, so a port has at most 256 links.
    Faults::new(spec, (sender.port as u64) << 8 | sender.endpoint as u64)
}

/// How long a port takes to send so many bytes.
fn serialization_nanos(config: &PortConfig, frame_len: usize) -> u64 {
    let Some(rate) = config.bits_per_second else { return 0 };
    let bits = frame_len as u64 * 8;
    bits.saturating_mul(1_000_000_000) / rate.max(1)
}

/// Flips a bit of the packet at the end of a frame, counted as [`TxBatch::set_flip`] does.
fn flip_bit(frame: &mut [u8], sealed_len: usize, bit: u32) {
    let start = frame.len().saturating_sub(sealed_len);
    let bit = bit as usize % (sealed_len * 8);
    if let Some(byte) = frame.get_mut(start + bit / 8) {
        *byte ^= 1 << (bit % 8);
    }
}
