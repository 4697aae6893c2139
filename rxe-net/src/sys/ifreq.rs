//! The `SIOCGIF*` requests of netdevice(7), and that of ethtool: what the host knows of an interface, by name.
//!
//! Not from `/sys/class/net`: sysfs shows the network namespace that it was mounted in, which is
//! another than ours after `ip netns exec` without a fresh mount, or after `setns(2)`.

use std::ffi::c_char;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

/// `ARPHRD_ETHER` of `<net/if_arp.h>`: the interface has Ethernet addresses.
const ARPHRD_ETHER: u16 = 1;
/// `ARPHRD_LOOPBACK` of `<net/if_arp.h>`: the interface is `lo`, of address zero.
const ARPHRD_LOOPBACK: u16 = 772;

/// `SIOCETHTOOL` of `<linux/sockios.h>`, and its question about the link (`ETHTOOL_GSET` of
/// `<linux/ethtool.h>`).
const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GSET: u32 = 1;

/// `struct ethtool_cmd`: the question, and the speed in two halves.
#[repr(C)]
#[derive(Default)]
struct EthtoolCmd {
    cmd: u32,
    supported: u32,
    advertising: u32,
    speed: u16,
    settings: [u8; 6],
    packets: [u32; 2],
    speed_hi: u16,
    crossover: [u8; 2],
    rest: [u32; 3],
}

const _: () = assert!(size_of::<EthtoolCmd>() == 44);

/// Asks about interfaces of the network namespace that it was made in.
#[derive(Debug)]
pub(crate) struct InterfaceRequests {
    /// Any socket does: these requests go to the namespace of a socket, whatever its family.
    /// This one needs no address family of IP, which a host may lack.
    socket: UnixDatagram,
}

impl InterfaceRequests {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { socket: UnixDatagram::unbound()? })
    }

    /// The MTU in bytes, without the Ethernet header (`SIOCGIFMTU`).
    pub(crate) fn mtu(&self, name: &str) -> io::Result<u32> {
        let mut request = request_for(name)?;
        self.ioctl(libc::SIOCGIFMTU, &mut request)?;
        #[allow(unsafe_code)] // the workspace denies it elsewhere
        // SAFETY: the union began as all zeros and SIOCGIFMTU, which succeeded, wrote an int to
        // `ifru_mtu`; any bits are a valid c_int.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        u32::try_from(mtu).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
    }

    /// The Ethernet address, zero for `lo`, `None` for other kinds of link (`SIOCGIFHWADDR`).
    pub(crate) fn mac(&self, name: &str) -> io::Result<Option<[u8; 6]>> {
        let mut request = request_for(name)?;
        self.ioctl(libc::SIOCGIFHWADDR, &mut request)?;
        #[allow(unsafe_code)]
        // SAFETY: the union began as all zeros and SIOCGIFHWADDR, which succeeded, wrote a
        // sockaddr to `ifru_hwaddr`; any bits are a valid sockaddr, which is plain integers.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr };
        if !matches!(address.sa_family, ARPHRD_ETHER | ARPHRD_LOOPBACK) {
            return Ok(None);
        }
        let [a, b, c, d, e, f, ..] = address.sa_data.map(c_char_bits);
        Ok(Some([a, b, c, d, e, f]))
    }

    /// The speed in Mb/s, if the link has one and tells (`SIOCETHTOOL`): `lo` does not.
    pub(crate) fn speed(&self, name: &str) -> io::Result<Option<u32>> {
        let mut request = request_for(name)?;
        let mut asked = EthtoolCmd { cmd: ETHTOOL_GSET, ..EthtoolCmd::default() };
        request.ifr_ifru.ifru_data = (&raw mut asked).cast();
        match self.ioctl(SIOCETHTOOL, &mut request) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(None),
            done => done?,
        }
        let speed = u32::from(asked.speed_hi) << 16 | u32::from(asked.speed);
        // A link that is down does not know: all ones, of 16 bits by old drivers.
        Ok(Some(speed).filter(|speed| ![0, 0xffff, u32::MAX].contains(speed)))
    }

    /// The flags, of which there are 16 bits (`SIOCGIFFLAGS`).
    pub(crate) fn flags(&self, name: &str) -> io::Result<u32> {
        let mut request = request_for(name)?;
        self.ioctl(libc::SIOCGIFFLAGS, &mut request)?;
        #[allow(unsafe_code)]
        // SAFETY: the union began as all zeros and SIOCGIFFLAGS, which succeeded, wrote a short to
        // `ifru_flags`; any bits are a valid c_short.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        Ok(u32::from(flags.cast_unsigned()))
    }

    /// The index (`SIOCGIFINDEX`).
    pub(crate) fn index(&self, name: &str) -> io::Result<u32> {
        let mut request = request_for(name)?;
        self.ioctl(libc::SIOCGIFINDEX, &mut request)?;
        #[allow(unsafe_code)]
        // SAFETY: the union began as all zeros and SIOCGIFINDEX, which succeeded, wrote an int to
        // `ifru_ifindex`; any bits are a valid c_int.
        let index = unsafe { request.ifr_ifru.ifru_ifindex };
        u32::try_from(index).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
    }

    /// The IPv4 addresses of all interfaces, each with the name that it goes by (`SIOCGIFCONF`).
    pub(crate) fn ipv4_addresses(&self) -> io::Result<Vec<(String, Ipv4Addr)>> {
        let mut room = 64;
        loop {
            let listed = self.list(room)?;
            // A full list may have been cut off.
            if listed.len() < room {
                return Ok(listed.iter().filter_map(name_and_address).collect());
            }
            room *= 2;
        }
    }

    /// At most `room` entries of `SIOCGIFCONF`.
    fn list(&self, room: usize) -> io::Result<Vec<libc::ifreq>> {
        #[allow(unsafe_code)]
        // SAFETY: `ifreq` is plain integers, for which zero is valid.
        let mut listed = vec![unsafe { std::mem::zeroed::<libc::ifreq>() }; room];
        let bytes = size_of_val(listed.as_slice());
        let len = i32::try_from(bytes).map_err(|_| io::ErrorKind::InvalidData)?;
        let mut request = libc::ifconf {
            ifc_len: len,
            ifc_ifcu: libc::__c_anonymous_ifc_ifcu { ifcu_req: listed.as_mut_ptr() },
        };
        #[allow(unsafe_code)]
        // SAFETY: `request` is exclusive for the call, and says truly how many bytes `listed` has,
        // which the kernel writes whole entries into, and no more than fit.
        let result = unsafe {
            libc::ioctl(self.socket.as_raw_fd(), code_of(libc::SIOCGIFCONF), &raw mut request)
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        let written = usize::try_from(request.ifc_len).unwrap_or_default();
        listed.truncate(written / size_of::<libc::ifreq>());
        Ok(listed)
    }

    fn ioctl(&self, code: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
        #[allow(unsafe_code)]
        // SAFETY: `request` is an exclusive reference to a whole `ifreq` for the time of the call.
        // The codes passed here read `ifr_name` (ended by a NUL, see `request_for`) and write into
        // `ifr_ifru`, never past the structure; that of ethtool reads and writes the structure that
        // `ifru_data` points to, which its caller has whole for as long. The descriptor is open: `self` owns it.
        let result =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), code_of(code), &raw mut *request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// A code as `ioctl` takes it, which has it as an int in musl. It has 16 bits.
const fn code_of(code: libc::c_ulong) -> libc::Ioctl {
    code as libc::Ioctl
}

/// What an entry of `SIOCGIFCONF` says; `None` for one of another family.
fn name_and_address(entry: &libc::ifreq) -> Option<(String, Ipv4Addr)> {
    #[allow(unsafe_code)]
    // SAFETY: the union is all initialised, and any bits are a valid sockaddr of plain integers.
    let address = unsafe { entry.ifr_ifru.ifru_addr };
    if i32::from(address.sa_family) != libc::AF_INET {
        return None;
    }
    // `struct sockaddr_in`: behind the family the port, of two bytes, then the address.
    let [_, _, a, b, c, d, ..] = address.sa_data.map(c_char_bits);
    let name = entry.ifr_name.map(c_char_bits);
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    Some((String::from_utf8_lossy(name).into_owned(), Ipv4Addr::new(a, b, c, d)))
}

/// A request naming an interface.
///
/// A name that is empty, contains a NUL or is longer than 15 bytes cannot be one: `ENODEV`.
fn request_for(name: &str) -> io::Result<libc::ifreq> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    #[allow(unsafe_code)]
    // SAFETY: `ifreq` is an array of characters and a union of integers, arrays of integers and a
    // pointer; all zeros are a valid value of each (the pointer is null).
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = c_char::from_ne_bytes([byte]);
    }
    Ok(request)
}

const fn c_char_bits(character: c_char) -> u8 {
    let [byte] = character.to_ne_bytes();
    byte
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_known() {
        let requests = InterfaceRequests::new().expect("a socket");
        assert!(requests.mtu("lo").expect("lo is there") >= 1280);
        assert_eq!(requests.mac("lo").expect("lo is there"), Some([0; 6]));
        assert_eq!(requests.speed("lo").expect("lo is there"), None);
        assert_eq!(requests.index("lo").expect("lo is there"), 1);
        let is_up = requests.flags("lo").expect("lo is there") & 1 != 0;
        let addresses = requests.ipv4_addresses().expect("a list");
        let has_own = addresses.contains(&("lo".to_owned(), Ipv4Addr::LOCALHOST));
        // In a fresh network namespace lo is down and has no address.
        assert_eq!(has_own, is_up, "{addresses:?}");
    }

    #[test]
    fn what_cannot_be_an_interface_is_none() {
        let requests = InterfaceRequests::new().expect("a socket");
        for name in ["", "lo\0", "a-name-much-too-long", "nosuchif"] {
            let error = requests.mtu(name).expect_err("no such interface");
            assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{name}");
            assert!(requests.mac(name).is_err() && requests.speed(name).is_err());
        }
    }
}
