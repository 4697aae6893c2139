//! The common header of every management datagram: 24 bytes.

use std::fmt;

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The length of the common header in bytes.
pub const MAD_HEADER_LEN: usize = 24;

/// The header as it lies on the wire.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct MadHeaderBytes {
    base_version: u8,
    class: u8,
    class_version: u8,
    method: u8,
    status: U16,
    class_specific: U16,
    transaction_id: U64,
    attribute_id: U16,
    reserved: U16,
    attribute_modifier: U32,
}

const _: () = assert!(size_of::<MadHeaderBytes>() == MAD_HEADER_LEN);

/// The management class of a datagram; any value may arrive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ManagementClass(pub u8);

impl ManagementClass {
    /// Subnet administration (multicast joins, path records).
    pub const SUBNET_ADMINISTRATION: Self = Self(0x03);
    /// Communication management, the class of connection set-up.
    pub const COMMUNICATION: Self = Self(0x07);
}

/// What a datagram asks for; any value may arrive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Method(pub u8);

impl Method {
    /// Read an attribute.
    pub const GET: Self = Self(0x01);
    /// Change an attribute.
    pub const SET: Self = Self(0x02);
    /// A message that is not a request for an attribute; the only method of connection management.
    pub const SEND: Self = Self(0x03);
    /// The answer to [`Method::GET`] and [`Method::SET`].
    pub const GET_RESPONSE: Self = Self(0x81);
}

/// Which attribute or message a datagram carries; the meaning depends on the class.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AttributeId(pub u16);

/// A number that ties an answer to its request, 64 bits, chosen by the requester.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TransactionId(pub u64);

impl fmt::Display for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:016x}", self.0)
    }
}

impl fmt::Debug for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The common header of a management datagram (facts.md section 2; C: `struct ib_mad_hdr`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MadHeader {
    /// Version of this header; 1 is the only one there is.
    pub base_version: u8,
    /// Management class.
    pub class: ManagementClass,
    /// Version of the class; connection management is at 2.
    pub class_version: u8,
    /// What the datagram asks for.
    pub method: Method,
    /// Status of an answer, 0 in requests and in connection management.
    pub status: u16,
    /// Bits that the class defines; unused in connection management.
    pub class_specific: u16,
    /// Ties an answer to its request.
    pub transaction_id: TransactionId,
    /// Attribute or message.
    pub attribute_id: AttributeId,
    /// Reserved bits as received; 0 in datagrams of ours.
    pub reserved: u16,
    /// Refines the attribute; 0 in connection management.
    pub attribute_modifier: u32,
}

impl MadHeader {
    /// The only base version.
    pub const BASE_VERSION: u8 = 1;

    /// Reads a header from its bytes. Every bit pattern is a header.
    pub fn read(bytes: &[u8; MAD_HEADER_LEN]) -> Self {
        let raw: MadHeaderBytes = zerocopy::transmute!(*bytes);
        Self {
            base_version: raw.base_version,
            class: ManagementClass(raw.class),
            class_version: raw.class_version,
            method: Method(raw.method),
            status: raw.status.get(),
            class_specific: raw.class_specific.get(),
            transaction_id: TransactionId(raw.transaction_id.get()),
            attribute_id: AttributeId(raw.attribute_id.get()),
            reserved: raw.reserved.get(),
            attribute_modifier: raw.attribute_modifier.get(),
        }
    }

    /// Writes the header; what [`MadHeader::read`] took comes out unchanged.
    pub fn write(&self, out: &mut [u8; MAD_HEADER_LEN]) {
        let raw = MadHeaderBytes {
            base_version: self.base_version,
            class: self.class.0,
            class_version: self.class_version,
            method: self.method.0,
            status: self.status.into(),
            class_specific: self.class_specific.into(),
            transaction_id: self.transaction_id.0.into(),
            attribute_id: self.attribute_id.0.into(),
            reserved: self.reserved.into(),
            attribute_modifier: self.attribute_modifier.into(),
        };
        *out = zerocopy::transmute!(raw);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_field_has_its_place() {
        let mut bytes = [0; MAD_HEADER_LEN];
        for (place, byte) in bytes.iter_mut().enumerate() {
            *byte = place as u8 + 0x10;
        }
        let header = MadHeader::read(&bytes);
        assert_eq!(
            header,
            MadHeader {
                base_version: 0x10,
                class: ManagementClass(0x11),
                class_version: 0x12,
                method: Method(0x13),
                status: 0x1415,
                class_specific: 0x1617,
                transaction_id: TransactionId(0x1819_1a1b_1c1d_1e1f),
                attribute_id: AttributeId(0x2021),
                reserved: 0x2223,
                attribute_modifier: 0x2425_2627,
            }
        );
    }

    proptest! {
        #[test]
        fn any_header_round_trips(bytes: [u8; MAD_HEADER_LEN]) {
            let mut out = [0; MAD_HEADER_LEN];
            MadHeader::read(&bytes).write(&mut out);
            prop_assert_eq!(out, bytes);
        }
    }
}
