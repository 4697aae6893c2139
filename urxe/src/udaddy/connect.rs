//! Finding queue pairs, and being found.

use std::net::SocketAddr;

use ibverbs_api::{AddressVector, QKey, QpType, Qpn, SendOp};
use rdma_cm::{CmId, ConnParam, Event, EventChannel, EventParam, EventType, RejReason};

use super::args::Args;
use crate::cm::{AT_ONCE, CmError, Node, none_expected, unexpected};

/// One end, and where its messages go, once that is known.
pub(super) struct Path {
    pub(super) node: Node,
    pub(super) peer: Option<SendOp>,
}

impl Path {
    pub(super) fn new(args: &Args, id: &CmId, number: usize) -> Result<Self, CmError> {
        let node = Node::new(id.clone(), QpType::Ud, args.messages(), number)?;
        Ok(Self { node, peer: None })
    }

    /// Sets where its messages go. Each carries the number of our queue pair, for the answers.
    pub(super) fn set_peer(
        &mut self,
        av: &AddressVector,
        qpn: Qpn,
        qkey: QKey,
    ) -> Result<(), CmError> {
        let to = self.node.pd.create_ah(av)?.to(qpn, qkey);
        self.peer = Some(SendOp::SendTo { to, imm: Some(self.node.qp.qpn().get()) });
        Ok(())
    }
}

/// Takes events until each of our queue pairs has found one of the server's; each begins by `start`.
pub(super) fn find_all(
    args: &Args,
    events: &EventChannel,
    mut start: impl FnMut() -> Result<(), CmError>,
) -> Result<Vec<Path>, CmError> {
    let count = args.connections as usize;
    let mut to_start = 0..count;
    to_start.by_ref().take(AT_ONCE).try_for_each(|_| start())?;
    let (mut paths, mut found) = (Vec::<Path>::new(), 0);
    while found < count {
        let event = events.get()?;
        let id = event.id();
        match (event.event(), event.param()) {
            (EventType::AddrResolved, _) => {
                if let Some(tos) = args.tos {
                    id.set_service_type(tos);
                }
                id.resolve_route()?;
            }
            (EventType::RouteResolved, _) => {
                paths.push(Path::new(args, id, paths.len())?);
                id.connect(&ConnParam::default())?;
            }
            (EventType::Established, EventParam::Ud(there)) => {
                if let Some(path) = paths.iter_mut().find(|path| *path.node.id == *id) {
                    path.set_peer(&there.av, there.qpn, there.qkey)?;
                }
                found += 1;
                to_start.next().map_or(Ok(()), |_| start())?;
            }
            _ => return Err(unexpected(&event, EventType::Established)),
        }
    }
    Ok(paths)
}

/// Which of our queue pairs is whose. A peer that has not got our answer asks again, and gets the same
/// one.
#[derive(Debug, Default)]
pub(super) struct Answers(Vec<(SocketAddr, Qpn)>);

impl Answers {
    /// Answers a request that we have answered before; whether it is one.
    fn repeat(&self, id: &CmId) -> Result<bool, CmError> {
        let asker = id.peer_addr();
        let known = self.0.iter().find(|&&(peer, _)| Some(peer) == asker);
        let Some(&(_, qpn)) = known else { return Ok(false) };
        id.accept(&ConnParam { qpn, ..ConnParam::default() })?;
        Ok(true)
    }

    /// Takes an event of the time when all have their answer.
    pub(super) fn on_event(&self, event: &Event) -> Result<(), CmError> {
        match event.event() {
            EventType::ConnectRequest if self.repeat(event.id())? => Ok(()),
            EventType::ConnectRequest => Ok(event.id().reject(&[], RejReason::CONSUMER_DEFINED)?),
            _ => none_expected(event),
        }
    }
}

/// Takes requests until each of our queue pairs is somebody's.
pub(super) fn serve_all(
    args: &Args,
    events: &EventChannel,
) -> Result<(Vec<Path>, Answers), CmError> {
    let (mut paths, mut answers) = (Vec::new(), Answers::default());
    while paths.len() < args.connections as usize {
        let event = events.get()?;
        let id = event.id();
        if event.event() != EventType::ConnectRequest {
            return Err(unexpected(&event, EventType::ConnectRequest));
        }
        if answers.repeat(id)? {
            continue;
        }
        let path = Path::new(args, id, paths.len())?;
        answers.0.extend(id.peer_addr().map(|peer| (peer, path.node.qp.qpn())));
        // No event comes of it: who asks, knows now, or asks again.
        id.accept(&ConnParam::default())?;
        paths.push(path);
    }
    Ok((paths, answers))
}
