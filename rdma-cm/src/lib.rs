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
//! | `rdma_consumer_reject_data` | [`Event::consumer_reject_data`] |
//!
//! A client, with events; it is destroyed when no event of it is held any more:
//!
//! ```no_run
//! use ibverbs_api::{QpInit, QpType};
//! use rdma_cm::{CmId, ConnParam, EventChannel, EventType, PortSpace};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let events = EventChannel::new()?;
//!     let wait_for = |wanted| {
//!         let event = events.get()?;
//!         if event.event() == wanted {
//!             return Ok(());
//!         }
//!         Err(std::io::Error::other(format!("{} status {}", event.event(), event.status())))
//!     };
//!     let id = CmId::create(&events, PortSpace::Tcp);
//!     id.resolve_addr(None, "10.0.0.1:7174".parse()?)?;
//!     wait_for(EventType::AddrResolved)?;
//!     id.resolve_route()?;
//!     wait_for(EventType::RouteResolved)?;
//!     let cq = id.verbs().ok_or("no device")?.create_cq(16, None, 0)?;
//!     let _qp = id.create_qp(None, QpInit::new(QpType::Rc, &cq, &cq))?;
//!     id.connect(&ConnParam::default())?;
//!     wait_for(EventType::Established)?;
//!     // The queue pair is ready: post work, poll the queue.
//!     id.disconnect()?;
//!     id.destroy();
//!     rdma_cm::finish(std::time::Duration::from_secs(5));
//!     Ok(())
//! }
//! ```
//!
//! Its server, with calls that wait:
//!
//! ```no_run
//! use ibverbs_api::QpType;
//! use rdma_cm::{AddrHints, ConnParam, Endpoint, EndpointQp, addr_info};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let hints = AddrHints { passive: true, ..AddrHints::default() };
//!     let all = addr_info(None, Some("7174"), &hints)?[0];
//!     let listener = Endpoint::create(&all, Some(EndpointQp::new(QpType::Rc)))?;
//!     listener.listen(0)?;
//!     let (server, _asked) = listener.get_request()?;
//!     // Post receives first: the client may send as soon as it is accepted.
//!     server.accept(&ConnParam::default())?;
//!     Ok(())
//! }
//! ```
//!
//! `urxe rping`, `cmatose`, `udaddy` and `mckey` are whole programs.
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
mod per_process;
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
