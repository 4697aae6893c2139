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
    /// The memory is not there, or not for this access: it has been unmapped or protected, or its
    /// file has been truncated. Of what was to be copied, some may have been.
    #[error(
        "registered memory: the {len} bytes at 0x{addr:x} cannot be accessed (any more): keep them \
         mapped, for writing too if they are written to, until they are deregistered"
    )]
    Unmapped {
        /// Address of the first byte asked for, in this process.
        addr: u64,
        /// Number of bytes asked for.
        len: usize,
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
            Self::Outside { .. } | Self::Unmapped { .. } => crate::errno::EFAULT,
            Self::Misaligned { .. } => crate::errno::EINVAL,
        }
    }
}
