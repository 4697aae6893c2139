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
//! | `rdma_connect_ece`, `rdma_accept_ece` | [`CmId::connect_ece`], [`CmId::accept_ece`] |
//! | `rdma_listen`, `rdma_accept`, `rdma_reject` | of [`CmId`] |
//! | `rdma_disconnect`, `rdma_notify` | of [`CmId`] |
//! | `rdma_join_multicast`, `rdma_leave_multicast` | of [`CmId`] |
//! | `rdma_set_option` | [`CmId::set_option`] |
//! | `rdma_set_reuseaddr` and so on | `set_*` of [`CmId`] |
//! | `rdma_get_service_id`, `rdma_resolve_ib_service` | [`CmId::service_id`], [`CmId::resolve_ib_service`] |
//! | `rdma_getaddrinfo` | [`addr_info`] |
//! | `rdma_resolve_addrinfo`, `rdma_query_addrinfo` | of [`CmId`] |
//! | `rdma_write_cm_event` | [`CmId::write_event`] |
//! | `rdma_create_id` without a channel, `rdma_create_ep` | [`Endpoint`], whose calls wait |
//! | `rdma_get_request` | [`Endpoint::get_request`] |
//! | `rdma_connect_locked` | [`CmId::connect`]: no call takes the lock of the handler |
//! | `rdma_iw_cm_id` | none: there is no iWARP here |
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
mod addrinfo;
mod channel;
mod conn_param;
mod device;
mod dispatch;
mod endpoint;
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
mod report;
mod route;
mod service;
mod watch;

pub use addrinfo::{AddrHints, AddrInfo, AddrInfoError, Family, addr_info};
pub use channel::EventChannel;
pub use conn_param::{ConnParam, UdParam};
pub use endpoint::{Endpoint, EndpointError, EndpointQp};
pub use engine::Ece;
pub use error::{BindError, IdError, OptionError, ResolveError};
pub use event::{Event, EventParam};
pub use event_type::EventType;
pub use handler::{HandlerLock, Verdict};
pub use id::{CmId, IbService, JoinState, OptionLevel};
pub use manager::finish;
pub use qp_plan::{NoPlan, QpPeer, QpPlan};
pub use report::{DeviceReport, report};
pub use rxe_wire::mad::cm::{PortSpace, RejReason};
