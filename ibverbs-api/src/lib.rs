//! RDMA verbs in safe Rust, over a RoCE device that is always there: any interface that has an
//! address.
//!
//! The names are those of the specification, in full words; each item names its counterpart in C,
//! and every numeric value is the one of `infiniband/verbs.h`. Nothing here needs privileges.
//!
//! | C | here |
//! |---|---|
//! | `ibv_get_device_list` | [`devices`] |
//! | `ibv_open_device`, `ibv_close_device` | [`Device::open`], drop |
//! | `ibv_query_device`, `_port`, `_pkey` | `query_*` of [`Context`] |
//! | `ibv_query_gid`, `_gid_ex`, `_gid_table` | `query_*` of [`Context`] |
//! | `rdma_find_gid` (kernel API) | [`Context::find_gid`], [`Context::routable_gid`] |
//! | `ibv_alloc_pd`, `ibv_dealloc_pd` | [`Context::alloc_pd`], drop |
//! | `ibv_reg_mr`, `ibv_dereg_mr` | [`ProtectionDomain::register`], drop |
//! | `ibv_reg_mr_iova2`, `ibv_rereg_mr` | [`ProtectionDomain::register_range`], [`MemoryRegion::reregister`] |
//! | `ibv_reg_mr` of memory that somebody else owns | [`UserMemory`], [`catch_faults`] |
//! | `ibv_advise_mr` | [`ProtectionDomain::advise`] |
//! | `ibv_alloc_null_mr` | [`ProtectionDomain::alloc_null_mr`] |
//! | `ibv_alloc_dm`, `ibv_reg_dm_mr` | [`Context::alloc_dm`], [`ProtectionDomain::register_dm`] |
//! | `ibv_alloc_mw`, `ibv_dealloc_mw`, `ibv_bind_mw` | [`ProtectionDomain::alloc_mw`], drop, [`QueuePair::bind_mw`] |
//! | `ib_alloc_mr`, `ib_map_mr_sg` (kernel API) | [`ProtectionDomain::alloc_mr`], [`FastRegion::map`] |
//! | `ibv_create_comp_channel` | [`Context::create_channel`] |
//! | `ibv_get_cq_event` | [`CompletionChannel::wait`] |
//! | `ibv_create_cq`, `ibv_create_cq_ex` | [`Context::create_cq`], [`Context::create_cq_with`] |
//! | `ibv_poll_cq`, `ibv_start_poll` | [`CompletionQueue::poll`], [`CompletionQueue::poll_stamped`] |
//! | `ibv_req_notify_cq` | [`CompletionQueue::req_notify`] |
//! | `ibv_resize_cq` | [`CompletionQueue::resize`] |
//! | `ibv_modify_cq` | [`CompletionQueue::moderate`] |
//! | `ibv_ack_cq_events` | [`CompletionQueue::ack_events`] |
//! | `ibv_create_srq` | [`ProtectionDomain::create_srq`] |
//! | `ibv_modify_srq`, `ibv_query_srq` | `modify` and `query` of [`SharedReceiveQueue`] |
//! | `ibv_alloc_td` | [`Context::alloc_td`] |
//! | `ibv_alloc_parent_domain` | [`ProtectionDomain::alloc_parent`] |
//! | `ibv_open_xrcd`, `ibv_close_xrcd`, `ibv_open_qp` | [`Context::open_xrcd`], [`XrcDomain`] |
//! | `ibv_create_srq_ex` for XRC | [`ProtectionDomain::create_xrc_srq`] |
//! | `ibv_post_srq_recv` | [`SharedReceiveQueue::post_recv`] |
//! | `ibv_create_qp` | [`ProtectionDomain::create_qp`] |
//! | `ibv_create_ah`, `_create_ah_from_wc` | [`ProtectionDomain::create_ah`], `create_ah_from_header` |
//! | `ibv_init_ah_from_wc` | [`Context::address_from_header`] |
//! | `ibv_attach_mcast`, `_detach_mcast` | `attach_multicast`, `detach_multicast` of [`QueuePair`] |
//! | `ibv_modify_qp`, `ibv_query_qp` | [`QueuePair::modify`], [`QueuePair::query`] |
//! | `ibv_post_send`, `ibv_post_recv` | [`QueuePair::post_send`], [`QueuePair::post_recv`] |
//! | `ibv_destroy_*`, `ibv_dealloc_pd` with `EBUSY` | `destroy` and `dealloc` of the object |
//! | `ibv_get_async_event` | [`Context::wait_event`] |
//!
//! An object keeps alive what it was made from, so nothing is destroyed while it is in use, and
//! dropping everything in any order is right. A queue pair runs in the thread that polls its
//! completion queue, or in a background thread when nobody polls. Every object may be shared by
//! threads. A call that is refused changes nothing (of a list of requests, those before the refused
//! one are posted), and its error says what would be right; it has the errno of the C verb too
//! (`errno()`).
//!
//! ```
//! use std::time::Duration;
//! use ibverbs_api::*;
//!
//! // Two ends in one process: each opens the device of the loopback interface for itself.
//! let open = || -> Result<_, Box<dyn std::error::Error>> {
//!     let context = Device::by_name("rxe_lo")?.open()?;
//!     let pd = context.alloc_pd()?;
//!     let cq = context.create_cq(16, None, 0)?;
//!     let qp = pd.create_qp(QpInit::new(QpType::Rc, &cq, &cq))?;
//!     let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
//!     let mr = pd.register(DmaBuf::zeroed(4096), access)?;
//!     Ok((context, cq, qp, mr))
//! };
//! let (client, client_cq, client_qp, client_mr) = open()?;
//! let (server, _server_cq, server_qp, server_mr) = open()?;
//!
//! let gid = |context: &Context| -> Result<_, Box<dyn std::error::Error>> {
//!     let table = context.query_gid_table()?;
//!     Ok(table.into_iter().find(|entry| entry.owned).ok_or("lo has no address")?)
//! };
//! let (from, to) = (gid(&client)?, gid(&server)?);
//! let connect = |qp: &QueuePair, peer: Qpn, own: GidEntry, other: Gid| {
//!     let av = AddressVector::new(other, own.gid_index);
//!     qp.connect(&ConnectAttr::new(av, peer, Mtu::M1024))
//! };
//! connect(&client_qp, server_qp.qpn(), from, to.gid)?;
//! connect(&server_qp, client_qp.qpn(), to, from.gid)?;
//!
//! client_mr.buffer().write_at(0, b"hello")?;
//! let remote = server_mr.remote_addr(0);
//! client_qp.post_send(&SendWr {
//!     wr_id: 1,
//!     op: SendOp::Write { remote, imm: None },
//!     flags: SendFlags::SIGNALED,
//!     data: SendData::Sges(&[client_mr.sge(0..5)]),
//!     srq_number: None,
//! })?;
//! let completion = client_cq.wait_one(Duration::from_secs(5))?;
//! assert_eq!(completion.status, WcStatus::Success);
//! let mut text = [0; 5];
//! server_mr.buffer().read_at(0, &mut text)?;
//! assert_eq!(&text, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod ah;
mod attr;
mod channel;
mod context;
mod cq;
mod device;
mod dm;
mod error;
mod fast;
mod mr;
mod mw;
mod pd;
mod port;
mod qp;
mod selection;
mod srq;
pub mod sysfs;
mod td;
mod xrc;

pub use ah::AddressHandle;
pub use attr::{
    AtomicCap, DeviceAttr, DeviceCapFlags, LinkLayer, LinkSpeed, LinkWidth, OnDemandCaps,
    OnDemandOps, PhysState, PortAttr, PortCapFlags, PortState,
};
pub use channel::{CompletionChannel, Sleep};
pub use context::Context;
pub use cq::{CompletionQueue, CqOptions};
pub use device::{Device, OpenOptions, devices};
pub use dm::DeviceMemory;
pub use error::{
    AllocParentError, BindMwError, CreateXrcSrqError, DeviceError, InUse, OpenError, OpenQpError,
    PostRecvListError, PostSendListError, QueryError, WaitError,
};
pub use fast::FastRegion;
pub use mr::{MemoryRegion, NullRegion, Rereg};
pub use mw::MemoryWindow;
pub use pd::ProtectionDomain;
pub use qp::{ConnectAttr, QpInit, QueuePair};
pub use selection::{DEVICES_VARIABLE, DeviceSelection, SelectionError};
pub use srq::SharedReceiveQueue;
pub use td::ThreadDomain;
pub use xrc::XrcDomain;

pub use gid_table::{
    Gid, GidEntry, GidScope, GidType, ParseGidError, QueryGidError, QueryGidTableError,
    routable_gid,
};
pub use rxe_core::ah::{CreateAhError, Destination};
pub use rxe_core::cq::{CqId, CreateCqError, Moderation, ResizeCqError};
pub use rxe_core::device::AllocPdError;
pub use rxe_core::error::{CreateQpError, ModifyQpError};
pub use rxe_core::event::AsyncEvent;
pub use rxe_core::mem::{
    AccessFlags, Advice, AdviseMrError, AllocDmError, Backing, CatchFaultsError, DmaBuf, Fault,
    IntoBacking, MapMrError, MwBind, MwType, OutOfMemory, PAGE_SIZE, RegMrError, ReregMrError,
    UserMemory, catch_faults,
};
pub use rxe_core::multicast::{MULTICAST_QPN, MulticastError};
pub use rxe_core::qp::{
    ALL_PORTS, AddressVector, MigState, Mtu, QpAttr, QpAttrMask, QpCaps, QpState, QpType,
    RC_TO_RTS, RecvPoster, SendBatch, SendPoster, steps_to_rts,
};
pub use rxe_core::srq::{SrqAttr, SrqAttrMask, SrqError, SrqId, SrqPoster};
pub use rxe_core::wc::{NetworkType, WcFlags, WcOpcode, WcStatus, WorkCompletion};
pub use rxe_core::wq::{
    FlushLevel, MAX_MESSAGE, PostRecvError, PostSendError, RecvWr, RemoteAddr, SendData, SendFlags,
    SendOp, SendWr, Sge,
};
pub use rxe_core::xrc::{OpenXrcdError, XrcdId};
pub use rxe_core::{CongestionConfig, Counter, CounterValues, Limits, Seed};
pub use rxe_net::link::LinkCounters;
pub use rxe_net::runtime::{
    AttachMulticastError, LinkKind, LinkOptions, ModifyError, OpenLinkError, OptionsError,
    SOCKETS_MAX, Sockets, StartError,
};
pub use rxe_net::slots::{RegisterServiceError, ServiceRegistration, after_fork_in_child};
pub use rxe_net::udp::{BindError, BufferSizes};
pub use rxe_wire::hdr::FlushPlacement;
pub use rxe_wire::mad::cm::ServiceId;
pub use rxe_wire::{LKey, Psn, QKey, Qpn, RKey};
