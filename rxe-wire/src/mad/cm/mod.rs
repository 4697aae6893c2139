//! The messages of connection management: one type each, and [`CmMessage`] for any of them.
//!
//! Each message has public fields of small types that hold legal values only, a `read` from the 232
//! bytes after the MAD header and a `write` to them. What was read is written back unchanged:
//! reserved bits are kept in a field `reserved`, codes without a name stay what they are. The
//! layouts are those of facts.md section 2, checked against captures of the Linux driver.

mod cma;
mod dreq;
mod fields;
mod lap;
mod mra;
mod path;
mod rej;
mod rep;
mod req;
mod rtu;
mod service_id;
mod sidr;

use std::fmt;

pub use cma::{CMA_HEADER_LEN, CmaHeader};
pub use dreq::{Drep, Dreq};
pub use fields::{
    AnsweredMessage, Bits, CommId, FieldTooLong, FixedBytes, FlowLabel, Guid, PathMtu,
    TimeoutExponent, TransportService, U24,
};
pub use lap::{Apr, AprStatus, Lap};
pub use mra::Mra;
pub use path::Path;
pub use rej::{Rej, RejReason};
pub use rep::Rep;
pub use req::Req;
pub use rtu::Rtu;
pub use service_id::{PortSpace, ServiceId};
pub use sidr::{SidrRep, SidrReq, SidrStatus};
use thiserror::Error;

use super::{
    AttributeId, MAD_DATA_LEN, MAD_LEN, Mad, MadHeader, ManagementClass, Method, TransactionId,
};
use crate::{ParseError, QKey};

/// The class version of connection management.
pub const CM_CLASS_VERSION: u8 = 2;

/// The Q_Key of datagrams between the QP1s.
pub const GSI_QKEY: QKey = QKey::new(0x8001_0000);

/// A message of connection management.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CmMessage {
    /// Asks for a connection.
    Req(Req),
    /// A message arrived, the answer takes longer.
    Mra(Mra),
    /// Refuses a connection, or gives up making it.
    Rej(Rej),
    /// Accepts a connection.
    Rep(Rep),
    /// The requester is ready to use the connection.
    Rtu(Rtu),
    /// Asks for the end of a connection.
    Dreq(Dreq),
    /// Agrees to the end of a connection.
    Drep(Drep),
    /// Asks which QP serves a service id.
    SidrReq(SidrReq),
    /// Says which QP serves a service id.
    SidrRep(SidrRep),
    /// Offers an alternate path.
    Lap(Lap),
    /// Answers the offer of an alternate path.
    Apr(Apr),
}

/// Why a datagram is not a message of connection management that is known here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum NotCm {
    /// Another base version, class, or method than connection management has.
    #[error(
        "base version {base_version}, class 0x{class:02x}, method 0x{method:02x} \
         is not connection management (1, 0x07, 0x03)"
    )]
    Kind {
        /// Base version of the datagram.
        base_version: u8,
        /// Its class.
        class: u8,
        /// Its method.
        method: u8,
    },
    /// A class version that is not spoken here. A REQ of such a version is answered with a REJ
    /// ([`RejReason::INVALID_CLASS_VERSION`]).
    #[error("class version {0} of connection management is not known, {CM_CLASS_VERSION} is")]
    ClassVersion(u8),
    /// An attribute that is no message of connection management.
    #[error("attribute 0x{:04x} is no message of connection management", .0.0)]
    Attribute(AttributeId),
    /// The bytes are not the message they should be.
    #[error("malformed message: {0}")]
    Malformed(#[source] ParseError),
}

/// The attribute ids of the messages (facts.md section 2; C: `CM_REQ_ATTR_ID` and so on).
impl AttributeId {
    /// [`CmMessage::Req`].
    pub const CM_REQ: Self = Self(0x10);
    /// [`CmMessage::Mra`].
    pub const CM_MRA: Self = Self(0x11);
    /// [`CmMessage::Rej`].
    pub const CM_REJ: Self = Self(0x12);
    /// [`CmMessage::Rep`].
    pub const CM_REP: Self = Self(0x13);
    /// [`CmMessage::Rtu`].
    pub const CM_RTU: Self = Self(0x14);
    /// [`CmMessage::Dreq`].
    pub const CM_DREQ: Self = Self(0x15);
    /// [`CmMessage::Drep`].
    pub const CM_DREP: Self = Self(0x16);
    /// [`CmMessage::SidrReq`].
    pub const CM_SIDR_REQ: Self = Self(0x17);
    /// [`CmMessage::SidrRep`].
    pub const CM_SIDR_REP: Self = Self(0x18);
    /// [`CmMessage::Lap`].
    pub const CM_LAP: Self = Self(0x19);
    /// [`CmMessage::Apr`].
    pub const CM_APR: Self = Self(0x1a);
}

impl CmMessage {
    /// Reads the message that a datagram carries.
    ///
    /// # Errors
    ///
    /// [`NotCm`] when the datagram is of another kind, class version or attribute.
    pub fn parse(mad: &Mad<'_>) -> Result<Self, NotCm> {
        let MadHeader { base_version, class, class_version, method, attribute_id, .. } = mad.header;
        if base_version != MadHeader::BASE_VERSION
            || class != ManagementClass::COMMUNICATION
            || method != Method::SEND
        {
            return Err(NotCm::Kind { base_version, class: class.0, method: method.0 });
        }
        if class_version != CM_CLASS_VERSION {
            return Err(NotCm::ClassVersion(class_version));
        }
        let data = mad.data;
        match attribute_id {
            AttributeId::CM_REQ => Req::read(data).map(Self::Req),
            AttributeId::CM_MRA => Mra::read(data).map(Self::Mra),
            AttributeId::CM_REJ => Rej::read(data).map(Self::Rej),
            AttributeId::CM_REP => Rep::read(data).map(Self::Rep),
            AttributeId::CM_RTU => Rtu::read(data).map(Self::Rtu),
            AttributeId::CM_DREQ => Dreq::read(data).map(Self::Dreq),
            AttributeId::CM_DREP => Drep::read(data).map(Self::Drep),
            AttributeId::CM_SIDR_REQ => SidrReq::read(data).map(Self::SidrReq),
            AttributeId::CM_SIDR_REP => SidrRep::read(data).map(Self::SidrRep),
            AttributeId::CM_LAP => Lap::read(data).map(Self::Lap),
            AttributeId::CM_APR => Apr::read(data).map(Self::Apr),
            other => return Err(NotCm::Attribute(other)),
        }
        .map_err(NotCm::Malformed)
    }

    /// The attribute id of the message.
    pub const fn attribute_id(&self) -> AttributeId {
        match self {
            Self::Req(_) => AttributeId::CM_REQ,
            Self::Mra(_) => AttributeId::CM_MRA,
            Self::Rej(_) => AttributeId::CM_REJ,
            Self::Rep(_) => AttributeId::CM_REP,
            Self::Rtu(_) => AttributeId::CM_RTU,
            Self::Dreq(_) => AttributeId::CM_DREQ,
            Self::Drep(_) => AttributeId::CM_DREP,
            Self::SidrReq(_) => AttributeId::CM_SIDR_REQ,
            Self::SidrRep(_) => AttributeId::CM_SIDR_REP,
            Self::Lap(_) => AttributeId::CM_LAP,
            Self::Apr(_) => AttributeId::CM_APR,
        }
    }

    /// The MAD header of the message in the exchange `transaction_id`.
    pub const fn header(&self, transaction_id: TransactionId) -> MadHeader {
        MadHeader {
            base_version: MadHeader::BASE_VERSION,
            class: ManagementClass::COMMUNICATION,
            class_version: CM_CLASS_VERSION,
            method: Method::SEND,
            status: 0,
            class_specific: 0,
            transaction_id,
            attribute_id: self.attribute_id(),
            reserved: 0,
            attribute_modifier: 0,
        }
    }

    /// Writes the bytes after the MAD header.
    pub fn write(&self, out: &mut [u8; MAD_DATA_LEN]) {
        match self {
            Self::Req(message) => message.write(out),
            Self::Mra(message) => message.write(out),
            Self::Rej(message) => message.write(out),
            Self::Rep(message) => message.write(out),
            Self::Rtu(message) => message.write(out),
            Self::Dreq(message) => message.write(out),
            Self::Drep(message) => message.write(out),
            Self::SidrReq(message) => message.write(out),
            Self::SidrRep(message) => message.write(out),
            Self::Lap(message) => message.write(out),
            Self::Apr(message) => message.write(out),
        }
    }

    /// Writes the whole datagram of the message in the exchange `transaction_id`.
    pub fn write_mad(&self, transaction_id: TransactionId, out: &mut [u8; MAD_LEN]) {
        let mut data = [0; MAD_DATA_LEN];
        self.write(&mut data);
        Mad { header: self.header(transaction_id), data: &data }.write(out);
    }

    /// The header of the IP connection manager, when the message is a REQ or SIDR_REQ for a port of
    /// one of its port spaces.
    pub fn cma_header(&self) -> Option<CmaHeader> {
        let (service_id, private_data) = match self {
            Self::Req(req) => (req.service_id, req.private_data.0.first_chunk()?),
            Self::SidrReq(req) => (req.service_id, req.private_data.0.first_chunk()?),
            Self::Mra(_)
            | Self::Rej(_)
            | Self::Rep(_)
            | Self::Rtu(_)
            | Self::Dreq(_)
            | Self::Drep(_)
            | Self::SidrRep(_)
            | Self::Lap(_)
            | Self::Apr(_) => return None,
        };
        service_id.port_space().map(|_| CmaHeader::read(private_data))
    }
}

impl fmt::Display for CmMessage {
    /// One line in the way of tcpdump, the IP connection manager's header included.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Req(message) => message.fmt(f)?,
            Self::Mra(message) => message.fmt(f)?,
            Self::Rej(message) => message.fmt(f)?,
            Self::Rep(message) => message.fmt(f)?,
            Self::Rtu(message) => message.fmt(f)?,
            Self::Dreq(message) => message.fmt(f)?,
            Self::Drep(message) => message.fmt(f)?,
            Self::SidrReq(message) => message.fmt(f)?,
            Self::SidrRep(message) => message.fmt(f)?,
            Self::Lap(message) => message.fmt(f)?,
            Self::Apr(message) => message.fmt(f)?,
        }
        match self.cma_header() {
            Some(header) => write!(f, " ip {header}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
