//! Makes queue pairs and what they are to do; ends them, and makes them again.

use std::sync::Arc;

use rxe_core::mem::AccessFlags;
use rxe_core::pd::PdId;
use rxe_core::qp::{
    AddressVector, Mtu, QpAttr, QpAttrMask, QpCaps, QpInit, QpState, QpType, steps_to_rts,
};
use rxe_core::srq::{SrqAttr, SrqInit, XrcSrq};
use rxe_core::{AsyncEvent, CompletionQueue, Instant, QueuePair, XrcDomain};
use rxe_wire::{Psn, QKey};

use super::check::Tag;
use super::dice::Dice;
use super::end::{SimQp, sends};
use super::keys::Key;
use super::memory::{Layout, Memory};
use super::plan::{self, Action, End, Style};
use super::supply::{Inlet, Supply};
use super::world::World;

/// Completion queues hold all that a run can bring.
const CQ_ENTRIES: u32 = 8192;
/// Nothing of a connection is in the network any more after so long.
const FORGOTTEN_NANOS: u64 = 300_000_000;
/// The longest message where receives are shared.
const SHARED_LONGEST: usize = 6000;
const QKEY: u32 = 0x1234_5678;

/// Queue pairs that belong together, and when they are made again.
pub(super) struct Connection {
    dice: Dice,
    service: QpType,
    nodes: Vec<usize>,
    /// The queue pairs that there are now.
    ends: Vec<usize>,
    lives_left: u64,
    /// When the next ones are made.
    pub(super) next_at: Option<Instant>,
    /// Their queue pairs are taken back to RESET, not destroyed.
    keeps_queue_pairs: bool,
    is_over: bool,
}

impl Connection {
    /// Draws one between these shards.
    pub(super) fn new(dice: &mut Dice, service: QpType, nodes: Vec<usize>) -> Self {
        let lives_left = if dice.once_in(2) { 1 } else { dice.range(1, 4) };
        let (ends, next_at) = (Vec::new(), Some(Instant::ZERO));
        let keeps_queue_pairs = service != QpType::Ud && dice.once_in(2);
        let dice = Dice::new(dice.word());
        let is_over = false;
        Self { dice, service, nodes, ends, lives_left, next_at, keeps_queue_pairs, is_over }
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }
}

/// Makes what is due, and ends what is done.
pub(super) fn go_on(world: &mut World) -> Result<(), String> {
    for index in 0..world.connections.len() {
        if world.connections[index].next_at.is_none() {
            end_if_done(world, index)?;
        }
        if world.connections[index].next_at.is_some_and(|at| at <= world.now) {
            begin(world, index)?;
        }
    }
    Ok(())
}

/// Begins the next life of a connection.
fn begin(world: &mut World, index: usize) -> Result<(), String> {
    let connection = &mut world.connections[index];
    connection.next_at = None;
    connection.lives_left -= 1;
    let mut dice = connection.dice.clone();
    let (service, nodes) = (connection.service, connection.nodes.clone());
    let old: Vec<_> = connection.ends.iter().map(|&end| world.qps[end].qp.clone()).collect();
    let before = world.qps.len();
    match service {
        QpType::Ud => datagrams(&mut dice, world, &nodes)?,
        _ => connect(&mut dice, world, service, [nodes[0], nodes[1]], &old)?,
    }
    let connection = &mut world.connections[index];
    connection.dice = dice;
    connection.ends = (before..world.qps.len()).collect();
    Ok(())
}

fn is_done(world: &World, index: usize) -> bool {
    let qp = &world.qps[index];
    let supply = &world.supplies[qp.supply];
    let receives_done = supply.is_shared() || supply.is_done();
    let is_ended = qp.ends_at.is_none() && qp.qp.state() == QpState::Err;
    if qp.may_fail {
        return qp.are_sends_done() && receives_done && is_ended;
    }
    qp.are_sends_done() && qp.messages_done == qp.end.messages.len() && receives_done
}

/// Ends a life when all is done: its memory is closed, its queue pairs go.
fn end_if_done(world: &mut World, index: usize) -> Result<(), String> {
    let ends = world.connections[index].ends.clone();
    if ends.iter().any(|&end| world.qps[end].is_over) {
        return Ok(());
    }
    let is_unreliable = ends.iter().any(|&end| !world.qps[end].is_reliable());
    if is_unreliable && ends.iter().all(|&end| world.qps[end].are_sends_done()) {
        let is_alive = |end: &usize| world.qps[*end].qp.state() != QpState::Err;
        for end in ends.iter().copied().filter(is_alive).collect::<Vec<_>>() {
            world.settle(end);
        }
    }
    if !ends.iter().all(|&end| is_done(world, end)) {
        return Ok(());
    }
    world.judge_events()?;
    let connection = &mut world.connections[index];
    let is_last = connection.lives_left == 0;
    connection.is_over = is_last;
    let keeps = connection.keeps_queue_pairs;
    if !is_last {
        let pause = connection.dice.below(20_000_000);
        let pause = pause + if keeps { FORGOTTEN_NANOS } else { 0 };
        connection.next_at = Some(world.now.plus_nanos(pause));
    }
    for &end in &ends {
        judge_at_end(world, end)?;
        let (node, qpn) = (world.qps[end].node, world.qps[end].qp.qpn());
        let shard = &mut world.nodes[node].shard;
        world.qps[end].is_over = true;
        for key in &world.qps[end].keys {
            key.close()?;
        }
        let memory = world.qps[end].memory;
        world.memories[memory].close()?;
        if is_last {
            continue;
        }
        if keeps {
            let attr = QpAttr::default();
            shard
                .modify_qp(world.now, qpn, &attr, QpAttrMask::STATE)
                .map_err(|error| format!("to RESET: {error}"))?;
        } else {
            shard.destroy_qp(qpn).map_err(|error| format!("destroy: {error}"))?;
            world.by_qpn.remove(&qpn);
        }
    }
    if !keeps && !is_last {
        world.connections[index].ends.clear();
    }
    Ok(())
}

/// Judges what must be so when all is done.
fn judge_at_end(world: &World, index: usize) -> Result<(), String> {
    let qp = &world.qps[index];
    let is_in_error = qp.qp.state() == QpState::Err;
    let last = AsyncEvent::QpLastWqeReached(qp.qp.qpn()).event_type();
    // R46.
    if is_in_error && qp.qp.init().srq.is_some() && !world.told.contains(&(index, last)) {
        return Err(format!("QP {index} has not told that it takes no more receives"));
    }
    // After a failure nobody knows which windows are bound.
    if !qp.may_fail && qp.keys.iter().any(Key::is_bound) {
        world.memories[qp.memory].judge_bound()?;
    }
    Ok(())
}

/// A failed step of setting up, in words.
fn failure(what: impl std::fmt::Display) -> String {
    format!("cannot be set up: {what}")
}

/// Connects two queue pairs, and plans what they do.
fn connect(
    dice: &mut Dice,
    world: &mut World,
    service: QpType,
    nodes: [usize; 2],
    old: &[Arc<QueuePair>],
) -> Result<(), String> {
    let mtu = dice.pick(&Mtu::ALL);
    let types = match service {
        QpType::XrcSend => [QpType::XrcSend, QpType::XrcRecv],
        other => [other, other],
    };
    // Queue pairs that are kept keep their queues.
    let is_shared = |at: usize| old.get(at).map(|qp| qp.init().srq.is_some());
    let mut shared = [0, 1].map(|at| is_shared(at).unwrap_or_else(|| dice.once_in(3)));
    if service == QpType::XrcSend {
        shared = [false, true];
    }
    let style = Style {
        service,
        mtu: mtu.bytes(),
        max_inline: dice.pick(&[0, 16, 200]),
        late_receives: dice.once_in(3),
        longest: if shared == [false; 2] { 300_000 } else { SHARED_LONGEST },
        cells: 0,
        tag: world.qps.len() as u32,
        shared: false,
    };
    let max_inline = old.iter().map(|qp| qp.caps().max_inline_data as usize).min();
    let style = Style { max_inline: max_inline.unwrap_or(style.max_inline), ..style };
    let mut ends = [End::default(), End::default()];
    let counts = [dice.range(1, 40), if service == QpType::XrcSend { 0 } else { dice.below(40) }];
    if service == QpType::Rc {
        for end in &mut ends {
            plan::make_keys(dice, &style, end);
        }
    }
    for from in [0, 1] {
        let to = 1 - from;
        let cells = world.cells[world.nodes[nodes[to]].cells].count();
        let style = Style { cells, shared: shared[to], tag: style.tag + from as u32, ..style };
        let [left, right] = &mut ends;
        let (left, right) = if from == 0 { (left, right) } else { (right, left) };
        plan::direction(dice, &style, left, right, counts[from] as usize);
    }
    for end in &mut ends {
        plan::take_keys(dice, &style, end);
    }
    let is_spoilt = dice.once_in(3);
    if is_spoilt {
        let [left, right] = &mut ends;
        plan::spoil(dice, &style, [left, right]);
    }
    let index = world.qps.len();
    for (at, end) in ends.into_iter().enumerate() {
        let made = Made { qp_type: types[at], shared: shared[at], old: old.get(at) };
        make_qp(dice, world, &style, nodes[at], index + 1 - at, made, end)?;
        let qp = &mut world.qps[index + at];
        // What is not reliable is ended by the program, since it never knows what arrived.
        qp.may_fail = is_spoilt || !service.is_reliable();
    }
    note_tags(world, index);
    note_tags(world, index + 1);
    world.qps[index].remote_srq = remote_srq(world, index + 1, service);
    bring_up_pair(dice, world, index, mtu)
}

/// The shared receive queue that requests of an extended reliable connection name.
fn remote_srq(world: &World, target: usize, service: QpType) -> Option<rxe_core::SrqId> {
    match &world.supplies[world.qps[target].supply].inlet {
        Inlet::Shared(srq) if service == QpType::XrcSend => Some(srq.id()),
        _ => None,
    }
}

fn bring_up_pair(dice: &mut Dice, world: &mut World, index: usize, mtu: Mtu) -> Result<(), String> {
    let psns = [first_psn(dice), first_psn(dice)];
    // What one end may have outstanding, the other must answer.
    let reads = [dice.range(1, 16) as u8, dice.range(1, 16) as u8];
    for at in [0, 1] {
        let peer = &world.qps[index + 1 - at];
        let attr = QpAttr {
            path_mtu: mtu,
            rq_psn: psns[1 - at],
            sq_psn: psns[at],
            dest_qpn: peer.qp.qpn(),
            access: AccessFlags::REMOTE | AccessFlags::FLUSH_GLOBAL,
            av: AddressVector::new(world.nodes[peer.node].gid, 0),
            max_rd_atomic: reads[at],
            max_dest_rd_atomic: reads[1 - at],
            min_rnr_timer: dice.range(1, 14) as u8,
            timeout: dice.range(13, 16) as u8,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        bring_up(world, index + at, &attr)?;
    }
    Ok(())
}

/// A first PSN: mostly so near to the wrap that the run crosses it.
fn first_psn(dice: &mut Dice) -> Psn {
    let near = 0u32.wrapping_sub(dice.below(100) as u32);
    Psn::new(if dice.once_in(3) { dice.word() as u32 } else { near })
}

/// Makes datagram queue pairs, and plans what they send each other.
fn datagrams(dice: &mut Dice, world: &mut World, nodes: &[usize]) -> Result<(), String> {
    let first = world.qps.len();
    let all: Vec<usize> = (first..first + nodes.len()).collect();
    let base = Style {
        service: QpType::Ud,
        mtu: 1024,
        max_inline: dice.pick(&[0, 16, 200]),
        late_receives: dice.once_in(3),
        longest: Mtu::M4096.bytes(),
        cells: 0,
        tag: 0,
        shared: true,
    };
    for (at, &node) in nodes.iter().enumerate() {
        let own = first + at;
        let style = Style { tag: own as u32, ..base };
        let targets: Vec<usize> = all.iter().copied().filter(|&other| other != own).collect();
        let mut end = End::default();
        let count = dice.range(1, 40) as usize;
        plan::datagrams(dice, &style, &mut end, &targets, count);
        let shared = dice.once_in(3);
        if !shared {
            let count = dice.range(1, 60) as usize;
            end.receives = plan::spare_receives(dice, &style, &mut end.layout, count);
        }
        if dice.once_in(4) {
            plan::spoil(dice, &style, [&mut end, &mut End::default()]);
        }
        let made = Made { qp_type: QpType::Ud, shared, old: None };
        make_qp(dice, world, &style, node, own, made, end)?;
        world.qps[own].may_fail = true;
        let attr = QpAttr { qkey: QKEY, sq_psn: first_psn(dice), ..QpAttr::default() };
        bring_up(world, own, &attr)?;
    }
    for &own in &all {
        note_tags(world, own);
        for &target in all.iter().filter(|&&target| target != own) {
            let (qp, to) = (&world.qps[own], &world.qps[target]);
            let device = world.nodes[qp.node].shard.device().clone();
            let av = AddressVector::new(world.nodes[to.node].gid, 0);
            let ah = device.create_ah(qp.qp.pd(), &av).map_err(failure)?;
            let keys = [QKEY, QKEY + 1].map(|key| ah.to(to.qp.qpn(), QKey::new(key)));
            world.qps[own].destinations.insert(target, keys);
        }
    }
    Ok(())
}

/// Notes by what the messages of a queue pair are known that may be lost.
fn note_tags(world: &mut World, index: usize) {
    let qp = &world.qps[index];
    if qp.is_reliable() {
        return;
    }
    for (number, request) in qp.end.requests.iter().enumerate() {
        let to = match request.action {
            Action::SendTo(target) => target,
            Action::Write(_) if request.imm.is_none() => continue,
            _ => qp.peer,
        };
        if let Some(tag) = Tag::of(request.imm, &request.data) {
            world.tags.insert((to, tag), (index, number));
        }
    }
}

/// How a queue pair is made.
struct Made<'a> {
    qp_type: QpType,
    shared: bool,
    /// One that was there before, now in RESET.
    old: Option<&'a Arc<QueuePair>>,
}

fn make_qp(
    dice: &mut Dice,
    world: &mut World,
    style: &Style,
    node: usize,
    peer: usize,
    made: Made<'_>,
    mut end: End,
) -> Result<(), String> {
    let device = world.nodes[node].shard.device().clone();
    let (shared, pd) = if made.shared {
        let (supply, pd, xrcd) = shared_supply(dice, world, style, node, &made)?;
        (Some((supply, xrcd)), pd)
    } else {
        let old = made.old.map(|qp| qp.pd());
        (None, old.map_or_else(|| device.alloc_pd().map_err(failure), Ok)?)
    };
    let qp = match made.old {
        Some(old) => old.clone(),
        None => new_qp(dice, world, style, node, &made, pd, shared.as_ref())?,
    };
    // An end without any place has at least one byte.
    end.layout.alloc(dice, 2);
    let memory = world.memories.len();
    world.memories.push(Memory::new(dice, &device, pd, std::mem::take(&mut end.layout))?);
    let key = |plan| Key::new(dice, &device, pd, plan, &world.memories[memory]);
    let keys = end.keys.iter().map(key).collect::<Result<Vec<_>, _>>()?;
    let supply = shared.map_or(world.supplies.len(), |(supply, _)| supply);
    if !made.shared {
        let receives = std::mem::take(&mut end.receives);
        // The plan of the peer's flaws looks at them there.
        world.supplies.push(Supply::new(Inlet::Own(qp.clone()), node, memory, receives));
    }
    let cells = world.cells[world.nodes[node].cells].register(dice, pd)?;
    world.by_qpn.insert(qp.qpn(), world.qps.len());
    let mut qp = SimQp::new(node, qp, peer, [memory, supply], cells, end);
    qp.keys = keys;
    world.qps.push(qp);
    Ok(())
}

fn new_qp(
    dice: &mut Dice,
    world: &mut World,
    style: &Style,
    node: usize,
    made: &Made<'_>,
    pd: PdId,
    shared: Option<&(usize, Option<Arc<XrcDomain>>)>,
) -> Result<Arc<QueuePair>, String> {
    let (send_cq, recv_cq) = (cq(dice, world, node)?, cq(dice, world, node)?);
    let caps = QpCaps {
        max_send_wr: dice.range(1, 32) as u32,
        max_recv_wr: dice.range(1, 32) as u32,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline_data: style.max_inline as u32,
    };
    let srq = shared.and_then(|(supply, xrcd)| match &world.supplies[*supply].inlet {
        Inlet::Shared(srq) if xrcd.is_none() => Some(srq.clone()),
        _ => None,
    });
    let init = match shared.and_then(|(_, xrcd)| xrcd.as_ref()) {
        Some(xrcd) if !sends(made.qp_type) => QpInit::xrc_recv(xrcd),
        _ => {
            let plain = QpInit::new(made.qp_type, pd, &recv_cq);
            QpInit { send_cq: Some(send_cq), caps, srq, ..plain }
        }
    };
    world.nodes[node].shard.create_qp(init).map_err(failure)
}

fn cq(dice: &mut Dice, world: &mut World, node: usize) -> Result<Arc<CompletionQueue>, String> {
    let device = world.nodes[node].shard.device().clone();
    let cqs = &mut world.nodes[node].cqs;
    if !cqs.is_empty() && dice.once_in(2) {
        return Ok(cqs[dice.below(cqs.len() as u64) as usize].clone());
    }
    let cq = device.create_cq(CQ_ENTRIES, None).map_err(failure)?;
    cqs.push(cq.clone());
    Ok(cq)
}

/// A shared receive queue with its receives, and the domains that it is in.
fn shared_supply(
    dice: &mut Dice,
    world: &mut World,
    style: &Style,
    node: usize,
    made: &Made<'_>,
) -> Result<(usize, PdId, Option<Arc<XrcDomain>>), String> {
    let device = world.nodes[node].shard.device().clone();
    // One that takes all messages of this service may serve others as well.
    let fits = |shared: &&Shared| {
        let kind = (shared.node, shared.service, shared.longest);
        kind == (node, style.service, style.longest)
    };
    let found = world.shared.iter().find(fits).filter(|_| dice.once_in(2));
    let kept = made.old.and_then(|old| {
        let is_of = |shared: &&Shared| match (&world.supplies[shared.supply].inlet, old.init()) {
            (Inlet::Shared(srq), init) if init.xrcd.is_none() => {
                init.srq.as_ref().is_some_and(|other| Arc::ptr_eq(srq, other))
            }
            (_, init) => match (&shared.xrcd, &init.xrcd) {
                (Some(xrcd), Some(other)) => Arc::ptr_eq(xrcd, other),
                _ => false,
            },
        };
        world.shared.iter().find(is_of)
    });
    if let Some(shared) = kept.or(found) {
        return Ok((shared.supply, shared.pd, shared.xrcd.clone()));
    }
    let pd = device.alloc_pd().map_err(failure)?;
    let is_xrc = made.qp_type == QpType::XrcRecv;
    let xrcd = if is_xrc { Some(device.open_xrcd().map_err(failure)?) } else { None };
    let xrc = match &xrcd {
        Some(xrcd) => Some(XrcSrq { xrcd: xrcd.clone(), cq: cq(dice, world, node)? }),
        None => None,
    };
    let attr = SrqAttr { max_wr: dice.range(1, 16) as u32, max_sge: 4, srq_limit: 0 };
    let srq = device.create_srq(&SrqInit { pd, attr, xrc }).map_err(failure)?;
    let mut layout = Layout::default();
    let count = dice.range(1, 20) as usize;
    let receives = plan::spare_receives(dice, style, &mut layout, count);
    let memory = world.memories.len();
    world.memories.push(Memory::new(dice, &device, pd, layout)?);
    let supply = world.supplies.len();
    world.supplies.push(Supply::new(Inlet::Shared(srq), node, memory, receives));
    let (service, longest) = (style.service, style.longest);
    world.shared.push(Shared { node, service, longest, supply, pd, xrcd: xrcd.clone() });
    Ok((supply, pd, xrcd))
}

/// A shared receive queue of the world.
pub(super) struct Shared {
    node: usize,
    service: QpType,
    longest: usize,
    supply: usize,
    pd: PdId,
    xrcd: Option<Arc<XrcDomain>>,
}

fn bring_up(world: &mut World, index: usize, attr: &QpAttr) -> Result<(), String> {
    let qp = &world.qps[index];
    for (state, mask) in steps_to_rts(qp.qp.qp_type()) {
        let attr = QpAttr { state, ..*attr };
        let shard = &mut world.nodes[qp.node].shard;
        shard.modify_qp(world.now, qp.qp.qpn(), &attr, mask).map_err(failure)?;
    }
    Ok(())
}
