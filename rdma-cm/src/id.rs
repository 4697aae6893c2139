//! Identifiers: the ends of connections, and listeners.

mod address;
mod connect;
mod listen;
mod multicast;
mod option;
mod queue_pair;
mod service;
mod state;
mod watched;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ibverbs_api::{Context, Gid, Psn, QpType, QueuePair};
use parking_lot::{Condvar, Mutex, ReentrantMutex};
use rand_core::{OsRng, TryRngCore};
use rxe_wire::mad::cm::{CommId, PortSpace};

use crate::address::is_of_datagrams;
use crate::channel::EventChannel;
use crate::device::CmDevice;
use crate::engine::CmPath;
use crate::event::News;
use crate::event_type::EventType;
use crate::handler::{Handler, Untold};
pub use multicast::JoinState;
pub use option::OptionLevel;
pub use service::IbService;
pub(crate) use state::{Phase, State};
pub(crate) use watched::Watched;

/// Tells identifiers of this process apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct IdNumber(u64);

impl fmt::Display for IdNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "id {}", self.0)
    }
}

/// An identifier (C: `struct rdma_cm_id`): one end of a connection, or a listener. Cloning gives
/// another handle to the same one; the last that is dropped destroys it, without waiting for events
/// as [`Self::destroy`] does.
///
/// All methods may be called by any thread at any time.
#[derive(Clone)]
pub struct CmId {
    pub(crate) inner: Arc<IdInner>,
}

/// What all handles of an identifier share.
#[derive(Debug)]
pub(crate) struct IdInner {
    number: IdNumber,
    space: PortSpace,
    pub(crate) state: Mutex<State>,
    channel: Mutex<EventChannel>,
    /// Nobody else has that channel: who waits there, waits for this identifier.
    has_channel_alone: AtomicBool,
    /// Events that were taken from the channel and are not acknowledged.
    unacknowledged: Mutex<usize>,
    acknowledged: Condvar,
    pub(crate) handler: Option<Handler>,
    /// Held while the handler is called.
    pub(crate) handling: ReentrantMutex<()>,
    pub(crate) untold: Mutex<Untold>,
}

impl CmId {
    /// Makes an identifier, whose events go to `channel` (C: `rdma_create_id`).
    ///
    /// [`PortSpace::Tcp`] is for connections, [`PortSpace::Udp`] and [`PortSpace::Ipoib`] for
    /// datagrams, [`PortSpace::Ib`] for connections with service ids of its own.
    pub fn create(channel: &EventChannel, space: PortSpace) -> Self {
        Self::with_handler(channel, space, None)
    }

    /// Likewise, for queue pairs of this type (C: the `qp_type` of the kernel's `rdma_create_id`).
    /// A listener then takes connections of its transport alone; without a type, of any.
    pub fn create_of_type(channel: &EventChannel, space: PortSpace, qp_type: QpType) -> Self {
        let id = Self::create(channel, space);
        {
            let mut state = id.inner.state.lock();
            (state.qp_type, state.has_type) = (qp_type, true);
        }
        id
    }

    pub(crate) fn with_handler(
        channel: &EventChannel,
        space: PortSpace,
        handler: Option<Handler>,
    ) -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let mut state = State::default();
        if is_of_datagrams(space) {
            state.qp_type = QpType::Ud;
        }
        // Anywhere, so that late packets of an earlier connection do not fit.
        state.plan.rq_psn = Psn::new(OsRng.try_next_u32().unwrap_or_default() & 0xff_ffff);
        let inner = IdInner {
            number: IdNumber(MADE.fetch_add(1, Ordering::Relaxed)),
            space,
            state: Mutex::new(state),
            channel: Mutex::new(channel.clone()),
            has_channel_alone: AtomicBool::new(false),
            unacknowledged: Mutex::new(0),
            acknowledged: Condvar::new(),
            handler,
            handling: ReentrantMutex::new(()),
            untold: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Destroys it (C: `rdma_destroy_id`): what goes on is cancelled, the peer is told, events that
    /// nobody has taken are dropped. Once more is no error.
    ///
    /// It waits until the events that were taken are acknowledged: whoever holds one must not call
    /// it. Where a handler is told, it waits until that has returned; the handler itself may call
    /// it.
    pub fn destroy(&self) {
        let _lock = self.lock_handler();
        let released = self.inner.state.lock().release(self.inner.number);
        drop(released);
        let channel = self.inner.channel.lock().clone();
        drop(channel.remove_of(self.inner.number));
        if self.inner.has_channel_alone.load(Ordering::Acquire) {
            channel.close();
        }
        if self.inner.handler.is_some() {
            // The handler is not running, or it is who calls.
            return;
        }
        let mut unacknowledged = self.inner.unacknowledged.lock();
        while *unacknowledged > 0 {
            self.inner.acknowledged.wait(&mut unacknowledged);
        }
    }

    /// Has its events go to another channel from now on, also those that wait (C:
    /// `rdma_migrate_id`).
    pub fn migrate(&self, channel: &EventChannel) {
        // No event comes meanwhile: they are pushed under this lock.
        let state = self.inner.state.lock();
        if state.phase == Phase::Destroyed {
            return;
        }
        for news in self.leave_channel(channel) {
            let request = news.as_request_of(self.inner.number).cloned();
            channel.push(news);
            request.iter().for_each(|request| self.take_along(request));
        }
    }

    /// What becomes of a request is told in the channel in which the request is. The lock of the
    /// listener's state is held.
    pub(crate) fn take_along(&self, request: &Self) {
        let channel = self.inner.channel.lock().clone();
        let _state = request.inner.state.lock();
        request.leave_channel(&channel).into_iter().for_each(|news| channel.push(news));
    }

    /// Has events pushed into another channel from now on; gives those that wait in the one so far.
    fn leave_channel(&self, to: &EventChannel) -> Vec<News> {
        let mut own = self.inner.channel.lock();
        if own.is_same(to) {
            return Vec::new();
        }
        let waiting = own.remove_of(self.inner.number);
        *own = to.clone();
        waiting
    }

    /// The port space.
    pub fn port_space(&self) -> PortSpace {
        self.inner.space
    }

    /// The opened device, once an address has led to one (`id->verbs`).
    pub fn verbs(&self) -> Option<Context> {
        self.inner.state.lock().device.as_ref().map(|device| device.context().clone())
    }

    /// The port of the device, counted from 1; 0 before there is one.
    pub fn port_num(&self) -> u8 {
        let state = self.inner.state.lock();
        state.device.as_ref().map_or(0, |_| state.plan.port_num)
    }

    /// Its own address and port (C: `rdma_get_local_addr`).
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.inner.state.lock().local
    }

    /// The peer's address and port (C: `rdma_get_peer_addr`).
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.inner.state.lock().remote
    }

    /// Our GID and the peer's, once the way is known (C: `rdma_read_gids`).
    pub fn gids(&self) -> Option<(Gid, Gid)> {
        self.inner.state.lock().path.map(|path| (path.local, path.remote))
    }

    /// What its queue pair is of, or is to be of (`id->qp_type`); of a request, what the peer wants.
    pub fn qp_type(&self) -> QpType {
        let state = self.inner.state.lock();
        state.qp.as_ref().map_or(state.qp_type, |qp| qp.qp_type())
    }

    /// Its queue pair, if it has one (`id->qp`).
    pub fn qp(&self) -> Option<Arc<QueuePair>> {
        self.inner.state.lock().qp.clone()
    }

    /// What has been done with it, in words, for people.
    pub fn state_name(&self) -> &'static str {
        self.inner.state.lock().phase.name()
    }

    /// A number that tells it from all others of this process.
    pub fn key(&self) -> u64 {
        self.inner.number.0
    }

    pub(crate) fn number(&self) -> IdNumber {
        self.inner.number
    }

    /// Nobody else has its channel: its end is the end of all waiting there.
    pub(crate) fn has_channel_alone(&self) {
        self.inner.has_channel_alone.store(true, Ordering::Release);
    }

    /// Whether its connection is over.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.inner.state.lock().phase, Phase::Over | Phase::Removed)
    }

    /// Whether it was destroyed.
    pub(crate) fn is_destroyed(&self) -> bool {
        self.inner.state.lock().phase == Phase::Destroyed
    }

    /// Gives it a device, which then tells it what becomes of it; false when that is gone already.
    pub(super) fn has_device(&self, state: &mut State, device: &Arc<CmDevice>) -> bool {
        state.device = Some(device.clone());
        let local = state.path.map(|path| path.local);
        let local = local.or_else(|| state.local.map(|local| Gid::from_ip(local.ip())));
        if let Some(port_num) = local.and_then(|gid| device.gsi().port_num(gid)) {
            state.plan.port_num = port_num;
        }
        device.attach(self.inner.number, Arc::downgrade(&self.inner))
    }

    /// An event of it was taken from its channel.
    pub(crate) fn event_taken(&self) {
        *self.inner.unacknowledged.lock() += 1;
    }

    /// One of them is done with.
    pub(crate) fn event_acknowledged(&self) {
        *self.inner.unacknowledged.lock() -= 1;
        self.inner.acknowledged.notify_all();
    }

    /// The event that told of it as a request was taken: it leaves the listener's backlog.
    pub(crate) fn request_taken(&self) {
        let (device, connection) = {
            let state = self.inner.state.lock();
            if state.phase != Phase::Asked {
                return;
            }
            (state.device.clone(), state.connection)
        };
        if let (Some(device), Some(connection)) = (device, connection) {
            device.with(|core, _| core.engine.request_taken(connection));
        }
    }

    /// An identifier that stands for a request of a peer.
    pub(crate) fn of_request(
        &self,
        device: &Arc<CmDevice>,
        connection: CommId,
        path: CmPath,
        addresses: (SocketAddr, SocketAddr),
    ) -> Self {
        let listener = self.inner.state.lock();
        let channel = self.inner.channel.lock().clone();
        let id = Self::with_handler(&channel, self.inner.space, self.inner.handler.clone());
        id.inner.untold.lock().wait_for_request();
        {
            let mut state = id.inner.state.lock();
            state.phase = Phase::Asked;
            state.options = listener.options;
            state.connection = Some(connection);
            state.path = Some(path);
            (state.local, state.remote) = (Some(addresses.1), Some(addresses.0));
            id.has_device(&mut state, device);
        }
        id
    }

    /// Tells its owner something. The lock of its state is held: so no event comes after
    /// [`Self::destroy`].
    pub(crate) fn push(&self, _state: &State, news: News) {
        self.inner.channel.lock().push(news);
    }

    pub(crate) fn event(&self, event: EventType) -> News {
        News::new(self, event)
    }
}

impl PartialEq for CmId {
    /// Whether both are handles of one identifier.
    fn eq(&self, other: &Self) -> bool {
        self.inner.number == other.inner.number
    }
}

impl Eq for CmId {}

impl fmt::Debug for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.inner.number)
    }
}

impl Drop for IdInner {
    fn drop(&mut self) {
        drop(self.state.get_mut().release(self.number));
        // What nobody can take any more would keep its channel readable.
        drop(self.channel.get_mut().remove_of(self.number));
    }
}
