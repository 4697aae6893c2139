//! Packet sequence numbers: 24 bits, circular.

use std::fmt;

/// A packet sequence number: 24 bits, counted modulo 2^24.
///
/// Two PSNs compare only relative to each other, as positions on a circle: `distance_from` is the
/// signed way from one to the other, right as long as they are less than 2^23 apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The number of PSNs, 2^24.
    pub const MODULUS: u32 = 1 << 24;
    const MASK: u32 = Self::MODULUS - 1;

    /// Makes a PSN of the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    /// The value, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The PSN `count` packets later.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    /// The PSN `count` packets earlier.
    #[must_use]
    pub const fn minus(self, count: u32) -> Self {
        Self::new(self.0.wrapping_sub(count))
    }

    /// How far this PSN lies after `other`: negative when before, within -2^23 to 2^23 - 1.
    pub const fn distance_from(self, other: Self) -> i32 {
        // Shifting left and back extends the sign of the 24-bit difference.
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// Whether this PSN lies after `other`.
    pub const fn is_after(self, other: Self) -> bool {
        self.distance_from(other) > 0
    }

    /// Whether this PSN lies before `other`.
    pub const fn is_before(self, other: Self) -> bool {
        self.distance_from(other) < 0
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_wraps_around_the_circle() {
        assert_eq!(Psn::new(0).distance_from(Psn::new(0xff_ffff)), 1);
        assert_eq!(Psn::new(0xff_ffff).distance_from(Psn::new(0)), -1);
        assert_eq!(Psn::new(0x80_0000).distance_from(Psn::new(0)), -0x80_0000);
        assert_eq!(Psn::new(0x7f_ffff).distance_from(Psn::new(0)), 0x7f_ffff);
        assert_eq!(Psn::new(0xff_fffe).plus(3), Psn::new(1));
        assert_eq!(Psn::new(1).minus(3), Psn::new(0xff_fffe));
    }
}
