//! The queue pair of an identifier.

use std::sync::Arc;

use ibverbs_api::{ProtectionDomain, QKey, QpAttr, QpAttrMask, QpInit, QpState, QueuePair};

use super::{CmId, Phase};
use crate::address::{UDP_QKEY, is_of_datagrams};
use crate::error::IdError;

impl CmId {
    /// Makes a queue pair, which the connection then moves through its states (C:
    /// `rdma_create_qp`). `pd` and the queues of `init` are of [`Self::verbs`]; without a `pd` one
    /// of the device is taken.
    ///
    /// # Errors
    ///
    /// [`IdError`]: there is no device yet, or a queue pair already, or it cannot be made.
    pub fn create_qp(
        &self,
        pd: Option<&ProtectionDomain>,
        init: QpInit,
    ) -> Result<Arc<QueuePair>, IdError> {
        let device = self.inner.state.lock().device.clone().ok_or(IdError::NoDevice)?;
        let has_srq = init.srq.is_some();
        let qp = Arc::new(pd.unwrap_or_else(|| device.pd()).create_qp(init)?);
        self.attach(qp.clone(), Some(has_srq))?;
        Ok(qp)
    }

    /// Takes a queue pair that the caller has made, and that is in RESET (what `rdma_create_qp` of a
    /// program in C comes to).
    ///
    /// # Errors
    ///
    /// As [`Self::create_qp`]; [`IdError::OtherDevice`].
    pub fn attach_qp(&self, qp: Arc<QueuePair>) -> Result<(), IdError> {
        self.attach(qp, None)
    }

    fn attach(&self, qp: Arc<QueuePair>, has_srq: Option<bool>) -> Result<(), IdError> {
        let mut state = self.inner.state.lock();
        let device = state.device.clone().ok_or(IdError::NoDevice)?;
        if state.qp.is_some() {
            return Err(IdError::HasQp);
        }
        if matches!(state.phase, Phase::Destroyed | Phase::Removed) {
            return Err(state.wrong());
        }
        if !qp.context().is_same(device.context()) {
            return Err(IdError::OtherDevice);
        }
        if is_of_datagrams(self.inner.space) {
            let qkey = QKey::new(UDP_QKEY);
            qp.start_datagrams(state.plan.port_num, qkey)
                .map_err(|error| IdError::ModifyQp { to: QpState::Rts, error })?;
        } else {
            state.plan.qp_type = qp.qp_type();
            let (attr, mask) = state.plan.attr(QpState::Init)?;
            qp.modify(&attr, mask)
                .map_err(|error| IdError::ModifyQp { to: QpState::Init, error })?;
        }
        state.qp = Some(qp);
        state.qp_has_srq = has_srq;
        Ok(())
    }

    /// Lets go of the queue pair (C: `rdma_destroy_qp`): it is destroyed when nobody else has it.
    pub fn destroy_qp(&self) {
        let qp = self.inner.state.lock().qp.take();
        drop(qp);
    }

    /// The attributes that take a queue pair to a state, for a caller that moves it itself (C:
    /// `rdma_init_qp_attr`).
    ///
    /// # Errors
    ///
    /// [`IdError::Plan`] when the connection is not so far.
    pub fn init_qp_attr(&self, to: QpState) -> Result<(QpAttr, QpAttrMask), IdError> {
        let state = self.inner.state.lock();
        if is_of_datagrams(self.inner.space) {
            let mut attr = QpAttr { state: to, qkey: UDP_QKEY, ..QpAttr::default() };
            attr.port_num = state.plan.port_num;
            let mask = match to {
                QpState::Init => QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY,
                QpState::Rtr => QpAttrMask::empty(),
                QpState::Rts => QpAttrMask::SQ_PSN,
                _ => return Err(IdError::Plan(crate::qp_plan::NoPlan::State(to))),
            };
            return Ok((attr, mask | QpAttrMask::STATE));
        }
        Ok(state.qp_attr(to)?)
    }
}
