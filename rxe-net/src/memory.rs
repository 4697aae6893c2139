//! The memory link: a network in this process, of whole Ethernet frames.
//!
//! For simulations, which drive a [`Fabric`] with a virtual clock, and for programs and tests that
//! want RDMA between two devices of one process and no network at all.
//!
//! ```
//! use rxe_core::time::Instant;
//! use rxe_net::link::Link;
//! use rxe_net::memory::{Fabric, PortConfig};
//!
//! let fabric = Fabric::new();
//! let left = fabric.add_port(PortConfig::numbered(1))?;
//! let right = fabric.add_port(PortConfig::numbered(2))?;
//! let mut sender = fabric.attach(left, 1)?;
//! let mut receiver = fabric.attach(right, 1)?;
//! assert_eq!(receiver.receive(Instant::ZERO, &mut |_, _| {})?, 0);
//! assert_eq!(fabric.next_event_time(), None);
//! # let _ = &mut sender;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod fabric;
mod link;
mod port;
mod queue;
mod state;

pub use fabric::{AddPortError, AttachError, Fabric};
pub use link::MemoryLink;
pub use port::{GID_TYPES, PortConfig, PortCounters, PortId, Waker};
pub use queue::{ReceiveLimits, truesize};
