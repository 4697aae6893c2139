//! GIDs and GID tables of RoCE ports.
#![forbid(unsafe_code)]

mod gid;

pub use gid::{Gid, GidType};
