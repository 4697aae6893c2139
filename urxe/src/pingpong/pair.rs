//! A queue pair of the game: made, brought to its peer, and sent on.

use ibverbs_api::{
    AccessFlags, AddressHandle, AddressVector, CompletionQueue, ConnectAttr, Gid, GidEntry,
    ProtectionDomain, Psn, QKey, QpAttr, QpCaps, QpInit, QpState, QpType, Qpn, QueuePair, SendData,
    SendFlags, SendOp, SendWr, Sge, SharedReceiveQueue, SrqId, XrcDomain, steps_to_rts,
};

use super::error::PingpongError;
use super::exchange::{Destination, check_gids};
use super::game::Rules;
use super::xrc_exchange::XrcEnd;

/// What receive requests go by, as in `ibv_rc_pingpong`; also the bit of what is awaited.
pub(super) const RECV: u64 = 1;
/// What send requests go by.
pub(super) const SEND: u64 = 2;
/// The queue key of `ibv_ud_pingpong`.
const QKEY: QKey = QKey::new(0x1111_1111);

/// A queue pair, and what it waits for.
#[derive(Debug)]
pub(super) struct Pair {
    pub qp: QueuePair,
    /// Of an extended reliable connection (XRC): the queue pair that receives.
    pub target: Option<QueuePair>,
    way: Way,
    /// Which of [`RECV`] and [`SEND`] are awaited before the next send.
    pub pending: u64,
    /// Messages posted.
    pub posted: u32,
}

/// How a message finds the other end.
#[derive(Debug)]
enum Way {
    /// By the connection.
    Connection,
    /// By its address, as a datagram.
    Address(AddressHandle, Qpn),
    /// By the connection, and the number of a shared receive queue.
    Queue(SrqId),
}

impl Pair {
    /// Makes one that takes receives, on this port.
    pub(super) fn new(
        pd: &ProtectionDomain,
        cq: &CompletionQueue,
        srq: Option<&SharedReceiveQueue>,
        xrcd: Option<&XrcDomain>,
        rules: &Rules,
        port_num: u8,
    ) -> Result<Self, PingpongError> {
        let caps = QpCaps {
            max_send_wr: 1,
            max_recv_wr: rules.rx_depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qp_type = rules.service.qp_type();
        let init = QpInit::new(qp_type, cq, cq);
        // The queue of a domain is not that of its queue pairs: each message names it.
        let srq = if xrcd.is_some() { None } else { srq.cloned() };
        let qp = pd.create_qp(QpInit { caps, srq, ..init })?;
        let target = xrcd.map(XrcDomain::create_qp).transpose()?;
        for qp in [Some(&qp), target.as_ref()].into_iter().flatten() {
            let [(state, mask), ..] = steps_to_rts(qp.qp_type());
            qp.modify(&QpAttr { state, port_num, qkey: QKEY.get(), ..QpAttr::default() }, mask)?;
        }
        Ok(Self { qp, target, way: Way::Connection, pending: RECV, posted: 0 })
    }

    /// Whether a completion of this queue pair is one of ours.
    pub(super) fn has(&self, qpn: Qpn) -> bool {
        self.qp.qpn() == qpn || self.target.as_ref().is_some_and(|target| target.qpn() == qpn)
    }

    /// Where it is, for the other end.
    pub(super) fn destination(
        &self,
        lid: u16,
        psn: Psn,
        gid: Gid,
        srq: Option<&SharedReceiveQueue>,
    ) -> Destination {
        let (qpn, xrc) = match (&self.target, srq) {
            (Some(target), Some(srq)) => {
                (target.qpn(), Some(XrcEnd { send_qpn: self.qp.qpn(), srqn: srq.id().0 }))
            }
            _ => (self.qp.qpn(), None),
        };
        Destination { lid, qpn, psn, gid, xrc }
    }

    /// Connects it to the other end's; a datagram's way is kept instead.
    pub(super) fn connect(
        &mut self,
        pd: &ProtectionDomain,
        rules: &Rules,
        gid: &GidEntry,
        local: Destination,
        remote: Destination,
    ) -> Result<(), PingpongError> {
        check_gids(gid.gid, remote.gid)?;
        let port_num = u8::try_from(gid.port_num).unwrap_or(u8::MAX);
        let av = AddressVector {
            port_num,
            sl: rules.sl,
            ..AddressVector::new(remote.gid, gid.gid_index)
        };
        if self.qp.qp_type() == QpType::Ud {
            self.start_datagrams(local)?;
            self.way = Way::Address(pd.create_ah(&av)?, remote.qpn);
            return Ok(());
        }
        let attr = ConnectAttr {
            sq_psn: local.psn,
            rq_psn: remote.psn,
            access: AccessFlags::empty(),
            max_rd_atomic: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            ..ConnectAttr::new(av, remote.qpn, rules.mtu)
        };
        if let (Some(target), Some(xrc)) = (&self.target, remote.xrc) {
            target.connect(&ConnectAttr { dest_qpn: xrc.send_qpn, ..attr })?;
            self.way = Way::Queue(SrqId(xrc.srqn));
        }
        Ok(self.qp.connect(&attr)?)
    }

    /// Goes to RTS, with the PSN that the other end was told.
    fn start_datagrams(&self, local: Destination) -> Result<(), PingpongError> {
        // In INIT it is since it was made.
        for (state, mask) in steps_to_rts(QpType::Ud).into_iter().filter(|s| s.0 != QpState::Init) {
            self.qp.modify(&QpAttr { state, sq_psn: local.psn, ..QpAttr::default() }, mask)?;
        }
        Ok(())
    }

    /// Posts a send; then its completion and the answer are awaited.
    pub(super) fn post_send(&mut self, data: Sge) -> Result<(), PingpongError> {
        let (op, srq_number) = match &self.way {
            Way::Address(ah, qpn) => (SendOp::SendTo { to: ah.to(*qpn, QKEY), imm: None }, None),
            Way::Connection => (SendOp::Send { imm: None }, None),
            Way::Queue(srq) => (SendOp::Send { imm: None }, Some(*srq)),
        };
        self.qp.post_send(&SendWr {
            wr_id: SEND,
            op,
            flags: SendFlags::SIGNALED,
            data: SendData::Sges(&[data]),
            srq_number,
        })?;
        self.posted += 1;
        self.pending = RECV | SEND;
        Ok(())
    }
}
