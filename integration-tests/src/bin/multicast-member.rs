//! A process with two UD queue pairs for a multicast group: `multicast-member DEVICE GROUP INDEX
//! [QKEY]`.
//!
//! The queue pairs are of two shards, and send from the GID of that index. It takes orders by lines
//! on its standard input and answers each by a line:
//!
//! - `attach`, `detach`: both queue pairs, to or from the group: `attached`, `detached`
//! - `send WORD` sends a word to the group, from the first queue pair: `sent`
//! - `come` tells what has come since: `come`, then `0:WORD` or `1:WORD` for each, by queue pair;
//!   of what is no word, its length in bytes: `0:<LENGTH>`
//!
//! It ends with its standard input.

use std::error::Error;
use std::io::{BufRead, Write, stdin, stdout};
use std::time::Duration;

use ibverbs_api::{
    AccessFlags, AddressHandle, AddressVector, CompletionQueue, Context, Destination, Device,
    DmaBuf, Gid, MULTICAST_QPN, MemoryRegion, OpenOptions, ProtectionDomain, QKey, QpInit, QpType,
    QueuePair, RecvWr, SendData, SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};

/// Bytes in front of a datagram that was received.
const HEAD: usize = 40;
/// Bytes of the longest word.
const WORD: usize = 128;
/// Receives that are posted for each queue pair.
const RECEIVES: usize = 64;
/// The Q_Key where none is given.
const KEY: u32 = 0x1234;

type Anything<T> = Result<T, Box<dyn Error>>;

fn main() -> Anything<()> {
    let usage = "DEVICE GROUP INDEX are needed";
    let mut words = std::env::args().skip(1);
    let mut word = || words.next().ok_or(usage);
    let (device, group, index) = (word()?, word()?.parse()?, word()?.parse()?);
    let key = word().map_or(Ok(KEY), |key| key.parse())?;
    let mut member = Member::open(&device, group, index, QKey::new(key))?;
    println!("ready");
    for order in stdin().lock().lines() {
        let answer = member.obey(&order?)?;
        println!("{answer}");
        stdout().flush()?;
    }
    Ok(())
}

struct Member {
    pairs: Vec<Pair>,
    group: Gid,
    to: AddressHandle,
    key: QKey,
}

impl Member {
    fn open(device: &str, group: Gid, index: u32, key: QKey) -> Anything<Self> {
        let options = OpenOptions { shards: 2, ..OpenOptions::from_env()? };
        let context = Device::by_name(device)?.open_with(options)?;
        let pd = context.alloc_pd()?;
        let pairs = (0..2).map(|vector| Pair::new(&context, &pd, vector, key));
        let pairs = pairs.collect::<Anything<Vec<_>>>()?;
        let to = pd.create_ah(&AddressVector::new(group, index))?;
        Ok(Self { pairs, group, to, key })
    }

    fn obey(&mut self, order: &str) -> Anything<String> {
        let words: Vec<_> = order.split(' ').collect();
        match words[..] {
            ["attach"] => {
                for pair in &self.pairs {
                    pair.qp.attach_multicast(self.group)?;
                }
                Ok("attached".into())
            }
            ["detach"] => {
                for pair in &self.pairs {
                    pair.qp.detach_multicast(self.group)?;
                }
                Ok("detached".into())
            }
            ["send", word] => {
                self.pairs[0].send(self.to.to(MULTICAST_QPN, self.key), word)?;
                Ok("sent".into())
            }
            ["come"] => {
                std::thread::sleep(Duration::from_millis(2));
                let mut come = Vec::new();
                for (number, pair) in self.pairs.iter().enumerate() {
                    let words = pair.receive()?.into_iter();
                    come.extend(words.map(|word| format!("{number}:{word}")));
                }
                Ok(format!("come {}", come.join(" ")))
            }
            _ => Err(format!("no such order: {order}").into()),
        }
    }
}

struct Pair {
    cq: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
}

impl Pair {
    fn new(context: &Context, pd: &ProtectionDomain, vector: usize, key: QKey) -> Anything<Self> {
        let cq = context.create_cq(256, None, vector)?;
        let mut init = QpInit::new(QpType::Ud, &cq, &cq);
        init.caps.max_recv_wr = RECEIVES as u32;
        init.caps.max_inline_data = WORD as u32;
        let qp = pd.create_qp(init)?;
        qp.start_datagrams(1, key)?;
        let buffer = DmaBuf::zeroed(RECEIVES * (HEAD + WORD));
        let memory = pd.register(buffer, AccessFlags::LOCAL_WRITE)?;
        let pair = Self { cq, qp, memory };
        (0..RECEIVES).try_for_each(|index| pair.post_recv(index))?;
        Ok(pair)
    }

    fn post_recv(&self, index: usize) -> Anything<()> {
        let at = index * (HEAD + WORD);
        let sges = [self.memory.sge(at..at + HEAD + WORD)];
        Ok(self.qp.post_recv(RecvWr { wr_id: index as u64, sges: &sges })?)
    }

    fn send(&self, to: Destination, word: &str) -> Anything<()> {
        Ok(self.qp.post_send(&SendWr {
            wr_id: u64::MAX,
            op: SendOp::SendTo { to, imm: None },
            flags: SendFlags::SIGNALED,
            data: SendData::Inline(word.as_bytes()),
            srq_number: None,
        })?)
    }

    /// Takes the words that have come.
    fn receive(&self) -> Anything<Vec<String>> {
        let (mut done, mut words) = (Vec::new(), Vec::new());
        while self.cq.poll(64, &mut done) > 0 {}
        for completion in done {
            if completion.status != WcStatus::Success {
                return Err(format!("{completion:?}").into());
            }
            if completion.opcode != WcOpcode::Recv {
                continue;
            }
            let index = completion.wr_id as usize;
            let mut word = vec![0; completion.byte_len as usize - HEAD];
            self.memory.buffer().read_at(index * (HEAD + WORD) + HEAD, &mut word)?;
            words.push(match String::from_utf8(word) {
                Ok(word) if word.bytes().all(|byte| byte.is_ascii_graphic()) => word,
                Ok(other) => format!("<{}>", other.len()),
                Err(other) => format!("<{}>", other.as_bytes().len()),
            });
            self.post_recv(index)?;
        }
        Ok(words)
    }
}
