//! A RoCE transport engine without I/O.
//!
//! No sockets, threads, clock or randomness of the OS: packets, time and seed are arguments. The
//! same engine runs over sockets and in a simulator. It sees packets from BTH on; what lies below,
//! and the iCRC, is the business of a link (crate rxe-net), which gets addresses as data
//! ([`Path`]).
//!
//! A [`Device`] is what all threads share: protection domains, registered memory, completion
//! queues, GIDs, events. A [`Shard`] owns queue pairs and runs under one lock; see there for the
//! order of calls. [`QueuePair`] is what threads post through.
//!
//! The contract: any packet may come at any time, and is executed, answered, or dropped and counted
//! ([`Counter`]); none panics. Each posted request ends exactly once, in order, as long as time
//! goes on. The same calls with the same times and seed give the same packets. Registered
//! memory is touched in [`mem`] alone, the one place with `unsafe`.
//!
//! Counterpart of `drivers/infiniband/sw/rxe` in Linux.
#![deny(unsafe_code)]

pub mod config;
pub mod counters;
pub mod cq;
pub mod device;
pub mod errno;
pub mod error;
pub mod event;
pub mod mem;
pub mod path;
pub mod pd;
pub mod qp;
mod rng;
pub mod shard;
pub mod srq;
pub mod time;
mod timer;
pub mod wc;
mod window;
pub mod wq;

pub use config::{CongestionConfig, DeviceConfig, Limits, Seed};
pub use counters::{Counter, Counters};
pub use cq::{CompletionChannel, CompletionQueue, CqId, Notify};
pub use device::{Device, Port};
pub use error::{CreateQpError, ModifyQpError};
pub use event::AsyncEvent;
pub use path::{Path, Transmit, TransmitRun, Unreachable};
pub use qp::QueuePair;
pub use shard::Shard;
pub use srq::{SharedReceiveQueue, SrqId};
pub use time::Instant;
