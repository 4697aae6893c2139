//! The RDMA connection manager: identifiers that find a device for an IP address, and connect queue
//! pairs over it. Counterpart of `rdma/rdma_cma.h`, and of `rdma/rdma_cm.h` in Linux.
//!
//! | C | here |
//! |---|---|
//! | `rdma_create_event_channel` | [`EventChannel::new`] |
//! | `rdma_get_cm_event`, `rdma_ack_cm_event` | [`EventChannel::get`], [`Event::ack`] or drop |
//! | `rdma_create_id`, `rdma_destroy_id` | [`CmId::create`], [`CmId::destroy`] |
//! | `rdma_create_id` of the kernel, `rdma_lock_handler` | [`CmId::create_with_handler`], [`CmId::lock_handler`] |
//! | `rdma_migrate_id` | [`CmId::migrate`] |
//! | `rdma_bind_addr`, `rdma_resolve_addr`, `rdma_resolve_route` | of [`CmId`] |
//! | `rdma_create_qp`, `rdma_destroy_qp`, `rdma_init_qp_attr` | of [`CmId`] |
//! | `rdma_connect`, `rdma_establish` | [`CmId::connect`], [`CmId::establish`] |
//! | `rdma_listen`, `rdma_accept`, `rdma_reject` | of [`CmId`] |
//! | `rdma_disconnect`, `rdma_notify` | of [`CmId`] |
//! | `rdma_join_multicast`, `rdma_leave_multicast` | of [`CmId`] |
//! | `rdma_set_option`, `rdma_set_reuseaddr` and so on | `set_*` of [`CmId`] |
//! | `rdma_event_str`, `rdma_reject_msg` | [`EventType::name`], [`RejReason`] |
//!
//! Below the identifiers is [`engine`], the protocol of connection management between two QP1s
//! without sockets, threads or clock: what `ib_cm` is in Linux. [`address`], [`QpPlan`] and the rest
//! that needs no I/O are in files of their own, so that each can be tested alone.
//!
//! All devices of the host are found and opened as they are needed, and stay open until the process
//! ends. Each has a thread that receives messages and waits for answers; what a call sends, leaves
//! before it returns. Connections whose end the peer has not granted yet end with the process, unless
//! it waits for that ([`finish`]).
#![forbid(unsafe_code)]

pub mod address;
mod channel;
mod conn_param;
mod device;
mod dispatch;
pub mod engine;
mod error;
mod event;
mod event_type;
mod gsi;
mod handler;
mod id;
mod manager;
mod ports;
mod qp_plan;
mod route;
mod service;
mod watch;

pub use channel::EventChannel;
pub use conn_param::{ConnParam, UdParam};
pub use error::{BindError, IdError, ResolveError};
pub use event::{Event, EventParam};
pub use event_type::EventType;
pub use handler::{HandlerLock, Verdict};
pub use id::{CmId, JoinState};
pub use manager::finish;
pub use qp_plan::{NoPlan, QpPeer, QpPlan};
pub use rxe_wire::mad::cm::{PortSpace, RejReason};
