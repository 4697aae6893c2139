//! The `urxe` command: RDMA over Ethernet in user space.
//!
//! Each subcommand is a module with its arguments and a `run` that gives the exit status; nothing
//! but the choice between them is here.
#![forbid(unsafe_code)]

mod dump;
mod pingpong;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// RDMA over Ethernet in user space.
#[derive(Parser, Debug)]
#[command(name = "urxe", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Show the RoCE packets of a capture, one line each, and check every iCRC.
    Dump(dump::Args),
    /// Send messages to and fro, check them, and time them; alone, or with ibv_rc_pingpong.
    Pingpong(pingpong::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Dump(args) => dump::run(&args),
        Command::Pingpong(args) => pingpong::run(&args),
    }
}
