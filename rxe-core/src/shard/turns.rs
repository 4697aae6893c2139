//! Whose turn it is to send.

use std::collections::VecDeque;

/// The queue pairs that have something to send, by turns.
///
/// In each round, each of them sends as many packets as the others, [`TURN`] at most. Mostly it
/// sends them in one go, so that the link can put them into one send. It does so in parts where that
/// saves sends: it pauses at the end of a message ([`Self::pause`]), and sends a packet out of turn
/// that fits the send of another ([`Self::find_guest`]). Its share of the round stays the same.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Those that may still send in this round; the first one has its turn. Never empty while the
    /// other list is not.
    round: VecDeque<Turn>,
    /// Those that may do so in the next one.
    next_round: VecDeque<Turn>,
    /// The place among all of one that sends a packet out of its turn now.
    guest: Option<usize>,
    /// Guests that have sent in a row.
    guests: u32,
    /// The turn of the first one is not to be divided.
    is_whole: bool,
}

/// Packets that a queue pair sends in a round: a full segmented send.
pub(super) const TURN: u32 = super::Shard::TURN;

#[derive(Clone, Copy, Debug)]
struct Turn {
    /// Slab key of the queue pair.
    key: u32,
    /// Packets that it may still send in its round; not 0.
    left: u32,
    /// Packets that it has sent out of its turn in this round.
    lent: u32,
}

impl Turn {
    const fn new(key: u32) -> Self {
        Self { key, left: TURN, lent: 0 }
    }
}

impl Turns {
    pub(super) fn len(&self) -> usize {
        self.round.len() + self.next_round.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.round.is_empty()
    }

    /// All of them, the next ones first.
    pub(super) fn keys(&self) -> impl Iterator<Item = u32> {
        self.round.iter().chain(&self.next_round).map(|turn| turn.key)
    }

    /// Who is to send now.
    pub(super) fn current(&self) -> Option<u32> {
        self.current_turn().map(|turn| turn.key)
    }

    /// How many packets it may send.
    pub(super) fn left(&self) -> u32 {
        match self.guest {
            Some(_) => 1,
            // Where nobody waits for a turn, its end need not cut a run.
            None if self.len() == 1 => TURN,
            None => self.round.front().map_or(0, |turn| turn.left),
        }
    }

    /// Whether it has sent something in this round, but for a packet out of its turn.
    pub(super) fn has_sent(&self) -> bool {
        self.current_turn().is_some_and(|turn| turn.left + turn.lent < TURN)
    }

    /// Adds one, behind all others: to this round, unless somebody waits for the next one already.
    #[inline]
    pub(super) fn push(&mut self, key: u32) {
        let turn = Turn::new(key);
        match self.next_round.is_empty() {
            true => self.round.push_back(turn),
            false => self.next_round.push_back(turn),
        }
    }

    /// Gives one that is there the next turn, undivided.
    pub(super) fn put_first(&mut self, key: u32) {
        self.guest = None;
        if self.round.front().is_none_or(|turn| turn.key != key) {
            self.remove(key);
            self.round.push_front(Turn::new(key));
        }
        self.is_whole = true;
    }

    /// Removes one, wherever it is.
    pub(super) fn remove(&mut self, key: u32) {
        self.guest = None;
        self.is_whole &= self.round.front().is_some_and(|turn| turn.key != key);
        self.round.retain(|turn| turn.key != key);
        self.next_round.retain(|turn| turn.key != key);
        self.begin_round();
    }

    /// Removes who is to send now.
    #[inline]
    pub(super) fn end_current(&mut self) -> Option<u32> {
        let ended = match self.guest.take() {
            None => {
                self.is_whole = false;
                self.round.pop_front()
            }
            Some(index) => match index.checked_sub(self.round.len()) {
                None => self.round.remove(index),
                Some(index) => self.next_round.remove(index),
            },
        };
        self.begin_round();
        ended.map(|turn| turn.key)
    }

    /// Counts packets that the current one has sent. True when it has sent all that it may in this
    /// round.
    pub(super) fn take(&mut self, count: u32) -> bool {
        if let Some(guest) = self.guest.take() {
            self.guests += 1;
            if let Some(turn) = self.get_mut(guest) {
                // It had more than one left.
                turn.left = turn.left.saturating_sub(count).max(1);
                turn.lent += count;
            }
            return false;
        }
        self.guests = 0;
        let Some(turn) = self.round.front_mut() else { return false };
        turn.left = turn.left.saturating_sub(count);
        if turn.left > 0 {
            return false;
        }
        let key = turn.key;
        self.round.pop_front();
        self.is_whole = false;
        self.next_round.push_back(Turn::new(key));
        self.begin_round();
        true
    }

    /// Lets the others of this round send before the current one goes on.
    pub(super) fn pause(&mut self) {
        if !self.is_whole && !self.round.is_empty() {
            self.round.rotate_left(1);
        }
    }

    /// The next ones behind the current one, `most` of them.
    pub(super) fn others(&self, most: usize) -> impl Iterator<Item = u32> {
        self.keys().skip(1).take(most)
    }

    /// Finds one among the next `most` that `joins` says true for: whom [`Self::invite`] lets send a
    /// packet out of its turn.
    pub(super) fn find_guest(&self, most: usize, joins: impl Fn(u32) -> bool) -> Option<usize> {
        if self.is_whole {
            return None;
        }
        let mut others = self.round.iter().chain(&self.next_round).enumerate().skip(1).take(most);
        others.find(|(_, turn)| turn.left > 1 && joins(turn.key)).map(|(index, _)| index)
    }

    /// How many guests have just sent in a row.
    pub(super) const fn guests(&self) -> u32 {
        self.guests
    }

    /// Lets the one that has just been found send a packet; all have their turns as before.
    pub(super) fn invite(&mut self, guest: usize) {
        self.guest = Some(guest);
    }

    fn current_turn(&self) -> Option<&Turn> {
        let Some(guest) = self.guest else { return self.round.front() };
        match guest.checked_sub(self.round.len()) {
            None => self.round.get(guest),
            Some(index) => self.next_round.get(index),
        }
    }

    fn get_mut(&mut self, index: usize) -> Option<&mut Turn> {
        match index.checked_sub(self.round.len()) {
            None => self.round.get_mut(index),
            Some(index) => self.next_round.get_mut(index),
        }
    }

    fn begin_round(&mut self) {
        if self.round.is_empty() && !self.next_round.is_empty() {
            std::mem::swap(&mut self.round, &mut self.next_round);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(keys: impl IntoIterator<Item = u32>) -> Turns {
        let mut turns = Turns::default();
        keys.into_iter().for_each(|key| turns.push(key));
        turns
    }

    /// Invites one that there is.
    fn invites(turns: &mut Turns, most: usize, joins: impl Fn(u32) -> bool) -> bool {
        let guest = turns.find_guest(most, joins);
        guest.into_iter().for_each(|guest| turns.invite(guest));
        guest.is_some()
    }

    fn keys(turns: &Turns) -> Vec<u32> {
        turns.keys().collect()
    }

    #[test]
    fn each_has_its_turn() {
        let mut turns = of([1, 2, 3]);
        assert_eq!((turns.current(), turns.left(), turns.has_sent()), (Some(1), TURN, false));
        assert!(!turns.take(TURN - 1));
        assert_eq!((turns.current(), turns.left(), turns.has_sent()), (Some(1), 1, true));
        assert!(turns.take(1));
        assert_eq!(keys(&turns), [2, 3, 1]);
        assert_eq!(turns.end_current(), Some(2));
        assert_eq!((turns.current(), turns.left(), turns.len()), (Some(3), TURN, 2));
        turns.push(2);
        assert!(turns.take(TURN + 7), "more than it may");
        assert_eq!(keys(&turns), [1, 2, 3]);
        turns.remove(1);
        turns.remove(3);
        assert_eq!((keys(&turns), turns.is_empty()), (vec![2], false));
        turns.remove(2);
        assert_eq!((turns.current(), turns.end_current(), turns.is_empty()), (None, None, true));
    }

    #[test]
    fn who_comes_goes_behind_those_who_wait() {
        let mut turns = of([1, 2]);
        turns.take(TURN);
        // 1 waits for the next round.
        turns.push(3);
        turns.take(1);
        assert_eq!((keys(&turns), turns.left()), (vec![2, 1, 3], TURN - 1));
        assert!(turns.take(TURN - 1));
        assert_eq!(keys(&turns), [1, 3, 2]);
    }

    #[test]
    fn who_is_alone_has_all_the_time() {
        let mut turns = of([1]);
        assert!(!turns.take(TURN - 1));
        assert_eq!(turns.left(), TURN);
        assert!(turns.take(TURN));
        assert_eq!((turns.current(), turns.left()), (Some(1), TURN));
    }

    #[test]
    fn who_pauses_sends_as_much_in_a_round_as_who_does_not() {
        let mut turns = of([1, 2, 3]);
        let mut sent = [0; 4];
        // 1 and 3 pause after each fourth packet; 2 does not.
        while sent.iter().sum::<u32>() < 10 * 3 * TURN {
            let key = turns.current().expect("somebody");
            let count = if key == 2 { TURN } else { 4 };
            if !turns.take(count) && key != 2 {
                turns.pause();
            }
            sent[key as usize] += count;
        }
        assert_eq!(sent, [0, 10 * TURN, 10 * TURN, 10 * TURN]);
    }

    #[test]
    fn a_guest_sends_one_packet_and_has_its_turn_as_before() {
        let mut turns = of([1, 2, 3, 4]);
        assert!(!turns.take(1));
        assert!(turns.has_sent(), "a single packet, but in its turn");
        assert!(invites(&mut turns, 2, |key| key == 3) && turns.current() == Some(3));
        assert_eq!((turns.left(), turns.has_sent()), (1, false));
        assert!(!turns.take(1));
        assert_eq!((keys(&turns), turns.current(), turns.left()), (vec![1, 2, 3, 4], Some(1), 63));
        assert!(
            !invites(&mut turns, 2, |key| key == 1 || key == 4),
            "itself, and one too far away"
        );
        assert!(invites(&mut turns, 3, |key| key == 4));
        assert_eq!((turns.end_current(), keys(&turns)), (Some(4), vec![1, 2, 3]));
        assert_eq!((turns.current(), turns.left()), (Some(1), 63));
        turns.take(63);
        turns.take(TURN);
        assert_eq!((turns.current(), turns.left(), turns.has_sent()), (Some(3), 63, false));
        // Of the next round, too; and not with its last packet.
        assert!(invites(&mut turns, 9, |key| key == 2) && turns.current() == Some(2));
        turns.take(1);
        turns.take(63);
        assert_eq!((turns.current(), turns.left(), keys(&turns)), (Some(1), 64, vec![1, 2, 3]));
        turns.take(63);
        assert!(!invites(&mut turns, 9, |key| key == 1));
    }

    #[test]
    fn who_is_put_first_is_not_interrupted() {
        let mut turns = of([1, 2, 3]);
        turns.take(3);
        turns.put_first(3);
        assert_eq!((keys(&turns), turns.left()), (vec![3, 1, 2], TURN));
        assert!(!invites(&mut turns, 9, |_| true));
        assert!(!turns.take(1));
        assert_eq!(turns.current(), Some(3));
        assert!(turns.take(63));
        assert_eq!((keys(&turns), turns.left()), (vec![1, 2, 3], 61));
        assert!(invites(&mut turns, 9, |_| true));
        // Also the one that has its turn.
        turns.put_first(1);
        assert_eq!((turns.current(), turns.left()), (Some(1), 61));
        assert!(!invites(&mut turns, 9, |_| true));
        assert_eq!(turns.end_current(), Some(1));
        assert!(invites(&mut turns, 9, |_| true));
    }

    /// Whatever happens between the packets, those that are there are those that were added, who is
    /// invited sends next unless it leaves, and each has its turn.
    #[test]
    fn none_is_lost_and_none_waits_for_ever() {
        const KEYS: u64 = 12;
        let (mut turns, mut there) = (Turns::default(), std::collections::BTreeSet::new());
        let (mut waits, mut longest) = ([0_u32; KEYS as usize], 0);
        let mut random = 1_u64;
        let mut below = |most: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % most
        };
        let mut guest = None;
        for _ in 0..200_000 {
            let key = below(KEYS) as u32;
            match below(16) {
                0 | 1 if there.insert(key) => {
                    waits[key as usize] = 0;
                    turns.push(key);
                }
                2 if below(8) == 0 && there.remove(&key) => {
                    turns.remove(key);
                    guest = None;
                }
                3 if below(40) == 0 && there.contains(&key) => {
                    turns.put_first(key);
                    assert_eq!(turns.current(), Some(key));
                    guest = None;
                }
                4 if below(8) == 0 => {
                    let current = turns.current();
                    assert_eq!(turns.end_current(), current);
                    there.retain(|key| Some(*key) != current);
                    guest = None;
                }
                5.. if !there.is_empty() => {
                    let current = turns.current().expect("somebody");
                    assert!(guest.is_none_or(|guest| guest == current));
                    let mut taken = [0; 2];
                    taken.fill_with(|| below(u64::from(TURN)) as u32 + 1);
                    let count = taken[0].min(taken[1]).min(turns.left());
                    let found = turns.find_guest(8, |other| other % 3 == key % 3);
                    let found = found.filter(|_| guest.is_none() && count == 1);
                    let name = found.and_then(|index| turns.keys().nth(index));
                    let was_guest = guest.take().is_some();
                    if !turns.take(count) {
                        match found {
                            Some(index) => {
                                turns.invite(index);
                                guest = name;
                                assert_eq!(turns.current(), name);
                            }
                            None if below(2) == 0 => turns.pause(),
                            None => {}
                        }
                    }
                    for key in there.iter().map(|key| *key as usize) {
                        waits[key] += count;
                        longest = longest.max(waits[key]);
                    }
                    if !was_guest {
                        waits[current as usize] = 0;
                    }
                }
                _ => {}
            }
            let mut keys = keys(&turns);
            keys.sort_unstable();
            assert!(keys.iter().eq(&there), "{keys:?} {there:?}");
            assert_eq!((turns.is_empty(), turns.len()), (there.is_empty(), there.len()));
        }
        // Two rounds, and who is put first.
        assert!(longest <= 3 * KEYS as u32 * TURN, "{longest} packets of others");
    }
}
