//! The port of an opened device, kept as its interface is.

use std::sync::Arc;

use gid_table::InterfaceInfo;
use gid_table::populate::{LinkGidTypes, port_gids, sync};
use rxe_core::device::{Device as CoreDevice, Port};
use rxe_core::event::AsyncEvent;
use rxe_net::runtime::Runner;

use crate::device::{active_mtu, is_active};

/// The number of the port.
const PORT: u8 = 1;

/// Lets a port follow its interface: its GIDs, its state, its path MTU. What a program is to know
/// of it is raised as an asynchronous event.
///
/// Connections are left alone, as adapters leave them: what is sent from an address that is gone,
/// or over a link that is down, is lost, and ends as `RetryExcErr` in the time that timeout and
/// retries of the queue pair say, unless address or link come back before. Only when the interface
/// itself is gone, the device is lost, and all queue pairs go to the error state.
#[derive(Debug)]
pub(crate) struct PortKeeper {
    device: String,
    ifindex: u32,
    types: LinkGidTypes,
    core: Arc<CoreDevice>,
    runners: Vec<Arc<Runner>>,
    /// The interface has been looked at since the device was opened.
    has_looked: bool,
}

impl PortKeeper {
    pub(crate) fn new(
        device: &str,
        ifindex: u32,
        types: LinkGidTypes,
        core: Arc<CoreDevice>,
        runners: Vec<Arc<Runner>>,
    ) -> Self {
        Self { device: device.to_owned(), ifindex, types, core, runners, has_looked: false }
    }

    /// Takes in how the interfaces of the host are now.
    ///
    /// The first time no event is raised but that the device is lost: what has changed between the
    /// listing of devices and the opening of this one, its program has never seen otherwise.
    pub(crate) fn update(&mut self, all: &[InterfaceInfo]) {
        if self.core.has_failed() {
            return;
        }
        let core = self.core.clone();
        let Some(port) = core.port(PORT) else { return };
        let interface = all.iter().find(|interface| interface.ifindex == self.ifindex);
        let active = interface.is_some_and(is_active);
        if self.has_looked {
            core.set_port_active(PORT, active);
        } else {
            port.note_state(active);
        }
        match interface {
            Some(interface) => {
                if let Some(mtu) = active_mtu(interface) {
                    port.set_active_mtu(mtu);
                }
                self.update_gids(port, interface, all);
            }
            None => self.lose(port),
        }
        self.has_looked = true;
    }

    fn update_gids(&self, port: &Port, interface: &InterfaceInfo, all: &[InterfaceInfo]) {
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
        self.runners.iter().for_each(|runner| runner.gids_changed(PORT));
        if self.has_looked {
            self.core.raise(AsyncEvent::GidChange(PORT));
        }
    }

    /// The interface is gone, and with it all GIDs.
    fn lose(&self, port: &Port) {
        tracing::warn!(target: "rxe::gid", device = self.device, "the interface is gone");
        let report = sync(&mut port.gids.write(), &[]);
        if self.has_looked && !report.changes.is_empty() {
            self.core.raise(AsyncEvent::GidChange(PORT));
        }
        self.core.fail();
        self.runners.iter().for_each(|runner| runner.fail());
    }
}

#[cfg(test)]
mod tests {
    use gid_table::GidTable;
    use rxe_core::config::{CongestionConfig, DeviceConfig, Limits, Seed};
    use rxe_core::qp::Mtu;

    use super::*;
    use crate::device::test_device;

    fn keeper(table: &GidTable) -> PortKeeper {
        let config = DeviceConfig {
            seed: Seed([1; 32]),
            limits: Limits::default(),
            congestion: CongestionConfig::default(),
        };
        let core = CoreDevice::new(config, vec![Port::new(table.clone(), Mtu::M1024)]);
        PortKeeper::new("rxe_eth0", 2, LinkGidTypes::V2, core, Vec::new())
    }

    fn events(keeper: &PortKeeper) -> Vec<AsyncEvent> {
        std::iter::from_fn(|| keeper.core.events().take()).collect()
    }

    /// What the interface becomes, what events that raises, and how many GIDs there are then.
    type Step = (fn(&mut InterfaceInfo), &'static [AsyncEvent], usize);

    #[test]
    fn each_change_of_the_interface_raises_its_event_once() {
        let device = test_device("eth0", 2);
        let mut keeper = keeper(&device.gid_table(LinkGidTypes::V2));
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
        let mut keeper = keeper(&device.gid_table(LinkGidTypes::V2));
        keeper.update(std::slice::from_ref(device.interface()));
        keeper.update(&[]);
        let lost = [AsyncEvent::PortErr(1), AsyncEvent::GidChange(1), AsyncEvent::DeviceFatal];
        assert_eq!(events(&keeper), lost);
        assert!(keeper.core.has_failed());
        // One that comes by the same name, or even the same index, is another one.
        keeper.update(std::slice::from_ref(device.interface()));
        assert_eq!(events(&keeper), []);
    }
}
