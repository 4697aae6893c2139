//! Both ends in this process: what the device does on this host, and what bare sockets do.
//!
//! Each end opens the device for itself, so that packets go through the host's IP stack. Every
//! figure of bandwidth is taken right beside one of [`RawPipe`] over sockets of the same kind, in
//! several rounds, since a machine that others use is noisy; medians count: of the figures, and of
//! the ratios within each round.

mod bandwidth;
mod end;
mod latency;
mod report;

use std::io::{self, Write};
use std::time::Duration;

use ibverbs_api::{BufferSizes, Device, Mtu, OpenOptions};
use rxe_net::udp::{PipeWork, RawPipe};

use super::error::PingpongError;
use super::port::{self, Wanted};
use bandwidth::Operation;
use end::Pair;
use report::{Latency, Report, Row};

/// The smallest message: room for its number.
pub(super) const MIN_SIZE: u32 = 8;
/// The largest message: two buffers of as many as are under way must fit in memory.
pub(super) const MAX_SIZE: u32 = 1 << 24;
/// Messages under way, unless told otherwise: two of a MiB fill any window, and each more only
/// leaves the cache.
pub(super) const DEFAULT_DEPTH: u32 = 2;
/// The most messages under way.
pub(super) const MAX_DEPTH: u32 = 1024;
/// How long all bandwidths together take, unless told otherwise.
pub(super) const DEFAULT_DURATION: Duration = Duration::from_secs(3);
/// Sizes of the messages whose latency is taken.
const LATENCY_SIZES: [usize; 2] = [8, 4096];
/// Times that each bandwidth is taken.
const ROUNDS: u32 = 5;
/// Bytes around the payload of a packet, from BTH to iCRC: those of the middle of a message.
const PACKET_OVERHEAD: usize = 12 + 4;

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Config {
    pub device: String,
    pub port: u8,
    pub gid_index: Option<u32>,
    pub ipv6: bool,
    /// The path MTU; 1024 and 4096, as the port allows, when `None`.
    pub mtu: Option<Mtu>,
    /// Bytes of a message whose bandwidth is taken.
    pub size: usize,
    /// Messages under way.
    pub depth: usize,
    /// Exchanges of each size whose latency is taken.
    pub iters: u32,
    /// How long all bandwidths together take.
    pub duration: Duration,
    pub json: bool,
}

/// Measures, and prints.
pub(super) fn run(config: &Config) -> Result<(), PingpongError> {
    let report = measure(config)?;
    let mut out = io::stdout().lock();
    if config.json {
        report.write_json(&mut out)?;
    } else {
        report.write_text(&mut out)?;
    }
    Ok(out.flush()?)
}

fn measure(config: &Config) -> Result<Report, PingpongError> {
    let device = Device::by_name(&config.device)?;
    // Once, so that both ends write one capture where the environment asks for one.
    let options = OpenOptions::from_env()?;
    let contexts = [device.open_with(options.clone())?, device.open_with(options)?];
    let wanted = match config.gid_index {
        Some(index) => Wanted::Index(index),
        None => Wanted::Family { ipv6: config.ipv6 },
    };
    let gid = port::choose_gid(&contexts[0], config.port, wanted)?;
    let mtus = mtus(config, port::active_mtu(&contexts[0], config.port)?);
    mtus.iter().try_for_each(|&mtu| port::check_mtu(&contexts[0], config.port, mtu))?;

    let largest = mtus.iter().copied().max().unwrap_or(Mtu::M256);
    let mut latencies = Vec::new();
    for size in LATENCY_SIZES {
        let pair = Pair::connect(&contexts, &gid, largest, [latency::SLOTS; 2], size)?;
        let one_way = latency::measure(&pair, size, config.iters)?;
        latencies.push(Latency { size, one_way });
    }
    let mut pairs = Vec::new();
    for mtu in mtus {
        let slots = [config.depth, bandwidth::RECEIVES * config.depth];
        let pair = Pair::connect(&contexts, &gid, mtu, slots, config.size)?;
        pair.passive.post_receives(0..slots[1])?;
        pairs.push((mtu, pair));
    }
    let rows = bandwidths(config, &gid, &pairs)?;
    Ok(Report {
        device: config.device.clone(),
        gid: gid.gid,
        size: config.size,
        depth: config.depth,
        latency_mtu: largest,
        latencies,
        rows,
    })
}

/// The path MTUs to measure: the one asked for, or those that tell most of a network.
fn mtus(config: &Config, active: Mtu) -> Vec<Mtu> {
    match config.mtu {
        Some(mtu) => vec![mtu],
        None if active <= Mtu::M1024 => vec![active],
        None => vec![Mtu::M1024, active],
    }
}

/// Takes all bandwidths in turns, so that what disturbs the machine for a while disturbs all.
fn bandwidths(
    config: &Config,
    gid: &ibverbs_api::GidEntry,
    pairs: &[(Mtu, Pair)],
) -> Result<Vec<Row>, PingpongError> {
    let figures = pairs.len() as u32 * (1 + Operation::ALL.len() as u32);
    let slice = config.duration / (ROUNDS * figures);
    let mut rows: Vec<Row> = pairs.iter().map(|&(mtu, _)| Row::new(mtu)).collect();
    for round in 0..ROUNDS {
        for ((mtu, pair), row) in pairs.iter().zip(&mut rows) {
            row.raw.push(raw(gid, *mtu, slice)?);
            for (operation, figures) in Operation::ALL.into_iter().zip(&mut row.figures) {
                let seed = u64::from(round) << 8 | operation as u64;
                figures.push(bandwidth::measure(pair, config.depth, operation, slice, seed)?);
            }
        }
    }
    Ok(rows)
}

/// What bare sockets carry, in bytes a second, in segments as long as the packets of a path MTU.
fn raw(gid: &ibverbs_api::GidEntry, mtu: Mtu, duration: Duration) -> Result<f64, PingpongError> {
    let ip = gid.gid.to_ip();
    let pipe = RawPipe {
        from: ip,
        to: ip,
        scope_id: if gid.gid.is_link_local() { gid.ifindex } else { 0 },
        segment: mtu.bytes() + PACKET_OVERHEAD,
        message: None,
        duration,
        buffers: BufferSizes::default(),
        work: PipeWork::Bare,
    };
    Ok(pipe.run().map_err(PingpongError::RawPipe)?.bytes_per_second())
}
