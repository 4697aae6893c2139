//! The interfaces of a host that refuses netlink, as some sandboxes do: by `/proc/net` and ioctls.
//!
//! It tells no less than netlink, but which interface is on top of which, and which addresses are
//! tentative in IPv4 (none is).

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use gid_table::InterfaceInfo;

use crate::sys::ifreq::InterfaceRequests;

/// Where the kernel tells of the network namespace of this thread; `/proc/net` is that of the
/// process's first thread.
const NET: &str = "/proc/thread-self/net";
/// `IFF_UP` and `IFF_LOWER_UP` of `<linux/if.h>`. What asks for flags gives 16 bits, so
/// `IFF_RUNNING` has to stand for the carrier.
const IFF_UP: u32 = 1;
const IFF_RUNNING: u32 = 1 << 6;
/// As in rtnetlink: `IFA_F_DADFAILED`, `IFA_F_TENTATIVE`.
const UNUSABLE: u32 = 0x08 | 0x40;

/// All interfaces, by index. One that goes away while it is being asked about is left out.
pub(super) fn scan() -> io::Result<Vec<InterfaceInfo>> {
    let requests = InterfaceRequests::new()?;
    let mut found = Vec::new();
    for name in names(&fs::read_to_string(Path::new(NET).join("dev"))?) {
        match describe(&requests, name) {
            Ok(info) => found.push(info),
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    for (name, ip) in requests.ipv4_addresses()? {
        // An address with a label (`eth0:1`) comes under that name.
        let name = name.split(':').next().unwrap_or_default();
        if let Some(info) = found.iter_mut().find(|info| info.name == name)
            && !info.addrs.contains(&ip.into())
        {
            info.addrs.push(ip.into());
        }
    }
    // There is no such file where the kernel has no IPv6.
    let v6 = fs::read_to_string(Path::new(NET).join("if_inet6")).unwrap_or_default();
    for (ifindex, ip, usable) in v6.lines().filter_map(read_inet6) {
        if let Some(info) = found.iter_mut().find(|info| info.ifindex == ifindex) {
            info.addrs.push(ip);
            if !usable {
                info.tentative.push(ip);
            }
        }
    }
    found.sort_by_key(|info| info.ifindex);
    Ok(found)
}

fn describe(requests: &InterfaceRequests, name: &str) -> io::Result<InterfaceInfo> {
    let flags = requests.flags(name)?;
    Ok(InterfaceInfo {
        name: name.to_owned(),
        ifindex: requests.index(name)?,
        mac: requests.mac(name)?,
        mtu: requests.mtu(name)?,
        up: flags & IFF_UP != 0,
        running: flags & IFF_RUNNING != 0,
        ..InterfaceInfo::default()
    })
}

/// The names in `/proc/net/dev`: two lines of headings, then `name: numbers`.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.lines().skip(2).filter_map(|line| Some(line.rsplit_once(':')?.0.trim()))
}

/// Reads a line of `/proc/net/if_inet6`: address, index, prefix length, scope, flags, name, all
/// numbers in hexadecimal.
fn read_inet6(line: &str) -> Option<(u32, IpAddr, bool)> {
    let mut fields = line.split_whitespace();
    let address = Ipv6Addr::from(u128::from_str_radix(fields.next()?, 16).ok()?);
    let ifindex = u32::from_str_radix(fields.next()?, 16).ok()?;
    let flags = u32::from_str_radix(fields.nth(2)?, 16).ok()?;
    Some((ifindex, address.into(), flags & UNUSABLE == 0))
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_at_the_colon() {
        let text = "Inter-|   Receive\n face |bytes\n    lo: 1 2\neth0:5 6\n a.b@c: 1\n";
        assert_eq!(names(text).collect::<Vec<_>>(), ["lo", "eth0", "a.b@c"]);
    }

    #[test]
    fn a_line_of_if_inet6() {
        let line = "fe800000000000005054 00fffe770001 02 40 20 80 eth0";
        assert_eq!(read_inet6(line), None);
        let line = "fe80000000000000505400fffe770001 0a 40 20 c0     eth0";
        let ip: IpAddr = "fe80::5054:ff:fe77:1".parse().expect("an address");
        assert_eq!(read_inet6(line), Some((10, ip, false)));
        assert_eq!(read_inet6(&line.replace("c0", "80")), Some((10, ip, true)));
    }

    #[test]
    fn a_scan_tells_what_netlink_tells() {
        let mut told = super::super::by_netlink().expect("no sandbox");
        let mut scanned = scan().expect("a /proc");
        for info in told.iter_mut().chain(&mut scanned) {
            // These it cannot know, and `/proc` lists addresses in no order.
            (info.lower, info.vlan) = (None, None);
            info.addrs.sort();
        }
        assert_eq!(scanned, told);
    }
}
