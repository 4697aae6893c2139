//! A device as the connection manager uses it: opened, with a QP1, an engine and a thread.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant as StdInstant};

use gid_table::Gid;
use ibverbs_api::{Context, Device, ProtectionDomain, Seed};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rand_core::{OsRng, TryRngCore};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rxe_core::Instant;
use rxe_core::cq::Notify;
use rxe_net::runtime::EventFd;
use rxe_wire::mad::cm::{Bits, CommId, Guid, PathMtu, TimeoutExponent};

use crate::dispatch::dispatch;
use crate::engine::{CmConfig, CmEngine, CmEvent, ListenerId};
use crate::gsi::Gsi;
use crate::id::IdInner;

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
        let port = context.query_port(crate::gsi::PORT).map_err(io::Error::other)?;
        let config = CmConfig::new(
            Seed(seed),
            gsi.qp().slot(),
            Guid(attr.node_guid),
            TimeoutExponent::new(attr.local_ca_ack_delay),
            PathMtu(Bits::new(port.active_mtu as u8)),
        );
        let core = Core {
            engine: CmEngine::new(config),
            ids: HashMap::new(),
            listeners: HashMap::new(),
            wakes_at: None,
        };
        let wake = EventFd::new()?;
        let this =
            Arc::new(Self { context, gsi, wake, core: Mutex::new(core), turned: Condvar::new() });
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

    /// Whether the host has an address on this device's interface.
    pub(crate) fn owns(&self, ip: IpAddr) -> bool {
        let gid = Gid::from_ip(ip);
        self.gsi.gids().iter().any(|entry| entry.owned && entry.gid == gid)
    }

    /// The addresses that the host has on this device's interface.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.gsi.gids().iter().filter(|entry| entry.owned).map(|entry| entry.gid.to_ip())
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
        while core.engine.parting() > 0 {
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
            let left = timeout.map(|timeout| timeout.nanos_since(now()));
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
        self.gsi.receive(|path, mad| {
            // Why a message is ignored, the engine has counted and traced.
            let _ = core.engine.handle_mad(now(), path, mad);
        });
        core.engine.handle_timeout(now());
        self.send_all(&mut core);
        let mut events = Vec::new();
        while let Some(event) = core.engine.poll_event() {
            events.push(event);
        }
        core.wakes_at = core.engine.poll_timeout();
        self.turned.notify_all();
        (events, core.wakes_at)
    }
}

/// The time, as engines count it.
fn now() -> Instant {
    Instant::from_nanos(Context::clock_nanos())
}
