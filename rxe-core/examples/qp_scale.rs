//! What many queue pairs cost: memory for each idle one, and instructions for each packet while
//! 10,000 are open, beside those while one is.
//!
//! Run it with `cargo run --release -p rxe-core --example qp_scale`. It counts instructions by
//! running itself under valgrind's callgrind, so it wants valgrind; the exit status is 1 when they
//! grow by 15 % or more.

use std::error::Error;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use gid_table::{Gid, GidTable, GidType, WantedGid};
use rxe_core::mem::{AccessFlags, DmaBuf, MrKeys};
use rxe_core::qp::{AddressVector, Mtu, QpAttr, QpInit, QpType, RC_TO_RTS};
use rxe_core::wq::{RemoteAddr, SendData, SendFlags, SendOp, SendWr, Sge};
use rxe_core::{CompletionQueue, Device, DeviceConfig, Instant, Port, QueuePair, Seed, Shard};

/// Queue pairs of the larger run.
const MANY: usize = 10_000;
/// WRITEs of a run, each on another queue pair as far as there are others.
const BATCHES: usize = 2_000;
/// Packets of a WRITE: the batches are alike, however many queue pairs are open.
const PACKETS: usize = 16;
const MTU: Mtu = Mtu::M1024;
/// Growth in percent that is too much.
const LIMIT: f64 = 15.0;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// One end of all connections.
struct End {
    shard: Shard,
    gid: Gid,
    qps: Vec<Arc<QueuePair>>,
    cq: Arc<CompletionQueue>,
    buf: Arc<DmaBuf>,
    keys: MrKeys,
}

impl End {
    fn new(number: u8, count: usize) -> Result<Self> {
        let gid = Gid::from_ip([10, 0, 0, number].into());
        let mut gids = GidTable::new(1, 16);
        gids.add(WantedGid { gid, gid_type: GidType::RoceV2, ifindex: 1, owned: true })?;
        let config = DeviceConfig::new(Seed::for_test(number.into()));
        let device = Device::new(config, vec![Port::new(gids, Mtu::M4096)]);
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(4096, None)?;
        let buf = Arc::new(DmaBuf::zeroed(PACKETS * MTU.bytes()));
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let len = buf.len() as u64;
        let keys = device.memory().register(pd, buf.clone(), 0, len, buf.addr(), access)?;
        let mut shard = Shard::new(device, number);
        let qps = (0..count).map(|_| shard.create_qp(QpInit::new(QpType::Rc, pd, &cq)));
        let qps = qps.collect::<std::result::Result<_, _>>()?;
        Ok(Self { shard, gid, qps, cq, buf, keys })
    }

    fn connect(&mut self, peer: &Self) -> Result<()> {
        for (qp, other) in self.qps.iter().zip(&peer.qps) {
            let attr = QpAttr {
                path_mtu: MTU,
                dest_qpn: other.qpn(),
                access: AccessFlags::REMOTE_WRITE,
                av: AddressVector::new(peer.gid, 0),
                timeout: 14,
                retry_cnt: 7,
                rnr_retry: 7,
                ..QpAttr::default()
            };
            for (state, mask) in RC_TO_RTS {
                self.shard.modify_qp(Instant::ZERO, qp.qpn(), &QpAttr { state, ..attr }, mask)?;
            }
        }
        Ok(())
    }
}

fn connected(count: usize) -> Result<(End, End)> {
    let (mut one, mut two) = (End::new(1, count)?, End::new(2, count)?);
    one.connect(&two)?;
    two.connect(&one)?;
    Ok((one, two))
}

/// Carries all that `from` has to send to `to`; packets.
fn carry(now: Instant, from: &mut End, to: &mut End, buf: &mut [u8]) -> usize {
    let mut count = 0;
    while let Some(transmit) = from.shard.poll_transmit(now, buf) {
        to.shard.handle_packet(now, &transmit.path, &buf[..transmit.len]);
        count += 1;
    }
    count
}

/// The batches: what is counted. Returns packets.
#[inline(never)]
fn traffic(one: &mut End, two: &mut End) -> Result<usize> {
    let mut buf = vec![0; Shard::MAX_PACKET];
    let mut done = Vec::new();
    let mut packets = 0;
    let sges = [Sge { addr: one.buf.addr(), length: one.buf.len() as u32, lkey: one.keys.lkey }];
    let remote = RemoteAddr { addr: two.buf.addr(), rkey: two.keys.rkey };
    for batch in 0..BATCHES {
        // A step that visits them all, in no simple order.
        let qp = one.qps[batch.wrapping_mul(7919) % one.qps.len()].clone();
        let now = Instant::from_nanos(batch as u64 * 20_000);
        let (op, data) = (SendOp::Write { remote, imm: None }, SendData::Sges(&sges));
        qp.post_send(&SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, data, srq_number: None })?;
        one.shard.kick(now, qp.qpn());
        packets += carry(now, one, two, &mut buf) + carry(now, two, one, &mut buf);
        for end in [&mut *one, &mut *two] {
            if end.shard.poll_timeout().is_some_and(|at| at <= now) {
                end.shard.handle_timeout(now);
            }
        }
        done.clear();
        one.cq.poll(16, &mut done);
        if done.len() != 1 {
            return Err(format!("batch {batch}: {} completions", done.len()).into());
        }
    }
    Ok(packets)
}

/// Resident memory of this process in bytes.
fn resident() -> Result<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    let kib: usize = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024)
}

/// Instructions of [`traffic`] for each packet with `count` queue pairs open.
fn instructions(count: usize) -> Result<f64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=qp_scale::traffic*")
        .arg(std::env::current_exe()?)
        .arg(count.to_string())
        .output()
        .map_err(|error| format!("cannot run valgrind: {error}"))?;
    let (out, log) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    let packets: f64 = out.trim().parse().map_err(|_| format!("no number of packets:\n{log}"))?;
    let collected = log.lines().find_map(|line| line.split_once("Collected :"));
    let (_, collected) = collected.ok_or("callgrind counted nothing")?;
    Ok(collected.trim().parse::<f64>()? / packets)
}

fn compare() -> Result<bool> {
    let before = resident()?;
    let ends = connected(MANY)?;
    let bytes = (resident()? - before) / (2 * MANY);
    println!("memory of an idle connected RC queue pair: {bytes} bytes");
    drop(ends);
    let (few, many) = (instructions(1)?, instructions(MANY)?);
    let growth = (many / few - 1.0) * 100.0;
    println!("instructions for a packet, sent and received, {PACKETS} packets a WRITE:");
    println!("  with 1 queue pair open      {few:.0}");
    println!("  with {MANY} queue pairs open  {many:.0}, {growth:+.1} %");
    Ok(growth < LIMIT)
}

fn run() -> Result<bool> {
    match std::env::args().nth(1) {
        // Under callgrind.
        Some(count) => {
            let (mut one, mut two) = connected(count.parse()?)?;
            println!("{}", traffic(&mut one, &mut two)?);
            Ok(true)
        }
        None => compare(),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("instructions grow by {LIMIT} % or more");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("qp_scale: {error}");
            ExitCode::FAILURE
        }
    }
}
