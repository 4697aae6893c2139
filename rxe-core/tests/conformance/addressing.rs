//! Whose packets are taken.

use gid_table::{Gid, GidType};
use rxe_core::Counter;
use rxe_core::wq::SendOp;

use crate::script::*;

fn script() -> (Script, P) {
    let s = Script::rts();
    let packet = write_only(0, s.host.remote(INBOX), &[1, 2, 3, 4]).a();
    (s, packet)
}

#[test]
fn r57_packets_from_or_to_other_addresses_are_dropped() {
    let other = Gid::from_ip([10, 0, 0, 3].into());
    let (mut s, packet) = script();
    let good = s.path;
    s.path.source = other;
    s.rx(&packet).quiet();
    s.path = good;
    s.path.destination = other;
    s.rx(&packet).quiet();
    s.path = good;
    s.path.gid_type = GidType::RoceV1;
    s.rx(&packet).quiet();
    assert_eq!(s.count(Counter::drop_wrong_address), 3);
    // Traffic class, flow label and hop limit may change on the way; 3 is a mark.
    s.path = good;
    (s.path.traffic_class, s.path.flow_label, s.path.hop_limit) = (3, 7, 1);
    s.rx(&packet).tx([cnp(), ack(0, 1)]);
}

#[test]
fn r57_responses_from_other_addresses_are_dropped() {
    let mut s = Script::rts();
    s.send(1, 1).sent();
    let good = s.path;
    s.path.source = Gid::from_ip([10, 0, 0, 3].into());
    s.rx(&ack(0, 1)).quiet().done([]);
    s.path = good;
    s.rx(&ack(0, 1)).done([(1, Success)]);
}

#[test]
fn r57_partition_version_and_qpn_must_match() {
    let (mut s, packet) = script();
    let bytes = s.request_bytes(&packet);
    let with = |at: usize, value: u8| {
        let mut changed = bytes.clone();
        changed[at] = value;
        changed
    };
    s.rx_bytes(&with(3, 0xfe)).quiet();
    assert_eq!(s.count(Counter::drop_bad_pkey), 1);
    s.rx_bytes(&with(1, bytes[1] | 1)).quiet();
    assert_eq!(s.count(Counter::drop_bad_version), 1);
    // Another QP of the slot, another slot, QP 0 and QP 1.
    s.rx_bytes(&with(7, bytes[7] ^ 1)).rx_bytes(&with(5, 9)).quiet();
    for low in [0, 1] {
        let mut changed = bytes.clone();
        changed[5..8].copy_from_slice(&[0, 0, low]);
        s.rx_bytes(&changed).quiet();
    }
    assert_eq!(s.count(Counter::drop_no_such_qp), 4);
    // A limited member of the partition may talk to a full one.
    s.rx_bytes(&with(2, 0x7f)).tx([ack(0, 1)]);
}

#[test]
fn packets_of_other_services_are_dropped() {
    let (mut s, _) = script();
    // UC SEND_ONLY has no more than BTH.
    let mut bytes = s.request_bytes(&send_only(0, &[]).a());
    bytes[0] = 0x24;
    s.rx_bytes(&bytes).quiet();
    assert_eq!(s.count(Counter::drop_wrong_service), 1);
}

#[test]
fn r17_reserved_bits_of_a_peer_are_ignored() {
    let (mut s, packet) = script();
    let mut bytes = s.request_bytes(&packet);
    bytes[4] = 0xff;
    bytes[8] |= 0x7f;
    bytes[1] |= 0x40;
    // What we send has them all 0: `Script::sent` looks at every packet. FECN was among them.
    s.rx_bytes(&bytes).tx([cnp(), ack(0, 1)]);
}

#[test]
fn r59_pads_are_sent_as_zeros_and_received_as_anything() {
    for len in 1..=8u32 {
        let mut s = Script::rts();
        s.send(1, len);
        let packets = s.host.transmit();
        let [(_, bytes)] = &packets[..] else { panic!("one packet") };
        let pad = len.wrapping_neg() & 3;
        assert_eq!(bytes.len() as u32, 12 + len + pad);
        assert_eq!(u32::from(bytes[1] >> 4 & 3), pad);
        assert!(bytes[12 + len as usize..].iter().all(|&byte| byte == 0));
    }
    let mut s = Script::rts();
    s.recv(1, 64);
    let mut bytes = s.request_bytes(&send_only(0, &[5; 5]).a());
    let end = bytes.len();
    bytes[end - 3..].fill(0xee);
    s.rx_bytes(&bytes).tx([ack(0, 1)]).done([(1, Success)]);
    assert_eq!(s.mem(INBOX, 8), [5, 5, 5, 5, 5, 0, 0, 0]);
    // READ responses have pads too.
    s.rx(&read(1, s.host.remote(0), 5));
    let data = s.mem(0, 5);
    s.tx([resp_only(1, 2, &data)]);
}

#[test]
fn the_path_is_that_of_the_address_vector() {
    let mut s = Script::with(|attr| {
        attr.av.flow_label = 0x1_2345;
        attr.av.traffic_class = 0x68;
        attr.av.hop_limit = 0;
    });
    s.host.post(1, SendOp::Send { imm: None }, 0, 1);
    let packets = s.host.transmit();
    let path = packets[0].0.path;
    assert_eq!((path.flow_label, path.traffic_class, path.hop_limit), (0x1_2345, 0x68, 64));
    assert_eq!((path.source, path.destination), (s.host.gid, s.path.source));
    // So is that of answers.
    s.rx(&write_only(0, s.host.remote(0), &[]).a());
    assert_eq!(s.host.transmit()[0].0.path, path);
}
