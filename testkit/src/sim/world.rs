//! The world at work: shards over a fabric, time, and the judge.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gid_table::Gid;
use rxe_core::mem::{DmaBuf, MrKeys};
use rxe_core::qp::QpState;
use rxe_core::wc::{WcFlags, WcOpcode, WcStatus, WorkCompletion};
use rxe_core::wq::{
    PostRecvError, PostSendError, RecvWr, RemoteAddr, SendData, SendFlags, SendOp, SendWr, Sge,
};
use rxe_core::{AsyncEvent, CompletionQueue, Counter, Instant, QueuePair, Shard};
use rxe_net::batch::TxBatch;
use rxe_net::link::Link;
use rxe_net::memory::{Fabric, MemoryLink, PortId};
use rxe_net::pcap::Capture;
use rxe_wire::Qpn;

use super::dice::Dice;
use super::plan::{Action, End, Place};
use super::{Failure, Report};

/// By then everything must be done: faults stop long before.
const DEADLINE_NANOS: u64 = 60_000_000_000;
/// How long the world is watched after all is done: nothing more may happen.
const QUIET_NANOS: u64 = 2_000_000_000;
/// Steps that no run needs.
const STEPS_MAX: u64 = 20_000_000;

/// A shard of a host with its link.
pub(super) struct Node {
    pub(super) shard: Shard,
    pub(super) gid: Gid,
    pub(super) cqs: Vec<Arc<CompletionQueue>>,
    pub(super) port: PortId,
    link: MemoryLink,
    batch: TxBatch,
    /// Its thread comes around this often at most, so that packets gather meanwhile.
    pace_nanos: u64,
    next_turn: Instant,
}

impl Node {
    pub(super) fn new(
        shard: Shard,
        link: MemoryLink,
        port: PortId,
        gid: Gid,
        pace_nanos: u64,
    ) -> Self {
        let (batch, cqs, next_turn) = (TxBatch::new(), Vec::new(), Instant::ZERO);
        Self { shard, gid, cqs, link, port, batch, pace_nanos, next_turn }
    }

    /// Receives, handles timers and sends; returns whether there was anything to do.
    fn take_turn(&mut self, now: Instant) -> Result<bool, String> {
        let Self { shard, link, batch, .. } = self;
        let mut busy = false;
        loop {
            let received = link.receive(now, &mut |path, bytes| {
                shard.handle_packet(now, path, bytes);
            });
            match received {
                Ok(0) => break,
                Ok(_) => busy = true,
                Err(error) => return Err(format!("receive: {error}")),
            }
        }
        while let Some(hint) = link.poll_unreachable() {
            shard.handle_unreachable(now, &hint);
        }
        if shard.poll_timeout().is_some_and(|at| at <= now) {
            shard.handle_timeout(now);
        }
        loop {
            while let Some(room) = batch.room() {
                let Some(transmit) = shard.poll_transmit(now, room) else { break };
                batch.commit(transmit);
            }
            if batch.is_empty() {
                return Ok(busy);
            }
            busy = true;
            link.transmit(now, batch);
        }
    }

    /// When it has something to do by itself.
    fn next_time(&self, now: Instant) -> Option<Instant> {
        let paced = (self.next_turn > now).then_some(self.next_turn);
        let timer = self.shard.poll_timeout().map(|at| at.max(self.next_turn));
        [paced, timer].into_iter().flatten().min()
    }
}

/// One end of a connection, and how far its plan has come.
pub(super) struct SimQp {
    pub(super) node: usize,
    pub(super) qp: Arc<QueuePair>,
    peer: usize,
    buf: Arc<DmaBuf>,
    keys: MrKeys,
    iova: u64,
    end: End,
    /// Requests and receives that have been posted, and when the next one is due.
    posted: Progress,
    received: Progress,
    /// Requests and receives that have completed.
    sends_done: usize,
    receives_done: usize,
}

#[derive(Clone, Copy, Default)]
struct Progress {
    count: usize,
    due: Instant,
    /// The queue is full: a completion makes room, not time.
    blocked: bool,
}

impl Progress {
    fn next_time(&self, of: usize) -> Option<Instant> {
        (self.count < of && !self.blocked).then_some(self.due)
    }
}

impl SimQp {
    pub(super) fn new(
        node: usize,
        peer: usize,
        qp: Arc<QueuePair>,
        buf: Arc<DmaBuf>,
        keys: MrKeys,
        iova: u64,
        end: End,
    ) -> Self {
        let (posted, received) = (Progress::default(), Progress::default());
        let (sends_done, receives_done) = (0, 0);
        Self { node, qp, peer, buf, keys, iova, end, posted, received, sends_done, receives_done }
    }

    fn is_done(&self) -> bool {
        self.sends_done == self.end.requests.len() && self.receives_done == self.end.receives.len()
    }

    fn sges(&self, pieces: &[Place]) -> Vec<Sge> {
        let sge = |place: &Place| Sge {
            addr: self.iova.wrapping_add(place.offset as u64),
            // Fits: buffers here are of megabytes at most.
            length: place.len as u32,
            lkey: self.keys.lkey,
        };
        pieces.iter().map(sge).collect()
    }

    /// The first bytes that lie in the pieces now.
    fn bytes(&self, pieces: &[Place], len: usize) -> Result<Vec<u8>, String> {
        let mut all = Vec::new();
        for piece in pieces {
            let start = all.len();
            all.resize(start + piece.len, 0);
            self.buf.read_at(piece.offset, &mut all[start..]).map_err(|fault| fault.to_string())?;
        }
        all.truncate(len);
        Ok(all)
    }

    /// Posts the next request, if there is room for it.
    fn post_send(&mut self, peer: RemoteAddr) -> Result<bool, String> {
        let request = &self.end.requests[self.posted.count];
        let remote =
            |offset: usize| RemoteAddr { addr: peer.addr.wrapping_add(offset as u64), ..peer };
        let imm = request.imm;
        let op = match request.action {
            Action::Send => SendOp::Send { imm },
            Action::Write(offset) => SendOp::Write { remote: remote(offset), imm },
            Action::Read(offset) => SendOp::Read { remote: remote(offset) },
        };
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, request.signaled);
        flags.set(SendFlags::FENCE, request.fence);
        flags.set(SendFlags::SOLICITED, request.solicited);
        let sges = self.sges(&request.pieces);
        let data =
            if request.inline { SendData::Inline(&request.data) } else { SendData::Sges(&sges) };
        let wr = SendWr { wr_id: self.posted.count as u64, op, flags, data, srq_number: None };
        match self.qp.post_send(&wr) {
            Ok(()) => Ok(true),
            Err(PostSendError::Full { .. }) => Ok(false),
            Err(error) => Err(format!("post_send: {error}")),
        }
    }

    fn post_recv(&mut self) -> Result<bool, String> {
        let sges = self.sges(&self.end.receives[self.received.count].pieces);
        match self.qp.post_recv(RecvWr { wr_id: self.received.count as u64, sges: &sges }) {
            Ok(_) => Ok(true),
            Err(PostRecvError::Full { .. }) => Ok(false),
            Err(error) => Err(format!("post_recv: {error}")),
        }
    }
}

/// Everything, and the time.
pub(super) struct World {
    pub(super) fabric: Fabric,
    pub(super) nodes: Vec<Node>,
    pub(super) qps: Vec<SimQp>,
    by_qpn: HashMap<Qpn, usize>,
    /// When a cable is pulled out, and plugged in again; the last one first.
    pub(super) cables: Vec<(Instant, PortId, bool)>,
    blackouts: u64,
    dice: Dice,
    now: Instant,
    bytes: u64,
}

impl World {
    pub(super) fn new(fabric: Fabric, seed: u64) -> Self {
        let (nodes, qps, by_qpn) = (Vec::new(), Vec::new(), HashMap::new());
        let (dice, now) = (Dice::new(seed), Instant::from_nanos(1));
        Self { fabric, nodes, qps, by_qpn, cables: Vec::new(), blackouts: 0, dice, now, bytes: 0 }
    }

    /// Writes all frames to a file.
    pub(super) fn capture(&self, path: &Path) -> Result<(), Failure> {
        let capture = Capture::create(path, Duration::ZERO)
            .map_err(|error| Failure { at_nanos: 0, what: error.to_string() })?;
        self.fabric.set_capture(Some(Arc::new(capture)));
        Ok(())
    }

    /// Runs until all is done, then for a while longer, and judges.
    pub(super) fn run(&mut self) -> Result<(), Failure> {
        self.by_qpn = self.qps.iter().enumerate().map(|(i, qp)| (qp.qp.qpn(), i)).collect();
        let result = self.run_all();
        result.map_err(|what| Failure { at_nanos: self.now.as_nanos(), what })
    }

    fn run_all(&mut self) -> Result<(), String> {
        let mut end = Instant::from_nanos(DEADLINE_NANOS);
        let mut done = false;
        for _ in 0..STEPS_MAX {
            self.step()?;
            if !done && self.qps.iter().all(SimQp::is_done) {
                done = true;
                end = self.now.plus_nanos(QUIET_NANOS);
            }
            match self.next_time() {
                Some(at) if at <= end => self.now = self.now.max(at),
                _ if done => return self.judge_end(),
                Some(_) => return Err(format!("not done by the deadline: {}", self.open())),
                None => return Err(format!("nothing will ever happen: {}", self.open())),
            }
            self.fabric.advance(self.now);
        }
        Err(format!("{STEPS_MAX} steps, and no end: {}", self.open()))
    }

    fn step(&mut self) -> Result<(), String> {
        while let Some((_, port, up)) = self.cables.pop_if(|(at, _, _)| *at <= self.now) {
            self.fabric.set_up(port, up);
            self.blackouts += u64::from(!up);
        }
        for index in 0..self.qps.len() {
            self.post(index)?;
        }
        for node in &mut self.nodes {
            if node.next_turn <= self.now && node.take_turn(self.now)? && node.pace_nanos > 0 {
                let pause = 1 + self.dice.below(node.pace_nanos);
                node.next_turn = self.now.plus_nanos(pause);
            }
        }
        self.poll()
    }

    fn next_time(&self) -> Option<Instant> {
        let nodes = self.nodes.iter().filter_map(|node| node.next_time(self.now));
        let posts = self.qps.iter().flat_map(|qp| {
            let sends = qp.posted.next_time(qp.end.requests.len());
            [sends, qp.received.next_time(qp.end.receives.len())]
        });
        let fabric = self.fabric.next_event_time();
        let cable = self.cables.last().map(|(at, _, _)| *at);
        nodes.chain(posts.flatten()).chain(fabric).chain(cable).min()
    }

    /// Posts what is due and has room.
    fn post(&mut self, index: usize) -> Result<(), String> {
        let (now, peer) = (self.now, self.qps[index].peer);
        let peer = RemoteAddr { addr: self.qps[peer].iova, rkey: self.qps[peer].keys.rkey };
        let qp = &mut self.qps[index];
        while qp.received.count < qp.end.receives.len() && qp.received.due <= now {
            qp.received.blocked = !qp.post_recv()?;
            if qp.received.blocked {
                break;
            }
            qp.received.count += 1;
            let next = qp.end.receives.get(qp.received.count);
            qp.received.due = now.plus_nanos(next.map_or(0, |next| next.pause_nanos));
        }
        while qp.posted.count < qp.end.requests.len() && qp.posted.due <= now {
            qp.posted.blocked = !qp.post_send(peer)?;
            if qp.posted.blocked {
                break;
            }
            self.nodes[qp.node].shard.kick(now, qp.qp.qpn());
            qp.posted.count += 1;
            let next = qp.end.requests.get(qp.posted.count);
            qp.posted.due = now.plus_nanos(next.map_or(0, |next| next.pause_nanos));
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<(), String> {
        let mut all = Vec::new();
        for node in &self.nodes {
            for cq in &node.cqs {
                cq.poll(usize::MAX, &mut all);
            }
        }
        for wc in &all {
            self.judge(wc)?;
        }
        if !all.is_empty() {
            // There is room in queues again.
            for qp in &mut self.qps {
                (qp.posted.blocked, qp.received.blocked) = (false, false);
            }
        }
        Ok(())
    }

    /// Judges one completion.
    fn judge(&mut self, wc: &WorkCompletion) -> Result<(), String> {
        let index = *self.by_qpn.get(&wc.qpn).ok_or_else(|| format!("whose is {wc:?}?"))?;
        if wc.status != WcStatus::Success {
            return Err(format!("QP {index}: {wc:?}"));
        }
        if matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm) {
            self.judge_receive(index, wc)
        } else {
            self.judge_send(index, wc)
        }
        .map_err(|what| format!("QP {index}, {wc:?}: {what}"))
    }

    fn judge_send(&mut self, index: usize, wc: &WorkCompletion) -> Result<(), String> {
        let qp = &self.qps[index];
        // Unsignaled ones before it are done as well.
        let expected = (qp.sends_done..qp.posted.count).find(|&i| qp.end.requests[i].signaled);
        let expected = expected.ok_or("nothing signaled was outstanding")?;
        if wc.wr_id != expected as u64 {
            return Err(format!("request {expected} was to complete next"));
        }
        let request = &qp.end.requests[expected];
        let opcode = match request.action {
            Action::Send => WcOpcode::Send,
            Action::Write(_) => WcOpcode::RdmaWrite,
            Action::Read(_) => WcOpcode::RdmaRead,
        };
        if wc.opcode != opcode || wc.byte_len as usize != request.data.len() {
            return Err(format!("{opcode:?} of {} bytes was posted", request.data.len()));
        }
        let (at, place, kind) = match request.action {
            Action::Send => (qp, None, ""),
            Action::Write(offset) => {
                let place = Place { offset, len: request.data.len() };
                (&self.qps[qp.peer], request.is_alone.then_some(vec![place]), "written")
            }
            Action::Read(_) => (qp, Some(request.pieces.clone()), "read"),
        };
        if let Some(place) = place
            && at.bytes(&place, request.data.len())? != request.data
        {
            return Err(format!("the bytes {kind} are not there when it completes"));
        }
        let done = &qp.end.requests[qp.sends_done..=expected];
        self.bytes += done.iter().map(|request| request.data.len() as u64).sum::<u64>();
        self.qps[index].sends_done = expected + 1;
        Ok(())
    }

    fn judge_receive(&mut self, index: usize, wc: &WorkCompletion) -> Result<(), String> {
        let qp = &self.qps[index];
        let expected = qp.receives_done;
        let receive = qp.end.receives.get(expected).ok_or("there is no receive any more")?;
        if wc.wr_id != expected as u64 {
            return Err(format!("receive {expected} was to complete next"));
        }
        let opcode =
            if receive.data.is_some() { WcOpcode::Recv } else { WcOpcode::RecvRdmaWithImm };
        let flags = if receive.imm.is_some() { WcFlags::WITH_IMM } else { WcFlags::empty() };
        let imm = receive.imm.unwrap_or(0);
        let wanted = (opcode, receive.byte_len, imm, flags);
        if (wc.opcode, wc.byte_len, wc.imm, wc.flags) != wanted {
            return Err(format!("{wanted:?} was sent"));
        }
        if let Some(data) = &receive.data
            && qp.bytes(&receive.pieces, data.len())? != *data
        {
            return Err("the message is not there when it completes".to_owned());
        }
        self.qps[index].receives_done = expected + 1;
        Ok(())
    }

    /// Judges what is left when all is done.
    fn judge_end(&self) -> Result<(), String> {
        for (index, qp) in self.qps.iter().enumerate() {
            let whole = [Place { offset: 0, len: qp.end.after.len() }];
            let now = qp.bytes(&whole, qp.end.after.len())?;
            if let Some(at) = (0..now.len()).find(|&at| now[at] != qp.end.after[at]) {
                return Err(format!("QP {index}: the byte at offset {at} is wrong at the end"));
            }
            if qp.qp.state() != QpState::Rts {
                return Err(format!("QP {index} ended in state {:?}", qp.qp.state()));
            }
        }
        for node in &self.nodes {
            while let Some(event) = node.shard.device().events().take() {
                if !matches!(event, AsyncEvent::CommEst(_)) {
                    return Err(format!("an event: {event}"));
                }
            }
        }
        Ok(())
    }

    /// What is not done, for messages.
    fn open(&self) -> String {
        let mut text = String::new();
        for (index, qp) in self.qps.iter().enumerate().filter(|(_, qp)| !qp.is_done()) {
            text += &format!(
                "QP {index} has done {} of {} requests ({} posted), \
                 {} of {} receives ({} posted); ",
                qp.sends_done,
                qp.end.requests.len(),
                qp.posted.count,
                qp.receives_done,
                qp.end.receives.len(),
                qp.received.count
            );
        }
        text
    }

    pub(super) fn report(&self) -> Report {
        let requests = self.qps.iter().map(|qp| qp.end.requests.len() as u64).sum();
        let (bytes, nanos, blackouts) = (self.bytes, self.now.as_nanos(), self.blackouts);
        let mut report = Report { runs: 1, requests, bytes, nanos, blackouts, ..Report::default() };
        let mut ports: Vec<PortId> = self.nodes.iter().map(|node| node.port).collect();
        ports.dedup();
        for node in &self.nodes {
            report.faults += node.link.fault_stats().total();
            for &counter in Counter::ALL {
                report.count(counter, node.shard.counters().get(counter));
            }
        }
        let counters = ports.into_iter().filter_map(|port| self.fabric.port_counters(port));
        report.overflows = counters.map(|counters| counters.receive_overflow).sum();
        report
    }

    /// What there is, in words.
    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let pace = node.pace_nanos;
            text += &format!("shard {index}: {} {}, pace {pace} ns\n", node.gid, node.shard.slot());
        }
        for (index, qp) in self.qps.iter().enumerate() {
            let attr = node_attr(&self.nodes[qp.node], &qp.qp);
            text += &format!("QP {index} ({}) of shard {}: {attr}\n", qp.qp.qpn(), qp.node);
            for (number, request) in qp.end.requests.iter().enumerate() {
                let (action, len) = (request.action, request.data.len());
                let flags = [
                    (request.imm.is_some(), " imm"),
                    (request.inline, " inline"),
                    (request.signaled, " signaled"),
                    (request.fence, " fence"),
                ];
                let flags: String =
                    flags.iter().filter(|(set, _)| *set).map(|(_, name)| *name).collect();
                text += &format!("  {number}: {action:?}, {len} bytes{flags}\n");
            }
        }
        text
    }
}

fn node_attr(node: &Node, qp: &QueuePair) -> String {
    node.shard.query_qp(qp.qpn()).map_or_else(String::new, |attr| {
        format!(
            "MTU {}, PSNs {} and {}, READs {} and {}, timeout {}, RNR timer {}, {:?}",
            attr.path_mtu.bytes(),
            attr.sq_psn,
            attr.rq_psn,
            attr.max_rd_atomic,
            attr.max_dest_rd_atomic,
            attr.timeout,
            attr.min_rnr_timer,
            qp.caps()
        )
    })
}
