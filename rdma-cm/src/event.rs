//! Events of identifiers.

use std::fmt;
use std::sync::{Arc, Weak};

use rxe_wire::mad::cm::RejReason;

use crate::conn_param::{ConnParam, UdParam};
use crate::event_type::EventType;
use crate::id::{CmId, IdInner, IdNumber};

/// What an event tells beside its type.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum EventParam {
    /// Nothing.
    #[default]
    None,
    /// Of a connection.
    Conn(ConnParam),
    /// Of datagrams.
    Ud(UdParam),
    /// What a program has written ([`CmId::write_event`]).
    Arg(u64),
}

/// Something that has happened to an identifier (C: `struct rdma_cm_event`).
///
/// It is acknowledged when it is dropped: [`CmId::destroy`] waits for that.
pub struct Event {
    id: CmId,
    listen_id: Option<CmId>,
    event: EventType,
    status: i32,
    param: EventParam,
}

impl Event {
    /// The identifier that it is about; of a request, a new one.
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// Of a request: the listener.
    pub fn listen_id(&self) -> Option<&CmId> {
        self.listen_id.as_ref()
    }

    /// What has happened.
    pub fn event(&self) -> EventType {
        self.event
    }

    /// 0, a negative errno, or what the peer said: the reason of a REJ, or the status of a SIDR_REP.
    pub fn status(&self) -> i32 {
        self.status
    }

    /// What else it tells.
    pub fn param(&self) -> &EventParam {
        &self.param
    }

    /// The private data that came with it; empty if there is none.
    pub fn private_data(&self) -> &[u8] {
        match &self.param {
            EventParam::None | EventParam::Arg(_) => &[],
            EventParam::Conn(param) => &param.private_data,
            EventParam::Ud(param) => &param.private_data,
        }
    }

    /// What the program of the peer says to its refusal; `None` where not the program has refused,
    /// but its connection manager (C: `rdma_consumer_reject_data`).
    pub fn consumer_reject_data(&self) -> Option<&[u8]> {
        let is_consumers = self.event == EventType::Rejected
            && self.status == i32::from(RejReason::CONSUMER_DEFINED.0);
        is_consumers.then(|| self.private_data())
    }

    /// Acknowledges it (C: `rdma_ack_cm_event`); so does dropping it.
    pub fn ack(self) {}

    /// Whom its acknowledgement lets go.
    pub(crate) fn waited_by(&self) -> &CmId {
        self.listen_id.as_ref().unwrap_or(&self.id)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.waited_by().event_acknowledged();
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One line for the log: private data is mostly zeros.
        let Self { id, event, status, .. } = self;
        write!(f, "{event} of {id:?} status {status}")
    }
}

/// An event that nobody has taken yet.
///
/// It does not keep its identifier alive: so an identifier that is dropped while events of it wait
/// is destroyed all the same. A request does, since nobody else has its identifier.
pub(crate) struct News {
    about: About,
    event: EventType,
    status: i32,
    param: EventParam,
}

/// Whom an event concerns.
enum About {
    Id(IdNumber, Weak<IdInner>),
    Request { id: CmId, listener: (IdNumber, Weak<IdInner>) },
}

impl News {
    pub(crate) fn new(id: &CmId, event: EventType) -> Self {
        let about = About::Id(id.number(), Arc::downgrade(&id.inner));
        Self { about, event, status: 0, param: EventParam::None }
    }

    /// A request that a listener has got, which `id` stands for.
    pub(crate) fn request(id: CmId, listener: &CmId, param: EventParam) -> Self {
        let listener = (listener.number(), Arc::downgrade(&listener.inner));
        let about = About::Request { id, listener };
        Self { about, event: EventType::ConnectRequest, status: 0, param }
    }

    /// Likewise, with a status.
    pub(crate) fn with_status(self, status: i32) -> Self {
        Self { status, ..self }
    }

    pub(crate) fn with_param(self, param: EventParam) -> Self {
        Self { param, ..self }
    }

    /// Whether the identifier's end is the end of it, too.
    pub(crate) fn concerns(&self, number: IdNumber) -> bool {
        match &self.about {
            About::Id(own, _) => *own == number,
            About::Request { id, listener } => id.number() == number || listener.0 == number,
        }
    }

    /// Whose request it tells `listener` of, if it does.
    pub(crate) fn as_request_of(&self, listener: IdNumber) -> Option<&CmId> {
        match &self.about {
            About::Request { id, listener: (number, _) } if *number == listener => Some(id),
            _ => None,
        }
    }

    /// Gives it to the program, which has to acknowledge it; it comes back when there is no
    /// identifier any more. What it drops then may take locks.
    pub(crate) fn take(self) -> Result<Event, Self> {
        let waited_by = match &self.about {
            About::Id(_, id) | About::Request { listener: (_, id), .. } => id.upgrade(),
        };
        let Some(inner) = waited_by else { return Err(self) };
        let waited_by = CmId { inner };
        waited_by.event_taken();
        let (id, listen_id) = match self.about {
            About::Id(..) => (waited_by, None),
            About::Request { id, .. } => (id, Some(waited_by)),
        };
        let Self { event, status, param, .. } = self;
        Ok(Event { id, listen_id, event, status, param })
    }
}

impl fmt::Debug for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = match &self.about {
            About::Id(number, _) => *number,
            About::Request { id, .. } => id.number(),
        };
        let Self { event, status, .. } = self;
        write!(f, "{event} of {number} status {status}")
    }
}
