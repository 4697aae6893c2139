//! One end of a connection: its queue pair, its memory, and waiting for what comes.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use ibverbs_api::{
    AccessFlags, CompletionChannel, CompletionQueue, DmaBuf, MemoryRegion, QpInit, QpState, QpType,
    QueuePair, RKey, RecvWr, RemoteAddr, SendData, SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};
use rdma_cm::{CmId, ConnParam, EventChannel, EventType, RejReason};
use rustix::event::{PollFd, PollFlags, poll};

use super::args::SIZE_MAX;
use super::error::RpingError;
use super::info::{INFO_LEN, Info};

/// Requests under way at most, as `rping` has it.
const SEND_DEPTH: u32 = 16;
/// How long the end of a connection may take to be told, once its work is flushed.
const PARTING: Duration = Duration::from_secs(5);

/// One end.
pub(super) struct End {
    pub(super) id: CmId,
    events: EventChannel,
    qp: Arc<QueuePair>,
    cq: CompletionQueue,
    channel: CompletionChannel,
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
    pub(super) fn new(id: CmId, events: EventChannel, own_qp: bool) -> Result<Self, RpingError> {
        let context = id.verbs().ok_or(RpingError::NoDevice)?;
        let pd = context.alloc_pd()?;
        let channel = context.create_channel()?;
        let cq = context.create_cq(2 * SEND_DEPTH, Some(&channel), 0)?;
        let mut init = QpInit::new(QpType::Rc, &cq, &cq);
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
        let end = Self { id, events, qp, cq, channel, inbox, source, sink, own_qp, received, done };
        if own_qp {
            end.move_qp(&[QpState::Init])?;
        }
        end.post_recv()?;
        Ok(end)
    }

    /// Moves a queue pair of our own on.
    pub(super) fn move_qp(&self, states: &[QpState]) -> Result<(), RpingError> {
        for &to in states {
            let (attr, mask) = self.id.init_qp_attr(to)?;
            self.qp.modify(&attr, mask)?;
        }
        Ok(())
    }

    /// Makes a queue pair of our own ready, where the connection manager has none to make so.
    pub(super) fn make_ready(&self) -> Result<(), RpingError> {
        if self.own_qp {
            // INIT once more: only now is known whether the peer may READ.
            self.move_qp(&[QpState::Init, QpState::Rtr, QpState::Rts])?;
        }
        Ok(())
    }

    fn post_recv(&self) -> Result<(), RpingError> {
        let sges = [self.inbox.sge(0..INFO_LEN)];
        Ok(self.qp.post_recv(RecvWr { wr_id: 0, sges: &sges })?)
    }

    /// Sends where the peer may read or write.
    pub(super) fn send(&mut self, info: Info) -> Result<(), RpingError> {
        self.post(SendOp::Send { imm: None }, SendData::Inline(&info.write()))?;
        self.complete()
    }

    /// Reads `info` of the peer's memory into the sink.
    pub(super) fn read(&mut self, info: Info) -> Result<(), RpingError> {
        let data = [self.sink.sge(0..info.size as usize)];
        self.post(SendOp::Read { remote: remote(info) }, SendData::Sges(&data))?;
        self.complete()
    }

    /// Writes the first `len` bytes of the sink to the peer's memory.
    pub(super) fn write(&mut self, info: Info, len: usize) -> Result<(), RpingError> {
        let data = [self.sink.sge(0..len)];
        let op = SendOp::Write { remote: remote(info), imm: None };
        self.post(op, SendData::Sges(&data))?;
        self.complete()
    }

    fn post(&self, op: SendOp, data: SendData<'_>) -> Result<(), RpingError> {
        let flags = SendFlags::SIGNALED;
        Ok(self.qp.post_send(&SendWr { wr_id: 1, op, flags, data, srq_number: None })?)
    }

    /// Waits until our request is complete.
    fn complete(&mut self) -> Result<(), RpingError> {
        while self.done == 0 {
            self.progress()?;
        }
        self.done -= 1;
        Ok(())
    }

    /// Waits for a message.
    ///
    /// The next receive is posted before anything is answered: so the peer always finds one.
    pub(super) fn receive(&mut self) -> Result<Info, RpingError> {
        while self.received == 0 {
            self.progress()?;
        }
        self.received -= 1;
        let mut bytes = [0; INFO_LEN];
        self.inbox.buffer().read_at(0, &mut bytes)?;
        self.post_recv()?;
        Ok(Info::read(&bytes))
    }

    /// Takes completions and events, and sleeps when there are none.
    fn progress(&mut self) -> Result<(), RpingError> {
        if self.take_completions()? {
            return Ok(());
        }
        if let Some(event) = self.events.take() {
            return Err(unexpected(&event, EventType::Disconnected));
        }
        self.cq.req_notify(false);
        if self.take_completions()? {
            return Ok(());
        }
        let (work, events) = (self.channel.as_fd(), self.events.as_fd());
        let mut fds = [PollFd::new(&work, PollFlags::IN), PollFd::new(&events, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(RpingError::Channel(error.into())),
        }
        while self.channel.take().is_some() {}
        Ok(())
    }

    fn take_completions(&mut self) -> Result<bool, RpingError> {
        let mut completions = Vec::new();
        self.cq.poll(2 * SEND_DEPTH as usize, &mut completions);
        for wc in &completions {
            match (wc.status, wc.opcode) {
                (WcStatus::Success, WcOpcode::Recv) if wc.byte_len as usize != INFO_LEN => {
                    return Err(RpingError::Message(wc.byte_len));
                }
                (WcStatus::Success, WcOpcode::Recv) => self.received += 1,
                (WcStatus::Success, _) => self.done += 1,
                (status, _) => return Err(self.failed(status)),
            }
        }
        Ok(!completions.is_empty())
    }

    /// Work failed: with the end of the connection, or by itself.
    fn failed(&self, status: WcStatus) -> RpingError {
        match self.events.wait(PARTING) {
            Ok(Some(event)) if event.event() == EventType::Disconnected => RpingError::Disconnected,
            _ => RpingError::Work(status),
        }
    }

    /// Waits for an event, which has to be `wanted`.
    pub(super) fn expect(&self, wanted: EventType) -> Result<(), RpingError> {
        expect(&self.events, wanted)
    }
}

/// Waits for an event, which has to be `wanted`.
pub(super) fn expect(events: &EventChannel, wanted: EventType) -> Result<(), RpingError> {
    let event = events.get()?;
    if event.event() == wanted { Ok(()) } else { Err(unexpected(&event, wanted)) }
}

fn unexpected(event: &rdma_cm::Event, wanted: EventType) -> RpingError {
    match event.event() {
        EventType::Disconnected => RpingError::Disconnected,
        EventType::Rejected => {
            RpingError::Refused { reason: RejReason(event.status().try_into().unwrap_or(0)) }
        }
        other => RpingError::Event { event: other, status: event.status(), wanted },
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
