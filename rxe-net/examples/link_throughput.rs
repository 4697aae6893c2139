//! Measures what two UDP links carry over loopback, beside the bare sockets.
//!
//! `cargo run --release -p rxe-net --example link_throughput [SECONDS]`
//!
//! One thread fills batches, copying each payload from memory, and sends them; another receives,
//! checks and copies each payload to memory. A window in bytes takes the place of the protocol.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant as Clock};

use gid_table::Gid;
use rxe_core::path::{Path, Transmit};
use rxe_core::time::Instant;
use rxe_net::batch::{ICRC_LEN, TxBatch};
use rxe_net::link::{Link, LinkCounters};
use rxe_net::udp::{BufferSizes, PipeWork, RawPipe, UdpConfig, UdpLink};
use rxe_wire::Qpn;

/// BTH and RETH, as the first packet of a WRITE has.
const HEADERS: usize = 28;
/// Bytes under way at most, as in [`RawPipe`].
const WINDOW: u64 = 3 * 65_507;
/// Bytes of one message of the made-up protocol.
const BURST: usize = 64 * 1024 - 2048;

fn main() -> Result<(), Box<dyn Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(1.0), |text| text.parse())?;
    let duration = Duration::from_secs_f64(seconds);
    for address in [IpAddr::V4(Ipv4Addr::new(127, 9, 9, 9)), Ipv6Addr::LOCALHOST.into()] {
        for payload in [1024, 4096] {
            let raw = RawPipe {
                from: address,
                to: address,
                scope_id: 0,
                segment: HEADERS + payload + ICRC_LEN,
                message: None,
                duration,
                buffers: BufferSizes::default(),
                work: PipeWork::Bare,
            };
            let raw = raw.run()?.bytes_per_second();
            let (link, counters) = links(address, payload, duration)?;
            println!(
                "{address} {payload} B: raw {:.2} GB/s, link {:.2} GB/s, ratio {:.2}; {} packets, \
                 {} iCRC errors, {} overflows",
                raw / 1e9,
                link / 1e9,
                link / raw,
                counters.received,
                counters.icrc_errors,
                counters.receive_overflows,
            );
        }
    }
    Ok(())
}

/// Payload bytes a second from one link to another.
fn links(
    address: IpAddr,
    payload: usize,
    duration: Duration,
) -> Result<(f64, LinkCounters), Box<dyn Error>> {
    let mut sender = UdpLink::open(UdpConfig::new(address, 1))?;
    let mut receiver = UdpLink::open(UdpConfig::new(address, 2))?;
    let (received, finished) = (AtomicU64::new(0), AtomicBool::new(false));
    let start = Clock::now();
    let last = thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(&mut receiver, &received, &finished));
        send(&mut sender, address, payload, duration, &received);
        finished.store(true, Ordering::Release);
        receiving.join().map_err(|_| "the receiver panicked")
    })??;
    let bytes = received.load(Ordering::Acquire) as f64;
    Ok((bytes / (last - start).as_secs_f64(), receiver.counters()))
}

fn send(link: &mut UdpLink, to: IpAddr, payload: usize, duration: Duration, received: &AtomicU64) {
    let path = Path::new(link.gid(), Gid::from_ip(to));
    let transmit = Transmit { len: HEADERS + payload, path, dest_qpn: Qpn::new(0x02_0001) };
    let memory = vec![0x5a; payload];
    let mut batch = TxBatch::new();
    let (mut sent, mut lost, mut seen) = (0_u64, 0, 0);
    let start = Clock::now();
    let mut last_progress = start;
    let count = BURST / (HEADERS + payload + ICRC_LEN);
    while start.elapsed() < duration {
        let came = received.load(Ordering::Acquire);
        if came != seen {
            (seen, last_progress) = (came, Clock::now());
        }
        if sent + (count * payload) as u64 <= came + lost + WINDOW {
            for _ in 0..count {
                let Some(room) = batch.room() else { break };
                room[..HEADERS].fill(2);
                room[5..8].copy_from_slice(&[2, 0, 1]);
                room[HEADERS..HEADERS + payload].copy_from_slice(&memory);
                batch.commit(transmit);
            }
            sent += (link.transmit(Instant::ZERO, &mut batch).sent * payload) as u64;
        } else if last_progress.elapsed() > Duration::from_millis(2) {
            (lost, last_progress) = (sent.saturating_sub(came), Clock::now());
        } else {
            thread::yield_now();
        }
    }
}

fn receive(
    link: &mut UdpLink,
    received: &AtomicU64,
    finished: &AtomicBool,
) -> std::io::Result<Clock> {
    let mut memory = vec![0; TxBatch::MAX_PACKET * 128];
    let mut last = Clock::now();
    loop {
        let done = finished.load(Ordering::Acquire);
        let (mut bytes, mut at) = (0, 0);
        let count = link.receive_with(Instant::ZERO, |_, packet| {
            let payload = &packet[HEADERS..];
            at = if at + payload.len() > memory.len() { 0 } else { at };
            memory[at..at + payload.len()].copy_from_slice(payload);
            at += payload.len();
            bytes += payload.len() as u64;
        })?;
        if count == 0 {
            if done {
                return Ok(last);
            }
            thread::yield_now();
            continue;
        }
        std::hint::black_box(&memory);
        received.fetch_add(bytes, Ordering::Release);
        last = Clock::now();
    }
}
