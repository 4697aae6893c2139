//! Whole frames around packets: for links that send them, and for captures of those that do not.

use std::net::IpAddr;
use std::ops::Range;

use gid_table::{Gid, GidType};
use rxe_core::path::Path;
use rxe_wire::icrc::{Encapsulation, ICRC_LEN, IcrcFlow};
use rxe_wire::net::{
    Ethernet, Frame, FrameBuilder, Grh, Ipv4, Ipv6, Link, MacAddr, Net, Udp, Vlan,
};
use rxe_wire::{EmitError, ParseError};

/// What a frame has below BTH beside what [`Path`] says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FrameHeaders {
    pub source_mac: [u8; 6],
    pub destination_mac: [u8; 6],
    /// UDP source port, on RoCE v2.
    pub source_port: u16,
    /// IPv4 identification.
    pub identification: u16,
    /// IPv4 "don't fragment".
    pub dont_fragment: bool,
}

/// Why a packet has no frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum FrameError {
    /// IPv4 at one end and IPv6 at the other.
    #[error("one end is IPv4 and the other IPv6: {from} to {to}")]
    MixedVersions { from: Gid, to: Gid },
    /// InfiniBand, which does not run over Ethernet.
    #[error("a GID of type IB has no place in an Ethernet frame")]
    InfiniBand,
    /// The packet cannot be written.
    #[error(transparent)]
    Emit(#[from] EmitError),
}

/// Writes the frame of a packet, which reaches from BTH to its last pad byte, to the end of `out`.
///
/// `icrc` is the one that the packet carries; `None` for the right one. Returns the number of
/// bytes before the IP header or GRH.
pub(crate) fn write(
    out: &mut Vec<u8>,
    path: &Path,
    headers: &FrameHeaders,
    packet: &[u8],
    icrc: Option<[u8; ICRC_LEN]>,
) -> Result<usize, FrameError> {
    let net = net_of(path, headers)?;
    // Without a checksum an IPv6 packet is refused by sockets, and complained of by Wireshark.
    let udp_checksum = net.encapsulation() == Encapsulation::V2Ipv6;
    let link = link_of(path, headers);
    let builder = FrameBuilder { udp_checksum, ..FrameBuilder::new(Some(link), net) };
    let start = out.len();
    if let (Some(icrc), false) = (icrc, udp_checksum) {
        write_head(out, &builder, packet.len())?;
        out.extend(packet);
        out.extend(icrc);
        return Ok(link.len());
    }
    out.resize(start + builder.frame_len(packet.len()), 0);
    builder.write(packet, &mut out[start..])?;
    if let (Some(icrc), Some(place)) = (icrc, out.last_chunk_mut()) {
        *place = icrc;
    }
    Ok(link.len())
}

/// Writes one frame around several packets of RoCE v2, each with its iCRC, for a kernel that cuts it
/// apart and completes the checksums. Returns where in the frame its UDP header is.
pub(crate) fn write_super(
    out: &mut Vec<u8>,
    path: &Path,
    headers: &FrameHeaders,
    sealed: &[u8],
) -> Result<usize, FrameError> {
    let net = net_of(path, headers)?;
    let builder = FrameBuilder::new(Some(link_of(path, headers)), net);
    let start = out.len();
    write_head(out, &builder, sealed.len().saturating_sub(ICRC_LEN))?;
    out.extend(sealed);
    let udp = builder.head_len() - UDP_LEN;
    // Where the checksum is to be, the kernel wants the sum of the pseudo header: RFC 768, and RFC
    // 8200 section 8.1, which is the same sum.
    let sum = pseudo_sum(&net, UDP_LEN + sealed.len());
    out[start + udp + UDP_CHECKSUM..][..2].copy_from_slice(&sum.to_be_bytes());
    Ok(udp)
}

/// Writes what stands before a packet of this length to the end of `out`.
fn write_head(out: &mut Vec<u8>, builder: &FrameBuilder, len: usize) -> Result<(), EmitError> {
    let start = out.len();
    out.resize(start + builder.head_len(), 0);
    builder.write_head(len, &mut out[start..]).map(drop)
}

/// Bytes of a UDP header, and where its checksum is.
const UDP_LEN: usize = 8;
pub(crate) const UDP_CHECKSUM: usize = 6;
/// IP's number of UDP.
const UDP: u32 = 17;

/// The sum, in one's complement, of what the UDP checksum covers beside UDP itself.
fn pseudo_sum(net: &Net, udp_len: usize) -> u16 {
    let words = |bytes: &[u8]| {
        let pairs = bytes.as_chunks::<2>().0.iter();
        pairs.map(|pair| u32::from(u16::from_be_bytes(*pair))).sum::<u32>()
    };
    let addresses = match net {
        Net::V1(_) => 0,
        Net::V4 { ip, .. } => words(&ip.source.octets()) + words(&ip.destination.octets()),
        Net::V6 { ip, .. } => words(&ip.source.octets()) + words(&ip.destination.octets()),
    };
    // No frame is longer than 65,535 bytes.
    let mut sum = addresses + UDP + u32::try_from(udp_len).unwrap_or_default();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The addressing of a frame that [`write`] would write, as the iCRC covers it.
pub(crate) fn icrc_flow(path: &Path, headers: &FrameHeaders) -> Result<IcrcFlow, FrameError> {
    Ok(net_of(path, headers)?.icrc_flow())
}

/// What was read of a frame; ranges are positions in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Parsed {
    pub destination_mac: [u8; 6],
    pub path: Path,
    /// From the IP header or GRH to the last byte of the iCRC.
    pub l3: Range<usize>,
    /// From BTH to the last pad byte.
    pub packet: Range<usize>,
}

/// Reads the addressing of a frame; neither the iCRC nor the opcode is judged.
pub(crate) fn parse(bytes: &[u8]) -> Result<Parsed, ParseError> {
    let frame = Frame::parse_ethernet(bytes)?;
    let link = frame.link.unwrap_or_default();
    let start = link.len();
    let bth = start + frame.net.header_len();
    Ok(Parsed {
        destination_mac: link.ethernet.destination.0,
        path: path_of(&frame),
        l3: start..start + frame.l3().len(),
        packet: bth..bth + frame.roce.len(),
    })
}

/// The addressing in a frame.
pub(crate) fn path_of(frame: &Frame<'_>) -> Path {
    let gid_type = match frame.net.encapsulation() {
        Encapsulation::V1 => GidType::RoceV1,
        Encapsulation::V2Ipv4 | Encapsulation::V2Ipv6 => GidType::RoceV2,
    };
    let vlan = frame.link.and_then(|link| link.vlan);
    Path {
        source: Gid::from_raw(frame.net.source_gid()),
        destination: Gid::from_raw(frame.net.destination_gid()),
        gid_type,
        traffic_class: frame.net.traffic_class(),
        flow_label: frame.net.flow_label(),
        hop_limit: frame.net.hop_limit(),
        // Identifier 0 carries a priority and names no VLAN (IEEE 802.1Q).
        vlan: vlan.map(|tag| tag.id).filter(|id| *id != 0),
    }
}

fn link_of(path: &Path, headers: &FrameHeaders) -> Link {
    // The builder sets the EtherTypes.
    let ethernet = Ethernet {
        destination: MacAddr(headers.destination_mac),
        source: MacAddr(headers.source_mac),
        ether_type: 0,
    };
    let tag = |id| Vlan { priority: 0, drop_eligible: false, id, ether_type: 0 };
    Link { ethernet, vlan: path.vlan.map(tag), inner_vlan: None }
}

fn net_of(path: &Path, headers: &FrameHeaders) -> Result<Net, FrameError> {
    let Path { source, destination, gid_type, traffic_class, flow_label, hop_limit, vlan: _ } =
        *path;
    let udp = Udp::new(headers.source_port);
    match (gid_type, source.to_ip(), destination.to_ip()) {
        (GidType::RoceV1, _, _) => {
            let grh = Grh::new(source.raw(), destination.raw());
            Ok(Net::V1(Grh { traffic_class, flow_label, hop_limit, ..grh }))
        }
        (GidType::RoceV2, IpAddr::V4(from), IpAddr::V4(to)) => {
            let ip = Ipv4 {
                traffic_class,
                ttl: hop_limit,
                identification: headers.identification,
                dont_fragment: headers.dont_fragment,
                ..Ipv4::new(from, to)
            };
            Ok(Net::V4 { ip, udp })
        }
        (GidType::RoceV2, IpAddr::V6(from), IpAddr::V6(to)) => {
            let ip = Ipv6 { traffic_class, flow_label, hop_limit, ..Ipv6::new(from, to) };
            Ok(Net::V6 { ip, udp })
        }
        (GidType::RoceV2, _, _) => Err(FrameError::MixedVersions { from: source, to: destination }),
        (GidType::Ib, _, _) => Err(FrameError::InfiniBand),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rxe_wire::icrc::check_l3;
    use rxe_wire::net::SuperFrame;

    use super::*;

    const HEADERS: FrameHeaders = FrameHeaders {
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 0, 2],
        source_port: 0xc123,
        identification: 0x1234,
        dont_fragment: true,
    };

    fn path(source: &str, destination: &str, gid_type: GidType) -> Path {
        Path {
            gid_type,
            traffic_class: 0x22,
            hop_limit: 7,
            ..Path::new(source.parse().expect("a GID"), destination.parse().expect("a GID"))
        }
    }

    fn paths() -> impl Strategy<Value = Path> {
        let ends = prop_oneof![
            Just(path("10.0.0.1", "10.0.0.2", GidType::RoceV2)),
            (0..1_u32 << 20).prop_map(|flow_label| Path {
                flow_label,
                ..path("fd00::1", "fd00::2", GidType::RoceV2)
            }),
            Just(path("10.0.0.1", "fe80::2", GidType::RoceV1)),
        ];
        (ends, prop::option::of(1..4095_u16)).prop_map(|(path, vlan)| Path { vlan, ..path })
    }

    proptest! {
        #[test]
        fn a_frame_is_read_as_it_was_written(
            path in paths(),
            packet in prop::collection::vec(any::<u8>(), 12..200),
        ) {
            let mut frame = Vec::new();
            let network = write(&mut frame, &path, &HEADERS, &packet, None).expect("fits");
            let parsed = parse(&frame).expect("a frame of ours");
            prop_assert_eq!(parsed.path, path);
            prop_assert_eq!(parsed.destination_mac, HEADERS.destination_mac);
            prop_assert_eq!(parsed.l3.clone(), network..frame.len());
            prop_assert_eq!(&frame[parsed.packet], packet.as_slice());
            prop_assert!(check_l3(&frame[parsed.l3]).expect("has an iCRC").is_good());
        }
    }

    proptest! {
        #[test]
        fn a_super_frame_is_cut_into_the_packets_that_it_was_made_of(
            path in paths().prop_filter("v1 is not cut", |path| path.gid_type == GidType::RoceV2),
            len in 12..80_usize,
            count in 2..20_u16,
            last in 12..80_usize,
        ) {
            let lens = (1..count).map(|_| len).chain([last.min(len)]);
            let flow = icrc_flow(&path, &HEADERS).expect("of one version");
            let packets: Vec<Vec<u8>> = (0..).zip(lens).map(|(k, len)| vec![k; len]).collect();
            let mut sealed = Vec::new();
            for (k, packet) in (0..).zip(&packets) {
                sealed.extend(packet);
                sealed.extend(flow.icrc(HEADERS.identification + k, packet).to_le_bytes());
            }
            let mut bytes = Vec::new();
            let udp = write_super(&mut bytes, &path, &HEADERS, &sealed).expect("fits");
            let frame = Frame::parse_ethernet(&bytes).expect("a frame of ours");
            prop_assert_eq!(path_of(&frame), path);
            let cut = SuperFrame::with_segment_len(&frame, len + ICRC_LEN).expect("of v2");
            let cut: Vec<_> = cut.segments().collect();
            prop_assert!(cut.iter().all(|segment| segment.icrc.is_good()));
            prop_assert!(cut.iter().map(|segment| segment.packet).eq(&packets));
            // What the kernel makes the checksum of: the sum that is there, and UDP's own.
            let there = udp + UDP_CHECKSUM..udp + UDP_CHECKSUM + 2;
            let pseudo = u16::from_be_bytes([bytes[there.start], bytes[there.start + 1]]);
            bytes[there].fill(0);
            let mut sum = u32::from(pseudo);
            for pair in bytes[udp..].chunks(2) {
                sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            }
            sum = (sum & 0xffff) + (sum >> 16);
            sum = (sum & 0xffff) + (sum >> 16);
            let frame = Frame::parse_ethernet(&bytes).expect("a frame of ours");
            let payload = &bytes[udp + UDP_LEN..];
            let expected = match frame.net {
                Net::V4 { ip, udp } => udp.checksum_v4(&ip, payload),
                Net::V6 { ip, udp } => udp.checksum_v6(&ip, payload),
                Net::V1(_) => panic!("v2 was asked for"),
            };
            let made = match !(sum as u16) { 0 => 0xffff, sum => sum };
            prop_assert_eq!(made, expected.expect("not too long"));
        }
    }

    #[test]
    fn a_given_icrc_is_carried() {
        let path = path("10.0.0.1", "10.0.0.2", GidType::RoceV2);
        let mut frame = Vec::new();
        write(&mut frame, &path, &HEADERS, &[0; 12], Some([1, 2, 3, 4])).expect("fits");
        assert_eq!(frame.last_chunk(), Some(&[1, 2, 3, 4]));
    }

    #[test]
    fn what_has_no_frame_is_refused() {
        let write = |path| write(&mut Vec::new(), &path, &HEADERS, &[0; 12], None);
        let mixed = path("10.0.0.1", "fd00::2", GidType::RoceV2);
        let FrameError::MixedVersions { from, to } = write(mixed).expect_err("mixed") else {
            panic!("another error")
        };
        assert_eq!((from, to), (mixed.source, mixed.destination));
        let infiniband = path("fe80::1", "fe80::2", GidType::Ib);
        assert_eq!(write(infiniband), Err(FrameError::InfiniBand));
    }
}
