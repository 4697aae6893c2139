//! What the caller asks for.

use rxe_core::Instant;
use rxe_wire::mad::cm::{
    AnsweredMessage, Bits, CmMessage, CommId, Drep, Dreq, Mra, Path, Rej, RejReason, Rep, Req, Rtu,
    ServiceId, TimeoutExponent, TransportService,
};
use rxe_wire::{Qpn, mad::cm::FixedBytes};

use super::connection::Connection;
use super::error::{CommandError, ConnectError, ListenError};
use super::event::CmEvent;
use super::listener::{ListenFor, ListenOn, ListenerId};
use super::param::{AcceptParam, ConnectParam};
use super::path::CmPath;
use super::state::{ConnState, Input, Reaction, reaction};
use super::{Answer, CmEngine};

/// What Linux writes where InfiniBand has LIDs: RoCE has none.
const NO_LID: u16 = 0xffff;
/// The only extended transport there is: XRC.
const EXTENDED_XRC: u8 = 1;
/// In a REP: alternate paths are not supported.
const FAILOVER_UNSUPPORTED: u8 = 1;

impl CmEngine {
    /// Listens for requests for a service (C: `ib_cm_listen`).
    ///
    /// `backlog` requests at most wait for [`Self::request_taken`]; more are dropped, and the peers
    /// try again.
    ///
    /// # Errors
    ///
    /// [`ListenError::Taken`].
    pub fn listen(
        &mut self,
        service: ServiceId,
        on: ListenOn,
        takes: ListenFor,
        backlog: usize,
    ) -> Result<ListenerId, ListenError> {
        self.listeners.add(service, on, takes, backlog)
    }

    /// Stops listening. Requests that came before go on; the caller refuses or destroys them.
    pub fn stop_listening(&mut self, listener: ListenerId) {
        self.listeners.remove(listener);
    }

    /// The owner of the listener has looked at the request `id`: it leaves the backlog.
    pub fn request_taken(&mut self, id: CommId) {
        let Some(mut connection) = self.take(id) else { return };
        self.leave_backlog(&mut connection);
        self.put_back(connection);
    }

    /// Asks for a connection: REQ (C: `ib_send_cm_req`).
    ///
    /// # Errors
    ///
    /// [`ConnectError`]; nothing was sent.
    pub fn connect(&mut self, now: Instant, param: &ConnectParam) -> Result<CommId, ConnectError> {
        if param.peer_to_peer {
            return Err(ConnectError::PeerToPeer);
        }
        if param.transport == TransportService::Rd {
            return Err(ConnectError::Transport(param.transport));
        }
        if let Some(&holder) = self.by_local_qpn.get(&param.qpn) {
            return Err(ConnectError::QpnInUse { qpn: param.qpn, holder });
        }
        let id = self.new_id().ok_or(ConnectError::TooMany(self.connections.len()))?;
        let tid = self.ids.transaction(id);
        let mut connection = Box::new(Connection::new(id, ConnState::Idle, param.path, tid));
        connection.ack_timeout = param.ack_timeout;
        connection.patience_nanos = patience(param.response_timeout, param.ack_timeout);
        connection.retries = param.max_cm_retries.get();
        connection.local_qpn = Some(param.qpn);
        connection.ece_options = param.ece.options;
        self.by_local_qpn.insert(param.qpn, id);
        self.enter(now, &mut connection, ConnState::ReqSent);
        let req = CmMessage::Req(self.req(id, param));
        self.send_until_answered(now, &mut connection, req, tid);
        self.put_back(connection);
        Ok(id)
    }

    /// An id that nobody has; `None` when there are too many.
    pub(super) fn new_id(&mut self) -> Option<CommId> {
        if self.connections.len() >= self.config.connections_max {
            return None;
        }
        self.ids.next(|id| self.connections.contains_key(&id))
    }

    fn req(&self, id: CommId, param: &ConnectParam) -> Req {
        let extended = param.transport == TransportService::Extended;
        Req {
            local_comm_id: id,
            vendor_id: param.ece.vendor_id,
            service_id: param.service_id,
            local_ca_guid: self.config.ca_guid,
            local_qpn: param.qpn,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            remote_response_timeout: param.response_timeout,
            service: param.transport,
            flow_control: param.flow_control,
            starting_psn: param.starting_psn,
            local_response_timeout: param.response_timeout,
            retry_count: param.retry_count,
            pkey: param.pkey,
            path_mtu: param.path_mtu,
            rnr_retry_count: param.rnr_retry_count,
            max_cm_retries: param.max_cm_retries,
            srq: param.srq,
            extended_transport: Bits::new(if extended { EXTENDED_XRC } else { 0 }),
            primary_path: path_record(&param.path, param.ack_timeout),
            private_data: param.private_data,
            ..Req::default()
        }
    }

    /// Accepts a connection: REP (C: `ib_send_cm_rep`).
    ///
    /// # Errors
    ///
    /// [`CommandError`]; nothing was sent.
    pub fn accept(
        &mut self,
        now: Instant,
        id: CommId,
        param: &AcceptParam,
    ) -> Result<(), CommandError> {
        let (mut connection, to) = self.command(id, Input::Accept)?;
        if let Some(&holder) = self.by_local_qpn.get(&param.qpn) {
            self.put_back(connection);
            return Err(CommandError::QpnInUse { qpn: param.qpn, holder });
        }
        let c = &mut *connection;
        c.local_qpn = Some(param.qpn);
        c.ece_options = param.ece.options;
        self.by_local_qpn.insert(param.qpn, id);
        self.leave_backlog(c);
        let rep = CmMessage::Rep(self.rep(c, param));
        self.enter(now, c, to);
        c.answer = Some(Answer { to: Input::Req, message: rep });
        let tid = c.tid;
        self.send_until_answered(now, c, rep, tid);
        self.put_back(connection);
        Ok(())
    }

    fn rep(&self, connection: &Connection, param: &AcceptParam) -> Rep {
        let alternate = connection.asked.is_some_and(|asked| asked.alternate);
        Rep {
            local_comm_id: connection.id,
            remote_comm_id: connection.remote_id_or_zero(),
            local_qpn: param.qpn,
            starting_psn: param.starting_psn,
            vendor_id: param.ece.vendor_id,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            target_ack_delay: self.config.ack_delay,
            failover_accepted: Bits::new(if alternate { FAILOVER_UNSUPPORTED } else { 0 }),
            flow_control: param.flow_control,
            rnr_retry_count: param.rnr_retry_count,
            srq: param.srq,
            local_ca_guid: self.config.ca_guid,
            private_data: param.private_data,
            ..Rep::default()
        }
    }

    /// Refuses a request or a response: REJ (C: `ib_send_cm_rej`). The connection stays idle, or in
    /// timewait, until it is destroyed.
    ///
    /// # Errors
    ///
    /// [`CommandError`]; nothing was sent.
    pub fn reject(
        &mut self,
        now: Instant,
        id: CommId,
        reason: RejReason,
        info: &[u8],
        private_data: &[u8],
    ) -> Result<(), CommandError> {
        let private_data = FixedBytes::new(private_data)?;
        FixedBytes::<72>::new(info)?;
        let (mut connection, to) = self.command(id, Input::Refuse)?;
        let about = message_refused_in(connection.state);
        let rej = Rej { private_data, ..Self::rej(&connection, about, reason, info) };
        self.send(connection.path, CmMessage::Rej(rej), connection.tid);
        self.enter(now, &mut connection, to);
        self.put_back(connection);
        Ok(())
    }

    /// Says that the answer to a REQ or REP takes longer: MRA (C: `ib_send_cm_mra`). If `delayed`,
    /// only once the message comes again, as Linux's connection manager does.
    ///
    /// # Errors
    ///
    /// [`CommandError`]; nothing was sent.
    pub fn hold(
        &mut self,
        now: Instant,
        id: CommId,
        service_timeout: TimeoutExponent,
        delayed: bool,
    ) -> Result<(), CommandError> {
        let (mut connection, to) = self.command(id, Input::Hold)?;
        let (answered, message) = match to {
            ConnState::MraReqSent => (Input::Req, AnsweredMessage::Req),
            _ => (Input::Rep, AnsweredMessage::Rep),
        };
        let mra = CmMessage::Mra(Mra {
            local_comm_id: id,
            remote_comm_id: connection.remote_id_or_zero(),
            message,
            service_timeout,
            ..Mra::default()
        });
        self.enter(now, &mut connection, to);
        if delayed {
            connection.answer = Some(Answer { to: answered, message: mra });
        } else {
            self.send_answer(&mut connection, answered, mra);
        }
        self.put_back(connection);
        Ok(())
    }

    /// Says that our queue pair is ready: RTU; the connection is established (C:
    /// `ib_send_cm_rtu`).
    ///
    /// # Errors
    ///
    /// [`CommandError`]; nothing was sent.
    pub fn ready(
        &mut self,
        now: Instant,
        id: CommId,
        private_data: &[u8],
    ) -> Result<(), CommandError> {
        let private_data = FixedBytes::new(private_data)?;
        let (mut connection, to) = self.command(id, Input::Ready)?;
        let remote_comm_id = connection.remote_id_or_zero();
        let rtu = CmMessage::Rtu(Rtu { local_comm_id: id, remote_comm_id, private_data });
        self.enter(now, &mut connection, to);
        self.send_answer(&mut connection, Input::Rep, rtu);
        self.put_back(connection);
        Ok(())
    }

    /// Our queue pair has heard from the peer's, so the RTU is on its way or lost: the connection is
    /// established (C: `ib_cm_notify`). Once more is no error.
    ///
    /// # Errors
    ///
    /// [`CommandError`].
    pub fn heard_from_peer(&mut self, now: Instant, id: CommId) -> Result<(), CommandError> {
        let (mut connection, to) = self.command(id, Input::Heard)?;
        if connection.state != to {
            self.enter(now, &mut connection, to);
            self.tell(&connection, CmEvent::Ready { id, rtu: None });
        }
        self.put_back(connection);
        Ok(())
    }

    /// Asks for the end of a connection: DREQ (C: `ib_send_cm_dreq`).
    ///
    /// # Errors
    ///
    /// [`CommandError`]; nothing was sent.
    pub fn disconnect(
        &mut self,
        now: Instant,
        id: CommId,
        private_data: &[u8],
    ) -> Result<(), CommandError> {
        let private_data = FixedBytes::new(private_data)?;
        let (mut connection, to) = self.command(id, Input::Part)?;
        self.part(now, &mut connection, to, private_data);
        self.put_back(connection);
        Ok(())
    }

    /// Sends a DREQ.
    pub(super) fn part(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        to: ConnState,
        private_data: FixedBytes<220>,
    ) {
        let dreq = CmMessage::Dreq(Dreq {
            local_comm_id: connection.id,
            remote_comm_id: connection.remote_id_or_zero(),
            remote_qpn: connection.peer_qp.map_or(Qpn::new(0), |peer| peer.qpn),
            private_data,
            ..Dreq::default()
        });
        if connection.is_orphan {
            connection.retries = connection.retries.min(self.config.orphan_retries_max);
        }
        self.enter(now, connection, to);
        let tid = self.ids.transaction(connection.id);
        self.send_until_answered(now, connection, dreq, tid);
    }

    /// Agrees to the end that the peer asked for: DREP (C: `ib_send_cm_drep`).
    ///
    /// # Errors
    ///
    /// [`CommandError`]; nothing was sent.
    pub fn agree(
        &mut self,
        now: Instant,
        id: CommId,
        private_data: &[u8],
    ) -> Result<(), CommandError> {
        let private_data = FixedBytes::new(private_data)?;
        let (mut connection, to) = self.command(id, Input::Agree)?;
        self.send_drep(&connection, private_data);
        self.enter(now, &mut connection, to);
        self.put_back(connection);
        Ok(())
    }

    /// Sends a DREP in the exchange that the peer's DREQ began.
    pub(super) fn send_drep(&mut self, connection: &Connection, private_data: FixedBytes<224>) {
        let remote_comm_id = connection.remote_id_or_zero();
        let drep = Drep { local_comm_id: connection.id, remote_comm_id, private_data };
        self.send(connection.path, CmMessage::Drep(drep), connection.tid);
    }

    /// Forgets a connection or lookup, whatever its state: the peer is told what it needs to know,
    /// and no event comes any more (C: `ib_destroy_cm_id`). Once more is no error.
    pub fn destroy(&mut self, now: Instant, id: CommId) {
        let Ok((mut connection, to)) = self.command(id, Input::Abandon) else { return };
        self.events.retain(|event| event.id() != id);
        let c = &mut *connection;
        c.is_orphan = true;
        let from = c.state;
        match from {
            ConnState::Established => self.part(now, c, to, FixedBytes::default()),
            ConnState::DreqReceived => {
                self.send_drep(c, FixedBytes::default());
                self.enter(now, c, to);
            }
            ConnState::ReqSent | ConnState::MraReqReceived => {
                self.send_timeout_rej(c);
                self.enter(now, c, to);
            }
            ConnState::SidrReqReceived => self.refuse_lookup(now, c, to),
            _ if reaction(from, Input::Refuse) != Reaction::No => {
                let about = message_refused_in(from);
                let rej = Self::rej(c, about, RejReason::CONSUMER_DEFINED, &[]);
                self.send(c.path, CmMessage::Rej(rej), c.tid);
                self.enter(now, c, to);
            }
            ConnState::SidrReqSent => self.enter(now, c, to),
            // DREQ sent, timewait, an answered lookup: they end by themselves. Idle: it has.
            _ => {
                if let Some(pending) = &mut c.pending {
                    let most = self.config.orphan_retries_max;
                    pending.retries_left = pending.retries_left.min(most);
                }
            }
        }
        self.put_back(connection);
    }

    /// Tells the peer that we do not wait for its REP any more. It may know us by our own id alone.
    fn send_timeout_rej(&mut self, connection: &Connection) {
        let guid = self.config.ca_guid.0.to_be_bytes();
        let rej = Self::rej(connection, AnsweredMessage::Req, RejReason::TIMEOUT, &guid);
        self.send(connection.path, CmMessage::Rej(rej), connection.tid);
    }

    /// Takes the connection of a command out, with the state that the command leads to.
    pub(super) fn command(
        &mut self,
        id: CommId,
        input: Input,
    ) -> Result<(Box<Connection>, ConnState), CommandError> {
        let connection = self.take(id).ok_or(CommandError::Unknown(id))?;
        let state = connection.state;
        // The caller has left it: for it, the connection is gone.
        let is_gone = connection.is_orphan;
        match reaction(state, input) {
            _ if is_gone => {
                self.put_back(connection);
                Err(CommandError::Unknown(id))
            }
            Reaction::To(to) => Ok((connection, to)),
            _ => {
                self.put_back(connection);
                Err(CommandError::State { state, input })
            }
        }
    }
}

/// Which message a REJ in this state is about.
pub(super) const fn message_refused_in(state: ConnState) -> AnsweredMessage {
    match state {
        ConnState::ReqReceived | ConnState::MraReqSent => AnsweredMessage::Req,
        ConnState::RepReceived | ConnState::MraRepSent => AnsweredMessage::Rep,
        _ => AnsweredMessage::Other,
    }
}

/// How long an answer may take: what the peer needs for it, and both ways of the path.
pub(super) const fn patience(response: TimeoutExponent, path: TimeoutExponent) -> u64 {
    response.ns() + path.ns()
}

/// A path as a REQ carries it.
fn path_record(path: &CmPath, ack_timeout: TimeoutExponent) -> Path {
    Path {
        local_lid: NO_LID,
        remote_lid: NO_LID,
        local_gid: path.local.raw(),
        remote_gid: path.remote.raw(),
        flow_label: rxe_wire::mad::cm::FlowLabel::new(path.flow_label),
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
        local_ack_timeout: ack_timeout,
        ..Path::default()
    }
}
