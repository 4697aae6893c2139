//! The judge: what each completion must say, and what must have come of it by then.

use rxe_core::AsyncEvent;
use rxe_core::qp::{QpState, QpType};
use rxe_core::wc::{WcFlags, WcOpcode, WcStatus, WorkCompletion};

use super::keys::KeyKind;
use super::memory::Place;
use super::plan::{Action, Flaw, HEADER_LEN, Message, ReceiveFlaw, Request};
use super::supply::receive_of;
use super::world::World;

/// Tells messages apart where they may be lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Tag {
    /// Its immediate data.
    Imm(u32),
    /// Its first eight bytes.
    Head(u64),
}

impl Tag {
    /// The tag of a message.
    pub(super) fn of(imm: Option<u32>, data: &[u8]) -> Option<Self> {
        let head = || data.first_chunk().map(|head| Self::Head(u64::from_le_bytes(*head)));
        imm.map(Self::Imm).or_else(head)
    }
}

impl World {
    /// Judges one completion.
    pub(super) fn judge(&mut self, wc: &WorkCompletion) -> Result<(), String> {
        let index = *self.by_qpn.get(&wc.qpn).ok_or_else(|| format!("whose is {wc:?}?"))?;
        match receive_of(wc.wr_id) {
            Some((supply, number)) => self.judge_receive(index, wc, supply, number),
            None => self.judge_send(index, wc),
        }
        .map_err(|what| format!("QP {index}, {wc:?}: {what}"))
    }

    fn judge_send(&mut self, index: usize, wc: &WorkCompletion) -> Result<(), String> {
        let qp = &self.qps[index];
        let (first, end) = (qp.sends_done, qp.posted.count);
        let is_success = wc.status == WcStatus::Success;
        if is_success && qp.sends_failed {
            return Err("success after a failure".to_owned());
        }
        // Unsignaled ones before it are done as well; a failure always completes.
        let requests = &qp.end.requests;
        let signaled = (first..end).find(|&i| requests[i].signaled).unwrap_or(end);
        let number = wc.wr_id as usize;
        let is_next = match (is_success, qp.sends_failed) {
            (true, _) => number == signaled,
            (false, false) => (first..=signaled).contains(&number),
            (false, true) => number == first,
        };
        if !is_next || number >= end {
            return Err(format!("request {first} to {signaled} was to complete next"));
        }
        for done in first..number {
            self.take_effect(index, done)?;
        }
        if is_success {
            self.judge_success(index, number, wc)?;
            self.take_effect(index, number)?;
        } else {
            self.judge_failure(index, number, wc.status)?;
            self.may_have_effect(index, number, wc.status)?;
            self.flushes += u64::from(wc.status == WcStatus::WrFlushErr);
            self.note_failed(index);
            self.qps[index].sends_failed = true;
        }
        self.qps[index].sends_done = number + 1;
        Ok(())
    }

    fn judge_success(
        &self,
        index: usize,
        number: usize,
        wc: &WorkCompletion,
    ) -> Result<(), String> {
        let request = &self.qps[index].end.requests[number];
        let opcode = match request.action {
            Action::Send | Action::SendTo(_) | Action::SendInvalidate(_) => WcOpcode::Send,
            Action::AtomicWrite(_) => WcOpcode::AtomicWrite,
            Action::Flush(_) => WcOpcode::Flush,
            Action::LocalInvalidate(_) => WcOpcode::LocalInv,
            Action::MakeKey(key) => match self.qps[index].end.keys[key].kind {
                KeyKind::Fast => WcOpcode::RegMr,
                KeyKind::Window1 | KeyKind::Window | KeyKind::ZeroBasedWindow => WcOpcode::BindMw,
            },
            Action::Write(_) => WcOpcode::RdmaWrite,
            Action::Read(_) => WcOpcode::RdmaRead,
            Action::FetchAdd(..) => WcOpcode::FetchAdd,
            Action::CompareSwap(..) => WcOpcode::CompSwap,
        };
        let len = request.data.len();
        if wc.opcode != opcode || wc.byte_len as usize != len {
            return Err(format!("{opcode:?} of {len} bytes was posted"));
        }
        Ok(())
    }

    /// A request is done: its effect must be there.
    fn take_effect(&mut self, index: usize, number: usize) -> Result<(), String> {
        let qp = &self.qps[index];
        let (own, is_reliable) = (qp.memory, qp.is_reliable());
        let peer = self.qps[qp.peer].memory;
        let request = &qp.end.requests[number];
        if let Some(flaw) = request.flaw
            && flaw != Flaw::QueueKey
        {
            return Err(format!("request {number} succeeded with {flaw:?}"));
        }
        self.bytes += request.data.len() as u64;
        let Request { ref data, ref pieces, .. } = *request;
        let wrong = || Err(format!("the bytes of request {number} are not there when it is done"));
        match request.action {
            Action::Write(offset) | Action::AtomicWrite(offset) => {
                let place = [Place { offset, len: data.len() }];
                if !is_reliable {
                    self.memories[peer].suspect(&place, data);
                    return Ok(());
                }
                if request.is_alone && self.memories[peer].read(&place, data.len())? != *data {
                    return wrong();
                }
                self.memories[peer].expect(&place, data);
            }
            Action::Read(_) => {
                if self.memories[own].read(pieces, data.len())? != *data {
                    return wrong();
                }
                self.memories[own].expect(pieces, data);
            }
            Action::FetchAdd(..) | Action::CompareSwap(..) => {
                return self.take_original(index, number);
            }
            Action::MakeKey(key) => {
                let key = &mut self.qps[index].keys[key];
                (key.is_known, key.is_valid) = (true, true);
            }
            Action::LocalInvalidate(key) => {
                self.qps[index].keys[key].is_valid = false;
                self.invalidations += 1;
            }
            Action::Flush(_) | Action::Send | Action::SendTo(_) | Action::SendInvalidate(_) => {}
        }
        if is_reliable {
            // Judged when all completions have been looked at.
            self.owed.push((self.qps[index].peer, self.qps[index].end.requests[number].messages));
        }
        Ok(())
    }

    /// An atomic is done: what came back goes into the history of its cell.
    fn take_original(&mut self, index: usize, number: usize) -> Result<(), String> {
        let qp = &self.qps[index];
        let pieces = &qp.end.requests[number].pieces;
        let memory = &mut self.memories[qp.memory];
        let bytes = memory.read(pieces, 8)?;
        memory.expect(pieces, &bytes);
        let original = u64::from_ne_bytes(*bytes.first_chunk().ok_or("eight bytes are missing")?);
        let (cell, change) = qp.change(number).ok_or("no atomic")?;
        let cells = self.nodes[self.qps[qp.peer].node].cells;
        self.cells[cells].histories[cell].note(index, number, change, Some(original));
        self.qps[index].seen.insert(cell, change.apply(original));
        self.atomics += 1;
        Ok(())
    }

    /// A request has failed: nobody knows what it did.
    fn may_have_effect(
        &mut self,
        index: usize,
        number: usize,
        status: WcStatus,
    ) -> Result<(), String> {
        let qp = &self.qps[index];
        // The peer has refused it, or it was never sent.
        if status == WcStatus::RemAccessErr || number >= qp.posted_alive {
            return Ok(());
        }
        let peer = &self.qps[qp.peer];
        let Request { ref data, ref pieces, action, .. } = qp.end.requests[number];
        match action {
            Action::Write(offset) | Action::AtomicWrite(offset) => {
                self.memories[peer.memory].suspect(&[Place { offset, len: data.len() }], data);
            }
            Action::Read(_) => self.memories[qp.memory].suspect(pieces, data),
            Action::FetchAdd(..) | Action::CompareSwap(..) => {
                self.memories[qp.memory].give_up(pieces);
                let (cell, change) = qp.change(number).ok_or("no atomic")?;
                let cells = self.nodes[peer.node].cells;
                self.cells[cells].histories[cell].note(index, number, change, None);
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether a request may end in this way.
    fn judge_failure(&self, index: usize, number: usize, status: WcStatus) -> Result<(), String> {
        let qp = &self.qps[index];
        if !qp.may_fail {
            return Err("nothing was to fail".to_owned());
        }
        let request = &qp.end.requests[number];
        let is_in_error = |index: usize| self.qps[index].qp.state() == QpState::Err;
        let receive = || {
            let brings = matches!(request.action, Action::Send | Action::SendInvalidate(_));
            let supply = &self.supplies[self.qps[qp.peer].supply];
            brings.then(|| supply.receives.get(request.messages - 1)?.flaw).flatten()
        };
        let peer_qpn = self.qps[qp.peer].qp.qpn();
        let has_told = |event: AsyncEvent| self.told.contains(&(qp.peer, event.event_type()));
        let expected = match status {
            WcStatus::WrFlushErr => qp.sends_failed || is_in_error(index),
            _ if qp.sends_failed => false,
            WcStatus::RetryExcErr => qp.is_reliable() && is_in_error(qp.peer),
            WcStatus::LocProtErr => request.flaw == Some(Flaw::OwnKey),
            // R36: the peer's program was told, by an event or by the receive that it took.
            WcStatus::RemAccessErr => {
                let is_flawed = |flaw: Flaw| !matches!(flaw, Flaw::OwnKey | Flaw::QueueKey);
                let is_told = request.imm.is_some() || has_told(AsyncEvent::QpAccessErr(peer_qpn));
                request.flaw.is_some_and(is_flawed) && is_told
            }
            WcStatus::RemInvReqErr => {
                receive() == Some(ReceiveFlaw::Short) && has_told(AsyncEvent::QpReqErr(peer_qpn))
            }
            WcStatus::RemOpErr => receive() == Some(ReceiveFlaw::Key),
            _ => false,
        };
        if !expected {
            return Err(format!("this is no way for {:?} to end", request.action));
        }
        Ok(())
    }

    fn judge_receive(
        &mut self,
        index: usize,
        wc: &WorkCompletion,
        supply: usize,
        number: usize,
    ) -> Result<(), String> {
        if self.qps[index].supply != supply {
            return Err("the receive is not for this queue pair".to_owned());
        }
        self.supplies[supply].complete(number)?;
        let last = self.qps[index].last_receive.replace(number);
        if last.is_some_and(|last| last >= number) {
            return Err(format!("receive {last:?} has completed before"));
        }
        if wc.status != WcStatus::Success {
            return self.judge_receive_failure(index, wc.status, number);
        }
        if self.qps[index].receives_failed {
            return Err("success after a failure".to_owned());
        }
        if self.qps[index].is_reliable() {
            self.judge_message(index, wc, number)
        } else {
            self.judge_arrival(index, wc, number)
        }
    }

    fn judge_receive_failure(
        &mut self,
        index: usize,
        status: WcStatus,
        number: usize,
    ) -> Result<(), String> {
        let qp = &self.qps[index];
        let supply = &self.supplies[qp.supply];
        let receive = supply.receive(number);
        let memory = &mut self.memories[supply.memory];
        // A message in the middle of which it ended.
        match qp.end.messages.get(qp.messages_done) {
            Some(Message { data: Some(data), .. }) if qp.is_reliable() => {
                memory.suspect(&receive.pieces, data);
            }
            _ if qp.is_reliable() => {}
            _ => memory.give_up(&receive.pieces),
        }
        // A shared receive cannot be given back when a message of UC breaks off.
        let broken = qp.qp.qp_type() == QpType::Uc && supply.is_shared();
        if status == WcStatus::RemInvReqErr && broken {
            return Ok(());
        }
        let peer_flaw = || {
            let message = qp.end.messages.get(qp.messages_done)?;
            self.qps[qp.peer].end.requests[message.request].flaw
        };
        let expected = match status {
            WcStatus::WrFlushErr => qp.qp.state() == QpState::Err,
            _ if qp.receives_failed => false,
            WcStatus::LocLenErr => receive.flaw == Some(ReceiveFlaw::Short),
            WcStatus::LocProtErr => receive.flaw == Some(ReceiveFlaw::Key),
            WcStatus::LocAccessErr => peer_flaw().is_some_and(|flaw| flaw != Flaw::OwnKey),
            _ => false,
        };
        if !qp.may_fail || !expected {
            return Err("this is no way for the receive to end".to_owned());
        }
        self.flushes += u64::from(status == WcStatus::WrFlushErr);
        self.note_failed(index);
        self.qps[index].receives_failed = true;
        Ok(())
    }

    /// The next message of a reliable connection has arrived.
    fn judge_message(
        &mut self,
        index: usize,
        wc: &WorkCompletion,
        number: usize,
    ) -> Result<(), String> {
        let qp = &self.qps[index];
        let message = qp.end.messages.get(qp.messages_done).ok_or("no message is to come")?;
        if message.request >= self.qps[qp.peer].posted.count {
            return Err(format!("message {} has not been sent", qp.messages_done));
        }
        let (flags, imm) = match message.invalidates {
            Some(key) => (WcFlags::WITH_INV, qp.keys[key].rkey().get()),
            None => flags_of(message.imm),
        };
        let opcode = match message.data {
            Some(_) => WcOpcode::Recv,
            None => WcOpcode::RecvRdmaWithImm,
        };
        let wanted = (opcode, message.byte_len, imm, flags);
        if (wc.opcode, wc.byte_len, wc.imm, wc.flags) != wanted {
            return Err(format!("{wanted:?} was sent"));
        }
        let supply = &self.supplies[qp.supply];
        let pieces = &supply.receive(number).pieces;
        match (&message.data, message.target) {
            (Some(data), _) => {
                if self.memories[supply.memory].read(pieces, data.len())? != *data {
                    return Err("the message is not there when it completes".to_owned());
                }
                self.memories[supply.memory].expect(pieces, data);
            }
            (None, Some(offset)) => {
                let request = &self.qps[qp.peer].end.requests[message.request];
                let place = [Place { offset, len: request.data.len() }];
                let now = self.memories[qp.memory].read(&place, request.data.len())?;
                if request.is_alone && now != request.data {
                    return Err("what was written is not there when it is told of".to_owned());
                }
            }
            (None, None) => return Err("a message without data".to_owned()),
        }
        if let Some(key) = message.invalidates {
            self.invalidations += 1;
            self.qps[index].keys[key].is_valid = false;
        }
        self.qps[index].messages_done += 1;
        Ok(())
    }

    /// A message that might have been lost has arrived: whole, and from whom it says.
    fn judge_arrival(
        &mut self,
        index: usize,
        wc: &WorkCompletion,
        number: usize,
    ) -> Result<(), String> {
        let qp = &self.qps[index];
        let is_datagram = qp.qp.qp_type() == QpType::Ud;
        let header = if is_datagram { HEADER_LEN } else { 0 };
        let (supply, is_write) =
            (&self.supplies[qp.supply], wc.opcode == WcOpcode::RecvRdmaWithImm);
        let pieces = &supply.receive(number).pieces;
        let memory = &mut self.memories[supply.memory];
        let received = if is_write { 0 } else { wc.byte_len as usize };
        let bytes = memory.read(pieces, received)?;
        let (_, data) = bytes.split_at_checked(header).ok_or("the header is missing")?;
        let imm = wc.flags.contains(WcFlags::WITH_IMM).then_some(wc.imm);
        let tag = Tag::of(imm, data).ok_or("nothing tells what it is")?;
        let sent = self.tags.get(&(index, tag)).ok_or("nobody sent this")?;
        let &(sender, sent) = sent;
        let from = &self.qps[sender];
        let request = &from.end.requests[sent];
        let source_fits = !is_datagram || wc.source_qpn == from.qp.qpn();
        let (flags, _) = flags_of(request.imm);
        let flags = if is_datagram { flags | WcFlags::GRH } else { flags };
        let len = header + request.data.len();
        if sent >= from.posted.count || !source_fits || wc.flags != flags {
            return Err(format!("request {sent} of QP {sender} was otherwise"));
        }
        if request.flaw.is_some() || wc.byte_len as usize != len {
            return Err(format!("request {sent} of QP {sender} was not to arrive"));
        }
        // Messages that broke off may have left something in it before.
        if !is_datagram {
            memory.give_up(pieces);
        }
        match request.action {
            Action::Write(offset) if is_write => {
                let place = [Place { offset, len: request.data.len() }];
                let now = self.memories[qp.memory].read(&place, request.data.len())?;
                if request.is_alone && now != request.data {
                    return Err("what was written is not there when it is told of".to_owned());
                }
            }
            Action::Send | Action::SendTo(_) if data == request.data => {
                memory.expect(pieces, &bytes);
            }
            _ => return Err(format!("it is not what request {sent} of QP {sender} sent")),
        }
        self.note_arrival(index, sender, sent)
    }

    /// No more copies arrive than the network made, and none out of order that it kept in order.
    fn note_arrival(&mut self, index: usize, sender: usize, sent: usize) -> Result<(), String> {
        if !self.arrived.insert((sender, sent)) {
            self.repeats += 1;
        }
        let last = self.qps[index].last_from.insert(sender, sent);
        if self.is_orderly && last.is_some_and(|last| last >= sent) {
            return Err(format!("request {sent} of QP {sender} after {last:?}, on an orderly net"));
        }
        Ok(())
    }

    /// What completed must have arrived.
    pub(super) fn judge_owed(&mut self) -> Result<(), String> {
        for (index, count) in std::mem::take(&mut self.owed) {
            let qp = &self.qps[index];
            if qp.messages_done < count && !qp.is_over {
                let done = qp.messages_done;
                return Err(format!("QP {index} got {done} messages, {count} have completed"));
            }
        }
        Ok(())
    }

    /// Judges what devices told of themselves.
    pub(super) fn judge_events(&mut self) -> Result<(), String> {
        for node in &self.nodes {
            while let Some(event) = node.shard.device().events().take() {
                let (AsyncEvent::CommEst(qpn)
                | AsyncEvent::QpAccessErr(qpn)
                | AsyncEvent::QpReqErr(qpn)
                | AsyncEvent::QpLastWqeReached(qpn)) = event
                else {
                    return Err(format!("an event: {event}"));
                };
                let index = self.by_qpn.get(&qpn).ok_or_else(|| format!("whose is {event}?"))?;
                let qp = &self.qps[*index];
                let is_shared = self.supplies[qp.supply].is_shared();
                let is_expected = match event {
                    AsyncEvent::CommEst(_) => true,
                    AsyncEvent::QpLastWqeReached(_) => qp.may_fail && is_shared,
                    _ => qp.may_fail && qp.is_reliable() && qp.qp.state() == QpState::Err,
                };
                let is_new = self.told.insert((*index, event.event_type()));
                if !is_expected || !is_new {
                    return Err(format!("QP {index}: {event}"));
                }
            }
        }
        Ok(())
    }

    /// Judges what is left when all is done.
    pub(super) fn judge_end(&mut self) -> Result<(), String> {
        self.judge_events()?;
        for (index, memory) in self.memories.iter().enumerate() {
            memory.judge().map_err(|what| {
                let users = self.qps.iter().enumerate().filter(|(_, qp)| {
                    qp.memory == index || self.supplies[qp.supply].memory == index
                });
                let users: Vec<_> =
                    users.map(|(number, qp)| (number, qp.qp.qp_type(), qp.may_fail)).collect();
                format!("memory {index} at the end, of {users:?}: {what}")
            })?;
        }
        for (index, cells) in self.cells.iter().enumerate() {
            cells.judge().map_err(|what| format!("cells {index}: {what}"))?;
        }
        for (index, qp) in self.qps.iter().enumerate() {
            let wanted = if qp.may_fail { QpState::Err } else { QpState::Rts };
            let is_current = self.by_qpn.get(&qp.qp.qpn()) == Some(&index);
            if is_current && qp.qp.state() != wanted {
                return Err(format!("QP {index} ended in state {:?}", qp.qp.state()));
            }
        }
        let copies: u64 = self.nodes.iter().map(|node| node.link.fault_stats().duplicated).sum();
        if self.repeats > copies {
            return Err(format!("{} messages came twice, {copies} were doubled", self.repeats));
        }
        Ok(())
    }
}

fn flags_of(imm: Option<u32>) -> (WcFlags, u32) {
    let flags = if imm.is_some() { WcFlags::WITH_IMM } else { WcFlags::empty() };
    (flags, imm.unwrap_or(0))
}
