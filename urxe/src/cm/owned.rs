//! Identifiers that end with their owner.

use std::ops::Deref;

use rdma_cm::CmId;

/// An identifier that is destroyed with this. Dropping its handles alone would not do while an event of
/// it waits in its channel: that has a handle too.
///
/// Whoever drops this must hold no event of it (`CmId::destroy`).
pub(crate) struct Owned(CmId);

impl Owned {
    pub(crate) fn new(id: CmId) -> Self {
        Self(id)
    }
}

impl Deref for Owned {
    type Target = CmId;

    fn deref(&self) -> &CmId {
        &self.0
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.destroy();
    }
}
