//! Identifiers on the wire, each a type of its own so that none is taken for another.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $repr:ty, $mask:expr, $fmt:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name($repr);

        impl $name {
            /// Makes one of `value`; bits beyond the field's width are dropped.
            pub const fn new(value: $repr) -> Self {
                Self(value & $mask)
            }

            /// The value.
            pub const fn get(self) -> $repr {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $fmt, self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $fmt, self.0)
            }
        }
    };
}

id!(
    /// A queue pair number, 24 bits. Its top byte is the slot (ARCHITECTURE.md, "Objects").
    Qpn, u32, 0xff_ffff, "0x{:06x}"
);
id!(
    /// A partition key, 16 bits; the top bit says full member.
    PKey, u16, 0xffff, "0x{:04x}"
);
id!(
    /// A queue key of an unreliable datagram, 32 bits.
    QKey, u32, 0xffff_ffff, "0x{:08x}"
);
id!(
    /// A remote memory key, 32 bits.
    RKey, u32, 0xffff_ffff, "0x{:08x}"
);
id!(
    /// A local memory key, 32 bits.
    LKey, u32, 0xffff_ffff, "0x{:08x}"
);
id!(
    /// A message sequence number, 24 bits.
    Msn, u32, 0xff_ffff, "{}"
);

impl Qpn {
    /// The subnet-management QP; RoCE has none.
    pub const QP0: Self = Self(0);
    /// The general-services QP, where connection management arrives.
    pub const GSI: Self = Self(1);
    /// The destination QPN of multicast.
    pub const MULTICAST: Self = Self(0xff_ffff);

    /// The slot: the top byte, which names the shard that the QP lives on.
    pub const fn slot(self) -> u8 {
        (self.0 >> 16) as u8
    }
}

impl Msn {
    /// The number after this one, modulo 2^24.
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0.wrapping_add(1))
    }
}

impl PKey {
    /// The default partition, full member.
    pub const DEFAULT: Self = Self(0xffff);
}
