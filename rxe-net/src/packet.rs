//! The packet link: whole Ethernet frames over a packet socket, RoCE v1 and v2, with VLAN tags.
//!
//! [`PacketLink`] carries the packets of one shard for one local GID. It writes and reads every
//! header itself, so that it sends RoCE v1, which no socket of IP can, chooses each field, and
//! checks each iCRC exactly. It needs `CAP_NET_RAW`, which the UDP link does not.
//!
//! Each shard's socket sees all frames of the interface, and a filter in the kernel leaves it those
//! for its own GID and slot. So shards and processes share an interface without steering, letters
//! or surveys. It sees `lo` too, by which packets go to addresses of this host itself.
//!
//! Packets to QP1 are taken in by one link of a GID, which passes them on by letters, as those of
//! the UDP link are; when its process ends, another one takes over. A [`PacketGroup`] receives what
//! is sent to a multicast group.

mod by_udp;
mod filter;
mod group;
mod link;
mod office;
mod receive;
mod resolve;
mod socket;
mod sys;

pub use group::{PacketGroup, PacketGroupConfig};
pub use link::{OpenPacketError, PacketConfig, PacketLink};
