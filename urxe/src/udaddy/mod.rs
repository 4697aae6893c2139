//! `urxe udaddy`: finds the queue pairs that serve datagrams at a host, and sends messages to and fro;
//! the counterpart of rdmacm-utils' `udaddy`.

mod args;
mod client;
mod connect;
mod server;

use std::process::ExitCode;
use std::time::Duration;

pub(crate) use args::Args;

/// How long the next datagram may take. It may be lost, and is not sent again.
const PATIENCE: Duration = Duration::from_secs(30);

/// Plays, and gives the exit status.
pub(crate) fn run(args: &Args) -> ExitCode {
    let played = if args.server.is_some() { client::run(args) } else { server::run(args) };
    crate::cm::end("udaddy", played.map(Some))
}
