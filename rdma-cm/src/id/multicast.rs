//! Multicast groups.

use std::net::IpAddr;

use ibverbs_api::{Gid, MULTICAST_QPN, QKey, QpType};
use rxe_core::errno::ENODEV;

use super::{CmId, Phase};
use crate::address::UDP_QKEY;
use crate::conn_param::UdParam;
use crate::engine::CmPath;
use crate::error::IdError;
use crate::event::EventParam;
use crate::event_type::EventType;

/// How a group is joined (C: `RDMA_MC_JOIN_FLAG_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum JoinState {
    /// To send and to receive.
    #[default]
    FullMember,
    /// To send only: the queue pair gets nothing of the group.
    SendOnly,
}

impl CmId {
    /// Joins the group of a multicast address (C: `rdma_join_multicast`): the queue pair gets what
    /// is sent there, and [`EventType::MulticastJoin`] says how to send.
    ///
    /// [`EventType::MulticastError`] comes instead, with the reason as a negative errno, when the
    /// queue pair cannot join, or the device has no address to send from.
    ///
    /// # Errors
    ///
    /// [`IdError`], as in Linux: there is no device, the identifier is not bound to one or past the
    /// resolution of an address, it is not of datagrams, or the address is no group's.
    pub fn join_multicast(&self, group: IpAddr, how: JoinState) -> Result<(), IdError> {
        let mut state = self.inner.state.lock();
        let device = state.device.clone().ok_or(IdError::NoDevice)?;
        if !matches!(state.phase, Phase::Bound | Phase::AddrResolved) {
            return Err(state.wrong());
        }
        let qp_type = state.qp.as_ref().map_or(state.qp_type, |qp| qp.qp_type());
        if qp_type != QpType::Ud {
            return Err(IdError::NotDatagrams(qp_type));
        }
        let gid = Gid::from_ip(group);
        if !gid.is_multicast() {
            return Err(IdError::NoGroup(group));
        }
        let local = state.local.map(|local| local.ip()).filter(|ip| !ip.is_unspecified());
        let own = local
            .or_else(|| device.addresses().into_iter().find(|ip| ip.is_ipv4() == group.is_ipv4()));
        let av = own.and_then(|own| {
            let path = CmPath::new(Gid::from_ip(own), gid);
            device.gsi().address_vector(&CmPath { traffic_class: state.options.tos, ..path })
        });
        let joined = match (&state.qp, how, av) {
            (_, _, None) => Err(ENODEV),
            (Some(qp), JoinState::FullMember, Some(av)) => {
                qp.attach_multicast(gid).map(|()| av).map_err(|error| error.errno())
            }
            (.., Some(av)) => Ok(av),
        };
        let av = match joined {
            Ok(av) => av,
            Err(errno) => {
                let news = self.event(EventType::MulticastError).with_status(-errno);
                self.push(&state, news);
                return Ok(());
            }
        };
        state.groups.push((gid, how));
        let param =
            UdParam { private_data: Vec::new(), av, qpn: MULTICAST_QPN, qkey: QKey::new(UDP_QKEY) };
        let event = self.event(EventType::MulticastJoin);
        self.push(&state, event.with_param(EventParam::Ud(param)));
        Ok(())
    }

    /// Leaves a group (C: `rdma_leave_multicast`). Destroying the identifier leaves all. What was
    /// joined twice is left twice; until then the queue pair stays.
    ///
    /// # Errors
    ///
    /// [`IdError::NoGroup`] when it has not joined that.
    pub fn leave_multicast(&self, group: IpAddr) -> Result<(), IdError> {
        let mut state = self.inner.state.lock();
        let gid = Gid::from_ip(group);
        let index = state.groups.iter().position(|&(joined, _)| joined == gid);
        let (_, how) = state.groups.swap_remove(index.ok_or(IdError::NoGroup(group))?);
        let is_member = state.groups.contains(&(gid, JoinState::FullMember));
        if let (Some(qp), JoinState::FullMember, false) = (&state.qp, how, is_member) {
            qp.detach_multicast(gid)?;
        }
        Ok(())
    }
}
