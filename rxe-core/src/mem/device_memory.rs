//! Device memory: here, memory of the host of which the device has a limited amount.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::DmaBuf;

/// Why there is no device memory (`ibv_alloc_dm`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocDmError {
    /// The device has not that much.
    #[error("{length} bytes, but {left} bytes of device memory are left (max_dm_size)")]
    TooMuch {
        /// Bytes asked for.
        length: u64,
        /// Bytes there are.
        left: u64,
    },
    /// Nothing was asked for.
    #[error("device memory of no bytes: ask for at least one")]
    Empty,
    /// No alignment like this can be had.
    #[error("an alignment of 2^{log_align} bytes, but at most that of a page can be had: 2^12")]
    Alignment {
        /// Exponent asked for.
        log_align: u32,
    },
}

impl AllocDmError {
    /// The errno that `ibv_alloc_dm` sets.
    pub fn errno(&self) -> i32 {
        match self {
            Self::TooMuch { .. } => crate::errno::ENOMEM,
            Self::Empty | Self::Alignment { .. } => crate::errno::EINVAL,
        }
    }
}

/// Memory of the device (`struct ibv_dm`), zeroed; dropping it frees it (`ibv_free_dm`).
///
/// What is registered of it lives on until it is deregistered.
#[derive(Debug)]
pub struct DeviceMemory {
    buffer: Arc<DmaBuf>,
    left: Arc<AtomicU64>,
}

impl DeviceMemory {
    /// Takes `length` bytes of the `left` ones.
    pub(crate) fn alloc(
        left: &Arc<AtomicU64>,
        length: u64,
        log_align: u32,
    ) -> Result<Self, AllocDmError> {
        if length == 0 {
            return Err(AllocDmError::Empty);
        }
        // A page is the alignment of every buffer.
        if 1_usize.checked_shl(log_align).is_none_or(|align| align > DmaBuf::ALIGN) {
            return Err(AllocDmError::Alignment { log_align });
        }
        let too_much = |left| AllocDmError::TooMuch { length, left };
        let size = usize::try_from(length).map_err(|_| too_much(left.load(Ordering::Relaxed)))?;
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(length))
            .map_err(too_much)?;
        match DmaBuf::try_zeroed(size) {
            Ok(buffer) => Ok(Self { buffer: Arc::new(buffer), left: left.clone() }),
            // The host has less than the device says.
            Err(_) => Err(too_much(left.fetch_add(length, Ordering::Relaxed))),
        }
    }

    /// Its bytes: copies in and out are those of `ibv_memcpy_to_dm` and `ibv_memcpy_from_dm`.
    pub fn buffer(&self) -> &Arc<DmaBuf> {
        &self.buffer
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.left.fetch_add(self.buffer.len() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allocated_is_missing_until_it_is_dropped() {
        let left = Arc::new(AtomicU64::new(1000));
        let first = DeviceMemory::alloc(&left, 600, 12).unwrap();
        assert_eq!(first.buffer().len(), 600);
        assert_eq!(first.buffer().addr() % 4096, 0);
        let error = DeviceMemory::alloc(&left, 401, 0).unwrap_err();
        assert_eq!(error, AllocDmError::TooMuch { length: 401, left: 400 });
        assert_eq!(error.errno(), crate::errno::ENOMEM);
        let second = DeviceMemory::alloc(&left, 400, 0).unwrap();
        drop(first);
        assert_eq!(left.load(Ordering::Relaxed), 600);
        drop(second);
        assert_eq!(left.load(Ordering::Relaxed), 1000);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let left = Arc::new(AtomicU64::new(1000));
        let refused =
            |length, log_align| DeviceMemory::alloc(&left, length, log_align).unwrap_err();
        assert_eq!(refused(0, 0), AllocDmError::Empty);
        for log_align in [13, 63, 64, u32::MAX] {
            assert_eq!(refused(1, log_align), AllocDmError::Alignment { log_align });
        }
        assert!(matches!(refused(u64::MAX, 0), AllocDmError::TooMuch { .. }));
        assert_eq!(left.load(Ordering::Relaxed), 1000);
    }
}
