//! The abstract names that stand for slots and services.

use std::io;
use std::net::IpAddr;

use gid_table::Gid;
use rustix::net::SocketAddrUnix;
use rxe_wire::mad::cm::ServiceId;

/// All names of this version of the protocol between processes: who speaks another one has other
/// names, and takes part in nothing.
const PREFIX: &str = "urxe/1";

/// The name of a slot's inbox.
///
/// # Errors
///
/// None in practice: names of more than 107 bytes are refused.
pub(crate) fn of_slot(slot: u8) -> io::Result<SocketAddrUnix> {
    address(&format!("{PREFIX}/slot/{slot}"))
}

/// The name of the inbox of a service on an address; on all, where there is none.
///
/// # Errors
///
/// As [`of_slot`].
pub(crate) fn of_service(id: ServiceId, at: Option<IpAddr>) -> io::Result<SocketAddrUnix> {
    match at {
        Some(ip) => address(&format!("{PREFIX}/service/{:016x}/{ip}", id.0)),
        None => address(&format!("{PREFIX}/service/{:016x}", id.0)),
    }
}

/// The name that the packet link holds which takes in what comes to QP1 of a GID that is no address
/// of the host.
///
/// # Errors
///
/// As [`of_slot`].
pub(crate) fn of_packet_office(gid: Gid, ifindex: u32) -> io::Result<SocketAddrUnix> {
    address(&format!("{PREFIX}/packet/{}/{ifindex}", gid.to_hex()))
}

fn address(name: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}
