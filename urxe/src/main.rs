//! The `urxe` command: RDMA over Ethernet in user space.
//!
//! Each subcommand is a module with its arguments and a `run` that gives the exit status; nothing
//! but the choice between them, and the log, is here.
//!
//! The contract: results go to the standard output, all else to the standard error. The exit status
//! is 0 when all was right, 1 when data was not or the work failed, 2 when the arguments are wrong
//! (`dump`: or the file cannot be read); that of `run` is the program's. Whatever a file or a peer holds, it is told, never a
//! panic.
#![forbid(unsafe_code)]

mod cm;
mod cmatose;
mod devices;
mod dump;
mod gids;
mod mckey;
mod perf;
mod pingpong;
mod rping;
mod run;
mod udaddy;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// RDMA over Ethernet in user space.
#[derive(Parser, Debug)]
#[command(name = "urxe", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Make many connections at once, with messages on each; alone, or with ucmatose.
    Cmatose(cmatose::Args),
    /// Show the RDMA devices of this host, as ibv_devinfo -v does.
    Devices(devices::Args),
    /// Show the RoCE packets of a capture, one line each, and check every iCRC.
    Dump(dump::Args),
    /// Show the GID tables of the devices, what holes mean, and which entry to take; or follow them.
    Gids(gids::Args),
    /// Join a multicast group, and send or receive messages; alone, or with mckey.
    Mckey(mckey::Args),
    /// Measure bandwidth, latency and message rate, beside what sockets carry without RDMA.
    Perf(perf::Args),
    /// Send messages to and fro, check them, and time them; alone, or with ibv_rc_pingpong.
    Pingpong(pingpong::Args),
    /// Ping-pong over a connection that the connection manager makes; alone, or with rping.
    Rping(rping::Args),
    /// Run a verbs program as it is, on RDMA over Ethernet in user space.
    Run(run::Args),
    /// Find queue pairs that serve datagrams, with messages to each; alone, or with udaddy.
    Udaddy(udaddy::Args),
}

fn main() -> ExitCode {
    // What the layers tell goes to standard error: errors alone, or what RUST_LOG asks for.
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    match Cli::parse().command {
        Command::Cmatose(args) => cmatose::run(&args),
        Command::Devices(args) => devices::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Gids(args) => gids::run(&args),
        Command::Mckey(args) => mckey::run(&args),
        Command::Perf(args) => perf::run(&args),
        Command::Pingpong(args) => pingpong::run(&args),
        Command::Rping(args) => rping::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Udaddy(args) => udaddy::run(&args),
    }
}
