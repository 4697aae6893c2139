//! IPv4, without options: RoCE has none.

use std::net::Ipv4Addr;

use etherparse::checksum::Sum16BitWords;
use etherparse::{IpDscp, IpEcn, IpFragOffset, IpNumber, Ipv4Header, Ipv4HeaderSlice, Ipv4Options};

use super::{head, put};
use crate::error::{EmitError, Layer, ParseError};

/// The first bit of the flags, which etherparse drops.
const RESERVED_FLAG: u8 = 0x80;
const FLAGS_OFFSET: usize = 6;

/// The IPv4 header ([RFC 791](https://www.rfc-editor.org/rfc/rfc791#section-3.1)), 20 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ipv4 {
    /// DSCP (6 bits) and ECN (2 bits), once "type of service"; the traffic class of verbs.
    pub traffic_class: u8,
    /// Length in bytes of this header and all behind it, the iCRC included.
    pub total_len: u16,
    /// Identification. The iCRC covers it.
    pub identification: u16,
    /// The reserved first flag; sent as 0.
    pub reserved_flag: bool,
    /// "Don't fragment"; set on all of RoCE.
    pub dont_fragment: bool,
    /// "More fragments".
    pub more_fragments: bool,
    /// Fragment offset in units of eight bytes, 13 bits.
    pub fragment_offset: u16,
    /// Time to live; the hop limit of verbs.
    pub ttl: u8,
    /// What follows, 17 for UDP.
    pub protocol: u8,
    /// Header checksum.
    pub checksum: u16,
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
}

impl Ipv4 {
    /// Length in bytes.
    pub const LEN: usize = Ipv4Header::MIN_LEN;

    /// A header from `source` to `destination`, "don't fragment" set, identification 0, TTL 64.
    /// Length, protocol and checksum are left for [`FrameBuilder`](super::FrameBuilder).
    pub const fn new(source: Ipv4Addr, destination: Ipv4Addr) -> Self {
        Self {
            traffic_class: 0,
            total_len: 0,
            identification: 0,
            reserved_flag: false,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 64,
            protocol: super::UDP_PROTOCOL,
            checksum: 0,
            source,
            destination,
        }
    }

    /// Reads it from the start of `bytes`. The checksum and the lengths are not judged.
    ///
    /// # Errors
    /// [`ParseError::Truncated`], [`ParseError::IpVersion`], [`ParseError::Ipv4HeaderLen`].
    pub fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let bytes = head(bytes, Layer::Ipv4, Self::LEN)?;
        let first = bytes.first().copied().unwrap_or_default();
        if first >> 4 != 4 {
            return Err(ParseError::IpVersion { layer: Layer::Ipv4, version: first >> 4 });
        }
        let len = usize::from(first & 0x0f) * 4;
        // What is left for etherparse to refuse is a header length that is wrong.
        let slice =
            Ipv4HeaderSlice::from_slice(bytes).map_err(|_| ParseError::Ipv4HeaderLen { len })?;
        let flags = bytes.get(FLAGS_OFFSET).copied().unwrap_or_default();
        Ok(Self {
            traffic_class: slice.dcp().value() << 2 | slice.ecn().value(),
            total_len: slice.total_len(),
            identification: slice.identification(),
            reserved_flag: flags & RESERVED_FLAG != 0,
            dont_fragment: slice.dont_fragment(),
            more_fragments: slice.more_fragments(),
            fragment_offset: slice.fragments_offset().value(),
            ttl: slice.ttl(),
            protocol: slice.protocol().0,
            checksum: slice.header_checksum(),
            source: slice.source_addr(),
            destination: slice.destination_addr(),
        })
    }

    /// Writes it to the start of `buf`, with the checksum that it has.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`]; [`EmitError::FieldTooLarge`] when the fragment offset has
    /// more than 13 bits.
    pub fn write(&self, buf: &mut [u8]) -> Result<(), EmitError> {
        put(&self.to_bytes()?, buf)
    }

    /// The checksum that the header should have.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn computed_checksum(&self) -> Result<u16, EmitError> {
        let bytes = Self { checksum: 0, ..*self }.to_bytes()?;
        Ok(Sum16BitWords::new().add_slice(&bytes).ones_complement().to_be())
    }

    fn to_bytes(self) -> Result<[u8; Self::LEN], EmitError> {
        let too_large = |field, value: u16| EmitError::FieldTooLarge {
            layer: Layer::Ipv4,
            field,
            value: u32::from(value),
        };
        let class = self.traffic_class;
        let header = Ipv4Header {
            dscp: IpDscp::try_new(class >> 2).map_err(|_| too_large("DSCP", class.into()))?,
            ecn: IpEcn::try_new(class & 0b11).map_err(|_| too_large("ECN", class.into()))?,
            total_len: self.total_len,
            identification: self.identification,
            dont_fragment: self.dont_fragment,
            more_fragments: self.more_fragments,
            fragment_offset: IpFragOffset::try_new(self.fragment_offset)
                .map_err(|_| too_large("fragment offset", self.fragment_offset))?,
            time_to_live: self.ttl,
            protocol: IpNumber(self.protocol),
            header_checksum: self.checksum,
            source: self.source.octets(),
            destination: self.destination.octets(),
            options: Ipv4Options::default(),
        };
        let mut bytes = [0; Self::LEN];
        put(&header.to_bytes(), &mut bytes)?;
        if let Some(flags) = bytes.get_mut(FLAGS_OFFSET)
            && self.reserved_flag
        {
            *flags |= RESERVED_FLAG;
        }
        Ok(bytes)
    }
}
