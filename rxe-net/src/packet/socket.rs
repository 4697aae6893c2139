//! Packet sockets, made ready to receive.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::filter::{self, Accepted};
use super::link::OpenPacketError;
use super::resolve::LOOPBACK_IFINDEX;
use super::sys as packet_sys;
use crate::udp::{BufferSizes, sys};

/// What a packet socket is to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct SocketConfig<'a> {
    /// The interface that it is about.
    pub ifindex: u32,
    /// What it receives, and by which interfaces.
    pub accepted: Accepted<'a>,
    /// What this host itself sends comes too, but on `lo`, from where it comes back.
    pub hears_own_host: bool,
    /// Sizes of its buffers.
    pub buffers: BufferSizes,
}

/// Opens a packet socket.
pub(super) fn open(config: &SocketConfig<'_>) -> Result<OwnedFd, OpenPacketError> {
    let SocketConfig { ifindex, accepted, .. } = *config;
    let os = |what| move |source| OpenPacketError::Os { ifindex, what, source };
    let socket = packet_sys::packet_socket().map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => OpenPacketError::NotPermitted,
        _ => os("make a packet socket")(error),
    })?;
    prepare(&socket, config).map_err(os("set the options of a packet socket"))?;
    // By several interfaces: then the filter alone knows which.
    let bound = if accepted.ifindexes == [ifindex] { ifindex } else { 0 };
    packet_sys::bind(socket.as_fd(), bound).map_err(os("receive frames"))?;
    Ok(socket)
}

/// Sets options, buffers and filter of a packet socket, before it is bound.
fn prepare(socket: &OwnedFd, config: &SocketConfig<'_>) -> io::Result<()> {
    let SocketConfig { ifindex, accepted, hears_own_host, buffers } = *config;
    let fd = socket.as_fd();
    for option in packet_sys::OPTIONS {
        sys::set_int(fd, libc::SOL_PACKET, option, 1)?;
    }
    if !hears_own_host || ifindex == LOOPBACK_IFINDEX {
        sys::set_int(fd, libc::SOL_PACKET, packet_sys::PACKET_IGNORE_OUTGOING, 1)?;
    }
    sys::set_int(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
    let BufferSizes { receive, send } = buffers;
    for (name, size) in [(libc::SO_RCVBUF, receive), (libc::SO_SNDBUF, send)] {
        if let Some(size) = size {
            sys::set_int(fd, libc::SOL_SOCKET, name, i32::try_from(size).unwrap_or(i32::MAX))?;
        }
    }
    sys::attach_filter(fd, &filter::program(&accepted))
}
