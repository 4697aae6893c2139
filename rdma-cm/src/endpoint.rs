//! Endpoints: identifiers whose calls wait for their end.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ibverbs_api::{
    CompletionQueue, CreateCqError, ProtectionDomain, QpCaps, QpInit, QpType, QueuePair,
    SharedReceiveQueue,
};
use parking_lot::Mutex;
use rustix::io::Errno;
use rxe_wire::mad::cm::PortSpace;
use thiserror::Error;

use crate::addrinfo::AddrInfo;
use crate::channel::EventChannel;
use crate::conn_param::{ConnParam, UdParam};
use crate::error::{BindError, IdError, ResolveError};
use crate::event::{Event, EventParam};
use crate::event_type::EventType;
use crate::id::{CmId, JoinState};

/// The queue pair of an endpoint, and of each request of one that listens (C: the `struct
/// ibv_qp_init_attr` of `rdma_create_ep`). Its completion queues are made with it.
#[derive(Clone, Debug)]
pub struct EndpointQp {
    /// RC, UC or UD.
    pub qp_type: QpType,
    /// Capacities; the completion queues hold as much.
    pub caps: QpCaps,
    /// Every send request completes in the queue, signaled or not.
    pub signal_all: bool,
    /// Where it is; `None` takes one of the device.
    pub pd: Option<ProtectionDomain>,
    /// Where receives are taken from, instead of a queue of its own.
    pub srq: Option<SharedReceiveQueue>,
}

impl EndpointQp {
    /// One with the default capacities.
    pub fn new(qp_type: QpType) -> Self {
        Self { qp_type, caps: QpCaps::default(), signal_all: false, pd: None, srq: None }
    }
}

/// An identifier without an event channel: each call waits for its end (C: `rdma_create_ep`, or
/// `rdma_create_id` without a channel).
///
/// Another thread may end a call that waits: [`CmId::destroy`] of [`Self::id`] does, and the call
/// ends with [`EndpointError::Destroyed`]. Dropping it destroys the identifier too, unless there
/// are other handles to that.
#[derive(Debug)]
pub struct Endpoint {
    id: CmId,
    channel: EventChannel,
    /// What requests get.
    recipe: Option<EndpointQp>,
    queues: Mutex<Option<Queues>>,
}

#[derive(Clone, Debug)]
struct Queues {
    send: CompletionQueue,
    recv: CompletionQueue,
}

/// Why a call of an endpoint did not end well.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The address cannot be bound, or not be listened at.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Address or route cannot be resolved.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The call was refused.
    #[error(transparent)]
    Id(#[from] IdError),
    /// The completion queues cannot be made.
    #[error(transparent)]
    CreateCq(#[from] CreateCqError),
    /// The system has no descriptor left.
    #[error("no event channel: {0}")]
    Os(#[source] io::Error),
    /// It ended otherwise than was hoped for.
    #[error("{event} instead, status {status}")]
    Event {
        /// What came.
        event: EventType,
        /// Its status.
        status: i32,
        /// What the peer says; of a refusal, why.
        private_data: Vec<u8>,
    },
    /// The identifier was destroyed meanwhile.
    #[error("the identifier was destroyed")]
    Destroyed,
}

impl EndpointError {
    /// The errno that the C function would set.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Bind(error) => error.errno(),
            Self::Resolve(error) => error.errno(),
            Self::Id(error) => error.errno(),
            Self::CreateCq(error) => error.errno(),
            Self::Os(error) => error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
            Self::Event { event: EventType::Rejected, .. } => Errno::CONNREFUSED.raw_os_error(),
            Self::Event { event: EventType::Disconnected, .. } => Errno::CONNRESET.raw_os_error(),
            Self::Event { status, .. } if *status < 0 => -status,
            Self::Event { .. } => Errno::NETUNREACH.raw_os_error(),
            Self::Destroyed => Errno::CANCELED.raw_os_error(),
        }
    }
}

impl Endpoint {
    /// One without addresses (C: `rdma_create_id` without a channel).
    ///
    /// # Errors
    ///
    /// [`EndpointError::Os`].
    pub fn new(space: PortSpace) -> Result<Self, EndpointError> {
        let channel = EventChannel::new().map_err(EndpointError::Os)?;
        let id = CmId::create(&channel, space);
        Ok(Self::of(id, channel, None))
    }

    fn of(id: CmId, channel: EventChannel, recipe: Option<EndpointQp>) -> Self {
        id.has_channel_alone();
        Self { id, channel, recipe, queues: Mutex::default() }
    }

    /// One with the addresses of [`addr_info`](crate::addr_info) (C: `rdma_create_ep`): bound, if
    /// it is to listen; otherwise with its route resolved, and with a queue pair if there is a
    /// recipe for one.
    ///
    /// # Errors
    ///
    /// [`EndpointError`].
    pub fn create(info: &AddrInfo, qp: Option<EndpointQp>) -> Result<Self, EndpointError> {
        let mut endpoint = Self::new(info.port_space)?;
        match (info.passive, info.source, info.destination) {
            (true, Some(source), _) => {
                endpoint.id.bind_addr(source)?;
                endpoint.recipe = qp;
            }
            (false, source, Some(destination)) => {
                endpoint.resolve_addr(source, destination)?;
                endpoint.resolve_route()?;
                if let Some(qp) = &qp {
                    endpoint.create_qp(qp)?;
                }
            }
            (true, None, _) | (false, _, None) => return Err(IdError::NoDevice.into()),
        }
        Ok(endpoint)
    }

    /// The identifier, for all that does not wait.
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// Makes its queue pair, with completion queues (C: `rdma_create_qp` without any).
    ///
    /// # Errors
    ///
    /// [`EndpointError::Id`] and [`EndpointError::CreateCq`].
    pub fn create_qp(&self, recipe: &EndpointQp) -> Result<Arc<QueuePair>, EndpointError> {
        let verbs = self.id.verbs().ok_or(IdError::NoDevice)?;
        let send = verbs.create_cq(recipe.caps.max_send_wr.max(1), None, 0)?;
        let recv = verbs.create_cq(recipe.caps.max_recv_wr.max(1), None, 0)?;
        let mut init = QpInit::new(recipe.qp_type, &send, &recv);
        init.caps = recipe.caps;
        init.signal_all = recipe.signal_all;
        init.srq = recipe.srq.clone();
        let qp = self.id.create_qp(recipe.pd.as_ref(), init)?;
        *self.queues.lock() = Some(Queues { send, recv });
        Ok(qp)
    }

    /// Where its send requests complete (`id->send_cq`).
    pub fn send_cq(&self) -> Option<CompletionQueue> {
        self.queues.lock().as_ref().map(|queues| queues.send.clone())
    }

    /// Where its receives complete (`id->recv_cq`).
    pub fn recv_cq(&self) -> Option<CompletionQueue> {
        self.queues.lock().as_ref().map(|queues| queues.recv.clone())
    }

    /// Resolves the address of a destination (C: `rdma_resolve_addr`).
    ///
    /// # Errors
    ///
    /// [`EndpointError`]; of [`EventType::AddrError`] the status says why.
    pub fn resolve_addr(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
    ) -> Result<(), EndpointError> {
        self.id.resolve_addr(source, destination)?;
        self.wait(&[EventType::AddrResolved]).map(drop)
    }

    /// Resolves the route (C: `rdma_resolve_route`).
    ///
    /// # Errors
    ///
    /// [`EndpointError`].
    pub fn resolve_route(&self) -> Result<(), EndpointError> {
        self.id.resolve_route()?;
        self.wait(&[EventType::RouteResolved]).map(drop)
    }

    /// Asks for a connection and waits until it is there, or until the peer has accepted where the
    /// identifier has no queue pair (C: `rdma_connect`). Gives what the peer says.
    ///
    /// # Errors
    ///
    /// [`EndpointError::Event`] when it is refused or nobody answers.
    pub fn connect(&self, param: &ConnParam) -> Result<EventParam, EndpointError> {
        self.id.connect(param)?;
        let event = self.wait(&[EventType::Established, EventType::ConnectResponse])?;
        Ok(event.param().clone())
    }

    /// Waits for requests (C: `rdma_listen`), which [`Self::get_request`] gives.
    ///
    /// # Errors
    ///
    /// [`EndpointError::Bind`].
    pub fn listen(&self, backlog: usize) -> Result<(), EndpointError> {
        Ok(self.id.listen(backlog)?)
    }

    /// Waits for the next request, and gives it a queue pair if there is a recipe (C:
    /// `rdma_get_request`); and what the peer says.
    ///
    /// # Errors
    ///
    /// [`EndpointError`]; a request whose queue pair cannot be made is refused.
    pub fn get_request(&self) -> Result<(Self, EventParam), EndpointError> {
        let event = self.wait(&[EventType::ConnectRequest])?;
        let channel = EventChannel::new().map_err(EndpointError::Os)?;
        let id = event.id().clone();
        id.migrate(&channel);
        let endpoint = Self::of(id, channel, None);
        if let Some(recipe) = &self.recipe {
            endpoint.create_qp(recipe)?;
        }
        Ok((endpoint, event.param().clone()))
    }

    /// Accepts a request, and waits until the peer is ready; of datagrams there is nothing to wait
    /// for (C: `rdma_accept`).
    ///
    /// # Errors
    ///
    /// [`EndpointError`].
    pub fn accept(&self, param: &ConnParam) -> Result<(), EndpointError> {
        self.id.accept(param)?;
        if crate::address::is_of_datagrams(self.id.port_space()) {
            return Ok(());
        }
        self.wait(&[EventType::Established]).map(drop)
    }

    /// Ends the connection, and waits until the peer has agreed; where the peer has ended it, agrees
    /// (C: `rdma_disconnect`).
    ///
    /// # Errors
    ///
    /// [`EndpointError::Id`] when there is no connection, or none yet: nothing would come to be
    /// waited for. (librdmacm waits for ever then.)
    pub fn disconnect(&self) -> Result<(), EndpointError> {
        if !self.id.part()? {
            return Err(self.id.wrong().into());
        }
        // Its end may have been told by an earlier call.
        if self.id.has_ended() && self.channel.is_empty() {
            return Ok(());
        }
        self.wait(&[EventType::Disconnected, EventType::TimewaitExit]).map(drop)
    }

    /// Joins a multicast group, and gives how to send to it (C: `rdma_join_multicast`).
    ///
    /// # Errors
    ///
    /// [`EndpointError`].
    pub fn join_multicast(&self, group: IpAddr, how: JoinState) -> Result<UdParam, EndpointError> {
        self.id.join_multicast(group, how)?;
        let event = self.wait(&[EventType::MulticastJoin])?;
        match event.param() {
            EventParam::Ud(param) => Ok(param.clone()),
            _ => Err(failure(&event)),
        }
    }

    /// Waits for one of the events that a call hopes for. What says that nothing will come of it
    /// ends the call too; the rest is for nobody.
    fn wait(&self, hoped: &[EventType]) -> Result<Event, EndpointError> {
        loop {
            let event = match self.channel.get() {
                Ok(event) => event,
                Err(error) if error.raw_os_error() == Some(Errno::CANCELED.raw_os_error()) => {
                    return Err(EndpointError::Destroyed);
                }
                Err(error) => return Err(EndpointError::Os(error)),
            };
            match event.event() {
                this if hoped.contains(&this) => return Ok(event),
                EventType::AddrError
                | EventType::RouteError
                | EventType::ConnectError
                | EventType::Unreachable
                | EventType::Rejected
                | EventType::Disconnected
                | EventType::DeviceRemoval
                | EventType::MulticastError => return Err(failure(&event)),
                _ => {}
            }
        }
    }
}

fn failure(event: &Event) -> EndpointError {
    EndpointError::Event {
        event: event.event(),
        status: event.status(),
        private_data: event.private_data().to_vec(),
    }
}
