//! Super-frames: what a capture shows of a batch that the kernel or an adapter cuts up later.
//!
//! A sender that uses UDP_SEGMENT hands the kernel many packets as one buffer. A capture on a
//! device with segmentation offload sees that buffer, with the IP and UDP length of all, and the
//! last four bytes are the iCRC of the last packet alone, so the whole looks corrupt.

use super::{Frame, Net};
use crate::hdr::Bth;
use crate::icrc::{ICRC_LEN, IcrcCheck, IcrcFlow};

/// No RoCE packet is longer, from BTH to the iCRC: payload 4096, and headers that fit in 96 bytes.
const SEGMENT_LEN_MAX: usize = 4096 + 96;

/// A frame that turned out to be several packets in one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SuperFrame<'a> {
    flow: IcrcFlow,
    identification: u16,
    /// From the first BTH to the last iCRC.
    bytes: &'a [u8],
    segment_len: usize,
}

/// One packet in a super-frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment<'a> {
    /// The packet from BTH to its last pad byte.
    pub packet: &'a [u8],
    /// The same with its iCRC.
    pub sealed: &'a [u8],
    /// The IPv4 identification that it will have: it counts up. It means nothing over IPv6.
    pub identification: u16,
    /// Its iCRC.
    pub icrc: IcrcCheck,
}

impl<'a> SuperFrame<'a> {
    /// Looks for the segment size that makes a good packet of the start of `frame`.
    ///
    /// For frames whose own iCRC is bad; a good one is no super-frame, and gives `None`. The
    /// search costs up to a thousand CRCs.
    pub fn find(frame: &Frame<'a>) -> Option<Self> {
        if frame.icrc().is_ok_and(|check| check.is_good()) {
            return None;
        }
        let flow = frame.net.icrc_flow();
        let bytes = match frame.net {
            // RoCE v1 is not segmented.
            Net::V1(_) => return None,
            Net::V4 { .. } | Net::V6 { .. } => frame.l3().get(frame.net.header_len()..)?,
        };
        let found = |segment_len| Self {
            flow,
            identification: frame.net.identification(),
            bytes,
            segment_len,
        };
        let longest = SEGMENT_LEN_MAX.min(bytes.len().saturating_sub(1));
        // A packet's length is a multiple of four, and the last one has BTH and an iCRC too.
        let shortest = Bth::LEN + ICRC_LEN;
        (shortest..=longest)
            .step_by(4)
            .filter(|len| !(1..shortest).contains(&(bytes.len() % len)))
            .map(found)
            .find(|it| it.segments().next().is_some_and(|first| first.icrc.is_good()))
    }

    /// The packets of a frame of which it is known how long each is but the last, from BTH to the
    /// iCRC, as the kernel tells it with the frame; `None` for RoCE v1, which is not segmented.
    pub fn with_segment_len(frame: &Frame<'a>, segment_len: usize) -> Option<Self> {
        if matches!(frame.net, Net::V1(_)) || segment_len == 0 {
            return None;
        }
        let bytes = frame.l3().get(frame.net.header_len()..)?;
        let (flow, identification) = (frame.net.icrc_flow(), frame.net.identification());
        Some(Self { flow, identification, bytes, segment_len })
    }

    /// Length in bytes of each segment but the last, from BTH to the iCRC.
    pub const fn segment_len(&self) -> usize {
        self.segment_len
    }

    /// The packets in it.
    pub fn segments(&self) -> impl Iterator<Item = Segment<'a>> + use<'a> {
        let Self { flow, identification, bytes, segment_len } = *self;
        bytes.chunks(segment_len).zip(0u16..).filter_map(move |(chunk, index)| {
            let identification = identification.wrapping_add(index);
            let (packet, carried) = chunk.split_last_chunk::<ICRC_LEN>()?;
            let icrc = IcrcCheck {
                computed: flow.icrc(identification, packet),
                carried: u32::from_le_bytes(*carried),
            };
            Some(Segment { packet, sealed: chunk, identification, icrc })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FrameBuilder, Ipv4, Ipv6, Udp};
    use super::*;
    use crate::Opcode;

    /// What a sender hands to the kernel: packets with their iCRCs, the identification counted up.
    fn super_frame(net: Net, first_identification: u16, lens: &[usize]) -> Vec<u8> {
        let mut batch = Vec::new();
        for (index, len) in (0u16..).zip(lens) {
            let mut packet = vec![index as u8; *len];
            packet[0] = Opcode::RC_SEND_MIDDLE.get();
            packet[1] = 0;
            let icrc = net.icrc_flow().icrc(first_identification + index, &packet);
            batch.extend(packet);
            batch.extend(icrc.to_le_bytes());
        }
        // The frame's own four last bytes are the last iCRC, so hand all but them to the builder.
        let packet = &batch[..batch.len() - ICRC_LEN];
        let builder = FrameBuilder::new(None, net);
        let mut frame = vec![0; builder.frame_len(packet.len())];
        builder.write(packet, &mut frame).unwrap();
        let end = frame.len() - ICRC_LEN;
        frame[end..].copy_from_slice(&batch[batch.len() - ICRC_LEN..]);
        frame
    }

    #[test]
    fn a_known_segment_length_needs_no_search() {
        let bytes = super_frame(v4(7), 7, &[40, 40, 16]);
        let frame = Frame::parse_ip(&bytes).unwrap();
        let segments = SuperFrame::with_segment_len(&frame, 44).unwrap();
        let seen: Vec<_> = segments
            .segments()
            .map(|s| (s.packet.len(), s.sealed.len(), s.identification, s.icrc.is_good()))
            .collect();
        assert_eq!(seen, [(40, 44, 7, true), (40, 44, 8, true), (16, 20, 9, true)]);
        // Another length makes bad packets of it, and none is no length.
        let other = SuperFrame::with_segment_len(&frame, 48).unwrap();
        assert!(other.segments().all(|segment| !segment.icrc.is_good()));
        assert_eq!(SuperFrame::with_segment_len(&frame, 0), None);
    }

    fn v4(identification: u16) -> Net {
        let ip = Ipv4::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        Net::V4 { ip: Ipv4 { identification, ..ip }, udp: Udp::new(0xc000) }
    }

    fn v6() -> Net {
        Net::V6 { ip: Ipv6::new([1; 16].into(), [2; 16].into()), udp: Udp::new(0xc000) }
    }

    #[test]
    fn the_packets_of_a_batch_are_found() {
        for (net, identification) in [(v4(0), 0), (v4(0xff00), 0xff00), (v6(), 0)] {
            let bytes = super_frame(net, identification, &[1036, 1036, 1036, 40]);
            let frame = Frame::parse_ip(&bytes).unwrap();
            let found = SuperFrame::find(&frame).unwrap();
            assert_eq!(found.segment_len(), 1040);
            let segments: Vec<_> = found.segments().collect();
            assert_eq!(segments.len(), 4);
            assert!(segments.iter().all(|segment| segment.icrc.is_good()));
            assert_eq!(segments[3].identification, identification + 3);
            assert_eq!(segments[3].packet.len(), 40);
        }
    }

    #[test]
    fn a_corrupt_packet_in_a_batch_is_told() {
        let mut bytes = super_frame(v4(0), 0, &[268, 268, 268]);
        bytes[28 + 272 + 100] ^= 1;
        let frame = Frame::parse_ip(&bytes).unwrap();
        let found = SuperFrame::find(&frame).unwrap();
        let good: Vec<_> = found.segments().map(|segment| segment.icrc.is_good()).collect();
        assert_eq!(good, [true, false, true]);
    }

    #[test]
    fn neither_a_good_packet_nor_a_corrupt_one_is_a_batch() {
        let mut bytes = super_frame(v4(0), 0, &[268]);
        assert_eq!(SuperFrame::find(&Frame::parse_ip(&bytes).unwrap()), None);
        bytes[100] ^= 1;
        assert_eq!(SuperFrame::find(&Frame::parse_ip(&bytes).unwrap()), None);
    }

    #[test]
    fn what_is_left_over_must_be_a_packet_too() {
        // A good packet, and then four bytes that can be none.
        let mut bytes = super_frame(v4(0), 0, &[40, 40]);
        assert!(SuperFrame::find(&Frame::parse_ip(&bytes).unwrap()).is_some());
        bytes.truncate(28 + 44 + 4);
        (bytes[3], bytes[20 + 5]) = (28 + 48, 8 + 48);
        assert_eq!(SuperFrame::find(&Frame::parse_ip(&bytes).unwrap()), None);
    }
}
