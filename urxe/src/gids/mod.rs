//! `urxe gids`: the GID tables of this host's devices, what is in them and which entry to take.
//!
//! A table is read at a glance, or as JSON; or it is followed ([`follow`]): then each event of the
//! device is told, with the table as it is then.

mod follow;
mod report;

use std::io::{self, ErrorKind, Write};
use std::net::IpAddr;
use std::process::ExitCode;

use clap::ValueEnum;
use ibverbs_api::{
    CongestionConfig, Context, Device, DeviceError, Gid, GidType, Limits, LinkKind, LinkOptions,
    OpenError, OpenOptions, OptionsError, QueryError, QueryGidTableError, WaitError, devices,
};
use rxe_net::host::{HostError, HostSource, interfaces_and_source};
use serde_json::Value;
use thiserror::Error;

use report::Report;

/// The exit status when something could not be told, or was not found.
const STATUS_FAILED: u8 = 1;

/// Arguments of `urxe gids`.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
    A program names the address that it sends from by an index of this table. The entry marked with \
    * is the one to take, if the program has no wish of its own: RoCE v2 before v1; a global IPv4 \
    address, then a global IPv6 one, then a link-local one.\n\
    Index 0 is the address that the interface would have by its MAC. Linux shows it too, but many \
    hosts make their link-local addresses otherwise: then nothing can be sent from it.\n\
    Exit status: 0 when all was told, 1 when there is no such device or GID, 2 when the arguments \
    are wrong.")]
pub(crate) struct Args {
    /// Only this device [default: all].
    device: Option<String>,
    /// Write JSON: an array of ports; with --follow an object for each line.
    #[arg(long)]
    json: bool,
    /// Tell of each event of the device, with its table then, until the device is gone.
    #[arg(long, requires = "device", conflicts_with = "find")]
    follow: bool,
    /// Show only the entries of this address.
    #[arg(long, value_name = "ADDRESS")]
    find: Option<IpAddr>,
    /// Of --find: only those of this version of RoCE.
    #[arg(long = "type", value_name = "VERSION", requires = "find")]
    version: Option<Version>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Version {
    V1,
    V2,
}

impl From<Version> for GidType {
    fn from(version: Version) -> Self {
        match version {
            Version::V1 => Self::RoceV1,
            Version::V2 => Self::RoceV2,
        }
    }
}

/// Why GIDs cannot be shown.
#[derive(Debug, Error)]
enum GidsError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error(
        "there is no RDMA device: no interface is up and has an address (`ip link set lo up` makes \
         one)"
    )]
    NoDevice,
    #[error("{device} cannot be opened: {source}")]
    Open { device: String, source: OpenError },
    #[error(transparent)]
    Port(#[from] QueryError),
    #[error(transparent)]
    Table(#[from] QueryGidTableError),
    #[error("{address} is no GID of {}: `urxe gids` shows those there are", devices.join(" or "))]
    NotFound { address: IpAddr, devices: Vec<String> },
    #[error("cannot wait for events: {0}")]
    Wait(#[from] WaitError),
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

/// Shows the tables, and says how it went.
pub(crate) fn run(args: &Args) -> ExitCode {
    match show(args, &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has seen enough, as with `urxe gids | head`.
        Err(GidsError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("urxe gids: {error}");
            ExitCode::from(STATUS_FAILED)
        }
    }
}

fn show(args: &Args, out: &mut impl Write) -> Result<(), GidsError> {
    let chosen = match &args.device {
        Some(name) => vec![Device::by_name(name)?],
        None => devices()?,
    };
    if chosen.is_empty() {
        return Err(GidsError::NoDevice);
    }
    if let Some(device) = chosen.first().filter(|_| args.follow) {
        return follow::follow(&open(device)?, args.json, out);
    }
    let mut reports = Vec::new();
    for device in &chosen {
        reports.extend(Report::of_ports(&open(device)?)?);
    }
    if let Some(address) = args.find {
        let gid_type = args.version.map(GidType::from);
        reports.iter_mut().for_each(|report| report.keep(Gid::from_ip(address), gid_type));
        reports.retain(|report| !report.is_empty());
        if reports.is_empty() {
            let devices = chosen.iter().map(|device| device.name().to_owned()).collect();
            return Err(GidsError::NotFound { address, devices });
        }
    }
    if args.json {
        let all = Value::Array(reports.iter().map(Report::to_json).collect());
        return Ok(writeln!(out, "{all:#}")?);
    }
    for report in &reports {
        writeln!(out, "{report}")?;
    }
    if let (_, HostSource::Scan { reason }) = interfaces_and_source()? {
        writeln!(
            out,
            "Netlink is refused here ({reason}): changes are seen once a second, and addresses of \
             VLANs only on their own devices."
        )?;
    }
    Ok(())
}

/// Opens a device; of the options of the environment, only its link counts: nothing is sent, so no
/// capture is wanted.
fn open(device: &Device) -> Result<Context, GidsError> {
    let options = OpenOptions {
        link: LinkOptions { kind: LinkKind::from_env()?, ..LinkOptions::default() },
        shards: 1,
        limits: Limits::default(),
        congestion: CongestionConfig::default(),
        seed: None,
    };
    let failed = |source| GidsError::Open { device: device.name().to_owned(), source };
    device.open_with(options).map_err(failed)
}
