//! Wire formats of RoCE, InfiniBand management datagrams and the rxe uAPI.
#![forbid(unsafe_code)]

pub mod ids;
pub mod psn;

pub use ids::{LKey, Msn, PKey, QKey, Qpn, RKey};
pub use psn::Psn;
