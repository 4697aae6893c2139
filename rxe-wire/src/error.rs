//! What can be wrong with bytes, and with a request to write some.

use std::fmt;

use crate::opcode::{ExtHeaders, Opcode};

/// The layer that an error was found in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Layer {
    /// Ethernet.
    Ethernet,
    /// An 802.1Q or 802.1ad tag.
    Vlan,
    /// The global route header of RoCEv1.
    Grh,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// UDP.
    Udp,
    /// The base transport header.
    Bth,
    /// The extended headers that the opcode asks for.
    ExtendedHeaders,
    /// The pad bytes that BTH announces.
    Pad,
    /// The invariant CRC.
    Icrc,
    /// A management datagram.
    Mad,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ethernet => "Ethernet",
            Self::Vlan => "VLAN",
            Self::Grh => "GRH",
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
            Self::Udp => "UDP",
            Self::Bth => "BTH",
            Self::ExtendedHeaders => "extended headers",
            Self::Pad => "pad",
            Self::Icrc => "iCRC",
            Self::Mad => "MAD",
        })
    }
}

/// Why bytes are not a well-formed packet.
///
/// Bytes from the network that are refused with this are dropped and counted; nothing is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The bytes end too early (rule R35).
    #[error("{layer}: {needed} bytes needed, {have} there")]
    Truncated {
        /// Where they end.
        layer: Layer,
        /// How many bytes this layer needs, counted from the start of what was given to parse.
        needed: usize,
        /// How many there are, counted from the same place.
        have: usize,
    },
    /// The opcode is not defined, so nobody can tell where the payload starts (rule R35).
    #[error("opcode 0x{:02x} is not defined", opcode.get())]
    UnknownOpcode {
        /// The opcode.
        opcode: Opcode,
    },
}

/// Why a packet was not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmitError {
    /// The buffer is too short.
    #[error("the buffer has {have} bytes, {needed} are needed")]
    BufferTooShort {
        /// How many bytes the packet needs.
        needed: usize,
        /// How many the buffer has.
        have: usize,
    },
    /// The opcode is not defined.
    #[error("opcode 0x{:02x} is not defined", opcode.get())]
    UnknownOpcode {
        /// The opcode.
        opcode: Opcode,
    },
    /// The extended headers are not those that the opcode asks for.
    #[error("{opcode} takes the headers {expected:?}, given are {given:?}")]
    HeaderMismatch {
        /// The opcode.
        opcode: Opcode,
        /// The headers in its table row.
        expected: ExtHeaders,
        /// The headers that were given.
        given: ExtHeaders,
    },
}
