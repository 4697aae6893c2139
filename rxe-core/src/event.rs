//! Asynchronous events of a device.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use rxe_wire::Qpn;

use crate::cq::{CqId, Notify};
use crate::srq::SrqId;

/// Something that happened outside any work request (`struct ibv_async_event`).
///
/// Those that end with "told by the runtime" the engine cannot see: [`Device::raise`] takes them
/// from whoever does.
///
/// [`Device::raise`]: crate::Device::raise
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
    /// A connection moved to its alternate path (`IBV_EVENT_PATH_MIG`). Nothing here migrates.
    PathMig(Qpn),
    /// A connection could not move to its alternate path (`IBV_EVENT_PATH_MIG_ERR`). Nothing here
    /// migrates.
    PathMigErr(Qpn),
    /// The device is lost (`IBV_EVENT_DEVICE_FATAL`).
    DeviceFatal,
    /// A port came up (`IBV_EVENT_PORT_ACTIVE`); told by the runtime.
    PortActive(u8),
    /// A port went down (`IBV_EVENT_PORT_ERR`); told by the runtime.
    PortErr(u8),
    /// The LID of a port changed (`IBV_EVENT_LID_CHANGE`); Ethernet has none.
    LidChange(u8),
    /// The table of partition keys of a port changed (`IBV_EVENT_PKEY_CHANGE`); told by the
    /// runtime.
    PKeyChange(u8),
    /// The subnet manager of a port changed (`IBV_EVENT_SM_CHANGE`); Ethernet has none.
    SmChange(u8),
    /// A shared receive queue is broken (`IBV_EVENT_SRQ_ERR`). Nothing here breaks one.
    SrqErr(SrqId),
    /// A shared receive queue has fewer receives than its limit (`IBV_EVENT_SRQ_LIMIT_REACHED`).
    SrqLimitReached(SrqId),
    /// A queue pair in the error state takes no more from its shared receive queue, and what it
    /// took has completed (`IBV_EVENT_QP_LAST_WQE_REACHED`, R46).
    QpLastWqeReached(Qpn),
    /// The subnet manager wants clients to register again (`IBV_EVENT_CLIENT_REREGISTER`); Ethernet
    /// has none.
    ClientReregister(u8),
    /// The GID table of a port changed (`IBV_EVENT_GID_CHANGE`); told by the runtime.
    GidChange(u8),
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
            Self::PathMig(_) => 6,
            Self::PathMigErr(_) => 7,
            Self::DeviceFatal => 8,
            Self::PortActive(_) => 9,
            Self::PortErr(_) => 10,
            Self::LidChange(_) => 11,
            Self::PKeyChange(_) => 12,
            Self::SmChange(_) => 13,
            Self::SrqErr(_) => 14,
            Self::SrqLimitReached(_) => 15,
            Self::QpLastWqeReached(_) => 16,
            Self::ClientReregister(_) => 17,
            Self::GidChange(_) => 18,
        }
    }

    /// What happened, in words (counterpart of `ibv_event_type_str`).
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CqErr(_) => "completion queue overflowed",
            Self::QpFatal(_) => "queue pair failed by itself",
            Self::QpReqErr(_) => "peer sent an invalid request",
            Self::QpAccessErr(_) => "peer asked for an access that it does not have",
            Self::CommEst(_) => "communication established",
            Self::SqDrained(_) => "send queue drained",
            Self::PathMig(_) => "moved to the alternate path",
            Self::PathMigErr(_) => "cannot move to the alternate path",
            Self::DeviceFatal => "device lost",
            Self::PortActive(_) => "port came up",
            Self::PortErr(_) => "port went down",
            Self::LidChange(_) => "LID changed",
            Self::PKeyChange(_) => "partition keys changed",
            Self::SmChange(_) => "subnet manager changed",
            Self::SrqErr(_) => "shared receive queue broken",
            Self::SrqLimitReached(_) => "shared receive queue below its limit",
            Self::QpLastWqeReached(_) => "takes no more from the shared receive queue",
            Self::ClientReregister(_) => "clients are to register again",
            Self::GidChange(_) => "GIDs changed",
        }
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())?;
        match self {
            Self::CqErr(cq) => write!(f, ", CQ {}", cq.0),
            Self::SrqErr(srq) | Self::SrqLimitReached(srq) => write!(f, ", SRQ {}", srq.0),
            Self::QpFatal(qpn)
            | Self::QpReqErr(qpn)
            | Self::QpAccessErr(qpn)
            | Self::CommEst(qpn)
            | Self::SqDrained(qpn)
            | Self::PathMig(qpn)
            | Self::PathMigErr(qpn)
            | Self::QpLastWqeReached(qpn) => write!(f, ", QP {qpn}"),
            Self::PortActive(port)
            | Self::PortErr(port)
            | Self::LidChange(port)
            | Self::PKeyChange(port)
            | Self::SmChange(port)
            | Self::ClientReregister(port)
            | Self::GidChange(port) => write!(f, ", port {port}"),
            Self::DeviceFatal => Ok(()),
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
