//! How much may be under way to one peer, and how long its answers take.
//!
//! The peer's receive buffer is small: 212,992 bytes by default, of which Linux charges each
//! packet its `truesize`. A burst beyond that is lost whole, and go-back-N sends it again. So the
//! requester keeps a window for each peer, in packets and in estimated truesize, over all queue
//! pairs of the shard to it: 64 packets at most at first, grown on progress and cut on loss
//! (ARCHITECTURE.md, "Loss").

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::{AddAssign, SubAssign};

use gid_table::Gid;
use rxe_wire::Qpn;
use slab::Slab;

use crate::time::Instant;

/// Packets in the first window, however small they are.
const FIRST_PACKETS: u64 = 64;
/// The first window in bytes of truesize: 64 packets of 1 KiB, and well within the default buffer.
const FIRST_WINDOW: u64 = FIRST_PACKETS * packet_cost(1024) as u64;
/// No number of losses alone cuts the window below what this and [`PeerWindow::floor`] say.
const LARGEST_FLOOR: u64 = 2 * FIRST_WINDOW;
/// The same for losses that are rare: five full sends and a bit, of packets of any size. On one
/// host, these keep both ends at work: two in the receiver's hands, and three, which is what a
/// buffer of the default size holds of them, in the buffer.
const LARGEST_FLOOR_OF_RARE: u64 = 5 * FIRST_WINDOW;
/// Losses are rare when so many windows have arrived in between: to send all of a window again then
/// costs less than the time which a smaller window leaves unused.
const RARE: u64 = 32;
/// The window after a timeout, when nothing is known any more.
const RESTART_WINDOW: u64 = 4 * packet_cost(4096) as u64;
/// No window grows beyond this: the most that Linux lets an unprivileged socket have by default.
const LARGEST_WINDOW: u64 = 4 << 20;
/// As many packets as that holds of the smallest.
const LARGEST_PACKETS: u64 = LARGEST_WINDOW / packet_cost(0) as u64;
/// READ requests among which a window is divided at most.
const READS_AT_ONCE: u32 = 4;
/// How long the window takes after a loss to come back to where that was.
const RECOVERY_NANOS: u64 = 100_000_000;
/// The short timer never fires earlier than this: threads are scheduled, not instant. One that
/// fires too early costs a packet, one that fires late all that could have been sent meanwhile.
const EARLIEST_RESEND_NANOS: u64 = 200_000;
/// A peer that answers nothing for less than this is not silent, but scheduled late.
const SILENCE_NANOS: u64 = 6_000_000;
/// Short timers in vain after which a peer is silent, at least: seven times the expected round trip,
/// as each waits twice as long.
const SILENT_AFTER: u32 = 3;
/// Losses that are remembered, with what arrived before each.
const LOSSES: usize = 4;
/// The short timer before the first round trip has been measured.
const UNKNOWN_RESEND_NANOS: u64 = 20_000_000;

/// Estimated `truesize` of one packet with `payload` bytes in a receive buffer of Linux.
///
/// The skb takes 256 bytes, and its data the next power of two above headers, payload and the 320
/// bytes at its end: 832 bytes for tiny packets, 2304 for 1 KiB, as measured.
pub(crate) const fn packet_cost(payload: u32) -> u32 {
    let data = (payload + 384).next_power_of_two();
    256 + if data < 576 { 576 } else { data }
}

/// Packets of `payload` bytes that leave in one segmented send at best: as many as a UDP datagram
/// over IPv4 holds (65,507 bytes, with 16 around each payload), and no more than kernels take.
pub(crate) const fn full_send(payload: usize) -> u32 {
    let fits = 65_507 / (payload as u32 + 16);
    if fits < 64 { fits } else { 64 }
}

/// So many packets, and their estimated cost in a receive buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Load {
    pub(crate) packets: u64,
    pub(crate) cost: u64,
}

impl Load {
    /// `count` packets of `cost` each.
    pub(crate) const fn of(count: u32, cost: u32) -> Self {
        Self { packets: count as u64, cost: count as u64 * cost as u64 }
    }
}

impl AddAssign for Load {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.cost += other.cost;
    }
}

impl SubAssign for Load {
    fn sub_assign(&mut self, other: Self) {
        self.packets -= other.packets;
        self.cost -= other.cost;
    }
}

/// The address of a peer and a slot there: one receive socket, with one buffer.
pub(crate) type Peer = (Gid, u8);

/// The windows of a shard, each found by its peer and kept while a queue pair uses it.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    windows: Slab<PeerWindow>,
    by_peer: HashMap<Peer, usize>,
}

impl Windows {
    /// The window of a peer, made if there is none, with one more user: queue pair `user`, whose
    /// peer is `dest_qpn`.
    pub(crate) fn acquire(&mut self, peer: Peer, dest_qpn: Qpn, user: u32) -> usize {
        let windows = &mut self.windows;
        let key =
            *self.by_peer.entry(peer).or_insert_with(|| windows.insert(PeerWindow::new(peer)));
        self.windows[key].users.insert((dest_qpn.get(), user));
        key
    }

    /// The users of a peer's window whose peer is `dest_qpn`.
    pub(crate) fn users_to(&self, peer: Peer, dest_qpn: Qpn) -> impl Iterator<Item = u32> + '_ {
        let window = self.by_peer.get(&peer).and_then(|&key| self.windows.get(key));
        let range = (dest_qpn.get(), 0)..=(dest_qpn.get(), u32::MAX);
        window.into_iter().flat_map(move |w| w.users.range(range.clone()).map(|&(_, user)| user))
    }

    /// Gives up the use of a window by queue pair `user`, which had `charged` under way.
    pub(crate) fn release(&mut self, key: usize, dest_qpn: Qpn, user: u32, charged: Load) {
        let Some(window) = self.windows.get_mut(key) else { return };
        window.in_flight -= charged;
        window.users.remove(&(dest_qpn.get(), user));
        window.waiting.retain(|&(waiting, _)| waiting != user);
        if window.users.is_empty() {
            self.by_peer.remove(&window.peer);
            self.windows.remove(key);
        }
    }

    pub(crate) fn get(&self, key: usize) -> Option<&PeerWindow> {
        self.windows.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: usize) -> Option<&mut PeerWindow> {
        self.windows.get_mut(key)
    }
}

/// The window towards one peer.
#[derive(Debug)]
pub(crate) struct PeerWindow {
    peer: Peer,
    /// Queue pairs that use it, each behind the number of its peer.
    users: BTreeSet<(u32, u32)>,
    /// All that is under way, READ responses asked for included.
    pub(crate) in_flight: Load,
    /// The cost that may be under way.
    size: u64,
    /// The packets that may be under way: a limit of the first round trips only, as it is never
    /// cut. Beyond them the cost tells better what a buffer holds.
    packets: u64,
    /// Below this the window grows fast, above it creeps.
    threshold: u64,
    /// The window when something was lost last.
    ceiling: u64,
    last_cut: Option<Instant>,
    /// The cost of what has arrived since the last cut.
    arrived: u64,
    /// And between the cuts before, the latest first.
    arrived_before: [u64; LOSSES],
    /// Smoothed round trip and its deviation, in nanoseconds (RFC 6298, section 2).
    srtt: Option<u64>,
    rttvar: u64,
    /// Queue pairs that wait for room, each at most once, with the room that each needs. The
    /// first is served first: the READ of one must not starve while others send small packets.
    pub(crate) waiting: VecDeque<(u32, Load)>,
}

impl PeerWindow {
    fn new(peer: Peer) -> Self {
        Self {
            peer,
            users: BTreeSet::new(),
            in_flight: Load::default(),
            size: FIRST_WINDOW,
            packets: FIRST_PACKETS,
            threshold: LARGEST_WINDOW,
            ceiling: LARGEST_WINDOW,
            last_cut: None,
            arrived: 0,
            arrived_before: [0; LOSSES],
            srtt: None,
            rttvar: 0,
            waiting: VecDeque::new(),
        }
    }

    /// The queue pairs that use it.
    pub(crate) fn users(&self) -> impl Iterator<Item = u32> + '_ {
        self.users.iter().map(|&(_, user)| user)
    }

    /// Whether so much more may go; something may always go when nothing is under way.
    pub(crate) fn has_room(&self, more: Load) -> bool {
        self.in_flight.packets == 0 || self.fits(more)
    }

    /// Whether so much more lies within the window.
    pub(crate) fn fits(&self, more: Load) -> bool {
        let Load { packets, cost } = self.in_flight;
        packets.saturating_add(more.packets) <= self.packets
            && cost.saturating_add(more.cost) <= self.size
    }

    /// How many packets of a given cost the whole window holds.
    pub(crate) fn capacity(&self, cost: u32) -> u32 {
        // Fits: no more than the smallest packets that the largest window holds.
        (self.size / u64::from(cost)).min(self.packets) as u32
    }

    /// How many more packets of a given cost lie within the window.
    pub(crate) fn room(&self, cost: u32) -> u32 {
        let Load { packets, cost: used } = self.in_flight;
        let by_cost = self.size.saturating_sub(used) / u64::from(cost);
        // Fits: no more than the smallest packets that the largest window holds.
        by_cost.min(self.packets.saturating_sub(packets)) as u32
    }

    /// The room that `pending` packets of a given cost wait for once the window is full: a quarter
    /// of it, if they are so many, and no fewer than `least`.
    ///
    /// Were each acknowledged packet followed by one more at once, messages would shrink to what
    /// one acknowledgement covers, and acknowledgements to what one message holds (the silly window
    /// of RFC 1122, section 4.2.3.4).
    pub(crate) fn worth_waiting_for(&self, pending: u32, least: u32, cost: u32) -> Load {
        let quarter = self.capacity(cost) / 4;
        Load::of(pending.min(quarter).max(least), cost)
    }

    /// Whether packets of a given cost go only by full sends, of `full` packets each.
    ///
    /// A send costs the host as much as 150 packets in it do, however few these are. So a window
    /// that holds two full sends and a half is not filled up by smaller ones: also that would be the
    /// silly window of RFC 1122, section 4.2.3.4, the send in the place of the segment. A smaller
    /// window needs all its room to keep the peer at work.
    pub(crate) fn holds_sends(&self, full: u32, cost: u32) -> bool {
        2 * self.capacity(cost) >= 5 * full
    }

    /// Packets of a given cost that one READ request asks for, where `max_rd_atomic` of them may be
    /// outstanding: so many that together they fill the window, and each is asked for before the
    /// peer has run out of work.
    ///
    /// A large enough window asks for what fills segmented sends of `full` packets. The first and
    /// the last packet of a response are longer than the others: one packet follows the first in
    /// its send, to which the last one of the response before may belong, and the others fill
    /// theirs.
    pub(crate) fn read_chunk(&self, cost: u32, max_rd_atomic: u32, full: u32) -> u32 {
        let capacity = self.capacity(cost);
        let part = capacity / max_rd_atomic.clamp(2, READS_AT_ONCE);
        if capacity < 2 * (full + 3) {
            return part.max(8);
        }
        (part.saturating_sub(3) / full).max(1) * full + 3
    }

    /// Grows the window, after packets have been acknowledged.
    pub(crate) fn on_progress(&mut self, now: Instant, acked: Load) {
        let Load { packets, cost } = acked;
        self.arrived = self.arrived.saturating_add(cost);
        // A window that is not used up says nothing about what the peer could take.
        if self.in_flight.packets + packets >= self.packets / 2 {
            self.packets = (self.packets + packets).min(LARGEST_PACKETS);
        }
        if self.in_flight.cost + cost < self.size / 2 {
            return;
        }
        if self.size < self.threshold {
            // By half with each round trip.
            self.size = (self.size + cost / 2).min(self.threshold);
            return;
        }
        let since_cut = self.last_cut.map_or(u64::MAX, |cut| now.nanos_since(cut));
        let target = grown(self.ceiling, since_cut).min(LARGEST_WINDOW);
        // By an eighth with each round trip at most.
        self.size = target.min(self.size + cost / 8).max(self.size);
    }

    /// Cuts the window after a loss, at most once in a round trip.
    ///
    /// What is sent again must find room where there was none: so it starts with half, and soon
    /// has three quarters.
    pub(crate) fn on_loss(&mut self, now: Instant) {
        if self.last_cut.is_some_and(|cut| now.nanos_since(cut) < self.srtt.unwrap_or(0)) {
            return;
        }
        self.last_cut = Some(now);
        self.arrived_before.rotate_right(1);
        self.arrived_before[0] = std::mem::take(&mut self.arrived);
        let floor = self.floor();
        self.ceiling = self.size;
        self.threshold = (self.ceiling / 4 * 3).max(floor);
        self.size = (self.ceiling / 2).max(floor.min(self.ceiling));
    }

    /// What no loss cuts the window below: half of the most that arrived between two of the last
    /// losses, within bounds.
    ///
    /// Where a buffer overflows all the time, no more arrives from one loss to the next than it
    /// holds, and the window comes down to less than that. Where packets are lost one by one, and
    /// for no such reason, a smaller window does not make it better: it only takes as many round
    /// trips more. Nor does it where they are lost seldom, as when a buffer overflows since its
    /// owner was kept from the processor for a moment.
    fn floor(&self) -> u64 {
        let most = self.arrived_before.into_iter().fold(0, u64::max);
        let of_rare = (most / RARE).min(LARGEST_FLOOR_OF_RARE);
        (most / 2).clamp(RESTART_WINDOW, LARGEST_FLOOR).max(of_rare)
    }

    /// Starts small again: nothing came back for so long that a timer fired.
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        self.last_cut = Some(now);
        (self.arrived, self.arrived_before) = (0, [0; LOSSES]);
        self.ceiling = self.size;
        self.threshold = (self.size / 2).max(RESTART_WINDOW);
        self.size = RESTART_WINDOW;
    }

    /// Takes a measured round trip into account.
    pub(crate) fn on_round_trip(&mut self, nanos: u64) {
        match self.srtt {
            None => {
                self.srtt = Some(nanos);
                self.rttvar = nanos / 2;
            }
            Some(srtt) => {
                self.rttvar = (3 * self.rttvar + srtt.abs_diff(nanos)) / 4;
                self.srtt = Some((7 * srtt + nanos) / 8);
            }
        }
    }

    /// How long the short timer waits, after `backoff` times in vain.
    pub(crate) fn early_resend_nanos(&self, backoff: u32) -> u64 {
        self.resend_base() << backoff.min(8)
    }

    fn resend_base(&self) -> u64 {
        match self.srtt {
            Some(srtt) => (srtt + 4 * self.rttvar).max(EARLIEST_RESEND_NANOS),
            None => UNKNOWN_RESEND_NANOS,
        }
    }

    /// Whether a peer is silent after so many short timers in vain. Nothing is in its buffer any
    /// more then: what came has been handled, the rest is lost.
    pub(crate) fn is_silent(&self, early_resends: u32) -> bool {
        // The sum of all of them: each waited twice as long as the one before.
        let waited = self.resend_base() * ((1 << early_resends.min(16)) - 1);
        early_resends >= SILENT_AFTER && waited >= SILENCE_NANOS
    }

    #[cfg(test)]
    pub(crate) fn size(&self) -> u64 {
        self.size
    }
}

/// The window that is right so long after a loss at `ceiling`: three quarters of it at first,
/// slowly up to it within the recovery time, then beyond it faster and faster.
///
/// A cubic function of time, as in RFC 9438 (CUBIC), section 4.2: most of the time is spent just
/// below what was too much, and a ceiling that was set by chance is soon left behind.
fn grown(ceiling: u64, nanos: u64) -> u64 {
    // Beyond eight recovery times, it is far above any window. In microseconds the cube, and the
    // product with the largest window, are below 2^63: 128 bits would be divided by a function.
    let micros = (nanos.min(8 * RECOVERY_NANOS) / 1000) as i64;
    const RECOVERY: i64 = (RECOVERY_NANOS / 1000) as i64;
    let distance = (micros - RECOVERY).pow(3) / RECOVERY.pow(2);
    let ceiling = ceiling.min(LARGEST_WINDOW) as i64;
    let growth = ceiling * distance / RECOVERY / 4;
    u64::try_from(ceiling + growth).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_those_measured() {
        assert_eq!(packet_cost(0), 832);
        assert_eq!(packet_cost(64), 832);
        assert_eq!(packet_cost(1024), 2304);
        assert_eq!(packet_cost(4096), 8448);
    }

    #[test]
    fn grows_when_used_and_is_cut_once_per_round_trip() {
        let at = Instant::from_nanos;
        let mut window = PeerWindow::new((Gid::ZERO, 1));
        let first = window.size();
        assert!(first < 212_992);
        window.on_progress(at(0), Load { packets: 1, cost: 1000 });
        assert_eq!(window.size(), first, "hardly used: no growth");
        window.in_flight.cost = first;
        window.on_progress(at(0), Load { packets: 1, cost: 1000 });
        assert_eq!(window.size(), first + 500);
        window.on_round_trip(100_000);
        let before = window.size();
        window.on_loss(at(1_000_000));
        let cut = window.size();
        assert_eq!(cut, before / 2);
        window.on_loss(at(1_050_000));
        assert_eq!(window.size(), cut, "the same round trip");
        let mut progress = |nanos| {
            window.in_flight.cost = window.size();
            (0..100).for_each(|_| window.on_progress(at(nanos), Load { packets: 1, cost: before }));
            window.size()
        };
        assert_eq!(progress(1_000_000), before / 4 * 3, "three quarters come back at once");
        let quarter = progress(1_000_000 + RECOVERY_NANOS / 4);
        assert!(quarter < before / 10 * 9, "and the rest slowly: {quarter}");
        assert_eq!(progress(1_000_000 + RECOVERY_NANOS), before);
        assert!(progress(1_000_000 + 3 * RECOVERY_NANOS) > 2 * before, "then more is tried");
    }

    #[test]
    fn rare_losses_leave_a_window_for_both_ends_and_frequent_ones_do_not() {
        let full = Load::of(full_send(1024), packet_cost(1024));
        assert!((5 * full.cost..6 * full.cost).contains(&LARGEST_FLOOR_OF_RARE));
        let mut window = PeerWindow::new((Gid::ZERO, 1));
        let mut millis = 0;
        let mut lose = |window: &mut PeerWindow, arrived| {
            millis += 1;
            window.arrived = arrived;
            window.on_loss(Instant::from_nanos(millis * 1_000_000));
            window.size()
        };
        window.size = 8 * full.cost;
        let rare = RARE * LARGEST_FLOOR_OF_RARE;
        assert_eq!(lose(&mut window, rare / 2), 4 * full.cost, "half, which is enough for so many");
        window.size = 8 * full.cost;
        assert_eq!(lose(&mut window, rare), LARGEST_FLOOR_OF_RARE);
        assert_eq!(lose(&mut window, rare), LARGEST_FLOOR_OF_RARE, "it stays");
        window.size = 2 * full.cost;
        assert_eq!(lose(&mut window, rare), 2 * full.cost, "but nothing grows by a loss");
        window.size = 8 * full.cost;
        let frequent = [0; LOSSES].map(|_| lose(&mut window, 2 * full.cost));
        assert_eq!(frequent[0], LARGEST_FLOOR_OF_RARE, "one more may be chance");
        assert_eq!(frequent[LOSSES - 1], LARGEST_FLOOR_OF_RARE / 2, "so many are not");
    }

    #[test]
    fn growth_is_slow_around_the_ceiling_and_never_wraps() {
        let ceiling = 1 << 20;
        assert_eq!(grown(ceiling, 0), ceiling / 4 * 3);
        assert_eq!(grown(ceiling, RECOVERY_NANOS), ceiling);
        assert_eq!(grown(ceiling, 2 * RECOVERY_NANOS), ceiling / 4 * 5);
        assert!(grown(LARGEST_WINDOW, u64::MAX) > LARGEST_WINDOW);
        assert_eq!(grown(0, u64::MAX), 0);
    }

    #[test]
    fn users_are_found_by_their_peer() {
        let mut windows = Windows::default();
        let peer = (Gid::ZERO, 1);
        let qpn = |low: u32| Qpn::new(0x01_0000 + low);
        let key = windows.acquire(peer, qpn(7), 30);
        assert_eq!(windows.acquire(peer, qpn(8), 31), key);
        assert_eq!(windows.acquire(peer, qpn(7), 9), key);
        let users =
            |windows: &Windows, low| -> Vec<u32> { windows.users_to(peer, qpn(low)).collect() };
        assert_eq!(users(&windows, 7), [9, 30]);
        assert_eq!(users(&windows, 6), []);
        windows.release(key, qpn(7), 30, Load::default());
        windows.release(key, qpn(8), 31, Load::default());
        assert_eq!(users(&windows, 7), [9]);
        windows.release(key, qpn(7), 9, Load::default());
        assert_eq!(users(&windows, 7), []);
        assert!(windows.get(key).is_none(), "nobody uses it");
    }

    #[test]
    fn something_may_always_go() {
        let mut window = PeerWindow::new((Gid::ZERO, 1));
        assert!(window.has_room(Load { packets: u64::MAX, cost: u64::MAX }));
        window.in_flight = Load { packets: 1, cost: 1 };
        assert!(!window.has_room(Load { packets: 1, cost: LARGEST_WINDOW }));
    }

    #[test]
    fn reads_ask_for_what_fills_sends_if_the_window_holds_two() {
        let mut window = PeerWindow::new((Gid::ZERO, 1));
        (window.size, window.packets) = (LARGEST_WINDOW, LARGEST_PACKETS);
        let cost = packet_cost(1024);
        let full = full_send(1024);
        let chunk = |window: &PeerWindow| window.read_chunk(cost, 16, full);
        assert_eq!((window.capacity(cost), chunk(&window)), (1820, 7 * full + 3));
        window.size = u64::from(2 * (full + 3) * cost);
        assert_eq!(chunk(&window), full + 3);
        window.size -= 1;
        assert_eq!(chunk(&window), (2 * (full + 3) - 1) / 4);
    }

    #[test]
    fn small_packets_are_counted_until_the_peer_is_known() {
        let mut window = PeerWindow::new((Gid::ZERO, 1));
        let packets = |count| Load::of(count, packet_cost(0));
        window.in_flight = packets(1);
        assert!(window.has_room(packets(63)));
        assert!(!window.has_room(packets(64)));
        assert_eq!(window.read_chunk(packet_cost(0), 1, 64), 32);
        window.in_flight = Load::default();
        window.on_progress(Instant::ZERO, packets(64));
        window.in_flight = packets(1);
        assert!(window.has_room(packets(127)));
    }
}
