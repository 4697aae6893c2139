//! Tests of urxe over real links and against real programs: what they share.
//!
//! The tests are in `tests/`, a file for each subject. They run the built command in network
//! namespaces that they make. The tests against Linux's own driver are a program of their own,
//! `lab/linux-pingpong`.
#![forbid(unsafe_code)]

mod dump;
mod pingpong;

pub use dump::Dump;
pub use pingpong::{Pingpong, PingpongError, Played};
