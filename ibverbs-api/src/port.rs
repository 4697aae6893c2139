//! The ports of an opened device, kept as their interfaces are.

use std::sync::Arc;

use gid_table::InterfaceInfo;
use gid_table::populate::{LinkGidTypes, port_gids, sync};
use rxe_core::device::{Device as CoreDevice, Port};
use rxe_core::event::AsyncEvent;
use rxe_net::runtime::{Groups, Runner};

use crate::device::{Device, active_mtu, is_active};

/// Lets ports follow their interfaces: GIDs, state, path MTU. What a program is to know of it is
/// raised as an asynchronous event.
///
/// Connections are left alone, as adapters leave them: what is sent from an address that is gone,
/// or over a link that is down, is lost, and ends as `RetryExcErr` in the time that timeout and
/// retries of the queue pair say, unless address or link come back before. Only when the interface
/// itself is gone, of all ports, the device is lost, and all queue pairs go to the error state.
#[derive(Debug)]
pub(crate) struct PortKeeper {
    device: String,
    ports: Vec<KeptPort>,
    types: LinkGidTypes,
    core: Arc<CoreDevice>,
    runners: Vec<Arc<Runner>>,
    groups: Option<Arc<Groups>>,
    /// The interfaces have been looked at since the device was opened.
    has_looked: bool,
}

/// A port, and what is behind it.
#[derive(Debug)]
struct KeptPort {
    number: u8,
    ifindex: u32,
    /// Its interface is gone: one that comes by the same index is another one.
    is_lost: bool,
}

impl PortKeeper {
    /// The ports of a device, of which nobody is told yet.
    pub(crate) fn new(device: &Device, types: LinkGidTypes, core: Arc<CoreDevice>) -> Self {
        let port = |(number, interface): (u8, &InterfaceInfo)| KeptPort {
            number,
            ifindex: interface.ifindex,
            is_lost: false,
        };
        let ports = (1..).zip(device.interfaces()).map(port).collect();
        let (device, runners, groups) = (device.name().to_owned(), Vec::new(), None);
        Self { device, ports, types, core, runners, groups, has_looked: false }
    }

    /// Tells these of new GIDs, which open links then.
    pub(crate) fn telling(self, runners: Vec<Arc<Runner>>, groups: Arc<Groups>) -> Self {
        Self { runners, groups: Some(groups), ..self }
    }

    /// Takes in how the interfaces of the host are now.
    ///
    /// The first time no event is raised but that the device is lost: what has changed between the
    /// listing of devices and the opening of this one, its program has never seen otherwise.
    pub(crate) fn update(&mut self, all: &[InterfaceInfo]) {
        if self.core.has_failed() {
            return;
        }
        for index in 0..self.ports.len() {
            self.update_port(index, all);
        }
        if self.ports.iter().all(|port| port.is_lost) {
            self.core.fail();
            self.runners.iter().for_each(|runner| runner.fail());
        }
        self.has_looked = true;
    }

    fn update_port(&mut self, index: usize, all: &[InterfaceInfo]) {
        let KeptPort { number, ifindex, is_lost } = self.ports[index];
        if is_lost {
            return;
        }
        let core = self.core.clone();
        let Some(port) = core.port(number) else { return };
        let interface = all.iter().find(|interface| interface.ifindex == ifindex);
        let active = interface.is_some_and(is_active);
        if self.has_looked {
            core.set_port_active(number, active);
        } else {
            port.note_state(active);
        }
        match interface {
            Some(interface) => {
                if let Some(mtu) = active_mtu(interface) {
                    port.set_active_mtu(mtu);
                }
                self.update_gids(number, port, interface, all);
            }
            None => {
                self.ports[index].is_lost = true;
                self.lose(number, port);
            }
        }
    }

    fn update_gids(
        &self,
        number: u8,
        port: &Port,
        interface: &InterfaceInfo,
        all: &[InterfaceInfo],
    ) {
        let wanted = port_gids(interface, all, self.types);
        let report = sync(&mut port.gids.write(), &wanted);
        for refused in &report.refused {
            tracing::warn!(target: "rxe::gid", device = self.device, %refused, "GID left out");
        }
        if report.changes.is_empty() {
            return;
        }
        for change in &report.changes {
            tracing::info!(target: "rxe::gid", device = self.device, ?change, "GIDs changed");
        }
        // Datagrams for a new address are received when the program hears of it.
        self.runners.iter().for_each(|runner| runner.gids_changed(number));
        self.groups.iter().for_each(|groups| groups.gids_changed());
        if self.has_looked {
            self.core.raise(AsyncEvent::GidChange(number));
        }
    }

    /// The interface is gone, and with it all GIDs.
    fn lose(&self, number: u8, port: &Port) {
        let device = &self.device;
        tracing::warn!(target: "rxe::gid", device, port = number, "the interface is gone");
        let report = sync(&mut port.gids.write(), &[]);
        if self.has_looked && !report.changes.is_empty() {
            self.core.raise(AsyncEvent::GidChange(number));
        }
    }
}

#[cfg(test)]
mod tests {
    use rxe_core::config::{CongestionConfig, DeviceConfig, Limits, Seed};
    use rxe_core::qp::Mtu;

    use super::*;
    use crate::device::test_device;

    fn keeper(device: &Device) -> PortKeeper {
        let config = DeviceConfig {
            seed: Seed([1; 32]),
            limits: Limits::default(),
            congestion: CongestionConfig::default(),
        };
        let tables = device.gid_tables(LinkGidTypes::V2).into_iter();
        let ports = tables.map(|table| Port::new(table, Mtu::M1024)).collect();
        let core = CoreDevice::new(config, ports);
        PortKeeper::new(device, LinkGidTypes::V2, core)
    }

    fn events(keeper: &PortKeeper) -> Vec<AsyncEvent> {
        std::iter::from_fn(|| keeper.core.events().take()).collect()
    }

    /// What the interface becomes, what events that raises, and how many GIDs there are then.
    type Step = (fn(&mut InterfaceInfo), &'static [AsyncEvent], usize);

    #[test]
    fn each_change_of_the_interface_raises_its_event_once() {
        let device = test_device("eth0", 2);
        let mut keeper = keeper(&device);
        let mut eth0 = device.interface().clone();
        eth0.addrs.push([10, 0, 1, 1].into());
        keeper.update(std::slice::from_ref(&eth0));
        assert_eq!(events(&keeper), [], "changed before it was opened");
        let steps: [Step; 8] = [
            (|i| i.addrs.push([10, 0, 2, 1].into()), &[AsyncEvent::GidChange(1)], 4),
            (|i| i.running = false, &[AsyncEvent::PortErr(1)], 4),
            (|i| i.up = false, &[], 4),
            (|i| (i.up, i.running) = (true, true), &[AsyncEvent::PortActive(1)], 4),
            (|i| i.name = "eth9".to_owned(), &[], 4),
            (|i| i.mtu = 9000, &[], 4),
            (|i| i.addrs.truncate(2), &[AsyncEvent::GidChange(1)], 3),
            (|i| i.tentative = i.addrs.clone(), &[AsyncEvent::GidChange(1)], 3),
        ];
        for (step, (change, expected, gids)) in steps.into_iter().enumerate() {
            change(&mut eth0);
            for _ in 0..2 {
                keeper.update(std::slice::from_ref(&eth0));
            }
            assert_eq!(events(&keeper), expected, "step {step}");
            let port = &keeper.core.ports()[0];
            assert_eq!(port.gids.read().entries().count(), gids, "step {step}");
        }
        assert_eq!(keeper.core.ports()[0].active_mtu(), Mtu::M4096);
    }

    #[test]
    fn a_lost_interface_is_a_lost_device() {
        let device = test_device("eth0", 2);
        let mut keeper = keeper(&device);
        keeper.update(std::slice::from_ref(device.interface()));
        keeper.update(&[]);
        let lost = [AsyncEvent::PortErr(1), AsyncEvent::GidChange(1), AsyncEvent::DeviceFatal];
        assert_eq!(events(&keeper), lost);
        assert!(keeper.core.has_failed());
        // One that comes by the same name, or even the same index, is another one.
        keeper.update(std::slice::from_ref(device.interface()));
        assert_eq!(events(&keeper), []);
    }

    #[test]
    fn each_port_follows_its_own_interface() {
        let (one, two) = (test_device("eth0", 2), test_device("eth1", 3));
        let device = Device::joined("dual", &[one.clone(), two.clone()]).expect("two interfaces");
        let mut keeper = keeper(&device);
        let mut all = vec![one.interface().clone(), two.interface().clone()];
        keeper.update(&all);
        assert_eq!(events(&keeper), []);
        let gids = |keeper: &PortKeeper| {
            let ports = keeper.core.ports().iter();
            ports.map(|port| port.gids.read().entries().count()).collect::<Vec<_>>()
        };
        assert_eq!(gids(&keeper), [2, 2]);
        all[1].addrs.push([10, 0, 2, 1].into());
        keeper.update(&all);
        assert_eq!((events(&keeper), gids(&keeper)), (vec![AsyncEvent::GidChange(2)], vec![2, 3]));
        all[0].running = false;
        all[1].mtu = 9000;
        keeper.update(&all);
        assert_eq!(events(&keeper), [AsyncEvent::PortErr(1)]);
        let mtus: Vec<_> = keeper.core.ports().iter().map(Port::active_mtu).collect();
        assert_eq!(mtus, [Mtu::M1024, Mtu::M4096]);
        // One of two is gone: the device goes on with the other, also when another one comes.
        let gone = all.remove(1);
        keeper.update(&all);
        assert_eq!(events(&keeper), [AsyncEvent::PortErr(2), AsyncEvent::GidChange(2)]);
        assert!(!keeper.core.has_failed());
        keeper.update(&[all[0].clone(), gone]);
        assert_eq!((events(&keeper), gids(&keeper)), (vec![], vec![2, 0]));
        keeper.update(&[]);
        assert_eq!(events(&keeper), [AsyncEvent::GidChange(1), AsyncEvent::DeviceFatal]);
    }
}
