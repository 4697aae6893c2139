//! Queue pairs.

use std::net::IpAddr;
use std::sync::{Arc, Weak};

use gid_table::Gid;
use rxe_core::counters::CounterValues;
use rxe_core::error::CreateQpError;
use rxe_core::mem::AccessFlags;
use rxe_core::multicast::MulticastError;
use rxe_core::qp::{
    AddressVector, Mtu, QpAttr, QpAttrMask, QpCaps, QpInit as CoreInit, QpState, QpType,
    QueuePair as CorePair, RecvPoster, SendBatch, SendPoster, steps_to_rts,
};
use rxe_core::wq::{PostRecvError, PostSendError, RecvWr, SendWr};
use rxe_net::runtime::{AttachMulticastError, ModifyError, Runner};
use rxe_net::slots::{RegisterServiceError, ServiceRegistration};
use rxe_wire::mad::cm::ServiceId;
use rxe_wire::{Psn, QKey, Qpn};

use crate::context::ContextInner;
use crate::cq::{CompletionQueue, CqInner};
use crate::error::{PostRecvListError, PostSendListError, QueryError};
use crate::pd::PdInner;
use crate::srq::SharedReceiveQueue;
use crate::xrc::XrcdInner;

/// How a queue pair is made (`struct ibv_qp_init_attr`).
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Its service.
    pub qp_type: QpType,
    /// Where send requests complete.
    pub send_cq: CompletionQueue,
    /// Where receive requests complete; the queue pair lives on the shard of this one. An initiator
    /// of extended reliable connections (XRC) has none: it lives on the shard of `send_cq`.
    pub recv_cq: CompletionQueue,
    /// Capacities.
    pub caps: QpCaps,
    /// Every send request completes in the queue, signaled or not (`sq_sig_all`).
    pub signal_all: bool,
    /// Where receives are taken from, instead of a queue of its own.
    pub srq: Option<SharedReceiveQueue>,
    /// Of QP1: the port that it serves, counted from 1; [`ALL_PORTS`](crate::ALL_PORTS) for one that
    /// serves all.
    pub port_num: u8,
}

impl QpInit {
    /// A queue pair with the default capacities.
    pub fn new(qp_type: QpType, send_cq: &CompletionQueue, recv_cq: &CompletionQueue) -> Self {
        let (send_cq, recv_cq) = (send_cq.clone(), recv_cq.clone());
        let (caps, signal_all, srq) = (QpCaps::default(), false, None);
        Self { qp_type, send_cq, recv_cq, caps, signal_all, srq, port_num: 1 }
    }
}

/// What [`QueuePair::connect`] needs to know; everything else has a sensible value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectAttr {
    /// Where to.
    pub av: AddressVector,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// First PSN that is sent; the peer's `rq_psn`.
    pub sq_psn: Psn,
    /// First PSN that the peer sends.
    pub rq_psn: Psn,
    /// What the peer may do.
    pub access: AccessFlags,
    /// READs and atomics outstanding at most, in each direction.
    pub max_rd_atomic: u8,
    /// Exponent of the ACK timeout: 14 is 67 ms.
    pub timeout: u8,
    /// Times that a request is resent before it fails.
    pub retry_cnt: u8,
    /// Times that a request is resent after RNR NAKs; 7 means for ever.
    pub rnr_retry: u8,
    /// The RNR timer that the peer is told: 12 is 0.64 ms.
    pub min_rnr_timer: u8,
}

impl ConnectAttr {
    /// The values that `ibv_rc_pingpong` uses, with PSNs of 0 and all access granted.
    pub fn new(av: AddressVector, dest_qpn: Qpn, path_mtu: Mtu) -> Self {
        Self {
            av,
            dest_qpn,
            path_mtu,
            sq_psn: Psn::new(0),
            rq_psn: Psn::new(0),
            access: AccessFlags::LOCAL_WRITE
                | AccessFlags::REMOTE_WRITE
                | AccessFlags::REMOTE_READ
                | AccessFlags::REMOTE_ATOMIC
                | AccessFlags::FLUSH_GLOBAL,
            max_rd_atomic: 16,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
        }
    }
}

/// A queue pair (`struct ibv_qp`). Dropping it destroys it.
///
/// All methods may be called by any thread at any time.
#[derive(Debug)]
pub struct QueuePair {
    core: Arc<CorePair>,
    runner: Arc<Runner>,
    life: Arc<Life>,
}

/// Destroys a queue pair with its last handle, and keeps what it was made from till then.
#[derive(Debug)]
pub(crate) struct Life {
    context: Arc<ContextInner>,
    core: Arc<CorePair>,
    runner: Arc<Runner>,
    cqs: Vec<Arc<CqInner>>,
    xrcd: Option<Arc<XrcdInner>>,
    _pd: Option<Arc<PdInner>>,
    _srq: Option<SharedReceiveQueue>,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.context.groups.detach_all(&self.core);
        // Nobody else has the handle, so it is in no group again.
        if let Err(error) = self.runner.destroy_qp(self.core.qpn()) {
            tracing::error!(target: "rxe::qp", qpn = %self.core.qpn(), %error, "not destroyed");
        }
        self.cqs.iter().for_each(|cq| cq.detach(&self.runner));
        if let Some(xrcd) = &self.xrcd {
            xrcd.forget(self.core.qpn());
        }
    }
}

impl QueuePair {
    pub(crate) fn new(pd: Arc<PdInner>, init: QpInit) -> Result<Self, CreateQpError> {
        let QpInit { qp_type, send_cq, recv_cq, caps, signal_all, srq, port_num } = init;
        let (send_cq, recv_cq) = (send_cq.inner, recv_cq.inner);
        for (which, cq) in [("send_cq", &send_cq), ("recv_cq", &recv_cq)] {
            if !Arc::ptr_eq(&cq.context, &pd.context) {
                return Err(CreateQpError::OtherContext { which });
            }
        }
        if let Some(srq) = &srq
            && !Arc::ptr_eq(&srq.inner.pd.context, &pd.context)
        {
            return Err(CreateQpError::OtherContext { which: "srq" });
        }
        let cqs = if qp_type == QpType::XrcSend { vec![send_cq] } else { vec![recv_cq, send_cq] };
        let runner = cqs[0].home.clone();
        let core = runner.create_qp(CoreInit {
            send_cq: cqs.last().map(|cq| cq.core.clone()),
            caps,
            signal_all,
            srq: srq.as_ref().map(|srq| srq.inner.core.clone()),
            port_num,
            ..CoreInit::new(qp_type, pd.id, &cqs[0].core)
        })?;
        cqs.iter().for_each(|cq| cq.attach(&runner));
        let (context, xrcd) = (pd.context.clone(), None);
        Ok(Self::of_life(Arc::new(Life {
            context,
            core,
            runner,
            cqs,
            xrcd,
            _pd: Some(pd),
            _srq: srq,
        })))
    }

    /// The target of an extended reliable connection.
    pub(crate) fn of_xrcd(xrcd: Arc<XrcdInner>, core: Arc<CorePair>, runner: Arc<Runner>) -> Self {
        let (context, cqs) = (xrcd.context.clone(), Vec::new());
        let xrcd = Some(xrcd);
        Self::of_life(Arc::new(Life { context, core, runner, cqs, xrcd, _pd: None, _srq: None }))
    }

    /// One more handle.
    pub(crate) fn of_life(life: Arc<Life>) -> Self {
        Self { core: life.core.clone(), runner: life.runner.clone(), life }
    }

    pub(crate) fn life(&self) -> &Arc<Life> {
        &self.life
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.core.qpn()
    }

    /// The slot of the shard it lives on: the top byte of its number, unless that is QP1.
    ///
    /// A connection manager that uses a QP1 gives its communication ids this top byte: so messages
    /// about its connections find it where several processes share an address.
    pub fn slot(&self) -> u8 {
        self.runner.slot()
    }

    /// Has requests of connection management (REQ, SIDR_REQ) for a service come to this QP1,
    /// whichever process of the host gets them: those to `address`, or to any address. Until the
    /// registration is dropped.
    ///
    /// # Errors
    ///
    /// [`RegisterServiceError`]: somebody on the host serves it there, with the errno of
    /// `rdma_listen`.
    pub fn register_service(
        &self,
        service: ServiceId,
        address: Option<IpAddr>,
    ) -> Result<ServiceRegistration, RegisterServiceError> {
        self.runner.register_service(service, address)
    }

    /// Whether datagrams to a local GID arrive here: its link is open. A GID that has just come is in
    /// the table a moment before it is.
    pub fn is_reached_at(&self, gid: Gid) -> bool {
        self.runner.has_link(gid)
    }

    /// Its service.
    pub fn qp_type(&self) -> QpType {
        self.core.qp_type()
    }

    /// The state it is in.
    pub fn state(&self) -> QpState {
        self.core.state()
    }

    /// Its capacities.
    pub fn caps(&self) -> &QpCaps {
        self.core.caps()
    }

    /// Whether every send request completes in the queue, signaled or not (`sq_sig_all`).
    pub fn signals_all(&self) -> bool {
        self.core.init().signal_all
    }

    /// The engine's part of it, which goes when the queue pair is destroyed.
    pub(crate) fn weak_core(&self) -> Weak<CorePair> {
        Arc::downgrade(&self.core)
    }

    /// The context that it belongs to.
    pub fn context(&self) -> crate::Context {
        crate::Context { inner: self.life.context.clone() }
    }

    /// Changes attributes and state (`ibv_modify_qp`).
    ///
    /// # Errors
    ///
    /// [`ModifyError`], which says what is wrong and what would be right; nothing has changed.
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), ModifyError> {
        self.runner.modify_qp(self.core.qpn(), attr, mask)
    }

    /// The attributes it has (`ibv_query_qp`).
    ///
    /// # Errors
    ///
    /// [`QueryError::NoSuchQp`], which cannot happen while this handle is there.
    pub fn query(&self) -> Result<QpAttr, QueryError> {
        self.runner.query_qp(self.core.qpn()).ok_or(QueryError::NoSuchQp)
    }

    /// What it has counted since it was made, by the names of Linux's driver
    /// (`rdma statistic qp show`).
    ///
    /// # Errors
    ///
    /// [`QueryError::NoSuchQp`] when it is gone.
    pub fn counters(&self) -> Result<CounterValues, QueryError> {
        self.runner.qp_counters(self.core.qpn()).ok_or(QueryError::NoSuchQp)
    }

    /// Moves a new connected queue pair through INIT and RTR to RTS.
    ///
    /// What UC does not have, it does not take: everything about acknowledgements and READs.
    ///
    /// # Errors
    ///
    /// As [`Self::modify`]; the queue pair stays in the last state that it reached.
    pub fn connect(&self, attr: &ConnectAttr) -> Result<(), ModifyError> {
        let values = QpAttr {
            path_mtu: attr.path_mtu,
            rq_psn: attr.rq_psn,
            sq_psn: attr.sq_psn,
            dest_qpn: attr.dest_qpn,
            access: attr.access,
            av: attr.av,
            max_rd_atomic: attr.max_rd_atomic,
            max_dest_rd_atomic: attr.max_rd_atomic,
            min_rnr_timer: attr.min_rnr_timer,
            port_num: attr.av.port_num,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            ..QpAttr::default()
        };
        self.go_to_rts(values)
    }

    /// Moves a new UD queue pair through INIT and RTR to RTS: it takes datagrams with this queue
    /// key, at all addresses of the port, and numbers those that it sends from 0 on.
    ///
    /// # Errors
    ///
    /// As [`Self::modify`]; the queue pair stays in the last state that it reached.
    pub fn start_datagrams(&self, port_num: u8, qkey: QKey) -> Result<(), ModifyError> {
        self.go_to_rts(QpAttr { port_num, qkey: qkey.get(), ..QpAttr::default() })
    }

    fn go_to_rts(&self, values: QpAttr) -> Result<(), ModifyError> {
        for (state, mask) in steps_to_rts(self.qp_type()) {
            self.modify(&QpAttr { state, ..values }, mask)?;
        }
        Ok(())
    }

    /// Attaches a UD queue pair to a multicast group (`ibv_attach_mcast`); once more is no error. The
    /// host joins the IP group, by all interfaces of the device (R49).
    ///
    /// # Errors
    ///
    /// [`AttachMulticastError`] when the GID is no group, this is no UD, a limit is reached, or the
    /// host cannot join the group.
    pub fn attach_multicast(&self, group: Gid) -> Result<(), AttachMulticastError> {
        self.life.context.groups.attach(&self.runner, &self.core, group)
    }

    /// Detaches it from a multicast group (`ibv_detach_mcast`); dropping it detaches it from all.
    ///
    /// # Errors
    ///
    /// [`MulticastError::NotAttached`].
    pub fn detach_multicast(&self, group: Gid) -> Result<(), MulticastError> {
        self.life.context.groups.detach(&self.core, group)
    }

    /// Posts a send request and sends what may go at once (`ibv_post_send`).
    ///
    /// # Errors
    ///
    /// [`PostSendError`]; the request was not taken.
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        self.check_ours().ok_or(PostSendError::DeviceLost)?;
        self.core.post_send(wr)?;
        self.runner.kick(&self.core);
        Ok(())
    }

    /// Posts a list of send requests, which leave together (`ibv_post_send`).
    ///
    /// # Errors
    ///
    /// [`PostSendListError`]; the requests before the one it names were taken (R13).
    pub fn post_send_list(&self, wrs: &[SendWr<'_>]) -> Result<(), PostSendListError> {
        let lost = PostSendListError { index: 0, error: PostSendError::DeviceLost };
        self.check_ours().ok_or(lost)?;
        let posted = self.core.post_send_list(wrs);
        self.runner.kick(&self.core);
        posted.map_err(|(index, error)| PostSendListError { index, error })
    }

    /// Lets `post` post send requests one by one; they leave together when it returns.
    ///
    /// Nothing of other threads comes between. The queue is locked meanwhile: `post` must be short,
    /// and must not use the queue pair. For callers whose requests are in a form of their own.
    ///
    /// # Errors
    ///
    /// [`PostSendError::DeviceLost`] in a child after fork; `post` was not called.
    pub fn post_sends<R>(
        &self,
        post: impl FnOnce(&mut SendPoster<'_>) -> R,
    ) -> Result<R, PostSendError> {
        self.check_ours().ok_or(PostSendError::DeviceLost)?;
        let posted = post(&mut self.core.begin_sends());
        self.runner.kick(&self.core);
        Ok(posted)
    }

    /// `None` in a child after fork: queues may be locked there for ever.
    fn check_ours(&self) -> Option<()> {
        self.runner.is_ours().then_some(())
    }

    /// Adds a request to a batch, which [`Self::post_batch`] posts.
    ///
    /// # Errors
    ///
    /// [`PostSendError`] when the request itself is no good; the batch is as before.
    pub fn prepare(&self, batch: &mut SendBatch, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        self.core.prepare(batch, wr)
    }

    /// Posts all requests of a batch, which leave together, or none (`ibv_wr_complete`).
    ///
    /// # Errors
    ///
    /// [`PostSendError`] when the state or the queue does not take them all; the batch is empty.
    pub fn post_batch(&self, batch: &mut SendBatch) -> Result<(), PostSendError> {
        self.core.post_batch(batch)?;
        self.runner.kick(&self.core);
        Ok(())
    }

    /// Posts a receive request (`ibv_post_recv`).
    ///
    /// # Errors
    ///
    /// [`PostRecvError`]; the request was not taken.
    pub fn post_recv(&self, wr: RecvWr<'_>) -> Result<(), PostRecvError> {
        self.check_ours().ok_or(PostRecvError::DeviceLost)?;
        if self.core.post_recv(wr)? {
            self.runner.kick(&self.core);
        }
        Ok(())
    }

    /// Posts a list of receive requests (`ibv_post_recv`).
    ///
    /// # Errors
    ///
    /// [`PostRecvListError`]; the requests before the one it names were taken (R13).
    pub fn post_recv_list(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostRecvListError> {
        let lost = PostRecvListError { index: 0, error: PostRecvError::DeviceLost };
        self.check_ours().ok_or(lost)?;
        let posted = self.core.post_recv_list(wrs);
        // After an error too: those before the refused one may have to be flushed.
        if posted != Ok(false) {
            self.runner.kick(&self.core);
        }
        posted.map(drop).map_err(|(index, error)| PostRecvListError { index, error })
    }

    /// Lets `post` post receive requests one by one, as [`Self::post_sends`] does.
    ///
    /// # Errors
    ///
    /// [`PostRecvError`] when no receive can be posted at all.
    pub fn post_recvs<R>(
        &self,
        post: impl FnOnce(&mut RecvPoster<'_>) -> R,
    ) -> Result<R, PostRecvError> {
        self.check_ours().ok_or(PostRecvError::DeviceLost)?;
        let mut poster = self.core.begin_recvs()?;
        let posted = post(&mut poster);
        let wants_kick = poster.wants_kick();
        drop(poster);
        if wants_kick {
            self.runner.kick(&self.core);
        }
        Ok(posted)
    }
}
