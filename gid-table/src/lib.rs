//! GIDs and GID tables of RoCE ports.
//!
//! A GID is the address of a RoCE port, and on RoCE an IP address of its interface. A port has a
//! table of them, and programs name an entry by its index. This crate has the type
//! ([`Gid`]), the table with its promise about indices ([`GidTable`]), the queries of
//! libibverbs ([`query`]), the choice of the entry to send from ([`routable_gid`]) and what a table
//! should hold given the addresses of an interface
//! ([`populate`]). It is pure: who reads the addresses from the host is rxe-net.
//!
//! Counterpart of ib_core's `cache.c` and `roce_gid_mgmt.c`.
//!
//! ```
//! use gid_table::populate::{InterfaceInfo, LinkGidTypes, sync, wanted_gids};
//! use gid_table::{GidTable, QueryGidError};
//!
//! let eth0 = InterfaceInfo {
//!     name: "eth0".to_owned(),
//!     ifindex: 2,
//!     mac: Some([0x52, 0x54, 0, 0x77, 0, 1]),
//!     mtu: 1500,
//!     up: true,
//!     running: true,
//!     addrs: vec!["10.77.0.1".parse()?],
//!     ..InterfaceInfo::default()
//! };
//! let mut table = GidTable::new(1, GidTable::DEFAULT_CAPACITY);
//! sync(&mut table, &wanted_gids(&eth0, LinkGidTypes::V2));
//!
//! // The default GID is there, but this host does not own it: here is one that works.
//! assert!(!table.query_gid_ex(0)?.owned);
//! assert_eq!(table.suggest_for(0).map(|entry| entry.gid_index), Some(1));
//! assert_eq!(table.query_gid_ex(2), Err(QueryGidError::Empty { index: 2 }));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod choice;
pub mod eui64;
mod gid;
pub mod populate;
pub mod query;
pub mod table;

pub use choice::{GidScope, routable_gid};
pub use gid::{Gid, GidType, ParseGidError};
pub use populate::{InterfaceInfo, LinkGidTypes};
pub use query::{QueryGidError, QueryGidTableError, query_gid_table};
pub use table::{GidChange, GidEntry, GidTable, WantedGid};
