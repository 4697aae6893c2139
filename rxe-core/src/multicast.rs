//! Multicast: which queue pairs of a device are attached to which groups.
//!
//! The table belongs to the device, so that any thread may attach and detach. A packet to a group,
//! with the multicast QPN, is given to [`Shard::handle_packet`](crate::Shard::handle_packet), which
//! delivers it to the attached queue pairs of that shard alone: so the owner of several shards
//! hands it to each that [`Multicast::slots`] names. It also joins the group on the network (R49), by
//! IGMP or MLD, for as long as it [has members](Multicast::has_members). What a queue pair sends to
//! its own group comes back from the network, and is not delivered to the sender.

use std::collections::HashMap;

use gid_table::Gid;
use parking_lot::RwLock;
use rxe_wire::Qpn;

use crate::config::Limits;
use crate::errno::{EINVAL, ENOMEM};
use crate::qp::{QpType, QueuePair};

/// The QPN that packets to a group carry.
pub const MULTICAST_QPN: Qpn = Qpn::new(0xff_ffff);

/// Why a queue pair is not attached to, or detached from, a group (`ibv_attach_mcast`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MulticastError {
    /// The GID is of one receiver, not of a group.
    #[error(
        "{0} is no multicast GID: groups are ff00::/8, and ::ffff:224.0.0.0 to 239.255.255.255"
    )]
    NoGroup(Gid),
    /// Only datagrams go to groups.
    #[error("a QP of type {0:?} cannot be attached to a group: only UD can")]
    QpType(QpType),
    /// The device's limit of groups is reached.
    #[error("all {max} multicast groups are in use (max_mcast_grp)")]
    TooManyGroups {
        /// The limit.
        max: u32,
    },
    /// The limit of queue pairs in one group is reached.
    #[error("group {group} has {max} members, the most that it can have (max_mcast_qp_attach)")]
    TooManyMembers {
        /// The group.
        group: Gid,
        /// The limit.
        max: u32,
    },
    /// It is not a member.
    #[error("QP {qpn} is not attached to {group}: attach it first, and detach it once")]
    NotAttached {
        /// The queue pair.
        qpn: Qpn,
        /// The group.
        group: Gid,
    },
}

impl MulticastError {
    /// The errno that `ibv_attach_mcast` or `ibv_detach_mcast` returns.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoGroup(_) | Self::QpType(_) | Self::NotAttached { .. } => EINVAL,
            Self::TooManyGroups { .. } | Self::TooManyMembers { .. } => ENOMEM,
        }
    }
}

/// The groups of a device and their members.
#[derive(Default, Debug)]
pub struct Multicast {
    groups: RwLock<HashMap<Gid, Vec<Qpn>>>,
}

impl Multicast {
    /// The groups that have members.
    pub fn groups(&self) -> Vec<Gid> {
        self.groups.read().keys().copied().collect()
    }

    /// Whether a group has members.
    pub fn has_members(&self, group: Gid) -> bool {
        self.groups.read().contains_key(&group)
    }

    /// The slots of the shards that have members of a group: each gets its packets, once.
    pub fn slots(&self, group: Gid) -> Vec<u8> {
        let mut slots = Vec::new();
        self.slots_into(group, &mut slots);
        slots
    }

    /// As [`Self::slots`], in the place of what is in `to`: for whoever has packets come one after
    /// the other.
    pub fn slots_into(&self, group: Gid, to: &mut Vec<u8>) {
        to.clear();
        let groups = self.groups.read();
        let members = groups.get(&group).map_or(&[][..], Vec::as_slice);
        to.extend(members.iter().map(|qpn| qpn.slot()));
        to.sort_unstable();
        to.dedup();
    }

    /// Puts the members of a group that live in `slot` in the place of what is in `to`.
    pub(crate) fn members(&self, group: Gid, slot: u8, to: &mut Vec<Qpn>) {
        to.clear();
        let groups = self.groups.read();
        let members = groups.get(&group).map_or(&[][..], Vec::as_slice);
        to.extend(members.iter().filter(|qpn| qpn.slot() == slot));
    }

    pub(crate) fn attach(
        &self,
        limits: &Limits,
        qp: &QueuePair,
        group: Gid,
    ) -> Result<(), MulticastError> {
        if qp.qp_type() != QpType::Ud {
            return Err(MulticastError::QpType(qp.qp_type()));
        }
        if !group.is_multicast() {
            return Err(MulticastError::NoGroup(group));
        }
        let mut groups = self.groups.write();
        let is_new = !groups.contains_key(&group);
        let max = limits.max_mcast_grp;
        if is_new && groups.len() >= max as usize {
            return Err(MulticastError::TooManyGroups { max });
        }
        let members = groups.entry(group).or_default();
        // Once more is no error, and changes nothing, as with Linux's driver.
        if members.contains(&qp.qpn()) {
            return Ok(());
        }
        let max = limits.max_mcast_qp_attach;
        if members.len() >= max as usize {
            if is_new {
                groups.remove(&group);
            }
            return Err(MulticastError::TooManyMembers { group, max });
        }
        members.push(qp.qpn());
        qp.note_attached(true);
        Ok(())
    }

    pub(crate) fn detach(&self, qp: &QueuePair, group: Gid) -> Result<(), MulticastError> {
        let qpn = qp.qpn();
        let not_attached = MulticastError::NotAttached { qpn, group };
        let mut groups = self.groups.write();
        let members = groups.get_mut(&group).ok_or(not_attached)?;
        let at = members.iter().position(|&member| member == qpn).ok_or(not_attached)?;
        members.remove(at);
        qp.note_attached(false);
        if members.is_empty() {
            groups.remove(&group);
        }
        Ok(())
    }

    /// Detaches a queue pair from all groups; returns whether it was in any.
    pub(crate) fn detach_all(&self, qp: &QueuePair) -> bool {
        let mine = |members: &Vec<Qpn>| members.contains(&qp.qpn());
        let all: Vec<_> = {
            let groups = self.groups.read();
            groups.iter().filter(|(_, members)| mine(members)).map(|(&group, _)| group).collect()
        };
        // Another thread may have been quicker with one of them.
        all.iter().filter(|&&group| self.detach(qp, group).is_ok()).count() > 0
    }
}
