//! Draws a scenario from a seed: hosts, links and their faults, queue pairs, attributes.

use std::net::IpAddr;

use gid_table::{Gid, GidTable, GidType, WantedGid};
use rxe_core::qp::{Mtu, QpType};
use rxe_core::{Device, DeviceConfig, Instant, Port, Seed, Shard};
use rxe_net::faults::{FaultSpec, Probability, Until};
use rxe_net::memory::{Fabric, PortConfig};

use super::Failure;
use super::cells::Cells;
use super::connect::{self, Connection};
use super::dice::Dice;
use super::node::Node;
use super::world::World;

/// Services, the one with most to go wrong more often.
const SERVICES: [QpType; 6] =
    [QpType::Rc, QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend];

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
    world.is_orderly = kind.is_orderly;
    for _ in 0..dice.range(1, 3) {
        add_connections(&mut dice, &mut world);
    }
    connect::go_on(&mut world).map_err(failure)?;
    if kind.faults > 0 && dice.once_in(3) {
        pull_cable(&mut dice, &mut world);
    }
    Ok(world)
}

/// Adds connections between two shards, or datagrams between many.
fn add_connections(dice: &mut Dice, world: &mut World) {
    let count = world.nodes.len() as u64;
    let service = dice.pick(&SERVICES);
    if service == QpType::Ud {
        let nodes = (0..dice.range(2, 5)).map(|_| dice.below(count) as usize).collect();
        return world.connections.push(Connection::new(dice, service, nodes));
    }
    let first = dice.below(count) as usize;
    let second = (first + dice.range(1, count - 1) as usize) % world.nodes.len();
    for _ in 0..dice.range(1, 3) {
        world.connections.push(Connection::new(dice, service, vec![first, second]));
    }
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
    /// Packets arrive in the order they were sent in, once.
    is_orderly: bool,
}

impl Kind {
    fn draw(dice: &mut Dice) -> Self {
        Self {
            v6: dice.once_in(2),
            gid_type: dice.pick(&[GidType::RoceV2, GidType::RoceV2, GidType::RoceV1]),
            faults: dice.pick(&[0, 1, 3, 5, 10]),
            until_nanos: dice.range(1, 300) * 1_000_000,
            is_orderly: dice.once_in(3),
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
    let unless_orderly =
        |often: Probability| if kind.is_orderly { Probability::NEVER } else { often };
    let [duplicate, reorder, delay] = [duplicate, reorder, delay].map(unless_orderly);
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
    let count = dice.range(1, 4) as usize;
    world.cells.push(Cells::new(dice, &device, count).map_err(failure)?);
    let cells = world.cells.len() - 1;
    // Slots are unique in the world, so that a QPN names one QP.
    for _ in 0..dice.range(1, 2) {
        let slot = world.nodes.len() as u8 + 1;
        let link = world.fabric.attach(port, slot).map_err(failure)?;
        let pace_nanos = dice.pick(&[0, 5_000, 50_000, 200_000]);
        let shard = Shard::new(device.clone(), slot);
        world.nodes.push(Node::new(shard, link, port, gid, cells, pace_nanos));
    }
    Ok(())
}
