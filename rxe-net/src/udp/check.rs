//! The check of the iCRC at a socket, which does not show the IPv4 identification.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use rxe_core::time::Instant;
use rxe_wire::icrc::{Encapsulation, IcrcFlow, solve_identification};

/// Covered bytes between the IPv4 identification and BTH: 14 of IPv4, 8 of UDP.
const AFTER_IDENTIFICATION: usize = 22;

/// Identifications of one segmented send at most: a sender like urxe begins each at 0.
const SEGMENTS: u16 = 128;
/// How far a counting source may be ahead of where it was: packets lost, or sent to others.
const NEAR: u16 = 1024;
/// While a host that counts sends nothing, Linux moves its counter on by a random number, of at most
/// one for each tick of its clock (`ip_idents_reserve`); and there are at most 1,000 ticks a second.
const TICK_NANOS: u64 = 1_000_000;
/// Packets in a row with identifications from elsewhere after which a source is taken to number
/// its packets without order; those before are dropped, which RC repairs.
const STRAYS: u8 = 3;
/// Sources that are remembered at most; beyond that, all but the last are forgotten.
const SOURCES: usize = 1024;

/// Checks the iCRC of packets that come to one address.
///
/// Over IPv6 the check is exact. Over IPv4 the iCRC covers the identification, which a UDP socket
/// hides. The likely one is tried first, at the cost of one pass over the packet: in a coalesced
/// buffer, one more than that of the segment before; otherwise one more than the last from that
/// source if it counts, else 0, as urxe sends. When it fails, the identification that would make
/// the packet right is solved for; the packet is taken as intact when there is one where this
/// source may have come to: it, or its host, whose counter all its ports share.
///
/// Of corrupt packets over IPv4, one in 65,536 has such an identification at all, and of those one
/// in 57 lies near enough: so **about one in 3.7 million corrupt packets passes**; of a host that
/// counts and has several ports, two. For each second that the source was silent before, one more
/// in 65 has an identification that it may have come to. It is two in 65,536, with "don't fragment"
/// set or clear, for the very first packet of a source, and for one whose identifications follow no
/// order. This comes on top of the UDP checksum, where the sender
/// made one, and of the link's own CRC. A packet socket has no such limit.
#[derive(Debug)]
pub(super) struct IcrcChecker {
    address: IpAddr,
    /// The source that the last packet came from.
    current: Option<(SocketAddr, Source)>,
    /// The other sources.
    others: HashMap<SocketAddr, Source>,
    /// How far each host had come that counts, when another source than its last one sent.
    hosts: HashMap<IpAddr, Progress>,
    /// The time.
    now: Instant,
    /// Whether the last packet had "don't fragment" set.
    dont_fragment: bool,
}

/// What is known of a source.
#[derive(Clone, Copy, Debug)]
struct Source {
    /// Its addressing in the iCRC.
    flow: IcrcFlow,
    /// The identification expected next.
    expected: u16,
    /// What its last good packet shows.
    progress: Progress,
    /// It counts its identifications from one call to the next.
    counts: bool,
    /// "Don't fragment" of its good packets; `None` before the first one.
    dont_fragment: Option<bool>,
    /// Packets in a row that were right only with an identification from elsewhere.
    strays: u8,
}

/// How far the identifications of a source or of a host have come.
#[derive(Clone, Copy, Default, Debug)]
struct Progress {
    /// One more than that of the last good packet.
    next: u16,
    /// When that came.
    at: Instant,
}

impl Progress {
    /// Whether this may be the identification of a packet that comes now.
    fn may_lead_to(self, identification: u16, now: Instant) -> bool {
        let ticks = now.nanos_since(self.at) / TICK_NANOS;
        u64::from(identification.wrapping_sub(self.next)) < u64::from(NEAR) + ticks
    }
}

impl Source {
    const fn new(flow: IcrcFlow) -> Self {
        let (counts, dont_fragment) = (false, None);
        let progress = Progress { next: 0, at: Instant::ZERO };
        Self { flow, expected: 0, progress, counts, dont_fragment, strays: 0 }
    }

    /// Whether it may have sent a packet now with this identification and "don't fragment", when
    /// its host had come so far.
    fn may_have_sent(
        &self,
        (identification, dont_fragment): (u16, bool),
        host: Option<&Progress>,
        now: Instant,
    ) -> bool {
        let mut known = [Some(&self.progress), host].into_iter().flatten();
        let is_near = identification < SEGMENTS
            || known.any(|progress| progress.may_lead_to(identification, now));
        let is_like_others = self.dont_fragment.is_none_or(|usual| usual == dont_fragment);
        let is_first = self.dont_fragment.is_none();
        self.strays >= STRAYS || is_like_others && (is_first || is_near)
    }
}

impl IcrcChecker {
    /// A checker of what comes to `address`.
    pub(super) fn new(address: IpAddr) -> Self {
        let (others, hosts) = (HashMap::new(), HashMap::new());
        Self { address, current: None, others, hosts, now: Instant::ZERO, dont_fragment: true }
    }

    /// Tells the time at which the next buffers came.
    pub(super) const fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// Begins a buffer that came from `from`: one packet, or several coalesced.
    ///
    /// False when the source is of another address family, which cannot be.
    pub(super) fn begin(&mut self, from: SocketAddr) -> bool {
        if let Some((source, known)) = &mut self.current
            && *source == from
        {
            if !known.counts {
                known.expected = 0;
            }
            return true;
        }
        let flow = match (from.ip(), self.address) {
            (IpAddr::V4(from_ip), IpAddr::V4(to)) => IcrcFlow::v4(from_ip, to, from.port()),
            (IpAddr::V6(from_ip), IpAddr::V6(to)) => IcrcFlow::v6(from_ip, to, from.port()),
            _ => return false,
        };
        if self.others.len() >= SOURCES {
            self.others.clear();
            self.hosts.clear();
        }
        let mut source = self.others.remove(&from).unwrap_or_else(|| Source::new(flow));
        if !source.counts {
            source.expected = 0;
        }
        if let Some((last, known)) = self.current.replace((from, source)) {
            if known.counts {
                self.hosts.insert(last.ip(), known.progress);
            }
            self.others.insert(last, known);
        }
        true
    }

    /// Whether `packet`, the next of the buffer from BTH to pad, may have the iCRC `received`.
    pub(super) fn is_good(&mut self, first_of_buffer: bool, packet: &[u8], received: u32) -> bool {
        let Some((from, source)) = &mut self.current else { return false };
        self.dont_fragment = source.dont_fragment.unwrap_or(true);
        let flow = source.flow;
        let computed = flow.icrc(source.expected, packet);
        if computed == received {
            source.expected = source.expected.wrapping_add(1);
            source.progress = Progress { next: source.expected, at: self.now };
            source.dont_fragment = Some(true);
            source.strays = 0;
            self.dont_fragment = true;
            return true;
        }
        if flow.encapsulation() != Encapsulation::V2Ipv4 {
            return false;
        }
        let solved = solve(source, packet, computed, received);
        let Some((identification, dont_fragment)) = solved else {
            // The segments after a corrupt one are counted on.
            source.expected = source.expected.wrapping_add(1);
            return false;
        };
        let host = self.hosts.get(&from.ip());
        if !source.may_have_sent((identification, dont_fragment), host, self.now) {
            source.strays += 1;
            if source.strays < STRAYS {
                source.expected = source.expected.wrapping_add(1);
                return false;
            }
        } else if source.strays < STRAYS {
            source.strays = 0;
        }
        if first_of_buffer {
            // Neither 0 nor the next: from now on, one more than this is the best guess, unless
            // it turns out to begin at 0 again.
            source.counts = identification != 0;
        }
        source.expected = identification.wrapping_add(1);
        source.progress = Progress { next: source.expected, at: self.now };
        source.dont_fragment = Some(dont_fragment);
        self.dont_fragment = dont_fragment;
        true
    }

    /// What IPv4 header the last packet seems to have had: its identification, and whether "don't
    /// fragment" was set. Of a bad packet, what was expected.
    pub(super) fn last_header(&self) -> (u16, bool) {
        let expected = self.current.map_or(0, |(_, source)| source.expected);
        (expected.wrapping_sub(1), self.dont_fragment)
    }
}

/// The identification that makes `received` the iCRC, from the iCRC of the expected one, and
/// whether that is so with "don't fragment" set.
fn solve(source: &Source, packet: &[u8], computed: u32, received: u32) -> Option<(u16, bool)> {
    // The solver sees differences only: what it finds is relative to the expected one.
    let bytes_after = AFTER_IDENTIFICATION + packet.len();
    let with_flag = || {
        let difference = solve_identification(computed, received, bytes_after)?;
        Some((difference ^ source.expected, true))
    };
    let either = || {
        let found = source.flow.identify(packet, received)?;
        Some((found.identification, found.dont_fragment))
    };
    // A second pass, but only for packets that are corrupt or rare.
    with_flag().or_else(either)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FROM: &str = "10.0.0.1:50000";

    fn flow() -> IcrcFlow {
        flow_from(50_000)
    }

    fn flow_from(port: u16) -> IcrcFlow {
        IcrcFlow::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), port)
    }

    fn begin(checker: &mut IcrcChecker) {
        assert!(checker.begin(FROM.parse().expect("address")));
    }

    fn checker() -> IcrcChecker {
        let mut checker = IcrcChecker::new("10.0.0.2".parse().expect("ip"));
        begin(&mut checker);
        checker
    }

    /// A packet of its own, with this identification.
    fn single(checker: &mut IcrcChecker, id: u16) -> bool {
        let packet = [7; 40];
        begin(checker);
        checker.is_good(true, &packet, flow().icrc(id, &packet))
    }

    fn expected(checker: &IcrcChecker) -> u16 {
        checker.current.expect("a source").1.expected
    }

    proptest! {
        #[test]
        fn a_source_that_counts_is_followed_from_anywhere(
            start: u16,
            steps in proptest::collection::vec((any::<bool>(), 0..NEAR), 0..50),
            packet in proptest::collection::vec(any::<u8>(), 12..200),
        ) {
            let mut checker = checker();
            prop_assert!(checker.is_good(true, &packet, flow().icrc(start, &packet)));
            let mut id = start;
            for (first, step) in steps {
                id = id.wrapping_add(1).wrapping_add(step);
                if first {
                    begin(&mut checker);
                }
                prop_assert!(checker.is_good(first, &packet, flow().icrc(id, &packet)));
                prop_assert_eq!(expected(&checker), id.wrapping_add(1));
            }
        }
    }

    #[test]
    fn a_source_without_order_is_accepted_after_three_packets() {
        let mut checker = checker();
        assert!(single(&mut checker, 0x1234), "the first one may be anything");
        assert!(!single(&mut checker, 0x8000));
        assert!(!single(&mut checker, 0x4000));
        for id in [0xc000, 0x2222, 0x9999, 5, 0x7777] {
            assert!(single(&mut checker, id), "{id:#x}");
        }
    }

    #[test]
    fn a_stray_between_good_packets_is_corrupt() {
        let mut checker = checker();
        for _ in 0..10 {
            assert!(single(&mut checker, 0));
            assert!(!single(&mut checker, 0x8000));
        }
        // Where urxe numbers segments, it may always go on.
        assert!(single(&mut checker, SEGMENTS - 1));
    }

    #[test]
    fn a_source_that_was_silent_may_have_gone_on_by_one_each_tick() {
        let after = |step: u16, nanos: u64| {
            let mut checker = checker();
            assert!(single(&mut checker, 0x8000) && single(&mut checker, 0x8001));
            checker.set_time(Instant::from_nanos(nanos));
            single(&mut checker, 0x8002 + step)
        };
        assert!(after(NEAR - 1, 0) && !after(NEAR, 0));
        let second = 1_000_000_000;
        assert!(after(NEAR + 999, second) && !after(NEAR + 1_000, second));
        // After a minute it may be anywhere.
        assert!(after(0x7000, 66 * second));
    }

    #[test]
    fn the_ports_of_a_host_share_its_counter() {
        let (mut checker, packet) = (checker(), [3; 40]);
        let other = SocketAddr::new([10, 0, 0, 1].into(), 50_001);
        assert!(single(&mut checker, 0x1000) && single(&mut checker, 0x1001));
        // Another port sends on, and the first one begins where this has come to.
        assert!(checker.begin(other));
        for id in (0x1002_u16..0x8000).step_by(0x100) {
            assert!(checker.is_good(true, &packet, flow_from(50_001).icrc(id, &packet)));
        }
        assert!(single(&mut checker, 0x8000));
        // Another host has nothing to do with it.
        let stranger = SocketAddr::new([10, 0, 0, 9].into(), 50_000);
        let flow = IcrcFlow::v4([10, 0, 0, 9].into(), [10, 0, 0, 2].into(), 50_000);
        for (id, is_good) in [(0x4000, true), (0x8001, false)] {
            assert!(checker.begin(stranger));
            assert_eq!(checker.is_good(true, &packet, flow.icrc(id, &packet)), is_good);
        }
    }

    #[test]
    fn sources_are_remembered() {
        let (mut checker, packet) = (checker(), [3; 40]);
        assert!(single(&mut checker, 0x8000));
        for port in 50_001..50_020 {
            assert!(checker.begin(SocketAddr::new([10, 0, 0, 1].into(), port)));
            assert!(checker.is_good(true, &packet, flow_from(port).icrc(port, &packet)));
        }
        begin(&mut checker);
        assert_eq!(expected(&checker), 0x8001);
        assert!(single(&mut checker, 0x8002));
        assert!(!single(&mut checker, 0x4000));
    }

    #[test]
    fn hardly_a_corrupt_packet_passes() {
        let (mut checker, packet) = (checker(), [5; 40]);
        assert!(single(&mut checker, 0));
        let good = flow().icrc(0, &packet);
        let count = 1_u32 << 20;
        // Spread the errors over all 32 bits by an odd multiplier; a good one after each.
        let passed = (1..=count)
            .filter(|n| {
                begin(&mut checker);
                let passed = checker.is_good(true, &packet, good ^ n.wrapping_mul(0x9e37_79b1));
                assert!(single(&mut checker, 0));
                passed
            })
            .count();
        assert!(passed <= 3, "{passed} of {count} passed, one in 3.7 million is expected");
    }

    #[test]
    fn two_corrupt_packets_in_65536_pass_as_the_first_of_a_source() {
        let packet = [5; 40];
        let good = flow().icrc(0, &packet);
        let count = 1_u32 << 18;
        let passed = (1..=count)
            .filter(|n| checker().is_good(false, &packet, good ^ n.wrapping_mul(0x9e37_79b1)))
            .count();
        assert!((1..=24).contains(&passed), "{passed} of {count} passed, 8 are expected");
    }

    #[test]
    fn a_counting_source_is_expected_to_go_on() {
        let mut checker = checker();
        for id in [0x8000, 0x8001] {
            assert!(single(&mut checker, id));
        }
        begin(&mut checker);
        assert_eq!(expected(&checker), 0x8002);
        // One that begins each call at 0 is expected at 0.
        for _ in 0..2 {
            assert!(single(&mut checker, 0));
        }
        begin(&mut checker);
        assert_eq!(expected(&checker), 0);
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
