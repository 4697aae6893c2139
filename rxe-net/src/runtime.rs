//! Who runs the engine: whoever polls, and a thread that sleeps until nobody does.
//!
//! A [`Runner`] is a shard with its links, behind one lock. Threads of the program run it when they
//! post and when they poll; a background thread, asleep in epoll, runs it when nobody polls, so
//! that one-sided work and timers go on in a program that never calls in. The hand-over between
//! them has a contract (ARCHITECTURE.md, "Progress"), which `runner.rs` and `background.rs` keep.

mod background;
mod behind;
mod clock;
mod groups;
mod held;
mod lease;
mod lookout;
mod open;
mod outbox;
mod pressure;
mod runner;
mod sleeper;
mod watch;

pub use crate::slots::NoSlotError;
pub use clock::Clock;
pub use groups::{AttachMulticastError, Groups};
pub use open::{
    LinkKind, LinkOptions, MemoryLinks, OpenLink, OpenLinkError, OptionsError, PacketLinks,
    UdpLinks,
};
pub use runner::{ModifyError, Runner, StartError};
pub use sleeper::EventFd;
pub use watch::{SOCKETS_MAX, SleepId, Sockets};
