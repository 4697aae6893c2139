//! The memory link: a network in this process, of whole Ethernet frames.
//!
//! For simulations, which drive a [`Fabric`] with a virtual clock, and for programs and tests that
//! want RDMA between two devices of one process and no network at all.
//!
//! ```
//! use rxe_core::path::{Path, Transmit};
//! use rxe_core::time::Instant;
//! use rxe_net::batch::TxBatch;
//! use rxe_net::link::Link;
//! use rxe_net::memory::{Fabric, PortConfig};
//! use rxe_wire::Qpn;
//!
//! let fabric = Fabric::new();
//! let slow = PortConfig { latency_nanos: 5_000, ..PortConfig::numbered(1) };
//! let (left, right) = (fabric.add_port(slow)?, fabric.add_port(PortConfig::numbered(2))?);
//! let (mut left, mut right) = (fabric.attach(left, 1)?, fabric.attach(right, 1)?);
//!
//! let path = Path::new("10.0.0.1".parse()?, "10.0.0.2".parse()?);
//! let acknowledgement = [0x11, 0, 0xff, 0xff, 0, 1, 0, 7, 0, 0, 0, 1, 0x1f, 0, 0, 1];
//! let mut batch = TxBatch::new();
//! let transmit = Transmit { len: acknowledgement.len(), path, dest_qpn: Qpn::new(0x01_0007) };
//! assert!(batch.push_copy(&acknowledgement, transmit, None));
//! left.transmit(Instant::ZERO, &mut batch);
//!
//! let arrival = fabric.next_event_time().expect("a packet is on its way");
//! assert_eq!(arrival, Instant::from_nanos(5_000));
//! let count = right.receive(arrival, &mut |from, packet| {
//!     assert_eq!((from, packet), (&path, acknowledgement.as_slice()));
//! })?;
//! assert_eq!(count, 1);
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
