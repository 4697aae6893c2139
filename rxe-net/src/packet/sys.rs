//! The system calls that packet sockets alone need.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::udp::sys;

/// `PACKET_MR_MULTICAST`: of `struct packet_mreq`, that the address is a group's.
const MULTICAST: u16 = 0;

/// Socket options of level `SOL_PACKET` (`<linux/if_packet.h>`).
pub(super) const PACKET_AUXDATA: i32 = 8;
const PACKET_ADD_MEMBERSHIP: i32 = 1;
const PACKET_VNET_HDR: i32 = 15;
/// What this host sends does not come.
pub(super) const PACKET_IGNORE_OUTGOING: i32 = 23;

/// Makes a packet socket that receives nothing yet; without `CAP_NET_RAW` it is `EPERM`.
pub(super) fn packet_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: `socket` takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so `fd` is open, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The options that each is to have, an int of 1: that each frame comes behind a header which
/// says whether it is several in one; that the VLAN tag is told, which the kernel takes out.
pub(super) const OPTIONS: [i32; 2] = [PACKET_VNET_HDR, PACKET_AUXDATA];

/// Has an interface take in the frames to a group's Ethernet address, as long as the socket is open.
pub(super) fn join(fd: BorrowedFd<'_>, ifindex: u32, mac: [u8; 6]) -> io::Result<()> {
    // struct packet_mreq: interface, type, length of the address, and room for one of 8 bytes.
    let mut request = [0; 16];
    request[..4].copy_from_slice(&ifindex.to_ne_bytes());
    request[4..6].copy_from_slice(&MULTICAST.to_ne_bytes());
    request[6..8].copy_from_slice(&6_u16.to_ne_bytes());
    request[8..14].copy_from_slice(&mac);
    sys::set_bytes(fd, libc::SOL_PACKET, PACKET_ADD_MEMBERSHIP, &request)
}

/// Binds a packet socket to an interface, or to all for 0: from now on it receives all frames that
/// its filter lets through.
pub(super) fn bind(fd: BorrowedFd<'_>, ifindex: u32) -> io::Result<()> {
    let index = libc::c_int::try_from(ifindex).map_err(|_| io::ErrorKind::InvalidInput)?;
    let address = libc::sockaddr_ll {
        // Fits: it is 17.
        sll_family: libc::AF_PACKET as libc::c_ushort,
        // Of all kinds, the VLAN tagged ones for a VLAN that the host does not have too. (3 fits.)
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: the pointer is to a whole `sockaddr_ll` that lives through the call.
    let result = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
