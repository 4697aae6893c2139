//! Wire formats of RoCE, InfiniBand management datagrams and the rxe uAPI.
//!
//! No I/O, no state, no allocation, no `unsafe`. What stands where:
//!
//! - [`Packet`] is a received packet from BTH on, [`Headers`] what is written of one to send;
//!   [`hdr`] has the headers themselves and [`opcode`] the table that says which ones follow BTH.
//! - [`icrc`] is the CRC that ends each packet, for flows and for whole packets.
//! - [`net`] is all below BTH: Ethernet, VLAN, GRH, IP, UDP, and whole frames.
//! - [`mad`] has management datagrams and the messages of the connection manager.
//! - [`uapi`] has the structs that programs share with the rxe driver.
//!
//! The contract: parsing takes any bytes, never panics, and gives either a consistent view or a
//! [`ParseError`] that says which layer lacks what. Values keep every bit, reserved ones too, so
//! that what was read is written again to the same bytes. Writing refuses what could not be read
//! again with an [`EmitError`]. What a value *means* to a QP is not judged here: TVer, keys, PSNs,
//! and the payload's length against the path MTU ([`PayloadRule::check`]) are for the engine.
//!
//! ```
//! use rxe_wire::hdr::{Aeth, Bth};
//! use rxe_wire::{Headers, Msn, Opcode, Packet, Psn, Qpn, Syndrome};
//!
//! let bth = Bth {
//!     opcode: Opcode::RC_ACKNOWLEDGE,
//!     dest_qpn: Qpn::new(0x11),
//!     psn: Psn::new(7),
//!     ..Bth::default()
//! };
//! let aeth = Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(1) };
//! let headers = Headers { aeth: Some(aeth), ..Headers::new(bth) };
//! let mut buf = [0; 64];
//! let len = headers.write(&mut buf)?;
//!
//! let packet = Packet::parse(&buf[..len])?;
//! assert_eq!(packet.aeth(), Some(aeth));
//! assert_eq!(packet.headers(), headers);
//! assert_eq!(packet.payload(), []);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod crc;
pub mod error;
pub mod flow_note;
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

pub use error::{EmitError, Layer, ParseError};
pub use flow_note::{FlowNote, FlowNoteKind};
pub use ids::{LKey, Msn, PKey, QKey, Qpn, RKey};
pub use opcode::{
    ExtHeaders, OPCODES, Opcode, OpcodeInfo, Operation, PayloadRule, Position, Service,
};
pub use packet::{Headers, Packet};
pub use psn::Psn;
pub use syndrome::{NakCode, RnrTimer, Syndrome, SyndromeKind};
