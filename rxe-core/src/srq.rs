//! Shared receive queues: one supply of receives for many queue pairs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bitflags::bitflags;
use parking_lot::{Mutex, MutexGuard};

use crate::config::Limits;
use crate::cq::CompletionQueue;
use crate::errno::{EINVAL, ENOMEM};
use crate::event::{AsyncEvent, EventQueue};
use crate::pd::PdId;
use crate::wq::recv::{RecvQueue, RecvWqe, TooLong};
use crate::wq::{PostRecvError, RecvWr};
use crate::xrc::XrcDomain;

/// Identifies a shared receive queue within its device (`ibv_get_srq_num`), 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SrqId(pub u32);

/// What a shared receive queue can hold, and when it warns (`struct ibv_srq_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqAttr {
    /// Receives posted at most.
    pub max_wr: u32,
    /// Scatter/gather entries of a receive; fixed at creation.
    pub max_sge: u32,
    /// Raises [`AsyncEvent::SrqLimitReached`] once, when fewer receives than this are left; 0 for
    /// never.
    pub srq_limit: u32,
}

bitflags! {
    /// Which attributes a call sets (`enum ibv_srq_attr_mask`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct SrqAttrMask: u32 {
        /// `max_wr`: the queue is resized.
        const MAX_WR = 1;
        /// `srq_limit`: the warning is armed, or disarmed by 0.
        const LIMIT = 1 << 1;
    }
}

/// How a shared receive queue is made (`struct ibv_srq_init_attr`).
#[derive(Clone, Debug)]
pub struct SrqInit {
    /// Its protection domain: that of the memory that receives name.
    pub pd: PdId,
    /// Its capacities.
    pub attr: SrqAttr,
    /// Makes it one for extended reliable connections.
    pub xrc: Option<XrcSrq>,
}

impl SrqInit {
    /// A shared receive queue for queue pairs that are made with it.
    pub const fn new(pd: PdId, attr: SrqAttr) -> Self {
        Self { pd, attr, xrc: None }
    }
}

/// What a shared receive queue for extended reliable connections has beside the queue
/// (`IBV_SRQT_XRC`).
#[derive(Clone, Debug)]
pub struct XrcSrq {
    /// The domain whose targets take from it, when a message names it.
    pub xrcd: Arc<XrcDomain>,
    /// Where its receives complete.
    pub cq: Arc<CompletionQueue>,
}

/// Why a shared receive queue cannot be made or changed (`ibv_create_srq`, `ibv_modify_srq`); it is
/// as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SrqError {
    /// The number of receives is 0 or above the limit.
    #[error("max_wr {max_wr}, but a shared receive queue has 1 to {max} (max_srq_wr)")]
    Size {
        /// Receives asked for.
        max_wr: u32,
        /// The limit (`max_srq_wr`).
        max: u32,
    },
    /// A receive would have too many scatter/gather entries (R48).
    #[error("max_sge {max_sge} is above the device's limit of {max} (max_srq_sge)")]
    Sges {
        /// Entries asked for.
        max_sge: u32,
        /// The limit (`max_srq_sge`).
        max: u32,
    },
    /// More receives are posted than would fit.
    #[error("max_wr {max_wr} is less than the {posted} receives that are posted")]
    BelowPosted {
        /// Receives asked for.
        max_wr: u32,
        /// Receives in the queue.
        posted: u32,
    },
    /// The warning would never be off.
    #[error("srq_limit {srq_limit} is above the queue's {max_wr} receives (max_wr)")]
    Limit {
        /// The limit asked for.
        srq_limit: u32,
        /// Receives that the queue holds at most.
        max_wr: u32,
    },
    /// The device's limit of shared receive queues is reached.
    #[error("all {max} shared receive queues of the device are in use (max_srq)")]
    TooMany {
        /// The limit (`max_srq`).
        max: u32,
    },
}

impl SrqError {
    /// The errno that `ibv_create_srq` sets and `ibv_modify_srq` returns.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Size { .. }
            | Self::Sges { .. }
            | Self::BelowPosted { .. }
            | Self::Limit { .. } => EINVAL,
            Self::TooMany { .. } => ENOMEM,
        }
    }
}

#[derive(Debug)]
struct Inner {
    queue: RecvQueue,
    /// The armed limit; 0 when none is.
    limit: u32,
}

/// A shared receive queue (`struct ibv_srq`), shared by all shards.
///
/// Queue pairs take from it in the order of their messages; a message that finds it empty gets an
/// RNR NAK, and posting wakes nobody: the sender tries again.
#[derive(Debug)]
pub struct SharedReceiveQueue {
    id: SrqId,
    pd: PdId,
    /// The device's limit of receives.
    max_srq_wr: u32,
    inner: Mutex<Inner>,
    events: Arc<EventQueue>,
    /// Queue pairs that take from it.
    users: AtomicU32,
    xrc: Option<XrcSrq>,
    /// It has let go of its domain and completion queue.
    is_withdrawn: AtomicBool,
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        self.withdraw();
    }
}

impl SharedReceiveQueue {
    /// Checks what [`Self::new`] is made with.
    pub(crate) fn check(init: &SrqInit, limits: &Limits) -> Result<(), SrqError> {
        let SrqAttr { max_wr, max_sge, srq_limit } = init.attr;
        check_size(max_wr, limits.max_srq_wr)?;
        if max_sge > limits.max_srq_sge {
            return Err(SrqError::Sges { max_sge, max: limits.max_srq_sge });
        }
        check_limit(srq_limit, max_wr)
    }

    pub(crate) fn new(id: SrqId, init: &SrqInit, limits: &Limits, events: Arc<EventQueue>) -> Self {
        let SrqInit { pd, attr: SrqAttr { max_wr, max_sge, srq_limit }, xrc } = init.clone();
        if let Some(XrcSrq { xrcd, cq }) = &xrc {
            xrcd.attach();
            cq.attach();
        }
        let cq = xrc.as_ref().map(|xrc| xrc.cq.clone());
        let queue = RecvQueue::new(pd, cq, max_wr, max_sge);
        let inner = Mutex::new(Inner { queue, limit: srq_limit });
        let (users, is_withdrawn) = (AtomicU32::new(0), AtomicBool::new(false));
        Self { id, pd, max_srq_wr: limits.max_srq_wr, inner, events, users, xrc, is_withdrawn }
    }

    /// Its number (`ibv_get_srq_num`).
    pub fn id(&self) -> SrqId {
        self.id
    }

    /// Its protection domain.
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// What it has for extended reliable connections, if it is for those.
    pub fn xrc(&self) -> Option<&XrcSrq> {
        self.xrc.as_ref()
    }

    /// Lets go of domain and completion queue: no message finds it any more. One that has taken a
    /// receive already ends as usual.
    pub(crate) fn withdraw(&self) {
        if let Some(XrcSrq { xrcd, cq }) = &self.xrc
            && !self.is_withdrawn.swap(true, Ordering::AcqRel)
        {
            xrcd.withdraw(self.id.0);
            xrcd.detach();
            cq.detach();
        }
    }

    /// Number of queue pairs that were made with it.
    pub fn users(&self) -> u32 {
        self.users.load(Ordering::Acquire)
    }

    pub(crate) fn attach(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn detach(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Its capacities, and the limit if it is still armed (`ibv_query_srq`).
    pub fn query(&self) -> SrqAttr {
        self.inner.lock().attr()
    }

    /// Resizes it, or arms the limit; returns what it has now (R48; `ibv_modify_srq`).
    ///
    /// All receives that are posted stay.
    ///
    /// # Errors
    ///
    /// [`SrqError`]; nothing has changed.
    pub fn modify(&self, attr: &SrqAttr, mask: SrqAttrMask) -> Result<SrqAttr, SrqError> {
        let mut inner = self.inner.lock();
        let mut next = inner.attr();
        if mask.contains(SrqAttrMask::MAX_WR) {
            next.max_wr = attr.max_wr;
            check_size(attr.max_wr, self.max_srq_wr)?;
            // Fits: no more than `max_srq_wr`.
            let posted = inner.queue.wqes.len() as u32;
            if attr.max_wr < posted {
                return Err(SrqError::BelowPosted { max_wr: attr.max_wr, posted });
            }
        }
        if mask.contains(SrqAttrMask::LIMIT) {
            next.srq_limit = attr.srq_limit;
        }
        check_limit(next.srq_limit, next.max_wr)?;
        inner.queue.max_wr = next.max_wr;
        inner.limit = next.srq_limit;
        Ok(next)
    }

    /// Posts a receive (`ibv_post_srq_recv`).
    ///
    /// # Errors
    ///
    /// [`PostRecvError`]; the receive was not taken.
    pub fn post_recv(&self, wr: RecvWr<'_>) -> Result<(), PostRecvError> {
        self.inner.lock().queue.post(wr)
    }

    /// Begins to post receives one by one, which nothing of other threads comes between.
    pub fn begin_recvs(&self) -> SrqPoster<'_> {
        SrqPoster(self.inner.lock())
    }

    /// Takes the oldest receive, for a message that has come.
    pub(crate) fn take(&self) -> Option<RecvWqe> {
        self.inner.lock().take(self)
    }

    /// Takes the oldest receive, if it holds `len` bytes; otherwise it stays.
    pub(crate) fn take_fitting(&self, len: u64) -> Result<Option<RecvWqe>, TooLong> {
        let mut inner = self.inner.lock();
        if inner.queue.fits(len) { Ok(inner.take(self)) } else { Err(TooLong) }
    }
}

impl Inner {
    fn take(&mut self, srq: &SharedReceiveQueue) -> Option<RecvWqe> {
        let taken = self.queue.wqes.pop_front();
        // R48: once, then disarmed. Finding none counts too: a limit that was armed on an empty
        // queue would never be told of otherwise.
        if self.limit > 0 && self.queue.wqes.len() < self.limit as usize {
            self.limit = 0;
            srq.events.push(AsyncEvent::SrqLimitReached(srq.id));
        }
        taken
    }

    fn attr(&self) -> SrqAttr {
        let RecvQueue { max_wr, max_sge, .. } = self.queue;
        SrqAttr { max_wr, max_sge, srq_limit: self.limit }
    }
}

fn check_size(max_wr: u32, max: u32) -> Result<(), SrqError> {
    if (1..=max).contains(&max_wr) { Ok(()) } else { Err(SrqError::Size { max_wr, max }) }
}

fn check_limit(srq_limit: u32, max_wr: u32) -> Result<(), SrqError> {
    if srq_limit <= max_wr { Ok(()) } else { Err(SrqError::Limit { srq_limit, max_wr }) }
}

/// A shared receive queue that receives are being put into: made by
/// [`SharedReceiveQueue::begin_recvs`].
#[derive(Debug)]
pub struct SrqPoster<'a>(MutexGuard<'a, Inner>);

impl SrqPoster<'_> {
    /// Posts one more receive.
    ///
    /// # Errors
    ///
    /// [`PostRecvError`]; the receive was not taken, those before it were (R13).
    pub fn post(&mut self, wr: RecvWr<'_>) -> Result<(), PostRecvError> {
        self.0.queue.post(wr)
    }
}
