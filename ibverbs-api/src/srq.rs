//! Shared receive queues.

use std::sync::Arc;

use rxe_core::srq::{
    SharedReceiveQueue as CoreQueue, SrqAttr, SrqAttrMask, SrqError, SrqId, SrqInit, SrqPoster,
    XrcSrq,
};
use rxe_core::wq::{PostRecvError, RecvWr};

use crate::cq::{CompletionQueue, CqInner};
use crate::error::{CreateXrcSrqError, InUse, PostRecvListError};
use crate::pd::PdInner;
use crate::xrc::{XrcDomain, XrcdInner};

/// A shared receive queue (`struct ibv_srq`): one supply of receives for many queue pairs. Cloning
/// gives another handle to the same one.
///
/// Each queue pair that was made with it takes the oldest receive for each message. Posting wakes
/// nobody: a sender that met an empty queue tries again by itself.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    pub(crate) inner: Arc<SrqInner>,
}

#[derive(Debug)]
pub(crate) struct SrqInner {
    pub(crate) pd: Arc<PdInner>,
    pub(crate) core: Arc<CoreQueue>,
    /// For extended reliable connections: the domain, and where receives complete.
    xrc: Option<(Arc<XrcdInner>, Arc<CqInner>)>,
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        if let Err(error) = self.pd.context.core.destroy_srq(&self.core) {
            // Every queue pair holds this object until it has let go of the queue.
            tracing::error!(target: "rxe::srq", %error, "a shared receive queue is lost");
        }
        if let Some((xrcd, cq)) = &self.xrc {
            cq.detach(&xrcd.home);
        }
    }
}

impl SharedReceiveQueue {
    pub(crate) fn new(pd: Arc<PdInner>, attr: SrqAttr) -> Result<Self, SrqError> {
        let core = pd.context.core.create_srq(&SrqInit::new(pd.id, attr))?;
        Ok(Self { inner: Arc::new(SrqInner { pd, core, xrc: None }) })
    }

    pub(crate) fn new_xrc(
        pd: Arc<PdInner>,
        attr: SrqAttr,
        xrcd: &XrcDomain,
        cq: &CompletionQueue,
    ) -> Result<Self, CreateXrcSrqError> {
        let (xrcd, cq) = (xrcd.inner.clone(), cq.inner.clone());
        for (which, context) in [("xrcd", &xrcd.context), ("cq", &cq.context)] {
            if !Arc::ptr_eq(context, &pd.context) {
                return Err(CreateXrcSrqError::OtherContext { which });
            }
        }
        let xrc = Some(XrcSrq { xrcd: xrcd.core.clone(), cq: cq.core.clone() });
        // First: a message may come as soon as it is there.
        cq.attach(&xrcd.home);
        let made = pd.context.core.create_srq(&SrqInit { pd: pd.id, attr, xrc });
        let core = match made {
            Ok(core) => core,
            Err(error) => {
                cq.detach(&xrcd.home);
                return Err(error.into());
            }
        };
        Ok(Self { inner: Arc::new(SrqInner { pd, core, xrc: Some((xrcd, cq)) }) })
    }

    /// Its number, as events name it (`ibv_get_srq_num`).
    pub fn id(&self) -> SrqId {
        self.inner.core.id()
    }

    /// Its capacities, and the limit if it is still armed (`ibv_query_srq`).
    pub fn query(&self) -> SrqAttr {
        self.inner.core.query()
    }

    /// Resizes it, or arms the limit; returns what it has now (R48; `ibv_modify_srq`).
    ///
    /// When fewer receives than the limit are left, `SrqLimitReached` is raised, once.
    ///
    /// # Errors
    ///
    /// [`SrqError`]; nothing has changed.
    pub fn modify(&self, attr: &SrqAttr, mask: SrqAttrMask) -> Result<SrqAttr, SrqError> {
        self.inner.core.modify(attr, mask)
    }

    /// Posts a receive (`ibv_post_srq_recv`).
    ///
    /// # Errors
    ///
    /// [`PostRecvError`]; the receive was not taken.
    pub fn post_recv(&self, wr: RecvWr<'_>) -> Result<(), PostRecvError> {
        self.check_ours()?;
        self.inner.core.post_recv(wr)
    }

    /// Posts a list of receives (`ibv_post_srq_recv`).
    ///
    /// # Errors
    ///
    /// [`PostRecvListError`]; the receives before the one it names were taken (R13).
    pub fn post_recv_list(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostRecvListError> {
        self.check_ours().map_err(|error| PostRecvListError { index: 0, error })?;
        self.post_recvs(|poster| {
            for (index, wr) in wrs.iter().enumerate() {
                poster.post(*wr).map_err(|error| PostRecvListError { index, error })?;
            }
            Ok(())
        })
    }

    /// In a child after fork the queue may be locked for ever.
    fn check_ours(&self) -> Result<(), PostRecvError> {
        if self.inner.pd.context.is_ours() { Ok(()) } else { Err(PostRecvError::DeviceLost) }
    }

    /// Lets `post` post receives one by one; nothing of other threads comes between.
    ///
    /// The queue is locked meanwhile: `post` must be short, and must not use the queue. For callers
    /// whose requests are in a form of their own.
    pub fn post_recvs<R>(&self, post: impl FnOnce(&mut SrqPoster<'_>) -> R) -> R {
        post(&mut self.inner.core.begin_recvs())
    }

    /// Destroys it (`ibv_destroy_srq`). Dropping it does so too, once nothing uses it any more.
    ///
    /// # Errors
    ///
    /// [`InUse`] with the queue, while a queue pair takes from it, or another handle is there.
    pub fn destroy(self) -> Result<(), InUse<Self>> {
        InUse::unwrap("shared receive queue", self.inner, |inner| Self { inner })
    }
}
