//! Two engines, a network between them, and a random sequence of operations.

use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use rxe_core::mem::AccessFlags;
use rxe_core::qp::{
    AddressVector, Mtu, QpAttr, QpAttrMask, QpCaps, QpInit, QpState, QpType, steps_to_rts,
};
use rxe_core::srq::{SrqAttr, SrqInit};
use rxe_core::wq::{RecvWr, SendData, SendFlags, SendOp, SendWr};
use rxe_core::{Instant, Path, QueuePair, Shard, SharedReceiveQueue};
use rxe_wire::{Packet, Psn, Qpn};

use super::arena::{Arena, Zone, gid_of};
use super::ledger::Ledger;
use super::packets::QKEY;

/// Operations of one input at most.
const STEPS: usize = 512;
/// Queue pairs of a host at most.
const PAIRS: usize = 4;
/// Packets under way at most, each way; more are lost.
const UNDER_WAY: usize = 512;

/// One operation. `host` is 0 or 1, `qp` one of its queue pairs, by their low bits.
#[derive(Arbitrary, Debug)]
enum Op {
    Create { host: bool, qp: u8, service: u8, shared: bool, sig_all: bool },
    Connect { qps: [u8; 2], mtu: u8, timing: u8 },
    Modify { host: bool, qp: u8, state: u8, mask: u32, attr: u8 },
    Destroy { host: bool, qp: u8 },
    Send { host: bool, qp: u8, op: u8, imm: Option<u32>, flags: u8, length: u16, places: Places },
    Receive { host: bool, qp: u8, shared: bool, zone: u8, offset: u16, length: u16 },
    Transmit { host: bool, count: u8 },
    Deliver { to: bool, count: u8 },
    Swap { to: bool, at: u8 },
    Drop { to: bool, at: u8 },
    Repeat { to: bool, at: u8 },
    Corrupt { to: bool, at: u8, byte: u16, xor: u8 },
    Advance { log2: u8 },
    Exchange { times: u8 },
    Revoke { host: bool },
}

/// Where a request takes bytes from, and where it brings them to.
#[derive(Arbitrary, Debug)]
struct Places {
    local: u8,
    local_offset: u16,
    remote: u8,
    remote_offset: u16,
}

pub(super) fn run(input: &[u8]) {
    let mut u = Unstructured::new(input);
    let mut world = World::new();
    for _ in 0..STEPS {
        if u.is_empty() {
            break;
        }
        let Ok(op) = Op::arbitrary(&mut u) else { break };
        world.apply(&op);
    }
    world.finish();
}

struct End {
    qp: Arc<QueuePair>,
    ledger: Ledger,
}

struct Host {
    arena: Arena,
    srq: Arc<SharedReceiveQueue>,
    shared: Ledger,
    ends: [Option<End>; PAIRS],
    /// What is on its way to it.
    inbox: Vec<(Path, Vec<u8>)>,
}

struct World {
    hosts: [Host; 2],
    now: Instant,
}

impl Host {
    fn new(number: u8) -> Self {
        let arena = Arena::new(number);
        let attr = SrqAttr { max_wr: 16, max_sge: 1, srq_limit: 0 };
        let srq = arena.device.create_srq(&SrqInit::new(arena.pd, attr)).expect("the first one");
        let (shared, ends) = (Ledger::default(), Default::default());
        Self { arena, srq, shared, ends, inbox: Vec::new() }
    }

    fn end(&mut self, qp: u8) -> Option<&mut End> {
        self.ends[usize::from(qp) % PAIRS].as_mut()
    }

    fn create(&mut self, qp: u8, service: u8, shared: bool, signal_all: bool) {
        let place = usize::from(qp) % PAIRS;
        if self.ends[place].is_some() {
            return;
        }
        let services = QpType::ALL;
        let qp_type = services[usize::from(service) % services.len()];
        let caps =
            QpCaps { max_send_wr: 16, max_recv_wr: 16, max_inline_data: 64, ..QpCaps::default() };
        let srq = shared.then(|| self.srq.clone());
        let init = QpInit::new(qp_type, self.arena.pd, &self.arena.cq);
        if let Ok(qp) = self.arena.shard.create_qp(QpInit { caps, signal_all, srq, ..init }) {
            self.ends[place] = Some(End { qp, ledger: Ledger::default() });
        }
    }

    fn modify(&mut self, now: Instant, qp: u8, attr: &QpAttr, mask: QpAttrMask) -> bool {
        self.poll();
        let place = usize::from(qp) % PAIRS;
        let Some(end) = &mut self.ends[place] else { return false };
        let done = self.arena.shard.modify_qp(now, end.qp.qpn(), attr, mask).is_ok();
        self.poll();
        if let Some(end) = self.end(qp)
            && end.qp.state() == QpState::Reset
        {
            // What was outstanding vanishes uncompleted.
            end.ledger = Ledger::default();
        }
        done
    }

    fn destroy(&mut self, qp: u8) {
        self.poll();
        if let Some(end) = self.ends[usize::from(qp) % PAIRS].take() {
            self.arena.shard.destroy_qp(end.qp.qpn()).expect("it is in no group");
        }
    }

    fn send(&mut self, now: Instant, qp: u8, op: SendOp, flags: u8, length: u16, at: &Places) {
        let sges = [self.arena.sge(Zone::of(at.local), at.local_offset, u32::from(length) % 5000)];
        let inline = [3; 64];
        let Some(end) = self.ends[usize::from(qp) % PAIRS].as_mut() else { return };
        let data = match flags & 0x80 {
            0 => SendData::Sges(&sges),
            _ => SendData::Inline(&inline[..usize::from(length) % 65]),
        };
        let flags = SendFlags::from_bits_truncate(u32::from(flags & 0x7f));
        let wr_id = end.ledger.send_id();
        if end.qp.post_send(&SendWr { wr_id, op, flags, data, srq_number: None }).is_ok() {
            let signaled = flags.contains(SendFlags::SIGNALED) || end.qp.init().signal_all;
            end.ledger.posted(wr_id, signaled);
            self.arena.shard.kick(now, end.qp.qpn());
        }
    }

    fn receive(&mut self, now: Instant, qp: u8, shared: bool, sge: rxe_core::wq::Sge) {
        let sges = &[sge];
        if shared {
            let wr_id = self.shared.shared_id();
            if self.srq.post_recv(RecvWr { wr_id, sges }).is_ok() {
                self.shared.posted(wr_id, true);
            }
            return;
        }
        let Some(end) = self.ends[usize::from(qp) % PAIRS].as_mut() else { return };
        let wr_id = end.ledger.receive_id();
        if let Ok(kick) = end.qp.post_recv(RecvWr { wr_id, sges }) {
            end.ledger.posted(wr_id, true);
            if kick {
                self.arena.shard.kick(now, end.qp.qpn());
            }
        }
    }

    fn poll(&mut self) {
        let mut completions = Vec::new();
        self.arena.cq.poll(usize::MAX, &mut completions);
        for wc in &completions {
            if Ledger::is_shared(wc.wr_id) {
                self.shared.completed(wc);
                continue;
            }
            let end = self.ends.iter_mut().flatten().find(|end| end.qp.qpn() == wc.qpn);
            end.unwrap_or_else(|| panic!("of no queue pair: {wc:?}")).ledger.completed(wc);
        }
    }
}

impl World {
    fn new() -> Self {
        Self { hosts: [Host::new(1), Host::new(2)], now: Instant::from_nanos(1) }
    }

    fn apply(&mut self, op: &Op) {
        let now = self.now;
        let inbox = |hosts: &mut [Host; 2], to: bool, at: u8| {
            let len = hosts[usize::from(to)].inbox.len();
            (len > 0).then(|| usize::from(at) % len)
        };
        match *op {
            Op::Create { host, qp, service, shared, sig_all } => {
                self.hosts[usize::from(host)].create(qp, service, shared, sig_all);
            }
            Op::Connect { qps, mtu, timing } => self.connect(qps, mtu, timing),
            Op::Modify { host, qp, state, mask, attr } => {
                let state = QpState::ALL[usize::from(state) % 7];
                let attr = QpAttr { state, ..self.attr(host, attr, 0, Qpn::new(attr.into())) };
                let mask = QpAttrMask::from_bits_truncate(mask) | QpAttrMask::STATE;
                let required = if attr.retry_cnt & 1 == 0 { QpAttrMask::STATE } else { mask };
                self.hosts[usize::from(host)].modify(now, qp, &attr, required);
            }
            Op::Destroy { host, qp } => self.hosts[usize::from(host)].destroy(qp),
            Op::Send { host, qp, op, imm, flags, length, ref places } => {
                let peer = &self.hosts[usize::from(!host)].arena;
                let remote = peer.remote(Zone::of(places.remote), places.remote_offset);
                let op = match op % 6 {
                    0 => SendOp::Send { imm },
                    1 | 2 => SendOp::Write { remote, imm },
                    3 => SendOp::Read { remote },
                    4 => SendOp::FetchAdd { remote, add: length.into() },
                    _ => SendOp::CompareSwap { remote, compare: 0, swap: length.into() },
                };
                self.hosts[usize::from(host)].send(now, qp, op, flags, length, places);
            }
            Op::Receive { host, qp, shared, zone, offset, length } => {
                let host = &mut self.hosts[usize::from(host)];
                let sge = host.arena.sge(Zone::of(zone), offset, u32::from(length) % 9000);
                host.receive(now, qp, shared, sge);
            }
            Op::Transmit { host, count } => self.transmit(host, count.into()),
            Op::Deliver { to, count } => self.deliver(to, count.into()),
            Op::Swap { to, at } => {
                if let Some(at) = inbox(&mut self.hosts, to, at) {
                    self.hosts[usize::from(to)].inbox.swap(0, at);
                }
            }
            Op::Drop { to, at } => {
                if let Some(at) = inbox(&mut self.hosts, to, at) {
                    self.hosts[usize::from(to)].inbox.remove(at);
                }
            }
            Op::Repeat { to, at } => {
                if let Some(at) = inbox(&mut self.hosts, to, at) {
                    let inbox = &mut self.hosts[usize::from(to)].inbox;
                    inbox.insert(at, inbox[at].clone());
                }
            }
            Op::Corrupt { to, at, byte, xor } => {
                if let Some(at) = inbox(&mut self.hosts, to, at) {
                    let bytes = &mut self.hosts[usize::from(to)].inbox[at].1;
                    let byte = usize::from(byte) % bytes.len();
                    bytes[byte] ^= xor;
                }
            }
            Op::Advance { log2 } => {
                self.now = now.plus_nanos(1 << (log2 % 36));
                for host in &mut self.hosts {
                    host.arena.shard.handle_timeout(self.now);
                }
            }
            Op::Exchange { times } => self.exchange(times % 32),
            Op::Revoke { host } => self.hosts[usize::from(host)].arena.revoke(),
        }
        self.hosts.iter_mut().for_each(Host::poll);
    }

    /// Attributes of a queue pair of `host` that talks to `peer`.
    fn attr(&self, host: bool, timing: u8, mtu: u8, peer: Qpn) -> QpAttr {
        let mtus = [Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M4096];
        QpAttr {
            path_mtu: mtus[usize::from(mtu) % mtus.len()],
            qkey: QKEY,
            rq_psn: Psn::new(if host { 5 } else { 0xff_fffa }),
            sq_psn: Psn::new(if host { 0xff_fffa } else { 5 }),
            dest_qpn: peer,
            access: AccessFlags::all(),
            av: AddressVector::new(gid_of(2 - u8::from(host)), 0),
            max_rd_atomic: timing & 7,
            max_dest_rd_atomic: timing >> 3 & 7,
            min_rnr_timer: timing & 0x1f,
            timeout: timing & 0xf,
            retry_cnt: timing >> 5,
            rnr_retry: timing & 7,
            ..QpAttr::default()
        }
    }

    fn connect(&mut self, qps: [u8; 2], mtu: u8, timing: u8) {
        let numbers = [0, 1].map(|i| self.hosts[i].end(qps[i]).map(|end| end.qp.qpn()));
        let [Some(first), Some(second)] = numbers else { return };
        for (index, peer) in [(0, second), (1, first)] {
            let attr = self.attr(index == 1, timing, mtu, peer);
            let Some(end) = self.hosts[index].end(qps[index]) else { continue };
            for (state, mask) in steps_to_rts(end.qp.qp_type()) {
                let attr = QpAttr { state, ..attr };
                self.hosts[index].modify(self.now, qps[index], &attr, mask);
            }
        }
    }

    fn transmit(&mut self, from: bool, count: usize) {
        let mut buf = [0; Shard::MAX_PACKET];
        for _ in 0..count {
            let shard = &mut self.hosts[usize::from(from)].arena.shard;
            let Some(transmit) = shard.poll_transmit(self.now, &mut buf) else { break };
            let bytes = &buf[..transmit.len];
            let packet = Packet::parse(bytes).expect("what is sent is a packet");
            assert_eq!(packet.bth().dest_qpn, transmit.dest_qpn, "{packet}");
            assert_eq!(transmit.path.source, gid_of(1 + u8::from(from)), "{packet}");
            let inbox = &mut self.hosts[usize::from(!from)].inbox;
            if inbox.len() < UNDER_WAY {
                inbox.push((transmit.path, bytes.to_vec()));
            }
        }
    }

    fn deliver(&mut self, to: bool, count: usize) {
        let host = &mut self.hosts[usize::from(to)];
        let count = count.min(host.inbox.len());
        for (path, bytes) in host.inbox.drain(..count) {
            host.arena.shard.handle_packet(self.now, &path, &bytes);
        }
    }

    fn exchange(&mut self, times: u8) {
        for _ in 0..times {
            for host in [false, true] {
                self.transmit(host, 64);
                self.deliver(!host, UNDER_WAY);
                self.hosts[usize::from(!host)].poll();
            }
        }
    }

    /// Ends it all: everything is flushed, and nothing was touched that was not granted.
    fn finish(mut self) {
        self.exchange(4);
        for host in &mut self.hosts {
            let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
            for qp in 0..PAIRS as u8 {
                host.modify(self.now, qp, &attr, QpAttrMask::STATE);
            }
            host.ends.iter().flatten().for_each(|end| end.ledger.check_flushed());
            host.arena.check();
        }
        self.exchange(2);
        for host in &mut self.hosts {
            (0..PAIRS as u8).for_each(|qp| host.destroy(qp));
            assert!(!host.arena.shard.wants_transmit());
            host.arena.check();
            assert_eq!(host.srq.users(), 0);
        }
    }
}
