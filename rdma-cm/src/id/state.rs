//! Where an identifier is.

use std::net::SocketAddr;
use std::sync::Arc;

use ibverbs_api::{Gid, Psn, QpAttr, QpAttrMask, QpState, QpType, QueuePair, ServiceId};
use rxe_wire::mad::cm::{Bits, CommId, TimeoutExponent};

use super::IdNumber;
use super::multicast::JoinState;
use super::option::Options;
use crate::addrinfo::AddrInfo;
use crate::device::CmDevice;
use crate::engine::{CmPath, Ece, ListenOn, ListenerId};
use crate::error::IdError;
use crate::manager::BoundPort;
use crate::qp_plan::{NoPlan, QpPlan};
use crate::service::Service;

/// What has been done with an identifier (C: `enum rdma_cm_state` of Linux).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Phase {
    #[default]
    Idle,
    Bound,
    AddrResolved,
    RouteResolved,
    Listening,
    /// A request of ours is out.
    Connecting,
    /// The peer has accepted; the caller has the queue pair.
    Responded,
    /// A peer asks.
    Asked,
    /// We have accepted.
    Accepting,
    Connected,
    /// It is over, or nothing came of it.
    Over,
    /// Its device is gone.
    Removed,
    Destroyed,
}

impl Phase {
    /// In words.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Idle => "new",
            Self::Bound => "bound",
            Self::AddrResolved => "one whose address is resolved",
            Self::RouteResolved => "one whose route is resolved",
            Self::Listening => "a listener",
            Self::Connecting => "connecting",
            Self::Responded => "accepted by its peer",
            Self::Asked => "a request that is not answered",
            Self::Accepting => "accepted and not connected yet",
            Self::Connected => "connected",
            Self::Over => "over",
            Self::Removed => "one whose device is gone",
            Self::Destroyed => "destroyed",
        }
    }
}

/// One device at which an identifier listens.
#[derive(Debug)]
pub(super) struct ListeningAt {
    pub(super) device: Arc<CmDevice>,
    pub(super) listener: ListenerId,
    pub(super) service: ServiceId,
    pub(super) on: ListenOn,
    /// Kept as long as it listens.
    pub(super) services: Vec<Service>,
}

/// Everything of an identifier that changes.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) options: Options,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) remote: Option<SocketAddr>,
    pub(super) port: Option<BoundPort>,
    pub(crate) device: Option<Arc<CmDevice>>,
    pub(crate) path: Option<CmPath>,
    /// The engine's connection or lookup.
    pub(crate) connection: Option<CommId>,
    pub(super) listening: Vec<ListeningAt>,
    pub(super) backlog: usize,
    /// Multicast groups that it has joined.
    pub(super) groups: Vec<(Gid, JoinState)>,
    pub(crate) qp: Option<Arc<QueuePair>>,
    /// Whether that has a shared receive queue, where it was made here.
    pub(super) qp_has_srq: Option<bool>,
    /// What queue pairs of it are of, where it has none.
    pub(crate) qp_type: QpType,
    /// Whether its creator has said so.
    pub(super) has_type: bool,
    pub(crate) plan: QpPlan,
    /// What is told to the peer's vendor, and what that has said.
    pub(super) local_ece: Ece,
    pub(crate) remote_ece: Option<Ece>,
    /// What a query of addresses has found.
    pub(super) found: Vec<AddrInfo>,
    /// The end of the connection was told.
    pub(crate) was_told_of_end: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            phase: Phase::Idle,
            options: Options::default(),
            local: None,
            remote: None,
            port: None,
            device: None,
            path: None,
            connection: None,
            listening: Vec::new(),
            backlog: 0,
            groups: Vec::new(),
            qp: None,
            qp_has_srq: None,
            local_ece: Ece::default(),
            remote_ece: None,
            found: Vec::new(),
            qp_type: QpType::Rc,
            has_type: false,
            plan: QpPlan {
                qp_type: QpType::Rc,
                port_num: 1,
                peer: None,
                responder_resources: 0,
                initiator_depth: 0,
                timeout: 0,
                retry_cnt: 0,
                rnr_retry: 0,
                min_rnr_timer: 0,
                rq_psn: Psn::new(0),
            },
            was_told_of_end: false,
        }
    }
}

/// What an identifier had, to be dropped when its lock is not held.
#[derive(Debug)]
pub(crate) struct Released {
    _port: Option<BoundPort>,
    _listening: Vec<ListeningAt>,
    _qp: Option<Arc<QueuePair>>,
}

impl State {
    /// Ends everything. The lock of the state is held, and locks of devices are taken.
    pub(super) fn release(&mut self, number: IdNumber) -> Released {
        if let Some(device) = &self.device {
            device.detach(number);
        }
        self.phase = Phase::Destroyed;
        for at in &self.listening {
            at.device.with(|core, _| {
                core.engine.stop_listening(at.listener);
                core.listeners.remove(&at.listener);
            });
        }
        if let (Some(device), Some(connection)) = (&self.device, self.connection.take()) {
            device.with(|core, now| {
                core.engine.destroy(now, connection);
                core.ids.remove(&connection);
            });
        }
        self.leave_all_groups();
        Released {
            _port: self.port.take(),
            _listening: std::mem::take(&mut self.listening),
            _qp: self.qp.take(),
        }
    }

    fn leave_all_groups(&mut self) {
        for (group, how) in self.groups.drain(..) {
            if let (Some(qp), JoinState::FullMember) = (&self.qp, how)
                && let Err(error) = qp.detach_multicast(group)
            {
                tracing::debug!(target: "rxe::cm", ?group, %error, "not left");
            }
        }
    }

    /// An error that says in which state it is.
    pub(super) fn wrong(&self) -> IdError {
        IdError::State(self.phase.name())
    }

    /// The device and the connection.
    pub(crate) fn connection(&self) -> Result<(Arc<CmDevice>, CommId), IdError> {
        match (&self.device, self.connection) {
            (Some(device), Some(connection)) if self.phase != Phase::Removed => {
                Ok((device.clone(), connection))
            }
            _ => Err(self.wrong()),
        }
    }

    /// The attributes of a state, with what was set for the queue pair: that counts whenever it was
    /// set, as in Linux.
    pub(super) fn qp_attr(&self, to: QpState) -> Result<(QpAttr, QpAttrMask), NoPlan> {
        let plan = QpPlan {
            timeout: self.options.ack_timeout().unwrap_or(self.plan.timeout),
            min_rnr_timer: self.options.min_rnr_timer,
            ..self.plan
        };
        plan.attr(to)
    }

    /// Moves the queue pair to a state of the plan, if there is one.
    pub(crate) fn move_qp(&self, to: QpState) -> Result<(), IdError> {
        let Some(qp) = &self.qp else { return Ok(()) };
        let (attr, mask) = self.qp_attr(to)?;
        qp.modify(&attr, mask).map_err(|error| IdError::ModifyQp { to, error })
    }

    /// Makes the queue pair ready to send and receive, if there is one.
    pub(crate) fn make_qp_ready(&self) -> Result<(), IdError> {
        // INIT once more: only now is known whether the peer may READ.
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.move_qp(to)?;
        }
        Ok(())
    }

    /// Ends all work of the queue pair, if there is one.
    pub(crate) fn fail_qp(&self) {
        let Some(qp) = &self.qp else { return };
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        if let Err(error) = qp.modify(&attr, QpAttrMask::STATE) {
            tracing::debug!(target: "rxe::cm", qpn = %qp.qpn(), %error, "not failed");
        }
    }

    /// How long a message may wait for its answer, and how often it is sent again.
    pub(super) fn patience(&self) -> (TimeoutExponent, Bits<4>) {
        let Options { response_timeout, max_cm_retries, .. } = self.options;
        (response_timeout, Bits::new(max_cm_retries.min(15)))
    }
}
