//! Probes: packets that ask which socket of an address the kernel has at an index.
//!
//! A probe is a RoCEv2 packet as others are, with a good iCRC, from an address to itself: the
//! kernel lets no packet in from outside that claims such a source over IPv4. Its opcode is none of
//! rxe-wire's table, and its destination QPN is 0xFFFF00 plus the index, which the steering program
//! takes for the index. So the engine never gets one.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rxe_core::path::Path;
use rxe_wire::icrc::IcrcFlow;

use super::socket::{self, BufferSizes};
use super::sys::{self, OutMessage, RawAddress};

/// The opcode of a probe; it stands for nothing else.
const OPCODE: u8 = 0xff;
/// The upper 16 bits of the destination QPN of a probe.
pub(super) const QPN_PREFIX: u32 = 0xffff;
/// Bytes of BTH.
const BTH_LEN: usize = 12;
/// Bytes of a probe without the iCRC: BTH, the number of the survey, the slot, three of nothing.
const LEN: usize = BTH_LEN + 12;

/// A probe that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Probe {
    /// The number of the survey.
    pub(crate) survey: u64,
    /// The index that it was for.
    pub(crate) index: u8,
    /// The slot whose inbox the answer is for.
    pub(crate) slot: u8,
}

/// Reads a probe, `bytes` from BTH to pad; `None` when it is none.
pub(crate) fn read(path: &Path, bytes: &[u8]) -> Option<Probe> {
    let bytes: &[u8; LEN] = bytes.try_into().ok()?;
    let is_probe = bytes[0] == OPCODE && bytes[5..7] == [0xff, 0xff];
    if !is_probe || path.source != path.destination {
        return None;
    }
    let survey = u64::from_ne_bytes(*bytes[BTH_LEN..].first_chunk()?);
    Some(Probe { survey, index: bytes[7], slot: bytes[BTH_LEN + 8] })
}

fn write(probe: Probe) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[0] = OPCODE;
    bytes[2..4].fill(0xff);
    let qpn = QPN_PREFIX << 8 | u32::from(probe.index);
    bytes[4..8].copy_from_slice(&qpn.to_be_bytes());
    bytes[BTH_LEN..BTH_LEN + 8].copy_from_slice(&probe.survey.to_ne_bytes());
    bytes[BTH_LEN + 8] = probe.slot;
    bytes
}

/// Sends probes to one address.
#[derive(Debug)]
pub(crate) struct Prober {
    socket: OwnedFd,
    flow: IcrcFlow,
    to: RawAddress,
}

impl Prober {
    /// Makes the socket that sends; `address` is where the sockets to be probed receive.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub(crate) fn open(address: SocketAddr) -> io::Result<Self> {
        let ip = address.ip();
        let socket = sys::udp_socket(ip)?;
        socket::prepare_sender(&socket, ip, BufferSizes::default())?;
        let mut own = address;
        own.set_port(0);
        sys::bind(socket.as_fd(), own)?;
        let port = sys::local_address(socket.as_fd())?.port();
        let flow = match ip {
            IpAddr::V4(ip) => IcrcFlow::v4(ip, ip, port),
            IpAddr::V6(ip) => IcrcFlow::v6(ip, ip, port),
        };
        Ok(Self { socket, flow, to: RawAddress::new(address, 0) })
    }

    /// Sends the probe for an index.
    ///
    /// # Errors
    ///
    /// Those of the system: the address cannot be reached from itself (`lo` is down).
    pub(crate) fn send(&self, index: u8, survey: u64, slot: u8) -> io::Result<()> {
        let packet = write(Probe { survey, index, slot });
        let mut sealed = packet.to_vec();
        sealed.extend(self.flow.icrc(0, &packet).to_le_bytes());
        let message = OutMessage { to: self.to, bytes: &sealed, segment: 0 };
        sys::send_messages(self.socket.as_fd(), &[message]).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use gid_table::Gid;

    use super::*;

    #[test]
    fn a_probe_is_read_as_written_and_nothing_else_is_one() {
        let own = Gid::from_ip(crate::udp::test_address(1));
        let path = Path::new(own, own);
        let probe = Probe { survey: 0x0123_4567_89ab_cdef, index: 7, slot: 200 };
        let bytes = write(probe);
        assert_eq!(read(&path, &bytes), Some(probe));
        assert_eq!(read(&path, &bytes[..LEN - 1]), None);
        let from_others = Path { source: Gid::from_ip(crate::udp::test_address(2)), ..path };
        assert_eq!(read(&from_others, &bytes), None, "not from the address itself");
        let mut other = bytes;
        other[0] = 0x64;
        assert_eq!(read(&path, &other), None, "a UD packet to the multicast QPN");
    }
}
