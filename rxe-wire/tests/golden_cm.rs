//! Every message of connection management in the captures of the Linux driver, and the messages
//! that they lack, compared with what tshark reads: each field of either must be in the other.
//!
//! tshark 4.0 decodes REQ, REP, RTU, REJ, DREQ and DREP. Of MRA, LAP, APR, SIDR_REQ and SIDR_REP it
//! shows the MAD header and the bare data; their fields stand in the layout tables of the unit
//! tests.

// A test may unwrap in its helpers too.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use rxe_wire::mad::cm::{
    self, AnsweredMessage, Apr, AprStatus, Bits, CMA_HEADER_LEN, CmMessage, CmaHeader, CommId,
    Drep, Dreq, FixedBytes, FlowLabel, Guid, Lap, Mra, PathMtu, PortSpace, Rej, RejReason, Rep,
    Req, Rtu, ServiceId, SidrRep, SidrReq, SidrStatus, TimeoutExponent, TransportService, U24,
};
use rxe_wire::mad::{MAD_DATA_LEN, MAD_LEN, Mad, TransactionId};
use rxe_wire::{PKey, Psn, QKey, Qpn};

/// What a field is, as far as two programs can agree on it.
#[derive(PartialEq, Debug)]
enum Value {
    Number(u64),
    /// Hex without separators, or an address as text.
    Text(String),
}

type Fields = BTreeMap<String, Value>;

/// Collects our reading of a message under tshark's names.
#[derive(Default)]
struct Ours(Fields);

impl Ours {
    fn number(&mut self, name: &str, value: impl Into<u64>) {
        self.0.insert(format!("infiniband.{name}"), Value::Number(value.into()));
    }

    fn text(&mut self, name: &str, value: impl ToString) {
        self.0.insert(format!("infiniband.{name}"), Value::Text(value.to_string()));
    }

    fn bytes(&mut self, name: &str, value: &[u8]) {
        let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
        self.text(name, hex);
    }

    fn mad(&mut self, mad: &Mad<'_>) {
        let header = mad.header;
        self.number("mad.baseversion", header.base_version);
        self.number("mad.mgmtclass", header.class.0);
        self.number("mad.classversion", header.class_version);
        self.number("mad.method", header.method.0);
        self.number("mad.status", header.status);
        self.number("mad.classspecific", header.class_specific);
        self.number("mad.transactionid", header.transaction_id.0);
        self.number("mad.attributeid", header.attribute_id.0);
        self.number("mad.attributemodifier", header.attribute_modifier);
        self.bytes("mad.data", mad.data);
    }

    fn message(&mut self, message: &CmMessage) {
        match message {
            CmMessage::Req(req) => self.req(req, message.cma_header()),
            CmMessage::Rep(rep) => self.rep(rep),
            CmMessage::Rej(rej) => self.rej(rej),
            CmMessage::Rtu(rtu) => {
                self.number("cm.rtu.localcommid", rtu.local_comm_id.0);
                self.number("cm.rtu.remotecommid", rtu.remote_comm_id.0);
                self.bytes("cm.rtu.private", &rtu.private_data.0);
            }
            CmMessage::Dreq(dreq) => {
                self.number("cm.dreq.localcommid", dreq.local_comm_id.0);
                self.number("cm.dreq.remotecommid", dreq.remote_comm_id.0);
                self.number("cm.req.remoteqpneecn", dreq.remote_qpn.get());
                self.bytes("cm.dreq.private", &dreq.private_data.0);
            }
            CmMessage::Drep(drep) => {
                self.number("cm.drsp.localcommid", drep.local_comm_id.0);
                self.number("cm.drsp.remotecommid", drep.remote_comm_id.0);
                self.bytes("cm.drsp.private", &drep.private_data.0);
            }
            // tshark shows the bare data of these.
            CmMessage::Mra(_)
            | CmMessage::SidrReq(_)
            | CmMessage::SidrRep(_)
            | CmMessage::Lap(_)
            | CmMessage::Apr(_) => {}
        }
    }

    fn req(&mut self, req: &Req, cma: Option<CmaHeader>) {
        self.number("cm.req", req.local_comm_id.0);
        self.number("cm.req.serviceid", req.service_id.0);
        self.number("cm.req.localcaguid", req.local_ca_guid.0);
        self.number("cm.req.localqkey", req.local_qkey.get());
        self.number("cm.req.localqpn", req.local_qpn.get());
        self.number("cm.req.responderres", req.responder_resources);
        self.number("cm.req.localeecn", req.local_eecn.get());
        self.number("cm.req.initdepth", req.initiator_depth);
        self.number("cm.req.remoteeecn", req.remote_eecn.get());
        self.number("cm.req.remoteresptout", req.remote_response_timeout.get());
        self.number("cm.req.transpsvctype", req.service.code());
        self.number("cm.req.e2eflowctrl", req.flow_control);
        self.number("cm.req.startpsn", req.starting_psn.get());
        self.number("cm.req.localresptout", req.local_response_timeout.get());
        self.number("cm.req.retrcount", req.retry_count.get());
        self.number("cm.req.pkey", req.pkey.get());
        self.number("cm.req.pppmtu", req.path_mtu.0.get());
        self.number("cm.req.rdcexist", req.rdc_exists);
        self.number("cm.req.rnrretrcount", req.rnr_retry_count.get());
        self.number("cm.req.maxcmretr", req.max_cm_retries.get());
        self.number("cm.req.srq", req.srq);
        self.number("cm.req.ext_transport", req.extended_transport.get());
        self.req_path("prim", &req.primary_path);
        self.req_path("alt", &req.alternate_path);
        match cma {
            Some(cma) => self.cma(req, &cma),
            None => self.bytes("cm.req.private", &req.private_data.0),
        }
    }

    fn req_path(&mut self, which: &str, path: &cm::Path) {
        let name = |field: &str| format!("cm.req.{which}_{field}");
        self.number(&name("locallid"), path.local_lid);
        self.number(&name("remotelid"), path.remote_lid);
        for (field, gid) in [("localgid", path.local_gid), ("remotegid", path.remote_gid)] {
            let address = Ipv6Addr::from(gid);
            match (which, address.to_ipv4_mapped()) {
                ("alt", _) => self.bytes(&name(field), &gid),
                (_, Some(v4)) => self.text(&name(&format!("{field}_ipv4")), v4),
                (_, None) => self.text(&name(field), address),
            }
        }
        self.number(&name("flowlabel"), path.flow_label.get());
        self.number(&name("pktrate"), path.packet_rate.get());
        self.number(&name("tfcclass"), path.traffic_class);
        self.number(&name("hoplim"), path.hop_limit);
        self.number(&name("sl"), path.service_level.get());
        self.number(&name("subnetlocal"), path.subnet_local);
        self.number(&name("localacktout"), path.local_ack_timeout.get());
        let [after_label, after_local, after_timeout] = path.reserved.0;
        self.number(&name("reserved0"), after_label);
        if which == "prim" {
            self.number(&name("reserved1"), after_local);
            self.number(&name("reserved2"), after_timeout);
        } else {
            // tshark gives both fields of the alternate path one name.
            let both = format!("0x{after_local:02x},0x{after_timeout:02x}");
            self.text(&name("reserved1"), both);
        }
    }

    fn cma(&mut self, req: &Req, cma: &CmaHeader) {
        self.bytes("cm.req.serviceid.prefix", &req.service_id.0.to_be_bytes()[..5]);
        self.number("cm.req.serviceid.protocol", (req.service_id.0 >> 16) as u8);
        self.number("cm.req.serviceid.dport", req.service_id.port());
        self.bytes("cm.req.ip_cm", &req.private_data.0);
        self.number("cm.req.ip_cm.majv", cma.version >> 4);
        self.number("cm.req.ip_cm.minv", cma.version & 0xf);
        self.number("cm.req.ip_cm.ipv", cma.ip_version.get());
        self.number("cm.req.ip_cm.reserved", cma.reserved.get());
        self.number("cm.req.ip_cm.sport", cma.source_port);
        let version = cma.ip_version.get();
        self.text(&format!("cm.req.ip_cm.sip{version}"), cma.source_ip().unwrap());
        self.text(&format!("cm.req.ip_cm.dip{version}"), cma.destination_ip().unwrap());
        self.bytes("cm.req.ip_cm.private", &req.private_data.0[CMA_HEADER_LEN..]);
    }

    fn rep(&mut self, rep: &Rep) {
        self.number("cm.rep", rep.local_comm_id.0);
        self.number("cm.rep.remotecommid", rep.remote_comm_id.0);
        self.number("cm.rep.localqkey", rep.local_qkey.get());
        self.number("cm.rep.localqpn", rep.local_qpn.get());
        self.number("cm.rep.localeecn", rep.local_eecn.get());
        self.number("cm.rep.startpsn", rep.starting_psn.get());
        self.number("cm.rep.respres", rep.responder_resources);
        self.number("cm.rep.initdepth", rep.initiator_depth);
        self.number("cm.rep.tgtackdelay", rep.target_ack_delay.get());
        self.number("cm.rep.failoveracc", rep.failover_accepted.get());
        self.number("cm.rep.e2eflowctrl", rep.flow_control);
        self.number("cm.rep.rnrretrcount", rep.rnr_retry_count.get());
        self.number("cm.rep.srq", rep.srq);
        self.number("cm.rep.reserved", rep.reserved.get());
        self.number("cm.rep.localcaguid", rep.local_ca_guid.0);
        self.bytes("cm.rep.private", &rep.private_data.0);
    }

    fn rej(&mut self, rej: &Rej) {
        self.number("cm.rej.localcommid", rej.local_comm_id.0);
        self.number("cm.rej.remotecommid", rej.remote_comm_id.0);
        self.number("cm.rej.msgrej", rej.message.code());
        // Six bits are reserved here, of which tshark shows the last two.
        self.number("cm.rej.reserved0", rej.reserved.0[0] & 0b11);
        self.number("cm.rej.rejinfolen", rej.info_len.get());
        self.number("cm.rej.reserved1", rej.reserved.0[1]);
        self.number("cm.rej.reason", rej.reason.0);
        self.bytes("cm.rej.ari", &rej.info.0);
        self.bytes("cm.rej.private", &rej.private_data.0);
    }
}

/// Whether tshark is there. Under CI it must be.
fn tshark_is_there() -> bool {
    let there = Command::new("tshark").arg("--version").output().is_ok();
    let ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
    assert!(there || !ci, "tshark is missing, and CI=true");
    if !there {
        // Not by a macro: what a test prints by one is seen only when it fails.
        let _ = std::io::stderr().write_all(b"left out: tshark is missing\n");
    }
    there
}

fn tshark(arguments: &[&str]) -> String {
    let output = Command::new("tshark").args(arguments).output().unwrap();
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Every field name that tshark has for MADs and connection management.
fn field_names() -> Vec<String> {
    let names: BTreeSet<String> = tshark(&["-G", "fields"])
        .lines()
        .filter_map(|line| line.split('\t').nth(2))
        .filter(|name| ["infiniband.mad.", "infiniband.cm."].iter().any(|p| name.starts_with(p)))
        .map(str::to_string)
        .collect();
    assert!(names.len() > 80, "{names:?}");
    names.into_iter().collect()
}

/// tshark's reading of the MADs in a capture: by frame number, from 1.
fn read_by_tshark(capture: &Path, names: &[String]) -> BTreeMap<usize, Fields> {
    let mut arguments = vec!["--disable-protocol", "rpcordma", "-r", capture.to_str().unwrap()];
    arguments.extend(["-Y", "infiniband.mad", "-T", "fields", "-E", "separator=/t"]);
    arguments.extend(["-e", "frame.number", "-e", "_ws.malformed"]);
    arguments.extend(names.iter().flat_map(|name| ["-e", name]));
    tshark(&arguments)
        .lines()
        .map(|line| {
            let mut cells = line.split('\t');
            let number = cells.next().unwrap().parse().unwrap();
            assert_eq!(cells.next(), Some(""), "frame {number} is malformed");
            let fields = names.iter().zip(cells).filter(|(_, cell)| !cell.is_empty());
            (number, fields.map(|(name, cell)| (name.clone(), value(name, cell))).collect())
        })
        .collect()
}

fn value(name: &str, cell: &str) -> Value {
    // Bytes look like numbers at times: what holds bytes is known by name.
    let is_bytes =
        ["private", "mad.data", "prefix", "ari", "ip_cm", "alt_localgid", "alt_remotegid"]
            .iter()
            .any(|ending| name.ends_with(ending));
    let number = match cell.strip_prefix("0x") {
        _ if is_bytes => None,
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => cell.parse().ok(),
    };
    number.map_or_else(|| Value::Text(cell.to_string()), Value::Number)
}

/// The frames of a capture.
fn frames(capture: &Path) -> Vec<Vec<u8>> {
    let mut reader = PcapReader::new(File::open(capture).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.unwrap().data.into_owned());
    }
    frames
}

/// The MAD in a frame, when it is a UD SEND for QP1 over RoCEv2 without VLAN.
fn mad_of(frame: &[u8]) -> Option<&[u8]> {
    let ip_len = match frame[12..14] {
        [0x08, 0x00] => 20,
        [0x86, 0xdd] => 40,
        _ => return None,
    };
    let bth = &frame[14 + ip_len + 8..];
    let is_for_gsi = bth[0] == 100 && bth[5..8] == [0, 0, 1];
    is_for_gsi.then(|| &bth[20..bth.len() - 4])
}

/// Reads the MAD as a message, sees that it is written back the same, and gives our reading.
fn read_by_us(bytes: &[u8]) -> (CmMessage, Fields) {
    let mad = Mad::parse(bytes).unwrap();
    let message = CmMessage::parse(&mad).unwrap();
    let mut data = [0; MAD_DATA_LEN];
    message.write(&mut data);
    let mut again = [0; MAD_LEN];
    Mad { header: mad.header, data: &data }.write(&mut again);
    assert_eq!(again, bytes, "{message:?}");
    let mut ours = Ours::default();
    ours.mad(&mad);
    ours.message(&message);
    (message, ours.0)
}

fn captures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden");
    let mut captures: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap"))
        .collect();
    captures.sort();
    captures
}

/// Puts right what tshark 4.0 gets wrong in the paths of a REQ: of the word that holds flow label
/// (20 bits), reserved bits (6) and packet rate (6), it shows the first 12 bits as the flow label,
/// and the first byte for the others. A version that reads the right bits passes as it is.
fn repair_flow_labels(theirs: &mut Fields, message: &CmMessage) {
    let CmMessage::Req(req) = message else { return };
    for (which, path) in [("prim", req.primary_path), ("alt", req.alternate_path)] {
        let label = path.flow_label.get();
        let first_byte = label >> 12;
        let repairs = [
            ("flowlabel", label >> 8, label),
            ("reserved0", first_byte >> 6, path.reserved.0[0].into()),
            ("pktrate", first_byte & 0x3f, path.packet_rate.get().into()),
        ];
        for (field, wrong, right) in repairs {
            let name = format!("infiniband.cm.req.{which}_{field}");
            let value = theirs.get_mut(&name).unwrap();
            if *value == Value::Number(wrong.into()) {
                *value = Value::Number(right.into());
            }
        }
    }
}

/// Compares the two readings of a capture, and gives the messages in it.
fn compare(capture: &Path, names: Option<&[String]>) -> Vec<CmMessage> {
    let mads: Vec<_> = frames(capture)
        .iter()
        .enumerate()
        .filter_map(|(index, frame)| Some((index + 1, read_by_us(mad_of(frame)?))))
        .collect();
    if let (Some(names), false) = (names, mads.is_empty()) {
        let mut theirs = read_by_tshark(capture, names);
        let numbers: Vec<usize> = mads.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, theirs.keys().copied().collect::<Vec<_>>(), "{}", capture.display());
        for (number, (message, ours)) in &mads {
            repair_flow_labels(theirs.get_mut(number).unwrap(), message);
            assert_eq!(ours, &theirs[number], "{} {number} {message}", capture.display());
        }
    }
    mads.into_iter().map(|(_, (message, _))| message).collect()
}

#[test]
fn messages_in_the_captures_are_what_tshark_says() {
    let names = tshark_is_there().then(field_names);
    let captures = captures();
    assert_eq!(captures.len(), 24);
    let messages: Vec<CmMessage> =
        captures.iter().flat_map(|capture| compare(capture, names.as_deref())).collect();
    // As many as `tshark -Y infiniband.mad` counts in all the captures.
    assert_eq!(messages.len(), 44);
    for message in &messages {
        assert!(has_no_reserved_bits(message), "Linux sends zeros: {message:?}");
    }
}

fn has_no_reserved_bits(message: &CmMessage) -> bool {
    let zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
    match message {
        CmMessage::Req(req) => {
            let paths = [req.primary_path, req.alternate_path];
            zero(&req.reserved.0) && paths.iter().all(|path| zero(&path.reserved.0))
        }
        CmMessage::Rep(rep) => rep.reserved.get() == 0,
        CmMessage::Dreq(dreq) => zero(&dreq.reserved.0),
        CmMessage::SidrReq(sidr_req) => zero(&sidr_req.reserved.0),
        CmMessage::Rtu(_) | CmMessage::Drep(_) | CmMessage::SidrRep(_) => true,
        CmMessage::Mra(_) | CmMessage::Rej(_) | CmMessage::Lap(_) | CmMessage::Apr(_) => {
            panic!("the captures have none of these: {message}")
        }
    }
}

/// Path with a value in every field.
fn path(local: [u8; 16], remote: [u8; 16]) -> cm::Path {
    cm::Path {
        local_lid: 0x1234,
        remote_lid: 0xfedc,
        local_gid: local,
        remote_gid: remote,
        flow_label: FlowLabel::new(0xabcde),
        packet_rate: Bits::new(0x2b),
        traffic_class: 0x6d,
        hop_limit: 0x41,
        service_level: Bits::new(9),
        subnet_local: true,
        local_ack_timeout: TimeoutExponent::new(0x13),
        reserved: FixedBytes([0x2d, 5, 3]),
    }
}

fn req_for(service_id: ServiceId, private_data: FixedBytes<92>) -> Req {
    let global = |last| Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, last).octets();
    let mapped = |last| Ipv4Addr::new(10, 77, 0, last).to_ipv6_mapped().octets();
    Req {
        local_comm_id: CommId(0xc1c2_c3c4),
        vendor_id: U24::default(),
        service_id,
        local_ca_guid: Guid(0x0102_0304_0506_0708),
        local_qkey: QKey::new(0x0bad_cafe),
        local_qpn: Qpn::new(0x12_3456),
        responder_resources: 0x21,
        local_eecn: U24::new(0x65_4321),
        initiator_depth: 0x43,
        remote_eecn: U24::new(0x0f_0e0d),
        remote_response_timeout: TimeoutExponent::new(0x15),
        service: TransportService::Extended,
        flow_control: true,
        starting_psn: Psn::new(0xfe_dcba),
        local_response_timeout: TimeoutExponent::new(0x0a),
        retry_count: Bits::new(5),
        pkey: PKey::new(0x8765),
        path_mtu: PathMtu(Bits::new(4)),
        rdc_exists: true,
        rnr_retry_count: Bits::new(3),
        max_cm_retries: Bits::new(0xb),
        srq: true,
        extended_transport: Bits::new(1),
        // Around IPv4 tshark shows the last four bytes of these GIDs, whatever the others are.
        primary_path: path(mapped(1), mapped(2)),
        alternate_path: path(mapped(3), global(4)),
        private_data,
        reserved: FixedBytes::default(),
    }
}

fn filled<const N: usize>() -> FixedBytes<N> {
    FixedBytes(std::array::from_fn(|place| place as u8 ^ 0xa5))
}

const LOCAL: CommId = CommId(0xa1a2_a3a4);
const REMOTE: CommId = CommId(0xb1b2_b3b4);
const REMOTE_QPN: Qpn = Qpn::new(0x98_7654);

/// One message of each kind, and those variants that look different to tshark.
fn messages_of_our_own() -> Vec<CmMessage> {
    let mut cma = [0; CMA_HEADER_LEN];
    let [source, destination] = [5, 6].map(|last| Ipv6Addr::new(0xfd00, 1, 2, 3, 4, 0, 0, last));
    CmaHeader::v6(0xd431, source, destination).write(&mut cma);
    let mut with_cma = filled::<92>();
    with_cma.0[..CMA_HEADER_LEN].copy_from_slice(&cma);
    let tcp = ServiceId::ip(PortSpace::Tcp, 7471);
    let foreign = ServiceId(0x1000_cec0_0000_0007);
    let private_data = filled();
    let (local_comm_id, remote_comm_id) = (LOCAL, REMOTE);
    vec![
        CmMessage::Req(req_for(tcp, with_cma)),
        CmMessage::Req(req_for(foreign, filled())),
        CmMessage::Rep(rep()),
        CmMessage::Rtu(Rtu { local_comm_id, remote_comm_id, private_data }),
        CmMessage::Drep(Drep { local_comm_id, remote_comm_id, private_data }),
        CmMessage::Dreq(Dreq {
            local_comm_id,
            remote_comm_id,
            remote_qpn: REMOTE_QPN,
            private_data: filled(),
            ..Dreq::default()
        }),
        CmMessage::Mra(Mra {
            local_comm_id,
            remote_comm_id,
            message: AnsweredMessage::Rep,
            service_timeout: TimeoutExponent::new(0x18),
            private_data: filled(),
            ..Mra::default()
        }),
        CmMessage::Rej(Rej {
            local_comm_id,
            remote_comm_id,
            message: AnsweredMessage::Other,
            info_len: Bits::new(72),
            reason: RejReason::STALE_CONNECTION,
            info: filled(),
            private_data: filled(),
            reserved: FixedBytes([0x2a, 1]),
        }),
        CmMessage::Lap(lap()),
        CmMessage::Apr(apr()),
        CmMessage::SidrReq(sidr_req()),
        CmMessage::SidrRep(sidr_rep()),
    ]
}

fn rep() -> Rep {
    Rep {
        local_comm_id: LOCAL,
        remote_comm_id: REMOTE,
        local_qkey: QKey::new(0x0123_4567),
        local_qpn: REMOTE_QPN,
        local_eecn: U24::new(0x11_2233),
        starting_psn: Psn::new(0x44_5566),
        vendor_id: U24::default(),
        responder_resources: 0x12,
        initiator_depth: 0x34,
        target_ack_delay: TimeoutExponent::new(0x0f),
        failover_accepted: Bits::new(2),
        flow_control: true,
        rnr_retry_count: Bits::new(6),
        srq: true,
        local_ca_guid: Guid(0x1020_3040_5060_7080),
        private_data: filled(),
        reserved: Bits::new(5),
    }
}

fn lap() -> Lap {
    Lap {
        local_comm_id: LOCAL,
        remote_comm_id: REMOTE,
        remote_qpn: REMOTE_QPN,
        remote_response_timeout: TimeoutExponent::new(0x14),
        alternate_path: path([1; 16], [2; 16]),
        private_data: filled(),
        ..Lap::default()
    }
}

fn apr() -> Apr {
    Apr {
        local_comm_id: LOCAL,
        remote_comm_id: REMOTE,
        info_len: 3,
        status: AprStatus::INVALID_LID,
        info: filled(),
        private_data: filled(),
        ..Apr::default()
    }
}

fn sidr_req() -> SidrReq {
    SidrReq {
        request_id: LOCAL,
        pkey: PKey::DEFAULT,
        service_id: ServiceId::ip(PortSpace::Udp, 7174),
        private_data: filled(),
        ..SidrReq::default()
    }
}

fn sidr_rep() -> SidrRep {
    SidrRep {
        request_id: LOCAL,
        status: SidrStatus::REJECT,
        qpn: REMOTE_QPN,
        service_id: ServiceId::ip(PortSpace::Tcp, 7471),
        qkey: QKey::new(0x0123_4567),
        private_data: filled(),
        ..SidrRep::default()
    }
}

/// A whole RoCEv2 frame over IPv4 around a MAD, the headers written out byte by byte.
fn frame_around(mad: &[u8; MAD_LEN]) -> Vec<u8> {
    let mut frame = vec![0x52, 0x54, 0, 0x77, 0, 1, 0x52, 0x54, 0, 0x77, 0, 2, 0x08, 0x00];
    // IPv4: 308 bytes, identification 7, don't fragment, TTL 64, UDP, header checksum.
    frame.extend([0x45, 0, 0x01, 0x34, 0, 7, 0x40, 0, 64, 17, 0x25, 0x16]);
    frame.extend([10, 77, 0, 2, 10, 77, 0, 1]);
    // UDP: port 49152 to 4791, 288 bytes, no checksum.
    frame.extend([0xc0, 0, 0x12, 0xb7, 0x01, 0x20, 0, 0]);
    // BTH: UD SEND only, P_Key 0xffff, QP1, PSN 5.
    frame.extend([100, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 5]);
    // DETH: Q_Key of the QP1s, source QP1.
    frame.extend([0x80, 1, 0, 0, 0, 0, 0, 1]);
    frame.extend(mad);
    frame.extend([0; 4]);
    rxe_wire::icrc::seal_l3(&mut frame[14..]).unwrap();
    frame
}

#[test]
fn messages_of_our_own_are_read_by_tshark() {
    let capture = std::env::temp_dir().join(format!("golden-cm-{}.pcap", std::process::id()));
    let header = PcapHeader { datalink: DataLink::ETHERNET, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(File::create(&capture).unwrap(), header).unwrap();
    let messages = messages_of_our_own();
    for (index, message) in messages.iter().enumerate() {
        let mut mad = [0; MAD_LEN];
        message.write_mad(TransactionId(0x1122_3344_5566_0000 + index as u64), &mut mad);
        let frame = frame_around(&mad);
        let time = Duration::from_secs(index as u64);
        writer.write_packet(&PcapPacket::new(time, frame.len() as u32, &frame)).unwrap();
    }
    drop(writer);
    let names = tshark_is_there().then(field_names);
    let read = compare(&capture, names.as_deref());
    std::fs::remove_file(&capture).unwrap();
    assert_eq!(read, messages);
    let kinds: BTreeSet<u16> = read.iter().map(|message| message.attribute_id().0).collect();
    assert_eq!(kinds, (0x10..=0x1a).collect(), "one of each kind");
}
