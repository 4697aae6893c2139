//! A RoCE transport engine without I/O.
pub mod path;
pub mod time;

pub use path::{Path, Transmit, Unreachable};
pub use time::Instant;
