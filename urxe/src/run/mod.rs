//! `urxe run`: an unmodified verbs program, on urxe.
//!
//! The program gets urxe's libraries first in `LD_LIBRARY_PATH` ([`library`]), and a preload
//! library that shows it `/sys/class/infiniband` and `/dev/infiniband` ([`environment`]). Then this
//! process becomes the program, so signals, terminal, job control and exit status are its own, and
//! nothing is left to clean up. Before that it is looked at ([`program`], [`elf`]): what the
//! loader would pass over in silence is told here.

mod elf;
mod environment;
mod library;
mod program;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use ibverbs_api::{
    DEVICES_VARIABLE, Device, DeviceError, DeviceSelection, SelectionError, devices,
};
use rxe_net::faults::{FaultSpec, ParseFaultsError};
use thiserror::Error;

use environment::Environment;
use library::{Library, LibraryError};
use program::ProgramError;

/// The exit status when urxe itself cannot do its part; as env(1) has it.
const STATUS_OWN: u8 = 125;
/// The exit status when the program is there but cannot run on urxe; as env(1) has it.
const STATUS_CANNOT_RUN: u8 = 126;
/// The exit status when there is no such program; as env(1) has it.
const STATUS_NOT_FOUND: u8 = 127;

/// Arguments of `urxe run`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "The program becomes this process: signals, terminal and exit status are its \
    own. What it starts runs on urxe too, since the environment is inherited.\n\
    Environment that is kept: LD_LIBRARY_PATH and LD_PRELOAD, with urxe's part added; URXE_DEVICES, \
    URXE_PCAP, URXE_FAULTS, which --device, --pcap and --faults replace; URXE_LINK, URXE_GSO.\n\
    To have a whole shell on urxe: eval \"$(urxe run --print-env)\".\n\
    Exit status: the program's; 125 when urxe cannot do its part, 126 when the program cannot run \
    on urxe, 127 when there is no such program, 2 when the arguments are wrong."
)]
pub(crate) struct Args {
    /// A device that the program sees, first given first: a device (rxe_eth0), an interface (eth0),
    /// or NAME=INTERFACE for one under another name [default: all].
    #[arg(short, long, value_name = "DEVICE", value_delimiter = ',')]
    device: Vec<String>,
    /// Write every packet to FILE; %p becomes the process id.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Lose, repeat, move, corrupt or delay packets, such as seed=7,drop=3%.
    #[arg(long, value_name = "FAULTS")]
    faults: Option<String>,
    /// Do not preload the library that shows /sys/class/infiniband and /dev/infiniband: UCX then
    /// finds no device. For programs that no library may be loaded before, as some sanitizers ask.
    #[arg(long)]
    no_preload: bool,
    /// Run the program although it cannot use urxe itself: what it starts may.
    #[arg(long)]
    force: bool,
    /// Print what to export instead, for sh.
    #[arg(long, conflicts_with = "program")]
    print_env: bool,
    /// The program with its arguments.
    #[arg(trailing_var_arg = true, required_unless_present = "print_env", value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Why a program was not run.
#[derive(Debug, Error)]
enum RunError {
    #[error(transparent)]
    Library(#[from] LibraryError),
    #[error("--device: {0}")]
    Selection(#[source] SelectionError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("--faults: {0}")]
    Faults(#[from] ParseFaultsError),
    #[error("--pcap: {} is no folder, so no file can be made there", .0.display())]
    PcapFolder(PathBuf),
    #[error("--pcap: {0}")]
    PcapPath(#[source] io::Error),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("cannot run {}: {source}", path.display())]
    Exec { path: PathBuf, source: io::Error },
    #[error("cannot write: {0}")]
    Output(#[source] io::Error),
}

impl RunError {
    fn status(&self) -> u8 {
        match self {
            Self::Program(ProgramError::NotFound { .. }) => STATUS_NOT_FOUND,
            Self::Program(_) | Self::Exec { .. } => STATUS_CANNOT_RUN,
            _ => STATUS_OWN,
        }
    }
}

/// Becomes the program; returns only when that fails, or the environment was to be printed.
pub(crate) fn run(args: &Args) -> ExitCode {
    match try_run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("urxe run: {error}");
            ExitCode::from(error.status())
        }
    }
}

fn try_run(args: &Args) -> Result<(), RunError> {
    let library = Library::find()?;
    let mut environment = Environment::new(&library);
    add_options(args, &mut environment)?;
    let devices = choose_devices(args, &mut environment)?;
    if !args.no_preload {
        environment.add_preload(&library, &devices);
    }
    let Some((name, arguments)) = args.program.split_first() else {
        return environment.print(&mut io::stdout().lock()).map_err(RunError::Output);
    };
    let path = program::find(name)?;
    if !args.force {
        let seen = program::inspect(&path, &library)?;
        if seen.finds_other_library {
            environment.add_library_to_preload(&library);
        }
    }
    let mut command = Command::new(&path);
    command.arg0(name).args(arguments).envs(environment.variables());
    Err(RunError::Exec { path, source: command.exec() })
}

/// The devices that the program will see.
fn choose_devices(args: &Args, environment: &mut Environment) -> Result<Vec<Device>, RunError> {
    if args.device.is_empty() {
        return Ok(devices()?);
    }
    let text = args.device.join(",");
    let selection: DeviceSelection = text.parse().map_err(RunError::Selection)?;
    environment.set(DEVICES_VARIABLE, text);
    Ok(selection.devices()?)
}

/// What the options say, checked now: the program would only find its device missing.
fn add_options(args: &Args, environment: &mut Environment) -> Result<(), RunError> {
    if let Some(faults) = &args.faults {
        faults.parse::<FaultSpec>()?;
        environment.set(rxe_net::faults::FAULTS_VARIABLE, faults);
    }
    if let Some(file) = &args.pcap {
        // The program may change its folder before it opens the file.
        let file = std::path::absolute(file).map_err(RunError::PcapPath)?;
        match file.parent() {
            Some(folder) if !folder.is_dir() => {
                return Err(RunError::PcapFolder(folder.to_owned()));
            }
            _ => environment.set(rxe_net::pcap::PCAP_VARIABLE, file),
        }
    }
    Ok(())
}
