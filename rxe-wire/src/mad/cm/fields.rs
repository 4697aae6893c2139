//! The small typed values that several messages share.

use std::fmt;

use thiserror::Error;

/// A communication id: names one end's view of a connection; each end chooses its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommId(pub u32);

impl fmt::Display for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08x}", self.0)
    }
}

impl fmt::Debug for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The GUID of a channel adapter: the EUI-64 of its first port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Guid(pub u64);

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:016x}", self.0)
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A number of 24 bits: an end-to-end context number or a vendor id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct U24(u32);

impl U24 {
    /// Makes one of `value`; bits above the 24th are dropped.
    pub const fn new(value: u32) -> Self {
        Self(value & 0xff_ffff)
    }

    /// The value, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for U24 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:06x}", self.0)
    }
}

impl fmt::Debug for U24 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The flow label of a path, 20 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FlowLabel(u32);

impl FlowLabel {
    /// Makes one of `value`; bits above the 20th are dropped.
    pub const fn new(value: u32) -> Self {
        Self(value & 0xf_ffff)
    }

    /// The value, below 2^20.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for FlowLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:05x}", self.0)
    }
}

/// An unsigned number of `WIDTH` bits, 1 to 8.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bits<const WIDTH: u32>(u8);

impl<const WIDTH: u32> Bits<WIDTH> {
    const MASK: u8 = {
        assert!(WIDTH >= 1 && WIDTH <= 8);
        u8::MAX >> (8 - WIDTH)
    };

    /// The greatest value.
    pub const MAX: Self = Self(Self::MASK);

    /// Makes one of `value`; bits beyond the width are dropped.
    pub const fn new(value: u8) -> Self {
        Self(value & Self::MASK)
    }

    /// The value, below 2^`WIDTH`.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl<const WIDTH: u32> fmt::Display for Bits<WIDTH> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl<const WIDTH: u32> fmt::Debug for Bits<WIDTH> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A time as an exponent, 5 bits: 4.096 µs × 2^n (facts.md section 1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TimeoutExponent(u8);

impl TimeoutExponent {
    /// Makes one of `value`; bits above the fifth are dropped.
    pub const fn new(value: u8) -> Self {
        Self(value & 0x1f)
    }

    /// The exponent, below 32.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The time in nanoseconds. As a local ACK timeout, exponent 0 means no timer instead.
    pub const fn ns(self) -> u64 {
        4096 << self.0
    }
}

impl fmt::Display for TimeoutExponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for TimeoutExponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A path MTU as the verbs number it, 4 bits: 1 is 256 bytes, 5 is 4096.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct PathMtu(pub Bits<4>);

impl PathMtu {
    /// The MTU in bytes, or `None` for a code that means none.
    pub const fn bytes(self) -> Option<u16> {
        match self.0.get() {
            code @ 1..=5 => Some(128 << code),
            _ => None,
        }
    }
}

/// The transport that a request wants, 2 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum TransportService {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram.
    Rd,
    /// The one that the extended transport type names (1 is XRC).
    Extended,
}

impl TransportService {
    pub(super) const fn from_code(code: u8) -> Self {
        match code & 3 {
            0 => Self::Rc,
            1 => Self::Uc,
            2 => Self::Rd,
            _ => Self::Extended,
        }
    }

    /// The two bits on the wire.
    pub const fn code(self) -> u8 {
        match self {
            Self::Rc => 0,
            Self::Uc => 1,
            Self::Rd => 2,
            Self::Extended => 3,
        }
    }
}

/// Which message an MRA or a REJ answers, 2 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum AnsweredMessage {
    /// A REQ.
    #[default]
    Req,
    /// A REP.
    Rep,
    /// In an MRA a LAP, in a REJ no message in particular.
    Other,
    /// The fourth pattern, which has no meaning.
    Reserved,
}

impl AnsweredMessage {
    pub(super) const fn from_code(code: u8) -> Self {
        match code & 3 {
            0 => Self::Req,
            1 => Self::Rep,
            2 => Self::Other,
            _ => Self::Reserved,
        }
    }

    /// The two bits on the wire.
    pub const fn code(self) -> u8 {
        match self {
            Self::Req => 0,
            Self::Rep => 1,
            Self::Other => 2,
            Self::Reserved => 3,
        }
    }
}

impl fmt::Display for AnsweredMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Req => "REQ",
            Self::Rep => "REP",
            Self::Other => "other",
            Self::Reserved => "reserved",
        })
    }
}

/// More bytes than a field of a message holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{have} bytes do not fit into a field of {room}; shorten them")]
pub struct FieldTooLong {
    /// Bytes given.
    pub have: usize,
    /// Bytes that fit.
    pub room: usize,
}

/// `N` bytes without structure: private data, additional information, reserved bits.
///
/// The length of private data is not on the wire: a reader gets all `N` bytes, a writer's shorter
/// data is filled up with zeros.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FixedBytes<const N: usize>(pub [u8; N]);

impl<const N: usize> FixedBytes<N> {
    /// Puts `bytes` first and fills up with zeros.
    ///
    /// # Errors
    ///
    /// [`FieldTooLong`] when there are more than `N` bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, FieldTooLong> {
        let mut field = [0; N];
        let room =
            field.get_mut(..bytes.len()).ok_or(FieldTooLong { have: bytes.len(), room: N })?;
        room.copy_from_slice(bytes);
        Ok(Self(field))
    }

    /// The bytes up to the last that is not zero: what a person wants to see.
    pub fn trimmed(&self) -> &[u8] {
        let len = self.0.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        self.0.get(..len).unwrap_or_default()
    }
}

impl<const N: usize> Default for FixedBytes<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> AsRef<[u8]> for FixedBytes<N> {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl<const N: usize> fmt::Debug for FixedBytes<N> {
    /// Hex without the zeros at the end, and the whole length.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.trimmed() {
            write!(f, "{byte:02x}")?;
        }
        write!(f, "..[{N}]")
    }
}

/// The upper 24 bits of a word that carries a number and a byte.
pub(super) const fn upper(word: u32) -> u32 {
    word >> 8
}

/// The lowest byte of a word that carries a number and a byte.
pub(super) const fn lowest(word: u32) -> u8 {
    (word & 0xff) as u8
}

/// A word of a 24-bit number and a byte.
pub(super) const fn word(number: u32, byte: u8) -> u32 {
    number << 8 | byte as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_to_their_width() {
        assert_eq!(Bits::<3>::new(0xff).get(), 7);
        assert_eq!(Bits::<8>::MAX.get(), 0xff);
        assert_eq!(FlowLabel::new(u32::MAX).get(), 0xf_ffff);
        assert_eq!(U24::new(u32::MAX).get(), 0xff_ffff);
        assert_eq!(TimeoutExponent::new(0xff).get(), 31);
    }

    #[test]
    fn timeouts_are_powers_of_two_of_4096_ns() {
        assert_eq!(TimeoutExponent::new(0).ns(), 4096);
        assert_eq!(TimeoutExponent::new(14).ns(), 67_108_864);
        assert_eq!(TimeoutExponent::new(31).ns(), 8_796_093_022_208);
    }

    #[test]
    fn path_mtu_codes() {
        let bytes = |code| PathMtu(Bits::new(code)).bytes();
        assert_eq!([1, 2, 3, 4, 5].map(bytes), [256, 512, 1024, 2048, 4096].map(Some));
        assert_eq!([0, 6, 15].map(bytes), [None; 3]);
    }

    #[test]
    fn private_data_is_filled_up_and_never_cut() {
        let data = FixedBytes::<4>::new(&[1, 2]).unwrap();
        assert_eq!(data.0, [1, 2, 0, 0]);
        assert_eq!(data.trimmed(), [1, 2]);
        assert_eq!(format!("{data:?}"), "0102..[4]");
        assert_eq!(FixedBytes::<4>::new(&[0; 5]), Err(FieldTooLong { have: 5, room: 4 }));
    }
}
