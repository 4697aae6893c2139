//! How connections between queue pairs are named by IP addresses and ports.

use std::net::{IpAddr, SocketAddr};

use gid_table::Gid;
use rxe_wire::mad::cm::{
    CMA_HEADER_LEN, CmaHeader, FieldTooLong, FixedBytes, PortSpace, ServiceId, TimeoutExponent,
};
use thiserror::Error;

/// How long a packet lives in the network, as an exponent: what Linux assumes for RoCE, where no
/// subnet manager says it.
pub const PACKET_LIFETIME: TimeoutExponent = TimeoutExponent::new(16);
/// How long either side may take to answer a message (facts: `CMA_CM_RESPONSE_TIMEOUT`).
pub const RESPONSE_TIMEOUT: TimeoutExponent = TimeoutExponent::new(20);
/// How often a message is sent again (facts: `CMA_MAX_CM_RETRIES`).
pub const MAX_CM_RETRIES: u8 = 15;
/// How much more time an owner is given that has not decided yet (facts: MRA setting).
pub const MRA_TIMEOUT: TimeoutExponent = TimeoutExponent::new(24);
/// The queue key of datagrams between queue pairs that the connection manager sets up (C:
/// `RDMA_UDP_QKEY`).
pub const UDP_QKEY: u32 = 0x0123_4567;

/// The private data of a REQ or SIDR_REQ: who connects to whom, then the caller's own.
///
/// # Errors
///
/// [`FieldTooLong`] when the caller's data does not fit behind the header: of a REQ 56 bytes do, of
/// a SIDR_REQ 180.
pub fn request_data<const N: usize>(
    source: SocketAddr,
    destination: IpAddr,
    data: &[u8],
) -> Result<FixedBytes<N>, FieldTooLong> {
    let room = N.saturating_sub(CMA_HEADER_LEN);
    let mut field = FixedBytes([0; N]);
    let too_long = FieldTooLong { have: data.len(), room };
    let (header, rest) = field.0.split_first_chunk_mut().ok_or(too_long)?;
    rest.get_mut(..data.len()).ok_or(too_long)?.copy_from_slice(data);
    cma_header(source, destination).write(header);
    Ok(field)
}

fn cma_header(source: SocketAddr, destination: IpAddr) -> CmaHeader {
    match (source.ip(), destination) {
        (IpAddr::V4(from), IpAddr::V4(to)) => CmaHeader::v4(source.port(), from, to),
        (from, to) => CmaHeader::v6(source.port(), v6(from), v6(to)),
    }
}

fn v6(ip: IpAddr) -> std::net::Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// What a peer says of itself in a REQ or SIDR_REQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asker<'a> {
    /// Its address and port.
    pub source: SocketAddr,
    /// The address and port that it asks for.
    pub destination: SocketAddr,
    /// The private data of its program.
    pub data: &'a [u8],
}

/// Why the private data of a request does not say who connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum NoAsker {
    /// The service id belongs to no port space.
    #[error("service {0} belongs to no port space")]
    Service(ServiceId),
    /// The header is of another version.
    #[error("the header has version {version} and IP version {ip_version}, not 0 and 4 or 6")]
    Version {
        /// Version of the header.
        version: u8,
        /// IP version.
        ip_version: u8,
    },
    /// The packet came between others than the header says.
    #[error("the header names {named}, the packet has {came}")]
    Somebody {
        /// The address in the header.
        named: IpAddr,
        /// What the packet has in its place.
        came: Gid,
    },
    /// There is no header.
    #[error("{0} bytes of private data hold no header")]
    Short(usize),
}

/// Reads who connects to whom.
///
/// # Errors
///
/// [`NoAsker`].
pub fn asker(service: ServiceId, private_data: &[u8]) -> Result<Asker<'_>, NoAsker> {
    service.port_space().ok_or(NoAsker::Service(service))?;
    let (header, data) =
        private_data.split_first_chunk().ok_or(NoAsker::Short(private_data.len()))?;
    let header = CmaHeader::read(header);
    let version = NoAsker::Version { version: header.version, ip_version: header.ip_version.get() };
    let (Some(source), Some(destination), 0) =
        (header.source_ip(), header.destination_ip(), header.version)
    else {
        return Err(version);
    };
    Ok(Asker {
        source: SocketAddr::new(source, header.source_port),
        destination: SocketAddr::new(destination, service.port()),
        data,
    })
}

/// The local ACK timeout of a path: both ways, and the time that the peer's device may delay an
/// acknowledgement (facts section 1).
pub const fn ack_timeout(
    packet_lifetime: TimeoutExponent,
    ack_delay: TimeoutExponent,
) -> TimeoutExponent {
    let (both_ways, delay) = (packet_lifetime.get() + 1, ack_delay.get());
    // Exponents: two that differ by at most one make together about twice the greater.
    let sum = if both_ways >= delay {
        both_ways + (delay >= both_ways - 1) as u8
    } else {
        delay + (both_ways >= delay - 1) as u8
    };
    TimeoutExponent::new(if sum > 31 { 31 } else { sum })
}

/// Whether a port space is of datagrams.
pub const fn is_of_datagrams(space: PortSpace) -> bool {
    matches!(space, PortSpace::Udp | PortSpace::Ipoib)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_say_who_connects() {
        for (from, to) in [("10.77.0.2:40000", "10.77.0.1"), ("[fd00::2]:40000", "fd00::1")] {
            let (from, to): (SocketAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
            let field: FixedBytes<92> = request_data(from, to, b"hello").unwrap();
            let asker = asker(ServiceId::ip(PortSpace::Tcp, 7174), &field.0).unwrap();
            assert_eq!((asker.source, asker.destination), (from, SocketAddr::new(to, 7174)));
            assert_eq!((&asker.data[..5], asker.data.len()), (&b"hello"[..], 56));
        }
    }

    #[test]
    fn private_data_has_its_limits() {
        let (from, to) = ("10.77.0.2:1".parse().unwrap(), "10.77.0.1".parse().unwrap());
        assert!(request_data::<92>(from, to, &[1; 56]).is_ok());
        let error = request_data::<92>(from, to, &[1; 57]).unwrap_err();
        assert_eq!(error, FieldTooLong { have: 57, room: 56 });
        assert!(request_data::<216>(from, to, &[1; 180]).is_ok());
        assert!(request_data::<216>(from, to, &[1; 181]).is_err());
    }

    #[test]
    fn what_is_no_header_is_refused() {
        let service = ServiceId::ip(PortSpace::Tcp, 1);
        assert_eq!(asker(ServiceId(1), &[0; 92]), Err(NoAsker::Service(ServiceId(1))));
        assert_eq!(asker(service, &[0; 35]), Err(NoAsker::Short(35)));
        let version = |version, ip_version| Err(NoAsker::Version { version, ip_version });
        assert_eq!(asker(service, &[0; 92]), version(0, 0));
        let mut data = [0; 92];
        data[..2].copy_from_slice(&[1, 0x40]);
        assert_eq!(asker(service, &data), version(1, 4));
        data[..2].copy_from_slice(&[0, 0x50]);
        assert_eq!(asker(service, &data), version(0, 5));
    }

    #[test]
    fn ack_timeouts_are_those_that_linux_sends() {
        let timeout = |lifetime, delay| {
            ack_timeout(TimeoutExponent::new(lifetime), TimeoutExponent::new(delay)).get()
        };
        // The captures: lifetime 18, delay 15 give 19.
        assert_eq!(timeout(18, 15), 19);
        assert_eq!(timeout(16, 15), 17);
        assert_eq!(timeout(14, 15), 16, "15 and 15 make 16");
        assert_eq!(timeout(13, 15), 16);
        assert_eq!(timeout(5, 15), 15);
        assert_eq!(timeout(31, 31), 31);
    }
}
