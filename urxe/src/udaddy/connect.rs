//! Finding queue pairs, and being found.

use std::net::SocketAddr;

use ibverbs_api::Qpn;
use rdma_cm::{CmId, ConnParam, EventChannel, EventParam, EventType, RejReason};

use super::args::Args;
use crate::cm::{CmError, Path, Told};

/// Takes events until each of our queue pairs has found one of the server's; each begins by `start`.
pub(super) fn find_all(
    args: &Args,
    events: &EventChannel,
    mut start: impl FnMut() -> Result<(), CmError>,
) -> Result<Vec<Path>, CmError> {
    let count = args.connections as usize;
    (0..count).try_for_each(|_| start())?;
    let (mut paths, mut found) = (Vec::<Path>::new(), 0);
    while found < count {
        let told = Told::next(events)?;
        let id = &told.id;
        match (told.event, &told.param) {
            (EventType::AddrResolved, _) => {
                if let Some(tos) = args.tos {
                    id.set_service_type(tos);
                }
                id.resolve_route()?;
            }
            (EventType::RouteResolved, _) => {
                paths.push(Path::new(id, args.messages())?);
                id.connect(&ConnParam::default())?;
            }
            (EventType::Established, EventParam::Ud(there)) => {
                if let Some(path) = paths.iter_mut().find(|path| path.node.id == *id) {
                    path.set_peer(&there.av, there.qpn, there.qkey)?;
                }
                found += 1;
            }
            _ => return Err(told.unexpected(EventType::Established)),
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
    pub(super) fn on_event(&self, told: &Told) -> Result<(), CmError> {
        match told.event {
            EventType::ConnectRequest if self.repeat(&told.id)? => Ok(()),
            EventType::ConnectRequest => Ok(told.id.reject(&[], RejReason::CONSUMER_DEFINED)?),
            _ => told.none_expected(),
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
        let told = Told::expect(events, EventType::ConnectRequest)?;
        let id = &told.id;
        if answers.repeat(id)? {
            continue;
        }
        let path = Path::new(id, args.messages())?;
        answers.0.extend(id.peer_addr().map(|peer| (peer, path.node.qp.qpn())));
        // No event comes of it: who asks, knows now, or asks again.
        id.accept(&ConnParam::default())?;
        paths.push(path);
    }
    Ok((paths, answers))
}
