//! `urxe devices`: the RDMA devices of this host, as a program on urxe sees them.
//!
//! Each device is opened and asked ([`report`]), and what it says is written as `ibv_devinfo -v`
//! writes it, or as JSON. No packet is sent, and no port is taken.

mod report;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use ibverbs_api::{
    Device, DeviceError, OpenError, OptionsError, QueryError, QueryGidTableError, devices,
};
use rxe_net::host::HostError;
use serde_json::Value;
use thiserror::Error;

use report::Report;

/// The exit status when something could not be told.
const STATUS_FAILED: u8 = 1;

/// Arguments of `urxe devices`.
#[derive(clap::Args, Debug)]
#[command(after_help = "An interface that is up and has an address is a device. URXE_DEVICES \
    chooses and names devices, as --device of urxe run does.\n\
    Exit status: 0 when there is a device, 1 when there is none or it cannot be asked, 2 when the \
    arguments are wrong.")]
pub(crate) struct Args {
    /// Only this device [default: all].
    device: Option<String>,
    /// Write one JSON array.
    #[arg(long)]
    json: bool,
}

/// Why the devices cannot be shown.
#[derive(Debug, Error)]
enum DevicesError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(
        "there is no RDMA device: no interface is up and has an address (`ip link set lo up` makes \
         one)"
    )]
    None,
    #[error("{device} cannot be opened: {source}")]
    Open { device: String, source: OpenError },
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error(transparent)]
    Port(#[from] QueryError),
    #[error(transparent)]
    Gids(#[from] QueryGidTableError),
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

/// Shows the devices, and says how it went.
pub(crate) fn run(args: &Args) -> ExitCode {
    match show(args, &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has seen enough, as with `urxe devices | head`.
        Err(DevicesError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("urxe devices: {error}");
            ExitCode::from(STATUS_FAILED)
        }
    }
}

fn show(args: &Args, out: &mut impl Write) -> Result<(), DevicesError> {
    let chosen = match &args.device {
        Some(name) => vec![Device::by_name(name)?],
        None => devices()?,
    };
    if chosen.is_empty() {
        return Err(DevicesError::None);
    }
    let reports = chosen.iter().map(Report::of).collect::<Result<Vec<_>, _>>()?;
    if args.json {
        let all = Value::Array(reports.iter().map(Report::to_json).collect());
        return Ok(writeln!(out, "{all:#}")?);
    }
    for report in &reports {
        writeln!(out, "{report}")?;
    }
    Ok(())
}
