//! What the connection manager of this process keeps and has counted.

use crate::engine::{CmCounters, CmSizes};
use crate::manager::opened;

/// The connection manager on one device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceReport {
    /// The device's name.
    pub device: String,
    /// Identifiers that have it.
    pub identifiers: usize,
    /// What its engine keeps: what is left in it of identifiers that are gone, ends by itself.
    pub sizes: CmSizes,
    /// Messages.
    pub counters: CmCounters,
}

/// What there is on each device that an address has led to, by name: for people, and to see that
/// nothing is left behind (C: the directories `cm_tx_msgs` and so on of a port in sysfs).
pub fn report() -> Vec<DeviceReport> {
    let mut reports: Vec<_> = opened().iter().map(|device| device.report()).collect();
    reports.sort_by(|a, b| a.device.cmp(&b.device));
    reports
}
