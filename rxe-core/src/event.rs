//! Asynchronous events of a device.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use rxe_wire::Qpn;

use crate::cq::{CqId, Notify};

/// Something that happened outside any work request (`struct ibv_async_event`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue overflowed (`IBV_EVENT_CQ_ERR`).
    CqErr(CqId),
    /// A queue pair went to the error state by itself (`IBV_EVENT_QP_FATAL`).
    QpFatal(Qpn),
    /// The peer sent a request that the QP found invalid (`IBV_EVENT_QP_REQ_ERR`).
    QpReqErr(Qpn),
    /// The peer asked for an access that it does not have (`IBV_EVENT_QP_ACCESS_ERR`, R36).
    QpAccessErr(Qpn),
    /// The first packet came while the QP was ready to receive (`IBV_EVENT_COMM_EST`).
    CommEst(Qpn),
    /// A send queue that was being drained has nothing outstanding (`IBV_EVENT_SQ_DRAINED`).
    SqDrained(Qpn),
}

impl AsyncEvent {
    /// The value of `enum ibv_event_type`.
    pub const fn event_type(self) -> u32 {
        match self {
            Self::CqErr(_) => 0,
            Self::QpFatal(_) => 1,
            Self::QpReqErr(_) => 2,
            Self::QpAccessErr(_) => 3,
            Self::CommEst(_) => 4,
            Self::SqDrained(_) => 5,
        }
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CqErr(cq) => write!(f, "CQ error: completion queue {} overflowed", cq.0),
            Self::QpFatal(qpn) => write!(f, "local work queue catastrophic error, QP {qpn}"),
            Self::QpReqErr(qpn) => write!(f, "invalid request local work queue error, QP {qpn}"),
            Self::QpAccessErr(qpn) => {
                write!(f, "local access violation work queue error, QP {qpn}")
            }
            Self::CommEst(qpn) => write!(f, "communication established, QP {qpn}"),
            Self::SqDrained(qpn) => write!(f, "send queue drained, QP {qpn}"),
        }
    }
}

/// Events that nobody has read yet.
pub struct EventQueue {
    inner: Mutex<Inner>,
    capacity: usize,
}

struct Inner {
    events: VecDeque<AsyncEvent>,
    dropped: u64,
    waker: Option<Arc<dyn Notify>>,
}

impl fmt::Debug for EventQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventQueue").field("waiting", &self.inner.lock().events.len()).finish()
    }
}

impl EventQueue {
    pub(crate) fn new(capacity: usize) -> Self {
        let inner = Inner { events: VecDeque::new(), dropped: 0, waker: None };
        Self { inner: Mutex::new(inner), capacity }
    }

    /// Sets who is woken at each event.
    pub fn set_waker(&self, waker: Arc<dyn Notify>) {
        self.inner.lock().waker = Some(waker);
    }

    /// Takes the oldest event (counterpart of `ibv_get_async_event`, without waiting).
    pub fn take(&self) -> Option<AsyncEvent> {
        self.inner.lock().events.pop_front()
    }

    /// Events lost since nobody read them.
    pub fn dropped(&self) -> u64 {
        self.inner.lock().dropped
    }

    pub(crate) fn push(&self, event: AsyncEvent) {
        tracing::debug!(target: "rxe::event", %event, "async event");
        let mut inner = self.inner.lock();
        if inner.events.len() >= self.capacity {
            inner.events.pop_front();
            inner.dropped += 1;
        }
        inner.events.push_back(event);
        if let Some(waker) = &inner.waker {
            waker.notify();
        }
    }
}
