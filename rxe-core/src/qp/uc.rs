//! UC: messages without acknowledgements. What was sent is done, what is lost stays lost, and a
//! receiver that misses a packet waits for the next message.

use rxe_wire::{NakCode, Packet, Qpn};

use super::machine::{Machine, ShardContext};
use super::requester::{Emit, RequesterContext, build_data};
use super::responder::{Refusal, Responder, ResponderContext, Verdict};
use super::send_queue::SendQueue;
use crate::counters::Counter;
use crate::multicast::MULTICAST_QPN;
use crate::path::Path;
use crate::qp::{GSI_QPN, QpState};
use crate::wc::WcStatus;
use crate::wq::send::SendOp;

/// Builds the packet at the cursor into `buf`, and moves the cursor.
///
/// No window holds it up: nobody would tell that it has room again. The turns of the shard pace it.
pub(super) fn poll_packet(
    cx: &RequesterContext<'_>,
    queue: &mut SendQueue,
    buf: &mut [u8],
) -> Emit {
    let Some(wqe) = queue.wqes.get(queue.cursor.index) else { return Emit::Idle };
    if wqe.failed.is_some() || (cx.draining && wqe.started.is_none()) {
        return Emit::Idle;
    }
    // R10: everything before it is complete, since it was sent.
    if wqe.op.is_local() {
        return Emit::Local;
    }
    let started = queue.start(cx.mtu, |_| 0);
    let packet = queue.cursor.packet;
    let wqe = &mut queue.wqes[queue.cursor.index];
    // R16: an acknowledgement is never asked for.
    match build_data(cx, wqe, &started, packet, false, buf) {
        Ok(len) => {
            queue.sent(1);
            Emit::Packet(len)
        }
        Err(status) => {
            wqe.failed = Some(status);
            Emit::Idle
        }
    }
}

impl Machine {
    /// Completes what has left.
    pub(super) fn complete_sent(&mut self, cx: &ShardContext<'_>) {
        let Self { qp, send, .. } = self;
        send.complete_sent(|wqe| {
            cx.counters.bump(Counter::rdma_sends);
            qp.complete_send(wqe, WcStatus::Success);
        });
        self.tell_if_drained(cx);
    }

    /// Where the next request goes, if [`Self::wants_answer`] from there.
    pub(crate) fn unanswered_target(&self) -> Option<(Path, Qpn)> {
        if self.is_windowed() || self.notifier.is_due() || !self.has_requests_to_send() {
            return None;
        }
        let (path, dest_qpn) = match (&self.connection, self.send.wqes.front()?.op) {
            (Some(connection), _) => (connection.path, self.attr.dest_qpn),
            (None, SendOp::SendTo { to, .. }) => (to.path, to.qpn),
            (None, _) => return None,
        };
        self.wants_answer(&path, dest_qpn).then_some((path, dest_qpn))
    }

    /// Whether flow control counts what goes there: nobody acknowledges it, one queue pair gets it,
    /// and neither end is QP1, of which the number tells no slot.
    pub(crate) fn wants_answer(&self, path: &Path, dest_qpn: Qpn) -> bool {
        let is_one = dest_qpn != MULTICAST_QPN && !path.destination.is_multicast();
        let is_general = dest_qpn == GSI_QPN || self.qp.qpn() == GSI_QPN;
        !self.is_windowed() && is_one && !is_general
    }

    /// Whether what it sends must find room in the window of its peer.
    pub(crate) fn is_windowed(&self) -> bool {
        self.qp.qp_type().is_reliable()
    }

    /// Moves to SQE after a request failed here: the send queue is flushed, receiving goes on
    /// (IBA volume 1, section 10.3.1).
    pub(super) fn enter_send_error(&mut self) {
        self.attr.state = QpState::Sqe;
        self.qp.set_state(QpState::Sqe);
        self.qp.take_posted(&mut self.send.wqes);
        self.flush_sends();
    }
}

impl Responder {
    /// Handles one packet of a connection that is not reliable: never an answer.
    pub(crate) fn handle_unreliable(
        &mut self,
        cx: &ResponderContext<'_>,
        packet: &Packet<'_>,
    ) -> Verdict {
        let psn = packet.bth().psn;
        let is_start = packet.info().position.is_start();
        let is_gap = psn != self.expected;
        if is_gap {
            cx.counters.bump(Counter::out_of_seq_request);
        }
        if is_gap || is_start {
            // What has come of the message so far leads to nothing; a new one begins in order.
            self.give_up_message(cx);
            self.expected = psn;
        }
        if self.check_op_sequence(packet).is_err() {
            return self.drop_message(cx, packet, Counter::drop_broken_message);
        }
        if self.check_op_valid(cx, packet).is_err() {
            return self.drop_message(cx, packet, Counter::drop_no_access);
        }
        let counter = match self.carry_out(cx, packet) {
            Ok(()) => return Verdict::Go,
            Err(Refusal::NotReady) => Counter::drop_no_receive,
            Err(Refusal::Nak { code: NakCode::RemoteAccessError, .. }) => Counter::drop_no_access,
            Err(Refusal::Nak { code: NakCode::RemoteOperationalError, status }) => {
                // The fault is on this side: the receive names memory that is not there.
                if let Some(wqe) = self.take_unfinished() {
                    cx.qp.complete_recv_error(&wqe, status);
                }
                return Verdict::Fail;
            }
            Err(Refusal::Silent(counter)) => counter,
            Err(Refusal::Nak { .. } | Refusal::Answered | Refusal::OutOfSequence) => {
                Counter::drop_bad_length
            }
        };
        self.drop_message(cx, packet, counter)
    }

    /// R29: drops in silence what a reliable connection would refuse, and the rest of the message.
    fn drop_message(
        &mut self,
        cx: &ResponderContext<'_>,
        packet: &Packet<'_>,
        reason: Counter,
    ) -> Verdict {
        let bth = packet.bth();
        tracing::debug!(target: "rxe::resp", qpn = %cx.qp.qpn(), psn = %bth.psn,
            opcode = %bth.opcode, reason = reason.name(), "dropped");
        cx.counters.bump(reason);
        self.expected = bth.psn.plus(1);
        self.give_up_message(cx);
        Verdict::Go
    }

    /// Forgets the message that has begun; its receive is kept for the next one, as it was posted.
    ///
    /// A receive of a shared queue cannot go back there, where others have taken later ones: it
    /// ends with an error, as with Linux's driver.
    fn give_up_message(&mut self, cx: &ResponderContext<'_>) {
        self.kept = self.take_unfinished();
        if cx.qp.init().srq.is_some()
            && let Some(wqe) = self.kept.take()
        {
            cx.qp.complete_recv_error(&wqe, WcStatus::RemInvReqErr);
        }
    }
}
