//! Addresses that the user names.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

use clap::ValueEnum;

use super::error::CmError;

/// What an address has to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Format {
    /// A name, or an address of either family.
    Name,
    /// An IPv4 address.
    Ip,
    /// An IPv6 address.
    Ipv6,
    /// A GID, which is no address on RoCE: refused.
    Gid,
}

/// The first address of a name.
pub(crate) fn resolve(name: &str, port: u16) -> Result<SocketAddr, CmError> {
    resolve_as(name, port, |_| true)
}

/// The address of a server, and of this host where that is said; both of one family.
pub(crate) fn resolve_pair(
    server: &str,
    source: Option<&str>,
    port: u16,
    format: Format,
) -> Result<(Option<SocketAddr>, SocketAddr), CmError> {
    let source = source.map(|name| resolve_format(name, 0, format, |_| true)).transpose()?;
    let fits = |ip: IpAddr| source.is_none_or(|source| source.is_ipv4() == ip.is_ipv4());
    Ok((source, resolve_format(server, port, format, fits)?))
}

/// Where a server listens: at all addresses, if it is not said.
pub(crate) fn wildcard(
    name: Option<&str>,
    port: u16,
    format: Format,
) -> Result<SocketAddr, CmError> {
    match name {
        Some(name) => resolve_format(name, port, format, |_| true),
        None => Ok(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)),
    }
}

fn resolve_format(
    name: &str,
    port: u16,
    format: Format,
    fits: impl Fn(IpAddr) -> bool,
) -> Result<SocketAddr, CmError> {
    let is_right = |ip: IpAddr| match format {
        Format::Name => true,
        Format::Ip => ip.is_ipv4(),
        Format::Ipv6 => ip.is_ipv6(),
        Format::Gid => false,
    };
    match format {
        Format::Gid => Err(CmError::GidAddress(name.to_owned())),
        // A scope ("%eth0") is the resolver's business.
        Format::Ip | Format::Ipv6
            if !name.split('%').next().is_some_and(|ip| ip.parse().is_ok_and(is_right)) =>
        {
            Err(CmError::Format { name: name.to_owned() })
        }
        _ => resolve_as(name, port, fits),
    }
}

fn resolve_as(name: &str, port: u16, fits: impl Fn(IpAddr) -> bool) -> Result<SocketAddr, CmError> {
    let failed = |source| CmError::Name { name: name.to_owned(), source };
    let mut addresses = (name, port).to_socket_addrs().map_err(failed)?;
    addresses
        .find(|address| fits(address.ip()))
        .ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_what_the_address_has_to_be() {
        let any = |_| true;
        let of = |name, format| resolve_format(name, 7, format, any).map(|a| a.to_string());
        assert_eq!(of("10.0.0.1", Format::Ip).unwrap(), "10.0.0.1:7");
        assert_eq!(of("fd00::1", Format::Ipv6).unwrap(), "[fd00::1]:7");
        assert_eq!(of("fd00::1", Format::Name).unwrap(), "[fd00::1]:7");
        for (name, format) in
            [("fd00::1", Format::Ip), ("10.0.0.1", Format::Ipv6), ("localhost", Format::Ip)]
        {
            assert!(matches!(of(name, format), Err(CmError::Format { .. })), "{name} {format:?}");
        }
        assert!(matches!(of("fd00::1", Format::Gid), Err(CmError::GidAddress(_))));
    }

    #[test]
    fn both_addresses_are_of_one_family() {
        let pair = |server, source| resolve_pair(server, Some(source), 7, Format::Name);
        assert!(pair("10.0.0.1", "10.0.0.2").is_ok());
        assert!(matches!(pair("10.0.0.1", "fd00::2"), Err(CmError::Name { .. })));
        assert_eq!(wildcard(None, 7, Format::Name).unwrap(), "0.0.0.0:7".parse().unwrap());
    }
}
