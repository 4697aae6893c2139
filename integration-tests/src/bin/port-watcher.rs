//! A process that has a device open and tells what becomes of it: `port-watcher DEVICE`.
//!
//! It takes orders by lines on its standard input and answers each by a line:
//!
//! - `table`: `table`, then for each port its state, its path MTU and its GIDs: index, version of
//!   RoCE, GID and interface, and a `-` behind those that the host cannot send from
//! - `events`: `events`, then those that have come since, in their order, each with its port
//! - `pair PORT INDEX` makes a reliable connection from that GID to itself, with a receive that
//!   nothing ever comes for: `paired NUMBER`, counted from 0
//! - `part NUMBER` destroys it: `parted`
//! - `pairs`: `pairs`, then the state of each connection, and how its receive ended if it did
//! - `all` queries all GIDs of all ports by one call: `all COUNT NANOSECONDS`, the fastest of some
//!
//! It ends with its standard input.

use std::error::Error;
use std::fs::{read_dir, read_to_string};
use std::io::{BufRead, Write, stdin, stdout};
use std::time::{Duration, Instant};

use ibverbs_api::{
    AddressVector, AsyncEvent, CompletionQueue, ConnectAttr, Context, Device, GidEntry, GidType,
    Mtu, PortState, ProtectionDomain, QpInit, QpType, QueuePair, RecvWr, WorkCompletion,
};

/// How often the GIDs are queried.
const QUERIES: u32 = 20;

type Anything<T> = Result<T, Box<dyn Error>>;

fn main() -> Anything<()> {
    let device = std::env::args().nth(1).ok_or("a device is needed")?;
    let context = Device::by_name(&device)?.open()?;
    let mut watcher = Watcher { pd: context.alloc_pd()?, context, pairs: Vec::new() };
    println!("ready");
    for order in stdin().lock().lines() {
        println!("{}", watcher.obey(&order?)?);
        stdout().flush()?;
    }
    Ok(())
}

struct Watcher {
    pd: ProtectionDomain,
    context: Context,
    /// `None` for those that were destroyed.
    pairs: Vec<Option<Pair>>,
}

struct Pair {
    qp: QueuePair,
    cq: CompletionQueue,
    ended: Option<WorkCompletion>,
}

impl Watcher {
    fn obey(&mut self, order: &str) -> Anything<String> {
        let words: Vec<_> = order.split(' ').collect();
        match words[..] {
            ["table"] => self.table(),
            ["events"] => {
                let events = std::iter::from_fn(|| self.context.take_event());
                let events: Vec<_> = events.map(name_of).collect();
                Ok(format!("events {}", events.join(", ")))
            }
            ["pair", port, index] => {
                let pair = Pair::new(&self.context, &self.pd, port.parse()?, index.parse()?)?;
                self.pairs.push(Some(pair));
                Ok(format!("paired {}", self.pairs.len() - 1))
            }
            ["part", number] => {
                *self.pairs.get_mut(number.parse::<usize>()?).ok_or("no such pair")? = None;
                Ok("parted".into())
            }
            ["pairs"] => {
                let states = self.pairs.iter_mut().flatten().map(Pair::state);
                Ok(format!("pairs {}", states.collect::<Vec<_>>().join(", ")))
            }
            ["all"] => {
                let (mut count, mut best) = (0, Duration::MAX);
                for _ in 0..QUERIES {
                    let start = Instant::now();
                    count = self.context.query_gid_table()?.len();
                    best = best.min(start.elapsed());
                }
                Ok(format!("all {count} {}", best.as_nanos()))
            }
            _ => Err(format!("no such order: {order}").into()),
        }
    }

    fn table(&self) -> Anything<String> {
        let (entries, names) = (self.context.query_gid_table()?, interface_names()?);
        let mut ports = Vec::new();
        for port in 1..=self.context.query_device().phys_port_cnt {
            let attr = self.context.query_port(port)?;
            let state = match attr.state {
                PortState::Active => "up",
                PortState::Down => "down",
            };
            let own = entries.iter().filter(|entry| entry.port_num == u32::from(port));
            let gids: Vec<_> = own.map(|entry| shown(entry, &names)).collect();
            ports.push(format!("{state} {}: {}", attr.active_mtu.bytes(), gids.join(", ")));
        }
        Ok(format!("table {}", ports.join("; ")))
    }
}

impl Pair {
    fn new(context: &Context, pd: &ProtectionDomain, port: u8, index: u32) -> Anything<Self> {
        let cq = context.create_cq(4, None, 0)?;
        let qp = pd.create_qp(QpInit::new(QpType::Rc, &cq, &cq))?;
        let own = context.query_gid_ex(port, index)?.gid;
        let av = AddressVector { port_num: port, ..AddressVector::new(own, index) };
        qp.connect(&ConnectAttr::new(av, qp.qpn(), Mtu::M256))?;
        qp.post_recv(RecvWr { wr_id: 0, sges: &[] })?;
        Ok(Self { qp, cq, ended: None })
    }

    fn state(&mut self) -> String {
        let mut found = Vec::new();
        self.cq.poll(1, &mut found);
        self.ended = self.ended.take().or_else(|| found.pop());
        let state = format!("{:?}", self.qp.state());
        match &self.ended {
            Some(completion) => format!("{state} {:?}", completion.status),
            None => state,
        }
    }
}

fn shown(entry: &GidEntry, names: &[(u32, String)]) -> String {
    let version = if entry.gid_type == GidType::RoceV1 { "v1" } else { "v2" };
    let name = names.iter().find(|(ifindex, _)| *ifindex == entry.ifindex);
    let name = name.map_or("?", |(_, name)| name);
    let mark = if entry.owned { "" } else { " -" };
    format!("{} {version} {} {name}{mark}", entry.gid_index, entry.gid)
}

fn name_of(event: AsyncEvent) -> String {
    match event {
        AsyncEvent::DeviceFatal => "DEVICE_FATAL".into(),
        AsyncEvent::PortActive(port) => format!("PORT_ACTIVE {port}"),
        AsyncEvent::PortErr(port) => format!("PORT_ERR {port}"),
        AsyncEvent::GidChange(port) => format!("GID_CHANGE {port}"),
        other => other.to_string(),
    }
}

/// The interfaces of this network namespace, as sysfs has them, by index.
fn interface_names() -> Anything<Vec<(u32, String)>> {
    let mut names = Vec::new();
    for folder in read_dir("/sys/class/net")? {
        let folder = folder?;
        // One that goes away meanwhile has no index any more.
        let Ok(index) = read_to_string(folder.path().join("ifindex")) else { continue };
        names.push((index.trim().parse()?, folder.file_name().to_string_lossy().into_owned()));
    }
    Ok(names)
}
