//! What this machine's sockets carry without RDMA: what the figures are held against.
//!
//! Both ends of each are threads of this process, which see how far the other is without a message
//! between them: so a limit is never too low for want of a protocol. The receiving thread may be in
//! another network namespace.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ibverbs_api::BufferSizes;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use rxe_net::udp::{PipeMessage, PipeWork, RawPipe};
use rxe_wire::icrc::IcrcFlow;
use serde::{Deserialize, Serialize};

use super::histogram::Histogram;
use super::load::{Kind, Load, Operation};
use super::place::{Allowed, Pinned, Room, Side};

/// Bytes around the payload of a packet, from BTH to iCRC: those of the middle of a message.
const PACKET_OVERHEAD: usize = 12 + 4;
/// Bytes of a write to TCP, as iperf3 makes them.
pub(super) const TCP_WRITE: usize = 128 << 10;
/// Bytes that are copied, or of which a CRC is made: as many as a segmented send has, in cache.
const BLOCK: usize = 64 << 10;
/// The longest message of a UDP ping-pong, with room for headers.
pub(super) const LONGEST: usize = 60_000;
/// How long it takes to measure each thing that does not depend on a load.
const MACHINE_TIME: Duration = Duration::from_millis(100);
/// How long the first message may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Looks in vain before the core is offered to others.
const LOOKS: u32 = 256;
/// How long a thread waits for a message before it looks whether all is over.
const NAP: Duration = Duration::from_millis(50);

/// One thing that the machine can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Limit {
    /// UDP with segmentation offload: the bytes are copied once, at the receiver.
    BarePipe,
    /// The same, with the iCRC made and checked, and the payload copied at both ends.
    IcrcPipe,
    /// The same, with packets of the lengths that those of the messages have, in their order. A longer
    /// first packet begins a send of its own (`PipeMessage`), which is what such messages cost.
    CutPipe,
    /// One TCP connection.
    Tcp,
    /// UDP messages to and fro, both ends polling: one way.
    UdpPolling,
    /// The same on sockets that are not connected, one for each direction, as RoCEv2 needs them: packets
    /// go to a port that is not the one that they come from, and over IPv4 their identification, which
    /// Linux counts on connected sockets from a random number on, is covered by the iCRC.
    UdpUnconnected,
    /// UDP messages to and fro, both ends asleep in a read: one way.
    UdpBlocking,
    /// Copying 64 KiB that are in a cache.
    Memcpy,
    /// The iCRCs of packets of 4 KiB that are in a cache.
    Crc,
}

/// What a limit is counted in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unit {
    /// Bytes a second, of payload.
    BytesPerSecond,
    /// Microseconds.
    Micros,
}

impl Unit {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::BytesPerSecond => "bytes_per_second",
            Self::Micros => "us",
        }
    }

    /// A value, with the unit.
    pub(super) fn show(self, value: f64) -> String {
        match self {
            Self::BytesPerSecond => format!("{:.3} GB/s", value / 1e9),
            Self::Micros => format!("{value:.2} us"),
        }
    }
}

impl Limit {
    /// Those that a load is held against.
    pub(super) fn of(load: &Load) -> &'static [Self] {
        match (load.kind, load.has_events) {
            (Kind::Bandwidth, _) if extra(load.operation) != (0, 0) => {
                &[Self::IcrcPipe, Self::CutPipe, Self::BarePipe, Self::Tcp]
            }
            (Kind::Bandwidth, _) => &[Self::IcrcPipe, Self::BarePipe, Self::Tcp],
            (Kind::Latency, _) if load.size as usize > LONGEST => &[],
            (Kind::Latency, false) => &[Self::UdpPolling, Self::UdpUnconnected],
            (Kind::Latency, true) => &[Self::UdpBlocking],
        }
    }

    /// Whether it is another limit under what RoCE cannot do without: what is left then is the work
    /// of the engine.
    pub(super) const fn sends_alike(self) -> bool {
        matches!(self, Self::CutPipe | Self::UdpUnconnected)
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::BarePipe => "UDP, segmented, without iCRC",
            Self::IcrcPipe => "the bare pipe (UDP, iCRC, copies)",
            Self::CutPipe => "the bare pipe, cut as these messages are",
            Self::Tcp => "TCP",
            Self::UdpPolling => "a UDP ping-pong, polling",
            Self::UdpUnconnected => "a UDP ping-pong, unconnected sockets",
            Self::UdpBlocking => "a UDP ping-pong, blocking",
            Self::Memcpy => "memcpy",
            Self::Crc => "iCRC",
        }
    }

    pub(super) const fn unit(self) -> Unit {
        match self {
            Self::BarePipe
            | Self::IcrcPipe
            | Self::CutPipe
            | Self::Tcp
            | Self::Memcpy
            | Self::Crc => Unit::BytesPerSecond,
            Self::UdpPolling | Self::UdpUnconnected | Self::UdpBlocking => Unit::Micros,
        }
    }
}

/// Where limits are measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Ground {
    /// The address of the sending end.
    pub(super) from: IpAddr,
    /// The address of the receiving end.
    pub(super) to: IpAddr,
    /// Index of the interface of link-local addresses; otherwise 0.
    pub(super) scope_id: u32,
    /// The network namespace of the receiving end, if it is another.
    pub(super) namespace: Option<PathBuf>,
    /// The receiving end is another host, or in a namespace that is not known: the server must help.
    pub(super) is_far: bool,
}

/// Bytes that the first and the last packet of a message have more than those between them: RETH, AETH,
/// immediate data.
const fn extra(operation: Operation) -> (usize, usize) {
    match operation {
        Operation::Write => (16, 0),
        Operation::WriteImm => (16, 4),
        Operation::Read => (4, 4),
        Operation::Send | Operation::FetchAdd | Operation::CompareSwap => (0, 0),
    }
}

/// The packets of messages, as a pipe carries them.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Packets {
    /// Bytes of each, from BTH to iCRC, or of those in the midst of a message.
    segment: usize,
    message: Option<PipeMessage>,
    /// Part of all bytes that is payload.
    payload_share: f64,
}

impl Packets {
    /// Full ones without end, or those of messages that fit in one.
    fn alike(load: &Load, mtu: u32) -> Self {
        let payload = load.size.min(mtu) as usize;
        let segment = payload + PACKET_OVERHEAD;
        Self { segment, message: None, payload_share: payload as f64 / segment as f64 }
    }

    /// Those of the messages of a load, one message after the other.
    fn of(load: &Load, mtu: u32) -> Self {
        let (size, mtu) = (load.size as usize, mtu as usize);
        let (first, last) = extra(load.operation);
        let count = size.div_ceil(mtu);
        let bytes = size + count * PACKET_OVERHEAD + first + last;
        let payload_share = size as f64 / bytes as f64;
        if count < 2 {
            return Self { segment: bytes, message: None, payload_share };
        }
        let segment = mtu + PACKET_OVERHEAD;
        let message = PipeMessage {
            segments: count,
            first: segment + first,
            last: size - (count - 1) * mtu + PACKET_OVERHEAD + last,
        };
        Self { segment, message: Some(message), payload_share }
    }
}

/// Brings this thread into a network namespace.
pub(super) fn enter(namespace: Option<&Path>) -> io::Result<()> {
    let Some(path) = namespace else { return Ok(()) };
    let file = File::open(path).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot open {}: {error}", path.display()))
    })?;
    Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?)
}

impl Ground {
    /// What a limit comes to, measured for so long with messages like those of a load, whose path MTU
    /// is known.
    ///
    /// # Errors
    ///
    /// Those of the sockets, and of the namespace.
    pub(super) fn measure(
        &self,
        limit: Limit,
        load: &Load,
        mtu: u32,
        duration: Duration,
    ) -> io::Result<f64> {
        match limit {
            Limit::BarePipe => self.pipe(PipeWork::Bare, &Packets::alike(load, mtu), duration),
            Limit::IcrcPipe => self.pipe(PipeWork::Icrc, &Packets::alike(load, mtu), duration),
            Limit::CutPipe => self.pipe(PipeWork::Icrc, &Packets::of(load, mtu), duration),
            Limit::Tcp => self.tcp(duration),
            Limit::UdpPolling | Limit::UdpUnconnected | Limit::UdpBlocking => {
                self.udp(limit, load.size as usize, duration)
            }
            Limit::Memcpy => Ok(memcpy(duration)),
            Limit::Crc => Ok(crc(duration)),
        }
    }

    /// Payload bytes a second, in such packets.
    fn pipe(&self, work: PipeWork, packets: &Packets, duration: Duration) -> io::Result<f64> {
        let allowed = Allowed::here();
        let _pinned = allowed.pin(Side::Asking, Room::Half);
        let pipe = RawPipe {
            from: self.from,
            to: self.to,
            scope_id: self.scope_id,
            segment: packets.segment,
            message: packets.message,
            duration,
            buffers: BufferSizes::default(),
            work,
        };
        let report = pipe.run_to(|| {
            // The thread ends with the pipe.
            allowed.pin(Side::Answering, Room::Half).stay();
            enter(self.namespace.as_deref())
        })?;
        Ok(report.bytes_per_second() * packets.payload_share)
    }

    fn address(&self, ip: IpAddr) -> SocketAddr {
        match ip {
            IpAddr::V4(_) => SocketAddr::new(ip, 0),
            IpAddr::V6(ip) => std::net::SocketAddrV6::new(ip, 0, 0, self.scope_id).into(),
        }
    }

    /// Bytes a second over one connection.
    fn tcp(&self, duration: Duration) -> io::Result<f64> {
        let (tell, told) = mpsc::channel();
        let received = AtomicU64::new(0);
        thread::scope(|scope| {
            let receiving = scope.spawn(|| -> io::Result<Instant> {
                let tell = tell;
                enter(self.namespace.as_deref())?;
                let _pinned = Pinned::to(Side::Answering, Room::Half);
                let listener = TcpListener::bind(self.address(self.to))?;
                let _ = tell.send(listener.local_addr()?);
                let (mut stream, _) = listener.accept()?;
                let mut memory = vec![0; TCP_WRITE];
                let mut last = Instant::now();
                loop {
                    match stream.read(&mut memory)? {
                        0 => return Ok(last),
                        count => received.fetch_add(count as u64, Ordering::Relaxed),
                    };
                    last = Instant::now();
                }
            });
            let _pinned = Pinned::to(Side::Asking, Room::Half);
            let start = Instant::now();
            let sent = match told.recv() {
                Ok(to) => send_tcp(to, start, duration),
                Err(mpsc::RecvError) => Ok(()),
            };
            let end = receiving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            sent?;
            let elapsed = end.saturating_duration_since(start).as_secs_f64();
            Ok(received.load(Ordering::Relaxed) as f64 / elapsed.max(f64::MIN_POSITIVE))
        })
    }

    /// The median of half a round trip, in microseconds.
    fn udp(&self, limit: Limit, size: usize, duration: Duration) -> io::Result<f64> {
        let blocks = limit == Limit::UdpBlocking;
        let own = Ends::new(self.address(self.from), limit)?;
        let client = own.address()?;
        let (tell, told) = mpsc::channel();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let answering = scope.spawn(|| -> io::Result<()> {
                let tell = tell;
                enter(self.namespace.as_deref())?;
                let _pinned = Pinned::to(Side::Answering, Room::One);
                let mut ends = Ends::new(self.address(self.to), limit)?;
                ends.meet(client)?;
                ends.prepare(blocks)?;
                let _ = tell.send(ends.address()?);
                let (mut bytes, mut looks) = (vec![0; LONGEST], 0u32);
                while !over.load(Ordering::Relaxed) {
                    if let Some(count) = ends.receive(&mut bytes)? {
                        ends.send(&bytes[..count])?;
                        continue;
                    }
                    looks = looks.wrapping_add(1);
                    if looks.is_multiple_of(LOOKS) {
                        thread::yield_now();
                    }
                }
                Ok(())
            });
            let _pinned = Pinned::to(Side::Asking, Room::One);
            let mut own = own;
            let times = match told.recv() {
                Ok(to) => own.meet(to).and_then(|()| exchange(&own, blocks, size, duration)),
                Err(mpsc::RecvError) => Ok(Histogram::default()),
            };
            over.store(true, Ordering::Relaxed);
            answering.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok(times?.percentile(50.0))
        })
    }
}

/// The sockets of an end of a UDP ping-pong.
#[derive(Debug)]
pub(super) struct Ends {
    /// What comes, comes here.
    receiver: UdpSocket,
    /// Messages leave here, if it is another socket, to this address: that of the other end, once it has
    /// been met.
    sender: Option<(UdpSocket, SocketAddr)>,
}

impl Ends {
    /// Those at an address of this host, for one of the ping-pongs.
    fn new(at: SocketAddr, limit: Limit) -> io::Result<Self> {
        let sender = match limit {
            Limit::UdpUnconnected => Some((UdpSocket::bind(at)?, at)),
            _ => None,
        };
        Ok(Self { receiver: UdpSocket::bind(at)?, sender })
    }

    /// One socket, which is connected.
    pub(super) const fn connected(socket: UdpSocket) -> Self {
        Self { receiver: socket, sender: None }
    }

    /// Where messages are to be sent to.
    fn address(&self) -> io::Result<SocketAddr> {
        self.receiver.local_addr()
    }

    /// Makes known where the other end is.
    fn meet(&mut self, other: SocketAddr) -> io::Result<()> {
        match &mut self.sender {
            Some((_, to)) => *to = other,
            None => self.receiver.connect(other)?,
        }
        Ok(())
    }

    /// Connects to whoever has sent what waits; whether something does. It is left there.
    pub(super) fn meet_first(&self, bytes: &mut [u8]) -> io::Result<bool> {
        let Ok((_, from)) = self.receiver.peek_from(bytes) else { return Ok(false) };
        self.receiver.connect(from).map(|()| true)
    }

    pub(super) fn prepare(&self, blocks: bool) -> io::Result<()> {
        match blocks {
            true => self.receiver.set_read_timeout(Some(NAP)),
            false => self.receiver.set_nonblocking(true),
        }
    }

    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        match &self.sender {
            Some((socket, to)) => socket.send_to(bytes, to)?,
            None => self.receiver.send(bytes)?,
        };
        Ok(())
    }

    /// Looks for a message, or sleeps for it.
    pub(super) fn receive(&self, to: &mut [u8]) -> io::Result<Option<usize>> {
        let came = match self.sender {
            Some(_) => self.receiver.recv_from(to).map(|(count, _)| count),
            None => self.receiver.recv(to),
        };
        match came {
            Ok(count) => Ok(Some(count)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Ok(None)
            }
            // One that was lost is sent again.
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(error),
        }
    }
}

pub(super) fn send_tcp(to: SocketAddr, start: Instant, duration: Duration) -> io::Result<()> {
    let mut stream = TcpStream::connect(to)?;
    let bytes = vec![0x5a; TCP_WRITE];
    while start.elapsed() < duration {
        stream.write_all(&bytes)?;
    }
    Ok(())
}

/// Messages there and back; half of how long each took.
pub(super) fn exchange(
    ends: &Ends,
    blocks: bool,
    size: usize,
    duration: Duration,
) -> io::Result<Histogram> {
    ends.prepare(blocks)?;
    let mut message = vec![0x5a; size.min(LONGEST)];
    let mut number = 0u64;
    let mut bytes = vec![0; LONGEST];
    let mut times = Histogram::default();
    let start = Instant::now();
    // However busy the machine is, one must come.
    while start.elapsed() < duration || (times.is_empty() && start.elapsed() < PATIENCE) {
        number += 1;
        for (byte, digit) in message.iter_mut().zip(number.to_le_bytes()) {
            *byte = digit;
        }
        let begun = Instant::now();
        ends.send(&message)?;
        let mut looks = 0u32;
        let is_back = loop {
            // One that was given up may still come. Were it taken for the answer to this one, two
            // would be under way from then on, and each would seem to take half of its time.
            if ends.receive(&mut bytes)?.is_some_and(|count| bytes[..count] == message) {
                break true;
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) {
                thread::yield_now();
            }
            if begun.elapsed() > NAP {
                break false;
            }
        };
        if is_back {
            times.record(begun.elapsed() / 2);
        }
    }
    if times.is_empty() {
        return Err(io::Error::new(ErrorKind::TimedOut, "no UDP message came back"));
    }
    Ok(times)
}

/// Repeats `work`, which is done to so many bytes, for a while; bytes a second.
fn repeat(bytes: usize, duration: Duration, mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut count = 0u64;
    loop {
        for _ in 0..16 {
            work();
        }
        count += 16;
        let elapsed = start.elapsed();
        if elapsed >= duration {
            return (count * bytes as u64) as f64 / elapsed.as_secs_f64();
        }
    }
}

/// What does not depend on a load.
pub(super) fn machine() -> Vec<(Limit, Vec<f64>)> {
    vec![(Limit::Memcpy, vec![memcpy(MACHINE_TIME)]), (Limit::Crc, vec![crc(MACHINE_TIME)])]
}

fn memcpy(duration: Duration) -> f64 {
    let (from, mut to) = (vec![0x5a_u8; BLOCK], vec![0; BLOCK]);
    repeat(BLOCK, duration, || {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&to);
    })
}

fn crc(duration: Duration) -> f64 {
    let packet = vec![0x5a_u8; 12 + 4096];
    let flow = IcrcFlow::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xc000);
    repeat(packet.len(), duration, || {
        std::hint::black_box(flow.icrc(0, std::hint::black_box(&packet)));
    })
}

#[cfg(test)]
mod tests {
    use super::super::load::Service;
    use super::super::load::tests::small;
    use super::*;

    #[test]
    fn the_packets_of_messages() {
        let load =
            |operation, size| Load { size, ..small(Kind::Bandwidth, operation, Service::Rc) };
        let packets = Packets::of(&load(Operation::Write, 2500), 1024);
        let message = PipeMessage { segments: 3, first: 1056, last: 468 };
        assert_eq!((packets.segment, packets.message), (1040, Some(message)));
        assert_eq!(packets.payload_share, 2500.0 / (1056.0 + 1040.0 + 468.0));
        let packets = Packets::of(&load(Operation::Read, 2048), 1024);
        let message = PipeMessage { segments: 2, first: 1044, last: 1044 };
        assert_eq!((packets.segment, packets.message), (1040, Some(message)));
        // RETH and immediate data in the one packet that there is.
        let packets = Packets::of(&load(Operation::WriteImm, 100), 1024);
        assert_eq!((packets.segment, packets.message), (136, None));
        assert_eq!(Packets::alike(&load(Operation::Write, 100), 1024).segment, 116);
    }

    #[test]
    fn every_limit_is_measured() {
        let ip = IpAddr::from([127, 0, 0, 1]);
        let ground = Ground { from: ip, to: ip, scope_id: 0, namespace: None, is_far: false };
        let load = Load { size: 4096, ..small(Kind::Bandwidth, Operation::Write, Service::Rc) };
        for limit in [
            Limit::BarePipe,
            Limit::IcrcPipe,
            Limit::CutPipe,
            Limit::Tcp,
            Limit::UdpPolling,
            Limit::UdpUnconnected,
            Limit::UdpBlocking,
            Limit::Memcpy,
            Limit::Crc,
        ] {
            let value =
                ground.measure(limit, &load, 1024, Duration::from_millis(60)).expect("runs");
            let least = if limit.unit() == Unit::Micros { 0.2 } else { 1e6 };
            assert!(value > least && value < 1e12, "{limit:?}: {value}");
        }
    }

    #[test]
    fn a_namespace_that_is_none_is_an_error() {
        let ip = IpAddr::from([127, 0, 0, 1]);
        let namespace = Some(PathBuf::from("/proc/self/status"));
        let ground = Ground { from: ip, to: ip, scope_id: 0, namespace, is_far: false };
        let load = small(Kind::Bandwidth, Operation::Write, Service::Rc);
        for limit in [Limit::IcrcPipe, Limit::Tcp, Limit::UdpPolling] {
            let result = ground.measure(limit, &load, 1024, Duration::from_millis(10));
            assert!(result.is_err(), "{limit:?}: {result:?}");
        }
    }
}
