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
//! memory is touched in [`mem`] alone, the one place with `unsafe`, and the one that makes system
//! calls: to catch the faults of memory that somebody else owns, if asked to.
//!
//! # What it tells
//!
//! [`Counter`]s, per device and per queue pair ([`Device::counters`], [`Shard::qp_counters`]), and
//! events of `tracing`, by target:
//!
//! | target | level | what |
//! |---|---|---|
//! | `rxe::qp` | debug | a queue pair changes its state, by request or by an error |
//! | `rxe::req` | debug | a request cannot be built: its memory cannot be read |
//! | `rxe::comp` | debug | a request fails, or data that was READ cannot be stored |
//! | `rxe::retry` | debug | something is sent again: a NAK, an RNR NAK, the short timer, the ACK timer |
//! | `rxe::resp` | debug | a NAK is sent, with what it is about, or a message cannot be stored |
//! | `rxe::congestion` | debug | a CNP slows a queue pair down, and to what |
//! | `rxe::event` | debug | an asynchronous event is raised |
//! | `rxe::recv` | trace | a packet is dropped, with the reason |
//!
//! The layer below adds `rxe::net`, the one above `rxe::gid`. `RUST_LOG=rxe::retry=debug` is how
//! the command `urxe` is asked for them.
//!
//! Counterpart of `drivers/infiniband/sw/rxe` in Linux.
#![deny(unsafe_code)]

pub mod ah;
pub mod config;
pub mod counters;
pub mod cq;
mod credit;
pub mod device;
pub mod errno;
pub mod error;
pub mod event;
pub mod mem;
pub mod multicast;
mod network_header;
pub mod packet_run;
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
pub mod xrc;

pub use ah::{AddressHandle, CreateAhError, Destination};
pub use config::{CongestionConfig, DeviceConfig, Limits, Seed};
pub use counters::{Counter, CounterValues, Counters};
pub use cq::{CompletionChannel, CompletionQueue, CqId, Notify};
pub use device::{Device, Port};
pub use error::{BusyError, CreateQpError, ModifyQpError};
pub use event::AsyncEvent;
pub use packet_run::PacketRun;
pub use path::{Path, Transmit, TransmitRun, Unreachable};
pub use qp::QueuePair;
pub use shard::Shard;
pub use srq::{SharedReceiveQueue, SrqId};
pub use time::Instant;
pub use xrc::XrcDomain;
