//! What small messages cost: how many go each second, and how long one takes, beside the same over
//! bare UDP sockets, in one run.
//!
//! `cargo run --release -p ibverbs-api --example small_messages [SECONDS] [NAME...]`, over loopback.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ibverbs_api::{
    AccessFlags, AddressVector, CompletionQueue, ConnectAttr, Context, Device, DmaBuf, GidEntry,
    MemoryRegion, Mtu, QpCaps, QpInit, QpType, QueuePair, RecvWr, SendData, SendFlags, SendOp,
    SendWr, WcOpcode, WcStatus, WorkCompletion,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Requests outstanding while a rate is measured.
const DEPTH: usize = 128;
/// Bytes of a message.
const SIZE: usize = 8;
/// Bytes of a WRITE packet with such a message, from BTH to iCRC.
const PACKET: usize = 12 + 16 + SIZE + 4;

/// One end: a queue pair, and memory for each message that may be outstanding.
struct End {
    qp: QueuePair,
    cq: CompletionQueue,
    mr: MemoryRegion,
}

impl End {
    fn new(context: &Context) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let entries = 4 * DEPTH as u32;
        let cq = context.create_cq(entries, None, 0)?;
        let caps = QpCaps {
            max_send_wr: DEPTH as u32,
            max_recv_wr: entries / 2,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 64,
        };
        let qp = pd.create_qp(QpInit { caps, ..QpInit::new(QpType::Rc, &cq, &cq) })?;
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let mr = pd.register(DmaBuf::zeroed(4 * DEPTH * SIZE), access)?;
        Ok(Self { qp, cq, mr })
    }

    fn post_receives(&self, count: usize) -> Result<()> {
        let sges = [self.mr.sge(0..SIZE)];
        let wrs = vec![RecvWr { wr_id: 0, sges: &sges }; count];
        self.qp.post_recv_list(&wrs)?;
        Ok(())
    }

    /// Polls; returns how many requests of each direction completed: sent and received.
    fn poll(&self, room: &mut Vec<WorkCompletion>) -> Result<(usize, usize)> {
        room.clear();
        self.cq.poll(64, room);
        let mut count = (0, 0);
        for wc in room {
            if wc.status != WcStatus::Success {
                return Err(format!("{:?}", wc.status).into());
            }
            if matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm) {
                count.1 += 1
            } else {
                count.0 += 1
            }
        }
        Ok(count)
    }
}

fn connected(gid: &GidEntry, contexts: &[Context; 2]) -> Result<[End; 2]> {
    let ends = [End::new(&contexts[0])?, End::new(&contexts[1])?];
    let av = AddressVector::new(gid.gid, gid.gid_index);
    ends[0].qp.connect(&ConnectAttr::new(av, ends[1].qp.qpn(), Mtu::M1024))?;
    ends[1].qp.connect(&ConnectAttr::new(av, ends[0].qp.qpn(), Mtu::M1024))?;
    Ok(ends)
}

/// Messages a second, posted `list` at a time, of which each `signal`-th completes.
fn rate(ends: &[End; 2], op: SendOp, list: usize, signal: usize, time: Duration) -> Result<f64> {
    let stop = AtomicBool::new(false);
    let is_send = matches!(op, SendOp::Send { .. });
    thread::scope(|scope| {
        let receiver = scope.spawn(|| -> Result<()> {
            let mut room = Vec::with_capacity(64);
            if is_send {
                ends[1].post_receives(2 * DEPTH)?;
            }
            while !stop.load(Ordering::Relaxed) {
                let (_, received) = ends[1].poll(&mut room)?;
                if received > 0 {
                    ends[1].post_receives(received)?;
                }
            }
            Ok(())
        });
        let sent = send(&ends[0], op, list, signal, time);
        stop.store(true, Ordering::Relaxed);
        receiver.join().map_err(|_| "a panic")??;
        sent
    })
}

fn send(end: &End, op: SendOp, list: usize, signal: usize, time: Duration) -> Result<f64> {
    let sges = [end.mr.sge(0..SIZE)];
    let wr = SendWr {
        wr_id: 0,
        op,
        flags: SendFlags::empty(),
        data: SendData::Sges(&sges),
        srq_number: None,
    };
    let mut wrs = vec![wr; list];
    let (mut posted, mut done) = (0_usize, 0_usize);
    let mut room = Vec::with_capacity(64);
    // The receives are posted by the other thread.
    thread::sleep(Duration::from_millis(20));
    let start = Instant::now();
    let mut elapsed = Duration::ZERO;
    while elapsed < time || done + signal <= posted {
        while elapsed < time && posted - done + list <= DEPTH {
            for (index, wr) in wrs.iter_mut().enumerate() {
                wr.flags.set(SendFlags::SIGNALED, (posted + index + 1).is_multiple_of(signal));
            }
            match &wrs[..] {
                [one] => end.qp.post_send(one)?,
                _ => end.qp.post_send_list(&wrs)?,
            }
            posted += list;
        }
        done += end.poll(&mut room)?.0 * signal;
        elapsed = start.elapsed();
    }
    Ok(done as f64 / elapsed.as_secs_f64())
}

/// Half a round trip of SEND, or of WRITE with immediate data, both ends polling: the median.
fn latency(ends: &[End; 2], ops: [SendOp; 2], rounds: usize) -> Result<Duration> {
    let mut times = Vec::with_capacity(rounds);
    let play = |side: usize, mut each: Box<dyn FnMut(Duration) + '_>| -> Result<()> {
        let (end, op, is_first) = (&ends[side], ops[side], side == 0);
        let mut room = Vec::with_capacity(64);
        let mut due = 0;
        end.post_receives(DEPTH)?;
        if is_first {
            // Until the other one has its receives.
            thread::sleep(Duration::from_millis(20));
        }
        let mut begun = Instant::now();
        for round in 0..rounds {
            if is_first || round > 0 {
                begun = Instant::now();
                end.qp.post_send(&SendWr {
                    wr_id: 0,
                    op,
                    flags: SendFlags::SIGNALED,
                    data: SendData::Inline(&[7; SIZE]),
                    srq_number: None,
                })?;
            }
            while due == 0 {
                due += end.poll(&mut room)?.1;
            }
            each(begun.elapsed());
            due -= 1;
            end.post_receives(1)?;
        }
        if !is_first {
            end.qp.post_send(&SendWr {
                wr_id: 0,
                op,
                flags: SendFlags::SIGNALED,
                data: SendData::Inline(&[7; SIZE]),
                srq_number: None,
            })?;
        }
        let until = Instant::now() + Duration::from_millis(20);
        while Instant::now() < until {
            end.poll(&mut room)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| play(1, Box::new(|_| ())));
        play(0, Box::new(|time| times.push(time)))?;
        other.join().map_err(|_| "a panic")?
    })?;
    Ok(median_half(times))
}

fn median_half(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2] / 2
}

/// The same over bare sockets.
fn bare_latency(rounds: usize) -> Result<Duration> {
    let sockets = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
    for (one, other) in [(0, 1), (1, 0)] {
        sockets[one].connect(sockets[other].local_addr()?)?;
        sockets[one].set_nonblocking(true)?;
    }
    let mut times = Vec::with_capacity(rounds);
    let receive = |socket: &UdpSocket| {
        let mut buf = [0; 2048];
        while socket.recv(&mut buf).is_err() {}
    };
    thread::scope(|scope| -> Result<()> {
        let other = scope.spawn(|| -> Result<()> {
            for _ in 0..rounds {
                receive(&sockets[1]);
                sockets[1].send(&[7; PACKET])?;
            }
            Ok(())
        });
        for _ in 0..rounds {
            let begun = Instant::now();
            sockets[0].send(&[7; PACKET])?;
            receive(&sockets[0]);
            times.push(begun.elapsed());
        }
        other.join().map_err(|_| "a panic")?
    })?;
    Ok(median_half(times))
}

/// Packets a second over bare sockets, one a call.
fn bare_rate(time: Duration) -> Result<f64> {
    let sockets = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
    sockets[0].connect(sockets[1].local_addr()?)?;
    sockets[1].set_nonblocking(true)?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let (mut buf, mut count) = ([0; 2048], 0_u64);
            while !stop.load(Ordering::Relaxed) {
                count += u64::from(sockets[1].recv(&mut buf).is_ok());
            }
            count
        });
        let start = Instant::now();
        while start.elapsed() < time {
            sockets[0].send(&[7; PACKET])?;
        }
        let elapsed = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        Ok(receiver.join().map_err(|_| "a panic")? as f64 / elapsed.as_secs_f64())
    })
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let seconds: f64 = args.next().map_or(Ok(1.0), |arg| arg.parse())?;
    let names: Vec<String> = args.collect();
    let wanted = |name: &str| names.is_empty() || names.iter().any(|want| name.contains(want));
    let device = Device::by_name("rxe_lo")?;
    let contexts = [device.open()?, device.open()?];
    let gids = contexts[0].query_gid_table()?;
    let gid = gids.iter().find(|entry| entry.gid.to_ipv4().is_some()).ok_or("no IPv4 address")?;
    let time = Duration::from_secs_f64(seconds);
    let rounds = (seconds * 20_000.0) as usize;
    if wanted("bare") {
        println!("bare UDP ping-pong, one way     {:8.2} us", micros(bare_latency(rounds)?));
        println!("bare UDP, one packet a call     {:8.3} million/s", bare_rate(time)? / 1e6);
    }
    for (name, is_send) in [("latency SEND", true), ("latency WRITE with immediate", false)] {
        if wanted(name) {
            let ends = connected(gid, &contexts)?;
            let took = latency(&ends, operations(&ends, is_send, true), rounds)?;
            println!("{name:31} {:8.2} us", micros(took));
        }
    }
    for (what, is_send) in [("WRITE", false), ("SEND", true)] {
        for (list, signal) in [(1, 1), (1, 32), (32, 1), (32, 32)] {
            let how = if list == 1 { "single" } else { "lists" };
            let name = format!("rate {what} {how}, signal 1/{signal}");
            if wanted(&name) {
                let ends = connected(gid, &contexts)?;
                let rate = rate(&ends, operations(&ends, is_send, false)[0], list, signal, time)?;
                println!("{name:31} {:8.3} million/s", rate / 1e6);
            }
        }
    }
    Ok(())
}

/// What each end posts.
fn operations(ends: &[End; 2], is_send: bool, with_imm: bool) -> [SendOp; 2] {
    [1, 0].map(|other: usize| {
        let remote = ends[other].mr.remote_addr(0);
        match is_send {
            true => SendOp::Send { imm: None },
            false => SendOp::Write { remote, imm: with_imm.then_some(7) },
        }
    })
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
