//! Why registered memory could not be accessed.

/// An access that the memory behind a key could not satisfy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The range leaves the memory that was registered.
    #[error(
        "registered memory: {len} bytes at offset {offset} lie outside the {size} bytes there are"
    )]
    Outside {
        /// Offset of the first byte asked for.
        offset: usize,
        /// Number of bytes asked for.
        len: usize,
        /// Number of bytes that the backing has.
        size: usize,
    },
    /// An atomic, or another access to a whole word, where no word begins.
    #[error("registered memory: address 0x{addr:x} must be a multiple of 8")]
    Misaligned {
        /// Address in this process.
        addr: u64,
    },
}

impl Fault {
    /// The errno of a C function that meets it.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Outside { .. } => crate::errno::EFAULT,
            Self::Misaligned { .. } => crate::errno::EINVAL,
        }
    }
}
