//! The side that listens. It sends first, and ends the connections.

use ibverbs_api::SendOp;
use rdma_cm::{CmId, EventChannel};

use super::args::Args;
use super::connect::{channel_of_ends, connect_all, set_options, wait_for_ends};
use crate::cm::{CmError, Expected, Told, pattern, wildcard};

/// Waits for clients, plays, and ends the connections.
pub(super) fn run(args: &Args) -> Result<String, CmError> {
    let events = EventChannel::new()?;
    let listener = CmId::create(&events, args.port_space());
    set_options(args, &listener);
    let address = wildcard(args.bind.as_deref(), args.port, args.format)?;
    listener.bind_addr(address)?;
    listener.listen(0)?;
    eprintln!("waiting at {address} for {} connections", args.connections);
    let mut nodes = connect_all(args, &events, || Ok(()))?;
    // Nobody else is served.
    drop(listener);
    for (number, node) in nodes.iter_mut().enumerate() {
        let data = pattern(number, args.size);
        node.set_data(&data)?;
        // The client sends back what it got, which the C program does too: it has one buffer for both.
        node.expected = Some(Expected { from: 0, data });
        node.send(SendOp::Send { imm: None })?;
    }
    for node in &mut nodes {
        node.complete_sends(&events, &mut Told::none_expected)?;
        node.receive_all(&events, &mut Told::none_expected, None)?;
    }
    let events = channel_of_ends(args, events, &nodes)?;
    wait_for_ends(&events, nodes.len(), &nodes)?;
    Ok(args.outcome())
}
