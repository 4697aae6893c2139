//! Two hosts on a wire that the test holds in its hands.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test file uses a part of it

use std::sync::Arc;

use gid_table::{Gid, GidTable, GidType, WantedGid};
use rxe_core::mem::{AccessFlags, DmaBuf, MrKeys};
use rxe_core::pd::PdId;
use rxe_core::qp::{
    AddressVector, Mtu, QpAttr, QpAttrMask, QpCaps, QpInit, QpState, QpType, RC_TO_RTS,
    steps_to_rts,
};
use rxe_core::wc::WorkCompletion;
use rxe_core::wq::{RecvWr, RemoteAddr, SendData, SendFlags, SendOp, SendWr, Sge};
use rxe_core::{
    CompletionQueue, Device, DeviceConfig, Instant, Port, QueuePair, Seed, Shard, Transmit,
};
use rxe_wire::Psn;

/// A device with one shard, one QP and one registered buffer.
pub struct Host {
    pub device: Arc<Device>,
    pub shard: Shard,
    pub gid: Gid,
    pub pd: PdId,
    pub cq: Arc<CompletionQueue>,
    pub qp: Arc<QueuePair>,
    pub buf: Arc<DmaBuf>,
    pub keys: MrKeys,
    pub now: Instant,
}

/// The first PSN that host `number` sends.
pub fn first_psn(number: u8) -> Psn {
    // Near the wrap, so that every test crosses it.
    Psn::new(0xff_fff0 + u32::from(number))
}

pub const BUF_LEN: usize = 1 << 20;

impl Host {
    pub fn new(number: u8) -> Self {
        Self::with_caps(number, QpCaps { max_inline_data: 256, ..QpCaps::default() })
    }

    pub fn with_caps(number: u8, caps: QpCaps) -> Self {
        Self::with_type(number, QpType::Rc, caps)
    }

    pub fn with_type(number: u8, qp_type: QpType, caps: QpCaps) -> Self {
        let seed = Seed::for_test(u64::from(number));
        Self::with_config(number, qp_type, caps, DeviceConfig::new(seed))
    }

    pub fn with_config(number: u8, qp_type: QpType, caps: QpCaps, config: DeviceConfig) -> Self {
        let gid = Gid::from_ip([10, 0, 0, number].into());
        let mut gids = GidTable::new(1, 16);
        let wanted = WantedGid { gid, gid_type: GidType::RoceV2, ifindex: 1, owned: true };
        gids.add(wanted).unwrap();
        let device = Device::new(config, vec![Port::new(gids, Mtu::M4096)]);
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(4096, None).unwrap();
        let mut shard = Shard::new(device.clone(), number);
        let qp = shard.create_qp(QpInit { caps, ..QpInit::new(qp_type, pd, &cq) }).unwrap();
        let buf = Arc::new(DmaBuf::zeroed(BUF_LEN));
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let memory = device.memory();
        let len = BUF_LEN as u64;
        let keys = memory.register(pd, buf.clone(), 0, len, buf.addr(), access).unwrap();
        Self { device, shard, gid, pd, cq, qp, buf, keys, now: Instant::from_nanos(1) }
    }

    pub fn attr(&self, peer: &Self, number: u8, mtu: Mtu) -> QpAttr {
        QpAttr {
            state: QpState::Init,
            path_mtu: mtu,
            rq_psn: first_psn(3 - number),
            sq_psn: first_psn(number),
            dest_qpn: peer.qp.qpn(),
            access: AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::LOCAL_WRITE,
            av: AddressVector::new(peer.gid, 0),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 3,
            rnr_retry: 3,
            ..QpAttr::default()
        }
    }

    /// Moves the QP through INIT and RTR to RTS.
    pub fn connect(&mut self, attr: QpAttr) {
        for (state, mask) in steps_to_rts(self.qp.qp_type()) {
            self.modify(QpAttr { state, ..attr }, mask);
        }
    }

    pub fn modify(&mut self, attr: QpAttr, mask: QpAttrMask) {
        self.shard.modify_qp(self.now, self.qp.qpn(), &attr, mask).unwrap();
    }

    pub fn sge(&self, offset: usize, length: u32) -> Sge {
        Sge { addr: self.buf.addr() + offset as u64, length, lkey: self.keys.lkey }
    }

    pub fn remote(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { addr: self.buf.addr() + offset as u64, rkey: self.keys.rkey }
    }

    pub fn post_recv(&mut self, wr_id: u64, offset: usize, length: u32) {
        let sge = self.sge(offset, length);
        if self.qp.post_recv(RecvWr { wr_id, sges: &[sge] }).unwrap() {
            self.shard.kick(self.now, self.qp.qpn());
        }
    }

    pub fn post(&mut self, wr_id: u64, op: SendOp, offset: usize, length: u32) {
        let sges = [self.sge(offset, length)];
        let (flags, data) = (SendFlags::SIGNALED, SendData::Sges(&sges));
        self.post_wr(&SendWr { wr_id, op, flags, data, srq_number: None });
    }

    pub fn post_wr(&mut self, wr: &SendWr<'_>) {
        self.qp.post_send(wr).unwrap();
        self.shard.kick(self.now, self.qp.qpn());
    }

    /// All packets that it has to send now.
    pub fn transmit(&mut self) -> Vec<(Transmit, Vec<u8>)> {
        let mut buf = vec![0; Shard::MAX_PACKET];
        let mut packets = Vec::new();
        while let Some(transmit) = self.shard.poll_transmit(self.now, &mut buf) {
            packets.push((transmit, buf[..transmit.len].to_vec()));
        }
        assert_eq!(self.shard.stalled_qp(), None, "it waits for what may never come");
        packets
    }

    pub fn receive(&mut self, (transmit, bytes): &(Transmit, Vec<u8>)) {
        self.shard.handle_packet(self.now, &transmit.path, bytes);
    }

    pub fn completions(&self) -> Vec<WorkCompletion> {
        let mut all = Vec::new();
        self.cq.poll(usize::MAX, &mut all);
        all
    }

    pub fn pattern(&self, offset: usize, len: usize, seed: u8) {
        let bytes: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(31) ^ seed).collect();
        self.buf.write_at(offset, &bytes).unwrap();
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.buf.read_at(offset, &mut bytes).unwrap();
        bytes
    }
}

pub fn init_mask() -> QpAttrMask {
    RC_TO_RTS[0].1
}

pub fn rtr_mask() -> QpAttrMask {
    RC_TO_RTS[1].1
}

pub fn rts_mask() -> QpAttrMask {
    RC_TO_RTS[2].1
}

/// Two connected hosts.
pub fn pair(mtu: Mtu) -> (Host, Host) {
    let (mut a, mut b) = (Host::new(1), Host::new(2));
    let (attr_a, attr_b) = (a.attr(&b, 1, mtu), b.attr(&a, 2, mtu));
    a.connect(attr_a);
    b.connect(attr_b);
    (a, b)
}

/// Carries packets both ways until nobody has any.
pub fn exchange(a: &mut Host, b: &mut Host) {
    loop {
        let (from_a, from_b) = (a.transmit(), b.transmit());
        if from_a.is_empty() && from_b.is_empty() {
            return;
        }
        from_a.iter().for_each(|packet| b.receive(packet));
        from_b.iter().for_each(|packet| a.receive(packet));
    }
}
