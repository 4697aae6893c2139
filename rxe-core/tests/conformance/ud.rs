//! UD: datagrams to any queue pair, and what a receiver learns of the sender.

use std::sync::Arc;

use gid_table::{Gid, GidType, WantedGid};
use rxe_core::ah::{CreateAhError, address_from_header};
use rxe_core::qp::{AddressVector, Mtu, QpAttr, QpAttrMask, QpInit, QpState, QpType};
use rxe_core::srq::{SrqAttr, SrqInit};
use rxe_core::wc::{WcFlags, WcOpcode};
use rxe_core::wq::{PostSendError, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge};
use rxe_core::{AddressHandle, AsyncEvent, Counter, ModifyQpError, Path, errno};
use rxe_wire::hdr::{Bth, Deth, ImmDt};
use rxe_wire::{Headers, LKey, Opcode, PKey, Packet, QKey, Qpn};

use crate::common::Host;
use crate::script::*;

/// The queue key of all scripts.
pub const KEY: QKey = QKey::new(0x1111_2222);
/// Bytes of the network header before the data.
pub const HEAD: usize = 40;

/// A QP of UD in RTS.
pub fn ud() -> Script {
    of_type(QpType::Ud)
}

pub fn of_type(qp_type: QpType) -> Script {
    let mut s = Script::of_type(qp_type, |attr| attr.qkey = KEY.get());
    s.enter_init();
    s.enter_rtr();
    s.enter_rts();
    s
}

/// An address handle of the peer.
pub fn peer(s: &Script) -> Arc<AddressHandle> {
    let av = AddressVector::new(s.path.source, 0);
    s.host.device.create_ah(s.host.pd, &av).unwrap()
}

/// The bytes of a datagram that [`PEER_QPN`] sends.
pub fn datagram(to: Qpn, qkey: QKey, imm: Option<u32>, payload: &[u8]) -> Vec<u8> {
    let opcode = if imm.is_some() { Opcode::UD_SEND_ONLY_WITH_IMM } else { Opcode::UD_SEND_ONLY };
    let pad = (payload.len().wrapping_neg() & 3) as u8;
    let bth = Bth { opcode, pad, pkey: PKey::DEFAULT, dest_qpn: to, ..Bth::default() };
    let deth = Some(Deth { qkey, source_qpn: PEER_QPN, reserved: 0 });
    let headers = Headers { deth, imm: imm.map(ImmDt), ..Headers::new(bth) };
    let mut bytes = vec![0; 64];
    let len = headers.write(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len() + usize::from(pad), 0);
    bytes
}

/// One datagram in, with the right key.
pub fn rx(s: &mut Script, payload: &[u8]) {
    let bytes = datagram(s.qpn(), KEY, None, payload);
    s.rx_bytes(&bytes);
}

/// Posts a SEND of the host's first bytes.
pub fn send(s: &mut Script, wr_id: u64, ah: &AddressHandle, qkey: QKey, len: u32) {
    s.host.post(wr_id, SendOp::SendTo { to: ah.to(PEER_QPN, qkey), imm: None }, 0, len);
}

/// Opcode, PSN, DETH, immediate data and payload of a datagram.
pub type Sent = (Opcode, i32, Deth, Option<u32>, Vec<u8>);

/// All packets that leave now.
pub fn sent(s: &mut Script) -> Vec<Sent> {
    let parse = |(transmit, bytes): &(rxe_core::Transmit, Vec<u8>)| {
        let packet = Packet::parse(bytes).unwrap();
        let bth = packet.bth();
        assert_eq!((transmit.dest_qpn, bth.pkey, bth.tver), (bth.dest_qpn, PKey::DEFAULT, 0));
        assert!(!bth.ack_req, "R16");
        assert_eq!((bth.reserved6, bth.reserved7), (0, 0), "R17");
        assert!(packet.pad().iter().all(|&byte| byte == 0), "R59");
        let psn = bth.psn.distance_from(HOST_PSN);
        (bth.opcode, psn, packet.deth().unwrap(), packet.imm(), packet.payload().to_vec())
    };
    s.host.transmit().iter().map(parse).collect()
}

fn go(s: &mut Script, state: QpState) {
    s.host.modify(QpAttr { state, ..s.attr }, QpAttrMask::STATE);
}

#[test]
fn r16_a_datagram_names_both_queue_pairs_and_is_complete_when_it_has_left() {
    let mut s = ud();
    let ah = peer(&s);
    let data = s.mem(0, 5);
    send(&mut s, 1, &ah, QKey::new(7), 5);
    let to = ah.to(PEER_QPN, QKey::new(8));
    s.host.post(2, SendOp::SendTo { to, imm: Some(0xabcd) }, 0, 0);
    let from = |qkey| Deth { qkey: QKey::new(qkey), source_qpn: s.qpn(), reserved: 0 };
    let (first, second) = (from(7), from(8));
    let expected = [
        (Opcode::UD_SEND_ONLY, 0, first, None, data),
        (Opcode::UD_SEND_ONLY_WITH_IMM, 1, second, Some(0xabcd), vec![]),
    ];
    s.done([]);
    assert_eq!(sent(&mut s), expected);
    s.done([(1, Success), (2, Success)]);
    s.wait(100 * ACK_TIMEOUT).quiet().done([]);
}

#[test]
fn a_key_with_the_high_bit_stands_for_the_queue_pairs_own() {
    let mut s = ud();
    let ah = peer(&s);
    send(&mut s, 1, &ah, QKey::new(0x8000_0000), 0);
    send(&mut s, 2, &ah, QKey::new(0xffff_ffff), 0);
    send(&mut s, 3, &ah, QKey::new(0x7fff_ffff), 0);
    let keys: Vec<_> = sent(&mut s).iter().map(|packet| packet.2.qkey).collect();
    assert_eq!(keys, [KEY, KEY, QKey::new(0x7fff_ffff)]);
}

#[test]
fn each_request_goes_where_its_handle_says() {
    let mut s = ud();
    let av = AddressVector {
        flow_label: 0x1_2345,
        traffic_class: 0x68,
        hop_limit: 0,
        ..AddressVector::new(Gid::from_ip([10, 9, 8, 7].into()), 0)
    };
    let far = s.host.device.create_ah(s.host.pd, &av).unwrap();
    let near = peer(&s);
    assert_eq!((far.address_vector(), far.pd()), (&av, s.host.pd));
    let op = |ah: &AddressHandle, qpn| SendOp::SendTo { to: ah.to(Qpn::new(qpn), KEY), imm: None };
    s.host.post(1, op(&far, 5), 0, 1);
    s.host.post(2, op(&near, 6), 0, 1);
    // A handle may go while requests that name it are posted.
    drop(far);
    let packets = s.host.transmit();
    let [one, two] = [&packets[0].0, &packets[1].0];
    assert_eq!((one.path.destination, one.dest_qpn), (av.dgid, Qpn::new(5)));
    let Path { flow_label, traffic_class, hop_limit, .. } = one.path;
    assert_eq!((flow_label, traffic_class, hop_limit), (0x1_2345, 0x68, 64));
    assert_eq!((two.path, two.dest_qpn), (Path::new(s.host.gid, s.path.source), Qpn::new(6)));
}

#[test]
fn r14_only_sends_to_an_address_can_be_posted() {
    let s = ud();
    let remote = far(0);
    let ops = [
        SendOp::Send { imm: None },
        SendOp::Write { remote, imm: None },
        SendOp::Read { remote },
        SendOp::FetchAdd { remote, add: 1 },
    ];
    for op in ops {
        let (flags, data) = (SendFlags::SIGNALED, SendData::Sges(&[]));
        let error = s
            .host
            .qp
            .post_send(&SendWr { wr_id: 1, op, flags, data, srq_number: None })
            .unwrap_err();
        assert!(matches!(error, PostSendError::Unsupported { .. }), "{error}");
        assert_eq!(error.errno(), errno::EINVAL);
    }
    // And those not on a connection.
    let rc = Script::rts();
    let to = peer(&rc).to(PEER_QPN, KEY);
    let (flags, data) = (SendFlags::SIGNALED, SendData::Sges(&[]));
    let wr =
        SendWr { wr_id: 1, op: SendOp::SendTo { to, imm: None }, flags, data, srq_number: None };
    assert!(matches!(rc.host.qp.post_send(&wr), Err(PostSendError::Unsupported { .. })));
}

#[test]
fn r15_inline_data_is_taken_when_posted() {
    let mut s = ud();
    let op = SendOp::SendTo { to: peer(&s).to(PEER_QPN, KEY), imm: None };
    let (flags, data) = (SendFlags::SIGNALED, SendData::Inline(b"hello"));
    s.host.post_wr(&SendWr { wr_id: 1, op, flags, data, srq_number: None });
    assert_eq!(sent(&mut s)[0].4, b"hello");
}

#[test]
fn the_mtu_of_the_port_bounds_a_datagram() {
    let mut s = ud();
    s.host.device.ports()[0].set_active_mtu(Mtu::M1024);
    let ah = peer(&s);
    send(&mut s, 1, &ah, KEY, 1024);
    send(&mut s, 2, &ah, KEY, 1025);
    send(&mut s, 3, &ah, KEY, 1);
    assert_eq!(sent(&mut s).len(), 1);
    s.done([(1, Success), (2, LocLenErr), (3, WrFlushErr)]);
    assert_eq!(s.state(), QpState::Sqe);
    go(&mut s, QpState::Rts);
    send(&mut s, 4, &ah, KEY, 1);
    assert_eq!(sent(&mut s)[0].1, 1, "no PSN was used for what did not leave");
}

#[test]
fn r8_local_errors_lead_to_sqe_where_receiving_goes_on() {
    let mut s = ud();
    let ah = peer(&s);
    let sges = [Sge { addr: 0, length: 1, lkey: LKey::new(0xdead_be00) }];
    let op = SendOp::SendTo { to: ah.to(PEER_QPN, KEY), imm: None };
    let (flags, data) = (SendFlags::empty(), SendData::Sges(&sges));
    s.recv(9, 64);
    s.host.post_wr(&SendWr { wr_id: 1, op, flags, data, srq_number: None });
    send(&mut s, 2, &ah, KEY, 1);
    assert_eq!(sent(&mut s), []);
    s.done([(1, LocProtErr), (2, WrFlushErr)]);
    send(&mut s, 3, &ah, KEY, 1);
    s.done([(3, WrFlushErr)]);
    rx(&mut s, &[1]);
    s.done([(9, Success)]);
    // A handle of another protection domain is another such error.
    go(&mut s, QpState::Rts);
    let other = s.host.device.alloc_pd().unwrap();
    let av = AddressVector::new(s.path.source, 0);
    let foreign = s.host.device.create_ah(other, &av).unwrap();
    send(&mut s, 4, &foreign, KEY, 1);
    assert_eq!(sent(&mut s), []);
    s.done([(4, LocQpOpErr)]);
    assert_eq!(s.state(), QpState::Sqe);
}

#[test]
fn a_receive_has_the_network_header_before_the_data() {
    let mut s = ud();
    s.recv(1, 64);
    let bytes = datagram(s.qpn(), KEY, Some(77), &[1, 2, 3, 4, 5]);
    s.rx_bytes(&bytes).quiet();
    let [wc] = s.host.completions()[..] else { panic!("one completion") };
    assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len), (1, Success, WcOpcode::Recv, 45));
    assert_eq!((wc.source_qpn, wc.qpn, wc.imm), (PEER_QPN, s.qpn(), 77));
    assert_eq!(wc.flags, WcFlags::GRH | WcFlags::WITH_IMM);
    let head = s.mem(INBOX, HEAD);
    assert_eq!(head[..20], [0; 20]);
    // 20 of IPv4, 8 of UDP, BTH, DETH, ImmDt, 5 bytes with 3 of pad, and the iCRC.
    let total = 20 + 8 + 12 + 8 + 4 + 8 + 4;
    assert_eq!(head[20..30], [0x45, 0, 0, total, 0, 0, 0x40, 0, 64, 17]);
    assert_eq!(head[32..], [10, 0, 0, 2, 10, 0, 0, 1]);
    assert_eq!(s.mem(INBOX + HEAD, 8), [1, 2, 3, 4, 5, 0, 0, 0]);
}

#[test]
fn of_ipv6_and_of_roce_v1_the_header_has_all_forty_bytes() {
    for (gid_type, next) in [(GidType::RoceV2, 17), (GidType::RoceV1, 0x1b)] {
        let mut s = ud();
        let [from, to] = ["fe80::2", "fe80::1"].map(|ip| Gid::from_ip(ip.parse().unwrap()));
        s.path = Path { gid_type, flow_label: 0x1_2345, ..Path::new(from, to) };
        s.recv(1, 44);
        rx(&mut s, &[1, 2, 3, 4]);
        s.done([(1, Success)]);
        let head = s.mem(INBOX, HEAD);
        assert_eq!((head[0], head[1..4].to_vec(), head[6]), (0x60, vec![1, 0x23, 0x45], next));
        assert_eq!((&head[8..24], &head[24..]), (&from.raw()[..], &to.raw()[..]));
    }
}

#[test]
fn the_sender_can_be_answered_by_what_the_receive_tells() {
    let mut s = ud();
    s.recv(1, 64);
    rx(&mut s, &[1]);
    let [wc] = s.host.completions()[..] else { panic!("one completion") };
    let head: [u8; HEAD] = s.mem(INBOX, HEAD).try_into().unwrap();
    let ah = s.host.device.create_ah_from_header(s.host.pd, 1, &head).unwrap();
    let op = SendOp::SendTo { to: ah.to(wc.source_qpn, KEY), imm: None };
    s.host.post(2, op, 0, 1);
    let packets = s.host.transmit();
    assert_eq!(packets[0].0.path, Path::new(s.host.gid, s.path.source));
    assert_eq!(packets[0].0.dest_qpn, PEER_QPN);
    // One that came to a group is answered from an address of its family.
    s.path.destination = Gid::from_ip([239, 0, 0, 1].into());
    s.recv(3, 64);
    rx(&mut s, &[1]);
    let head: [u8; HEAD] = s.mem(INBOX, HEAD).try_into().unwrap();
    let av = address_from_header(&s.host.device, 1, &head).unwrap();
    assert_eq!((av.dgid, av.sgid_index, av.port_num), (s.path.source, 0, 1));
    // Bytes that are no header, and one that came to an address that is not ours.
    let error = address_from_header(&s.host.device, 1, &[0; HEAD]).unwrap_err();
    assert_eq!((error, error.errno()), (CreateAhError::NoHeader, errno::EINVAL));
    let mut stranger = head;
    stranger[36..].copy_from_slice(&[10, 0, 0, 99]);
    let error = address_from_header(&s.host.device, 1, &stranger).unwrap_err();
    assert!(matches!(error, CreateAhError::Address(ModifyQpError::GidIndex { .. })), "{error}");
}

#[test]
fn r30_a_datagram_longer_than_the_receive_is_dropped_and_the_receive_stays() {
    let mut s = ud();
    s.recv(1, 44).recv(2, 64);
    rx(&mut s, &[1; 5]);
    s.quiet().done([]).events([]);
    assert_eq!((s.count(Counter::drop_bad_length), s.state()), (1, QpState::Rts));
    assert_eq!(s.mem(INBOX, 64), [0; 64]);
    rx(&mut s, &[1; 4]);
    rx(&mut s, &[2; 4]);
    s.done([(1, Success), (2, Success)]);
    // Without any it is dropped as well.
    rx(&mut s, &[1]);
    s.quiet().done([]);
    assert_eq!(s.count(Counter::drop_no_receive), 1);
}

#[test]
fn r30_a_receive_that_is_too_short_stays_in_its_shared_queue() {
    let mut s = Script::of_type(QpType::Ud, |attr| attr.qkey = KEY.get());
    let attr = SrqAttr { max_wr: 4, max_sge: 1, srq_limit: 1 };
    let srq = s.host.device.create_srq(&SrqInit::new(s.host.pd, attr)).unwrap();
    let init = QpInit { srq: Some(srq.clone()), ..QpInit::new(QpType::Ud, s.host.pd, &s.host.cq) };
    let make = |s: &mut Script| {
        s.host.qp = s.host.shard.create_qp(init.clone()).unwrap();
        s.enter_init();
        s.enter_rtr();
        s.enter_rts();
    };
    make(&mut s);
    srq.post_recv(RecvWr { wr_id: 1, sges: &[s.host.sge(INBOX, 44)] }).unwrap();
    rx(&mut s, &[1; 5]);
    s.quiet().done([]).events([]);
    assert_eq!((s.count(Counter::drop_bad_length), s.state()), (1, QpState::Rts));
    // It goes with no queue pair, but is there for the next one.
    let qpn = s.qpn();
    s.host.shard.destroy_qp(qpn).unwrap();
    make(&mut s);
    rx(&mut s, &[1; 4]);
    s.quiet().done([(1, Success)]).events([AsyncEvent::SrqLimitReached(srq.id())]);
}

#[test]
fn r57_qkey_and_pkey_that_do_not_match_are_dropped_and_counted() {
    let mut s = ud();
    s.recv(1, 64);
    let bytes = datagram(s.qpn(), QKey::new(KEY.get() ^ 1), None, &[1]);
    s.rx_bytes(&bytes).quiet().done([]);
    assert_eq!(s.count(Counter::drop_bad_qkey), 1);
    let mut bytes = datagram(s.qpn(), KEY, None, &[1]);
    bytes[3] ^= 1;
    s.rx_bytes(&bytes).quiet().done([]);
    assert_eq!(s.count(Counter::drop_bad_pkey), 1);
    // The key may change while it runs.
    let mask = QpAttrMask::STATE | QpAttrMask::QKEY;
    s.host.modify(QpAttr { state: QpState::Rts, qkey: 5, ..s.attr }, mask);
    rx(&mut s, &[1]);
    assert_eq!(s.count(Counter::drop_bad_qkey), 2);
    let bytes = datagram(s.qpn(), QKey::new(5), None, &[1]);
    s.rx_bytes(&bytes).done([(1, Success)]);
}

#[test]
fn r58_datagrams_below_rtr_are_dropped() {
    let mut s = Script::of_type(QpType::Ud, |attr| attr.qkey = KEY.get());
    rx(&mut s, &[1]);
    s.enter_init();
    s.recv(1, 64);
    rx(&mut s, &[1]);
    assert_eq!(s.count(Counter::drop_wrong_state), 2);
    s.enter_rtr();
    let qpn = s.qpn();
    rx(&mut s, &[1]);
    s.done([(1, Success)]).events([AsyncEvent::CommEst(qpn)]);
    s.enter_rts();
    go(&mut s, QpState::Err);
    rx(&mut s, &[1]);
    assert_eq!(s.count(Counter::drop_wrong_state), 3);
}

#[test]
fn datagrams_may_come_from_anywhere_but_not_from_other_services() {
    let mut s = ud();
    s.recv(1, 64);
    s.path.source = Gid::from_ip([1, 2, 3, 4].into());
    rx(&mut s, &[1]);
    s.done([(1, Success)]);
    s.rx(&send_only(0, &[1]).a()).rx(&send_only(0, &[1]).uc()).rx(&ack(0, 1)).quiet();
    // CNPs are for connections.
    let mut cnp = s.request_bytes(&send_only(0, &[]));
    cnp[0] = 0x81;
    cnp.resize(12 + 16, 0);
    s.rx_bytes(&cnp).quiet();
    assert_eq!(s.count(Counter::drop_wrong_service), 4);
}

#[test]
fn r47_both_queues_are_flushed_in_order() {
    let mut s = ud();
    s.recv(1, 40).recv(2, 64);
    rx(&mut s, &[1]);
    s.quiet().done([]);
    go(&mut s, QpState::Err);
    s.done([(1, WrFlushErr), (2, WrFlushErr)]);
    let ah = peer(&s);
    send(&mut s, 3, &ah, KEY, 1);
    s.quiet().done([(3, WrFlushErr)]);
}

#[test]
fn sqd_begins_nothing_and_is_drained_at_once() {
    let mut s = ud();
    let ah = peer(&s);
    let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
    s.host.modify(QpAttr { state: QpState::Sqd, ..s.attr }, mask);
    let qpn = s.qpn();
    s.events([AsyncEvent::SqDrained(qpn)]);
    send(&mut s, 1, &ah, KEY, 1);
    assert_eq!(sent(&mut s), []);
    go(&mut s, QpState::Rts);
    assert_eq!(sent(&mut s).len(), 1);
    s.done([(1, Success)]);
}

#[test]
fn a_receive_into_unregistered_memory_fails_the_queue_pair() {
    let mut s = ud();
    let sges = [Sge { addr: 0, length: 64, lkey: LKey::new(0xdead_be00) }];
    s.host.qp.post_recv(RecvWr { wr_id: 1, sges: &sges }).unwrap();
    rx(&mut s, &[1]);
    s.quiet().done([(1, LocProtErr)]);
    assert_eq!(s.state(), QpState::Err);
}

#[test]
fn two_queue_pairs_of_one_device_can_talk() {
    let mut s = ud();
    let other = Host::with_type(1, QpType::Ud, rxe_core::qp::QpCaps::default());
    assert_eq!(other.gid, s.host.gid);
    let av = AddressVector::new(s.host.gid, 0);
    let ah = s.host.device.create_ah(s.host.pd, &av).unwrap();
    s.recv(1, 64);
    let op = SendOp::SendTo { to: ah.to(s.qpn(), QKey::new(0x8000_0000)), imm: None };
    s.host.post(2, op, 0, 4);
    for packet in s.host.transmit() {
        s.host.receive(&packet);
    }
    let all: Vec<_> = s.host.completions().iter().map(|wc| (wc.wr_id, wc.byte_len)).collect();
    assert_eq!(all, [(2, 4), (1, 44)]);
    assert_eq!(s.mem(INBOX + HEAD, 4), s.mem(0, 4));
}

#[test]
fn address_handles_hold_their_gid() {
    let s = ud();
    let device = &s.host.device;
    let ah = peer(&s);
    let wanted = WantedGid { gid: s.host.gid, gid_type: GidType::RoceV2, ifindex: 1, owned: true };
    let other = WantedGid { gid: Gid::from_ip([10, 0, 0, 200].into()), ..wanted };
    let gids = &device.ports()[0].gids;
    gids.write().remove(&wanted);
    gids.write().add(other).unwrap();
    assert_ne!(gids.read().query_gid_ex(0).map(|entry| entry.gid), Ok(other.gid), "still held");
    drop(ah);
    assert!(gids.write().release(0).is_err(), "held by nobody");
    let error = peer_error(&s, AddressVector::new(Gid::ZERO, 1));
    assert_eq!(error, CreateAhError::Address(ModifyQpError::NoDestination));
    let error =
        peer_error(&s, AddressVector { port_num: 2, ..AddressVector::new(s.path.source, 0) });
    assert_eq!(error.errno(), errno::EINVAL);
    let error = peer_error(&s, AddressVector::new(Gid::from_ip("fe80::9".parse().unwrap()), 1));
    assert!(matches!(error, CreateAhError::Address(ModifyQpError::Family { .. })), "{error}");
    // RoCE v1 has no IP, so no families either.
    let v1 = WantedGid {
        gid: Gid::from_ip([10, 0, 0, 201].into()),
        gid_type: GidType::RoceV1,
        ..wanted
    };
    gids.write().add(v1).unwrap();
    let index = gids.read().find(v1.gid, GidType::RoceV1).unwrap().gid_index;
    let av = AddressVector::new(Gid::from_ip("fe80::9".parse().unwrap()), index);
    device.create_ah(s.host.pd, &av).unwrap();
    let av = AddressVector { flow_label: 1 << 20, ..AddressVector::new(s.path.source, 1) };
    let error = peer_error(&s, av);
    assert!(matches!(error, CreateAhError::Address(ModifyQpError::Value { .. })), "{error}");
}

fn peer_error(s: &Script, av: AddressVector) -> CreateAhError {
    s.host.device.create_ah(s.host.pd, &av).unwrap_err()
}

#[test]
fn address_handles_are_bounded() {
    use rxe_core::{Device, DeviceConfig, Limits, Port, Seed};
    let limits = Limits { max_ah: 1, ..Limits::default() };
    let config = DeviceConfig { limits, ..DeviceConfig::new(Seed::for_test(1)) };
    let mut gids = gid_table::GidTable::new(1, 4);
    let gid = Gid::from_ip([10, 0, 0, 1].into());
    gids.add(WantedGid { gid, gid_type: GidType::RoceV2, ifindex: 1, owned: true }).unwrap();
    let device = Device::new(config, vec![Port::new(gids, Mtu::M1024)]);
    let pd = device.alloc_pd().unwrap();
    // One that is refused does not count.
    device.create_ah(pd, &AddressVector::new(Gid::ZERO, 0)).unwrap_err();
    let ah = device.create_ah(pd, &AddressVector::new(gid, 0)).unwrap();
    let error = device.create_ah(pd, &AddressVector::new(gid, 0)).unwrap_err();
    assert_eq!((error, error.errno()), (CreateAhError::TooMany { max: 1 }, errno::ENOMEM));
    drop(ah);
    device.create_ah(pd, &AddressVector::new(gid, 0)).unwrap();
}
