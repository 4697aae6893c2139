//! Which device, port and GID to play on.

use std::net::IpAddr;

use ibverbs_api::{Context, Device, Gid, GidEntry, GidType, Mtu, QueryError, devices};
use thiserror::Error;

use super::error::PingpongError;

/// Why there is nothing to play on.
#[derive(Debug, Error)]
pub(crate) enum PortError {
    #[error("no RDMA device has the address {ip} of the TCP connection: name one with -d{known}")]
    NoDevice { ip: IpAddr, known: String },
    #[error("{device} has no GID that this host owns{family}: give its interface an address")]
    NoGid { device: String, family: &'static str },
    #[error("GID index {index} of {device} has no entry: {usable}")]
    NoEntry { device: String, index: u32, usable: String },
    #[error(
        "GID {gid} (index {index}) of {device} is not an address of this host, so nothing can be \
         sent from it: {usable}"
    )]
    NotOwned { device: String, gid: Gid, index: u32, usable: String },
    #[error(
        "path MTU {} asked for, but port {port} of {device} carries {}: use -m {}, or raise the \
         MTU of the interface",
        wanted.bytes(), active.bytes(), active.bytes()
    )]
    Mtu { device: String, port: u8, wanted: Mtu, active: Mtu },
    #[error(
        "messages of {size} bytes asked for, but a datagram on port {port} of {device} has at most \
         {max}: use -s {max} at both ends"
    )]
    Datagram { device: String, port: u8, size: u32, max: usize },
}

/// The device that has this address.
pub(crate) fn device_of(ip: IpAddr) -> Result<Device, PingpongError> {
    let mut all = devices()?;
    match all.iter().position(|device| device.interface().addrs.contains(&ip)) {
        Some(index) => Ok(all.swap_remove(index)),
        None => {
            let names = all.iter().map(Device::name).collect::<Vec<_>>();
            let known =
                if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
            Err(PortError::NoDevice { ip, known }.into())
        }
    }
}

/// What is known of the GID to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// This one.
    Index(u32),
    /// The one of this address, or else one of its family.
    Near(IpAddr),
    /// One of this family.
    Family {
        /// IPv6; otherwise IPv4.
        ipv6: bool,
    },
}

/// The GID to use of a port.
pub(crate) fn choose_gid(
    context: &Context,
    port: u8,
    wanted: Wanted,
) -> Result<GidEntry, PingpongError> {
    // Also tells whether there is such a port.
    context.query_port(port)?;
    let table = context.query_gid_table().map_err(PingpongError::GidTable)?;
    // RoCE v2 first: every peer has it.
    let of_type = |is_v2| {
        let entries = table.iter().filter(|entry| entry.owned);
        let entries = entries.filter(|entry| entry.port_num == u32::from(port));
        entries.filter(move |entry| (entry.gid_type == GidType::RoceV2) == is_v2)
    };
    let owned = || of_type(true).chain(of_type(false));
    let of_family = |ipv6: bool| owned().find(|entry| entry.gid.to_ip().is_ipv6() == ipv6);
    let device = || context.device().name().to_owned();
    let found = match wanted {
        Wanted::Index(index) => {
            let usable = || match owned().next() {
                Some(other) => format!("use -g {} ({})", other.gid_index, other.gid),
                None => "give its interface an address".to_owned(),
            };
            let entry = match context.query_gid_ex(port, index) {
                Err(QueryError::Gid(_)) => {
                    let (device, usable) = (device(), usable());
                    return Err(PortError::NoEntry { device, index, usable }.into());
                }
                entry => entry?,
            };
            if !entry.owned {
                let (device, gid, usable) = (device(), entry.gid, usable());
                return Err(PortError::NotOwned { device, gid, index, usable }.into());
            }
            return Ok(entry);
        }
        Wanted::Near(ip) => owned()
            .find(|entry| entry.gid.to_ip() == ip)
            .or_else(|| of_family(ip.is_ipv6()))
            .or_else(|| owned().next()),
        Wanted::Family { ipv6 } => of_family(ipv6),
    };
    let family = match wanted {
        Wanted::Family { ipv6: true } => " and that is an IPv6 address",
        Wanted::Family { ipv6: false } => " and that is an IPv4 address (-6 uses IPv6)",
        _ => "",
    };
    found.copied().ok_or_else(|| PortError::NoGid { device: device(), family }.into())
}

/// The path MTU that a port carries at most.
pub(crate) fn active_mtu(context: &Context, port: u8) -> Result<Mtu, PingpongError> {
    Ok(context.query_port(port)?.active_mtu)
}

/// Checks that a port carries the path MTU.
pub(crate) fn check_mtu(context: &Context, port: u8, wanted: Mtu) -> Result<(), PingpongError> {
    let active = active_mtu(context, port)?;
    if wanted > active {
        let device = context.device().name().to_owned();
        return Err(PortError::Mtu { device, port, wanted, active }.into());
    }
    Ok(())
}

/// Checks that a datagram on this port may have so many bytes.
pub(crate) fn check_datagram(context: &Context, port: u8, size: u32) -> Result<(), PingpongError> {
    let max = active_mtu(context, port)?.bytes();
    if size as usize > max {
        let device = context.device().name().to_owned();
        return Err(PortError::Datagram { device, port, size, max }.into());
    }
    Ok(())
}
