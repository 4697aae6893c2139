//! Two engines, a network between them, and a random sequence of operations.

use std::collections::BTreeSet;
use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use rxe_core::ah::{AddressHandle, Destination};
use rxe_core::mem::AccessFlags;
use rxe_core::qp::{
    AddressVector, GSI_QKEY, GSI_QPN, Mtu, QpAttr, QpAttrMask, QpCaps, QpInit, QpState, QpType,
    steps_to_rts,
};
use rxe_core::srq::{SrqAttr, SrqId, SrqInit, XrcSrq};
use rxe_core::wc::WcStatus;
use rxe_core::wq::{FlushLevel, RecvWr, RemoteAddr, SendData, SendFlags, SendOp, SendWr, Sge};
use rxe_core::{Instant, Path, QueuePair, Shard, SharedReceiveQueue, XrcDomain};
use rxe_wire::hdr::FlushPlacement;
use rxe_wire::{FlowNote, Packet, Psn, QKey, Qpn};

use super::arena::{Arena, Zone, gid_of};
use super::keys::{Keys, Numbers};
use super::ledger::Ledger;
use super::packets::QKEY;

/// Operations of one input at most.
const STEPS: usize = 512;
/// Queue pairs of a host at most.
const PAIRS: usize = 4;
/// Packets under way at most, each way; more are lost.
const UNDER_WAY: usize = 512;

/// One operation. `host` is 0 or 1, `qp` one of its queue pairs, by their low bits.
///
/// The inputs choose one by a number of 32 bits, scaled to how many there are: whoever adds one
/// writes the stored inputs anew.
#[derive(Arbitrary, Debug)]
enum Op {
    Create {
        host: bool,
        qp: u8,
        service: u8,
        shared: bool,
        sig_all: bool,
    },
    Connect {
        qps: [u8; 2],
        mtu: u8,
        timing: u8,
    },
    Modify {
        host: bool,
        qp: u8,
        state: u8,
        mask: u32,
        attr: u8,
    },
    Destroy {
        host: bool,
        qp: u8,
    },
    Send {
        host: bool,
        qp: u8,
        op: u8,
        imm: Option<u32>,
        flags: u8,
        length: u16,
        places: Places,
    },
    Receive {
        host: bool,
        qp: u8,
        shared: bool,
        zone: u8,
        offset: u16,
        length: u16,
    },
    Transmit {
        host: bool,
        count: u8,
    },
    Deliver {
        to: bool,
        count: u8,
    },
    Swap {
        to: bool,
        at: u8,
    },
    Drop {
        to: bool,
        at: u8,
    },
    Repeat {
        to: bool,
        at: u8,
    },
    Corrupt {
        to: bool,
        at: u8,
        byte: u16,
        xor: u8,
    },
    Advance {
        log2: u8,
    },
    Exchange {
        times: u8,
    },
    Revoke {
        host: bool,
    },
    /// Makes a queue pair on either host, where there is none, and connects them.
    Pair {
        host: bool,
        qp: u8,
        service: u8,
        mtu: u8,
        timing: u8,
    },
    /// Sends a datagram to one of the peer's queue pairs.
    Datagram {
        host: bool,
        qps: [u8; 2],
        qkey: u8,
        imm: Option<u32>,
        flags: u8,
        length: u16,
        at: At,
    },
    /// Posts what `Send` does not, or for a key that comes and goes.
    Extended {
        host: bool,
        qp: u8,
        op: u8,
        imm: Option<u32>,
        flags: u8,
        length: u16,
        places: Places,
    },
    /// Posts a request about a key of the own host.
    Local {
        host: bool,
        qp: u8,
        flags: u8,
        numbers: Numbers,
    },
    /// Posts a receive to the shared queue for extended reliable connections.
    ReceiveXrc {
        host: bool,
        at: At,
        length: u16,
    },
}

/// A place in the own memory.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct At {
    zone: u8,
    offset: u16,
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
    let _ = run_hosts(input);
}

/// Does what the input says; the hosts, with what was reached.
fn run_hosts(input: &[u8]) -> [Host; 2] {
    let mut u = Unstructured::new(input);
    let mut world = World::new();
    for _ in 0..STEPS {
        if u.is_empty() {
            break;
        }
        let Ok(op) = Op::arbitrary(&mut u) else { break };
        world.apply(&op);
    }
    world.finish()
}

/// What is sent, and for which shared receive queues of the peer: the one for it, and another.
struct Wanted {
    flags: u8,
    length: u16,
    at: At,
    srqs: [SrqId; 2],
}

fn service_number(number: u8) -> QpType {
    QpType::ALL[usize::from(number) % QpType::ALL.len()]
}

struct End {
    qp: Arc<QueuePair>,
    ledger: Ledger,
}

struct Host {
    arena: Arena,
    srq: Arc<SharedReceiveQueue>,
    /// Of extended reliable connections.
    xrc_srq: Arc<SharedReceiveQueue>,
    xrcd: Arc<XrcDomain>,
    /// The receives of both.
    shared: Ledger,
    keys: Keys,
    /// The peer's address.
    peer: Arc<AddressHandle>,
    ends: [Option<End>; PAIRS],
    /// What is on its way to it.
    inbox: Vec<(Path, Vec<u8>)>,
    /// Which operations succeeded, on which service.
    done: BTreeSet<(u32, u32)>,
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
        let xrcd = arena.device.open_xrcd().expect("the first one");
        let xrc = Some(XrcSrq { xrcd: xrcd.clone(), cq: arena.cq.clone() });
        let init = SrqInit { xrc, ..SrqInit::new(arena.pd, attr) };
        let xrc_srq = arena.device.create_srq(&init).expect("the second one");
        let av = AddressVector::new(gid_of(3 - number), 0);
        let peer = arena.device.create_ah(arena.pd, &av).expect("the first one");
        let keys = Keys::new(&arena);
        let (shared, ends) = (Ledger::default(), Default::default());
        Self {
            arena,
            srq,
            xrc_srq,
            xrcd,
            shared,
            keys,
            peer,
            ends,
            inbox: Vec::new(),
            done: BTreeSet::new(),
        }
    }

    fn end(&mut self, qp: u8) -> Option<&mut End> {
        self.ends[usize::from(qp) % PAIRS].as_mut()
    }

    fn create(&mut self, qp: u8, service: u8, shared: bool, signal_all: bool) {
        let place = usize::from(qp) % PAIRS;
        if self.ends[place].is_some() {
            return;
        }
        let qp_type = service_number(service);
        let caps =
            QpCaps { max_send_wr: 16, max_recv_wr: 16, max_inline_data: 64, ..QpCaps::default() };
        let srq = shared.then(|| self.srq.clone());
        let init = match qp_type {
            QpType::XrcRecv => QpInit::xrc_recv(&self.xrcd),
            _ => QpInit::new(qp_type, self.arena.pd, &self.arena.cq),
        };
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
            let qpn = end.qp.qpn();
            self.keys.forget(qpn);
        }
        done
    }

    fn destroy(&mut self, qp: u8) {
        self.poll();
        if let Some(end) = self.ends[usize::from(qp) % PAIRS].take() {
            self.arena.shard.destroy_qp(end.qp.qpn()).expect("it is in no group");
            self.keys.forget(end.qp.qpn());
        }
    }

    fn send(&mut self, now: Instant, qp: u8, op: SendOp, wanted: &Wanted) {
        let Wanted { flags, length, at, srqs } = *wanted;
        let zone = Zone::of(at.zone);
        let length = match op {
            // Those have none, or are refused.
            SendOp::Flush { .. } => 0,
            SendOp::AtomicWrite { .. } if length & 1 == 0 => 8,
            _ => u32::from(length) % 5000,
        };
        let sges = [self.arena.sge(zone, at.offset, length)];
        let inline = [3; 64];
        let Some(end) = self.ends[usize::from(qp) % PAIRS].as_mut() else { return };
        let data = match flags & 0x80 {
            0 => SendData::Sges(&sges),
            _ => SendData::Inline(&inline[..length as usize % 65]),
        };
        // Now and then a queue that is not for this.
        let srq_number = Some(srqs[usize::from(flags & 0x70 == 0x70)]);
        let flags = SendFlags::from_bits_truncate(u32::from(flags & 0x7f));
        let wr_id = end.ledger.send_id();
        if end.qp.post_send(&SendWr { wr_id, op, flags, data, srq_number }).is_ok() {
            let signaled = flags.contains(SendFlags::SIGNALED) || end.qp.init().signal_all;
            end.ledger.posted(wr_id, signaled);
            self.keys.posted(end.qp.qpn(), wr_id, &op);
            self.arena.shard.kick(now, end.qp.qpn());
        }
    }

    /// Posts a request about a key of this host; signaled, so that its end is known.
    fn send_local(&mut self, now: Instant, qp: u8, flags: u8, numbers: &Numbers) {
        let op = self.keys.request(&self.arena, numbers);
        let Some(end) = self.ends[usize::from(qp) % PAIRS].as_mut() else { return };
        let flags = SendFlags::from_bits_truncate(flags.into()) | SendFlags::SIGNALED;
        let (wr_id, data) = (end.ledger.send_id(), SendData::Sges(&[]));
        if end.qp.post_send(&SendWr { wr_id, op, flags, data, srq_number: None }).is_ok() {
            end.ledger.posted(wr_id, true);
            self.keys.posted(end.qp.qpn(), wr_id, &op);
            self.arena.shard.kick(now, end.qp.qpn());
        }
    }

    /// A place that a peer may name, in a zone or by a key that comes and goes.
    fn remote(&self, number: u8, offset: u16) -> RemoteAddr {
        if number & 0x80 == 0 {
            self.arena.remote(Zone::of(number), offset)
        } else {
            self.keys.remote(&self.arena, number, offset)
        }
    }

    fn receive(&mut self, now: Instant, qp: u8, shared: bool, sge: Sge) {
        let sges = &[sge];
        if shared {
            return self.receive_shared(&self.srq.clone(), sge);
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

    fn receive_shared(&mut self, srq: &SharedReceiveQueue, sge: Sge) {
        let wr_id = self.shared.shared_id();
        if srq.post_recv(RecvWr { wr_id, sges: &[sge] }).is_ok() {
            self.shared.posted(wr_id, true);
        }
    }

    fn poll(&mut self) {
        let mut completions = Vec::new();
        self.arena.cq.poll(usize::MAX, &mut completions);
        for wc in &completions {
            self.keys.completed(wc);
            let end = self.ends.iter_mut().flatten().find(|end| end.qp.qpn() == wc.qpn);
            let end = end.unwrap_or_else(|| panic!("of no queue pair: {wc:?}"));
            if wc.status == WcStatus::Success {
                self.done.insert((end.qp.qp_type() as u32, wc.opcode as u32));
            }
            match Ledger::is_shared(wc.wr_id) {
                true => self.shared.completed(wc),
                false => end.ledger.completed(wc),
            }
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
                let at = At { zone: places.local, offset: places.local_offset };
                self.send(host, qp, op, flags, length, at);
            }
            Op::Pair { host, qp, service, mtu, timing } => {
                self.pair(host, qp, service, mtu, timing);
            }
            Op::Datagram { host, qps, qkey, imm, flags, length, at } => {
                let op = SendOp::SendTo { to: self.datagram_to(host, qps[1], qkey), imm };
                self.send(host, qps[0], op, flags, length, at);
            }
            Op::Extended { host, qp, op, imm, flags, length, ref places } => {
                let op = self.extended(host, op, imm, length, places);
                let at = At { zone: places.local, offset: places.local_offset };
                self.send(host, qp, op, flags, length, at);
            }
            Op::Local { host, qp, flags, ref numbers } => {
                self.hosts[usize::from(host)].send_local(now, qp, flags, numbers);
            }
            Op::ReceiveXrc { host, at, length } => {
                let host = &mut self.hosts[usize::from(host)];
                let sge = host.arena.sge(Zone::of(at.zone), at.offset, u32::from(length) % 9000);
                host.receive_shared(&host.xrc_srq.clone(), sge);
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

    fn send(&mut self, host: bool, qp: u8, op: SendOp, flags: u8, length: u16, at: At) {
        let peer = &self.hosts[usize::from(!host)];
        let wanted = Wanted { flags, length, at, srqs: [peer.xrc_srq.id(), peer.srq.id()] };
        self.hosts[usize::from(host)].send(self.now, qp, op, &wanted);
    }

    /// Where a datagram of `host` goes.
    fn datagram_to(&mut self, host: bool, qp: u8, qkey: u8) -> Destination {
        let peer = self.hosts[usize::from(!host)].end(qp).map(|end| end.qp.qpn());
        let qkey = match qkey % 8 {
            0 => QKey::new(qkey.into()),
            // The sender's own.
            1 => QKey::new(1 << 31),
            2 | 3 => GSI_QKEY,
            _ => QKey::new(QKEY),
        };
        self.hosts[usize::from(host)].peer.to(peer.unwrap_or(GSI_QPN), qkey)
    }

    fn extended(
        &self,
        host: bool,
        op: u8,
        imm: Option<u32>,
        length: u16,
        places: &Places,
    ) -> SendOp {
        let remote = self.hosts[usize::from(!host)].remote(places.remote, places.remote_offset);
        let length = u32::from(length);
        let placement = match op & 0x80 {
            0 => FlushPlacement::GLOBAL_VISIBILITY,
            _ => FlushPlacement::GLOBAL_VISIBILITY | FlushPlacement::PERSISTENCE,
        };
        match op % 8 {
            0 => SendOp::AtomicWrite { remote },
            1 => SendOp::Flush { remote, length, placement, level: FlushLevel::Range },
            2 => SendOp::Flush { remote, length, placement, level: FlushLevel::Region },
            3 => SendOp::SendInvalidate { rkey: remote.rkey },
            4 => SendOp::Read { remote },
            5 => SendOp::FetchAdd { remote, add: length.into() },
            _ => SendOp::Write { remote, imm },
        }
    }

    fn pair(&mut self, host: bool, qp: u8, service: u8, mtu: u8, timing: u8) {
        self.hosts[usize::from(host)].create(qp, service, false, true);
        let numbers = |qp_type| QpType::ALL.iter().position(|&other| other == qp_type);
        let peer = match service_number(service) {
            QpType::XrcSend => numbers(QpType::XrcRecv),
            QpType::XrcRecv => numbers(QpType::XrcSend),
            same => numbers(same),
        };
        let peer = peer.expect("it is one of all") as u8;
        self.hosts[usize::from(!host)].create(qp, peer, false, true);
        self.connect([qp, qp], mtu, timing);
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
            assert_eq!(transmit.path.source, gid_of(1 + u8::from(from)), "{bytes:?}");
            if FlowNote::read(bytes).is_none() {
                let packet = Packet::parse(bytes).expect("what is sent is a packet");
                assert_eq!(packet.bth().dest_qpn, transmit.dest_qpn, "{packet}");
            }
            let inbox = &mut self.hosts[usize::from(!from)].inbox;
            if inbox.len() < UNDER_WAY {
                inbox.push((transmit.path, bytes.to_vec()));
            }
        }
        let shard = &self.hosts[usize::from(from)].arena.shard;
        assert_eq!(shard.stalled_qp(), None, "it waits for what may never come");
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
    fn finish(mut self) -> [Host; 2] {
        self.exchange(4);
        for host in &mut self.hosts {
            let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
            for qp in 0..PAIRS as u8 {
                host.modify(self.now, qp, &attr, QpAttrMask::STATE);
            }
            host.ends.iter().flatten().for_each(|end| end.ledger.check_flushed());
            host.arena.check();
            host.keys.check();
        }
        self.exchange(2);
        for host in &mut self.hosts {
            (0..PAIRS as u8).for_each(|qp| host.destroy(qp));
            assert!(!host.arena.shard.wants_transmit());
            host.arena.check();
            host.keys.check();
            assert_eq!((host.srq.users(), host.xrc_srq.users()), (0, 0));
            // The shared receive queue is still in it.
            assert_eq!(host.xrcd.users(), 1);
        }
        self.hosts
    }
}

#[cfg(test)]
mod tests {
    use rxe_core::wc::WcOpcode;

    use super::super::corpus;
    use super::*;

    #[test]
    fn the_stored_inputs_reach_every_operation() {
        let mut done = BTreeSet::new();
        for input in corpus("two_engines") {
            run_hosts(&input).into_iter().for_each(|host| done.extend(host.done));
        }
        let sends = [WcOpcode::Send, WcOpcode::RdmaWrite, WcOpcode::RdmaRead, WcOpcode::FetchAdd];
        let more = [WcOpcode::AtomicWrite, WcOpcode::Flush];
        let locals = [WcOpcode::BindMw, WcOpcode::LocalInv];
        let expected = [
            (QpType::Rc, sends.as_slice()),
            (QpType::Rc, &more),
            (QpType::Rc, &locals),
            (QpType::Rc, &[WcOpcode::RegMr, WcOpcode::Recv]),
            (QpType::Uc, &locals),
            (QpType::XrcSend, &sends),
            (QpType::XrcSend, &more),
            (QpType::XrcRecv, &[WcOpcode::Recv, WcOpcode::RecvRdmaWithImm]),
            (QpType::Ud, &[WcOpcode::Send, WcOpcode::Recv]),
            (QpType::Gsi, &[WcOpcode::Send, WcOpcode::Recv]),
        ];
        for (service, opcodes) in expected {
            for &opcode in opcodes {
                let reached = done.contains(&(service as u32, opcode as u32));
                assert!(reached, "no stored input makes {opcode:?} succeed on {service:?}");
            }
        }
    }
}
