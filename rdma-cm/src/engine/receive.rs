//! Messages that come in.

use std::collections::hash_map::Entry;

use rxe_core::Instant;
use rxe_wire::mad::cm::{
    AnsweredMessage, CmMessage, CommId, Drep, Dreq, FixedBytes, Guid, Mra, NotCm, Rej, RejReason,
    Rep, Rtu,
};
use rxe_wire::mad::{Mad, TransactionId};

use super::CmEngine;
use super::connection::{Connection, PeerId, PeerQp};
use super::error::Ignored;
use super::event::CmEvent;
use super::param::Ece;
use super::path::CmPath;
use super::state::{ConnState, Input, Reaction, reaction};

impl CmEngine {
    /// Takes a datagram that came to our QP1 from another; `path` is between which addresses.
    ///
    /// # Errors
    ///
    /// [`Ignored`] says why it had no effect, for tests and traces; it is counted.
    pub fn handle_mad(&mut self, now: Instant, path: &CmPath, mad: &[u8]) -> Result<(), Ignored> {
        let result = self.receive(now, path, mad);
        match result {
            Ok(()) => self.counters.received += 1,
            Err(why) => {
                self.counters.ignored += 1;
                self.counters.duplicates += u64::from(why == Ignored::Known);
                tracing::debug!(target: "rxe::cm", from = ?path.remote, %why, "ignored");
            }
        }
        result
    }

    fn receive(&mut self, now: Instant, path: &CmPath, bytes: &[u8]) -> Result<(), Ignored> {
        let mad = Mad::parse(bytes).map_err(|why| Ignored::NotCm(NotCm::Malformed(why)))?;
        let message = match CmMessage::parse(&mad) {
            Ok(message) => message,
            Err(why) => {
                if matches!(why, NotCm::ClassVersion(_)) {
                    self.refuse_class_version(path, &mad);
                }
                return Err(Ignored::NotCm(why));
            }
        };
        tracing::debug!(target: "rxe::cm", from = ?path.remote, %message, "received");
        let tid = mad.header.transaction_id;
        let options = mad.header.attribute_modifier;
        match &message {
            CmMessage::Req(req) => self.on_req(now, path, (tid, options), req),
            CmMessage::Mra(mra) => self.on_mra(now, path, mra),
            CmMessage::Rej(rej) => self.on_rej(now, path, rej),
            CmMessage::Rep(rep) => self.on_rep(now, path, (tid, options), rep),
            CmMessage::Rtu(rtu) => self.on_rtu(now, path, rtu),
            CmMessage::Dreq(dreq) => self.on_dreq(now, path, tid, dreq),
            CmMessage::Drep(drep) => self.on_drep(now, path, drep),
            CmMessage::SidrReq(request) => self.on_sidr_req(path, tid, request),
            CmMessage::SidrRep(reply) => self.on_sidr_rep(now, path, options, reply),
            // RoCE has no alternate paths: Linux drops these there, too.
            CmMessage::Lap(lap) => self.on_path_message(path, lap.remote_comm_id),
            CmMessage::Apr(apr) => self.on_path_message(path, apr.remote_comm_id),
        }
    }

    /// Takes out the connection that a message names, if it is with its sender.
    pub(super) fn take_of_peer(
        &mut self,
        path: &CmPath,
        id: CommId,
    ) -> Result<Box<Connection>, Ignored> {
        let connection = self.take(id).ok_or(Ignored::Unknown)?;
        // A message that another host sends, or sends again, must not change anything.
        if !connection.path.joins_the_same(path) {
            self.put_back(connection);
            return Err(Ignored::OtherAddress);
        }
        Ok(connection)
    }

    /// Likewise, for a message that carries the peer's id too.
    fn take_of_both(
        &mut self,
        path: &CmPath,
        id: CommId,
        remote_id: CommId,
    ) -> Result<Box<Connection>, Ignored> {
        let connection = self.take_of_peer(path, id)?;
        if !connection.is_with(remote_id) {
            self.put_back(connection);
            return Err(Ignored::OtherId);
        }
        Ok(connection)
    }

    /// Sends the answer to `input` again.
    pub(super) fn answer_again(
        &mut self,
        connection: &Connection,
        input: Input,
    ) -> Result<(), Ignored> {
        let Some(answer) = connection.answer.as_ref().filter(|answer| answer.to == input) else {
            return Err(Ignored::Known);
        };
        self.counters.resent += 1;
        self.send_of(connection, answer.message, connection.tid);
        Ok(())
    }

    fn on_path_message(&mut self, path: &CmPath, id: CommId) -> Result<(), Ignored> {
        let connection = self.take_of_peer(path, id)?;
        let state = connection.state;
        self.put_back(connection);
        Err(Ignored::State(state))
    }

    fn on_mra(&mut self, now: Instant, path: &CmPath, mra: &Mra) -> Result<(), Ignored> {
        let mut connection = self.take_of_both(path, mra.remote_comm_id, mra.local_comm_id)?;
        let c = &mut *connection;
        let input = Input::of(&CmMessage::Mra(*mra));
        let result = match reaction(c.state, input) {
            Reaction::To(to) => {
                // What is sent again stays, it only has to wait longer.
                c.state = to;
                c.remote_id = Some(mra.local_comm_id);
                let wait = mra.service_timeout.ns() + c.ack_timeout.ns();
                self.timers.set(c.id, &mut c.deadline, Some(now.plus_nanos(wait)));
                Ok(())
            }
            Reaction::Known => Err(Ignored::Known),
            _ => Err(Ignored::State(c.state)),
        };
        self.put_back(connection);
        result
    }

    fn on_rep(
        &mut self,
        now: Instant,
        path: &CmPath,
        (tid, options): (TransactionId, u32),
        rep: &Rep,
    ) -> Result<(), Ignored> {
        let mut connection = match self.take_of_peer(path, rep.remote_comm_id) {
            Ok(connection) => connection,
            Err(Ignored::Unknown) => {
                // We have given up, and the REJ that said so is lost.
                self.refuse_rep(path, tid, rep, RejReason::INVALID_COMM_ID);
                return Ok(());
            }
            Err(why) => return Err(why),
        };
        let c = &mut *connection;
        let reaction = reaction(c.state, Input::Rep);
        let is_other = c.peer_qp.is_some_and(|peer| peer.qpn != rep.local_qpn);
        let result = match reaction {
            Reaction::To(to) => {
                self.take_rep(now, c, to, rep, options);
                Ok(())
            }
            Reaction::Again | Reaction::Known if is_other || !c.is_with(rep.local_comm_id) => {
                // Somebody else has answered already.
                self.refuse_rep(path, tid, rep, RejReason::INVALID_COMM_INSTANCE);
                Ok(())
            }
            Reaction::Again => self.answer_again(c, Input::Rep),
            Reaction::RejectId => {
                self.refuse_rep(path, tid, rep, RejReason::INVALID_COMM_ID);
                Ok(())
            }
            Reaction::Known => Err(Ignored::Known),
            _ => Err(Ignored::State(c.state)),
        };
        self.put_back(connection);
        result
    }

    /// The REP that we waited for.
    fn take_rep(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        to: ConnState,
        rep: &Rep,
        options: u32,
    ) {
        let id = connection.id;
        let gid = connection.path.remote;
        let peer_qp = PeerQp { gid, guid: rep.local_ca_guid, qpn: rep.local_qpn };
        let peer_id =
            PeerId { gid, guid: rep.local_ca_guid, id: rep.local_comm_id, is_lookup: false };
        connection.remote_id = Some(rep.local_comm_id);
        if let Some(&old) = self.by_peer_qp.get(&peer_qp) {
            return self.refuse_stale_rep(now, connection, old);
        }
        connection.peer_qp = Some(peer_qp);
        self.by_peer_qp.insert(peer_qp, id);
        // The peer has to choose its ids so that they name one connection each; if it does not, the
        // first keeps the name.
        if let Entry::Vacant(entry) = self.by_peer_id.entry(peer_id) {
            connection.peer_id = Some(peer_id);
            entry.insert(id);
        }
        self.enter(now, connection, to);
        let ece = Ece { vendor_id: rep.vendor_id, options };
        self.tell(connection, CmEvent::Response { id, reply: Box::new(*rep), ece });
    }

    /// The peer's queue pair has a connection with us already, of which the peer knows nothing: both
    /// end, so that the next attempt meets no remains.
    fn refuse_stale_rep(&mut self, now: Instant, connection: &mut Connection, old: CommId) {
        self.end_stale(now, old);
        let reason = RejReason::STALE_CONNECTION;
        let rej = Self::rej(connection, AnsweredMessage::Rep, reason, &[]);
        self.send(connection.path, CmMessage::Rej(rej), connection.tid);
        self.enter(now, connection, ConnState::Idle);
        self.tell(connection, CmEvent::Rejected { id: connection.id, rej: Box::new(rej) });
    }

    /// Refuses a REP about which we have no connection.
    fn refuse_rep(&mut self, path: &CmPath, tid: TransactionId, rep: &Rep, reason: RejReason) {
        let rej = Rej {
            local_comm_id: rep.remote_comm_id,
            remote_comm_id: rep.local_comm_id,
            message: AnsweredMessage::Rep,
            reason,
            ..Rej::default()
        };
        self.send(*path, CmMessage::Rej(rej), tid);
    }

    fn on_rtu(&mut self, now: Instant, path: &CmPath, rtu: &Rtu) -> Result<(), Ignored> {
        let mut connection = self.take_of_both(path, rtu.remote_comm_id, rtu.local_comm_id)?;
        let c = &mut *connection;
        let result = match reaction(c.state, Input::Rtu) {
            Reaction::To(to) => {
                self.enter(now, c, to);
                self.tell(c, CmEvent::Ready { id: c.id, rtu: Some(Box::new(*rtu)) });
                Ok(())
            }
            Reaction::Known => Err(Ignored::Known),
            _ => Err(Ignored::State(c.state)),
        };
        self.put_back(connection);
        result
    }

    fn on_rej(&mut self, now: Instant, path: &CmPath, rej: &Rej) -> Result<(), Ignored> {
        let id = self.rejected_id(path, rej).ok_or(Ignored::Unknown)?;
        let mut connection = self.take_of_peer(path, id)?;
        let c = &mut *connection;
        // Who refuses a REQ may have no id to give.
        let is_of_peer = rej.local_comm_id == CommId(0) || c.is_with(rej.local_comm_id);
        let result = match reaction(c.state, Input::of(&CmMessage::Rej(*rej))) {
            _ if !is_of_peer => Err(Ignored::OtherId),
            Reaction::To(to) => {
                let was_ending = matches!(c.state, ConnState::DreqSent | ConnState::DreqReceived);
                let was_asked = c.state == ConnState::DreqReceived;
                self.enter(now, c, to);
                match (was_ending, was_asked) {
                    // The peer does not know the connection: what we wanted.
                    (true, false) => self.tell(c, CmEvent::Disconnected { id, drep: None }),
                    (true, true) => {}
                    _ => self.tell(c, CmEvent::Rejected { id, rej: Box::new(*rej) }),
                }
                Ok(())
            }
            Reaction::Known => Err(Ignored::Known),
            _ => Err(Ignored::State(c.state)),
        };
        self.put_back(connection);
        result
    }

    /// Which connection a REJ is about. A requester that gives up before it has heard our id names
    /// its own, and its device in the additional information.
    fn rejected_id(&self, path: &CmPath, rej: &Rej) -> Option<CommId> {
        if rej.remote_comm_id != CommId(0) || rej.reason != RejReason::TIMEOUT {
            return Some(rej.remote_comm_id);
        }
        let guid = Guid(u64::from_be_bytes(*rej.info.0.first_chunk()?));
        let peer = PeerId { gid: path.remote, guid, id: rej.local_comm_id, is_lookup: false };
        self.by_peer_id.get(&peer).copied()
    }

    fn on_dreq(
        &mut self,
        now: Instant,
        path: &CmPath,
        tid: TransactionId,
        dreq: &Dreq,
    ) -> Result<(), Ignored> {
        let taken = self.take_of_both(path, dreq.remote_comm_id, dreq.local_comm_id);
        let mut connection = match taken {
            Ok(connection) => connection,
            Err(Ignored::Unknown) => {
                // What is not there has ended: the peer need not wait for it.
                self.agree_to_unknown(path, tid, dreq);
                return Ok(());
            }
            Err(why) => return Err(why),
        };
        let c = &mut *connection;
        let result = if c.local_qpn.is_some_and(|qpn| qpn != dreq.remote_qpn) {
            Err(Ignored::OtherQpn)
        } else {
            self.take_dreq(now, c, tid, dreq)
        };
        self.put_back(connection);
        result
    }

    fn take_dreq(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        tid: TransactionId,
        dreq: &Dreq,
    ) -> Result<(), Ignored> {
        let id = connection.id;
        match reaction(connection.state, Input::Dreq) {
            Reaction::To(to @ ConnState::TimeWait) => {
                // Ours has met theirs: both have asked, so both agree.
                connection.tid = tid;
                self.send_drep(connection, FixedBytes::default());
                self.enter(now, connection, to);
                self.tell(connection, CmEvent::Disconnected { id, drep: None });
                Ok(())
            }
            Reaction::To(to) => {
                connection.tid = tid;
                self.enter(now, connection, to);
                self.tell(connection, CmEvent::Disconnecting { id, dreq: Box::new(*dreq) });
                Ok(())
            }
            Reaction::Drep => {
                connection.tid = tid;
                self.send_drep(connection, FixedBytes::default());
                Ok(())
            }
            Reaction::Known => Err(Ignored::Known),
            _ => Err(Ignored::State(connection.state)),
        }
    }

    fn agree_to_unknown(&mut self, path: &CmPath, tid: TransactionId, dreq: &Dreq) {
        let drep = Drep {
            local_comm_id: dreq.remote_comm_id,
            remote_comm_id: dreq.local_comm_id,
            ..Drep::default()
        };
        self.send(*path, CmMessage::Drep(drep), tid);
    }

    fn on_drep(&mut self, now: Instant, path: &CmPath, drep: &Drep) -> Result<(), Ignored> {
        let mut connection = self.take_of_both(path, drep.remote_comm_id, drep.local_comm_id)?;
        let c = &mut *connection;
        let result = match reaction(c.state, Input::Drep) {
            Reaction::To(to) => {
                let was_ours = c.state == ConnState::DreqSent;
                self.enter(now, c, to);
                if was_ours {
                    let drep = Some(Box::new(*drep));
                    self.tell(c, CmEvent::Disconnected { id: c.id, drep });
                }
                Ok(())
            }
            Reaction::Known => Err(Ignored::Known),
            _ => Err(Ignored::State(c.state)),
        };
        self.put_back(connection);
        result
    }
}
