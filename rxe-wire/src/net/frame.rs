//! A whole RoCE frame: read into its layers, and built from them.

use super::{Ethernet, Grh, Ipv4, Ipv6, UDP_PROTOCOL, Udp, Vlan, ether_type};
use crate::error::{EmitError, Layer, ParseError};
use crate::hdr::Bth;
use crate::icrc::{
    Encapsulation, GRH_NEXT_HEADER, ICRC_LEN, IcrcCheck, IcrcFlow, ROCE_V2_PORT, check_l3, seal_l3,
};
use crate::packet::Packet;

/// Ethernet and up to two VLAN tags.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Link {
    /// The Ethernet header.
    pub ethernet: Ethernet,
    /// The tag after it.
    pub vlan: Option<Vlan>,
    /// A second tag.
    pub inner_vlan: Option<Vlan>,
}

impl Link {
    /// Reads Ethernet and its tags from the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let mut link = Self { ethernet: Ethernet::read(bytes)?, vlan: None, inner_vlan: None };
        if is_tag(link.ethernet.ether_type) {
            let tag = read_at(bytes, Ethernet::LEN, Vlan::read)?;
            link.vlan = Some(tag);
            if is_tag(tag.ether_type) {
                link.inner_vlan = Some(read_at(bytes, Ethernet::LEN + Vlan::LEN, Vlan::read)?);
            }
        }
        Ok(link)
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        let tags = usize::from(self.vlan.is_some()) + usize::from(self.inner_vlan.is_some());
        Ethernet::LEN + tags * Vlan::LEN
    }

    /// Always false: Ethernet is always there.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// The EtherType of the network layer, behind all tags.
    pub fn ether_type(&self) -> u16 {
        let tag = self.inner_vlan.or(self.vlan);
        tag.map_or(self.ethernet.ether_type, |tag| tag.ether_type)
    }

    /// Writes it to the start of `buf`, with the EtherTypes that it has.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`], [`EmitError::FieldTooLarge`].
    pub fn write(&self, buf: &mut [u8]) -> Result<(), EmitError> {
        self.ethernet.write(buf)?;
        let mut offset = Ethernet::LEN;
        for tag in [self.vlan, self.inner_vlan].into_iter().flatten() {
            tag.write(room(buf, offset, Vlan::LEN)?)?;
            offset += Vlan::LEN;
        }
        Ok(())
    }

    /// The same, with EtherTypes that lead to the network layer `last`.
    #[must_use]
    fn leading_to(mut self, last: u16) -> Self {
        let mut next = last;
        let inner = self.inner_vlan.as_mut().map(|tag| &mut tag.ether_type);
        let outer = self.vlan.as_mut().map(|tag| &mut tag.ether_type);
        for field in [inner, outer, Some(&mut self.ethernet.ether_type)].into_iter().flatten() {
            // Which of the two announces a tag is the caller's choice.
            if next != ether_type::VLAN || !is_tag(*field) {
                *field = next;
            }
            next = ether_type::VLAN;
        }
        self
    }
}

/// The network layer of a RoCE frame, with UDP on v2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Net {
    /// RoCE v1.
    V1(Grh),
    /// RoCE v2 over IPv4.
    V4 {
        /// The IPv4 header.
        ip: Ipv4,
        /// The UDP header.
        udp: Udp,
    },
    /// RoCE v2 over IPv6.
    V6 {
        /// The IPv6 header.
        ip: Ipv6,
        /// The UDP header.
        udp: Udp,
    },
}

impl Net {
    /// How the packet travels.
    pub const fn encapsulation(&self) -> Encapsulation {
        match self {
            Self::V1(_) => Encapsulation::V1,
            Self::V4 { .. } => Encapsulation::V2Ipv4,
            Self::V6 { .. } => Encapsulation::V2Ipv6,
        }
    }

    /// The EtherType that announces it.
    pub const fn ether_type(&self) -> u16 {
        match self {
            Self::V1(_) => ether_type::ROCE_V1,
            Self::V4 { .. } => ether_type::IPV4,
            Self::V6 { .. } => ether_type::IPV6,
        }
    }

    /// Length in bytes, UDP included.
    pub const fn header_len(&self) -> usize {
        match self {
            Self::V1(_) => Grh::LEN,
            Self::V4 { .. } => Ipv4::LEN + Udp::LEN,
            Self::V6 { .. } => Ipv6::LEN + Udp::LEN,
        }
    }

    /// GID of the sender in wire order; an IPv4 address is mapped.
    pub fn source_gid(&self) -> [u8; 16] {
        match self {
            Self::V1(grh) => grh.source,
            Self::V4 { ip, .. } => ip.source.to_ipv6_mapped().octets(),
            Self::V6 { ip, .. } => ip.source.octets(),
        }
    }

    /// GID of the receiver in wire order; an IPv4 address is mapped.
    pub fn destination_gid(&self) -> [u8; 16] {
        match self {
            Self::V1(grh) => grh.destination,
            Self::V4 { ip, .. } => ip.destination.to_ipv6_mapped().octets(),
            Self::V6 { ip, .. } => ip.destination.octets(),
        }
    }

    /// Traffic class, on IPv4 the type of service.
    pub const fn traffic_class(&self) -> u8 {
        match self {
            Self::V1(grh) => grh.traffic_class,
            Self::V4 { ip, .. } => ip.traffic_class,
            Self::V6 { ip, .. } => ip.traffic_class,
        }
    }

    /// Flow label, 20 bits; 0 on IPv4, which has none.
    pub const fn flow_label(&self) -> u32 {
        match self {
            Self::V1(grh) => grh.flow_label,
            Self::V4 { .. } => 0,
            Self::V6 { ip, .. } => ip.flow_label,
        }
    }

    /// Hop limit, on IPv4 the time to live.
    pub const fn hop_limit(&self) -> u8 {
        match self {
            Self::V1(grh) => grh.hop_limit,
            Self::V4 { ip, .. } => ip.ttl,
            Self::V6 { ip, .. } => ip.hop_limit,
        }
    }

    /// IPv4's identification; 0 where there is none.
    pub const fn identification(&self) -> u16 {
        match self {
            Self::V4 { ip, .. } => ip.identification,
            Self::V1(_) | Self::V6 { .. } => 0,
        }
    }

    /// The UDP header; RoCE v1 has none.
    pub const fn udp(&self) -> Option<&Udp> {
        match self {
            Self::V1(_) => None,
            Self::V4 { udp, .. } | Self::V6 { udp, .. } => Some(udp),
        }
    }

    /// The iCRC's view of the addressing. The IPv4 flags count but for the reserved one, which is
    /// taken as 0.
    pub fn icrc_flow(&self) -> IcrcFlow {
        match self {
            Self::V1(grh) => IcrcFlow::v1(grh.source, grh.destination),
            Self::V4 { ip, udp } => {
                let flow = IcrcFlow::v4(ip.source, ip.destination, udp.source_port);
                if ip.dont_fragment { flow } else { flow.fragmentable() }
            }
            Self::V6 { ip, udp } => IcrcFlow::v6(ip.source, ip.destination, udp.source_port),
        }
    }

    /// Writes it to the start of `buf`, with the lengths and checksums that it has.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`], [`EmitError::FieldTooLarge`].
    pub fn write(&self, buf: &mut [u8]) -> Result<(), EmitError> {
        match self {
            Self::V1(grh) => grh.write(buf),
            Self::V4 { ip, udp } => {
                ip.write(buf)?;
                udp.write(room(buf, Ipv4::LEN, Udp::LEN)?)
            }
            Self::V6 { ip, udp } => {
                ip.write(buf)?;
                udp.write(room(buf, Ipv6::LEN, Udp::LEN)?)
            }
        }
    }

    /// The same with the lengths of `packet_len` bytes from BTH to the last pad byte, the
    /// protocols that lead to BTH, no UDP checksum and the right IPv4 checksum.
    fn around(mut self, packet_len: usize) -> Result<Self, EmitError> {
        let max = usize::from(u16::MAX) - Ipv4::LEN - Udp::LEN - ICRC_LEN;
        let too_long = EmitError::PacketTooLong { len: packet_len, max };
        if packet_len > max {
            return Err(too_long);
        }
        let transport_len = u16::try_from(packet_len + ICRC_LEN).map_err(|_| too_long)?;
        let udp_len = transport_len + Udp::LEN as u16;
        match &mut self {
            Self::V1(grh) => {
                grh.next_header = GRH_NEXT_HEADER;
                grh.payload_len = transport_len;
            }
            Self::V4 { ip, udp } => {
                (udp.length, udp.checksum) = (udp_len, 0);
                ip.protocol = UDP_PROTOCOL;
                ip.total_len = udp_len + Ipv4::LEN as u16;
                ip.checksum = ip.computed_checksum()?;
            }
            Self::V6 { ip, udp } => {
                (udp.length, udp.checksum) = (udp_len, 0);
                ip.next_header = UDP_PROTOCOL;
                ip.payload_len = udp_len;
            }
        }
        Ok(self)
    }
}

/// A RoCE frame in its layers, or a packet from the IP header on.
///
/// The lengths of the network layer and UDP agree with each other and lie within the bytes; BTH and
/// the iCRC are there. Neither the iCRC nor the opcode has been judged: ask
/// [`icrc`](Self::icrc) and [`packet`](Self::packet).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// Ethernet and its tags; `None` when the bytes began with IP.
    pub link: Option<Link>,
    /// GRH, or IP and UDP.
    pub net: Net,
    /// From BTH to the last pad byte.
    pub roce: &'a [u8],
    /// What the length of the network layer leaves over, such as Ethernet padding.
    pub trailing: &'a [u8],
    /// From the network layer to the last byte of the iCRC.
    l3: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Reads an Ethernet frame, without its frame check sequence.
    ///
    /// Never panics and never allocates, whatever the bytes are.
    ///
    /// # Errors
    /// [`ParseError`] for bytes of another protocol ([`ParseError::is_foreign`]), fragments, IPv4
    /// options, IPv6 extension headers, wrong lengths, and bytes that end too early, as they do in
    /// a capture with a limit.
    pub fn parse_ethernet(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let link = Link::read(bytes)?;
        let l3 = bytes.get(link.len()..).unwrap_or_default();
        let frame = match link.ether_type() {
            ether_type::ROCE_V1 => Self::parse_v1(l3),
            ether_type::IPV4 => Self::parse_v4(l3),
            ether_type::IPV6 => Self::parse_v6(l3),
            ether_type => Err(ParseError::EtherType { ether_type }),
        };
        match frame {
            Ok(frame) => Ok(Self { link: Some(link), ..frame }),
            Err(error) => Err(error.moved(link.len())),
        }
    }

    /// Reads a packet that begins with the IPv4 or IPv6 header.
    ///
    /// # Errors
    /// As [`parse_ethernet`](Self::parse_ethernet).
    pub fn parse_ip(bytes: &'a [u8]) -> Result<Self, ParseError> {
        match bytes.first().map_or(4, |first| first >> 4) {
            6 => Self::parse_v6(bytes),
            _ => Self::parse_v4(bytes),
        }
    }

    fn parse_v1(l3: &'a [u8]) -> Result<Self, ParseError> {
        let grh = Grh::read(l3)?;
        if grh.next_header != GRH_NEXT_HEADER {
            let next_header = grh.next_header;
            return Err(ParseError::NextHeader { layer: Layer::Grh, next_header });
        }
        let len = Grh::LEN + usize::from(grh.payload_len);
        Self::split(Net::V1(grh), Layer::Grh, len, l3)
    }

    fn parse_v4(l3: &'a [u8]) -> Result<Self, ParseError> {
        let ip = Ipv4::read(l3)?;
        if ip.protocol != UDP_PROTOCOL {
            let next_header = ip.protocol;
            return Err(ParseError::NextHeader { layer: Layer::Ipv4, next_header });
        }
        if ip.more_fragments || ip.fragment_offset != 0 {
            let (offset, more) = (usize::from(ip.fragment_offset) * 8, ip.more_fragments);
            return Err(ParseError::Fragment { offset, more });
        }
        let total_len = usize::from(ip.total_len);
        let udp = read_udp(l3, Ipv4::LEN, Layer::Ipv4, total_len, total_len)?;
        Self::split(Net::V4 { ip, udp }, Layer::Ipv4, total_len, l3)
    }

    fn parse_v6(l3: &'a [u8]) -> Result<Self, ParseError> {
        let ip = Ipv6::read(l3)?;
        if ip.next_header != UDP_PROTOCOL {
            let next_header = ip.next_header;
            return Err(ParseError::NextHeader { layer: Layer::Ipv6, next_header });
        }
        let stated = usize::from(ip.payload_len);
        let udp = read_udp(l3, Ipv6::LEN, Layer::Ipv6, stated, Ipv6::LEN + stated)?;
        Self::split(Net::V6 { ip, udp }, Layer::Ipv6, Ipv6::LEN + stated, l3)
    }

    /// Cuts `l3` at the length of the network layer, and the iCRC off its end.
    fn split(net: Net, layer: Layer, len: usize, bytes: &'a [u8]) -> Result<Self, ParseError> {
        let have = bytes.len();
        let Some((l3, trailing)) = bytes.split_at_checked(len) else {
            return Err(ParseError::Truncated { layer, needed: len, have });
        };
        let needed = net.header_len() + Bth::LEN + ICRC_LEN;
        if len < needed {
            return Err(ParseError::Truncated { layer: Layer::Bth, needed, have: len });
        }
        let roce = l3.get(net.header_len()..len - ICRC_LEN).unwrap_or_default();
        Ok(Self { link: None, net, roce, trailing, l3 })
    }

    /// The packet from BTH on.
    ///
    /// # Errors
    /// As [`Packet::parse`].
    pub fn packet(&self) -> Result<Packet<'a>, ParseError> {
        Packet::parse(self.roce)
    }

    /// The iCRC that the frame carries, and the one that it should.
    ///
    /// # Errors
    /// None that a parsed frame can meet; those of [`check_l3`].
    pub fn icrc(&self) -> Result<IcrcCheck, ParseError> {
        check_l3(self.l3)
    }

    /// From the network layer to the last byte of the iCRC.
    pub const fn l3(&self) -> &'a [u8] {
        self.l3
    }

    /// Writes the frame again from its values, and gives its length in bytes. The bytes are those
    /// that it was read from.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`], [`EmitError::FieldTooLarge`].
    pub fn write(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        let link_len = self.link.map_or(0, |link| link.len());
        let needed = link_len + self.l3.len() + self.trailing.len();
        let have = buf.len();
        let buf = buf.get_mut(..needed).ok_or(EmitError::BufferTooShort { needed, have })?;
        if let Some(link) = &self.link {
            link.write(buf)?;
        }
        let l3 = room(buf, link_len, self.l3.len())?;
        self.net.write(l3)?;
        let header_len = self.net.header_len();
        super::put(self.roce, room(l3, header_len, self.roce.len())?)?;
        let icrc = self.l3.last_chunk::<ICRC_LEN>().map_or(&[][..], |icrc| icrc);
        super::put(icrc, room(l3, header_len + self.roce.len(), icrc.len())?)?;
        super::put(self.trailing, room(buf, link_len + self.l3.len(), self.trailing.len())?)?;
        Ok(needed)
    }
}

/// Builds frames around packets: Ethernet with tags, IP and UDP or GRH, and the iCRC.
///
/// Lengths, EtherTypes, protocols and the IPv4 checksum are set from what is built; a TPID of
/// 802.1ad that was given stays. The rest of the headers is sent as given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameBuilder {
    /// Ethernet and tags; `None` makes packets that begin with IP.
    pub link: Option<Link>,
    /// GRH, or IP and UDP.
    pub net: Net,
    /// Whether a UDP checksum is written: an IPv6 socket that has not been told otherwise drops
    /// packets without. rdma_rxe sends none.
    pub udp_checksum: bool,
}

impl FrameBuilder {
    /// A builder without UDP checksum.
    pub const fn new(link: Option<Link>, net: Net) -> Self {
        Self { link, net, udp_checksum: false }
    }

    /// Length in bytes of what stands before BTH.
    pub fn head_len(&self) -> usize {
        self.link.map_or(0, |link| link.len()) + self.net.header_len()
    }

    /// Length in bytes of the frame around a packet of `packet_len` bytes from BTH on.
    pub fn frame_len(&self, packet_len: usize) -> usize {
        self.head_len() + packet_len + ICRC_LEN
    }

    /// Writes the frame around `packet`, from BTH to its last pad byte, and gives its length.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`], [`EmitError::FieldTooLarge`], [`EmitError::PacketTooLong`].
    pub fn write(&self, packet: &[u8], buf: &mut [u8]) -> Result<usize, EmitError> {
        let (needed, have) = (self.frame_len(packet.len()), buf.len());
        let place = buf
            .get_mut(self.head_len()..)
            .filter(|_| have >= needed)
            .ok_or(EmitError::BufferTooShort { needed, have })?;
        super::put(packet, place)?;
        self.finish(packet.len(), buf)
    }

    /// Writes what stands before a packet of `packet_len` bytes from BTH on, without a UDP checksum,
    /// and gives its length: for whoever has the packet, and its iCRC, elsewhere.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_head(&self, packet_len: usize, buf: &mut [u8]) -> Result<usize, EmitError> {
        if packet_len < Bth::LEN {
            return Err(EmitError::PacketTooShort { len: packet_len, min: Bth::LEN });
        }
        self.write_net(&self.net.around(packet_len)?, buf)
    }

    /// Writes the link and this network layer.
    fn write_net(&self, net: &Net, buf: &mut [u8]) -> Result<usize, EmitError> {
        let (needed, have) = (self.head_len(), buf.len());
        let buf = buf.get_mut(..needed).ok_or(EmitError::BufferTooShort { needed, have })?;
        let link_len = self.link.map_or(0, |link| link.len());
        if let Some(link) = self.link {
            link.leading_to(net.ether_type()).write(buf)?;
        }
        net.write(room(buf, link_len, needed - link_len)?)?;
        Ok(needed)
    }

    /// Writes the frame around a packet of `packet_len` bytes that already stands in `buf`, from
    /// [`head_len`](Self::head_len) on, and gives the frame's length.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn finish(&self, packet_len: usize, buf: &mut [u8]) -> Result<usize, EmitError> {
        let mut net = self.net.around(packet_len)?;
        let (needed, have) = (self.frame_len(packet_len), buf.len());
        let buf = buf.get_mut(..needed).ok_or(EmitError::BufferTooShort { needed, have })?;
        self.write_net(&net, buf)?;
        let link_len = self.link.map_or(0, |link| link.len());
        let l3 = room(buf, link_len, needed - link_len)?;
        // Only a packet without BTH can be refused: it has no place for an iCRC.
        seal_l3(l3).map_err(|_| EmitError::PacketTooShort { len: packet_len, min: Bth::LEN })?;
        if self.udp_checksum {
            // It covers the iCRC, which in turn takes it as ones.
            let payload = l3.get(net.header_len()..).unwrap_or_default();
            match &mut net {
                Net::V1(_) => {}
                Net::V4 { ip, udp } => udp.checksum = udp.checksum_v4(ip, payload)?,
                Net::V6 { ip, udp } => udp.checksum = udp.checksum_v6(ip, payload)?,
            }
            net.write(l3)?;
        }
        Ok(needed)
    }
}

const fn is_tag(ether_type: u16) -> bool {
    matches!(ether_type, ether_type::VLAN | ether_type::SERVICE_VLAN)
}

/// Reads UDP behind an IP header, and holds its length against that of IP.
fn read_udp(
    l3: &[u8],
    offset: usize,
    layer: Layer,
    stated: usize,
    end: usize,
) -> Result<Udp, ParseError> {
    let udp = read_at(l3, offset, Udp::read)?;
    // The port comes first: whatever else is wrong with other protocols is not ours to judge.
    if udp.destination_port != ROCE_V2_PORT {
        return Err(ParseError::UdpPort { port: udp.destination_port });
    }
    if end < offset + Udp::LEN {
        let expected = stated + offset + Udp::LEN - end;
        return Err(ParseError::Length { layer, stated, expected });
    }
    let expected = end - offset;
    if usize::from(udp.length) != expected {
        let stated = usize::from(udp.length);
        return Err(ParseError::Length { layer: Layer::Udp, stated, expected });
    }
    Ok(udp)
}

/// Reads a header at an offset; an error counts from the start of `bytes`.
fn read_at<T>(
    bytes: &[u8],
    offset: usize,
    read: impl FnOnce(&[u8]) -> Result<T, ParseError>,
) -> Result<T, ParseError> {
    read(bytes.get(offset..).unwrap_or_default()).map_err(|error| error.moved(offset))
}

/// The `len` bytes of `buf` at an offset.
fn room(buf: &mut [u8], offset: usize, len: usize) -> Result<&mut [u8], EmitError> {
    let (needed, have) = (offset + len, buf.len());
    buf.get_mut(offset..needed).ok_or(EmitError::BufferTooShort { needed, have })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::super::MacAddr;
    use super::*;
    use crate::hdr::Aeth;
    use crate::packet::Headers;
    use crate::{Opcode, Psn, Qpn};

    fn acknowledge() -> Vec<u8> {
        let bth = Bth {
            opcode: Opcode::RC_ACKNOWLEDGE,
            dest_qpn: Qpn::new(0x11),
            psn: Psn::new(7),
            ..Bth::default()
        };
        let mut packet = vec![0; 16];
        let headers = Headers { aeth: Some(Aeth::default()), ..Headers::new(bth) };
        headers.write(&mut packet).unwrap();
        packet
    }

    fn net(kind: Encapsulation) -> Net {
        let udp = Udp::new(0xc123);
        let (v6, peer) = (Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 1), Ipv6Addr::LOCALHOST);
        match kind {
            Encapsulation::V1 => Net::V1(Grh::new(v6.octets(), peer.octets())),
            Encapsulation::V2Ipv4 => Net::V4 {
                ip: Ipv4::new(Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2)),
                udp,
            },
            Encapsulation::V2Ipv6 => Net::V6 { ip: Ipv6::new(v6, peer), udp },
        }
    }

    const KINDS: [Encapsulation; 3] =
        [Encapsulation::V1, Encapsulation::V2Ipv4, Encapsulation::V2Ipv6];

    fn link(tags: usize) -> Link {
        let tag = Vlan { priority: 5, drop_eligible: true, id: 0xabc, ether_type: 0 };
        Link {
            ethernet: Ethernet {
                destination: MacAddr([1, 2, 3, 4, 5, 6]),
                source: MacAddr([7, 8, 9, 10, 11, 12]),
                ether_type: 0,
            },
            vlan: (tags > 0).then_some(tag),
            inner_vlan: (tags > 1).then_some(Vlan { id: 7, ..tag }),
        }
    }

    fn built(builder: &FrameBuilder, packet: &[u8]) -> Vec<u8> {
        let mut frame = vec![0xee; builder.frame_len(packet.len())];
        assert_eq!(builder.write(packet, &mut frame), Ok(frame.len()));
        frame
    }

    fn ethernet_v4() -> Vec<u8> {
        let builder = FrameBuilder::new(Some(link(0)), net(Encapsulation::V2Ipv4));
        built(&builder, &acknowledge())
    }

    /// What the frame of [`ethernet_v4`] gives with one byte changed.
    fn changed(offset: usize, byte: u8) -> ParseError {
        let mut frame = ethernet_v4();
        frame[offset] = byte;
        Frame::parse_ethernet(&frame).unwrap_err()
    }

    #[test]
    fn the_head_alone_is_that_of_the_frame() {
        for kind in [Encapsulation::V1, Encapsulation::V2Ipv4, Encapsulation::V2Ipv6] {
            for tags in 0..=2 {
                let builder = FrameBuilder::new(Some(link(tags)), net(kind));
                let packet = acknowledge();
                let frame = built(&builder, &packet);
                let mut head = vec![0; builder.head_len()];
                assert_eq!(builder.write_head(packet.len(), &mut head), Ok(head.len()));
                assert_eq!(frame[..head.len()], head, "{kind:?} {tags}");
                let needed = head.len();
                let short = builder.write_head(packet.len(), &mut head[1..]).unwrap_err();
                assert_eq!(short, EmitError::BufferTooShort { needed, have: needed - 1 });
                let error = builder.write_head(11, &mut head).unwrap_err();
                assert_eq!(error, EmitError::PacketTooShort { len: 11, min: 12 });
            }
        }
    }

    #[test]
    fn a_built_frame_is_read_and_written_again() {
        for kind in KINDS {
            for tags in 0..3 {
                let builder = FrameBuilder::new(Some(link(tags)), net(kind));
                let bytes = built(&builder, &acknowledge());
                let frame = Frame::parse_ethernet(&bytes).unwrap();
                assert_eq!(frame.net.encapsulation(), kind);
                assert_eq!(
                    frame.link.unwrap().vlan.map(|tag| tag.id),
                    [None, Some(0xabc)][tags.min(1)]
                );
                assert_eq!(frame.link.unwrap().ether_type(), frame.net.ether_type());
                assert_eq!(frame.packet().unwrap().bytes(), acknowledge());
                assert!(frame.icrc().unwrap().is_good());
                let flow = frame.net.icrc_flow();
                assert_eq!(
                    flow.icrc(frame.net.identification(), frame.roce),
                    frame.icrc().unwrap().carried
                );
                let mut again = vec![0; bytes.len()];
                assert_eq!(frame.write(&mut again), Ok(bytes.len()));
                assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn all_flags_of_ipv4_are_kept_and_counted() {
        let mut bytes = ethernet_v4();
        for flags in [0x00, 0x80, 0xc0] {
            bytes[14 + 6] = flags;
            let frame = Frame::parse_ethernet(&bytes).unwrap();
            assert!(!frame.icrc().unwrap().is_good());
            let mut again = vec![0; bytes.len()];
            frame.write(&mut again).unwrap();
            assert_eq!(again, bytes);
            if flags == 0 {
                let expected = frame.icrc().unwrap().computed;
                assert_eq!(frame.net.icrc_flow().icrc(0, frame.roce), expected);
            }
        }
    }

    #[test]
    fn a_service_tag_stays_one() {
        let mut tagged = link(2);
        tagged.ethernet.ether_type = ether_type::SERVICE_VLAN;
        let builder = FrameBuilder::new(Some(tagged), net(Encapsulation::V2Ipv6));
        let bytes = built(&builder, &acknowledge());
        assert_eq!(bytes[12..14], [0x88, 0xa8]);
        assert_eq!(bytes[16..18], [0x81, 0x00]);
        assert_eq!(bytes[20..22], [0x86, 0xdd]);
    }

    #[test]
    fn padding_of_a_short_frame_is_not_taken_for_the_packet() {
        let mut bytes = ethernet_v4();
        bytes.extend([0; 6]);
        let frame = Frame::parse_ethernet(&bytes).unwrap();
        assert_eq!(frame.trailing, [0; 6]);
        assert!(frame.icrc().unwrap().is_good());
    }

    #[test]
    fn ip_without_ethernet_is_read() {
        for kind in [Encapsulation::V2Ipv4, Encapsulation::V2Ipv6] {
            let bytes = built(&FrameBuilder::new(None, net(kind)), &acknowledge());
            let frame = Frame::parse_ip(&bytes).unwrap();
            assert_eq!((frame.link, frame.net.encapsulation()), (None, kind));
            assert!(frame.icrc().unwrap().is_good());
        }
        assert_eq!(
            Frame::parse_ip(&[0x50; 60]),
            Err(ParseError::IpVersion { layer: Layer::Ipv4, version: 5 })
        );
    }

    #[test]
    fn checksums_are_right() {
        for kind in [Encapsulation::V2Ipv4, Encapsulation::V2Ipv6] {
            let builder = FrameBuilder { udp_checksum: true, ..FrameBuilder::new(None, net(kind)) };
            let bytes = built(&builder, &acknowledge());
            let frame = Frame::parse_ip(&bytes).unwrap();
            assert!(frame.icrc().unwrap().is_good());
            // One's complement: all 16-bit words of pseudo header, UDP and payload add up to ones.
            let sum = |bytes: &[u8]| -> u32 {
                bytes.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum()
            };
            let (header, addresses) =
                if kind == Encapsulation::V2Ipv4 { (20, 12..20) } else { (40, 8..40) };
            let transport = &bytes[header..];
            let mut total = sum(&bytes[addresses]) + 17 + transport.len() as u32 + sum(transport);
            total = (total & 0xffff) + (total >> 16);
            total = (total & 0xffff) + (total >> 16);
            assert_eq!(total, 0xffff);
            if header == 20 {
                assert_eq!(sum(&bytes[..20]) % 0xffff, 0);
            }
        }
    }

    #[test]
    fn foreign_frames_are_told_apart() {
        assert_eq!(changed(12, 0x12), ParseError::EtherType { ether_type: 0x1200 });
        assert_eq!(
            changed(14 + 9, 6),
            ParseError::NextHeader { layer: Layer::Ipv4, next_header: 6 }
        );
        assert_eq!(changed(14 + 20 + 3, 0xb8), ParseError::UdpPort { port: 4792 });
        for error in [changed(12, 0x12), changed(14 + 9, 6), changed(14 + 20 + 3, 0xb8)] {
            assert!(error.is_foreign());
        }
        let mut v6 = built(&FrameBuilder::new(None, net(Encapsulation::V2Ipv6)), &acknowledge());
        v6[6] = 43;
        assert_eq!(
            Frame::parse_ip(&v6),
            Err(ParseError::NextHeader { layer: Layer::Ipv6, next_header: 43 })
        );
        let v1 = FrameBuilder::new(Some(link(0)), net(Encapsulation::V1));
        let mut v1 = built(&v1, &acknowledge());
        v1[14 + 6] = 17;
        assert_eq!(
            Frame::parse_ethernet(&v1),
            Err(ParseError::NextHeader { layer: Layer::Grh, next_header: 17 })
        );
    }

    #[test]
    fn odd_frames_get_an_error_that_says_why() {
        let version = ParseError::IpVersion { layer: Layer::Ipv4, version: 5 };
        assert_eq!(changed(14, 0x55), version);
        assert_eq!(changed(14, 0x46), ParseError::Ipv4HeaderLen { len: 24 });
        assert_eq!(changed(14, 0x44), ParseError::Ipv4HeaderLen { len: 16 });
        assert_eq!(changed(14 + 6, 0x20), ParseError::Fragment { offset: 0, more: true });
        assert_eq!(changed(14 + 7, 2), ParseError::Fragment { offset: 16, more: false });
        // IP and UDP lengths: 20 + 8 + 16 + 4 and 8 + 16 + 4.
        for udp_len in [27, 29, 0] {
            assert_eq!(
                changed(14 + 20 + 5, udp_len),
                ParseError::Length { layer: Layer::Udp, stated: udp_len.into(), expected: 28 }
            );
        }
        assert_eq!(
            changed(14 + 3, 0),
            ParseError::Length { layer: Layer::Ipv4, stated: 0, expected: 28 }
        );
        let whole = ethernet_v4();
        assert_eq!(
            Frame::parse_ethernet(&whole[..whole.len() - 1]),
            Err(ParseError::Truncated { layer: Layer::Ipv4, needed: 62, have: 61 })
        );
    }

    #[test]
    fn r35_a_runt_is_refused() {
        let mut bytes = ethernet_v4();
        // Eleven bytes from BTH on, and an iCRC.
        (bytes[14 + 3], bytes[14 + 20 + 5]) = (28 + 15, 8 + 15);
        assert_eq!(
            Frame::parse_ethernet(&bytes),
            Err(ParseError::Truncated { layer: Layer::Bth, needed: 14 + 44, have: 14 + 43 })
        );
    }

    #[test]
    fn each_cut_of_a_frame_is_refused() {
        for kind in KINDS {
            let bytes = built(&FrameBuilder::new(Some(link(2)), net(kind)), &acknowledge());
            for len in 0..bytes.len() {
                match Frame::parse_ethernet(&bytes[..len]).unwrap_err() {
                    ParseError::Truncated { needed, have, .. } => {
                        assert!(have == len && needed > len && needed <= bytes.len());
                    }
                    other => panic!("{other}"),
                }
            }
        }
    }

    #[test]
    fn a_builder_says_what_is_wrong() {
        let builder = FrameBuilder::new(Some(link(1)), net(Encapsulation::V2Ipv6));
        let packet = acknowledge();
        let needed = builder.frame_len(packet.len());
        for have in [0, 20, needed - 1] {
            assert_eq!(
                builder.write(&packet, &mut vec![0; have]),
                Err(EmitError::BufferTooShort { needed, have })
            );
        }
        assert_eq!(
            builder.write(&packet[..11], &mut [0; 200]),
            Err(EmitError::PacketTooShort { len: 11, min: 12 })
        );
        assert!(matches!(
            builder.write(&vec![0; 65_504], &mut vec![0; 70_000]),
            Err(EmitError::PacketTooLong { .. })
        ));
        let mut bad = builder;
        bad.link.as_mut().unwrap().vlan.as_mut().unwrap().id = 0x1000;
        assert!(matches!(
            bad.write(&packet, &mut [0; 200]),
            Err(EmitError::FieldTooLarge { field: "identifier", value: 0x1000, .. })
        ));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic_and_written_again(
            kind in prop_oneof![Just(None), proptest::sample::select(&KINDS[..]).prop_map(Some)],
            noise in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..8),
            random in proptest::collection::vec(any::<u8>(), 0..100),
            tags in 0usize..3,
        ) {
            // Random bytes, or a frame with some bytes changed: that gets further.
            let mut bytes = match kind {
                None => random,
                Some(kind) => {
                    let builder = FrameBuilder::new(Some(link(tags)), net(kind));
                    built(&builder, &acknowledge())
                }
            };
            for (offset, byte) in noise {
                let len = bytes.len().max(1);
                if let Some(place) = bytes.get_mut(usize::from(offset) % len) {
                    *place = byte;
                }
            }
            let _ = Frame::parse_ip(&bytes);
            if let Ok(frame) = Frame::parse_ethernet(&bytes) {
                let mut again = vec![0; bytes.len()];
                prop_assert_eq!(frame.write(&mut again), Ok(bytes.len()));
                prop_assert_eq!(&again, &bytes);
                let _ = frame.packet();
                prop_assert!(frame.icrc().is_ok());
            }
        }
    }
}
