//! Packets written out by hand from the layouts in the specification's summary, of what tshark 4.0
//! does not decode, or decodes wrongly: XRC, RD, FLUSH, ATOMIC WRITE, CNP, the congestion bits.
#![allow(clippy::unwrap_used, reason = "a test may panic in its helpers too")]

use rxe_wire::hdr::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, FlushPlacement, FlushSelectivity, Ieth, ImmDt,
    Rdeth, Reth, Xrceth,
};
use rxe_wire::icrc::Encapsulation;
use rxe_wire::net::{Frame, FrameBuilder};
use rxe_wire::{
    Headers, Msn, NakCode, Opcode, Operation, PKey, Packet, Psn, QKey, Qpn, RKey, Service, Syndrome,
};

/// Bytes written as hex, blanks between fields.
fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    assert_eq!(digits.len() % 2, 0);
    (0..digits.len() / 2)
        .map(|index| u8::from_str_radix(&digits[2 * index..][..2], 16).unwrap())
        .collect()
}

/// Asserts that `bytes` are the headers and the payload, read and written, and gives the packet's
/// service and operation.
fn assert_reads(text: &str, headers: Headers, payload: &str) -> (Service, Operation) {
    let bytes = hex(text);
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!(packet.headers(), headers);
    assert_eq!(packet.payload(), hex(payload));
    assert!(packet.info().payload.check(packet.payload().len(), 1024));
    let mut written = vec![0; bytes.len()];
    let len = headers.write(&mut written).unwrap();
    assert_eq!(written[..len], bytes[..len]);
    (packet.info().service, packet.info().operation)
}

/// BTH of the vectors: QP 0x123456, PSN 0x0a0b0c, P_Key 0xffff.
fn bth(opcode: Opcode) -> Bth {
    Bth {
        opcode,
        pkey: PKey::DEFAULT,
        dest_qpn: Qpn::new(0x12_3456),
        psn: Psn::new(0x0a_0b0c),
        ..Bth::default()
    }
}

const SRQ: Option<Xrceth> = Some(Xrceth { srqn: 0x00_0042, reserved: 0 });
const RETH: Option<Reth> =
    Some(Reth { va: 0x0000_7f00_1122_3344, rkey: RKey::new(0x0000_1405), len: 8 });

#[test]
fn xrc_send_only() {
    // opcode A4, pad 1; XRCETH: SRQ 0x42; three bytes and one of pad.
    let read = assert_reads(
        "a4 10 ffff 00 123456 00 0a0b0c  00 000042  616263 00",
        Headers { xrceth: SRQ, ..Headers::new(Bth { pad: 1, ..bth(Opcode::XRC_SEND_ONLY) }) },
        "616263",
    );
    assert_eq!(read, (Service::Xrc, Operation::Send));
}

#[test]
fn xrc_send_last_with_invalidate() {
    let read = assert_reads(
        "b6 80 ffff 00 123456 80 0a0b0c  00 000042  00001405  61626364",
        Headers {
            xrceth: SRQ,
            ieth: Some(Ieth(RKey::new(0x1405))),
            ..Headers::new(Bth {
                solicited: true,
                ack_req: true,
                ..bth(Opcode::XRC_SEND_LAST_WITH_INV)
            })
        },
        "61626364",
    );
    assert_eq!(read, (Service::Xrc, Operation::Send));
}

#[test]
fn xrc_write_only_with_immediate() {
    let read = assert_reads(
        "ab 00 ffff 00 123456 80 0a0b0c  00 000042  00007f0011223344 00001405 00000008
         01020304  0001020304050607",
        Headers {
            xrceth: SRQ,
            reth: RETH,
            imm: Some(ImmDt(0x0102_0304)),
            ..Headers::new(Bth { ack_req: true, ..bth(Opcode::XRC_WRITE_ONLY_WITH_IMM) })
        },
        "0001020304050607",
    );
    assert_eq!(read, (Service::Xrc, Operation::Write));
}

#[test]
fn xrc_write_middle_has_only_xrceth() {
    let payload = "5a".repeat(1024);
    let read = assert_reads(
        &format!("a7 00 ffff 00 123456 00 0a0b0c  00 000042  {payload}"),
        Headers { xrceth: SRQ, ..Headers::new(bth(Opcode::XRC_WRITE_MIDDLE)) },
        &payload,
    );
    assert_eq!(read, (Service::Xrc, Operation::Write));
}

#[test]
fn xrc_read_request() {
    let read = assert_reads(
        "ac 00 ffff 00 123456 80 0a0b0c  00 000042  00007f0011223344 00001405 00000008",
        Headers {
            xrceth: SRQ,
            reth: RETH,
            ..Headers::new(Bth { ack_req: true, ..bth(Opcode::XRC_READ_REQUEST) })
        },
        "",
    );
    assert_eq!(read, (Service::Xrc, Operation::ReadRequest));
}

#[test]
fn xrc_compare_and_swap() {
    let read = assert_reads(
        "b3 00 ffff 00 123456 80 0a0b0c  00 000042
         00007f0011223340 00001405 1111111111111111 2222222222222222",
        Headers {
            xrceth: SRQ,
            atomic: Some(AtomicEth {
                va: 0x0000_7f00_1122_3340,
                rkey: RKey::new(0x1405),
                swap_or_add: 0x1111_1111_1111_1111,
                compare: 0x2222_2222_2222_2222,
            }),
            ..Headers::new(Bth { ack_req: true, ..bth(Opcode::XRC_COMPARE_SWAP) })
        },
        "",
    );
    assert_eq!(read, (Service::Xrc, Operation::CompareSwap));
}

#[test]
fn xrc_responses_have_no_xrceth() {
    // ACKNOWLEDGE, refused with remote access error, MSN 5.
    let aeth = Some(Aeth { syndrome: Syndrome::nak(NakCode::RemoteAccessError), msn: Msn::new(5) });
    let read = assert_reads(
        "b1 00 ffff 00 123456 00 0a0b0c  62 000005",
        Headers { aeth, ..Headers::new(bth(Opcode::XRC_ACKNOWLEDGE)) },
        "",
    );
    assert_eq!(read, (Service::Xrc, Operation::Acknowledge));
    // READ response only, two bytes and two of pad, MSN 6.
    let aeth = Some(Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(6) });
    let read = assert_reads(
        "b0 20 ffff 00 123456 00 0a0b0c  1f 000006  cafe 0000",
        Headers { aeth, ..Headers::new(Bth { pad: 2, ..bth(Opcode::XRC_READ_RESPONSE_ONLY) }) },
        "cafe",
    );
    assert_eq!(read, (Service::Xrc, Operation::ReadResponse));
}

#[test]
fn flush_has_feth_then_reth() {
    // FETH: persistence (bit 1) of the whole region (bits 5:4 = 01).
    let feth = Some(Feth {
        placement: FlushPlacement::PERSISTENCE,
        selectivity: FlushSelectivity::MemoryRegion,
        reserved: 0,
    });
    let read = assert_reads(
        "1c 00 ffff 00 123456 80 0a0b0c  00000012  00007f0011223344 00001405 00000008",
        Headers {
            feth,
            reth: RETH,
            ..Headers::new(Bth { ack_req: true, ..bth(Opcode::RC_FLUSH) })
        },
        "",
    );
    assert_eq!(read, (Service::Rc, Operation::Flush));
    // The same on XRC: XRCETH stands first.
    let feth = Some(Feth {
        placement: FlushPlacement::GLOBAL_VISIBILITY,
        selectivity: FlushSelectivity::Range,
        reserved: 0,
    });
    let read = assert_reads(
        "bc 00 ffff 00 123456 80 0a0b0c  00 000042  00000001
         00007f0011223344 00001405 00000008",
        Headers {
            xrceth: SRQ,
            feth,
            reth: RETH,
            ..Headers::new(Bth { ack_req: true, ..bth(Opcode::XRC_FLUSH) })
        },
        "",
    );
    assert_eq!(read, (Service::Xrc, Operation::Flush));
}

const RDETH: Option<Rdeth> = Some(Rdeth { ee_context: 0x77, reserved: 0 });
const DETH: Option<Deth> =
    Some(Deth { qkey: QKey::new(0x1111_1111), source_qpn: Qpn::new(0x14), reserved: 0 });

#[test]
fn rd_requests_have_rdeth_then_deth() {
    let datagram = |opcode| Headers { rdeth: RDETH, deth: DETH, ..Headers::new(bth(opcode)) };
    let read = assert_reads(
        "44 00 ffff 00 123456 00 0a0b0c  00 000077  11111111 00 000014  61626364",
        datagram(Opcode::RD_SEND_ONLY),
        "61626364",
    );
    assert_eq!(read, (Service::Rd, Operation::Send));
    let read = assert_reads(
        "4b 00 ffff 00 123456 00 0a0b0c  00 000077  11111111 00 000014
         00007f0011223344 00001405 00000008  01020304  0001020304050607",
        Headers {
            reth: RETH,
            imm: Some(ImmDt(0x0102_0304)),
            ..datagram(Opcode::RD_WRITE_ONLY_WITH_IMM)
        },
        "0001020304050607",
    );
    assert_eq!(read, (Service::Rd, Operation::Write));
    let read = assert_reads(
        "54 00 ffff 00 123456 00 0a0b0c  00 000077  11111111 00 000014
         00007f0011223340 00001405 0000000000000001 0000000000000000",
        Headers {
            atomic: Some(AtomicEth {
                va: 0x0000_7f00_1122_3340,
                rkey: RKey::new(0x1405),
                swap_or_add: 1,
                compare: 0,
            }),
            ..datagram(Opcode::RD_FETCH_ADD)
        },
        "",
    );
    assert_eq!(read, (Service::Rd, Operation::FetchAdd));
    let read = assert_reads(
        "55 00 ffff 00 123456 00 0a0b0c  00 000077  11111111 00 000014",
        datagram(Opcode::RD_RESYNC),
        "",
    );
    assert_eq!(read, (Service::Rd, Operation::Resync));
    let read = assert_reads(
        "5c 00 ffff 00 123456 00 0a0b0c  00 000077  11111111 00 000014  00000011
         00007f0011223344 00001405 00000008",
        Headers {
            feth: Some(Feth {
                placement: FlushPlacement::GLOBAL_VISIBILITY,
                selectivity: FlushSelectivity::MemoryRegion,
                reserved: 0,
            }),
            reth: RETH,
            ..datagram(Opcode::RD_FLUSH)
        },
        "",
    );
    assert_eq!(read, (Service::Rd, Operation::Flush));
}

#[test]
fn rd_responses_have_rdeth_but_no_deth() {
    let aeth = Some(Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(6) });
    let read = assert_reads(
        "50 00 ffff 00 123456 00 0a0b0c  00 000077  1f 000006  cafecafe",
        Headers { rdeth: RDETH, aeth, ..Headers::new(bth(Opcode::RD_READ_RESPONSE_ONLY)) },
        "cafecafe",
    );
    assert_eq!(read, (Service::Rd, Operation::ReadResponse));
    let read = assert_reads(
        "52 00 ffff 00 123456 00 0a0b0c  00 000077  1f 000006  0123456789abcdef",
        Headers {
            rdeth: RDETH,
            aeth,
            atomic_ack: Some(AtomicAckEth { original: 0x0123_4567_89ab_cdef }),
            ..Headers::new(bth(Opcode::RD_ATOMIC_ACKNOWLEDGE))
        },
        "",
    );
    assert_eq!(read, (Service::Rd, Operation::AtomicAcknowledge));
}

#[test]
fn r34_atomic_write_has_reth_and_eight_bytes() {
    let text = "1d 00 ffff 00 123456 80 0a0b0c  00007f0011223344 00001405 00000008
                8877665544332211";
    let read = assert_reads(
        text,
        Headers {
            reth: RETH,
            ..Headers::new(Bth { ack_req: true, ..bth(Opcode::RC_ATOMIC_WRITE) })
        },
        "8877665544332211",
    );
    assert_eq!(read, (Service::Rc, Operation::AtomicWrite));
    let rule = Opcode::RC_ATOMIC_WRITE.info().unwrap().payload;
    assert!(!rule.check(4, 1024) && !rule.check(12, 1024) && !rule.check(0, 1024));
}

#[test]
fn cnp_has_becn_and_sixteen_zeros() {
    let zeros = "00".repeat(16);
    let read = assert_reads(
        &format!("81 00 ffff 40 123456 00 000000  {zeros}"),
        Headers::new(Bth { becn: true, psn: Psn::new(0), ..bth(Opcode::CNP) }),
        &zeros,
    );
    assert_eq!(read, (Service::Cnp, Operation::Cnp));
    assert!(!Opcode::CNP.is_request() && !Opcode::CNP.is_response());
}

#[test]
fn congestion_and_reserved_bits_of_bth() {
    // FECN alone; then both with all reserved bits of that byte; then the seven beside A.
    for (text, expected) in [
        ("04 00 ffff 80 123456 00 0a0b0c", Bth { fecn: true, ..bth(Opcode::RC_SEND_ONLY) }),
        (
            "04 00 ffff ff 123456 00 0a0b0c",
            Bth { fecn: true, becn: true, reserved6: 0x3f, ..bth(Opcode::RC_SEND_ONLY) },
        ),
        ("04 00 ffff 00 123456 7f 0a0b0c", Bth { reserved7: 0x7f, ..bth(Opcode::RC_SEND_ONLY) }),
        (
            "04 4f ffff 00 123456 00 0a0b0c",
            Bth { migreq: true, tver: 15, ..bth(Opcode::RC_SEND_ONLY) },
        ),
    ] {
        assert_reads(text, Headers::new(expected), "");
    }
}

/// Whole frames with an iCRC that other programs computed: zlib's crc32 over bytes masked by hand
/// for RoCE v1, scapy's `contrib/roce.py` for IPv6 and IPv4. Each has TOS or traffic class 0x2a.
#[test]
fn icrcs_of_other_programs_are_good() {
    let ethernet = "525400770001 525400770002";
    let v1 = "8915  6 2a 12345 0018 1b 01
              fe80000000000000505400fffe770002 fe80000000000000505400fffe770001
              04 00 ffff c0 000011 80 000077  526f434520763121  cb80c758";
    let v6 = "86dd  6 2a 12345 0020 11 09
              fd000077000000000000000000000002 fd000077000000000000000000000001
              c123 12b7 0020 0000
              04 00 ffff 80 000011 00 000077  526f434520763621  0d6b6acb";
    let v4 = "0800  45 2a 0034 beef 4000 09 11 9e03 0a4d0002 0a4d0001
              c123 12b7 0020 0000
              04 00 ffff 80 000011 80 000077  526f434520763421  477ec39e";
    for (text, kind) in
        [(v1, Encapsulation::V1), (v6, Encapsulation::V2Ipv6), (v4, Encapsulation::V2Ipv4)]
    {
        let bytes = hex(&format!("{ethernet} {text}"));
        let frame = Frame::parse_ethernet(&bytes).unwrap();
        assert_eq!(frame.net.encapsulation(), kind);
        assert_eq!(frame.net.traffic_class(), 0x2a);
        assert!(frame.icrc().unwrap().is_good(), "{kind:?}");
        assert_eq!(frame.packet().unwrap().payload()[..6], *b"RoCE v");
        assert!(frame.packet().unwrap().bth().fecn);
        let mut built = vec![0; bytes.len()];
        FrameBuilder::new(frame.link, frame.net).write(frame.roce, &mut built).unwrap();
        assert_eq!(built, bytes);
    }
}
