//! Multicast: one datagram, a copy for each member of the group.

use std::sync::Arc;

use gid_table::Gid;
use rxe_core::multicast::{MULTICAST_QPN, MulticastError};
use rxe_core::qp::{AddressVector, QpInit, QpState, QpType, steps_to_rts};
use rxe_core::wq::{RecvWr, SendOp};
use rxe_core::{BusyError, Counter, QueuePair, Shard, errno};
use rxe_wire::QKey;

use crate::script::*;
use crate::ud::{HEAD, KEY, datagram, ud};

fn group(last: u8) -> Gid {
    Gid::from_ip([239, 1, 1, last].into())
}

/// One more UD queue pair of the host, in RTR, with a receive of this number.
fn member(s: &mut Script, qkey: QKey, wr_id: u64) -> Arc<QueuePair> {
    let init = QpInit::new(QpType::Ud, s.host.pd, &s.host.cq);
    let qp = s.host.shard.create_qp(init).unwrap();
    for (state, mask) in steps_to_rts(QpType::Ud).into_iter().take(2) {
        let attr = rxe_core::qp::QpAttr { state, qkey: qkey.get(), ..s.attr };
        s.host.shard.modify_qp(s.host.now, qp.qpn(), &attr, mask).unwrap();
    }
    let sges = [s.host.sge(INBOX + 0x100 * wr_id as usize, 64)];
    qp.post_recv(RecvWr { wr_id, sges: &sges }).unwrap();
    qp
}

/// One datagram of the peer to a group.
fn rx(s: &mut Script, group: Gid, qkey: QKey) {
    s.path.destination = group;
    s.rx_bytes(&datagram(MULTICAST_QPN, qkey, None, &[1, 2, 3, 4])).quiet();
}

fn done(s: &Script) -> Vec<u64> {
    s.host.completions().iter().map(|wc| wc.wr_id).collect()
}

#[test]
fn r49_each_attached_queue_pair_with_the_key_gets_a_copy() {
    let mut s = ud();
    s.recv(9, 64);
    let [one, two, three] =
        [(KEY, 1), (KEY, 2), (QKey::new(5), 3)].map(|(k, id)| member(&mut s, k, id));
    let device = s.host.device.clone();
    for qp in [&one, &two, &three] {
        device.attach_multicast(qp, group(1)).unwrap();
    }
    rx(&mut s, group(1), KEY);
    assert_eq!(done(&s), [1, 2]);
    assert_eq!(s.count(Counter::drop_bad_qkey), 1);
    for id in [1, 2] {
        let at = INBOX + 0x100 * id;
        assert_eq!(s.mem(at + HEAD, 4), [1, 2, 3, 4]);
        assert_eq!(s.mem(at + 36, 4), [239, 1, 1, 1], "the header names the group");
    }
    // Nobody is in another group.
    rx(&mut s, group(2), KEY);
    assert_eq!((done(&s), s.count(Counter::drop_no_group)), (vec![], 1));
}

#[test]
fn r49_the_sender_gets_no_copy_and_its_neighbours_do() {
    let mut s = ud();
    s.recv(9, 64);
    let neighbour = member(&mut s, KEY, 1);
    let device = s.host.device.clone();
    device.attach_multicast(&s.host.qp, group(1)).unwrap();
    device.attach_multicast(&neighbour, group(1)).unwrap();
    let ah = device.create_ah(s.host.pd, &AddressVector::new(group(1), 0)).unwrap();
    let op = SendOp::SendTo { to: ah.to(MULTICAST_QPN, KEY), imm: None };
    s.host.post(2, op, 0, 4);
    let packets = s.host.transmit();
    assert_eq!((packets[0].0.path.destination, packets[0].0.dest_qpn), (group(1), MULTICAST_QPN));
    // The network brings it back.
    s.host.receive(&packets[0]);
    assert_eq!(done(&s), [2, 1]);
    // The same number on another host is another queue pair.
    let mut bytes = packets[0].1.clone();
    s.path.destination = group(1);
    s.rx_bytes(&bytes).quiet();
    assert_eq!(done(&s), [9]);
    // Another service has no groups.
    bytes[0] = 0x24;
    s.rx_bytes(&bytes).quiet();
    assert_eq!(s.count(Counter::drop_wrong_service), 1);
}

#[test]
fn r50_a_queue_pair_in_a_group_is_not_destroyed() {
    let mut s = ud();
    let (device, qp) = (s.host.device.clone(), s.host.qp.clone());
    device.attach_multicast(&qp, group(1)).unwrap();
    device.attach_multicast(&qp, group(2)).unwrap();
    let error = s.host.shard.destroy_qp(qp.qpn()).unwrap_err();
    assert_eq!((error, error.errno()), (BusyError { what: "queue pair", users: 2 }, errno::EBUSY));
    assert_eq!(s.state(), QpState::Rts);
    device.detach_multicast(&qp, group(1)).unwrap();
    assert!(s.host.shard.destroy_qp(qp.qpn()).is_err());
    assert!(device.detach_all_multicast(&qp));
    assert!(!device.detach_all_multicast(&qp));
    s.host.shard.destroy_qp(qp.qpn()).unwrap();
    assert_eq!(device.multicast().groups(), []);
}

#[test]
fn attaching_twice_is_once_and_detaching_twice_an_error() {
    let s = ud();
    let (device, qp) = (&s.host.device, &s.host.qp);
    device.attach_multicast(qp, group(1)).unwrap();
    device.attach_multicast(qp, group(1)).unwrap();
    assert_eq!(qp.attachments(), 1);
    device.detach_multicast(qp, group(1)).unwrap();
    let error = device.detach_multicast(qp, group(1)).unwrap_err();
    let expected = MulticastError::NotAttached { qpn: qp.qpn(), group: group(1) };
    assert_eq!((error, error.errno()), (expected, errno::EINVAL));
}

#[test]
fn what_cannot_be_attached_is_refused() {
    let s = ud();
    let device = &s.host.device;
    let no_group = Gid::from_ip([10, 0, 0, 1].into());
    let error = device.attach_multicast(&s.host.qp, no_group).unwrap_err();
    assert_eq!((error, error.errno()), (MulticastError::NoGroup(no_group), errno::EINVAL));
    let rc = Script::rts();
    let error = rc.host.device.attach_multicast(&rc.host.qp, group(1)).unwrap_err();
    assert_eq!(error, MulticastError::QpType(QpType::Rc));
    assert_eq!(rc.host.device.multicast().groups(), []);
}

#[test]
fn groups_and_members_are_bounded() {
    use rxe_core::{Device, DeviceConfig, Limits, Port, Seed};
    let limits = Limits { max_mcast_grp: 2, max_mcast_qp_attach: 2, ..Limits::default() };
    let config = DeviceConfig { limits, ..DeviceConfig::new(Seed::for_test(1)) };
    let gids = gid_table::GidTable::new(1, 4);
    let device = Device::new(config, vec![Port::new(gids, rxe_core::qp::Mtu::M1024)]);
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(8, None).unwrap());
    let mut shard = Shard::new(device.clone(), 3);
    let mut make = || shard.create_qp(QpInit::new(QpType::Ud, pd, &cq)).unwrap();
    let qps = [make(), make(), make()];
    for qp in &qps[..2] {
        device.attach_multicast(qp, group(1)).unwrap();
    }
    let error = device.attach_multicast(&qps[2], group(1)).unwrap_err();
    assert_eq!(error, MulticastError::TooManyMembers { group: group(1), max: 2 });
    assert_eq!(error.errno(), errno::ENOMEM);
    device.attach_multicast(&qps[2], group(2)).unwrap();
    let error = device.attach_multicast(&qps[2], group(3)).unwrap_err();
    assert_eq!(error, MulticastError::TooManyGroups { max: 2 });
    assert_eq!((qps[2].attachments(), device.multicast().groups().len()), (1, 2));
}

#[test]
fn r49_the_owner_sees_first_members_and_last_ones() {
    let mut s = ud();
    let device = s.host.device.clone();
    let other = member(&mut s, KEY, 1);
    let seen = || [1, 2].map(|number| device.multicast().has_members(group(number)));
    assert_eq!(seen(), [false, false]);
    device.attach_multicast(&s.host.qp, group(1)).unwrap();
    device.attach_multicast(&other, group(1)).unwrap();
    device.attach_multicast(&other, group(2)).unwrap();
    assert_eq!(seen(), [true, true]);
    assert_eq!(device.multicast().slots(group(1)), [1]);
    assert_eq!(device.multicast().slots(group(3)), []);
    device.detach_multicast(&s.host.qp, group(1)).unwrap();
    assert_eq!(seen(), [true, true]);
    device.detach_all_multicast(&other);
    assert_eq!(seen(), [false, false]);
}

#[test]
fn members_on_other_shards_get_theirs_there() {
    let mut s = ud();
    let device = s.host.device.clone();
    let mut other = Shard::new(device.clone(), 9);
    let qp = other.create_qp(QpInit::new(QpType::Ud, s.host.pd, &s.host.cq)).unwrap();
    device.attach_multicast(&s.host.qp, group(1)).unwrap();
    device.attach_multicast(&qp, group(1)).unwrap();
    assert_eq!(device.multicast().slots(group(1)), [1, 9]);
    s.recv(1, 64);
    rx(&mut s, group(1), KEY);
    assert_eq!(done(&s), [1]);
    other.handle_packet(s.host.now, &s.path, &datagram(MULTICAST_QPN, KEY, None, &[1]));
    // It is still in RESET.
    assert_eq!(other.counters().get(Counter::drop_wrong_state), 1);
}
