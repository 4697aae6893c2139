//! `urxe rping`: a ping-pong of SEND, READ and WRITE over a connection that the connection manager
//! makes; the counterpart of rdmacm-utils' `rping`, and an example of how rdma-cm is used.

mod args;
mod client;
mod end;
mod info;
mod pattern;
mod server;

use std::process::ExitCode;

pub(crate) use args::Args;

/// Plays, and gives the exit status.
pub(crate) fn run(args: &Args) -> ExitCode {
    let played = if args.server { server::run(args) } else { client::run(args) };
    crate::cm::end("rping", played.map(|()| None))
}
