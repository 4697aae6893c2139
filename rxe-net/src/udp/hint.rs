//! ICMP errors about packets that a socket sent, from its error queue.

use std::io;
use std::os::fd::BorrowedFd;

use gid_table::Gid;
use rxe_core::path::Unreachable;
use rxe_wire::{Psn, Qpn};

use super::steer::ROCE_PORT;
use super::sys::{self, Control, InMessage, RecvRing};

/// Rounds of emptying an error queue at most, each of as many messages as the ring has places.
const ROUNDS_MAX: usize = 64;
/// Offset of `ee_origin` in `struct sock_extended_err`.
const ORIGIN_OFFSET: usize = 4;
/// Bytes of BTH, whose destination QPN and PSN identify the packet.
const BTH_LEN: usize = 12;

/// Empties the error queue of a socket; gives `found` what the ICMP errors there were about.
///
/// Returns how many ICMP errors there were. Those of this host, such as a packet longer than the
/// MTU of the interface, are dropped: the call that caused them has told them.
///
/// It takes no more than [`ROUNDS_MAX`] rings full: whoever sends forged ones as fast as they are
/// taken must not hold the caller. What is left fails the next send, which takes it then.
pub(crate) fn drain(
    fd: BorrowedFd<'_>,
    ring: &mut RecvRing,
    found: impl FnMut(Unreachable),
) -> io::Result<usize> {
    drain_rounds(fd, ring, ROUNDS_MAX, found)
}

fn drain_rounds(
    fd: BorrowedFd<'_>,
    ring: &mut RecvRing,
    rounds: usize,
    mut found: impl FnMut(Unreachable),
) -> io::Result<usize> {
    let mut errors = 0;
    for _ in 0..rounds {
        let count = match ring.receive(fd, libc::MSG_ERRQUEUE) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(errors),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        for index in 0..count {
            let Some(message) = ring.message(index) else { continue };
            if !sys::controls(message.control).any(|control| is_icmp(&control)) {
                continue;
            }
            errors += 1;
            if let Some(hint) = parse(&message) {
                found(hint);
            }
        }
    }
    Ok(errors)
}

/// Reads an ICMP error of the queue: its bytes are those quoted after the UDP header, and its
/// address is the one that the packet was sent to.
fn parse(message: &InMessage<'_>) -> Option<Unreachable> {
    let to = message.from.filter(|to| to.port() == ROCE_PORT)?;
    let bth = message.bytes.get(..BTH_LEN)?;
    let number = |at: usize| u32::from_be_bytes([0, bth[at], bth[at + 1], bth[at + 2]]);
    Some(Unreachable {
        destination: Gid::from_ip(to.ip()),
        dest_qpn: Qpn::new(number(5)),
        psn: Psn::new(number(9)),
    })
}

fn is_icmp(control: &Control<'_>) -> bool {
    let expected = match (control.level, control.kind) {
        (libc::SOL_IP, libc::IP_RECVERR) => libc::SO_EE_ORIGIN_ICMP,
        (libc::SOL_IPV6, libc::IPV6_RECVERR) => libc::SO_EE_ORIGIN_ICMP6,
        _ => return false,
    };
    control.data.get(ORIGIN_OFFSET) == Some(&expected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn control(level: i32, kind: i32, origin: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend((size_of::<usize>() + 8 + 16).to_ne_bytes());
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([111, 0, 0, 0, origin, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        bytes
    }

    fn read(to: &str, bytes: &[u8]) -> Option<Unreachable> {
        let from: SocketAddr = to.parse().expect("address");
        let mut bytes = bytes.to_vec();
        parse(&InMessage { from: Some(from), control: &[], bytes: &mut bytes, truncated: false })
    }

    #[test]
    fn a_quoted_bth_becomes_a_hint() {
        let bth = [0x04, 0, 0xff, 0xff, 0, 0x12, 0x34, 0x56, 0x80, 0x65, 0x43, 0x21];
        let expected = Unreachable {
            destination: Gid::from_ip("10.0.0.9".parse().expect("ip")),
            dest_qpn: Qpn::new(0x12_3456),
            psn: Psn::new(0x65_4321),
        };
        assert_eq!(read("10.0.0.9:4791", &bth), Some(expected));
        assert!(read("[fd00::9]:4791", &bth).is_some());
        assert_eq!(read("10.0.0.9:4791", &bth[..11]), None, "too short a quote");
        assert_eq!(read("10.0.0.9:53", &bth), None, "not a RoCE packet");
    }

    #[test]
    fn only_icmp_errors_count() {
        let icmp = |bytes: &[u8]| sys::controls(bytes).any(|control| is_icmp(&control));
        let with = |level, kind, origin| icmp(&control(level, kind, origin));
        assert!(with(libc::SOL_IP, libc::IP_RECVERR, 2));
        assert!(with(libc::SOL_IPV6, libc::IPV6_RECVERR, 3));
        assert!(!with(libc::SOL_IP, libc::IP_RECVERR, 1), "an error of this host");
        assert!(!with(libc::SOL_IP, libc::IP_TTL, 2), "another control message");
        assert!(!icmp(&control(libc::SOL_IP, libc::IP_RECVERR, 2)[..18]), "a cut one");
    }

    #[test]
    fn errors_are_taken_in_so_many_rounds() {
        use std::os::fd::AsFd;
        let ip = crate::udp::test_address(32);
        let socket = std::net::UdpSocket::bind((ip, 0)).expect("bind");
        sys::set_int(socket.as_fd(), libc::SOL_IP, libc::IP_RECVERR, 1).expect("set");
        // Nobody is there; what came of one shows in the next.
        let mut sent = 0;
        while sent < 10 {
            sent += usize::from(socket.send_to(&[0; 12], (ip, ROCE_PORT)).is_ok());
        }
        let mut ring = RecvRing::new(1);
        let mut hints = 0;
        let mut drain = |rounds| {
            drain_rounds(socket.as_fd(), &mut ring, rounds, |_| hints += 1).expect("drained")
        };
        let taken = [drain(3), drain(4), drain(100), drain(100)];
        assert_eq!(taken, [3, 4, 3, 0]);
        assert_eq!(hints, 10);
    }
}
