//! Device memory.

use std::sync::Arc;

use rxe_core::mem::{AllocDmError, DeviceMemory as CoreMemory, Fault};

use crate::context::ContextInner;

/// Memory of the device (`struct ibv_dm`), zeroed. Dropping all handles and regions of it frees it
/// (`ibv_free_dm`).
///
/// Here it is memory of the host, of which a device has a limited amount.
#[derive(Clone, Debug)]
pub struct DeviceMemory {
    pub(crate) context: Arc<ContextInner>,
    pub(crate) core: Arc<CoreMemory>,
}

impl DeviceMemory {
    pub(crate) fn new(
        context: Arc<ContextInner>,
        length: u64,
        log_align: u32,
    ) -> Result<Self, AllocDmError> {
        let core = Arc::new(context.core.alloc_dm(length, log_align)?);
        Ok(Self { context, core })
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.core.buffer().len()
    }

    /// Whether there are no bytes: never.
    pub fn is_empty(&self) -> bool {
        self.core.buffer().is_empty()
    }

    /// Copies bytes into it from `offset` on (`ibv_memcpy_to_dm`).
    ///
    /// # Errors
    ///
    /// [`Fault`] when the range leaves it; nothing is copied then.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<(), Fault> {
        self.core.buffer().write_at(offset, from)
    }

    /// Copies bytes of it from `offset` on out (`ibv_memcpy_from_dm`).
    ///
    /// # Errors
    ///
    /// [`Fault`] when the range leaves it; nothing is copied then.
    pub fn read_at(&self, offset: usize, to: &mut [u8]) -> Result<(), Fault> {
        self.core.buffer().read_at(offset, to)
    }
}
