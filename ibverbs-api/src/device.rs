//! Devices: one for each interface that is up and has an address, or of several of these.

use gid_table::eui64;
use gid_table::populate::{LinkGidTypes, port_gids, sync, uppers};
use gid_table::{GidTable, InterfaceInfo};
use rxe_core::config::{CongestionConfig, Limits, Seed};
use rxe_core::qp::Mtu;
use rxe_net::host;
use rxe_net::runtime::LinkOptions;

use crate::context::Context;
use crate::error::{DeviceError, OpenError};
use crate::selection::{DeviceSelection, SelectionError, is_name};

/// The most ports that a device has: their numbers have 8 bits, from 1 on.
const PORTS_MAX: usize = 255;

/// An RDMA device (`struct ibv_device`): an interface of this host, not opened yet, or several of
/// them, each of which is a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    name: String,
    /// At least one.
    ports: Vec<DevicePort>,
}

/// A port: an interface as it was when the device was listed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DevicePort {
    pub(crate) interface: InterfaceInfo,
    /// The interfaces on top of it, whose addresses are GIDs of the port too.
    uppers: Vec<InterfaceInfo>,
}

impl DevicePort {
    /// Whether packets could be sent and received when it was listed.
    pub(crate) fn is_active(&self) -> bool {
        is_active(&self.interface)
    }

    /// The path MTU that it could carry.
    pub(crate) fn active_mtu(&self) -> Mtu {
        active_mtu(&self.interface).unwrap_or(Mtu::M256)
    }

    /// The name of the interface of this index, itself or one on top; its own for any other.
    pub(crate) fn interface_name(&self, ifindex: u32) -> &str {
        let on_top = self.uppers.iter().find(|upper| upper.ifindex == ifindex);
        &on_top.unwrap_or(&self.interface).name
    }
}

/// How a device is opened, beyond the defaults.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// What every link gets; [`LinkOptions::from_env`] by default.
    pub link: LinkOptions,
    /// Shards, over which completion queues are spread by their vector: one per busy thread.
    pub shards: usize,
    /// Capacities.
    pub limits: Limits,
    /// Congestion control.
    pub congestion: CongestionConfig,
    /// Seed of all randomness; from the OS when `None`.
    pub seed: Option<Seed>,
}

impl OpenOptions {
    /// The defaults, with the link options of the environment.
    ///
    /// # Errors
    ///
    /// [`OpenError::Options`] when those in the environment are no good.
    pub fn from_env() -> Result<Self, OpenError> {
        Ok(Self {
            link: LinkOptions::from_env()?,
            shards: 1,
            limits: Limits::default(),
            congestion: CongestionConfig::default(),
            seed: None,
        })
    }
}

/// The RDMA devices of this host (`ibv_get_device_list`): `rxe_` and the name of the interface, or
/// those that `URXE_DEVICES` names ([`DeviceSelection`]).
///
/// An interface counts when it is up, has an address, and an MTU that leaves room for packets.
///
/// # Errors
///
/// [`DeviceError`] when the host does not tell its interfaces, or `URXE_DEVICES` is no good.
pub fn devices() -> Result<Vec<Device>, DeviceError> {
    match DeviceSelection::from_env()? {
        Some(selection) => selection.devices(),
        None => all_devices(),
    }
}

/// Those of this host that can be devices, under their own names.
pub(crate) fn all_devices() -> Result<Vec<Device>, DeviceError> {
    let usable = |interface: &InterfaceInfo| {
        interface.up && !interface.addrs.is_empty() && active_mtu(interface).is_some()
    };
    let all = host::interfaces()?;
    let device = |interface: &InterfaceInfo| Device {
        name: format!("rxe_{}", interface.name),
        ports: vec![DevicePort {
            interface: interface.clone(),
            uppers: uppers(interface.ifindex, &all).into_iter().cloned().collect(),
        }],
    };
    Ok(all.iter().filter(|interface| usable(interface)).map(device).collect())
}

pub(crate) fn active_mtu(interface: &InterfaceInfo) -> Option<Mtu> {
    Mtu::from_bytes(host::active_mtu(interface.mtu)? as usize)
}

/// Whether packets can be sent and received: the interface is up and has a carrier.
pub(crate) fn is_active(interface: &InterfaceInfo) -> bool {
    interface.up && interface.running
}

impl Device {
    /// The device of this name.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoSuchDevice`], which lists those that there are.
    pub fn by_name(name: &str) -> Result<Self, DeviceError> {
        let mut all = devices()?;
        match all.iter().position(|device| device.name == name) {
            Some(index) => Ok(all.swap_remove(index)),
            None => Err(DeviceError::NoSuchDevice {
                name: name.to_owned(),
                known: all.into_iter().map(|device| device.name).collect(),
            }),
        }
    }

    /// Its name (`ibv_get_device_name`).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One device of several, with all of their ports, in this order.
    ///
    /// As an adapter with two ports: each port has its own GIDs, state and path MTU, and an address
    /// vector and a queue pair name one (`port_num`, from 1 on). C programs get such a device by
    /// `URXE_DEVICES=dual=eth0+eth1` ([`DeviceSelection`]).
    ///
    /// # Errors
    ///
    /// [`SelectionError`]: the name is none, there is no device, one of them is there twice, or
    /// they have more ports than have numbers.
    pub fn joined(name: &str, devices: &[Self]) -> Result<Self, SelectionError> {
        let mut ports: Vec<DevicePort> = Vec::new();
        for port in devices.iter().flat_map(|device| &device.ports) {
            if ports.iter().any(|known| known.interface.ifindex == port.interface.ifindex) {
                return Err(SelectionError::Twice { device: port.interface.name.clone() });
            }
            ports.push(port.clone());
        }
        if !(1..=PORTS_MAX).contains(&ports.len()) {
            return Err(SelectionError::Ports { ports: ports.len(), max: PORTS_MAX });
        }
        Self { name: String::new(), ports }.renamed(name)
    }

    /// The interface behind it, or behind its first port, as it was when the device was listed.
    pub fn interface(&self) -> &InterfaceInfo {
        &self.ports[0].interface
    }

    /// The interfaces behind its ports, in their order, as they were when the device was listed.
    pub fn interfaces(&self) -> impl ExactSizeIterator<Item = &InterfaceInfo> {
        self.ports.iter().map(|port| &port.interface)
    }

    /// Its ports; the first one has number 1.
    pub(crate) fn ports(&self) -> &[DevicePort] {
        &self.ports
    }

    /// EUI-64 of the (first) interface, in host order (`ibv_get_device_guid`); of one without a
    /// hardware address, made of its index.
    pub fn guid(&self) -> u64 {
        let InterfaceInfo { mac, ifindex, .. } = *self.interface();
        match mac {
            Some(mac) if mac != [0; 6] => eui64::node_guid(mac),
            // Locally assigned: 02.
            _ => 0x0200_0000_0000_0000 | u64::from(ifindex),
        }
    }

    /// The same device under another name.
    pub(crate) fn renamed(mut self, name: &str) -> Result<Self, SelectionError> {
        if !is_name(name) {
            return Err(SelectionError::Name { name: name.to_owned() });
        }
        name.clone_into(&mut self.name);
        Ok(self)
    }

    /// The GIDs of each of its ports, as they are at the moment of opening it.
    pub(crate) fn gid_tables(&self, types: LinkGidTypes) -> Vec<GidTable> {
        let table = |(number, port): (u32, &DevicePort)| {
            let mut gids = GidTable::new(number, GidTable::DEFAULT_CAPACITY);
            let report = sync(&mut gids, &port_gids(&port.interface, &port.uppers, types));
            for refused in report.refused {
                tracing::warn!(target: "rxe::gid", device = self.name, %refused, "GID left out");
            }
            gids
        };
        (1..).zip(&self.ports).map(table).collect()
    }

    /// Opens it with the defaults (`ibv_open_device`).
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn open(&self) -> Result<Context, OpenError> {
        self.open_with(OpenOptions::from_env()?)
    }

    /// Opens it.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn open_with(&self, options: OpenOptions) -> Result<Context, OpenError> {
        Context::open(self, options)
    }
}

/// A device for tests of this crate: its interface is up, and has the address 10.0.0.ifindex.
#[cfg(test)]
pub(crate) fn test_device(interface: &str, ifindex: u8) -> Device {
    let interface = InterfaceInfo {
        name: interface.to_owned(),
        ifindex: ifindex.into(),
        mac: Some([0x52, 0x54, 0, 0, 0, ifindex]),
        mtu: 1500,
        up: true,
        running: true,
        addrs: vec![[10, 0, 0, ifindex].into()],
        ..InterfaceInfo::default()
    };
    let name = format!("rxe_{}", interface.name);
    Device { name, ports: vec![DevicePort { interface, uppers: Vec::new() }] }
}
