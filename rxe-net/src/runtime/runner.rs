//! A shard with its links, run by whoever calls in.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_queue::{ArrayQueue, SegQueue};
use gid_table::{Gid, GidEntry};
use parking_lot::{Mutex, MutexGuard};
use rxe_core::counters::CounterValues;
use rxe_core::cq::{CompletionChannel, CompletionQueue, Notify};
use rxe_core::device::Device;
use rxe_core::error::{BusyError, CreateQpError, ModifyQpError};
use rxe_core::multicast::MULTICAST_QPN;
use rxe_core::packet_run::PacketRun;
use rxe_core::path::Path;
use rxe_core::qp::{QpAttr, QpAttrMask, QpInit, QpState, QueuePair};
use rxe_core::shard::Shard;
use rxe_core::time::Instant;
use rxe_wire::Qpn;
use rxe_wire::mad::cm::ServiceId;
use thiserror::Error;

use super::background;
use super::clock::Clock;
use super::groups::GroupPost;
use super::held::{Held, LATEST_FOR_EVENT_NANOS};
use super::lease::Lease;
use super::lookout::Lookout;
use super::open::{OpenLink, OpenLinkError};
use super::outbox::{Outbox, Until};
use super::pressure::PATIENCE_NANOS;
use super::sleeper::Sleeper;
use super::watch::{SleepId, Sockets, Watch};
use crate::host::os_errno;
use crate::link::{Link, LinkCounters};
use crate::slots::detour::Detour;
use crate::slots::registry::{DeviceMark, Reader, Slot, TakeSlotError, note_gsi};
use crate::slots::{NoSlotError, RegisterServiceError, ServiceRegistration};

/// Packets handed over from other sockets and not yet taken in; more are dropped, RC repairs it.
const HANDED_OVER_MAX: usize = 1024;
/// Packets sent before the lock is given back and packets that came have their turn: a peer may
/// ask for 2 GiB by one READ, and the answer has no window.
const TRANSMIT_MAX: usize = 4096;
/// Who carries more in a turn, streams: then the background thread stays awake for what follows,
/// while the program works on what has come.
const BULK_BYTES: u64 = 16 << 10;
/// What is to be done later than this, may be done a little later, where a thread sleeps on events.
const SOON_NANOS: u64 = 5_000;
/// How long a link that cannot receive is left alone.
const FAILED_NANOS: u64 = 100_000_000;
/// Offset of the top byte of the destination QPN in BTH: the slot.
const SLOT_OFFSET: usize = 5;
/// The top byte of the QPN that packets to groups carry.
const MULTICAST_SLOT: u8 = MULTICAST_QPN.slot();

/// Why a runner cannot start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// No slot is free.
    #[error(transparent)]
    NoSlot(#[from] NoSlotError),
    /// No descriptors or no thread can be had.
    #[error("cannot start the background thread of a device: {0}")]
    Os(#[from] io::Error),
}

/// Why a queue pair cannot be changed: the engine's reasons, or the link's.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// The engine refuses.
    #[error(transparent)]
    Qp(#[from] ModifyQpError),
    /// The link to send and receive on cannot be opened.
    #[error(transparent)]
    Link(#[from] OpenLinkError),
    /// The device was opened by the process that this one was forked from.
    #[error("the device was opened before this process was forked: open it here")]
    Forked,
}

impl From<TakeSlotError> for StartError {
    fn from(error: TakeSlotError) -> Self {
        match error {
            TakeSlotError::None(error) => Self::NoSlot(error),
            TakeSlotError::Os(error) => Self::Os(error),
        }
    }
}

impl StartError {
    /// The errno that `ibv_open_device` would set.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoSlot(_) => libc::ENOSPC,
            Self::Os(error) => os_errno(error),
        }
    }
}

impl ModifyError {
    /// The errno that `ibv_modify_qp` returns.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Qp(error) => error.errno(),
            Self::Link(error) => error.errno(),
            Self::Forked => libc::EIO,
        }
    }
}

/// A shard, its links, and the thread that runs them when nobody else does.
pub struct Runner {
    core: Mutex<Core>,
    /// Queue pairs to which something was posted while the lock was taken.
    kicks: SegQueue<Qpn>,
    /// Packets that came to the socket of another slot.
    handed_over: ArrayQueue<(Path, Box<[u8]>)>,
    pub(super) sleeper: Sleeper,
    opener: Arc<dyn OpenLink>,
    /// Whether somebody polls, and has the sockets for itself.
    pub(super) lease: Lease,
    /// When the background thread looks after what that has left waiting.
    lookout: Lookout,
    /// Who sleeps on events, and runs the shard.
    watch: Watch,
    /// A link has no descriptor to sleep on: it wakes the background thread alone.
    has_silent_link: AtomicBool,
    /// When what could be sent has waited long enough, in nanoseconds; 0 where nothing waits.
    held_until: AtomicU64,
    stopping: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
    slot: Slot,
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").field("slot", &self.slot.number()).finish_non_exhaustive()
    }
}

/// What the lock of a runner guards.
#[derive(Debug)]
pub(super) struct Core {
    shard: Shard,
    links: Vec<OpenedLink>,
    outbox: Outbox,
    /// What of that which could be sent waits.
    held: Held,
    detour: Detour,
    group_post: GroupPost,
    /// The latest time that the links were told.
    latest: Instant,
    /// When a packet came last.
    last_packet: Instant,
}

/// What the background thread does after a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Round {
    /// The next one, at once.
    More,
    /// The next one, after others had the processor: packets that follow each other closely are
    /// met awake, since a wake-up costs more than a look.
    Linger,
    /// Sleeps: timer and sockets are set.
    Sleep,
}

pub(super) struct OpenedLink {
    pub(super) gid: Gid,
    pub(super) link: Box<dyn Link>,
    /// Receiving has failed, and is tried again then.
    failed_until: Option<Instant>,
}

impl OpenedLink {
    /// Leaves a link alone for a while that cannot receive, and tells of it once.
    ///
    /// Its socket stays readable, so that nobody waits for it meanwhile.
    fn note_failure(&mut self, now: Instant, error: &io::Error, sleeper: &Sleeper) {
        if self.failed_until.is_none() {
            tracing::error!(target: "rxe::net", gid = %self.gid, %error,
                "cannot receive: tries again, ten times a second, until it can");
            if let Some(fd) = self.link.poll_fd() {
                sleeper.forget(&fd);
            }
        }
        self.failed_until = Some(now.plus_nanos(FAILED_NANOS));
    }

    /// Waits again for the socket of a link that receives.
    fn note_recovery(&mut self, sleeper: &Sleeper) {
        if self.failed_until.take().is_none() {
            return;
        }
        tracing::info!(target: "rxe::net", gid = %self.gid, "receives again");
        if let Some(fd) = self.link.poll_fd()
            && let Err(error) = sleeper.watch(fd)
        {
            tracing::error!(target: "rxe::net", gid = %self.gid, %error, "cannot wait for packets");
        }
    }
}

impl fmt::Debug for OpenedLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedLink").field("gid", &self.gid).finish_non_exhaustive()
    }
}

impl Core {
    /// The time now. Threads read the clock before they have the lock, but for links `now` must
    /// not go backwards.
    pub(super) fn advance(&mut self, now: Instant) -> Instant {
        self.latest = self.latest.max(now);
        self.latest
    }

    /// Does one round of everything: receive, timers, send. Returns how many packets came.
    ///
    /// If there is something now for who waits, acknowledgements may wait for his answer.
    fn turn_for(&mut self, now: Instant, sleeper: &Sleeper, whom: Waiting<'_>) -> usize {
        let received = self.receive(now, sleeper);
        if received > 0 {
            self.last_packet = now;
        }
        if self.shard.poll_timeout().is_some_and(|at| at <= now) {
            self.shard.handle_timeout(now);
        }
        for opened in &mut self.links {
            if opened.link.poll_timeout().is_some_and(|at| at <= now) {
                opened.link.handle_timeout(now);
            }
        }
        let waits = self.shard.owes_acks_only()
            && match whom {
                Waiting::Nobody => false,
                Waiting::ForQueue(_) if received == 0 => self.held.keeps_acks(now),
                Waiting::ForQueue(cq) => !cq.is_empty() && self.held.holds_acks(now, received),
                Waiting::ForEvent(channel) => {
                    channel.has_events() && self.held.holds_acks_for_event(now, received)
                }
                Waiting::ForMemory => {
                    self.held.holds_acks(now, received)
                        || received == 0 && self.held.goes_on_holding(now)
                }
            };
        if !waits {
            self.transmit(now);
        }
        received
    }

    /// Takes in what came to the socket of another slot, unless it came to one of ours as well: where
    /// a UDP link of another process has the address too, and RC alone knows what is there twice.
    fn handle_passed_on(&mut self, now: Instant, path: &Path, bytes: &[u8]) {
        let is_own = bytes.get(SLOT_OFFSET) == Some(&self.shard.slot());
        let hears_all =
            |opened: &OpenedLink| opened.gid == path.destination && opened.link.hears_all();
        if !(is_own && self.links.iter().any(hears_all)) {
            self.shard.handle_packet(now, path, bytes);
        }
    }

    fn receive(&mut self, now: Instant, sleeper: &Sleeper) -> usize {
        let Self { shard, links, detour, group_post, .. } = self;
        let mut received = 0;
        for opened in links {
            if opened.failed_until.is_some_and(|until| until > now) {
                continue;
            }
            let slot = shard.slot();
            let destined = |bytes: &[u8]| bytes.get(SLOT_OFFSET).copied().unwrap_or(slot);
            let mut sink = |path: &Path, run: PacketRun<'_>| {
                // The kernel steers a coalesced buffer by its first packet alone.
                if run.packets().all(|bytes| destined(bytes) == slot) {
                    return shard.handle_packets(now, path, run);
                }
                for bytes in run.packets() {
                    let is_ours = match destined(bytes) {
                        destined if destined == slot => true,
                        // R49: one socket receives for all shards.
                        MULTICAST_SLOT if path.destination.is_multicast() => {
                            group_post.deliver(shard.device(), slot, path, bytes)
                        }
                        destined => !detour.take(now, destined, path, bytes),
                    };
                    if is_ours {
                        shard.handle_packet(now, path, bytes);
                    }
                }
            };
            match opened.link.receive_runs(now, &mut sink) {
                Ok(count) => {
                    received += count;
                    opened.note_recovery(sleeper);
                }
                Err(error) => opened.note_failure(now, &error, sleeper),
            }
            while let Some(hint) = opened.link.poll_unreachable() {
                shard.handle_unreachable(now, &hint);
            }
        }
        detour.flush();
        received
    }

    /// Sends what the shard has to send, up to [`TRANSMIT_MAX`]; what is left has a deadline.
    fn transmit(&mut self, now: Instant) {
        self.transmit_some(now, TRANSMIT_MAX);
    }

    /// Sends what a queue pair owes to its peer, before it goes: a turn for its requests and one
    /// for its replies, whichever comes first, and then as usual.
    ///
    /// Returns the time then.
    fn transmit_owed_by(&mut self, now: Instant, qpn: Qpn) -> Instant {
        let now = self.wait_for_room(now);
        self.shard.put_first(qpn);
        self.transmit_some(now, self.shard.packets_until_first_served());
        let now = self.wait_for_room(now);
        self.shard.put_first(qpn);
        self.transmit_some(now, TRANSMIT_MAX);
        now
    }

    /// Sends at least what each queue pair owes to its peer: before all of them go.
    ///
    /// Returns the time then.
    fn transmit_owed(&mut self, now: Instant) -> Instant {
        let now = self.wait_for_room(now);
        self.transmit_some(now, TRANSMIT_MAX.max(self.shard.packets_until_served()));
        self.wait_for_room(now)
    }

    fn transmit_some(&mut self, now: Instant, packets: usize) {
        self.held.note_sent();
        let until = Until { packets, acks_are_left: false };
        self.outbox.transmit(&mut self.shard, &mut self.links, now, until);
    }

    /// Sends what has just been posted: an answer, and leaves the acknowledgements behind that are
    /// owed since then.
    fn transmit_answer(&mut self, now: Instant, owed_since: Instant) {
        let until = Until { packets: TRANSMIT_MAX, acks_are_left: true };
        self.outbox.transmit(&mut self.shard, &mut self.links, now, until);
        if self.outbox.deadline().is_none() && self.shard.owes_acks_only() {
            self.held.note_left(now, owed_since);
        } else {
            self.held.note_sent();
        }
    }

    /// Waits until the host has taken what it had no room for, at most [`PATIENCE_NANOS`].
    ///
    /// For whoever may wait, under the lock: what a queue pair owes leaves before it goes.
    /// Returns the time then.
    fn wait_for_room(&mut self, now: Instant) -> Instant {
        let (end, mut now) = (now.plus_nanos(PATIENCE_NANOS), now);
        while let Some(at) = self.outbox.deadline().filter(|at| *at < end) {
            std::thread::sleep(Duration::from_nanos(at.nanos_since(now)));
            now = self.advance(Clock::now());
            self.transmit_some(now, 0);
        }
        now
    }

    /// When something is to be done without a packet or a call.
    fn deadline(&self) -> Option<Instant> {
        let held = self.held.deadline();
        if self.can_transmit() && held.is_none() {
            return Some(Instant::ZERO);
        }
        let links = self.links.iter().flat_map(|l| [l.link.poll_timeout(), l.failed_until]);
        let links = links.flatten();
        let others = self.shard.poll_timeout().into_iter().chain(self.outbox.deadline());
        links.chain(others).chain(held).min()
    }

    /// Whether what is to be done later are timers of queue pairs, and acknowledgements that a program
    /// is about to answer: nothing that the program has posted, or that is on its way.
    fn has_timers_only(&self, now: Instant) -> bool {
        let late = now.plus_nanos(LATEST_FOR_EVENT_NANOS / 2);
        self.outbox.deadline().is_none()
            && self.held.deadline().is_none_or(|at| at > late)
            && self.links.iter().all(|opened| opened.link.poll_timeout().is_none())
    }

    /// Bytes that links have sent and received, from BTH on.
    fn carried_bytes(&self) -> u64 {
        let counters = self.links.iter().map(|opened| opened.link.counters());
        counters.map(|counters| counters.sent_bytes + counters.received_bytes).sum()
    }

    /// Whether there is something to send, and room for it in the host.
    fn can_transmit(&self) -> bool {
        self.shard.wants_transmit() && self.outbox.deadline().is_none()
    }
}

/// Who waits for what is received.
#[derive(Clone, Copy, Debug)]
enum Waiting<'a> {
    /// Nobody that is known.
    Nobody,
    /// Somebody polls this queue, which is empty.
    ForQueue(&'a CompletionQueue),
    /// Somebody sleeps until there is an event on this channel, which has none.
    ForEvent(&'a CompletionChannel),
    /// A program that polls these days, and does not poll now: it may watch its memory.
    ForMemory,
}

/// Wakes the background thread of a runner, if that is still there.
struct WakeRunner(std::sync::Weak<Runner>);

impl Notify for WakeRunner {
    fn notify(&self) {
        if let Some(runner) = self.0.upgrade() {
            runner.sleeper.wake();
        }
    }
}

impl Runner {
    /// Makes a shard of a device on a free slot, and starts its background thread, which keeps it
    /// alive until [`Self::close`].
    ///
    /// # Errors
    ///
    /// [`StartError`] when there is no slot, descriptor or thread left.
    pub fn start(device: Arc<Device>, opener: Arc<dyn OpenLink>) -> Result<Arc<Self>, StartError> {
        let slot = Slot::take(device.config().seed.0)?;
        let detour = Detour::new(&slot, DeviceMark::of(&device));
        let core = Core {
            shard: Shard::new(device, slot.number()),
            links: Vec::new(),
            outbox: Outbox::default(),
            held: Held::default(),
            detour,
            group_post: GroupPost::default(),
            latest: Instant::ZERO,
            last_packet: Instant::ZERO,
        };
        let runner = Arc::new(Self {
            core: Mutex::new(core),
            kicks: SegQueue::new(),
            handed_over: ArrayQueue::new(HANDED_OVER_MAX),
            sleeper: Sleeper::new()?,
            opener,
            lease: Lease::default(),
            lookout: Lookout::default(),
            watch: Watch::default(),
            has_silent_link: AtomicBool::new(false),
            held_until: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            thread: Mutex::new(None),
            slot,
        });
        let weak = Arc::downgrade(&runner);
        runner.slot.publish(weak);
        let thread = background::spawn(runner.clone())?;
        *runner.thread.lock() = Some(thread);
        Ok(runner)
    }

    /// Whether this process started it, and not one that it was forked from
    /// ([`after_fork_in_child`](crate::slots::after_fork_in_child)).
    ///
    /// What is not ours does nothing: queue pairs on it cannot be made or changed, nothing is sent
    /// or received, and destroying and closing leave the parent's as they are.
    pub fn is_ours(&self) -> bool {
        self.slot.is_ours()
    }

    /// The slot: the top byte of the QPNs that live here.
    pub fn slot(&self) -> u8 {
        self.slot.number()
    }

    /// Makes a queue pair on this shard (`ibv_create_qp`).
    ///
    /// # Errors
    ///
    /// As [`Shard::create_qp`].
    pub fn create_qp(&self, init: QpInit) -> Result<Arc<QueuePair>, CreateQpError> {
        let created = self.with_core(|core, _| {
            let created = core.shard.create_qp(init);
            if created.as_ref().is_ok_and(|qp| qp.qpn() == Qpn::GSI) {
                note_gsi(self.slot(), DeviceMark::of(core.shard.device()), true);
            }
            created
        });
        created.unwrap_or(Err(CreateQpError::DeviceLost))
    }

    /// Has requests of connection management for a service come to the QP1 of this shard, whichever
    /// process of the host gets them: those to `address`, or to any address. Until the
    /// registration is dropped; the queue pair should be there before.
    ///
    /// All messages about a connection come here too that carry a communication id of this end
    /// whose top byte is [`Self::slot`].
    ///
    /// # Errors
    ///
    /// [`RegisterServiceError`]: somebody on the host serves it there.
    pub fn register_service(
        &self,
        service: ServiceId,
        address: Option<IpAddr>,
    ) -> Result<ServiceRegistration, RegisterServiceError> {
        if !self.is_ours() {
            return Err(RegisterServiceError::DeviceLost);
        }
        ServiceRegistration::new((service, address), self.slot())
    }

    /// Changes a queue pair (`ibv_modify_qp`); opens the link that its new path needs.
    ///
    /// # Errors
    ///
    /// [`ModifyError`]; the queue pair is as before.
    pub fn modify_qp(
        self: &Arc<Self>,
        qpn: Qpn,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<(), ModifyError> {
        self.with_core(|core, now| {
            // What is owed to the peer leaves before a state in which nothing is sent.
            let now = core.transmit_owed_by(now, qpn);
            core.shard.check_modify_qp(qpn, attr, mask)?;
            if mask.contains(QpAttrMask::AV) {
                let port = core.shard.device().port(attr.av.port_num);
                let entry = port.and_then(|p| p.gids.read().query_gid_ex(attr.av.sgid_index).ok());
                if let Some(entry) = entry {
                    self.open_link(core, &entry)?;
                }
            }
            if mask.contains(QpAttrMask::STATE) && attr.state == QpState::Rtr {
                // Datagrams come to any address of its port, and leave from any.
                if let Some(ports) = core.shard.datagram_ports(qpn) {
                    self.open_links_of_ports(core, ports)?;
                }
            }
            core.shard.modify_qp(now, qpn, attr, mask)?;
            core.transmit(now);
            Ok(())
        })
        .unwrap_or(Err(ModifyError::Forked))
    }

    /// Opens the links of all addresses of these ports. One that cannot be opened is left out, unless
    /// all are.
    fn open_links_of_ports(
        self: &Arc<Self>,
        core: &mut Core,
        ports: RangeInclusive<u8>,
    ) -> Result<(), OpenLinkError> {
        let device = core.shard.device().clone();
        let mut owned = Vec::new();
        for port in ports.filter_map(|port_num| device.port(port_num)) {
            owned.extend(port.gids.read().entries().filter(|entry| entry.owned));
        }
        let mut failed = None;
        for entry in &owned {
            if let Err(error) = self.open_link(core, entry) {
                tracing::warn!(target: "rxe::net", gid = %entry.gid, %error, "no datagrams here");
                failed = Some(error);
            }
        }
        let is_any_open = owned.iter().any(|entry| core.links.iter().any(|l| l.gid == entry.gid));
        match failed {
            Some(error) if !is_any_open => Err(error),
            _ => Ok(()),
        }
    }

    /// Opens the links of addresses that a port has come by, where queue pairs of this shard take
    /// datagrams there.
    ///
    /// What whoever changes a port's GIDs calls afterwards. Links of addresses that are gone stay:
    /// nothing comes there, and nothing leaves, until the address is back.
    pub fn gids_changed(self: &Arc<Self>, port_num: u8) {
        let _ = self.with_core(|core, _| {
            if core.shard.takes_datagrams(port_num)
                && let Err(error) = self.open_links_of_ports(core, port_num..=port_num)
            {
                tracing::warn!(target: "rxe::net", port_num, %error, "no datagrams on this port");
            }
        });
    }

    /// Whether the link of a local address is open.
    pub fn has_link(&self, gid: Gid) -> bool {
        let is_open = |core: &mut Core, _| core.links.iter().any(|opened| opened.gid == gid);
        self.with_core(is_open).unwrap_or(false)
    }

    fn open_link(self: &Arc<Self>, core: &mut Core, entry: &GidEntry) -> Result<(), OpenLinkError> {
        let gid = entry.gid;
        if core.links.iter().any(|opened| opened.gid == gid) {
            return Ok(());
        }
        let waker = Arc::new(WakeRunner(Arc::downgrade(self)));
        let link = self.opener.open(entry, self.slot(), waker)?;
        match link.poll_fd() {
            Some(fd) => self.sleeper.watch(fd).map_err(OpenLinkError::Wait)?,
            None => self.has_silent_link.store(true, Ordering::Relaxed),
        }
        core.links.push(OpenedLink { gid, link, failed_until: None });
        Ok(())
    }

    /// Joins a multicast group on an interface. In a child after fork it does nothing.
    pub(super) fn join_group(
        self: &Arc<Self>,
        group: Gid,
        ifindex: u32,
    ) -> Result<(), OpenLinkError> {
        if !self.is_ours() {
            return Ok(());
        }
        let waker = Arc::new(WakeRunner(Arc::downgrade(self)));
        let link = self.opener.open_group(group, ifindex, waker)?;
        let opened = OpenedLink { gid: group, link, failed_until: None };
        let watched = self.with_core(|core, _| {
            if let Some(fd) = opened.link.poll_fd() {
                self.sleeper.watch(fd).map_err(OpenLinkError::Wait)?;
            }
            core.links.push(opened);
            Ok(())
        });
        watched.unwrap_or(Ok(()))
    }

    /// Leaves a multicast group on all interfaces.
    pub(super) fn leave_group(&self, group: Gid) {
        let _ = self.with_core(|core, _| {
            core.links.retain(|opened| {
                let is_left = opened.gid == group;
                if is_left && let Some(fd) = opened.link.poll_fd() {
                    self.sleeper.forget(&fd);
                }
                !is_left
            });
        });
    }

    /// The attributes of a queue pair (`ibv_query_qp`).
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpAttr> {
        self.with_core(|core, _| core.shard.query_qp(qpn)).flatten()
    }

    /// Destroys a queue pair (`ibv_destroy_qp`), after what it owes to its peer has been sent.
    ///
    /// # Errors
    ///
    /// [`BusyError`] while it is attached to multicast groups (R50).
    pub fn destroy_qp(&self, qpn: Qpn) -> Result<(), BusyError> {
        self.with_core(|core, now| {
            let now = core.transmit_owed_by(now, qpn);
            let destroyed = core.shard.destroy_qp(qpn);
            if qpn == Qpn::GSI && destroyed.is_ok() {
                note_gsi(self.slot(), DeviceMark::of(core.shard.device()), false);
            }
            core.transmit(now);
            destroyed
        })
        // In a child after fork, the parent's queue pair is none of its business.
        .unwrap_or(Ok(()))
    }

    /// What a queue pair has counted; `None` when there is none of this number.
    pub fn qp_counters(&self, qpn: Qpn) -> Option<CounterValues> {
        self.with_core(|core, _| core.shard.qp_counters(qpn)).flatten()
    }

    /// Moves all queue pairs to the error state: the device is lost ([`Device::fail`]).
    pub fn fail(&self) {
        let _ = self.with_core(|core, now| core.shard.fail(now));
    }

    /// What the links of this shard have counted.
    pub fn link_counters(&self) -> LinkCounters {
        self.with_core(|core, _| {
            let mut sum = LinkCounters::default();
            core.links.iter().for_each(|opened| sum += opened.link.counters());
            sum.send_errors += core.outbox.dropped();
            let detour = core.detour.counters();
            sum.forwarded += detour.forwarded;
            sum.astray += detour.lost;
            sum
        })
        .unwrap_or_default()
    }

    /// Lets the shard take over what was posted to `qp`, and sends it, in this very thread; when
    /// the lock is taken, its holder does so.
    ///
    /// While a program polls, what it posts behind requests that are under way may wait some
    /// microseconds for what it posts next.
    pub fn kick(&self, qp: &QueuePair) {
        if !self.is_ours() {
            return;
        }
        if let Some(mut core) = self.core.try_lock() {
            let now = core.advance(Clock::now());
            let posted = core.shard.kick(now, qp.qpn());
            let is_polled = self.lease.is_polled(now);
            // What is owed by another queue pair, somebody else may wait for.
            let owed_since = match core.shard.sends_for_one() {
                true => core.held.leaves_acks(now, posted, is_polled),
                false => None,
            };
            if !core.can_transmit() || !core.held.holds_post(now, posted, is_polled) {
                match owed_since {
                    Some(since) => core.transmit_answer(now, since),
                    None => core.transmit(now),
                }
            }
            self.release(core, now);
        } else if qp.mark_kicked() {
            self.kicks.push(qp.qpn());
            self.serve_left_work();
        }
    }

    /// Receives and processes in this thread, unless another one is at it, and takes the sockets
    /// from the background thread for a while.
    ///
    /// What a thread does that polls a completion queue and finds it empty.
    pub fn poll(&self) {
        let now = Clock::now();
        self.lease.note_poll(now);
        self.turn_if_free(now, Waiting::Nobody);
    }

    /// As [`Self::poll`], for a thread that has found this queue empty, and looks again at once: if
    /// it finds something then, acknowledgements wait some microseconds for what it posts.
    pub fn poll_for(&self, cq: &CompletionQueue) {
        let now = Clock::now();
        self.lease.note_poll(now);
        self.turn_if_free(now, Waiting::ForQueue(cq));
    }

    /// Receives and processes in this thread, unless another one is at it, and leaves the sockets
    /// to the background thread.
    ///
    /// What a thread does that is about to sleep: it has asked for an event, and looks once more
    /// (R51). Were this a [`Self::poll`], only the first packet would wake anyone, and the next
    /// one would wait for the end of the lease.
    pub fn poll_before_sleep(&self) {
        self.turn_if_free(Clock::now(), Waiting::Nobody);
    }

    fn turn_if_free(&self, now: Instant, whom: Waiting<'_>) {
        if !self.is_ours() {
            return;
        }
        if let Some(mut core) = self.core.try_lock() {
            let now = core.advance(now);
            core.turn_for(now, &self.sleeper, whom);
            core.held.note_polled();
            self.release(core, now);
        }
    }

    /// Sends what waits for more posts, if it has done so for some microseconds: what a thread does
    /// that polls a completion queue and finds something, so that nothing is to be received yet.
    pub fn send_held(&self) {
        let until = self.held_until.load(Ordering::Relaxed);
        if until > 0 && until <= Clock::now().as_nanos() && self.is_ours() {
            self.send_now();
        }
    }

    /// Sends what waits, unless another thread is at it.
    fn send_now(&self) {
        if let Some(mut core) = self.core.try_lock() {
            let now = core.advance(Clock::now());
            core.transmit(now);
            self.release(core, now);
        }
    }

    /// Sends what the program has posted last, if it has neither posted nor polled since, although
    /// it polls these days. In the background thread.
    pub(super) fn send_late(&self, now: Instant) {
        if self.held_until.load(Ordering::Relaxed) == 0 {
            return self.lookout.note_in_time(now);
        }
        let Some(mut core) = self.core.try_lock() else { return };
        let now = core.advance(now);
        if core.held.is_late(now) {
            self.note_late(&mut core, now);
            core.transmit(now);
            self.release(core, now);
        } else {
            self.lookout.note_in_time(now);
            // The other timers are the program's while it polls.
            self.sleeper.wake_by(self.lookout.at(core.held.deadline()), now);
            drop(core);
            self.serve_left_work();
        }
    }

    /// Notes that something has waited too long for the program to send it.
    fn note_late(&self, core: &mut Core, now: Instant) {
        core.held.note_late(now);
        self.lookout.note_late(now);
    }

    /// Hands the sockets to the background thread, since the caller is about to sleep on events
    /// (`ibv_req_notify_cq`): they are armed when it returns.
    pub fn stop_polling(&self) {
        if !self.is_ours() {
            return;
        }
        self.lease.end_now();
        self.sleeper.arm_sockets();
        if self.held_until.load(Ordering::Relaxed) > 0 {
            self.send_now();
        }
    }

    /// Sends what waits for more posts: what a thread does that asks for an event, and is going to
    /// sleep on it by [`Self::begin_sleep`], as it did before. It leaves the sockets disarmed.
    pub fn finish_posts(&self) {
        if self.held_until.load(Ordering::Relaxed) > 0 {
            // It waits for the lock: whoever has it does not send what waits.
            let _ = self.with_core(Core::transmit);
        }
    }

    /// Begins a sleep on the events of a channel. Where it returns true, the thread is to sleep on
    /// these sockets too, and to call [`Self::serve_sleep`] when one of them is readable; where it
    /// returns false, the background thread has the sockets.
    ///
    /// [`Self::end_sleep`] ends it; until then it may begin again. A thread that ends in its sleep
    /// leaves nothing behind that is in the way of others for longer than a lease.
    pub fn begin_sleep(&self, id: SleepId, sockets: &mut Sockets) -> bool {
        let now = Clock::now();
        if !self.is_ours() || !self.watch.begin(id, now, self.lease.end(now).is_some()) {
            self.stop_polling();
            return false;
        }
        if self.is_stopping()
            || self.has_silent_link.load(Ordering::Relaxed)
            || !self.sleeper.sockets(sockets)
        {
            self.watch.resign(id);
            self.stop_polling();
            return false;
        }
        self.finish_posts();
        true
    }

    /// Receives and processes in this thread, which a socket has woken from its sleep on the events
    /// of `channel`. Where there is one then, acknowledgements wait some microseconds for what the
    /// program posts.
    pub fn serve_sleep(&self, channel: &CompletionChannel) {
        if !self.is_ours() {
            return;
        }
        let now = Clock::now();
        // As of one that polls: the background thread has not to be woken by the next packet.
        self.lease.note_poll(now);
        // It waits for the lock: whoever has it may be about to raise the event.
        let mut core = self.core.lock();
        let now = core.advance(now);
        let before = core.carried_bytes();
        let received = core.turn_for(now, &self.sleeper, Waiting::ForEvent(channel));
        let bytes = core.carried_bytes().saturating_sub(before);
        core.held.note_polled();
        self.release(core, now);
        if bytes > BULK_BYTES {
            self.watch.note_bulk(now);
        } else {
            self.watch.note_woken(now, received > 0 || channel.has_events());
        }
    }

    /// Ends a sleep, of which [`Self::begin_sleep`] has last said so.
    pub fn end_sleep(&self, id: SleepId, was_running: bool) {
        if self.is_ours() && self.watch.end(id, was_running) && was_running {
            // Nobody would look at the sockets for those who sleep.
            self.stop_polling();
        }
    }

    /// Whether a thread sleeps on events, and runs the shard when a packet wakes it.
    pub(super) fn has_sleeper(&self) -> bool {
        self.watch.is_asleep()
    }

    /// Does what is due although somebody has the sockets: that one sleeps, and only a packet wakes
    /// it. In the background thread.
    ///
    /// While messages go to and fro, it does so at the end of each lease.
    pub(super) fn serve_sleeper(&self, now: Instant, lease_end: Instant) {
        // Of one that is awake, the timers are its own.
        if !self.has_sleeper() {
            return;
        }
        let Some(mut core) = self.core.try_lock() else { return };
        let now = core.advance(now);
        if core.deadline().is_some_and(|at| at <= now) {
            core.turn_for(now, &self.sleeper, Waiting::Nobody);
        }
        if self.watch.is_used(now) {
            // Two timers that fire at once wake this thread once.
            self.sleeper.wake_by(Some(lease_end), now);
        }
        // Also what was handed over from other sockets.
        self.release(core, now);
    }

    /// Does one round in the background thread, and says what is to follow, and how many packets
    /// came.
    ///
    /// The lock is given back after each, so that others get in and what they left is done.
    pub(super) fn background_round(&self, linger_nanos: u64) -> (Round, usize) {
        let mut core = self.core.lock();
        let now = core.advance(Clock::now());
        let whom = match self.lease.may_watch_memory(now) {
            true => Waiting::ForMemory,
            false => Waiting::Nobody,
        };
        if core.held.is_late(now) && !core.shard.owes_acks_only() {
            // Posts of a program that has not polled since; it may watch its memory.
            self.note_late(&mut core, now);
        }
        let received = core.turn_for(now, &self.sleeper, whom);
        let more = received > 0 || core.can_transmit();
        let lease_end = self.lease.end(now);
        let lingers = now.nanos_since(core.last_packet) < linger_nanos;
        let round = match lease_end {
            // The program that is to answer may want this very processor.
            _ if core.held.awaits_answer() => Round::Sleep,
            None if more => Round::More,
            None if lingers => Round::Linger,
            _ => Round::Sleep,
        };
        if round == Round::Sleep {
            let deadline = core.deadline().map_or(u64::MAX, Instant::as_nanos);
            self.sleeper.set_timer(deadline, now);
            match lease_end {
                Some(end) => self.sleeper.set_lease(end, now),
                None => self.sleeper.arm_sockets(),
            }
        }
        self.note_deadlines(&core, now);
        // Whoever waits gets it: this thread would take it again before the other one is awake.
        MutexGuard::unlock_fair(core);
        self.serve_left_work();
        (round, received)
    }

    /// Takes the lock, and gives it back as it must be: see [`Self::release`]. `None` in a child
    /// after fork, where a thread of the parent may have the lock for ever.
    fn with_core<R>(&self, work: impl FnOnce(&mut Core, Instant) -> R) -> Option<R> {
        if !self.is_ours() {
            return None;
        }
        let mut core = self.core.lock();
        let now = core.advance(Clock::now());
        let result = work(&mut core, now);
        self.release(core, now);
        Some(result)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Gives the lock back, and does what others have left meanwhile since it was taken.
    ///
    /// Whoever has the lock gives it back this way, or what others left stays undone.
    fn release(&self, core: MutexGuard<'_, Core>, now: Instant) {
        self.note_deadlines(&core, now);
        drop(core);
        self.serve_left_work();
    }

    /// Sees to it that what is to be done later is done then, before the lock is given back.
    fn note_deadlines(&self, core: &Core, now: Instant) {
        let until = core.held.end().map_or(0, Instant::as_nanos);
        self.held_until.store(until, Ordering::Relaxed);
        if self.lease.end(now).is_some() && self.sleeper.has_lease() {
            // Who polls sees to the timers itself, and the background thread looks at the end of the
            // lease: a timer would wake that for nothing, and be set anew.
            self.sleeper.wake_by(self.lookout.at(core.held.deadline()), now);
            return;
        }
        let deadline = core.deadline();
        // Where a packet has woken somebody just now, the timers of one message after the other would
        // be set and fire, all for nothing. One for all of them costs less.
        let (soon, tick) = (now.plus_nanos(SOON_NANOS), now.plus_nanos(LATEST_FOR_EVENT_NANOS));
        let deadline = match deadline {
            Some(at) if at > soon && self.watch.is_used(now) && core.has_timers_only(now) => {
                if self.sleeper.wakes_by(tick) {
                    return;
                }
                Some(at.max(tick))
            }
            deadline => deadline,
        };
        self.sleeper.wake_by(deadline, now);
    }

    /// Does what was left for the holder of the lock, if nobody holds it.
    ///
    /// Whoever leaves work then tries the lock; whoever gives the lock back then looks for work.
    /// The fences order the two, so one of them finds it.
    fn serve_left_work(&self) {
        loop {
            fence(Ordering::SeqCst);
            if self.kicks.is_empty() && self.handed_over.is_empty() {
                return;
            }
            let Some(mut core) = self.core.try_lock() else { return };
            let now = core.advance(Clock::now());
            while let Some(qpn) = self.kicks.pop() {
                core.shard.kick(now, qpn);
            }
            for _ in 0..HANDED_OVER_MAX {
                let Some((path, bytes)) = self.handed_over.pop() else { break };
                core.handle_passed_on(now, &path, &bytes);
            }
            core.transmit(now);
            self.note_deadlines(&core, now);
        }
    }

    /// Sends what is owed to peers, if the lock can be had in `patience`: for the end of a process
    /// that has not closed its device, whose other threads may do anything still, or nothing more.
    pub fn flush(&self, patience: Duration) {
        if !self.is_ours() {
            return;
        }
        if let Some(mut core) = self.core.try_lock_for(patience) {
            let now = core.advance(Clock::now());
            core.transmit_owed(now);
        }
    }

    /// Stops the background thread and closes all links. Nothing runs the shard afterwards.
    pub fn close(&self) {
        if !self.is_ours() {
            return;
        }
        self.stopping.store(true, Ordering::Release);
        self.sleeper.wake();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!(target: "rxe::net", "the background thread panicked");
        }
        let mut core = self.core.lock();
        let now = core.advance(Clock::now());
        let now = core.transmit_owed(now);
        self.sleeper.forget_sockets();
        let own = self.slot();
        let Core { links, detour, .. } = &mut *core;
        for OpenedLink { link, .. } in links.drain(..) {
            // What is for other shards is theirs; this one is no more.
            link.close(now, &mut |path, bytes| match bytes.get(SLOT_OFFSET) {
                Some(&slot) if slot != own => drop(detour.take(now, slot, path, bytes)),
                _ => {}
            });
            detour.flush();
        }
    }
}

impl Reader for Runner {
    fn hand_over(&self, path: &Path, bytes: &[u8]) {
        // Where it is full, the packet is dropped: RC repairs that.
        let _ = self.handed_over.push((*path, bytes.into()));
    }

    fn wake(&self) {
        self.sleeper.wake();
    }
}
