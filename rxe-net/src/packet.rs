//! The packet link: whole Ethernet frames over a packet socket, RoCE v1 and v2, with VLAN tags.
//!
//! [`PacketLink`] carries the packets of one shard for one local GID. It writes and reads every
//! header itself, so that it sends RoCE v1, which no socket of IP can, chooses each field, and
//! checks each iCRC exactly. It needs `CAP_NET_RAW`, which the UDP link does not.
//!
//! Each shard's socket sees all frames of the interface, and a filter in the kernel leaves it those
//! for its own GID and slot. So shards and processes share an interface without steering, letters
//! or surveys.

mod filter;
mod link;
mod resolve;
mod sys;

pub use link::{OpenPacketError, PacketConfig, PacketLink};
