//! One end of a measurement: its queue pairs, their memory, and the way to the other end's.
//!
//! A queue pair has a source, where its messages come from, and a target, where those of its peer
//! go. Small messages take turns in slots that fill a page; each slot holds the same bytes, so that
//! a check need not know which message came last.

use ibverbs_api::{
    AccessFlags, AddressHandle, AddressVector, CompletionChannel, CompletionQueue, ConnectAttr,
    Context, DmaBuf, Gid, GidEntry, MemoryRegion, Mtu, ProtectionDomain, Psn, QKey, QpCaps, QpInit,
    QpState, QpType, Qpn, QueuePair, RKey, RecvWr, RemoteAddr, SendData, SendFlags, SendOp, SendWr,
    Sge,
};

use super::control::Place;
use super::error::PerfError;
use super::load::{Kind, Load, Operation};
use crate::pingpong::pattern;

/// Messages smaller than this take turns within so many bytes.
const PAGE: usize = 4096;
/// Slots begin at multiples of a line of the cache.
const LINE: usize = 64;
/// The queue key of the datagrams.
const QKEY: QKey = QKey::new(0x1111_1111);
/// Low bits of a work request's number: which queue pair of the thread it is of.
const LANE_BITS: u32 = 16;

/// The bytes of a message: those of neighbouring seeds resemble each other.
const fn seed(is_client: bool, pair: usize) -> u64 {
    ((pair as u64) << 1 | is_client as u64) << 32
}

/// Where things are in the memory of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Layout {
    /// Slots of the source, and of the target.
    slots: usize,
    /// From one slot to the next.
    stride: usize,
    /// Bytes of a message.
    size: usize,
    /// Bytes in front of a message that came.
    head: usize,
}

impl Layout {
    fn of(load: &Load) -> Self {
        let (size, head) = (load.size as usize, load.service.head());
        let stride = (size + head).next_multiple_of(LINE);
        Self { slots: (PAGE / stride).max(1), stride, size, head }
    }

    const fn source(&self, slot: usize) -> usize {
        slot * self.stride
    }

    const fn target(&self, slot: usize) -> usize {
        (self.slots + slot) * self.stride
    }

    const fn bytes(&self) -> usize {
        2 * self.slots * self.stride
    }
}

/// One queue pair.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) qp: QueuePair,
    pd: ProtectionDomain,
    mr: MemoryRegion,
    layout: Layout,
    operation: Operation,
    /// Its number within the end.
    index: usize,
    /// What inline messages are made of.
    pub(super) inline: Vec<u8>,
    sources: Vec<[Sge; 1]>,
    targets: Vec<[Sge; 1]>,
    remote: Option<Remote>,
}

/// The queue pair at the other end.
#[derive(Debug)]
struct Remote {
    place: Place,
    /// Of datagrams: the way there.
    address: Option<AddressHandle>,
}

/// What a thread works on: queue pairs, and the queue where they complete.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) cq: CompletionQueue,
    pub(super) channel: Option<CompletionChannel>,
    pub(super) pairs: Vec<Pair>,
}

/// One end.
#[derive(Debug)]
pub(super) struct End {
    pub(super) groups: Vec<Group>,
    is_client: bool,
}

impl End {
    /// Makes the queue pairs of a load, spread over its threads.
    pub(super) fn new(context: &Context, load: &Load, is_client: bool) -> Result<Self, PerfError> {
        let pd = context.alloc_pd()?;
        let threads = load.threads as usize;
        let mut groups = Vec::with_capacity(threads);
        for thread in 0..threads {
            let indices = (thread..load.pairs as usize).step_by(threads);
            let channel = match load.has_events {
                true => Some(context.create_channel().map_err(PerfError::Channel)?),
                false => None,
            };
            let entries = (load.depth + load.receives) * indices.len() as u32;
            let cq = context.create_cq(entries, channel.as_ref(), thread)?;
            let mut pairs = Vec::with_capacity(indices.len());
            for index in indices {
                pairs.push(Pair::new(&pd, &cq, load, index, is_client)?);
            }
            groups.push(Group { cq, channel, pairs });
        }
        Ok(Self { groups, is_client })
    }

    /// All queue pairs, with what number each has.
    fn pairs(&self) -> impl Iterator<Item = &Pair> {
        self.groups.iter().flat_map(|group| &group.pairs)
    }

    /// Where they are, in the order of their numbers.
    pub(super) fn places(&self) -> Vec<Place> {
        let mut places: Vec<_> = self.pairs().map(|pair| (pair.index, pair.place())).collect();
        places.sort_unstable_by_key(|(index, _)| *index);
        places.into_iter().map(|(_, place)| place).collect()
    }

    /// Connects them with those of the other end, and posts the receives.
    pub(super) fn connect(
        &mut self,
        load: &Load,
        mtu: Mtu,
        own: &GidEntry,
        remote: Gid,
        places: &[Place],
    ) -> Result<(), PerfError> {
        let ours = load.pairs as usize;
        if places.len() != ours {
            return Err(PerfError::Places { ours, theirs: places.len() });
        }
        let port_num = u8::try_from(own.port_num).unwrap_or(u8::MAX);
        let av = AddressVector { port_num, ..AddressVector::new(remote, own.gid_index) };
        for group in &mut self.groups {
            for (lane, pair) in group.pairs.iter_mut().enumerate() {
                // There are as many places as numbers.
                let Some(place) = places.get(pair.index) else { continue };
                pair.connect(load, mtu, av, place)?;
                if load.operation.takes_receive() {
                    for count in 0..u64::from(load.receives) {
                        pair.qp.post_recv(pair.receive(lane, count))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks what came, once everything has: `sent` messages of each pair of the other end.
    pub(super) fn check(&self, load: &Load, fetched: bool, arrived: bool) -> Result<(), PerfError> {
        let comes = if load.operation.fetches() { fetched } else { arrived };
        if load.operation.is_atomic() || !comes {
            return Ok(());
        }
        // The last byte of a latency's message says which one it was.
        let len = load.size as usize - usize::from(load.kind == Kind::Latency);
        self.pairs().try_for_each(|pair| {
            pair.check(seed(!self.is_client, pair.index), len, load.service.is_reliable())
        })
    }

    /// Checks that as many atomics were carried out here as each queue pair of the peer sent.
    pub(super) fn check_atomics(&self, sent: u64) -> Result<(), PerfError> {
        let mut counted = 0;
        for pair in self.pairs() {
            counted += pair.mr.buffer().load_u64(pair.layout.source(0))?;
        }
        if counted != sent {
            return Err(PerfError::Atomics { pair: 0, counted, sent });
        }
        Ok(())
    }
}

impl Pair {
    fn new(
        pd: &ProtectionDomain,
        cq: &CompletionQueue,
        load: &Load,
        index: usize,
        is_client: bool,
    ) -> Result<Self, PerfError> {
        let layout = Layout::of(load);
        let caps = QpCaps {
            max_send_wr: load.depth,
            max_recv_wr: load.receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: load.inline,
        };
        let init = QpInit::new(load.service.qp_type(), cq, cq);
        let qp = pd.create_qp(QpInit { caps, ..init })?;
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let mr = pd.register(DmaBuf::zeroed(layout.bytes()), access)?;
        let mut bytes = vec![0; layout.size];
        pattern::fill(seed(is_client, index), &mut bytes);
        if !load.operation.is_atomic() {
            for slot in 0..layout.slots {
                mr.buffer().write_at(layout.source(slot), &bytes)?;
            }
        }
        let piece = |start: usize, len: usize| [mr.sge(start..start + len)];
        let (len, whole) = (layout.size, layout.size + layout.head);
        let sources = (0..layout.slots).map(|slot| piece(layout.source(slot), len)).collect();
        let targets = (0..layout.slots).map(|slot| piece(layout.target(slot), whole)).collect();
        let inline = if layout.size <= load.inline as usize { bytes } else { Vec::new() };
        let (operation, remote) = (load.operation, None);
        let pd = pd.clone();
        Ok(Self { qp, pd, mr, layout, operation, index, inline, sources, targets, remote })
    }

    fn place(&self) -> Place {
        let (source, target) = (self.layout.source(0), self.layout.target(0));
        Place {
            qpn: self.qp.qpn().get(),
            psn: self.qp.qpn().get() & 0xff_ffff,
            rkey: self.mr.rkey().get(),
            target: self.mr.remote_addr(target).addr,
            source: self.mr.remote_addr(source).addr,
        }
    }

    fn connect(
        &mut self,
        load: &Load,
        mtu: Mtu,
        av: AddressVector,
        place: &Place,
    ) -> Result<(), PerfError> {
        let own_psn = Psn::new(self.place().psn);
        let mut address = None;
        if self.qp.qp_type() == QpType::Ud {
            self.qp.start_datagrams(av.port_num, QKEY)?;
            address = Some(self.pd.create_ah(&av)?);
        } else {
            self.qp.connect(&ConnectAttr {
                sq_psn: own_psn,
                rq_psn: Psn::new(place.psn),
                max_rd_atomic: load.outstanding,
                ..ConnectAttr::new(av, Qpn::new(place.qpn), mtu)
            })?;
        }
        debug_assert_eq!(self.qp.state(), QpState::Rts);
        self.remote = Some(Remote { place: place.clone(), address });
        Ok(())
    }

    /// Where in the peer's memory a slot is.
    fn remote(&self, slot: usize) -> RemoteAddr {
        let Some(Remote { place, .. }) = &self.remote else {
            // Not connected: the peer refuses it.
            return RemoteAddr { addr: 0, rkey: RKey::new(0) };
        };
        let start = if self.operation.fetches() { place.source } else { place.target };
        let at = if self.operation.is_atomic() { 0 } else { slot * self.layout.stride };
        RemoteAddr { addr: start.wrapping_add(at as u64), rkey: RKey::new(place.rkey) }
    }

    /// The slot of a message.
    const fn slot(&self, message: u64) -> usize {
        (message % self.layout.slots as u64) as usize
    }

    /// The request of message `message`, the first being 0; its completion says how many there are
    /// with it.
    pub(super) fn request(&self, lane: usize, message: u64, is_signaled: bool) -> SendWr<'_> {
        let slot = self.slot(message);
        let remote = self.remote(slot);
        let op = match self.operation {
            Operation::Send => self.send_op(),
            Operation::Write => SendOp::Write { remote, imm: None },
            Operation::WriteImm => SendOp::Write { remote, imm: Some(message as u32) },
            Operation::Read => SendOp::Read { remote },
            Operation::FetchAdd => SendOp::FetchAdd { remote, add: 1 },
            Operation::CompareSwap => {
                SendOp::CompareSwap { remote, compare: message, swap: message + 1 }
            }
        };
        let data = match (self.operation.fetches(), self.inline.is_empty()) {
            (true, _) => SendData::Sges(&self.targets[slot]),
            (false, true) => SendData::Sges(&self.sources[slot]),
            (false, false) => SendData::Inline(&self.inline),
        };
        let flags = if is_signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let wr_id = (message + 1) << LANE_BITS | lane as u64;
        SendWr { wr_id, op, flags, data, srq_number: None }
    }

    fn send_op(&self) -> SendOp {
        match &self.remote {
            Some(Remote { place, address: Some(address) }) => {
                SendOp::SendTo { to: address.to(Qpn::new(place.qpn), QKEY), imm: None }
            }
            _ => SendOp::Send { imm: None },
        }
    }

    /// The receive that is the `count`-th of its queue pair.
    pub(super) fn receive(&self, lane: usize, count: u64) -> RecvWr<'_> {
        let sges = &self.targets[self.slot(count)];
        RecvWr { wr_id: count << LANE_BITS | lane as u64, sges }
    }

    /// Changes the last byte of the message in the first slot.
    pub(super) fn stamp(&mut self, stamp: u8) -> Result<(), PerfError> {
        if let Some(last) = self.inline.last_mut() {
            *last = stamp;
            return Ok(());
        }
        let at = self.layout.source(0) + self.layout.size - 1;
        Ok(self.mr.buffer().write_at(at, &[stamp])?)
    }

    /// The last byte of the message that came into the first slot.
    #[inline]
    pub(super) fn stamped(&self) -> Result<u8, PerfError> {
        let mut byte = [0];
        self.mr.buffer().read_at(self.layout.target(0) + self.layout.size - 1, &mut byte)?;
        Ok(byte[0])
    }

    /// Checks the first `len` bytes of each slot of the target that a message came into.
    fn check(&self, seed: u64, len: usize, is_reliable: bool) -> Result<(), PerfError> {
        let mut wanted = vec![0; self.layout.size];
        pattern::fill(seed, &mut wanted);
        let mut got = vec![0; len];
        for slot in 0..self.layout.slots {
            self.mr.buffer().read_at(self.layout.target(slot) + self.layout.head, &mut got)?;
            // A slot may not have been used; and of a message a part may be lost.
            let is_unused = got.iter().all(|&byte| byte == 0) && (slot > 0 || !is_reliable);
            let wrong = |(&got, &wanted): (&u8, &u8)| got != wanted && (is_reliable || got != 0);
            let offset = got.iter().zip(&wanted).position(wrong);
            if let (Some(offset), false) = (offset, is_unused) {
                return Err(PerfError::Data { pair: self.index, slot, offset });
            }
        }
        Ok(())
    }
}

/// What a work request's number says: the place of its queue pair in its group, and the count.
pub(super) const fn lane_and_count(wr_id: u64) -> (usize, u64) {
    ((wr_id & ((1 << LANE_BITS) - 1)) as usize, wr_id >> LANE_BITS)
}
