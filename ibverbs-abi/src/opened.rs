//! What the handle of an opened device stands for in this process.
//!
//! Under the kernel a child of a fork has the parent's file of the device, and goes on making
//! objects by it. Here the child has no use for what the parent opened: its sockets and threads are
//! not there. So the handle stays good, and the child opens the device for itself when it first asks
//! for something by it. What the parent made with it stays the parent's alone.

use std::cell::UnsafeCell;
use std::fmt;

use parking_lot::{Mutex, MutexGuard};

use crate::call::Refused;

/// A device that is open, or that the process from which this one was forked has opened.
pub(crate) struct Opened(UnsafeCell<Mutex<Option<ibverbs_api::Context>>>);

// SAFETY: the cell is only written to in the child of a fork, which has one thread.
unsafe impl Sync for Opened {}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").finish_non_exhaustive()
    }
}

impl Opened {
    pub(crate) fn new(facade: ibverbs_api::Context) -> Self {
        Self(UnsafeCell::new(Mutex::new(Some(facade))))
    }

    fn lock(&self) -> MutexGuard<'_, Option<ibverbs_api::Context>> {
        // SAFETY: it is only written to where there is no other thread, and where nobody holds what
        // this gives.
        unsafe { &*self.0.get() }.lock()
    }

    /// What this process has opened; where that is nothing yet, `open` does it.
    pub(crate) fn get_or_open(
        &self,
        open: impl FnOnce() -> Result<ibverbs_api::Context, Refused>,
    ) -> Result<ibverbs_api::Context, Refused> {
        let mut opened = self.lock();
        if let Some(facade) = &*opened {
            return Ok(facade.clone());
        }
        let facade = open()?;
        *opened = Some(facade.clone());
        Ok(facade)
    }

    /// What this process has opened.
    pub(crate) fn get(&self) -> Option<ibverbs_api::Context> {
        self.lock().clone()
    }

    /// Lets go of what this process has opened. Others may hold the handle: in the child of a fork,
    /// what the parent has made with it does, for ever.
    pub(crate) fn close(&self) {
        drop(self.lock().take());
    }

    /// In the child of a fork: this process has opened nothing.
    ///
    /// # Safety
    ///
    /// The process has only had this thread since the fork, and nobody uses what [`Self::lock`] gave.
    pub(crate) unsafe fn begin_anew(&self) {
        // SAFETY: the caller's. The old value is not dropped: dropping would work on what is the
        // parent's, and another thread may have had its lock.
        unsafe { self.0.get().write(Mutex::new(None)) };
    }
}
