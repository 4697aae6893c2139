//! The UDP link: RoCEv2 over ordinary sockets, without privileges.
//!
//! [`UdpLink`] carries the packets of one shard on one local address. The kernel writes the IP
//! and UDP headers; the link writes and checks the iCRC, which covers most of them, so it must
//! know what the kernel will write (facts.md, "IPv4 identification and the iCRC").

mod check;
mod hint;
mod link;
mod raw_pipe;
mod socket;
mod steer;
mod sys;

pub use link::{UdpConfig, UdpLink};
pub use raw_pipe::{RawPipe, RawPipeReport};
pub use socket::{BufferSizes, source_port};
pub use steer::{BindError, ROCE_PORT};
