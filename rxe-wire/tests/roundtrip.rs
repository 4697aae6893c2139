//! Laws that hold for all values: what is written is read, what is read is written, and nothing
//! panics.
#![allow(clippy::unwrap_used, reason = "a test may panic in its helpers too")]

mod common;

use common::packets::{Sequence, packet};
use proptest::prelude::*;
use rxe_wire::hdr::{Bth, Feth, Ieth, Rdeth};
use rxe_wire::{
    EmitError, ExtHeaders, Headers, OPCODES, Opcode, OpcodeInfo, Packet, ParseError, PayloadRule,
    Psn, RKey, Syndrome,
};

fn any_info() -> impl Strategy<Value = &'static OpcodeInfo> {
    let all: Vec<_> = OPCODES.iter().flatten().collect();
    proptest::sample::select(all)
}

fn psn() -> impl Strategy<Value = Psn> {
    // Near the wrap as often as anywhere.
    prop_oneof![
        any::<u32>().prop_map(Psn::new),
        (0u32..64).prop_map(|near| Psn::new(near.wrapping_sub(32)))
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read(info in any_info(), seed: u64) {
        let (headers, bytes) = packet(info, &mut Sequence(seed));
        let read = Packet::parse(&bytes).unwrap();
        prop_assert_eq!(read.headers(), headers);
        prop_assert_eq!(read.info(), info);
        prop_assert_eq!(read.bth(), headers.bth);
        prop_assert_eq!(headers.len(), info.header_len());
        prop_assert_eq!(headers.ext_headers(), info.headers);
        prop_assert_eq!(
            headers.len() + read.payload().len() + read.pad_len(),
            bytes.len()
        );
        prop_assert_eq!(read.pad(), &bytes[bytes.len() - read.pad_len()..]);
        prop_assert!(info.payload.check(read.payload().len(), 256));
    }

    #[test]
    fn what_is_read_is_written(
        info in proptest::option::of(any_info()),
        mut bytes in proptest::collection::vec(any::<u8>(), 0..120),
    ) {
        // Every bit of the headers is random, reserved ones too; every second opcode is defined.
        if let (Some(info), Some(first)) = (info, bytes.first_mut()) {
            *first = info.opcode.get();
        }
        match Packet::parse(&bytes) {
            Ok(packet) => {
                let headers = packet.headers();
                let mut again = vec![0; headers.len()];
                prop_assert_eq!(headers.write(&mut again), Ok(headers.len()));
                prop_assert_eq!(&again[..], &bytes[..headers.len()]);
                let end = headers.len() + packet.payload().len() + packet.pad().len();
                prop_assert_eq!(end, bytes.len());
            }
            Err(ParseError::UnknownOpcode { opcode }) => {
                prop_assert_eq!(Some(&opcode.get()), bytes.first());
                prop_assert!(OPCODES[usize::from(opcode.get())].is_none());
            }
            Err(ParseError::Truncated { needed, have, .. }) => {
                prop_assert_eq!(have, bytes.len());
                prop_assert!(needed > have);
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn r35_each_cut_of_the_headers_is_refused(info in any_info(), seed: u64, pad in 0u8..4) {
        let (mut headers, _) = packet(info, &mut Sequence(seed));
        headers.bth.pad = pad;
        let needed = headers.len() + usize::from(pad);
        let mut bytes = vec![0; needed];
        headers.write(&mut bytes).unwrap();
        prop_assert_eq!(Packet::parse(&bytes).unwrap().payload(), &[]);
        for len in 0..needed {
            match Packet::parse(&bytes[..len]) {
                Err(ParseError::Truncated { have, .. }) => prop_assert_eq!(have, len),
                other => prop_assert!(false, "{other:?}"),
            }
        }
        for len in 0..headers.len() {
            prop_assert_eq!(
                headers.write(&mut bytes[..len]),
                Err(EmitError::BufferTooShort { needed: headers.len(), have: len })
            );
        }
    }

    #[test]
    fn a_wrong_set_of_headers_is_refused(info in any_info(), seed: u64) {
        let (headers, mut bytes) = packet(info, &mut Sequence(seed));
        let opcode = info.opcode;
        let refused = |given: &Headers, bytes: &mut [u8]| {
            let expected = info.headers;
            let mismatch =
                EmitError::HeaderMismatch { opcode, expected, given: given.ext_headers() };
            given.write(bytes) == Err(mismatch)
        };
        let more = if info.headers.contains(ExtHeaders::RDETH) {
            Headers { rdeth: None, ..headers }
        } else {
            Headers { rdeth: Some(Rdeth::default()), ..headers }
        };
        prop_assert!(refused(&more, &mut bytes));
        let other = if info.with_inv {
            Headers { ieth: None, ..headers }
        } else {
            Headers { ieth: Some(Ieth(RKey::new(1))), ..headers }
        };
        prop_assert!(refused(&other, &mut bytes));
    }

    #[test]
    fn every_bit_of_a_header_survives(bytes: [u8; 28]) {
        let mut again = [0; 12];
        Bth::read(&bytes).unwrap().write(&mut again).unwrap();
        prop_assert_eq!(&again[..], &bytes[..12]);
        let mut again = [0; 4];
        Feth::read(&bytes).unwrap().write(&mut again).unwrap();
        prop_assert_eq!(&again[..], &bytes[..4]);
    }

    #[test]
    fn psn_distance_undoes_steps(psn in psn(), steps in -(1i32 << 23)..(1 << 23)) {
        let there = if steps >= 0 {
            psn.plus(steps.unsigned_abs())
        } else {
            psn.minus(steps.unsigned_abs())
        };
        prop_assert_eq!(there.distance_from(psn), steps);
        prop_assert_eq!(there.is_after(psn), steps > 0);
        prop_assert_eq!(there.is_before(psn), steps < 0);
        prop_assert_eq!(there == psn, steps == 0);
        prop_assert!(there.get() < Psn::MODULUS);
        if steps != -(1 << 23) {
            // Halfway round, both ways are as far.
            prop_assert_eq!(psn.distance_from(there), -steps);
        }
    }

    #[test]
    fn psn_steps_add_up(psn in psn(), a: u32, b: u32) {
        prop_assert_eq!(psn.plus(a).plus(b), psn.plus(a.wrapping_add(b)));
        prop_assert_eq!(psn.plus(a).minus(a), psn);
        prop_assert_eq!(psn.plus(Psn::MODULUS), psn);
    }

    #[test]
    fn r29_payload_rules(
        len in 0usize..5000,
        mtu in proptest::sample::select(vec![256usize, 1024, 4096]),
    ) {
        prop_assert_eq!(PayloadRule::None.check(len, mtu), len == 0);
        prop_assert_eq!(PayloadRule::ExactlyMtu.check(len, mtu), len == mtu);
        prop_assert_eq!(PayloadRule::AtLeastOne.check(len, mtu), (1..=mtu).contains(&len));
        prop_assert_eq!(PayloadRule::UpToMtu.check(len, mtu), len <= mtu);
        prop_assert_eq!(PayloadRule::Exactly(8).check(len, mtu), len == 8);
    }
}

#[test]
fn an_undefined_opcode_is_not_written() {
    for byte in 0..=255u8 {
        let opcode = Opcode::new(byte);
        if opcode.info().is_none() {
            let headers = Headers::new(Bth { opcode, ..Bth::default() });
            assert_eq!(headers.write(&mut [0; 100]), Err(EmitError::UnknownOpcode { opcode }));
        }
    }
}

#[test]
fn a_syndrome_is_written_as_it_was_read() {
    for byte in 0..=255u8 {
        let bytes = [vec![0x11, 0], vec![0; 10], vec![byte, 0, 0, 1]].concat();
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!(packet.aeth().unwrap().syndrome, Syndrome::from_byte(byte));
    }
}
