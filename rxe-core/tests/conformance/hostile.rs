//! A peer that sends anything at all: nothing panics, and no request completes twice.

use proptest::collection::vec;
use proptest::prelude::*;
use rxe_core::wq::RemoteAddr;
use rxe_wire::hdr::{Aeth, Bth, ImmDt, Reth};
use rxe_wire::opcode::ExtHeaders;
use rxe_wire::{Headers, Msn, Opcode, PKey, Psn, RKey, Syndrome};

use crate::script::*;

#[derive(Clone, Debug)]
enum Step {
    Packet(Anything),
    Bytes(Vec<u8>),
    Send(u32),
    Write(u32),
    Read(u32),
    Recv(u32),
    Wait(u64),
    Transmit,
}

/// A packet whose headers fit its opcode, and nothing else fits.
#[derive(Clone, Debug)]
struct Anything {
    opcode: u8,
    psn: i32,
    ack_req: bool,
    offset: u64,
    good_key: bool,
    len: u32,
    syndrome: u8,
    payload: usize,
}

fn rc_opcode() -> impl Strategy<Value = u8> {
    // All of RC, and now and then anything.
    prop_oneof![8 => 0..0x1fu8, 1 => any::<u8>()]
}

fn length() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..700u32, 1 => Just(256), 1 => Just(512), 1 => any::<u32>()]
}

fn packet() -> impl Strategy<Value = Anything> {
    let psn = prop_oneof![8 => -6..24i32, 1 => -0x80_0000..0x80_0000i32];
    let offset = prop_oneof![4 => 0..4096u64, 1 => any::<u64>()];
    let payload = prop_oneof![3 => Just(256usize), 3 => 0..300usize];
    let syndrome = prop_oneof![Just(0x1f), Just(0x60), Just(0x2c), any::<u8>()];
    (
        rc_opcode(),
        psn,
        any::<bool>(),
        offset,
        prop::bool::weighted(0.9),
        length(),
        syndrome,
        payload,
    )
        .prop_map(|(opcode, psn, ack_req, offset, good_key, len, syndrome, payload)| {
            Anything { opcode, psn, ack_req, offset, good_key, len, syndrome, payload }
        })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => packet().prop_map(Step::Packet),
        1 => vec(any::<u8>(), 0..80).prop_map(Step::Bytes),
        2 => (0..2000u32).prop_map(Step::Send),
        1 => (0..2000u32).prop_map(Step::Write),
        2 => (0..2000u32).prop_map(Step::Read),
        2 => (0..2000u32).prop_map(Step::Recv),
        2 => (0..100 * MS).prop_map(Step::Wait),
        4 => Just(Step::Transmit),
    ]
}

/// The bytes of a packet; its opcode alone when there is no such opcode.
fn bytes_of(s: &Script, packet: &Anything) -> Vec<u8> {
    let opcode = Opcode::new(packet.opcode);
    let Some(info) = opcode.info() else { return vec![packet.opcode; 40] };
    let pad = packet.payload.wrapping_neg() & 3;
    let base = if info.is_response() { HOST_PSN } else { PEER_PSN };
    let bth = Bth {
        opcode,
        pad: pad as u8,
        pkey: PKey::DEFAULT,
        dest_qpn: s.qpn(),
        ack_req: packet.ack_req,
        psn: Psn::new(base.get().wrapping_add_signed(packet.psn)),
        ..Bth::default()
    };
    let RemoteAddr { addr, rkey } = s.host.remote(INBOX);
    let rkey = if packet.good_key { rkey } else { RKey::new(rkey.get() ^ 1) };
    let has = |header| info.headers.contains(header);
    let reth = Reth { va: addr.wrapping_add(packet.offset), rkey, len: packet.len };
    let syndrome = Syndrome::from_byte(packet.syndrome);
    let headers = Headers {
        reth: has(ExtHeaders::RETH).then_some(reth),
        aeth: has(ExtHeaders::AETH).then_some(Aeth { syndrome, msn: Msn::new(1) }),
        imm: has(ExtHeaders::IMM_DT).then_some(ImmDt(packet.len)),
        ..Headers::new(bth)
    };
    let mut bytes = vec![0; 80];
    // Opcodes with other headers keep what stands in BTH and zeros behind it.
    if headers.write(&mut bytes).is_err() {
        bth.write(&mut bytes).unwrap();
    }
    bytes.truncate(info.header_len());
    bytes.resize(info.header_len() + packet.payload + pad, 0xc3);
    bytes
}

proptest! {
    #[test]
    fn nothing_panics_and_nothing_completes_twice(steps in vec(step(), 1..80)) {
        let mut s = Script::rts();
        let guard = s.mem(0, 4096);
        let mut posted = Vec::new();
        let mut completed = Vec::new();
        for (wr_id, step) in (1..).zip(steps) {
            let posts = matches!(
                step,
                Step::Send(_) | Step::Write(_) | Step::Read(_) | Step::Recv(_)
            );
            match step {
                Step::Packet(packet) => {
                    let bytes = bytes_of(&s, &packet);
                    s.rx_bytes(&bytes);
                }
                Step::Bytes(bytes) => {
                    s.rx_bytes(&bytes);
                }
                Step::Send(len) => {
                    s.send(wr_id, len);
                }
                Step::Write(len) => {
                    s.write(wr_id, len);
                }
                Step::Read(len) => {
                    s.read(wr_id, len);
                }
                Step::Recv(len) => {
                    s.recv(wr_id, len);
                }
                Step::Wait(nanos) => {
                    s.wait(nanos);
                }
                Step::Transmit => {
                    // An answer has a bounded length; `sent` looks at each packet.
                    s.sent();
                }
            }
            if posts {
                posted.push(wr_id);
            }
            completed.extend(s.host.completions().iter().map(|wc| wc.wr_id));
        }
        // In the end everything completes, once.
        let error = rxe_core::qp::QpAttr { state: rxe_core::qp::QpState::Err, ..s.attr };
        s.host.modify(error, rxe_core::qp::QpAttrMask::STATE);
        completed.extend(s.host.completions().iter().map(|wc| wc.wr_id));
        completed.sort_unstable();
        prop_assert_eq!(completed, posted);
        prop_assert_eq!(s.mem(0, 4096), guard, "what nobody may write to");
    }
}
