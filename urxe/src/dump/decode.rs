//! Taking a record apart: what it is, and each header of what is RoCE.

use rxe_wire::error::Layer;
use rxe_wire::icrc::{ICRC_LEN, IcrcCheck, ROCE_V2_PORT};
use rxe_wire::mad::{MAD_LEN, Mad, cm::CmMessage, cm::NotCm};
use rxe_wire::net::{Frame, Ipv4, Link, Net, Segment, SuperFrame, UDP_PROTOCOL, Udp};
use rxe_wire::{FlowNote, Packet, ParseError, PayloadRule, Qpn};

use super::capture::{FirstLayer, Record};
use super::names;

/// What a record holds.
#[derive(Debug)]
pub(super) enum Content<'a> {
    /// One RoCE packet.
    Roce(Box<Roce<'a>>),
    /// Several RoCE packets in one frame: segmentation offload cuts it up later, or joined it.
    SuperFrame(Batch<'a>),
    /// Something else; the text says what.
    Foreign(String),
    /// RoCE perhaps, but the capture cut it before that can be told.
    Truncated(String),
    /// RoCE, or what should be, with wrong lengths or fields.
    Malformed(String),
}

/// The packets of a super-frame.
#[derive(Debug)]
pub(super) struct Batch<'a> {
    /// Length in bytes of each but the last, from BTH to the iCRC.
    pub segment_len: usize,
    /// The packets.
    pub packets: Vec<Roce<'a>>,
}

/// A RoCE packet in its headers.
#[derive(Debug)]
pub(super) struct Roce<'a> {
    /// Ethernet and VLAN tags.
    pub link: Option<Link>,
    /// Whether [`Roce::link`] was made of a "cooked" header: it has no destination then.
    pub is_cooked: bool,
    /// GRH, or IP and UDP.
    pub net: Net,
    /// From BTH on. An error stands for an opcode that is not known, or headers that do not fit.
    pub packet: Result<Packet<'a>, ParseError>,
    /// From BTH to the last pad byte.
    pub bytes: &'a [u8],
    /// Bytes behind the iCRC that no length accounts for.
    pub trailing_len: usize,
    /// The iCRC; `None` when the capture has not got the whole packet.
    pub icrc: Option<IcrcCheck>,
    /// Which packet of a super-frame it is, from 0.
    pub segment: Option<usize>,
}

impl<'a> Roce<'a> {
    /// The management datagram, where the packet carries one to QP1 and is there whole.
    pub(super) fn mad(&self) -> Option<Result<Mad<'a>, ParseError>> {
        let packet = self.packet.as_ref().ok()?;
        // A message to QP1 is a datagram; without the whole packet zeros would be read.
        (packet.bth().dest_qpn == Qpn::GSI && packet.deth().is_some() && self.icrc.is_some())
            .then(|| Mad::parse(packet.payload()))
    }

    /// What it says about flow control, if its opcode is urxe's own.
    pub(super) fn flow_note(&self) -> Option<FlowNote> {
        FlowNote::read(self.bytes).filter(|_| self.packet.is_err())
    }

    /// What is unusual about it, though it can be read.
    pub(super) fn oddities(&self) -> Vec<String> {
        let mut odd = Vec::new();
        if self.trailing_len > 0 {
            odd.push(format!("{} bytes behind the iCRC", self.trailing_len));
        }
        let Ok(packet) = &self.packet else { return odd };
        let bth = packet.bth();
        if bth.tver != 0 {
            odd.push(format!("transport version {}", bth.tver));
        }
        if bth.reserved6 != 0 || bth.reserved7 != 0 {
            odd.push("reserved bits of BTH are set".to_string());
        }
        if packet.pad().iter().any(|&byte| byte != 0) {
            odd.push("pad is not zero".to_string());
        }
        odd.extend(payload_oddity(packet));
        if let Some(Ok(_)) = self.mad()
            && packet.payload().len() != MAD_LEN
        {
            odd.push(format!("a MAD of {} bytes instead of {MAD_LEN}", packet.payload().len()));
        }
        odd
    }
}

/// What a payload's length says against its opcode, the path MTU being unknown.
fn payload_oddity(packet: &Packet<'_>) -> Option<String> {
    let len = packet.payload().len();
    let is_mtu = |len: usize| (256..=4096).contains(&len) && len.is_power_of_two();
    let rule = packet.info().payload;
    let (fits, expected) = match rule {
        PayloadRule::None => (len == 0, "none".to_string()),
        PayloadRule::ExactlyMtu => (is_mtu(len), "a path MTU".to_string()),
        PayloadRule::AtLeastOne => ((1..=4096).contains(&len), "1 to 4096 bytes".to_string()),
        PayloadRule::UpToMtu => (len <= 4096, "up to 4096 bytes".to_string()),
        PayloadRule::Exactly(exact) => (len == usize::from(exact), format!("{exact} bytes")),
    };
    (!fits).then(|| format!("a payload of {len} bytes, the opcode takes {expected}"))
}

/// The message of connection management in a datagram.
pub(super) fn cm_message(mad: &Mad<'_>) -> Result<CmMessage, NotCm> {
    CmMessage::parse(mad)
}

/// Takes a record apart.
pub(super) fn decode(record: &Record) -> Content<'_> {
    let parse = match record.first_layer {
        FirstLayer::Unknown(number) => return Content::Foreign(format!("link type {number}")),
        FirstLayer::Cooked if record.bytes.is_empty() => {
            let text = format!("{} bytes are no whole cooked header", record.captured_len);
            return Content::Truncated(text);
        }
        FirstLayer::Ethernet | FirstLayer::Cooked => Frame::parse_ethernet,
        FirstLayer::Ip => Frame::parse_ip,
    };
    // What can be judged is judged by bytes that are really there.
    let known = record.bytes.get(..record.known_len).unwrap_or_default();
    match parse(known) {
        Ok(frame) => whole(record, &frame),
        Err(ParseError::Truncated { .. }) if record.is_cut() => match parse(&record.bytes) {
            Ok(frame) => cut(record, &frame),
            Err(_) => Content::Truncated(how_cut(record)),
        },
        Err(error) => unreadable(record, error),
    }
}

fn whole<'a>(record: &Record, frame: &Frame<'a>) -> Content<'a> {
    if let Some(batch) = SuperFrame::find(frame) {
        let packets = batch
            .segments()
            .enumerate()
            .map(|(index, segment)| of_segment(record, frame, index, &segment))
            .collect();
        return Content::SuperFrame(Batch { segment_len: batch.segment_len(), packets });
    }
    match frame.icrc() {
        Ok(icrc) => Content::Roce(Box::new(Roce { icrc: Some(icrc), ..of_frame(record, frame) })),
        Err(error) => Content::Malformed(error.to_string()),
    }
}

/// A frame that the capture cut: worth showing when its headers are there.
fn cut<'a>(record: &Record, frame: &Frame<'a>) -> Content<'a> {
    let roce = of_frame(record, frame);
    let before = frame.link.map_or(0, |link| link.len()) + frame.net.header_len();
    let headers = roce.packet.as_ref().map(|packet| packet.info().header_len());
    match headers {
        Ok(len) if before + len <= record.known_len => Content::Roce(Box::new(roce)),
        _ => Content::Truncated(how_cut(record)),
    }
}

fn how_cut(record: &Record) -> String {
    format!("{} of {} bytes captured", record.captured_len, record.frame_len)
}

fn of_frame<'a>(record: &Record, frame: &Frame<'a>) -> Roce<'a> {
    Roce {
        link: frame.link,
        is_cooked: record.first_layer == FirstLayer::Cooked,
        net: frame.net,
        packet: frame.packet(),
        bytes: frame.roce,
        trailing_len: frame.trailing.len(),
        icrc: None,
        segment: None,
    }
}

/// A packet of a super-frame, with the identification and the lengths that it has by itself.
fn of_segment<'a>(
    record: &Record,
    frame: &Frame<'a>,
    index: usize,
    segment: &Segment<'a>,
) -> Roce<'a> {
    let (identification, icrc) = identification_of(frame, segment);
    // A segment is part of an IP packet, so its length fits.
    let udp_len = u16::try_from(Udp::LEN + segment.packet.len() + ICRC_LEN).unwrap_or(u16::MAX);
    let mut net = frame.net;
    match &mut net {
        Net::V1(_) => {}
        Net::V4 { ip, udp } => {
            ip.identification = identification;
            ip.total_len = udp_len.saturating_add(Ipv4::LEN as u16);
            udp.length = udp_len;
        }
        Net::V6 { ip, udp } => {
            ip.payload_len = udp_len;
            udp.length = udp_len;
        }
    }
    Roce {
        net,
        packet: Packet::parse(segment.packet),
        bytes: segment.packet,
        trailing_len: 0,
        icrc: Some(icrc),
        segment: Some(index),
        ..of_frame(record, frame)
    }
}

/// The identification of a segment. A sender's segmentation counts it up; a receiver's coalescing
/// also joins packets that all have the same.
fn identification_of(frame: &Frame<'_>, segment: &Segment<'_>) -> (u16, IcrcCheck) {
    let same = frame.net.identification();
    let computed = frame.net.icrc_flow().icrc(same, segment.packet);
    let check = IcrcCheck { computed, ..segment.icrc };
    if !segment.icrc.is_good() && check.is_good() {
        (same, check)
    } else {
        (segment.identification, segment.icrc)
    }
}

/// What a frame is that cannot be read as RoCE.
fn unreadable(record: &Record, error: ParseError) -> Content<'static> {
    let foreign = |name: String| Content::Foreign(name);
    match error {
        ParseError::EtherType { ether_type } => foreign(names::ether_type(ether_type)),
        ParseError::NextHeader { layer: Layer::Grh, next_header } => {
            foreign(format!("GRH with next header 0x{next_header:02x}"))
        }
        ParseError::NextHeader { next_header, .. } => foreign(names::ip_protocol(next_header)),
        ParseError::UdpPort { port } => foreign(format!("UDP port {port}")),
        // Headers that RoCE has not, before anything tells whether the packet is RoCE at all.
        ParseError::Ipv4HeaderLen { len } if len >= Ipv4::LEN => {
            ipv4_with_options(record, len, error)
        }
        ParseError::Fragment { offset, .. } => fragment(record, offset, error),
        ParseError::Truncated { layer, needed, have } => {
            let missing = needed.saturating_sub(have);
            Content::Truncated(format!("{layer} needs {missing} more bytes"))
        }
        error => Content::Malformed(error.to_string()),
    }
}

fn ipv4_with_options(record: &Record, header_len: usize, error: ParseError) -> Content<'static> {
    let Some(ip) = ip_bytes(record) else { return Content::Malformed(error.to_string()) };
    match ip.get(9).copied() {
        Some(UDP_PROTOCOL) => match udp_port(ip, header_len) {
            Some(ROCE_V2_PORT) | None => Content::Malformed(error.to_string()),
            Some(port) => Content::Foreign(format!("UDP port {port}")),
        },
        Some(protocol) => Content::Foreign(names::ip_protocol(protocol)),
        None => Content::Malformed(error.to_string()),
    }
}

fn fragment(record: &Record, offset: usize, error: ParseError) -> Content<'static> {
    // Only the first fragment has the port.
    let port = ip_bytes(record).and_then(|ip| udp_port(ip, Ipv4::LEN)).filter(|_| offset == 0);
    match port {
        Some(ROCE_V2_PORT) => Content::Malformed(error.to_string()),
        Some(port) => Content::Foreign(format!("fragment to UDP port {port}")),
        None => Content::Foreign(format!("IPv4 fragment at offset {offset}")),
    }
}

/// The bytes from the IP header on.
fn ip_bytes(record: &Record) -> Option<&[u8]> {
    let known = record.bytes.get(..record.known_len)?;
    if record.first_layer == FirstLayer::Ip {
        return Some(known);
    }
    known.get(Link::read(known).ok()?.len()..)
}

/// The destination port of UDP behind an IP header of `header_len` bytes.
fn udp_port(ip: &[u8], header_len: usize) -> Option<u16> {
    Some(Udp::read(ip.get(header_len..)?).ok()?.destination_port)
}
