//! Values of options that several programs have.

use std::ops::RangeInclusive;

use rdma_cm::PortSpace;

/// Connections at most: each has a queue pair and two descriptors.
pub(crate) const fn connections() -> RangeInclusive<i64> {
    1..=10_000
}

/// A port space of datagrams by its number, decimal or `0x` and hexadecimal.
pub(crate) fn port_space(text: &str) -> Result<PortSpace, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16),
        None => text.parse(),
    };
    [PortSpace::Udp, PortSpace::Ipoib]
        .into_iter()
        .find(|&space| number.as_ref().is_ok_and(|&number| number == space as u16))
        .ok_or_else(|| "0x0111 (UDP) and 0x0002 (IPoIB) are possible".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_spaces_are_those_of_datagrams() {
        assert_eq!(port_space("0x0111"), Ok(PortSpace::Udp));
        assert_eq!(port_space("273"), Ok(PortSpace::Udp));
        assert_eq!(port_space("0x2"), Ok(PortSpace::Ipoib));
        for wrong in ["0x0106", "262", "udp", ""] {
            assert!(port_space(wrong).is_err(), "{wrong}");
        }
    }
}
