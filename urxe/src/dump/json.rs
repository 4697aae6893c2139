//! One JSON object a line, with every field. Numbers are plain, but for 64-bit ones, keys and
//! addresses, which are hex strings: many readers of JSON have only 53 bits.

use std::io::{self, Write};
use std::net::Ipv6Addr;

use rxe_wire::hdr::Bth;
use rxe_wire::icrc::Encapsulation;
use rxe_wire::mad::{Mad, MadHeader};
use rxe_wire::net::{Link, Net, Vlan};
use rxe_wire::{FlowNote, Headers, SyndromeKind};
use serde_json::{Map, Value, json};

use super::capture::Record;
use super::cm_json;
use super::decode::{Content, Roce, cm_message};
use super::summary::Summary;
use super::text;

/// Writes a record, and on lines of their own the packets of a super-frame.
pub(super) fn write_record(
    record: &Record,
    content: &Content<'_>,
    out: &mut impl Write,
) -> io::Result<()> {
    match content {
        Content::Roce(roce) => {
            let mut object = head(record, "roce");
            add_packet(&mut object, roce);
            line(object, out)
        }
        Content::SuperFrame(batch) => {
            let mut object = head(record, "super-frame");
            object.insert("segment_length".into(), batch.segment_len.into());
            object.insert("segments".into(), batch.packets.len().into());
            line(object, out)?;
            batch.packets.iter().try_for_each(|roce| {
                let mut object = head(record, "roce");
                add_packet(&mut object, roce);
                line(object, out)
            })
        }
        Content::Foreign(what) => told(record, "foreign", what, out),
        Content::Truncated(why) => told(record, "truncated", why, out),
        Content::Malformed(why) => told(record, "malformed", why, out),
    }
}

/// Writes the closing object.
pub(super) fn write_summary(summary: &Summary, out: &mut impl Write) -> io::Result<()> {
    let value = json!({
        "kind": "summary",
        "packets": summary.frames,
        "roce": summary.roce,
        "icrc_good": summary.icrc_good,
        "icrc_bad": summary.icrc_bad,
        "icrc_not_captured": summary.icrc_unknown,
        "super_frames": summary.super_frames,
        "malformed": summary.malformed,
        "truncated": summary.truncated,
        "foreign": summary.foreign,
    });
    writeln!(out, "{value}")
}

/// A number of 32 bits as hex.
pub(super) fn hex32(value: u32) -> Value {
    format!("0x{value:08x}").into()
}

/// A number of 64 bits as hex.
pub(super) fn hex64(value: u64) -> Value {
    format!("0x{value:016x}").into()
}

/// Bytes as hex without separators.
pub(super) fn hex(bytes: &[u8]) -> Value {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()
}

/// A GID in the form of an IPv6 address.
pub(super) fn gid(gid: [u8; 16]) -> Value {
    Ipv6Addr::from(gid).to_string().into()
}

fn line(object: Map<String, Value>, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", Value::Object(object))
}

fn head(record: &Record, kind: &str) -> Map<String, Value> {
    let time = record.time.map(|time| format!("{}.{:09}", time.as_secs(), time.subsec_nanos()));
    let mut object = Map::new();
    object.insert("number".into(), record.number.into());
    object.insert("time".into(), time.into());
    object.insert("kind".into(), kind.into());
    object.insert("frame_length".into(), record.frame_len.into());
    object.insert("captured_length".into(), record.captured_len.into());
    object
}

fn told(record: &Record, kind: &str, what: &str, out: &mut impl Write) -> io::Result<()> {
    let mut object = head(record, kind);
    object.insert("note".into(), what.into());
    line(object, out)
}

fn of_flow_note(note: &FlowNote) -> Value {
    json!({ "kind": note.kind.name(), "source_qpn": note.source_qpn.get(), "mark": note.mark })
}

fn add_packet(object: &mut Map<String, Value>, roce: &Roce<'_>) {
    let mut add = |name: &str, value: Value| object.insert(name.to_string(), value);
    if let Some(segment) = roce.segment {
        add("segment", segment.into());
    }
    if let Some(link) = &roce.link {
        add("link", of_link(link, roce.is_cooked));
    }
    let encapsulation = match roce.net.encapsulation() {
        Encapsulation::V1 => "RoCEv1",
        Encapsulation::V2Ipv4 => "RoCEv2 IPv4",
        Encapsulation::V2Ipv6 => "RoCEv2 IPv6",
    };
    add("encapsulation", encapsulation.into());
    for (name, value) in of_net(&roce.net) {
        add(name, value);
    }
    if let Some(bth) = Bth::read(roce.bytes) {
        add("bth", of_bth(&bth));
    }
    match &roce.packet {
        Ok(packet) => {
            for (name, value) in of_ext_headers(&packet.headers()) {
                add(name, value);
            }
            add("payload_length", packet.payload().len().into());
        }
        Err(error) => {
            match roce.flow_note() {
                Some(note) => add("flow_control", of_flow_note(&note)),
                None => add("malformed", error.to_string().into()),
            };
        }
    }
    match roce.mad() {
        Some(Ok(mad)) => {
            add("mad", of_mad(&mad));
        }
        Some(Err(error)) => {
            add("mad", json!({ "malformed": error.to_string() }));
        }
        None => {}
    }
    let icrc = roce.icrc.map(|icrc| {
        json!({
            "carried": hex32(icrc.carried),
            "computed": hex32(icrc.computed),
            "good": icrc.is_good(),
        })
    });
    add("icrc", icrc.into());
    let odd = roce.oddities();
    if !odd.is_empty() {
        add("odd", odd.into());
    }
}

fn of_link(link: &Link, is_cooked: bool) -> Value {
    let destination = (!is_cooked).then(|| link.ethernet.destination.to_string());
    let tag = |tag: Vlan| {
        json!({
            "id": tag.id,
            "priority": tag.priority,
            "drop_eligible": tag.drop_eligible,
        })
    };
    let tags: Vec<Value> = [link.vlan, link.inner_vlan].into_iter().flatten().map(tag).collect();
    json!({
        "source": link.ethernet.source.to_string(),
        "destination": destination,
        "vlan": tags,
    })
}

fn of_net(net: &Net) -> Vec<(&'static str, Value)> {
    let network = match net {
        Net::V1(grh) => (
            "grh",
            json!({
                "source": gid(grh.source),
                "destination": gid(grh.destination),
                "traffic_class": grh.traffic_class,
                "flow_label": grh.flow_label,
                "hop_limit": grh.hop_limit,
                "payload_length": grh.payload_len,
                "next_header": grh.next_header,
            }),
        ),
        Net::V4 { ip, .. } => (
            "ip",
            json!({
                "source": ip.source.to_string(),
                "destination": ip.destination.to_string(),
                "traffic_class": ip.traffic_class,
                "total_length": ip.total_len,
                "identification": ip.identification,
                "dont_fragment": ip.dont_fragment,
                "ttl": ip.ttl,
                "checksum": ip.checksum,
            }),
        ),
        Net::V6 { ip, .. } => (
            "ip",
            json!({
                "source": ip.source.to_string(),
                "destination": ip.destination.to_string(),
                "traffic_class": ip.traffic_class,
                "flow_label": ip.flow_label,
                "payload_length": ip.payload_len,
                "hop_limit": ip.hop_limit,
            }),
        ),
    };
    let udp = net.udp().map(|udp| {
        let value = json!({
            "source_port": udp.source_port,
            "destination_port": udp.destination_port,
            "length": udp.length,
            "checksum": udp.checksum,
        });
        ("udp", value)
    });
    [Some(network), udp].into_iter().flatten().collect()
}

fn of_bth(bth: &Bth) -> Value {
    json!({
        "opcode": bth.opcode.get(),
        "name": bth.opcode.to_string(),
        "solicited": bth.solicited,
        "migreq": bth.migreq,
        "pad": bth.pad,
        "transport_version": bth.tver,
        "pkey": bth.pkey.get(),
        "fecn": bth.fecn,
        "becn": bth.becn,
        "reserved6": bth.reserved6,
        "dest_qpn": bth.dest_qpn.get(),
        "ack_req": bth.ack_req,
        "reserved7": bth.reserved7,
        "psn": bth.psn.get(),
    })
}

fn of_ext_headers(headers: &Headers) -> Vec<(&'static str, Value)> {
    let fields = [
        headers
            .rdeth
            .map(|it| ("rdeth", json!({ "ee_context": it.ee_context, "reserved": it.reserved }))),
        headers.deth.map(|it| {
            let (qkey, source) = (hex32(it.qkey.get()), it.source_qpn.get());
            ("deth", json!({ "qkey": qkey, "source_qpn": source, "reserved": it.reserved }))
        }),
        headers.xrceth.map(|it| ("xrceth", json!({ "srqn": it.srqn, "reserved": it.reserved }))),
        headers.feth.map(|it| {
            let flush = text::flush(it.placement, it.selectivity);
            ("feth", json!({ "flush": flush.trim(), "reserved": it.reserved }))
        }),
        headers.reth.map(|it| {
            let rkey = hex32(it.rkey.get());
            ("reth", json!({ "va": hex64(it.va), "rkey": rkey, "length": it.len }))
        }),
        headers.atomic.map(|it| {
            let value = json!({
                "va": hex64(it.va),
                "rkey": hex32(it.rkey.get()),
                "swap_or_add": hex64(it.swap_or_add),
                "compare": hex64(it.compare),
            });
            ("atomic_eth", value)
        }),
        headers.aeth.map(|it| {
            let kind = match it.syndrome.kind() {
                SyndromeKind::Ack { .. } => "ack",
                SyndromeKind::Rnr { .. } => "rnr",
                SyndromeKind::Nak(_) => "nak",
                SyndromeKind::Reserved(_) => "reserved",
            };
            let value = json!({
                "syndrome": it.syndrome.to_byte(),
                "kind": kind,
                "text": it.syndrome.to_string(),
                "msn": it.msn.get(),
            });
            ("aeth", value)
        }),
        headers.atomic_ack.map(|it| ("atomic_ack_eth", json!({ "original": hex64(it.original) }))),
        headers.imm.map(|it| ("imm", hex32(it.0))),
        headers.ieth.map(|it| ("ieth", json!({ "rkey": hex32(it.0.get()) }))),
    ];
    fields.into_iter().flatten().collect()
}

fn of_mad(mad: &Mad<'_>) -> Value {
    let MadHeader { class, method, attribute_id, .. } = mad.header;
    let mut value = json!({
        "base_version": mad.header.base_version,
        "class": class.0,
        "class_version": mad.header.class_version,
        "method": method.0,
        "status": mad.header.status,
        "class_specific": mad.header.class_specific,
        "transaction_id": hex64(mad.header.transaction_id.0),
        "attribute_id": attribute_id.0,
        "attribute_modifier": mad.header.attribute_modifier,
    });
    let (name, content) = match cm_message(mad) {
        Ok(message) => ("cm", cm_json::of_message(&message)),
        Err(error) => ("note", error.to_string().into()),
    };
    if let Some(object) = value.as_object_mut() {
        object.insert(name.to_string(), content);
    }
    value
}
