//! The half of a queue pair that any thread may use: posting, and what is fixed at creation.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rxe_wire::Qpn;
use smallvec::SmallVec;

use super::attr::{QpState, QpType};
use crate::cq::{CompletionQueue, Pushed};
use crate::error::CreateQpError;
use crate::mem::Holder;
use crate::pd::PdId;
use crate::srq::SharedReceiveQueue;
use crate::wc::{NetworkType, WcFlags, WcOpcode, WcStatus, WorkCompletion};
use crate::wq::recv::{RecvQueue, RecvWqe, TooLong};
use crate::wq::send::SendWqe;
use crate::wq::spares::Spares;
use crate::wq::{PostRecvError, PostSendError, RecvWr, SendWr};
use crate::xrc::XrcDomain;

/// Capacities of a queue pair (`struct ibv_qp_cap`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpCaps {
    /// Send requests outstanding at most.
    pub max_send_wr: u32,
    /// Receive requests posted at most.
    pub max_recv_wr: u32,
    /// Scatter/gather entries of a send request.
    pub max_send_sge: u32,
    /// Scatter/gather entries of a receive request.
    pub max_recv_sge: u32,
    /// Bytes of inline data of a send request.
    pub max_inline_data: u32,
}

impl Default for QpCaps {
    fn default() -> Self {
        Self {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        }
    }
}

/// How a queue pair is made (`struct ibv_qp_init_attr`).
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Its service.
    pub qp_type: QpType,
    /// Its protection domain.
    pub pd: PdId,
    /// Where send requests complete; none for the target of an extended reliable connection.
    pub send_cq: Option<Arc<CompletionQueue>>,
    /// Where receive requests complete; none for extended reliable connections.
    pub recv_cq: Option<Arc<CompletionQueue>>,
    /// Capacities.
    pub caps: QpCaps,
    /// Every send request completes in the queue, signaled or not (`sq_sig_all`).
    pub signal_all: bool,
    /// Where receives are taken from, instead of a queue of its own.
    pub srq: Option<Arc<SharedReceiveQueue>>,
    /// Of QP1: the port that it serves, counted from 1; [`ALL_PORTS`] for one that serves all.
    pub port_num: u8,
    /// The domain of the target of an extended reliable connection.
    pub xrcd: Option<Arc<XrcDomain>>,
}

/// In the place of a port's number: all ports of the device.
///
/// What an adapter has a QP1 of each port for, one can do: an address handle names the port that a
/// datagram leaves by, and the address that it came to the one that it came by.
pub const ALL_PORTS: u8 = 0;

impl QpInit {
    /// A queue pair with the default capacities that completes in one queue.
    pub fn new(qp_type: QpType, pd: PdId, cq: &Arc<CompletionQueue>) -> Self {
        let (send_cq, recv_cq) = (Some(cq.clone()), Some(cq.clone()));
        Self { send_cq, recv_cq, ..Self::without_queues(qp_type, pd) }
    }

    /// The target of an extended reliable connection.
    pub fn xrc_recv(xrcd: &Arc<XrcDomain>) -> Self {
        Self { xrcd: Some(xrcd.clone()), ..Self::without_queues(QpType::XrcRecv, PdId::NONE) }
    }

    fn without_queues(qp_type: QpType, pd: PdId) -> Self {
        let (caps, signal_all, port_num) = (QpCaps::default(), false, 1);
        let (send_cq, recv_cq, srq, xrcd) = (None, None, None, None);
        Self { qp_type, pd, send_cq, recv_cq, caps, signal_all, srq, xrcd, port_num }
    }

    /// Leaves out what a queue pair of this type does not have, and checks that it has the rest.
    pub(crate) fn checked(mut self) -> Result<Self, CreateQpError> {
        let qp_type = self.qp_type;
        if qp_type == QpType::XrcRecv {
            (self.pd, self.send_cq) = (PdId::NONE, None);
            (self.caps.max_send_wr, self.caps.max_send_sge) = (0, 0);
            self.caps.max_inline_data = 0;
        }
        let is_xrc = matches!(qp_type, QpType::XrcSend | QpType::XrcRecv);
        if is_xrc {
            (self.recv_cq, self.srq) = (None, None);
        }
        if is_xrc || self.srq.is_some() {
            (self.caps.max_recv_wr, self.caps.max_recv_sge) = (0, 0);
        }
        for (what, is_missing) in [
            ("send_cq", qp_type != QpType::XrcRecv && self.send_cq.is_none()),
            ("recv_cq", !is_xrc && self.recv_cq.is_none()),
            ("xrcd", qp_type == QpType::XrcRecv && self.xrcd.is_none()),
        ] {
            if is_missing {
                return Err(CreateQpError::Missing { qp_type, what });
            }
        }
        // Linux refuses it too (`create_qp` of ib_uverbs).
        if let Some(srq) = self.srq.as_ref().filter(|srq| srq.xrc().is_some()) {
            return Err(CreateQpError::XrcSrq { srq: srq.id().0 });
        }
        if qp_type != QpType::XrcRecv {
            self.xrcd = None;
        }
        Ok(self)
    }
}

/// A queue pair, as any thread may hold and use it (`struct ibv_qp`).
///
/// Posting takes only the lock of the one queue; the shard that owns the queue pair does the rest.
/// Whoever posts must then let the shard know: [`Shard::kick`](crate::Shard::kick) after each
/// [`post_send`](Self::post_send), and after [`post_recv`](Self::post_recv) when that says so.
#[derive(Debug)]
pub struct QueuePair {
    qpn: Qpn,
    init: QpInit,
    state: AtomicU8,
    outstanding: AtomicU32,
    posted: Mutex<VecDeque<SendWqe>>,
    receives: Mutex<RecvQueue>,
    /// The shard has been told that there is something, and has not looked yet.
    kicked: AtomicBool,
    /// A completion queue wants something of the shard.
    attention: AtomicBool,
    /// What it is.
    wants: Mutex<CqWants>,
    /// Multicast groups that it is attached to.
    attachments: AtomicU32,
    /// Memory of long send requests, for the next ones.
    spares: Spares,
}

/// What completion queues want of the shard, after completions of a queue pair.
#[derive(Debug, Default)]
struct CqWants {
    /// A completion was lost.
    lost: bool,
    /// These raise an event later.
    lagging: SmallVec<[Arc<CompletionQueue>; 2]>,
}

impl QueuePair {
    pub(crate) fn new(qpn: Qpn, init: QpInit) -> Self {
        init.send_cq.iter().chain(&init.recv_cq).for_each(|cq| cq.attach());
        init.srq.iter().for_each(|srq| srq.attach());
        init.xrcd.iter().for_each(|xrcd| xrcd.attach());
        let receives = RecvQueue::new(init.pd, None, init.caps.max_recv_wr, init.caps.max_recv_sge);
        Self {
            qpn,
            init,
            state: AtomicU8::new(QpState::Reset as u8),
            outstanding: AtomicU32::new(0),
            posted: Mutex::new(VecDeque::new()),
            receives: Mutex::new(receives),
            kicked: AtomicBool::new(false),
            attention: AtomicBool::new(false),
            wants: Mutex::default(),
            attachments: AtomicU32::new(0),
            spares: Spares::default(),
        }
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Its service.
    pub fn qp_type(&self) -> QpType {
        self.init.qp_type
    }

    /// Its protection domain.
    pub fn pd(&self) -> PdId {
        self.init.pd
    }

    /// Who it is where keys are concerned.
    pub(crate) fn holder(&self) -> Holder {
        Holder { pd: self.init.pd, qpn: self.qpn }
    }

    /// Its capacities; those of receives are 0 where they come from a shared queue.
    pub fn caps(&self) -> &QpCaps {
        &self.init.caps
    }

    /// Where its send requests complete.
    pub fn send_cq(&self) -> Option<&Arc<CompletionQueue>> {
        self.init.send_cq.as_ref()
    }

    /// Where its receive requests complete.
    pub fn recv_cq(&self) -> Option<&Arc<CompletionQueue>> {
        self.init.recv_cq.as_ref()
    }

    /// What it was made with.
    pub fn init(&self) -> &QpInit {
        &self.init
    }

    /// The state it is in.
    pub fn state(&self) -> QpState {
        QpState::from_u8(self.state.load(Ordering::Acquire))
    }

    pub(crate) fn set_state(&self, state: QpState) {
        // The locks order this with posts: one that came before is in the queue when it is
        // flushed, one that comes after sees the state (R9).
        let _posted = self.posted.lock();
        let _receives = self.receives.lock();
        self.state.store(state as u8, Ordering::Release);
    }

    /// Posts a send request (`ibv_post_send`).
    ///
    /// The shard must be kicked afterwards. A QP in the error state takes it and flushes it (R9).
    ///
    /// # Errors
    ///
    /// [`PostSendError`]; the request was not taken, and nothing changed.
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        self.post_send_list(std::slice::from_ref(wr)).map_err(|(_, error)| error)
    }

    /// Posts a list of send requests, which nothing of other threads comes between
    /// (`ibv_post_send`).
    ///
    /// The shard must be kicked afterwards, after an error too.
    ///
    /// # Errors
    ///
    /// The index of the first request that was not taken, and why; those before it were, those
    /// after it were not (R13).
    pub fn post_send_list(&self, wrs: &[SendWr<'_>]) -> Result<(), (usize, PostSendError)> {
        let mut poster = self.begin_sends();
        for (index, wr) in wrs.iter().enumerate() {
            poster.post(wr).map_err(|error| (index, error))?;
        }
        Ok(())
    }

    /// Begins to post send requests one by one, which nothing of other threads comes between.
    ///
    /// The shard must be kicked when the poster has been dropped.
    pub fn begin_sends(&self) -> SendPoster<'_> {
        SendPoster { qp: self, posted: self.posted.lock() }
    }

    /// Adds a request to a batch, whatever the queue holds.
    ///
    /// # Errors
    ///
    /// [`PostSendError`] when the request itself is no good; the batch is as before.
    pub fn prepare(&self, batch: &mut SendBatch, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        batch.wqes.push_back(self.wqe(wr)?);
        Ok(())
    }

    /// Posts all requests of a batch, or none; it is empty then (`ibv_wr_complete`).
    ///
    /// The shard must be kicked afterwards.
    ///
    /// # Errors
    ///
    /// [`PostSendError`] when the state or the queue does not take them all.
    pub fn post_batch(&self, batch: &mut SendBatch) -> Result<(), PostSendError> {
        let mut posted = self.posted.lock();
        // As many as were allocated one by one: fits.
        let count = batch.wqes.len() as u32;
        if let Err(error) = self.check_room(count) {
            batch.wqes.clear();
            return Err(error);
        }
        self.outstanding.fetch_add(count, Ordering::AcqRel);
        posted.append(&mut batch.wqes);
        Ok(())
    }

    /// How many send requests are posted, and have not completed.
    pub fn outstanding_sends(&self) -> u32 {
        self.outstanding.load(Ordering::Acquire)
    }

    /// The queue's copy of a send request.
    fn wqe(&self, wr: &SendWr<'_>) -> Result<SendWqe, PostSendError> {
        let init = &self.init;
        SendWqe::prepare(wr, init.qp_type, &init.caps, init.signal_all, &self.spares)
    }

    /// Whether so many send requests can be taken now; the queue is locked.
    fn check_room(&self, count: u32) -> Result<(), PostSendError> {
        let state = self.state();
        if !matches!(state, QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err) {
            return Err(PostSendError::State { state });
        }
        let max = self.init.caps.max_send_wr;
        if count > max.saturating_sub(self.outstanding.load(Ordering::Acquire)) {
            return Err(PostSendError::Full { max });
        }
        Ok(())
    }

    /// Posts a receive request (`ibv_post_recv`); true when the shard must be kicked, since the QP
    /// is in the error state and flushes it (R9).
    ///
    /// # Errors
    ///
    /// [`PostRecvError`]; the request was not taken, and nothing changed.
    pub fn post_recv(&self, wr: RecvWr<'_>) -> Result<bool, PostRecvError> {
        self.post_recv_list(&[wr]).map_err(|(_, error)| error)
    }

    /// Posts a list of receive requests, which nothing of other threads comes between
    /// (`ibv_post_recv`); true when the shard must be kicked, as by [`Self::post_recv`].
    ///
    /// # Errors
    ///
    /// The index of the first request that was not taken, and why; those before it were, those
    /// after it were not (R13). The shard must be kicked then too.
    pub fn post_recv_list(&self, wrs: &[RecvWr<'_>]) -> Result<bool, (usize, PostRecvError)> {
        let mut poster = self.begin_recvs().map_err(|error| (0, error))?;
        for (index, wr) in wrs.iter().enumerate() {
            poster.post(*wr).map_err(|error| (index, error))?;
        }
        Ok(poster.wants_kick())
    }

    /// Begins to post receive requests one by one, which nothing of other threads comes between.
    ///
    /// The shard must be kicked when the poster has been dropped, if that says so.
    ///
    /// # Errors
    ///
    /// [`PostRecvError`] when no receive can be posted at all: the state is RESET, or receives come
    /// from a shared queue.
    pub fn begin_recvs(&self) -> Result<RecvPoster<'_>, PostRecvError> {
        if self.init.srq.is_some() {
            return Err(PostRecvError::Shared);
        }
        if self.init.recv_cq.is_none() {
            return Err(PostRecvError::Unsupported { qp_type: self.init.qp_type });
        }
        let receives = self.receives.lock();
        let state = self.state();
        if state == QpState::Reset {
            return Err(PostRecvError::State { state });
        }
        Ok(RecvPoster { receives, state })
    }

    /// Multicast groups that it is attached to; while there are any, it is not destroyed (R50).
    pub fn attachments(&self) -> u32 {
        self.attachments.load(Ordering::Acquire)
    }

    pub(crate) fn note_attached(&self, attached: bool) {
        if attached {
            self.attachments.fetch_add(1, Ordering::AcqRel);
        } else {
            self.attachments.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Notes that the shard is about to be told; false when it has been already.
    pub fn mark_kicked(&self) -> bool {
        !self.kicked.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn clear_kicked(&self) {
        self.kicked.store(false, Ordering::Release);
    }

    pub(crate) fn take_posted(&self, to: &mut VecDeque<SendWqe>) {
        to.append(&mut self.posted.lock());
    }

    /// Takes the oldest receive, for a message that has come.
    pub(crate) fn take_recv(&self) -> Option<RecvWqe> {
        match &self.init.srq {
            Some(srq) => srq.take(),
            None => self.take_own_recv(),
        }
    }

    /// Takes the oldest receive, if it holds `len` bytes; otherwise it stays.
    pub(crate) fn take_recv_fitting(&self, len: u64) -> Result<Option<RecvWqe>, TooLong> {
        if let Some(srq) = &self.init.srq {
            return srq.take_fitting(len);
        }
        let mut receives = self.receives.lock();
        if receives.fits(len) { Ok(receives.wqes.pop_front()) } else { Err(TooLong) }
    }

    /// Takes the oldest receive of its own queue: what a flush ends. Those of a shared queue are
    /// for other queue pairs.
    pub(crate) fn take_own_recv(&self) -> Option<RecvWqe> {
        self.receives.lock().wqes.pop_front()
    }

    /// Forgets all requests, without completions: the QP goes to RESET.
    pub(crate) fn clear(&self) {
        self.posted.lock().clear();
        self.receives.lock().wqes.clear();
        self.outstanding.store(0, Ordering::Release);
    }

    /// Ends a send request: its place is free again before its completion can be seen.
    pub(crate) fn complete_send(&self, wqe: SendWqe, status: WcStatus) {
        self.spares.keep(wqe.data);
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
        if !wqe.signaled && status == WcStatus::Success {
            return;
        }
        let wc = WorkCompletion {
            wr_id: wqe.wr_id,
            status,
            opcode: wqe.op.wc_opcode(),
            vendor_err: 0,
            byte_len: wqe.length,
            imm: 0,
            qpn: self.qpn,
            source_qpn: Qpn::new(0),
            flags: WcFlags::empty(),
            network_type: NetworkType::None,
        };
        self.complete(self.init.send_cq.as_ref(), wc, false);
    }

    /// Ends a receive request that got no message.
    pub(crate) fn complete_recv_error(&self, wqe: &RecvWqe, status: WcStatus) {
        let wc = WorkCompletion {
            wr_id: wqe.wr_id,
            status,
            opcode: WcOpcode::Recv,
            vendor_err: 0,
            byte_len: 0,
            imm: 0,
            qpn: self.qpn,
            source_qpn: Qpn::new(0),
            flags: WcFlags::empty(),
            network_type: NetworkType::None,
        };
        self.complete(wqe.cq.as_ref().or(self.init.recv_cq.as_ref()), wc, false);
    }

    /// Ends a receive request that got a message; false when its completion is lost.
    pub(crate) fn complete_recv(&self, wqe: &RecvWqe, wc: WorkCompletion, solicited: bool) -> bool {
        self.complete(wqe.cq.as_ref().or(self.init.recv_cq.as_ref()), wc, solicited)
    }

    /// Puts a completion into a queue; false when it is lost.
    fn complete(
        &self,
        cq: Option<&Arc<CompletionQueue>>,
        wc: WorkCompletion,
        solicited: bool,
    ) -> bool {
        // A queue pair without one takes no requests that would complete there.
        let Some(cq) = cq else { return true };
        let pushed = cq.push(wc, solicited);
        if pushed == Pushed::Done {
            return true;
        }
        let mut wants = self.wants.lock();
        match pushed {
            Pushed::Lost => wants.lost = true,
            Pushed::Lags if wants.lagging.iter().any(|known| Arc::ptr_eq(known, cq)) => {}
            Pushed::Lags | Pushed::Done => wants.lagging.push(cq.clone()),
        }
        self.attention.store(true, Ordering::Release);
        pushed != Pushed::Lost
    }

    /// Whether [`Self::take_wants`] has anything.
    pub(crate) fn needs_attention(&self) -> bool {
        self.attention.load(Ordering::Acquire)
    }

    /// Whether a completion was lost, and the shard has not seen to it.
    pub(crate) fn has_lost_completion(&self) -> bool {
        self.needs_attention() && self.wants.lock().lost
    }

    /// Takes the completion queues whose event comes later; the losses have been seen to.
    pub(crate) fn take_wants(&self) -> SmallVec<[Arc<CompletionQueue>; 2]> {
        self.attention.store(false, Ordering::Release);
        std::mem::take(&mut *self.wants.lock()).lagging
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let init = &self.init;
        init.send_cq.iter().chain(&init.recv_cq).for_each(|cq| cq.detach());
        init.srq.iter().for_each(|srq| srq.detach());
        init.xrcd.iter().for_each(|xrcd| xrcd.detach());
    }
}

/// A send queue that requests are being put into: made by [`QueuePair::begin_sends`].
#[derive(Debug)]
pub struct SendPoster<'a> {
    qp: &'a QueuePair,
    posted: MutexGuard<'a, VecDeque<SendWqe>>,
}

impl SendPoster<'_> {
    /// Posts one more request.
    ///
    /// # Errors
    ///
    /// [`PostSendError`]; the request was not taken, those before it were (R13).
    pub fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        let wqe = self.qp.wqe(wr)?;
        self.qp.check_room(1)?;
        self.qp.outstanding.fetch_add(1, Ordering::AcqRel);
        self.posted.push_back(wqe);
        Ok(())
    }
}

/// Send requests that are put together one by one, and posted all at once or not at all
/// ([`QueuePair::prepare`], [`QueuePair::post_batch`]). One is good for many batches, and keeps its
/// memory.
#[derive(Debug, Default)]
pub struct SendBatch {
    wqes: VecDeque<SendWqe>,
}

impl SendBatch {
    /// Forgets the requests (`ibv_wr_abort`).
    pub fn clear(&mut self) {
        self.wqes.clear();
    }
}

/// A receive queue that requests are being put into: made by [`QueuePair::begin_recvs`].
#[derive(Debug)]
pub struct RecvPoster<'a> {
    receives: MutexGuard<'a, RecvQueue>,
    state: QpState,
}

impl RecvPoster<'_> {
    /// Posts one more request.
    ///
    /// # Errors
    ///
    /// [`PostRecvError`]; the request was not taken, those before it were (R13).
    pub fn post(&mut self, wr: RecvWr<'_>) -> Result<(), PostRecvError> {
        self.receives.post(wr)
    }

    /// The shard must be kicked: the queue pair is in the error state, and flushes receives (R9).
    pub fn wants_kick(&self) -> bool {
        self.state == QpState::Err
    }
}
