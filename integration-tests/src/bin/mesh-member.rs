//! One of several processes on one address that all exchange messages with each other:
//! `mesh-member DEVICE PAUSE_MICROSECONDS`.
//!
//! It takes orders by lines on its standard input and answers each by a line. A pair is a reliable
//! connection to another member; both ends send numbered messages all the time, `PAUSE` after each,
//! and check what comes: every message, in order, each byte. Orders:
//!
//! - `pair ID` makes the queue pair of pair `ID`: `paired ID QPN`
//! - `connect ID QPN` connects it to the other end: `connected ID`
//! - `drop ID` destroys it: `dropped ID`
//! - `report` tells `report RECEIVED FORWARDED ASTRAY`, then `ID:SENT:CAME` for each pair: packets
//!   that came, those of them that were for other slots and passed on, or lost; messages whose
//!   sending was acknowledged, and messages that came.
//!
//! `failed ID WHY` comes unasked, once for a pair. It ends with its standard input.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, Write, stdin, stdout};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use ibverbs_api::{
    AccessFlags, AddressVector, CompletionQueue, ConnectAttr, Context, Device, DmaBuf, GidEntry,
    MemoryRegion, Mtu, ProtectionDomain, QpInit, QpType, Qpn, QueuePair, RecvWr, SendData,
    SendFlags, SendOp, SendWr, WcStatus, WorkCompletion,
};

/// Bytes that one message may have.
const MESSAGE: usize = 4096;
/// Messages under way in each direction of a pair.
const DEPTH: u64 = 4;
/// The ACK timeout: 0.5 s at least, since the machine may be busy.
const TIMEOUT: u8 = 17;

type Anything<T> = Result<T, Box<dyn Error>>;

fn main() -> Anything<()> {
    let mut arguments = std::env::args().skip(1);
    let device = arguments.next().ok_or("a device is needed")?;
    let pause = Duration::from_micros(arguments.next().ok_or("a pause is needed")?.parse()?);
    let orders = read_orders();
    let mut member = Member::open(&device, pause)?;
    say("ready")?;
    loop {
        match orders.try_recv() {
            Ok(order) => say(&member.obey(&order)?)?,
            Err(TryRecvError::Disconnected) => return Ok(()),
            Err(TryRecvError::Empty) => {}
        }
        if !member.work()? {
            thread::sleep(Duration::from_micros(500));
        }
    }
}

/// The lines of standard input, as they come.
fn read_orders() -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in stdin().lock().lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

fn say(line: &str) -> Anything<()> {
    let mut out = stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

struct Member {
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    gid: GidEntry,
    pause: Duration,
    pairs: BTreeMap<u32, Pair>,
    done: Vec<WorkCompletion>,
}

/// One end of a pair.
struct Pair {
    id: u32,
    qp: QueuePair,
    /// Places for messages that leave, then for those that come.
    memory: MemoryRegion,
    is_connected: bool,
    next_send: Instant,
    /// Messages posted, acknowledged, and come.
    posted: u64,
    sent: u64,
    came: u64,
    has_failed: bool,
}

impl Member {
    fn open(device: &str, pause: Duration) -> Anything<Self> {
        let context = Device::by_name(device)?.open()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(4096, None, 0)?;
        let gids = context.query_gid_table()?;
        let gid = gids.into_iter().find(|entry| entry.owned && entry.gid.to_ipv4().is_some());
        let gid = gid.ok_or("the device has no IPv4 address")?;
        let (pairs, done) = (BTreeMap::new(), Vec::new());
        Ok(Self { context, pd, cq, gid, pause, pairs, done })
    }

    fn obey(&mut self, order: &str) -> Anything<String> {
        let words: Vec<_> = order.split(' ').collect();
        match words[..] {
            ["pair", id] => {
                let pair = Pair::new(id.parse()?, &self.pd, &self.cq)?;
                let answer = format!("paired {id} {}", pair.qp.qpn().get());
                self.pairs.insert(pair.id, pair);
                Ok(answer)
            }
            ["connect", id, qpn] => {
                let pair = self.pairs.get_mut(&id.parse()?).ok_or("no such pair")?;
                pair.connect(&self.gid, Qpn::new(qpn.parse()?))?;
                Ok(format!("connected {id}"))
            }
            ["drop", id] => {
                self.pairs.remove(&id.parse()?).ok_or("no such pair")?;
                Ok(format!("dropped {id}"))
            }
            ["report"] => {
                let counters = self.context.link_counters();
                let mut line = format!(
                    "report {} {} {}",
                    counters.received, counters.forwarded, counters.astray
                );
                for pair in self.pairs.values() {
                    line += &format!(" {}:{}:{}", pair.id, pair.sent, pair.came);
                }
                Ok(line)
            }
            _ => Err(format!("no such order: {order}").into()),
        }
    }

    /// Does what is to be done; false when that was nothing.
    fn work(&mut self) -> Anything<bool> {
        self.cq.poll(64, &mut self.done);
        let mut is_busy = !self.done.is_empty();
        for completion in self.done.drain(..) {
            // A pair that was dropped may have left completions.
            let Some(pair) = self.pairs.get_mut(&((completion.wr_id >> 32) as u32)) else {
                continue;
            };
            if let Err(error) = pair.take(&completion)
                && !std::mem::replace(&mut pair.has_failed, true)
            {
                say(&format!("failed {} {error}", pair.id))?;
            }
        }
        let now = Instant::now();
        for pair in self.pairs.values_mut() {
            if pair.wants_to_send(now) {
                pair.send()?;
                pair.next_send = now + self.pause;
                is_busy = true;
            }
        }
        Ok(is_busy)
    }
}

impl Pair {
    fn new(id: u32, pd: &ProtectionDomain, cq: &CompletionQueue) -> Anything<Self> {
        let qp = pd.create_qp(QpInit::new(QpType::Rc, cq, cq))?;
        let buffer = DmaBuf::zeroed(2 * DEPTH as usize * MESSAGE);
        let memory = pd.register(buffer, AccessFlags::LOCAL_WRITE)?;
        Ok(Self {
            id,
            qp,
            memory,
            is_connected: false,
            next_send: Instant::now(),
            posted: 0,
            sent: 0,
            came: 0,
            has_failed: false,
        })
    }

    fn connect(&mut self, gid: &GidEntry, peer: Qpn) -> Anything<()> {
        let av = AddressVector::new(gid.gid, gid.gid_index);
        let attr = ConnectAttr::new(av, peer, Mtu::M1024);
        self.qp.connect(&ConnectAttr { timeout: TIMEOUT, retry_cnt: 7, rnr_retry: 7, ..attr })?;
        self.is_connected = true;
        (0..DEPTH).try_for_each(|number| self.post_recv(number))
    }

    fn wants_to_send(&self, now: Instant) -> bool {
        let is_alive = self.is_connected && !self.has_failed;
        is_alive && self.posted - self.sent < DEPTH && self.next_send <= now
    }

    /// Where message `number` stands, leaving or coming.
    fn place(number: u64, comes: bool) -> usize {
        (number % DEPTH + if comes { DEPTH } else { 0 }) as usize * MESSAGE
    }

    fn wr_id(&self, comes: bool) -> u64 {
        u64::from(self.id) << 32 | u64::from(comes)
    }

    fn send(&mut self) -> Anything<()> {
        let (bytes, at) = (message(self.id, self.posted), Self::place(self.posted, false));
        self.memory.buffer().write_at(at, &bytes)?;
        self.qp.post_send(&SendWr {
            wr_id: self.wr_id(false),
            op: SendOp::Send { imm: None },
            flags: SendFlags::SIGNALED,
            data: SendData::Sges(&[self.memory.sge(at..at + bytes.len())]),
            srq_number: None,
        })?;
        self.posted += 1;
        Ok(())
    }

    fn post_recv(&self, number: u64) -> Anything<()> {
        let at = Self::place(number, true);
        let sges = [self.memory.sge(at..at + MESSAGE)];
        Ok(self.qp.post_recv(RecvWr { wr_id: self.wr_id(true), sges: &sges })?)
    }

    /// Takes a completion, and judges it.
    fn take(&mut self, completion: &WorkCompletion) -> Anything<()> {
        if completion.status != WcStatus::Success {
            return Err(format!("{:?}", completion.status).into());
        }
        if completion.wr_id & 1 == 0 {
            self.sent += 1;
            return Ok(());
        }
        let expected = message(self.id, self.came);
        let mut bytes = vec![0; completion.byte_len as usize];
        self.memory.buffer().read_at(Self::place(self.came, true), &mut bytes)?;
        if bytes != expected {
            return Err(format!("message {} is not as it was sent", self.came).into());
        }
        self.came += 1;
        self.post_recv(self.came - 1 + DEPTH)
    }
}

/// Message `number` of a pair: of its own length, with bytes of its own.
fn message(id: u32, number: u64) -> Vec<u8> {
    let mut state = (u64::from(id) << 40 ^ number) | 1;
    let len = 16 + (number as usize * 337) % (MESSAGE - 24);
    let mut bytes = number.to_le_bytes().to_vec();
    while bytes.len() < len {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes
}
