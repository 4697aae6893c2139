//! A device: what all its shards share.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use gid_table::{Gid, GidTable};
use parking_lot::{Mutex, RwLock};

use crate::ah::{AddressHandle, CreateAhError, address_from_header};
use crate::config::{DeviceConfig, Limits};
use crate::counters::{Counter, CounterValues, Counters};
use crate::cq::{CompletionChannel, CompletionQueue, CqId, CqOptions, CreateCqError};
use crate::error::BusyError;
use crate::event::{AsyncEvent, EventQueue};
use crate::mem::{AllocDmError, DeviceMemory, MemoryTable};
use crate::multicast::{Multicast, MulticastError};
use crate::pd::PdId;
use crate::qp::{ALL_PORTS, AddressVector, Mtu, QueuePair};
use crate::rng::SecretRng;
use crate::srq::{SharedReceiveQueue, SrqError, SrqId, SrqInit};
use crate::xrc::{OpenXrcdError, XrcDomain, XrcdId};

/// A port of a device.
#[derive(Debug)]
pub struct Port {
    /// The port's GIDs.
    pub gids: RwLock<GidTable>,
    active_mtu: AtomicU32,
    is_active: AtomicBool,
}

impl Port {
    /// Makes a port, which is up, of its GIDs and the largest path MTU that its link can carry.
    pub fn new(gids: GidTable, active_mtu: Mtu) -> Self {
        let (active_mtu, is_active) = (AtomicU32::new(active_mtu as u32), AtomicBool::new(true));
        Self { gids: RwLock::new(gids), active_mtu, is_active }
    }

    /// The port while it is down.
    pub fn down(self) -> Self {
        Self { is_active: AtomicBool::new(false), ..self }
    }

    /// Whether packets can be sent and received (`state` of `struct ibv_port_attr`); see
    /// [`Device::set_port_active`].
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Acquire)
    }

    /// Notes whether it is up without raising an event: before anybody has seen it otherwise.
    pub fn note_state(&self, active: bool) {
        self.is_active.store(active, Ordering::Release);
    }

    /// The largest path MTU that the link can carry now (`active_mtu` of `struct ibv_port_attr`).
    pub fn active_mtu(&self) -> Mtu {
        let value = self.active_mtu.load(Ordering::Relaxed);
        Mtu::ALL.into_iter().find(|mtu| *mtu as u32 == value).unwrap_or(Mtu::M256)
    }

    /// Changes the largest path MTU; queue pairs that are connected keep theirs.
    pub fn set_active_mtu(&self, mtu: Mtu) {
        self.active_mtu.store(mtu as u32, Ordering::Relaxed);
    }
}

/// Why a protection domain cannot be made (`ibv_alloc_pd`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("all {max} protection domains of the device are in use (max_pd)")]
pub struct AllocPdError {
    /// The limit.
    pub max: u32,
}

impl AllocPdError {
    /// The errno that `ibv_alloc_pd` would set.
    pub fn errno(&self) -> i32 {
        crate::errno::ENOMEM
    }
}

/// What all shards of a device share: domains, memory keys, completion queues, GIDs, counters.
///
/// Everything here may be used by any thread at any time. Nothing on the data path takes a lock
/// that belongs to the whole device, but for requests that make keys valid or invalid. Where
/// several locks are held, the order is shard, receive queue, completion queue.
#[derive(Debug)]
pub struct Device {
    config: DeviceConfig,
    memory: MemoryTable,
    ports: Vec<Port>,
    events: Arc<EventQueue>,
    device_memory_left: Arc<AtomicU64>,
    pds: Mutex<Numbers>,
    cqs: Mutex<Numbers>,
    srqs: Mutex<Numbers>,
    ahs: AtomicU32,
    multicast: Multicast,
    /// Ports that have their QP1.
    gsi_ports: Mutex<HashSet<u8>>,
    xrcds: Mutex<Numbers>,
    counters: Mutex<Vec<Arc<Counters>>>,
    /// Times that a port went down.
    link_downs: AtomicU64,
    has_failed: AtomicBool,
}

/// Numbers given out, each to one object at a time.
#[derive(Debug, Default)]
struct Numbers {
    used: HashSet<u32>,
    last: u32,
}

impl Numbers {
    /// The next free number of 24 bits, but 0: no wider field carries one on the wire.
    fn take(&mut self, max: u32) -> Option<u32> {
        if self.used.len() >= max.min(0xff_ffff) as usize {
            return None;
        }
        loop {
            self.last = (self.last % 0xff_ffff) + 1;
            if self.used.insert(self.last) {
                return Some(self.last);
            }
        }
    }
}

impl Device {
    /// Makes a device with these ports, counted from 1.
    pub fn new(config: DeviceConfig, ports: Vec<Port>) -> Arc<Self> {
        let memory = MemoryTable::new(config.limits.max_mr, SecretRng::new(config.seed));
        Arc::new(Self {
            memory,
            ports,
            events: Arc::new(EventQueue::new(config.limits.max_async_events)),
            device_memory_left: Arc::new(AtomicU64::new(config.limits.max_dm_size)),
            pds: Mutex::default(),
            cqs: Mutex::default(),
            srqs: Mutex::default(),
            ahs: AtomicU32::new(0),
            multicast: Multicast::default(),
            gsi_ports: Mutex::default(),
            xrcds: Mutex::default(),
            counters: Mutex::default(),
            link_downs: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            config,
        })
    }

    /// How it was made.
    pub fn config(&self) -> &DeviceConfig {
        &self.config
    }

    /// Its capacities.
    pub fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// Its registered memory.
    pub fn memory(&self) -> &MemoryTable {
        &self.memory
    }

    /// Its ports; the first is port 1.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// A port by its number, counted from 1.
    pub fn port(&self, number: u8) -> Option<&Port> {
        self.ports.get(usize::from(number).checked_sub(1)?)
    }

    /// Its asynchronous events.
    pub fn events(&self) -> &Arc<EventQueue> {
        &self.events
    }

    /// Notes that a port came up or went down, and raises `PortActive` or `PortErr` when it did.
    ///
    /// Queue pairs stay as they are: their timers decide whether the peer is gone.
    pub fn set_port_active(&self, number: u8, active: bool) {
        let Some(port) = self.port(number) else { return };
        if port.is_active.swap(active, Ordering::AcqRel) != active {
            let event = if active { AsyncEvent::PortActive } else { AsyncEvent::PortErr };
            self.raise(event(number));
        }
    }

    /// Whether the device was lost: see [`Self::fail`].
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Notes that the device is lost, and raises `DeviceFatal`, once. No queue pair is made any
    /// more, or goes to another state than ERR and RESET; those that there are fail with
    /// [`Shard::fail`](crate::Shard::fail).
    pub fn fail(&self) {
        if !self.has_failed.swap(true, Ordering::AcqRel) {
            self.raise(AsyncEvent::DeviceFatal);
        }
    }

    /// Raises an event that the engine cannot see itself: of a port's GIDs or partition keys.
    pub fn raise(&self, event: AsyncEvent) {
        if let AsyncEvent::PortErr(_) = event {
            self.link_downs.fetch_add(1, Ordering::Relaxed);
        }
        self.events.push(event);
    }

    /// Makes a protection domain (`ibv_alloc_pd`).
    ///
    /// # Errors
    ///
    /// [`AllocPdError`] when `max_pd` is reached.
    pub fn alloc_pd(&self) -> Result<PdId, AllocPdError> {
        let max = self.limits().max_pd;
        self.pds.lock().take(max).map(PdId).ok_or(AllocPdError { max })
    }

    /// Frees a protection domain that nothing uses any more (`ibv_dealloc_pd`).
    pub fn dealloc_pd(&self, pd: PdId) {
        self.pds.lock().used.remove(&pd.0);
    }

    /// Allocates device memory whose address is a multiple of 2^`log_align` (`ibv_alloc_dm`).
    ///
    /// # Errors
    ///
    /// [`AllocDmError`] when there is not so much, or no such alignment.
    pub fn alloc_dm(&self, length: u64, log_align: u32) -> Result<DeviceMemory, AllocDmError> {
        DeviceMemory::alloc(&self.device_memory_left, length, log_align)
    }

    /// Makes a completion queue (`ibv_create_cq`).
    ///
    /// # Errors
    ///
    /// [`CreateCqError`] when `entries` is out of range or `max_cq` is reached.
    pub fn create_cq(
        &self,
        entries: u32,
        channel: Option<Arc<CompletionChannel>>,
    ) -> Result<Arc<CompletionQueue>, CreateCqError> {
        self.create_cq_with(entries, channel, CqOptions::default())
    }

    /// Makes a completion queue that does more (`ibv_create_cq_ex`).
    ///
    /// # Errors
    ///
    /// As [`Self::create_cq`].
    pub fn create_cq_with(
        &self,
        entries: u32,
        channel: Option<Arc<CompletionChannel>>,
        options: CqOptions,
    ) -> Result<Arc<CompletionQueue>, CreateCqError> {
        let Limits { max_cq, max_cqe, .. } = self.config.limits;
        if entries == 0 || entries > max_cqe {
            return Err(CreateCqError::Entries { entries, max: max_cqe });
        }
        let id = self.cqs.lock().take(max_cq).ok_or(CreateCqError::TooMany { max: max_cq })?;
        let events = self.events.clone();
        let cq = CompletionQueue::new(CqId(id), entries, max_cqe, channel, events, options);
        Ok(Arc::new(cq))
    }

    /// Frees the number of a completion queue that is going away (`ibv_destroy_cq`).
    ///
    /// # Errors
    ///
    /// [`BusyError`] while queue pairs complete there (R50); it goes on to work.
    pub fn destroy_cq(&self, cq: &CompletionQueue) -> Result<(), BusyError> {
        BusyError::check("completion queue", cq.users())?;
        self.cqs.lock().used.remove(&cq.id().0);
        Ok(())
    }

    /// Makes a shared receive queue (`ibv_create_srq`).
    ///
    /// # Errors
    ///
    /// [`SrqError`] when a capacity is out of range or `max_srq` is reached.
    pub fn create_srq(&self, init: &SrqInit) -> Result<Arc<SharedReceiveQueue>, SrqError> {
        let limits = self.limits();
        SharedReceiveQueue::check(init, limits)?;
        let max = limits.max_srq;
        let id = self.srqs.lock().take(max).ok_or(SrqError::TooMany { max })?;
        let events = self.events.clone();
        let srq = Arc::new(SharedReceiveQueue::new(SrqId(id), init, limits, events));
        // R55: only now can a message find it.
        if let Some(xrc) = &init.xrc {
            xrc.xrcd.publish(&srq);
        }
        Ok(srq)
    }

    /// Frees the number of a shared receive queue that is going away (`ibv_destroy_srq`).
    ///
    /// # Errors
    ///
    /// [`BusyError`] while queue pairs take from it; it goes on to work.
    pub fn destroy_srq(&self, srq: &SharedReceiveQueue) -> Result<(), BusyError> {
        BusyError::check("shared receive queue", srq.users())?;
        srq.withdraw();
        self.srqs.lock().used.remove(&srq.id().0);
        Ok(())
    }

    /// Makes an address handle (`ibv_create_ah`).
    ///
    /// # Errors
    ///
    /// [`CreateAhError`] when the address vector leads nowhere or `max_ah` is reached.
    pub fn create_ah(
        self: &Arc<Self>,
        pd: PdId,
        av: &AddressVector,
    ) -> Result<Arc<AddressHandle>, CreateAhError> {
        let max = self.limits().max_ah;
        if self.ahs.fetch_add(1, Ordering::AcqRel) >= max {
            self.forget_ah();
            return Err(CreateAhError::TooMany { max });
        }
        AddressHandle::new(self, pd, av).map(Arc::new).inspect_err(|_| self.forget_ah())
    }

    /// Makes an address handle of the way back to the sender of a datagram, from the 40 bytes
    /// before its data (`ibv_create_ah_from_wc`).
    ///
    /// # Errors
    ///
    /// As [`Self::create_ah`], and those of [`address_from_header`].
    pub fn create_ah_from_header(
        self: &Arc<Self>,
        pd: PdId,
        port_num: u8,
        header: &[u8; 40],
    ) -> Result<Arc<AddressHandle>, CreateAhError> {
        self.create_ah(pd, &address_from_header(self, port_num, header)?)
    }

    pub(crate) fn forget_ah(&self) {
        self.ahs.fetch_sub(1, Ordering::AcqRel);
    }

    /// Its multicast groups.
    pub fn multicast(&self) -> &Multicast {
        &self.multicast
    }

    /// Attaches a UD queue pair to a group (`ibv_attach_mcast`); once more is no error.
    ///
    /// # Errors
    ///
    /// [`MulticastError`].
    pub fn attach_multicast(&self, qp: &QueuePair, group: Gid) -> Result<(), MulticastError> {
        self.multicast.attach(self.limits(), qp, group)
    }

    /// Detaches a queue pair from a group (`ibv_detach_mcast`).
    ///
    /// # Errors
    ///
    /// [`MulticastError::NotAttached`].
    pub fn detach_multicast(&self, qp: &QueuePair, group: Gid) -> Result<(), MulticastError> {
        self.multicast.detach(qp, group)
    }

    /// Detaches a queue pair from all groups, so that it can be destroyed; returns whether it was
    /// in any.
    pub fn detach_all_multicast(&self, qp: &QueuePair) -> bool {
        self.multicast.detach_all(qp)
    }

    /// Takes QP1 of a port, or of all; false when somebody has it, or one of them.
    pub(crate) fn take_gsi(&self, port_num: u8) -> bool {
        let mut taken = self.gsi_ports.lock();
        let is_free = match port_num {
            ALL_PORTS => taken.is_empty(),
            port_num => !taken.contains(&ALL_PORTS) && !taken.contains(&port_num),
        };
        is_free && taken.insert(port_num)
    }

    pub(crate) fn release_gsi(&self, port_num: u8) {
        self.gsi_ports.lock().remove(&port_num);
    }

    /// Opens an XRC domain (`ibv_open_xrcd`). It lives in this process, and is shared by whoever
    /// holds it.
    ///
    /// # Errors
    ///
    /// [`OpenXrcdError`] when `max_xrcd` is reached.
    pub fn open_xrcd(&self) -> Result<Arc<XrcDomain>, OpenXrcdError> {
        let max = self.limits().max_xrcd;
        let id = self.xrcds.lock().take(max).ok_or(OpenXrcdError { max })?;
        Ok(Arc::new(XrcDomain::new(XrcdId(id))))
    }

    /// Frees the number of an XRC domain that is going away (`ibv_close_xrcd`).
    ///
    /// # Errors
    ///
    /// [`BusyError`] while there is a shared receive queue or a target queue pair in it.
    pub fn close_xrcd(&self, xrcd: &XrcDomain) -> Result<(), BusyError> {
        BusyError::check("XRC domain", xrcd.users())?;
        self.xrcds.lock().used.remove(&xrcd.id().0);
        Ok(())
    }

    pub(crate) fn new_counters(&self) -> Arc<Counters> {
        let counters = Arc::new(Counters::default());
        self.counters.lock().push(counters.clone());
        counters
    }

    /// All counters, summed over all shards.
    pub fn counters(&self) -> CounterValues {
        let mut sum = CounterValues::default();
        sum.set(Counter::link_downed, self.link_downs.load(Ordering::Relaxed));
        self.counters.lock().iter().for_each(|counters| sum += counters.values());
        sum
    }

    /// One of [`Self::counters`].
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters().get(counter)
    }
}
