//! GRH, the global route header of RoCE v1. It has the form of an IPv6 header.

use zerocopy::byteorder::{BE, U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::head;
use crate::error::{EmitError, Layer, ParseError};
use crate::hdr::{read_prefix, write_prefix};
use crate::icrc::GRH_NEXT_HEADER;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct GrhBytes {
    /// Version (4), traffic class (8), flow label (20).
    version_class_flow: U32<BE>,
    payload_len: U16<BE>,
    next_header: u8,
    hop_limit: u8,
    source: [u8; 16],
    destination: [u8; 16],
}

const _: () = assert!(size_of::<GrhBytes>() == Grh::LEN);

const VERSION: u32 = 6;
const VERSION_SHIFT: u32 = 28;
const CLASS_SHIFT: u32 = 20;
const FLOW_MASK: u32 = 0x000f_ffff;

/// The global route header, 40 bytes (`struct ib_grh` in Linux). Its version is 6.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Grh {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Length in bytes of all behind this header, the iCRC included.
    pub payload_len: u16,
    /// What follows, 0x1B for BTH.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// GID of the sender, in wire order.
    pub source: [u8; 16],
    /// GID of the receiver, in wire order.
    pub destination: [u8; 16],
}

impl Grh {
    /// Length in bytes.
    pub const LEN: usize = 40;

    /// A header from the GID `source` to the GID `destination`, hop limit 64.
    /// The length is left for [`FrameBuilder`](super::FrameBuilder).
    pub const fn new(source: [u8; 16], destination: [u8; 16]) -> Self {
        Self {
            traffic_class: 0,
            flow_label: 0,
            payload_len: 0,
            next_header: GRH_NEXT_HEADER,
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
        let bytes = head(bytes, Layer::Grh, Self::LEN)?;
        let truncated =
            ParseError::Truncated { layer: Layer::Grh, needed: Self::LEN, have: bytes.len() };
        let raw: GrhBytes = read_prefix(bytes).ok_or(truncated)?;
        let first = raw.version_class_flow.get();
        if first >> VERSION_SHIFT != VERSION {
            let version = (first >> VERSION_SHIFT) as u8;
            return Err(ParseError::IpVersion { layer: Layer::Grh, version });
        }
        Ok(Self {
            traffic_class: (first >> CLASS_SHIFT) as u8,
            flow_label: first & FLOW_MASK,
            payload_len: raw.payload_len.get(),
            next_header: raw.next_header,
            hop_limit: raw.hop_limit,
            source: raw.source,
            destination: raw.destination,
        })
    }

    /// Writes it to the start of `buf`.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`]; [`EmitError::FieldTooLarge`] when the flow label has more
    /// than 20 bits.
    pub fn write(&self, buf: &mut [u8]) -> Result<(), EmitError> {
        if self.flow_label > FLOW_MASK {
            return Err(EmitError::FieldTooLarge {
                layer: Layer::Grh,
                field: "flow label",
                value: self.flow_label,
            });
        }
        let raw = GrhBytes {
            version_class_flow: U32::new(
                VERSION << VERSION_SHIFT
                    | u32::from(self.traffic_class) << CLASS_SHIFT
                    | self.flow_label,
            ),
            payload_len: U16::new(self.payload_len),
            next_header: self.next_header,
            hop_limit: self.hop_limit,
            source: self.source,
            destination: self.destination,
        };
        write_prefix(&raw, buf)
    }
}
