//! `urxe mckey`: joins a multicast group, and sends to it or receives from it; the counterpart of
//! rdmacm-utils' `mckey`.

mod args;
mod join;

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use rdma_cm::EventChannel;

pub(crate) use args::Args;

use crate::cm::{CmError, Path, Told};

/// How long a sender waits between joining and sending, as `mckey` does: receivers that are started at
/// the same time join meanwhile, and switches hear of them.
const SETTLE: Duration = Duration::from_secs(3);
/// How long the next datagram may take, once one has come. It may be lost, and is not sent again.
const PATIENCE: Duration = Duration::from_secs(30);

/// Plays, and gives the exit status.
pub(crate) fn run(args: &Args) -> ExitCode {
    crate::cm::end("mckey", play(args).map(Some))
}

fn play(args: &Args) -> Result<String, CmError> {
    if args.no_loopback {
        return Err(CmError::Loopback);
    }
    let events = EventChannel::new()?;
    let mut members = join::join_all(args, &events)?;
    if args.sender {
        send(&mut members, &events)?;
    } else {
        receive(args, &mut members, &events)?;
    }
    for member in &members {
        member.node.id.leave_multicast(args.group()?)?;
    }
    Ok(args.outcome())
}

fn send(members: &mut [Path], events: &EventChannel) -> Result<(), CmError> {
    thread::sleep(SETTLE);
    for member in &mut *members {
        if let Some(group) = member.peer {
            member.node.send(group)?;
        }
    }
    for member in members {
        member.node.complete_sends(events, &mut Told::none_expected)?;
    }
    Ok(())
}

fn receive(args: &Args, members: &mut [Path], events: &EventChannel) -> Result<(), CmError> {
    let count = args.messages().count;
    for member in members {
        // A sender may be started whenever its user likes.
        member.node.receive(count.min(1), events, &mut Told::none_expected, None)?;
        member.node.receive(count, events, &mut Told::none_expected, Some(PATIENCE))?;
    }
    Ok(())
}
