//! The responder: a chain of checks in the order of Linux's driver that ends in execution or a
//! refusal, and the replies that follow.

use std::collections::VecDeque;
use std::sync::Arc;

use rxe_wire::hdr::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Feth, FlushPlacement, FlushSelectivity, Ieth, Reth,
};
use rxe_wire::{Msn, NakCode, Opcode, Operation, PKey, Packet, Psn, Qpn, RKey, RnrTimer, Syndrome};

use super::QueuePair;
use super::completer::fills_mtu;
use super::replay::{AtomicRecord, ReadRecord, Record, ReplayRing};
use super::run::RunBuf;
use crate::counters::{Counter, Tally};
use crate::event::{AsyncEvent, EventQueue};
use crate::mem::{AccessFault, AccessFlags, Atomic, Fault, Holder, MemoryTable};
use crate::packet_run::PacketRun;
use crate::pd::PdId;
use crate::srq::SharedReceiveQueue;
use crate::wc::{NetworkType, WcFlags, WcOpcode, WcStatus, WorkCompletion};
use crate::wq::recv::RecvWqe;
use crate::wq::send::ATOMIC_LEN;
use crate::wq::{MAX_MESSAGE, scatter, scatter_span, total_length};

/// What the responder works with, borrowed from the queue pair and its shard.
#[derive(Debug)]
pub(crate) struct ResponderContext<'a> {
    pub(crate) memory: &'a MemoryTable,
    pub(crate) qp: &'a QueuePair,
    pub(crate) events: &'a EventQueue,
    pub(crate) counters: Tally<'a>,
    pub(crate) mtu: usize,
    pub(crate) access: AccessFlags,
    pub(crate) dest_qpn: Qpn,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: RnrTimer,
}

/// Why a request is not executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// It was executed before, and is answered once more.
    Answered,
    /// No answer is due.
    Silent(Counter),
    /// A request before it is missing (R21).
    OutOfSequence,
    /// There is no receive buffer for it.
    NotReady,
    /// It cannot be executed; the receive that it took, if any, ends with `status`.
    Nak { code: NakCode, status: WcStatus },
}

/// What is to be done after a request; only the queue pair does it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Go on.
    Go,
    /// The QP goes to the error state (the NAK still leaves).
    Fail,
}

/// The message that is coming in.
#[derive(Debug)]
enum Inbound {
    /// None has begun.
    Between,
    /// A SEND: `offset` bytes have gone into the receive.
    Send { wqe: RecvWqe, offset: u64 },
    /// A WRITE: the next byte goes to `va`, and `left` bytes are to come of `total`.
    Write { va: u64, rkey: RKey, left: u32, total: u32 },
}

/// A reply that is owed, in the order of the requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reply {
    /// An ACK or NAK.
    Acknowledge { psn: Psn, msn: Msn, syndrome: Syndrome },
    /// A READ response from `psn` on.
    Read { psn: Psn, msn: Msn, pd: PdId, va: u64, rkey: RKey, left: u32, first: bool, replay: bool },
    /// What the memory held before an atomic.
    Atomic { psn: Psn, msn: Msn, original: u64, replay: bool },
    /// That an ATOMIC WRITE or a FLUSH is done: a READ response without data, as rdma_rxe has it.
    Done { psn: Psn, msn: Msn, replay: bool },
}

impl Reply {
    /// Whether it answers a READ or an atomic, or does so again.
    fn is_response(&self) -> bool {
        !matches!(self, Self::Acknowledge { .. })
    }

    /// Whether it answers a READ or an atomic once more.
    fn is_replay(&self) -> bool {
        match *self {
            Self::Read { replay, .. } | Self::Atomic { replay, .. } | Self::Done { replay, .. } => {
                replay
            }
            Self::Acknowledge { .. } => false,
        }
    }
}

/// The responder's state.
#[derive(Debug)]
pub(crate) struct Responder {
    pub(super) expected: Psn,
    msn: Msn,
    /// The gap, or the missing receive, has been reported; silence until the expected PSN (R21).
    reported: bool,
    inbound: Inbound,
    /// The receive that a WRITE with immediate has taken.
    taken: Option<RecvWqe>,
    /// UC: the receive that a broken message gave back, for the next one.
    pub(super) kept: Option<RecvWqe>,
    /// XRC: the shared receive queue that the message names.
    srq: Option<Arc<SharedReceiveQueue>>,
    replies: VecDeque<Reply>,
    replay: ReplayRing,
}

impl Responder {
    pub(crate) fn new(expected: Psn) -> Self {
        Self {
            expected,
            msn: Msn::new(0),
            reported: false,
            inbound: Inbound::Between,
            taken: None,
            kept: None,
            srq: None,
            replies: VecDeque::new(),
            replay: ReplayRing::default(),
        }
    }

    /// Whether a reply is owed.
    pub(crate) fn owes_reply(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Whether what is owed are acknowledgements alone, none of which tells of a failure.
    pub(crate) fn owes_acks_only(&self) -> bool {
        let is_ack = |reply: &Reply| matches!(reply, Reply::Acknowledge { syndrome, .. } if syndrome.is_ack());
        self.owes_reply() && self.replies.iter().all(is_ack)
    }

    /// Whether the reply that is owed first is data: of a READ.
    pub(crate) fn owes_data(&self) -> bool {
        matches!(self.replies.front(), Some(Reply::Read { .. }))
    }

    /// Forgets what is owed: the QP was moved to another state by its owner.
    pub(crate) fn forget_replies(&mut self) {
        self.replies.clear();
    }

    /// The receive that an unfinished message holds, for flushing.
    pub(crate) fn take_unfinished(&mut self) -> Option<RecvWqe> {
        self.srq = None;
        let taken = self.taken.take();
        match std::mem::replace(&mut self.inbound, Inbound::Between) {
            Inbound::Send { wqe, .. } => Some(wqe),
            Inbound::Between | Inbound::Write { .. } => taken.or_else(|| self.kept.take()),
        }
    }

    /// Handles one request packet.
    pub(crate) fn handle_request(
        &mut self,
        cx: &ResponderContext<'_>,
        packet: &Packet<'_>,
    ) -> Verdict {
        match self.execute(cx, packet) {
            Ok(()) => Verdict::Go,
            Err(refusal) => self.refuse(cx, packet, refusal),
        }
    }

    /// Takes in packets in the midst of a SEND or WRITE, as [`Self::handle_request`] would one by one,
    /// by a short way: the message began well, and they are the next ones and ask for nothing.
    ///
    /// The first of `run` is `packet`, and `count` of them are in sequence. Returns how many it has
    /// taken in; what is not as simple is left to the long way.
    pub(crate) fn take_middles(
        &mut self,
        cx: &ResponderContext<'_>,
        packet: &Packet<'_>,
        (run, count): (PacketRun<'_>, u32),
    ) -> u32 {
        let is_next = packet.bth().psn == self.expected && !packet.bth().ack_req;
        let is_plain = fills_mtu(packet, cx.mtu) && cx.qp.init().xrcd.is_none();
        if !is_next
            || !is_plain
            || self.check_op_sequence(packet).is_err()
            || self.check_op_valid(cx, packet).is_err()
        {
            return 0;
        }
        let (holder, mtu) = (self.holder(cx), cx.mtu as u64);
        // R29: none of them ends the message, nor goes beyond it.
        let room = match &self.inbound {
            Inbound::Send { wqe, offset } => {
                let most = total_length(&wqe.sges).min(MAX_MESSAGE.into());
                most.saturating_sub(*offset) / mtu
            }
            Inbound::Write { left, .. } => u64::from(left.saturating_sub(1)) / mtu,
            Inbound::Between => 0,
        };
        let count = u64::from(count).min(room);
        let len = count * mtu;
        let span = match &self.inbound {
            Inbound::Send { wqe, offset } => {
                scatter_span(cx.memory, wqe.pd, &wqe.sges, *offset, len)
            }
            // Checked anew: the registration may have ended meanwhile.
            Inbound::Write { va, rkey, .. } => {
                let (key, needed) = (rkey.get(), AccessFlags::REMOTE_WRITE);
                cx.memory.access_for(holder, key, *va, len, needed).ok()
            }
            Inbound::Between => None,
        };
        let Some(span) = span.filter(|_| count > 0) else { return 0 };
        // Fits: so many came in one buffer.
        let written = span.write_payloads(run, count as u32, cx.mtu);
        drop(span);
        let bytes = u64::from(written) * mtu;
        match &mut self.inbound {
            Inbound::Send { offset, .. } => *offset += bytes,
            Inbound::Write { va, left, .. } => {
                (*va, *left) = (va.wrapping_add(bytes), *left - bytes as u32);
            }
            Inbound::Between => {}
        }
        if written > 0 {
            self.reported = false;
            self.advance(written);
        }
        written
    }

    /// The chain of checks, in the order of Linux's driver.
    fn execute(&mut self, cx: &ResponderContext<'_>, packet: &Packet<'_>) -> Result<(), Refusal> {
        self.check_psn(cx, packet)?;
        self.check_op_sequence(packet)?;
        self.check_op_valid(cx, packet)?;
        self.carry_out(cx, packet)?;
        self.reported = false;
        if packet.bth().ack_req && !is_answered(packet) {
            self.owe_ack(cx, self.expected.minus(1), self.msn);
        }
        Ok(())
    }

    /// The second half of the chain, for a packet that has its place and is allowed there.
    pub(super) fn carry_out(
        &mut self,
        cx: &ResponderContext<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Refusal> {
        self.find_shared_queue(cx, packet)?;
        self.take_resource(cx, packet)?;
        self.check_length(cx, packet)?;
        self.check_rkey(cx, packet)?;
        match packet.info().operation {
            Operation::Send => self.execute_send(cx, packet),
            Operation::Write => self.execute_write(cx, packet),
            Operation::CompareSwap | Operation::FetchAdd => self.execute_atomic(cx, packet),
            Operation::AtomicWrite => self.execute_atomic_write(cx, packet),
            Operation::Flush => self.execute_flush(cx, packet),
            _ => self.execute_read(cx, packet),
        }?;
        if packet.info().position.is_end() {
            self.srq = None;
        }
        Ok(())
    }

    /// XRC: finds the shared receive queue that the message names. One that is not in the domain
    /// of the target, or another one within a message, is an invalid request (IBA volume 1,
    /// annex A14).
    fn find_shared_queue(
        &mut self,
        cx: &ResponderContext<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Refusal> {
        let Some(xrcd) = &cx.qp.init().xrcd else { return Ok(()) };
        let number = packet.xrceth().map(|xrceth| xrceth.srqn);
        if packet.info().position.is_start() {
            self.srq = number.and_then(|number| xrcd.find(number));
        }
        if self.srq.as_ref().map(|srq| srq.id().0) == number && number.is_some() {
            return Ok(());
        }
        tracing::debug!(target: "rxe::resp", qpn = %cx.qp.qpn(), number, "no such SRQ here");
        Err(invalid_request(WcStatus::RemInvReqErr))
    }

    /// Who the message works with keys for.
    fn holder(&self, cx: &ResponderContext<'_>) -> Holder {
        Holder { pd: self.pd(cx), qpn: cx.qp.qpn() }
    }

    /// The protection domain that counts for the message.
    fn pd(&self, cx: &ResponderContext<'_>) -> PdId {
        self.srq.as_ref().map_or_else(|| cx.qp.pd(), |srq| srq.pd())
    }

    fn check_psn(&mut self, cx: &ResponderContext<'_>, packet: &Packet<'_>) -> Result<(), Refusal> {
        match packet.bth().psn.distance_from(self.expected) {
            0 => Ok(()),
            ahead if ahead > 0 => Err(Refusal::OutOfSequence),
            _ => Err(self.handle_duplicate(cx, packet)),
        }
    }

    /// A request that lies before the expected PSN: answered again, never executed again.
    fn handle_duplicate(&mut self, cx: &ResponderContext<'_>, packet: &Packet<'_>) -> Refusal {
        cx.counters.bump(Counter::duplicate_request);
        match packet.info().operation {
            // R22: acknowledged with the last PSN that was.
            Operation::Send | Operation::Write => {
                let (psn, msn) = self.last_acknowledged(cx);
                self.owe_ack(cx, psn, msn);
                Refusal::Answered
            }
            Operation::ReadRequest => {
                let psn = packet.bth().psn;
                let known = packet.reth().and_then(|reth| {
                    let record = self.replay.find_read(psn, reth, cx.mtu)?;
                    Some((reth, record))
                });
                // R25: one that is not known any more is dropped.
                let Some((Reth { va, len: left, .. }, record)) = known else {
                    return Refusal::Silent(Counter::drop_unknown_duplicate);
                };
                let ReadRecord { msn, pd, rkey, .. } = record;
                let (first, replay) = (true, true);
                self.owe_replay(cx, Reply::Read { psn, msn, pd, va, rkey, left, first, replay });
                Refusal::Answered
            }
            // R23: answered with what was there before it was executed, the first time.
            Operation::CompareSwap | Operation::FetchAdd => {
                let Some(record) = self.replay.find_atomic(packet.bth().psn) else {
                    return Refusal::Silent(Counter::drop_unknown_duplicate);
                };
                let AtomicRecord { psn, msn, original } = record;
                self.owe_replay(cx, Reply::Atomic { psn, msn, original, replay: true });
                Refusal::Answered
            }
            // Answered, but not executed again, as rdma_rxe has it.
            Operation::AtomicWrite | Operation::Flush => {
                let psn = packet.bth().psn;
                let Some(msn) = self.replay.find_done(psn) else {
                    return Refusal::Silent(Counter::drop_unknown_duplicate);
                };
                self.owe_replay(cx, Reply::Done { psn, msn, replay: true });
                Refusal::Answered
            }
            _ => Refusal::Silent(Counter::drop_unknown_duplicate),
        }
    }

    /// The last PSN that an acknowledgement may have, with its MSN: that of a READ or an atomic is
    /// for its response alone. A requester that has not got that (rdma_rxe is one) takes the
    /// acknowledgement for it, and has a READ complete without its data.
    fn last_acknowledged(&self, cx: &ResponderContext<'_>) -> (Psn, Msn) {
        self.replay
            .before_last(self.expected.minus(1), cx.mtu)
            .unwrap_or_else(|| (self.expected.minus(1), self.msn))
    }

    /// R23, R24: answers a duplicate, unless what it asks for is still on its way out.
    fn owe_replay(&mut self, cx: &ResponderContext<'_>, reply: Reply) {
        if self.restart_read(cx, reply) {
            return;
        }
        let (Reply::Read { psn, .. }
        | Reply::Atomic { psn, .. }
        | Reply::Done { psn, .. }
        | Reply::Acknowledge { psn, .. }) = reply;
        let still_coming = self.replies.iter().any(|reply| match *reply {
            Reply::Read { psn: next, left, .. } => {
                let end = next.plus(packets_of(left, cx.mtu));
                !next.is_after(psn) && end.is_after(psn)
            }
            Reply::Atomic { psn: next, .. } | Reply::Done { psn: next, .. } => next == psn,
            Reply::Acknowledge { .. } => false,
        });
        let replays = self.replies.iter().filter(|reply| reply.is_replay()).count();
        // At most one replay for each request that the peer may have outstanding.
        if !still_coming && replays < usize::from(cx.max_dest_rd_atomic) {
            self.replies.push_back(reply);
        }
    }

    /// Goes back in a READ response that is under way, to where the peer asks for it again.
    ///
    /// What was left of it would arrive behind the gap, in vain, and hold up the replay.
    fn restart_read(&mut self, cx: &ResponderContext<'_>, again: Reply) -> bool {
        let Reply::Read { psn, left, va, .. } = again else { return false };
        let end = psn.plus(packets_of(left, cx.mtu));
        for reply in &mut self.replies {
            if let Reply::Read { psn: next, va: next_va, left: next_left, first, .. } = reply
                && next.is_after(psn)
                && next.plus(packets_of(*next_left, cx.mtu)) == end
            {
                (*next, *next_va, *next_left, *first) = (psn, va, left, true);
                return true;
            }
        }
        false
    }

    pub(super) fn check_op_sequence(&self, packet: &Packet<'_>) -> Result<(), Refusal> {
        let info = packet.info();
        let fits = match (&self.inbound, info.operation) {
            (Inbound::Between, _) => info.position.is_start(),
            (Inbound::Send { .. }, Operation::Send) | (Inbound::Write { .. }, Operation::Write) => {
                !info.position.is_start()
            }
            (Inbound::Send { .. } | Inbound::Write { .. }, _) => false,
        };
        if fits { Ok(()) } else { Err(invalid_request(WcStatus::RemInvReqErr)) }
    }

    /// Whether this device has the operation, and this QP allows it.
    pub(super) fn check_op_valid(
        &self,
        cx: &ResponderContext<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Refusal> {
        let info = packet.info();
        let allowed = match info.operation {
            Operation::Send => true,
            Operation::Write => cx.access.contains(AccessFlags::REMOTE_WRITE),
            Operation::ReadRequest => cx.access.contains(AccessFlags::REMOTE_READ),
            Operation::CompareSwap | Operation::FetchAdd => {
                cx.access.contains(AccessFlags::REMOTE_ATOMIC)
            }
            Operation::AtomicWrite => cx.access.contains(AccessFlags::REMOTE_WRITE),
            // One that says neither how far nor of what is no request.
            Operation::Flush => flush_access(packet)
                .is_some_and(|(needed, _)| !needed.is_empty() && cx.access.contains(needed)),
            _ => false,
        };
        if allowed { Ok(()) } else { Err(invalid_request(WcStatus::RemInvReqErr)) }
    }

    /// Takes the receive that the message needs, or a place among the READs and atomics under way.
    fn take_resource(
        &mut self,
        cx: &ResponderContext<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Refusal> {
        let info = packet.info();
        match info.operation {
            Operation::Send if info.position.is_start() => {
                let wqe = self.take_recv(cx)?;
                self.inbound = Inbound::Send { wqe, offset: 0 };
            }
            Operation::Write if info.with_imm => {
                self.taken = Some(self.take_recv(cx)?);
            }
            _ if is_answered(packet) => {
                let under_way =
                    self.replies.iter().filter(|reply| reply.is_response() && !reply.is_replay());
                // R26.
                if under_way.count() >= usize::from(cx.max_dest_rd_atomic) {
                    return Err(invalid_request(WcStatus::RemInvReqErr));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The next receive: the one kept of a broken message, or the oldest posted.
    fn take_recv(&mut self, cx: &ResponderContext<'_>) -> Result<RecvWqe, Refusal> {
        let take = || match &self.srq {
            Some(srq) => srq.take(),
            None => cx.qp.take_recv(),
        };
        self.kept.take().or_else(take).ok_or(Refusal::NotReady)
    }

    /// R29: payload and MTU, and the length of the whole message.
    fn check_length(&self, cx: &ResponderContext<'_>, packet: &Packet<'_>) -> Result<(), Refusal> {
        let info = packet.info();
        let payload = packet.payload().len() as u64;
        if !info.payload.check(packet.payload().len(), cx.mtu) {
            return Err(invalid_request(WcStatus::RemInvReqErr));
        }
        match &self.inbound {
            Inbound::Send { wqe, offset } => {
                let end = offset + payload;
                if end > total_length(&wqe.sges) || end > u64::from(MAX_MESSAGE) {
                    return Err(invalid_request(WcStatus::LocLenErr));
                }
            }
            Inbound::Write { left, .. } => {
                let left = u64::from(*left);
                let fits = if info.position.is_end() { payload == left } else { payload < left };
                if !fits {
                    return Err(invalid_request(WcStatus::RemInvReqErr));
                }
            }
            Inbound::Between => {
                let Some(reth) = packet.reth() else { return Ok(()) };
                let len = u64::from(reth.len);
                let fits = len <= u64::from(MAX_MESSAGE)
                    && match info.operation {
                        Operation::Write | Operation::AtomicWrite if info.position.is_end() => {
                            payload == len
                        }
                        Operation::Write => payload < len,
                        _ => true,
                    };
                if !fits {
                    return Err(invalid_request(WcStatus::RemInvReqErr));
                }
            }
        }
        Ok(())
    }

    /// R20, R28, R32, R33: the whole range of a WRITE, READ or atomic, when it begins.
    fn check_rkey(&self, cx: &ResponderContext<'_>, packet: &Packet<'_>) -> Result<(), Refusal> {
        if let Some(AtomicEth { va, rkey, .. }) = packet.atomic_eth() {
            let (key, needed) = (rkey.get(), AccessFlags::REMOTE_ATOMIC);
            return match cx.memory.access_for(self.holder(cx), key, va, ATOMIC_LEN, needed) {
                Ok(_) => Ok(()),
                Err(fault) => Err(self.access_refused(cx, &fault)),
            };
        }
        // FLUSH is judged where it is executed.
        let Some(reth) = packet.reth().filter(|_| packet.feth().is_none()) else { return Ok(()) };
        if reth.len == 0 {
            return Ok(());
        }
        let needed = match packet.info().operation {
            Operation::Write | Operation::AtomicWrite => AccessFlags::REMOTE_WRITE,
            _ => AccessFlags::REMOTE_READ,
        };
        let len = reth.len.into();
        match cx.memory.access_for(self.holder(cx), reth.rkey.get(), reth.va, len, needed) {
            Ok(_) => Ok(()),
            Err(fault) => Err(self.access_refused(cx, &fault)),
        }
    }

    fn access_refused(&self, cx: &ResponderContext<'_>, fault: &AccessFault) -> Refusal {
        tracing::debug!(target: "rxe::resp", qpn = %cx.qp.qpn(), %fault, "access refused");
        Refusal::Nak { code: NakCode::RemoteAccessError, status: WcStatus::LocAccessErr }
    }

    fn execute_send(
        &mut self,
        cx: &ResponderContext<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Refusal> {
        let holder = self.holder(cx);
        let Inbound::Send { wqe, offset } = &mut self.inbound else {
            return Err(invalid_request(WcStatus::RemInvReqErr));
        };
        let payload = packet.payload();
        scatter(cx.memory, wqe.pd, &wqe.sges, *offset, payload).map_err(|fault| {
            tracing::debug!(target: "rxe::resp", wr_id = wqe.wr_id, %fault, "cannot store");
            let (code, status) = (NakCode::RemoteOperationalError, WcStatus::LocProtErr);
            Refusal::Nak { code, status }
        })?;
        *offset += payload.len() as u64;
        if let Some(Ieth(rkey)) = packet.ieth() {
            // R41. The data has arrived, and the receive's completion tells that the key has not
            // been invalidated.
            cx.memory.invalidate(holder, rkey.get()).map_err(|error| {
                tracing::debug!(target: "rxe::resp", wr_id = wqe.wr_id, %error, "not invalidated");
                let (code, status) = (NakCode::RemoteAccessError, WcStatus::RemInvReqErr);
                Refusal::Nak { code, status }
            })?;
        }
        // Fits: `check_length` holds it to 2^31.
        let received = *offset as u32;
        if packet.info().position.is_end()
            && let Inbound::Send { wqe, .. } =
                std::mem::replace(&mut self.inbound, Inbound::Between)
        {
            self.finish_message(cx, packet, Some(wqe), WcOpcode::Recv, received)?;
        }
        self.advance(1);
        Ok(())
    }

    fn execute_write(
        &mut self,
        cx: &ResponderContext<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Refusal> {
        let payload = packet.payload();
        let (va, rkey, left, total) = match (packet.reth(), &self.inbound) {
            (Some(reth), _) => (reth.va, reth.rkey, reth.len, reth.len),
            (None, Inbound::Write { va, rkey, left, total }) => (*va, *rkey, *left, *total),
            (None, _) => return Err(invalid_request(WcStatus::RemInvReqErr)),
        };
        if !payload.is_empty() {
            // Checked anew for each packet: the registration may have ended meanwhile.
            let (key, needed) = (rkey.get(), AccessFlags::REMOTE_WRITE);
            let len = payload.len() as u64;
            cx.memory
                .access_for(self.holder(cx), key, va, len, needed)
                .and_then(|span| span.write(payload))
                .map_err(|fault| self.access_refused(cx, &fault))?;
        }
        if packet.info().position.is_end() {
            self.inbound = Inbound::Between;
            let taken = self.taken.take();
            // R38: the bytes written.
            self.finish_message(cx, packet, taken, WcOpcode::RecvRdmaWithImm, total)?;
        } else {
            // `check_length` made sure that the payload is shorter than what is left.
            let len = payload.len();
            let (va, left) = (va.wrapping_add(len as u64), left - len as u32);
            self.inbound = Inbound::Write { va, rkey, left, total };
        }
        self.advance(1);
        Ok(())
    }

    fn execute_read(
        &mut self,
        cx: &ResponderContext<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Refusal> {
        let Some(reth) = packet.reth() else {
            return Err(invalid_request(WcStatus::RemInvReqErr));
        };
        let (psn, rkey, va, len) = (self.expected, reth.rkey, reth.va, reth.len);
        let pd = self.pd(cx);
        self.msn = self.msn.next();
        let msn = self.msn;
        self.remember(cx, Record::Read(ReadRecord { psn, msn, pd, va, rkey, len }));
        let reply = Reply::Read { psn, msn, pd, va, rkey, left: len, first: true, replay: false };
        self.replies.push_back(reply);
        self.advance(packets_of(len, cx.mtu));
        Ok(())
    }

    fn execute_atomic(
        &mut self,
        cx: &ResponderContext<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Refusal> {
        let Some(AtomicEth { va, rkey, swap_or_add, compare }) = packet.atomic_eth() else {
            return Err(invalid_request(WcStatus::RemInvReqErr));
        };
        // An atomic works on eight bytes at a multiple of 8.
        if !va.is_multiple_of(ATOMIC_LEN) {
            return Err(invalid_request(WcStatus::RemInvReqErr));
        }
        let operation = match packet.info().operation {
            Operation::CompareSwap => Atomic::CompareSwap { compare, swap: swap_or_add },
            _ => Atomic::FetchAdd { add: swap_or_add },
        };
        let original = self.work_on_word(cx, va, rkey, AccessFlags::REMOTE_ATOMIC, operation)?;
        let psn = self.expected;
        self.msn = self.msn.next();
        let msn = self.msn;
        self.remember(cx, Record::Atomic(AtomicRecord { psn, msn, original }));
        self.replies.push_back(Reply::Atomic { psn, msn, original, replay: false });
        self.advance(1);
        Ok(())
    }

    /// R34: eight bytes at once, to a multiple of 8; `check_length` has seen to the eight.
    fn execute_atomic_write(
        &mut self,
        cx: &ResponderContext<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Refusal> {
        let invalid = invalid_request(WcStatus::RemInvReqErr);
        let Reth { va, rkey, .. } = packet.reth().ok_or(invalid)?;
        let bytes = packet.payload().try_into().map_err(|_| invalid)?;
        if !va.is_multiple_of(ATOMIC_LEN) {
            return Err(invalid);
        }
        self.work_on_word(cx, va, rkey, AccessFlags::REMOTE_WRITE, Atomic::Store(bytes))?;
        self.owe_done(cx);
        Ok(())
    }

    /// Makes what was written before visible to all. Requests are executed one after the other, so
    /// there is nothing to wait for.
    fn execute_flush(
        &mut self,
        cx: &ResponderContext<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Refusal> {
        let (Some(Reth { va, rkey, len }), Some((needed, selectivity))) =
            (packet.reth(), flush_access(packet))
        else {
            return Err(invalid_request(WcStatus::RemInvReqErr));
        };
        let (holder, key) = (self.holder(cx), rkey.get());
        let span = match selectivity {
            FlushSelectivity::Range => cx.memory.access_for(holder, key, va, len.into(), needed),
            // The range means nothing, then.
            _ => cx.memory.access_all_for(holder, key, needed),
        };
        span.map_err(|fault| self.access_refused(cx, &fault))?.flush();
        self.owe_done(cx);
        Ok(())
    }

    /// Does an atomic on eight bytes, and gives what they held.
    fn work_on_word(
        &self,
        cx: &ResponderContext<'_>,
        va: u64,
        rkey: RKey,
        needed: AccessFlags,
        operation: Atomic,
    ) -> Result<u64, Refusal> {
        let span = cx.memory.access_for(self.holder(cx), rkey.get(), va, ATOMIC_LEN, needed);
        let span = span.map_err(|fault| self.access_refused(cx, &fault))?;
        span.atomic(operation).map_err(|fault| {
            // R20: memory that is gone is refused as for a WRITE.
            if matches!(fault, AccessFault::Fault(Fault::Unmapped { .. })) {
                return self.access_refused(cx, &fault);
            }
            // Where the region goes by addresses that are aligned otherwise than its memory is,
            // there is no word for the processor to work on.
            tracing::debug!(target: "rxe::resp", qpn = %cx.qp.qpn(), %fault, "no atomic there");
            let (code, status) = (NakCode::RemoteOperationalError, WcStatus::LocQpOpErr);
            Refusal::Nak { code, status }
        })
    }

    /// Owes the response that says that the request is done.
    fn owe_done(&mut self, cx: &ResponderContext<'_>) {
        self.msn = self.msn.next();
        let (psn, msn) = (self.expected, self.msn);
        self.remember(cx, Record::Done { psn, msn });
        self.replies.push_back(Reply::Done { psn, msn, replay: false });
        self.advance(1);
    }

    /// Keeps what a duplicate will be answered with.
    fn remember(&mut self, cx: &ResponderContext<'_>, record: Record) {
        self.replay.push(record);
        self.replay.keep_last(usize::from(cx.max_dest_rd_atomic));
    }

    fn advance(&mut self, count: u32) {
        self.expected = self.expected.plus(count);
    }

    fn finish_message(
        &mut self,
        cx: &ResponderContext<'_>,
        packet: &Packet<'_>,
        wqe: Option<RecvWqe>,
        opcode: WcOpcode,
        byte_len: u32,
    ) -> Result<(), Refusal> {
        let Some(wqe) = wqe else {
            self.note_message(cx);
            return Ok(());
        };
        let (imm, flags) = match (packet.imm(), packet.ieth()) {
            (Some(imm), _) => (imm, WcFlags::WITH_IMM),
            (None, Some(Ieth(rkey))) => (rkey.get(), WcFlags::WITH_INV),
            (None, None) => (0, WcFlags::empty()),
        };
        let wc = WorkCompletion {
            wr_id: wqe.wr_id,
            status: WcStatus::Success,
            opcode,
            vendor_err: 0,
            byte_len,
            imm,
            qpn: cx.qp.qpn(),
            source_qpn: cx.dest_qpn,
            flags,
            network_type: NetworkType::None,
        };
        if !cx.qp.complete_recv(&wqe, wc, packet.bth().solicited) {
            // R52: a message of which nobody learns has not arrived.
            let (code, status) = (NakCode::RemoteOperationalError, WcStatus::GeneralErr);
            return Err(Refusal::Nak { code, status });
        }
        self.note_message(cx);
        Ok(())
    }

    fn note_message(&mut self, cx: &ResponderContext<'_>) {
        self.msn = self.msn.next();
        cx.counters.bump(Counter::rdma_recvs);
    }

    /// Owes an acknowledgement of everything up to `psn`; one that waits already is extended.
    fn owe_ack(&mut self, cx: &ResponderContext<'_>, psn: Psn, msn: Msn) {
        let ack = Reply::Acknowledge { psn, msn, syndrome: Syndrome::ACK_UNLIMITED };
        match self.replies.back_mut() {
            Some(Reply::Acknowledge { psn: waiting, msn: waiting_msn, syndrome })
                if syndrome.is_ack() =>
            {
                if psn.is_after(*waiting) {
                    (*waiting, *waiting_msn) = (psn, msn);
                }
            }
            Some(Reply::Read { .. } | Reply::Atomic { .. } | Reply::Done { .. }) => {
                // It must not overtake the response: the peer would take that for lost (R2).
                cx.counters.bump(Counter::ack_deferred);
                self.replies.push_back(ack);
            }
            _ => self.push_acknowledge(ack, true),
        }
    }

    /// Owes an ACK or NAK in place of the one of its kind that waits behind the last response,
    /// which says less: so READs and atomics alone bound what is owed, whatever the peer sends
    /// meanwhile.
    fn push_acknowledge(&mut self, reply: Reply, is_ack: bool) {
        let last_response = self.replies.iter().rposition(Reply::is_response);
        let after_responses = last_response.map_or(0, |last| last + 1);
        let older = self.replies.iter().skip(after_responses).position(|waiting| {
            matches!(waiting, Reply::Acknowledge { syndrome, .. } if syndrome.is_ack() == is_ack)
        });
        if let Some(older) = older {
            self.replies.remove(after_responses + older);
        }
        self.replies.push_back(reply);
    }

    /// The one place where a refusal becomes a reply, a counter and an effect.
    fn refuse(
        &mut self,
        cx: &ResponderContext<'_>,
        packet: &Packet<'_>,
        refusal: Refusal,
    ) -> Verdict {
        match refusal {
            Refusal::Answered => Verdict::Go,
            Refusal::Silent(reason) => {
                note_drop(cx, reason);
                Verdict::Go
            }
            Refusal::OutOfSequence => {
                cx.counters.bump(Counter::out_of_seq_request);
                self.report(cx, Syndrome::nak(NakCode::PsnSequenceError));
                Verdict::Go
            }
            Refusal::NotReady => {
                cx.counters.bump(Counter::send_rnr_err);
                self.reported = false;
                self.report(cx, Syndrome::rnr(cx.min_rnr_timer));
                Verdict::Go
            }
            Refusal::Nak { code, status } => {
                let bth = packet.bth();
                tracing::debug!(target: "rxe::resp", qpn = %cx.qp.qpn(), psn = %bth.psn,
                    opcode = %bth.opcode, ?code, "request refused");
                self.push_nak(Syndrome::nak(code));
                self.raise(cx, packet, code);
                if let Some(wqe) = self.take_unfinished() {
                    cx.qp.complete_recv_error(&wqe, status);
                }
                Verdict::Fail
            }
        }
    }

    /// Raises the event of a refusal.
    fn raise(&self, cx: &ResponderContext<'_>, packet: &Packet<'_>, code: NakCode) {
        match code {
            NakCode::InvalidRequest => cx.events.push(AsyncEvent::QpReqErr(cx.qp.qpn())),
            // R36: where there is a receive, its completion tells instead.
            NakCode::RemoteAccessError if !packet.info().with_imm && !packet.info().with_inv => {
                cx.events.push(AsyncEvent::QpAccessErr(cx.qp.qpn()));
            }
            // There is no receive to tell of it, and the peer is not to blame.
            NakCode::RemoteOperationalError if is_answered(packet) => {
                cx.events.push(AsyncEvent::QpFatal(cx.qp.qpn()));
            }
            // The completion of the receive tells.
            _ => {}
        }
    }

    /// R21: says once what is missing, then nothing until it comes.
    fn report(&mut self, cx: &ResponderContext<'_>, syndrome: Syndrome) {
        if std::mem::replace(&mut self.reported, true) {
            return note_drop(cx, Counter::drop_after_nak);
        }
        tracing::debug!(target: "rxe::resp", qpn = %cx.qp.qpn(), psn = %self.expected, %syndrome,
            "request refused for now");
        self.push_nak(syndrome);
    }

    fn push_nak(&mut self, syndrome: Syndrome) {
        let nak = Reply::Acknowledge { psn: self.expected, msn: self.msn, syndrome };
        // Copies of a packet that meets no receive are answered by one NAK.
        if self.replies.back() != Some(&nak) {
            self.push_acknowledge(nak, false);
        }
    }

    /// Builds the next packet of the oldest reply into `buf`; the bytes written, 0 when none is
    /// owed.
    pub(crate) fn poll_packet(
        &mut self,
        cx: &ResponderContext<'_>,
        buf: &mut [u8],
    ) -> (usize, Verdict) {
        let Some(reply) = self.replies.front().copied() else { return (0, Verdict::Go) };
        match reply {
            Reply::Acknowledge { psn, msn, syndrome } => {
                self.replies.pop_front();
                let aeth = Aeth { syndrome, msn };
                (write_reply(cx, Opcode::RC_ACKNOWLEDGE, psn, 0, Some(aeth), buf), Verdict::Go)
            }
            Reply::Done { psn, msn, .. } => {
                self.replies.pop_front();
                let aeth = Some(Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn });
                let opcode = Opcode::RC_READ_RESPONSE_ONLY;
                (write_reply(cx, opcode, psn, 0, aeth, buf), Verdict::Go)
            }
            Reply::Atomic { psn, msn, original, .. } => {
                self.replies.pop_front();
                let aeth = Some(Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn });
                let len = write_reply(cx, Opcode::RC_ATOMIC_ACKNOWLEDGE, psn, 0, aeth, buf);
                let rest = buf.get_mut(len..);
                let written =
                    rest.is_some_and(|rest| AtomicAckEth { original }.write(rest).is_ok());
                debug_assert!(written, "the caller gives room for the largest packet");
                (len + AtomicAckEth::LEN, Verdict::Go)
            }
            Reply::Read { psn, msn, pd, va, rkey, left, first, replay } => {
                let count = (left as usize).min(cx.mtu);
                match build_read_response(cx, psn, msn, pd, va, rkey, left, first, buf) {
                    Some(len) if count as u32 == left => {
                        self.replies.pop_front();
                        (len, Verdict::Go)
                    }
                    Some(len) => {
                        let (psn, va) = (psn.plus(1), va.wrapping_add(count as u64));
                        let left = left - count as u32;
                        self.replies[0] =
                            Reply::Read { psn, msn, pd, va, rkey, left, first: false, replay };
                        (len, Verdict::Go)
                    }
                    None => {
                        // R31: never garbage, but a NAK where the data would have been.
                        let syndrome = Syndrome::nak(NakCode::RemoteOperationalError);
                        let aeth = Some(Aeth { syndrome, msn });
                        let len = write_reply(cx, Opcode::RC_ACKNOWLEDGE, psn, 0, aeth, buf);
                        if replay {
                            // The peer may have all of it: the NAK is old to it then, and what
                            // follows is what it waits for. A duplicate breaks no connection.
                            self.replies.pop_front();
                            return (len, Verdict::Go);
                        }
                        self.replies.clear();
                        (len, Verdict::Fail)
                    }
                }
            }
        }
    }
}

/// Whether a request has a response of its own: READs and atomics, which count among
/// `max_dest_rd_atomic`.
fn is_answered(packet: &Packet<'_>) -> bool {
    matches!(
        packet.info().operation,
        Operation::ReadRequest
            | Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::AtomicWrite
            | Operation::Flush
    )
}

/// The access that a FLUSH needs, and of what; `None` when it is not one of those defined.
fn flush_access(packet: &Packet<'_>) -> Option<(AccessFlags, FlushSelectivity)> {
    let Feth { placement, selectivity, .. } = packet.feth()?;
    let is_known = FlushPlacement::all().contains(placement)
        && !matches!(selectivity, FlushSelectivity::Reserved(_));
    let mut needed = AccessFlags::empty();
    let visible = placement.contains(FlushPlacement::GLOBAL_VISIBILITY);
    needed.set(AccessFlags::FLUSH_GLOBAL, visible);
    needed.set(AccessFlags::FLUSH_PERSISTENT, placement.contains(FlushPlacement::PERSISTENCE));
    is_known.then_some((needed, selectivity))
}

/// Counts a packet that is dropped.
fn note_drop(cx: &ResponderContext<'_>, reason: Counter) {
    tracing::trace!(target: "rxe::recv", reason = reason.name(), qpn = %cx.qp.qpn(),
        "packet dropped");
    cx.counters.bump(reason);
}

impl Responder {
    /// Goes on with the READ response of which a packet has just been built: builds those after it,
    /// up to the last but one, as long as they can leave in one segmented send.
    ///
    /// This is [`Self::poll_packet`] for many packets at once.
    pub(crate) fn continue_read(&mut self, cx: &ResponderContext<'_>, out: &mut RunBuf<'_>) {
        let Some(Reply::Read { psn, pd, va, rkey, left, first: false, .. }) =
            self.replies.front_mut()
        else {
            return;
        };
        // The last packet has one header more, and may be shorter.
        let middles = (*left as usize).saturating_sub(1) / cx.mtu;
        let room = out.room_for(Bth::LEN + cx.mtu);
        let count = room.min(u32::try_from(middles).unwrap_or(room));
        if count == 0 {
            return;
        }
        let len = u64::from(count) * cx.mtu as u64;
        // What cannot be read is found out by the packet that it begins with (R31).
        let holder = Holder { pd: *pd, qpn: cx.qp.qpn() };
        let span = cx.memory.access_for(holder, rkey.get(), *va, len, AccessFlags::REMOTE_READ);
        let Ok(span) = span else { return };
        for index in 0..count {
            let Some(buf) = out.next() else { return };
            let headers = write_reply(cx, Opcode::RC_READ_RESPONSE_MIDDLE, *psn, 0, None, buf);
            let end = headers + cx.mtu;
            let skip = index as usize * cx.mtu;
            let read = buf.get_mut(..end).map(|packet| span.read_summed(skip, packet));
            let Some(Ok(sum)) = read else { return };
            match sum {
                Some(sum) => out.push_summed(end, sum),
                None => out.push(end),
            }
            *psn = psn.plus(1);
            *va = va.wrapping_add(cx.mtu as u64);
            // `middles` of them leave at least one byte.
            *left -= cx.mtu as u32;
        }
    }
}

fn invalid_request(status: WcStatus) -> Refusal {
    Refusal::Nak { code: NakCode::InvalidRequest, status }
}

/// PSNs that a READ of `len` bytes takes.
pub(crate) fn packets_of(len: u32, mtu: usize) -> u32 {
    (len as usize).div_ceil(mtu).max(1) as u32
}

/// A packet of a READ response; `None` when the memory is not accessible any more.
#[allow(clippy::too_many_arguments)] // the fields of one reply
fn build_read_response(
    cx: &ResponderContext<'_>,
    psn: Psn,
    msn: Msn,
    pd: PdId,
    va: u64,
    rkey: RKey,
    left: u32,
    first: bool,
    buf: &mut [u8],
) -> Option<usize> {
    let count = (left as usize).min(cx.mtu);
    let last = count == left as usize;
    let opcode = match (first, last) {
        (true, true) => Opcode::RC_READ_RESPONSE_ONLY,
        (true, false) => Opcode::RC_READ_RESPONSE_FIRST,
        (false, false) => Opcode::RC_READ_RESPONSE_MIDDLE,
        (false, true) => Opcode::RC_READ_RESPONSE_LAST,
    };
    let aeth = (first || last).then_some(Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn });
    let pad = count.wrapping_neg() & 3;
    let headers = write_reply(cx, opcode, psn, pad as u8, aeth, buf);
    let end = headers + count;
    if count > 0 {
        let payload = buf.get_mut(headers..end)?;
        let needed = AccessFlags::REMOTE_READ;
        // R24: checked anew, also for a replay: the registration may have ended.
        cx.memory
            .access_for(Holder { pd, qpn: cx.qp.qpn() }, rkey.get(), va, count as u64, needed)
            .and_then(|span| span.read(payload))
            .ok()?;
    }
    buf.get_mut(end..end + pad)?.fill(0);
    Some(end + pad)
}

fn write_reply(
    cx: &ResponderContext<'_>,
    opcode: Opcode,
    psn: Psn,
    pad: u8,
    aeth: Option<Aeth>,
    buf: &mut [u8],
) -> usize {
    let (pkey, dest_qpn) = (PKey::DEFAULT, cx.dest_qpn);
    // Replies of XRC name no shared receive queue.
    let opcode = opcode.in_service(cx.qp.qp_type().service());
    let bth = Bth { opcode, pad, pkey, dest_qpn, psn, ..Bth::default() };
    let written = bth.write(buf).is_ok();
    debug_assert!(written, "the caller gives room for the largest packet");
    let Some(aeth) = aeth else { return Bth::LEN };
    let written = buf.get_mut(Bth::LEN..).is_some_and(|rest| aeth.write(rest).is_ok());
    debug_assert!(written, "the caller gives room for the largest packet");
    Bth::LEN + Aeth::LEN
}
