//! `urxe cmatose`: many connections at once, and messages to and fro on each; the counterpart of
//! rdmacm-utils' `ucmatose`, and an example of how events of many identifiers are answered.

mod args;
mod client;
mod connect;
mod server;

use std::process::ExitCode;

pub(crate) use args::Args;

/// Plays, and gives the exit status.
pub(crate) fn run(args: &Args) -> ExitCode {
    let played = if args.server.is_some() { client::run(args) } else { server::run(args) };
    crate::cm::end("cmatose", played.map(Some))
}
