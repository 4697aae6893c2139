//! Service ids, and how the IP connection manager makes them of port spaces and ports.

use std::fmt;

/// The number of a service that a listener offers, 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ServiceId(pub u64);

/// A name space of ports in the IP connection manager (C: `enum rdma_port_space`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum PortSpace {
    /// Multicast compatible with IP over InfiniBand.
    Ipoib = 0x0002,
    /// Reliable connections.
    Tcp = 0x0106,
    /// Unreliable datagrams.
    Udp = 0x0111,
    /// Native InfiniBand service ids over IP addresses.
    Ib = 0x013f,
}

impl ServiceId {
    /// The service of `port` in `space`: space × 2^16 + port (facts.md section 2).
    pub const fn ip(space: PortSpace, port: u16) -> Self {
        Self(((space as u64) << 16) | port as u64)
    }

    /// The port space, or `None` when the id is not one of the IP connection manager.
    pub const fn port_space(self) -> Option<PortSpace> {
        match self.0 >> 16 {
            0x0002 => Some(PortSpace::Ipoib),
            0x0106 => Some(PortSpace::Tcp),
            0x0111 => Some(PortSpace::Udp),
            0x013f => Some(PortSpace::Ib),
            _ => None,
        }
    }

    /// The port, meaningful when [`ServiceId::port_space`] gives one.
    pub const fn port(self) -> u16 {
        (self.0 & 0xffff) as u16
    }
}

impl fmt::Display for ServiceId {
    /// `TCP:7174` for a port of a space, plain hex otherwise.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = match self.port_space() {
            Some(PortSpace::Ipoib) => "IPOIB",
            Some(PortSpace::Tcp) => "TCP",
            Some(PortSpace::Udp) => "UDP",
            Some(PortSpace::Ib) => "IB",
            None => return write!(f, "0x{:016x}", self.0),
        };
        write!(f, "{space}:{}", self.port())
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_spaces_have_their_numbers() {
        let id = ServiceId::ip(PortSpace::Tcp, 7174);
        assert_eq!(id, ServiceId(0x0000_0000_0106_1c06));
        assert_eq!(id.to_string(), "TCP:7174");
        assert_eq!(ServiceId::ip(PortSpace::Udp, 0xffff), ServiceId(0x0111_ffff));
        assert_eq!(ServiceId::ip(PortSpace::Ib, 1), ServiceId(0x013f_0001));
        assert_eq!(ServiceId::ip(PortSpace::Ipoib, 0), ServiceId(0x0002_0000));
    }

    #[test]
    fn what_a_service_id_says_is_read_back() {
        for space in [PortSpace::Ipoib, PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib] {
            let id = ServiceId::ip(space, 0x1234);
            assert_eq!((id.port_space(), id.port()), (Some(space), 0x1234));
        }
        let foreign = ServiceId(0x1000_0000_0106_0001);
        assert_eq!(foreign.port_space(), None);
        assert_eq!(foreign.to_string(), "0x1000000001060001");
    }
}
