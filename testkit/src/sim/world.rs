//! The world at work: shards over a fabric, what they post, and time.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rxe_core::qp::{QpAttr, QpAttrMask, QpState};
use rxe_core::{Counter, Instant, QueuePair};
use rxe_net::memory::{Fabric, PortId};
use rxe_net::pcap::Capture;
use rxe_wire::Qpn;

use super::cells::Cells;
use super::check::Tag;
use super::connect::{self, Connection, Shared};
use super::dice::Dice;
use super::end::SimQp;
use super::memory::Memory;
use super::node::Node;
use super::plan::Action;
use super::supply::{Inlet, Supply};
use super::{Failure, Report};

/// By then everything must be done: faults stop long before.
const DEADLINE_NANOS: u64 = 60_000_000_000;
/// How long the world is watched after all is done: nothing more may happen.
const QUIET_NANOS: u64 = 2_000_000_000;
/// Steps that no run needs.
const STEPS_MAX: u64 = 20_000_000;
/// A program whose send queue is full tries again after so long.
const FULL_NANOS: u64 = 200_000;
/// By then all that was sent without acknowledgement has arrived, or is lost.
const SETTLE_NANOS: u64 = 60_000_000;

/// Everything, and the time.
pub(super) struct World {
    pub(super) fabric: Fabric,
    pub(super) nodes: Vec<Node>,
    pub(super) qps: Vec<SimQp>,
    pub(super) supplies: Vec<Supply>,
    pub(super) memories: Vec<Memory>,
    pub(super) cells: Vec<Cells>,
    pub(super) shared: Vec<Shared>,
    pub(super) connections: Vec<Connection>,
    /// The queue pair that has a number now.
    pub(super) by_qpn: HashMap<Qpn, usize>,
    /// Which request of which queue pair a message without acknowledgement is from, by where it
    /// comes to.
    pub(super) tags: HashMap<(usize, Tag), (usize, usize)>,
    pub(super) arrived: HashSet<(usize, usize)>,
    /// Events of queue pairs, by the value of their type.
    pub(super) told: HashSet<(usize, u32)>,
    /// Messages that came more than once.
    pub(super) repeats: u64,
    /// Queue pairs that must have got so many messages by now.
    pub(super) owed: Vec<(usize, usize)>,
    /// The network neither reorders nor doubles.
    pub(super) is_orderly: bool,
    pub(super) dice: Dice,
    pub(super) now: Instant,
    /// When a cable is pulled out, and plugged in again; the last one first.
    pub(super) cables: Vec<(Instant, PortId, bool)>,
    blackouts: u64,
    pub(super) bytes: u64,
    pub(super) atomics: u64,
    pub(super) invalidations: u64,
    pub(super) flushes: u64,
    failed: u64,
}

impl World {
    pub(super) fn new(fabric: Fabric, seed: u64) -> Self {
        Self {
            fabric,
            nodes: Vec::new(),
            qps: Vec::new(),
            supplies: Vec::new(),
            memories: Vec::new(),
            cells: Vec::new(),
            shared: Vec::new(),
            connections: Vec::new(),
            by_qpn: HashMap::new(),
            tags: HashMap::new(),
            arrived: HashSet::new(),
            told: HashSet::new(),
            repeats: 0,
            owed: Vec::new(),
            is_orderly: true,
            dice: Dice::new(seed),
            now: Instant::ZERO,
            cables: Vec::new(),
            blackouts: 0,
            bytes: 0,
            atomics: 0,
            invalidations: 0,
            flushes: 0,
            failed: 0,
        }
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
        let result = self.run_all();
        result.map_err(|what| Failure { at_nanos: self.now.as_nanos(), what })
    }

    fn run_all(&mut self) -> Result<(), String> {
        let mut end = Instant::from_nanos(DEADLINE_NANOS);
        let mut done = false;
        for _ in 0..STEPS_MAX {
            self.step()?;
            if !done && self.connections.iter().all(Connection::is_over) {
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
        self.end_queue_pairs()?;
        for index in 0..self.supplies.len() {
            self.post_receives(index)?;
        }
        for index in 0..self.qps.len() {
            self.post_requests(index)?;
        }
        for node in &mut self.nodes {
            if node.next_turn <= self.now && node.take_turn(self.now)? && node.pace_nanos > 0 {
                let pause = 1 + self.dice.below(node.pace_nanos);
                node.next_turn = self.now.plus_nanos(pause);
            }
        }
        self.poll()?;
        connect::go_on(self)
    }

    fn next_time(&self) -> Option<Instant> {
        let nodes = self.nodes.iter().filter_map(|node| node.next_time(self.now));
        let live = || self.qps.iter().filter(|qp| !qp.is_over);
        let sends = live().filter_map(|qp| qp.posted.next_time(qp.end.requests.len()));
        let ends = live().filter_map(|qp| qp.ends_at);
        let receives = self.supplies.iter().filter_map(Supply::next_time);
        let connections = self.connections.iter().filter_map(|connection| connection.next_at);
        let fabric = self.fabric.next_event_time();
        let cable = self.cables.last().map(|(at, _, _)| *at);
        let posts = sends.chain(receives).chain(ends).chain(connections);
        nodes.chain(posts).chain(fabric).chain(cable).min()
    }

    /// Posts the receives that are due and have room.
    fn post_receives(&mut self, index: usize) -> Result<(), String> {
        let supply = &mut self.supplies[index];
        while supply.next_time().is_some_and(|due| due <= self.now) {
            match supply.post(index, &self.memories[supply.memory])? {
                None => supply.posted.blocked = true,
                Some(kick) => {
                    if let (true, Inlet::Own(qp)) = (kick, &supply.inlet) {
                        self.nodes[supply.node].shard.kick(self.now, qp.qpn());
                    }
                    let next = supply.posted.count + 1;
                    let pause = supply.receive(next).pause_nanos;
                    supply.posted.advance(self.now, Some(pause));
                }
            }
        }
        Ok(())
    }

    /// Posts the requests that are due and have room.
    fn post_requests(&mut self, index: usize) -> Result<(), String> {
        let now = self.now;
        let is_due = |qp: &SimQp| {
            !qp.is_over && qp.posted.next_time(qp.end.requests.len()).is_some_and(|due| due <= now)
        };
        while is_due(&self.qps[index]) {
            if self.must_wait(index) {
                self.qps[index].posted.due = now.plus_nanos(FULL_NANOS);
                break;
            }
            let peer = &self.qps[self.qps[index].peer];
            let (peer_memory, peer_cells) = (peer.memory, peer.cells);
            let cells = &self.cells[self.nodes[peer.node].cells];
            let at = self.qps[index].peer;
            // Lent for this call: both ends are in one list.
            let peer_keys =
                if at == index { Vec::new() } else { std::mem::take(&mut self.qps[at].keys) };
            let qp = &mut self.qps[index];
            let (own, peer) = (&self.memories[qp.memory], &self.memories[peer_memory]);
            let posted = qp.post_send(own, peer, peer_cells, &peer_keys, cells);
            if at != index {
                self.qps[at].keys = peer_keys;
            }
            let qp = &mut self.qps[index];
            if !posted? {
                // What frees room may complete without being told of.
                qp.posted.due = now.plus_nanos(FULL_NANOS);
                break;
            }
            self.nodes[qp.node].shard.kick(now, qp.qp.qpn());
            let next = qp.end.requests.get(qp.posted.count + 1);
            qp.posted.advance(now, next.map(|next| next.pause_nanos));
            self.give_up_if_due(index);
        }
        Ok(())
    }

    /// Whether the next request is about a key that the peer has yet to make, or to be done with.
    fn must_wait(&self, index: usize) -> bool {
        let qp = &self.qps[index];
        let peer = &self.qps[qp.peer];
        if qp.qp.state() == QpState::Err {
            return false;
        }
        let is_peer_gone = peer.qp.state() == QpState::Err;
        let request = &qp.end.requests[qp.posted.count];
        match request.action {
            // What a peer sent before it failed may still be under way, though it was flushed there:
            // this end fails as well.
            Action::LocalInvalidate(key) => qp.end.keys[key]
                .last_use
                .is_some_and(|last| is_peer_gone || peer.sends_done <= last),
            _ if is_peer_gone => false,
            Action::SendInvalidate(key) => !peer.keys[key].is_known,
            _ => request.via.is_some_and(|key| !peer.keys[key].is_known),
        }
    }

    /// The program gives up a queue pair in the middle, if that was planned.
    fn give_up_if_due(&mut self, index: usize) {
        let qp = &mut self.qps[index];
        if qp.end.gives_up_after == Some(qp.posted.count) {
            qp.ends_at = Some(self.now);
        }
    }

    fn poll(&mut self) -> Result<(), String> {
        let mut all = Vec::new();
        for node in &self.nodes {
            for cq in &node.cqs {
                cq.poll(usize::MAX, &mut all);
            }
        }
        if all.is_empty() {
            return Ok(());
        }
        self.judge_events()?;
        for wc in &all {
            self.judge(wc)?;
        }
        self.judge_owed()?;
        // There is room in queues again.
        for supply in &mut self.supplies {
            supply.posted.blocked = false;
        }
        Ok(())
    }

    /// A queue pair has failed: the program ends it and its peer after a while, as a connection
    /// manager would.
    pub(super) fn note_failed(&mut self, index: usize) {
        let qp = &self.qps[index];
        if qp.sends_failed || qp.receives_failed {
            return;
        }
        self.failed += u64::from(qp.is_reliable());
        let peer = qp.peer;
        self.end_soon(index);
        self.end_soon(peer);
    }

    /// The program will move a queue pair to the error state.
    fn end_soon(&mut self, index: usize) {
        let pause = self.dice.pick(&[0, 1_000_000, 20_000_000, 3_000_000_000]);
        let qp = &mut self.qps[index];
        if !qp.is_over && qp.qp.state() != QpState::Err {
            let at = self.now.plus_nanos(pause);
            qp.ends_at.get_or_insert(at);
        }
    }

    /// All that a queue pair without acknowledgements had to send is under way.
    pub(super) fn settle(&mut self, index: usize) {
        let at = self.now.plus_nanos(SETTLE_NANOS);
        self.qps[index].ends_at.get_or_insert(at);
    }

    /// Moves queue pairs to the error state when it is time.
    fn end_queue_pairs(&mut self) -> Result<(), String> {
        for index in 0..self.qps.len() {
            let qp = &mut self.qps[index];
            if qp.is_over || qp.ends_at.is_none_or(|at| at > self.now) {
                continue;
            }
            qp.ends_at = None;
            let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
            let shard = &mut self.nodes[qp.node].shard;
            shard
                .modify_qp(self.now, qp.qp.qpn(), &attr, QpAttrMask::STATE)
                .map_err(|error| format!("to the error state: {error}"))?;
            let peer = qp.peer;
            self.end_soon(peer);
        }
        Ok(())
    }

    /// What is not done, for messages.
    fn open(&self) -> String {
        let mut text = String::new();
        for (index, qp) in self.qps.iter().enumerate().filter(|(_, qp)| !qp.is_over) {
            let supply = &self.supplies[qp.supply];
            text += &format!(
                "QP {index} ({:?}, {:?}) has done {} of {} requests ({} posted), \
                 got {} of {} messages, and used {} of {} receives ({} posted); ",
                qp.qp.qp_type(),
                qp.qp.state(),
                qp.sends_done,
                qp.end.requests.len(),
                qp.posted.count,
                qp.messages_done,
                qp.end.messages.len(),
                supply.done,
                supply.receives.len(),
                supply.posted.count,
            );
        }
        text
    }

    pub(super) fn report(&self) -> Report {
        let requests = self.qps.iter().map(|qp| qp.end.requests.len() as u64).sum();
        let mut report = Report {
            runs: 1,
            requests,
            queue_pairs: self.qps.len() as u64,
            bytes: self.bytes,
            nanos: self.now.as_nanos(),
            blackouts: self.blackouts,
            atomics: self.atomics,
            invalidations: self.invalidations,
            arrivals: self.arrived.len() as u64,
            failed: self.failed,
            flushes: self.flushes,
            ..Report::default()
        };
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
                let flaw = request.flaw.map_or_else(String::new, |flaw| format!(" ({flaw:?})"));
                text += &format!("  {number}: {action:?}, {len} bytes{flags}{flaw}\n");
            }
        }
        text
    }
}

fn node_attr(node: &Node, qp: &QueuePair) -> String {
    node.shard.query_qp(qp.qpn()).map_or_else(String::new, |attr| {
        format!(
            "{:?}, MTU {}, PSNs {} and {}, READs {} and {}, timeout {}, RNR timer {}, {:?}",
            qp.qp_type(),
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
