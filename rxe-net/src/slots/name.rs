//! The abstract names that stand for slots.

use std::io;

use rustix::net::SocketAddrUnix;

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

fn address(name: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}
