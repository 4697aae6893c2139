//! Thread domains and parent domains: hints that change nothing here, but for what is in use.

use std::sync::Arc;

use crate::context::ContextInner;
use crate::error::InUse;

/// A thread domain (`struct ibv_td`): the promise that one thread at a time uses what is made with
/// it. Cloning gives another handle to the same one.
///
/// Drivers leave out locks for it. Here the locks are never waited for by a single thread, so the
/// promise is taken and changes nothing.
#[derive(Clone, Debug)]
pub struct ThreadDomain {
    pub(crate) inner: Arc<TdInner>,
}

#[derive(Debug)]
pub(crate) struct TdInner {
    pub(crate) context: Arc<ContextInner>,
}

impl ThreadDomain {
    pub(crate) fn new(context: Arc<ContextInner>) -> Self {
        Self { inner: Arc::new(TdInner { context }) }
    }

    /// Frees it (`ibv_dealloc_td`). Dropping it does so too, once no parent domain uses it.
    ///
    /// # Errors
    ///
    /// [`InUse`] with the domain, while a parent domain uses it, or another handle is there.
    pub fn dealloc(self) -> Result<(), InUse<Self>> {
        InUse::unwrap("thread domain", self.inner, |inner| Self { inner })
    }
}
