//! REJ: refuses a connection, or gives up making it; and its reasons.

use std::fmt;

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::fields::{AnsweredMessage, Bits, CommId, FixedBytes};
use crate::ParseError;
use crate::mad::{MAD_DATA_LEN, view};

/// The message as it lies on the wire.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RejBytes {
    local_comm_id: U32,
    remote_comm_id: U32,
    /// 2 bits message rejected, 6 reserved.
    message: u8,
    /// 7 bits information length, 1 reserved.
    info_len: u8,
    reason: U16,
    info: [u8; 72],
    private_data: [u8; 148],
}

const _: () = assert!(size_of::<RejBytes>() == MAD_DATA_LEN);

/// Why a connection is refused, 16 bits; a code without a name is kept as it came.
///
/// C: `enum ib_cm_rej_reason`. The connection manager of IP reports it as the event's status.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RejReason(pub u16);

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        impl RejReason {
            $($(#[$doc])* pub const $name: Self = Self($code);)*

            /// What the code says, or `None` when it has no meaning.
            pub const fn text(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some($text),)*
                    _ => None,
                }
            }

            /// Every code with a meaning.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
        }
    };
}

reasons! {
    /// There is no queue pair to be had.
    NO_QP = 1, "no QP";
    /// There is no EE context to be had.
    NO_EEC = 2, "no EE context";
    /// Something else is used up.
    NO_RESOURCES = 3, "no resources";
    /// The other end took too long.
    TIMEOUT = 4, "timeout";
    /// The request asks for something that is not there.
    UNSUPPORTED = 5, "unsupported request";
    /// The communication id names nothing.
    INVALID_COMM_ID = 6, "invalid communication id";
    /// The ids, QPNs or contexts of the message do not belong together.
    INVALID_COMM_INSTANCE = 7, "invalid communication instance";
    /// Nobody listens on the service id.
    INVALID_SERVICE_ID = 8, "invalid service id";
    /// The listener does not speak that transport.
    INVALID_TRANSPORT_TYPE = 9, "invalid transport type";
    /// The other end still has the connection that the QPs had before.
    STALE_CONNECTION = 10, "stale connection";
    /// The RD channel does not exist.
    RDC_NOT_EXIST = 11, "RD channel does not exist";
    /// The primary path's GID is not right.
    INVALID_GID = 12, "invalid GID";
    /// The primary path's LID is not right.
    INVALID_LID = 13, "invalid LID";
    /// The primary path's service level is not right.
    INVALID_SL = 14, "invalid service level";
    /// The primary path's traffic class is not right.
    INVALID_TRAFFIC_CLASS = 15, "invalid traffic class";
    /// The primary path's hop limit is not right.
    INVALID_HOP_LIMIT = 16, "invalid hop limit";
    /// The primary path's packet rate is not right.
    INVALID_PACKET_RATE = 17, "invalid packet rate";
    /// The alternate path's GID is not right.
    INVALID_ALTERNATE_GID = 18, "invalid alternate GID";
    /// The alternate path's LID is not right.
    INVALID_ALTERNATE_LID = 19, "invalid alternate LID";
    /// The alternate path's service level is not right.
    INVALID_ALTERNATE_SL = 20, "invalid alternate service level";
    /// The alternate path's traffic class is not right.
    INVALID_ALTERNATE_TRAFFIC_CLASS = 21, "invalid alternate traffic class";
    /// The alternate path's hop limit is not right.
    INVALID_ALTERNATE_HOP_LIMIT = 22, "invalid alternate hop limit";
    /// The alternate path's packet rate is not right.
    INVALID_ALTERNATE_PACKET_RATE = 23, "invalid alternate packet rate";
    /// Ask the connection manager at the port in the additional information.
    PORT_CM_REDIRECT = 24, "port and CM redirection";
    /// Use the port in the additional information.
    PORT_REDIRECT = 25, "port redirection";
    /// The path MTU is not right.
    INVALID_MTU = 26, "invalid path MTU";
    /// The responder can serve fewer READs and atomics at once.
    INSUFFICIENT_RESPONDER_RESOURCES = 27, "insufficient responder resources";
    /// The program refused; its private data may say why.
    CONSUMER_DEFINED = 28, "consumer defined";
    /// The RNR retry count is not right.
    INVALID_RNR_RETRY = 29, "invalid RNR retry count";
    /// The requester uses that communication id already.
    DUPLICATE_LOCAL_COMM_ID = 30, "duplicate local communication id";
    /// The class version is not spoken here.
    INVALID_CLASS_VERSION = 31, "invalid class version";
    /// The primary path's flow label is not right.
    INVALID_FLOW_LABEL = 32, "invalid flow label";
    /// The alternate path's flow label is not right.
    INVALID_ALTERNATE_FLOW_LABEL = 33, "invalid alternate flow label";
    /// The vendor's option is not spoken here.
    VENDOR_OPTION_NOT_SUPPORTED = 35, "vendor option not supported";
}

impl fmt::Display for RejReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, self.text().unwrap_or("unknown"))
    }
}

impl fmt::Debug for RejReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Connection rejection (IBA vol. 1, chapter 12; facts.md section 2; C: `struct cm_rej_msg`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Rej {
    /// The sender's id of the connection; 0 when it has none.
    pub local_comm_id: CommId,
    /// The receiver's id.
    pub remote_comm_id: CommId,
    /// The message that is rejected.
    pub message: AnsweredMessage,
    /// How many bytes of [`Rej::info`] count, as the sender says: up to 127.
    pub info_len: Bits<7>,
    /// Why.
    pub reason: RejReason,
    /// Additional rejection information; what it means depends on the reason.
    pub info: FixedBytes<72>,
    /// Private data.
    pub private_data: FixedBytes<148>,
    /// Reserved bits as received; 0 in messages of ours.
    pub reserved: FixedBytes<2>,
}

impl Rej {
    /// Reads the message from the [`MAD_DATA_LEN`] bytes after the MAD header.
    ///
    /// # Errors
    ///
    /// [`ParseError`] when there are fewer.
    pub fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let raw: &RejBytes = view(bytes)?;
        Ok(Self {
            local_comm_id: CommId(raw.local_comm_id.get()),
            remote_comm_id: CommId(raw.remote_comm_id.get()),
            message: AnsweredMessage::from_code(raw.message >> 6),
            info_len: Bits::new(raw.info_len >> 1),
            reason: RejReason(raw.reason.get()),
            info: FixedBytes(raw.info),
            private_data: FixedBytes(raw.private_data),
            reserved: FixedBytes([raw.message & 0x3f, raw.info_len & 1]),
        })
    }

    /// Writes the message; what [`Rej::read`] took comes out unchanged.
    pub fn write(&self, out: &mut [u8; MAD_DATA_LEN]) {
        let [after_message, after_len] = self.reserved.0;
        let raw = RejBytes {
            local_comm_id: self.local_comm_id.0.into(),
            remote_comm_id: self.remote_comm_id.0.into(),
            message: self.message.code() << 6 | after_message & 0x3f,
            info_len: self.info_len.get() << 1 | after_len & 1,
            reason: self.reason.0.into(),
            info: self.info.0,
            private_data: self.private_data.0,
        };
        *out = zerocopy::transmute!(raw);
    }
}

impl fmt::Display for Rej {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, remote_comm_id, message, reason, .. } = self;
        write!(f, "REJ id {local_comm_id} for {remote_comm_id} of {message} reason {reason}")
    }
}
