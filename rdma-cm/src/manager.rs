//! The opened devices of this process, and its ports.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::{Arc, Weak};
use std::thread::sleep;
use std::time::{Duration, Instant};

use gid_table::InterfaceInfo;
use ibverbs_api::{Device, devices};
use parking_lot::Mutex;
use rand_core::{OsRng, TryRngCore};
use rxe_wire::mad::cm::PortSpace;

use crate::device::CmDevice;
use crate::error::BindError;
use crate::id::{CmId, IdInner, IdNumber};
use crate::per_process::PerProcess;
use crate::ports::{EPHEMERAL, Ports, Refused, Sharing, UNPRIVILEGED};
use crate::route::is_of_this_host;
use crate::watch::Watch;

/// How long a device may take to have an address that its interface has, at most.
const FOLLOWS: Duration = Duration::from_millis(200);
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(1);

/// What a process has. A child after fork begins anew: the devices are the parent's.
#[derive(Default)]
struct Manager {
    devices: HashMap<String, Arc<CmDevice>>,
    ports: Ports,
    /// Listeners for all addresses of all devices.
    wildcards: HashMap<IdNumber, Weak<IdInner>>,
    /// Follows the host; `None` before there is anything to follow it for.
    watch: Option<Watch>,
}

static MANAGER: PerProcess<Mutex<Manager>> = PerProcess::new();

fn with<R>(act: impl FnOnce(&mut Manager) -> R) -> R {
    act(&mut MANAGER.get().lock())
}

impl Manager {
    fn open(&mut self, device: &Device) -> io::Result<Arc<CmDevice>> {
        if let Some(opened) = self.devices.get(device.name()).filter(|opened| !opened.is_lost()) {
            return Ok(opened.clone());
        }
        let opened = CmDevice::open(device)?;
        self.follow();
        self.devices.insert(device.name().to_owned(), opened.clone());
        Ok(opened)
    }
}

impl Manager {
    /// Follows the host from now on.
    fn follow(&mut self) {
        if self.watch.is_none() {
            self.watch = match Watch::start() {
                Ok(watch) => Some(watch),
                Err(error) => {
                    tracing::warn!(target: "rxe::cm", %error, "the host is not followed");
                    None
                }
            };
        }
    }
}

/// The devices that are opened.
pub(crate) fn opened() -> Vec<Arc<CmDevice>> {
    with(|manager| manager.devices.values().cloned().collect())
}

/// The interfaces of the host have changed.
pub(crate) fn host_changed(interfaces: &[InterfaceInfo]) {
    opened().iter().for_each(|device| device.follow(interfaces));
    follow_wildcards();
}

/// Listeners for all addresses look which there are now.
pub(crate) fn follow_wildcards() {
    let wildcards: Vec<_> =
        with(|manager| manager.wildcards.values().filter_map(Weak::upgrade).collect());
    wildcards.into_iter().for_each(|inner| CmId { inner }.follow());
}

/// A listener wants to hear of devices and addresses that come.
pub(crate) fn note_wildcard(number: IdNumber, id: Weak<IdInner>) {
    with(|manager| {
        manager.wildcards.retain(|_, id| id.strong_count() > 0);
        manager.wildcards.insert(number, id);
        manager.follow();
    });
}

/// A device is gone.
pub(crate) fn forget(device: &Arc<CmDevice>) {
    let forgotten: Vec<_> = with(|manager| {
        manager.devices.extract_if(|_, opened| Arc::ptr_eq(opened, device)).collect()
    });
    drop(forgotten);
}

/// The devices of this host.
fn list() -> Result<Vec<Device>, BindError> {
    devices().map_err(|error| BindError::Open(io::Error::from_raw_os_error(error.errno())))
}

/// The device whose interface has an address, opened.
pub(crate) fn device_of(ip: IpAddr) -> Result<Arc<CmDevice>, BindError> {
    let device = device_listed_with(ip)?;
    // What the host has just got, the device has in a moment; and a moment later it receives there.
    // What came between would be lost, and sent again after seconds only.
    let deadline = Instant::now() + FOLLOWS;
    while !(device.owns(ip) && device.is_reached_at(ip)) {
        if Instant::now() > deadline {
            return if device.owns(ip) { Ok(device) } else { Err(BindError::NoDevice(ip)) };
        }
        sleep(PAUSE);
    }
    Ok(device)
}

/// Why no device has an address.
fn nobody_has(ip: IpAddr) -> BindError {
    if is_of_this_host(ip) { BindError::NoDevice(ip) } else { BindError::OtherHost(ip) }
}

fn device_listed_with(ip: IpAddr) -> Result<Arc<CmDevice>, BindError> {
    with(|manager| {
        if let Some(device) =
            manager.devices.values().find(|opened| !opened.is_lost() && opened.owns(ip))
        {
            return Ok(device.clone());
        }
        let has = |device: &Device| device.interfaces().any(|one| one.addrs.contains(&ip));
        // Everything of 127.0.0.0/8 is this host's, but only what the interface lists has a GID.
        let device = list()?.into_iter().find(has).ok_or_else(|| nobody_has(ip))?;
        manager.open(&device).map_err(BindError::Open)
    })
}

/// All devices, opened. One that cannot be opened is left out, unless that leaves none.
pub(crate) fn all_devices() -> Result<Vec<Arc<CmDevice>>, BindError> {
    with(|manager| {
        let mut opened = Vec::new();
        let mut failed = None;
        for device in list()? {
            match manager.open(&device) {
                Ok(device) => opened.push(device),
                Err(error) => failed = Some(error),
            }
        }
        match (opened.is_empty(), failed) {
            (true, Some(error)) => Err(BindError::Open(error)),
            _ => Ok(opened),
        }
    })
}

/// Waits until peers have granted the ends of all connections that were ended or destroyed, at most
/// for `patience`; whether they have. For the end of a process: a kernel would go on without it.
///
/// A message may be lost, or have come to this process although it is for another on this host, which
/// passes it on only while it lives. C has no counterpart.
pub fn finish(patience: Duration) -> bool {
    // A day is as good as for ever, and can be added.
    let deadline = Instant::now() + patience.min(Duration::from_secs(86_400));
    // Each of them, also when one has not.
    let finished: Vec<_> = opened().iter().map(|device| device.finish(deadline)).collect();
    finished.into_iter().all(|one| one)
}

/// A port that is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct BoundPort {
    /// The process that has it: a child after fork has not.
    process: u32,
    space: PortSpace,
    number: u64,
    address: SocketAddr,
}

impl BoundPort {
    /// Takes the port of an address; of port 0, one that nobody has.
    pub(crate) fn take(
        space: PortSpace,
        address: SocketAddr,
        sharing: Sharing,
    ) -> Result<Self, BindError> {
        // As Linux: the ports of well-known services are not for everybody.
        let is_open = address.port() == 0 || address.port() >= first_unprivileged_port();
        if !is_open && !may_bind_all() {
            return Err(BindError::Privileged(address));
        }
        let at = OsRng.try_next_u32().unwrap_or_default() as u16;
        let range = ephemeral_range();
        let taken = with(|manager| manager.ports.take(space, address, sharing, &range, at));
        let process = std::process::id();
        match taken {
            Ok((number, address)) => Ok(Self { process, space, number, address }),
            Err(Refused::Same) => Err(BindError::Taken(address)),
            Err(Refused::Wildcard) => Err(BindError::TakenForAll(address)),
            Err(Refused::NoneFree) => Err(BindError::NoPort(range)),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for BoundPort {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            with(|manager| {
                manager.ports.give_back(self.space, self.address.port(), self.number);
            });
        }
    }
}

/// The first port that everybody may bind.
fn first_unprivileged_port() -> u16 {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(UNPRIVILEGED)
}

/// Whether this thread may bind the others too (`CAP_NET_BIND_SERVICE`).
fn may_bind_all() -> bool {
    const CAP_NET_BIND_SERVICE: u32 = 10;
    // Where that is not shown, let it be: nothing is guarded by it here.
    let Ok(status) = fs::read_to_string("/proc/thread-self/status") else { return true };
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    effective.is_none_or(|bits| bits & (1 << CAP_NET_BIND_SERVICE) != 0)
}

/// Whether all IPv6 addresses are not all IPv4 addresses too, unless a program says otherwise
/// (`net.ipv6.bindv6only`).
pub(crate) fn is_v6_alone() -> bool {
    let text = fs::read_to_string("/proc/sys/net/ipv6/bindv6only");
    text.is_ok_and(|text| text.trim() == "1")
}

/// The ports that this host gives to those who ask for none.
fn ephemeral_range() -> RangeInclusive<u16> {
    let read = || {
        let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
        let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
        let (first, last) = (numbers.next()??, numbers.next()??);
        (first <= last && first > 0).then_some(first..=last)
    };
    read().unwrap_or(EPHEMERAL)
}
