//! Events, taken and acknowledged.

use rdma_cm::{CmId, Event, EventChannel, EventParam, EventType, RejReason};
use rxe_wire::mad::cm::SidrStatus;

use super::error::CmError;

/// What an event has told. The event itself is acknowledged already: so its identifier may be destroyed
/// at any time, for which `CmId::destroy` would wait.
pub(crate) struct Told {
    pub(crate) event: EventType,
    pub(crate) id: CmId,
    pub(crate) param: EventParam,
    status: i32,
}

impl From<Event> for Told {
    fn from(event: Event) -> Self {
        let (id, param) = (event.id().clone(), event.param().clone());
        Self { event: event.event(), id, param, status: event.status() }
    }
}

impl Told {
    /// Waits for the next event.
    pub(crate) fn next(events: &EventChannel) -> Result<Self, CmError> {
        Ok(events.get()?.into())
    }

    /// Likewise, and it has to be `wanted`.
    pub(crate) fn expect(events: &EventChannel, wanted: EventType) -> Result<Self, CmError> {
        let told = Self::next(events)?;
        if told.event == wanted { Ok(told) } else { Err(told.unexpected(wanted)) }
    }

    /// What it means where `wanted` was waited for.
    pub(crate) fn unexpected(&self, wanted: EventType) -> CmError {
        let status = self.status;
        match (self.event, u16::try_from(status)) {
            (EventType::Disconnected, _) => CmError::Disconnected,
            (EventType::Rejected, reason) => {
                CmError::Refused { reason: RejReason(reason.unwrap_or(0)) }
            }
            (EventType::AddrError, _) => {
                CmError::NoWay(std::io::Error::from_raw_os_error(status.saturating_neg()))
            }
            (EventType::Unreachable, Ok(refusal)) if refusal > 0 => {
                CmError::NoService { status: SidrStatus(refusal.try_into().unwrap_or(u8::MAX)) }
            }
            (EventType::Unreachable, _) => CmError::NoAnswer,
            (event, _) => CmError::Event { event, status, wanted },
        }
    }

    /// For [`OnEvent`](super::node::OnEvent), where none should come.
    pub(crate) fn none_expected(&self) -> Result<(), CmError> {
        Err(self.unexpected(EventType::Disconnected))
    }
}
