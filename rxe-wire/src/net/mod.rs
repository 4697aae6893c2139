//! Everything below BTH: Ethernet, VLAN, GRH, IPv4, IPv6 and UDP, and whole frames of them.
//!
//! The header files here are the only ones that name etherparse. Each header is a value type that
//! keeps every bit, so that a frame that was read is written again as it came.

mod ethernet;
mod frame;
mod grh;
mod ipv4;
mod ipv6;
mod super_frame;
mod udp;
mod vlan;

pub use ethernet::{Ethernet, MacAddr, ether_type};
pub use frame::{Frame, FrameBuilder, Link, Net};
pub use grh::Grh;
pub use ipv4::Ipv4;
pub use ipv6::Ipv6;
pub use super_frame::{Segment, SuperFrame};
pub use udp::Udp;
pub use vlan::Vlan;

use crate::error::{EmitError, Layer, ParseError};

/// The IP protocol number of UDP.
pub const UDP_PROTOCOL: u8 = 17;

/// Copies a header to the start of `buf`.
fn put(header: &[u8], buf: &mut [u8]) -> Result<(), EmitError> {
    let have = buf.len();
    let place = buf
        .get_mut(..header.len())
        .ok_or(EmitError::BufferTooShort { needed: header.len(), have })?;
    place.copy_from_slice(header);
    Ok(())
}

/// The first `len` bytes, or the error that they are not there.
fn head(bytes: &[u8], layer: Layer, len: usize) -> Result<&[u8], ParseError> {
    bytes.get(..len).ok_or(ParseError::Truncated { layer, needed: len, have: bytes.len() })
}
