//! What the sockets carry without RDMA: the measure to hold a link's figures against.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::socket::{self, BufferSizes};
use super::sys::{self, OutMessage, RawAddress, RecvRing};
use crate::batch::MAX_MESSAGE;

/// Segments of a message at most: what every kernel with `UDP_SEGMENT` takes.
const MAX_SEGMENTS: usize = 64;
/// Messages under way at most. The default receive buffer holds three of the largest, as the
/// kernel accounts them.
const WINDOW: u64 = 3;
/// Time without progress after which what is under way counts as lost.
const STALL: Duration = Duration::from_millis(2);

/// A pipe over UDP sockets with the options of a [`UdpLink`](super::UdpLink), and nothing else.
///
/// One thread sends segments of one size with `UDP_SEGMENT`, another receives them with `UDP_GRO`
/// and copies each once, into memory that stands for the registered one. There is no iCRC and no
/// protocol but a window that keeps loss low. So this is the most that RDMA over these sockets
/// could reach, and an honest measure on a noisy machine when run right beside.
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
    /// How long to send.
    pub duration: Duration,
    /// Sizes of the socket buffers.
    pub buffers: BufferSizes,
}

/// What went through a [`RawPipe`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawPipeReport {
    /// Bytes that the receiver copied.
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
        if self.segment == 0 || self.segment > MAX_MESSAGE {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a segment of {} bytes: 1 to {MAX_MESSAGE} are possible", self.segment),
            ));
        }
        let receiver = sys::udp_socket(self.to)?;
        socket::prepare_receiver(&receiver, self.to, self.buffers)?;
        sys::bind(receiver.as_fd(), socket::socket_address(self.to, 0, self.scope_id))?;
        let to = sys::local_address(receiver.as_fd())?;
        let sender = sys::udp_socket(self.from)?;
        socket::prepare_sender(&sender, self.from, self.buffers)?;
        sys::bind(sender.as_fd(), socket::socket_address(self.from, 0, self.scope_id))?;

        let progress = Progress::default();
        let start = Instant::now();
        thread::scope(|scope| {
            let receiving = scope.spawn(|| receive(&receiver, &progress));
            let sent = self.send(&sender, to, start, &progress);
            progress.finished.store(true, Ordering::Release);
            let end = receiving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok(RawPipeReport {
                received_bytes: progress.received.load(Ordering::Acquire),
                sent_bytes: sent?,
                elapsed: end.saturating_duration_since(start),
            })
        })
    }

    /// Sends until the time is over; returns how many bytes.
    fn send(
        &self,
        fd: &OwnedFd,
        to: SocketAddr,
        start: Instant,
        progress: &Progress,
    ) -> io::Result<u64> {
        let count = (MAX_MESSAGE / self.segment).clamp(1, MAX_SEGMENTS);
        let bytes = vec![0x5a; count * self.segment];
        let message = OutMessage {
            to: RawAddress::new(to, 0),
            bytes: &bytes,
            segment: if count > 1 { self.segment as u16 } else { 0 },
        };
        let window = WINDOW * bytes.len() as u64;
        let (mut sent, mut lost, mut seen) = (0, 0, 0);
        let mut last_progress = start;
        loop {
            let now = Instant::now();
            if now.saturating_duration_since(start) >= self.duration {
                return Ok(sent);
            }
            let received = progress.received.load(Ordering::Acquire);
            if received != seen {
                (seen, last_progress) = (received, now);
            }
            // What was given up as lost may still come, so this may be more than was sent.
            if sent + bytes.len() as u64 <= received + lost + window {
                match sys::send_messages(fd.as_fd(), &[message]) {
                    Ok(_) => sent += bytes.len() as u64,
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
}

/// Receives until the sender has finished and nothing waits; returns when the last byte came.
fn receive(fd: &OwnedFd, progress: &Progress) -> io::Result<Instant> {
    let mut ring = RecvRing::new(8);
    let mut memory = vec![0; sys::BUFFER_LEN];
    let mut last = Instant::now();
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
            memory[..message.bytes.len()].copy_from_slice(message.bytes);
            received += message.bytes.len() as u64;
        }
        std::hint::black_box(&memory);
        progress.received.fetch_add(received, Ordering::Release);
        last = Instant::now();
    }
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
            duration: Duration::from_millis(30),
            buffers: BufferSizes::default(),
        }
    }

    #[test]
    fn what_arrives_is_counted() {
        for (ip, segment) in [("127.0.0.1", 1052), ("::1", 4116), ("127.0.0.1", 60_000)] {
            let mut best = 0.0;
            for _ in 0..20 {
                let report = pipe(ip, segment).run().expect("a run");
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
    fn an_impossible_segment_is_refused() {
        for segment in [0, 65_508] {
            let error = pipe("127.0.0.1", segment).run().expect_err("refused");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
