//! Wire formats of RoCE, InfiniBand management datagrams and the rxe uAPI.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod crc;
pub mod error;
pub mod hdr;
pub mod icrc;
pub mod ids;
pub mod mad;
pub mod net;
pub mod opcode;
pub mod packet;
pub mod psn;
pub mod syndrome;
pub mod uapi;

pub use error::{EmitError, ParseError};
pub use ids::{LKey, Msn, PKey, QKey, Qpn, RKey};
pub use opcode::{
    ExtHeaders, OPCODES, Opcode, OpcodeInfo, Operation, PayloadRule, Position, Service,
};
pub use packet::{Headers, Packet};
pub use psn::Psn;
pub use syndrome::{NakCode, RnrTimer, Syndrome, SyndromeKind};
