//! The side that connects. It sends back what it gets.

use ibverbs_api::SendOp;
use rdma_cm::{CmId, EventChannel};

use super::args::Args;
use super::connect::{channel_of_ends, connect_all, wait_for_ends};
use crate::cm::{CmError, Told, resolve_pair};

/// Connects, plays, and waits until the server ends the connections.
pub(super) fn run(args: &Args) -> Result<String, CmError> {
    let server = args.server.as_deref().unwrap_or_default();
    let (source, server) = resolve_pair(server, args.bind.as_deref(), args.port, args.format)?;
    let events = EventChannel::new()?;
    let mut ids = Vec::new();
    let start = || {
        let id = CmId::create(&events, args.port_space());
        id.resolve_addr(source, server)?;
        ids.push(id);
        Ok(())
    };
    let mut nodes = connect_all(args, &events, start)?;
    for node in &mut nodes {
        node.receive_all(&events, &mut Told::none_expected, None)?;
    }
    // Only now, as ucmatose does: its server first waits until all that it has sent is complete.
    for node in &nodes {
        node.send_back(SendOp::Send { imm: None })?;
    }
    // Whether that has arrived, the server knows, and ends the connections then.
    let events = channel_of_ends(args, events, &nodes)?;
    wait_for_ends(&events, nodes.len(), &[])?;
    Ok(args.outcome())
}
