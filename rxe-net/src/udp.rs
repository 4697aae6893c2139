//! The UDP link: RoCEv2 over ordinary sockets, without privileges.
//!
//! [`UdpLink`] carries the packets of one shard on one local address. The kernel writes the IP
//! and UDP headers; the link writes and checks the iCRC, which covers most of them, so it must
//! know what the kernel will write (facts.md, "IPv4 identification and the iCRC").

mod check;
pub(crate) mod group;
mod hint;
pub(crate) mod holder;
mod link;
pub(crate) mod probe;
mod raw_pipe;
mod socket;
pub(crate) mod steer;
pub(crate) mod sys;

pub use group::{UdpGroup, UdpGroupConfig};
pub(crate) use hint::drain as drain_errors;
pub(crate) use link::may_be_icmp;
pub use link::{UdpConfig, UdpLink};
pub use raw_pipe::{PipeMessage, PipeWork, RawPipe, RawPipeReport};
pub use socket::{BufferSizes, source_port};
pub(crate) use socket::{TxKey, TxSockets, socket_address};
pub use steer::{BindError, ROCE_PORT};

/// An address of 127/8 for a unit test, other in test runs at the same time.
#[cfg(test)]
pub(crate) fn test_address(host: u8) -> std::net::IpAddr {
    let run = std::process::id();
    std::net::Ipv4Addr::new(127, 32 + (run >> 8) as u8 % 32, run as u8, host).into()
}
