//! What the programs of the connection manager share: `urxe rping`, `cmatose`, `udaddy` and `mckey`.
//!
//! [`Node`] is one end of a connection or of a datagram path, with what it sends and receives;
//! [`Queue`] waits for completions and events together, [`Told`] is an event; the rest is addresses
//! and errors. Which event is answered with which call is not here: it is what each program shows.

mod address;
mod error;
mod inbox;
mod node;
mod options;
mod path;
mod queue;
mod told;

use std::process::ExitCode;
use std::time::Duration;

pub(crate) use address::{Format, resolve, resolve_pair, wildcard};
pub(crate) use error::CmError;
pub(crate) use inbox::HEAD;
pub(crate) use node::{Expected, Messages, Node, pattern};
pub(crate) use options::{connections, port_space};
pub(crate) use path::Path;
pub(crate) use queue::{Queue, work_failed};
pub(crate) use told::Told;

/// How long the peer may take to agree to the end: four messages that ask for it, of which three may be
/// lost. (Under Linux the kernel goes on asking when the program is gone; here nobody does.)
const PARTING: Duration = Duration::from_secs(20);

/// Ends a program: waits until peers have agreed to the ends of connections, prints the outcome, and
/// gives the exit status.
pub(crate) fn end(program: &str, outcome: Result<Option<String>, CmError>) -> ExitCode {
    if !rdma_cm::finish(PARTING) {
        tracing::warn!(target: "rxe::cm", "the peer has not agreed to the end");
    }
    match outcome {
        Ok(text) => {
            if let Some(text) = text {
                println!("{text}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("urxe {program}: {error}");
            ExitCode::FAILURE
        }
    }
}
