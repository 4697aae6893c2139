//! One of several processes on one address that each have a QP1: `gsi-member DEVICE`.
//!
//! It takes orders by lines on its standard input and answers each by a line:
//!
//! - `slot` tells the slot of its QP1: `slot SLOT`
//! - `serve ID ADDRESS` registers a service, on one address or `any`: `serving ID`, or `taken ID`
//! - `stop` ends all of that: `stopped`
//! - `request ID NUMBER` sends a REQ for a service to the own address: `sent`
//! - `reply SLOT NUMBER` sends a REP for a communication id of a slot to the own address: `sent`
//! - `come` tells what has come: `come`, then `req:ID:NUMBER` or `rep:SLOT:NUMBER` for each message
//!
//! It ends with its standard input.

use std::error::Error;
use std::io::{BufRead, Write, stdin, stdout};
use std::time::Duration;

use ibverbs_api::{
    AccessFlags, AddressHandle, AddressVector, CompletionQueue, Device, DmaBuf, MemoryRegion,
    QpInit, QpType, Qpn, QueuePair, RecvWr, RegisterServiceError, SendData, SendFlags, SendOp,
    SendWr, ServiceId, ServiceRegistration, WcOpcode, WcStatus,
};
use rxe_wire::mad::cm::{CmMessage, CommId, GSI_QKEY, Rep, Req};
use rxe_wire::mad::{MAD_LEN, Mad, TransactionId};

/// Bytes in front of a datagram that was received.
const HEAD: usize = 40;
/// Receives that are posted.
const RECEIVES: usize = 256;

type Anything<T> = Result<T, Box<dyn Error>>;

fn main() -> Anything<()> {
    let device = std::env::args().nth(1).ok_or("a device is needed")?;
    let mut member = Member::open(&device)?;
    println!("ready");
    for order in stdin().lock().lines() {
        let answer = member.obey(&order?)?;
        println!("{answer}");
        stdout().flush()?;
    }
    Ok(())
}

struct Member {
    cq: CompletionQueue,
    qp: QueuePair,
    own: AddressHandle,
    memory: MemoryRegion,
    services: Vec<ServiceRegistration>,
    come: Vec<String>,
}

impl Member {
    fn open(device: &str) -> Anything<Self> {
        let context = Device::by_name(device)?.open()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(1024, None, 0)?;
        let mut init = QpInit::new(QpType::Gsi, &cq, &cq);
        init.caps.max_recv_wr = RECEIVES as u32;
        init.caps.max_inline_data = MAD_LEN as u32;
        let qp = pd.create_qp(init)?;
        qp.start_datagrams(1, GSI_QKEY)?;
        let gids = context.query_gid_table()?;
        let gid = gids.into_iter().find(|entry| entry.owned && entry.gid.to_ipv4().is_some());
        let gid = gid.ok_or("the device has no IPv4 address")?;
        let own = pd.create_ah(&AddressVector::new(gid.gid, gid.gid_index))?;
        let buffer = DmaBuf::zeroed(RECEIVES * (HEAD + MAD_LEN));
        let memory = pd.register(buffer, AccessFlags::LOCAL_WRITE)?;
        let (services, come) = (Vec::new(), Vec::new());
        let member = Self { cq, qp, own, memory, services, come };
        (0..RECEIVES).try_for_each(|index| member.post_recv(index))?;
        Ok(member)
    }

    fn post_recv(&self, index: usize) -> Anything<()> {
        let at = index * (HEAD + MAD_LEN);
        let sges = [self.memory.sge(at..at + HEAD + MAD_LEN)];
        Ok(self.qp.post_recv(RecvWr { wr_id: index as u64, sges: &sges })?)
    }

    fn obey(&mut self, order: &str) -> Anything<String> {
        let words: Vec<_> = order.split(' ').collect();
        match words[..] {
            ["slot"] => Ok(format!("slot {}", self.qp.slot())),
            ["serve", id, address] => {
                let at = if address == "any" { None } else { Some(address.parse()?) };
                match self.qp.register_service(ServiceId(id.parse()?), at) {
                    Ok(service) => self.services.push(service),
                    Err(RegisterServiceError::Taken { .. }) => return Ok(format!("taken {id}")),
                    Err(error) => return Err(error.into()),
                }
                Ok(format!("serving {id}"))
            }
            ["stop"] => {
                self.services.clear();
                Ok("stopped".into())
            }
            ["request", id, number] => {
                let (service_id, local_comm_id) = (ServiceId(id.parse()?), CommId(number.parse()?));
                self.send(CmMessage::Req(Req { service_id, local_comm_id, ..Req::default() }))
            }
            ["reply", slot, number] => {
                let (slot, number): (u32, u32) = (slot.parse()?, number.parse()?);
                let remote_comm_id = CommId(slot << 24 | number);
                self.send(CmMessage::Rep(Rep { remote_comm_id, ..Rep::default() }))
            }
            ["come"] => {
                self.receive()?;
                Ok(format!("come {}", self.come.join(" ")))
            }
            _ => Err(format!("no such order: {order}").into()),
        }
    }

    fn send(&mut self, message: CmMessage) -> Anything<String> {
        let mut mad = [0; MAD_LEN];
        message.write_mad(TransactionId(1), &mut mad);
        self.qp.post_send(&SendWr {
            wr_id: u64::MAX,
            op: SendOp::SendTo { to: self.own.to(Qpn::GSI, GSI_QKEY), imm: None },
            flags: SendFlags::SIGNALED,
            data: SendData::Inline(&mad),
            srq_number: None,
        })?;
        Ok("sent".into())
    }

    /// Takes what has come.
    fn receive(&mut self) -> Anything<()> {
        let mut done = Vec::new();
        std::thread::sleep(Duration::from_millis(2));
        while self.cq.poll(64, &mut done) > 0 {}
        for completion in done {
            if completion.status != WcStatus::Success {
                return Err(format!("{completion:?}").into());
            }
            if completion.opcode != WcOpcode::Recv {
                continue;
            }
            let index = completion.wr_id as usize;
            let mut mad = [0; MAD_LEN];
            self.memory.buffer().read_at(index * (HEAD + MAD_LEN) + HEAD, &mut mad)?;
            self.come.push(match CmMessage::parse(&Mad::parse(&mad)?)? {
                CmMessage::Req(req) => format!("req:{}:{}", req.service_id.0, req.local_comm_id.0),
                CmMessage::Rep(rep) => {
                    let id = rep.remote_comm_id.0;
                    format!("rep:{}:{}", id >> 24, id & 0x00ff_ffff)
                }
                other => format!("other:{other}"),
            });
            self.post_recv(index)?;
        }
        Ok(())
    }
}
