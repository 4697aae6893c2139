//! The engine of connection management: what `ib_cm` is in Linux, without I/O.
//!
//! An engine belongs to one QP1. Its owner hands it the messages that come to that QP1, and sends
//! what it wants sent:
//!
//! - input: [`CmEngine::handle_mad`], [`CmEngine::handle_timeout`];
//! - requests: [`CmEngine::connect`], [`CmEngine::accept`] and so on;
//! - output, to be drained after each of these: [`CmEngine::poll_transmit`],
//!   [`CmEngine::poll_event`], [`CmEngine::poll_timeout`].
//!
//! Time is an argument and never runs backwards; calls with equal times may come in any order.
//! [`state::TABLE`] says what each state does with each message and request; the rest is what the
//! messages are made of, and the bookkeeping.

mod command;
mod config;
mod connection;
mod error;
mod event;
mod ids;
mod listener;
mod lookup;
mod param;
mod path;
mod receive;
mod request;
pub mod state;
mod timers;

use std::collections::{BTreeSet, HashMap, VecDeque};

pub use config::CmConfig;
pub use error::{CommandError, ConnectError, Ignored, ListenError};
pub use event::CmEvent;
pub use listener::{ListenFor, ListenOn, ListenerId};
pub use param::{AcceptParam, ConnectParam, Ece, LookupAnswer, LookupParam};
pub use path::CmPath;
use rxe_core::Instant;
use rxe_wire::Qpn;
use rxe_wire::mad::cm::{AnsweredMessage, CmMessage, CommId, FixedBytes, PathMtu, Rej, RejReason};
use rxe_wire::mad::{MAD_DATA_LEN, MAD_LEN, Mad, TransactionId};
pub use state::ConnState;

use connection::{Answer, Connection, PeerId, PeerQp, Pending};
use ids::CommIds;
use listener::Listeners;
use timers::Timers;

/// A message to be sent from QP1 to QP1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CmTransmit {
    /// Between which addresses.
    pub path: CmPath,
    /// The message.
    pub message: CmMessage,
    /// The exchange that it belongs to.
    pub transaction_id: TransactionId,
    /// The attribute modifier: a vendor's options ([`Ece`]).
    pub modifier: u32,
}

impl CmTransmit {
    /// The whole datagram.
    pub fn write(&self, out: &mut [u8; MAD_LEN]) {
        let mut data = [0; MAD_DATA_LEN];
        self.message.write(&mut data);
        let mut header = self.message.header(self.transaction_id);
        header.attribute_modifier = self.modifier;
        Mad { header, data: &data }.write(out);
    }
}

/// What an engine has counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CmCounters {
    /// Messages received that had an effect or were answered.
    pub received: u64,
    /// Messages received that had none.
    pub ignored: u64,
    /// Of these, those that were heard before.
    pub duplicates: u64,
    /// Messages sent.
    pub sent: u64,
    /// Of these, those that were sent before and had no answer.
    pub resent: u64,
}

/// The connections, lookups and listeners of one QP1 (see [the module](self)).
#[derive(Debug)]
pub struct CmEngine {
    config: CmConfig,
    ids: CommIds,
    connections: HashMap<CommId, Box<Connection>>,
    by_peer_id: HashMap<PeerId, CommId>,
    by_peer_qp: HashMap<PeerQp, CommId>,
    by_local_qpn: HashMap<Qpn, CommId>,
    listeners: Listeners,
    timers: Timers,
    /// Those in timewait, by its end.
    timewait: BTreeSet<(Instant, CommId)>,
    transmits: VecDeque<CmTransmit>,
    events: VecDeque<CmEvent>,
    counters: CmCounters,
}

impl CmEngine {
    /// An engine without connections.
    pub fn new(config: CmConfig) -> Self {
        Self {
            ids: CommIds::new(config.seed, config.slot),
            config,
            connections: HashMap::new(),
            by_peer_id: HashMap::new(),
            by_peer_qp: HashMap::new(),
            by_local_qpn: HashMap::new(),
            listeners: Listeners::default(),
            timers: Timers::default(),
            timewait: BTreeSet::new(),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            counters: CmCounters::default(),
        }
    }

    /// Does what is due at `now`: sends again, gives up, ends timewaits. Called early, it does
    /// nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(id) = self.timers.due(now) {
            if !self.connections.contains_key(&id) {
                // No deadline outlives its connection; if one did, it would be due for ever.
                tracing::error!(target: "rxe::cm", %id, "a deadline of nobody");
                self.timers.drop_first();
                continue;
            }
            self.expire(now, id);
        }
    }

    /// The next message to be sent.
    pub fn poll_transmit(&mut self) -> Option<CmTransmit> {
        self.transmits.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<CmEvent> {
        self.events.pop_front()
    }

    /// Whether there is an event to be polled.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// When [`Self::handle_timeout`] wants to be called; `None` when nothing is waited for.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first()
    }

    /// The state of a connection; `None` when it exists no more.
    pub fn state(&self, id: CommId) -> Option<ConnState> {
        self.connections.get(&id).map(|connection| connection.state)
    }

    /// Whether `qpn` has a connection here, or had one whose timewait goes on.
    pub fn uses_qpn(&self, qpn: Qpn) -> bool {
        self.by_local_qpn.contains_key(&qpn)
    }

    /// Connections whose end we have asked for and that the peer has not granted yet.
    pub fn parting(&self) -> usize {
        let states = self.connections.values().map(|connection| connection.state);
        states.filter(|&state| state == ConnState::DreqSent).count()
    }

    /// How it was made.
    pub const fn config(&self) -> &CmConfig {
        &self.config
    }

    /// The ports can do another path MTU now, the greatest that a REQ may ask for.
    pub fn set_path_mtu_max(&mut self, most: PathMtu) {
        self.config.path_mtu_max = most;
    }

    /// What it has counted.
    pub const fn counters(&self) -> CmCounters {
        self.counters
    }

    /// How much is kept, to see that nothing is left behind: connections and lookups, listeners,
    /// entries by which they are found, and timers.
    pub fn sizes(&self) -> CmSizes {
        CmSizes {
            connections: self.connections.len(),
            timewait: self.timewait.len(),
            listeners: self.listeners.len(),
            indices: self.by_peer_id.len() + self.by_peer_qp.len() + self.by_local_qpn.len(),
            timers: self.timers.len(),
        }
    }
}

/// How much an engine keeps.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CmSizes {
    /// Connections and lookups.
    pub connections: usize,
    /// Of these, connections in timewait.
    pub timewait: usize,
    /// Listeners.
    pub listeners: usize,
    /// Entries by which connections are found.
    pub indices: usize,
    /// Deadlines.
    pub timers: usize,
}

/// The bookkeeping that messages, requests and time share.
impl CmEngine {
    /// Takes a connection out while it is worked on; [`Self::put_back`] is the other half.
    fn take(&mut self, id: CommId) -> Option<Box<Connection>> {
        self.connections.remove(&id)
    }

    /// Puts a connection back, or drops it when nobody needs it any more.
    fn put_back(&mut self, connection: Box<Connection>) {
        let is_over = connection.state == ConnState::Idle && connection.is_orphan;
        let is_in_timewait = connection.state == ConnState::TimeWait;
        if !is_over {
            self.connections.insert(connection.id, connection);
        }
        if is_in_timewait {
            self.shorten_timewait();
        }
    }

    /// Moves a connection to a state, with what always goes along: in IDLE nothing refers to it any
    /// more, and timewait has an end.
    fn enter(&mut self, now: Instant, connection: &mut Connection, state: ConnState) {
        let from = connection.state;
        tracing::debug!(target: "rxe::cm", id = %connection.id, %from, to = %state, "state");
        connection.state = state;
        connection.pending = None;
        self.timers.set(connection.id, &mut connection.deadline, None);
        match state {
            ConnState::Idle => self.forget(connection),
            ConnState::TimeWait => {
                self.leave_backlog(connection);
                let end = now.plus_nanos(connection.ack_timeout.ns());
                self.timers.set(connection.id, &mut connection.deadline, Some(end));
                self.timewait.insert((end, connection.id));
            }
            _ => {}
        }
    }

    /// Removes all by which a connection is found, but its own id.
    fn forget(&mut self, connection: &mut Connection) {
        self.leave_backlog(connection);
        connection.answer = None;
        if let Some(peer) = connection.peer_id.take() {
            self.by_peer_id.remove(&peer);
        }
        if let Some(peer) = connection.peer_qp.take() {
            self.by_peer_qp.remove(&peer);
        }
        if let Some(qpn) = connection.local_qpn.take() {
            self.by_local_qpn.remove(&qpn);
        }
    }

    fn leave_backlog(&mut self, connection: &mut Connection) {
        if let Some(listener) = connection.in_backlog_of.take()
            && let Some(listener) = self.listeners.get_mut(listener)
        {
            listener.waiting -= 1;
        }
    }

    /// Keeps timewait within its bound.
    fn shorten_timewait(&mut self) {
        while self.timewait.len() > self.config.timewait_max.max(1) {
            let Some(&(_, id)) = self.timewait.first() else { return };
            if !self.connections.contains_key(&id) {
                return;
            }
            self.end_timewait(id);
        }
    }

    /// Ends a timewait: the connection is gone.
    fn end_timewait(&mut self, id: CommId) {
        let Some(mut connection) = self.take(id) else { return };
        if let Some(end) = connection.deadline {
            self.timewait.remove(&(end, id));
        }
        self.timers.set(id, &mut connection.deadline, None);
        self.forget(&mut connection);
        tracing::debug!(target: "rxe::cm", %id, "timewait is over");
        if !connection.is_orphan {
            self.events.push_back(CmEvent::TimewaitExit { id });
        }
    }

    /// Sends a message now, and again until `enter` is called for another state.
    fn send_until_answered(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        message: CmMessage,
        tid: TransactionId,
    ) {
        let retries_left = connection.retries;
        connection.pending = Some(Pending { message, tid, retries_left });
        self.send_of(connection, message, tid);
        let until = now.plus_nanos(connection.patience_nanos);
        self.timers.set(connection.id, &mut connection.deadline, Some(until));
    }

    /// Sends an answer, and keeps it for when `to` comes again.
    fn send_answer(&mut self, connection: &mut Connection, to: state::Input, message: CmMessage) {
        self.send_of(connection, message, connection.tid);
        connection.answer = Some(Answer { to, message });
    }

    fn send(&mut self, path: CmPath, message: CmMessage, transaction_id: TransactionId) {
        self.transmit(CmTransmit { path, message, transaction_id, modifier: 0 });
    }

    /// Sends a message of a connection: some carry its vendors' options.
    fn send_of(&mut self, connection: &Connection, message: CmMessage, tid: TransactionId) {
        let modifier = match message {
            CmMessage::Req(_) | CmMessage::Rep(_) | CmMessage::SidrRep(_) => connection.ece_options,
            _ => 0,
        };
        let path = connection.path;
        self.transmit(CmTransmit { path, message, transaction_id: tid, modifier });
    }

    fn transmit(&mut self, transmit: CmTransmit) {
        let CmTransmit { path, message, .. } = &transmit;
        tracing::debug!(target: "rxe::cm", to = ?path.remote, %message, "sent");
        self.counters.sent += 1;
        self.transmits.push_back(transmit);
    }

    /// Tells the caller, unless it has left.
    fn tell(&mut self, connection: &Connection, event: CmEvent) {
        if !connection.is_orphan {
            self.events.push_back(event);
        }
    }

    /// A REJ about a connection of ours.
    fn rej(
        connection: &Connection,
        message: AnsweredMessage,
        reason: RejReason,
        info: &[u8],
    ) -> Rej {
        let mut field = FixedBytes::default();
        let fits = info.len().min(field.0.len());
        field.0[..fits].copy_from_slice(&info[..fits]);
        Rej {
            local_comm_id: connection.id,
            remote_comm_id: connection.remote_id_or_zero(),
            message,
            reason,
            info_len: rxe_wire::mad::cm::Bits::new(fits as u8),
            info: field,
            ..Rej::default()
        }
    }

    /// Time is up for a connection.
    fn expire(&mut self, now: Instant, id: CommId) {
        let Some(mut connection) = self.take(id) else { return };
        let c = &mut *connection;
        if let Some(pending) = &mut c.pending
            && pending.retries_left > 0
        {
            pending.retries_left -= 1;
            let (message, tid) = (pending.message, pending.tid);
            self.counters.resent += 1;
            self.send_of(c, message, tid);
            let until = now.plus_nanos(c.patience_nanos);
            self.timers.set(id, &mut c.deadline, Some(until));
            return self.put_back(connection);
        }
        match c.state {
            ConnState::TimeWait => {
                self.put_back(connection);
                return self.end_timewait(id);
            }
            _ => self.give_up(now, c),
        }
        self.put_back(connection);
    }

    /// Nobody has answered.
    fn give_up(&mut self, now: Instant, connection: &mut Connection) {
        let id = connection.id;
        let from = connection.state;
        let state::Reaction::To(to) = state::reaction(from, state::Input::Expire) else {
            // No other state has a deadline.
            return self.timers.set(id, &mut connection.deadline, None);
        };
        let about = match from {
            ConnState::ReqSent | ConnState::MraReqReceived => Some(AnsweredMessage::Req),
            ConnState::RepSent | ConnState::MraRepReceived => Some(AnsweredMessage::Rep),
            _ => None,
        };
        if let Some(about) = about {
            let guid = self.config.ca_guid.0.to_be_bytes();
            let rej = Self::rej(connection, about, RejReason::TIMEOUT, &guid);
            self.send(connection.path, CmMessage::Rej(rej), connection.tid);
        }
        self.enter(now, connection, to);
        match from {
            ConnState::DreqSent => self.tell(connection, CmEvent::NotAnswered { id }),
            // The answer to a lookup was kept long enough.
            ConnState::SidrRepSent => connection.is_orphan = true,
            _ => self.tell(connection, CmEvent::Unreachable { id }),
        }
    }
}
