//! Opening links: which kind, and with what around it.

use std::io;
use std::sync::Arc;

use gid_table::{Gid, GidEntry, InterfaceInfo, LinkGidTypes};
use rxe_core::cq::Notify;
use thiserror::Error;

use super::clock::Clock;
use crate::faults::{FaultSpec, Faults, FaultyLink, ParseFaultsError};
use crate::host::{self, HostError, os_errno};
use crate::link::Link;
use crate::memory::{AttachError, Fabric, PortId};
use crate::packet::{OpenPacketError, PacketConfig, PacketGroup, PacketGroupConfig, PacketLink};
use crate::pcap::{Capture, OpenCaptureError};
use crate::udp::{BindError, BufferSizes, UdpConfig, UdpGroup, UdpGroupConfig, UdpLink};

/// Why a link cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenLinkError {
    /// The UDP sockets cannot be had.
    #[error(transparent)]
    Udp(#[from] BindError),
    /// The packet socket cannot be had.
    #[error(transparent)]
    Packet(#[from] OpenPacketError),
    /// Packet links are to be opened with the options of another kind.
    #[error("the options are not those of a packet link: set their kind to LinkKind::Packet")]
    Kind,
    /// The host does not tell what interface a GID is of.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The port of the fabric takes no such link.
    #[error(transparent)]
    Memory(#[from] AttachError),
    /// The network has no multicast.
    #[error("the group {group} cannot be joined: this network has no groups")]
    NoGroups {
        /// The group.
        group: Gid,
    },
    /// The background thread cannot wait for the link.
    #[error("cannot wait for packets: {0}")]
    Wait(#[source] io::Error),
}

impl OpenLinkError {
    /// The errno that stands for it.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Udp(error) => error.errno(),
            Self::Packet(error) => error.errno(),
            Self::Host(error) => error.errno(),
            Self::Kind => libc::EINVAL,
            Self::NoGroups { .. } => libc::EOPNOTSUPP,
            Self::Memory(_) => libc::EADDRNOTAVAIL,
            Self::Wait(error) => os_errno(error),
        }
    }
}

/// What carries packets to the network.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum LinkKind {
    /// UDP sockets: RoCE v2, without privileges (`udp`).
    #[default]
    Udp,
    /// A packet socket: RoCE v1 and v2, as whole frames, with `CAP_NET_RAW` (`packet`).
    Packet {
        /// The VLAN that frames are of (`packet,vlan=7`); `None` for untagged ones.
        vlan: Option<u16>,
    },
}

impl LinkKind {
    /// What the environment says (`URXE_LINK`); the UDP link where it says nothing.
    ///
    /// # Errors
    ///
    /// [`OptionsError::Link`].
    pub fn from_env() -> Result<Self, OptionsError> {
        match std::env::var("URXE_LINK") {
            Err(_) => Ok(Self::default()),
            Ok(text) => Self::parse(&text).ok_or(OptionsError::Link(text)),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text.split_once(",vlan=") {
            None if matches!(text, "" | "udp") => Some(Self::Udp),
            None => (text == "packet").then_some(Self::Packet { vlan: None }),
            Some(("packet", id)) => {
                // 0 names no VLAN, and 4095 is reserved (IEEE 802.1Q).
                let id = id.parse().ok().filter(|id| (1..4095).contains(id))?;
                Some(Self::Packet { vlan: Some(id) })
            }
            Some(_) => None,
        }
    }

    /// The versions of RoCE that it can send.
    pub const fn gid_types(self) -> LinkGidTypes {
        match self {
            Self::Udp => LinkGidTypes::V2,
            Self::Packet { .. } => LinkGidTypes::V1AndV2,
        }
    }
}

/// Opens the link of a shard for one of a port's GIDs.
pub trait OpenLink: Send + Sync + std::fmt::Debug {
    /// Opens the link of shard `slot` for `gid`; `waker` is for links that have no descriptor.
    ///
    /// # Errors
    ///
    /// [`OpenLinkError`], which says what would be right.
    fn open(
        &self,
        gid: &GidEntry,
        slot: u8,
        waker: Arc<dyn Notify>,
    ) -> Result<Box<dyn Link>, OpenLinkError>;

    /// Joins a multicast group on an interface, and opens the link that receives what comes to it.
    /// R49.
    ///
    /// There is one for all shards of a device. What this host sends there comes too.
    ///
    /// # Errors
    ///
    /// As [`Self::open`]; [`OpenLinkError::NoGroups`] where the network has no groups, which is so
    /// unless a kind of link says otherwise.
    fn open_group(
        &self,
        group: Gid,
        ifindex: u32,
        waker: Arc<dyn Notify>,
    ) -> Result<Box<dyn Link>, OpenLinkError> {
        let _ = (ifindex, waker);
        Err(OpenLinkError::NoGroups { group })
    }

    /// Whether what is sent to a group comes by the interface of a port's GID, so that it is to be
    /// joined there: over IP those that have addresses of the group's version.
    fn hears_group(&self, group: Gid, gid: &GidEntry) -> bool {
        gid.owned && group.to_ip().is_ipv4() == gid.gid.to_ip().is_ipv4()
    }
}

/// What the environment, or a program, wants of every link.
#[derive(Clone, Debug, Default)]
pub struct LinkOptions {
    /// What carries packets (`URXE_LINK`).
    pub kind: LinkKind,
    /// What goes wrong with packets (`URXE_FAULTS`).
    pub faults: Option<FaultSpec>,
    /// Where packets are written (`URXE_PCAP`).
    pub capture: Option<Arc<Capture>>,
    /// Segmentation offload is not used (`URXE_GSO=off`).
    pub no_gso: bool,
    /// Sizes of the socket buffers.
    pub buffers: BufferSizes,
}

/// Why the options in the environment are no good.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// `URXE_FAULTS` does not parse.
    #[error("URXE_FAULTS: {0}")]
    Faults(#[from] ParseFaultsError),
    /// The file of `URXE_PCAP` cannot be written.
    #[error(transparent)]
    Capture(#[from] OpenCaptureError),
    /// `URXE_LINK` names no link.
    #[error("URXE_LINK is {0:?}: set it to udp (the default), packet, or packet,vlan=1 to 4094")]
    Link(String),
    /// `URXE_GSO` is neither on nor off.
    #[error("URXE_GSO is {0:?}: set it to on (the default) or off")]
    Gso(String),
}

/// Half of what a receive buffer holds, as the kernel doubles it: seven full segmented sends in place
/// of the three that one of the default size holds. READ responses come by more at a time than that,
/// since who asks for them has to do something else now and then. It needs no privilege: where less is
/// allowed, it is less, but never less than the default.
const RECEIVE_BUFFER: u32 = 256 << 10;

impl LinkOptions {
    /// The options in the environment: `URXE_LINK`, `URXE_FAULTS`, `URXE_PCAP`, `URXE_GSO`.
    ///
    /// # Errors
    ///
    /// [`OptionsError`], which says what would be right.
    pub fn from_env() -> Result<Self, OptionsError> {
        let no_gso = match std::env::var("URXE_GSO").as_deref() {
            Err(_) | Ok("" | "on") => false,
            Ok("off") => true,
            Ok(other) => return Err(OptionsError::Gso(other.to_owned())),
        };
        let capture = Capture::from_env(Clock::epoch())?.map(Arc::new);
        let buffers = BufferSizes { receive: Some(RECEIVE_BUFFER), ..BufferSizes::default() };
        Ok(Self {
            kind: LinkKind::from_env()?,
            faults: FaultSpec::from_env()?,
            capture,
            no_gso,
            buffers,
        })
    }
}

/// Opens UDP links: RoCE v2 without privileges.
#[derive(Clone, Debug)]
pub struct UdpLinks {
    /// What every link gets.
    pub options: LinkOptions,
}

impl OpenLink for UdpLinks {
    fn open(
        &self,
        gid: &GidEntry,
        slot: u8,
        _: Arc<dyn Notify>,
    ) -> Result<Box<dyn Link>, OpenLinkError> {
        let LinkOptions { kind: _, faults, capture, no_gso, buffers } = &self.options;
        let mut config = UdpConfig::new(gid.gid.to_ip(), slot);
        config.multicast_ifindex = gid.ifindex;
        if gid.gid.is_link_local() {
            config.scope_id = gid.ifindex;
        }
        config.gso = !no_gso;
        config.buffers = *buffers;
        let mut link = UdpLink::open(config)?;
        link.set_capture(capture.clone());
        Ok(with_faults(link, faults.as_ref(), slot))
    }

    fn open_group(
        &self,
        group: Gid,
        ifindex: u32,
        _: Arc<dyn Notify>,
    ) -> Result<Box<dyn Link>, OpenLinkError> {
        let LinkOptions { capture, buffers, .. } = &self.options;
        let mut link = UdpGroup::open(UdpGroupConfig { group, ifindex, buffers: *buffers })?;
        link.set_capture(capture.clone());
        Ok(Box::new(link))
    }
}

/// A link that has the faults that are asked for. Each slot gets a stream of its own, so that two ends
/// do not lose the same packets.
fn with_faults(link: impl Link + 'static, faults: Option<&FaultSpec>, slot: u8) -> Box<dyn Link> {
    match faults {
        Some(spec) => Box::new(FaultyLink::new(link, Faults::new(spec.clone(), slot.into()))),
        None => Box::new(link),
    }
}

/// Opens packet links: RoCE v1 and v2 as whole frames, with `CAP_NET_RAW`.
///
/// Each is a link of its GID's own interface: of a VLAN or a macvlan on top of the device's, where
/// the address is that one's. R60.
#[derive(Clone, Debug)]
pub struct PacketLinks {
    /// What every link gets.
    pub options: LinkOptions,
}

impl PacketLinks {
    /// The interface of a GID, and the VLAN that the link itself has to put on and take off there:
    /// an interface that is a VLAN does so.
    fn interface(&self, ifindex: u32) -> Result<(InterfaceInfo, Option<u16>), OpenLinkError> {
        let LinkKind::Packet { vlan } = self.options.kind else {
            return Err(OpenLinkError::Kind);
        };
        let mut all = host::interfaces()?.into_iter();
        let found = all.find(|interface| interface.ifindex == ifindex);
        let found = found.ok_or(OpenPacketError::NoInterface { ifindex })?;
        let vlan = if found.vlan.is_some() { None } else { vlan };
        Ok((found, vlan))
    }
}

impl OpenLink for PacketLinks {
    fn open(
        &self,
        gid: &GidEntry,
        slot: u8,
        _: Arc<dyn Notify>,
    ) -> Result<Box<dyn Link>, OpenLinkError> {
        let LinkOptions { kind: _, faults, capture, no_gso, buffers } = &self.options;
        let ifindex = gid.ifindex;
        let (interface, vlan) = self.interface(ifindex)?;
        let mac = interface.mac.ok_or(OpenPacketError::NotEthernet { ifindex })?;
        let (gid, gso, buffers) = (gid.gid, !no_gso, *buffers);
        let config = PacketConfig { ifindex, mac, gid, slot, vlan, gso, buffers };
        let mut link = PacketLink::open(config)?;
        link.set_capture(capture.clone());
        Ok(with_faults(link, faults.as_ref(), slot))
    }

    fn open_group(
        &self,
        group: Gid,
        ifindex: u32,
        _: Arc<dyn Notify>,
    ) -> Result<Box<dyn Link>, OpenLinkError> {
        let (_, vlan) = self.interface(ifindex)?;
        let buffers = self.options.buffers;
        let mut link = PacketGroup::open(PacketGroupConfig { group, ifindex, vlan, buffers })?;
        link.set_capture(self.options.capture.clone());
        Ok(Box::new(link))
    }

    /// Frames come by all of them, and RoCE v1 asks for no IP.
    fn hears_group(&self, _: Gid, gid: &GidEntry) -> bool {
        gid.owned
    }
}

/// Opens links of an in-process fabric.
#[derive(Clone, Debug)]
pub struct MemoryLinks {
    /// The fabric.
    pub fabric: Fabric,
    /// The port that the device stands for.
    pub port: PortId,
}

impl OpenLink for MemoryLinks {
    fn open(
        &self,
        gid: &GidEntry,
        slot: u8,
        waker: Arc<dyn Notify>,
    ) -> Result<Box<dyn Link>, OpenLinkError> {
        let link = self.fabric.attach_to(self.port, slot, gid.gid)?;
        link.set_waker(Some(Arc::new(move || waker.notify())));
        Ok(Box::new(link))
    }

    fn open_group(
        &self,
        group: Gid,
        _: u32,
        waker: Arc<dyn Notify>,
    ) -> Result<Box<dyn Link>, OpenLinkError> {
        let link = self.fabric.attach_group(self.port, group)?;
        link.set_waker(Some(Arc::new(move || waker.notify())));
        Ok(Box::new(link))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_named() {
        let packet = |vlan| Some(LinkKind::Packet { vlan });
        for (text, kind) in [
            ("", Some(LinkKind::Udp)),
            ("udp", Some(LinkKind::Udp)),
            ("packet", packet(None)),
            ("packet,vlan=1", packet(Some(1))),
            ("packet,vlan=4094", packet(Some(4094))),
            ("packet,vlan=0", None),
            ("packet,vlan=4095", None),
            ("packet,vlan=", None),
            ("udp,vlan=7", None),
            ("raw", None),
        ] {
            assert_eq!(LinkKind::parse(text), kind, "{text}");
        }
    }
}
