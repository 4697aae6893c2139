//! Writes over a reliable connection all the time, until that fails: `steady-writer DEVICE`.
//!
//! It takes orders by lines on its standard input and answers each by a line:
//!
//! - `open` makes a new queue pair, in the place of the last one: `opened QPN ADDRESS RKEY`
//! - `connect INDEX GID QPN TIMEOUT RETRIES` connects it, from the GID of that index: `connected`
//! - `write ADDRESS RKEY` begins to write there, with some writes always under way: `writing`
//! - `state` tells `state COUNT STATUS SILENCE HINTS`: writes that went well on this queue pair, `ok`
//!   or the status of the first that did not, the microseconds from the last good one to that, and
//!   the ICMP errors that the link was told of
//!
//! It ends with its standard input.

use std::error::Error;
use std::io::{BufRead, Write, stdin, stdout};
use std::mem;
use std::sync::mpsc::{TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use ibverbs_api::{
    AccessFlags, AddressVector, CompletionQueue, ConnectAttr, Context, Device, DmaBuf,
    MemoryRegion, Mtu, ProtectionDomain, QpInit, QpType, Qpn, QueuePair, RKey, RemoteAddr,
    SendData, SendFlags, SendOp, SendWr, WcStatus,
};

const SIZE: usize = 1024;
/// Writes under way.
const DEPTH: u64 = 4;

type Anything<T> = Result<T, Box<dyn Error>>;

fn main() -> Anything<()> {
    let device = std::env::args().nth(1).ok_or("a device is needed")?;
    let mut writer = Writer::open(&device)?;
    let (sender, orders) = channel();
    thread::spawn(move || {
        for order in stdin().lock().lines().map_while(Result::ok) {
            if sender.send(order).is_err() {
                return;
            }
        }
    });
    println!("ready");
    loop {
        match orders.try_recv() {
            Ok(order) => {
                println!("{}", writer.obey(&order)?);
                stdout().flush()?;
            }
            Err(TryRecvError::Disconnected) => return Ok(()),
            Err(TryRecvError::Empty) => {}
        }
        writer.work()?;
        thread::sleep(Duration::from_micros(200));
    }
}

struct Writer {
    context: Context,
    pd: ProtectionDomain,
    memory: MemoryRegion,
    cq: CompletionQueue,
    qp: Option<QueuePair>,
    remote: Option<RemoteAddr>,
    posted: u64,
    done: u64,
    /// When it last looked for completions, before it did so.
    looked: Instant,
    /// When the last write that went well was not done yet: so no silence seems shorter than it is.
    last_good: Instant,
    /// The status of the first write that failed, and how long none had gone well by then.
    failure: Option<(WcStatus, Duration)>,
}

impl Writer {
    fn open(device: &str) -> Anything<Self> {
        let context = Device::by_name(device)?.open()?;
        let pd = context.alloc_pd()?;
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let memory = pd.register(DmaBuf::zeroed(SIZE), access)?;
        let cq = context.create_cq(256, None, 0)?;
        let (qp, remote, failure, now) = (None, None, None, Instant::now());
        let (looked, last_good) = (now, now);
        let (posted, done) = (0, 0);
        Ok(Self { context, pd, memory, cq, qp, remote, posted, done, looked, last_good, failure })
    }

    fn obey(&mut self, order: &str) -> Anything<String> {
        let words: Vec<_> = order.split(' ').collect();
        match words[..] {
            ["open"] => {
                (self.remote, self.failure, self.qp) = (None, None, None);
                // What is left of the last one.
                while self.cq.poll(64, &mut Vec::new()) > 0 {}
                (self.posted, self.done) = (0, 0);
                let qp = self.pd.create_qp(QpInit::new(QpType::Rc, &self.cq, &self.cq))?;
                let (address, rkey) = (self.memory.addr(), self.memory.rkey().get());
                let answer = format!("opened {} {address} {rkey}", qp.qpn().get());
                self.qp = Some(qp);
                Ok(answer)
            }
            ["connect", index, gid, qpn, timeout, retries] => {
                let av = AddressVector::new(gid.parse()?, index.parse()?);
                let attr = ConnectAttr {
                    access: AccessFlags::REMOTE_WRITE,
                    timeout: timeout.parse()?,
                    retry_cnt: retries.parse()?,
                    ..ConnectAttr::new(av, Qpn::new(qpn.parse()?), Mtu::M1024)
                };
                self.qp.as_ref().ok_or("open comes first")?.connect(&attr)?;
                Ok("connected".into())
            }
            ["write", addr, rkey] => {
                let (addr, rkey) = (addr.parse()?, RKey::new(rkey.parse()?));
                self.remote = Some(RemoteAddr { addr, rkey });
                self.last_good = Instant::now();
                Ok("writing".into())
            }
            ["state"] => {
                let (status, silence) = match self.failure {
                    None => ("ok".to_owned(), Duration::ZERO),
                    Some((status, silence)) => (format!("{status:?}"), silence),
                };
                let hints = self.context.link_counters().unreachable;
                Ok(format!("state {} {status} {} {hints}", self.done, silence.as_micros()))
            }
            _ => Err(format!("no such order: {order}").into()),
        }
    }

    /// Takes what is done, and posts as many anew.
    fn work(&mut self) -> Anything<()> {
        let mut done = Vec::new();
        let before = mem::replace(&mut self.looked, Instant::now());
        self.cq.poll(64, &mut done);
        for completion in done {
            match completion.status {
                WcStatus::Success => {
                    (self.done, self.last_good) = (self.done + 1, before);
                }
                status => {
                    let silence = self.last_good.elapsed();
                    self.failure.get_or_insert((status, silence));
                }
            }
        }
        let (Some(qp), Some(remote), None) = (&self.qp, self.remote, self.failure) else {
            return Ok(());
        };
        while self.posted < self.done + DEPTH {
            qp.post_send(&SendWr {
                wr_id: self.posted,
                op: SendOp::Write { remote, imm: None },
                flags: SendFlags::SIGNALED,
                data: SendData::Sges(&[self.memory.sge(0..SIZE)]),
                srq_number: None,
            })?;
            self.posted += 1;
        }
        Ok(())
    }
}
