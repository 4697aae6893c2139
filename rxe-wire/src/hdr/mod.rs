//! The base transport header and the extended headers, one a file.
//!
//! Each has a byte-exact struct, private, and a small value type that keeps every bit of it, the
//! reserved ones too: what was read is written again as it came. Counterpart of `rxe_hdr.h`.

mod aeth;
mod atomic;
mod bth;
mod deth;
mod feth;
mod ieth;
mod immdt;
mod rdeth;
mod reth;
mod xrceth;

pub use aeth::Aeth;
pub use atomic::{AtomicAckEth, AtomicEth};
pub use bth::{Bth, BthMould};
pub use deth::Deth;
pub use feth::{Feth, FlushPlacement, FlushSelectivity};
pub use ieth::Ieth;
pub use immdt::ImmDt;
pub use rdeth::Rdeth;
pub use reth::Reth;
pub use xrceth::Xrceth;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::error::EmitError;

/// Reads the byte struct at the start of `bytes`.
#[inline]
pub(crate) fn read_prefix<T: FromBytes>(bytes: &[u8]) -> Option<T> {
    T::read_from_prefix(bytes).ok().map(|(value, _)| value)
}

/// Writes the byte struct to the start of `buf`.
#[inline]
pub(crate) fn write_prefix<T: IntoBytes + Immutable>(
    value: &T,
    buf: &mut [u8],
) -> Result<(), EmitError> {
    value
        .write_to_prefix(buf)
        .map_err(|_| EmitError::BufferTooShort { needed: size_of::<T>(), have: buf.len() })
}

/// The value of a 24-bit big-endian field.
#[inline]
pub(crate) const fn be24([a, b, c]: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, a, b, c])
}

/// The 24-bit big-endian field of the low bits of `value`.
#[inline]
pub(crate) const fn to_be24(value: u32) -> [u8; 3] {
    let [_, a, b, c] = value.to_be_bytes();
    [a, b, c]
}
