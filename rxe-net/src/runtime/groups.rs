//! Multicast groups of a device, joined on the network while queue pairs are attached to them.

use std::sync::Arc;

use gid_table::Gid;
use parking_lot::Mutex;
use rxe_core::device::Device;
use rxe_core::multicast::MulticastError;
use rxe_core::path::Path;
use rxe_core::qp::QueuePair;
use thiserror::Error;

use super::open::{OpenLink, OpenLinkError};
use super::runner::Runner;
use crate::slots::fork::Generation;
use crate::slots::registry::reader;

/// Why a queue pair is not attached to a group (`ibv_attach_mcast`).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AttachMulticastError {
    /// The engine refuses.
    #[error(transparent)]
    Multicast(#[from] MulticastError),
    /// The network's group cannot be joined.
    #[error("cannot join the group {group} on any interface of the device: {source}")]
    Join {
        /// The group.
        group: Gid,
        /// What the last of the interfaces said.
        source: OpenLinkError,
    },
}

impl AttachMulticastError {
    /// The errno that `ibv_attach_mcast` returns.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Multicast(error) => error.errno(),
            Self::Join { source, .. } => source.errno(),
        }
    }
}

/// Attaches queue pairs of a device to groups, and joins these on the network. R49.
///
/// A group has one link for each interface behind the ports, on the shard of the queue pair that was
/// the first to join. Whatever comes there is handed to all shards that have members. The link is
/// there as long as the group has members.
#[derive(Debug)]
pub struct Groups {
    device: Arc<Device>,
    opener: Arc<dyn OpenLink>,
    born: Generation,
    joined: Mutex<Vec<Joined>>,
}

/// A group that has members.
#[derive(Debug)]
struct Joined {
    group: Gid,
    /// Has its links.
    runner: Arc<Runner>,
    /// The interfaces on which it was joined.
    ifindexes: Vec<u32>,
}

impl Groups {
    /// Those of a device, none yet, whose links `opener` opens.
    pub fn new(device: Arc<Device>, opener: Arc<dyn OpenLink>) -> Self {
        Self { device, opener, born: Generation::now(), joined: Mutex::default() }
    }

    /// Attaches a queue pair of `runner` to a group (`ibv_attach_mcast`); once more is no error.
    ///
    /// A device without an address of the group's IP version gets nothing of it, until it has one.
    ///
    /// # Errors
    ///
    /// [`AttachMulticastError`]; nothing has changed then.
    pub fn attach(
        &self,
        runner: &Arc<Runner>,
        qp: &QueuePair,
        group: Gid,
    ) -> Result<(), AttachMulticastError> {
        if !self.born.is_now() {
            return Ok(self.device.attach_multicast(qp, group)?);
        }
        let mut joined = self.joined.lock();
        self.device.attach_multicast(qp, group)?;
        if joined.iter().any(|known| known.group == group) {
            return Ok(());
        }
        let mut new = Joined { group, runner: runner.clone(), ifindexes: Vec::new() };
        if let Err(source) = self.join(&mut new) {
            // It was attached a moment ago.
            self.device.detach_multicast(qp, group)?;
            return Err(AttachMulticastError::Join { group, source });
        }
        joined.push(new);
        Ok(())
    }

    /// Detaches a queue pair from a group (`ibv_detach_mcast`).
    ///
    /// # Errors
    ///
    /// [`MulticastError::NotAttached`].
    pub fn detach(&self, qp: &QueuePair, group: Gid) -> Result<(), MulticastError> {
        self.device.detach_multicast(qp, group)?;
        self.leave_empty();
        Ok(())
    }

    /// Detaches a queue pair from all groups; returns whether it was in any.
    pub fn detach_all(&self, qp: &QueuePair) -> bool {
        let was_attached = self.device.detach_all_multicast(qp);
        if was_attached {
            self.leave_empty();
        }
        was_attached
    }

    /// Joins the groups on interfaces that the ports have come by.
    ///
    /// What whoever changes a port's GIDs calls afterwards.
    pub fn gids_changed(&self) {
        if !self.born.is_now() {
            return;
        }
        for joined in &mut *self.joined.lock() {
            if let Err(error) = self.join(joined) {
                let group = joined.group;
                tracing::warn!(target: "rxe::net", %group, %error, "cannot join a group");
            }
        }
    }

    /// Leaves the groups that have no members any more.
    fn leave_empty(&self) {
        if !self.born.is_now() {
            return;
        }
        self.joined.lock().retain(|joined| {
            let is_needed = self.device.multicast().has_members(joined.group);
            if !is_needed {
                joined.runner.leave_group(joined.group);
            }
            is_needed
        });
    }

    /// Joins a group on all interfaces on which it is not yet. One that refuses is left out, unless
    /// all do.
    fn join(&self, joined: &mut Joined) -> Result<(), OpenLinkError> {
        let mut refused = Ok(());
        for ifindex in self.interfaces_for(joined.group) {
            if joined.ifindexes.contains(&ifindex) {
                continue;
            }
            match joined.runner.join_group(joined.group, ifindex) {
                Ok(()) => joined.ifindexes.push(ifindex),
                Err(error) => {
                    let group = joined.group;
                    tracing::warn!(target: "rxe::net", %group, ifindex, %error, "not joined");
                    refused = Err(error);
                }
            }
        }
        if joined.ifindexes.is_empty() { refused } else { Ok(()) }
    }

    fn interfaces_for(&self, group: Gid) -> Vec<u32> {
        let mut found = Vec::new();
        for port in self.device.ports() {
            for entry in port.gids.read().entries() {
                let is_new = !found.contains(&entry.ifindex);
                if is_new && self.opener.hears_group(group, &entry) {
                    found.push(entry.ifindex);
                }
            }
        }
        found
    }
}

/// Hands what came to a group to the other shards that have members.
#[derive(Debug, Default)]
pub(super) struct GroupPost {
    /// Kept, so that no packet allocates it.
    slots: Vec<u8>,
}

impl GroupPost {
    /// Hands a packet on; says whether it is for the shard of `slot` too. One without members
    /// anywhere is: so it is counted.
    pub(super) fn deliver(&mut self, device: &Device, slot: u8, path: &Path, bytes: &[u8]) -> bool {
        device.multicast().slots_into(path.destination, &mut self.slots);
        for reader in self.slots.iter().filter(|other| **other != slot).filter_map(|s| reader(*s)) {
            reader.hand_over(path, bytes);
            reader.wake();
        }
        self.slots.is_empty() || self.slots.contains(&slot)
    }
}
