//! `urxe rping`: a ping-pong of SEND, READ and WRITE over a connection that the connection manager
//! makes; the counterpart of rdmacm-utils' `rping`, and an example of how rdma-cm is used.

mod args;
mod client;
mod end;
mod error;
mod info;
mod pattern;
mod server;

use std::process::ExitCode;
use std::time::Duration;

pub(crate) use args::Args;

/// How long the peer may take to agree to the end.
const PARTING: Duration = Duration::from_secs(6);

/// Plays, and gives the exit status.
pub(crate) fn run(args: &Args) -> ExitCode {
    let played = if args.server { server::run(args) } else { client::run(args) };
    if !rdma_cm::finish(PARTING) {
        tracing::warn!(target: "rxe::cm", "the peer has not agreed to the end");
    }
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("urxe rping: {error}");
            ExitCode::FAILURE
        }
    }
}
