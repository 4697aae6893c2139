//! Packets of our own, of every opcode, with headers filled from a seeded sequence.

use rxe_wire::hdr::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, FlushPlacement, FlushSelectivity, Ieth, ImmDt,
    Rdeth, Reth, Xrceth,
};
use rxe_wire::{
    ExtHeaders, Headers, Msn, OpcodeInfo, PKey, PayloadRule, Psn, QKey, Qpn, RKey, Syndrome,
};

/// A sequence of numbers that is the same on every run (SplitMix64).
pub(crate) struct Sequence(pub(crate) u64);

impl Sequence {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn bit(&mut self) -> bool {
        self.next() >> 63 != 0
    }

    fn word(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }

    fn byte(&mut self) -> u8 {
        (self.next() >> 56) as u8
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// Headers with every field of the opcode filled. Reserved bits are 0; the QP is not the GSI.
pub(crate) fn headers(info: &OpcodeInfo, pad: u8, seq: &mut Sequence) -> Headers {
    let bth = Bth {
        opcode: info.opcode,
        solicited: seq.bit(),
        migreq: seq.bit(),
        pad,
        tver: 0,
        pkey: PKey::new(seq.next() as u16),
        fecn: seq.bit(),
        becn: seq.bit(),
        reserved6: 0,
        dest_qpn: Qpn::new(seq.word() | 0x10),
        ack_req: seq.bit(),
        reserved7: 0,
        psn: Psn::new(seq.word()),
    };
    let has = |header| info.headers.contains(header);
    Headers {
        bth,
        rdeth: has(ExtHeaders::RDETH)
            .then(|| Rdeth { ee_context: seq.word() & 0xff_ffff, reserved: 0 }),
        deth: has(ExtHeaders::DETH).then(|| Deth {
            qkey: QKey::new(seq.word()),
            source_qpn: Qpn::new(seq.word()),
            reserved: 0,
        }),
        xrceth: has(ExtHeaders::XRCETH)
            .then(|| Xrceth { srqn: seq.word() & 0xff_ffff, reserved: 0 }),
        feth: has(ExtHeaders::FETH).then_some(Feth {
            placement: FlushPlacement::PERSISTENCE,
            selectivity: FlushSelectivity::MemoryRegion,
            reserved: 0,
        }),
        reth: has(ExtHeaders::RETH).then(|| Reth {
            va: seq.next(),
            rkey: RKey::new(seq.word()),
            len: seq.word(),
        }),
        atomic: has(ExtHeaders::ATOMIC_ETH).then(|| AtomicEth {
            va: seq.next(),
            rkey: RKey::new(seq.word()),
            swap_or_add: seq.next(),
            compare: seq.next(),
        }),
        aeth: has(ExtHeaders::AETH).then(|| Aeth {
            syndrome: Syndrome::from_byte(seq.byte() & 0x7f),
            msn: Msn::new(seq.word()),
        }),
        atomic_ack: has(ExtHeaders::ATOMIC_ACK_ETH).then(|| AtomicAckEth { original: seq.next() }),
        imm: has(ExtHeaders::IMM_DT).then(|| ImmDt(seq.word())),
        ieth: has(ExtHeaders::IETH).then(|| Ieth(RKey::new(seq.word()))),
    }
}

/// A length that the opcode's rule allows at path MTU 256.
pub(crate) fn payload_len(info: &OpcodeInfo, seq: &mut Sequence) -> usize {
    match info.payload {
        PayloadRule::None => 0,
        PayloadRule::ExactlyMtu => 256,
        PayloadRule::AtLeastOne => 1 + seq.below(256),
        PayloadRule::UpToMtu => seq.below(257),
        PayloadRule::Exactly(len) => len.into(),
    }
}

/// A packet of the opcode, from BTH to its last pad byte, and its headers.
pub(crate) fn packet(info: &OpcodeInfo, seq: &mut Sequence) -> (Headers, Vec<u8>) {
    let payload_len = payload_len(info, seq);
    let padded_len = payload_len.next_multiple_of(4);
    let headers = headers(info, (padded_len - payload_len) as u8, seq);
    let mut bytes = vec![0; headers.len() + padded_len];
    let start = headers.write(&mut bytes).unwrap();
    for byte in &mut bytes[start..][..payload_len] {
        *byte = seq.byte();
    }
    (headers, bytes)
}
