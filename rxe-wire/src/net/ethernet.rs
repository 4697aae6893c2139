//! Ethernet II.

use std::fmt;

use etherparse::{EtherType, Ethernet2Header, Ethernet2HeaderSlice};

use super::{head, put};
use crate::error::{EmitError, Layer, ParseError};

/// EtherTypes that a RoCE frame can have.
pub mod ether_type {
    /// RoCE v1: GRH follows.
    pub const ROCE_V1: u16 = 0x8915;
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// An 802.1Q tag.
    pub const VLAN: u16 = 0x8100;
    /// An 802.1ad service tag.
    pub const SERVICE_VLAN: u16 = 0x88a8;
}

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MacAddr(
    /// The six bytes in wire order.
    pub [u8; 6],
);

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The Ethernet header, 14 bytes, without tags.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ethernet {
    /// Destination address.
    pub destination: MacAddr,
    /// Source address.
    pub source: MacAddr,
    /// What follows: a tag, or the network layer (see [`ether_type`]).
    pub ether_type: u16,
}

impl Ethernet {
    /// Length in bytes.
    pub const LEN: usize = Ethernet2Header::LEN;

    /// Reads it from the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let slice = Ethernet2HeaderSlice::from_slice(head(bytes, Layer::Ethernet, Self::LEN)?)
            .map_err(|error| ParseError::Truncated {
                layer: Layer::Ethernet,
                needed: error.required_len,
                have: error.len,
            })?;
        Ok(Self {
            destination: MacAddr(slice.destination()),
            source: MacAddr(slice.source()),
            ether_type: slice.ether_type().0,
        })
    }

    /// Writes it to the start of `buf`.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    pub fn write(&self, buf: &mut [u8]) -> Result<(), EmitError> {
        let header = Ethernet2Header {
            source: self.source.0,
            destination: self.destination.0,
            ether_type: EtherType(self.ether_type),
        };
        put(&header.to_bytes(), buf)
    }
}
