//! Random packets against random states: whatever a peer or a stranger sends, no byte changes but
//! those that were granted to it, and what is owed to it stays bounded.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::Host;
use gid_table::Gid;
use proptest::collection::vec;
use proptest::prelude::*;
use rxe_core::mem::{AccessFlags, DmaBuf};
use rxe_core::qp::{Mtu, QpAttr, QpAttrMask, QpCaps, QpState, QpType, steps_to_rts};
use rxe_core::wq::{RecvWr, RemoteAddr, SendData, SendFlags, SendOp, SendWr, Sge};
use rxe_core::{Counter, Path, Shard};
use rxe_wire::hdr::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, Rdeth, Reth, Xrceth,
};
use rxe_wire::opcode::ExtHeaders;
use rxe_wire::{
    Headers, LKey, Msn, Opcode, Operation, PKey, Position, Psn, QKey, Qpn, RKey, Syndrome,
};

const MTU: usize = 256;
const GUARD: u8 = 0xa5;
/// Length of each of the ranges below, and of the guard bytes before, between and behind them.
const LEN: usize = 1024;
/// What the peer may write to.
const OPEN: usize = LEN;
/// What it may only read.
const READABLE: usize = 3 * LEN;
/// What only the host itself uses: receives, and what it READs from the peer.
const INBOX: usize = 5 * LEN;
const TOTAL: usize = 7 * LEN;
const QKEY: QKey = QKey::new(0x1234);
const FIRST: Psn = Psn::new(0xff_fffa);

/// A host whose memory is mostly guard bytes, and the keys that there are for it.
struct Victim {
    host: Host,
    buf: Arc<DmaBuf>,
    keys: [RKey; 5],
    inbox: LKey,
    attr: QpAttr,
    /// The PSN that is next in turn, as an attacker learns it too.
    next: Psn,
}

/// Every address is that of the buffer, whatever the key.
fn victim(qp_type: QpType) -> Victim {
    let mut host = Host::with_type(1, qp_type, QpCaps::default());
    let buf = Arc::new(DmaBuf::zeroed(TOTAL));
    buf.write_at(0, &[GUARD; TOTAL]).unwrap();
    let (memory, other_pd) = (host.device.memory(), host.device.alloc_pd().unwrap());
    let local = AccessFlags::LOCAL_WRITE;
    let reads = local | AccessFlags::REMOTE_READ;
    let all = reads | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    let register = |pd, offset, access| {
        let iova = buf.addr() + offset as u64;
        memory.register(pd, buf.clone(), offset, LEN as u64, iova, access).unwrap()
    };
    let open = register(host.pd, OPEN, all).rkey;
    let inbox = register(host.pd, INBOX, local);
    let keys = [
        open,
        register(host.pd, READABLE, reads).rkey,
        inbox.rkey,
        register(other_pd, READABLE, all).rkey,
        RKey::new(open.get() ^ 0x40),
    ];
    let peer = Host::new(2);
    let attr = QpAttr {
        access: all,
        rq_psn: FIRST,
        sq_psn: FIRST,
        qkey: QKEY.get(),
        ..host.attr(&peer, 1, Mtu::M256)
    };
    host.connect(attr);
    Victim { host, buf, keys, inbox: inbox.lkey, attr, next: FIRST }
}

#[derive(Clone, Debug)]
enum Step {
    Packet(Hostile),
    Bytes(Vec<u8>),
    Recv(usize),
    Read(usize),
    Send(usize),
    Wait(u64),
    Transmit,
    State(QpState),
}

#[derive(Clone, Copy, Debug)]
struct Hostile {
    opcode: u8,
    /// Counted from the one that is next in turn.
    psn: i32,
    key: usize,
    offset: i64,
    /// The offset is that of its last byte, not of the first.
    is_end: bool,
    /// The length that it announces goes with what it brings.
    adds_up: bool,
    len: u32,
    payload: usize,
    pad: u8,
    ack_req: bool,
    fecn: bool,
    syndrome: u8,
    is_stranger: bool,
    qkey: QKey,
}

/// Around the edges of the ranges, of the first above all, and now and then anywhere.
fn offset() -> impl Strategy<Value = i64> {
    let (total, len) = (TOTAL as i64, LEN as i64);
    let near = prop_oneof![Just(len), Just(2 * len)];
    let near = (near, -2..3_i64).prop_map(|(at, by)| at + by);
    let edge = (0..8_i64, -9..10_i64).prop_map(move |(at, by)| at * len + by);
    prop_oneof![6 => near, 2 => edge, 3 => 0..total, 1 => any::<i64>()]
}

fn length() -> impl Strategy<Value = u32> {
    let edge = prop_oneof![Just(8_u32), Just(256), Just(512), Just(1024), Just(1025)];
    prop_oneof![4 => edge, 3 => 0..1100_u32, 1 => any::<u32>()]
}

fn hostile() -> impl Strategy<Value = Hostile> {
    let psn = prop_oneof![16 => Just(0), 4 => -4..9_i32, 1 => -0x80_0000..0x80_0000_i32];
    let range = (offset(), any::<bool>(), prop::bool::weighted(0.8));
    let key = prop_oneof![3 => Just(0_usize), 2 => 0..5_usize];
    let payload = prop_oneof![3 => Just(MTU), 1 => Just(8_usize), 3 => 0..300_usize];
    let qkey = prop_oneof![4 => Just(QKEY), 1 => any::<u32>().prop_map(QKey::new)];
    // WRITEs and atomics above all: FIRST, LAST, ONLY, fetch-and-add, ATOMIC WRITE.
    let changes = proptest::sample::select(vec![0x06, 0x08, 0x0a, 0x0a, 0x14, 0x1d]);
    let opcode = prop_oneof![4 => changes, 4 => 0..0x1f_u8, 1 => any::<u8>()];
    let what = (opcode, psn, key, range, length(), payload);
    let how =
        (0..4_u8, any::<bool>(), any::<bool>(), any::<u8>(), prop::bool::weighted(0.05), qkey);
    (what, how).prop_map(|((opcode, psn, key, range, len, payload), how)| {
        let (offset, is_end, adds_up) = range;
        let (pad, ack_req, fecn, syndrome, is_stranger, qkey) = how;
        // One in two pads as it should.
        let pad = if ack_req { payload.wrapping_neg() as u8 & 3 } else { pad };
        Hostile {
            opcode,
            psn,
            key,
            offset,
            is_end,
            adds_up,
            len,
            payload,
            pad,
            ack_req,
            fecn,
            syndrome,
            is_stranger,
            qkey,
        }
    })
}

fn step() -> impl Strategy<Value = Step> {
    let states = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Err];
    prop_oneof![
        30 => hostile().prop_map(Step::Packet),
        1 => vec(any::<u8>(), 0..90).prop_map(Step::Bytes),
        4 => (0..LEN).prop_map(Step::Recv),
        2 => (0..LEN).prop_map(Step::Read),
        2 => (0..LEN).prop_map(Step::Send),
        1 => (0..200_000_000_u64).prop_map(Step::Wait),
        4 => Just(Step::Transmit),
        1 => proptest::sample::select(states.to_vec()).prop_map(Step::State),
    ]
}

impl Hostile {
    /// The offset of the first byte, and the length that it announces.
    fn range(&self, opcode: Opcode) -> (i64, u32) {
        let is_first = opcode.info().is_some_and(|info| info.position == Position::First);
        let is_read = opcode.info().is_some_and(|info| info.operation == Operation::ReadRequest);
        let brought = self.payload as u32 + if is_first { 1 + self.len % 300 } else { 0 };
        let len = if self.adds_up && !is_read { brought } else { self.len };
        (self.offset.wrapping_sub(if self.is_end { len.into() } else { 0 }), len)
    }
}

impl Victim {
    fn bytes_of(&self, hostile: &Hostile, opcode: Opcode) -> Vec<u8> {
        let Hostile { psn, key, payload, pad, ack_req, fecn, syndrome, .. } = *hostile;
        let (offset, len) = hostile.range(opcode);
        let bth = Bth {
            opcode,
            pad,
            pkey: PKey::DEFAULT,
            fecn,
            dest_qpn: self.host.qp.qpn(),
            ack_req,
            psn: self.next.plus(psn as u32),
            ..Bth::default()
        };
        let Some(info) = opcode.info() else { return vec![opcode.get(); 60] };
        let has = |header| info.headers.contains(header);
        let (va, rkey) = (self.buf.addr().wrapping_add_signed(offset), self.keys[key]);
        let atomic = AtomicEth { va, rkey, swap_or_add: u64::from(len), compare: 0 };
        let aeth = Aeth { syndrome: Syndrome::from_byte(syndrome), msn: Msn::new(1) };
        let deth = Deth { qkey: hostile.qkey, source_qpn: Qpn::new(7), reserved: 0 };
        let headers = Headers {
            rdeth: has(ExtHeaders::RDETH).then(Rdeth::default),
            deth: has(ExtHeaders::DETH).then_some(deth),
            xrceth: has(ExtHeaders::XRCETH).then(Xrceth::default),
            feth: has(ExtHeaders::FETH).then(Feth::default),
            reth: has(ExtHeaders::RETH).then_some(Reth { va, rkey, len }),
            atomic: has(ExtHeaders::ATOMIC_ETH).then_some(atomic),
            aeth: has(ExtHeaders::AETH).then_some(aeth),
            atomic_ack: has(ExtHeaders::ATOMIC_ACK_ETH).then(AtomicAckEth::default),
            imm: has(ExtHeaders::IMM_DT).then_some(ImmDt(len)),
            ieth: has(ExtHeaders::IETH).then_some(Ieth(rkey)),
            ..Headers::new(bth)
        };
        let mut bytes = vec![0; 128];
        let header_len = headers.write(&mut bytes).unwrap();
        bytes.truncate(header_len);
        bytes.resize(header_len + payload + usize::from(pad), 0xc3);
        bytes
    }

    fn receive(&mut self, source: Gid, bytes: &[u8]) {
        let path = Path::new(source, self.host.gid);
        self.host.shard.handle_packet(self.host.now, &path, bytes);
    }

    /// A packet of the queue pair's own service, mostly.
    fn hit(&mut self, hostile: &Hostile) {
        let opcode = Opcode::new(hostile.opcode);
        let opcode = match (hostile.opcode, self.host.qp.qp_type()) {
            (0..=0x1f, QpType::Uc) => opcode.in_service(rxe_wire::Service::Uc),
            (0..=0x1f, QpType::Ud) => Opcode::new(0x64 + hostile.opcode % 2),
            _ => opcode,
        };
        let bytes = self.bytes_of(hostile, opcode);
        let peer = self.attr.av.dgid;
        let stranger = Gid::from_ip([10, 0, 0, 77].into());
        let refused = self.refused();
        self.receive(if hostile.is_stranger { stranger } else { peer }, &bytes);
        if hostile.psn == 0 && self.refused() == refused {
            let is_read = opcode.info().is_some_and(|i| i.operation == Operation::ReadRequest);
            let packets =
                if is_read { hostile.range(opcode).1.div_ceil(MTU as u32).max(1) } else { 1 };
            self.next = self.next.plus(packets);
        }
    }

    /// How many packets it has not taken.
    fn refused(&self) -> u64 {
        let counters = self.host.device.counters();
        let is_refusal = |(counter, _): &(Counter, u64)| {
            let name = counter.name();
            name.starts_with("drop_") || name.ends_with("_request") || name == "send_rnr_err"
        };
        counters.iter().filter(is_refusal).map(|(_, count)| count).sum()
    }

    fn sge(&self, at: usize) -> Sge {
        let addr = self.buf.addr() + (INBOX + at) as u64;
        Sge { addr, length: (LEN - at) as u32, lkey: self.inbox }
    }

    /// Posts where the state and the service allow it.
    fn post(&mut self, at: usize, op: SendOp) {
        let sges = [self.sge(at)];
        let (flags, data) = (SendFlags::SIGNALED, SendData::Sges(&sges));
        let request = SendWr { wr_id: 1, op, flags, data, srq_number: None };
        if self.host.qp.post_send(&request).is_ok() {
            self.host.shard.kick(self.host.now, self.host.qp.qpn());
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Packet(hostile) => {
                // It goes on with another connection, mostly.
                if self.host.qp.state() == QpState::Err && hostile.ack_req {
                    self.go_to(QpState::Rts);
                }
                self.hit(hostile);
            }
            Step::Bytes(bytes) => self.receive(self.attr.av.dgid, bytes),
            Step::Recv(at) => {
                let sges = [self.sge(*at)];
                if let Ok(true) = self.host.qp.post_recv(RecvWr { wr_id: 2, sges: &sges }) {
                    self.host.shard.kick(self.host.now, self.host.qp.qpn());
                }
            }
            Step::Read(at) => {
                let remote = RemoteAddr { addr: 0x1000, rkey: RKey::new(5) };
                self.post(*at, SendOp::Read { remote });
            }
            Step::Send(at) => self.post(*at, SendOp::Send { imm: None }),
            Step::Wait(nanos) => {
                self.host.now = self.host.now.plus_nanos(*nanos);
                self.host.shard.handle_timeout(self.host.now);
            }
            Step::Transmit => drop(self.owed()),
            Step::State(state) => self.go_to(*state),
        }
        self.host.completions();
    }

    /// Moves to a state, through RESET where that is the only way.
    fn go_to(&mut self, state: QpState) {
        let (qpn, now) = (self.host.qp.qpn(), self.host.now);
        let reset = QpAttr { state: QpState::Reset, ..self.attr };
        if state == QpState::Err {
            let error = QpAttr { state, ..self.attr };
            // From RESET there is no way to ERR.
            let _ = self.host.shard.modify_qp(now, qpn, &error, QpAttrMask::STATE);
            return;
        }
        self.host.shard.modify_qp(now, qpn, &reset, QpAttrMask::STATE).unwrap();
        self.next = FIRST;
        for (next, mask) in steps_to_rts(self.host.qp.qp_type()) {
            if self.host.qp.state() == state {
                return;
            }
            self.host.modify(QpAttr { state: next, ..self.attr }, mask);
        }
    }

    /// Packets that it sends now, as far as they are few.
    fn owed(&mut self) -> usize {
        let mut buf = vec![0; Shard::MAX_PACKET];
        let mut count = 0;
        while count < 10_000 && self.host.shard.poll_transmit(self.host.now, &mut buf).is_some() {
            count += 1;
        }
        count
    }

    /// The first place where a byte has changed that nobody may change.
    fn damage(&self) -> Option<usize> {
        let mut bytes = vec![0; TOTAL];
        self.buf.read_at(0, &mut bytes).unwrap();
        let may_change =
            |at: &usize| (OPEN..OPEN + LEN).contains(at) || (INBOX..INBOX + LEN).contains(at);
        (0..TOTAL).find(|at| bytes[*at] != GUARD && !may_change(at))
    }
}

fn service() -> impl Strategy<Value = QpType> {
    prop_oneof![4 => Just(QpType::Rc), 2 => Just(QpType::Uc), 1 => Just(QpType::Ud)]
}

proptest! {
    #[test]
    fn no_byte_changes_but_those_granted(qp_type in service(), steps in vec(step(), 1..120)) {
        let mut victim = victim(qp_type);
        for step in &steps {
            victim.step(step);
            prop_assert_eq!(victim.damage(), None, "{:?}", step);
        }
    }

    /// Whoever sends without taking what is owed gets no more than so much of it: two answers of
    /// 1 KiB for each READ that may be outstanding, with an ACK and a NAK behind each.
    #[test]
    fn what_is_owed_to_a_peer_is_bounded(packets in vec(hostile(), 1..400)) {
        let mut victim = victim(QpType::Rc);
        let outstanding = usize::from(victim.attr.max_dest_rd_atomic);
        for hostile in &packets {
            // In its turn again and again, as far as it goes.
            victim.hit(&Hostile { len: hostile.len % 1025, is_stranger: false, ..*hostile });
        }
        let owed = victim.owed();
        let most = 2 * outstanding * (LEN.div_ceil(MTU) + 1 + 2) + 2;
        prop_assert!(owed <= most, "{owed} packets, at most {most}");
    }
}

#[test]
fn r26_floods_of_one_kind_owe_no_more_than_one_answer_for_each_that_is_allowed() {
    let open = OPEN as i64;
    let base = Hostile {
        opcode: Opcode::RC_READ_REQUEST.get(),
        psn: 0,
        key: 0,
        offset: open,
        is_end: false,
        adds_up: false,
        len: LEN as u32,
        payload: 0,
        pad: 0,
        ack_req: true,
        fecn: false,
        syndrome: 0,
        is_stranger: false,
        qkey: QKEY,
    };
    let send = Hostile { opcode: Opcode::RC_SEND_ONLY.get(), ..base };
    let add = Hostile { opcode: Opcode::RC_FETCH_ADD.get(), ..base };
    let ahead = Hostile { psn: 100, ..send };
    let old = Hostile { psn: -1, ..send };
    // What is owed after one packet of a kind, and after 50,000.
    for (kind, most) in [(base, 8), (add, 2), (send, 1), (ahead, 1), (old, 1)] {
        let mut victim = victim(QpType::Rc);
        for _ in 0..50_000 {
            victim.next = FIRST;
            victim.hit(&kind);
        }
        let owed = victim.owed();
        assert!((1..=most).contains(&owed), "{owed} for {kind:?}");
    }
}
