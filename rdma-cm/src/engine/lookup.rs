//! Lookups of datagram services: SIDR_REQ and SIDR_REP.

use rxe_core::Instant;
use rxe_wire::mad::TransactionId;
use rxe_wire::mad::cm::{CmMessage, CommId, Guid, SidrRep, SidrReq, SidrStatus};

use super::command::patience;
use super::connection::{Connection, PeerId};
use super::error::{CommandError, ConnectError, Ignored};
use super::event::CmEvent;
use super::listener::ListenFor;
use super::param::{Ece, LookupAnswer, LookupParam};
use super::path::CmPath;
use super::state::{ConnState, Input, Reaction, reaction};
use super::{Answer, CmEngine};

impl CmEngine {
    /// Asks which queue pair serves a datagram service: SIDR_REQ (C: `ib_send_cm_sidr_req`).
    ///
    /// # Errors
    ///
    /// [`ConnectError::TooMany`]; nothing was sent.
    pub fn look_up(&mut self, now: Instant, param: &LookupParam) -> Result<CommId, ConnectError> {
        let id = self.new_id().ok_or(ConnectError::TooMany(self.connections.len()))?;
        let tid = self.ids.transaction(id);
        let mut connection = Box::new(Connection::new(id, ConnState::Idle, param.path, tid));
        connection.ack_timeout = param.ack_timeout;
        connection.patience_nanos = patience(param.response_timeout, param.ack_timeout);
        connection.retries = param.max_cm_retries.get();
        self.enter(now, &mut connection, ConnState::SidrReqSent);
        let message = CmMessage::SidrReq(SidrReq {
            request_id: id,
            pkey: param.pkey,
            service_id: param.service_id,
            private_data: param.private_data,
            ..SidrReq::default()
        });
        self.send_until_answered(now, &mut connection, message, tid);
        self.put_back(connection);
        Ok(id)
    }

    /// Answers a lookup: SIDR_REP (C: `ib_send_cm_sidr_rep`). The lookup is the caller's no more.
    ///
    /// # Errors
    ///
    /// [`CommandError`]; nothing was sent.
    pub fn answer_lookup(
        &mut self,
        now: Instant,
        id: CommId,
        answer: &LookupAnswer,
    ) -> Result<(), CommandError> {
        let (mut connection, to) = self.command(id, Input::Answer)?;
        connection.is_orphan = true;
        self.answer(now, &mut connection, to, answer);
        self.put_back(connection);
        Ok(())
    }

    /// Refuses a lookup that nobody wants to answer.
    pub(super) fn refuse_lookup(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        to: ConnState,
    ) {
        self.answer(now, connection, to, &LookupAnswer::refusal(SidrStatus::REJECT));
    }

    fn answer(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        to: ConnState,
        answer: &LookupAnswer,
    ) {
        self.leave_backlog(connection);
        connection.ece_options = answer.ece.options;
        let asked = connection.remote_id_or_zero();
        // The answer repeats which service was asked for.
        let service_id = match connection.answer.take() {
            Some(Answer { message: CmMessage::SidrReq(request), .. }) => request.service_id,
            _ => Default::default(),
        };
        let message = sidr_rep(asked, service_id, answer);
        self.enter(now, connection, to);
        self.send_answer(connection, Input::SidrReq, message);
        let until = now.plus_nanos(self.config.lookup_kept.ns());
        self.timers.set(connection.id, &mut connection.deadline, Some(until));
    }

    /// A peer looks a service up.
    pub(super) fn on_sidr_req(
        &mut self,
        path: &CmPath,
        tid: TransactionId,
        request: &SidrReq,
    ) -> Result<(), Ignored> {
        let guid = Guid::default();
        let peer = PeerId { gid: path.remote, guid, id: request.request_id, is_lookup: true };
        if let Some(&id) = self.by_peer_id.get(&peer) {
            return self.on_known_request(path, tid, id, Input::SidrReq);
        }
        let refuse = |engine: &mut Self, status| {
            let answer = LookupAnswer::refusal(status);
            let message = sidr_rep(request.request_id, request.service_id, &answer);
            engine.send(*path, message, tid);
        };
        let Some(listener) = self.listeners.find(request.service_id, path.local) else {
            refuse(self, SidrStatus::UNSUPPORTED);
            return Ok(());
        };
        let Some(entry) = self.listeners.get_mut(listener) else { return Err(Ignored::Unknown) };
        if entry.takes != ListenFor::Lookups {
            refuse(self, SidrStatus::UNSUPPORTED);
            return Ok(());
        }
        if entry.waiting >= entry.backlog {
            return Err(Ignored::BacklogFull);
        }
        let Some(id) = self.new_id() else {
            refuse(self, SidrStatus::NO_QP);
            return Ok(());
        };
        if let Some(entry) = self.listeners.get_mut(listener) {
            entry.waiting += 1;
        }
        let mut connection = Box::new(Connection::new(id, ConnState::SidrReqReceived, *path, tid));
        connection.remote_id = Some(request.request_id);
        connection.peer_id = Some(peer);
        connection.in_backlog_of = Some(listener);
        // Until there is an answer, its place keeps the question.
        connection.answer =
            Some(Answer { to: Input::Answer, message: CmMessage::SidrReq(*request) });
        self.by_peer_id.insert(peer, id);
        let (path, request) = (*path, Box::new(*request));
        self.tell(&connection, CmEvent::Lookup { listener, id, path, request });
        self.put_back(connection);
        Ok(())
    }

    /// The answer to a lookup of ours.
    pub(super) fn on_sidr_rep(
        &mut self,
        now: Instant,
        path: &CmPath,
        options: u32,
        reply: &SidrRep,
    ) -> Result<(), Ignored> {
        let id = reply.request_id;
        let mut connection = self.take_of_peer(path, id)?;
        let result = match reaction(connection.state, Input::SidrRep) {
            Reaction::To(to) => {
                self.enter(now, &mut connection, to);
                let ece = Ece { vendor_id: reply.vendor_id, options };
                self.tell(&connection, CmEvent::Found { id, reply: Box::new(*reply), ece });
                Ok(())
            }
            _ => Err(Ignored::State(connection.state)),
        };
        self.put_back(connection);
        result
    }
}

fn sidr_rep(
    request_id: CommId,
    service_id: rxe_wire::mad::cm::ServiceId,
    answer: &LookupAnswer,
) -> CmMessage {
    CmMessage::SidrRep(SidrRep {
        request_id,
        status: answer.status,
        qpn: answer.qpn,
        service_id,
        qkey: answer.qkey,
        vendor_id: answer.ece.vendor_id,
        private_data: answer.private_data,
        ..SidrRep::default()
    })
}
