//! Memory windows.

use std::sync::{Arc, Mutex, PoisonError};

use rxe_core::mem::{MwBind, MwType, RegMrError};
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
    /// The key after all bindings that have been posted.
    posted: Mutex<RKey>,
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        let freed = self.pd.context.core.memory().dealloc_mw(self.posted());
        debug_assert_eq!(freed, Ok(()));
    }
}

impl MemoryWindow {
    pub(crate) fn new(pd: Arc<PdInner>, mw_type: MwType) -> Result<Self, RegMrError> {
        let rkey = pd.context.core.memory().alloc_mw(pd.id, mw_type)?;
        Ok(Self { pd, mw_type, posted: Mutex::new(rkey) })
    }

    fn posted(&self) -> RKey {
        *self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its type.
    pub fn mw_type(&self) -> MwType {
        self.mw_type
    }

    /// The key that it has now: after each binding that has completed another one.
    pub fn rkey(&self) -> RKey {
        let posted = self.posted();
        self.pd.context.core.memory().current_key(posted).unwrap_or(posted)
    }
}

impl QueuePair {
    /// Posts a request that binds a window to a part of a region, and gives the key that the window
    /// has when it has completed, with [`WcOpcode::BindMw`](crate::WcOpcode::BindMw).
    ///
    /// Counterpart of `ibv_bind_mw` for windows of type 1, and of `ibv_post_send` with
    /// `IBV_WR_BIND_MW` for those of type 2, which are for this queue pair alone then.
    /// [`MemoryRegion::window`](crate::MemoryRegion::window) gives the `bind`. A binding that
    /// cannot be completes with [`WcStatus::MwBindErr`](crate::WcStatus::MwBindErr).
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
        let mut posted = window.posted.lock().unwrap_or_else(PoisonError::into_inner);
        let rkey = next_key(*posted);
        let op = SendOp::BindMw { window: *posted, rkey, bind };
        self.post_send(&SendWr { wr_id, op, flags, data: SendData::Sges(&[]), srq_number: None })?;
        *posted = rkey;
        Ok(rkey)
    }
}
