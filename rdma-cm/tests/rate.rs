//! Many connections: made, used for one message, and taken down, at a given pace, over the loopback
//! interface with both ends in one process.
//!
//! The long form is `cargo test --release -p rdma-cm --test rate -- --ignored --nocapture`:
//! 1,000 a second for 20 seconds; `URXE_CM_RATE` and `URXE_CM_SECONDS` are other numbers.

#![allow(clippy::unwrap_used)]

mod ends;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ends::*;
use ibverbs_api::{
    AccessFlags, CompletionQueue, DmaBuf, MemoryRegion, ProtectionDomain, QpInit, QpType, RecvWr,
    SendData, SendFlags, SendOp, SendWr, WcStatus,
};
use rdma_cm::{CmId, ConnParam, Event, EventChannel, EventType, PortSpace};

/// Connections that are being made at once at most.
const UNDER_WAY: usize = 256;

/// What all queue pairs of one side share.
struct Side {
    channel: EventChannel,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    memory: MemoryRegion,
    ids: HashMap<u64, CmId>,
}

impl Side {
    fn new(of: &CmId, channel: EventChannel) -> Self {
        let verbs = of.verbs().unwrap();
        let pd = verbs.alloc_pd().unwrap();
        let cq = verbs.create_cq(4096, None, 0).unwrap();
        let memory = pd.register(DmaBuf::zeroed(64), AccessFlags::LOCAL_WRITE).unwrap();
        Self { channel, pd, cq, memory, ids: HashMap::new() }
    }

    fn create_qp(&self, id: &CmId) {
        let mut init = QpInit::new(QpType::Rc, &self.cq, &self.cq);
        (init.caps.max_send_wr, init.caps.max_recv_wr) = (1, 1);
        let qp = id.create_qp(Some(&self.pd), init).unwrap();
        qp.post_recv(RecvWr { wr_id: id.key(), sges: &[self.memory.sge(0..64)] }).unwrap();
    }

    /// Those whose message has come, or left.
    fn completed(&self, mut each: impl FnMut(u64)) {
        let mut completions = Vec::new();
        while self.cq.poll(64, &mut completions) > 0 {
            for wc in completions.drain(..) {
                match wc.status {
                    WcStatus::Success => each(wc.wr_id),
                    WcStatus::WrFlushErr => {}
                    status => panic!("{status:?}"),
                }
            }
        }
    }
}

/// Tells the other side to stop, also when this one fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Accepts all that come, until it is told to stop; gives how many messages came.
fn serve(listener: &CmId, channel: EventChannel, stop: &AtomicBool) -> u64 {
    let mut side = Side::new(listener, channel);
    let mut messages = 0;
    while !stop.load(Ordering::Relaxed) {
        let Some(event) = side.channel.wait(Duration::from_millis(1)).unwrap() else {
            side.completed(|_| messages += 1);
            continue;
        };
        let id = event.id().clone();
        match event.event() {
            EventType::ConnectRequest => {
                side.create_qp(&id);
                id.accept(&ConnParam::default()).unwrap();
                side.ids.insert(id.key(), id);
            }
            EventType::Established => {}
            EventType::Disconnected => {
                // What has come before its end, completes before its queue pair goes.
                side.completed(|_| messages += 1);
                id.disconnect().unwrap();
                drop(event);
                side.ids.remove(&id.key()).unwrap().destroy();
            }
            other => panic!("{other} status {}", event.status()),
        }
    }
    messages
}

struct Client {
    side: Side,
    port: u16,
    started: HashMap<u64, Instant>,
    took: Vec<Duration>,
}

impl Client {
    fn start(&mut self) {
        let id = CmId::create(&self.side.channel, PortSpace::Tcp);
        self.started.insert(id.key(), Instant::now());
        id.resolve_addr(None, lo(self.port)).unwrap();
        self.side.ids.insert(id.key(), id);
    }

    fn handle(&mut self, event: Event) {
        let id = event.id().clone();
        match event.event() {
            EventType::AddrResolved => id.resolve_route().unwrap(),
            EventType::RouteResolved => {
                self.side.create_qp(&id);
                id.connect(&ConnParam::default()).unwrap();
            }
            EventType::Established => {
                let (op, data) = (SendOp::Send { imm: None }, SendData::Inline(b"message"));
                let flags = SendFlags::SIGNALED;
                let wr = SendWr { wr_id: id.key(), op, flags, data, srq_number: None };
                id.qp().unwrap().post_send(&wr).unwrap();
            }
            EventType::Disconnected => {
                drop(event);
                let key = id.key();
                self.side.ids.remove(&key).unwrap().destroy();
                self.took.push(self.started.remove(&key).unwrap().elapsed());
            }
            other => panic!("{other} status {}", event.status()),
        }
    }

    /// Its message has arrived: that is all that the connection was for.
    fn end_used(&mut self) {
        let mut used = Vec::new();
        self.side.completed(|key| used.push(key));
        for key in used {
            self.side.ids[&key].disconnect().unwrap();
        }
    }

    fn run(&mut self, count: usize, rate: f64) -> Duration {
        let start = Instant::now();
        let mut begun = 0;
        let most = count as f64 / rate + SOON.as_secs_f64();
        while self.took.len() < count {
            assert!(
                start.elapsed().as_secs_f64() < most,
                "{} of {count} are done",
                self.took.len()
            );
            let due = (start.elapsed().as_secs_f64() * rate) as usize;
            while begun < count.min(due) && self.side.ids.len() < UNDER_WAY {
                self.start();
                begun += 1;
            }
            while let Some(event) = self.side.channel.take() {
                self.handle(event);
            }
            self.end_used();
            if let Some(event) = self.side.channel.wait(Duration::from_micros(200)).unwrap() {
                self.handle(event);
            }
        }
        start.elapsed()
    }
}

/// Makes and ends so many connections at a pace; gives how long it took.
fn run(count: usize, rate: f64) -> Duration {
    let (channel, listener, port) = listener(PortSpace::Tcp);
    let stop = AtomicBool::new(false);
    let (took, messages, mut times) = thread::scope(|scope| {
        let server = scope.spawn(|| serve(&listener, channel, &stop));
        let side = Side::new(&listener, EventChannel::new().unwrap());
        let mut client = Client { side, port, started: HashMap::new(), took: Vec::new() };
        let stopping = Stop(&stop);
        let took = client.run(count, rate);
        drop(stopping);
        (took, server.join().unwrap(), client.took)
    });
    assert_eq!(messages, count as u64, "each connection carries its message");
    times.sort();
    let at = |part: usize| times[(times.len() - 1) * part / 100];
    println!(
        "{count} connections in {took:?}: {:.0} a second; each took {:?} (median), {:?} (99 %), {:?}",
        count as f64 / took.as_secs_f64(),
        at(50),
        at(99),
        at(100)
    );
    took
}

#[test]
fn connections_come_and_go() {
    run(500, 1000.0);
}

fn number(name: &str, otherwise: f64) -> f64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

#[test]
#[ignore = "20 seconds, optimised"]
fn a_thousand_a_second() {
    let (rate, seconds) = (number("URXE_CM_RATE", 1000.0), number("URXE_CM_SECONDS", 20.0));
    let count = (rate * seconds) as usize;
    let took = run(count, rate);
    // The last is begun at the end of that time, and takes its own.
    assert!(took.as_secs_f64() < seconds + 0.5, "{took:?}");
}
