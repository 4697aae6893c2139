//! A RoCE transport engine without I/O.
pub mod path;
