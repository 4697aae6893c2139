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
    /// The Ethernet frame carries something else: neither GRH, IPv4 nor IPv6 follows.
    #[error("EtherType 0x{ether_type:04x} is not RoCE's: neither 0x8915, IPv4 nor IPv6")]
    EtherType {
        /// The EtherType, behind up to two VLAN tags; below 0x0600 it is an 802.3 length.
        ether_type: u16,
    },
    /// The version field is not the one that the layer needs.
    #[error("{layer}: version {version} in its first four bits")]
    IpVersion {
        /// Where.
        layer: Layer,
        /// The version found.
        version: u8,
    },
    /// The IPv4 header is not 20 bytes long: RoCE allows no options.
    #[error("IPv4: a header of {len} bytes, RoCE's has 20 and no options")]
    Ipv4HeaderLen {
        /// The length in bytes that the header states.
        len: usize,
    },
    /// A fragment of a packet. RoCE is never fragmented, and the iCRC needs it whole.
    #[error("IPv4: a fragment, offset {offset} bytes, more to come: {more}")]
    Fragment {
        /// Where it belongs in the whole packet, in bytes.
        offset: usize,
        /// Whether more fragments follow it.
        more: bool,
    },
    /// Another protocol follows; on IPv6 it may be an extension header, which RoCE has not.
    #[error("{layer}: next header {next_header} is not RoCE's")]
    NextHeader {
        /// The layer that names it.
        layer: Layer,
        /// The IP protocol number.
        next_header: u8,
    },
    /// The packet goes to another UDP port than 4791.
    #[error("UDP: destination port {port}, RoCE's is 4791")]
    UdpPort {
        /// The destination port.
        port: u16,
    },
    /// A length field does not fit what it describes.
    ///
    /// A length of 0 may come from a capture of segmentation offload.
    #[error("{layer}: its length field says {stated} bytes, {expected} are expected")]
    Length {
        /// The layer whose field it is.
        layer: Layer,
        /// The value of the field, in bytes.
        stated: usize,
        /// The value that would fit: the least, or the only one.
        expected: usize,
    },
}

impl ParseError {
    /// Whether it says that the bytes are another protocol's, rather than a bad RoCE packet.
    pub const fn is_foreign(&self) -> bool {
        match self {
            Self::EtherType { .. } | Self::NextHeader { .. } | Self::UdpPort { .. } => true,
            Self::Truncated { .. }
            | Self::UnknownOpcode { .. }
            | Self::IpVersion { .. }
            | Self::Ipv4HeaderLen { .. }
            | Self::Fragment { .. }
            | Self::Length { .. } => false,
        }
    }

    /// The same for bytes that start `offset` bytes earlier.
    pub(crate) const fn moved(self, offset: usize) -> Self {
        match self {
            Self::Truncated { layer, needed, have } => {
                Self::Truncated { layer, needed: needed + offset, have: have + offset }
            }
            other => other,
        }
    }
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
    /// A value has more bits than its field.
    #[error("{layer}: {value} does not fit in the field {field}")]
    FieldTooLarge {
        /// The layer.
        layer: Layer,
        /// The name of the field.
        field: &'static str,
        /// The value.
        value: u32,
    },
    /// The packet is longer than IP can carry.
    #[error("a packet of {len} bytes, at most {max} fit")]
    PacketTooLong {
        /// Its length in bytes.
        len: usize,
        /// The greatest possible.
        max: usize,
    },
    /// The packet is shorter than BTH.
    #[error("a packet of {len} bytes, BTH alone has {min}")]
    PacketTooShort {
        /// Its length in bytes.
        len: usize,
        /// The least possible.
        min: usize,
    },
}
