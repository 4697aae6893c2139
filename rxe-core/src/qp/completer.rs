//! The completer: takes acknowledgements and responses, and says what follows from them.

use rxe_wire::{NakCode, Operation, Packet, Position, Psn, RnrTimer, Syndrome, SyndromeKind};

use super::send_queue::{Acked, SendQueue};
use crate::counters::Counter;
use crate::mem::MemoryTable;
use crate::packet_run::PacketRun;
use crate::pd::PdId;
use crate::wc::WcStatus;
use crate::wq::send::{SendWqe, Started, WqeData};
use crate::wq::{SendOp, scatter, scatter_span};

/// What the completer works with, borrowed from the queue pair and its shard.
#[derive(Debug)]
pub(crate) struct CompleterContext<'a> {
    pub(crate) memory: &'a MemoryTable,
    pub(crate) pd: PdId,
    pub(crate) mtu: usize,
    /// `rnr_retry` of the QP: 7 means for ever (R7).
    pub(crate) rnr_retry: u8,
    /// The pause after an RNR NAK is not over.
    pub(crate) is_backing_off: bool,
}

/// What is to be done; only the queue pair does it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Disposition {
    /// The packet means nothing (any more).
    Ignore(Counter),
    /// Go on.
    Go,
    /// A response is missing: it is asked for again.
    Repair,
    /// A request was lost: send again from what the peer has not carried out.
    Rewind,
    /// The peer was not ready: send again after a pause.
    BackOff(RnrTimer),
    /// The oldest request failed, and the queue pair with it.
    Fail(WcStatus),
}

/// What an incoming response achieved, and what is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outcome {
    pub(crate) acked: Acked,
    pub(crate) disposition: Disposition,
}

impl Outcome {
    fn ignore(counter: Counter) -> Self {
        Self { acked: Acked::default(), disposition: Disposition::Ignore(counter) }
    }
}

/// The completer's own state, beside the queue that it shares with the requester.
#[derive(Debug, Default)]
pub(crate) struct Completer {
    /// A loss was reported and answered by resending; until there is progress, further reports
    /// are about the same loss, and the timers decide (R4).
    rewound: bool,
    /// RNR NAKs in a row for the oldest request.
    rnr_count: u8,
    /// Times that the ACK timer fired without progress.
    pub(crate) timeouts: u8,
    /// Times that the short timer fired without progress.
    pub(crate) early_resends: u32,
}

impl Completer {
    /// Handles an ACK or NAK packet; completed requests go to `done`.
    pub(crate) fn handle_acknowledge(
        &mut self,
        cx: &CompleterContext<'_>,
        queue: &mut SendQueue,
        psn: Psn,
        syndrome: Syndrome,
        done: impl FnMut(SendWqe),
    ) -> Outcome {
        let (upto, accepted) = match syndrome.kind() {
            SyndromeKind::Ack { .. } => (psn.plus(1), queue.is_awaited(psn)),
            SyndromeKind::Nak(_) | SyndromeKind::Rnr { .. } => (psn, queue.is_expectable(psn)),
            SyndromeKind::Reserved(_) => (psn, false),
        };
        if !accepted {
            return Outcome::ignore(Counter::drop_stale_response);
        }
        let acked = queue.acknowledge_before(upto, done);
        let shows_loss = acked.shows_loss | queue.note_answer(psn);
        self.note_progress(&acked);
        let refuses_read = is_refusal_of_read(queue, psn, syndrome);
        let disposition = match syndrome.kind() {
            SyndromeKind::Ack { .. } => Disposition::Go,
            // It is about something that has been carried out since.
            _ if upto.is_before(queue.reached()) && !refuses_read => Disposition::Go,
            // R2: what it is about is behind a READ that we did not get all of.
            SyndromeKind::Nak(_) if !queue.gaps().is_empty() && !refuses_read => self.rewind_once(),
            SyndromeKind::Nak(code) => self.handle_nak(queue, code),
            SyndromeKind::Rnr { timer } => self.handle_rnr(cx, queue, timer),
            SyndromeKind::Reserved(_) => Disposition::Ignore(Counter::drop_malformed),
        };
        let disposition = match disposition {
            // R2: the peer is past a READ that we did not get all of: the rest is asked for again.
            Disposition::Go if shows_loss => Disposition::Repair,
            other => other,
        };
        Outcome { acked, disposition }
    }

    fn handle_nak(&mut self, queue: &SendQueue, code: NakCode) -> Disposition {
        if !queue.is_outstanding() {
            return Disposition::Ignore(Counter::drop_stale_response);
        }
        match code {
            NakCode::PsnSequenceError => self.rewind_once(),
            NakCode::InvalidRequest | NakCode::InvalidRdRequest => {
                Disposition::Fail(WcStatus::RemInvReqErr)
            }
            NakCode::RemoteAccessError => Disposition::Fail(WcStatus::RemAccessErr),
            NakCode::RemoteOperationalError => Disposition::Fail(WcStatus::RemOpErr),
            NakCode::Reserved(_) => Disposition::Ignore(Counter::drop_malformed),
        }
    }

    fn handle_rnr(
        &mut self,
        cx: &CompleterContext<'_>,
        queue: &SendQueue,
        timer: RnrTimer,
    ) -> Disposition {
        // Nothing was sent since the first one, so this is a copy of it: it counts nothing.
        if !queue.is_outstanding() || cx.is_backing_off {
            return Disposition::Ignore(Counter::drop_stale_response);
        }
        // The peer is alive: `retry_cnt` is about silence.
        self.timeouts = 0;
        self.early_resends = 0;
        // R7: 7 means for ever.
        if cx.rnr_retry < 7 {
            if self.rnr_count >= cx.rnr_retry {
                return Disposition::Fail(WcStatus::RnrRetryExcErr);
            }
            self.rnr_count += 1;
        }
        Disposition::BackOff(timer)
    }

    /// Takes in packets in the midst of a READ response, as [`Self::handle_response`] would one by
    /// one, by a short way: most packets are such, and neither complete nor show anything.
    ///
    /// The first of `run` is `packet`, and `count` of them are in sequence. Returns how many it has
    /// taken in: those that are the next ones, end no part of the READ, and with which nothing is wrong.
    pub(crate) fn take_middles(
        &mut self,
        cx: &CompleterContext<'_>,
        queue: &mut SendQueue,
        packet: &Packet<'_>,
        (run, count): (PacketRun<'_>, u32),
    ) -> Option<(u32, Acked)> {
        let psn = packet.bth().psn;
        let (wqe, started, index) = queue.next_in_read(psn)?;
        if packet.info().operation != Operation::ReadResponse || !fills_mtu(packet, cx.mtu) {
            return None;
        }
        // A part is asked for as a whole, so none of it comes unasked.
        let count = count.min(started.part_end(index) - 1 - index);
        let WqeData::Sges(sges) = &wqe.data else { return None };
        // R3: the place follows from the first PSN of the READ.
        let (offset, mtu) = (u64::from(index) * cx.mtu as u64, cx.mtu as u64);
        // R11: what is wrong with a local key is found by the long way.
        let span = scatter_span(cx.memory, cx.pd, sges, offset, u64::from(count) * mtu)?;
        let stored = span.write_payloads(run, count, cx.mtu);
        drop(span);
        if stored == 0 {
            return None;
        }
        let acked = queue.responses_received(stored);
        self.note_progress(&acked);
        Some((stored, acked))
    }

    /// Handles the response to a READ or an atomic; completed requests go to `done`.
    pub(crate) fn handle_response(
        &mut self,
        cx: &CompleterContext<'_>,
        queue: &mut SendQueue,
        packet: &Packet<'_>,
        mut done: impl FnMut(SendWqe),
    ) -> Outcome {
        let psn = packet.bth().psn;
        if !queue.is_missing(psn) {
            return Outcome::ignore(Counter::drop_stale_response);
        }
        // A response answers in order: everything before it has been executed.
        let mut acked = queue.acknowledge_before(psn, &mut done);
        acked.shows_loss |= queue.note_answer(psn);
        if psn == queue.una() {
            let taken = match queue.awaited_response(psn) {
                Some(awaited) => take_response(cx, queue, awaited, packet),
                // A response to something that has none.
                None => Err(WcStatus::BadRespErr),
            };
            if let Err(status) = taken {
                self.note_progress(&acked);
                return Outcome { acked, disposition: Disposition::Fail(status) };
            }
            acked += queue.response_received(psn, done);
        } else if keep_response(cx, queue, packet) {
            acked += queue.response_received(psn, done);
        } else if queue.awaited_response(psn).is_some() {
            // It is asked for again. If anything is wrong with it, this is found out then, when it
            // is its turn.
            acked += queue.acknowledge_before(psn.plus(1), done);
        }
        self.note_progress(&acked);
        let disposition = if acked.shows_loss { Disposition::Repair } else { Disposition::Go };
        Outcome { acked, disposition }
    }

    fn note_progress(&mut self, acked: &Acked) {
        if acked.progress {
            *self = Self::default();
        }
    }

    /// R4: only the first resend for a loss is immediate.
    fn rewind_once(&mut self) -> Disposition {
        if std::mem::replace(&mut self.rewound, true) {
            return Disposition::Go;
        }
        Disposition::Rewind
    }

    /// Notes that a timer has had everything sent again.
    pub(crate) fn note_resent(&mut self) {
        self.rewound = true;
    }
}

/// R29: whether a packet is one of those in the midst of a message: its payload is `mtu` bytes, at its
/// end.
pub(super) fn fills_mtu(packet: &Packet<'_>, mtu: usize) -> bool {
    packet.payload().len() == mtu && packet.pad_len() == 0
}

/// R12: whether a NAK refuses the READ that is the oldest request, of which responses may have been
/// lost before it; the same for an atomic. The peer is in error then, and asking again would be in vain.
fn is_refusal_of_read(queue: &SendQueue, psn: Psn, syndrome: Syndrome) -> bool {
    let is_fatal = match syndrome.kind() {
        SyndromeKind::Nak(code) => {
            !matches!(code, NakCode::PsnSequenceError | NakCode::Reserved(_))
        }
        SyndromeKind::Ack { .. } | SyndromeKind::Rnr { .. } | SyndromeKind::Reserved(_) => false,
    };
    let is_before_end = |(_, started, _): (&SendWqe, Started, u32)| {
        psn.is_before(started.first_psn.plus(started.packets))
    };
    is_fatal && queue.awaited_response(queue.una()).is_some_and(is_before_end)
}

/// Stores what a response behind a gap brings, if that may be; false when it is to be dropped.
///
/// R61: the last byte of a READ must not be seen before all others are there; so its last packet is
/// kept only where all others are.
fn keep_response(cx: &CompleterContext<'_>, queue: &SendQueue, packet: &Packet<'_>) -> bool {
    let psn = packet.bth().psn;
    let Some(awaited) = queue.awaited_response(psn) else { return false };
    let (wqe, started, index) = awaited;
    let is_last = index + 1 == started.packets;
    wqe.op.is_read()
        && !psn.is_after(queue.reached())
        && !(is_last && queue.gaps().is_any_between(started.first_psn, psn))
        && take_response(cx, queue, awaited, packet).is_ok()
}

/// Checks that a response is one to its request, and stores what it brings.
fn take_response(
    cx: &CompleterContext<'_>,
    queue: &SendQueue,
    awaited: (&SendWqe, Started, u32),
    packet: &Packet<'_>,
) -> Result<(), WcStatus> {
    let (wqe, ..) = awaited;
    // R12: an error in the midst of the response is that of the READ.
    if let Some(aeth) = packet.aeth()
        && !aeth.syndrome.is_ack()
    {
        return Err(WcStatus::BadRespErr);
    }
    match packet.atomic_ack_eth() {
        None if wqe.op.is_read() => take_payload(cx, queue, awaited, packet),
        Some(ack) if wqe.op.atomic_target().is_some() => {
            // Big-endian on the wire, a number of this host in its memory, as rdma_rxe has it.
            store(cx, wqe, 0, &ack.original.to_ne_bytes())
        }
        // It brings nothing, but says that it is done.
        None if matches!(wqe.op, SendOp::AtomicWrite { .. } | SendOp::Flush { .. })
            && packet.info().position == Position::Only
            && packet.payload().is_empty() =>
        {
            Ok(())
        }
        _ => Err(WcStatus::BadRespErr),
    }
}

/// Checks a packet of a READ response against what is missing, and stores its payload.
fn take_payload(
    cx: &CompleterContext<'_>,
    queue: &SendQueue,
    (wqe, started, index): (&SendWqe, Started, u32),
    packet: &Packet<'_>,
) -> Result<(), WcStatus> {
    // R3: the place follows from the first PSN of the READ, which stays however often it, or a part
    // of it, is asked for again.
    let offset = u64::from(index) * cx.mtu as u64;
    let missing = u64::from(wqe.length) - offset;
    let payload = packet.payload();
    // R1: a READ asked for again may be answered from any position on, so FIRST and MIDDLE are
    // alike here; but each but the last of what was asked for fills the path MTU (R29).
    let ends_part = index + 1 == started.part_end(index);
    let ends_response = matches!(packet.info().position, Position::Last | Position::Only);
    // What was asked for again because of a gap may have ended anywhere.
    let ends_right =
        ends_response == ends_part || !ends_part && queue.gaps().contains(packet.bth().psn);
    if payload.len() as u64 != missing.min(cx.mtu as u64) || !ends_right {
        return Err(WcStatus::BadRespErr);
    }
    if payload.is_empty() { Ok(()) } else { store(cx, wqe, offset, payload) }
}

/// Stores bytes of a response in the buffers of its request.
fn store(
    cx: &CompleterContext<'_>,
    wqe: &SendWqe,
    offset: u64,
    bytes: &[u8],
) -> Result<(), WcStatus> {
    let WqeData::Sges(sges) = &wqe.data else { return Err(WcStatus::LocProtErr) };
    // R11: a bad local key is a completion error.
    scatter(cx.memory, cx.pd, sges, offset, bytes).map_err(|fault| {
        tracing::debug!(target: "rxe::comp", wr_id = wqe.wr_id, %fault, "cannot store a response");
        WcStatus::LocProtErr
    })
}
