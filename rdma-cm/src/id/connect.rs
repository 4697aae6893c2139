//! Making and ending connections.

use std::sync::Arc;

use ibverbs_api::{AsyncEvent, QKey, QpType, Qpn};
use rxe_wire::PKey;
use rxe_wire::mad::cm::{
    Bits, CommId, FixedBytes, RejReason, ServiceId, SidrStatus, TransportService,
};

use super::{CmId, Phase, State, Watched};
use crate::address::{UDP_QKEY, ack_timeout, is_of_datagrams, request_data};
use crate::conn_param::ConnParam;
use crate::device::CmDevice;
use crate::engine::{AcceptParam, CmPath, ConnectParam, Ece, LookupAnswer, LookupParam};
use crate::error::IdError;

/// What a retry count of 3 bits can be.
const RETRIES_MAX: u8 = 7;

impl CmId {
    /// Asks the destination for a connection, or for the queue pair that serves there (C:
    /// `rdma_connect`).
    ///
    /// [`EventType::Established`](crate::EventType::Established) comes, or `ConnectResponse` where
    /// the identifier has no queue pair, or `Rejected`, `Unreachable` or `ConnectError`.
    ///
    /// # Errors
    ///
    /// [`IdError`]; nothing was sent.
    pub fn connect(&self, param: &ConnParam) -> Result<(), IdError> {
        let mut state = self.inner.state.lock();
        let (Phase::RouteResolved, Some(path), Some(device)) =
            (state.phase, state.path, state.device.clone())
        else {
            return Err(state.wrong());
        };
        let connection = if is_of_datagrams(self.inner.space) {
            self.look_up(&state, &device, path, param)?
        } else {
            self.ask(&mut state, &device, path, param)?
        };
        state.connection = Some(connection);
        state.phase = Phase::Connecting;
        Ok(())
    }

    /// Likewise, with what our device's vendor offers the peer's (C: `rdma_connect_ece`,
    /// `rdma_set_local_ece`).
    ///
    /// # Errors
    ///
    /// As [`Self::connect`].
    pub fn connect_ece(&self, param: &ConnParam, ece: Ece) -> Result<(), IdError> {
        self.set_local_ece(ece);
        self.connect(param)
    }

    fn ask(
        &self,
        state: &mut State,
        device: &Arc<CmDevice>,
        path: CmPath,
        param: &ConnParam,
    ) -> Result<CommId, IdError> {
        let (served, under_way) = reads(device, param, None)?;
        let (local, remote) = state.local.zip(state.remote).ok_or(IdError::NoDevice)?;
        let (qpn, srq) = named_qp(state, param)?;
        let private_data = request_data(local, remote.ip(), &param.private_data)?;
        let (response_timeout, max_cm_retries) = state.patience();
        let engine_config = device.with(|core, _| *core.engine.config());
        let path_ack_timeout =
            ack_timeout(state.options.packet_lifetime(), engine_config.ack_delay);
        (state.plan.responder_resources, state.plan.initiator_depth) = (served, under_way);
        state.plan.retry_cnt = param.retry_count.min(RETRIES_MAX);
        let request = ConnectParam {
            path,
            service_id: ServiceId::ip(self.inner.space, remote.port()),
            qpn,
            transport: transport(state.qp.as_ref().map_or(state.qp_type, |qp| qp.qp_type())),
            srq,
            starting_psn: state.plan.rq_psn,
            path_mtu: device.gsi().path_mtu(path.local),
            responder_resources: served,
            initiator_depth: under_way,
            flow_control: param.flow_control,
            retry_count: Bits::new(param.retry_count.min(RETRIES_MAX)),
            rnr_retry_count: Bits::new(param.rnr_retry_count.min(RETRIES_MAX)),
            pkey: PKey::DEFAULT,
            ack_timeout: path_ack_timeout,
            response_timeout,
            max_cm_retries,
            ece: state.local_ece,
            private_data,
            peer_to_peer: false,
        };
        let inner = Arc::downgrade(&self.inner);
        device.with(|core, now| {
            let id = core.engine.connect(now, &request)?;
            core.ids.insert(id, inner);
            Ok(id)
        })
    }

    fn look_up(
        &self,
        state: &State,
        device: &Arc<CmDevice>,
        path: CmPath,
        param: &ConnParam,
    ) -> Result<CommId, IdError> {
        let (local, remote) = state.local.zip(state.remote).ok_or(IdError::NoDevice)?;
        let (response_timeout, max_cm_retries) = state.patience();
        let lookup = LookupParam {
            path,
            service_id: ServiceId::ip(self.inner.space, remote.port()),
            pkey: PKey::DEFAULT,
            ack_timeout: state.options.packet_lifetime(),
            response_timeout,
            max_cm_retries,
            private_data: request_data(local, remote.ip(), &param.private_data)?,
        };
        let inner = Arc::downgrade(&self.inner);
        device.with(|core, now| {
            let id = core.engine.look_up(now, &lookup)?;
            core.ids.insert(id, inner);
            Ok(id)
        })
    }

    /// Completes a connection whose queue pair is the caller's, once that is ready to send (C:
    /// `rdma_establish`).
    ///
    /// # Errors
    ///
    /// [`IdError`] when the peer has not accepted.
    pub fn establish(&self) -> Result<(), IdError> {
        let mut state = self.inner.state.lock();
        if state.phase != Phase::Responded {
            return Err(state.wrong());
        }
        let (device, connection) = state.connection()?;
        device.with(|core, now| core.engine.ready(now, connection, &[]))?;
        state.phase = Phase::Connected;
        Ok(())
    }

    /// Accepts a request (C: `rdma_accept`). Its queue pair is made ready first.
    ///
    /// [`EventType::Established`](crate::EventType::Established) comes when the peer is ready too;
    /// of datagrams nothing comes.
    ///
    /// # Errors
    ///
    /// [`IdError`]. Where the identifier is in the wrong state, no queue pair is named or too many
    /// READs are asked for, nothing has happened. Whatever else is wrong, the peer is refused for it
    /// ([`RejReason::CONSUMER_DEFINED`]) and the queue pair goes to the error state, as in Linux: so
    /// nobody waits.
    pub fn accept(&self, param: &ConnParam) -> Result<(), IdError> {
        let mut state = self.inner.state.lock();
        if state.phase != Phase::Asked {
            return Err(state.wrong());
        }
        let (device, connection) = state.connection()?;
        let (qpn, srq) = named_qp(&state, param)?;
        let accepted = if is_of_datagrams(self.inner.space) {
            accept_lookup(&mut state, &device, connection, (qpn, param))
        } else {
            let asked = (state.plan.responder_resources, state.plan.initiator_depth);
            let reads = reads(&device, param, Some(asked))?;
            (state.plan.responder_resources, state.plan.initiator_depth) = reads;
            self.accept_connection(&mut state, &device, connection, (qpn, srq, param))
        };
        accepted.inspect_err(|error| {
            tracing::debug!(target: "rxe::cm", id = ?self, %error, "not accepted: refused");
            state.fail_qp();
            let reason = RejReason::CONSUMER_DEFINED;
            // Where that cannot be said either, the peer has given up: it is told next.
            if self.refuse(&mut state, &device, connection, (&[], reason)).is_ok() {
                state.phase = Phase::Over;
            }
        })
    }

    fn accept_connection(
        &self,
        state: &mut State,
        device: &CmDevice,
        connection: CommId,
        (qpn, srq, param): (Qpn, bool, &ConnParam),
    ) -> Result<(), IdError> {
        let acceptance = AcceptParam {
            qpn,
            srq,
            starting_psn: state.plan.rq_psn,
            responder_resources: state.plan.responder_resources,
            initiator_depth: state.plan.initiator_depth,
            flow_control: param.flow_control,
            rnr_retry_count: Bits::new(param.rnr_retry_count.min(RETRIES_MAX)),
            ece: state.local_ece,
            private_data: FixedBytes::new(&param.private_data)?,
        };
        state.make_qp_ready()?;
        let watched = state.qp.as_ref().and_then(|qp| Watched::new(self, qp));
        device.with(|core, now| core.engine.accept(now, connection, &acceptance))?;
        state.phase = Phase::Accepting;
        if let Some(watched) = watched {
            device.watch(watched);
        }
        Ok(())
    }

    /// Likewise, with what our device's vendor says to the peer's offer (C: `rdma_accept_ece`).
    ///
    /// # Errors
    ///
    /// As [`Self::accept`].
    pub fn accept_ece(&self, param: &ConnParam, ece: Ece) -> Result<(), IdError> {
        self.set_local_ece(ece);
        self.accept(param)
    }

    /// Sets what our device's vendor offers, before a connection is asked for or accepted (C:
    /// `rdma_set_local_ece`).
    pub fn set_local_ece(&self, ece: Ece) {
        self.inner.state.lock().local_ece = ece;
    }

    /// What the peer's vendor offers, once a request or a response of it has come (C:
    /// `rdma_get_remote_ece`, `struct rdma_cm_event`).
    pub fn remote_ece(&self) -> Option<Ece> {
        self.inner.state.lock().remote_ece
    }

    /// Refuses a request, or a response (C: `rdma_reject`).
    ///
    /// # Errors
    ///
    /// [`IdError`]; nothing was sent.
    pub fn reject(&self, private_data: &[u8], reason: RejReason) -> Result<(), IdError> {
        let mut state = self.inner.state.lock();
        let (device, connection) = state.connection()?;
        self.refuse(&mut state, &device, connection, (private_data, reason))?;
        state.phase = Phase::Over;
        Ok(())
    }

    fn refuse(
        &self,
        state: &mut State,
        device: &CmDevice,
        connection: CommId,
        (private_data, reason): (&[u8], RejReason),
    ) -> Result<(), IdError> {
        if is_of_datagrams(self.inner.space) {
            let mut answer = LookupAnswer::refusal(SidrStatus::REJECT);
            answer.private_data = FixedBytes::new(private_data)?;
            answer_lookup(device, connection, &answer)?;
            state.connection = None;
            return Ok(());
        }
        device.with(|core, now| core.engine.reject(now, connection, reason, &[], private_data))?;
        Ok(())
    }

    /// Ends a connection, or agrees to its end (C: `rdma_disconnect`): the queue pair goes to the
    /// error state. Once more is no error, nor is it where the device is gone, nor where there is no
    /// connection yet: then nothing is sent, as in Linux.
    ///
    /// # Errors
    ///
    /// [`IdError::State`] when none was asked for.
    pub fn disconnect(&self) -> Result<(), IdError> {
        self.part().map(drop)
    }

    /// Likewise; whether the end will be told of, or has been.
    pub(crate) fn part(&self) -> Result<bool, IdError> {
        let state = self.inner.state.lock();
        if is_of_datagrams(self.inner.space) {
            return Err(state.wrong());
        }
        let Ok((device, connection)) = state.connection() else {
            return match state.phase {
                Phase::Over | Phase::Removed => Ok(true),
                _ => Err(state.wrong()),
            };
        };
        state.fail_qp();
        let parts = device.with(|core, now| {
            core.engine.disconnect(now, connection, &[]).is_ok()
                // Where neither means anything, it has ended already or is being made.
                || core.engine.agree(now, connection, &[]).is_ok()
        });
        Ok(parts || matches!(state.phase, Phase::Connected | Phase::Over))
    }

    /// The error that says in which state it is.
    pub(crate) fn wrong(&self) -> IdError {
        self.inner.state.lock().wrong()
    }

    /// Tells of an event of the queue pair: that a message came before the connection was there
    /// ([`AsyncEvent::CommEst`]) makes it so (C: `rdma_notify`). Others mean nothing.
    ///
    /// # Errors
    ///
    /// [`IdError`] when no connection is being made.
    pub fn notify(&self, event: AsyncEvent) -> Result<(), IdError> {
        let (device, connection) = self.inner.state.lock().connection()?;
        if matches!(event, AsyncEvent::CommEst(_)) {
            device.with(|core, now| core.engine.heard_from_peer(now, connection))?;
        }
        Ok(())
    }

    /// The service id that stands for the port of an address (C: `rdma_get_service_id`).
    pub fn service_id(&self, port: u16) -> ServiceId {
        ServiceId::ip(self.inner.space, port)
    }
}

/// The queue pair that a connection gets, and whether it has a shared receive queue.
fn named_qp(state: &State, param: &ConnParam) -> Result<(Qpn, bool), IdError> {
    match &state.qp {
        Some(qp) => Ok((qp.qpn(), state.qp_has_srq.unwrap_or(param.srq))),
        None if param.qpn.get() > 1 => Ok((param.qpn, param.srq)),
        None => Err(IdError::NoQp),
    }
}

/// Accepts a lookup.
fn accept_lookup(
    state: &mut State,
    device: &CmDevice,
    lookup: CommId,
    (qpn, param): (Qpn, &ConnParam),
) -> Result<(), IdError> {
    let answer = LookupAnswer {
        status: SidrStatus::SUCCESS,
        qpn,
        qkey: answered_qkey(state, param.qkey)?,
        ece: state.local_ece,
        private_data: FixedBytes::new(&param.private_data)?,
    };
    answer_lookup(device, lookup, &answer)?;
    state.connection = None;
    state.phase = Phase::Connected;
    Ok(())
}

/// The queue key that a peer is told, which sends with it.
fn answered_qkey(state: &State, asked: QKey) -> Result<QKey, IdError> {
    // The program may have given its queue pair another one since.
    let of_qp = state.qp.as_ref().and_then(|qp| qp.query().ok()).map(|attr| QKey::new(attr.qkey));
    match (asked.get(), of_qp) {
        (0, Some(have)) => Ok(have),
        (0, None) => Ok(QKey::new(UDP_QKEY)),
        (_, Some(have)) if have != asked => Err(IdError::OtherQKey { asked, have }),
        _ => Ok(asked),
    }
}

/// Answers a lookup, which is then no more of ours.
fn answer_lookup(device: &CmDevice, lookup: CommId, answer: &LookupAnswer) -> Result<(), IdError> {
    device.with(|core, now| {
        core.engine.answer_lookup(now, lookup, answer)?;
        core.ids.remove(&lookup);
        Ok(())
    })
}

/// The transport of a queue pair.
pub(super) const fn transport(qp_type: QpType) -> TransportService {
    match qp_type {
        QpType::Uc => TransportService::Uc,
        QpType::XrcSend | QpType::XrcRecv => TransportService::Extended,
        _ => TransportService::Rc,
    }
}

/// How many READs at once are to be served and to be under way. The device can do so many, and of a
/// request `asked` is what the peer wants.
fn reads(
    device: &CmDevice,
    param: &ConnParam,
    asked: Option<(u8, u8)>,
) -> Result<(u8, u8), IdError> {
    let limits = device.context().query_device().limits;
    let count = |wanted: u8, most: u8, asked: Option<u8>| match wanted {
        ConnParam::AS_MANY_AS_CAN_BE => Ok(asked.map_or(most, |asked| asked.min(most))),
        asked if asked > most => Err(IdError::TooManyReads { asked, most }),
        fits => Ok(fits),
    };
    let served = param.responder_resources;
    let served = count(served, limits.max_qp_rd_atom, asked.map(|(served, _)| served))?;
    let under_way = param.initiator_depth;
    let under_way = count(under_way, limits.max_qp_init_rd_atom, asked.map(|(_, most)| most))?;
    Ok((served, under_way))
}
