//! Who holds a UDP port, as far as the kernel tells (`/proc/net/udp`).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::steer::ROCE_PORT;

/// A socket that receives on the RoCE port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Listed {
    address: IpAddr,
    port: u16,
    user: u32,
}

/// The other user whose socket on the RoCE port of exactly this address it is; `None` when there is
/// no such socket, or the kernel does not tell.
///
/// Linux's driver holds the port for all addresses (facts.md section 3), so that it is told apart.
pub(super) fn other_user(address: SocketAddr) -> Option<u32> {
    let own = rustix::process::geteuid().as_raw();
    let all = users_on(address).inspect_err(|error| {
        tracing::debug!(target: "rxe::net", %error, "the kernel does not tell who has the port");
    });
    all.ok()?.into_iter().find(|user| *user != own)
}

/// How many sockets receive on the RoCE port of exactly this address.
///
/// A link-local address is counted on all interfaces together: the kernel does not print them.
///
/// # Errors
///
/// That the table cannot be read, as in a sandbox without `/proc`.
pub(crate) fn sockets_on(address: SocketAddr) -> io::Result<usize> {
    Ok(users_on(address)?.len())
}

/// The user of each socket on the RoCE port of exactly this address.
fn users_on(address: SocketAddr) -> io::Result<Vec<u32>> {
    // Of this thread, since it may be in another namespace than the first one of the process.
    let table = if address.is_ipv4() { "udp" } else { "udp6" };
    let text = std::fs::read_to_string(format!("/proc/thread-self/net/{table}"))?;
    let is_wanted = |listed: &Listed| listed.port == ROCE_PORT && listed.address == address.ip();
    Ok(text.lines().filter_map(read_line).filter(is_wanted).map(|listed| listed.user).collect())
}

/// Reads a line: number, local address and port in hexadecimal, the remote ones, state, two queues,
/// timer, retransmissions, user.
fn read_line(line: &str) -> Option<Listed> {
    let mut fields = line.split_whitespace();
    let (address, port) = fields.nth(1)?.split_once(':')?;
    let user = fields.nth(5)?.parse().ok()?;
    Some(Listed {
        address: read_address(address)?,
        port: u16::from_str_radix(port, 16).ok()?,
        user,
    })
}

/// The kernel prints an address as words of 32 bits, each in the byte order of the host.
fn read_address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at * 8..at * 8 + 8)?, 16).ok();
    let bytes = |at| Some(word(at)?.to_ne_bytes());
    match text.len() {
        8 => Some(Ipv4Addr::from(bytes(0)?).into()),
        32 => {
            let mut octets = [0; 16];
            for (at, part) in octets.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&bytes(at)?);
            }
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        // As Linux 6.18 on a little-endian machine prints it.
        let line = " 4791: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000 \
                    1000        0 123456 2 0000000000000000 0";
        if cfg!(target_endian = "little") {
            let expected =
                Listed { address: Ipv4Addr::LOCALHOST.into(), port: ROCE_PORT, user: 1000 };
            assert_eq!(read_line(line), Some(expected));
            let v6 = "00000000000000000000000001000000";
            assert_eq!(read_address(v6), Some(Ipv6Addr::LOCALHOST.into()));
        }
        assert_eq!(read_line("  sl  local_address rem_address   st tx_queue rx_queue"), None);
        assert_eq!(read_line(""), None);
    }

    #[test]
    fn a_socket_of_this_user_is_listed_and_is_no_other_users() {
        let ip = crate::udp::test_address(20);
        let address = SocketAddr::new(ip, ROCE_PORT);
        let _socket = std::net::UdpSocket::bind(address).expect("bind");
        let text = std::fs::read_to_string("/proc/thread-self/net/udp").expect("the table");
        let user = rustix::process::geteuid().as_raw();
        let expected = Listed { address: ip, port: ROCE_PORT, user };
        assert!(text.lines().filter_map(read_line).any(|listed| listed == expected));
        assert_eq!(other_user(address), None);
        assert_eq!(sockets_on(address).expect("the table"), 1);
    }
}
