//! One line a packet, in the way of tcpdump.

use std::io::{self, Write};
use std::time::Duration;

use rxe_wire::hdr::{Bth, FlushPlacement, FlushSelectivity};
use rxe_wire::icrc::IcrcCheck;
use rxe_wire::net::{Link, Net};
use rxe_wire::{FlowNote, Headers, Packet};

use super::capture::Record;
use super::decode::{Content, Roce, cm_message};

const SECONDS_PER_DAY: u64 = 86_400;

/// Writes a record, and on lines of their own the packets of a super-frame.
pub(super) fn write_record(
    record: &Record,
    content: &Content<'_>,
    verbose: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let number = record.number;
    let time = time_of_day(record.time);
    match content {
        Content::Roce(roce) => {
            let mut line = format!("{number} {time} {}", packet(roce, verbose));
            if record.is_cut() {
                let (have, of) = (record.captured_len, record.frame_len);
                push(&mut line, format_args!(" | truncated: {have} of {of} bytes captured"));
            }
            writeln!(out, "{line}")
        }
        Content::SuperFrame(batch) => {
            let (count, len) = (batch.packets.len(), batch.segment_len);
            writeln!(
                out,
                "{number} {time} super-frame: {count} packets, {len} bytes each from BTH to iCRC \
                 but the last, joined by segmentation offload"
            )?;
            batch.packets.iter().enumerate().try_for_each(|(index, roce)| {
                writeln!(out, "{number}.{} {time} {}", index + 1, packet(roce, verbose))
            })
        }
        Content::Foreign(what) => writeln!(out, "{number} {time} not RoCE: {what}"),
        Content::Truncated(why) => writeln!(out, "{number} {time} truncated: {why}"),
        Content::Malformed(why) => writeln!(out, "{number} {time} malformed: {why}"),
    }
}

/// Time of day in UTC, in microseconds.
pub(super) fn time_of_day(time: Option<Duration>) -> String {
    let Some(time) = time else { return "-".to_string() };
    let seconds = time.as_secs() % SECONDS_PER_DAY;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02}.{:06}", time.subsec_micros())
}

fn packet(roce: &Roce<'_>, verbose: bool) -> String {
    let mut line = String::new();
    if let Some(link) = &roce.link {
        push_link(&mut line, link, roce.is_cooked, verbose);
    }
    push_net(&mut line, &roce.net, verbose);
    match &roce.packet {
        Ok(packet) => push_packet(&mut line, packet, roce),
        Err(error) => {
            if let Some(bth) = Bth::read(roce.bytes) {
                push_bth(&mut line, &bth);
            }
            match roce.flow_note() {
                Some(note) => push_flow_note(&mut line, &note),
                None => push(&mut line, format_args!(" | malformed: {error}")),
            }
        }
    }
    push_icrc(&mut line, roce.icrc);
    for oddity in roce.oddities() {
        push(&mut line, format_args!(" | odd: {oddity}"));
    }
    line
}

fn push_flow_note(line: &mut String, note: &FlowNote) {
    let FlowNote { source_qpn, mark, .. } = note;
    let what = note.kind.name();
    push(line, format_args!(" | urxe flow control {what} from {source_qpn} mark {mark}"));
}

/// Adds to a line.
fn push(line: &mut String, text: std::fmt::Arguments<'_>) {
    line.push_str(&text.to_string());
}

fn push_link(line: &mut String, link: &Link, is_cooked: bool, verbose: bool) {
    if verbose {
        push(line, format_args!("{} > ", link.ethernet.source));
        match is_cooked {
            true => push(line, format_args!("? ")),
            false => push(line, format_args!("{} ", link.ethernet.destination)),
        }
    }
    for tag in [link.vlan, link.inner_vlan].into_iter().flatten() {
        push(line, format_args!("vlan {} priority {} ", tag.id, tag.priority));
    }
}

fn push_net(line: &mut String, net: &Net, verbose: bool) {
    match net {
        Net::V1(grh) => {
            let [source, destination] = [grh.source, grh.destination].map(std::net::Ipv6Addr::from);
            push(line, format_args!("{source} > {destination} RoCEv1"));
        }
        Net::V4 { ip, udp } => {
            let (port, to) = (udp.source_port, udp.destination_port);
            push(line, format_args!("{}:{port} > {}:{to} RoCEv2", ip.source, ip.destination));
        }
        Net::V6 { ip, udp } => {
            let (port, to) = (udp.source_port, udp.destination_port);
            push(line, format_args!("[{}]:{port} > [{}]:{to} RoCEv2", ip.source, ip.destination));
        }
    }
    if !verbose {
        return;
    }
    let (class, hops) = (net.traffic_class(), net.hop_limit());
    push(line, format_args!(" class 0x{class:02x} hops {hops}"));
    match net {
        Net::V1(grh) => push(line, format_args!(" flow 0x{:05x}", grh.flow_label)),
        Net::V4 { ip, .. } => {
            let fragment = if ip.dont_fragment { " DF" } else { "" };
            push(line, format_args!(" id {}{fragment} len {}", ip.identification, ip.total_len));
        }
        Net::V6 { ip, .. } => {
            push(line, format_args!(" flow 0x{:05x} len {}", ip.flow_label, ip.payload_len));
        }
    }
    if let Some(udp) = net.udp() {
        push(line, format_args!(" udp len {} checksum 0x{:04x}", udp.length, udp.checksum));
    }
}

fn push_bth(line: &mut String, bth: &Bth) {
    let Bth { opcode, dest_qpn, psn, pkey, .. } = bth;
    push(line, format_args!(" {opcode} qp {dest_qpn} psn {psn} pkey {pkey}"));
    let flags = [
        (bth.solicited, "solicited"),
        (bth.migreq, "migreq"),
        (bth.ack_req, "ackreq"),
        (bth.fecn, "fecn"),
        (bth.becn, "becn"),
    ];
    for (_, name) in flags.into_iter().filter(|(is_set, _)| *is_set) {
        push(line, format_args!(" {name}"));
    }
}

fn push_packet(line: &mut String, packet: &Packet<'_>, roce: &Roce<'_>) {
    push_bth(line, &packet.bth());
    push_ext_headers(line, &packet.headers());
    push(line, format_args!(" | payload {}", packet.payload().len()));
    if packet.pad_len() > 0 {
        push(line, format_args!(" pad {}", packet.pad_len()));
    }
    match roce.mad() {
        Some(Ok(mad)) => match cm_message(&mad) {
            Ok(message) => {
                push(line, format_args!(" | CM tid {} {message}", mad.header.transaction_id));
            }
            Err(error) => push(line, format_args!(" | MAD {error}")),
        },
        Some(Err(error)) => push(line, format_args!(" | {error}")),
        None => {}
    }
}

fn push_ext_headers(line: &mut String, headers: &Headers) {
    if let Some(rdeth) = headers.rdeth {
        push(line, format_args!(" | RDETH ee 0x{:06x}", rdeth.ee_context));
    }
    if let Some(deth) = headers.deth {
        push(line, format_args!(" | DETH qkey {} from {}", deth.qkey, deth.source_qpn));
    }
    if let Some(xrceth) = headers.xrceth {
        push(line, format_args!(" | XRCETH srq 0x{:06x}", xrceth.srqn));
    }
    if let Some(feth) = headers.feth {
        push(line, format_args!(" | FETH{}", flush(feth.placement, feth.selectivity)));
    }
    if let Some(reth) = headers.reth {
        push(
            line,
            format_args!(" | RETH va 0x{:016x} rkey {} len {}", reth.va, reth.rkey, reth.len),
        );
    }
    if let Some(atomic) = headers.atomic {
        push(line, format_args!(" | AtomicETH va 0x{:016x} rkey {}", atomic.va, atomic.rkey));
        push(
            line,
            format_args!(" swap/add 0x{:x} compare 0x{:x}", atomic.swap_or_add, atomic.compare),
        );
    }
    if let Some(aeth) = headers.aeth {
        push(line, format_args!(" | AETH {} msn {}", aeth.syndrome, aeth.msn));
    }
    if let Some(atomic_ack) = headers.atomic_ack {
        push(line, format_args!(" | AtomicAckETH original 0x{:x}", atomic_ack.original));
    }
    if let Some(imm) = headers.imm {
        push(line, format_args!(" | ImmDt 0x{:08x}", imm.0));
    }
    if let Some(ieth) = headers.ieth {
        push(line, format_args!(" | IETH rkey {}", ieth.0));
    }
}

/// What a FLUSH asks for, with a space before each word.
pub(super) fn flush(placement: FlushPlacement, selectivity: FlushSelectivity) -> String {
    let mut text = String::new();
    for (name, _) in placement.iter_names() {
        text.push(' ');
        text.push_str(&name.to_lowercase());
    }
    match selectivity {
        FlushSelectivity::Range => text.push_str(" range"),
        FlushSelectivity::MemoryRegion => text.push_str(" region"),
        FlushSelectivity::Reserved(bits) => push(&mut text, format_args!(" selectivity {bits}")),
    }
    text
}

fn push_icrc(line: &mut String, icrc: Option<IcrcCheck>) {
    match icrc {
        Some(icrc) if icrc.is_good() => {
            push(line, format_args!(" | icrc 0x{:08x} good", icrc.carried));
        }
        Some(IcrcCheck { carried, computed }) => {
            push(line, format_args!(" | icrc 0x{carried:08x} BAD, 0x{computed:08x} expected"));
        }
        None => push(line, format_args!(" | icrc not captured")),
    }
}
