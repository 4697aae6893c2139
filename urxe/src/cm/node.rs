//! One end of a connection, or of a datagram path.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ibverbs_api::{
    AccessFlags, DmaBuf, MemoryRegion, ProtectionDomain, QpInit, QpType, Qpn, QueuePair, RecvWr,
    SendData, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus, WorkCompletion,
};
use rdma_cm::{CmId, EventChannel};

use super::error::CmError;
use super::inbox::{HEAD, Inbox};
use super::queue::{Queue, work_failed};
use super::told::Told;

/// How many messages go each way, and how long they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Messages {
    pub(crate) count: u32,
    pub(crate) size: u32,
}

/// What a message has to hold, from some byte on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Expected {
    pub(crate) from: usize,
    pub(crate) data: Vec<u8>,
}

/// What to do with an event that comes while messages are waited for.
pub(crate) type OnEvent<'a> = dyn FnMut(&Told) -> Result<(), CmError> + 'a;

/// One end, with its queue pair and its messages, which all have the same data.
pub(crate) struct Node {
    pub(crate) id: CmId,
    pub(crate) qp: Arc<QueuePair>,
    pub(crate) pd: ProtectionDomain,
    queue: Queue,
    inbox: Inbox,
    outbox: MemoryRegion,
    messages: Messages,
    /// What has to come.
    pub(crate) expected: Option<Expected>,
    /// Where nobody says, the first message of a sender does: those of the C programs all have the same
    /// data too.
    heard: HashMap<Qpn, Expected>,
    /// The first message that came.
    first: Option<WorkCompletion>,
    received: u32,
    sent: u32,
}

/// The data of all messages of node `number`.
pub(crate) fn pattern(number: usize, size: u32) -> Vec<u8> {
    (0..size as usize).map(|at| (at * 7 + number * 31 + 1) as u8).collect()
}

impl Node {
    /// Makes everything for an identifier that has a device, and posts all receives: so a peer that is
    /// told of the queue pair always finds one.
    pub(crate) fn new(id: CmId, qp_type: QpType, messages: Messages) -> Result<Self, CmError> {
        let context = id.verbs().ok_or(CmError::NoDevice)?;
        let head = if qp_type == QpType::Ud { HEAD } else { 0 };
        if qp_type == QpType::Ud {
            let most = context.query_port(id.port_num())?.active_mtu.bytes();
            if messages.count > 0 && messages.size as usize > most {
                return Err(CmError::Datagram { size: messages.size, most });
            }
        }
        let pd = context.alloc_pd()?;
        let depth = messages.count.max(1);
        let queue = Queue::new(&context, depth.saturating_mul(2))?;
        let mut init = QpInit::new(qp_type, queue.cq(), queue.cq());
        (init.caps.max_send_wr, init.caps.max_recv_wr) = (depth, depth);
        (init.caps.max_send_sge, init.caps.max_recv_sge) = (1, 1);
        let qp = id.create_qp(Some(&pd), init)?;
        let inbox = Inbox::new(&pd, messages.count, head + messages.size as usize)?;
        let outbox = DmaBuf::zeroed((messages.size as usize).max(1));
        let outbox = pd.register(outbox, AccessFlags::LOCAL_WRITE)?;
        let (expected, heard, first, received, sent) = (None, HashMap::new(), None, 0, 0);
        let node = Self {
            id,
            qp,
            pd,
            queue,
            inbox,
            outbox,
            messages,
            expected,
            heard,
            first,
            received,
            sent,
        };
        for number in 0..u64::from(messages.count) {
            let sges = [node.inbox.sge(number)];
            node.qp.post_recv(RecvWr { wr_id: number, sges: &sges })?;
        }
        Ok(node)
    }

    /// Sets the data of the messages that [`Self::send`] sends.
    pub(crate) fn set_data(&self, data: &[u8]) -> Result<(), CmError> {
        Ok(self.outbox.buffer().write_at(0, data)?)
    }

    /// Sends all messages, with our data.
    pub(crate) fn send(&self, op: SendOp) -> Result<(), CmError> {
        self.post(op, self.outbox.sge(0..self.messages.size as usize))
    }

    /// Sends back what has come, as often. As the C programs do, of a datagram the bytes before the
    /// data too, and so less of the data.
    pub(crate) fn send_back(&self, op: SendOp) -> Result<(), CmError> {
        self.post(op, self.inbox.first(self.messages.size as usize))
    }

    fn post(&self, op: SendOp, data: Sge) -> Result<(), CmError> {
        let data = [data];
        for wr_id in 0..u64::from(self.messages.count) {
            let data = SendData::Sges(&data);
            let flags = SendFlags::SIGNALED;
            self.qp.post_send(&SendWr { wr_id, op, flags, data, srq_number: None })?;
        }
        Ok(())
    }

    /// Waits until all messages have come and checks each; with a `limit`, not longer than that for the
    /// next.
    pub(crate) fn receive_all(
        &mut self,
        events: &EventChannel,
        on_event: &mut OnEvent<'_>,
        limit: Option<Duration>,
    ) -> Result<(), CmError> {
        self.receive(self.messages.count, events, on_event, limit)
    }

    /// Likewise, until `count` of them have come in all.
    pub(crate) fn receive(
        &mut self,
        count: u32,
        events: &EventChannel,
        on_event: &mut OnEvent<'_>,
        limit: Option<Duration>,
    ) -> Result<(), CmError> {
        while self.received < count {
            self.progress(events, on_event, limit)?;
        }
        Ok(())
    }

    /// Waits until all that was sent is complete.
    pub(crate) fn complete_sends(
        &mut self,
        events: &EventChannel,
        on_event: &mut OnEvent<'_>,
    ) -> Result<(), CmError> {
        while self.sent < self.messages.count {
            self.progress(events, on_event, None)?;
        }
        Ok(())
    }

    /// The first message, once one has come: its completion, and the bytes before its data.
    pub(crate) fn first(&self) -> Result<Option<(WorkCompletion, [u8; HEAD])>, CmError> {
        let Some(completion) = self.first else { return Ok(None) };
        let bytes = self.inbox.read(completion.wr_id, 0)?;
        let mut head = [0; HEAD];
        let len = bytes.len().min(HEAD);
        head[..len].copy_from_slice(&bytes[..len]);
        Ok(Some((completion, head)))
    }

    fn progress(
        &mut self,
        events: &EventChannel,
        on_event: &mut OnEvent<'_>,
        limit: Option<Duration>,
    ) -> Result<(), CmError> {
        let mut completions = Vec::new();
        if let Some(told) = self.queue.wait(events, limit, &mut completions)? {
            return on_event(&told);
        }
        if let (true, Some(limit)) = (completions.is_empty(), limit) {
            let (came, wanted) = (self.received, self.messages.count);
            return Err(CmError::Lost { came, wanted, seconds: limit.as_secs() });
        }
        for completion in &completions {
            match (completion.status, completion.opcode) {
                (WcStatus::Success, WcOpcode::Recv) => self.take(completion)?,
                (WcStatus::Success, _) => self.sent += 1,
                (status, _) => return Err(work_failed(events, status)),
            }
        }
        Ok(())
    }

    /// Checks a message that has come.
    fn take(&mut self, completion: &WorkCompletion) -> Result<(), CmError> {
        let head = if self.qp.qp_type() == QpType::Ud { HEAD } else { 0 };
        let bytes = completion.byte_len.saturating_sub(head as u32);
        if bytes != self.messages.size {
            return Err(CmError::Message { bytes, wanted: self.messages.size });
        }
        let data = self.inbox.read(completion.wr_id, head)?;
        let like_first = || Expected { from: 0, data: data.clone() };
        let expected = match &self.expected {
            Some(expected) => expected,
            None => self.heard.entry(completion.source_qpn).or_insert_with(like_first),
        };
        if data.get(expected.from..) != Some(&expected.data[..]) {
            return Err(CmError::Data(completion.wr_id));
        }
        self.first.get_or_insert(*completion);
        self.received += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_data_of_their_own() {
        assert_eq!(pattern(0, 3), [1, 8, 15]);
        assert_ne!(pattern(0, 100), pattern(1, 100));
        assert!(pattern(5, 0).is_empty());
    }
}
