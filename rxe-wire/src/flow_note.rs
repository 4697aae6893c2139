//! Questions and answers of flow control: packets of this project's own, for UC and UD.
//!
//! A BTH, then the sender's queue pair in 4 bytes and a mark in 8, all in network order. The opcodes
//! are of those that IBA leaves to manufacturers (the top two bits set: IBA volume 1, section 9.2.1),
//! so that others drop such packets; and what another manufacturer sends with the same opcodes has
//! most likely another length. `rxe-core` says what questions and answers are for.

use zerocopy::byteorder::{BE, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::hdr::{Bth, read_prefix, write_prefix};
use crate::{EmitError, Opcode, PKey, Qpn};

/// What follows the BTH.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct FlowBytes {
    source_qpn: U32<BE>,
    mark: U64<BE>,
}

const _: () = assert!(Bth::LEN + size_of::<FlowBytes>() == FlowNote::LEN);

/// Which of the two it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowNoteKind {
    /// How far has the receiver come?
    Question,
    /// As far as the question: all that was sent before it has been taken from the socket.
    Answer,
}

impl FlowNoteKind {
    /// Opcode of a question.
    const QUESTION: u8 = 0xd0;
    /// Opcode of an answer.
    const ANSWER: u8 = 0xd1;

    /// The opcode of such a packet; [`OPCODES`](crate::OPCODES) does not know it.
    #[inline]
    pub const fn opcode(self) -> Opcode {
        Opcode::new(match self {
            Self::Question => Self::QUESTION,
            Self::Answer => Self::ANSWER,
        })
    }

    /// What a person calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Question => "question",
            Self::Answer => "answer",
        }
    }

    #[inline]
    const fn of(opcode: u8) -> Option<Self> {
        match opcode {
            Self::QUESTION => Some(Self::Question),
            Self::ANSWER => Some(Self::Answer),
            _ => None,
        }
    }
}

/// A question or an answer, without its addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowNote {
    /// Which of the two.
    pub kind: FlowNoteKind,
    /// The queue pair that it is for.
    pub dest_qpn: Qpn,
    /// The queue pair that sends it.
    pub source_qpn: Qpn,
    /// How much the asking side had sent when it asked, in a count of its own.
    pub mark: u64,
}

impl FlowNote {
    /// Length in bytes, the iCRC left out.
    pub const LEN: usize = Bth::LEN + 4 + 8;

    /// Reads a packet, from BTH to before the iCRC; `None` when it is something else.
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let kind = FlowNoteKind::of(*bytes.first()?)?;
        if bytes.len() != Self::LEN {
            return None;
        }
        let dest_qpn = Bth::read(bytes)?.dest_qpn;
        let raw: FlowBytes = read_prefix(bytes.get(Bth::LEN..)?)?;
        let (source_qpn, mark) = (Qpn::new(raw.source_qpn.get()), raw.mark.get());
        Some(Self { kind, dest_qpn, source_qpn, mark })
    }

    /// Writes it to the start of `buf`, [`LEN`](Self::LEN) bytes.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    pub fn write(&self, buf: &mut [u8]) -> Result<(), EmitError> {
        let (opcode, dest_qpn) = (self.kind.opcode(), self.dest_qpn);
        let raw = FlowBytes { source_qpn: self.source_qpn.get().into(), mark: self.mark.into() };
        let have = buf.len();
        let buf = buf
            .get_mut(..Self::LEN)
            .ok_or(EmitError::BufferTooShort { needed: Self::LEN, have })?;
        Bth { opcode, pkey: PKey::DEFAULT, dest_qpn, ..Bth::default() }.write(buf)?;
        write_prefix(&raw, buf.get_mut(Bth::LEN..).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTE: FlowNote = FlowNote {
        kind: FlowNoteKind::Question,
        dest_qpn: Qpn::new(0x01_0002),
        source_qpn: Qpn::new(0x02_0005),
        mark: 73_728,
    };

    #[test]
    fn it_is_written_as_it_is_read() {
        for kind in [FlowNoteKind::Question, FlowNoteKind::Answer] {
            let note = FlowNote { kind, ..NOTE };
            let mut bytes = [0; FlowNote::LEN];
            note.write(&mut bytes).expect("room");
            assert_eq!(FlowNote::read(&bytes), Some(note));
            assert!(kind.opcode().info().is_none(), "nobody else's");
        }
    }

    #[test]
    fn its_bytes_are_these() {
        let mut bytes = [0; FlowNote::LEN];
        NOTE.write(&mut bytes).expect("room");
        let bth = [0xd0, 0, 0xff, 0xff, 0, 1, 0, 2, 0, 0, 0, 0];
        assert_eq!(bytes[..12], bth);
        assert_eq!(bytes[12..], [0, 2, 0, 5, 0, 0, 0, 0, 0, 1, 0x20, 0]);
    }

    #[test]
    fn other_packets_are_none() {
        let mut bytes = [0; FlowNote::LEN + 4];
        NOTE.write(&mut bytes).expect("room");
        for len in (0..bytes.len()).filter(|&len| len != FlowNote::LEN) {
            assert_eq!(FlowNote::read(&bytes[..len]), None, "of {len} bytes");
        }
        let bytes = &mut bytes[..FlowNote::LEN];
        for opcode in (0..=u8::MAX).filter(|opcode| !(0xd0..=0xd1).contains(opcode)) {
            bytes[0] = opcode;
            assert_eq!(FlowNote::read(bytes), None);
        }
    }

    #[test]
    fn a_short_buffer_is_refused() {
        let error = EmitError::BufferTooShort { needed: 24, have: 23 };
        assert_eq!(NOTE.write(&mut [0; 23]), Err(error));
    }
}
