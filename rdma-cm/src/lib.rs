//! The RDMA connection manager.
//!
//! [`engine`] is the protocol of connection management between two QP1s, without sockets, threads
//! or clock: what `ib_cm` is in Linux.
#![forbid(unsafe_code)]

pub mod engine;
