//! Queue pairs: attributes and states, the posting half, and the engine half.

pub mod attr;
pub(crate) mod completer;
mod datagram;
mod dcqcn;
mod local;
pub(crate) mod machine;
pub(crate) mod modify;
mod notify;
mod queue_pair;
pub(crate) mod read_gaps;
mod replay;
pub(crate) mod requester;
pub(crate) mod responder;
pub(crate) mod run;
pub(crate) mod send_queue;
mod transition;
mod uc;

pub use attr::{AddressVector, MigState, Mtu, QpAttr, QpAttrMask, QpState, QpType};
pub use datagram::{GSI_QKEY, GSI_QPN};
pub use queue_pair::{ALL_PORTS, QpCaps, QpInit, QueuePair, RecvPoster, SendBatch, SendPoster};
pub use transition::{RC_TO_RTS, Transition, steps_to_rts, transition, transitions};
