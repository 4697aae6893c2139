//! iCRC, the invariant CRC that ends every RoCE packet.
//!
//! It is the CRC-32 of Ethernet over eight bytes of ones (for a header that RoCE lacks), the IP
//! header or GRH, UDP, BTH, the other headers, the payload and its pad (rule R59), with the
//! fields that may change on the way taken as ones, inverted and stored little-endian. Taken as
//! ones are: IPv4 TOS, TTL and header checksum; IPv6 and GRH traffic class, flow label and hop
//! limit; the UDP checksum; byte 4 of BTH (FECN, BECN, reserved). Everything else is covered, IPv4
//! identification and flags too. Counterpart of `rxe_icrc.c`.
//!
//! Three ways in: [`IcrcFlow`] for a sender or a receiver that handles packets from BTH on and
//! knows the addressing; [`check_l3`] and [`seal_l3`] for whole packets from the IP header or GRH
//! on; and [`IcrcFlow::identify`] for a receiver that sees everything but the IPv4 identification.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::crc;
use crate::error::{Layer, ParseError};
use crate::hdr::Bth;

/// Length in bytes of the iCRC.
pub const ICRC_LEN: usize = 4;

/// The UDP destination port of RoCEv2.
pub const ROCE_V2_PORT: u16 = 4791;

/// Value of the next-header field of GRH that says BTH follows.
pub const GRH_NEXT_HEADER: u8 = 0x1b;

/// The CRC register after eight bytes of ones from a register of ones.
const SEED: u32 = 0xdebb_20e3;

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
const UDP_PROTOCOL: u8 = 17;
/// The byte of BTH that the iCRC takes as ones.
const BTH_MASKED: usize = 4;
/// IPv4 flags with only "don't fragment" set, the first of the two bytes.
const DONT_FRAGMENT: u8 = 0x40;
/// Its share in the register at the start of BTH: 21 bytes lie between.
const DONT_FRAGMENT_SHARE: u32 = crc::byte_share(DONT_FRAGMENT, 21);

// The share in the register, at the start of BTH, of each byte that differs from packet to packet.
// The number is that of bytes between it and BTH.
static V4_TOTAL_LEN: [[u32; 256]; 2] = [crc::byte_shares(25), crc::byte_shares(24)];
static V4_IDENTIFICATION: [[u32; 256]; 2] = [crc::byte_shares(23), crc::byte_shares(22)];
/// The share of the identification's low byte after a packet of each of the common lengths.
static LATE_IDENTIFICATION: [[u32; 256]; 5] = {
    let ([_, low], [a, b, c, d, e]) = (&V4_IDENTIFICATION, crc::COMMON_LENGTHS);
    [
        crc::moved(low, a),
        crc::moved(low, b),
        crc::moved(low, c),
        crc::moved(low, d),
        crc::moved(low, e),
    ]
};
/// The same where there is no identification.
static NO_IDENTIFICATION: [u32; 256] = [0; 256];
static UDP_LENGTH: [[u32; 256]; 2] = [crc::byte_shares(3), crc::byte_shares(2)];
static V6_PAYLOAD_LEN: [[u32; 256]; 2] = [crc::byte_shares(43), crc::byte_shares(42)];
static V1_PAYLOAD_LEN: [[u32; 256]; 2] = [crc::byte_shares(35), crc::byte_shares(34)];
static BTH_BYTE: [u32; 256] = crc::byte_shares_ahead(BTH_MASKED);

/// The addressing of packets, taken into the CRC once; made once for each flow.
///
/// Lengths and the IPv4 identification are added for each packet. An IPv4 flow has "don't fragment"
/// set and offset 0, and no options; UDP goes to port 4791.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcrcFlow {
    /// The register at the start of BTH, with lengths and identification 0.
    base: u32,
    encapsulation: Encapsulation,
}

/// How a RoCE packet travels.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Encapsulation {
    /// RoCE v1: GRH straight on Ethernet.
    V1,
    /// RoCE v2 over IPv4 and UDP.
    V2Ipv4,
    /// RoCE v2 over IPv6 and UDP.
    V2Ipv6,
}

impl IcrcFlow {
    /// The flow of RoCE v2 packets over IPv4.
    pub fn v4(source: Ipv4Addr, destination: Ipv4Addr, source_port: u16) -> Self {
        let mut header = [0; IPV4_LEN + UDP_LEN];
        let mut writer = Writer(&mut header);
        writer.put(&[0x45, 0xff]);
        // Total length and identification, which each packet adds.
        writer.put(&[0; 4]);
        writer.put(&[DONT_FRAGMENT, 0, 0xff, UDP_PROTOCOL, 0xff, 0xff]);
        writer.put(&source.octets());
        writer.put(&destination.octets());
        writer.put_udp(source_port);
        Self { base: crc::update(SEED, &header), encapsulation: Encapsulation::V2Ipv4 }
    }

    /// The flow of RoCE v2 packets over IPv6.
    pub fn v6(source: Ipv6Addr, destination: Ipv6Addr, source_port: u16) -> Self {
        let mut header = [0; IPV6_LEN + UDP_LEN];
        let mut writer = Writer(&mut header);
        writer.put_v6(UDP_PROTOCOL, source.octets(), destination.octets());
        writer.put_udp(source_port);
        Self { base: crc::update(SEED, &header), encapsulation: Encapsulation::V2Ipv6 }
    }

    /// The flow of RoCE v1 packets, from the two GIDs in wire order.
    pub fn v1(source_gid: [u8; 16], destination_gid: [u8; 16]) -> Self {
        let mut header = [0; IPV6_LEN];
        Writer(&mut header).put_v6(GRH_NEXT_HEADER, source_gid, destination_gid);
        Self { base: crc::update(SEED, &header), encapsulation: Encapsulation::V1 }
    }

    /// The same flow with "don't fragment" clear; of no effect without IPv4.
    #[must_use]
    pub(crate) const fn fragmentable(self) -> Self {
        match self.encapsulation {
            Encapsulation::V2Ipv4 => Self { base: self.base ^ DONT_FRAGMENT_SHARE, ..self },
            Encapsulation::V1 | Encapsulation::V2Ipv6 => self,
        }
    }

    /// How the packets travel.
    pub const fn encapsulation(&self) -> Encapsulation {
        self.encapsulation
    }

    /// The iCRC of a packet, to be stored with [`u32::to_le_bytes`].
    ///
    /// `packet` reaches from BTH to the last pad byte. `identification` is IPv4's and counts
    /// nowhere else. A packet longer than UDP can carry has no iCRC: the result means nothing.
    #[inline]
    pub fn icrc(&self, identification: u16, packet: &[u8]) -> u32 {
        let register = self.before(identification, packet);
        !crc::update(register, packet)
    }

    /// As [`icrc`](Self::icrc), where the sum of `packet` is known: the CRC register after all its
    /// bytes, from a register of zero and without inversion.
    #[inline]
    pub fn icrc_of_summed(&self, identification: u16, packet: &[u8], sum: u32) -> u32 {
        let register = self.before(identification, packet);
        let after = crc::after_summed(register, packet.len(), sum);
        !after.unwrap_or_else(|| crc::update(register, packet))
    }

    /// The flow of those packets that have `len` bytes from BTH to the last pad byte.
    ///
    /// What all of them have in common is computed here.
    #[inline]
    pub fn sized(&self, len: usize) -> SizedFlow {
        let common = crc::common_index(len).and_then(|index| {
            let identifications = match self.encapsulation {
                Encapsulation::V2Ipv4 => LATE_IDENTIFICATION.get(index)?,
                Encapsulation::V1 | Encapsulation::V2Ipv6 => &NO_IDENTIFICATION,
            };
            let register = bth_masked(self.with_len(self.base, len), 0);
            Some(Common { register: crc::after_summed(register, len, 0)?, identifications })
        });
        SizedFlow { flow: *self, len, common }
    }

    /// The register at the start of BTH.
    #[inline]
    fn before(&self, identification: u16, packet: &[u8]) -> u32 {
        let share = match self.encapsulation {
            Encapsulation::V2Ipv4 => field_share(&V4_IDENTIFICATION, identification),
            Encapsulation::V1 | Encapsulation::V2Ipv6 => 0,
        };
        self.with_lengths(self.base ^ share, packet)
    }

    /// Finds the IPv4 identification and the don't-fragment flag that make `received` the iCRC of
    /// `packet`, for a receiver to whom the socket does not show them.
    ///
    /// `None` says that the packet is corrupt. **The check is weaker than the exact one:** one
    /// corrupt packet in 65,536 finds some identification with the flag set, and as many with the
    /// flag clear, which is tried second. Where a sender counts its identifications up, requiring
    /// the one found to lie near the last one narrows it further. IPv6 and GRH have no
    /// identification: there the check is exact, and the result is identification 0.
    #[inline]
    pub fn identify(&self, packet: &[u8], received: u32) -> Option<Identified> {
        let computed = self.icrc(0, packet);
        if computed == received {
            return Some(Identified { identification: 0, dont_fragment: true });
        }
        if self.encapsulation != Encapsulation::V2Ipv4 {
            return None;
        }
        // After the identification: 14 bytes of IPv4, UDP, and the packet.
        let bytes_after = IPV4_LEN - 6 + UDP_LEN + packet.len();
        if let Some(identification) = solve_identification(computed, received, bytes_after) {
            return Some(Identified { identification, dont_fragment: true });
        }
        let register = self.with_lengths(self.base ^ DONT_FRAGMENT_SHARE, packet);
        let computed = !crc::update(register, packet);
        let identification = solve_identification(computed, received, bytes_after)?;
        Some(Identified { identification, dont_fragment: false })
    }

    /// The register at the start of BTH, from the one without lengths.
    #[inline]
    fn with_lengths(&self, register: u32, packet: &[u8]) -> u32 {
        let register = self.with_len(register, packet.len());
        packet.get(BTH_MASKED).map_or(register, |&byte| bth_masked(register, byte))
    }

    /// The same for a packet of `len` bytes, before anything is known of BTH.
    #[inline]
    fn with_len(&self, register: u32, len: usize) -> u32 {
        let transport_len = len + ICRC_LEN;
        let udp_len = (transport_len + UDP_LEN) as u16;
        register
            ^ match self.encapsulation {
                Encapsulation::V2Ipv4 => {
                    field_share(&UDP_LENGTH, udp_len)
                        ^ field_share(&V4_TOTAL_LEN, udp_len.wrapping_add(IPV4_LEN as u16))
                }
                Encapsulation::V2Ipv6 => {
                    field_share(&UDP_LENGTH, udp_len) ^ field_share(&V6_PAYLOAD_LEN, udp_len)
                }
                Encapsulation::V1 => field_share(&V1_PAYLOAD_LEN, transport_len as u16),
            }
    }
}

/// The register at the start of BTH, where `byte` is the one that counts as ones.
///
/// Rather than copy the packet to change it, change the register before it by as much.
#[inline]
#[expect(clippy::indexing_slicing, reason = "a u8 cannot leave a table of 256")]
fn bth_masked(register: u32, byte: u8) -> u32 {
    register ^ BTH_BYTE[usize::from(byte ^ 0xff)]
}

/// Packets of one flow and one length; see [`IcrcFlow::sized`].
///
/// The CRC is linear: of packets that are alike in all that stands before BTH but the
/// identification, each one's iCRC is the common part, its identification's, and its own sum.
#[derive(Clone, Copy, Debug)]
pub struct SizedFlow {
    flow: IcrcFlow,
    len: usize,
    common: Option<Common>,
}

/// What the packets of one common length have in common, when the masked byte of BTH is 0.
#[derive(Clone, Copy, Debug)]
struct Common {
    /// The register after a packet of nothing but zeros, with identification 0.
    register: u32,
    /// What each identification below 256 adds to it.
    identifications: &'static [u32; 256],
}

impl SizedFlow {
    /// As [`IcrcFlow::icrc_of_summed`], for a packet of the flow; quick when it has the length, 256
    /// to 4096 bytes of payload behind nothing but BTH, and an identification below 256.
    #[inline]
    pub fn icrc_of_summed(&self, identification: u16, packet: &[u8], sum: u32) -> u32 {
        if let Some(common) = &self.common
            && packet.len() == self.len
            && packet.get(BTH_MASKED) == Some(&0)
            && let Some(share) = common.identifications.get(usize::from(identification))
        {
            return !(common.register ^ share ^ sum);
        }
        self.flow.icrc_of_summed(identification, packet, sum)
    }
}

/// What [`IcrcFlow::identify`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identified {
    /// The IPv4 identification.
    pub identification: u16,
    /// Whether "don't fragment" was set.
    pub dont_fragment: bool,
}

/// The IPv4 identification that explains the difference between two iCRCs of one packet.
///
/// `computed_with_id0` was computed with identification 0, `received` came with the packet, and
/// `bytes_after` is the number of covered bytes after the identification. The CRC is linear: their
/// difference, with those bytes undone, must lie in the 16 bits where the identification sits. If
/// not, `None`: the packet is corrupt. One corrupt packet in 65,536 passes; see
/// [`IcrcFlow::identify`].
#[inline]
pub fn solve_identification(
    computed_with_id0: u32,
    received: u32,
    bytes_after: usize,
) -> Option<u16> {
    let count = u16::try_from(bytes_after + 2).ok()?;
    let before = crc::undo_zeros(computed_with_id0 ^ received, count);
    // The register takes the first byte in its lowest bits.
    let [high, low, 0, 0] = before.to_le_bytes() else { return None };
    Some(u16::from_be_bytes([high, low]))
}

/// The iCRC of a whole packet, and the one that it carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcrcCheck {
    /// The iCRC that the packet should carry.
    pub computed: u32,
    /// The one that it carries.
    pub carried: u32,
}

impl IcrcCheck {
    /// Whether they are the same.
    pub const fn is_good(&self) -> bool {
        self.computed == self.carried
    }
}

/// Computes the iCRC of a whole packet, from the IP header or GRH to the last byte of the iCRC, and
/// reads the one that it carries.
///
/// Each byte is taken as it is there: lengths and checksums are not judged.
///
/// # Errors
/// [`ParseError`] when there are not enough bytes for the headers, or when they are not RoCE's: IP
/// version, IPv4 options, protocol.
pub fn check_l3(packet: &[u8]) -> Result<IcrcCheck, ParseError> {
    let (computed, carried) = split_l3(packet)?;
    Ok(IcrcCheck { computed, carried: u32::from_le_bytes(carried) })
}

/// Computes the iCRC of a whole packet, from the IP header or GRH to the end of the four bytes kept
/// for the iCRC, and writes it there. It gives the value.
///
/// # Errors
/// As [`check_l3`].
pub fn seal_l3(packet: &mut [u8]) -> Result<u32, ParseError> {
    let (computed, _) = split_l3(packet)?;
    if let Some(place) = packet.last_chunk_mut::<ICRC_LEN>() {
        *place = computed.to_le_bytes();
    }
    Ok(computed)
}

/// The computed iCRC, and the four bytes in its place.
fn split_l3(packet: &[u8]) -> Result<(u32, [u8; ICRC_LEN]), ParseError> {
    let (network, masked) = masked_fields(packet)?;
    let head_len = network + Bth::LEN;
    let needed = head_len + ICRC_LEN;
    let have = packet.len();
    let truncated = ParseError::Truncated { layer: Layer::Icrc, needed, have };
    let (covered, carried) = packet.split_last_chunk::<ICRC_LEN>().ok_or(truncated)?;
    let (head, tail) = covered.split_at_checked(head_len).ok_or(truncated)?;
    let mut copy = [0; IPV6_LEN + UDP_LEN + Bth::LEN];
    let copy = copy.get_mut(..head_len).ok_or(truncated)?;
    copy.copy_from_slice(head);
    for &(offset, mask) in masked {
        if let Some(byte) = copy.get_mut(offset) {
            *byte |= mask;
        }
    }
    if let Some(byte) = copy.get_mut(network + BTH_MASKED) {
        *byte = 0xff;
    }
    Ok((!crc::update(crc::update(SEED, copy), tail), *carried))
}

/// Offset and bits of what is taken as ones below BTH.
type Masked = [(usize, u8)];

const V4_MASKED: &Masked = &[(1, 0xff), (8, 0xff), (10, 0xff), (11, 0xff), (26, 0xff), (27, 0xff)];
const V6_MASKED: &Masked =
    &[(0, 0x0f), (1, 0xff), (2, 0xff), (3, 0xff), (7, 0xff), (46, 0xff), (47, 0xff)];
const V1_MASKED: &Masked = &[(0, 0x0f), (1, 0xff), (2, 0xff), (3, 0xff), (7, 0xff)];

/// The length in bytes of what stands before BTH, and what of it is masked.
fn masked_fields(packet: &[u8]) -> Result<(usize, &'static Masked), ParseError> {
    let have = packet.len();
    let byte = |offset: usize, layer, needed| {
        packet.get(offset).copied().ok_or(ParseError::Truncated { layer, needed, have })
    };
    let first = byte(0, Layer::Ipv4, IPV4_LEN)?;
    match first >> 4 {
        4 => {
            let header_len = usize::from(first & 0x0f) * 4;
            if header_len != IPV4_LEN {
                return Err(ParseError::Ipv4HeaderLen { len: header_len });
            }
            match byte(9, Layer::Ipv4, IPV4_LEN)? {
                UDP_PROTOCOL => Ok((IPV4_LEN + UDP_LEN, V4_MASKED)),
                next_header => Err(ParseError::NextHeader { layer: Layer::Ipv4, next_header }),
            }
        }
        6 => match byte(6, Layer::Ipv6, IPV6_LEN)? {
            UDP_PROTOCOL => Ok((IPV6_LEN + UDP_LEN, V6_MASKED)),
            GRH_NEXT_HEADER => Ok((IPV6_LEN, V1_MASKED)),
            next_header => Err(ParseError::NextHeader { layer: Layer::Ipv6, next_header }),
        },
        version => Err(ParseError::IpVersion { layer: Layer::Ipv4, version }),
    }
}

/// The share of a big-endian 16-bit field.
#[inline]
#[expect(clippy::indexing_slicing, reason = "a u8 cannot leave a table of 256")]
fn field_share(table: &[[u32; 256]; 2], value: u16) -> u32 {
    let [high, low] = value.to_be_bytes();
    table[0][usize::from(high)] ^ table[1][usize::from(low)]
}

/// Fills a header from its start.
struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let rest = std::mem::take(&mut self.0);
        // The headers here are as long as what is put into them, so it always fits.
        if let Some((place, rest)) = rest.split_at_mut_checked(bytes.len()) {
            place.copy_from_slice(bytes);
            self.0 = rest;
        }
    }

    /// UDP with its length 0, which each packet adds.
    fn put_udp(&mut self, source_port: u16) {
        self.put(&source_port.to_be_bytes());
        self.put(&ROCE_V2_PORT.to_be_bytes());
        self.put(&[0, 0, 0xff, 0xff]);
    }

    /// IPv6 or GRH with its length 0, which each packet adds.
    fn put_v6(&mut self, next_header: u8, source: [u8; 16], destination: [u8; 16]) {
        self.put(&[0x6f, 0xff, 0xff, 0xff, 0, 0, next_header, 0xff]);
        self.put(&source);
        self.put(&destination);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The CRC bit by bit over the covered bytes, after eight bytes of ones.
    fn bitwise(covered: &[u8]) -> u32 {
        let mut register = !0u32;
        for &byte in [0xff; 8].iter().chain(covered) {
            register ^= u32::from(byte);
            for _ in 0..8 {
                let carry = register & 1 != 0;
                register >>= 1;
                if carry {
                    register ^= 0xedb8_8320;
                }
            }
        }
        !register
    }

    /// The header of an IPv4 packet, by hand, as it may look on the wire.
    fn v4_head(len: usize, identification: u16, flags: u8) -> Vec<u8> {
        let mut head = vec![0x45, 0x02];
        head.extend(((28 + len + 4) as u16).to_be_bytes());
        head.extend(identification.to_be_bytes());
        head.extend([flags, 0, 64, 17, 0x12, 0x34, 10, 77, 0, 1, 10, 77, 0, 2]);
        head.extend([0xc1, 0x02, 0x12, 0xb7]);
        head.extend(((8 + len + 4) as u16).to_be_bytes());
        head.extend([0xab, 0xcd]);
        head
    }

    fn v6_head(len: usize, next_header: u8) -> Vec<u8> {
        let mut head = vec![0x61, 0x23, 0x45, 0x67];
        let udp = if next_header == 17 { 8 } else { 0 };
        head.extend(((udp + len + 4) as u16).to_be_bytes());
        head.extend([next_header, 9]);
        head.extend(0xfd00_0077_0000_0000_0000_0000_0000_0001u128.to_be_bytes());
        head.extend(0xfd00_0077_0000_0000_0000_0000_0000_0002u128.to_be_bytes());
        if next_header == 17 {
            head.extend([0xc1, 0x02, 0x12, 0xb7]);
            head.extend(((8 + len + 4) as u16).to_be_bytes());
            head.extend([0xab, 0xcd]);
        }
        head
    }

    fn v4_flow() -> IcrcFlow {
        IcrcFlow::v4([10, 77, 0, 1].into(), [10, 77, 0, 2].into(), 0xc102)
    }

    /// A packet from the network header on, its flow, and the offset of BTH.
    fn whole(kind: Encapsulation, identification: u16, packet: &[u8]) -> (Vec<u8>, IcrcFlow) {
        let gid = |last: u8| {
            let mut gid = [0; 16];
            (gid[0], gid[3], gid[15]) = (0xfd, 0x77, last);
            gid
        };
        let (mut bytes, flow) = match kind {
            Encapsulation::V2Ipv4 => (v4_head(packet.len(), identification, 0x40), v4_flow()),
            Encapsulation::V2Ipv6 => {
                (v6_head(packet.len(), 17), IcrcFlow::v6(gid(1).into(), gid(2).into(), 0xc102))
            }
            Encapsulation::V1 => (v6_head(packet.len(), 0x1b), IcrcFlow::v1(gid(1), gid(2))),
        };
        bytes.extend(packet);
        bytes.extend([0; ICRC_LEN]);
        (bytes, flow)
    }

    fn encapsulation() -> impl Strategy<Value = Encapsulation> {
        prop_oneof![
            Just(Encapsulation::V1),
            Just(Encapsulation::V2Ipv4),
            Just(Encapsulation::V2Ipv6)
        ]
    }

    fn packet() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(any::<u8>(), 12..400)
    }

    #[test]
    fn the_seed_is_eight_bytes_of_ones() {
        assert_eq!(crc::update(!0, &[0xff; 8]), SEED);
    }

    #[test]
    fn a_flow_of_one_size_takes_packets_of_others() {
        for len in [12 + 256, 12 + 512, 12 + 1024, 100, 12 + 1023] {
            let packet: Vec<u8> =
                (0..len).map(|i| if i == 4 { 0 } else { (i * 7) as u8 }).collect();
            let sum = crc::update(0, &packet);
            let sized = v4_flow().sized(12 + 1024);
            for identification in [0, 1, 255, 256, 0xabcd] {
                let expected = v4_flow().icrc(identification, &packet);
                assert_eq!(sized.icrc_of_summed(identification, &packet, sum), expected, "{len}");
            }
        }
    }

    proptest! {
        #[test]
        fn flow_whole_packet_and_bitwise_agree(
            kind in encapsulation(),
            identification: u16,
            packet in packet(),
        ) {
            let (mut bytes, flow) = whole(kind, identification, &packet);
            let sealed = seal_l3(&mut bytes).unwrap();
            prop_assert_eq!(flow.icrc(identification, &packet), sealed);
            prop_assert!(check_l3(&bytes).unwrap().is_good());
            prop_assert_eq!(&bytes[bytes.len() - 4..], sealed.to_le_bytes());
            // Masked by hand, from the list in facts.md.
            let mut covered = bytes[..bytes.len() - 4].to_vec();
            let bth = covered.len() - packet.len();
            if kind == Encapsulation::V2Ipv4 {
                for offset in [1, 8, 10, 11] {
                    covered[offset] = 0xff;
                }
            } else {
                covered[0] |= 0x0f;
                covered[1..4].fill(0xff);
                covered[7] = 0xff;
            }
            if kind != Encapsulation::V1 {
                covered[bth - 2..bth].fill(0xff);
            }
            covered[bth + 4] = 0xff;
            prop_assert_eq!(bitwise(&covered), sealed);
        }

        #[test]
        fn a_sum_is_as_good_as_the_bytes(
            kind in encapsulation(),
            identification in prop_oneof![0_u16..256, any::<u16>()],
            mtu in 7_u32..14,
            extra in prop_oneof![9 => Just(12_usize), 1 => 11_usize..14],
            seed: u8,
            masked in prop_oneof![Just(0_u8), any::<u8>()],
            other_len in prop_oneof![9 => Just(0_usize), 1 => 1_usize..9],
        ) {
            let len = (1 << mtu) + extra;
            let mut packet: Vec<u8> = (0..len).map(|i| seed ^ (i * 7) as u8).collect();
            packet[BTH_MASKED] = masked;
            let (_, flow) = whole(kind, identification, &packet);
            let sum = crc::update(0, &packet);
            let expected = flow.icrc(identification, &packet);
            prop_assert_eq!(flow.icrc_of_summed(identification, &packet, sum), expected);
            let sized = flow.sized(len + other_len);
            prop_assert_eq!(sized.icrc_of_summed(identification, &packet, sum), expected);
        }

        #[test]
        fn a_flipped_bit_is_found_where_it_is_covered_and_only_there(
            kind in encapsulation(),
            packet in proptest::collection::vec(any::<u8>(), 12..40),
        ) {
            let (mut bytes, _) = whole(kind, 0x1234, &packet);
            seal_l3(&mut bytes).unwrap();
            let bth = bytes.len() - 4 - packet.len();
            for bit in 0..bytes.len() * 8 {
                let (byte, mask) = (bit / 8, 1u8 << (bit % 8));
                bytes[byte] ^= mask;
                let masked = match kind {
                    Encapsulation::V2Ipv4 => [1, 8, 10, 11, 26, 27].contains(&byte),
                    Encapsulation::V2Ipv6 => {
                        [1, 2, 3, 7, 46, 47].contains(&byte) || byte == 0 && mask < 16
                    }
                    Encapsulation::V1 => [1, 2, 3, 7].contains(&byte) || byte == 0 && mask < 16,
                } || byte == bth + 4;
                // A packet of another version or protocol is refused rather than checked.
                let good = check_l3(&bytes).is_ok_and(|check| check.is_good());
                prop_assert_eq!(good, masked, "bit {} of byte {}", bit % 8, byte);
                bytes[byte] ^= mask;
            }
        }

        #[test]
        fn an_identification_is_found_again(identification: u16, packet in packet()) {
            let flow = v4_flow();
            let received = flow.icrc(identification, &packet);
            let found = flow.identify(&packet, received);
            prop_assert_eq!(found, Some(Identified { identification, dont_fragment: true }));
            let (mut bytes, _) = whole(Encapsulation::V2Ipv4, identification, &packet);
            bytes[6] = 0;
            let received = seal_l3(&mut bytes).unwrap();
            let found = flow.identify(&packet, received);
            prop_assert_eq!(found, Some(Identified { identification, dont_fragment: false }));
        }

        #[test]
        fn the_solver_agrees_with_trying_all(packet in packet(), error: u32) {
            // Half of the cases have a small error, which is the likelier to be explained.
            for error in [error, 1 << (error % 32), 0] {
                let flow = v4_flow();
                let received = flow.icrc(0xbeef, &packet) ^ error;
                let tried = (0..=u16::MAX).find(|&id| {
                    // Linear: the share of the identification is added in front.
                    let share = field_share(&V4_IDENTIFICATION, id);
                    !crc::update(flow.with_lengths(flow.base ^ share, &packet), &packet) == received
                });
                let bytes_after = 22 + packet.len();
                let computed = flow.icrc(0, &packet);
                let solved = solve_identification(computed, received, bytes_after);
                prop_assert_eq!(solved, tried);
            }
        }

        #[test]
        fn without_an_identification_the_check_is_exact(packet in packet(), error in 1u32..) {
            let (_, flow) = whole(Encapsulation::V2Ipv6, 0, &packet);
            let good = flow.icrc(0, &packet);
            prop_assert_eq!(flow.identify(&packet, good ^ error), None);
            prop_assert_eq!(flow.icrc(77, &packet), good);
        }

        #[test]
        fn any_bytes_can_be_checked(mut bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = check_l3(&bytes);
            let _ = seal_l3(&mut bytes);
            let _ = v4_flow().identify(&bytes, 7);
        }
    }

    #[test]
    fn one_corrupt_packet_in_65536_passes_the_solver() {
        let flow = v4_flow();
        let packet: Vec<u8> = (0..100).collect();
        let good = flow.icrc(0, &packet);
        let count = 1u32 << 20;
        // Spread errors over all 32 bits by an odd multiplier.
        let passed = (1..=count)
            .filter(|&n| {
                solve_identification(good, good ^ n.wrapping_mul(0x9e37_79b1), 122).is_some()
            })
            .count();
        assert!((4..=40).contains(&passed), "{passed} of {count}, 16 are expected");
    }

    #[test]
    fn a_packet_too_long_for_a_length_is_not_solved() {
        assert_eq!(solve_identification(1, 2, 65_534), None);
    }
}
