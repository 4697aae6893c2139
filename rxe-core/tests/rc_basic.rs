//! Every RC operation, every MTU, lengths around the packet boundaries: the data arrives.

mod common;

use common::{exchange, pair};
use rxe_core::qp::Mtu;
use rxe_core::wc::{WcFlags, WcOpcode, WcStatus};
use rxe_core::wq::{RecvWr, SendData, SendFlags, SendOp, SendWr};

fn lengths(mtu: Mtu) -> Vec<u32> {
    let mtu = mtu.bytes() as u32;
    vec![0, 1, 3, mtu - 1, mtu, mtu + 1, 3 * mtu, 3 * mtu + 5, 100_001]
}

#[test]
fn send_with_and_without_immediate() {
    for mtu in Mtu::ALL {
        let (mut a, mut b) = pair(mtu);
        for (i, len) in lengths(mtu).into_iter().enumerate() {
            for imm in [None, Some(0xdead_0000 + i as u32)] {
                a.pattern(0, len as usize, i as u8);
                b.post_recv(7, 1000, 200_000);
                a.post(1, SendOp::Send { imm }, 0, len);
                exchange(&mut a, &mut b);
                let [sent] = a.completions()[..] else { panic!("one completion") };
                assert_eq!((sent.wr_id, sent.status), (1, WcStatus::Success));
                let [got] = b.completions()[..] else { panic!("one completion") };
                assert_eq!((got.wr_id, got.status), (7, WcStatus::Success));
                assert_eq!((got.opcode, got.byte_len), (WcOpcode::Recv, len));
                assert_eq!(got.flags.contains(WcFlags::WITH_IMM), imm.is_some());
                assert_eq!(got.imm, imm.unwrap_or(0));
                assert_eq!(b.bytes(1000, len as usize), a.bytes(0, len as usize));
            }
        }
    }
}

#[test]
fn write_with_and_without_immediate() {
    for mtu in Mtu::ALL {
        let (mut a, mut b) = pair(mtu);
        for (i, len) in lengths(mtu).into_iter().enumerate() {
            for imm in [None, Some(i as u32)] {
                a.pattern(0, len as usize, i as u8 + 1);
                if imm.is_some() {
                    b.qp.post_recv(RecvWr { wr_id: 9, sges: &[] }).unwrap();
                }
                a.post(1, SendOp::Write { remote: b.remote(77), imm }, 0, len);
                exchange(&mut a, &mut b);
                assert_eq!(a.completions()[0].status, WcStatus::Success);
                let got = b.completions();
                assert_eq!(got.len(), usize::from(imm.is_some()));
                if let [wc] = got[..] {
                    assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::RecvRdmaWithImm, len));
                }
                assert_eq!(b.bytes(77, len as usize), a.bytes(0, len as usize));
            }
        }
    }
}

#[test]
fn read() {
    for mtu in Mtu::ALL {
        let (mut a, mut b) = pair(mtu);
        for (i, len) in lengths(mtu).into_iter().enumerate() {
            b.pattern(500, len as usize, i as u8 + 2);
            a.post(1, SendOp::Read { remote: b.remote(500) }, 0, len);
            exchange(&mut a, &mut b);
            let [wc] = a.completions()[..] else { panic!("one completion") };
            assert_eq!(
                (wc.status, wc.opcode, wc.byte_len),
                (WcStatus::Success, WcOpcode::RdmaRead, len)
            );
            assert_eq!(a.bytes(0, len as usize), b.bytes(500, len as usize));
        }
    }
}

#[test]
fn several_sges_and_unsignaled() {
    let (mut a, mut b) = pair(Mtu::M256);
    a.pattern(0, 5000, 3);
    let sges = [a.sge(0, 1), a.sge(1, 0), a.sge(1, 999), a.sge(1000, 4000)];
    let targets = [b.sge(0, 333), b.sge(333, 2000), b.sge(2333, 10_000)];
    b.qp.post_recv(RecvWr { wr_id: 2, sges: &targets }).unwrap();
    let (op, flags) = (SendOp::Send { imm: None }, SendFlags::empty());
    a.post_wr(&SendWr { wr_id: 1, op, flags, data: SendData::Sges(&sges), srq_number: None });
    exchange(&mut a, &mut b);
    assert!(a.completions().is_empty(), "unsignaled");
    assert_eq!(b.completions()[0].byte_len, 5000);
    assert_eq!(b.bytes(0, 5000), a.bytes(0, 5000));
}

#[test]
fn r15_inline_data_is_taken_when_posted() {
    let (mut a, mut b) = pair(Mtu::M256);
    let mut local = [7; 200];
    b.post_recv(1, 0, 200);
    let (op, flags) = (SendOp::Send { imm: None }, SendFlags::SIGNALED);
    a.post_wr(&SendWr { wr_id: 1, op, flags, data: SendData::Inline(&local), srq_number: None });
    local.fill(0);
    exchange(&mut a, &mut b);
    assert_eq!(b.bytes(0, 200), [7; 200]);
}

#[test]
fn many_requests_in_order() {
    let (mut a, mut b) = pair(Mtu::M1024);
    for round in 0..20 {
        for i in 0..100u64 {
            let len = (i as u32 * 37) % 3000;
            match i % 3 {
                0 => a.post(i, SendOp::Write { remote: b.remote(0), imm: None }, 0, len),
                1 => a.post(i, SendOp::Read { remote: b.remote(0) }, 100_000, len),
                _ => {
                    b.post_recv(i, 200_000, 5000);
                    a.post(i, SendOp::Send { imm: None }, 0, len);
                }
            }
        }
        exchange(&mut a, &mut b);
        let ids: Vec<u64> = a.completions().iter().map(|wc| wc.wr_id).collect();
        assert_eq!(ids, (0..100).collect::<Vec<_>>(), "round {round}");
        assert_eq!(b.completions().len(), 33);
    }
}
