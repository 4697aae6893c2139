//! The engine half of a queue pair: composes requester, completer and responder, and is the only
//! place that changes state, moves timers and flushes.

use std::sync::Arc;

use gid_table::{Gid, GidType};
use rxe_wire::hdr::{Bth, Reth};
use rxe_wire::{Operation, Packet, Position, Qpn, RnrTimer};

use super::attr::{QpAttr, QpState};
use super::completer::{Completer, CompleterContext, Disposition, Outcome};
use super::dcqcn::RateLimiter;
use super::notify::Notifier;
use super::queue_pair::QueuePair;
use super::requester::{Emit, Requester, RequesterContext};
use super::responder::{Responder, ResponderContext, Verdict};
use super::run::RunBuf;
use super::send_queue::{Acked, EarlyResend, SendQueue};
use super::uc;
use crate::counters::{Counter, Tally};
use crate::device::Device;
use crate::event::AsyncEvent;
use crate::packet_run::PacketRun;
use crate::path::Path;
use crate::shard::Posted;
use crate::time::{Instant, ack_timeout_nanos};
use crate::timer::{Timer, TimerTable};
use crate::wc::WcStatus;
use crate::window::{Load, PeerWindow, Windows};
use crate::wq::send::SendOp;

/// Packets of READ responses that may leave what they call for to a later one.
const APPLIED_LATER: u64 = 15;

/// What a queue pair borrows from its shard.
#[derive(Debug)]
pub(crate) struct ShardContext<'a> {
    pub(crate) now: Instant,
    pub(crate) device: &'a Device,
    pub(crate) counters: Tally<'a>,
    pub(crate) windows: &'a mut Windows,
}

/// A connection: set while the QP is in RTR or beyond.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Connection {
    pub(crate) path: Path,
    pub(crate) dest_qpn: Qpn,
    /// The window of the peer, in the shard.
    pub(crate) window: usize,
    /// Port and index of the source GID, which is held.
    pub(crate) source: (u8, u32),
}

/// The engine half of a queue pair.
#[derive(Debug)]
pub(crate) struct Machine {
    /// Its key in the shard.
    pub(crate) key: u32,
    pub(crate) qp: Arc<QueuePair>,
    pub(crate) attr: QpAttr,
    pub(crate) connection: Option<Connection>,
    pub(crate) send: SendQueue,
    pub(crate) requester: Requester,
    pub(crate) completer: Completer,
    pub(crate) responder: Responder,
    pub(crate) timers: TimerTable,
    /// Tells the peer of congestion on its way here.
    pub(crate) notifier: Notifier,
    /// The pace after the peer told of congestion; none at full speed.
    pub(crate) limiter: Option<Box<RateLimiter>>,
    /// What of the window is charged to this queue pair.
    pub(crate) charged: Load,
    /// Response packets that have been taken in, of which window and timers do not know yet.
    pub(crate) unapplied: Load,
    /// When such a packet moved window and timers last.
    pub(crate) applied_at: Instant,
    /// It stands in the shard's ready list.
    pub(crate) is_ready: bool,
    /// It stands in the window's waiting list.
    pub(crate) is_waiting: bool,
    /// The list of [`Credits`](crate::credit::Credits) that it stood in last.
    pub(crate) credit_list: u64,
    /// Requests go before replies: changes with each turn, so that neither starves.
    pub(crate) requests_first: bool,
    /// An event is to be raised when the send queue is drained.
    pub(crate) tell_drained: bool,
    /// The first packet has come in RTR, and the event was raised.
    pub(crate) established: bool,
    /// Where the last datagram that was built goes.
    pub(crate) datagram_to: Option<Box<(Path, Qpn)>>,
}

impl Machine {
    pub(crate) fn new(key: u32, qp: Arc<QueuePair>) -> Self {
        let attr = QpAttr { port_num: qp.init().port_num, ..QpAttr::default() };
        Self {
            key,
            qp,
            attr,
            connection: None,
            send: SendQueue::new(attr.sq_psn),
            requester: Requester::default(),
            completer: Completer::default(),
            responder: Responder::new(attr.rq_psn),
            timers: TimerTable::default(),
            notifier: Notifier::default(),
            limiter: None,
            charged: Load::default(),
            unapplied: Load::default(),
            applied_at: Instant::ZERO,
            is_ready: false,
            is_waiting: false,
            credit_list: 0,
            requests_first: false,
            tell_drained: false,
            established: false,
            datagram_to: None,
        }
    }

    /// Takes over what has been posted; flushes it when the QP is in the error state (R9).
    pub(crate) fn handle_posted(&mut self) -> Posted {
        self.qp.clear_kicked();
        let before = self.send.wqes.len();
        self.qp.take_posted(&mut self.send.wqes);
        // Fits: queues are shorter.
        let packets = (self.send.wqes.len() - before) as u32;
        let bytes = self.send.wqes.range(before..).map(|wqe| u64::from(wqe.length)).sum();
        match self.attr.state {
            QpState::Err => self.flush(),
            QpState::Sqe => self.flush_sends(),
            _ => {}
        }
        let awaited = match () {
            () if self.needs_no_room() || self.limiter.is_some() => 0,
            () if !self.qp.qp_type().is_reliable() => 1,
            () if self.send.is_outstanding() => self.send.cursor.index.max(1) as u32,
            () => 0,
        };
        Posted { packets, bytes, awaited }
    }

    /// Whether there may be something to send.
    pub(crate) fn may_send(&self) -> bool {
        self.needs_no_room() || self.has_requests_to_send()
    }

    /// Whether there is nothing to send but acknowledgements that tell of no failure.
    pub(crate) fn owes_acks_only(&self) -> bool {
        self.responder.owes_acks_only()
            && !self.notifier.is_due()
            && !self.has_requests_to_send()
            && !self.send.resends_oldest()
    }

    pub(crate) fn has_requests_to_send(&self) -> bool {
        self.send.wqes.len() > self.send.cursor.index || self.send.gaps().due().is_some()
    }

    /// Whether the next packet is the first one of a WRITE of several.
    pub(crate) fn begins_long_write(&self) -> bool {
        self.send.cursor.packet == 0
            && self.long_write().is_some()
            && !self.needs_no_room()
            && self.send.gaps().due().is_none()
    }

    /// Whether a packet of this length, which has just been built, is the first one of a WRITE of
    /// several.
    pub(crate) fn has_begun_long_write(&self, len: usize) -> bool {
        self.send.cursor.packet == 1
            && self.long_write().is_some()
            && len >= Bth::LEN + Reth::LEN + self.attr.path_mtu.bytes()
    }

    /// The length of the message that is to be sent next, or further, if it is a WRITE of several
    /// packets, which go as fast as they can.
    pub(crate) fn long_write(&self) -> Option<u32> {
        let wqe = self.send.wqes.get(self.send.cursor.index)?;
        let is_long = matches!(wqe.op, SendOp::Write { .. })
            && wqe.length as usize > self.attr.path_mtu.bytes()
            && self.qp.qp_type().is_reliable()
            && self.limiter.is_none();
        is_long.then_some(wqe.length)
    }

    /// Whether an acknowledgement goes behind the request that is to be sent: when that is the only
    /// one and short. The two leave in one segmented send then, of which the last packet is the
    /// shortest.
    fn is_ack_last(&self) -> bool {
        let Some(wqe) = self.send.wqes.get(self.send.cursor.index) else { return false };
        self.send.cursor.index + 1 == self.send.wqes.len()
            && wqe.length as usize <= self.attr.path_mtu.bytes()
            && self.responder.owes_acks_only()
    }

    /// Whether there is something to send that no full window holds up: replies, and the oldest
    /// packet once more.
    pub(crate) fn needs_no_room(&self) -> bool {
        self.responder.owes_reply() || self.notifier.is_due() || self.send.resends_oldest()
    }

    /// Whether the peer has not answered for so long that nothing is in its buffer any more. Only
    /// the oldest packet is sent until it answers, and the room in the window is for other queue
    /// pairs, whose ends may be alive.
    fn is_silent(&self, window: &PeerWindow) -> bool {
        window.is_silent(self.completer.early_resends)
    }

    /// Builds the next packet into `buf`.
    pub(crate) fn poll_packet(&mut self, cx: &mut ShardContext<'_>, buf: &mut [u8]) -> Emit {
        if self.qp.qp_type().is_datagram() {
            return self.poll_datagram(cx, buf);
        }
        let Some(connection) = self.connection else { return Emit::Idle };
        if self.notifier.is_due() {
            cx.counters.bump(Counter::np_cnp_sent);
            return Emit::Notification(self.notifier.write(self.attr.dest_qpn, buf));
        }
        let Some(limiter) = &mut self.limiter else {
            return self.poll_data(cx, &connection, buf);
        };
        let config = &cx.device.config().congestion;
        let wait = limiter.wait(config, cx.now);
        if limiter.is_over(config) {
            self.limiter = None;
            return self.poll_data(cx, &connection, buf);
        }
        if let Some(at) = wait {
            self.timers.set(Timer::Pace, at);
            // Acknowledgements are no load, and without them the peer would send all again.
            let is_paced = !self.responder.owes_reply() || self.responder.owes_data();
            return if is_paced { Emit::Idle } else { self.poll_reply(cx, buf) };
        }
        let emit = self.poll_data(cx, &connection, buf);
        if let (Emit::Packet(len), Some(limiter)) = (emit, &mut self.limiter) {
            limiter.on_sent(config, len);
        }
        emit
    }

    /// Builds the next packet, whatever the pace.
    fn poll_data(
        &mut self,
        cx: &mut ShardContext<'_>,
        connection: &Connection,
        buf: &mut [u8],
    ) -> Emit {
        if self.requests_first || self.responder.owes_reply() && self.is_ack_last() {
            match self.poll_request(cx, connection, buf) {
                Emit::Idle | Emit::NoRoom(_) if self.responder.owes_reply() => {}
                emit => return emit,
            }
        }
        if self.responder.owes_reply() {
            let emit = self.poll_reply(cx, buf);
            if emit != Emit::Idle {
                return emit;
            }
        }
        self.poll_request(cx, connection, buf)
    }

    /// Builds the next packet of what is owed to the peer.
    fn poll_reply(&mut self, cx: &mut ShardContext<'_>, buf: &mut [u8]) -> Emit {
        let (len, verdict) = self
            .responder
            .poll_packet(&responder_context(&self.qp, &self.attr, cx.device, cx.counters), buf);
        if verdict == Verdict::Fail {
            // R31: no completion and no refused access tells of it.
            cx.device.events().push(AsyncEvent::QpFatal(self.qp.qpn()));
            self.enter_error(cx);
        }
        if len > 0 { Emit::Packet(len) } else { Emit::Idle }
    }

    fn poll_request(
        &mut self,
        cx: &mut ShardContext<'_>,
        connection: &Connection,
        buf: &mut [u8],
    ) -> Emit {
        let state = self.attr.state;
        // R5: nothing is sent before the peer's RNR timer has elapsed.
        if !matches!(state, QpState::Rts | QpState::Sqd) || self.timers.is_set(Timer::RnrWait) {
            return Emit::Idle;
        }
        let resends = self.send.resends_oldest();
        let is_reliable = self.qp.qp_type().is_reliable();
        loop {
            let paced = self.limiter.is_some();
            let requester_cx = requester_context(&self.qp, (&self.attr, paced), cx, connection);
            let Some(requester_cx) = requester_cx else { return Emit::Idle };
            if self.is_silent(requester_cx.window) && !resends {
                return Emit::Idle;
            }
            let emit = if is_reliable {
                self.requester.poll_packet(&requester_cx, &mut self.send, buf)
            } else {
                uc::poll_packet(&requester_cx, &mut self.send, buf)
            };
            match emit {
                Emit::Packet(_) if !is_reliable => self.complete_sent(cx),
                Emit::Packet(_) => {
                    self.sync_window(cx);
                    self.start_timers(cx);
                }
                // What is behind it may send.
                Emit::Local => {
                    self.carry_out(cx.device.memory());
                    continue;
                }
                // R8: a request that failed here completes once it is the oldest.
                Emit::Idle => self.fail_if_front_failed(cx),
                Emit::NoRoom(_) | Emit::Notification(_) => {}
            }
            return emit;
        }
    }

    /// Goes on with the run that [`Self::poll_packet`] has begun, while the next packets are like
    /// the one before.
    pub(crate) fn continue_run(&mut self, cx: &mut ShardContext<'_>, out: &mut RunBuf<'_>) {
        // A limited sender is asked for each packet when it may go.
        if self.limiter.is_some() || !self.qp.qp_type().is_reliable() {
            return;
        }
        if self.responder.owes_reply() {
            let cx = responder_context(&self.qp, &self.attr, cx.device, cx.counters);
            return self.responder.continue_read(&cx, out);
        }
        if !matches!(self.attr.state, QpState::Rts | QpState::Sqd)
            || self.timers.is_set(Timer::RnrWait)
        {
            return;
        }
        let Some(connection) = self.connection else { return };
        let attr = (&self.attr, false);
        let Some(requester_cx) = requester_context(&self.qp, attr, cx, &connection) else {
            return;
        };
        if self.is_silent(requester_cx.window) {
            return;
        }
        let count = out.count();
        self.requester.continue_message(&requester_cx, &mut self.send, out);
        if out.count() == count && self.send.cursor.index < self.send.wqes.len() {
            self.requester.continue_messages(&requester_cx, &mut self.send, out);
        }
        if out.count() > count {
            self.sync_window(cx);
            self.start_timers(cx);
        }
    }

    fn fail_if_front_failed(&mut self, cx: &mut ShardContext<'_>) {
        if let Some(status) = self.send.wqes.front().and_then(|wqe| wqe.failed) {
            self.fail(cx, status);
        }
    }

    /// Takes note of a packet from the peer that met congestion on its way here.
    pub(crate) fn handle_mark(&mut self, cx: &mut ShardContext<'_>) {
        cx.counters.bump(Counter::np_ecn_marked_roce_packets);
        let config = &cx.device.config().congestion;
        let is_connected = matches!(self.attr.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        if config.notify && is_connected {
            self.notifier.on_marked(config, cx.now);
        }
    }

    /// Slows down: the peer, or a router on the way there, told of congestion.
    fn handle_notification(&mut self, cx: &mut ShardContext<'_>) {
        let config = &cx.device.config().congestion;
        let sends = matches!(self.attr.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        if !config.react || !sends {
            return cx.counters.bump(Counter::rp_cnp_ignored);
        }
        cx.counters.bump(Counter::rp_cnp_handled);
        let now = cx.now;
        match &mut self.limiter {
            Some(limiter) => limiter.on_cnp(config, now),
            None => self.limiter = Some(Box::new(RateLimiter::new(config, now))),
        }
        tracing::debug!(target: "rxe::congestion", qpn = %self.qp.qpn(), limiter = ?self.limiter,
            "slowed down");
    }

    /// Handles a packet whose addresses and keys have been checked.
    pub(crate) fn handle_packet(&mut self, cx: &mut ShardContext<'_>, packet: &Packet<'_>) {
        let alone = (PacketRun::of_one(packet.bytes()), 1);
        if packet.info().position == Position::Middle && self.handle_middles(cx, packet, alone) > 0
        {
            return;
        }
        if packet.info().is_response() {
            // R58.
            if !matches!(self.attr.state, QpState::Rts | QpState::Sqd) {
                return self.note_drop(cx, Counter::drop_wrong_state);
            }
            return self.handle_response(cx, packet);
        }
        if packet.info().operation == Operation::Cnp {
            return self.handle_notification(cx);
        }
        match self.attr.state {
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe => {}
            // R37: what comes in the error state is not executed, nor executed again.
            QpState::Reset | QpState::Init | QpState::Err => {
                return self.note_drop(cx, Counter::drop_wrong_state);
            }
        }
        if self.attr.state == QpState::Rtr && !std::mem::replace(&mut self.established, true) {
            cx.device.events().push(AsyncEvent::CommEst(self.qp.qpn()));
        }
        let responder_cx = responder_context(&self.qp, &self.attr, cx.device, cx.counters);
        let verdict = if self.qp.qp_type().is_reliable() {
            self.responder.handle_request(&responder_cx, packet)
        } else {
            self.responder.handle_unreliable(&responder_cx, packet)
        };
        if verdict == Verdict::Fail {
            self.enter_error(cx);
        }
    }

    /// Counts a packet that is dropped.
    pub(super) fn note_drop(&self, cx: &ShardContext<'_>, reason: Counter) {
        tracing::trace!(target: "rxe::recv", reason = reason.name(), qpn = %self.qp.qpn(),
            "packet dropped");
        cx.counters.bump(reason);
    }

    /// Handles packets in the midst of a message by a short way, where that can be: the first of
    /// `run`, which is `packet`, and those that are in sequence with it, `count` together. Addresses
    /// and keys have been checked.
    ///
    /// Returns how many it has handled, of which there is nothing more to say: none has been dropped,
    /// completes anything or fails. With the next one [`Self::handle_packet`] goes on.
    pub(crate) fn handle_middles(
        &mut self,
        cx: &mut ShardContext<'_>,
        packet: &Packet<'_>,
        (run, count): (PacketRun<'_>, u32),
    ) -> u32 {
        // R58, and R37.
        let is_open = match self.attr.state {
            QpState::Rts | QpState::Sqd => true,
            QpState::Rtr | QpState::Sqe => packet.info().is_request(),
            QpState::Reset | QpState::Init | QpState::Err => false,
        };
        if !is_open || !self.qp.qp_type().is_reliable() {
            return 0;
        }
        if packet.info().is_request() {
            let cx = responder_context(&self.qp, &self.attr, cx.device, cx.counters);
            return self.responder.take_middles(&cx, packet, (run, count));
        }
        let completer_cx = self.completer_context(cx);
        let taken =
            self.completer.take_middles(&completer_cx, &mut self.send, packet, (run, count));
        let Some((count, acked)) = taken else { return 0 };
        self.apply_later(cx, acked);
        count
    }

    fn completer_context<'a>(&self, cx: &ShardContext<'a>) -> CompleterContext<'a> {
        CompleterContext {
            memory: cx.device.memory(),
            pd: self.qp.pd(),
            mtu: self.attr.path_mtu.bytes(),
            rnr_retry: self.attr.rnr_retry,
            is_backing_off: self.timers.is_set(Timer::RnrWait),
        }
    }

    fn handle_response(&mut self, cx: &mut ShardContext<'_>, packet: &Packet<'_>) {
        let completer_cx = self.completer_context(cx);
        let qp = &self.qp;
        let counters = cx.counters;
        let done = |wqe: crate::wq::send::SendWqe| {
            counters.bump(Counter::rdma_sends);
            qp.complete_send(wqe, WcStatus::Success);
        };
        let outcome = match (packet.info().operation, packet.aeth()) {
            // R39: the NAK to an atomic may come as either kind of acknowledgement.
            (Operation::AtomicAcknowledge, Some(aeth)) if aeth.syndrome.is_ack() => {
                self.completer.handle_response(&completer_cx, &mut self.send, packet, done)
            }
            (Operation::Acknowledge | Operation::AtomicAcknowledge, Some(aeth)) => {
                self.completer.handle_acknowledge(
                    &completer_cx,
                    &mut self.send,
                    packet.bth().psn,
                    aeth.syndrome,
                    done,
                )
            }
            (Operation::ReadResponse, _) => {
                self.completer.handle_response(&completer_cx, &mut self.send, packet, done)
            }
            _ => return self.note_drop(cx, Counter::drop_stale_response),
        };
        self.apply(cx, outcome);
    }

    /// Does what a packet in the midst of a READ response calls for, or leaves it to the next one:
    /// what came at the same time need not move window and timers by itself. The packet that ends
    /// the response, or a part of it, leaves nothing.
    fn apply_later(&mut self, cx: &mut ShardContext<'_>, acked: Acked) {
        if self.applied_at == cx.now && self.unapplied.packets < APPLIED_LATER {
            self.unapplied += acked.load;
            return;
        }
        self.applied_at = cx.now;
        self.apply(cx, Outcome { acked, disposition: Disposition::Go });
    }

    /// Does what a response calls for.
    fn apply(&mut self, cx: &mut ShardContext<'_>, outcome: Outcome) {
        let Outcome { mut acked, disposition } = outcome;
        let earlier = std::mem::take(&mut self.unapplied);
        acked += Acked { progress: earlier.packets > 0, load: earlier, ..Acked::default() };
        self.sync_window(cx);
        if acked.progress {
            self.note_progress(cx, acked.load);
            self.judge_early_resend(cx);
        }
        match disposition {
            Disposition::Go => {}
            Disposition::Ignore(counter) => self.note_drop(cx, counter),
            Disposition::Repair => {
                tracing::debug!(target: "rxe::retry", qpn = %self.qp.qpn(),
                    psn = %self.send.una(), "a response is missing: asks for it again");
                self.note_loss(cx);
            }
            Disposition::Rewind => {
                tracing::debug!(target: "rxe::retry", qpn = %self.qp.qpn(),
                    psn = %self.send.reached(), "the peer misses a packet: sends again from there");
                self.note_loss(cx);
                self.rewind(cx);
            }
            Disposition::BackOff(timer) => {
                cx.counters.bump(Counter::rcvd_rnr_err);
                tracing::debug!(target: "rxe::retry", qpn = %self.qp.qpn(),
                    psn = %self.send.una(), pause = timer.as_nanos(), "the peer is not ready");
                self.rewind(cx);
                self.timers.stop(Timer::AckTimeout);
                self.timers.stop(Timer::EarlyResend);
                self.timers.set(Timer::RnrWait, cx.now.plus_nanos(timer.as_nanos()));
            }
            Disposition::Fail(status) => {
                if status == WcStatus::RnrRetryExcErr {
                    cx.counters.bump(Counter::retry_rnr_exceeded_err);
                }
                self.fail(cx, status);
            }
        }
        self.fail_if_front_failed(cx);
        self.tell_if_drained(cx);
    }

    /// The peer, or a response, told of a loss.
    fn note_loss(&mut self, cx: &mut ShardContext<'_>) {
        cx.counters.bump(Counter::rcvd_seq_err);
        let now = cx.now;
        if let Some(window) = self.window(cx) {
            window.on_loss(now);
        }
    }

    fn note_progress(&mut self, cx: &mut ShardContext<'_>, acked: Load) {
        let (now, answered) = (cx.now, self.send.reached());
        let probe = self.send.probe.filter(|(psn, _)| psn.is_before(answered));
        if probe.is_some() {
            self.send.probe = None;
        }
        if let Some(window) = self.window(cx) {
            window.on_progress(now, acked);
            if let Some((_, sent)) = probe {
                window.on_round_trip(now.nanos_since(sent));
            }
        }
        // R6: progress starts the timers anew, or stops them when nothing is outstanding.
        self.timers.stop(Timer::AckTimeout);
        self.timers.stop(Timer::EarlyResend);
        if self.send.is_outstanding() {
            self.start_timers(cx);
        }
    }

    /// Decides, after progress, whether the short timer was right that something was lost.
    ///
    /// The peer had taken in all that it could before the copy of the oldest packet. If it got no
    /// further than that copy, it has dropped everything behind it: go back to there. If it got
    /// further, only its answer was late.
    fn judge_early_resend(&mut self, cx: &mut ShardContext<'_>) {
        let una = self.send.una();
        let early_resend = std::mem::take(&mut self.send.early_resend);
        let EarlyResend::Sent(end) = early_resend else { return };
        if una.is_before(end) {
            // A READ, of which the answer is still coming in.
            self.send.early_resend = early_resend;
            return;
        }
        // Of what has come behind a gap, the peer has not dropped the request.
        if una != end || !self.send.is_outstanding() || !self.send.gaps().is_empty() {
            return;
        }
        let now = cx.now;
        if let Some(window) = self.window(cx) {
            window.on_loss(now);
        }
        self.rewind(cx);
    }

    /// Starts the timers that watch over requests, where they are not running.
    fn start_timers(&mut self, cx: &mut ShardContext<'_>) {
        // R5: while the peer is given time nothing is under way, and silence says nothing.
        if self.timers.is_set(Timer::RnrWait) {
            return;
        }
        if !self.timers.is_set(Timer::AckTimeout)
            && let Some(nanos) = ack_timeout_nanos(self.attr.timeout)
        {
            self.timers.set(Timer::AckTimeout, cx.now.plus_nanos(nanos));
        }
        if !self.timers.is_set(Timer::EarlyResend) {
            let backoff = self.completer.early_resends;
            let nanos = self.window(cx).map_or(0, |window| window.early_resend_nanos(backoff));
            self.timers.set(Timer::EarlyResend, cx.now.plus_nanos(nanos));
        }
    }

    /// Handles one timer that is due.
    pub(crate) fn handle_timer(&mut self, cx: &mut ShardContext<'_>, timer: Timer) {
        match timer {
            // What was held back may go now. It may find no room in the window: then what is missing
            // before it, and was asked for again before the wait, is all that is under way.
            Timer::RnrWait if !self.send.gaps().is_empty() => self.start_timers(cx),
            Timer::RnrWait | Timer::Pace => {}
            Timer::EarlyResend if self.send.is_outstanding() => {
                cx.counters.bump(Counter::early_resend);
                tracing::debug!(target: "rxe::retry", qpn = %self.qp.qpn(),
                    psn = %self.send.una(), "silence: sends the oldest packet again");
                self.completer.early_resends += 1;
                self.send.early_resend = EarlyResend::Due;
                self.sync_window(cx);
                self.start_timers(cx);
            }
            Timer::AckTimeout if self.send.is_outstanding() => {
                if self.completer.timeouts >= self.attr.retry_cnt {
                    cx.counters.bump(Counter::retry_exceeded_err);
                    return self.fail(cx, WcStatus::RetryExcErr);
                }
                cx.counters.bump(Counter::completer_retry_err);
                tracing::debug!(target: "rxe::retry", qpn = %self.qp.qpn(),
                    psn = %self.send.una(), timeouts = self.completer.timeouts,
                    retry_cnt = self.attr.retry_cnt, "ACK timeout: sends all again");
                self.completer.timeouts += 1;
                let now = cx.now;
                if let Some(window) = self.window(cx) {
                    window.on_timeout(now);
                }
                self.completer.note_resent();
                self.send.rewind_all();
                self.sync_window(cx);
                self.start_timers(cx);
            }
            Timer::EarlyResend | Timer::AckTimeout => {}
        }
    }

    fn rewind(&mut self, cx: &mut ShardContext<'_>) {
        self.send.rewind();
        self.sync_window(cx);
    }

    fn window<'a>(&self, cx: &'a mut ShardContext<'_>) -> Option<&'a mut PeerWindow> {
        cx.windows.get_mut(self.connection?.window)
    }

    /// Brings the window's count of what is under way up to date.
    fn sync_window(&mut self, cx: &mut ShardContext<'_>) {
        let Some(window) = self.window(cx) else { return };
        let in_flight =
            if self.is_silent(window) { Load::default() } else { self.send.in_flight() };
        let charged = std::mem::replace(&mut self.charged, in_flight);
        window.in_flight += in_flight;
        window.in_flight -= charged;
    }

    /// Whether requests are under way: what SQD waits for.
    pub(crate) fn has_begun_requests(&self) -> bool {
        self.send.wqes.front().is_some_and(|wqe| wqe.started.is_some())
    }

    pub(crate) fn tell_if_drained(&mut self, cx: &ShardContext<'_>) {
        if self.tell_drained && !self.has_begun_requests() {
            self.tell_drained = false;
            cx.device.events().push(AsyncEvent::SqDrained(self.qp.qpn()));
        }
    }

    /// The oldest request failed: it completes with `status`, everything else is flushed.
    pub(super) fn fail(&mut self, cx: &mut ShardContext<'_>, status: WcStatus) {
        let qpn = self.qp.qpn();
        tracing::debug!(target: "rxe::comp", %qpn, %status, "request failed");
        if let Some(wqe) = self.send.wqes.pop_front() {
            self.qp.complete_send(wqe, status);
        }
        if self.qp.qp_type().is_reliable() {
            self.enter_error(cx);
        } else {
            self.enter_send_error();
        }
    }

    /// A completion found its queue full: it is lost, and no other may follow as if it were not
    /// (R52).
    pub(crate) fn fail_by_overflow(&mut self, cx: &mut ShardContext<'_>) {
        if self.attr.state != QpState::Err {
            self.enter_error(cx);
        }
    }

    /// Moves to the error state and flushes both queues, in order (R47).
    pub(crate) fn enter_error(&mut self, cx: &mut ShardContext<'_>) {
        let from = self.attr.state;
        let was_in_error = from == QpState::Err;
        if !was_in_error && self.qp.has_lost_completion() {
            // Nothing else tells of it.
            cx.device.events().push(AsyncEvent::QpFatal(self.qp.qpn()));
        }
        tracing::debug!(target: "rxe::qp", qpn = %self.qp.qpn(), ?from, "enters the error state");
        self.attr.state = QpState::Err;
        self.qp.set_state(QpState::Err);
        self.timers.stop_all();
        self.limiter = None;
        self.qp.take_posted(&mut self.send.wqes);
        self.flush();
        self.sync_window(cx);
        // R46: what it took from the shared queue has completed, and it takes no more.
        if self.qp.init().srq.is_some() && !was_in_error {
            cx.device.events().push(AsyncEvent::QpLastWqeReached(self.qp.qpn()));
        }
    }

    fn flush(&mut self) {
        self.flush_sends();
        let unfinished = self.responder.take_unfinished();
        let rest = std::iter::from_fn(|| self.qp.take_own_recv());
        for wqe in unfinished.into_iter().chain(rest) {
            self.qp.complete_recv_error(&wqe, WcStatus::WrFlushErr);
        }
    }

    pub(super) fn flush_sends(&mut self) {
        for wqe in std::mem::take(&mut self.send.wqes) {
            self.qp.complete_send(wqe, WcStatus::WrFlushErr);
        }
        self.send.clear();
    }

    /// Gives back what the connection holds: the source GID, and its part of the window.
    pub(crate) fn disconnect(&mut self, cx: &mut ShardContext<'_>) {
        let Some(connection) = self.connection.take() else { return };
        let charged = std::mem::take(&mut self.charged);
        cx.windows.release(connection.window, connection.dest_qpn, self.key, charged);
        self.is_waiting = false;
        let (port, index) = connection.source;
        if let Some(port) = cx.device.port(port)
            && let Err(error) = port.gids.write().release(index)
        {
            tracing::error!(target: "rxe::qp", %error, "the hold on a GID index was lost");
        }
    }

    /// Whether a packet came from the peer of this connection, to our address (R57).
    pub(crate) fn is_peer(&self, source: Gid, destination: Gid, gid_type: GidType) -> bool {
        self.connection.is_some_and(|connection| {
            let path = &connection.path;
            path.destination == source && path.source == destination && path.gid_type == gid_type
        })
    }
}

/// What the requester works with; `None` when the connection has no window.
fn requester_context<'a>(
    qp: &QueuePair,
    (attr, paced): (&QpAttr, bool),
    cx: &'a ShardContext<'_>,
    connection: &Connection,
) -> Option<RequesterContext<'a>> {
    Some(RequesterContext {
        now: cx.now,
        memory: cx.device.memory(),
        pd: qp.pd(),
        mtu: attr.path_mtu.bytes(),
        dest_qpn: attr.dest_qpn,
        service: qp.qp_type().service(),
        max_rd_atomic: attr.max_rd_atomic.into(),
        draining: attr.state == QpState::Sqd,
        paced,
        window: cx.windows.get(connection.window)?,
    })
}

fn responder_context<'a>(
    qp: &'a QueuePair,
    attr: &QpAttr,
    device: &'a Device,
    counters: Tally<'a>,
) -> ResponderContext<'a> {
    ResponderContext {
        memory: device.memory(),
        qp,
        events: device.events(),
        counters,
        mtu: attr.path_mtu.bytes(),
        access: attr.access,
        dest_qpn: attr.dest_qpn,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: RnrTimer::new(attr.min_rnr_timer),
    }
}
