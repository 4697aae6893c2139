//! Measurements of the engine by itself: two engines and what lies between them.
//!
//! No sockets, no clock, no iCRC. Everything is the same on every run: seeds, times, places in
//! memory. `cargo bench -p rxe-bench` times the inner loops; the test `instructions` has valgrind
//! count the instructions of `fixed_sequence`, and compares them with those kept.
#![forbid(unsafe_code)]

use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

use gid_table::{Gid, GidTable, GidType, WantedGid};
use rxe_core::mem::{AccessFlags, DmaBuf, MrKeys};
use rxe_core::path::Path;
use rxe_core::qp::{AddressVector, Mtu, QpAttr, QpCaps, QpInit, QpType, RC_TO_RTS};
use rxe_core::wc::WorkCompletion;
use rxe_core::wq::{RecvWr, RemoteAddr, SendData, SendFlags, SendOp, SendWr, Sge};
use rxe_core::{
    CompletionQueue, Device, DeviceConfig, Instant, PacketRun, Port, QueuePair, Seed, Shard,
};

/// What measurements end with.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Bytes of the memory of an end.
const BUF_LEN: usize = 1 << 20;
/// Bytes that a link wants behind each packet.
const GAP: usize = 4;
/// Packets of a run at most, as of a segmented send.
const RUN: u32 = 62;
/// Bytes that a run may take.
const RUN_LEN: usize = 64 << 10;
/// Bytes that an end takes in together, as a link gives them.
const TOGETHER: usize = 16 << 10;
/// From one message to the next, in nanoseconds: far from any timer.
const STEP: u64 = 20_000;

/// One end of a connection.
#[derive(Debug)]
pub struct End {
    /// The engine.
    pub shard: Shard,
    qp: Arc<QueuePair>,
    cq: Arc<CompletionQueue>,
    buf: Arc<DmaBuf>,
    keys: MrKeys,
    gid: Gid,
    posted: u64,
}

impl End {
    fn new(number: u8) -> Result<Self> {
        let gid = Gid::from_ip([10, 0, 0, number].into());
        let mut gids = GidTable::new(1, 16);
        gids.add(WantedGid { gid, gid_type: GidType::RoceV2, ifindex: 1, owned: true })?;
        let config = DeviceConfig::new(Seed::for_test(number.into()));
        let device = Device::new(config, vec![Port::new(gids, Mtu::M4096)]);
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(4096, None)?;
        let buf = Arc::new(DmaBuf::zeroed(BUF_LEN));
        let access =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        let len = buf.len() as u64;
        let keys = device.memory().register(pd, buf.clone(), 0, len, buf.addr(), access)?;
        let mut shard = Shard::new(device, number);
        let caps = QpCaps { max_recv_wr: 512, ..QpCaps::default() };
        let qp = shard.create_qp(QpInit { caps, ..QpInit::new(QpType::Rc, pd, &cq) })?;
        Ok(Self { shard, qp, cq, buf, keys, gid, posted: 0 })
    }

    fn connect(&mut self, peer: &Self, mtu: Mtu) -> Result<()> {
        let attr = QpAttr {
            path_mtu: mtu,
            dest_qpn: peer.qp.qpn(),
            access: AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ,
            av: AddressVector::new(peer.gid, 0),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            ..QpAttr::default()
        };
        for (state, mask) in RC_TO_RTS {
            let qpn = self.qp.qpn();
            self.shard.modify_qp(Instant::ZERO, qpn, &QpAttr { state, ..attr }, mask)?;
        }
        Ok(())
    }

    fn sges(&self, len: u32) -> [Sge; 1] {
        [Sge { addr: self.buf.addr(), length: len, lkey: self.keys.lkey }]
    }

    /// What a peer needs to reach the start of the memory.
    fn remote(&self) -> RemoteAddr {
        RemoteAddr { addr: self.buf.addr(), rkey: self.keys.rkey }
    }

    /// Posts a message of so many bytes.
    fn post(&mut self, now: Instant, op: SendOp, len: u32) -> Result<()> {
        let sges = self.sges(len);
        let (flags, data) = (SendFlags::SIGNALED, SendData::Sges(&sges));
        self.posted += 1;
        let wr_id = self.posted;
        self.qp.post_send(&SendWr { wr_id, op, flags, data, srq_number: None })?;
        self.shard.kick(now, self.qp.qpn());
        Ok(())
    }

    /// Posts a receive of so many bytes.
    fn post_recv(&mut self, len: u32) -> Result<()> {
        Ok(self.qp.post_recv(RecvWr { wr_id: 0, sges: &self.sges(len) }).map(drop)?)
    }
}

/// Packets on their way: behind each other, as they were written.
#[derive(Debug)]
pub struct Wire {
    buf: Vec<u8>,
    /// Where packets stand that are given together, and the length of each but the last.
    runs: Vec<(Range<usize>, usize)>,
    path: Option<Path>,
    /// Packets carried.
    pub carried: u64,
}

impl Default for Wire {
    fn default() -> Self {
        let (buf, runs) = (vec![0; 4 << 20], Vec::with_capacity(1 << 14));
        Self { buf, runs, path: None, carried: 0 }
    }
}

impl Wire {
    /// Takes all that an end has to send: what its requester, or its responder, does.
    #[inline(never)]
    pub fn take(&mut self, now: Instant, from: &mut Shard) {
        self.runs.clear();
        let mut end = 0;
        while let Some(room) = self.buf.get_mut(end..) {
            let len = room.len().min(RUN_LEN);
            if len < Shard::MAX_PACKET {
                break;
            }
            let Some(run) = from.poll_transmit_run(now, &mut room[..len], GAP, RUN) else { break };
            self.carried += u64::from(run.count);
            let (len, start) = (run.first.len, end);
            end += run.len(GAP);
            if run.count == 1 {
                self.runs.push((start..end - GAP, len));
            } else {
                let step = (TOGETHER / (len + GAP)).max(1) * (len + GAP);
                let parts = (start..end).step_by(step);
                self.runs.extend(parts.map(|at| (at..end.min(at + step) - GAP, len)));
            }
            self.path = Some(run.first.path);
        }
    }

    /// Gives them to an end: what its responder, or its completer, does.
    #[inline(never)]
    pub fn give(&self, now: Instant, to: &mut Shard) {
        let Some(path) = &self.path else { return };
        for (place, len) in &self.runs {
            to.handle_packets(now, path, PacketRun::new(&self.buf[place.clone()], *len, GAP));
        }
    }

    /// Whether nothing was taken.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// SEND.
    Send,
    /// WRITE.
    Write,
    /// READ.
    Read,
}

/// Two connected ends.
#[derive(Debug)]
pub struct Pair {
    /// The end that posts.
    pub one: End,
    /// The end that answers.
    pub two: End,
    /// What lies between.
    pub wire: Wire,
    /// The time.
    pub now: Instant,
    done: Vec<WorkCompletion>,
}

impl Pair {
    /// Two ends with this path MTU.
    ///
    /// # Errors
    ///
    /// Those of making them.
    pub fn new(mtu: Mtu) -> Result<Self> {
        let (mut one, mut two) = (End::new(1)?, End::new(2)?);
        one.connect(&two, mtu)?;
        two.connect(&one, mtu)?;
        let (wire, done) = (Wire::default(), Vec::with_capacity(64));
        Ok(Self { one, two, wire, now: Instant::ZERO, done })
    }

    /// Lets time go on.
    pub fn step(&mut self) {
        self.now = Instant::from_nanos(self.now.as_nanos() + STEP);
        for shard in [&mut self.one.shard, &mut self.two.shard] {
            if shard.poll_timeout().is_some_and(|at| at <= self.now) {
                shard.handle_timeout(self.now);
            }
        }
    }

    /// Posts a message of the first end; the receive that it needs, too.
    ///
    /// # Errors
    ///
    /// That of a queue that takes no more.
    pub fn post(&mut self, message: Message, len: u32) -> Result<()> {
        let remote = self.two.remote();
        let op = match message {
            Message::Send => {
                self.two.post_recv(len)?;
                SendOp::Send { imm: None }
            }
            Message::Write => SendOp::Write { remote, imm: None },
            Message::Read => SendOp::Read { remote },
        };
        self.one.post(self.now, op, len)
    }

    /// Carries packets to and fro until nobody has any.
    pub fn carry(&mut self) {
        loop {
            self.wire.take(self.now, &mut self.one.shard);
            let idle = self.wire.is_empty();
            self.wire.give(self.now, &mut self.two.shard);
            self.wire.take(self.now, &mut self.two.shard);
            if idle && self.wire.is_empty() {
                return;
            }
            self.wire.give(self.now, &mut self.one.shard);
        }
    }

    /// Takes the completions of both ends; so many of the first must be there.
    ///
    /// # Errors
    ///
    /// That there are more or fewer.
    pub fn complete(&mut self, count: usize) -> Result<()> {
        self.done.clear();
        self.one.cq.poll(usize::MAX, &mut self.done);
        let completed = self.done.len();
        self.two.cq.poll(usize::MAX, &mut self.done);
        if completed != count {
            return Err(format!("{completed} completions, {count} were wanted").into());
        }
        Ok(())
    }

    /// One message, from its request to its completion.
    ///
    /// # Errors
    ///
    /// As [`Self::post`] and [`Self::complete`].
    pub fn message(&mut self, message: Message, len: u32) -> Result<()> {
        self.step();
        self.post(message, len)?;
        self.carry();
        self.complete(1)
    }
}
