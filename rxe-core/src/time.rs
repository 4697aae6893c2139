//! Time as the engine sees it: an argument, never a clock that it reads.

use std::fmt;

/// A point in time: nanoseconds since a moment that the caller chose.
///
/// Whoever runs the engine maps its clock to this. Only differences count, and time never runs
/// backwards: the engine takes the later of what it is told and what it was told before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The moment that the caller chose as the start.
    pub const ZERO: Self = Self(0);

    /// Makes an instant `nanos` nanoseconds after the start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The instant `nanos` later; saturates at the end of time (584 years).
    #[must_use]
    pub const fn plus_nanos(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Nanoseconds from `earlier` to this instant; 0 when `earlier` is later.
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// The local ACK timeout of exponent `timeout` (0 to 31): 4.096 µs times 2^timeout, in
/// nanoseconds; `None` for 0, which means no timer (facts.md section 1).
pub const fn ack_timeout_nanos(timeout: u8) -> Option<u64> {
    match timeout & 0x1f {
        0 => None,
        exponent => Some(4096 << exponent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_timeout_doubles_from_four_microseconds() {
        assert_eq!(ack_timeout_nanos(0), None);
        assert_eq!(ack_timeout_nanos(1), Some(8_192));
        assert_eq!(ack_timeout_nanos(14), Some(67_108_864));
        assert_eq!(ack_timeout_nanos(31), Some(4096 << 31));
    }
}
