//! What the sockets carry without RDMA: the measure to hold a link's figures against.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rxe_wire::icrc::{ICRC_LEN, IcrcFlow};

use super::socket::{self, BufferSizes};
use super::sys::{self, InMessage, OutMessage, RawAddress, RecvRing, controls};
use crate::batch::MAX_MESSAGE;

/// Segments of a message at most: what every kernel with `UDP_SEGMENT` takes.
const MAX_SEGMENTS: usize = 64;
/// Messages under way at most. The default receive buffer holds three of the largest, as the
/// kernel accounts them.
const WINDOW: u64 = 3;
/// Time without progress after which what is under way counts as lost.
const STALL: Duration = Duration::from_millis(2);

/// Segments of a message at most: those of 8 MiB in the smallest packets.
const MOST_SEGMENTS: usize = 1 << 15;
/// Messages that are cut into sends as one sequence.
const MESSAGES: usize = 16;

/// Bytes of a segment before its payload: a BTH, where a packet has one.
const HEADER: usize = 12;

/// What is done to the bytes of a [`RawPipe`], beside sending them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PipeWork {
    /// The receiver copies each once.
    Bare,
    /// What RDMA cannot do without: the sender copies each payload into its segment and makes the
    /// iCRC, the receiver checks that and copies the payload. A segment needs more bytes than BTH
    /// and iCRC have, 16.
    Icrc,
}

/// The segments of a message, where those at its ends are not as long as the others: as the first
/// packet of a WRITE, which has a RETH, and the last one of any message, which may be short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PipeMessage {
    /// How many there are, two at least.
    pub segments: usize,
    /// Bytes of the first one.
    pub first: usize,
    /// Bytes of the last one.
    pub last: usize,
}

/// A pipe over UDP sockets with the options of a [`UdpLink`](super::UdpLink), and nothing else.
///
/// One thread sends segments of one size with `UDP_SEGMENT`, another receives them with `UDP_GRO`
/// and copies each once, into memory that stands for the registered one. There is no protocol but
/// a window that keeps loss low, which costs nothing, since both threads see it. So this is the most
/// that RDMA over these sockets could reach, with [`PipeWork::Icrc`] the most that RoCE could, and an
/// honest measure on a noisy machine when run right beside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawPipe {
    /// Address that sends.
    pub from: IpAddr,
    /// Address that receives, on this host.
    pub to: IpAddr,
    /// Index of the interface of link-local addresses; otherwise 0.
    pub scope_id: u32,
    /// Bytes of a segment: of a packet from BTH to iCRC, for a comparison. 1 to 65,507.
    pub segment: usize,
    /// What a message is, where its segments are not alike. They are sent in their order, in as few
    /// sends as there can be: the segments of a send are of one length, but for a shorter last one.
    pub message: Option<PipeMessage>,
    /// How long to send.
    pub duration: Duration,
    /// Sizes of the socket buffers.
    pub buffers: BufferSizes,
    /// What is done to the bytes.
    pub work: PipeWork,
}

/// What went through a [`RawPipe`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawPipeReport {
    /// Bytes that arrived, in good segments.
    pub received_bytes: u64,
    /// Bytes that the sender sent; what is more than was received was lost.
    pub sent_bytes: u64,
    /// From the start until the last byte came.
    pub elapsed: Duration,
}

impl RawPipeReport {
    /// Bytes that arrived, a second.
    pub fn bytes_per_second(&self) -> f64 {
        self.received_bytes as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Segments that leave together: all of one length, but for the last one, which may be shorter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Together {
    segment: usize,
    bytes: usize,
}

impl Together {
    /// Adds a segment, if it can leave with these.
    fn add(&mut self, length: usize) -> bool {
        let is_last_full = self.bytes.is_multiple_of(self.segment);
        let takes = is_last_full
            && length <= self.segment
            && self.bytes / self.segment < MAX_SEGMENTS
            && self.bytes + length <= MAX_MESSAGE;
        if takes {
            self.bytes += length;
        }
        takes
    }
}

/// What the two threads know of each other.
#[derive(Debug, Default)]
struct Progress {
    received: AtomicU64,
    finished: AtomicBool,
}

impl RawPipe {
    /// Runs the pipe for its duration. It takes two threads, one of them the caller's.
    ///
    /// # Errors
    ///
    /// Those of the sockets, `InvalidInput` for a segment size that is out of range, and those of
    /// a kernel without `UDP_SEGMENT`.
    pub fn run(&self) -> io::Result<RawPipeReport> {
        self.run_to(|| Ok(()))
    }

    /// As [`Self::run`]; the receiving thread, which ends with the run, calls `enter` before it opens
    /// its socket. So it may be in another network namespace.
    ///
    /// # Errors
    ///
    /// As [`Self::run`], and those of `enter`.
    pub fn run_to(
        &self,
        enter: impl FnOnce() -> io::Result<()> + Send,
    ) -> io::Result<RawPipeReport> {
        self.check()?;
        let progress = Progress::default();
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            let progress = &progress;
            let receiving = scope.spawn(move || {
                enter()?;
                let receiver = sys::udp_socket(self.to)?;
                socket::prepare_receiver(&receiver, self.to, self.buffers)?;
                sys::bind(receiver.as_fd(), socket::socket_address(self.to, 0, self.scope_id))?;
                // Where nobody listens, the sender has failed, and has said why.
                let _ = tell.send(sys::local_address(receiver.as_fd())?);
                self.receive(&receiver, progress)
            });
            // Where nobody tells, the receiver has failed, and says why.
            let sent = match told.recv() {
                Ok(to) => self.send(to, progress),
                Err(mpsc::RecvError) => Ok((Instant::now(), 0)),
            };
            progress.finished.store(true, Ordering::Release);
            let end = receiving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            let (start, sent_bytes) = sent?;
            Ok(RawPipeReport {
                received_bytes: progress.received.load(Ordering::Acquire),
                sent_bytes,
                elapsed: end.saturating_duration_since(start),
            })
        })
    }

    fn check(&self) -> io::Result<()> {
        let least = match self.work {
            PipeWork::Bare => 1,
            PipeWork::Icrc => HEADER + ICRC_LEN + 1,
        };
        let message = self.message.map(|message| [message.first, message.last]);
        let wrong = message.into_iter().flatten().chain([self.segment]);
        let wrong = wrong.into_iter().find(|length| !(least..=MAX_MESSAGE).contains(length));
        let text = match (wrong, self.message) {
            (Some(length), _) => {
                format!("a segment of {length} bytes: {least} to {MAX_MESSAGE} are possible")
            }
            (None, Some(PipeMessage { segments, .. }))
                if !(2..=MOST_SEGMENTS).contains(&segments) =>
            {
                format!("a message of {segments} segments: 2 to {MOST_SEGMENTS} are possible")
            }
            (None, _) => return Ok(()),
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, text))
    }

    /// What leaves together, to be sent again and again.
    fn sends(&self) -> Vec<Together> {
        let full = (MAX_MESSAGE / self.segment).clamp(1, MAX_SEGMENTS);
        let Some(PipeMessage { segments, first, last }) = self.message else {
            return vec![Together { segment: self.segment, bytes: full * self.segment }];
        };
        let mut sends: Vec<Together> = Vec::new();
        for index in (0..MESSAGES).flat_map(|_| 0..segments) {
            let length = match index {
                0 => first,
                index if index + 1 == segments => last,
                _ => self.segment,
            };
            if !sends.last_mut().is_some_and(|send| send.add(length)) {
                sends.push(Together { segment: length, bytes: length });
            }
        }
        sends
    }

    /// The flow that the iCRCs are of: the same at both ends, whichever ports the sockets have.
    fn flow(&self) -> IcrcFlow {
        match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => IcrcFlow::v4(from, to, 0),
            (IpAddr::V6(from), IpAddr::V6(to)) => IcrcFlow::v6(from, to, 0),
            // Such sockets do not reach each other.
            _ => IcrcFlow::v1([0; 16], [0; 16]),
        }
    }

    /// Sends until the time is over; returns when it began, and how many bytes it sent.
    fn send(&self, to: SocketAddr, progress: &Progress) -> io::Result<(Instant, u64)> {
        let socket = sys::udp_socket(self.from)?;
        socket::prepare_sender(&socket, self.from, self.buffers)?;
        sys::bind(socket.as_fd(), socket::socket_address(self.from, 0, self.scope_id))?;
        let (fd, start) = (socket.as_fd(), Instant::now());
        let memory = vec![0x5a; MAX_MESSAGE];
        let mut bytes = memory.clone();
        let (flow, sends, mut next) = (self.flow(), self.sends(), 0);
        let window = WINDOW * sends.iter().map(|send| send.bytes as u64).max().unwrap_or_default();
        let (mut sent, mut lost, mut seen) = (0, 0, 0);
        let mut last_progress = start;
        loop {
            let now = Instant::now();
            if now.saturating_duration_since(start) >= self.duration {
                return Ok((start, sent));
            }
            let received = progress.received.load(Ordering::Acquire);
            if received != seen {
                (seen, last_progress) = (received, now);
            }
            // What was given up as lost may still come, so this may be more than was sent.
            let Together { segment, bytes: count } = sends[next];
            if sent + count as u64 <= received + lost + window {
                let bytes = &mut bytes[..count];
                if self.work == PipeWork::Icrc {
                    make(&flow, segment, &memory, bytes);
                }
                let segment = if count > segment { segment as u16 } else { 0 };
                let message = OutMessage { to: RawAddress::new(to, 0), bytes, segment };
                match sys::send_messages(fd, &[message]) {
                    Ok(_) => {
                        sent += count as u64;
                        next = (next + 1) % sends.len();
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
                    Err(error) => return Err(error),
                }
            } else if now.saturating_duration_since(last_progress) > STALL {
                lost = sent.saturating_sub(received);
                last_progress = now;
            } else {
                thread::yield_now();
            }
        }
    }

    /// Receives until the sender has finished and nothing waits; returns when the last byte came.
    fn receive(&self, fd: &OwnedFd, progress: &Progress) -> io::Result<Instant> {
        let mut ring = RecvRing::new(8);
        let mut memory = vec![0; sys::BUFFER_LEN];
        let mut last = Instant::now();
        let flow = self.flow();
        loop {
            // Before looking: what was sent before it finished is then found by looking.
            let finished = progress.finished.load(Ordering::Acquire);
            let count = match ring.receive(fd.as_fd(), 0) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if finished {
                        return Ok(last);
                    }
                    thread::yield_now();
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let mut received = 0;
            for index in 0..count {
                let Some(message) = ring.message(index) else { continue };
                received += match self.work {
                    PipeWork::Bare => {
                        memory[..message.bytes.len()].copy_from_slice(message.bytes);
                        message.bytes.len() as u64
                    }
                    PipeWork::Icrc => take(&flow, segment_of(&message), message.bytes, &mut memory),
                };
            }
            std::hint::black_box(&memory);
            progress.received.fetch_add(received, Ordering::Release);
            last = Instant::now();
        }
    }
}

/// Makes segments of the bytes in `memory`: copies each payload, and stores the iCRC behind.
fn make(flow: &IcrcFlow, segment: usize, memory: &[u8], to: &mut [u8]) {
    for (from, segment) in memory.chunks(segment).zip(to.chunks_mut(segment)) {
        let Some((packet, icrc)) = segment.split_last_chunk_mut() else { continue };
        let end = packet.len();
        packet[HEADER..].copy_from_slice(&from[HEADER..end]);
        *icrc = flow.icrc(0, packet).to_le_bytes();
    }
}

/// Bytes of the segments of what came: all but the last one have so many.
fn segment_of(message: &InMessage<'_>) -> usize {
    let is_size = |level, kind| (level, kind) == (libc::IPPROTO_UDP, libc::UDP_GRO);
    controls(message.control)
        .find(|control| is_size(control.level, control.kind))
        .and_then(|control| usize::try_from(control.int()?).ok())
        .filter(|&size| size > 0)
        .unwrap_or_else(|| message.bytes.len().max(1))
}

/// Checks each segment, and copies the payloads of those that are right; returns their bytes.
fn take(flow: &IcrcFlow, segment: usize, bytes: &[u8], memory: &mut [u8]) -> u64 {
    let mut good = 0;
    for (segment, to) in bytes.chunks(segment).zip(memory.chunks_mut(segment)) {
        let Some((packet, icrc)) = segment.split_last_chunk() else { continue };
        if packet.len() > HEADER && flow.icrc(0, packet).to_le_bytes() == *icrc {
            to[HEADER..packet.len()].copy_from_slice(&packet[HEADER..]);
            good += segment.len() as u64;
        }
    }
    good
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipe(ip: &str, segment: usize) -> RawPipe {
        let address = ip.parse().expect("ip");
        RawPipe {
            from: address,
            to: address,
            scope_id: 0,
            segment,
            message: None,
            duration: Duration::from_millis(30),
            buffers: BufferSizes::default(),
            work: PipeWork::Bare,
        }
    }

    #[test]
    fn only_segments_with_their_icrc_count() {
        let flow = pipe("127.0.0.1", 100).flow();
        let (from, mut wire, mut to) = (vec![7; 250], vec![0; 250], vec![0; 250]);
        make(&flow, 100, &from, &mut wire);
        assert_eq!(take(&flow, 100, &wire, &mut to), 250);
        assert_eq!((to[12], to[95], to[96], to[112]), (7, 7, 0, 7));
        wire[150] ^= 1;
        assert_eq!(take(&flow, 100, &wire, &mut to), 150);
    }

    #[test]
    fn an_entry_that_fails_is_the_error() {
        let refused = || Err(io::Error::from(io::ErrorKind::PermissionDenied));
        let error = pipe("127.0.0.1", 1000).run_to(refused).expect_err("refused");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn what_arrives_is_counted() {
        for (ip, segment, work) in [
            ("127.0.0.1", 1052, PipeWork::Bare),
            ("127.0.0.1", 1040, PipeWork::Icrc),
            ("::1", 4116, PipeWork::Icrc),
            ("127.0.0.1", 60_000, PipeWork::Bare),
        ] {
            let mut best = 0.0;
            for _ in 0..20 {
                let report = RawPipe { work, ..pipe(ip, segment) }.run().expect("a run");
                assert!(report.received_bytes > 0);
                assert_eq!(report.received_bytes % segment as u64, 0);
                assert!(report.received_bytes <= report.sent_bytes);
                assert!(report.bytes_per_second() > 0.0);
                best = f64::max(best, report.received_bytes as f64 / report.sent_bytes as f64);
                if best > 0.9 {
                    break;
                }
            }
            // On a busy machine a receiver may not run for longer than the sender waits.
            assert!(best > 0.9, "of {segment} bytes each, {best} arrived at best");
        }
    }

    #[test]
    fn messages_leave_in_as_few_sends_as_can_be() {
        // Packets of a WRITE of 64 KiB: the first one is longer, so it begins a send, and only one
        // more fits behind it.
        let message = PipeMessage { segments: 64, first: 1056, last: 1040 };
        let pipe = RawPipe { message: Some(message), ..pipe("127.0.0.1", 1040) };
        let [two, others] = [(1056, 2 * 1040 + 16), (1040, 62 * 1040)]
            .map(|(segment, bytes)| Together { segment, bytes });
        assert_eq!(pipe.sends(), [two, others].repeat(MESSAGES));
        // Of a response to a READ, the last one is as long as the first one of the next.
        let message = PipeMessage { first: 1044, last: 1044, ..message };
        let sends = RawPipe { message: Some(message), ..pipe }.sends();
        assert_eq!(sends[0], Together { segment: 1044, bytes: 1044 + 1040 });
        assert_eq!(sends[1], Together { segment: 1040, bytes: 61 * 1040 });
        assert_eq!(sends[2], Together { segment: 1044, bytes: 2 * 1044 + 1040 });
        assert_eq!(sends.len(), 2 * MESSAGES + 1);
        // Of a SEND, all are alike, but for one that is short.
        let message = PipeMessage { segments: 3, first: 1040, last: 100 };
        let sends = RawPipe { message: Some(message), ..pipe }.sends();
        assert_eq!(sends, [Together { segment: 1040, bytes: 2180 }; MESSAGES]);
    }

    #[test]
    fn messages_arrive_whole() {
        let message = PipeMessage { segments: 64, first: 1056, last: 700 };
        let pipe =
            RawPipe { message: Some(message), work: PipeWork::Icrc, ..pipe("127.0.0.1", 1040) };
        // Were a first packet taken to be as long as the others, its send would not count: a
        // thirtieth of all bytes. Something may be lost on a busy machine, but not in each run.
        let mut best = 0.0;
        for _ in 0..20 {
            let report = pipe.run().expect("a run");
            assert!(report.received_bytes > 0 && report.received_bytes <= report.sent_bytes);
            best = f64::max(best, report.received_bytes as f64 / report.sent_bytes as f64);
        }
        assert!(best > 0.98, "{best} arrived at best");
    }

    #[test]
    fn an_impossible_segment_is_refused() {
        for segment in [0, 65_508] {
            let error = pipe("127.0.0.1", segment).run().expect_err("refused");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        let good = pipe("127.0.0.1", 100);
        let cut = |segments, first, last| RawPipe {
            message: Some(PipeMessage { segments, first, last }),
            ..good
        };
        let short = RawPipe { work: PipeWork::Icrc, ..pipe("127.0.0.1", 16) };
        for pipe in [short, cut(1, 100, 100), cut(2, 0, 100), cut(2, 100, 65_508)] {
            assert_eq!(pipe.run().expect_err("refused").kind(), io::ErrorKind::InvalidInput);
        }
    }
}
