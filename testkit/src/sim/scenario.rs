//! Draws a scenario from a seed: hosts, links and their faults, queue pairs, attributes.

use std::net::IpAddr;
use std::sync::Arc;

use gid_table::{Gid, GidTable, GidType, WantedGid};
use rxe_core::mem::{AccessFlags, DmaBuf};
use rxe_core::qp::{AddressVector, Mtu, QpAttr, QpCaps, QpInit, QpType, RC_TO_RTS};
use rxe_core::{CompletionQueue, Device, DeviceConfig, Instant, Port, Seed, Shard};
use rxe_net::faults::{FaultSpec, Probability, Until};
use rxe_net::memory::{Fabric, PortConfig};
use rxe_wire::Psn;

use super::Failure;
use super::dice::Dice;
use super::plan::{self, End, Style};
use super::world::{Node, SimQp, World};

/// Completion queues hold all that a run can bring.
const CQ_ENTRIES: u32 = 4096;

/// Sets the world of a seed up, ready to run.
pub(super) fn world(seed: u64) -> Result<World, Failure> {
    let mut dice = Dice::new(seed);
    let fabric = Fabric::new();
    let kind = Kind::draw(&mut dice);
    let hosts = dice.range(2, 4);
    let mut world = World::new(fabric, dice.word());
    for number in 1..=hosts as u8 {
        add_host(&mut dice, &mut world, &kind, number)?;
    }
    for _ in 0..dice.range(1, 3) {
        let first = dice.below(world.nodes.len() as u64) as usize;
        let step = dice.range(1, world.nodes.len() as u64 - 1) as usize;
        let second = (first + step) % world.nodes.len();
        for _ in 0..dice.range(1, 3) {
            connect(&mut dice, &mut world, first, second)?;
        }
    }
    if kind.faults > 0 && dice.once_in(3) {
        pull_cable(&mut dice, &mut world);
    }
    Ok(world)
}

/// Cuts a host off for a while, shorter than any `retry_cnt` timeouts here together.
fn pull_cable(dice: &mut Dice, world: &mut World) {
    let port = world.nodes[dice.below(world.nodes.len() as u64) as usize].port;
    let from = Instant::from_nanos(dice.below(20_000_000));
    let until = from.plus_nanos(dice.range(20_000_000, 150_000_000));
    world.cables = vec![(until, port, true), (from, port, false)];
}

/// What all hosts have in common.
struct Kind {
    v6: bool,
    gid_type: GidType,
    /// Faults are this frequent, in percent at most.
    faults: u64,
    until_nanos: u64,
}

impl Kind {
    fn draw(dice: &mut Dice) -> Self {
        Self {
            v6: dice.once_in(2),
            gid_type: dice.pick(&[GidType::RoceV2, GidType::RoceV2, GidType::RoceV1]),
            faults: dice.pick(&[0, 1, 3, 5, 10]),
            until_nanos: dice.range(1, 300) * 1_000_000,
        }
    }
}

fn faults(dice: &mut Dice, kind: &Kind) -> Option<FaultSpec> {
    let mut often = |most: u64| {
        let percent = if dice.once_in(2) { dice.below(most.min(kind.faults) + 1) } else { 0 };
        Probability::from_percent(percent as u32)
    };
    let (drop, duplicate, reorder, corrupt, delay) =
        (often(10), often(10), often(10), often(3), often(10));
    let spec = FaultSpec {
        seed: dice.word(),
        drop,
        duplicate,
        reorder,
        reorder_by_max: dice.range(1, 8) as u32,
        reorder_wait_nanos: dice.range(10_000, 2_000_000),
        corrupt,
        delay_nanos: Some(1_000..=dice.range(2_000, 5_000_000)),
        delay,
        until: Some(Until::Nanos(kind.until_nanos)),
    };
    (kind.faults > 0).then_some(spec)
}

fn failure(what: impl std::fmt::Display) -> Failure {
    Failure { at_nanos: 0, what: format!("cannot be set up: {what}") }
}

fn add_host(dice: &mut Dice, world: &mut World, kind: &Kind, number: u8) -> Result<(), Failure> {
    let config = PortConfig {
        mtu: 9000,
        faults: faults(dice, kind),
        latency_nanos: dice.below(100_000),
        bits_per_second: dice.pick(&[None, Some(1_000_000_000), Some(25_000_000_000)]),
        ..PortConfig::numbered(number)
    };
    let is_wanted = |addr: &&IpAddr| addr.is_ipv6() == kind.v6;
    let addr = config.addrs.iter().find(is_wanted).copied();
    let gid = Gid::from_ip(addr.ok_or_else(|| failure("no address"))?);
    let port = world.fabric.add_port(config).map_err(failure)?;
    let mut gids = GidTable::new(1, 4);
    let wanted = WantedGid { gid, gid_type: kind.gid_type, ifindex: 1, owned: true };
    gids.add(wanted).map_err(failure)?;
    let config = DeviceConfig::new(Seed::for_test(dice.word()));
    let device = Device::new(config, vec![Port::new(gids, Mtu::M4096)]);
    // Slots are unique in the world, so that a QPN names one QP.
    for _ in 0..dice.range(1, 2) {
        let slot = world.nodes.len() as u8 + 1;
        let link = world.fabric.attach(port, slot).map_err(failure)?;
        let pace_nanos = dice.pick(&[0, 5_000, 50_000, 200_000]);
        world.nodes.push(Node::new(Shard::new(device.clone(), slot), link, port, gid, pace_nanos));
    }
    Ok(())
}

/// Connects a queue pair of one shard with one of another, and plans what they do.
fn connect(dice: &mut Dice, world: &mut World, first: usize, second: usize) -> Result<(), Failure> {
    let mtu = dice.pick(&Mtu::ALL);
    let style = Style {
        mtu: mtu.bytes(),
        max_inline: dice.pick(&[0, 16, 200]),
        late_receives: dice.once_in(3),
        longest: 300_000,
    };
    let (mut left, mut right) = (End::default(), End::default());
    let (there, back) = (dice.range(1, 40), dice.below(40));
    plan::direction(dice, &style, &mut left, &mut right, there as usize);
    plan::direction(dice, &style, &mut right, &mut left, back as usize);
    let ends = [(first, left), (second, right)];
    let index = world.qps.len();
    for (at, (node, end)) in ends.into_iter().enumerate() {
        let peer = index + 1 - at;
        let qp = make_qp(dice, world, &style, node, peer, end)?;
        world.qps.push(qp);
    }
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
            access: AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ,
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

fn make_qp(
    dice: &mut Dice,
    world: &mut World,
    style: &Style,
    node: usize,
    peer: usize,
    end: End,
) -> Result<SimQp, Failure> {
    let device = world.nodes[node].shard.device().clone();
    let pd = device.alloc_pd().map_err(failure)?;
    let mut cq = |world: &mut World| -> Result<Arc<CompletionQueue>, Failure> {
        let cqs = &mut world.nodes[node].cqs;
        if !cqs.is_empty() && dice.once_in(2) {
            return Ok(dice.pick(&(0..cqs.len()).collect::<Vec<_>>())).map(|i| cqs[i].clone());
        }
        let cq = device.create_cq(CQ_ENTRIES, None).map_err(failure)?;
        cqs.push(cq.clone());
        Ok(cq)
    };
    let (send_cq, recv_cq) = (cq(world)?, cq(world)?);
    let caps = QpCaps {
        max_send_wr: dice.range(1, 32) as u32,
        max_recv_wr: dice.range(1, 32) as u32,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline_data: style.max_inline as u32,
    };
    let qp_type = QpType::Rc;
    let init = QpInit { send_cq: Some(send_cq), caps, ..QpInit::new(qp_type, pd, &recv_cq) };
    let qp = world.nodes[node].shard.create_qp(init).map_err(failure)?;
    let buf = Arc::new(DmaBuf::zeroed(end.before.len()));
    buf.write_at(0, &end.before).map_err(failure)?;
    // Any address will do: a program's buffers lie anywhere.
    let iova = dice.word() >> 16;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let len = end.before.len() as u64;
    let memory = device.memory();
    let keys = memory.register(pd, buf.clone(), 0, len, iova, access).map_err(failure)?;
    Ok(SimQp::new(node, peer, qp, buf, keys, iova, end))
}

fn bring_up(world: &mut World, index: usize, attr: &QpAttr) -> Result<(), Failure> {
    let qp = &world.qps[index];
    for (state, mask) in RC_TO_RTS {
        let attr = QpAttr { state, ..*attr };
        let shard = &mut world.nodes[qp.node].shard;
        shard.modify_qp(Instant::ZERO, qp.qp.qpn(), &attr, mask).map_err(failure)?;
    }
    Ok(())
}
