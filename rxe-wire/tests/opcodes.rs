//! The opcode table, pinned: any change shows as a difference in the snapshot.
#![allow(clippy::unwrap_used, reason = "a test may panic in its helpers too")]

use std::fmt::Write as _;

use rxe_wire::{OPCODES, Opcode, Operation, Service};

#[test]
fn the_table_is_as_it_was_reviewed() {
    let mut table = String::new();
    for info in OPCODES.iter().flatten() {
        let headers: Vec<_> = info.headers.iter_names().map(|(name, _)| name).collect();
        let kind = match (info.is_request(), info.is_response()) {
            (true, false) => "request",
            (false, true) => "response",
            (false, false) => "neither",
            (true, true) => panic!("{} is a request and a response", info.name),
        };
        writeln!(
            table,
            "0x{:02x} {:28} {:?} {:?} {:?} {kind} [{}] {} payload {:?}{}{}",
            info.opcode.get(),
            info.name,
            info.service,
            info.operation,
            info.position,
            headers.join(" "),
            info.header_len(),
            info.payload,
            if info.with_imm { " imm" } else { "" },
            if info.with_inv { " inv" } else { "" },
        )
        .unwrap();
    }
    insta::assert_snapshot!("opcode_table", table);
}

#[test]
fn each_row_stands_at_its_own_opcode() {
    for (byte, row) in (0..=255u8).zip(&OPCODES) {
        assert_eq!(Opcode::new(byte).info(), row.as_ref());
        if let Some(info) = row {
            assert_eq!(info.opcode.get(), byte);
            let sum: usize = info
                .headers
                .iter()
                .map(|header| {
                    let start = info.offset_of(header).unwrap();
                    // The next header, or the payload, starts where this one ends.
                    let next = info.headers.iter().filter_map(|other| info.offset_of(other));
                    let next = next.filter(|&other| other > start).min();
                    next.unwrap_or_else(|| info.header_len()) - start
                })
                .sum();
            assert_eq!(sum, usize::from(info.ext_len));
        }
    }
}

#[test]
fn an_operation_has_the_same_low_bits_in_every_service() {
    for info in OPCODES.iter().flatten() {
        assert_eq!(info.opcode.in_service(info.service).get() & 0xe0, info.opcode.get() & 0xe0);
        let of_rc = info.opcode.in_service(Service::Rc);
        // CNP has the low bits of another operation.
        if let Some(rc) = of_rc.info().filter(|_| info.operation != Operation::Cnp) {
            assert_eq!((rc.operation, rc.position), (info.operation, info.position));
            assert_eq!(rc.opcode.in_service(info.service), info.opcode);
        }
    }
    assert_eq!(Opcode::RC_WRITE_LAST.in_service(Service::Uc), Opcode::UC_WRITE_LAST);
    assert_eq!(
        Opcode::RC_SEND_ONLY_WITH_IMM.in_service(Service::Ud),
        Opcode::UD_SEND_ONLY_WITH_IMM
    );
    assert_eq!(Opcode::RC_ATOMIC_WRITE.in_service(Service::Xrc), Opcode::XRC_ATOMIC_WRITE);
}
