//! `urxe pingpong`: messages to and fro, checked and timed.
//!
//! Without a host both ends are in this process ([`local`]). `--server` and HOST play with another
//! process, which may be `ibv_rc_pingpong` or another of its family ([`service`]) ([`remote`]): they
//! meet over TCP ([`exchange`], [`xrc_exchange`]), choose device and GID ([`port`]) and play ([`game`]) over queue
//! pairs ([`pair`]); two of urxe stay in touch ([`companion`]).

mod args;
mod companion;
mod error;
pub(crate) mod exchange;
mod game;
mod local;
mod pair;
pub(crate) mod pattern;
pub(crate) mod port;
mod remote;
mod service;
#[cfg(test)]
mod test_port;
mod xrc_exchange;

use std::process::ExitCode;

pub(crate) use args::Args;
pub(crate) use error::PingpongError;

use args::Mode;

/// The exit status when the work failed or data was wrong.
pub(crate) const STATUS_FAILED: u8 = 1;
/// The exit status when the arguments contradict each other (clap's for bad usage).
pub(crate) const STATUS_USAGE: u8 = 2;

/// Plays, prints what it took, and says how it went.
pub(crate) fn run(args: &Args) -> ExitCode {
    let result = match args.mode() {
        Ok(Mode::Local(config)) => local::run(&config),
        Ok(Mode::Remote(config)) => remote::run(&config),
        Err(usage) => {
            eprintln!("urxe pingpong: {usage}");
            return ExitCode::from(STATUS_USAGE);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has seen enough, as with `urxe pingpong | head`.
        Err(PingpongError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("urxe pingpong: {error}");
            ExitCode::from(STATUS_FAILED)
        }
    }
}
