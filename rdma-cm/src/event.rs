//! Events of identifiers.

use std::fmt;

use crate::conn_param::{ConnParam, UdParam};
use crate::event_type::EventType;
use crate::id::CmId;

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
    /// Whether it was taken from a channel, and so is waited for.
    taken: bool,
}

impl Event {
    pub(crate) fn new(id: CmId, event: EventType) -> Self {
        Self { id, listen_id: None, event, status: 0, param: EventParam::None, taken: false }
    }

    /// Likewise, with a status.
    pub(crate) fn with_status(self, status: i32) -> Self {
        let mut event = self;
        event.status = status;
        event
    }

    pub(crate) fn with_param(self, param: EventParam) -> Self {
        let mut event = self;
        event.param = param;
        event
    }

    pub(crate) fn at_listener(self, listener: CmId) -> Self {
        let mut event = self;
        event.listen_id = Some(listener);
        event
    }

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

    /// The private data that came with it; empty if there is none (C: `rdma_consumer_reject_data`
    /// too).
    pub fn private_data(&self) -> &[u8] {
        match &self.param {
            EventParam::None => &[],
            EventParam::Conn(param) => &param.private_data,
            EventParam::Ud(param) => &param.private_data,
        }
    }

    /// Acknowledges it (C: `rdma_ack_cm_event`); so does dropping it.
    pub fn ack(self) {}

    /// Whom its acknowledgement lets go.
    pub(crate) fn waited_by(&self) -> &CmId {
        self.listen_id.as_ref().unwrap_or(&self.id)
    }

    /// It goes to the program now: it must be acknowledged.
    pub(crate) fn take(&mut self) {
        self.taken = true;
        self.waited_by().event_taken();
        self.id.request_taken();
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.taken {
            self.waited_by().event_acknowledged();
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One line for the log: private data is mostly zeros.
        let Self { id, event, status, .. } = self;
        write!(f, "{event} of {id:?} status {status}")
    }
}
