//! The longest message, 2^31 bytes, at the smallest path MTU: 2^23 packets, half of all PSNs.

#![allow(clippy::unwrap_used)] // in helpers of tests

mod common;

use std::sync::Arc;

use common::{Host, exchange, pair};
use rxe_core::mem::{AccessFlags, DmaBuf};
use rxe_core::qp::Mtu;
use rxe_core::wc::WcStatus;
use rxe_core::wq::{
    MAX_MESSAGE, PostSendError, RecvWr, RemoteAddr, SendData, SendFlags, SendOp, SendWr, Sge,
};

/// Bytes that each scatter/gather entry names; they all name the same ones.
const PIECE: u32 = MAX_MESSAGE / 32;

/// A list of 32 entries, 2^31 bytes in all, over one small piece of memory.
fn longest_list(host: &Host, access: AccessFlags) -> (Arc<DmaBuf>, Vec<Sge>) {
    let buf = Arc::new(DmaBuf::zeroed(PIECE as usize));
    let memory = host.device.memory();
    let keys = memory.register(host.pd, buf.clone(), 0, PIECE.into(), buf.addr(), access).unwrap();
    let sge = Sge { addr: buf.addr(), length: PIECE, lkey: keys.lkey };
    (buf, vec![sge; 32])
}

fn caps() -> rxe_core::qp::QpCaps {
    let (max_send_sge, max_recv_sge) = (32, 32);
    rxe_core::qp::QpCaps { max_send_sge, max_recv_sge, ..Default::default() }
}

fn long_pair(mtu: Mtu) -> (Host, Host) {
    let (mut a, mut b) = (Host::with_caps(1, caps()), Host::with_caps(2, caps()));
    let (attr_a, attr_b) = (a.attr(&b, 1, mtu), b.attr(&a, 2, mtu));
    a.connect(attr_a);
    b.connect(attr_b);
    (a, b)
}

#[test]
fn a_send_of_two_gibibytes_in_packets_of_256() {
    let (mut a, mut b) = long_pair(Mtu::M256);
    let (source, from) = longest_list(&a, AccessFlags::empty());
    let (target, to) = longest_list(&b, AccessFlags::LOCAL_WRITE);
    source.write_at(PIECE as usize - 8, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    b.qp.post_recv(RecvWr { wr_id: 2, sges: &to }).unwrap();
    let (op, flags) = (SendOp::Send { imm: Some(9) }, SendFlags::SIGNALED);
    a.post_wr(&SendWr { wr_id: 1, op, flags, data: SendData::Sges(&from), srq_number: None });
    exchange(&mut a, &mut b);
    let [sent] = a.completions()[..] else { panic!("one completion") };
    assert_eq!((sent.wr_id, sent.status), (1, WcStatus::Success));
    let [got] = b.completions()[..] else { panic!("one completion") };
    assert_eq!((got.wr_id, got.status, got.byte_len), (2, WcStatus::Success, MAX_MESSAGE));
    let mut end = [0; 8];
    target.read_at(PIECE as usize - 8, &mut end).unwrap();
    assert_eq!(end, [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn a_read_of_two_gibibytes() {
    let (mut a, mut b) = long_pair(Mtu::M4096);
    let (target, to) = longest_list(&a, AccessFlags::LOCAL_WRITE);
    // Never written, so it takes no memory.
    let source = Arc::new(DmaBuf::zeroed(MAX_MESSAGE as usize));
    let (len, access) = (MAX_MESSAGE.into(), AccessFlags::REMOTE_READ);
    let keys = b.device.memory().register(b.pd, source.clone(), 0, len, 0, access).unwrap();
    source.write_at(MAX_MESSAGE as usize - 8, &[8; 8]).unwrap();
    let remote = RemoteAddr { addr: 0, rkey: keys.rkey };
    let (op, flags) = (SendOp::Read { remote }, SendFlags::SIGNALED);
    a.post_wr(&SendWr { wr_id: 1, op, flags, data: SendData::Sges(&to), srq_number: None });
    exchange(&mut a, &mut b);
    let [read] = a.completions()[..] else { panic!("one completion") };
    assert_eq!((read.wr_id, read.status, read.byte_len), (1, WcStatus::Success, MAX_MESSAGE));
    let mut end = [0; 8];
    target.read_at(PIECE as usize - 8, &mut end).unwrap();
    assert_eq!(end, [8; 8]);
}

#[test]
fn one_byte_more_is_refused() {
    let (a, _) = pair(Mtu::M256);
    let sges = [a.sge(0, MAX_MESSAGE), a.sge(0, 1)];
    let (op, flags) = (SendOp::Send { imm: None }, SendFlags::SIGNALED);
    let wr = SendWr { wr_id: 1, op, flags, data: SendData::Sges(&sges), srq_number: None };
    let len = u64::from(MAX_MESSAGE) + 1;
    assert_eq!(a.qp.post_send(&wr), Err(PostSendError::TooLong { len }));
}
