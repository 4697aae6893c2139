//! The syndrome of AETH: a positive acknowledge, a receiver that is not ready, or a refusal.

use std::fmt;

/// The syndrome, the first byte of AETH.
///
/// Bits 6:5 give the kind, the low five its value. The whole byte is kept, so that a foreign packet
/// can be written again as it came; [`kind`](Self::kind) gives the meaning.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Syndrome(u8);

/// What a syndrome says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SyndromeKind {
    /// Positive acknowledge, with a coded credit count; 31 says that credits are not in use.
    Ack {
        /// The credit count, 5 bits, in the coding of the wire.
        credits: u8,
    },
    /// Receiver not ready: ask again when the time has passed.
    Rnr {
        /// How long to wait.
        timer: RnrTimer,
    },
    /// Negative acknowledge.
    Nak(NakCode),
    /// A kind that is reserved; the whole byte.
    Reserved(u8),
}

const KIND_MASK: u8 = 0b0110_0000;
const VALUE_MASK: u8 = 0b0001_1111;
const KIND_ACK: u8 = 0b0000_0000;
const KIND_RNR: u8 = 0b0010_0000;
const KIND_NAK: u8 = 0b0110_0000;

impl Syndrome {
    /// A positive acknowledge without flow control by credits.
    pub const ACK_UNLIMITED: Self = Self(KIND_ACK | 31);

    /// Makes one of the byte on the wire.
    #[inline]
    pub const fn from_byte(byte: u8) -> Self {
        Self(byte)
    }

    /// A positive acknowledge with a coded credit count, of which the low five bits are used.
    #[inline]
    pub const fn ack(credits: u8) -> Self {
        Self(KIND_ACK | (credits & VALUE_MASK))
    }

    /// Receiver not ready.
    #[inline]
    pub const fn rnr(timer: RnrTimer) -> Self {
        Self(KIND_RNR | timer.0)
    }

    /// A negative acknowledge.
    #[inline]
    pub const fn nak(code: NakCode) -> Self {
        Self(KIND_NAK | code.value())
    }

    /// The byte on the wire.
    #[inline]
    pub const fn to_byte(self) -> u8 {
        self.0
    }

    /// What it says. The top bit is reserved and ignored.
    #[inline]
    pub const fn kind(self) -> SyndromeKind {
        let value = self.0 & VALUE_MASK;
        match self.0 & KIND_MASK {
            KIND_ACK => SyndromeKind::Ack { credits: value },
            KIND_RNR => SyndromeKind::Rnr { timer: RnrTimer(value) },
            KIND_NAK => SyndromeKind::Nak(NakCode::from_value(value)),
            _ => SyndromeKind::Reserved(self.0),
        }
    }

    /// Whether it is a positive acknowledge.
    #[inline]
    pub const fn is_ack(self) -> bool {
        self.0 & KIND_MASK == KIND_ACK
    }
}

impl Default for Syndrome {
    fn default() -> Self {
        Self::ACK_UNLIMITED
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            SyndromeKind::Ack { credits: 31 } => f.write_str("ACK"),
            SyndromeKind::Ack { credits } => write!(f, "ACK credits {credits}"),
            SyndromeKind::Rnr { timer } => write!(f, "RNR NAK {timer}"),
            SyndromeKind::Nak(code) => write!(f, "NAK {code}"),
            SyndromeKind::Reserved(byte) => write!(f, "reserved syndrome 0x{byte:02x}"),
        }
    }
}

impl fmt::Debug for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Syndrome(0x{:02x}: {self})", self.0)
    }
}

/// The code of a negative acknowledge, 5 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NakCode {
    /// A PSN was missing: the PSN of the packet is the one expected.
    PsnSequenceError,
    /// The request breaks the rules: opcode, order, length.
    InvalidRequest,
    /// The remote key, the range or the access was refused.
    RemoteAccessError,
    /// The responder could not do it for a reason of its own.
    RemoteOperationalError,
    /// Invalid reliable-datagram request.
    InvalidRdRequest,
    /// A code that is reserved: 5 to 31.
    Reserved(u8),
}

impl NakCode {
    /// Makes one of the low five bits of a NAK syndrome; other bits are dropped.
    #[inline]
    pub const fn from_value(value: u8) -> Self {
        match value & VALUE_MASK {
            0 => Self::PsnSequenceError,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccessError,
            3 => Self::RemoteOperationalError,
            4 => Self::InvalidRdRequest,
            other => Self::Reserved(other),
        }
    }

    /// The low five bits of the syndrome.
    #[inline]
    pub const fn value(self) -> u8 {
        match self {
            Self::PsnSequenceError => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccessError => 2,
            Self::RemoteOperationalError => 3,
            Self::InvalidRdRequest => 4,
            Self::Reserved(value) => value & VALUE_MASK,
        }
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PsnSequenceError => f.write_str("PSN sequence error"),
            Self::InvalidRequest => f.write_str("invalid request"),
            Self::RemoteAccessError => f.write_str("remote access error"),
            Self::RemoteOperationalError => f.write_str("remote operational error"),
            Self::InvalidRdRequest => f.write_str("invalid RD request"),
            Self::Reserved(value) => write!(f, "reserved code {value}"),
        }
    }
}

/// The coded time of an RNR NAK, 5 bits; also the attribute `min_rnr_timer` of a QP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RnrTimer(u8);

/// The time of each code in units of 10 µs. Code 0 is the longest.
const RNR_TIMER_10_US: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

impl RnrTimer {
    /// Makes one of the code; bits beyond the low five are dropped.
    #[inline]
    pub const fn new(code: u8) -> Self {
        Self(code & VALUE_MASK)
    }

    /// The code, below 32.
    #[inline]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The time in nanoseconds, from 10,000 (code 1) to 655,360,000 (code 0).
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "five bits cannot leave a table of 32")]
    pub const fn as_nanos(self) -> u64 {
        RNR_TIMER_10_US[(self.0 & VALUE_MASK) as usize] as u64 * 10_000
    }
}

impl fmt::Display for RnrTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.as_nanos() / 1000;
        write!(f, "{}.{:02} ms", micros / 1000, micros % 1000 / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_and_means_one_thing() {
        for byte in 0..=255u8 {
            let syndrome = Syndrome::from_byte(byte);
            assert_eq!(syndrome.to_byte(), byte);
            let again = match syndrome.kind() {
                SyndromeKind::Ack { credits } => Syndrome::ack(credits),
                SyndromeKind::Rnr { timer } => Syndrome::rnr(timer),
                SyndromeKind::Nak(code) => Syndrome::nak(code),
                SyndromeKind::Reserved(kept) => Syndrome::from_byte(kept & 0x7f),
            };
            assert_eq!(again.to_byte(), byte & 0x7f);
        }
    }

    #[test]
    fn known_bytes() {
        assert_eq!(Syndrome::ACK_UNLIMITED.to_byte(), 0x1f);
        assert_eq!(Syndrome::nak(NakCode::PsnSequenceError).to_byte(), 0x60);
        assert_eq!(Syndrome::nak(NakCode::InvalidRequest).to_byte(), 0x61);
        assert_eq!(Syndrome::nak(NakCode::RemoteAccessError).to_byte(), 0x62);
        assert_eq!(Syndrome::nak(NakCode::RemoteOperationalError).to_byte(), 0x63);
        assert_eq!(Syndrome::nak(NakCode::InvalidRdRequest).to_byte(), 0x64);
        assert_eq!(Syndrome::rnr(RnrTimer::new(12)).to_byte(), 0x2c);
    }

    #[test]
    fn rnr_times_are_those_of_the_specification() {
        // facts.md section 1, in hundredths of a millisecond.
        let ms = [
            655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96,
            1.28, 1.92, 2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92,
            122.88, 163.84, 245.76, 327.68, 491.52,
        ];
        for (code, ms) in (0u8..).zip(ms) {
            let nanos = RnrTimer::new(code).as_nanos();
            assert!((nanos as f64 - ms * 1e6).abs() < 1.0, "code {code}: {nanos} ns, {ms} ms");
        }
        assert_eq!(RnrTimer::new(25).to_string(), "61.44 ms");
    }
}
