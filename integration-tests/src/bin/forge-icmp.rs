//! Answers RoCE packets over IPv4 with forged ICMP errors: `forge-icmp`, as root.
//!
//! It takes orders by lines on its standard input: `forge NUMBER` waits for so many packets to UDP
//! port 4791 of this host, and answers each, although it has come to whom it was for, with all errors
//! that ICMP has for datagrams, each quoting the packet; then it says `forged NUMBER`. It ends with
//! its standard input.

use std::error::Error;
use std::io::{BufRead, Write, stdin, stdout};
use std::net::{Ipv4Addr, SocketAddrV4};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recvfrom, sendto,
    socket_with,
};

/// Types and codes (RFC 792, RFC 1122 section 3.2.2): destination unreachable, for each reason that
/// there is, time exceeded, parameter problem.
const ERRORS: [(u8, u8); 10] =
    [(3, 0), (3, 1), (3, 2), (3, 3), (3, 4), (3, 9), (3, 10), (3, 13), (11, 0), (12, 0)];
/// Bytes quoted behind the IP header: UDP, BTH, and some more.
const QUOTED: usize = 40;

fn main() -> Result<(), Box<dyn Error>> {
    let raw = |protocol| {
        let flags = SocketFlags::CLOEXEC;
        socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(protocol))
    };
    let (heard, icmp) = (raw(ipproto::UDP)?, raw(ipproto::ICMP)?);
    println!("ready");
    for order in stdin().lock().lines() {
        let order = order?;
        let count: usize = order.strip_prefix("forge ").ok_or("forge NUMBER")?.parse()?;
        let (mut done, mut packet) = (0, [0; 2048]);
        while done < count {
            let (len, _, _) = recvfrom(&heard, &mut packet[..], RecvFlags::empty())?;
            let Some((source, quoted)) = quote(&packet[..len]) else { continue };
            for (kind, code) in ERRORS {
                let to = SocketAddrV4::new(source, 0);
                sendto(&icmp, &error(kind, code, quoted), SendFlags::empty(), &to)?;
            }
            done += 1;
        }
        println!("forged {count}");
        stdout().flush()?;
    }
    Ok(())
}

/// Whom a packet to port 4791 is from, and what an error quotes of it.
fn quote(packet: &[u8]) -> Option<(Ipv4Addr, &[u8])> {
    let header_len = usize::from(packet.first()? & 0xf) * 4;
    let source: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
    let is_roce = packet.get(header_len + 2..header_len + 4)? == 4791_u16.to_be_bytes();
    let end = packet.len().min(header_len + QUOTED);
    is_roce.then_some((source.into(), &packet[..end]))
}

fn error(kind: u8, code: u8, quoted: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0, 0, 0, 0, 0];
    if (kind, code) == (3, 4) {
        // The MTU that is said to be needed: the smallest of IPv4.
        message[6..8].copy_from_slice(&68_u16.to_be_bytes());
    }
    message.extend(quoted);
    let mut sum = 0_u32;
    for pair in message.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    message[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    message
}
