//! An opened device.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gid_table::{Gid, GidEntry, GidTable, GidType, QueryGidTableError};
use parking_lot::RwLockReadGuard;
use rand_core::{OsRng, TryRngCore};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rxe_core::config::{DeviceConfig, Seed};
use rxe_core::counters::{Counter, CounterValues};
use rxe_core::cq::CreateCqError;
use rxe_core::device::{AllocPdError, Device as CoreDevice, Port};
use rxe_core::event::AsyncEvent;
use rxe_core::mem::AllocDmError;
use rxe_core::qp::Mtu;
use rxe_core::wq::MAX_MESSAGE;
use rxe_core::xrc::OpenXrcdError;
use rxe_net::host::{Following, follow, link_speed};
use rxe_net::link::LinkCounters;
use rxe_net::runtime::{Clock, EventFd, Groups, LinkKind, OpenLink, PacketLinks, Runner, UdpLinks};
use rxe_wire::PKey;

use crate::attr::{
    AtomicCap, DeviceAttr, DeviceCapFlags, LinkLayer, OnDemandCaps, PhysState, PortAttr,
    PortCapFlags, PortState, link_rate,
};
use crate::channel::CompletionChannel;
use crate::cq::{CompletionQueue, CqOptions};
use crate::device::{Device, DevicePort, OpenOptions};
use crate::dm::DeviceMemory;
use crate::error::{OpenError, QueryError, WaitError};
use crate::pd::ProtectionDomain;
use crate::port::PortKeeper;
use crate::td::ThreadDomain;
use crate::xrc::XrcDomain;

/// The largest number of shards of a context.
const SHARDS_MAX: usize = 64;
/// No vendor.
const VENDOR_ID: u32 = 0xff_ffff;
/// The rate of [`Context::clock_nanos`].
const CLOCK_KHZ: u64 = 1_000_000;
/// The exponent of the ACK delay that Linux's driver reports.
const LOCAL_CA_ACK_DELAY: u8 = 15;

/// An opened device (`struct ibv_context`). Cloning gives another handle to the same one.
#[derive(Clone, Debug)]
pub struct Context {
    pub(crate) inner: Arc<ContextInner>,
}

/// What all objects of a context share.
#[derive(Debug)]
pub(crate) struct ContextInner {
    device: Device,
    /// Keeps the port as the interface is; `None` where the host cannot be followed.
    following: Option<Following>,
    pub(crate) core: Arc<CoreDevice>,
    pub(crate) runners: Vec<Arc<Runner>>,
    pub(crate) groups: Arc<Groups>,
    event_fd: Arc<EventFd>,
}

impl Drop for ContextInner {
    fn drop(&mut self) {
        // Before the runners: it uses them.
        self.following = None;
        self.runners.iter().for_each(|runner| runner.close());
    }
}

impl ContextInner {
    /// See [`Context::is_ours`].
    pub(crate) fn is_ours(&self) -> bool {
        self.runners.iter().all(|runner| runner.is_ours())
    }
}

impl Context {
    pub(crate) fn open(device: &Device, options: OpenOptions) -> Result<Self, OpenError> {
        let link = options.link.clone();
        let opener: Arc<dyn OpenLink> = match link.kind {
            LinkKind::Packet { .. } => Arc::new(PacketLinks { options: link }),
            _ => Arc::new(UdpLinks { options: link }),
        };
        Self::open_on(device, &options, opener)
    }

    fn open_on(
        device: &Device,
        options: &OpenOptions,
        opener: Arc<dyn OpenLink>,
    ) -> Result<Self, OpenError> {
        let shards = options.shards;
        if !(1..=SHARDS_MAX).contains(&shards) {
            return Err(OpenError::Shards { shards });
        }
        let os = |source| OpenError::Os { device: device.name().to_owned(), source };
        let seed = match options.seed {
            Some(seed) => seed,
            None => random_seed().map_err(os)?,
        };
        let OpenOptions { limits, congestion, .. } = *options;
        let config = DeviceConfig { seed, limits, congestion };
        let tables = device.gid_tables(options.link.kind.gid_types());
        let port = |(table, port): (GidTable, &DevicePort)| {
            let core = Port::new(table, port.active_mtu());
            if port.is_active() { core } else { core.down() }
        };
        let ports = tables.into_iter().zip(device.ports()).map(port).collect();
        let core = CoreDevice::new(config, ports);
        let event_fd = Arc::new(EventFd::new().map_err(os)?);
        core.events().set_waker(event_fd.clone());
        let mut runners = Vec::with_capacity(shards);
        for _ in 0..shards {
            match Runner::start(core.clone(), opener.clone()) {
                Ok(runner) => runners.push(runner),
                Err(error) => {
                    runners.iter().for_each(|runner| runner.close());
                    return Err(error.into());
                }
            }
        }
        let groups = Arc::new(Groups::new(core.clone(), opener));
        let keeper = PortKeeper::new(device, options.link.kind.gid_types(), core.clone())
            .telling(runners.clone(), groups.clone());
        let (device, following) = (device.clone(), keep_port(device, keeper));
        let inner = ContextInner { device, following, core, runners, groups, event_fd };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The device that was opened.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Whether both are handles to one opened device: what is made with the one goes with the
    /// other.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The clock of all devices now, in nanoseconds since a moment of its own
    /// (`ibv_query_rt_values_ex`).
    pub fn clock_nanos() -> u64 {
        Clock::now().as_nanos()
    }

    /// A time that [`Self::clock_nanos`] has given, as time since 1970, by the host's clock as it
    /// stands now.
    pub fn wall_clock(nanos: u64) -> Duration {
        let age = Duration::from_nanos(Self::clock_nanos().saturating_sub(nanos));
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(age)
    }

    /// What the device is and can do (`ibv_query_device`).
    pub fn query_device(&self) -> DeviceAttr {
        let guid = self.inner.device.guid();
        DeviceAttr {
            fw_ver: env!("CARGO_PKG_VERSION").to_owned(),
            node_guid: guid,
            sys_image_guid: guid,
            vendor_id: VENDOR_ID,
            vendor_part_id: 0,
            hw_ver: 0,
            capabilities: DeviceCapFlags::all(),
            max_mr_size: u64::MAX,
            page_size_cap: 0xffff_f000,
            // There are not so many that they have no number.
            phys_port_cnt: u8::try_from(self.inner.core.ports().len()).unwrap_or(u8::MAX),
            max_pkeys: 1,
            local_ca_ack_delay: LOCAL_CA_ACK_DELAY,
            atomic_cap: AtomicCap::Device,
            num_comp_vectors: self.inner.runners.len(),
            on_demand: OnDemandCaps::ALL,
            timestamp_mask: u64::MAX,
            clock_khz: CLOCK_KHZ,
            max_moderation_count: u16::MAX,
            max_moderation_period_us: u16::MAX,
            limits: *self.inner.core.limits(),
        }
    }

    fn port(&self, port: u8) -> Result<&Port, QueryError> {
        let ports = self.inner.core.ports().len();
        self.inner.core.port(port).ok_or(QueryError::Port { port, ports })
    }

    /// What a port is (`ibv_query_port`); ports count from 1.
    ///
    /// # Errors
    ///
    /// [`QueryError::Port`] when there is no such port.
    pub fn query_port(&self, port: u8) -> Result<PortAttr, QueryError> {
        let found = self.port(port)?;
        let mut interfaces = self.inner.device.interfaces();
        let interface = interfaces.nth(usize::from(port).saturating_sub(1));
        let speed = interface.and_then(|interface| link_speed(&interface.name));
        let (active_width, active_speed) = link_rate(speed);
        let (state, phys_state) = match found.is_active() {
            true => (PortState::Active, PhysState::LinkUp),
            false => (PortState::Down, PhysState::Polling),
        };
        Ok(PortAttr {
            state,
            max_mtu: Mtu::M4096,
            active_mtu: found.active_mtu(),
            gid_tbl_len: found.gids.read().capacity(),
            max_msg_sz: MAX_MESSAGE,
            pkey_tbl_len: 1,
            lid: 0,
            link_layer: LinkLayer::Ethernet,
            capabilities: PortCapFlags::all(),
            grh_required: true,
            max_vl_num: 1,
            active_width,
            active_speed,
            phys_state,
        })
    }

    /// A GID of a port (`ibv_query_gid`); zero where the index has no entry.
    ///
    /// # Errors
    ///
    /// [`QueryError`] when the port or the index is out of range.
    pub fn query_gid(&self, port: u8, index: u32) -> Result<Gid, QueryError> {
        match self.query_gid_ex(port, index) {
            Ok(entry) => Ok(entry.gid),
            Err(QueryError::Gid(gid_table::QueryGidError::Empty { .. })) => Ok(Gid::ZERO),
            Err(error) => Err(error),
        }
    }

    /// A GID with its type and interface (`ibv_query_gid_ex`).
    ///
    /// # Errors
    ///
    /// [`QueryError`] when the port or the index is out of range, or the entry empty (`ENODATA`).
    pub fn query_gid_ex(&self, port: u8, index: u32) -> Result<GidEntry, QueryError> {
        Ok(self.port(port)?.gids.read().query_gid_ex(index)?)
    }

    /// All GIDs of all ports, as they were at one moment (`ibv_query_gid_table`).
    ///
    /// # Errors
    ///
    /// None at present; the C function has some.
    pub fn query_gid_table(&self) -> Result<Vec<GidEntry>, QueryGidTableError> {
        let tables = self.gid_tables();
        Ok(tables.iter().flat_map(|table| table.entries()).collect())
    }

    /// As [`Self::query_gid_table`], into an array of the caller's, as the C function has it; says
    /// how many they are.
    ///
    /// # Errors
    ///
    /// [`QueryGidTableError`] when they do not fit; `out` is then unchanged.
    pub fn query_gid_table_into(&self, out: &mut [GidEntry]) -> Result<usize, QueryGidTableError> {
        let tables = self.gid_tables();
        gid_table::query_gid_table(tables.iter().map(|table| &**table), out)
    }

    /// The tables of all ports; nothing changes in them while this lives.
    fn gid_tables(&self) -> Vec<RwLockReadGuard<'_, GidTable>> {
        self.inner.core.ports().iter().map(|port| port.gids.read()).collect()
    }

    /// The entry of this GID and type, of the lowest port and index. (ib_core has `rdma_find_gid`;
    /// libibverbs has nothing of the kind.)
    pub fn find_gid(&self, gid: Gid, gid_type: GidType) -> Option<GidEntry> {
        self.gid_tables().iter().find_map(|table| table.find(gid, gid_type))
    }

    /// The entry of a port to send from, for a program that has no wish of its own, by the rules of
    /// [`gid_table::routable_gid`]; `None` where the host has no address that works. C has no
    /// counterpart.
    ///
    /// # Errors
    ///
    /// [`QueryError::Port`] when there is no such port.
    pub fn routable_gid(&self, port: u8) -> Result<Option<GidEntry>, QueryError> {
        Ok(gid_table::routable_gid(self.port(port)?.gids.read().entries()))
    }

    /// A partition key of a port (`ibv_query_pkey`): there is the default one, at index 0.
    ///
    /// # Errors
    ///
    /// [`QueryError`] when the port or the index is out of range.
    pub fn query_pkey(&self, port: u8, index: u16) -> Result<PKey, QueryError> {
        self.port(port)?;
        if index == 0 { Ok(PKey::DEFAULT) } else { Err(QueryError::PKeyIndex { index }) }
    }

    /// Allocates device memory whose address is a multiple of 2^`log_align` (`ibv_alloc_dm`).
    ///
    /// # Errors
    ///
    /// [`AllocDmError`] when there is not so much (`max_dm_size`), or no such alignment.
    pub fn alloc_dm(&self, length: u64, log_align: u32) -> Result<DeviceMemory, AllocDmError> {
        DeviceMemory::new(self.inner.clone(), length, log_align)
    }

    /// Makes a protection domain (`ibv_alloc_pd`).
    ///
    /// # Errors
    ///
    /// [`AllocPdError`] when `max_pd` is reached.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, AllocPdError> {
        ProtectionDomain::new(self.inner.clone())
    }

    /// Makes a completion channel (`ibv_create_comp_channel`).
    ///
    /// # Errors
    ///
    /// That of the system: no descriptors left.
    pub fn create_channel(&self) -> io::Result<CompletionChannel> {
        CompletionChannel::new()
    }

    /// Makes a completion queue (`ibv_create_cq`).
    ///
    /// `vector` chooses the shard, modulo their number: queue pairs that receive into this queue
    /// live there. Threads that poll different queues want different vectors.
    ///
    /// # Errors
    ///
    /// [`CreateCqError`] when `entries` is out of range or `max_cq` is reached.
    pub fn create_cq(
        &self,
        entries: u32,
        channel: Option<&CompletionChannel>,
        vector: usize,
    ) -> Result<CompletionQueue, CreateCqError> {
        self.create_cq_with(entries, channel, vector, CqOptions::default())
    }

    /// Makes a completion queue that does more (`ibv_create_cq_ex`).
    ///
    /// # Errors
    ///
    /// As [`Self::create_cq`].
    pub fn create_cq_with(
        &self,
        entries: u32,
        channel: Option<&CompletionChannel>,
        vector: usize,
        options: CqOptions,
    ) -> Result<CompletionQueue, CreateCqError> {
        CompletionQueue::new(self.inner.clone(), entries, channel, vector, options)
    }

    /// Makes a thread domain (`ibv_alloc_td`).
    pub fn alloc_td(&self) -> ThreadDomain {
        ThreadDomain::new(self.inner.clone())
    }

    /// Opens a domain of extended reliable connections (`ibv_open_xrcd`).
    ///
    /// `vector` chooses the shard of its target queue pairs, as that of a completion queue does.
    ///
    /// # Errors
    ///
    /// [`OpenXrcdError`] when `max_xrcd` is reached.
    pub fn open_xrcd(&self, vector: usize) -> Result<XrcDomain, OpenXrcdError> {
        XrcDomain::open(self.inner.clone(), vector)
    }

    /// Takes the oldest asynchronous event, if there is one.
    pub fn take_event(&self) -> Option<AsyncEvent> {
        self.inner.event_fd.take();
        self.inner.core.events().take()
    }

    /// As [`Self::take_event`], for a caller that has read the descriptor: one read is for one
    /// event, or for one that was lost.
    pub fn take_read_event(&self) -> Option<AsyncEvent> {
        self.inner.core.events().take()
    }

    /// Waits for an asynchronous event (`ibv_get_async_event`).
    ///
    /// # Errors
    ///
    /// [`WaitError::TimedOut`] when none comes in time.
    pub fn wait_event(&self, timeout: Duration) -> Result<AsyncEvent, WaitError> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(event) = self.take_event() {
                return Ok(event);
            }
            wait_readable(self.inner.event_fd.as_fd(), deadline, timeout)?;
        }
    }

    /// The descriptor that is readable while asynchronous events wait (`async_fd`).
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.inner.event_fd.as_fd()
    }

    /// Events that were lost, since nobody took them while more than `max_async_events` waited.
    pub fn events_lost(&self) -> u64 {
        self.inner.core.events().dropped()
    }

    /// Whether this process opened it, and not one that it was forked from.
    ///
    /// After [`after_fork_in_child`](crate::after_fork_in_child) what the parent opened is useless
    /// in the child: posting and changing queue pairs end with an error, polling finds nothing,
    /// dropping and closing leave the parent's objects as they are. The child can open a device
    /// anew.
    pub fn is_ours(&self) -> bool {
        self.inner.is_ours()
    }

    /// Declares the device lost: `DeviceFatal` is raised, once, all queue pairs go to the error
    /// state, and none is made any more.
    ///
    /// For tests of how a program takes it, and for programs that know that the network is gone. C
    /// has no counterpart.
    pub fn declare_lost(&self) {
        self.inner.core.fail();
        self.inner.runners.iter().for_each(|runner| runner.fail());
    }

    /// Sends what is owed to peers, waiting for each shard `patience` long at most. Closing does it
    /// too; this is for a process that ends without. C has no counterpart.
    pub fn flush(&self, patience: Duration) {
        self.inner.runners.iter().for_each(|runner| runner.flush(patience));
    }

    /// What the engine has counted, over all queue pairs, by the names of Linux's driver
    /// (`rdma statistic show`); also what was of no queue pair, such as packets for none.
    ///
    /// Prints itself, a line for each counter that is not 0.
    pub fn counters(&self) -> CounterValues {
        self.inner.core.counters()
    }

    /// One of [`Self::counters`].
    pub fn counter(&self, counter: Counter) -> u64 {
        self.inner.core.counter(counter)
    }

    /// What the links of all shards have counted.
    pub fn link_counters(&self) -> LinkCounters {
        let mut sum = LinkCounters::default();
        self.inner.runners.iter().for_each(|runner| sum += runner.link_counters());
        sum
    }
}

/// Lets the port follow its interface. A device works without too: its port stays as it is.
fn keep_port(device: &Device, mut keeper: PortKeeper) -> Option<Following> {
    follow(move |all| keeper.update(all))
        .inspect_err(|error| {
            tracing::warn!(target: "rxe::gid", device = device.name(), %error,
                "the port stays as it is now");
        })
        .ok()
}

fn random_seed() -> io::Result<Seed> {
    let mut bytes = [0; 32];
    OsRng.try_fill_bytes(&mut bytes).map_err(io::Error::other)?;
    Ok(Seed(bytes))
}

/// Waits until `fd` is readable or the deadline has passed; `None` is never.
pub(crate) fn wait_readable(
    fd: BorrowedFd<'_>,
    deadline: Option<Instant>,
    timeout: Duration,
) -> Result<(), WaitError> {
    wait_for_any(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], deadline, timeout)
}

/// Waits until one of several descriptors is ready, or the deadline has passed; `None` is never.
pub(crate) fn wait_for_any(
    fds: &mut [PollFd<'_>],
    deadline: Option<Instant>,
    timeout: Duration,
) -> Result<(), WaitError> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(WaitError::TimedOut(timeout));
        }
        let left = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(fds, left.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(WaitError::Os(error.into())),
        }
    }
}
