//! Packets that came together, for the engine to take in together.

use rxe_wire::hdr::Bth;

/// Packets that came by one path at one time, and stand one behind the other in one buffer: what the
/// kernel makes of those that came by one segmented send.
///
/// All are as long as the first, but the last may be shorter. Nothing else is said of them: they may
/// be for several queue pairs, and any of them may be malformed.
#[derive(Clone, Copy, Debug)]
pub struct PacketRun<'a> {
    /// From the start of the first packet to the end of the last.
    bytes: &'a [u8],
    /// Bytes of each packet, from BTH to the last pad byte, but of the last.
    len: usize,
    /// Bytes from the start of a packet to that of the next one, not 0.
    stride: usize,
}

impl<'a> PacketRun<'a> {
    /// A packet by itself.
    #[inline]
    pub const fn of_one(bytes: &'a [u8]) -> Self {
        let len = bytes.len();
        Self { bytes, len, stride: if len > 0 { len } else { 1 } }
    }

    /// Packets of `len` bytes each, with `gap` bytes between two of them, in `bytes`, which ends with
    /// the last packet: that may be shorter.
    #[inline]
    pub const fn new(bytes: &'a [u8], len: usize, gap: usize) -> Self {
        let stride = len.saturating_add(gap);
        Self { bytes, len, stride: if stride > 0 { stride } else { 1 } }
    }

    /// The first packet.
    #[inline]
    pub fn first(self) -> &'a [u8] {
        self.bytes.get(..self.len).unwrap_or(self.bytes)
    }

    /// What is left without the first `count` packets, if anything is.
    #[inline]
    pub fn skip(self, count: usize) -> Option<Self> {
        let bytes = self.bytes.get(count.saturating_mul(self.stride)..)?;
        if bytes.is_empty() { None } else { Some(Self { bytes, ..self }) }
    }

    /// The packets, in their order.
    #[inline]
    pub fn packets(self) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let run = rest?;
            rest = run.skip(1);
            Some(run.first())
        })
    }

    /// How many packets, the first included, carry on the first one: as long as it is, and by their
    /// headers the next ones in the midst of the same message.
    pub(crate) fn count_in_sequence(self) -> u32 {
        let first = self.first();
        let mut count = 1;
        for packet in self.packets().skip(1) {
            if packet.len() != first.len() || !Bth::carries_on(packet, first, count) {
                break;
            }
            count += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use rxe_wire::{Opcode, Psn};

    use super::*;

    #[test]
    fn packets_are_those_between_the_gaps_and_the_last_may_be_shorter() {
        let bytes: Vec<u8> = (0..18).collect();
        let run = PacketRun::new(&bytes, 5, 2);
        let packets: Vec<&[u8]> = run.packets().collect();
        assert_eq!(packets, [&bytes[..5], &bytes[7..12], &bytes[14..18]]);
        assert_eq!(run.skip(2).map(PacketRun::first), Some(&bytes[14..]));
        assert!(run.skip(3).is_none());
        assert_eq!(PacketRun::of_one(&bytes).packets().collect::<Vec<_>>(), [&bytes[..]]);
        assert_eq!(PacketRun::of_one(&[]).packets().collect::<Vec<_>>(), [&[0_u8; 0]]);
        assert!(PacketRun::new(&[], 0, 0).skip(1).is_none());
    }

    #[test]
    fn packets_in_sequence_end_with_one_that_is_shorter_or_other_or_missing() {
        let psn = Psn::new(0xff_fffe);
        let bth = Bth { opcode: Opcode::RC_SEND_MIDDLE, psn, ..Bth::default() };
        let mut bytes = vec![0; 5 * 20 - 4];
        for (index, packet) in bytes.chunks_mut(20).enumerate() {
            Bth { psn: psn.plus(index as u32), ..bth }.write(packet).expect("room");
        }
        let count = |bytes: &[u8]| PacketRun::new(bytes, 16, 4).count_in_sequence();
        assert_eq!(count(&bytes), 5);
        assert_eq!(count(&bytes[..95]), 4);
        assert_eq!(count(&bytes[..13]), 1);
        bytes[3 * 20] += 1;
        assert_eq!(count(&bytes), 3);
        bytes[2 * 20 + 11] += 1;
        assert_eq!(count(&bytes), 2);
    }
}
