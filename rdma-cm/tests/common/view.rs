//! What the owner of an engine knows of a connection, and which events may come then.

use rdma_cm::engine::CmEvent;

/// Where a connection is, as far as its owner knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum View {
    /// We have asked.
    Asking,
    /// They have accepted; we are not ready.
    Accepted,
    /// They have asked.
    Asked,
    /// We have accepted.
    Accepting,
    Connected,
    /// We want the end.
    Parting,
    /// They want the end.
    Parted,
    /// It is over; only the end of timewait may come.
    Over,
    LookingUp,
    LookedUp,
}

impl View {
    /// Where it is after an event; `None` when nothing can come any more.
    ///
    /// # Panics
    ///
    /// When that event may not come.
    pub(crate) fn after(before: Option<Self>, event: &CmEvent) -> Option<Self> {
        use View::*;
        Some(match (before, event) {
            (None, CmEvent::Request { .. }) => Asked,
            (None, CmEvent::Lookup { .. }) => LookedUp,
            (Some(Asking), CmEvent::Response { .. }) => Accepted,
            (Some(Asking | Accepting), CmEvent::Unreachable { .. }) => Over,
            (Some(Asking | Accepted | Asked | Accepting | Connected), CmEvent::Rejected { .. }) => {
                Over
            }
            (Some(Accepting), CmEvent::Ready { .. }) => Connected,
            (Some(Accepting | Connected), CmEvent::Disconnecting { .. }) => Parted,
            // Connected: the peer has made a new connection with that queue pair.
            (
                Some(Parting | Connected),
                CmEvent::Disconnected { .. } | CmEvent::NotAnswered { .. },
            ) => Over,
            (Some(LookingUp), CmEvent::Found { .. } | CmEvent::Unreachable { .. }) => Over,
            (Some(Over | Parted), CmEvent::TimewaitExit { .. }) => return None,
            _ => panic!("{event:?} while {before:?}"),
        })
    }
}
