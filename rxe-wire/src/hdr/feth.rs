//! FETH, the header of FLUSH.

use bitflags::bitflags;
use zerocopy::byteorder::{BE, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{read_prefix, write_prefix};
use crate::error::EmitError;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct FethBytes {
    /// Reserved (26), selectivity (2), placement (4).
    bits: U32<BE>,
}

const _: () = assert!(size_of::<FethBytes>() == Feth::LEN);

const PLACEMENT_MASK: u32 = 0x0f;
const SELECTIVITY_SHIFT: u32 = 4;
const SELECTIVITY_MASK: u32 = 0x03;
const RESERVED_SHIFT: u32 = 6;

bitflags! {
    /// How far FLUSH must bring the data, 4 bits.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct FlushPlacement: u8 {
        /// Visible to everyone at the responder.
        const GLOBAL_VISIBILITY = 1 << 0;
        /// Persistent: survives a loss of power.
        const PERSISTENCE = 1 << 1;
    }
}

/// What FLUSH covers, 2 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum FlushSelectivity {
    /// The range that RETH names.
    #[default]
    Range,
    /// The whole memory region of the key.
    MemoryRegion,
    /// A value that is reserved: 2 or 3.
    Reserved(u8),
}

impl FlushSelectivity {
    const fn from_bits(bits: u32) -> Self {
        match bits & SELECTIVITY_MASK {
            0 => Self::Range,
            1 => Self::MemoryRegion,
            other => Self::Reserved(other as u8),
        }
    }

    const fn bits(self) -> u32 {
        match self {
            Self::Range => 0,
            Self::MemoryRegion => 1,
            Self::Reserved(bits) => bits as u32 & SELECTIVITY_MASK,
        }
    }
}

/// The FLUSH extended transport header, 4 bytes (`struct rxe_feth` in Linux). RETH follows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Feth {
    /// How far the data must come. Reserved bits of the four are kept.
    pub placement: FlushPlacement,
    /// What is flushed.
    pub selectivity: FlushSelectivity,
    /// Reserved bits, 26; sent as 0.
    pub reserved: u32,
}

impl Feth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads it from the start of `bytes`; `None` when they are fewer than [`LEN`](Self::LEN).
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let raw: FethBytes = read_prefix(bytes)?;
        let bits = raw.bits.get();
        Some(Self {
            placement: FlushPlacement::from_bits_retain((bits & PLACEMENT_MASK) as u8),
            selectivity: FlushSelectivity::from_bits(bits >> SELECTIVITY_SHIFT),
            reserved: bits >> RESERVED_SHIFT,
        })
    }

    /// Writes it to the start of `buf`.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    #[inline]
    pub fn write(&self, buf: &mut [u8]) -> Result<(), EmitError> {
        write_prefix(
            &FethBytes {
                bits: U32::new(
                    (u32::from(self.placement.bits()) & PLACEMENT_MASK)
                        | self.selectivity.bits() << SELECTIVITY_SHIFT
                        | self.reserved << RESERVED_SHIFT,
                ),
            },
            buf,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_stands_where_the_layout_says() {
        // Written by hand from the layout.
        let bytes = [0, 0, 0, 0x13];
        let value = Feth {
            placement: FlushPlacement::GLOBAL_VISIBILITY | FlushPlacement::PERSISTENCE,
            selectivity: FlushSelectivity::MemoryRegion,
            reserved: 0,
        };
        assert_eq!(Feth::read(&bytes), Some(value));
        assert_eq!(Feth::read(&bytes[1..]), None);
        let mut out = [0; Feth::LEN];
        value.write(&mut out).unwrap();
        assert_eq!(out, bytes);
        assert!(value.write(&mut out[1..]).is_err());
    }

    #[test]
    fn reserved_bits_are_kept() {
        for bytes in [[0xff; 4], [0x80, 0, 0, 0x60], [0, 0, 0, 0x2c]] {
            let mut out = [0; Feth::LEN];
            Feth::read(&bytes).unwrap().write(&mut out).unwrap();
            assert_eq!(out, bytes);
        }
    }
}
