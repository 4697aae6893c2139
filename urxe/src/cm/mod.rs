//! What the programs of the connection manager share: `urxe rping`, `cmatose`, `udaddy` and `mckey`.
//!
//! [`Node`] is one end of a connection or of a datagram path, with what it sends and receives;
//! [`Queue`] waits for completions and events together; the rest is addresses and errors. Which event is
//! answered with which call is not here: it is what each program shows.

mod address;
mod error;
mod inbox;
mod node;
mod options;
mod owned;
mod queue;

use std::process::ExitCode;
use std::time::Duration;

use rdma_cm::{Event, EventChannel, EventType, RejReason};
use rxe_wire::mad::cm::SidrStatus;

pub(crate) use address::{Format, resolve, resolve_pair, wildcard};
pub(crate) use error::CmError;
pub(crate) use inbox::HEAD;
pub(crate) use node::{Expected, Messages, Node, pattern};
pub(crate) use options::{AT_ONCE, connections, port_space};
pub(crate) use owned::Owned;
pub(crate) use queue::{Queue, work_failed};

/// How long the peer may take to agree to the end.
const PARTING: Duration = Duration::from_secs(6);

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

/// Waits for an event, which has to be `wanted`.
pub(crate) fn expect(events: &EventChannel, wanted: EventType) -> Result<Event, CmError> {
    let event = events.get()?;
    if event.event() == wanted { Ok(event) } else { Err(unexpected(&event, wanted)) }
}

/// For [`node::OnEvent`], where none should come.
pub(crate) fn none_expected(event: &Event) -> Result<(), CmError> {
    Err(unexpected(event, EventType::Disconnected))
}

/// What an event means that came where `wanted` was waited for.
pub(crate) fn unexpected(event: &Event, wanted: EventType) -> CmError {
    let status = event.status();
    match (event.event(), u16::try_from(status)) {
        (EventType::Disconnected, _) => CmError::Disconnected,
        (EventType::Rejected, reason) => {
            CmError::Refused { reason: RejReason(reason.unwrap_or(0)) }
        }
        (EventType::AddrError, _) => {
            CmError::NoWay(std::io::Error::from_raw_os_error(status.saturating_neg()))
        }
        (EventType::Unreachable, Ok(refusal)) if refusal > 0 => {
            CmError::NoService { status: SidrStatus(refusal.try_into().unwrap_or(u8::MAX)) }
        }
        (EventType::Unreachable, _) => CmError::NoAnswer,
        (event, _) => CmError::Event { event, status, wanted },
    }
}
