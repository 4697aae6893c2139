//! One engine among peers who send it anything: the body of the fuzz target `mads`.
//!
//! The input is a sequence of operations: datagrams of peers at three addresses (whole messages that
//! fit what goes on, changed at some places; any bytes; earlier datagrams again, from the same
//! address or another), requests of the owner that fit and that do not, and time. It panics when a
//! promise is broken:
//!
//! - nothing panics, and each connection sees a legal sequence of events;
//! - a datagram changes connections with its sender only, and is answered to its sender only, by two
//!   messages at most;
//! - what is no message of connection management changes nothing, and is answered by a REJ at most,
//!   if it is a REQ of another class version;
//! - when the owner has left all, and time has passed, nothing is left.

#[path = "../common/view.rs"]
mod view;

use std::collections::HashMap;

use gid_table::Gid;
use rdma_cm::engine::{
    AcceptParam, CmConfig, CmEngine, CmEvent, CmPath, CmSizes, ConnState, ConnectParam, Ece,
    Ignored, ListenFor, ListenOn, ListenerId, LookupAnswer, LookupParam,
};
use rxe_core::{Instant, Seed};
use rxe_wire::mad::cm::{
    AnsweredMessage, Bits, CmMessage, CommId, Drep, Dreq, FixedBytes, Guid, Lap, Mra, Path,
    PathMtu, PortSpace, Rej, RejReason, Rep, Req, Rtu, ServiceId, SidrRep, SidrReq, SidrStatus,
    TimeoutExponent, TransportService,
};
use rxe_wire::mad::{MAD_LEN, TransactionId};
use rxe_wire::{PKey, Psn, QKey, Qpn};
use view::View;

const CONNECTIONS: ServiceId = ServiceId::ip(PortSpace::Tcp, 1);
const LOOKUPS: ServiceId = ServiceId::ip(PortSpace::Udp, 1);
/// Connections of the engine at most, and of these in timewait.
const CONNECTIONS_MAX: usize = 24;
const TIMEWAIT_MAX: usize = 6;
/// Operations of one input at most.
const OPERATIONS_MAX: usize = 400;
/// More than all timers: exponent 31 is 2.4 hours, sixteen times.
const FOR_EVER: u64 = 60 * 3_600_000_000_000;

/// Does what the input says.
///
/// # Panics
///
/// When a promise is broken.
pub(crate) fn run(input: &[u8]) {
    let mut world = World::new();
    let mut bytes = Bytes(input);
    for _ in 0..OPERATIONS_MAX {
        if bytes.0.is_empty() {
            break;
        }
        world.step(&mut bytes);
    }
    world.end();
}

/// The input; what is behind its end is 0.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn next(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::from(self.next()) % bound.max(1)
    }

    fn word(&mut self) -> u32 {
        (0..4).fold(0, |word, _| word << 8 | u32::from(self.next()))
    }

    fn take(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn flag(&mut self) -> bool {
        self.next() & 1 == 1
    }

    /// A timeout, mostly a short one.
    fn timeout(&mut self) -> TimeoutExponent {
        TimeoutExponent::new(self.next() & 0x1f)
    }
}

struct World {
    engine: CmEngine,
    now: Instant,
    listeners: Vec<ListenerId>,
    /// Of each connection that the owner has: what it knows, and with whom it is.
    views: HashMap<CommId, (View, CmPath)>,
    /// Ids that there were, to be named by peers.
    named: Vec<CommId>,
    /// Datagrams that came, and those that were sent, to come again.
    datagrams: Vec<(CmPath, [u8; MAD_LEN])>,
}

fn gid(last: u8) -> Gid {
    Gid::from_ip([10, 0, 0, last].into())
}

impl World {
    fn new() -> Self {
        let (guid, mtu) = (Guid(0xaa), PathMtu(Bits::new(3)));
        let config = CmConfig::new(Seed([5; 32]), 9, guid, TimeoutExponent::new(10), mtu);
        let config =
            CmConfig { connections_max: CONNECTIONS_MAX, timewait_max: TIMEWAIT_MAX, ..config };
        let mut world = Self {
            engine: CmEngine::new(config),
            now: Instant::from_nanos(1),
            listeners: Vec::new(),
            views: HashMap::new(),
            named: vec![CommId(0)],
            datagrams: Vec::new(),
        };
        world.listen();
        world
    }

    fn listen(&mut self) {
        let services = [(CONNECTIONS, ListenFor::AnyConnections), (LOOKUPS, ListenFor::Lookups)];
        self.listeners = services
            .iter()
            .map(|&(service, takes)| self.engine.listen(service, ListenOn::Any, takes, 4))
            .map(|listener| listener.expect("nobody else listens"))
            .collect();
    }

    fn step(&mut self, bytes: &mut Bytes<'_>) {
        match bytes.below(8) {
            0 => {
                let mut mad = [0; MAD_LEN];
                let given = bytes.take(MAD_LEN);
                mad[..given.len()].copy_from_slice(given);
                let path = path(bytes);
                self.comes(&path, &mad);
            }
            // Lengths that no datagram of this class has.
            1 => {
                let path = path(bytes);
                let length = bytes.below(MAD_LEN);
                let before = self.states();
                let result = self.engine.handle_mad(self.now, &path, bytes.take(length));
                assert!(matches!(result, Err(Ignored::NotCm(_))), "{result:?}");
                assert_eq!(self.states(), before);
                assert!(self.engine.poll_transmit().is_none() && !self.engine.has_events());
            }
            2..4 => {
                let path = path(bytes);
                let message = self.message(&path, bytes);
                let mut mad = [0; MAD_LEN];
                message.write_mad(TransactionId(bytes.next().into()), &mut mad);
                for _ in 0..bytes.next() & 3 {
                    mad[bytes.below(MAD_LEN)] = bytes.next();
                }
                self.comes(&path, &mad);
            }
            4 => self.comes_again(bytes),
            5 => self.act(bytes),
            6 => self.move_on(bytes),
            _ => {
                // From nanoseconds to minutes.
                let nanos = u64::from(bytes.next() | 1) << (bytes.next() & 0x1f);
                self.wait(nanos);
            }
        }
    }

    /// A datagram comes.
    fn comes(&mut self, path: &CmPath, mad: &[u8; MAD_LEN]) {
        if self.datagrams.len() < 64 {
            self.datagrams.push((*path, *mad));
        }
        let before = self.states();
        let result = self.engine.handle_mad(self.now, path, mad);
        let sent: Vec<_> = std::iter::from_fn(|| self.engine.poll_transmit()).collect();
        assert!(sent.len() <= 2, "{sent:?}");
        for transmit in &sent {
            assert_eq!(transmit.path.remote, path.remote, "who has not asked gets an answer");
            self.keep(transmit);
        }
        for (id, state) in &before {
            let is_with_sender = self.views.get(id).is_none_or(|(_, own)| own.joins_the_same(path));
            assert!(is_with_sender || self.engine.state(*id) == *state, "{id} changed by another");
        }
        if let Err(Ignored::NotCm(_)) = result {
            assert_eq!(self.states(), before);
            assert!(!self.engine.has_events() && sent.len() <= 1);
            let is_refusal = |message| matches!(message, CmMessage::Rej(_));
            assert!(sent.iter().all(|transmit| is_refusal(transmit.message)));
        }
        self.hear(Some(path));
    }

    /// A datagram that came, or that the engine sent, comes again: from wherever.
    fn comes_again(&mut self, bytes: &mut Bytes<'_>) {
        let index = bytes.below(self.datagrams.len());
        let Some(&(original, mad)) = self.datagrams.get(index) else { return };
        let path = if bytes.flag() { original } else { path(bytes) };
        self.comes(&path, &mad);
    }

    fn keep(&mut self, transmit: &rdma_cm::engine::CmTransmit) {
        if self.datagrams.len() < 64 {
            let mut mad = [0; MAD_LEN];
            transmit.write(&mut mad);
            self.datagrams.push((transmit.path, mad));
        }
    }

    /// Takes what the engine tells; all of it is about connections with `path`, if one is given.
    fn hear(&mut self, path: Option<&CmPath>) {
        while let Some(event) = self.engine.poll_event() {
            let id = event.id();
            let own = match &event {
                CmEvent::Request { path, .. } | CmEvent::Lookup { path, .. } => *path,
                _ => self.views[&id].1,
            };
            assert!(path.is_none_or(|path| own.joins_the_same(path)), "{event:?}");
            self.named.push(id);
            match View::after(self.views.get(&id).map(|(view, _)| *view), &event) {
                Some(view) => self.views.insert(id, (view, own)),
                None => self.views.remove(&id),
            };
        }
        let sizes = self.engine.sizes();
        assert!(sizes.connections <= CONNECTIONS_MAX && sizes.timewait <= TIMEWAIT_MAX);
        assert!(sizes.timers <= sizes.connections && sizes.indices <= 3 * sizes.connections);
    }

    fn states(&self) -> Vec<(CommId, Option<ConnState>)> {
        let mut states: Vec<_> = self.views.keys().map(|&id| (id, self.engine.state(id))).collect();
        states.sort_by_key(|&(id, _)| id);
        states
    }

    /// The owner has done something.
    fn drain(&mut self) {
        while let Some(transmit) = self.engine.poll_transmit() {
            self.keep(&transmit);
        }
        self.hear(None);
    }

    fn wait(&mut self, nanos: u64) {
        let until = self.now.plus_nanos(nanos);
        while let Some(next) = self.engine.poll_timeout().filter(|&next| next <= until) {
            self.now = self.now.max(next);
            self.engine.handle_timeout(self.now);
            self.drain();
        }
        self.now = until;
    }

    /// The owner leaves; nothing may be left.
    fn end(&mut self) {
        let ids: Vec<_> = self.views.drain().map(|(id, _)| id).collect();
        ids.iter().for_each(|&id| self.engine.destroy(self.now, id));
        self.listeners.drain(..).for_each(|listener| self.engine.stop_listening(listener));
        self.drain();
        self.wait(FOR_EVER);
        assert!(self.views.is_empty(), "told of what was destroyed");
        assert_eq!(self.engine.sizes(), CmSizes::default(), "something is left");
    }
}

/// Between our address and one of three.
fn path(bytes: &mut Bytes<'_>) -> CmPath {
    CmPath::new(gid(1), gid(2 + bytes.next() % 3))
}

/// What peers say.
impl World {
    fn id(&self, bytes: &mut Bytes<'_>) -> CommId {
        match bytes.below(8) {
            0 => CommId(bytes.word()),
            _ => self.named[self.named.len() - 1 - bytes.below(self.named.len())],
        }
    }

    fn message(&self, path: &CmPath, bytes: &mut Bytes<'_>) -> CmMessage {
        // The peers' ids are few, so that they meet their own again.
        let local_comm_id = CommId(bytes.next().into());
        let remote_comm_id = self.id(bytes);
        let local_qpn = Qpn::new(u32::from(bytes.next() & 0xf) + 2);
        match bytes.below(11) {
            0 | 1 => CmMessage::Req(req(path, local_comm_id, local_qpn, bytes)),
            2 => CmMessage::Rep(Rep {
                local_comm_id,
                remote_comm_id,
                local_qpn,
                local_ca_guid: Guid(1),
                ..Rep::default()
            }),
            3 => CmMessage::Rtu(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }),
            4 => CmMessage::Dreq(Dreq {
                local_comm_id,
                remote_comm_id,
                remote_qpn: local_qpn,
                ..Dreq::default()
            }),
            5 => CmMessage::Drep(Drep { local_comm_id, remote_comm_id, ..Drep::default() }),
            6 => {
                let reason = [RejReason::STALE_CONNECTION, RejReason::TIMEOUT][bytes.below(2)];
                let mut info = FixedBytes::default();
                info.0[7] = 1;
                let message = answered(bytes);
                CmMessage::Rej(Rej {
                    local_comm_id,
                    remote_comm_id,
                    reason,
                    message,
                    info,
                    ..Rej::default()
                })
            }
            7 => CmMessage::Mra(Mra {
                local_comm_id,
                remote_comm_id,
                message: answered(bytes),
                service_timeout: bytes.timeout(),
                ..Mra::default()
            }),
            8 => CmMessage::SidrReq(SidrReq {
                request_id: local_comm_id,
                service_id: LOOKUPS,
                ..SidrReq::default()
            }),
            9 => {
                let status = SidrStatus(bytes.next());
                CmMessage::SidrRep(SidrRep {
                    request_id: remote_comm_id,
                    status,
                    ..SidrRep::default()
                })
            }
            _ => CmMessage::Lap(Lap { local_comm_id, remote_comm_id, ..Lap::default() }),
        }
    }
}

fn answered(bytes: &mut Bytes<'_>) -> AnsweredMessage {
    [AnsweredMessage::Req, AnsweredMessage::Rep, AnsweredMessage::Other][bytes.below(3)]
}

fn req(path: &CmPath, local_comm_id: CommId, local_qpn: Qpn, bytes: &mut Bytes<'_>) -> Req {
    Req {
        local_comm_id,
        service_id: CONNECTIONS,
        local_ca_guid: Guid(1),
        local_qpn,
        local_response_timeout: bytes.timeout(),
        path_mtu: PathMtu(Bits::new(3)),
        max_cm_retries: Bits::new(bytes.next() & 0xf),
        primary_path: Path {
            local_gid: path.remote.raw(),
            remote_gid: path.local.raw(),
            local_ack_timeout: bytes.timeout(),
            ..Path::default()
        },
        ..Req::default()
    }
}

/// What the owner does.
impl World {
    /// Begins something, or ends listening for a while.
    fn act(&mut self, bytes: &mut Bytes<'_>) {
        let path = path(bytes);
        match bytes.below(4) {
            0 | 1 => {
                let param = connect_param(path, bytes);
                if let Ok(id) = self.engine.connect(self.now, &param) {
                    self.named.push(id);
                    self.views.insert(id, (View::Asking, path));
                }
            }
            2 => {
                if let Ok(id) = self.engine.look_up(self.now, &lookup_param(path, bytes)) {
                    self.named.push(id);
                    self.views.insert(id, (View::LookingUp, path));
                }
            }
            _ => {
                for listener in std::mem::take(&mut self.listeners) {
                    self.engine.stop_listening(listener);
                }
                self.listen();
            }
        }
        self.drain();
    }

    /// Does something with a connection, whether it means something there or not.
    fn move_on(&mut self, bytes: &mut Bytes<'_>) {
        let id = self.id(bytes);
        let (engine, now) = (&mut self.engine, self.now);
        let before = engine.state(id);
        let to = match bytes.below(10) {
            0 => engine.accept(now, id, &accept_param(bytes)).map(|()| Some(View::Accepting)),
            1 => engine
                .reject(now, id, RejReason(bytes.next().into()), &[], &[])
                .map(|()| Some(View::Over)),
            2 => engine.hold(now, id, bytes.timeout(), bytes.flag()).map(|()| None),
            3 => engine.ready(now, id, &[]).map(|()| Some(View::Connected)),
            4 => engine.heard_from_peer(now, id).map(|()| None),
            5 => engine.disconnect(now, id, &[]).map(|()| Some(View::Parting)),
            6 => engine.agree(now, id, &[]).map(|()| Some(View::Over)),
            7 => {
                let answered = engine.answer_lookup(now, id, &lookup_answer(bytes));
                if answered.is_ok() {
                    self.views.remove(&id);
                }
                answered.map(|()| None)
            }
            8 => {
                engine.request_taken(id);
                Ok(None)
            }
            _ => {
                engine.destroy(now, id);
                self.views.remove(&id);
                Ok(None)
            }
        };
        match to {
            Ok(Some(view)) => {
                let path = self.views[&id].1;
                self.views.insert(id, (view, path));
            }
            Ok(None) => {}
            Err(_) => assert_eq!(self.engine.state(id), before, "refused, and yet changed"),
        }
        self.drain();
    }
}

fn connect_param(path: CmPath, bytes: &mut Bytes<'_>) -> ConnectParam {
    ConnectParam {
        path,
        service_id: CONNECTIONS,
        qpn: Qpn::new(u32::from(bytes.next() & 0x1f) + 2),
        transport: [TransportService::Rc, TransportService::Extended][bytes.below(2)],
        srq: false,
        starting_psn: Psn::new(0),
        path_mtu: PathMtu(Bits::new(3)),
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: false,
        retry_count: Bits::new(7),
        rnr_retry_count: Bits::new(7),
        pkey: PKey::DEFAULT,
        ack_timeout: bytes.timeout(),
        response_timeout: bytes.timeout(),
        max_cm_retries: Bits::new(bytes.next() & 0xf),
        ece: Ece::default(),
        private_data: FixedBytes::default(),
        peer_to_peer: bytes.next() == 0xff,
    }
}

fn accept_param(bytes: &mut Bytes<'_>) -> AcceptParam {
    AcceptParam {
        qpn: Qpn::new(u32::from(bytes.next() & 0x1f) + 2),
        srq: false,
        starting_psn: Psn::new(0),
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: false,
        rnr_retry_count: Bits::new(7),
        ece: Ece::default(),
        private_data: FixedBytes::default(),
    }
}

fn lookup_param(path: CmPath, bytes: &mut Bytes<'_>) -> LookupParam {
    LookupParam {
        path,
        service_id: LOOKUPS,
        pkey: PKey::DEFAULT,
        ack_timeout: bytes.timeout(),
        response_timeout: bytes.timeout(),
        max_cm_retries: Bits::new(bytes.next() & 0xf),
        private_data: FixedBytes::default(),
    }
}

fn lookup_answer(bytes: &mut Bytes<'_>) -> LookupAnswer {
    let answer = LookupAnswer::refusal(SidrStatus(bytes.next() & 3));
    LookupAnswer { qpn: Qpn::new(7), qkey: QKey::new(1), ..answer }
}
