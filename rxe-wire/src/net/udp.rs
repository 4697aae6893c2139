//! UDP.

use etherparse::{UdpHeader, UdpHeaderSlice};

use super::{head, put};
use crate::error::{EmitError, Layer, ParseError};
use crate::icrc::ROCE_V2_PORT;

/// The UDP header ([RFC 768](https://www.rfc-editor.org/rfc/rfc768)), 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Udp {
    /// Source port: entropy for routers, 0xC000 and above.
    pub source_port: u16,
    /// Destination port, 4791.
    pub destination_port: u16,
    /// Length in bytes of this header and all behind it, the iCRC included.
    pub length: u16,
    /// Checksum, 0 for none. rdma_rxe sends 0 on IPv4 and IPv6.
    pub checksum: u16,
}

impl Udp {
    /// Length in bytes.
    pub const LEN: usize = UdpHeader::LEN;

    /// A header from `source_port` to RoCE's port, without checksum.
    /// The length is left for [`FrameBuilder`](super::FrameBuilder).
    pub const fn new(source_port: u16) -> Self {
        Self { source_port, destination_port: ROCE_V2_PORT, length: 0, checksum: 0 }
    }

    /// Reads it from the start of `bytes`. Length and checksum are not judged.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let slice =
            UdpHeaderSlice::from_slice(head(bytes, Layer::Udp, Self::LEN)?).map_err(|error| {
                ParseError::Truncated {
                    layer: Layer::Udp,
                    needed: error.required_len,
                    have: error.len,
                }
            })?;
        Ok(Self {
            source_port: slice.source_port(),
            destination_port: slice.destination_port(),
            length: slice.length(),
            checksum: slice.checksum(),
        })
    }

    /// Writes it to the start of `buf`.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    pub fn write(&self, buf: &mut [u8]) -> Result<(), EmitError> {
        put(&self.to_header().to_bytes(), buf)
    }

    /// The checksum over IPv4, never 0. `payload` is all behind this header.
    ///
    /// # Errors
    /// [`EmitError::PacketTooLong`] when UDP cannot carry so many bytes.
    pub fn checksum_v4(&self, ip: &super::Ipv4, payload: &[u8]) -> Result<u16, EmitError> {
        self.to_header()
            .calc_checksum_ipv4_raw(ip.source.octets(), ip.destination.octets(), payload)
            .map_err(|error| too_long(error.actual, error.max_allowed))
    }

    /// The checksum over IPv6, never 0. `payload` is all behind this header.
    ///
    /// # Errors
    /// [`EmitError::PacketTooLong`] when UDP cannot carry so many bytes.
    pub fn checksum_v6(&self, ip: &super::Ipv6, payload: &[u8]) -> Result<u16, EmitError> {
        self.to_header()
            .calc_checksum_ipv6_raw(ip.source.octets(), ip.destination.octets(), payload)
            .map_err(|error| too_long(error.actual, error.max_allowed))
    }

    const fn to_header(self) -> UdpHeader {
        UdpHeader {
            source_port: self.source_port,
            destination_port: self.destination_port,
            length: self.length,
            checksum: self.checksum,
        }
    }
}

const fn too_long(len: usize, max: usize) -> EmitError {
    EmitError::PacketTooLong { len, max }
}
