//! What a connection makes of its queue pair: the attributes of each state.

use ibverbs_api::{
    AccessFlags, AddressVector, Mtu, Psn, QpAttr, QpAttrMask, QpState, QpType, Qpn, steps_to_rts,
};
use thiserror::Error;

/// What is known of a connection when its queue pair moves on (C: `rdma_init_qp_attr`).
///
/// All of it holds from [`QpState::Rtr`] on; INIT needs the port, access and partition alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpPlan {
    /// What the queue pair is of: that decides which attributes it has.
    pub qp_type: QpType,
    /// Our port, counted from 1.
    pub port_num: u8,
    /// The way to the peer; `None` while it is not known.
    pub peer: Option<QpPeer>,
    /// READs and atomics of the peer that we serve at once.
    pub responder_resources: u8,
    /// READs and atomics that we have under way at once.
    pub initiator_depth: u8,
    /// Local ACK timeout.
    pub timeout: u8,
    /// How often requests are sent again.
    pub retry_cnt: u8,
    /// How often they are after RNR.
    pub rnr_retry: u8,
    /// The RNR timer that the peer is told.
    pub min_rnr_timer: u8,
    /// PSN that the peer is to start with: what our REQ or REP says.
    pub rq_psn: Psn,
}

/// The peer's end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpPeer {
    /// The way there.
    pub av: AddressVector,
    /// Its queue pair.
    pub qpn: Qpn,
    /// PSN that we are to start with: what its REQ or REP says.
    pub sq_psn: Psn,
    /// Greatest payload of a packet.
    pub path_mtu: Mtu,
}

/// Why there are no attributes for a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum NoPlan {
    /// The peer is not known yet.
    #[error("the peer is not known yet: {0:?} needs a request or a response")]
    NoPeer(QpState),
    /// A connection does not lead there.
    #[error("a connection does not lead to {0:?}, only to INIT, RTR and RTS")]
    State(QpState),
}

impl QpPlan {
    /// The attributes for a state, and which of them count.
    ///
    /// # Errors
    ///
    /// [`NoPlan`].
    pub fn attr(&self, state: QpState) -> Result<(QpAttr, QpAttrMask), NoPlan> {
        match state {
            QpState::Init => Ok(self.init()),
            QpState::Rtr => Ok(self.rtr(self.peer.ok_or(NoPlan::NoPeer(state))?)),
            QpState::Rts => {
                let peer = self.peer.ok_or(NoPlan::NoPeer(state))?;
                Ok(self.rts(peer))
            }
            _ => Err(NoPlan::State(state)),
        }
    }

    fn init(&self) -> (QpAttr, QpAttrMask) {
        let mut access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        // Who serves no READs need not allow any.
        if self.responder_resources > 0 {
            access |= AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        }
        let attr = QpAttr {
            state: QpState::Init,
            port_num: self.port_num,
            pkey_index: 0,
            access,
            ..QpAttr::default()
        };
        (attr, self.mask(QpState::Init))
    }

    fn rtr(&self, peer: QpPeer) -> (QpAttr, QpAttrMask) {
        let attr = QpAttr {
            state: QpState::Rtr,
            av: peer.av,
            path_mtu: peer.path_mtu,
            dest_qpn: peer.qpn,
            rq_psn: self.rq_psn,
            max_dest_rd_atomic: self.responder_resources,
            min_rnr_timer: self.min_rnr_timer,
            ..QpAttr::default()
        };
        (attr, self.mask(QpState::Rtr))
    }

    fn rts(&self, peer: QpPeer) -> (QpAttr, QpAttrMask) {
        let attr = QpAttr {
            state: QpState::Rts,
            sq_psn: peer.sq_psn,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            max_rd_atomic: self.initiator_depth,
            ..QpAttr::default()
        };
        (attr, self.mask(QpState::Rts))
    }

    /// The attributes that count on the way to a state: those that it requires.
    fn mask(&self, to: QpState) -> QpAttrMask {
        let steps = steps_to_rts(self.qp_type);
        let step = steps.into_iter().find(|(state, _)| *state == to);
        step.map_or(QpAttrMask::STATE, |(_, mask)| mask)
    }
}

#[cfg(test)]
mod tests {
    use ibverbs_api::Gid;

    use super::*;

    fn plan(qp_type: QpType) -> QpPlan {
        let av = AddressVector::new(Gid::from_ip([10, 0, 0, 1].into()), 1);
        let (qpn, sq_psn) = (Qpn::new(5), Psn::new(6));
        QpPlan {
            qp_type,
            port_num: 1,
            peer: Some(QpPeer { av, qpn, sq_psn, path_mtu: Mtu::M1024 }),
            responder_resources: 2,
            initiator_depth: 3,
            timeout: 17,
            retry_cnt: 7,
            rnr_retry: 6,
            min_rnr_timer: 0,
            rq_psn: Psn::new(7),
        }
    }

    #[test]
    fn each_state_gets_what_it_needs() {
        for service in [QpType::Rc, QpType::Uc, QpType::XrcSend, QpType::XrcRecv] {
            for (state, required) in steps_to_rts(service) {
                let (attr, mask) = plan(service).attr(state).unwrap();
                assert_eq!((attr.state, mask), (state, required), "{service:?}");
            }
        }
        let (_, uc) = plan(QpType::Uc).attr(QpState::Rts).unwrap();
        assert_eq!(uc, QpAttrMask::STATE | QpAttrMask::SQ_PSN);
        let (_, target) = plan(QpType::XrcRecv).attr(QpState::Rtr).unwrap();
        assert!(target.contains(QpAttrMask::MAX_DEST_RD_ATOMIC));
        let (_, initiator) = plan(QpType::XrcSend).attr(QpState::Rtr).unwrap();
        assert!(!initiator.contains(QpAttrMask::MAX_DEST_RD_ATOMIC));
        let (rtr, _) = plan(QpType::Rc).attr(QpState::Rtr).unwrap();
        assert_eq!(
            (rtr.dest_qpn, rtr.rq_psn, rtr.max_dest_rd_atomic),
            (Qpn::new(5), Psn::new(7), 2)
        );
        let (rts, _) = plan(QpType::Rc).attr(QpState::Rts).unwrap();
        assert_eq!((rts.sq_psn, rts.max_rd_atomic, rts.timeout), (Psn::new(6), 3, 17));
    }

    #[test]
    fn without_a_peer_there_is_init_alone() {
        let plan = QpPlan { peer: None, ..plan(QpType::Rc) };
        assert!(plan.attr(QpState::Init).is_ok());
        for state in [QpState::Rtr, QpState::Rts] {
            assert_eq!(plan.attr(state), Err(NoPlan::NoPeer(state)));
        }
        assert_eq!(plan.attr(QpState::Sqd), Err(NoPlan::State(QpState::Sqd)));
    }

    #[test]
    fn reads_are_allowed_where_they_are_served() {
        let access = |responder_resources| {
            let plan = QpPlan { responder_resources, ..plan(QpType::Rc) };
            plan.attr(QpState::Init).unwrap().0.access
        };
        assert!(access(1).contains(AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC));
        assert!(!access(0).intersects(AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC));
        assert!(access(0).contains(AccessFlags::REMOTE_WRITE));
    }
}
