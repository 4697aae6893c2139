//! One end of a connection: its queue pair, its memory, and waiting for what comes.

use std::sync::Arc;

use ibverbs_api::{
    AccessFlags, DmaBuf, MemoryRegion, QpInit, QpState, QpType, QueuePair, RKey, RecvWr,
    RemoteAddr, SendData, SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};
use rdma_cm::{CmId, ConnParam, EventChannel, EventType};

use super::args::SIZE_MAX;
use super::info::{INFO_LEN, Info};
use crate::cm::{CmError, Queue, Told, work_failed};

/// Requests under way at most, as `rping` has it.
const SEND_DEPTH: u32 = 16;

/// One end.
pub(super) struct End {
    pub(super) id: CmId,
    events: EventChannel,
    qp: Arc<QueuePair>,
    queue: Queue,
    /// What is received.
    inbox: MemoryRegion,
    /// What the peer reads.
    pub(super) source: MemoryRegion,
    /// What the peer writes, or we read.
    pub(super) sink: MemoryRegion,
    own_qp: bool,
    /// Messages that have come, and have not been looked at.
    received: u32,
    /// Requests of ours that are complete, and have not been waited for.
    done: u32,
}

/// What a connection of `rping` asks for.
pub(super) fn conn_param(end: &End) -> ConnParam {
    ConnParam {
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        qpn: end.qp.qpn(),
        ..ConnParam::default()
    }
}

impl End {
    /// Makes queue pair and memory for an identifier that has a device, and posts the first receive.
    pub(super) fn new(id: CmId, events: EventChannel, own_qp: bool) -> Result<Self, CmError> {
        let context = id.verbs().ok_or(CmError::NoDevice)?;
        let pd = context.alloc_pd()?;
        let queue = Queue::new(&context, 2 * SEND_DEPTH)?;
        let mut init = QpInit::new(QpType::Rc, queue.cq(), queue.cq());
        init.signal_all = true;
        init.caps.max_send_wr = SEND_DEPTH;
        init.caps.max_recv_wr = 2;
        let qp =
            if own_qp { Arc::new(pd.create_qp(init)?) } else { id.create_qp(Some(&pd), init)? };
        let remote =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        let inbox = pd.register(DmaBuf::zeroed(INFO_LEN), AccessFlags::LOCAL_WRITE)?;
        let source = pd.register(DmaBuf::zeroed(SIZE_MAX), remote)?;
        let sink = pd.register(DmaBuf::zeroed(SIZE_MAX), remote)?;
        let (received, done) = (0, 0);
        let end = Self { id, events, qp, queue, inbox, source, sink, own_qp, received, done };
        if own_qp {
            end.move_qp(&[QpState::Init])?;
        }
        end.post_recv()?;
        Ok(end)
    }

    /// Moves a queue pair of our own on.
    pub(super) fn move_qp(&self, states: &[QpState]) -> Result<(), CmError> {
        for &to in states {
            let (attr, mask) = self.id.init_qp_attr(to)?;
            self.qp.modify(&attr, mask)?;
        }
        Ok(())
    }

    /// Makes a queue pair of our own ready, where the connection manager has none to make so.
    pub(super) fn make_ready(&self) -> Result<(), CmError> {
        if self.own_qp {
            // INIT once more: only now is known whether the peer may READ.
            self.move_qp(&[QpState::Init, QpState::Rtr, QpState::Rts])?;
        }
        Ok(())
    }

    fn post_recv(&self) -> Result<(), CmError> {
        let sges = [self.inbox.sge(0..INFO_LEN)];
        Ok(self.qp.post_recv(RecvWr { wr_id: 0, sges: &sges })?)
    }

    /// Sends where the peer may read or write.
    pub(super) fn send(&mut self, info: Info) -> Result<(), CmError> {
        self.post(SendOp::Send { imm: None }, SendData::Inline(&info.write()))?;
        self.complete()
    }

    /// Reads `info` of the peer's memory into the sink.
    pub(super) fn read(&mut self, info: Info) -> Result<(), CmError> {
        let data = [self.sink.sge(0..info.size as usize)];
        self.post(SendOp::Read { remote: remote(info) }, SendData::Sges(&data))?;
        self.complete()
    }

    /// Writes the first `len` bytes of the sink to the peer's memory.
    pub(super) fn write(&mut self, info: Info, len: usize) -> Result<(), CmError> {
        let data = [self.sink.sge(0..len)];
        let op = SendOp::Write { remote: remote(info), imm: None };
        self.post(op, SendData::Sges(&data))?;
        self.complete()
    }

    fn post(&self, op: SendOp, data: SendData<'_>) -> Result<(), CmError> {
        let flags = SendFlags::SIGNALED;
        Ok(self.qp.post_send(&SendWr { wr_id: 1, op, flags, data, srq_number: None })?)
    }

    /// Waits until our request is complete.
    fn complete(&mut self) -> Result<(), CmError> {
        while self.done == 0 {
            self.progress()?;
        }
        self.done -= 1;
        Ok(())
    }

    /// Waits for a message.
    ///
    /// The next receive is posted before anything is answered: so the peer always finds one.
    pub(super) fn receive(&mut self) -> Result<Info, CmError> {
        while self.received == 0 {
            self.progress()?;
        }
        self.received -= 1;
        let mut bytes = [0; INFO_LEN];
        self.inbox.buffer().read_at(0, &mut bytes)?;
        self.post_recv()?;
        Ok(Info::read(&bytes))
    }

    /// Takes completions, and sleeps until there are some.
    fn progress(&mut self) -> Result<(), CmError> {
        let mut completions = Vec::new();
        if let Some(told) = self.queue.wait(&self.events, None, &mut completions)? {
            return told.none_expected();
        }
        for wc in &completions {
            match (wc.status, wc.opcode) {
                (WcStatus::Success, WcOpcode::Recv) if wc.byte_len as usize != INFO_LEN => {
                    let (bytes, wanted) = (wc.byte_len, INFO_LEN as u32);
                    return Err(CmError::Message { bytes, wanted });
                }
                (WcStatus::Success, WcOpcode::Recv) => self.received += 1,
                (WcStatus::Success, _) => self.done += 1,
                (status, _) => return Err(work_failed(&self.events, status)),
            }
        }
        Ok(())
    }

    /// Waits for an event, which has to be `wanted`.
    pub(super) fn expect(&self, wanted: EventType) -> Result<(), CmError> {
        Told::expect(&self.events, wanted).map(drop)
    }
}

fn remote(info: Info) -> RemoteAddr {
    RemoteAddr { addr: info.addr, rkey: RKey::new(info.rkey) }
}

/// Where the peer may read or write `size` bytes of a region.
pub(super) fn info(memory: &MemoryRegion, size: u32) -> Info {
    let remote = memory.remote_addr(0);
    Info { addr: remote.addr, rkey: remote.rkey.get(), size }
}
