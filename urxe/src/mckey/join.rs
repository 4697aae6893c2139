//! Joining.

use std::net::SocketAddr;

use rdma_cm::{CmId, EventChannel, EventParam, EventType};

use super::args::Args;
use crate::cm::{CmError, Path, Told};

/// Takes events until all queue pairs have joined.
pub(super) fn join_all(args: &Args, events: &EventChannel) -> Result<Vec<Path>, CmError> {
    let (group, source) = (args.group()?, args.source()?);
    let (mut ids, mut members) = (Vec::new(), Vec::new());
    for _ in 0..args.connections {
        let id = CmId::create(events, args.space);
        match source {
            Some(source) if args.is_unmapped() => {
                id.bind_addr(source)?;
                members.push(join(args, &id)?);
            }
            source => id.resolve_addr(source, SocketAddr::new(group, 0))?,
        }
        ids.push(id);
    }
    let mut joined = 0;
    while joined < args.connections {
        let told = Told::next(events)?;
        match (told.event, &told.param) {
            (EventType::AddrResolved, _) => members.push(join(args, &told.id)?),
            (EventType::MulticastJoin, EventParam::Ud(there)) => {
                let member = members.iter_mut().find(|member| member.node.id == told.id);
                if let Some(member) = member {
                    member.set_peer(&there.av, there.qpn, there.qkey)?;
                }
                eprintln!("joined {}", there.av.dgid);
                joined += 1;
            }
            _ => return Err(told.unexpected(EventType::MulticastJoin)),
        }
    }
    Ok(members)
}

/// Makes a queue pair, and asks for it to be a member. All send the same data.
fn join(args: &Args, id: &CmId) -> Result<Path, CmError> {
    let member = Path::new(id, args.messages())?;
    member.node.set_data(&args.data())?;
    id.join_multicast(args.group()?, args.join_state())?;
    Ok(member)
}
