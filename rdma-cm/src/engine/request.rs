//! REQs: which are refused, and why; and the connections that the others make.
//!
//! Reasons that are not here do not arise on RoCE, or are the owner's to give: there are no EE
//! contexts and no RD (2, 11; a REQ for RD has the wrong transport, 9), no LIDs (13, 19), no
//! redirection (24, 25); every service level, traffic class, hop limit, rate, flow label and RNR
//! retry count is good (14 to 17, 20 to 23, 29, 32, 33), alternate paths are answered with
//! "failover not supported" in the REP (18), vendors' options are passed on (35); queue pairs and
//! their resources are the owner's (1, 27, 28).

use rxe_core::Instant;
use rxe_wire::Qpn;
use rxe_wire::mad::cm::{
    AnsweredMessage, Bits, CmMessage, CommId, FixedBytes, Rej, RejReason, Req, TransportService,
};
use rxe_wire::mad::{AttributeId, Mad, TransactionId};

use super::CmEngine;
use super::command::patience;
use super::connection::{Asked, Connection, PeerId, PeerQp};
use super::error::Ignored;
use super::event::CmEvent;
use super::listener::{ListenFor, ListenerId};
use super::param::Ece;
use super::path::CmPath;
use super::state::{ConnState, Input, Reaction, reaction};

/// Why a REQ is refused, with the additional information that goes with it.
struct Refusal {
    reason: RejReason,
    info: Vec<u8>,
}

impl Refusal {
    const fn new(reason: RejReason) -> Self {
        Self { reason, info: Vec::new() }
    }
}

impl CmEngine {
    /// A peer asks for a connection.
    pub(super) fn on_req(
        &mut self,
        now: Instant,
        path: &CmPath,
        (tid, options): (TransactionId, u32),
        req: &Req,
    ) -> Result<(), Ignored> {
        let (gid, guid) = (path.remote, req.local_ca_guid);
        let peer = PeerId { gid, guid, id: req.local_comm_id, is_lookup: false };
        if let Some(&id) = self.by_peer_id.get(&peer) {
            return self.on_req_again(path, tid, req, id);
        }
        let peer_qp = PeerQp { gid, guid, qpn: req.local_qpn };
        let checked = match self.by_peer_qp.get(&peer_qp).copied() {
            Some(old) => {
                self.end_stale(now, old);
                Err(Refusal::new(RejReason::STALE_CONNECTION))
            }
            None => self.check_req(path, req),
        };
        let listener = match checked {
            Ok(listener) => listener,
            Err(refusal) => {
                self.refuse_req(path, tid, req.local_comm_id, &refusal);
                return Ok(());
            }
        };
        let Some(entry) = self.listeners.get_mut(listener) else { return Err(Ignored::Unknown) };
        // Linux does not refuse it either: the requester will ask again.
        if entry.waiting >= entry.backlog {
            return Err(Ignored::BacklogFull);
        }
        let Some(id) = self.new_id() else {
            self.refuse_req(path, tid, req.local_comm_id, &Refusal::new(RejReason::NO_RESOURCES));
            return Ok(());
        };
        if let Some(entry) = self.listeners.get_mut(listener) {
            entry.waiting += 1;
        }
        self.make_asked(id, path, (tid, options), req, (peer, peer_qp), listener);
        Ok(())
    }

    fn make_asked(
        &mut self,
        id: CommId,
        path: &CmPath,
        (tid, options): (TransactionId, u32),
        req: &Req,
        (peer, peer_qp): (PeerId, PeerQp),
        listener: ListenerId,
    ) {
        let mut path = *path;
        // What the peer says of the way between us holds for both directions.
        path.traffic_class = req.primary_path.traffic_class;
        path.flow_label = req.primary_path.flow_label.get();
        path.hop_limit = req.primary_path.hop_limit.max(1);
        let mut connection = Box::new(Connection::new(id, ConnState::ReqReceived, path, tid));
        connection.remote_id = Some(req.local_comm_id);
        connection.peer_id = Some(peer);
        connection.peer_qp = Some(peer_qp);
        connection.asked = Some(Asked::of(req));
        connection.in_backlog_of = Some(listener);
        connection.ack_timeout = req.primary_path.local_ack_timeout;
        connection.patience_nanos = patience(req.local_response_timeout, connection.ack_timeout);
        connection.retries = req.max_cm_retries.get();
        self.by_peer_id.insert(peer, id);
        self.by_peer_qp.insert(peer_qp, id);
        let request = Box::new(*req);
        let ece = Ece { vendor_id: req.vendor_id, options };
        self.tell(&connection, CmEvent::Request { listener, id, path, request, ece });
        self.put_back(connection);
    }

    /// A REQ whose id the peer has used before: the same one, or one that reuses the id too early.
    fn on_req_again(
        &mut self,
        path: &CmPath,
        tid: TransactionId,
        req: &Req,
        id: CommId,
    ) -> Result<(), Ignored> {
        let Some(connection) = self.connections.get(&id) else { return Err(Ignored::Unknown) };
        let is_same = connection.asked == Some(Asked::of(req));
        if !is_same && connection.state != ConnState::TimeWait {
            let refusal = Refusal::new(RejReason::DUPLICATE_LOCAL_COMM_ID);
            self.refuse_req(path, tid, req.local_comm_id, &refusal);
            return Ok(());
        }
        self.on_known_request(path, tid, id, Input::Req)
    }

    /// A REQ or SIDR_REQ that came before, or whose id did.
    pub(super) fn on_known_request(
        &mut self,
        path: &CmPath,
        tid: TransactionId,
        id: CommId,
        input: Input,
    ) -> Result<(), Ignored> {
        let connection = self.take_of_peer(path, id)?;
        let result = match reaction(connection.state, input) {
            Reaction::Again => self.answer_again(&connection, input),
            Reaction::RejectStale => {
                let reason = RejReason::STALE_CONNECTION;
                let rej = Self::rej(&connection, AnsweredMessage::Req, reason, &[]);
                // In the exchange of this REQ, which may be another than made the connection.
                self.send(connection.path, CmMessage::Rej(rej), tid);
                Ok(())
            }
            Reaction::Known => Err(Ignored::Known),
            _ => Err(Ignored::State(connection.state)),
        };
        self.put_back(connection);
        result
    }

    /// Who is to decide about a REQ, or why it is refused.
    fn check_req(&self, path: &CmPath, req: &Req) -> Result<ListenerId, Refusal> {
        let primary = &req.primary_path;
        if primary.remote_gid != path.local.raw() || primary.local_gid != path.remote.raw() {
            // It is told the address that it reached.
            let info = path.local.raw().to_vec();
            return Err(Refusal { reason: RejReason::INVALID_GID, info });
        }
        if [0, 1, 0xff_ffff].map(Qpn::new).contains(&req.local_qpn) {
            return Err(Refusal::new(RejReason::UNSUPPORTED));
        }
        let listener = self
            .listeners
            .find(req.service_id, path.local)
            .ok_or(Refusal::new(RejReason::INVALID_SERVICE_ID))?;
        if !self.takes(listener, req) {
            return Err(Refusal::new(RejReason::INVALID_TRANSPORT_TYPE));
        }
        let most = self.config.path_mtu_max;
        let fits = req.path_mtu.bytes().is_some_and(|mtu| most.bytes().is_some_and(|m| mtu <= m));
        if !fits {
            return Err(Refusal { reason: RejReason::INVALID_MTU, info: vec![most.0.get()] });
        }
        Ok(listener)
    }

    /// Whether a listener takes connections of the transport that a REQ wants.
    fn takes(&self, listener: ListenerId, req: &Req) -> bool {
        let is_there = match req.service {
            TransportService::Rc | TransportService::Uc => true,
            TransportService::Rd => false,
            TransportService::Extended => req.extended_transport.get() == 1,
        };
        is_there
            && match self.listeners.takes(listener) {
                Some(ListenFor::AnyConnections) => true,
                Some(ListenFor::Connections(transport)) => transport == req.service,
                Some(ListenFor::Lookups) | None => false,
            }
    }

    fn refuse_req(&mut self, path: &CmPath, tid: TransactionId, id: CommId, refusal: &Refusal) {
        let mut info = FixedBytes::default();
        info.0[..refusal.info.len()].copy_from_slice(&refusal.info);
        let rej = Rej {
            remote_comm_id: id,
            message: AnsweredMessage::Req,
            reason: refusal.reason,
            info_len: Bits::new(refusal.info.len() as u8),
            info,
            ..Rej::default()
        };
        self.send(*path, CmMessage::Rej(rej), tid);
    }

    /// A REQ of a class version that is not spoken here is refused; anything else of it is not
    /// understood.
    pub(super) fn refuse_class_version(&mut self, path: &CmPath, mad: &Mad<'_>) {
        if mad.header.attribute_id != AttributeId::CM_REQ {
            return;
        }
        let Some(id) = mad.data.first_chunk() else { return };
        let id = CommId(u32::from_be_bytes(*id));
        let refusal = Refusal::new(RejReason::INVALID_CLASS_VERSION);
        self.refuse_req(path, mad.header.transaction_id, id, &refusal);
    }

    /// The peer has made a new connection with the queue pair that this one has: this one is dead,
    /// and its owner is told so.
    pub(super) fn end_stale(&mut self, now: Instant, id: CommId) {
        let Some(mut connection) = self.take(id) else { return };
        let c = &mut *connection;
        match reaction(c.state, Input::Stale) {
            Reaction::To(to @ ConnState::DreqSent) => {
                self.part(now, c, to, FixedBytes::default());
            }
            Reaction::To(to @ ConnState::TimeWait) => {
                let was_asked = c.state == ConnState::DreqReceived;
                self.enter(now, c, to);
                if !was_asked {
                    self.tell(c, CmEvent::Disconnected { id, drep: None });
                }
            }
            Reaction::To(to) => {
                let rej = Rej {
                    local_comm_id: c.remote_id_or_zero(),
                    remote_comm_id: id,
                    message: AnsweredMessage::Other,
                    reason: RejReason::STALE_CONNECTION,
                    ..Rej::default()
                };
                self.enter(now, c, to);
                self.tell(c, CmEvent::Rejected { id, rej: Box::new(rej) });
            }
            _ => {}
        }
        self.put_back(connection);
    }
}
