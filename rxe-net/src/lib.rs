//! Links, threads and clocks that run the rxe-core engine.
#![deny(unsafe_code)] // allowed in udp/sys.rs and sys/ alone, which hold the system calls

pub mod batch;
pub mod faults;
mod frame;
pub mod host;
pub mod link;
pub mod memory;
pub mod pcap;
pub mod runtime;
mod sys;
pub mod udp;
