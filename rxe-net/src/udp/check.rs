//! The check of the iCRC at a socket, which does not show the IPv4 identification.

use std::net::{IpAddr, SocketAddr};

use rxe_wire::icrc::{Encapsulation, IcrcFlow, solve_identification};

/// Covered bytes between the IPv4 identification and BTH: 14 of IPv4, 8 of UDP.
const AFTER_IDENTIFICATION: usize = 22;

/// Checks the iCRC of packets that come to one address.
///
/// Over IPv6 the check is exact. Over IPv4 the iCRC covers the identification, which a UDP socket
/// hides. The likely one is tried first, at the cost of one pass over the packet: in a coalesced
/// buffer, one more than that of the segment before; otherwise one more than the last from that
/// source if it counts, else 0, as urxe sends. When it fails, the identification that would make
/// the packet right is solved for; when there is one, the packet is taken as intact.
///
/// So **over IPv4 a corrupt packet passes once in about 65,536 times** with "don't fragment" set,
/// and as often with it clear, which is tried last. This comes on top of the UDP checksum, where
/// the sender made one, and of the link's own CRC. A packet socket has no such limit.
#[derive(Debug)]
pub(super) struct IcrcChecker {
    address: IpAddr,
    /// The source that the last packet came from, with its addressing in the iCRC.
    source: Option<(SocketAddr, IcrcFlow)>,
    /// The identification expected next from that source.
    expected: u16,
    /// Whether the source counts its identifications from one call to the next.
    counts: bool,
    /// Whether the last packet had "don't fragment" set.
    dont_fragment: bool,
}

impl IcrcChecker {
    /// A checker of what comes to `address`.
    pub(super) const fn new(address: IpAddr) -> Self {
        Self { address, source: None, expected: 0, counts: false, dont_fragment: true }
    }

    /// Begins a buffer that came from `from`: one packet, or several coalesced.
    ///
    /// False when the source is of another address family, which cannot be.
    pub(super) fn begin(&mut self, from: SocketAddr) -> bool {
        if self.source.is_some_and(|(source, _)| source == from) {
            if !self.counts {
                self.expected = 0;
            }
            return true;
        }
        let flow = match (from.ip(), self.address) {
            (IpAddr::V4(from_ip), IpAddr::V4(to)) => IcrcFlow::v4(from_ip, to, from.port()),
            (IpAddr::V6(from_ip), IpAddr::V6(to)) => IcrcFlow::v6(from_ip, to, from.port()),
            _ => return false,
        };
        self.source = Some((from, flow));
        self.expected = 0;
        self.counts = false;
        true
    }

    /// Whether `packet`, the next of the buffer from BTH to pad, may have the iCRC `received`.
    pub(super) fn is_good(&mut self, first_of_buffer: bool, packet: &[u8], received: u32) -> bool {
        let Some((_, flow)) = self.source else { return false };
        self.dont_fragment = true;
        let computed = flow.icrc(self.expected, packet);
        if computed == received {
            self.expected = self.expected.wrapping_add(1);
            return true;
        }
        if flow.encapsulation() != Encapsulation::V2Ipv4 {
            return false;
        }
        let Some(identification) = self.solve(&flow, packet, computed, received) else {
            // The segments after a corrupt one are counted on.
            self.expected = self.expected.wrapping_add(1);
            return false;
        };
        if first_of_buffer {
            // Neither 0 nor the next: from now on, one more than this is the best guess, unless
            // it turns out to begin at 0 again.
            self.counts = identification != 0;
        }
        self.expected = identification.wrapping_add(1);
        true
    }

    /// What IPv4 header the last packet seems to have had: its identification, and whether "don't
    /// fragment" was set. Of a bad packet, what was expected.
    pub(super) fn last_header(&self) -> (u16, bool) {
        (self.expected.wrapping_sub(1), self.dont_fragment)
    }

    /// The identification that makes `received` the iCRC, from the iCRC of the expected one.
    fn solve(
        &mut self,
        flow: &IcrcFlow,
        packet: &[u8],
        computed: u32,
        received: u32,
    ) -> Option<u16> {
        // The solver sees differences only: what it finds is relative to the expected one.
        let bytes_after = AFTER_IDENTIFICATION + packet.len();
        let difference = solve_identification(computed, received, bytes_after);
        difference.map(|difference| difference ^ self.expected).or_else(|| {
            // "Don't fragment" may be clear: a second pass, for packets that are corrupt or rare.
            let found = flow.identify(packet, received)?;
            self.dont_fragment = found.dont_fragment;
            Some(found.identification)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FROM: &str = "10.0.0.1:50000";

    fn flow() -> IcrcFlow {
        IcrcFlow::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 50_000)
    }

    fn checker() -> IcrcChecker {
        let mut checker = IcrcChecker::new("10.0.0.2".parse().expect("ip"));
        assert!(checker.begin(FROM.parse().expect("address")));
        checker
    }

    proptest! {
        #[test]
        fn any_identification_is_accepted_in_any_order(
            ids: Vec<(bool, u16)>,
            packet in proptest::collection::vec(any::<u8>(), 12..200),
        ) {
            let mut checker = checker();
            for (first, id) in ids {
                if first {
                    checker.begin(FROM.parse().expect("address"));
                }
                prop_assert!(checker.is_good(first, &packet, flow().icrc(id, &packet)));
                prop_assert_eq!(checker.expected, id.wrapping_add(1));
            }
        }
    }

    #[test]
    fn two_corrupt_packets_in_65536_pass() {
        let (mut checker, packet) = (checker(), [5; 40]);
        let good = flow().icrc(0, &packet);
        let count = 1_u32 << 18;
        // Spread the errors over all 32 bits by an odd multiplier.
        let passed = (1..=count)
            .filter(|n| checker.is_good(false, &packet, good ^ n.wrapping_mul(0x9e37_79b1)))
            .count();
        assert!((1..=24).contains(&passed), "{passed} of {count} passed, 8 are expected");
    }

    #[test]
    fn a_counting_source_is_expected_to_go_on() {
        let packet = [7; 40];
        let mut checker = checker();
        for id in [0x8000, 0x8001] {
            checker.begin(FROM.parse().expect("address"));
            assert!(checker.is_good(true, &packet, flow().icrc(id, &packet)));
        }
        assert!(checker.counts);
        // One that begins each call at 0 is expected at 0.
        for _ in 0..2 {
            checker.begin(FROM.parse().expect("address"));
            assert!(checker.is_good(true, &packet, flow().icrc(0, &packet)));
        }
        assert!(!checker.counts);
        checker.begin(FROM.parse().expect("address"));
        assert_eq!(checker.expected, 0);
    }

    #[test]
    fn ipv6_is_exact() {
        let (one, two) = ("fd00::1", "fd00::2");
        let mut checker = IcrcChecker::new(two.parse().expect("ip"));
        assert!(checker.begin("[fd00::1]:50000".parse().expect("address")));
        assert!(!checker.begin(FROM.parse().expect("address")), "another family");
        let flow = IcrcFlow::v6(one.parse().expect("ip"), two.parse().expect("ip"), 50_000);
        let packet = [9; 64];
        let good = flow.icrc(0, &packet);
        assert!(checker.is_good(true, &packet, good));
        for wrong in [0, good ^ 1, flow.icrc(0, &[8; 64])] {
            assert!(!checker.is_good(true, &packet, wrong));
        }
    }
}
