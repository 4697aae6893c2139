//! The victim: a queue pair whose peer is an attacker, what it grants, and what must not change.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ibverbs_api::*;
use rxe_wire::hdr::Reth;
use rxe_wire::{Opcode, Packet};

use crate::attacker::{Attacker, Forged};
use crate::common::*;

/// Bytes of what is granted to the peer, in the midst of a buffer of three times as much.
pub const GRANTED: usize = 4096;
/// Bytes of a receive, in the midst of a buffer of three times as much.
pub const RECEIVE: usize = 1024;
pub const MTU: Mtu = Mtu::M256;
/// The first PSN of either direction: it wraps after 16 packets.
pub const FIRST: Psn = Psn::new(0xff_fff0);
pub const KEY: QKey = QKey::new(0x1234_5678);
const GUARD: u8 = 0xa5;

/// The victim, the attacker that it takes for its peer, and two ends that have nothing to do with
/// either but share the victim's device.
pub struct Victim {
    pub end: End,
    pub peer: Attacker,
    pub granted: MemoryRegion,
    inbox: MemoryRegion,
    /// Memory under keys that grant less, each full of guard bytes.
    pub local_only: MemoryRegion,
    pub read_only: MemoryRegion,
    pub write_only: MemoryRegion,
    /// All access, but in another protection domain.
    pub other_pd: MemoryRegion,
    bystanders: [End; 2],
    /// Of an XRC target: the queue that its receives are posted to, and the domain.
    xrc: Option<(SharedReceiveQueue, XrcDomain)>,
    access: AccessFlags,
    sent: Cell<u64>,
    // Dropped last. Links count packets by address, so one test at a time has it, where they have no
    // namespaces of their own.
    _alone: MutexGuard<'static, ()>,
}

/// An XRC target, with a shared receive queue in its domain.
fn target(context: &Context) -> (End, Option<(SharedReceiveQueue, XrcDomain)>) {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64, None, 0).unwrap();
    let xrcd = context.open_xrcd(0).unwrap();
    let attr = SrqAttr { max_wr: 16, max_sge: 1, srq_limit: 0 };
    let srq = pd.create_xrc_srq(attr, &xrcd, &cq).unwrap();
    let qp = xrcd.create_qp().unwrap();
    (End { qp, cq, pd, context: context.clone() }, Some((srq, xrcd)))
}

impl Victim {
    pub fn new(qp_type: QpType) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let setup = Setup { qp_type, mtu: MTU, ..Setup::default() };
        let (end, xrc) = match qp_type {
            QpType::XrcRecv => target(&open()),
            _ => (End::new(&open(), &setup, None), None),
        };
        let local = AccessFlags::LOCAL_WRITE;
        let guard = |pd: &ProtectionDomain, access| {
            let region = pd.register(DmaBuf::zeroed(GRANTED), access).unwrap();
            region.buffer().write_at(0, &[GUARD; GRANTED]).unwrap();
            region
        };
        let others = end.context.alloc_pd().unwrap();
        let buffer = DmaBuf::zeroed(3 * GRANTED);
        buffer.write_at(0, &[GUARD; 3 * GRANTED]).unwrap();
        buffer.write_at(GRANTED, &[0; GRANTED]).unwrap();
        let (range, iova) = (GRANTED..2 * GRANTED, buffer.addr() + GRANTED as u64);
        let granted = end.pd.register_range(buffer, range, iova, ALL).unwrap();
        let inbox = end.pd.register(DmaBuf::zeroed(3 * RECEIVE), local).unwrap();
        inbox.buffer().write_at(0, &[GUARD; 3 * RECEIVE]).unwrap();
        let plain = Setup::default();
        let bystanders = [(); 2].map(|()| End::new(&end.context, &plain, None));
        let [near, far] = &bystanders;
        connect(&plain, (&near.context, &near.qp), (&far.context, &far.qp));
        let victim = Self {
            local_only: guard(&end.pd, local),
            read_only: guard(&end.pd, local | AccessFlags::REMOTE_READ),
            write_only: guard(&end.pd, local | AccessFlags::REMOTE_WRITE),
            other_pd: guard(&others, ALL),
            granted,
            inbox,
            peer: Attacker::new(),
            bystanders,
            xrc,
            access: ALL,
            sent: Cell::new(0),
            end,
            _alone: alone,
        };
        victim.restart();
        victim
    }

    /// Starts the queue pair anew: connected to the attacker, one receive posted, nothing to tell.
    pub fn restart(&self) {
        let qp = &self.end.qp;
        let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
        if qp.state() != QpState::Reset {
            qp.modify(&reset, QpAttrMask::STATE).unwrap();
        }
        match qp.qp_type() {
            QpType::Ud | QpType::Gsi => qp.start_datagrams(1, KEY).unwrap(),
            _ => {
                let setup = Setup { mtu: MTU, ..Setup::default() };
                let attr = attr_to(&setup, &self.end.context, self.peer.gid(), Qpn::new(0x77));
                let attr = ConnectAttr { access: self.access, max_rd_atomic: 4, ..attr };
                qp.connect(&attr).unwrap();
            }
        }
        self.refill();
        self.end.cq.poll(usize::MAX, &mut Vec::new());
        self.peer.take();
        while self.end.context.take_event().is_some() {}
    }

    /// Sets what the peer may do through the queue pair, and starts that anew.
    pub fn set_access(&mut self, access: AccessFlags) {
        self.access = access;
        self.restart();
    }

    /// Posts a receive, in the midst of guard bytes, which is all zeros.
    pub fn refill(&self) {
        self.inbox.buffer().write_at(RECEIVE, &[0; RECEIVE]).unwrap();
        let sges = [self.inbox.sge(RECEIVE..2 * RECEIVE)];
        match &self.xrc {
            // What is posted there outlives the connection; all receives are alike.
            Some((srq, _)) => match srq.post_recv(RecvWr { wr_id: 1, sges: &sges }) {
                Ok(()) | Err(PostRecvError::Full { .. }) => {}
                Err(error) => panic!("{error}"),
            },
            None => self.end.recv(1, &sges),
        }
    }

    pub fn qpn(&self) -> Qpn {
        self.end.qp.qpn()
    }

    /// A packet in its turn, about the first bytes of what is granted.
    pub fn forge(&self, opcode: u8) -> Forged {
        let RemoteAddr { addr: va, rkey } = self.granted.remote_addr(0);
        Forged {
            reth: Reth { va, rkey, len: 0 },
            qkey: KEY,
            srqn: self.xrc.as_ref().map_or(0, |(srq, _)| srq.id().0),
            ..Forged::new(opcode, self.qpn(), FIRST)
        }
    }

    /// Lets the attacker send a packet, and waits until the victim has dealt with it.
    pub fn hit(&self, forged: &Forged) {
        self.hit_with(&forged.bytes());
    }

    pub fn hit_with(&self, packet: &[u8]) {
        self.peer.send(packet);
        self.settle(1);
    }

    /// Waits until `count` more packets have been dealt with.
    pub fn settle(&self, count: u64) {
        let wanted = self.sent.get() + count;
        self.sent.set(wanted);
        let start = std::time::Instant::now();
        while self.arrived() < wanted {
            // Runs the shard, and takes none of the victim's completions.
            self.bystanders[0].cq.poll(1, &mut Vec::new());
            assert!(start.elapsed() < LONG, "{} of {wanted} packets arrived", self.arrived());
            std::thread::yield_now();
        }
    }

    /// Packets that the link has judged: all from attackers, as long as the bystanders are silent.
    fn arrived(&self) -> u64 {
        let link = self.end.context.link_counters();
        link.received + link.icrc_errors + link.malformed + link.foreign
    }

    /// The events of the victim, all that wait.
    pub fn events(&self) -> Vec<AsyncEvent> {
        std::iter::from_fn(|| self.end.context.take_event()).collect()
    }

    pub fn is_alive(&self) -> bool {
        self.end.qp.state() == QpState::Rts
    }

    pub fn counter(&self, counter: Counter) -> u64 {
        self.end.context.counter(counter)
    }

    /// What is granted, as it is now.
    pub fn granted_bytes(&self) -> Vec<u8> {
        read(self.granted.buffer(), GRANTED, GRANTED)
    }

    /// Writes to the start of what is granted.
    pub fn fill_granted(&self, bytes: &[u8]) {
        self.granted.buffer().write_at(GRANTED, bytes).unwrap();
    }

    /// What was received, as it is now.
    pub fn inbox_bytes(&self) -> Vec<u8> {
        read(self.inbox.buffer(), RECEIVE, RECEIVE)
    }

    /// Nothing has changed that the attacker has no right to.
    pub fn check_guards(&self, what: &dyn std::fmt::Debug) {
        let Self { granted, local_only, read_only, write_only, other_pd, inbox, .. } = self;
        for region in [local_only, read_only, write_only, other_pd] {
            let bytes = read(region.buffer(), 0, GRANTED);
            assert!(bytes.iter().all(|&byte| byte == GUARD), "guard bytes changed: {what:?}");
        }
        for (region, len) in [(inbox, RECEIVE), (granted, GRANTED)] {
            for offset in [0, 2 * len] {
                let bytes = read(region.buffer(), offset, len);
                assert!(bytes.iter().all(|&byte| byte == GUARD), "beside a range: {what:?}");
            }
        }
    }

    /// The queue pair still works for its true peer: a WRITE in its turn is done and acknowledged.
    pub fn still_serves(&self, psn: Psn) {
        self.peer.take();
        let mut write = Forged { psn, tail: 8, ..self.forge(Opcode::RC_WRITE_ONLY.get()) };
        write.reth.len = 8;
        write.reth.va += (GRANTED - 8) as u64;
        self.granted.buffer().write_at(2 * GRANTED - 8, &[0; 8]).unwrap();
        self.hit(&write);
        assert_eq!(self.granted_bytes()[GRANTED - 8..], [Forged::FILL; 8]);
        let answers = self.answers();
        let last = Packet::parse(answers.last().unwrap()).unwrap();
        assert_eq!(last.bth().opcode, Opcode::RC_ACKNOWLEDGE);
        assert!(last.aeth().unwrap().syndrome.is_ack());
        assert_eq!(last.bth().psn, psn);
    }

    /// What the peer gets, once there is something: an acknowledgement may wait some microseconds for
    /// what the program posts.
    fn answers(&self) -> Vec<Vec<u8>> {
        let start = std::time::Instant::now();
        loop {
            let answers = self.peer.take();
            if !answers.is_empty() {
                return answers;
            }
            assert!(start.elapsed() < LONG, "no acknowledgement");
            self.bystanders[0].cq.poll(1, &mut Vec::new());
            std::thread::yield_now();
        }
    }

    /// In the end: others have not noticed anything.
    pub fn finish(self) {
        self.check_guards(&"at the end");
        let [near, far] = &self.bystanders;
        let (from, to) = (near.register(10_000), far.register(10_000));
        let bytes = pattern(10_000, 7);
        from.buffer().write_at(0, &bytes).unwrap();
        far.recv(2, &[to.sge(0..10_000)]);
        near.post(1, SEND, &[from.sge(0..10_000)]);
        near.done();
        far.done();
        assert_same(&read(to.buffer(), 0, 10_000), &bytes, "between others");
    }
}
