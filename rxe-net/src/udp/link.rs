//! The link: packets of a shard over UDP sockets of one local address.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use gid_table::{Gid, GidType};
use rxe_core::packet_run::PacketRun;
use rxe_core::path::{Path, Unreachable};
use rxe_core::time::Instant;
use rxe_wire::icrc::IcrcFlow;

use super::check::IcrcChecker;
use super::hint;
use super::probe;
use super::socket::{self, BufferSizes, TxKey, TxSockets};
use super::steer::{BindError, Membership, ROCE_PORT};
use super::sys::{self, InMessage, MAX_SEND, OutMessage, RawAddress, RecvRing};
use crate::batch::{ICRC_LEN, TxBatch, TxPacket};
use crate::link::{Link, LinkCounters, RunSink, Sink, TransmitReport};
use crate::pcap::{Capture, CaptureBatch, CapturedPacket};

/// Segments that a call takes at most, from the newest kernel to the oldest: the link begins with
/// the first and goes on when the kernel refuses (6.18 takes 128, 6.1 takes 64).
const SEGMENT_LIMITS: [usize; 3] = [128, 64, 1];
/// Messages that one round of receiving takes at most.
pub(super) const MAX_RECEIVE: usize = 32;
/// Rounds of receiving while a link closes: more than a socket of the default size holds.
const CLOSING_ROUNDS: usize = 64;
/// Hints kept for the runtime; more are dropped, as ICMP itself is.
const MAX_HINTS: usize = 64;
/// Times that a send is repeated while ICMP errors that came before keep failing it.
const MAX_ATTEMPTS: usize = 4;
/// Bytes of packets that are checked before the first of them is handed on: they stay in the
/// processor's first cache, beside what they are copied to.
const RUN_BYTES: usize = 16 << 10;
/// The shortest packet from BTH to iCRC (rule R35).
const MIN_PACKET: usize = 12 + ICRC_LEN;

/// What a [`UdpLink`] needs to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpConfig {
    /// The local address: IPv4, or IPv6.
    pub address: IpAddr,
    /// Index of the interface, for an IPv6 link-local address; otherwise 0.
    pub scope_id: u32,
    /// Index of the interface that packets to multicast groups leave by; 0 for the one that the
    /// host would choose.
    pub multicast_ifindex: u32,
    /// The shard's slot: the top byte of the QPNs that live on it.
    pub slot: u8,
    /// Whether runs of packets leave as one segmented send (`UDP_SEGMENT`).
    ///
    /// Switch it off where an adapter or a forwarder cuts them apart with other IPv4
    /// identifications than Linux does: exact checkers then drop them (facts.md, last section).
    pub gso: bool,
    /// Sizes of the socket buffers.
    pub buffers: BufferSizes,
}

impl UdpConfig {
    /// The usual configuration of the shard `slot` on `address`.
    pub fn new(address: IpAddr, slot: u8) -> Self {
        let (scope_id, multicast_ifindex, buffers) = (0, 0, BufferSizes::default());
        Self { address, scope_id, multicast_ifindex, slot, gso: true, buffers }
    }
}

/// Packets of one shard over UDP sockets of one local address: RoCEv2 without privileges.
///
/// One socket receives on port 4791; others send, each on a port from 0xC000 up. Over IPv4 the
/// check of the iCRC is weaker than the exact one: one corrupt packet in about 32,768 passes,
/// because a socket hides the identification that the iCRC covers (facts.md, last section).
///
/// An ICMP error waits at the socket that sent until the next send by it, which takes it: a hint
/// comes with the retransmission at the latest.
///
/// Whoever keeps what [`poll_fd`](Link::poll_fd) returned keeps the receive socket open, and with
/// it port 4791: give it up no later than the link.
///
/// It sends to multicast groups, but receives of none: that is what a
/// [`UdpGroup`](super::UdpGroup) is for.
pub struct UdpLink {
    config: UdpConfig,
    gid: Gid,
    /// Declared before the membership, so that it is dropped before.
    receiver: Arc<OwnedFd>,
    membership: Membership,
    ring: RecvRing,
    checker: IcrcChecker,
    sockets: TxSockets,
    error_ring: RecvRing,
    /// The flow that was sealed last, with what it was made of.
    flow: Option<(Gid, u16, IcrcFlow)>,
    /// Index in [`SEGMENT_LIMITS`].
    segment_limit: usize,
    hints: VecDeque<Unreachable>,
    counters: LinkCounters,
    capture: Option<Arc<Capture>>,
    /// Packets at the start of the batch that were captured when they were to leave before.
    captured: usize,
    /// The time of the call at hand.
    now: Instant,
}

impl fmt::Debug for UdpLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpLink")
            .field("config", &self.config)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// Consecutive packets of a batch that leave as one message.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Index of the first packet.
    first: usize,
    /// Number of packets; all as long as the first, but the last may be shorter.
    count: usize,
}

impl UdpLink {
    /// Opens the sockets of a shard.
    ///
    /// # Errors
    ///
    /// See [`BindError`].
    pub fn open(config: UdpConfig) -> Result<Self, BindError> {
        let UdpConfig { address, scope_id, multicast_ifindex, slot, gso, buffers } = config;
        let local = socket::socket_address(address, ROCE_PORT, scope_id);
        let prepare = |fd: &_| socket::prepare_receiver(fd, address, buffers);
        let (membership, receiver) = Membership::join(local, slot, prepare)?;
        Ok(Self {
            config,
            gid: Gid::from_ip(address),
            receiver,
            membership,
            ring: RecvRing::new(MAX_RECEIVE),
            checker: IcrcChecker::new(address),
            sockets: TxSockets::new(local, slot, multicast_ifindex, buffers),
            error_ring: RecvRing::new(4),
            flow: None,
            segment_limit: if gso { 0 } else { SEGMENT_LIMITS.len() - 1 },
            hints: VecDeque::with_capacity(MAX_HINTS),
            counters: LinkCounters::default(),
            capture: None,
            captured: 0,
            now: Instant::ZERO,
        })
    }

    /// Sets where all packets sent and received are written, bad ones too; `None` for nowhere.
    pub fn set_capture(&mut self, capture: Option<Arc<Capture>>) {
        self.capture = capture;
    }

    /// The GID that this link sends from and receives for.
    pub const fn gid(&self) -> Gid {
        self.gid
    }

    /// Segments that one send takes at most at present; 1 when segmentation is off.
    pub fn max_segments(&self) -> usize {
        SEGMENT_LIMITS[self.segment_limit]
    }

    /// Size of the receive buffer in bytes of the kernel's own accounting (`SO_RCVBUF`).
    ///
    /// A packet takes more of it than its length: facts.md tells how many fit.
    ///
    /// # Errors
    ///
    /// That of the system call.
    pub fn receive_buffer(&self) -> io::Result<usize> {
        let size = sys::get_int(self.receiver.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF)?;
        Ok(usize::try_from(size).unwrap_or_default())
    }

    /// As [`Link::receive`], with the sink known to the compiler.
    ///
    /// # Errors
    ///
    /// As [`Link::receive`].
    pub fn receive_with(
        &mut self,
        now: Instant,
        sink: impl FnMut(&Path, &[u8]),
    ) -> io::Result<usize> {
        self.receive_runs_with(now, one_by_one(sink))
    }

    /// As [`Link::receive_runs`], with the sink known to the compiler.
    fn receive_runs_with(
        &mut self,
        now: Instant,
        mut sink: impl FnMut(&Path, PacketRun<'_>),
    ) -> io::Result<usize> {
        let Self { receiver, ring, checker, counters, gid, capture, .. } = self;
        let capture = capture.as_deref();
        take_messages(now, receiver, ring, (*gid, checker, counters, capture), &mut sink)
    }

    /// Whether the packet can go out here at all: RoCEv2, from our address, to one of its family.
    fn can_send(&self, path: &Path) -> bool {
        path.gid_type == GidType::RoceV2
            && path.source == self.gid
            && path.destination.to_ipv4().is_some() == self.config.address.is_ipv4()
            && path.vlan.is_none()
    }

    /// Sends the packets from `first` on that share a socket, as many as one call takes.
    ///
    /// Returns how many these are, and what became of them; some may have to wait.
    fn send_group(&mut self, batch: &mut TxBatch, first: usize) -> (usize, TransmitReport) {
        let Some(head) = batch.packet(first) else { return (1, TransmitReport::default()) };
        if !self.can_send(head.path()) {
            self.counters.foreign += 1;
            return (1, TransmitReport { sent: 0, lost: 1 });
        }
        let mut runs = [Run { first, count: 0 }; MAX_SEND];
        let mut used = 0;
        let mut next = first;
        while used < MAX_SEND
            && batch.packet(next).is_some_and(|packet| shares_socket(&head, &packet))
        {
            let count = batch.run_len(next, self.max_segments());
            runs[used] = Run { first: next, count };
            used += 1;
            next += count;
        }
        let report = self.deliver(batch, &runs[..used]);
        (next - first, report)
    }

    /// Seals and sends runs that share a socket; at most [`MAX_SEND`] of them.
    ///
    /// What the report does not tell of has to wait: the last packets of these runs.
    fn deliver(&mut self, batch: &mut TxBatch, runs: &[Run]) -> TransmitReport {
        let mut report = TransmitReport::default();
        let Some(head) = runs.first().and_then(|run| batch.packet(run.first)) else {
            return report;
        };
        let key = tx_key(&head);
        let Path { traffic_class: class, hop_limit: hops, destination, .. } = *head.path();
        let prepared = self.sockets.get(key).and_then(|socket| {
            socket.set_header(class, hops)?;
            Ok(socket.port())
        });
        let port = match prepared {
            Ok(port) => port,
            Err(error) => {
                tracing::debug!(%error, ?key, "no socket to send from");
                return self.lose(runs);
            }
        };
        for run in runs {
            self.seal(batch, *run, port);
            self.capture_sent(batch, *run, port);
        }
        let (mut done, mut attempts) = (0, 0);
        while let Some(run) = runs.get(done).copied() {
            match self.send_runs(batch, &runs[done..], key) {
                Ok(count) => {
                    for run in &runs[done..done + count] {
                        report.sent += run.count;
                        self.count_sent(batch, *run);
                    }
                    done += count;
                    attempts = 0;
                    if done < runs.len() {
                        // The next message failed, and the call did not say with what.
                        self.drain_errors(key);
                    }
                }
                Err(error) => match judge(&error, run, attempts) {
                    Verdict::Again => {}
                    Verdict::Pending => {
                        self.counters.pending_errors += 1;
                        let found = self.drain_errors(key);
                        // Without an ICMP error there, one more attempt is enough.
                        attempts = if found == 0 { MAX_ATTEMPTS } else { attempts + 1 };
                    }
                    Verdict::Smaller => {
                        let pieces = self.send_smaller(batch, run, &error);
                        report += pieces;
                        if pieces.done() < run.count {
                            return report;
                        }
                        done += 1;
                        attempts = 0;
                    }
                    // R40: it is not lost, READ responses for one, whose loss only the timer of
                    // the peer would repair. The caller tries again.
                    Verdict::Full => {
                        self.counters.send_waits += 1;
                        return report;
                    }
                    Verdict::Lost => {
                        tracing::debug!(%error, to = %destination, "packets lost");
                        report += self.lose(&runs[done..=done]);
                        done += 1;
                        attempts = 0;
                    }
                },
            }
        }
        report
    }

    /// One system call: the first messages of `runs`, which are sealed.
    fn send_runs(&mut self, batch: &TxBatch, runs: &[Run], key: TxKey) -> io::Result<usize> {
        let count = runs.len().min(MAX_SEND);
        self.counters.send_calls += 1;
        if let [run] = runs {
            let message = self.message(batch, *run, key);
            return sys::send_messages(self.sockets.get(key)?.fd(), &[message]);
        }
        let mut messages = [OutMessage::EMPTY; MAX_SEND];
        for (message, run) in messages.iter_mut().zip(runs) {
            *message = self.message(batch, *run, key);
        }
        sys::send_messages(self.sockets.get(key)?.fd(), &messages[..count])
    }

    fn message<'a>(&self, batch: &'a TxBatch, run: Run, key: TxKey) -> OutMessage<'a> {
        let Some(packet) = batch.packet(run.first) else { return OutMessage::EMPTY };
        let to = packet.path().destination.to_ip();
        let to = socket::socket_address(to, ROCE_PORT, self.config.scope_id);
        OutMessage {
            to: RawAddress::new(to, key.flow_label),
            // A run lies in one piece: that is what makes it one.
            bytes: batch.sealed_run(run.first, run.count).unwrap_or_default(),
            segment: if run.count > 1 { packet.sealed_len() as u16 } else { 0 },
        }
    }

    /// Gives each packet of a run its iCRC: segment `k` travels with IPv4 identification `k`.
    fn seal(&mut self, batch: &mut TxBatch, run: Run, port: u16) {
        let Some(head) = batch.packet(run.first) else { return };
        let destination = head.path().destination;
        let flow = match self.flow {
            Some((gid, from, flow)) if gid == destination && from == port => flow,
            _ => match self.make_flow(destination, port) {
                Some(flow) => flow,
                // Of another family, which `can_send` has refused already.
                None => return,
            },
        };
        self.flow = Some((destination, port, flow));
        let sized = flow.sized(head.sealed_len() - ICRC_LEN);
        batch.seal_run(run.first, run.count, |segment, packet, sum| {
            let identification = segment as u16;
            match sum {
                Some(sum) => sized.icrc_of_summed(identification, packet, sum),
                None => flow.icrc(identification, packet),
            }
            .to_le_bytes()
        });
    }

    /// Writes the packets of a run to the capture, as they are about to leave.
    fn capture_sent(&self, batch: &TxBatch, run: Run, source_port: u16) {
        let Some(capture) = &self.capture else { return };
        let mut capture = capture.batch(self.now);
        for segment in 0..run.count {
            let index = run.first + segment;
            if index < self.captured {
                continue;
            }
            let (Some(packet), Some(sealed)) = (batch.packet(index), batch.sealed(index)) else {
                continue;
            };
            capture.packet(&CapturedPacket {
                path: packet.path(),
                source_port,
                identification: segment as u16,
                dont_fragment: true,
                sealed,
            });
        }
    }

    fn make_flow(&self, destination: Gid, port: u16) -> Option<IcrcFlow> {
        match (self.config.address, destination.to_ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Some(IcrcFlow::v4(from, to, port)),
            (IpAddr::V6(from), IpAddr::V6(to)) => Some(IcrcFlow::v6(from, to, port)),
            _ => None,
        }
    }

    /// Sends a run that the kernel refused as a whole in smaller pieces, and remembers to.
    ///
    /// One cause of a refusal is the packet, not the number: longer than the MTU of its route.
    /// Then single packets are refused too, and segmentation is not to blame.
    fn send_smaller(&mut self, batch: &mut TxBatch, run: Run, error: &io::Error) -> TransmitReport {
        let limit = SEGMENT_LIMITS.iter().copied().find(|limit| *limit < run.count).unwrap_or(1);
        // EIO says that the device cannot do it, so that fewer segments will not help.
        let limit = if error.raw_os_error() == Some(libc::EIO) { 1 } else { limit };
        let mut report = TransmitReport::default();
        let mut first = run.first;
        let end = run.first + run.count;
        while first < end {
            let mut pieces = [Run { first, count: 0 }; MAX_SEND];
            let mut used = 0;
            while used < MAX_SEND && first < end {
                let count = limit.min(end - first);
                pieces[used] = Run { first, count };
                used += 1;
                first += count;
            }
            let given: usize = pieces[..used].iter().map(|run| run.count).sum();
            let delivered = self.deliver(batch, &pieces[..used]);
            report += delivered;
            if delivered.done() < given {
                break;
            }
        }
        if report.sent > 0 {
            let index = SEGMENT_LIMITS.iter().position(|known| *known == limit);
            let index = index.unwrap_or(SEGMENT_LIMITS.len() - 1);
            if index > self.segment_limit {
                self.segment_limit = index;
                self.counters.gso_fallbacks += 1;
                tracing::info!(limit, %error, "fewer segments per send from now on");
            }
        }
        report
    }

    /// Counts packets that did not leave as lost (rule R18).
    fn lose(&mut self, runs: &[Run]) -> TransmitReport {
        let lost = runs.iter().map(|run| run.count).sum();
        self.counters.send_errors += lost as u64;
        TransmitReport { sent: 0, lost }
    }

    fn count_sent(&mut self, batch: &TxBatch, run: Run) {
        self.counters.sent += run.count as u64;
        let bytes = batch.sealed_run(run.first, run.count).map_or(0, <[u8]>::len);
        self.counters.sent_bytes += bytes as u64;
    }

    /// Takes the ICMP errors that wait at a sending socket, so that they fail no other send.
    ///
    /// Returns how many errors waited.
    fn drain_errors(&mut self, key: TxKey) -> usize {
        let Self { sockets, error_ring, hints, counters, .. } = self;
        let Ok(socket) = sockets.get(key) else { return 0 };
        let drained = hint::drain(socket.fd(), error_ring, |hint| {
            counters.unreachable += 1;
            if hints.len() < MAX_HINTS {
                hints.push_back(hint);
            }
        });
        drained.unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot read the error queue of a socket");
            0
        })
    }
}

impl Link for UdpLink {
    fn transmit(&mut self, now: Instant, batch: &mut TxBatch) -> TransmitReport {
        self.captured = 0;
        self.transmit_rest(now, batch)
    }

    fn transmit_rest(&mut self, now: Instant, batch: &mut TxBatch) -> TransmitReport {
        self.now = now;
        let mut report = TransmitReport::default();
        // Where the groups end that were about to leave.
        let mut end = 0;
        while end < batch.len() {
            let (count, group) = self.send_group(batch, end);
            end += count;
            report += group;
            if group.done() < count {
                break;
            }
        }
        self.captured = self.captured.max(end) - report.done();
        batch.drop_front(report.done());
        report
    }

    fn receive(&mut self, now: Instant, sink: &mut Sink<'_>) -> io::Result<usize> {
        self.receive_with(now, sink)
    }

    fn receive_runs(&mut self, now: Instant, sink: &mut RunSink<'_>) -> io::Result<usize> {
        self.receive_runs_with(now, sink)
    }

    fn poll_fd(&self) -> Option<Arc<OwnedFd>> {
        Some(self.receiver.clone())
    }

    fn poll_unreachable(&mut self) -> Option<Unreachable> {
        self.hints.pop_front()
    }

    fn close(self: Box<Self>, now: Instant, sink: &mut Sink<'_>) {
        let Self { membership, receiver, mut ring, mut checker, mut counters, .. } = *self;
        let (gid, capture) = (self.gid, self.capture);
        checker.set_time(now);
        let mut found = Vec::new();
        let mut keep = one_by_one(|path, bytes| found.push((*path, bytes.to_vec())));
        membership.leave(receiver, |fd| {
            let mut capture = capture.as_ref().map(|capture| capture.batch(now));
            for _ in 0..CLOSING_ROUNDS {
                let Ok(count @ 1..) = ring.receive(fd, 0) else { break };
                for index in 0..count {
                    if let Some(message) = ring.message(index) {
                        split(&message, gid, &mut checker, &mut counters, &mut capture, &mut keep);
                    }
                }
            }
        });
        drop(keep);
        // Only now, when the lock of the group is free.
        found.iter().for_each(|(path, bytes)| sink(path, bytes));
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}

fn tx_key(packet: &TxPacket<'_>) -> TxKey {
    TxKey { slot: packet.dest_qpn().slot(), flow_label: packet.path().flow_label & 0x000f_ffff }
}

/// Whether a packet leaves by the same socket with the same header as `head`.
fn shares_socket(head: &TxPacket<'_>, packet: &TxPacket<'_>) -> bool {
    let (one, two) = (head.path(), packet.path());
    tx_key(head) == tx_key(packet)
        && one.traffic_class == two.traffic_class
        && one.hop_limit == two.hop_limit
        && one.source == two.source
        && one.gid_type == two.gid_type
        && one.vlan == two.vlan
        // Of one family: the source is, and the destination must be.
        && one.destination.to_ipv4().is_some() == two.destination.to_ipv4().is_some()
}

/// What to do about a send that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// The call was interrupted: repeat it.
    Again,
    /// It may be an ICMP error about an earlier packet: take it, and repeat.
    Pending,
    /// Segmentation was refused: send smaller pieces.
    Smaller,
    /// There is no room for it, nor for those behind it: they wait.
    Full,
    /// This message is lost.
    Lost,
}

fn judge(error: &io::Error, run: Run, attempts: usize) -> Verdict {
    match error.raw_os_error() {
        Some(libc::EINTR) => Verdict::Again,
        // The send buffer is full; there is no memory; the queue of the device is full, which
        // dropped the message.
        Some(libc::EAGAIN | libc::ENOMEM | libc::ENOBUFS) => Verdict::Full,
        Some(libc::EIO | libc::EINVAL) if run.count > 1 => Verdict::Smaller,
        Some(error) if attempts < MAX_ATTEMPTS && may_be_icmp(error) => Verdict::Pending,
        _ => Verdict::Lost,
    }
}

/// Whether the kernel makes this error of an ICMP message (`icmp_err_convert`,
/// `icmpv6_err_convert`). A refusal by a filter, EPERM, is not among them.
pub(crate) fn may_be_icmp(error: i32) -> bool {
    matches!(
        error,
        libc::ECONNREFUSED
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EHOSTDOWN
            | libc::ENONET
            | libc::ENOPROTOOPT
            | libc::EOPNOTSUPP
            | libc::EPROTO
            | libc::EACCES
            | libc::EMSGSIZE
    )
}

/// Gives the packets of runs to a sink of packets.
pub(super) fn one_by_one(mut sink: impl FnMut(&Path, &[u8])) -> impl FnMut(&Path, PacketRun<'_>) {
    move |path, run| run.packets().for_each(|bytes| sink(path, bytes))
}

/// Receives what one call takes from a socket, and gives the good packets of it to `sink`. Returns how
/// many these are.
#[inline]
pub(super) fn take_messages(
    now: Instant,
    socket: &OwnedFd,
    ring: &mut RecvRing,
    (to, checker, counters, capture): (Gid, &mut IcrcChecker, &mut LinkCounters, Option<&Capture>),
    sink: &mut impl FnMut(&Path, PacketRun<'_>),
) -> io::Result<usize> {
    counters.receive_calls += 1;
    checker.set_time(now);
    let count = match ring.receive(socket.as_fd(), 0) {
        Ok(count) => count,
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => return Ok(0),
            _ => return Err(error),
        },
    };
    let before = counters.received;
    let mut capture = capture.map(|capture| capture.batch(now));
    for index in 0..count {
        if let Some(message) = ring.message(index) {
            split(&message, to, checker, counters, &mut capture, sink);
        }
    }
    Ok((counters.received - before) as usize)
}

/// Cuts a message into its packets, checks each, and gives the good ones to `sink`: those behind
/// each other together, as many as stay in the cache from the check to the copy ([`RUN_BYTES`]).
pub(super) fn split(
    message: &InMessage<'_>,
    destination: Gid,
    checker: &mut IcrcChecker,
    counters: &mut LinkCounters,
    capture: &mut Option<CaptureBatch<'_>>,
    sink: &mut impl FnMut(&Path, PacketRun<'_>),
) {
    let Some(from) = message.from else {
        counters.foreign += 1;
        return;
    };
    let (path, segment) = read_controls(message, from, destination, counters);
    if message.truncated || !checker.begin(from) {
        counters.malformed += 1;
        return;
    }
    if message.bytes.is_empty() {
        counters.malformed += 1;
        return;
    }
    let segment = if segment == 0 { message.bytes.len() } else { segment };
    let most = (RUN_BYTES / segment).max(1) * segment;
    let mut run = 0..0;
    let mut give = |run: &mut Range<usize>, next: usize| {
        let packets = message.bytes.get(run.start..run.end.saturating_sub(ICRC_LEN));
        if let Some(bytes) = packets.filter(|bytes| !bytes.is_empty()) {
            sink(&path, PacketRun::new(bytes, segment - ICRC_LEN, ICRC_LEN));
        }
        *run = next..next;
    };
    for (index, sealed) in message.bytes.chunks(segment).enumerate() {
        let start = index * segment;
        if check(sealed, index == 0, (&path, from.port()), checker, counters, capture) {
            run.end = start + sealed.len();
            if run.len() >= most {
                give(&mut run, start + sealed.len());
            }
        } else {
            give(&mut run, start + sealed.len());
        }
    }
    give(&mut run, message.bytes.len());
}

/// Whether a packet that came from a port is good; counts it, and writes it to the capture.
#[inline]
fn check(
    sealed: &[u8],
    first_of_buffer: bool,
    (path, source_port): (&Path, u16),
    checker: &mut IcrcChecker,
    counters: &mut LinkCounters,
    capture: &mut Option<CaptureBatch<'_>>,
) -> bool {
    if !(MIN_PACKET..=TxBatch::MAX_PACKET + ICRC_LEN).contains(&sealed.len()) {
        counters.malformed += 1;
        return false;
    }
    let Some((packet, icrc)) = sealed.split_last_chunk() else { return false };
    let is_good = checker.is_good(first_of_buffer, packet, u32::from_le_bytes(*icrc));
    // A probe is this library talking to itself, and no packet of RoCE's.
    if let Some(capture) = capture
        && probe::read(path, packet).is_none()
    {
        let (identification, dont_fragment) = checker.last_header();
        capture.packet(&CapturedPacket {
            path,
            source_port,
            identification,
            dont_fragment,
            sealed,
        });
    }
    if !is_good {
        counters.icrc_errors += 1;
        return false;
    }
    counters.received += 1;
    counters.received_bytes += packet.len() as u64;
    true
}

/// The path of a message, and the size of its segments, 0 when it is a single packet.
fn read_controls(
    message: &InMessage<'_>,
    from: SocketAddr,
    destination: Gid,
    counters: &mut LinkCounters,
) -> (Path, usize) {
    let mut path = Path { hop_limit: 0, ..Path::new(Gid::from_ip(from.ip()), destination) };
    let mut segment = 0;
    for control in sys::controls(message.control) {
        let Some(value) = control.int() else { continue };
        match (control.level, control.kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => segment = usize::try_from(value).unwrap_or_default(),
            (libc::SOL_IP, libc::IP_TTL) | (libc::SOL_IPV6, libc::IPV6_HOPLIMIT) => {
                path.hop_limit = value as u8;
            }
            (libc::SOL_IP, libc::IP_TOS) | (libc::SOL_IPV6, libc::IPV6_TCLASS) => {
                path.traffic_class = value as u8;
            }
            // In network order: version, traffic class and flow label.
            (libc::SOL_IPV6, libc::IPV6_FLOWINFO) => {
                path.flow_label = u32::from_be(value as u32) & 0x000f_ffff;
            }
            // The kernel counts since the socket was made.
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                counters.receive_overflows = u64::from(value as u32);
            }
            _ => {}
        }
    }
    (path, segment)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rxe_core::path::{Transmit, TransmitRun};
    use rxe_wire::Qpn;

    use super::*;
    use crate::udp::probe::Prober;

    fn fill(batch: &mut TxBatch, link: &UdpLink, destination: Gid, count: usize, len: usize) {
        let path = Path::new(link.gid(), destination);
        for index in 0..count {
            let room = batch.room().expect("room");
            room[..len].fill(index as u8);
            batch.commit(Transmit { len, path, dest_qpn: Qpn::new(0x09_0000) });
        }
    }

    fn receive_all(link: &mut UdpLink) -> usize {
        let mut count = 0;
        while let got @ 1.. = link.receive_with(Instant::ZERO, |_, _| ()).expect("receive") {
            count += got;
        }
        count
    }

    fn open(host: u8) -> UdpLink {
        UdpLink::open(UdpConfig::new(crate::udp::test_address(host), 9)).expect("a link")
    }

    #[test]
    fn a_run_too_long_for_the_kernel_is_cut() {
        let mut link = open(1);
        let mut batch = TxBatch::new();
        fill(&mut batch, &link, link.gid(), 200, 40);
        // 129 and more are refused, everywhere.
        let report = link.deliver(&mut batch, &[Run { first: 0, count: 200 }]);
        assert_eq!(report, TransmitReport { sent: 200, lost: 0 });
        assert_eq!(receive_all(&mut link), 200);
        assert_eq!(link.counters().icrc_errors, 0);
        assert!(link.max_segments() > 1);
    }

    #[test]
    fn without_segmentation_in_the_kernel_packets_go_one_by_one() {
        let mut link = open(2);
        let mut batch = TxBatch::new();
        fill(&mut batch, &link, link.gid(), 100, 40);
        // Without a checksum there is no segmentation: the kernel refuses it with EINVAL.
        let key = tx_key(&batch.packet(0).expect("a packet"));
        let socket = link.sockets.get(key).expect("a socket");
        sys::set_int(socket.fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).expect("set");
        let report = link.transmit(Instant::ZERO, &mut batch);
        assert_eq!(report, TransmitReport { sent: 100, lost: 0 });
        assert_eq!(receive_all(&mut link), 100);
        assert_eq!((link.max_segments(), link.counters().gso_fallbacks), (1, 1));
        assert_eq!(link.counters().icrc_errors, 0, "each is sealed anew, for identification 0");
        let calls = link.counters().send_calls;
        fill(&mut batch, &link, link.gid(), 40, 40);
        link.transmit(Instant::ZERO, &mut batch);
        assert_eq!(link.counters().send_calls, calls + 2, "it is not tried again");
    }

    #[test]
    fn r18_a_destination_out_of_reach_is_loss_and_no_reason_to_stop_segmenting() {
        let mut link = open(3);
        let mut batch = TxBatch::new();
        // An address of documentation, RFC 5737: loopback sources cannot reach it.
        let far = Gid::from_ip("198.51.100.1".parse().expect("ip"));
        fill(&mut batch, &link, far, 100, 40);
        let own = link.gid();
        fill(&mut batch, &link, own, 3, 40);
        let report = link.transmit(Instant::ZERO, &mut batch);
        assert_eq!(report, TransmitReport { sent: 3, lost: 100 });
        assert_eq!(link.counters().send_errors, 100);
        assert_eq!(link.max_segments(), SEGMENT_LIMITS[0]);
        assert_eq!(receive_all(&mut link), 3);
    }

    #[test]
    fn what_came_together_is_given_together_but_for_a_bad_packet() {
        let mut link = open(6);
        let (mut batch, own) = (TxBatch::new(), link.gid());
        fill(&mut batch, &link, own, 40, 1020);
        batch.set_flip(20, Some(4000));
        link.transmit(Instant::ZERO, &mut batch);
        let mut runs: Vec<Vec<u8>> = Vec::new();
        let received = link.receive_runs(Instant::ZERO, &mut |_, run| {
            assert!(run.packets().all(|packet| packet == [packet[0]; 1020]));
            runs.push(run.packets().map(|packet| packet[0]).collect());
        });
        assert_eq!(received.expect("receive"), 39);
        // As many as stay in the cache, and no more.
        let parts = [0..16, 16..20, 21..37, 37..40].map(|part| part.collect::<Vec<u8>>());
        assert_eq!(runs, parts);
        assert_eq!((link.counters().received, link.counters().icrc_errors), (39, 1));
    }

    #[test]
    fn a_capture_has_what_goes_and_comes_but_no_probes() {
        let mut link = open(5);
        let name = format!("urxe-probes-{}.pcap", std::process::id());
        let file = std::env::temp_dir().join(name);
        let capture = Arc::new(Capture::create(&file, Duration::ZERO).expect("a file"));
        link.set_capture(Some(capture.clone()));
        let address = SocketAddr::new(crate::udp::test_address(5), ROCE_PORT);
        Prober::open(address).and_then(|prober| prober.send(0, 7, 9)).expect("a probe");
        assert_eq!((receive_all(&mut link), capture.stats().written), (1, 0));
        let (mut batch, own) = (TxBatch::new(), link.gid());
        fill(&mut batch, &link, own, 1, 40);
        link.transmit(Instant::ZERO, &mut batch);
        assert_eq!((receive_all(&mut link), capture.stats().written), (1, 2));
        std::fs::remove_file(&file).expect("removed");
    }

    #[test]
    fn a_run_ends_where_size_path_slot_or_memory_change() {
        let link = open(4);
        let mut batch = TxBatch::new();
        let own = link.gid();
        for (count, len) in [(3, 100), (1, 60), (2, 60), (1, 100)] {
            fill(&mut batch, &link, own, count, len);
        }
        let lengths = |batch: &TxBatch, max| {
            let (mut first, mut lengths) = (0, Vec::new());
            while first < batch.len() {
                lengths.push(batch.run_len(first, max));
                first += lengths[lengths.len() - 1];
            }
            lengths
        };
        assert_eq!(lengths(&batch, 128), [4, 2, 1]);
        assert_eq!(lengths(&batch, 2), [2, 2, 2, 1]);
        assert_eq!(lengths(&batch, 1), [1; 7]);
        let mut index = 0;
        batch.retain(|_, _| {
            index += 1;
            index != 2
        });
        assert_eq!(lengths(&batch, 128), [1, 2, 2, 1]);
        batch.clear();
        fill(&mut batch, &link, own, 20, 4092);
        assert_eq!(lengths(&batch, 128), [15, 5], "64 KiB are the most");
    }

    #[test]
    fn what_was_committed_as_one_run_leaves_in_messages_that_can_be_sent() {
        let own = Gid::from_ip(crate::udp::test_address(1));
        let path = Path::new(own, own);
        let first = Transmit { len: 1036, path, dest_qpn: Qpn::new(0x05_0001) };
        let run = TransmitRun { first, count: 100, last_len: first.len, summed: 0 };
        let mut batch = TxBatch::new();
        batch.commit_run(&run);
        batch.commit_run(&run);
        // 62 packets of 1040 bytes with their iCRCs are 64,480 of 65,507.
        assert_eq!(batch.run_len(0, 128), 62);
        assert_eq!(batch.run_len(90, 128), 62, "across two runs");
        assert_eq!(batch.run_len(190, 128), 10);
        assert_eq!(batch.run_len(90, 16), 16);
    }
}
