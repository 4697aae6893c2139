//! UC and UD from one context to another, over the loopback interface.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod common;

use common::*;
use ibverbs_api::*;

const KEY: QKey = QKey::new(0x1234_5678);
/// Bytes of the network header before the data of a datagram.
const HEAD: usize = 40;

fn uc(family: Family, mtu: Mtu) -> (End, End) {
    pair(&Setup { qp_type: QpType::Uc, family, mtu, ..Setup::default() })
}

/// An end for datagrams, in a context of its own.
fn ud() -> End {
    let setup = Setup { qp_type: QpType::Ud, ..Setup::default() };
    let end = End::new(&open(), &setup, None);
    end.qp.start_datagrams(1, KEY).unwrap();
    end
}

/// An address handle from one end to another.
fn handle(from: &End, to: &End, family: Family) -> AddressHandle {
    let own = gid(&from.context, family);
    let av = AddressVector::new(gid(&to.context, family).gid, own.gid_index);
    from.pd.create_ah(&av).unwrap()
}

#[test]
fn uc_sends_and_writes_at_every_mtu_over_both_families() {
    for family in [Family::V4, Family::V6] {
        for mtu in Mtu::ALL {
            let (one, two) = uc(family, mtu);
            let m = mtu.bytes();
            // No more at once than a receive buffer takes: nobody would send again what is lost.
            for len in [0, 1, 3, 4, m - 1, m, m + 1, 2 * m, 2 * m + 5, 10 * m + 7] {
                exchange_uc(&one, &two, len);
            }
        }
    }
}

fn exchange_uc(one: &End, two: &End, len: usize) {
    let (from, to) = (one.register(len.max(1)), two.register(len.max(1)));
    let remote = to.remote_addr(0);
    let operations = [
        SendOp::Send { imm: None },
        SendOp::Send { imm: Some(0x1234_5678) },
        SendOp::Write { remote, imm: Some(7) },
        SendOp::Write { remote, imm: None },
    ];
    for (index, op) in (0..).zip(operations) {
        let bytes = pattern(len, 2 * (len as u64 + index));
        from.buffer().write_at(0, &bytes).unwrap();
        let (imm, takes_receive) = match op {
            SendOp::Write { imm, .. } => (imm, imm.is_some()),
            SendOp::Send { imm } => (imm, true),
            _ => unreachable!(),
        };
        if takes_receive {
            two.recv(1000 + index, &[to.sge(0..len)]);
        }
        one.post(index, op, &[from.sge(0..len)]);
        assert_eq!(one.done().wr_id, index);
        if takes_receive {
            let got = two.done();
            assert_eq!((got.wr_id, got.byte_len as usize), (1000 + index, len));
            assert_eq!(got.flags.contains(WcFlags::WITH_IMM), imm.is_some());
            assert_eq!(got.imm, imm.unwrap_or(0));
        } else {
            eventually("WRITE", || read(to.buffer(), 0, len) == bytes);
        }
        assert_same(&read(to.buffer(), 0, len), &bytes, &format!("{op:?}"));
    }
}

#[test]
fn r14_uc_has_no_read() {
    let (one, two) = uc(Family::V4, Mtu::M1024);
    let to = two.register(8);
    let read = SendOp::Read { remote: to.remote_addr(0) };
    let data = SendData::Sges(&[]);
    let error = one.qp.post_send(&wr(1, read, SendFlags::SIGNALED, data)).unwrap_err();
    assert!(matches!(error, PostSendError::Unsupported { .. }), "{error}");
}

#[test]
fn ud_datagrams_over_both_families_and_back_by_what_the_receive_tells() {
    let (one, two) = (ud(), ud());
    for family in [Family::V4, Family::V6] {
        let there = handle(&one, &two, family);
        for len in [0, 1, 4, 255, 1024] {
            let (from, to) = (one.register(2048), two.register(2048));
            let bytes = pattern(len, len as u64);
            from.buffer().write_at(0, &bytes).unwrap();
            two.recv(1, &[to.sge(0..HEAD + len)]);
            let op = SendOp::SendTo { to: there.to(two.qp.qpn(), KEY), imm: Some(len as u32) };
            one.post(2, op, &[from.sge(0..len)]);
            assert_eq!(one.done().wr_id, 2);
            let got = two.done();
            assert_eq!((got.byte_len as usize, got.imm as usize), (HEAD + len, len));
            assert_eq!((got.source_qpn, got.qpn), (one.qp.qpn(), two.qp.qpn()));
            assert!(got.flags.contains(WcFlags::GRH | WcFlags::WITH_IMM));
            assert_same(&read(to.buffer(), HEAD, len), &bytes, "datagram");
            answer(&one, &two, &to, got.source_qpn);
        }
    }
}

/// The answer to the datagram that stands at the start of `received`.
fn answer(one: &End, two: &End, received: &MemoryRegion, source_qpn: Qpn) {
    let header: [u8; HEAD] = read(received.buffer(), 0, HEAD).try_into().unwrap();
    let back = two.pd.create_ah_from_header(1, &header).unwrap();
    assert_eq!(two.context.address_from_header(1, &header).unwrap(), *back.address_vector());
    let inbox = one.register(64);
    one.recv(3, &[inbox.sge(0..64)]);
    let op = SendOp::SendTo { to: back.to(source_qpn, KEY), imm: None };
    two.qp.post_send(&wr(4, op, SendFlags::SIGNALED, SendData::Inline(b"back"))).unwrap();
    assert_eq!((one.done().wr_id, two.done().wr_id), (3, 4));
    assert_eq!(read(inbox.buffer(), HEAD, 4), b"back");
}

#[test]
fn ud_within_one_device() {
    let one = ud();
    let cq = one.context.create_cq(16, None, 0).unwrap();
    let qp = one.pd.create_qp(QpInit::new(QpType::Ud, &cq, &cq)).unwrap();
    qp.start_datagrams(1, KEY).unwrap();
    let inbox = one.register(64);
    qp.post_recv(RecvWr { wr_id: 1, sges: &[inbox.sge(0..64)] }).unwrap();
    let op = SendOp::SendTo { to: handle(&one, &one, Family::V4).to(qp.qpn(), KEY), imm: None };
    one.qp.post_send(&wr(2, op, SendFlags::SIGNALED, SendData::Inline(b"near"))).unwrap();
    one.done();
    assert_eq!(cq.wait_one(LONG).unwrap().byte_len, 44);
    assert_eq!(read(inbox.buffer(), HEAD, 4), b"near");
}

#[test]
fn r57_ud_with_a_wrong_qkey_is_dropped_and_counted() {
    let (one, two) = (ud(), ud());
    let to = two.register(64);
    two.recv(1, &[to.sge(0..64)]);
    let there = handle(&one, &two, Family::V4);
    for (wr_id, key) in [(2, QKey::new(1)), (3, KEY)] {
        let op = SendOp::SendTo { to: there.to(two.qp.qpn(), key), imm: Some(wr_id) };
        let flags = SendFlags::SIGNALED;
        one.qp.post_send(&wr(wr_id.into(), op, flags, SendData::Inline(b"x"))).unwrap();
        one.done();
    }
    assert_eq!(two.done().imm, 3, "the first was dropped");
    assert_eq!(two.qp.counters().unwrap().get(Counter::drop_bad_qkey), 1);
}

#[test]
fn r50_groups_are_left_when_the_queue_pair_goes() {
    let end = ud();
    let group = Gid::from_ip([239, 1, 2, 3].into());
    end.qp.attach_multicast(group).unwrap();
    end.qp.attach_multicast(group).unwrap();
    end.qp.detach_multicast(group).unwrap();
    let error = end.qp.detach_multicast(group).unwrap_err();
    assert!(matches!(error, MulticastError::NotAttached { .. }), "{error}");
    end.qp.attach_multicast(group).unwrap();
    let End { qp, pd, cq, .. } = end;
    drop(qp);
    pd.dealloc().unwrap();
    cq.destroy().unwrap();
}

#[test]
fn domains_outlive_their_address_handles() {
    let (one, two) = (ud(), ud());
    let there = handle(&one, &two, Family::V4);
    let End { qp, pd, .. } = one;
    drop(qp);
    let pd = pd.dealloc().unwrap_err();
    drop(there);
    pd.object.dealloc().unwrap();
}
