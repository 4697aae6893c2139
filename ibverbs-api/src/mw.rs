//! Memory windows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rxe_core::mem::{MwBind, MwType, RegMrError};
use rxe_core::qp::{QpState, QueuePair as CorePair};
use rxe_core::wq::{SendData, SendFlags, SendOp, SendWr};
use rxe_wire::RKey;

use crate::error::BindMwError;
use crate::fast::next_key;
use crate::pd::PdInner;
use crate::qp::QueuePair;

/// A memory window (`struct ibv_mw`): a key for a part of a region, given to peers and taken from
/// them by work requests. Dropping it frees it, bound or not (`ibv_dealloc_mw`).
///
/// [`QueuePair::bind_mw`] binds it.
#[derive(Debug)]
pub struct MemoryWindow {
    pd: Arc<PdInner>,
    mw_type: MwType,
    posted: Mutex<Posted>,
}

/// What has been posted about a window.
#[derive(Debug)]
struct Posted {
    /// The key after all bindings that have been posted.
    rkey: RKey,
    /// Who was asked for the last of them.
    by: Option<Weak<CorePair>>,
}

impl Posted {
    /// Whether there may be bindings that are still to be carried out. Requests of a queue pair that
    /// cannot send are flushed, or never were.
    fn is_pending(&self) -> bool {
        let by = self.by.as_ref().and_then(Weak::upgrade);
        by.is_some_and(|qp| {
            qp.outstanding_sends() > 0 && matches!(qp.state(), QpState::Rts | QpState::Sqd)
        })
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        let freed = self.pd.context.core.memory().dealloc_mw(self.posted().rkey);
        debug_assert_eq!(freed, Ok(()));
    }
}

impl MemoryWindow {
    pub(crate) fn new(pd: Arc<PdInner>, mw_type: MwType) -> Result<Self, RegMrError> {
        let rkey = pd.context.core.memory().alloc_mw(pd.id, mw_type)?;
        Ok(Self { pd, mw_type, posted: Mutex::new(Posted { rkey, by: None }) })
    }

    fn posted(&self) -> MutexGuard<'_, Posted> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key that a window of this key has now.
    fn current(&self, rkey: RKey) -> RKey {
        self.pd.context.core.memory().current_key(rkey).unwrap_or(rkey)
    }

    /// Its type.
    pub fn mw_type(&self) -> MwType {
        self.mw_type
    }

    /// The key that it has now: after each binding that has completed another one.
    pub fn rkey(&self) -> RKey {
        self.current(self.posted().rkey)
    }
}

impl QueuePair {
    /// Posts a request that binds a window to a part of a region, and gives the key that the window
    /// has when it has completed, with [`WcOpcode::BindMw`](crate::WcOpcode::BindMw).
    ///
    /// Counterpart of `ibv_bind_mw` for windows of type 1, and of `ibv_post_send` with
    /// `IBV_WR_BIND_MW` for those of type 2, which are for this queue pair alone then.
    /// [`MemoryRegion::window`](crate::MemoryRegion::window) gives the `bind`. A binding that
    /// cannot be completes with [`WcStatus::MwBindErr`](crate::WcStatus::MwBindErr), and leaves the
    /// window as it was: once the queue pair is reset or destroyed, or nothing of its is
    /// outstanding, the window can be bound again.
    ///
    /// # Errors
    ///
    /// [`BindMwError`]; the request was not taken.
    pub fn bind_mw(
        &self,
        window: &MemoryWindow,
        wr_id: u64,
        flags: SendFlags,
        bind: MwBind,
    ) -> Result<RKey, BindMwError> {
        if !Arc::ptr_eq(&window.pd.context, &self.context().inner) {
            return Err(BindMwError::OtherContext);
        }
        let mut posted = window.posted();
        // Where nothing is to come any more, bindings may have failed, and the key is what it is.
        let before = if posted.is_pending() { posted.rkey } else { window.current(posted.rkey) };
        let rkey = next_key(before);
        let op = SendOp::BindMw { window: before, rkey, bind };
        self.post_send(&SendWr { wr_id, op, flags, data: SendData::Sges(&[]), srq_number: None })?;
        *posted = Posted { rkey, by: Some(self.weak_core()) };
        Ok(rkey)
    }
}
