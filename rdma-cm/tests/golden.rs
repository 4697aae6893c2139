//! The conversations of Linux's connection manager in the captures: two engines take the parts of
//! the two hosts, and each message that a host sent is to be the one that its engine sends.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashMap;
use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use common::{LOOKED_UP, accept_param, config, connect_param, lookup_answer, lookup_param};
use gid_table::Gid;
use pcap_file::pcap::PcapReader;
use rdma_cm::engine::{
    CmConfig, CmEngine, CmEvent, CmPath, CmSizes, CmTransmit, ConnState, Ignored, ListenFor,
    ListenOn,
};
use rxe_core::Instant;
use rxe_wire::Psn;
use rxe_wire::mad::cm::{CmMessage, CommId, Guid, ServiceId, TimeoutExponent};
use rxe_wire::mad::{MAD_LEN, Mad};

/// A message of the capture, and between which addresses it went.
struct Heard {
    source: Gid,
    destination: Gid,
    message: CmMessage,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../rxe-wire/testdata/golden")
}

/// Between which addresses a frame goes, and where its BTH begins.
fn addresses(frame: &[u8]) -> Option<(Gid, Gid, usize)> {
    let ip4 = |at: usize| {
        let bytes: [u8; 4] = frame[at..at + 4].try_into().unwrap();
        Gid::from_ip(Ipv4Addr::from(bytes).into())
    };
    let ip6 = |at: usize| {
        let bytes: [u8; 16] = frame[at..at + 16].try_into().unwrap();
        Gid::from_ip(Ipv6Addr::from(bytes).into())
    };
    match frame[12..14] {
        [0x08, 0x00] => Some((ip4(26), ip4(30), 14 + 20 + 8)),
        [0x86, 0xdd] => Some((ip6(22), ip6(38), 14 + 40 + 8)),
        _ => None,
    }
}

/// The messages of connection management in a capture (Ethernet, IPv4 or IPv6, UDP, to QP1).
fn conversation(name: &str) -> Vec<Heard> {
    let mut reader = PcapReader::new(File::open(folder().join(name)).unwrap()).unwrap();
    let mut heard = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let frame = packet.unwrap().data.into_owned();
        let Some((source, destination, bth)) = addresses(&frame) else { continue };
        if frame[bth] != 100 || frame[bth + 5..bth + 8] != [0, 0, 1] {
            continue;
        }
        let mad = Mad::parse(&frame[bth + 20..]).unwrap();
        heard.push(Heard { source, destination, message: CmMessage::parse(&mad).unwrap() });
    }
    heard
}

/// One of the two hosts.
struct Host {
    engine: CmEngine,
    /// The ids of the capture, and those of our engine that stand for them.
    ids: HashMap<CommId, CommId>,
    /// Messages that the engine has sent and that have not been compared yet.
    said: Vec<CmTransmit>,
    /// What came of each connection, in order.
    told: Vec<CmEvent>,
}

/// The two hosts of a conversation.
struct Play {
    now: Instant,
    hosts: HashMap<Gid, Host>,
}

impl Play {
    fn new(conversation: &[Heard]) -> Self {
        let mut hosts = HashMap::new();
        for (heard, seed) in conversation.iter().zip(1..) {
            let guid = match &heard.message {
                CmMessage::Req(req) => Some(req.local_ca_guid),
                CmMessage::Rep(rep) => Some(rep.local_ca_guid),
                _ => None,
            };
            hosts.entry(heard.source).or_insert_with(|| Host {
                engine: CmEngine::new(CmConfig {
                    ca_guid: guid.unwrap_or(Guid(9)),
                    ..config(seed)
                }),
                ids: HashMap::new(),
                said: Vec::new(),
                told: Vec::new(),
            });
        }
        Self { now: Instant::from_nanos(1), hosts }
    }

    /// A host does what makes its engine send `heard`; gives what it has sent.
    fn says(&mut self, heard: &Heard) -> [u8; MAD_LEN] {
        let path = CmPath::new(heard.source, heard.destination);
        let listens = match &heard.message {
            CmMessage::Req(req) => Some((req.service_id, ListenFor::AnyConnections)),
            CmMessage::SidrReq(request) => Some((request.service_id, ListenFor::Lookups)),
            _ => None,
        };
        if let Some((service, takes)) = listens {
            self.listen(heard.destination, service, takes);
        }
        let host = self.hosts.get_mut(&heard.source).unwrap();
        host.act(self.now, path, &heard.message);
        host.said.extend(std::iter::from_fn(|| host.engine.poll_transmit()));
        assert!(!host.said.is_empty(), "nothing said, {} expected", heard.message);
        let said = host.said.remove(0);
        host.learn(&heard.message, &said.message);

        let mut expected = heard.message;
        let (ours, theirs) = self.both(heard);
        rename(&mut expected, &ours, &theirs);
        assert_eq!(said.message, expected);
        assert!(said.path.joins_the_same(&path));

        let mut bytes = [0; MAD_LEN];
        said.write(&mut bytes);
        bytes
    }

    /// The other host gets it.
    fn gets(&mut self, heard: &Heard, bytes: &[u8]) {
        let back = CmPath::new(heard.destination, heard.source);
        let other = self.hosts.get_mut(&heard.destination).unwrap();
        match other.engine.handle_mad(self.now, &back, bytes) {
            Ok(()) => {}
            // Where DREQs have met, the end has come before the DREPs do.
            Err(Ignored::Known) if matches!(heard.message, CmMessage::Drep(_)) => {}
            Err(why) => panic!("{}: {why}", heard.message),
        }
        other.told.extend(std::iter::from_fn(|| other.engine.poll_event()));
        other.said.extend(std::iter::from_fn(|| other.engine.poll_transmit()));
    }

    fn listen(&mut self, host: Gid, service: ServiceId, takes: ListenFor) {
        let host = self.hosts.get_mut(&host).unwrap();
        // A capture may have several connections to one service.
        let _ = host.engine.listen(service, ListenOn::Any, takes, 10);
    }

    fn both(&self, heard: &Heard) -> (HashMap<CommId, CommId>, HashMap<CommId, CommId>) {
        let ids = |gid| self.hosts[&gid].ids.clone();
        (ids(heard.source), ids(heard.destination))
    }
}

impl Host {
    /// Does what makes the engine send `message`.
    fn act(&mut self, now: Instant, path: CmPath, message: &CmMessage) {
        match message {
            CmMessage::Req(req) => {
                let mut path = path;
                path.flow_label = req.primary_path.flow_label.get();
                let mut param = connect_param(path, req.local_qpn.get());
                param.service_id = req.service_id;
                param.starting_psn = req.starting_psn;
                param.responder_resources = req.responder_resources;
                param.initiator_depth = req.initiator_depth;
                param.flow_control = req.flow_control;
                param.retry_count = req.retry_count;
                param.rnr_retry_count = req.rnr_retry_count;
                param.srq = req.srq;
                param.ack_timeout = TimeoutExponent::new(19);
                param.private_data = req.private_data;
                self.engine.connect(now, &param).unwrap();
            }
            CmMessage::Rep(rep) => {
                let mut param = accept_param(rep.local_qpn.get());
                param.starting_psn = rep.starting_psn;
                param.responder_resources = rep.responder_resources;
                param.initiator_depth = rep.initiator_depth;
                param.flow_control = rep.flow_control;
                param.rnr_retry_count = rep.rnr_retry_count;
                param.private_data = rep.private_data;
                param.srq = rep.srq;
                let id = self.last(|event| matches!(event, CmEvent::Request { .. }));
                self.engine.accept(now, id, &param).unwrap();
            }
            CmMessage::Rtu(rtu) => {
                let id = self.ids[&rtu.local_comm_id];
                self.engine.ready(now, id, &rtu.private_data.0).unwrap();
            }
            CmMessage::Dreq(dreq) => {
                let id = self.ids[&dreq.local_comm_id];
                self.engine.disconnect(now, id, &dreq.private_data.0).unwrap();
            }
            CmMessage::Drep(drep) => {
                let id = self.ids[&drep.local_comm_id];
                // Where both have asked for the end, the engine agrees by itself.
                if self.engine.state(id) == Some(ConnState::DreqReceived) {
                    self.engine.agree(now, id, &drep.private_data.0).unwrap();
                }
            }
            CmMessage::SidrReq(request) => {
                let mut param = lookup_param(path);
                (param.service_id, param.private_data) = (request.service_id, request.private_data);
                self.engine.look_up(now, &param).unwrap();
            }
            CmMessage::SidrRep(reply) => {
                let id = self.last(|event| matches!(event, CmEvent::Lookup { .. }));
                let answer = lookup_answer(reply.qpn.get());
                self.engine.answer_lookup(now, id, &answer).unwrap();
            }
            other => panic!("no capture has {other}"),
        }
    }

    fn last(&self, is_wanted: impl Fn(&CmEvent) -> bool) -> CommId {
        self.told.iter().rfind(|event| is_wanted(event)).unwrap().id()
    }

    /// Which id of ours stands for one of the capture.
    fn learn(&mut self, theirs: &CmMessage, ours: &CmMessage) {
        let pair = match (theirs, ours) {
            (CmMessage::Req(theirs), CmMessage::Req(ours)) => {
                (theirs.local_comm_id, ours.local_comm_id)
            }
            (CmMessage::Rep(theirs), CmMessage::Rep(ours)) => {
                (theirs.local_comm_id, ours.local_comm_id)
            }
            (CmMessage::SidrReq(theirs), CmMessage::SidrReq(ours)) => {
                (theirs.request_id, ours.request_id)
            }
            _ => return,
        };
        self.ids.insert(pair.0, pair.1);
    }
}

/// Puts our ids in place of those of the capture.
fn rename(
    message: &mut CmMessage,
    senders: &HashMap<CommId, CommId>,
    receivers: &HashMap<CommId, CommId>,
) {
    let both = |local: &mut CommId, remote: &mut CommId| {
        *local = senders[local];
        *remote = receivers[remote];
    };
    match message {
        CmMessage::Req(req) => req.local_comm_id = senders[&req.local_comm_id],
        CmMessage::Rep(rep) => both(&mut rep.local_comm_id, &mut rep.remote_comm_id),
        CmMessage::Rtu(rtu) => both(&mut rtu.local_comm_id, &mut rtu.remote_comm_id),
        CmMessage::Dreq(dreq) => both(&mut dreq.local_comm_id, &mut dreq.remote_comm_id),
        CmMessage::Drep(drep) => both(&mut drep.local_comm_id, &mut drep.remote_comm_id),
        CmMessage::SidrReq(request) => request.request_id = senders[&request.request_id],
        CmMessage::SidrRep(reply) => reply.request_id = receivers[&reply.request_id],
        other => panic!("no capture has {other}"),
    }
}

/// Plays a capture; gives how many messages it has, and the events of both hosts.
fn play(name: &str) -> (usize, Vec<CmEvent>) {
    let conversation = conversation(name);
    let mut play = Play::new(&conversation);
    // DREQs that follow each other have met on the way.
    let have_met = |one: &Heard, next: &Heard| {
        let are_dreqs = [one, next].map(|heard| matches!(heard.message, CmMessage::Dreq(_)));
        are_dreqs == [true, true] && one.source != next.source
    };
    for together in conversation.chunk_by(have_met) {
        let said: Vec<_> = together.iter().map(|heard| play.says(heard)).collect();
        for (heard, bytes) in together.iter().zip(&said) {
            play.gets(heard, bytes);
        }
    }
    let mut told = Vec::new();
    for host in play.hosts.values_mut() {
        assert_eq!(host.said, [], "more than Linux has said");
        while let Some(next) = host.engine.poll_timeout() {
            host.engine.handle_timeout(next);
        }
        host.told.extend(std::iter::from_fn(|| host.engine.poll_event()));
        let lookups = host.told.iter().filter(|event| matches!(event, CmEvent::Found { .. }));
        let (lookups, listeners) = (lookups.count(), host.engine.sizes().listeners);
        // What was found is the owner's until it is destroyed.
        let left = CmSizes { connections: lookups, listeners, ..CmSizes::default() };
        assert_eq!(host.engine.sizes(), left, "nothing is left behind");
        told.append(&mut host.told);
    }
    (conversation.len(), told)
}

#[test]
fn connections_of_linux_drive_the_engine() {
    for name in ["rping", "rping6", "ucmatose", "rdma_client", "write_lat_cm", "rstream"] {
        let (messages, told) = play(&format!("{name}.pcap"));
        let count = |kind: fn(&CmEvent) -> bool| told.iter().filter(|e| kind(e)).count();
        let made = count(|event| matches!(event, CmEvent::Response { .. }));
        assert!(made > 0 && messages >= 5 * made, "{name}: {made} connections");
        assert_eq!(count(|event| matches!(event, CmEvent::Request { .. })), made);
        assert_eq!(count(|event| matches!(event, CmEvent::Ready { .. })), made);
        let ends = count(|event| matches!(event, CmEvent::Disconnected { .. }))
            + count(|event| matches!(event, CmEvent::Disconnecting { .. }));
        assert_eq!(ends, 2 * made, "{name}");
        assert_eq!(count(|event| matches!(event, CmEvent::TimewaitExit { .. })), 2 * made);
    }
}

#[test]
fn lookups_of_linux_drive_the_engine() {
    let (messages, told) = play("udaddy.pcap");
    assert_eq!(messages, 2);
    assert!(matches!(&told[..],
        [CmEvent::Lookup { .. }, CmEvent::Found { reply, .. }]
        | [CmEvent::Found { reply, .. }, CmEvent::Lookup { .. }]
        if reply.service_id == LOOKED_UP));
}

/// What a REQ or REP calls its starting PSN is that of the packets to its sender.
#[test]
fn a_starting_psn_is_what_the_other_side_starts_with() {
    for name in ["rping.pcap", "rping6.pcap", "ucmatose.pcap"] {
        let mut announced = HashMap::new();
        for heard in conversation(name) {
            match heard.message {
                CmMessage::Req(req) => announced.insert(heard.source, req.starting_psn),
                CmMessage::Rep(rep) => announced.insert(heard.source, rep.starting_psn),
                _ => None,
            };
        }
        let path = folder().join(name);
        let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
        let mut first = HashMap::new();
        while let Some(packet) = reader.next_packet() {
            let frame = packet.unwrap().data.into_owned();
            let Some((_, destination, bth)) = addresses(&frame) else { continue };
            // A request over a reliable connection.
            if frame[bth] <= 12 {
                let psn = &frame[bth + 9..bth + 12];
                let psn = Psn::new(u32::from_be_bytes([0, psn[0], psn[1], psn[2]]));
                first.entry(destination).or_insert(psn);
            }
        }
        assert_eq!(first, announced, "{name}");
        assert_eq!(first.len(), 2);
    }
}
