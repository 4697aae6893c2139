//! Making connections, of both sides, and ending them.

use ibverbs_api::QpType;
use rdma_cm::{CmId, ConnParam, EventChannel, EventType, RejReason};

use super::args::Args;
use crate::cm::{CmError, Node, Told};

/// What a connection of `ucmatose` asks for: nothing that is missing at the peer is waited for, since all
/// receives are posted before.
fn conn_param() -> ConnParam {
    ConnParam { retry_count: 5, rnr_retry_count: 0, ..ConnParam::default() }
}

/// Takes events until all connections are there, and gives their ends. A client begins each by `start`.
pub(super) fn connect_all(
    args: &Args,
    events: &EventChannel,
    mut start: impl FnMut() -> Result<(), CmError>,
) -> Result<Vec<Node>, CmError> {
    let count = args.connections as usize;
    (0..count).try_for_each(|_| start())?;
    let (mut nodes, mut established) = (Vec::new(), 0);
    while established < count {
        let told = Told::next(events)?;
        let id = &told.id;
        match told.event {
            EventType::AddrResolved => {
                set_options(args, id);
                id.resolve_route()?;
            }
            EventType::RouteResolved => {
                nodes.push(Node::new(id.clone(), QpType::Rc, args.messages())?);
                id.connect(&conn_param())?;
            }
            EventType::ConnectRequest if nodes.len() == count => {
                id.reject(&[], RejReason::CONSUMER_DEFINED)?;
            }
            EventType::ConnectRequest => {
                nodes.push(Node::new(id.clone(), QpType::Rc, args.messages())?);
                id.accept(&conn_param())?;
            }
            EventType::Established => established += 1,
            _ => return Err(told.unexpected(EventType::Established)),
        }
    }
    Ok(nodes)
}

/// Sets what the arguments say of an identifier, of a listener or one that will connect.
pub(super) fn set_options(args: &Args, id: &CmId) {
    if let Some(tos) = args.tos {
        id.set_service_type(tos);
    }
    if let Some(timeout) = args.ack_timeout {
        id.set_ack_timeout(timeout);
    }
}

/// The channel of the connections' ends: with `-m` another one.
pub(super) fn channel_of_ends(
    args: &Args,
    events: EventChannel,
    nodes: &[Node],
) -> Result<EventChannel, CmError> {
    if !args.migrate {
        return Ok(events);
    }
    let other = EventChannel::new()?;
    nodes.iter().for_each(|node| node.id.migrate(&other));
    Ok(other)
}

/// Waits until all connections have ended, and agrees to each. `to_end` are those that we end.
pub(super) fn wait_for_ends(
    events: &EventChannel,
    count: usize,
    to_end: &[Node],
) -> Result<(), CmError> {
    to_end.iter().try_for_each(|node| node.id.disconnect())?;
    let mut ended = 0;
    while ended < count {
        let told = Told::next(events)?;
        match told.event {
            EventType::Disconnected => {
                told.id.disconnect()?;
                ended += 1;
            }
            EventType::TimewaitExit => {}
            _ => return Err(told.unexpected(EventType::Disconnected)),
        }
    }
    Ok(())
}
