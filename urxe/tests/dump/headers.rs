//! Every opcode and header, and odd ones.

use rxe_wire::hdr::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, FlushPlacement, FlushSelectivity, Ieth, ImmDt,
    Rdeth, Reth, Xrceth,
};
use rxe_wire::mad::cm::{CmMessage, Rtu};
use rxe_wire::mad::{MAD_LEN, TransactionId};
use rxe_wire::net::FrameBuilder;
use rxe_wire::{
    ExtHeaders, Headers, Msn, OPCODES, OpcodeInfo, PKey, PayloadRule, Psn, QKey, Qpn, RKey,
    RnrTimer, Syndrome,
};

use crate::support::{
    RC_SEND_FIRST, RC_SEND_LAST, RC_SEND_ONLY, dump, dump_bytes, frame, link, packet, pcap, to_gsi,
    v4_net,
};

/// A packet with every header that the opcode takes, and a value in every field.
fn packet_of(info: &OpcodeInfo) -> Vec<u8> {
    let (payload_len, pad) = match info.payload {
        PayloadRule::None => (0, 0),
        PayloadRule::ExactlyMtu => (256, 0),
        PayloadRule::AtLeastOne | PayloadRule::UpToMtu => (5, 3),
        PayloadRule::Exactly(len) => (usize::from(len), 0),
    };
    let number = info.opcode.get();
    let bth = Bth {
        opcode: info.opcode,
        solicited: number.is_multiple_of(2),
        migreq: number.is_multiple_of(3),
        pad,
        pkey: PKey::new(0x7fff),
        fecn: number.is_multiple_of(5),
        becn: number.is_multiple_of(7),
        dest_qpn: Qpn::new(0x10_0000 + u32::from(number)),
        ack_req: !number.is_multiple_of(2),
        psn: Psn::new(1000 + u32::from(number)),
        ..Bth::default()
    };
    let syndrome = match number % 3 {
        0 => Syndrome::ack(11),
        1 => Syndrome::rnr(RnrTimer::new(12)),
        _ => Syndrome::from_byte(0x62),
    };
    let has = |header: ExtHeaders| info.headers.contains(header);
    let rkey = RKey::new(0x0102_0300);
    let va = 0x7fff_0000_1000;
    let (qkey, source_qpn) = (QKey::new(0x1111_1111), Qpn::new(0x22_2222));
    let atomic = AtomicEth { va, rkey, swap_or_add: 0xaaaa, compare: 0xbbbb };
    let placement = FlushPlacement::all();
    let selectivity = FlushSelectivity::MemoryRegion;
    let headers = Headers {
        bth,
        rdeth: has(ExtHeaders::RDETH).then_some(Rdeth { ee_context: 0x33_3333, reserved: 0 }),
        deth: has(ExtHeaders::DETH).then_some(Deth { qkey, source_qpn, reserved: 0 }),
        xrceth: has(ExtHeaders::XRCETH).then_some(Xrceth { srqn: 0x44_4444, reserved: 0 }),
        feth: has(ExtHeaders::FETH).then_some(Feth { placement, selectivity, reserved: 0 }),
        reth: has(ExtHeaders::RETH).then_some(Reth { va, rkey, len: 8192 }),
        atomic: has(ExtHeaders::ATOMIC_ETH).then_some(atomic),
        aeth: has(ExtHeaders::AETH).then_some(Aeth { syndrome, msn: Msn::new(77) }),
        atomic_ack: has(ExtHeaders::ATOMIC_ACK_ETH).then_some(AtomicAckEth { original: 0xcccc }),
        imm: has(ExtHeaders::IMM_DT).then_some(ImmDt(0xdddd_dddd)),
        ieth: has(ExtHeaders::IETH).then_some(Ieth(rkey)),
    };
    let mut bytes = vec![0; headers.len()];
    headers.write(&mut bytes).unwrap();
    bytes.extend(vec![0xee; payload_len]);
    bytes.extend(vec![0; pad.into()]);
    bytes
}

#[test]
fn every_opcode_and_header_looks_like_this() {
    let builder = FrameBuilder::new(Some(link(None)), v4_net());
    let frames: Vec<Vec<u8>> =
        OPCODES.iter().flatten().map(|info| frame(&builder, &packet_of(info))).collect();
    let capture = pcap(&frames);
    let run = dump_bytes(&capture);
    assert_eq!(run.status, 0);
    assert!(!run.stdout.contains("odd"), "{}", run.stdout);
    insta::assert_snapshot!("every_opcode_text", run.stdout);
    insta::assert_snapshot!("every_opcode_json", dump(&["--json", "-"], &capture).stdout);
}

#[test]
fn odd_packets_are_told() {
    let builder = FrameBuilder::new(Some(link(None)), v4_net());
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = packet(RC_SEND_ONLY, 1, 16);
        change(&mut bytes);
        frame(&builder, &bytes)
    };
    let mut rtu = [0; MAD_LEN + 4];
    let mut mad = [0; MAD_LEN];
    CmMessage::Rtu(Rtu::default()).write_mad(TransactionId(1), &mut mad);
    rtu[..MAD_LEN].copy_from_slice(&mad);
    let mut other_class = mad;
    other_class[1] = 3;
    let frames = [
        (with(&|bytes| bytes[1] |= 0x03), "odd: transport version 3"),
        (with(&|bytes| bytes[4] |= 0x01), "odd: reserved bits of BTH are set"),
        (with(&|bytes| bytes[8] |= 0x01), "odd: reserved bits of BTH are set"),
        // The pad is 2 bytes; the last of the payload are no zeros.
        (with(&|bytes| bytes[1] |= 0x20), "odd: pad is not zero"),
        (with(&|bytes| bytes[0] = RC_SEND_FIRST), "16 bytes, the opcode takes a path MTU"),
        (
            with(&|bytes| {
                bytes[0] = RC_SEND_LAST;
                bytes.truncate(Bth::LEN);
            }),
            "odd: a payload of 0 bytes, the opcode takes 1 to 4096 bytes",
        ),
        (with(&|bytes| bytes.resize(12 + 5000, 0)), "5000 bytes, the opcode takes up to 4096"),
        // An acknowledge: 4 bytes of AETH, and 12 too many.
        (with(&|bytes| bytes[0] = 17), "odd: a payload of 12 bytes, the opcode takes none"),
        (
            with(&|bytes| {
                bytes[0] = 0x81;
                bytes.truncate(Bth::LEN + 12);
            }),
            "odd: a payload of 12 bytes, the opcode takes 16 bytes",
        ),
        (frame(&builder, &to_gsi(&rtu)), "odd: a MAD of 260 bytes instead of 256"),
        (frame(&builder, &to_gsi(&mad[..40])), "| MAD: 256 bytes needed, 40 there"),
        (frame(&builder, &to_gsi(&other_class)), "class 0x03, method 0x03 is not connection"),
    ];
    let bytes: Vec<Vec<u8>> = frames.iter().map(|(bytes, _)| bytes.clone()).collect();
    let run = dump_bytes(&pcap(&bytes));
    assert_eq!(run.status, 0, "{}", run.stdout);
    for (index, ((_, expected), line)) in frames.iter().zip(run.lines()).enumerate() {
        assert!(line.contains(expected), "{index} {expected}: {line}");
    }
    for object in &dump(&["--json", "-"], &pcap(&bytes[..10])).json()[..10] {
        assert!(object["odd"].as_array().is_some_and(|odd| !odd.is_empty()), "{object}");
    }
}
