//! Data from one context to another, by every operation that there is.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod common;

use common::*;
use ibverbs_api::*;

/// Moves `len` bytes by every operation, and checks bytes and completions of both ends.
fn exchange(one: &End, two: &End, len: usize) {
    let (from, to) = (one.register(len.max(1)), two.register(len.max(1)));
    let mut seed = len as u64 ^ 0x5eed;
    let mut fresh = || {
        seed += 2;
        let bytes = pattern(len, seed);
        from.buffer().write_at(0, &bytes).unwrap();
        bytes
    };
    let remote = to.remote_addr(0);
    let operations = [
        SendOp::Send { imm: None },
        SendOp::Send { imm: Some(0x1234_5678) },
        SendOp::Write { remote, imm: None },
        SendOp::Write { remote, imm: Some(0xffff_fffe) },
    ];
    for (index, op) in operations.into_iter().enumerate() {
        let bytes = fresh();
        let (imm, opcode, received) = match op {
            SendOp::Send { imm } => (imm, WcOpcode::Send, Some(WcOpcode::Recv)),
            SendOp::Write { imm, .. } => {
                (imm, WcOpcode::RdmaWrite, imm.map(|_| WcOpcode::RecvRdmaWithImm))
            }
            _ => unreachable!(),
        };
        if received.is_some() {
            two.recv(1000 + index as u64, &[to.sge(0..len)]);
        }
        one.post(index as u64, op, &[from.sge(0..len)]);
        let sent = one.done();
        assert_eq!((sent.wr_id, sent.opcode, sent.qpn), (index as u64, opcode, one.qp.qpn()));
        if let Some(opcode) = received {
            let got = two.done();
            assert_eq!((got.wr_id, got.opcode), (1000 + index as u64, opcode));
            assert_eq!((got.byte_len, got.qpn), (len as u32, two.qp.qpn()), "R38");
            assert_eq!(got.flags.contains(WcFlags::WITH_IMM), imm.is_some());
            assert_eq!(got.imm, imm.unwrap_or(0));
        }
        assert_same(&read(to.buffer(), 0, len), &bytes, &format!("{op:?}"));
    }
    let bytes = pattern(len, seed + 99);
    to.buffer().write_at(0, &bytes).unwrap();
    one.post(7, SendOp::Read { remote }, &[from.sge(0..len)]);
    let done = one.done();
    assert_eq!((done.wr_id, done.opcode), (7, WcOpcode::RdmaRead));
    assert_eq!(done.byte_len, len as u32);
    assert_same(&read(from.buffer(), 0, len), &bytes, "READ");
}

#[test]
fn every_operation_at_every_mtu_over_both_families() {
    for family in [Family::V4, Family::V6] {
        for mtu in Mtu::ALL {
            let (one, two) = pair(&Setup { family, mtu, ..Setup::default() });
            let m = mtu.bytes();
            for len in [0, 1, 3, 4, m - 1, m, m + 1, 2 * m, 2 * m + 5, 100_003] {
                exchange(&one, &two, len);
            }
        }
    }
}

#[test]
fn long_messages() {
    for (mtu, len) in [(Mtu::M1024, 1 << 20), (Mtu::M256, 3_000_001), (Mtu::M4096, 64 << 20)] {
        let (one, two) = pair(&Setup { mtu, ..Setup::default() });
        exchange(&one, &two, len);
    }
}

#[test]
fn several_pieces_at_both_ends() {
    let (one, two) = pair(&Setup { mtu: Mtu::M256, ..Setup::default() });
    let (from, to) = (one.register(8192), two.register(8192));
    let bytes = pattern(8192, 3);
    from.buffer().write_at(0, &bytes).unwrap();
    // Pieces out of order, with gaps, one of them empty; their ends fall inside of packets.
    let gather = [from.sge(5000..5001), from.sge(10..1010), from.sge(7..7), from.sge(2000..2299)];
    let want: Vec<u8> = [&bytes[5000..5001], &bytes[10..1010], &bytes[2000..2299]].concat();
    two.recv(1, &[to.sge(4096..4099), to.sge(0..0), to.sge(100..900), to.sge(1000..3000)]);
    one.post(1, SEND, &gather);
    one.done();
    assert_eq!(two.done().byte_len, 1300);
    let got =
        [read(to.buffer(), 4096, 3), read(to.buffer(), 100, 800), read(to.buffer(), 1000, 497)];
    assert_same(&got.concat(), &want, "SEND");
    assert_eq!(read(to.buffer(), 1497, 8), [0; 8], "nothing behind the end");

    one.post(2, SendOp::Write { remote: to.remote_addr(6000), imm: None }, &gather);
    one.done();
    assert_same(&read(to.buffer(), 6000, 1300), &want, "WRITE");

    let scatter = [from.sge(7000..7001), from.sge(100..1000), from.sge(3000..3399)];
    one.post(3, SendOp::Read { remote: to.remote_addr(6000) }, &scatter);
    one.done();
    let got = [
        read(from.buffer(), 7000, 1),
        read(from.buffer(), 100, 900),
        read(from.buffer(), 3000, 399),
    ];
    assert_same(&got.concat(), &want, "READ");
}

#[test]
fn r15_inline_data_is_taken_at_once() {
    let (one, two) = pair(&Setup::default());
    let to = two.register(64);
    two.recv(1, &[to.sge(0..64)]);
    let mut bytes = *b"inline";
    one.qp.post_send(&wr(1, SEND, SendFlags::SIGNALED, SendData::Inline(&bytes))).unwrap();
    bytes.fill(0);
    one.done();
    assert_eq!(two.done().byte_len, 6);
    assert_eq!(read(to.buffer(), 0, 6), b"inline");
    let write = SendOp::Write { remote: to.remote_addr(10), imm: None };
    one.qp.post_send(&wr(2, write, SendFlags::SIGNALED, SendData::Inline(b"write"))).unwrap();
    one.done();
    assert_eq!(read(to.buffer(), 10, 5), b"write");
}

#[test]
fn only_signaled_requests_complete_in_order_unless_all_do() {
    for signal_all in [false, true] {
        let (one, two) = pair(&Setup { signal_all, ..Setup::default() });
        let to = two.register(8);
        let write = SendOp::Write { remote: to.remote_addr(0), imm: None };
        for wr_id in 0..100_u64 {
            let flags = if wr_id % 10 == 9 { SendFlags::SIGNALED } else { SendFlags::empty() };
            let bytes = wr_id.to_le_bytes();
            one.qp.post_send(&wr(wr_id, write, flags, SendData::Inline(&bytes))).unwrap();
        }
        let want: Vec<_> = (0..100).filter(|id| signal_all || id % 10 == 9).collect();
        let got: Vec<_> = want.iter().map(|_| one.done().wr_id).collect();
        assert_eq!(got, want);
        assert_eq!(one.cq.poll(1, &mut Vec::new()), 0);
        assert_eq!(to.buffer().load_u64(0).unwrap(), 99);
    }
}

#[test]
fn lists_leave_in_order() {
    let (one, two) = pair(&Setup::default());
    let to = two.register(64 * 8);
    let recv_sges: Vec<_> = (0..64).map(|i| [to.sge(i * 8..i * 8 + 8)]).collect();
    let receives: Vec<_> =
        recv_sges.iter().zip(0..).map(|(sges, wr_id)| RecvWr { wr_id, sges }).collect();
    two.qp.post_recv_list(&receives).unwrap();
    let words: Vec<_> = (0..64_u64).map(|i| (i * 31).to_le_bytes()).collect();
    let sends: Vec<_> = words
        .iter()
        .zip(0..)
        .map(|(word, id)| wr(id, SEND, SendFlags::SIGNALED, SendData::Inline(word)))
        .collect();
    one.qp.post_send_list(&sends).unwrap();
    for id in 0..64 {
        assert_eq!(one.done().wr_id, id);
        assert_eq!(two.done().wr_id, id);
        assert_eq!(to.buffer().load_u64(id as usize * 8).unwrap(), id * 31);
    }
}

#[test]
fn both_directions_at_once() {
    let (one, two) = pair(&Setup { mtu: Mtu::M4096, ..Setup::default() });
    let len = 8 << 20;
    let (a, b) = (one.register(2 * len), two.register(2 * len));
    let (first, second) = (pattern(len, 5), pattern(len, 6));
    a.buffer().write_at(0, &first).unwrap();
    b.buffer().write_at(0, &second).unwrap();
    let to_b = SendOp::Write { remote: b.remote_addr(len), imm: None };
    let to_a = SendOp::Write { remote: a.remote_addr(len), imm: None };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            one.post(1, to_b, &[a.sge(0..len)]);
            one.done();
        });
        two.post(2, to_a, &[b.sge(0..len)]);
        two.done();
    });
    assert_same(&read(b.buffer(), len, len), &first, "to the second");
    assert_same(&read(a.buffer(), len, len), &second, "to the first");
}

#[test]
fn a_queue_pair_talks_to_itself_and_to_its_neighbour() {
    let setup = Setup::default();
    let context = open();
    let end = End::new(&context, &setup, None);
    let own = gid(&context, setup.family).gid;
    end.qp.connect(&attr_to(&setup, &context, own, end.qp.qpn())).unwrap();
    let buffer = end.register(100);
    buffer.buffer().write_at(0, b"to myself").unwrap();
    end.recv(2, &[buffer.sge(50..100)]);
    end.post(1, SEND, &[buffer.sge(0..9)]);
    let mut ids = [end.done().wr_id, end.done().wr_id];
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
    assert_eq!(read(buffer.buffer(), 50, 9), b"to myself");

    let (one, two) = (End::new(&context, &setup, None), End::new(&context, &setup, None));
    connect(&setup, (&context, &one.qp), (&context, &two.qp));
    exchange(&one, &two, 5000);
}
