//! A shard: queue pairs, their timers and what they have to send, run by one thread at a time.

mod stalled;
mod turns;

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;

use rxe_wire::{FlowNote, Opcode, PKey, Packet, Position, Qpn, Service};
use slab::Slab;

use crate::counters::{Counter, CounterValues, Counters, Tally};
use crate::cq::{CompletionQueue, CqId};
use crate::credit::{self, Asker, Credit, Credits, Note};
use crate::device::Device;
use crate::error::{BusyError, CreateQpError, ModifyQpError};
use crate::multicast::MULTICAST_QPN;
use crate::packet_run::PacketRun;
use crate::path::{Path, Transmit, TransmitRun, Unreachable};
use crate::qp::machine::{Machine, ShardContext};
use crate::qp::requester::Emit;
use crate::qp::responder::packets_of;
use crate::qp::run::RunBuf;
use crate::qp::{ALL_PORTS, GSI_QPN, QpAttr, QpAttrMask, QpInit, QpState, QpType, QueuePair};
use crate::rng::PublicRng;
use crate::time::Instant;
use crate::timer::{DeadlineIndex, Timer};
use crate::window::{Load, Windows, full_send, packet_cost};
use turns::Turns;

/// Queue pairs that are looked at for one whose next packet fits the send of another.
const KNOWN: usize = 8;
/// Questions and answers of flow control that wait to be sent; more are dropped, and asked again.
const MAX_NOTES: usize = 256;

/// The queue pairs of one slot, with their timers.
///
/// A shard does no I/O and reads no clock. Its owner calls, in any order and as often as it likes:
///
/// * [`handle_packet`](Self::handle_packet) with each packet that came for its slot, or
///   [`handle_packets`](Self::handle_packets) with several that came together,
/// * [`handle_timeout`](Self::handle_timeout) once [`poll_timeout`](Self::poll_timeout) is reached,
/// * [`kick`](Self::kick) after something was posted to one of its queue pairs,
///
/// and after any of these [`poll_transmit`](Self::poll_transmit) until it returns `None`. `now` must
/// not run backwards; where it does, the shard goes on from the latest time that it was told.
#[derive(Debug)]
pub struct Shard {
    device: Arc<Device>,
    slot: u8,
    counters: Arc<Counters>,
    machines: Slab<Machine>,
    /// What each queue pair has counted, by slab key.
    qp_counters: Vec<Counters>,
    /// Slab key plus 1 by the low 16 bits of the QPN; 0 for none.
    by_number: Box<[u32]>,
    /// Low 16 bits of the next QPN to try.
    next_number: u16,
    /// Slab key of QP1, where this shard has it: its number is of no slot.
    gsi: Option<u32>,
    windows: Windows,
    /// What services without acknowledgements may send.
    credits: Credits,
    /// Questions and answers about that, to be sent.
    notes: VecDeque<Note>,
    /// Room for the queue pairs that an answer lets send.
    woken: Vec<u32>,
    /// Room for the members of a multicast group, kept so that no packet allocates it.
    members: Vec<Qpn>,
    /// The queue pairs that have something to send.
    ready: Turns,
    deadlines: DeadlineIndex,
    /// Completion queues with an event that lags, and when it comes.
    periods: BTreeMap<(Instant, CqId), Arc<CompletionQueue>>,
    now: Instant,
}

/// What a queue pair got by [`Shard::kick`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Posted {
    /// Requests: each is one packet at least.
    pub packets: u32,
    /// Bytes of their messages.
    pub bytes: u64,
    /// Requests before them that are under way, so that whoever posted these waits anyway; 0 also
    /// where what it has to send must not wait. Without acknowledgements nothing is ever under way,
    /// and nobody waits: there it is 1.
    pub awaited: u32,
}

impl Shard {
    /// Packets that one queue pair sends in a round, in one turn or in several: a full segmented
    /// send.
    pub const TURN: u32 = 64;
    /// The longest packet that [`poll_transmit`](Self::poll_transmit) writes.
    pub const MAX_PACKET: usize = 4096 + 64;

    /// Makes the shard of a slot, 1 to 254.
    ///
    /// # Panics
    ///
    /// When `slot` is 0 or 255: those QPNs are QP0, QP1 and the multicast QPN (a bug of the owner).
    pub fn new(device: Arc<Device>, slot: u8) -> Self {
        assert!((1..255).contains(&slot), "slots are 1 to 254, not {slot}");
        let counters = device.new_counters();
        let mut rng = PublicRng::new(device.config().seed, slot);
        // A successor on this slot must not reuse what is still in flight to a dead process.
        let next_number = rng.u32() as u16;
        Self {
            device,
            slot,
            counters,
            machines: Slab::new(),
            qp_counters: Vec::new(),
            by_number: vec![0; 1 << 16].into_boxed_slice(),
            next_number,
            gsi: None,
            windows: Windows::default(),
            credits: Credits::default(),
            notes: VecDeque::new(),
            woken: Vec::new(),
            members: Vec::new(),
            ready: Turns::default(),
            deadlines: DeadlineIndex::default(),
            periods: BTreeMap::new(),
            now: Instant::ZERO,
        }
    }

    /// The slot: the top byte of the QPNs here.
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// The device that it is a part of.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// What this shard has counted.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// What a queue pair has counted since it was made; states and resets do not matter.
    pub fn qp_counters(&self, qpn: Qpn) -> Option<CounterValues> {
        Some(self.qp_counters[self.find(qpn)? as usize].values())
    }

    /// Counts packets that [`poll_transmit`](Self::poll_transmit) gave and the host dropped (R18).
    pub fn count_send_errors(&self, packets: usize) {
        self.counters.add(Counter::send_err, packets as u64);
    }

    /// Makes a queue pair (`ibv_create_qp`), in the RESET state.
    ///
    /// # Errors
    ///
    /// [`CreateQpError`] when the device is lost, something is missing or does not fit the service,
    /// a capacity is above the device's limit, the port's QP1 is taken, or `max_qp` is reached.
    pub fn create_qp(&mut self, init: QpInit) -> Result<Arc<QueuePair>, CreateQpError> {
        if self.device.has_failed() {
            return Err(CreateQpError::DeviceLost);
        }
        let limits = self.device.limits();
        let init = init.checked()?;
        let caps = &init.caps;
        for (what, asked, max) in [
            ("max_send_wr", caps.max_send_wr, limits.max_qp_wr),
            ("max_recv_wr", caps.max_recv_wr, limits.max_qp_wr),
            ("max_send_sge", caps.max_send_sge, limits.max_sge),
            ("max_recv_sge", caps.max_recv_sge, limits.max_sge),
            ("max_inline_data", caps.max_inline_data, limits.max_inline_data),
        ] {
            if asked > max {
                return Err(CreateQpError::Capacity { what, asked, max });
            }
        }
        let max = limits.max_qp.min(1 << 16);
        if self.machines.len() >= max as usize {
            return Err(CreateQpError::TooMany { max });
        }
        let port_num = init.port_num;
        let is_gsi = init.qp_type == QpType::Gsi;
        if is_gsi {
            if port_num != ALL_PORTS && self.device.port(port_num).is_none() {
                return Err(CreateQpError::NoPort { port: port_num });
            }
            if self.gsi.is_some() || !self.device.take_gsi(port_num) {
                return Err(CreateQpError::NoGsi { port: port_num });
            }
        }
        // R55: from here on nothing fails, so packets never find half a queue pair.
        while self.by_number[usize::from(self.next_number)] != 0 {
            self.next_number = self.next_number.wrapping_add(1);
        }
        let number = self.next_number;
        let qpn = if is_gsi {
            GSI_QPN
        } else {
            self.next_number = number.wrapping_add(1);
            Qpn::new(u32::from(self.slot) << 16 | u32::from(number))
        };
        let qp = Arc::new(QueuePair::new(qpn, init));
        let entry = self.machines.vacant_entry();
        // Fits: there are at most 2^16.
        let key = entry.key() as u32;
        entry.insert(Machine::new(key, qp.clone()));
        // A key is free, or the next one.
        match self.qp_counters.get_mut(key as usize) {
            Some(counters) => *counters = Counters::default(),
            None => self.qp_counters.push(Counters::default()),
        }
        if is_gsi {
            self.gsi = Some(key);
        } else {
            self.by_number[usize::from(number)] = key + 1;
        }
        Ok(qp)
    }

    /// Destroys a queue pair (`ibv_destroy_qp`); its outstanding requests vanish uncompleted.
    ///
    /// What is owed to the peer should be sent first: see
    /// [`poll_transmit`](Self::poll_transmit).
    ///
    /// # Errors
    ///
    /// [`BusyError`] while it is attached to multicast groups (R50); it goes on to work.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), BusyError> {
        // R19: what the link has taken is the link's, so nothing has to be waited for.
        let Some(key) = self.find(qpn) else { return Ok(()) };
        let qp = &self.machines[key as usize].qp;
        BusyError::check("queue pair", qp.attachments())?;
        if self.gsi == Some(key) {
            self.gsi = None;
            self.device.release_gsi(qp.init().port_num);
        } else {
            self.by_number[(qpn.get() & 0xffff) as usize] = 0;
        }
        let mut machine = self.machines.remove(key as usize);
        let (mut cx, _) = self.split(key);
        let window = machine.connection.map(|connection| connection.window);
        machine.disconnect(&mut cx);
        cx.device.memory().forget_qp(qpn);
        if machine.is_ready {
            self.ready.remove(key);
        }
        if let Some(window) = window {
            self.wake_waiting(window);
        }
        Ok(())
    }

    /// Moves all queue pairs to the error state: the device is lost ([`Device::fail`]).
    ///
    /// Nothing is sent any more; what is posted is flushed.
    pub fn fail(&mut self, now: Instant) {
        self.advance(now);
        // Their keys fit: there are at most 2^16.
        let keys: Vec<_> = self.machines.iter().map(|(key, _)| key as u32).collect();
        for key in keys {
            let (mut cx, machines) = self.split(key);
            machines[key as usize].enter_error_by_request(&mut cx);
            self.settle(key);
        }
    }

    /// Changes attributes and state of a queue pair (`ibv_modify_qp`).
    ///
    /// # Errors
    ///
    /// [`ModifyQpError`]; nothing has changed then.
    pub fn modify_qp(
        &mut self,
        now: Instant,
        qpn: Qpn,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<(), ModifyQpError> {
        self.advance(now);
        let key = self.find(qpn).ok_or(ModifyQpError::NoSuchQp(qpn))?;
        let (mut cx, machines) = self.split(key);
        let machine = &mut machines[key as usize];
        let window = machine.connection.map(|connection| connection.window);
        machine.modify(&mut cx, attr, mask)?;
        self.settle(key);
        if let Some(window) = window {
            // It may have left this window, and its room there.
            self.wake_waiting(window);
        }
        Ok(())
    }

    /// Checks what [`Self::modify_qp`] would refuse, and changes nothing.
    ///
    /// # Errors
    ///
    /// [`ModifyQpError`].
    pub fn check_modify_qp(
        &self,
        qpn: Qpn,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<(), ModifyQpError> {
        let key = self.find(qpn).ok_or(ModifyQpError::NoSuchQp(qpn))?;
        self.machines[key as usize].check_modify(&self.device, attr, mask)
    }

    /// The attributes of a queue pair (`ibv_query_qp`), with the state it is in (R53).
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpAttr> {
        let machine = &self.machines[self.find(qpn)? as usize];
        let state = machine.attr.state;
        let sq_draining = state == QpState::Sqd && machine.has_begun_requests();
        Some(QpAttr { cur_state: state, sq_draining, ..machine.attr })
    }

    /// The ports of a queue pair for datagrams, which needs a link for each address of them; `None`
    /// when it is of another service.
    pub fn datagram_ports(&self, qpn: Qpn) -> Option<RangeInclusive<u8>> {
        let machine = &self.machines[self.find(qpn)? as usize];
        match (machine.qp.qp_type().is_datagram(), machine.attr.port_num) {
            (false, _) => None,
            // A device has at most 255 ports: their numbers have 8 bits.
            (true, ALL_PORTS) => Some(1..=self.device.ports().len().min(255) as u8),
            (true, port_num) => Some(port_num..=port_num),
        }
    }

    /// Whether a queue pair receives datagrams on this port.
    pub fn takes_datagrams(&self, port_num: u8) -> bool {
        let receives =
            |state| matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        self.machines.iter().any(|(_, machine)| {
            let is_datagram = machine.qp.qp_type().is_datagram();
            is_datagram
                && [port_num, ALL_PORTS].contains(&machine.attr.port_num)
                && receives(machine.attr.state)
        })
    }

    /// Takes over what was posted to a queue pair, and says what that was.
    pub fn kick(&mut self, now: Instant, qpn: Qpn) -> Posted {
        self.advance(now);
        let Some(key) = self.find(qpn) else { return Posted::default() };
        let posted = self.machines[key as usize].handle_posted();
        self.settle(key);
        posted
    }

    /// Handles a packet, `bytes` from BTH to the last pad byte, whose iCRC the link has checked.
    pub fn handle_packet(&mut self, now: Instant, path: &Path, bytes: &[u8]) {
        self.advance(now);
        self.counters.bump(Counter::rcvd_pkts);
        if let Some(note) = Note::read(path, bytes) {
            return self.handle_note(&note);
        }
        let packet = match Packet::parse(bytes) {
            Ok(packet) => packet,
            Err(error) => {
                tracing::trace!(target: "rxe::recv", %error, "malformed packet");
                return self.counters.bump(Counter::drop_malformed);
            }
        };
        if packet.bth().dest_qpn == MULTICAST_QPN {
            return self.handle_multicast(path, &packet, bytes.len());
        }
        match self.admit(path, &packet) {
            Ok(key) => {
                let (mut cx, machines) = self.split(key);
                cx.counters.qp.bump(Counter::rcvd_pkts);
                let machine = &mut machines[key as usize];
                if machine.qp.qp_type().is_datagram() {
                    machine.handle_datagram(&mut cx, path, &packet, bytes.len());
                } else {
                    if is_marked(path, &packet) {
                        machine.handle_mark(&mut cx);
                    }
                    machine.handle_packet(&mut cx, &packet);
                }
                self.settle(key);
            }
            Err(counter) => {
                tracing::trace!(target: "rxe::recv", reason = counter.name(),
                    qpn = %packet.bth().dest_qpn, "packet dropped");
                self.counters.bump(counter);
                if let Some(key) = self.find(packet.bth().dest_qpn) {
                    self.qp_counters[key as usize].bump(counter);
                }
            }
        }
    }

    /// As [`handle_packet`](Self::handle_packet) for each packet of a run, in their order; packets in
    /// the midst of one message are handled together, which takes less time.
    pub fn handle_packets(&mut self, now: Instant, path: &Path, run: PacketRun<'_>) {
        let mut rest = Some(run);
        while let Some(run) = rest {
            let handled = self.handle_middles(now, path, run);
            if handled == 0 {
                self.handle_packet(now, path, run.first());
            }
            rest = run.skip(handled.max(1) as usize);
        }
    }

    /// Handles the first packets of a run by a short way, if they are in the midst of one message,
    /// and there is nothing else to them. Returns how many it has handled.
    fn handle_middles(&mut self, now: Instant, path: &Path, run: PacketRun<'_>) -> u32 {
        let opcode = run.first().first().copied().map(Opcode::new);
        if opcode.and_then(Opcode::info).is_none_or(|info| info.position != Position::Middle) {
            return 0;
        }
        self.advance(now);
        let Ok(packet) = Packet::parse(run.first()) else { return 0 };
        if is_marked(path, &packet) {
            return 0;
        }
        let Ok(key) = self.admit(path, &packet) else { return 0 };
        let (mut cx, machines) = self.split(key);
        let count = run.count_in_sequence();
        let handled = machines[key as usize].handle_middles(&mut cx, &packet, (run, count));
        if handled > 0 {
            cx.counters.add(Counter::rcvd_pkts, handled.into());
            self.settle(key);
        }
        handled
    }

    /// Answers a question of flow control, or takes an answer.
    fn handle_note(&mut self, note: &Note) {
        // It is about the socket: the queue pair that it names may be gone, and others wait for it.
        if note.flow.dest_qpn.slot() != self.slot {
            return self.counters.bump(Counter::drop_no_such_qp);
        }
        // Nothing can be sent from there.
        if note.path.destination.is_multicast() {
            return self.counters.bump(Counter::drop_wrong_address);
        }
        if let Some(answer) = note.answer() {
            return self.push_note(answer);
        }
        // Kept, so that no answer allocates it.
        let mut woken = std::mem::take(&mut self.woken);
        self.credits.on_answer(note, &mut woken);
        for key in woken.drain(..) {
            if self.machines.contains(key as usize) {
                self.settle(key);
            }
        }
        self.woken = woken;
    }

    fn push_note(&mut self, note: Note) {
        if self.notes.len() < MAX_NOTES {
            self.notes.push_back(note);
        }
    }

    /// Writes the oldest question or answer that is to be sent.
    fn write_note(&mut self, buf: &mut [u8]) -> Option<TransmitRun> {
        let note = self.notes.pop_front()?;
        note.flow.write(buf).ok()?;
        self.counters.bump(Counter::sent_pkts);
        let len = FlowNote::LEN;
        let first = Transmit { len, path: note.path, dest_qpn: note.flow.dest_qpn };
        Some(TransmitRun { first, count: 1, last_len: len, summed: 0 })
    }

    /// R49: gives a packet to each queue pair of this shard that is attached to the group, but not
    /// to the one that sent it.
    fn handle_multicast(&mut self, path: &Path, packet: &Packet<'_>, len: usize) {
        let bth = packet.bth();
        let Some(deth) = packet.deth().filter(|_| packet.info().service == Service::Ud) else {
            return self.counters.bump(Counter::drop_wrong_service);
        };
        if bth.tver != 0 {
            return self.counters.bump(Counter::drop_bad_version);
        }
        if !is_our_partition(bth.pkey) {
            return self.counters.bump(Counter::drop_bad_pkey);
        }
        let ports = self.device.ports();
        let is_own = ports.iter().any(|p| p.gids.read().find(path.source, path.gid_type).is_some());
        // A copy, so that neither the table's lock is held nor each member looked for again.
        let mut members = std::mem::take(&mut self.members);
        self.device.multicast().members(path.destination, self.slot, &mut members);
        if members.is_empty() {
            self.counters.bump(Counter::drop_no_group);
        }
        for &qpn in &members {
            let key = self.find(qpn).filter(|_| !(is_own && deth.source_qpn == qpn));
            let Some(key) = key else { continue };
            let (mut cx, machines) = self.split(key);
            cx.counters.qp.bump(Counter::rcvd_pkts);
            machines[key as usize].handle_datagram(&mut cx, path, packet, len);
            self.settle(key);
        }
        self.members = members;
    }

    /// R57: the queue pair that a packet is for, if it comes from its peer.
    fn admit(&self, path: &Path, packet: &Packet<'_>) -> Result<u32, Counter> {
        let bth = packet.bth();
        if bth.tver != 0 {
            return Err(Counter::drop_bad_version);
        }
        let key = self.find(bth.dest_qpn).ok_or(Counter::drop_no_such_qp)?;
        let machine = &self.machines[key as usize];
        let service = machine.qp.qp_type().service();
        // An initiator of XRC takes responses only, a target requests only.
        let is_misdirected = match machine.qp.qp_type() {
            QpType::XrcSend => packet.info().is_request(),
            QpType::XrcRecv => packet.info().is_response(),
            _ => false,
        };
        let is_cnp = packet.info().service == Service::Cnp && service != Service::Ud;
        let is_other = packet.info().service != service && !is_cnp;
        if is_other || is_misdirected {
            return Err(Counter::drop_wrong_service);
        }
        if !is_our_partition(bth.pkey) {
            return Err(Counter::drop_bad_pkey);
        }
        if service == Service::Ud {
            return self.admit_datagram(key, path);
        }
        if machine.connection.is_none() {
            return Err(Counter::drop_wrong_state);
        }
        if !machine.is_peer(path.source, path.destination, path.gid_type) {
            return Err(Counter::drop_wrong_address);
        }
        Ok(key)
    }

    /// Whether a datagram came by the port of its queue pair, where the device has several.
    fn admit_datagram(&self, key: u32, path: &Path) -> Result<u32, Counter> {
        let port_num = self.machines[key as usize].attr.port_num;
        if self.device.ports().len() > 1 && port_num != ALL_PORTS {
            let port = self.device.port(port_num);
            let gid = (path.destination, path.gid_type);
            if port.is_none_or(|port| port.gids.read().find(gid.0, gid.1).is_none()) {
                return Err(Counter::drop_wrong_address);
            }
        }
        Ok(key)
    }

    /// Takes note that the network reported a packet as undeliverable: a hint, easily forged.
    pub fn handle_unreachable(&mut self, now: Instant, hint: &Unreachable) {
        self.advance(now);
        let Unreachable { destination, dest_qpn, psn } = *hint;
        let mut users = self.windows.users_to((destination, dest_qpn.slot()), dest_qpn);
        let awaits = |machine: &Machine| machine.send.is_awaited(psn);
        if let Some(key) = users.find(|&key| self.machines.get(key as usize).is_some_and(awaits)) {
            self.counters.bump(Counter::unreachable_hints);
            self.qp_counters[key as usize].bump(Counter::unreachable_hints);
        }
    }

    /// Handles all timers that are due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
        self.end_periods();
        let now = self.now;
        while let Some((at, key)) = self.deadlines.pop_due(now) {
            let (mut cx, machines) = self.split(key);
            let Some(machine) = machines.get_mut(key as usize) else { continue };
            DeadlineIndex::reached(at, &mut machine.timers);
            while let Some(timer) = machine.timers.take_due(now) {
                machine.handle_timer(&mut cx, timer);
            }
            self.settle(key);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called; may be early, never late.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let period = self.periods.first_key_value().map(|(&(at, _), _)| at);
        self.deadlines.next().into_iter().chain(period).min()
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) may have something.
    pub fn wants_transmit(&self) -> bool {
        !self.ready.is_empty() || !self.notes.is_empty()
    }

    /// Whether all that is to be sent is a few acknowledgements, which may as well leave with what
    /// is posted next.
    pub fn owes_acks_only(&self) -> bool {
        /// More are looked at by nobody: then there is enough for a send of its own.
        const FEW: usize = 2;
        (1..=FEW).contains(&self.ready.len())
            && self.notes.is_empty()
            && self.ready.keys().all(|key| self.machines[key as usize].owes_acks_only())
    }

    /// Whether one queue pair alone has something to send.
    pub fn sends_for_one(&self) -> bool {
        self.notes.is_empty() && self.ready.len() == 1
    }

    /// Gives a queue pair that has something to send the next turn: before it goes, so that what it
    /// owes to its peer leaves.
    pub fn put_first(&mut self, qpn: Qpn) {
        let Some(key) = self.find(qpn) else { return };
        if self.machines[key as usize].is_ready {
            self.ready.put_first(key);
        }
    }

    /// Packets after which every queue pair that has something to send now has had two turns: one
    /// for its requests and one for its replies, so that what it owes to its peer has left.
    pub fn packets_until_served(&self) -> usize {
        self.notes.len() + 2 * Self::TURN as usize * self.ready.len()
    }

    /// Packets after which the queue pair that is first ([`Self::put_first`]) has had its turn.
    pub fn packets_until_first_served(&self) -> usize {
        self.notes.len() + Self::TURN as usize
    }

    /// Writes the next packet to send into `buf`; `None` when there is none.
    ///
    /// Consecutive packets go to the same queue pair for a while, so that the link can send them in
    /// one call.
    ///
    /// # Panics
    ///
    /// When `buf` is shorter than [`Self::MAX_PACKET`] (a bug of the owner).
    pub fn poll_transmit(&mut self, now: Instant, buf: &mut [u8]) -> Option<Transmit> {
        Some(self.poll_transmit_run(now, buf, 0, 1)?.first)
    }

    /// As [`poll_transmit`](Self::poll_transmit), for up to `max` packets that can leave in one
    /// segmented send: all alike in addressing and length, but that the last may be shorter.
    ///
    /// They stand in `buf` one behind the other, with `gap` bytes left free behind each.
    ///
    /// # Panics
    ///
    /// When `buf` is shorter than [`Self::MAX_PACKET`] (a bug of the owner).
    pub fn poll_transmit_run(
        &mut self,
        now: Instant,
        buf: &mut [u8],
        gap: usize,
        max: u32,
    ) -> Option<TransmitRun> {
        assert!(buf.len() >= Self::MAX_PACKET, "room for the largest packet is needed");
        self.advance(now);
        if let Some(note) = self.write_note(buf) {
            return Some(note);
        }
        let Some((key, first, is_own)) = self.next_packet(buf) else {
            // Nothing may be sent before an answer: the question is in the queue now.
            return self.write_note(buf);
        };
        let max = max.min(self.ready.left()).max(1);
        let mut run = RunBuf::new(buf, gap, max, first.len);
        let may_join = is_own && self.ready.len() > 1;
        let guest = if may_join { self.find_guest(key, &first) } else { None };
        let (mut cx, machines) = self.split(key);
        if is_own && guest.is_none() && run.room_for(0) > 0 {
            machines[key as usize].continue_run(&mut cx, &mut run);
        }
        let (count, last_len, summed) = (run.count(), run.last_len(), run.summed());
        cx.counters.add(Counter::sent_pkts, count.into());
        self.cover(key);
        if !self.take_turn(key, count)
            && let Some(guest) = guest
        {
            self.ready.invite(guest);
        }
        Some(TransmitRun { first, count, last_len, summed })
    }

    /// Writes the next packet of whoever's turn it is; also says whether it has the addressing of
    /// its queue pair, as CNPs have not.
    fn next_packet(&mut self, buf: &mut [u8]) -> Option<(u32, Transmit, bool)> {
        loop {
            let key = self.ready.current()?;
            if !self.is_given_credit(key) {
                self.cover(key);
                self.end_turn();
                continue;
            }
            let (mut cx, machines) = self.split(key);
            let machine = &mut machines[key as usize];
            let window = machine.connection.as_ref().map(|connection| connection.window);
            let emit = machine.poll_packet(&mut cx, buf);
            if let (Emit::Packet(len) | Emit::Notification(len), Some((mut path, dest_qpn))) =
                (emit, machine.route())
            {
                if let Emit::Notification(_) = emit {
                    path.traffic_class = cx.device.config().congestion.cnp_traffic_class;
                }
                let transmit = Transmit { len, path, dest_qpn };
                if !machine.is_windowed() && matches!(emit, Emit::Packet(_)) {
                    self.note_unanswered(key, &transmit);
                }
                return Some((key, transmit, matches!(emit, Emit::Packet(_))));
            }
            self.cover(key);
            match (emit, window) {
                (Emit::NoRoom(need), Some(window)) => {
                    // Who has sent in this turn goes behind those who have not.
                    let is_last = self.ready.has_sent();
                    self.end_turn();
                    self.wait_for_room(key, window, need, is_last);
                }
                _ => {
                    self.end_turn();
                    // A request that failed while it was built has freed its part of the window.
                    if let Some(window) = window {
                        self.wake_waiting(window);
                    }
                }
            }
        }
    }

    /// Whether a queue pair may send what it has to, as far as flow control without acknowledgements
    /// is concerned; if not, it is made ready again when it may.
    fn is_given_credit(&mut self, key: u32) -> bool {
        let machine = &mut self.machines[key as usize];
        let Some((path, dest_qpn)) = machine.unanswered_target() else { return true };
        let peer = (path.destination, dest_qpn.slot());
        let has_sent = self.ready.has_sent();
        let asker = Asker { key, list: &mut machine.credit_list, has_sent };
        let Credit::Until(at) = self.credits.ask(self.now, peer, asker) else { return true };
        machine.timers.set(Timer::Pace, at);
        let source = machine.qp.qpn();
        if let Some(mark) = self.credits.on_silence(self.now, peer) {
            self.push_note(credit::question(path, dest_qpn, source, mark));
        }
        false
    }

    /// Counts a packet that nobody acknowledges, and asks its receiver how far it is when due.
    fn note_unanswered(&mut self, key: u32, sent: &Transmit) {
        let Transmit { len, path, dest_qpn } = *sent;
        if !self.machines[key as usize].wants_answer(&path, dest_qpn) {
            return;
        }
        // Fits: a packet is no longer than 4 KiB and its headers.
        let cost = packet_cost(len as u32).into();
        let asked = self.credits.on_sent(self.now, (path.destination, dest_qpn.slot()), cost);
        if let Some(mark) = asked {
            let source = self.machines[key as usize].qp.qpn();
            self.push_note(credit::question(path, dest_qpn, source, mark));
        }
    }

    /// Counts packets of the turn, and passes the turn on when it is over. Returns whether it is.
    fn take_turn(&mut self, key: u32, count: u32) -> bool {
        let is_over = self.ready.take(count);
        self.machines[key as usize].requests_first ^= is_over;
        if !is_over && self.pauses(key) {
            self.ready.pause();
        }
        is_over
    }

    /// Whether others go on before the next message of a queue pair, which begins a send anyway: so
    /// that its first packet can leave with those of the others ([`Self::find_guest`]).
    fn pauses(&self, key: u32) -> bool {
        self.ready.len() > 1
            && self.machines[key as usize].begins_long_write()
            && self.write_alike(key)
    }

    /// Finds a queue pair whose next packet can leave in one send with this one, while the next one
    /// of its own queue pair cannot: the first packet of a WRITE is longer than all others.
    ///
    /// Of several queue pairs that write, the first packets leave together, which saves each of
    /// them a send: of as many as the window has room for, so that what is behind them makes full
    /// sends; and of three at least, where that is one packet more than such a send holds.
    fn find_guest(&self, key: u32, first: &Transmit) -> Option<usize> {
        let machine = &self.machines[key as usize];
        if !machine.has_begun_long_write(first.len) || !self.write_alike(key) {
            return None;
        }
        let (mtu, guests) = (machine.attr.path_mtu.bytes(), self.ready.guests());
        let (full, packets) = (full_send(mtu), packets_of(machine.long_write()?, mtu));
        let are_few = packets > full && guests == 0 && self.ready.len() < 3;
        let window = self.windows.get(machine.connection?.window)?;
        let together = Load::of(packets.min(full) * (guests + 2), packet_cost(mtu as u32));
        if are_few || !window.fits(together) {
            return None;
        }
        self.ready.find_guest(KNOWN, |other| {
            let machine = &self.machines[other as usize];
            let is_alike = |(path, dest_qpn): (Path, Qpn)| {
                path == first.path && dest_qpn.slot() == first.dest_qpn.slot()
            };
            machine.begins_long_write() && machine.route().is_some_and(is_alike)
        })
    }

    /// Whether a queue pair and the next ones behind it write messages of one length and several
    /// packets, which are no more than fill two sends: others have many sends anyway.
    ///
    /// Were they not all about the same, who sends short messages would have less of the window than
    /// who sends long ones, as it pauses more often.
    fn write_alike(&self, key: u32) -> bool {
        let machine = &self.machines[key as usize];
        let (len, mtu) = (machine.long_write(), machine.attr.path_mtu.bytes());
        len.is_some_and(|len| packets_of(len, mtu) <= 2 * full_send(mtu))
            && self
                .ready
                .others(KNOWN)
                .all(|other| self.machines[other as usize].long_write() == len)
    }

    /// Takes the queue pair whose turn it is off the ready list.
    fn end_turn(&mut self) {
        if let Some(key) = self.ready.end_current() {
            self.machines[key as usize].is_ready = false;
        }
    }

    /// Puts a queue pair last, or first, of those that wait for room in a window.
    fn wait_for_room(&mut self, key: u32, window: usize, need: Load, is_last: bool) {
        let machine = &mut self.machines[key as usize];
        if !std::mem::replace(&mut machine.is_waiting, true)
            && let Some(window) = self.windows.get_mut(window)
        {
            if is_last {
                window.waiting.push_back((key, need));
            } else {
                window.waiting.push_front((key, need));
            }
        }
    }

    /// After anything happened to a queue pair: finds its timers, and lets it send.
    fn settle(&mut self, key: u32) {
        self.cover(key);
        let machine = &self.machines[key as usize];
        let window = machine.connection.map(|connection| connection.window);
        let others_wait =
            window.and_then(|key| self.windows.get(key)).is_some_and(|w| !w.waiting.is_empty());
        if machine.needs_no_room() {
            self.make_ready(key);
        } else if machine.may_send() && !machine.is_waiting {
            match window {
                Some(window) if others_wait && !machine.is_ready && machine.is_windowed() => {
                    self.wait_for_room(key, window, Load::of(1, packet_cost(0)), true);
                }
                _ => self.make_ready(key),
            }
        }
        if let Some(window) = window {
            self.wake_waiting(window);
        }
    }

    fn cover(&mut self, key: u32) {
        if self.machines[key as usize].qp.needs_attention() {
            self.attend(key);
        }
        self.deadlines.cover(key, &mut self.machines[key as usize].timers);
    }

    /// Does what completion queues want after completions of a queue pair.
    #[cold]
    fn attend(&mut self, key: u32) {
        let (mut cx, machines) = self.split(key);
        let machine = &mut machines[key as usize];
        if machine.qp.has_lost_completion() {
            machine.fail_by_overflow(&mut cx);
        }
        // After that: what was flushed may want something too.
        let lagging = machine.qp.take_wants();
        for cq in lagging {
            if let Some(at) = cq.begin_period(self.now) {
                self.periods.insert((at, cq.id()), cq);
            }
        }
    }

    /// Raises the events of completion queues that have lagged long enough.
    fn end_periods(&mut self) {
        while let Some(entry) = self.periods.first_entry() {
            if entry.key().0 > self.now {
                return;
            }
            let cq = entry.remove();
            if let Some(at) = cq.handle_period(self.now) {
                self.periods.insert((at, cq.id()), cq);
            }
        }
    }

    fn make_ready(&mut self, key: u32) {
        let machine = &mut self.machines[key as usize];
        if !std::mem::replace(&mut machine.is_ready, true) {
            self.ready.push(key);
        }
    }

    /// Lets queue pairs that wait for the window try again, in their order, as many as there is
    /// room for.
    fn wake_waiting(&mut self, window: usize) {
        let mut expected = Load::default();
        loop {
            let Some(window) = self.windows.get_mut(window) else { return };
            let Some(&(key, need)) = window.waiting.front() else { return };
            expected += need;
            if !window.has_room(expected) {
                return;
            }
            window.waiting.pop_front();
            self.machines[key as usize].is_waiting = false;
            self.make_ready(key);
        }
    }

    fn find(&self, qpn: Qpn) -> Option<u32> {
        if qpn.slot() != self.slot {
            return self.gsi.filter(|_| qpn == GSI_QPN);
        }
        self.by_number[(qpn.get() & 0xffff) as usize].checked_sub(1)
    }

    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// What the queue pair `key` works with, and all queue pairs.
    fn split(&mut self, key: u32) -> (ShardContext<'_>, &mut Slab<Machine>) {
        let Self { now, device, counters, qp_counters, windows, machines, .. } = self;
        let counters = Tally { shard: counters, qp: &qp_counters[key as usize] };
        (ShardContext { now: *now, device, counters, windows }, machines)
    }
}

/// Ours is the default partition with full membership, which any member of it matches.
fn is_our_partition(pkey: PKey) -> bool {
    (pkey.get() ^ PKey::DEFAULT.get()) & 0x7fff == 0
}

/// Whether a packet met congestion on its way, and is none that tells of it.
fn is_marked(path: &Path, packet: &Packet<'_>) -> bool {
    /// "Congestion experienced" in the two ECN bits of the traffic class (RFC 3168, section 5).
    const CE: u8 = 3;
    (path.traffic_class & CE == CE || packet.bth().fecn) && packet.info().service != Service::Cnp
}
