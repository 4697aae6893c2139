//! The requester: builds request packets from the send queue, new ones and those to resend.

use rxe_wire::hdr::{AtomicEth, Bth, Feth, FlushSelectivity, Ieth, ImmDt, Reth, Xrceth};
use rxe_wire::{Headers, Opcode, PKey, Position, Psn, Qpn, RKey, Service};

use super::read_gaps::Repair;
use super::responder::packets_of;
use super::run::RunBuf;
use super::send_queue::{Cursor, EarlyResend, SendQueue};
use crate::mem::{MemoryTable, Span};
use crate::pd::PdId;
use crate::time::Instant;
use crate::wc::WcStatus;
use crate::window::{Load, PeerWindow, full_send};
use crate::wq::send::{SendOp, SendWqe, Started, WqeData};
use crate::wq::{FlushLevel, RemoteAddr, gather, gather_span};

/// The least number of packets in a row that ask for no acknowledgement, unless the window is full.
const UNACKNOWLEDGED_RUN: u32 = 15;
/// Full sends of messages that are acknowledged together, at most.
const SENDS_TOGETHER: u32 = 5;
/// Requests that are to be sent behind one that asks for no acknowledgement, at least: the last ones
/// that a program has posted all ask.
const BEHIND_UNASKED: usize = 4;

/// What the requester works with, borrowed from the queue pair and its shard.
#[derive(Debug)]
pub(crate) struct RequesterContext<'a> {
    pub(crate) now: Instant,
    pub(crate) memory: &'a MemoryTable,
    pub(crate) pd: PdId,
    pub(crate) mtu: usize,
    pub(crate) dest_qpn: Qpn,
    /// What the opcodes are of.
    pub(crate) service: Service,
    pub(crate) max_rd_atomic: u32,
    /// In SQD: requests that have begun go on, no new one begins.
    pub(crate) draining: bool,
    /// The next packet may have to wait for its time.
    pub(crate) paced: bool,
    pub(crate) window: &'a PeerWindow,
}

/// What became of asking for a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Emit {
    /// A packet of so many bytes stands in the buffer.
    Packet(usize),
    /// A congestion notification packet of so many bytes stands there.
    Notification(usize),
    /// The request at the cursor is to be carried out here.
    Local,
    /// There is nothing to send now; an acknowledgement, a timer or a post changes that.
    Idle,
    /// The window to the peer has no room for so much.
    NoRoom(Load),
}

/// Where a packet stands among those that are to leave in one segmented send.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// The window is large enough for blocks; a smaller one takes the message as it has room.
    is_full: bool,
    /// It is the first one.
    is_start: bool,
    /// Packets to the end, this one included.
    left: u32,
}

impl Block {
    /// The block of a packet, which is one past the end of the message at most.
    fn of(cx: &RequesterContext<'_>, started: &Started, packet: u32) -> Self {
        let (full, left) = (full_send(cx.mtu), started.packets - packet);
        if !cx.window.holds_sends(full, started.packet_cost) {
            return Self { is_full: false, is_start: false, left };
        }
        let place = (started.place + packet) % full;
        Self { is_full: true, is_start: place == 0, left: left.min(full - place) }
    }
}

/// Packets of a block that begins at the cursor: where the message ends, it may go on in the next.
fn block_len(cx: &RequesterContext<'_>, queue: &SendQueue, block: Block) -> u32 {
    let index = queue.cursor.index;
    match (queue.wqes.get(index), queue.wqes.get(index + 1)) {
        (Some(wqe), Some(next)) if next.op.is_send() && wqe.fills_packets(cx.mtu) => {
            let more = packets_of(next.length, cx.mtu);
            block.left.saturating_add(more).min(full_send(cx.mtu))
        }
        _ => block.left,
    }
}

/// Which packets of several ask for an acknowledgement.
#[derive(Clone, Copy, Debug)]
struct Asking {
    /// One that so many before it did not.
    after: u32,
    /// The last one.
    last: bool,
}

/// The requester's own state, beside the queue that it shares with the completer.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    /// Packets sent since the last one that asked for an acknowledgement.
    unacknowledged_run: u32,
    /// The last packet that asked for one.
    asked: Option<Psn>,
    /// As many requests with a response were outstanding as may be, and not much fewer are now.
    has_asked_enough: bool,
}

impl Requester {
    /// Builds the packet at the cursor into `buf`, if one may go now, and moves the cursor.
    pub(crate) fn poll_packet(
        &mut self,
        cx: &RequesterContext<'_>,
        queue: &mut SendQueue,
        buf: &mut [u8],
    ) -> Emit {
        if queue.early_resend == EarlyResend::Due {
            queue.early_resend = EarlyResend::None;
            if queue.cursor != queue.oldest() && queue.is_outstanding() {
                return self.resend_oldest(cx, queue, buf);
            }
        }
        if let Some(repair) = queue.gaps().due() {
            return ask_again(cx, queue, repair, buf);
        }
        let Some(wqe) = queue.wqes.get(queue.cursor.index) else { return Emit::Idle };
        // After one that failed here, nothing more goes out: the QP is about to fail with it.
        if wqe.failed.is_some() || (cx.draining && wqe.started.is_none()) {
            return Emit::Idle;
        }
        // R10: a fence waits for earlier READs and atomics, and only for those.
        if wqe.fence && queue.cursor.packet == 0 && queue.reads_outstanding() > 0 {
            return Emit::Idle;
        }
        match wqe.op {
            SendOp::Read { .. }
            | SendOp::CompareSwap { .. }
            | SendOp::FetchAdd { .. }
            | SendOp::AtomicWrite { .. }
            | SendOp::Flush { .. } => self.poll_answered(cx, queue, buf),
            SendOp::Send { .. } | SendOp::Write { .. } | SendOp::SendInvalidate { .. } => {
                self.poll_data(cx, queue, buf)
            }
            // R10: an invalidation waits for all requests before it.
            SendOp::LocalInvalidate { .. } if queue.cursor.index > 0 => Emit::Idle,
            SendOp::LocalInvalidate { .. } | SendOp::RegisterMr { .. } | SendOp::BindMw { .. } => {
                Emit::Local
            }
            // Datagrams do not come here.
            SendOp::SendTo { .. } => Emit::Idle,
        }
    }

    /// The oldest packet once more, after a short silence; the cursor stays where it is.
    fn resend_oldest(
        &mut self,
        cx: &RequesterContext<'_>,
        queue: &mut SendQueue,
        buf: &mut [u8],
    ) -> Emit {
        // An answer could be to either copy (Karn's rule).
        queue.probe = None;
        if let Some(repair) = queue.oldest_repair() {
            let emit = ask_again(cx, queue, repair, buf);
            if let Emit::Packet(_) = emit {
                queue.early_resend = EarlyResend::Sent(repair.end);
            }
            return emit;
        }
        let Some(wqe) = queue.wqes.front() else { return Emit::Idle };
        let Some(started) = wqe.started else { return Emit::Idle };
        let packet = queue.oldest().packet;
        let (built, count) = if wqe.op.is_answered() {
            let count = started.part_end(packet) - packet;
            (build_answered(cx, wqe, &started, packet, count, buf), count)
        } else {
            (build_data(cx, wqe, &started, packet, true, buf), 1)
        };
        match built {
            Ok(len) => {
                let end = started.first_psn.plus(packet + count);
                queue.early_resend = EarlyResend::Sent(end);
                Emit::Packet(len)
            }
            Err(status) => {
                queue.wqes[0].failed = Some(status);
                Emit::Idle
            }
        }
    }

    /// An atomic or FLUSH, or a READ request for what is missing of the current chunk (R1).
    fn poll_answered(
        &mut self,
        cx: &RequesterContext<'_>,
        queue: &mut SendQueue,
        buf: &mut [u8],
    ) -> Emit {
        let wqe = &mut queue.wqes[queue.cursor.index];
        if cx.max_rd_atomic == 0 {
            wqe.failed = Some(WcStatus::LocQpOpErr);
            return Emit::Idle;
        }
        if !self.may_ask(cx, queue.reads_outstanding()) {
            return Emit::Idle;
        }
        let started = queue
            .start(cx.mtu, |cost| cx.window.read_chunk(cost, cx.max_rd_atomic, full_send(cx.mtu)));
        let packet = queue.cursor.packet;
        let count = started.part_end(packet) - packet;
        let load = Load::of(count, started.packet_cost);
        if !cx.window.has_room(load) && !queue.is_rewound() {
            return Emit::NoRoom(load);
        }
        let wqe = &queue.wqes[queue.cursor.index];
        match build_answered(cx, wqe, &started, packet, count, buf) {
            Ok(len) => {
                self.note_sent(cx, queue, started.first_psn.plus(packet), true);
                queue.sent(count);
                self.has_asked_enough |= queue.reads_outstanding() >= cx.max_rd_atomic;
                Emit::Packet(len)
            }
            Err(status) => {
                queue.wqes[queue.cursor.index].failed = Some(status);
                Emit::Idle
            }
        }
    }

    /// Whether one more request with a response may go, while so many are outstanding.
    ///
    /// Where none could, a quarter of them must be answered first: so several leave in one send,
    /// which costs the host as much as 150 packets in it, and the peer works on the others
    /// meanwhile. And the peer sends the answers to these together: the end of one and the beginning
    /// of the next share a send.
    fn may_ask(&mut self, cx: &RequesterContext<'_>, outstanding: u32) -> bool {
        let most = cx.max_rd_atomic;
        self.has_asked_enough = match self.has_asked_enough {
            true => outstanding > most - most / 4,
            false => outstanding >= most,
        };
        !self.has_asked_enough && outstanding < most
    }

    /// The next packet of a SEND or WRITE.
    fn poll_data(
        &mut self,
        cx: &RequesterContext<'_>,
        queue: &mut SendQueue,
        buf: &mut [u8],
    ) -> Emit {
        let started = queue.start(cx.mtu, |_| 0);
        let packet = queue.cursor.packet;
        let is_rewound = queue.is_rewound();
        let (cost, left) = (started.packet_cost, started.packets - packet);
        let block = Block::of(cx, &started, packet);
        let need = if block.is_start { block_len(cx, queue, block) } else { 1 };
        if !cx.window.has_room(Load::of(need, cost)) && !is_rewound {
            // Other requests are behind this one: how many packets they have is not known yet.
            let is_last = queue.cursor.index + 1 == queue.wqes.len();
            let pending = if is_last { left } else { u32::MAX };
            return Emit::NoRoom(cx.window.worth_waiting_for(pending, need, cost));
        }
        let wqe = &queue.wqes[queue.cursor.index];
        let psn = started.first_psn.plus(packet);
        let position = position(packet, started.packets);
        let asking = self.plan_asking(cx, queue, &started, packet, 1);
        let ends = position.is_end() && !self.ends_unasked(cx, queue, &started, 1);
        let ack_req = ends || is_rewound || self.asks(asking, true);
        match build_data(cx, wqe, &started, packet, ack_req, buf) {
            Ok(len) => {
                self.note_sent(cx, queue, psn, ack_req);
                queue.sent(1);
                Emit::Packet(len)
            }
            Err(status) => {
                queue.wqes[queue.cursor.index].failed = Some(status);
                Emit::Idle
            }
        }
    }

    /// Goes on with the SEND or WRITE of which a packet has just been built: builds the packets
    /// after it one behind the other, as long as they can leave in one segmented send.
    ///
    /// This is [`Self::poll_packet`] for many packets at once: what does not change within a
    /// message is looked at once.
    pub(crate) fn continue_message(
        &mut self,
        cx: &RequesterContext<'_>,
        queue: &mut SendQueue,
        out: &mut RunBuf<'_>,
    ) {
        let first = queue.cursor.packet;
        let Some(wqe) = queue.wqes.get(queue.cursor.index) else { return };
        let (Some(started), WqeData::Sges(sges)) = (wqe.started, &wqe.data) else { return };
        if first == 0 || wqe.failed.is_some() || wqe.op.is_read() {
            return;
        }
        let room = cx.window.room(started.packet_cost);
        let xrceth = if wqe.srqn.is_some() { Xrceth::LEN } else { 0 };
        let block = Block::of(cx, &started, first);
        let count = room.min(out.room_for(Bth::LEN + xrceth + cx.mtu)).min(block.left);
        let is_urgent = queue.early_resend == EarlyResend::Due || queue.gaps().due().is_some();
        // A block begins as a packet by itself, for which the room of the whole is looked at.
        if count == 0 || block.is_start || is_urgent {
            return;
        }
        let offset = u64::from(first) * cx.mtu as u64;
        let bytes = (u64::from(count) * cx.mtu as u64).min(u64::from(wqe.length) - offset);
        let Some(span) = gather_span(cx.memory, cx.pd, sges, offset, bytes) else { return };
        let last = started.packets - 1;
        let asking = self.plan_asking(cx, queue, &started, first, count);
        let (opcode, ..) = data_headers(wqe, Position::Middle);
        let middle = header(cx, opcode, started.first_psn, 0, false, false).mould();
        let (mut built, mut asked) = (0, None);
        while built < count {
            let packet = first + built;
            let psn = started.first_psn.plus(packet);
            let ends = packet == last && !self.ends_unasked(cx, queue, &started, built + 1);
            let ack_req = ends || self.asks(asking, built + 1 == count);
            let Some(buf) = out.next() else { break };
            let skip = built as usize * cx.mtu;
            // What cannot be built here is built, and fails if it must, as a packet by itself.
            if packet == last {
                let fill = |payload: &mut [u8]| {
                    span.read_at(skip, payload).map_err(|_| WcStatus::LocProtErr)
                };
                let written = write_data(cx, wqe, &started, packet, ack_req, buf, fill);
                let Ok(len) = written else { break };
                out.push(len);
            } else {
                let written = match middle.write(psn, ack_req, buf) {
                    Ok(()) => write_middle(wqe.srqn, cx.mtu, buf, &span, skip),
                    Err(_) => None,
                };
                let Some((len, sum)) = written else { break };
                match sum {
                    Some(sum) => out.push_summed(len, sum),
                    None => out.push(len),
                }
            }
            built += 1;
            self.unacknowledged_run += 1;
            if ack_req {
                self.unacknowledged_run = 0;
                self.asked = Some(psn);
                asked = asked.or(Some(psn));
            }
        }
        drop(span);
        if let Some(psn) = asked {
            note_probe(cx, queue, psn);
        }
        if built > 0 {
            queue.sent(built);
        }
    }

    /// Goes on after a message of one packet with the messages behind it, as long as they are of
    /// one packet too and can leave in the same segmented send.
    ///
    /// This is [`Self::poll_packet`] for many messages at once: whose turn it is, timers and window
    /// are looked at once. What is not as simple is left to it.
    pub(crate) fn continue_messages(
        &mut self,
        cx: &RequesterContext<'_>,
        queue: &mut SendQueue,
        out: &mut RunBuf<'_>,
    ) {
        let is_urgent = queue.early_resend == EarlyResend::Due || queue.gaps().due().is_some();
        if is_urgent || cx.draining {
            return;
        }
        let mut built = Load::default();
        while queue.cursor.packet == 0
            && let Some(wqe) = queue.wqes.get(queue.cursor.index)
            && let Some(len) = whole_len(cx, wqe)
            && out.room_for(len) > 0
        {
            // R10: a fence waits for earlier READs and atomics.
            if wqe.failed.is_some() || wqe.fence && queue.reads_outstanding() > 0 {
                return;
            }
            let started = queue.start(cx.mtu, |_| 0);
            let wqe = &queue.wqes[queue.cursor.index];
            built += Load::of(1, started.packet_cost);
            if !cx.window.fits(built) {
                return;
            }
            let Some(buf) = out.next() else { return };
            // What cannot be built is built, and fails, as a packet by itself.
            let Ok(len) = build_data(cx, wqe, &started, 0, true, buf) else { return };
            self.note_sent(cx, queue, started.first_psn, true);
            queue.sent(1);
            out.push(len);
        }
    }

    /// Which of `count` packets from `packet` on, which go now, ask for an acknowledgement.
    ///
    /// Half of the window may go without, so that the other half is under way while the
    /// acknowledgement is: it costs both ends as much as a dozen packets. And what comes next must
    /// find room. Where packets go by blocks, the last one of a block asks, since all of it is
    /// acknowledged at once; and not if an acknowledgement that is on its way makes room enough.
    fn plan_asking(
        &self,
        cx: &RequesterContext<'_>,
        queue: &SendQueue,
        started: &Started,
        packet: u32,
        count: u32,
    ) -> Asking {
        let cost = started.packet_cost;
        let half = (cx.window.capacity(cost) / 2).max(UNACKNOWLEDGED_RUN);
        let room = cx.window.room(cost).saturating_sub(count);
        let next = Block::of(cx, started, packet + count);
        if !next.is_full {
            return Asking { after: half, last: room == 0 };
        }
        if !next.is_start {
            return Asking { after: u32::MAX, last: room == 0 };
        }
        let awaited = self.asked.map_or(0, |psn| queue.count_awaited(psn));
        let needed = block_len(cx, queue, next);
        let last = self.unacknowledged_run + count > half || room + awaited < needed;
        Asking { after: u32::MAX, last }
    }

    /// Whether the last packet of the request at the cursor asks for no acknowledgement, since it is
    /// acknowledged with the next one; `count` packets go now, this one included.
    ///
    /// An acknowledgement costs this end as much as a dozen packets, and the peer a send. What is small
    /// has one for each message: there is somebody who waits. Of large messages, several are
    /// acknowledged together while the program has an answer on its way, and the next ones are sent at
    /// once. Of the window they leave a quarter and more to what asks: so whoever waits for room finds
    /// it when everything that asked has been answered. Only where the next one is never sent, as when
    /// it fails here, or the queue pair is to be drained, does the short timer ask in its place.
    fn ends_unasked(
        &self,
        cx: &RequesterContext<'_>,
        queue: &SendQueue,
        started: &Started,
        count: u32,
    ) -> bool {
        let behind = queue.wqes.len() - queue.cursor.index - 1;
        if started.packets <= UNACKNOWLEDGED_RUN || behind < BEHIND_UNASKED {
            return false;
        }
        let Some(next) = queue.wqes.get(queue.cursor.index + 1) else { return false };
        let is_data = matches!(
            next.op,
            SendOp::Send { .. } | SendOp::Write { .. } | SendOp::SendInvalidate { .. }
        );
        let is_held_up = cx.draining || cx.paced || next.fence || next.failed.is_some();
        // Answers to what is sent again say nothing of what was asked before.
        let is_copy = queue.was_sent(started.first_psn.plus(started.packets - 1));
        let is_answer_due = self.asked.is_some_and(|psn| !psn.is_before(queue.una()));
        if !is_data || is_held_up || is_copy || !is_answer_due {
            return false;
        }
        let (cost, packets) = (started.packet_cost, packets_of(next.length, cx.mtu));
        let capacity = cx.window.capacity(cost);
        let most = (SENDS_TOGETHER * full_send(cx.mtu)).min(capacity / 2);
        let room = cx.window.room(cost).saturating_sub(count);
        self.unacknowledged_run.saturating_add(packets) < most
            && room > packets.saturating_add(capacity / 4)
    }

    fn note_sent(
        &mut self,
        cx: &RequesterContext<'_>,
        queue: &mut SendQueue,
        psn: Psn,
        ack_req: bool,
    ) {
        self.unacknowledged_run += 1;
        if ack_req {
            self.unacknowledged_run = 0;
            self.asked = Some(psn);
            note_probe(cx, queue, psn);
        }
    }

    /// Whether the next packet asks for an acknowledgement, the last one of those planned or not.
    fn asks(&self, asking: Asking, is_last: bool) -> bool {
        self.unacknowledged_run >= asking.after || asking.last && is_last
    }
}

/// Asks again for what is missing of a response of which later packets have come (R1).
fn ask_again(
    cx: &RequesterContext<'_>,
    queue: &mut SendQueue,
    repair: Repair,
    buf: &mut [u8],
) -> Emit {
    let Cursor { index, packet } = queue.find(repair.first);
    let Some(wqe) = queue.wqes.get(index) else { return Emit::Idle };
    let Some(started) = wqe.started else { return Emit::Idle };
    let count = u32::try_from(repair.end.distance_from(repair.first)).unwrap_or(1);
    let load = Load::of(count, started.packet_cost);
    // The oldest may always go: without it there is no progress.
    if !repair.is_oldest && !cx.window.has_room(load) {
        return Emit::NoRoom(load);
    }
    match build_answered(cx, wqe, &started, packet, count, buf) {
        Ok(len) => {
            queue.asked_again(repair);
            Emit::Packet(len)
        }
        Err(status) => {
            queue.wqes[index].failed = Some(status);
            Emit::Idle
        }
    }
}

/// Measures the round trip with a packet that asks for an acknowledgement, unless it may be a copy.
fn note_probe(cx: &RequesterContext<'_>, queue: &mut SendQueue, psn: Psn) {
    if queue.probe.is_none() && !queue.is_resending() {
        queue.probe = Some((psn, cx.now));
    }
}

fn position(packet: u32, packets: u32) -> Position {
    match (packet == 0, packet + 1 == packets) {
        (true, true) => Position::Only,
        (true, false) => Position::First,
        (false, false) => Position::Middle,
        (false, true) => Position::Last,
    }
}

/// Writes the request of something that has a response.
fn build_answered(
    cx: &RequesterContext<'_>,
    wqe: &SendWqe,
    started: &Started,
    packet: u32,
    count: u32,
    buf: &mut [u8],
) -> Result<usize, WcStatus> {
    let psn = started.first_psn.plus(packet);
    let xrceth = wqe.srqn.map(|srqn| Xrceth { srqn, reserved: 0 });
    let begin =
        |opcode| Headers { xrceth, ..Headers::new(header(cx, opcode, psn, 0, true, false)) };
    let atomic = |opcode, RemoteAddr { addr: va, rkey }, swap_or_add, compare| Headers {
        atomic: Some(AtomicEth { va, rkey, swap_or_add, compare }),
        ..begin(opcode)
    };
    let headers = match wqe.op {
        SendOp::CompareSwap { remote, compare, swap } => {
            atomic(Opcode::RC_COMPARE_SWAP, remote, swap, compare)
        }
        SendOp::FetchAdd { remote, add } => atomic(Opcode::RC_FETCH_ADD, remote, add, 0),
        SendOp::Flush { remote, length, placement, level } => {
            let selectivity = match level {
                FlushLevel::Range => FlushSelectivity::Range,
                FlushLevel::Region => FlushSelectivity::MemoryRegion,
            };
            let feth = Some(Feth { placement, selectivity, reserved: 0 });
            let reth = Some(Reth { va: remote.addr, rkey: remote.rkey, len: length });
            Headers { feth, reth, ..begin(Opcode::RC_FLUSH) }
        }
        SendOp::Read { remote } => {
            return build_read(cx, wqe, remote, started, packet, count, buf);
        }
        SendOp::AtomicWrite { .. } => return build_data(cx, wqe, started, packet, true, buf),
        _ => return Err(WcStatus::LocQpOpErr),
    };
    headers.write(buf).map_err(|_| WcStatus::GeneralErr)
}

/// Writes a READ request for `count` packets from `packet` on (R1).
fn build_read(
    cx: &RequesterContext<'_>,
    wqe: &SendWqe,
    remote: RemoteAddr,
    started: &Started,
    packet: u32,
    count: u32,
    buf: &mut [u8],
) -> Result<usize, WcStatus> {
    // Both fit: no more than the length.
    let offset = (packet as usize * cx.mtu) as u32;
    let len = (count as usize * cx.mtu).min((wqe.length - offset) as usize) as u32;
    let psn = started.first_psn.plus(packet);
    let bth = header(cx, Opcode::RC_READ_REQUEST, psn, 0, true, false);
    let va = remote.addr.wrapping_add(offset.into());
    let reth = Reth { va, rkey: remote.rkey, len };
    write_headers(buf, &bth, wqe.srqn, Some(reth), None).ok_or(WcStatus::GeneralErr)
}

/// Length of the packet that is the whole of a SEND or WRITE; `None` for what has several packets,
/// or is something else.
fn whole_len(cx: &RequesterContext<'_>, wqe: &SendWqe) -> Option<usize> {
    let is_data = matches!(wqe.op, SendOp::Send { .. } | SendOp::Write { .. });
    if !is_data || wqe.length as usize > cx.mtu {
        return None;
    }
    let (_, reth, trailer) = data_headers(wqe, Position::Only);
    let headers = Bth::LEN
        + wqe.srqn.map_or(0, |_| Xrceth::LEN)
        + reth.map_or(0, |_| Reth::LEN)
        + trailer.map_or(0, |_| ImmDt::LEN);
    Some(headers + (wqe.length as usize).next_multiple_of(4))
}

/// Writes a SEND or WRITE packet; a local buffer that cannot be read fails the request (R8).
pub(super) fn build_data(
    cx: &RequesterContext<'_>,
    wqe: &SendWqe,
    started: &Started,
    packet: u32,
    ack_req: bool,
    buf: &mut [u8],
) -> Result<usize, WcStatus> {
    let offset = packet as usize * cx.mtu;
    write_data(cx, wqe, started, packet, ack_req, buf, |payload| match &wqe.data {
        WqeData::Inline(bytes) => {
            let end = offset + payload.len();
            payload.copy_from_slice(bytes.get(offset..end).ok_or(WcStatus::GeneralErr)?);
            Ok(())
        }
        WqeData::Sges(sges) => {
            gather(cx.memory, cx.pd, sges, offset as u64, payload).map_err(|fault| {
                tracing::debug!(target: "rxe::req", wr_id = wqe.wr_id, %fault, "cannot read");
                WcStatus::LocProtErr
            })
        }
    })
}

/// Writes a SEND or WRITE packet of which `fill` copies the payload.
fn write_data(
    cx: &RequesterContext<'_>,
    wqe: &SendWqe,
    started: &Started,
    packet: u32,
    ack_req: bool,
    buf: &mut [u8],
    fill: impl FnOnce(&mut [u8]) -> Result<(), WcStatus>,
) -> Result<usize, WcStatus> {
    let offset = packet as usize * cx.mtu;
    let payload_len = (wqe.length as usize - offset).min(cx.mtu);
    let pad = payload_len.wrapping_neg() & 3;
    let position = position(packet, started.packets);
    let (opcode, reth, trailer) = data_headers(wqe, position);
    // A solicited event is asked for by the last packet of a message that takes a receive.
    let takes_receive = trailer.is_some() || matches!(wqe.op, SendOp::Send { .. });
    let solicited = wqe.solicited && position.is_end() && takes_receive;
    let psn = started.first_psn.plus(packet);
    let bth = header(cx, opcode, psn, pad as u8, ack_req, solicited);
    let too_short = WcStatus::GeneralErr;
    let headers = write_headers(buf, &bth, wqe.srqn, reth, trailer).ok_or(too_short)?;
    let end = headers + payload_len;
    fill(buf.get_mut(headers..end).ok_or(too_short)?)?;
    // R59: the pad is covered by the iCRC, so it must be ours to define.
    buf.get_mut(end..end + pad).ok_or(too_short)?.fill(0);
    Ok(end + pad)
}

/// Writes what follows the BTH of a packet with a full payload, from `skip` of `span` on, and no
/// header of a message's ends.
///
/// It gives the packet's length, and its sum where that is known; `None` when it cannot be built.
#[inline]
fn write_middle(
    srqn: Option<u32>,
    mtu: usize,
    buf: &mut [u8],
    span: &Span<'_>,
    skip: usize,
) -> Option<(usize, Option<u32>)> {
    let Some(srqn) = srqn else {
        let end = Bth::LEN + mtu;
        return Some((end, span.read_summed(skip, buf.get_mut(..end)?).ok()?));
    };
    Xrceth { srqn, reserved: 0 }.write(buf.get_mut(Bth::LEN..)?).ok()?;
    let headers = Bth::LEN + Xrceth::LEN;
    let end = headers + mtu;
    span.read_at(skip, buf.get_mut(headers..end)?).ok()?;
    Some((end, None))
}

/// The last header of a message's last packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trailer {
    Imm(u32),
    Invalidate(RKey),
}

/// Opcode and extended headers of a SEND, WRITE or ATOMIC WRITE packet.
fn data_headers(wqe: &SendWqe, position: Position) -> (Opcode, Option<Reth>, Option<Trailer>) {
    let trailer = match wqe.op {
        SendOp::Send { imm } | SendOp::Write { imm, .. } if position.is_end() => {
            imm.map(Trailer::Imm)
        }
        SendOp::SendInvalidate { rkey } if position.is_end() => Some(Trailer::Invalidate(rkey)),
        _ => None,
    };
    match wqe.op {
        SendOp::Write { remote, .. } => {
            let opcode = match (position, trailer) {
                (Position::First, _) => Opcode::RC_WRITE_FIRST,
                (Position::Middle, _) => Opcode::RC_WRITE_MIDDLE,
                (Position::Last, None) => Opcode::RC_WRITE_LAST,
                (Position::Last, Some(_)) => Opcode::RC_WRITE_LAST_WITH_IMM,
                (Position::Only, None) => Opcode::RC_WRITE_ONLY,
                (Position::Only, Some(_)) => Opcode::RC_WRITE_ONLY_WITH_IMM,
            };
            let RemoteAddr { addr: va, rkey } = remote;
            let reth = position.is_start().then_some(Reth { va, rkey, len: wqe.length });
            (opcode, reth, trailer)
        }
        SendOp::AtomicWrite { remote } => {
            let reth = Reth { va: remote.addr, rkey: remote.rkey, len: wqe.length };
            (Opcode::RC_ATOMIC_WRITE, Some(reth), None)
        }
        // No other operation than SEND and WRITE comes here.
        _ => {
            let opcode = match (position, trailer) {
                (Position::First, _) => Opcode::RC_SEND_FIRST,
                (Position::Middle, _) => Opcode::RC_SEND_MIDDLE,
                (Position::Last, None) => Opcode::RC_SEND_LAST,
                (Position::Last, Some(Trailer::Imm(_))) => Opcode::RC_SEND_LAST_WITH_IMM,
                (Position::Last, Some(Trailer::Invalidate(_))) => Opcode::RC_SEND_LAST_WITH_INV,
                (Position::Only, None) => Opcode::RC_SEND_ONLY,
                (Position::Only, Some(Trailer::Imm(_))) => Opcode::RC_SEND_ONLY_WITH_IMM,
                (Position::Only, Some(Trailer::Invalidate(_))) => Opcode::RC_SEND_ONLY_WITH_INV,
            };
            (opcode, None, trailer)
        }
    }
}

fn header(
    cx: &RequesterContext<'_>,
    opcode: Opcode,
    psn: Psn,
    pad: u8,
    ack_req: bool,
    solicited: bool,
) -> Bth {
    // R17: all reserved bits are 0, as by default.
    Bth {
        opcode: opcode.in_service(cx.service),
        solicited,
        pad,
        pkey: PKey::DEFAULT,
        dest_qpn: cx.dest_qpn,
        ack_req,
        psn,
        ..Bth::default()
    }
}

/// Writes BTH and what follows it; `None` when the buffer is too short.
#[inline]
fn write_headers(
    buf: &mut [u8],
    bth: &Bth,
    srqn: Option<u32>,
    reth: Option<Reth>,
    trailer: Option<Trailer>,
) -> Option<usize> {
    bth.write(buf).ok()?;
    let mut len = Bth::LEN;
    if let Some(srqn) = srqn {
        Xrceth { srqn, reserved: 0 }.write(buf.get_mut(len..)?).ok()?;
        len += Xrceth::LEN;
    }
    if let Some(reth) = reth {
        reth.write(buf.get_mut(len..)?).ok()?;
        len += Reth::LEN;
    }
    match trailer {
        None => {}
        Some(Trailer::Imm(imm)) => {
            ImmDt(imm).write(buf.get_mut(len..)?).ok()?;
            len += ImmDt::LEN;
        }
        Some(Trailer::Invalidate(rkey)) => {
            Ieth(rkey).write(buf.get_mut(len..)?).ok()?;
            len += Ieth::LEN;
        }
    }
    Some(len)
}
