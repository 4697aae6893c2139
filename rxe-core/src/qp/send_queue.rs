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

use std::collections::VecDeque;

use rxe_wire::Psn;

use crate::time::Instant;
use crate::window::{Load, packet_cost};
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
    /// It went beyond a READ or atomic whose response is not complete (R2).
    pub(crate) stopped_by_read: bool,
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
    /// One past the last PSN of the requests that have been started.
    next: Psn,
    /// Cost of all packets of started requests since the beginning, wrapping.
    next_cost: u64,
    /// Requests that are answered by a response, sent and not completely answered.
    pub(crate) reads_outstanding: u32,
    /// The packet that the round trip is measured with, and when it left.
    pub(crate) probe: Option<(Psn, Instant)>,
    pub(crate) early_resend: EarlyResend,
}

impl SendQueue {
    pub(crate) fn new(first_psn: Psn) -> Self {
        Self {
            wqes: VecDeque::new(),
            acked: 0,
            cursor: Cursor::default(),
            high: first_psn,
            next: first_psn,
            next_cost: 0,
            reads_outstanding: 0,
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
        self.front_started().map_or(self.next, |started| started.first_psn.plus(self.acked))
    }

    /// Whether something sent awaits an acknowledgement.
    pub(crate) fn is_outstanding(&self) -> bool {
        self.high.is_after(self.una())
    }

    /// Whether `psn` is one that was sent and is not acknowledged.
    pub(crate) fn is_awaited(&self, psn: Psn) -> bool {
        let sent = self.high.distance_from(self.una());
        (0..sent).contains(&psn.distance_from(self.una()))
    }

    /// Whether `psn` may stand in a NAK, which names the next one expected.
    pub(crate) fn is_expectable(&self, psn: Psn) -> bool {
        psn == self.high || self.is_awaited(psn)
    }

    /// What is under way: sent since the last rewind, and not acknowledged.
    pub(crate) fn in_flight(&self) -> Load {
        let (psn, cost) = self.place(self.cursor);
        let (una, cost_before) = self.place(self.oldest());
        // The cursor never stands before the oldest packet that is not acknowledged.
        let packets = u32::try_from(psn.distance_from(una)).unwrap_or(0).into();
        Load { packets, cost: cost.wrapping_sub(cost_before) }
    }

    /// The PSN at a place in the stream, and the cost of all packets before it.
    fn place(&self, cursor: Cursor) -> (Psn, u64) {
        let started = self.wqes.get(cursor.index).and_then(|wqe| wqe.started.as_ref());
        started.map_or((self.next, self.next_cost), |started| {
            let within = u64::from(cursor.packet) * u64::from(started.packet_cost);
            (started.first_psn.plus(cursor.packet), started.cost_before.wrapping_add(within))
        })
    }

    /// Gives the request at the cursor its PSNs, if it has none yet.
    pub(crate) fn start(&mut self, mtu: usize, read_chunk: impl FnOnce(u32) -> u32) -> Started {
        let wqe = &mut self.wqes[self.cursor.index];
        if let Some(started) = wqe.started {
            return started;
        }
        // Both fit: lengths are at most 2^31, MTUs at most 4096.
        let packets = (wqe.length as usize).div_ceil(mtu).max(1) as u32;
        let packet_cost = packet_cost(wqe.length.min(mtu as u32));
        let chunk = if wqe.op.is_read() { read_chunk(packet_cost) } else { packets };
        let (first_psn, cost_before) = (self.next, self.next_cost);
        let started = Started { first_psn, packets, packet_cost, cost_before, chunk };
        wqe.started = Some(started);
        self.next = self.next.plus(packets);
        let cost = u64::from(packets) * u64::from(packet_cost);
        self.next_cost = self.next_cost.wrapping_add(cost);
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
        let (first_psn, cost_before) = (self.next, self.next_cost);
        let (packets, packet_cost, chunk) = (0, 0, 1);
        let started = Started { first_psn, packets, packet_cost, cost_before, chunk };
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

    /// Puts the cursor back to the oldest packet that is not acknowledged.
    pub(crate) fn rewind(&mut self) {
        self.cursor = self.oldest();
        self.reads_outstanding = 0;
        self.early_resend = EarlyResend::None;
        // An answer could be to either copy (Karn's rule).
        self.probe = None;
    }

    /// Whether the oldest packet that is not acknowledged is to be sent again. It may always go,
    /// however full the window is: without it there is no progress.
    pub(crate) fn is_rewound(&self) -> bool {
        self.cursor == self.oldest() && self.is_outstanding()
    }

    /// Whether the cursor stands behind what was already sent once.
    pub(crate) fn is_resending(&self) -> bool {
        let at = self.wqes.get(self.cursor.index).and_then(|wqe| wqe.started);
        at.is_some_and(|started| self.high.is_after(started.first_psn.plus(self.cursor.packet)))
    }

    /// Acknowledges all packets before `psn`, which must be awaited or expectable; completed
    /// requests go to `done`, oldest first.
    pub(crate) fn acknowledge_before(&mut self, psn: Psn, mut done: impl FnMut(SendWqe)) -> Acked {
        let mut acked = Acked::default();
        // Not negative for an expectable PSN, and less than 2^23 by the window.
        let mut left = u32::try_from(psn.distance_from(self.una())).unwrap_or(0);
        while left > 0 {
            let Some(front) = self.wqes.front() else { break };
            let Some(started) = front.started else { break };
            if front.op.needs_response() {
                acked.stopped_by_read = true;
                break;
            }
            let count = left.min(started.packets - self.acked);
            left -= count;
            acked.progress = true;
            acked.load += Load::of(count, started.packet_cost);
            if front.op.is_answered() {
                self.reads_outstanding = self.reads_outstanding.saturating_sub(1);
            }
            self.advance_front(count, started, &mut done);
        }
        acked
    }

    /// Counts all that was sent as done, where nobody acknowledges it; completed requests go to
    /// `done`, oldest first.
    pub(crate) fn complete_sent(&mut self, done: impl FnMut(SendWqe)) {
        self.acknowledge_before(self.high, done);
    }

    /// Takes in the next packet of the response that the oldest request awaits.
    pub(crate) fn response_received(&mut self, done: impl FnMut(SendWqe)) -> Acked {
        let Some(started) = self.front_started().copied() else { return Acked::default() };
        let received = self.acked + 1;
        if received.is_multiple_of(started.chunk) || received == started.packets {
            self.reads_outstanding = self.reads_outstanding.saturating_sub(1);
        }
        self.advance_front(1, started, done);
        let load = Load::of(1, started.packet_cost);
        Acked { load, progress: true, stopped_by_read: false }
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

    /// Where the response stands that the oldest request awaits: the request, its place in the
    /// stream, and packets received.
    pub(crate) fn awaited_response(&self) -> Option<(&SendWqe, Started, u32)> {
        let front = self.wqes.front()?;
        let started = front.started?;
        front.op.is_answered().then_some((front, started, self.acked))
    }
}

impl SendQueue {
    /// Forgets where everything stands, when all requests have been flushed: nothing that was
    /// sent is awaited any more.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.next);
    }
}
