//! One end of connections that the connection manager makes on the loopback interface:
//!
//! - `cm-member serve PORT` listens, tells `listening` or `taken ERRNO`, accepts whoever comes,
//!   saying the port, and sends each message back; until it is killed
//! - `cm-member hold PORT` listens too, but answers nobody: `held` for each request, `let go STATUS`
//!   when whoever asked has given up
//! - `cm-member leave PORT` asks for a connection, and gives up after a moment
//! - `cm-member ask PORT COUNT` makes so many connections, one after the other, each of which has to
//!   be answered with the port, and to bring a message back: `done COUNT`

use std::collections::HashMap;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ibverbs_api::{
    AccessFlags, CompletionQueue, DmaBuf, MemoryRegion, QpInit, QpType, QueuePair, RecvWr,
    SendData, SendFlags, SendOp, SendWr, WcStatus,
};
use rdma_cm::{
    AddrHints, BindError, CmId, ConnParam, Endpoint, EndpointQp, Event, EventChannel, EventParam,
    EventType, PortSpace, addr_info, finish,
};

/// Bytes of a message at most.
const ROOM: usize = 64;
/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(20);

type Anything<T> = Result<T, Box<dyn Error>>;

fn main() -> Anything<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", port] => listen(port, true),
        ["hold", port] => listen(port, false),
        ["leave", port] => leave(port),
        ["ask", port, count] => ask(port, count.parse()?),
        _ => Err("serve PORT, hold PORT, leave PORT, or ask PORT COUNT".into()),
    }
}

/// A queue pair with room for one message.
struct End {
    qp: Arc<QueuePair>,
    cq: CompletionQueue,
    memory: MemoryRegion,
}

impl End {
    fn send(&self, text: &[u8]) -> Anything<()> {
        let (op, flags) = (SendOp::Send { imm: None }, SendFlags::empty());
        let data = SendData::Inline(text);
        Ok(self.qp.post_send(&SendWr { wr_id: 2, op, flags, data, srq_number: None })?)
    }
}

fn listen(port: &str, answers: bool) -> Anything<()> {
    let channel = EventChannel::new()?;
    let listener = CmId::create(&channel, PortSpace::Tcp);
    listener.bind_addr(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port.parse()?))?;
    match listener.listen(0) {
        Ok(()) => println!("listening"),
        Err(error @ (BindError::Service(_) | BindError::Listen(_))) => {
            println!("taken {}", error.errno());
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    }
    let mut ends: HashMap<u64, (CmId, End)> = HashMap::new();
    let mut held = Vec::new();
    loop {
        let Some(event) = channel.wait(Duration::from_millis(1))? else {
            ends.values().try_for_each(|(_, end)| echo(end))?;
            continue;
        };
        match event.event() {
            EventType::ConnectRequest if !answers => {
                println!("held");
                held.push(event.id().clone());
            }
            EventType::ConnectRequest => {
                let (id, end) = accept(&event, port)?;
                ends.insert(id.key(), (id, end));
            }
            EventType::Rejected if !answers => println!("let go {}", event.status()),
            EventType::Disconnected | EventType::Rejected | EventType::Unreachable => {
                let id = event.id().clone();
                // Where it has ended by itself, there is nothing to agree to.
                let _ = id.disconnect();
                drop(event);
                ends.remove(&id.key());
                id.destroy();
            }
            _ => {}
        }
    }
}

fn accept(request: &Event, port: &str) -> Anything<(CmId, End)> {
    let id = request.id().clone();
    let verbs = id.verbs().ok_or("no device")?;
    let cq = verbs.create_cq(8, None, 0)?;
    let pd = verbs.alloc_pd()?;
    let qp = id.create_qp(Some(&pd), QpInit::new(QpType::Rc, &cq, &cq))?;
    let memory = pd.register(DmaBuf::zeroed(ROOM), AccessFlags::LOCAL_WRITE)?;
    qp.post_recv(RecvWr { wr_id: 1, sges: &[memory.sge(0..ROOM)] })?;
    id.accept(&ConnParam { private_data: port.as_bytes().to_vec(), ..ConnParam::default() })?;
    Ok((id, End { qp, cq, memory }))
}

/// Sends back what has come.
fn echo(end: &End) -> Anything<()> {
    let mut completions = Vec::new();
    end.cq.poll(8, &mut completions);
    for wc in completions.iter().filter(|wc| wc.wr_id == 1 && wc.status == WcStatus::Success) {
        let mut text = vec![0; wc.byte_len as usize];
        end.memory.buffer().read_at(0, &mut text)?;
        end.send(&text)?;
    }
    Ok(())
}

/// Asks, and gives up.
fn leave(port: &str) -> Anything<()> {
    let info = addr_info(Some("127.0.0.1"), Some(port), &AddrHints::default())?;
    let info = info.first().ok_or("no address")?;
    let endpoint = Endpoint::create(info, Some(EndpointQp::new(QpType::Rc)))?;
    endpoint.id().connect(&ConnParam::default())?;
    std::thread::sleep(Duration::from_millis(500));
    endpoint.id().destroy();
    // What it says at last may come to this process, for others.
    std::thread::sleep(Duration::from_millis(500));
    Ok(())
}

fn ask(port: &str, count: usize) -> Anything<()> {
    let info = addr_info(Some("127.0.0.1"), Some(port), &AddrHints::default())?;
    let info = info.first().ok_or("no address")?;
    for number in 0..count {
        let endpoint = Endpoint::create(info, None)?;
        let id = endpoint.id();
        let pd = id.verbs().ok_or("no device")?.alloc_pd()?;
        let recipe = EndpointQp { pd: Some(pd.clone()), ..EndpointQp::new(QpType::Rc) };
        let qp = endpoint.create_qp(&recipe)?;
        let cq = endpoint.recv_cq().ok_or("no queue")?;
        let memory = pd.register(DmaBuf::zeroed(ROOM), AccessFlags::LOCAL_WRITE)?;
        qp.post_recv(RecvWr { wr_id: 1, sges: &[memory.sge(0..ROOM)] })?;
        let EventParam::Conn(answer) = endpoint.connect(&ConnParam::default())? else {
            return Err("no answer of a connection".into());
        };
        if !answer.private_data.starts_with(port.as_bytes()) {
            return Err(format!("port {port} was answered by {:?}", answer.private_data).into());
        }
        let end = End { qp, cq, memory };
        let text = format!("message {number}");
        end.send(text.as_bytes())?;
        let wc = end.cq.wait_one(LIMIT)?;
        let mut back = vec![0; wc.byte_len as usize];
        end.memory.buffer().read_at(0, &mut back)?;
        if (wc.status, &back[..]) != (WcStatus::Success, text.as_bytes()) {
            return Err(format!("{:?} {back:?} instead of {text}", wc.status).into());
        }
        endpoint.disconnect()?;
    }
    if !finish(LIMIT) {
        return Err("ends are not granted".into());
    }
    println!("done {count}");
    Ok(())
}
