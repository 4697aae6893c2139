//! Groups of a device: joined with the first member, left with the last one, on each interface.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gid_table::{Gid, GidEntry, GidTable, GidType, WantedGid};
use parking_lot::Mutex;
use rxe_core::cq::Notify;
use rxe_core::multicast::MulticastError;
use rxe_core::qp::{Mtu, QpInit, QpType};
use rxe_core::{CompletionQueue, Device, DeviceConfig, Port, QueuePair, Seed};
use rxe_net::link::Link;
use rxe_net::memory::{Fabric, PortConfig, PortId};
use rxe_net::runtime::{
    AttachMulticastError, Groups, MemoryLinks, OpenLink, OpenLinkError, Runner,
};

/// Links in memory, and what was asked of them.
#[derive(Debug)]
struct Noted {
    links: MemoryLinks,
    /// Groups and interfaces that were joined.
    joined: Mutex<Vec<(Gid, u32)>>,
    refuses: AtomicBool,
}

impl OpenLink for Noted {
    fn open(
        &self,
        gid: &GidEntry,
        slot: u8,
        waker: Arc<dyn Notify>,
    ) -> Result<Box<dyn Link>, OpenLinkError> {
        self.links.open(gid, slot, waker)
    }

    fn open_group(
        &self,
        group: Gid,
        ifindex: u32,
        waker: Arc<dyn Notify>,
    ) -> Result<Box<dyn Link>, OpenLinkError> {
        if self.refuses.load(Ordering::SeqCst) {
            return Err(OpenLinkError::NoGroups { group });
        }
        self.joined.lock().push((group, ifindex));
        self.links.open_group(group, ifindex, waker)
    }
}

struct Host {
    fabric: Fabric,
    port: PortId,
    opener: Arc<Noted>,
    device: Arc<Device>,
    runner: Arc<Runner>,
    groups: Groups,
    cq: Arc<CompletionQueue>,
    pd: rxe_core::pd::PdId,
}

impl Host {
    fn new() -> Self {
        let fabric = Fabric::new();
        let port = fabric.add_port(PortConfig::numbered(1)).unwrap();
        let links = MemoryLinks { fabric: fabric.clone(), port };
        let (joined, refuses) = (Mutex::default(), AtomicBool::new(false));
        let opener = Arc::new(Noted { links, joined, refuses });
        let mut gids = GidTable::new(1, 16);
        gids.add(own("10.0.0.1", 1)).unwrap();
        // Of another version, and one that nothing can be sent from.
        gids.add(own("fd00::1", 7)).unwrap();
        gids.add(WantedGid { owned: false, ..own("10.0.0.8", 8) }).unwrap();
        let config = DeviceConfig::new(Seed::for_test(5));
        let device = Device::new(config, vec![Port::new(gids, Mtu::M1024)]);
        let runner = Runner::start(device.clone(), opener.clone()).unwrap();
        let groups = Groups::new(device.clone(), opener.clone());
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16, None).unwrap());
        Self { fabric, port, opener, device, runner, groups, cq, pd }
    }

    fn member(&self) -> Arc<QueuePair> {
        self.runner.create_qp(QpInit::new(QpType::Ud, self.pd, &self.cq)).unwrap()
    }

    fn attach(&self, qp: &QueuePair, group: Gid) -> Result<(), AttachMulticastError> {
        self.groups.attach(&self.runner, qp, group)
    }

    /// Whether the network has nobody in a group: then another link may be its only one.
    fn has_left(&self, group: Gid) -> bool {
        self.fabric.attach_group(self.port, group).is_ok()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.runner.close();
    }
}

fn own(gid: &str, ifindex: u32) -> WantedGid {
    WantedGid { gid: gid.parse().unwrap(), gid_type: GidType::RoceV2, ifindex, owned: true }
}

fn group(number: u8) -> Gid {
    Gid::from_ip([239, 1, 1, number].into())
}

#[test]
fn r49_a_group_is_joined_with_its_first_member_and_left_with_its_last() {
    let host = Host::new();
    let (one, two) = (host.member(), host.member());
    assert!(host.has_left(group(1)));
    for qp in [&one, &two, &one] {
        host.attach(qp, group(1)).unwrap();
    }
    host.attach(&two, group(2)).unwrap();
    assert_eq!(*host.opener.joined.lock(), [(group(1), 1), (group(2), 1)]);
    assert!(!host.has_left(group(1)));
    host.groups.detach(&one, group(1)).unwrap();
    assert!(!host.has_left(group(1)));
    let error = host.groups.detach(&one, group(1)).unwrap_err();
    assert!(matches!(error, MulticastError::NotAttached { .. }));
    assert!(host.groups.detach_all(&two));
    assert!(host.has_left(group(1)) && host.has_left(group(2)));
    assert!(!host.groups.detach_all(&two));
}

#[test]
fn a_group_that_cannot_be_joined_has_no_member() {
    let host = Host::new();
    let qp = host.member();
    host.opener.refuses.store(true, Ordering::SeqCst);
    let error = host.attach(&qp, group(1)).unwrap_err();
    assert!(matches!(error, AttachMulticastError::Join { .. }), "{error}");
    assert_eq!((error.errno(), qp.attachments()), (libc::EOPNOTSUPP, 0));
    let error = host.attach(&qp, Gid::from_ip([10, 0, 0, 1].into())).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
    host.opener.refuses.store(false, Ordering::SeqCst);
    host.attach(&qp, group(1)).unwrap();
    assert_eq!(qp.attachments(), 1);
}

#[test]
fn groups_are_joined_on_interfaces_that_come_later() {
    let host = Host::new();
    let qp = host.member();
    let v6: Gid = "ff15::9".parse().unwrap();
    host.attach(&qp, v6).unwrap();
    let gids = &host.device.ports()[0].gids;
    gids.write().remove(&own("10.0.0.1", 1));
    // Nobody here hears it, which is no error.
    host.attach(&qp, group(1)).unwrap();
    assert_eq!(*host.opener.joined.lock(), [(v6, 7)]);
    host.groups.gids_changed();
    assert_eq!(host.opener.joined.lock().len(), 1);
    gids.write().add(own("10.0.0.1", 1)).unwrap();
    for _ in 0..2 {
        host.groups.gids_changed();
        assert_eq!(*host.opener.joined.lock(), [(v6, 7), (group(1), 1)]);
    }
}
