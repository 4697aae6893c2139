//! Protection domains, and what is made in them.

use std::ops::Range;
use std::sync::Arc;

use rxe_core::ah::{CreateAhError, address_from_header};
use rxe_core::device::AllocPdError;
use rxe_core::error::CreateQpError;
use rxe_core::mem::{AccessFlags, Advice, AdviseMrError, IntoBacking, MwType, RegMrError};
use rxe_core::pd::PdId;
use rxe_core::qp::AddressVector;
use rxe_core::srq::{SrqAttr, SrqError};
use rxe_core::wq::Sge;

use crate::ah::AddressHandle;
use crate::context::ContextInner;
use crate::cq::CompletionQueue;
use crate::dm::DeviceMemory;
use crate::error::{AllocParentError, CreateXrcSrqError, InUse};
use crate::fast::FastRegion;
use crate::mr::{MemoryRegion, NullRegion};
use crate::mw::MemoryWindow;
use crate::qp::{QpInit, QueuePair};
use crate::srq::SharedReceiveQueue;
use crate::td::ThreadDomain;
use crate::xrc::XrcDomain;

/// A protection domain (`struct ibv_pd`). Cloning gives another handle to the same one.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    pub(crate) inner: Arc<PdInner>,
}

#[derive(Debug)]
pub(crate) struct PdInner {
    pub(crate) context: Arc<ContextInner>,
    pub(crate) id: PdId,
    parent: Option<Parent>,
}

/// What a parent domain stands for, and keeps.
#[derive(Debug)]
struct Parent {
    _pd: Arc<PdInner>,
    _td: Option<ThreadDomain>,
}

impl Drop for PdInner {
    fn drop(&mut self) {
        if self.parent.is_none() {
            self.context.core.dealloc_pd(self.id);
        }
    }
}

impl ProtectionDomain {
    pub(crate) fn new(context: Arc<ContextInner>) -> Result<Self, AllocPdError> {
        let id = context.core.alloc_pd()?;
        Ok(Self { inner: Arc::new(PdInner { context, id, parent: None }) })
    }

    /// Makes a parent domain of it, with a thread domain if given (`ibv_alloc_parent_domain`).
    ///
    /// That is a protection domain too: what is made in it belongs to this one, and works together
    /// with all that is in this one. It is in use while there is anything made in it, and this one
    /// is in use while the parent domain is there.
    ///
    /// # Errors
    ///
    /// [`AllocParentError`] when the thread domain is of another context.
    pub fn alloc_parent(&self, td: Option<&ThreadDomain>) -> Result<Self, AllocParentError> {
        let context = self.inner.context.clone();
        if td.is_some_and(|td| !Arc::ptr_eq(&td.inner.context, &context)) {
            return Err(AllocParentError);
        }
        let parent = Some(Parent { _pd: self.inner.clone(), _td: td.cloned() });
        Ok(Self { inner: Arc::new(PdInner { context, id: self.inner.id, parent }) })
    }

    /// Registers memory under its own addresses (`ibv_reg_mr`): a [`DmaBuf`](crate::DmaBuf), or
    /// memory that somebody else owns, as a [`UserMemory`](crate::UserMemory). Whoever may take
    /// that away calls [`catch_faults`](crate::catch_faults) first.
    ///
    /// # Errors
    ///
    /// [`RegMrError`] when the access flags contradict each other or `max_mr` is reached.
    pub fn register(
        &self,
        memory: impl IntoBacking,
        access: AccessFlags,
    ) -> Result<MemoryRegion, RegMrError> {
        let memory = memory.into_backing();
        let iova = memory.addr();
        self.register_at(memory, iova, access)
    }

    /// Registers memory under the addresses from `iova` on (`ibv_reg_mr_iova2`).
    ///
    /// # Errors
    ///
    /// As [`Self::register`], and when the addresses would wrap.
    pub fn register_at(
        &self,
        memory: impl IntoBacking,
        iova: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, RegMrError> {
        let memory = memory.into_backing();
        let range = 0..memory.len();
        self.register_range(memory, range, iova, access)
    }

    /// Registers a part of some memory under the addresses from `iova` on, or, with
    /// [`AccessFlags::ZERO_BASED`], from 0 on.
    ///
    /// # Errors
    ///
    /// As [`Self::register_at`], and when the memory does not have the range.
    pub fn register_range(
        &self,
        memory: impl IntoBacking,
        range: Range<usize>,
        iova: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, RegMrError> {
        let memory = memory.into_backing();
        MemoryRegion::new(self.inner.clone(), memory, range, iova, access)
    }

    /// Registers a part of device memory; its addresses count from 0 (`ibv_reg_dm_mr`).
    ///
    /// # Errors
    ///
    /// As [`Self::register_range`]; [`RegMrError::OtherDevice`] for memory of another context.
    pub fn register_dm(
        &self,
        memory: &DeviceMemory,
        range: Range<usize>,
        access: AccessFlags,
    ) -> Result<MemoryRegion, RegMrError> {
        if !Arc::ptr_eq(&memory.context, &self.inner.context) {
            return Err(RegMrError::OtherDevice);
        }
        let access = access | AccessFlags::ZERO_BASED;
        let region = self.register_range(memory.core.buffer().clone(), range, 0, access)?;
        Ok(region.of_device_memory(memory.clone()))
    }

    /// Follows advice about pieces of memory that is registered with
    /// [`AccessFlags::ON_DEMAND`], in their order, before it returns (`ibv_advise_mr`).
    ///
    /// # Errors
    ///
    /// [`AdviseMrError`] where a piece is not within its region, its memory is not there, or
    /// writing is asked for but was not granted; some pages may be there then.
    pub fn advise(&self, advice: Advice, pieces: &[Sge]) -> Result<(), AdviseMrError> {
        self.inner.context.core.memory().advise(self.inner.id, advice, pieces)
    }

    /// Makes a region without memory (`ibv_alloc_null_mr`).
    ///
    /// # Errors
    ///
    /// [`RegMrError::TooMany`].
    pub fn alloc_null_mr(&self) -> Result<NullRegion, RegMrError> {
        NullRegion::new(self.inner.clone())
    }

    /// Makes a region for fast registration of at most `max_pages` pages of
    /// [`PAGE_SIZE`](crate::PAGE_SIZE) bytes (`ib_alloc_mr`).
    ///
    /// # Errors
    ///
    /// [`RegMrError::TooMany`].
    pub fn alloc_mr(&self, max_pages: u32) -> Result<FastRegion, RegMrError> {
        FastRegion::new(self.inner.clone(), max_pages)
    }

    /// Makes a memory window (`ibv_alloc_mw`).
    ///
    /// # Errors
    ///
    /// [`RegMrError::TooMany`]: windows count among the regions.
    pub fn alloc_mw(&self, mw_type: MwType) -> Result<MemoryWindow, RegMrError> {
        MemoryWindow::new(self.inner.clone(), mw_type)
    }

    /// Makes a shared receive queue (`ibv_create_srq`).
    ///
    /// # Errors
    ///
    /// [`SrqError`] when a capacity is out of range or `max_srq` is reached.
    pub fn create_srq(&self, attr: SrqAttr) -> Result<SharedReceiveQueue, SrqError> {
        SharedReceiveQueue::new(self.inner.clone(), attr)
    }

    /// Makes an address handle, for datagrams (`ibv_create_ah`).
    ///
    /// # Errors
    ///
    /// [`CreateAhError`] when the address vector leads nowhere or `max_ah` is reached.
    pub fn create_ah(&self, av: &AddressVector) -> Result<AddressHandle, CreateAhError> {
        AddressHandle::new(&self.inner, av)
    }

    /// Makes an address handle of the way back to the sender of a datagram, from the 40 bytes
    /// before its data (`ibv_create_ah_from_wc`).
    ///
    /// # Errors
    ///
    /// As [`Self::create_ah`], and when the bytes are no network header.
    pub fn create_ah_from_header(
        &self,
        port_num: u8,
        header: &[u8; 40],
    ) -> Result<AddressHandle, CreateAhError> {
        self.create_ah(&address_from_header(&self.inner.context.core, port_num, header)?)
    }

    /// Makes a shared receive queue for extended reliable connections (`ibv_create_srq_ex` with
    /// `IBV_SRQT_XRC`): its receives complete in `cq`, and messages to any target queue pair of
    /// `xrcd` may name it.
    ///
    /// # Errors
    ///
    /// [`CreateXrcSrqError`] when a capacity is out of range, `max_srq` is reached, or domain or
    /// completion queue are of another context.
    pub fn create_xrc_srq(
        &self,
        attr: SrqAttr,
        xrcd: &XrcDomain,
        cq: &CompletionQueue,
    ) -> Result<SharedReceiveQueue, CreateXrcSrqError> {
        SharedReceiveQueue::new_xrc(self.inner.clone(), attr, xrcd, cq)
    }

    /// Frees it (`ibv_dealloc_pd`). Dropping it does so too, once nothing uses it any more.
    ///
    /// # Errors
    ///
    /// [`InUse`] with the domain, while there is an object in it, or another handle to it.
    pub fn dealloc(self) -> Result<(), InUse<Self>> {
        InUse::unwrap("protection domain", self.inner, |inner| Self { inner })
    }

    /// Makes a queue pair, in the RESET state (`ibv_create_qp`).
    ///
    /// # Errors
    ///
    /// [`CreateQpError`] when the service is not supported or a limit is reached.
    pub fn create_qp(&self, init: QpInit) -> Result<QueuePair, CreateQpError> {
        QueuePair::new(self.inner.clone(), init)
    }
}
