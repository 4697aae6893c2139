//! Domains of extended reliable connections.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rxe_core::error::CreateQpError;
use rxe_core::qp::QpInit as CoreInit;
use rxe_core::xrc::{OpenXrcdError, XrcDomain as CoreDomain};
use rxe_net::runtime::Runner;
use rxe_wire::Qpn;

use crate::context::ContextInner;
use crate::error::{InUse, OpenQpError};
use crate::qp::{Life, QueuePair};

/// A domain of extended reliable connections, XRC (`struct ibv_xrcd`). Cloning gives another handle
/// to the same one.
///
/// It holds shared receive queues ([`ProtectionDomain::create_xrc_srq`]) and target queue pairs
/// ([`Self::create_qp`]). An initiator (`QpType::XrcSend`), connected to a target, names in each
/// request the shared receive queue that it is for; so one connection reaches all of them.
///
/// A domain lives in one process. Where C programs share one through a file, they do so within a
/// process.
///
/// [`ProtectionDomain::create_xrc_srq`]: crate::ProtectionDomain::create_xrc_srq
#[derive(Clone, Debug)]
pub struct XrcDomain {
    pub(crate) inner: Arc<XrcdInner>,
}

#[derive(Debug)]
pub(crate) struct XrcdInner {
    pub(crate) context: Arc<ContextInner>,
    pub(crate) core: Arc<CoreDomain>,
    /// The shard that its target queue pairs live on, which the completion queues of its shared
    /// receive queues visit.
    pub(crate) home: Arc<Runner>,
    targets: Mutex<HashMap<Qpn, Weak<Life>>>,
}

impl Drop for XrcdInner {
    fn drop(&mut self) {
        if let Err(error) = self.context.core.close_xrcd(&self.core) {
            // Every object in it holds this object until it has let go of the domain.
            tracing::error!(target: "rxe::xrc", %error, "an XRC domain is lost");
        }
    }
}

impl XrcdInner {
    /// Forgets a target queue pair that is gone.
    pub(crate) fn forget(&self, qpn: Qpn) {
        self.targets.lock().remove(&qpn);
    }
}

impl XrcDomain {
    pub(crate) fn open(context: Arc<ContextInner>, vector: usize) -> Result<Self, OpenXrcdError> {
        let core = context.core.open_xrcd()?;
        let home = context.runners[vector % context.runners.len()].clone();
        let targets = Mutex::default();
        Ok(Self { inner: Arc::new(XrcdInner { context, core, home, targets }) })
    }

    /// Makes a target queue pair in it (`ibv_create_qp_ex` with `IBV_QPT_XRC_RECV`).
    ///
    /// It has no protection domain and no completion queues: those of the shared receive queue that
    /// a message names count. Nothing can be posted to it.
    ///
    /// # Errors
    ///
    /// [`CreateQpError`] when a limit is reached.
    pub fn create_qp(&self) -> Result<QueuePair, CreateQpError> {
        let runner = self.inner.home.clone();
        let core = runner.create_qp(CoreInit::xrc_recv(&self.inner.core))?;
        let qpn = core.qpn();
        let qp = QueuePair::of_xrcd(self.inner.clone(), core, runner);
        self.inner.targets.lock().insert(qpn, Arc::downgrade(qp.life()));
        Ok(qp)
    }

    /// Shares a target queue pair of it (`ibv_open_qp`); the queue pair is destroyed when all who
    /// share it have dropped it.
    ///
    /// # Errors
    ///
    /// [`OpenQpError`] when there is none of this number.
    pub fn open_qp(&self, qpn: Qpn) -> Result<QueuePair, OpenQpError> {
        let life = self.inner.targets.lock().get(&qpn).and_then(Weak::upgrade);
        life.map(QueuePair::of_life).ok_or(OpenQpError { qpn })
    }

    /// Closes it (`ibv_close_xrcd`). Dropping it does so too, once nothing uses it any more.
    ///
    /// # Errors
    ///
    /// [`InUse`] with the domain, while there is an object in it, or another handle to it.
    pub fn close(self) -> Result<(), InUse<Self>> {
        InUse::unwrap("XRC domain", self.inner, |inner| Self { inner })
    }
}
