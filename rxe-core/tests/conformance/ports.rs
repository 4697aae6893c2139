//! Devices of several ports: datagrams come by the port of their queue pair.

use std::sync::Arc;

use gid_table::{Gid, GidTable, GidType, WantedGid};
use rxe_core::mem::{AccessFlags, DmaBuf};
use rxe_core::pd::PdId;
use rxe_core::qp::{
    ALL_PORTS, AddressVector, GSI_QKEY, GSI_QPN, Mtu, QpAttr, QpAttrMask, QpInit, QpState, QpType,
    steps_to_rts,
};
use rxe_core::wc::WcStatus;
use rxe_core::wq::{RecvWr, SendData, SendFlags, SendOp, SendWr, Sge};
use rxe_core::{
    CompletionQueue, Counter, CreateQpError, Device, DeviceConfig, Instant, Path, Port, QueuePair,
    Seed, Shard,
};
use rxe_wire::QKey;

use crate::ud::{KEY, datagram};

const NOW: Instant = Instant::from_nanos(1);
/// A management datagram has 256 bytes.
const MAD: usize = 256;

/// A device with the address 10.0.N.1 on its port N.
struct Dual {
    device: Arc<Device>,
    shard: Shard,
    pd: PdId,
    cq: Arc<CompletionQueue>,
    inbox: Sge,
}

fn gid_of(port: u8) -> Gid {
    Gid::from_ip([10, 0, port, 1].into())
}

impl Dual {
    fn new() -> Self {
        let port = |number: u8| {
            let mut gids = GidTable::new(number.into(), 4);
            let (gid, gid_type, ifindex) = (gid_of(number), GidType::RoceV2, number.into());
            gids.add(WantedGid { gid, gid_type, ifindex, owned: true }).unwrap();
            Port::new(gids, Mtu::M1024)
        };
        let device = Device::new(DeviceConfig::new(Seed::for_test(1)), vec![port(1), port(2)]);
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64, None).unwrap());
        let (buf, length) = (Arc::new(DmaBuf::zeroed(64)), 64);
        let (addr, access) = (buf.addr(), AccessFlags::LOCAL_WRITE);
        let memory = device.memory();
        let keys = memory.register(pd, buf, 0, length.into(), addr, access).unwrap();
        let inbox = Sge { addr, length, lkey: keys.lkey };
        Self { shard: Shard::new(device.clone(), 9), device, pd, cq, inbox }
    }

    fn init(&self, qp_type: QpType, port_num: u8) -> QpInit {
        let mut init = QpInit { port_num, ..QpInit::new(qp_type, self.pd, &self.cq) };
        init.caps.max_inline_data = 512;
        init
    }

    /// A queue pair in RTS.
    fn ready(&mut self, qp_type: QpType, port_num: u8, qkey: QKey) -> Arc<QueuePair> {
        let qp = self.shard.create_qp(self.init(qp_type, port_num)).unwrap();
        for (state, mask) in steps_to_rts(qp_type) {
            let attr = QpAttr { state, port_num, qkey: qkey.get(), ..QpAttr::default() };
            self.shard.modify_qp(NOW, qp.qpn(), &attr, mask).unwrap();
        }
        qp
    }

    /// A datagram comes to a port; whether the queue pair gets it.
    fn gets(&mut self, qp: &QueuePair, port: u8, qkey: QKey) -> bool {
        qp.post_recv(RecvWr { wr_id: 1, sges: &[self.inbox] }).unwrap();
        let path = Path::new(Gid::from_ip([10, 0, 9, 9].into()), gid_of(port));
        let before = self.count(Counter::drop_wrong_address);
        self.shard.handle_packet(NOW, &path, &datagram(qp.qpn(), qkey, None, &[1, 2, 3, 4]));
        let mut done = Vec::new();
        let has_come = self.cq.poll(4, &mut done) == 1;
        assert_eq!(self.count(Counter::drop_wrong_address) - before, u64::from(!has_come));
        has_come
    }

    fn count(&self, counter: Counter) -> u64 {
        self.shard.counters().get(counter)
    }
}

#[test]
fn r57_a_datagram_comes_by_the_port_of_its_queue_pair() {
    let mut dual = Dual::new();
    for own in [1, 2] {
        let qp = dual.ready(QpType::Ud, own, KEY);
        for port in [1, 2] {
            assert_eq!(dual.gets(&qp, port, KEY), port == own, "{own} {port}");
        }
        assert_eq!(dual.shard.datagram_ports(qp.qpn()), Some(own..=own));
    }
    assert!(dual.shard.takes_datagrams(1) && dual.shard.takes_datagrams(2));
}

#[test]
fn one_qp1_serves_all_ports() {
    let mut dual = Dual::new();
    assert!(!dual.shard.takes_datagrams(2));
    let qp = dual.ready(QpType::Gsi, ALL_PORTS, GSI_QKEY);
    assert_eq!(dual.shard.datagram_ports(GSI_QPN), Some(1..=2));
    for port in [1, 2] {
        assert!(dual.gets(&qp, port, GSI_QKEY) && dual.shard.takes_datagrams(port), "{port}");
    }
    // Then no port has one of its own, and the other way round.
    let mut other = Shard::new(dual.device.clone(), 10);
    let error = other.create_qp(dual.init(QpType::Gsi, 2)).unwrap_err();
    assert_eq!(error, CreateQpError::NoGsi { port: 2 });
    dual.shard.destroy_qp(GSI_QPN).unwrap();
    other.create_qp(dual.init(QpType::Gsi, 2)).unwrap();
    let error = dual.shard.create_qp(dual.init(QpType::Gsi, ALL_PORTS)).unwrap_err();
    assert_eq!(error, CreateQpError::NoGsi { port: ALL_PORTS });
}

#[test]
fn a_qp1_of_all_ports_sends_by_each_what_each_carries() {
    let mut dual = Dual::new();
    let qp = dual.ready(QpType::Gsi, ALL_PORTS, GSI_QKEY);
    let peer = Gid::from_ip([10, 0, 9, 9].into());
    for port_num in [1, 2] {
        let av = AddressVector { port_num, ..AddressVector::new(peer, 0) };
        let to = dual.device.create_ah(qp.pd(), &av).unwrap();
        for (len, expected) in [(MAD, WcStatus::Success), (MAD + 1, WcStatus::LocLenErr)] {
            let op = SendOp::SendTo { to: to.to(GSI_QPN, GSI_QKEY), imm: None };
            let (flags, data) = (SendFlags::SIGNALED, vec![7; len]);
            let data = SendData::Inline(&data);
            qp.post_send(&SendWr { wr_id: 1, op, flags, data, srq_number: None }).unwrap();
            dual.shard.kick(NOW, GSI_QPN);
            let mut buf = vec![0; Shard::MAX_PACKET];
            let sent = dual.shard.poll_transmit(NOW, &mut buf);
            let source = sent.map(|transmit| transmit.path.source);
            let is_good = expected == WcStatus::Success;
            assert_eq!(source, is_good.then_some(gid_of(port_num)), "{len} bytes");
            let mut done = Vec::new();
            dual.cq.poll(4, &mut done);
            assert_eq!(done.iter().map(|wc| wc.status).collect::<Vec<_>>(), [expected]);
            // A send that fails stops all that follow.
            if !is_good {
                let attr = QpAttr { state: QpState::Rts, ..QpAttr::default() };
                let mask = QpAttrMask::STATE;
                dual.shard.modify_qp(NOW, GSI_QPN, &attr, mask).unwrap();
            }
        }
    }
}
