//! IPv6, without extension headers: RoCE has none.

use std::net::Ipv6Addr;

use etherparse::{IpNumber, Ipv6FlowLabel, Ipv6Header, Ipv6HeaderSlice};

use super::{head, put};
use crate::error::{EmitError, Layer, ParseError};

/// The IPv6 header ([RFC 8200](https://www.rfc-editor.org/rfc/rfc8200#section-3)), 40 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ipv6 {
    /// Traffic class: DSCP (6 bits) and ECN (2 bits).
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Length in bytes of all behind this header, the iCRC included.
    pub payload_len: u16,
    /// What follows, 17 for UDP.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
}

impl Ipv6 {
    /// Length in bytes.
    pub const LEN: usize = Ipv6Header::LEN;

    /// A header from `source` to `destination`, hop limit 64.
    /// The length is left for [`FrameBuilder`](super::FrameBuilder).
    pub const fn new(source: Ipv6Addr, destination: Ipv6Addr) -> Self {
        Self {
            traffic_class: 0,
            flow_label: 0,
            payload_len: 0,
            next_header: super::UDP_PROTOCOL,
            hop_limit: 64,
            source,
            destination,
        }
    }

    /// Reads it from the start of `bytes`. The length is not judged.
    ///
    /// # Errors
    /// [`ParseError::Truncated`], [`ParseError::IpVersion`].
    pub fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let bytes = head(bytes, Layer::Ipv6, Self::LEN)?;
        let version = bytes.first().copied().unwrap_or_default() >> 4;
        // The length is there, so all that etherparse can refuse is the version.
        let slice = Ipv6HeaderSlice::from_slice(bytes)
            .map_err(|_| ParseError::IpVersion { layer: Layer::Ipv6, version })?;
        Ok(Self {
            traffic_class: slice.traffic_class(),
            flow_label: slice.flow_label().value(),
            payload_len: slice.payload_length(),
            next_header: slice.next_header().0,
            hop_limit: slice.hop_limit(),
            source: slice.source_addr(),
            destination: slice.destination_addr(),
        })
    }

    /// Writes it to the start of `buf`.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`]; [`EmitError::FieldTooLarge`] when the flow label has more
    /// than 20 bits.
    pub fn write(&self, buf: &mut [u8]) -> Result<(), EmitError> {
        let header = Ipv6Header {
            traffic_class: self.traffic_class,
            flow_label: Ipv6FlowLabel::try_new(self.flow_label).map_err(|_| {
                EmitError::FieldTooLarge {
                    layer: Layer::Ipv6,
                    field: "flow label",
                    value: self.flow_label,
                }
            })?,
            payload_length: self.payload_len,
            next_header: IpNumber(self.next_header),
            hop_limit: self.hop_limit,
            source: self.source.octets(),
            destination: self.destination.octets(),
        };
        put(&header.to_bytes(), buf)
    }
}
