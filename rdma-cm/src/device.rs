//! A device as the connection manager uses it: opened, with a QP1, an engine and a thread.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant as StdInstant};

use gid_table::{Gid, InterfaceInfo};
use ibverbs_api::{Context, Device, ProtectionDomain, Seed};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rand_core::{OsRng, TryRngCore};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rxe_core::Instant;
use rxe_core::cq::Notify;
use rxe_net::runtime::EventFd;
use rxe_wire::mad::cm::{CommId, Guid, TimeoutExponent};

use crate::dispatch::dispatch;
use crate::engine::{CmConfig, CmEngine, CmEvent, ListenerId};
use crate::event_type::EventType;
use crate::gsi::Gsi;
use crate::id::{CmId, IdInner, IdNumber, Phase, State, Watched};
use crate::manager::{follow_wildcards, forget};
use crate::report::DeviceReport;

/// How long what was said last may need to leave.
const LAST_WORDS: Duration = Duration::from_millis(5);

/// An opened device.
#[derive(Debug)]
pub(crate) struct CmDevice {
    context: Context,
    gsi: Gsi,
    wake: EventFd,
    core: Mutex<Core>,
    /// The thread has taken in what had come.
    turned: Condvar,
    /// Identifiers that have the device; `None` when it is gone.
    attached: Mutex<Option<HashMap<IdNumber, Weak<IdInner>>>>,
    /// Identifiers that have accepted a request.
    watched: Mutex<Vec<Watched>>,
    /// Of each interface.
    hardware_addresses: Mutex<Vec<Option<[u8; 6]>>>,
}

/// The engine, and who its connections and listeners belong to.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) engine: CmEngine,
    pub(crate) ids: HashMap<CommId, Weak<IdInner>>,
    pub(crate) listeners: HashMap<ListenerId, Weak<IdInner>>,
    /// When the thread wakes by itself.
    wakes_at: Option<Instant>,
}

impl CmDevice {
    /// Opens a device and starts its thread.
    pub(crate) fn open(device: &Device) -> io::Result<Arc<Self>> {
        let context = device.open().map_err(|error| {
            tracing::warn!(target: "rxe::cm", device = device.name(), %error, "not opened");
            io::Error::from_raw_os_error(error.errno())
        })?;
        let gsi = Gsi::new(&context)?;
        let mut seed = [0; 32];
        OsRng.try_fill_bytes(&mut seed).map_err(io::Error::other)?;
        let attr = context.query_device();
        let config = CmConfig::new(
            Seed(seed),
            gsi.qp().slot(),
            Guid(attr.node_guid),
            TimeoutExponent::new(attr.local_ca_ack_delay),
            gsi.greatest_path_mtu(),
        );
        let core = Core {
            engine: CmEngine::new(config),
            ids: HashMap::new(),
            listeners: HashMap::new(),
            wakes_at: None,
        };
        let wake = EventFd::new()?;
        let this = Arc::new(Self {
            hardware_addresses: Mutex::new(device.interfaces().map(|one| one.mac).collect()),
            context,
            gsi,
            wake,
            core: Mutex::new(core),
            turned: Condvar::new(),
            attached: Mutex::new(Some(HashMap::new())),
            watched: Mutex::default(),
        });
        let thread = this.clone();
        let name = format!("cm {}", device.name());
        std::thread::Builder::new().name(name).spawn(move || thread.run())?;
        Ok(this)
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// A protection domain for those who have none of their own.
    pub(crate) fn pd(&self) -> &ProtectionDomain {
        self.gsi.pd()
    }

    pub(crate) fn gsi(&self) -> &Gsi {
        &self.gsi
    }

    /// Whether the host has an address on this device's interfaces.
    pub(crate) fn owns(&self, ip: IpAddr) -> bool {
        self.gsi.gid_entry(Gid::from_ip(ip)).is_some_and(|entry| entry.owned)
    }

    /// Whether messages that are sent to an address of it arrive.
    pub(crate) fn is_reached_at(&self, ip: IpAddr) -> bool {
        self.gsi.qp().is_reached_at(Gid::from_ip(ip))
    }

    /// The addresses that the host has on this device's interfaces, each once.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        // It has no errors at present.
        let entries = self.context.query_gid_table().unwrap_or_default();
        let mut addresses = Vec::new();
        for ip in entries.iter().filter(|entry| entry.owned).map(|entry| entry.gid.to_ip()) {
            if !addresses.contains(&ip) {
                addresses.push(ip);
            }
        }
        addresses
    }

    /// What it keeps and has counted.
    pub(crate) fn report(&self) -> DeviceReport {
        let identifiers = self.attached.lock().as_ref().map_or(0, HashMap::len);
        let core = self.core.lock();
        DeviceReport {
            device: self.context.device().name().to_owned(),
            // Those that are entered for a connection, and those that are not, are the same ones.
            identifiers: identifiers.max(core.ids.len()).max(core.listeners.len()),
            sizes: core.engine.sizes(),
            counters: core.engine.counters(),
        }
    }

    /// Whether the device is gone.
    pub(crate) fn is_lost(&self) -> bool {
        self.gsi.is_lost()
    }

    /// Has an identifier told of what becomes of the device; false when that is gone.
    pub(crate) fn attach(&self, number: IdNumber, id: Weak<IdInner>) -> bool {
        match &mut *self.attached.lock() {
            Some(attached) => {
                attached.insert(number, id);
                true
            }
            None => false,
        }
    }

    /// It does not want to be told any more.
    pub(crate) fn detach(&self, number: IdNumber) {
        if let Some(attached) = &mut *self.attached.lock() {
            attached.remove(&number);
        }
    }

    /// Tells all identifiers of the device something.
    fn tell_all(&self, mut tell: impl FnMut(&CmId, &mut State)) {
        let attached: Vec<_> = match &*self.attached.lock() {
            Some(attached) => attached.values().filter_map(Weak::upgrade).collect(),
            None => Vec::new(),
        };
        for inner in attached {
            let id = CmId { inner };
            let mut state = id.inner.state.lock();
            if state.phase != Phase::Destroyed {
                tell(&id, &mut state);
            }
        }
    }

    /// Takes in how the interfaces of the host are now; the context has done so before.
    pub(crate) fn follow(&self, interfaces: &[InterfaceInfo]) {
        let most = self.gsi.greatest_path_mtu();
        self.core.lock().engine.set_path_mtu_max(most);
        let mut before = self.hardware_addresses.lock();
        let mut has_changed = false;
        for (mac, own) in before.iter_mut().zip(self.context.device().interfaces()) {
            let now = interfaces.iter().find(|one| one.ifindex == own.ifindex);
            if let Some(now) = now.filter(|now| now.mac != *mac) {
                (*mac, has_changed) = (now.mac, true);
            }
        }
        drop(before);
        if has_changed {
            // As Linux does where a bond goes on with another of its interfaces: peers that have
            // the old address in their tables do not reach us for a while.
            self.tell_all(|id, state| id.push(state, id.event(EventType::AddrChange)));
        }
    }

    /// The device is gone: its identifiers are told, and can do nothing more.
    fn lose(self: &Arc<Self>) {
        tracing::warn!(target: "rxe::cm", device = self.context.device().name(), "device lost");
        forget(self);
        self.tell_all(|id, state| {
            state.phase = Phase::Removed;
            id.push(state, id.event(EventType::DeviceRemoval));
        });
        *self.attached.lock() = None;
        self.turned.notify_all();
        // There may be another one by its name, or will be.
        follow_wildcards();
    }

    /// Looks whether the queue pair of an identifier that has accepted hears from its peer, until
    /// it has a connection.
    pub(crate) fn watch(&self, watched: Watched) {
        self.watched.lock().push(watched);
        // Those that have been watched for long let the thread sleep for longer than it may now.
        self.wake.notify();
    }

    /// Does so for all; gives how long to wait before the next time.
    fn look_at_watched(&self) -> Option<u64> {
        let all = std::mem::take(&mut *self.watched.lock());
        let mut waiting: Vec<_> = all.into_iter().filter_map(Watched::look).collect();
        let mut watched = self.watched.lock();
        watched.append(&mut waiting);
        watched.iter().map(Watched::wait_nanos).min()
    }

    /// Lets `act` use the engine, and sends what it wants sent.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Core, Instant) -> R) -> R {
        let mut core = self.core.lock();
        let result = act(&mut core, now());
        self.send_all(&mut core);
        // What the thread does not know of yet, it is told.
        let timeout = core.engine.poll_timeout();
        let is_earlier = match (timeout, core.wakes_at) {
            (Some(timeout), Some(wakes_at)) => timeout < wakes_at,
            (Some(_), None) => true,
            (None, _) => false,
        };
        if is_earlier || core.engine.has_events() {
            core.wakes_at = timeout;
            self.wake.notify();
        }
        result
    }

    fn send_all(&self, core: &mut MutexGuard<'_, Core>) {
        while let Some(transmit) = core.engine.poll_transmit() {
            self.gsi.send(&transmit);
        }
    }

    /// Waits until peers have granted all ends that we have asked for, at most until `deadline`;
    /// whether they have.
    pub(crate) fn finish(&self, deadline: StdInstant) -> bool {
        let mut core = self.core.lock();
        while core.engine.parting() > 0 && !self.is_lost() {
            if self.turned.wait_until(&mut core, deadline).timed_out() {
                return false;
            }
        }
        let has_ended_any = core.engine.sizes().timewait > 0;
        drop(core);
        self.context.flush(LAST_WORDS);
        if has_ended_any {
            // Where processes share an address, this one may have got what is for another, our last
            // words among it: it is passed on as long as we are here.
            std::thread::sleep(LAST_WORDS);
        }
        true
    }

    /// What the thread does, as long as the process lives.
    fn run(self: Arc<Self>) {
        loop {
            let (events, timeout) = self.turn();
            for event in events {
                dispatch(&self, event);
            }
            if self.is_lost() {
                return self.lose();
            }
            let left = timeout.map(|timeout| timeout.nanos_since(now()));
            let left = left.into_iter().chain(self.look_at_watched()).min();
            let left = left.map(|nanos| Timespec {
                tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: (nanos % 1_000_000_000).try_into().unwrap_or(0),
            });
            let gsi = self.gsi.fd();
            let mut fds =
                [PollFd::new(&gsi, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
            // An interruption is one more turn.
            let _ = poll(&mut fds, left.as_ref());
            while self.wake.take() {}
        }
    }

    /// Takes in what has come and does what is due; gives what is to be told, and until when there
    /// is nothing to do.
    fn turn(&self) -> (Vec<CmEvent>, Option<Instant>) {
        let mut core = self.core.lock();
        let has_more = self.gsi.receive(|path, mad| {
            // Why a message is ignored, the engine has counted and traced.
            let _ = core.engine.handle_mad(now(), path, mad);
        });
        core.engine.handle_timeout(now());
        self.send_all(&mut core);
        let mut events = Vec::new();
        while let Some(event) = core.engine.poll_event() {
            events.push(event);
        }
        core.wakes_at = if has_more { Some(now()) } else { core.engine.poll_timeout() };
        self.turned.notify_all();
        (events, core.wakes_at)
    }
}

/// The time, as engines count it.
pub(crate) fn now() -> Instant {
    Instant::from_nanos(Context::clock_nanos())
}
