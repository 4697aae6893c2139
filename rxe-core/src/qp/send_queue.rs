//! The send queue as a stream of packets: what was sent, what was acknowledged, what comes next.
//!
//! The requester moves the cursor forward, the completer the oldest unacknowledged packet; a rewind
//! puts the cursor back to it. Packets are never stored: they are built again from the requests.
//!
//! ```text
//!   PSN   una                cursor              high               next
//!    ------|--------------------|-------------------|------------------|------
//!          | to be sent again, if rewound           | started,         | not
//!          | otherwise under way                    | never sent       | started
//! ```
//!
//! Where responses have come behind a gap, `una` is the first packet that is missing, and the peer
//! has carried out all before [`SendQueue::reached`] (see `read_gaps.rs`). The cursor never stands
//! before that: what is missing is asked for again beside it.

use std::collections::VecDeque;
use std::ops::AddAssign;

use rxe_wire::Psn;

use super::read_gaps::{ReadGaps, Repair};
use crate::time::Instant;
use crate::window::{Load, full_send, packet_cost};
use crate::wq::send::{SendWqe, Started};

/// A place in the stream: a request, counted from the oldest, and a packet of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Cursor {
    pub(crate) index: usize,
    pub(crate) packet: u32,
}

/// The resend of the oldest packet after a short silence: one packet, while the cursor stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum EarlyResend {
    /// None is under way.
    #[default]
    None,
    /// It is to be sent.
    Due,
    /// It was sent; it ends before this PSN.
    Sent(Psn),
}

/// What an acknowledgement achieved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Acked {
    /// The packets that it acknowledged.
    pub(crate) load: Load,
    /// Whether anything was acknowledged.
    pub(crate) progress: bool,
    /// It showed that a part of a response is lost (R2).
    pub(crate) shows_loss: bool,
}

impl AddAssign for Acked {
    fn add_assign(&mut self, other: Self) {
        self.load += other.load;
        self.progress |= other.progress;
        self.shows_loss |= other.shows_loss;
    }
}

/// A place in the stream, as a PSN and the cost of all packets before it, wrapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    psn: Psn,
    cost: u64,
}

/// The requests that are not complete, and where in them we are.
#[derive(Debug)]
pub(crate) struct SendQueue {
    pub(crate) wqes: VecDeque<SendWqe>,
    /// Packets of the oldest request that are acknowledged, or received if it is a READ.
    acked: u32,
    /// The next packet to build.
    pub(crate) cursor: Cursor,
    /// One past the last PSN that was ever sent.
    high: Psn,
    /// One past the last packet of the requests that have been started.
    next: Place,
    /// Requests with a response among those that have been started, parts of READs each, wrapping.
    next_answered: u32,
    /// Packets of the last SENDs that have been started which a next one follows in a full send.
    next_place: u32,
    /// What is missing of responses of which later ones have come.
    gaps: ReadGaps,
    /// While there are gaps: all before it has been carried out.
    reached: Place,
    /// The packet that the round trip is measured with, and when it left.
    pub(crate) probe: Option<(Psn, Instant)>,
    pub(crate) early_resend: EarlyResend,
}

impl SendQueue {
    pub(crate) fn new(first_psn: Psn) -> Self {
        let next = Place { psn: first_psn, cost: 0 };
        Self {
            wqes: VecDeque::new(),
            acked: 0,
            cursor: Cursor::default(),
            high: first_psn,
            next,
            next_answered: 0,
            next_place: 0,
            gaps: ReadGaps::default(),
            reached: next,
            probe: None,
            early_resend: EarlyResend::None,
        }
    }

    /// The place of the oldest packet that is not acknowledged.
    pub(crate) fn oldest(&self) -> Cursor {
        Cursor { index: 0, packet: self.acked }
    }

    fn front_started(&self) -> Option<&Started> {
        self.wqes.front()?.started.as_ref()
    }

    /// The oldest PSN that is not acknowledged, or the next one when all are.
    pub(crate) fn una(&self) -> Psn {
        self.front_started().map_or(self.next.psn, |started| started.first_psn.plus(self.acked))
    }

    /// Whether something sent awaits an acknowledgement.
    pub(crate) fn is_outstanding(&self) -> bool {
        self.high.is_after(self.una())
    }

    /// Whether `psn`, of a request that has been started, was sent before.
    pub(crate) fn was_sent(&self, psn: Psn) -> bool {
        self.high.is_after(psn)
    }

    /// Whether `psn` is one that was sent and is not acknowledged.
    pub(crate) fn is_awaited(&self, psn: Psn) -> bool {
        let sent = self.high.distance_from(self.una());
        (0..sent).contains(&psn.distance_from(self.una()))
    }

    /// Packets that an acknowledgement of `psn` would acknowledge.
    pub(crate) fn count_awaited(&self, psn: Psn) -> u32 {
        if self.is_awaited(psn) { psn.plus(1).distance_from(self.una()).unsigned_abs() } else { 0 }
    }

    /// Whether `psn` may stand in a NAK, which names the next one expected.
    pub(crate) fn is_expectable(&self, psn: Psn) -> bool {
        psn == self.high || self.is_awaited(psn)
    }

    /// Whether `psn` is awaited, and has not come behind a gap.
    pub(crate) fn is_missing(&self, psn: Psn) -> bool {
        let is_beyond = !psn.is_before(self.reached());
        self.is_awaited(psn) && (is_beyond || self.gaps.contains(psn))
    }

    /// The peer has carried out everything before this PSN.
    pub(crate) fn reached(&self) -> Psn {
        if self.gaps.is_empty() { self.una() } else { self.reached.psn }
    }

    /// What of the responses before [`Self::reached`] is missing.
    pub(crate) fn gaps(&self) -> &ReadGaps {
        &self.gaps
    }

    /// What is under way: sent since the last rewind, and not acknowledged.
    pub(crate) fn in_flight(&self) -> Load {
        let reached = if self.gaps.is_empty() { self.place(self.oldest()) } else { self.reached };
        let Place { psn, cost } = self.place(self.cursor);
        // The cursor never stands before what the peer has carried out.
        let packets = u32::try_from(psn.distance_from(reached.psn)).unwrap_or(0).into();
        let mut load = Load { packets, cost: cost.wrapping_sub(reached.cost) };
        load += self.gaps.in_flight();
        load
    }

    /// The PSN at a place in the stream, and the cost of all packets before it.
    fn place(&self, cursor: Cursor) -> Place {
        let started = self.wqes.get(cursor.index).and_then(|wqe| wqe.started.as_ref());
        started.map_or(self.next, |started| {
            let within = u64::from(cursor.packet) * u64::from(started.packet_cost);
            let psn = started.first_psn.plus(cursor.packet);
            Place { psn, cost: started.cost_before.wrapping_add(within) }
        })
    }

    /// The request that a PSN of those started belongs to, and the packet of it.
    pub(crate) fn find(&self, psn: Psn) -> Cursor {
        let is_at_or_before =
            |wqe: &SendWqe| wqe.started.is_some_and(|started| !started.first_psn.is_after(psn));
        // Local requests have the PSN of what follows them, and are not meant.
        let after = self.wqes.partition_point(is_at_or_before);
        let found = after.checked_sub(1).and_then(|index| {
            let started = self.wqes[index].started?;
            let packet = u32::try_from(psn.distance_from(started.first_psn)).ok()?;
            (packet < started.packets).then_some(Cursor { index, packet })
        });
        found.unwrap_or(Cursor { index: after, packet: 0 })
    }

    /// The number of the request with a response that begins at `cursor`, or which it lies in:
    /// counted from the beginning, and each part of a READ by itself.
    fn answered_before(&self, cursor: Cursor) -> u32 {
        let Some(wqe) = self.wqes.get(cursor.index) else { return self.next_answered };
        let Some(started) = wqe.started else { return self.next_answered };
        let parts = if wqe.op.is_answered() { cursor.packet / started.chunk } else { 0 };
        started.answered_before.wrapping_add(parts)
    }

    /// Requests with a response before the cursor that are not completely answered.
    ///
    /// Those that are answered behind a gap count: a responder keeps the last so many of them, to
    /// answer them again, and must not lose the one with the gap (R24, R25).
    pub(crate) fn reads_outstanding(&self) -> u32 {
        self.answered_before(self.cursor).wrapping_sub(self.answered_before(self.oldest()))
    }

    /// Gives the request at the cursor its PSNs, if it has none yet.
    pub(crate) fn start(&mut self, mtu: usize, read_chunk: impl FnOnce(u32) -> u32) -> Started {
        let is_first = !self.is_outstanding();
        let wqe = &mut self.wqes[self.cursor.index];
        if let Some(started) = wqe.started {
            return started;
        }
        // Both fit: lengths are at most 2^31, MTUs at most 4096.
        let packets = (wqe.length as usize).div_ceil(mtu).max(1) as u32;
        let packet_cost = packet_cost(wqe.length.min(mtu as u32));
        let chunk = if wqe.op.is_read() { read_chunk(packet_cost) } else { packets };
        let Place { psn: first_psn, cost: cost_before } = self.next;
        let answered_before = self.next_answered;
        if wqe.op.is_answered() {
            self.next_answered = answered_before.wrapping_add(packets.div_ceil(chunk));
        }
        let place = if wqe.op.is_send() && !is_first { self.next_place } else { 0 };
        // A shorter packet ends a send, and a longer one begins the next.
        let end = place + packets;
        self.next_place = if wqe.fills_packets(mtu) { end % full_send(mtu) } else { 0 };
        let started =
            Started { first_psn, packets, packet_cost, cost_before, place, chunk, answered_before };
        wqe.started = Some(started);
        let cost = u64::from(packets) * u64::from(packet_cost);
        self.next = Place { psn: first_psn.plus(packets), cost: cost_before.wrapping_add(cost) };
        started
    }

    /// Moves the cursor over `count` packets of its request, which have just been sent.
    pub(crate) fn sent(&mut self, count: u32) {
        let Some(started) = self.wqes[self.cursor.index].started else { return };
        self.cursor.packet += count;
        let after = started.first_psn.plus(self.cursor.packet);
        if after.is_after(self.high) {
            self.high = after;
        }
        if self.cursor.packet >= started.packets {
            self.cursor = Cursor { index: self.cursor.index + 1, packet: 0 };
            // What was carried out here while the packets went out the first time.
            while self.is_carried_out(self.cursor.index) {
                self.cursor.index += 1;
            }
        }
    }

    /// Notes that the local request at the cursor was carried out, and moves the cursor over it;
    /// it completes, to `done`, once everything before it has.
    pub(crate) fn carried_out(&mut self, done: impl FnMut(SendWqe)) {
        let Place { psn: first_psn, cost: cost_before } = self.next;
        let (packets, packet_cost, place, chunk) = (0, 0, 0, 1);
        let answered_before = self.next_answered;
        let started =
            Started { first_psn, packets, packet_cost, cost_before, place, chunk, answered_before };
        self.wqes[self.cursor.index].started = Some(started);
        self.cursor.index += 1;
        self.retire_carried_out(done);
    }

    /// Whether the request there is a local one that was carried out.
    fn is_carried_out(&self, index: usize) -> bool {
        self.wqes.get(index).is_some_and(|wqe| wqe.op.is_local() && wqe.started.is_some())
    }

    fn retire_carried_out(&mut self, mut done: impl FnMut(SendWqe)) {
        while self.is_carried_out(0)
            && let Some(wqe) = self.wqes.pop_front()
        {
            self.cursor.index = self.cursor.index.saturating_sub(1);
            done(wqe);
        }
    }

    /// Puts the cursor back to what the peer has not carried out, as far as is known.
    pub(crate) fn rewind(&mut self) {
        self.count_begun_as_missing();
        self.cursor = self.find(self.reached());
        self.early_resend = EarlyResend::None;
        // An answer could be to either copy (Karn's rule).
        self.probe = None;
    }

    /// The same, and has all that is missing asked for again: nothing is under way any more.
    pub(crate) fn rewind_all(&mut self) {
        self.gaps.forget_asked();
        self.rewind();
    }

    /// Counts the rest of the response that has come last as missing, if there is a gap before it.
    ///
    /// Its request has been carried out, so nothing but that rest can come. Were it asked for at
    /// the cursor, a gap before it would be asked for later, which must not be (see [`Repair`]).
    fn count_begun_as_missing(&mut self) {
        if self.gaps.is_empty() {
            return;
        }
        let Cursor { index, packet } = self.find(self.reached.psn);
        let Some(wqe) = self.wqes.get(index).filter(|wqe| wqe.op.is_read()) else { return };
        let Some(started) = wqe.started.filter(|started| !packet.is_multiple_of(started.chunk))
        else {
            return;
        };
        let end = started.part_end(packet);
        self.note_carried_out(started.first_psn.plus(end), &mut Acked::default());
    }

    /// Whether the oldest packet that is not acknowledged is to be sent again. It may always go,
    /// however full the window is: without it there is no progress.
    pub(crate) fn is_rewound(&self) -> bool {
        self.cursor == self.oldest() && self.is_outstanding()
    }

    /// Whether the oldest packet that is not acknowledged is to be sent again, for whatever reason.
    pub(crate) fn resends_oldest(&self) -> bool {
        self.early_resend == EarlyResend::Due
            || self.is_rewound()
            || self.gaps.due().is_some_and(|repair| repair.is_oldest)
    }

    /// Whether the cursor stands behind what was already sent once.
    pub(crate) fn is_resending(&self) -> bool {
        let at = self.wqes.get(self.cursor.index).and_then(|wqe| wqe.started);
        at.is_some_and(|started| self.high.is_after(started.first_psn.plus(self.cursor.packet)))
    }

    /// Notes that the peer has carried out everything before `psn`, which must be awaited or
    /// expectable. Completed requests go to `done`, oldest first; what is missing of a response
    /// becomes a gap.
    pub(crate) fn acknowledge_before(&mut self, psn: Psn, mut done: impl FnMut(SendWqe)) -> Acked {
        let mut acked = Acked::default();
        if self.gaps.is_empty() {
            self.acknowledge_front(psn, &mut acked, &mut done);
        }
        if psn.is_after(self.reached()) {
            self.note_carried_out(psn, &mut acked);
        }
        acked
    }

    /// Acknowledges requests that need no response, from the oldest up to `psn`.
    fn acknowledge_front(&mut self, psn: Psn, acked: &mut Acked, mut done: impl FnMut(SendWqe)) {
        // Not negative for an expectable PSN, and less than 2^23 by the window.
        let mut left = u32::try_from(psn.distance_from(self.una())).unwrap_or(0);
        while left > 0 {
            let Some(front) = self.wqes.front().filter(|wqe| !wqe.op.needs_response()) else {
                break;
            };
            let Some(started) = front.started else { break };
            let count = left.min(started.packets - self.acked);
            left -= count;
            acked.progress = true;
            acked.load += Load::of(count, started.packet_cost);
            self.advance_front(count, started, &mut done);
        }
    }

    /// Moves [`Self::reached`] to `upto`, behind a READ or atomic at the front. What needs no
    /// response is acknowledged, and completes when all before it has; the rest is missing.
    fn note_carried_out(&mut self, upto: Psn, acked: &mut Acked) {
        let mut at = self.reached();
        let mut index = self.find(at).index;
        while at.is_before(upto)
            && let Some(wqe) = self.wqes.get(index)
            && let Some(started) = wqe.started
        {
            let end = earlier(upto, started.first_psn.plus(started.packets));
            // Not negative, as the request is the one that `at` lies in.
            let packet = u32::try_from(at.distance_from(started.first_psn)).unwrap_or(0);
            let count = u32::try_from(end.distance_from(at)).unwrap_or(0);
            if !wqe.op.needs_response() {
                acked.progress |= count > 0;
                acked.load += Load::of(count, started.packet_cost);
                (at, index) = (end, index + 1);
                continue;
            }
            let part = packet - packet % started.chunk;
            let end = earlier(end, started.first_psn.plus(started.part_end(packet)));
            if !self.gaps.push(started.first_psn.plus(part), started.packet_cost, at, end) {
                break;
            }
            acked.shows_loss = true;
            at = end;
            if at == started.first_psn.plus(started.packets) {
                index += 1;
            }
        }
        self.reach(at);
    }

    fn reach(&mut self, psn: Psn) {
        self.reached = self.place(self.find(psn));
        // What has been carried out need not be sent again.
        if self.place(self.cursor).psn.is_before(psn) {
            self.cursor = self.find(psn);
        }
    }

    /// Counts all that was sent as done, where nobody acknowledges it; completed requests go to
    /// `done`, oldest first.
    pub(crate) fn complete_sent(&mut self, done: impl FnMut(SendWqe)) {
        self.acknowledge_before(self.high, done);
    }

    /// Takes in packet `psn` of a response, which is missing: the oldest that is, or one behind a
    /// gap, for which everything before it has been acknowledged.
    pub(crate) fn response_received(&mut self, psn: Psn, mut done: impl FnMut(SendWqe)) -> Acked {
        if self.gaps.is_empty() {
            let Some(started) = self.front_started().copied() else { return Acked::default() };
            self.advance_front(1, started, &mut done);
            return received(started);
        }
        let index = self.find(psn).index;
        let Some(started) = self.wqes.get(index).and_then(|wqe| wqe.started) else {
            return Acked::default();
        };
        if psn == self.reached.psn {
            self.reach(psn.plus(1));
        } else if !self.gaps.fill(psn) {
            return Acked::default();
        }
        self.advance_to(self.gaps.first().unwrap_or(self.reached.psn), &mut done);
        received(started)
    }

    /// Takes in `count` packets of a READ response, the next ones that are awaited and none that
    /// ends it ([`Self::next_in_read`]).
    pub(crate) fn responses_received(&mut self, count: u32) -> Acked {
        let Some(started) = self.front_started().copied() else { return Acked::default() };
        debug_assert!(self.gaps.is_empty() && self.acked + count < started.packets);
        self.advance_front(count, started, |_| {});
        let load = Load::of(count, started.packet_cost);
        Acked { load, progress: true, shows_loss: false }
    }

    /// Counts all before `upto` as done.
    fn advance_to(&mut self, upto: Psn, mut done: impl FnMut(SendWqe)) {
        while self.una().is_before(upto)
            && let Some(&front) = self.front_started()
        {
            let left = u32::try_from(upto.distance_from(self.una())).unwrap_or(0);
            self.advance_front(left.min(front.packets - self.acked), front, &mut done);
        }
    }

    fn advance_front(&mut self, count: u32, started: Started, mut done: impl FnMut(SendWqe)) {
        self.acked += count;
        if self.acked < started.packets {
            // What is acknowledged need not be sent again.
            if self.cursor.index == 0 {
                self.cursor.packet = self.cursor.packet.max(self.acked);
            }
            return;
        }
        self.acked = 0;
        self.cursor = match self.cursor {
            Cursor { index: 0, .. } => Cursor::default(),
            Cursor { index, packet } => Cursor { index: index - 1, packet },
        };
        if let Some(wqe) = self.wqes.pop_front() {
            done(wqe);
        }
        self.retire_carried_out(done);
    }

    /// The request that response packet `psn` belongs to, its place in the stream, and the number of
    /// the packet in it.
    pub(crate) fn awaited_response(&self, psn: Psn) -> Option<(&SendWqe, Started, u32)> {
        let Cursor { index, packet } =
            if psn == self.una() { self.oldest() } else { self.find(psn) };
        let wqe = self.wqes.get(index)?;
        let started = wqe.started?;
        wqe.op.is_answered().then_some((wqe, started, packet))
    }

    /// The READ that response packet `psn` belongs to and the number of the packet in it, if that
    /// is the very next one that is awaited, is missing nothing before it, and neither ends a part
    /// of the READ nor answers one that was sent again.
    pub(crate) fn next_in_read(&self, psn: Psn) -> Option<(&SendWqe, Started, u32)> {
        let wqe = self.wqes.front().filter(|wqe| wqe.op.is_read())?;
        let (started, packet) = (wqe.started?, self.acked);
        let is_next = psn == started.first_psn.plus(packet)
            && self.high.is_after(psn)
            && packet + 1 < started.part_end(packet)
            && self.gaps.is_empty()
            && self.early_resend == EarlyResend::None;
        is_next.then_some((wqe, started, packet))
    }

    /// What is missing of the oldest request whose response has a gap, to its end.
    pub(crate) fn oldest_repair(&mut self) -> Option<Repair> {
        let part_of = |psn| {
            let Cursor { index, packet } = self.find(psn);
            let started = self.wqes.get(index)?.started?;
            Some((index, packet / started.chunk))
        };
        if part_of(self.gaps.first()?) == part_of(self.reached.psn) {
            self.count_begun_as_missing();
        }
        self.gaps.oldest()
    }

    /// Notes that what is missing was asked for again.
    pub(crate) fn asked_again(&mut self, repair: Repair) {
        self.gaps.note_asked(repair, self.high);
    }

    /// Notes an answer to `psn`; whether it shows that what was asked for again is lost once more.
    pub(crate) fn note_answer(&mut self, psn: Psn) -> bool {
        self.gaps.overtaken_by(psn)
    }
}

/// A packet of a response that has come.
fn received(started: Started) -> Acked {
    Acked { load: Load::of(1, started.packet_cost), progress: true, shows_loss: false }
}

fn earlier(one: Psn, other: Psn) -> Psn {
    if one.is_before(other) { one } else { other }
}

impl SendQueue {
    /// Forgets where everything stands, when all requests have been flushed: nothing that was
    /// sent is awaited any more.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.next.psn);
    }
}
