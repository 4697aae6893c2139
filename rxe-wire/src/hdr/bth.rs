//! BTH, the base transport header: the first header of every packet.

use zerocopy::byteorder::{BE, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{be24, read_prefix, write_prefix};
use crate::error::EmitError;
use crate::{Opcode, PKey, Psn, Qpn};

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct BthBytes {
    opcode: u8,
    /// SE, M, pad count (2), transport version (4).
    flags: u8,
    pkey: U16<BE>,
    /// FECN, BECN, reserved (6). The iCRC takes this byte as ones.
    congestion: u8,
    dest_qpn: [u8; 3],
    /// Acknowledge request, reserved (7).
    ack: u8,
    psn: [u8; 3],
}

/// The same bytes for a writer, and for who compares two headers. Who reads a header back that has just been written in many small
/// pieces waits for all of them; of two large ones, a sum of the packet takes them as they come.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct BthWords {
    /// Up to the destination QP.
    first: U64<BE>,
    /// Acknowledge request and PSN.
    second: U32<BE>,
}

const _: () = assert!(size_of::<BthBytes>() == Bth::LEN && size_of::<BthWords>() == Bth::LEN);

const SOLICITED: u8 = 0x80;
const MIGREQ: u8 = 0x40;
const PAD_SHIFT: u32 = 4;
const PAD_MASK: u8 = 0x03;
const TVER_MASK: u8 = 0x0f;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const RESERVED6_MASK: u8 = 0x3f;
const ACK_REQ: u8 = 0x80;
const RESERVED7_MASK: u8 = 0x7f;
const LOW_24: u32 = 0x00ff_ffff;

/// The base transport header, 12 bytes (`struct rxe_bth` in Linux).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Bth {
    /// What the packet is, and which headers follow.
    pub opcode: Opcode,
    /// SE: the receiver raises a solicited event when the message completes.
    pub solicited: bool,
    /// M, the migration state. Linux sends 0.
    pub migreq: bool,
    /// How many bytes, 0 to 3, fill the payload up to a multiple of four.
    pub pad: u8,
    /// Transport version, 4 bits; anything but 0 is dropped (rule R57).
    pub tver: u8,
    /// Partition key.
    pub pkey: PKey,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Reserved bits beside FECN and BECN, 6 bits; sent as 0 (rule R17).
    pub reserved6: u8,
    /// Destination QP.
    pub dest_qpn: Qpn,
    /// A: the sender asks for an acknowledge. Never on UC and UD (rule R16).
    pub ack_req: bool,
    /// Reserved bits beside A, 7 bits; sent as 0 (rule R17).
    pub reserved7: u8,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Length in bytes.
    pub const LEN: usize = 12;

    /// Reads it from the start of `bytes`; `None` when they are fewer than [`LEN`](Self::LEN).
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let raw: BthBytes = read_prefix(bytes)?;
        Some(Self {
            opcode: Opcode::new(raw.opcode),
            solicited: raw.flags & SOLICITED != 0,
            migreq: raw.flags & MIGREQ != 0,
            pad: (raw.flags >> PAD_SHIFT) & PAD_MASK,
            tver: raw.flags & TVER_MASK,
            pkey: PKey::new(raw.pkey.get()),
            fecn: raw.congestion & FECN != 0,
            becn: raw.congestion & BECN != 0,
            reserved6: raw.congestion & RESERVED6_MASK,
            dest_qpn: Qpn::new(be24(raw.dest_qpn)),
            ack_req: raw.ack & ACK_REQ != 0,
            reserved7: raw.ack & RESERVED7_MASK,
            psn: Psn::new(be24(raw.psn)),
        })
    }

    /// Whether a packet carries on another one, `ahead` packets before it, as those in the midst of
    /// one message do: its header is the same to the last bit, but that its PSN is so much greater.
    ///
    /// It compares bytes, so that of many packets only the first need be parsed. False where either
    /// is shorter than a header.
    #[inline]
    pub fn carries_on(packet: &[u8], first: &[u8], ahead: u32) -> bool {
        let words = (read_prefix::<BthWords>(packet), read_prefix::<BthWords>(first));
        let (Some(packet), Some(first)) = words else { return false };
        let (psn, second) = (Psn::new(first.second.get() & LOW_24), packet.second.get());
        packet.first == first.first
            && (second ^ first.second.get()) >> 24 == 0
            && second & LOW_24 == psn.plus(ahead).get()
    }

    /// Writes it to the start of `buf`. Bits that a field has no room for are dropped.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    #[inline]
    pub fn write(&self, buf: &mut [u8]) -> Result<(), EmitError> {
        write_prefix(&self.words(), buf)
    }

    /// It as a mould for many that differ by PSN and AckReq alone.
    pub fn mould(&self) -> BthMould {
        let BthWords { first, second } = self.words();
        BthMould { first, second: second.get() & !(u32::from(ACK_REQ) << 24 | LOW_24) }
    }

    #[inline]
    fn words(&self) -> BthWords {
        let flags = flag(self.solicited, SOLICITED)
            | flag(self.migreq, MIGREQ)
            | (self.pad & PAD_MASK) << PAD_SHIFT
            | (self.tver & TVER_MASK);
        let congestion =
            flag(self.fecn, FECN) | flag(self.becn, BECN) | (self.reserved6 & RESERVED6_MASK);
        let ack = flag(self.ack_req, ACK_REQ) | (self.reserved7 & RESERVED7_MASK);
        let first = u64::from(self.opcode.get()) << 56
            | u64::from(flags) << 48
            | u64::from(self.pkey.get()) << 32
            | u64::from(congestion) << 24
            | u64::from(self.dest_qpn.get() & LOW_24);
        let second = u32::from(ack) << 24 | self.psn.get() & LOW_24;
        BthWords { first: U64::new(first), second: U32::new(second) }
    }
}

/// A [`Bth`] of which only PSN and AckReq are not known yet, as of the packets in the midst of a
/// message: it is put together once for all of them.
#[derive(Clone, Copy, Debug)]
pub struct BthMould {
    first: U64<BE>,
    second: u32,
}

impl BthMould {
    /// Writes the header of a packet to the start of `buf`, as [`Bth::write`] does.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    #[inline]
    pub fn write(&self, psn: Psn, ack_req: bool, buf: &mut [u8]) -> Result<(), EmitError> {
        let ack = u32::from(flag(ack_req, ACK_REQ)) << 24;
        let second = U32::new(self.second | ack | psn.get() & LOW_24);
        write_prefix(&BthWords { first: self.first, second }, buf)
    }
}

#[inline]
const fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_field_stands_where_the_layout_says() {
        // Written by hand: opcode, SE M pad tver, P_Key, F B reserved, QPN, A reserved, PSN.
        let bytes = [0x04, 0xb0, 0xff, 0xfe, 0x40, 0x01, 0x02, 0x03, 0x80, 0xa0, 0xb0, 0xc0];
        let bth = Bth {
            opcode: Opcode::RC_SEND_ONLY,
            solicited: true,
            pad: 3,
            pkey: PKey::new(0xfffe),
            becn: true,
            dest_qpn: Qpn::new(0x01_0203),
            ack_req: true,
            psn: Psn::new(0xa0_b0c0),
            ..Bth::default()
        };
        assert_eq!(Bth::read(&bytes), Some(bth));
        let mut out = [0; Bth::LEN];
        bth.write(&mut out).unwrap();
        assert_eq!(out, bytes);
    }

    #[test]
    fn reserved_bits_are_kept() {
        let bytes = [0xff; Bth::LEN];
        let mut out = [0; Bth::LEN];
        Bth::read(&bytes).unwrap().write(&mut out).unwrap();
        assert_eq!(out, bytes);
    }

    proptest! {
        #[test]
        fn a_mould_makes_what_is_written_otherwise(
            bytes in any::<[u8; Bth::LEN]>(),
            (psn, ack_req) in (any::<u32>(), any::<bool>()),
        ) {
            let bth = Bth::read(&bytes).expect("a header");
            let (mut one, mut other) = ([0; Bth::LEN], [0; Bth::LEN]);
            bth.mould().write(Psn::new(psn), ack_req, &mut one).expect("room");
            Bth { psn: Psn::new(psn), ack_req, ..bth }.write(&mut other).expect("room");
            prop_assert_eq!(one, other);
            prop_assert!(bth.mould().write(Psn::new(psn), ack_req, &mut one[1..]).is_err());
        }

        /// What the parsed headers say, bit by bit.
        #[test]
        fn one_carries_on_another_if_but_the_psn_is_greater(
            first in any::<[u8; Bth::LEN]>(),
            (byte, bit) in (0..Bth::LEN, 0..8_u32),
            ahead in 0..100_u32,
        ) {
            let bth = Bth::read(&first).expect("a header");
            let mut packet = [0; Bth::LEN + 1];
            Bth { psn: bth.psn.plus(ahead), ..bth }.write(&mut packet).expect("room");
            prop_assert!(Bth::carries_on(&packet, &first, ahead));
            prop_assert!(!Bth::carries_on(&packet, &first, ahead + 1));
            prop_assert!(!Bth::carries_on(&packet[..11], &first, ahead));
            packet[byte] ^= 1_u8 << bit;
            prop_assert!(!Bth::carries_on(&packet, &first, ahead));
        }
    }

    #[test]
    fn short_bytes_and_buffers_are_refused() {
        assert_eq!(Bth::read(&[0; 11]), None);
        assert_eq!(
            Bth::default().write(&mut [0; 11]),
            Err(EmitError::BufferTooShort { needed: 12, have: 11 })
        );
    }
}
