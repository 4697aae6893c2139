//! `urxe gids --follow`: the events of a device as they come, each with the tables as they are then.

use std::io::Write;
use std::time::Duration;

use ibverbs_api::{AsyncEvent, Context, WaitError};
use serde_json::{Value, json};

use super::GidsError;
use super::report::Report;

/// How long one waiting lasts; then the next one begins.
const WAITING: Duration = Duration::from_secs(3600);

/// Tells of all events until the device is lost.
pub(super) fn follow(context: &Context, json: bool, out: &mut impl Write) -> Result<(), GidsError> {
    tell(context, None, json, out)?;
    loop {
        let event = match context.wait_event(WAITING) {
            Ok(event) => event,
            Err(WaitError::TimedOut(_)) => continue,
            Err(error) => return Err(error.into()),
        };
        tell(context, Some(event), json, out)?;
        if event == AsyncEvent::DeviceFatal {
            return Ok(());
        }
    }
}

fn tell(
    context: &Context,
    event: Option<AsyncEvent>,
    json: bool,
    out: &mut impl Write,
) -> Result<(), GidsError> {
    let reports = Report::of_ports(context)?;
    if json {
        let ports: Value = reports.iter().map(Report::to_json).collect();
        let line = json!({ "event": event.map(event_name), "ports": ports });
        writeln!(out, "{line}")?;
    } else {
        if let Some(event) = event {
            writeln!(out, "{} ({event})", event_name(event))?;
        }
        for report in reports {
            writeln!(out, "{report}")?;
        }
    }
    Ok(out.flush()?)
}

/// The name in C, without `IBV_EVENT_`; of the events that have nothing to do with ports, which
/// cannot come where there is neither a queue nor a queue pair, in words.
fn event_name(event: AsyncEvent) -> &'static str {
    match event {
        AsyncEvent::DeviceFatal => "DEVICE_FATAL",
        AsyncEvent::PortActive(_) => "PORT_ACTIVE",
        AsyncEvent::PortErr(_) => "PORT_ERR",
        AsyncEvent::PKeyChange(_) => "PKEY_CHANGE",
        AsyncEvent::GidChange(_) => "GID_CHANGE",
        other => other.as_str(),
    }
}
