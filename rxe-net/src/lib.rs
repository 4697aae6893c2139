//! Links, threads and clocks that run the rxe-core engine.
#![deny(unsafe_code)] // allowed in udp/sys.rs alone, which holds the system calls

pub mod batch;
pub mod link;
