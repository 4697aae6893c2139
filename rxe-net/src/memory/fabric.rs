//! The fabric: a switch in memory that carries whole Ethernet frames between ports.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use gid_table::{Gid, InterfaceInfo};
use parking_lot::Mutex;
use rxe_core::multicast::MULTICAST_QPN;
use rxe_core::time::Instant;

use super::link::MemoryLink;
use super::port::{PortConfig, PortCounters, PortId};
use super::state::State;
use crate::faults::FaultSpec;
use crate::pcap::Capture;

/// A port that cannot be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddPortError {
    /// Another port has the Ethernet address.
    #[error("port {} has this MAC address: give each port its own", other.0)]
    MacInUse {
        /// The port that has it.
        other: PortId,
    },
    /// Another port has an IP address.
    #[error("port {} has the address {addr}: give each port its own", other.0)]
    AddressInUse {
        /// The address.
        addr: IpAddr,
        /// The port that has it.
        other: PortId,
    },
}

/// A link that cannot be attached to a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The port belongs to another fabric.
    #[error("this fabric has no port {}: add it first", port.0)]
    NoSuchPort {
        /// The port asked for.
        port: PortId,
    },
    /// The port has no such address.
    #[error("port {} has no GID {gid}: choose one of its addresses", port.0)]
    NoSuchAddress {
        /// The port.
        port: PortId,
        /// The GID asked for.
        gid: Gid,
    },
    /// Another link has the slot.
    #[error("a link of slot {slot} is attached to port {}: drop it or take another slot", port.0)]
    SlotInUse {
        /// The port.
        port: PortId,
        /// The slot.
        slot: u8,
    },
}

/// A network in memory: ports on one switch, with whole Ethernet frames between them.
///
/// It has no thread and no clock. Whoever uses it passes the time in, and nothing happens between
/// two calls: with one thread and a virtual clock, equal calls give equal results. A simulation
/// runs its engines until they are idle, then goes on to [`Fabric::next_event_time`] (or the
/// earlier timeout of an engine) with [`Fabric::advance`]. Threads share it as they are: it is a
/// handle to a locked state, and a link wakes its owner by [`MemoryLink::set_waker`].
///
/// What it has of a real network: frames are built and parsed byte by byte (RoCE v1, v2 over IPv4
/// and IPv6, with and without a VLAN), go by destination address, are sealed with the iCRC and
/// checked; receive queues are as short as those of sockets; ports are as slow and as faulty as
/// [`PortConfig`] says; addresses that nobody has are not reachable.
#[derive(Clone, Default)]
pub struct Fabric(Arc<Mutex<State>>);

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fabric").field(&Arc::as_ptr(&self.0)).finish()
    }
}

impl Fabric {
    /// A fabric without ports.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a port.
    ///
    /// # Errors
    ///
    /// [`AddPortError`], when another port has an address of it.
    pub fn add_port(&self, config: PortConfig) -> Result<PortId, AddPortError> {
        self.with(|state| state.add_port(config))
    }

    /// Attaches a link to a port, for the QPs of one slot and all addresses of the port.
    ///
    /// Several links share a port when they have different slots. What is for no slot of theirs
    /// comes to the one attached first.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    pub fn attach(&self, port: PortId, slot: u8) -> Result<MemoryLink, AttachError> {
        self.attach_as(port, slot, None)
    }

    /// Attaches a link for the QPs of one slot and a single address, as a UDP link is bound to one.
    ///
    /// A port has such links, one for each slot and address, or those of [`Fabric::attach`]; with
    /// one slot not both.
    ///
    /// # Errors
    ///
    /// [`AttachError`].
    pub fn attach_to(&self, port: PortId, slot: u8, gid: Gid) -> Result<MemoryLink, AttachError> {
        self.attach_as(port, slot, Some(gid))
    }

    /// Attaches a link that receives what comes to a multicast group, whatever the slots. R49.
    ///
    /// # Errors
    ///
    /// [`AttachError`]: there is no such port, or it has such a link.
    pub fn attach_group(&self, port: PortId, group: Gid) -> Result<MemoryLink, AttachError> {
        let link = self.attach_as(port, MULTICAST_QPN.slot(), Some(group))?;
        link.join(group);
        Ok(link)
    }

    fn attach_as(
        &self,
        port: PortId,
        slot: u8,
        address: Option<Gid>,
    ) -> Result<MemoryLink, AttachError> {
        let sender = self.with(|state| state.attach(port, slot, address))?;
        Ok(MemoryLink::new(self.clone(), sender))
    }

    /// When something happens by itself next; `None` when never.
    pub fn next_event_time(&self) -> Option<Instant> {
        self.with(|state| state.next_event_time())
    }

    /// Lets everything happen that is due until `now`, in order of time.
    pub fn advance(&self, now: Instant) {
        self.with(|state| state.advance(now));
    }

    /// Writes every frame that is put on the wire to a capture, once.
    pub fn set_capture(&self, capture: Option<Arc<Capture>>) {
        self.with(|state| state.set_capture(capture));
    }

    /// Plugs the cable of a port in or out. What is held in queues stays there.
    pub fn set_up(&self, port: PortId, up: bool) {
        self.with(|state| {
            if let Some(port) = state.port_mut(port) {
                port.up = up;
            }
        });
    }

    /// Gives a port other IP addresses from now on.
    ///
    /// # Errors
    ///
    /// [`AddPortError::AddressInUse`]; nothing has changed then.
    pub fn set_addresses(&self, port: PortId, addrs: Vec<IpAddr>) -> Result<(), AddPortError> {
        self.with(|state| state.set_addresses(port, addrs))
    }

    /// Gives a port other faults from `now` on; packets that the old ones held back leave.
    pub fn set_faults(&self, now: Instant, port: PortId, faults: Option<FaultSpec>) {
        self.with(|state| state.set_faults(now, port, faults));
    }

    /// The port as a network interface; `None` when this fabric has no such port.
    pub fn interface_info(&self, port: PortId) -> Option<InterfaceInfo> {
        self.with(|state| state.port(port).map(|found| found.interface_info(port)))
    }

    /// What happened at a port; `None` when this fabric has no such port.
    pub fn port_counters(&self, port: PortId) -> Option<PortCounters> {
        self.with(|state| state.port(port).map(|port| port.counters))
    }

    /// Works on the state, then wakes whom that concerns, when the lock is free again.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        let (result, wakers) = {
            let mut state = self.0.lock();
            let result = work(&mut state);
            (result, state.take_wakers())
        };
        for wake in wakers {
            wake();
        }
        result
    }
}
