//! What an engine tells, told to the identifiers.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use ibverbs_api::{Gid, Mtu, QKey, QpType};
use rxe_wire::Qpn;
use rxe_wire::mad::cm::{
    CommId, PathMtu, RejReason, Rep, Req, ServiceId, SidrRep, SidrReq, SidrStatus, TransportService,
};

use crate::address::{Asker, MRA_TIMEOUT, NoAsker, ack_timeout, asker};
use crate::conn_param::{ConnParam, UdParam};
use crate::device::CmDevice;
use crate::engine::{CmEvent, CmPath, Ece, ListenerId};
use crate::error::IdError;
use crate::event::{EventParam, News};
use crate::event_type::EventType;
use crate::id::{CmId, Phase, State};
use crate::qp_plan::QpPeer;

/// The status of what had no answer.
const TIMED_OUT: i32 = -110;
/// The status of a program's queue pair that cannot be made ready, when nothing else is known.
const NO_DEVICE: i32 = -19;

/// Tells an event to whom it concerns.
pub(crate) fn dispatch(device: &Arc<CmDevice>, event: CmEvent) {
    match event {
        CmEvent::Request { listener, id, path, request, ece } => {
            on_request(device, listener, id, path, &request, ece);
        }
        CmEvent::Lookup { listener, id, path, request } => {
            on_lookup(device, listener, id, path, &request);
        }
        event => {
            let id = event.id();
            let found = device.with(|core, _| core.ids.get(&id).and_then(Weak::upgrade));
            let Some(inner) = found else { return };
            let id = CmId { inner };
            let mut state = id.inner.state.lock();
            // Another connection of the identifier, or it is destroyed.
            let is_gone = matches!(state.phase, Phase::Destroyed | Phase::Removed);
            if !is_gone && state.connection == Some(event.id()) {
                on_event(device, &id, &mut state, event);
            }
        }
    }
}

/// Whether an event still means something to its identifier: what the engine has told may have
/// waited here while the program, or an earlier event, has ended the connection.
fn is_news(state: &State, event: &CmEvent) -> bool {
    match event {
        CmEvent::Response { .. } | CmEvent::Found { .. } => state.phase == Phase::Connecting,
        CmEvent::Ready { .. } => state.phase == Phase::Accepting,
        CmEvent::Rejected { .. } | CmEvent::Unreachable { .. } => state.phase != Phase::Over,
        _ => true,
    }
}

fn on_event(device: &Arc<CmDevice>, id: &CmId, state: &mut State, event: CmEvent) {
    if !is_news(state, &event) {
        tracing::debug!(target: "rxe::cm", ?id, phase = state.phase.name(), "told too late");
        return;
    }
    match event {
        CmEvent::Response { id: connection, reply, ece } => {
            state.remote_ece = Some(ece);
            on_response(device, id, state, connection, &reply);
        }
        CmEvent::Ready { .. } => {
            state.phase = Phase::Connected;
            id.push(state, id.event(EventType::Established));
        }
        CmEvent::Rejected { rej, .. } => {
            state.fail_qp();
            state.phase = Phase::Over;
            let param = EventParam::Conn(ConnParam {
                private_data: rej.private_data.0.to_vec(),
                ..nothing()
            });
            let event = id.event(EventType::Rejected).with_status(rej.reason.0.into());
            id.push(state, event.with_param(param));
        }
        CmEvent::Unreachable { .. } => {
            state.fail_qp();
            state.phase = Phase::Over;
            id.push(state, id.event(EventType::Unreachable).with_status(TIMED_OUT));
        }
        CmEvent::Disconnecting { .. } | CmEvent::Disconnected { .. } => on_end(id, state, 0),
        CmEvent::NotAnswered { .. } => on_end(id, state, TIMED_OUT),
        CmEvent::TimewaitExit { id: connection } => {
            state.connection = None;
            state.phase = Phase::Over;
            device.with(|core, _| core.ids.remove(&connection));
            // As in Linux: after a refusal there is timewait too, of which nothing is told.
            if state.was_told_of_end {
                id.push(state, id.event(EventType::TimewaitExit));
            }
        }
        CmEvent::Found { reply, ece, .. } => {
            state.remote_ece = Some(ece);
            on_found(device, id, state, &reply);
        }
        // These make identifiers, and are not of any.
        CmEvent::Request { .. } | CmEvent::Lookup { .. } => {}
    }
}

/// The end of a connection is told once.
fn on_end(id: &CmId, state: &mut State, status: i32) {
    state.phase = Phase::Over;
    if !std::mem::replace(&mut state.was_told_of_end, true) {
        id.push(state, id.event(EventType::Disconnected).with_status(status));
    }
}

/// The listener, if it is there and listens.
fn listener_of(device: &CmDevice, listener: ListenerId) -> Option<CmId> {
    let inner = device.with(|core, _| core.listeners.get(&listener).and_then(Weak::upgrade))?;
    Some(CmId { inner })
}

fn on_request(
    device: &Arc<CmDevice>,
    listener: ListenerId,
    connection: CommId,
    path: CmPath,
    request: &Req,
    ece: Ece,
) {
    let destroy = || device.with(|core, now| core.engine.destroy(now, connection));
    let Some(listener) = listener_of(device, listener) else { return destroy() };
    let (asker, av) = match asker_at(&path, request.service_id, &request.private_data.0) {
        Ok(asker) => match device.gsi().address_vector(&path) {
            Some(av) => (asker, av),
            None => return destroy(),
        },
        Err(why) => {
            tracing::debug!(target: "rxe::cm", %why, "request refused");
            return destroy();
        }
    };
    let most = device.gsi().path_mtu(path.local);
    if request.path_mtu.bytes() > most.bytes() {
        // What another port of the device could do, so that the engine let it pass.
        device.with(|core, now| {
            let info = [most.0.get()];
            let _ = core.engine.reject(now, connection, RejReason::INVALID_MTU, &info, &[]);
        });
        return destroy();
    }
    let id = listener.of_request(device, connection, path, (asker.source, asker.destination));
    device.with(|core, now| {
        core.ids.insert(connection, Arc::downgrade(&id.inner));
        // The requester is told to wait if it asks again, as Linux does. The engine has the
        // request still, unless the requester has taken it back.
        let _ = core.engine.hold(now, connection, MRA_TIMEOUT, true);
    });
    {
        let mut state = id.inner.state.lock();
        state.remote_ece = Some(ece);
        state.qp_type = match request.service {
            TransportService::Uc => QpType::Uc,
            TransportService::Extended => QpType::XrcRecv,
            _ => QpType::Rc,
        };
        state.plan.peer = Some(QpPeer {
            av,
            qpn: request.local_qpn,
            sq_psn: request.starting_psn,
            path_mtu: mtu(request.path_mtu),
        });
        state.plan.timeout = request.primary_path.local_ack_timeout.get();
        state.plan.retry_cnt = request.retry_count.get();
        state.plan.rnr_retry = request.rnr_retry_count.get();
        state.plan.responder_resources = request.initiator_depth;
        state.plan.initiator_depth = request.responder_resources;
    }
    let param = ConnParam {
        private_data: asker.data.to_vec(),
        // What the peer wants to have under way, we are to serve.
        responder_resources: request.initiator_depth,
        initiator_depth: request.responder_resources,
        flow_control: request.flow_control,
        retry_count: request.retry_count.get(),
        rnr_retry_count: request.rnr_retry_count.get(),
        srq: request.srq,
        qpn: request.local_qpn,
        ..nothing()
    };
    tell_listener(&listener, id, EventParam::Conn(param));
}

/// Tells a listener of a request, unless it has stopped; then the request is dropped with `id`.
fn tell_listener(listener: &CmId, id: CmId, param: EventParam) {
    let state = listener.inner.state.lock();
    if state.phase == Phase::Listening {
        listener.take_along(&id);
        listener.push(&state, News::request(id, listener, param));
    }
}

/// Who connects to whom, if it is those between whom the packet came. Linux looks whether packets to
/// who is named would leave by that interface, and refuses likewise; the addresses in the packet are
/// what the connection goes by, so a name that is not one of them names somebody else.
fn asker_at<'a>(path: &CmPath, service: ServiceId, data: &'a [u8]) -> Result<Asker<'a>, NoAsker> {
    let asker = asker(service, data)?;
    for (named, came) in [(asker.source, path.remote), (asker.destination, path.local)] {
        if Gid::from_ip(named.ip()) != came {
            return Err(NoAsker::Somebody { named: named.ip(), came });
        }
    }
    Ok(asker)
}

fn on_response(
    device: &Arc<CmDevice>,
    id: &CmId,
    state: &mut State,
    connection: CommId,
    reply: &Rep,
) {
    let way = state.path.and_then(|path| Some((path, device.gsi().address_vector(&path)?)));
    let Some((path, av)) = way else {
        // The address that it was asked from is gone.
        return refuse_response(device, id, state, connection, NO_DEVICE);
    };
    let own_mtu = device.gsi().path_mtu(path.local);
    state.plan.peer = Some(QpPeer {
        av,
        qpn: reply.local_qpn,
        sq_psn: reply.starting_psn,
        path_mtu: mtu(own_mtu),
    });
    // What the peer serves, we may have under way, and the other way round.
    state.plan.initiator_depth = reply.responder_resources;
    state.plan.responder_resources = reply.initiator_depth;
    state.plan.rnr_retry = reply.rnr_retry_count.get();
    state.plan.timeout = ack_timeout(state.options.packet_lifetime(), reply.target_ack_delay).get();
    let param = EventParam::Conn(ConnParam {
        private_data: reply.private_data.0.to_vec(),
        responder_resources: reply.initiator_depth,
        initiator_depth: reply.responder_resources,
        flow_control: reply.flow_control,
        retry_count: 0,
        rnr_retry_count: reply.rnr_retry_count.get(),
        srq: reply.srq,
        qpn: reply.local_qpn,
        ..nothing()
    });
    if state.qp.is_none() {
        state.phase = Phase::Responded;
        device.with(|core, now| {
            // It may have ended meanwhile; then that is told next.
            let _ = core.engine.hold(now, connection, MRA_TIMEOUT, true);
        });
        return id.push(state, id.event(EventType::ConnectResponse).with_param(param));
    }
    let made = state.make_qp_ready().and_then(|()| {
        device.with(|core, now| core.engine.ready(now, connection, &[])).map_err(IdError::from)
    });
    match made {
        Ok(()) => {
            state.phase = Phase::Connected;
            id.push(state, id.event(EventType::Established).with_param(param));
        }
        Err(error) => {
            tracing::warn!(target: "rxe::cm", %error, "connection refused");
            refuse_response(device, id, state, connection, -error.errno());
        }
    }
}

/// Something of ours has failed after the peer has accepted: both are told.
fn refuse_response(
    device: &CmDevice,
    id: &CmId,
    state: &mut State,
    connection: CommId,
    status: i32,
) {
    state.fail_qp();
    state.phase = Phase::Over;
    device.with(|core, now| {
        let reason = RejReason::CONSUMER_DEFINED;
        // It may have ended meanwhile, which is as good.
        let _ = core.engine.reject(now, connection, reason, &[], &[]);
    });
    id.push(state, id.event(EventType::ConnectError).with_status(status));
}

fn on_lookup(
    device: &Arc<CmDevice>,
    listener: ListenerId,
    connection: CommId,
    path: CmPath,
    request: &SidrReq,
) {
    let destroy = || device.with(|core, now| core.engine.destroy(now, connection));
    let Some(listener) = listener_of(device, listener) else { return destroy() };
    let asker = match asker_at(&path, request.service_id, &request.private_data.0) {
        Ok(asker) => asker,
        Err(why) => {
            tracing::debug!(target: "rxe::cm", %why, "lookup refused");
            return destroy();
        }
    };
    let addresses: (SocketAddr, SocketAddr) = (asker.source, asker.destination);
    let id = listener.of_request(device, connection, path, addresses);
    device.with(|core, _| core.ids.insert(connection, Arc::downgrade(&id.inner)));
    let Some(av) = device.gsi().address_vector(&path) else { return };
    let param = UdParam {
        private_data: asker.data.to_vec(),
        av,
        // Who asks does not say which queue pair it will send from.
        qpn: Qpn::new(0),
        qkey: QKey::new(0),
    };
    tell_listener(&listener, id, EventParam::Ud(param));
}

fn on_found(device: &Arc<CmDevice>, id: &CmId, state: &mut State, reply: &SidrRep) {
    let av = state.path.and_then(|path| device.gsi().address_vector(&path));
    let Some(av) = av else {
        state.phase = Phase::Over;
        return id.push(state, id.event(EventType::Unreachable).with_status(NO_DEVICE));
    };
    // Who refuses may say why, too.
    let param = EventParam::Ud(UdParam {
        private_data: reply.private_data.0.to_vec(),
        av,
        qpn: reply.qpn,
        qkey: reply.qkey,
    });
    let event = if reply.status == SidrStatus::SUCCESS {
        state.phase = Phase::Connected;
        id.event(EventType::Established)
    } else {
        state.phase = Phase::Over;
        id.event(EventType::Unreachable).with_status(reply.status.0.into())
    };
    id.push(state, event.with_param(param));
}

/// Parameters that say nothing.
fn nothing() -> ConnParam {
    ConnParam {
        private_data: Vec::new(),
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: false,
        retry_count: 0,
        rnr_retry_count: 0,
        srq: false,
        qpn: Qpn::new(0),
        qkey: QKey::new(0),
    }
}

/// A path MTU as the verbs number it. The engine lets no other codes through.
fn mtu(code: PathMtu) -> Mtu {
    let bytes = code.bytes().map_or(0, usize::from);
    Mtu::from_bytes(bytes).unwrap_or(Mtu::M256)
}

#[cfg(test)]
mod tests {
    use rxe_wire::mad::cm::{Bits, FixedBytes, PortSpace};

    use super::*;
    use crate::address::request_data;

    #[test]
    fn who_asks_is_who_has_sent_it() {
        let service = ServiceId::ip(PortSpace::Tcp, 7);
        let gid = |ip: &str| Gid::from_ip(ip.parse().unwrap());
        let path = CmPath::new(gid("10.0.0.1"), gid("10.0.0.2"));
        let named = |source: &str, destination: &str| -> FixedBytes<92> {
            request_data(source.parse().unwrap(), destination.parse().unwrap(), b"x").unwrap()
        };
        let data = named("10.0.0.2:9", "10.0.0.1").0;
        let asker = asker_at(&path, service, &data).unwrap();
        assert_eq!(asker.source, "10.0.0.2:9".parse().unwrap());
        // In the other form of the same address too.
        assert!(asker_at(&path, service, &named("[::ffff:10.0.0.2]:9", "10.0.0.1").0).is_ok());
        for (source, destination) in [("10.0.0.3:9", "10.0.0.1"), ("10.0.0.2:9", "10.0.0.4")] {
            let error = asker_at(&path, service, &named(source, destination).0).unwrap_err();
            assert!(matches!(error, NoAsker::Somebody { .. }), "{error}");
        }
    }

    #[test]
    fn path_mtus_are_those_of_the_verbs() {
        for known in Mtu::ALL {
            assert_eq!(mtu(PathMtu(Bits::new(known as u8))), known);
        }
    }
}
