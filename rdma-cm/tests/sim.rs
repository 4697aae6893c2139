//! Two engines on a network that loses, repeats, delays and reorders messages, and two owners who
//! do things at random moments. In the end nothing is left behind, and each connection has seen a
//! legal sequence of events.
//!
//! A failure prints the command that replays its seed. `URXE_CM_SEEDS=100000` runs more of them.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::{BTreeMap, HashMap};

use common::view::View;
use common::{
    LOOKED_UP, SERVICE, accept_param, config, connect_param, gid, lookup_answer, lookup_param,
};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use rdma_cm::engine::{
    CmConfig, CmEngine, CmEvent, CmPath, CmSizes, ConnState, ListenFor, ListenOn, ListenerId,
};
use rxe_core::Instant;
use rxe_wire::Qpn;
use rxe_wire::mad::MAD_LEN;
use rxe_wire::mad::cm::{Bits, CommId, RejReason, TimeoutExponent};

const SEEDS: u64 = 300;
/// Moves that each owner makes.
const MOVES: usize = 120;
const MS: u64 = 1_000_000;

struct Dice(ChaCha8Rng);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

struct Owner {
    engine: CmEngine,
    path: CmPath,
    listeners: Vec<ListenerId>,
    views: HashMap<CommId, View>,
    next_qpn: u32,
    connected: u64,
}

struct World {
    dice: Dice,
    now: Instant,
    owners: [Owner; 2],
    /// Messages under way: when they arrive, a number to tell them apart, and to whom.
    network: BTreeMap<(Instant, u64), (usize, [u8; MAD_LEN])>,
    sent: u64,
    loss: u64,
    repetition: u64,
}

impl Owner {
    fn new(seed: u64, side: u8) -> Self {
        let config = CmConfig { slot: 3 + side, ..config(seed * 2 + u64::from(side)) };
        let mut owner = Self {
            engine: CmEngine::new(config),
            path: CmPath::new(gid(1 + side), gid(2 - side)),
            listeners: Vec::new(),
            views: HashMap::new(),
            next_qpn: u32::from(3 + side) << 16,
            connected: 0,
        };
        owner.listen();
        owner
    }

    fn listen(&mut self) {
        let listen = |engine: &mut CmEngine, service, takes| {
            engine.listen(service, ListenOn::Any, takes, 8).unwrap()
        };
        let connections = listen(&mut self.engine, SERVICE, ListenFor::AnyConnections);
        let lookups = listen(&mut self.engine, LOOKED_UP, ListenFor::Lookups);
        self.listeners = vec![connections, lookups];
    }

    fn qpn(&mut self) -> u32 {
        // Few numbers, so that they are used again and stale connections arise.
        loop {
            self.next_qpn = self.next_qpn & 0xff_ff00 | (self.next_qpn + 1) & 0x3f | 0x40;
            if !self.engine.uses_qpn(Qpn::new(self.next_qpn)) {
                return self.next_qpn;
            }
        }
    }

    fn pick(&self, dice: &mut Dice) -> Option<(CommId, View)> {
        let mut all: Vec<_> = self.views.iter().map(|(&id, &view)| (id, view)).collect();
        all.sort_by_key(|&(id, _)| id);
        (!all.is_empty()).then(|| all[dice.below(all.len() as u64) as usize])
    }

    /// Does something that may be done, or something that may not, which changes nothing.
    fn act(&mut self, now: Instant, dice: &mut Dice) {
        let few = self.views.len() < 20;
        match dice.below(10) {
            0 | 1 if few => self.connect(now, dice),
            2 if few && dice.percent(50) => {
                let mut param = lookup_param(self.path);
                param.response_timeout = TimeoutExponent::new(13);
                param.ack_timeout = TimeoutExponent::new(10);
                param.max_cm_retries = Bits::new(dice.below(8) as u8);
                let id = self.engine.look_up(now, &param).unwrap();
                self.views.insert(id, View::LookingUp);
            }
            3 if dice.percent(10) => {
                for listener in std::mem::take(&mut self.listeners) {
                    self.engine.stop_listening(listener);
                }
                self.listen();
            }
            _ => {
                let Some((id, view)) = self.pick(dice) else { return };
                if dice.percent(15) {
                    self.engine.destroy(now, id);
                    self.views.remove(&id);
                } else {
                    self.move_on(now, dice, id, view);
                }
            }
        }
    }

    fn connect(&mut self, now: Instant, dice: &mut Dice) {
        let mut param = connect_param(self.path, self.qpn());
        param.response_timeout = TimeoutExponent::new(13);
        param.ack_timeout = TimeoutExponent::new(10 + dice.below(3) as u8);
        param.max_cm_retries = Bits::new(dice.below(16) as u8);
        let id = self.engine.connect(now, &param).unwrap();
        self.views.insert(id, View::Asking);
    }

    fn move_on(&mut self, now: Instant, dice: &mut Dice, id: CommId, view: View) {
        let to = match view {
            View::Asked if dice.percent(10) => {
                // Refusing may come too late: the peer has taken its wish back.
                let reason = RejReason::CONSUMER_DEFINED;
                if self.engine.reject(now, id, reason, &[], &[]).is_ok() {
                    View::Over
                } else {
                    view
                }
            }
            View::Asked if dice.percent(20) => {
                let _ = self.engine.hold(now, id, TimeoutExponent::new(14), dice.percent(50));
                self.engine.request_taken(id);
                view
            }
            View::Asked => {
                let qpn = self.qpn();
                match self.engine.accept(now, id, &accept_param(qpn)) {
                    Ok(()) => View::Accepting,
                    Err(_) => view,
                }
            }
            View::Accepted if dice.percent(20) => {
                let _ = self.engine.hold(now, id, TimeoutExponent::new(14), dice.percent(50));
                view
            }
            View::Accepted => match self.engine.ready(now, id, &[]) {
                Ok(()) => View::Connected,
                Err(_) => view,
            },
            View::Accepting if dice.percent(20) => {
                let _ = self.engine.heard_from_peer(now, id);
                view
            }
            View::Connected => match self.engine.disconnect(now, id, &[]) {
                Ok(()) => View::Parting,
                Err(_) => view,
            },
            View::Parted => match self.engine.agree(now, id, &[]) {
                Ok(()) => View::Over,
                // A refusal of the peer has ended it meanwhile.
                Err(_) => view,
            },
            View::LookedUp => match self.engine.answer_lookup(now, id, &lookup_answer(7)) {
                Ok(()) => {
                    self.views.remove(&id);
                    return;
                }
                Err(error) => panic!("{error}"),
            },
            _ => {
                // What means nothing now is refused and changes nothing.
                let before = (self.engine.state(id), self.engine.sizes());
                if view != View::Accepting {
                    assert!(self.engine.accept(now, id, &accept_param(1)).is_err());
                    assert!(self.engine.agree(now, id, &[]).is_err());
                    assert_eq!((self.engine.state(id), self.engine.sizes()), before);
                }
                view
            }
        };
        self.views.insert(id, to);
    }

    /// Takes note of an event, which must be one that may come now.
    fn note(&mut self, event: &CmEvent) {
        self.connected += u64::from(matches!(event, CmEvent::Ready { .. }));
        let id = event.id();
        match View::after(self.views.get(&id).copied(), event) {
            Some(after) => self.views.insert(id, after),
            None => self.views.remove(&id),
        };
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut bytes = [7; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let mut dice = Dice(ChaCha8Rng::from_seed(bytes));
        let (loss, repetition) = (dice.below(4) * 10, dice.below(3) * 10);
        Self {
            dice,
            now: Instant::from_nanos(1),
            owners: [Owner::new(seed, 0), Owner::new(seed, 1)],
            network: BTreeMap::new(),
            sent: 0,
            loss,
            repetition,
        }
    }

    /// Takes what an engine has to say.
    fn drain(&mut self, side: usize) {
        while let Some(transmit) = self.owners[side].engine.poll_transmit() {
            let mut mad = [0; MAD_LEN];
            transmit.write(&mut mad);
            let copies = 1 + u64::from(self.dice.percent(self.repetition));
            for _ in 0..copies {
                if !self.dice.percent(self.loss) {
                    // Mostly soon; now and then so late that timers have run.
                    let late = if self.dice.percent(5) { 60 } else { 2 };
                    let at = self.now.plus_nanos(self.dice.below(late * MS));
                    self.sent += 1;
                    self.network.insert((at, self.sent), (1 - side, mad));
                }
            }
        }
        while let Some(event) = self.owners[side].engine.poll_event() {
            self.owners[side].note(&event);
        }
    }

    /// Lets time pass up to `until`.
    fn run(&mut self, until: Instant) {
        loop {
            let message = self.network.first_key_value().map(|(&(at, _), _)| at);
            let timers = self.owners.iter().filter_map(|owner| owner.engine.poll_timeout());
            let Some(next) = timers.chain(message).min().filter(|&next| next <= until) else {
                self.now = until;
                return;
            };
            self.now = self.now.max(next);
            if message == Some(next) {
                let (_, (side, mad)) = self.network.pop_first().unwrap();
                let path = self.owners[side].path;
                // Most of what a bad network delivers has an effect, some has none.
                let _ = self.owners[side].engine.handle_mad(self.now, &path, &mad);
            }
            for side in [0, 1] {
                self.owners[side].engine.handle_timeout(self.now);
                self.drain(side);
            }
        }
    }

    fn play(&mut self) {
        for _ in 0..MOVES {
            for side in [0, 1] {
                let owner = &mut self.owners[side];
                owner.act(self.now, &mut self.dice);
                self.drain(side);
            }
            let until = self.now.plus_nanos(self.dice.below(20 * MS));
            self.run(until);
        }
    }

    /// Both owners leave; nothing may be left of what was.
    fn end(&mut self) {
        for side in [0, 1] {
            let mut ids: Vec<_> = self.owners[side].views.drain().map(|(id, _)| id).collect();
            ids.sort();
            for id in ids {
                self.owners[side].engine.destroy(self.now, id);
            }
            for listener in std::mem::take(&mut self.owners[side].listeners) {
                self.owners[side].engine.stop_listening(listener);
            }
            self.drain(side);
        }
        let until = self.now.plus_nanos(3_600_000 * MS);
        self.run(until);
        for owner in &self.owners {
            assert_eq!(owner.engine.sizes(), CmSizes::default(), "something is left behind");
            assert!(owner.views.is_empty(), "{:?}", owner.views);
        }
    }
}

/// Runs a seed; gives how many connections were made.
fn run(seed: u64) -> u64 {
    let mut world = World::new(seed);
    world.play();
    world.end();
    world.owners.iter().map(|owner| owner.connected).sum()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

#[test]
fn seeds() {
    let count = number("URXE_CM_SEEDS").unwrap_or(SEEDS);
    let mut connected = 0;
    for seed in 0..count {
        match std::panic::catch_unwind(|| run(seed)) {
            Ok(made) => connected += made,
            Err(panic) => {
                eprintln!("URXE_CM_SEED={seed} cargo test -p rdma-cm --test sim replay");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{connected} connections");
    assert!(connected > count, "{connected} connections in {count} seeds: too few to mean much");
}

#[test]
fn replay() {
    if let Some(seed) = number("URXE_CM_SEED") {
        println!("{} connections", run(seed));
    }
}

#[test]
fn a_perfect_network_loses_no_connection() {
    let mut world = World::new(1);
    (world.loss, world.repetition) = (0, 0);
    let param = connect_param(world.owners[0].path, 0x3_0001);
    let id = world.owners[0].engine.connect(world.now, &param).unwrap();
    world.owners[0].views.insert(id, View::Asking);
    world.drain(0);
    world.run(world.now.plus_nanos(100 * MS));
    assert_eq!(world.owners[0].engine.state(id), Some(ConnState::ReqSent));
    assert_eq!(world.owners[1].views.values().collect::<Vec<_>>(), [&View::Asked]);
}
