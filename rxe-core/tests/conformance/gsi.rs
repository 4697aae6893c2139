//! QP1, the queue pair for general services: datagrams under its own number and key.

use rxe_core::qp::{GSI_QKEY, GSI_QPN, QpInit, QpType};
use rxe_core::wq::SendOp;
use rxe_core::{Counter, CreateQpError, Shard, errno};
use rxe_wire::{QKey, Qpn};

use crate::script::*;
use crate::ud::{HEAD, datagram, of_type, peer, sent};

/// A management datagram has 256 bytes.
const MAD: usize = 256;

#[test]
fn it_has_the_number_and_the_key_of_the_specification() {
    let mut s = of_type(QpType::Gsi);
    assert_eq!((s.qpn(), GSI_QPN, GSI_QKEY), (Qpn::new(1), Qpn::new(1), QKey::new(0x8001_0000)));
    let ah = peer(&s);
    let data = s.mem(0, MAD);
    s.host.post(1, SendOp::SendTo { to: ah.to(GSI_QPN, GSI_QKEY), imm: None }, 0, MAD as u32);
    let packets = sent(&mut s);
    let deth = packets[0].2;
    assert_eq!((deth.qkey, deth.source_qpn, &packets[0].4), (GSI_QKEY, GSI_QPN, &data));
    s.done([(1, Success)]);
}

#[test]
fn r57_only_its_own_key_is_taken_whatever_was_set() {
    let mut s = of_type(QpType::Gsi);
    s.recv(1, 512);
    let mad = bytes(MAD, 3);
    s.rx_bytes(&datagram(GSI_QPN, crate::ud::KEY, None, &mad)).quiet().done([]);
    assert_eq!(s.count(Counter::drop_bad_qkey), 1);
    s.rx_bytes(&datagram(GSI_QPN, GSI_QKEY, None, &mad)).quiet();
    let [wc] = s.host.completions()[..] else { panic!("one completion") };
    assert_eq!((wc.byte_len as usize, wc.source_qpn, wc.qpn), (HEAD + MAD, PEER_QPN, GSI_QPN));
    assert_eq!(s.mem(INBOX + HEAD, MAD), mad);
}

#[test]
fn there_is_one_for_each_port() {
    let mut s = of_type(QpType::Gsi);
    let init = QpInit::new(QpType::Gsi, s.host.pd, &s.host.cq);
    let error = s.host.shard.create_qp(init.clone()).unwrap_err();
    assert_eq!((error, error.errno()), (CreateQpError::NoGsi { port: 1 }, errno::EBUSY));
    // Neither on another shard, nor of a port that does not exist.
    let mut other = Shard::new(s.host.device.clone(), 77);
    assert_eq!(other.create_qp(init.clone()).unwrap_err(), CreateQpError::NoGsi { port: 1 });
    let port_2 = QpInit { port_num: 2, ..init.clone() };
    let error = other.create_qp(port_2).unwrap_err();
    assert_eq!((error, error.errno()), (CreateQpError::NoPort { port: 2 }, errno::EINVAL));
    // It goes to another shard once it is destroyed.
    s.host.shard.destroy_qp(GSI_QPN).unwrap();
    s.rx_bytes(&datagram(GSI_QPN, GSI_QKEY, None, &[1])).quiet();
    assert_eq!(s.count(Counter::drop_no_such_qp), 1);
    assert_eq!(other.create_qp(init).unwrap().qpn(), GSI_QPN);
    assert!(other.query_qp(GSI_QPN).is_some());
}

#[test]
fn qp0_is_nobody() {
    let mut s = of_type(QpType::Gsi);
    s.recv(1, 512);
    s.rx_bytes(&datagram(Qpn::new(0), GSI_QKEY, None, &[1])).quiet().done([]);
    assert_eq!(s.count(Counter::drop_no_such_qp), 1);
}
