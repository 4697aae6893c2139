//! Finding out in which order the kernel has the sockets of an address.
//!
//! A probe for index `i` comes to the socket at that index, which answers by letter with its slot.
//! The number of sockets is not known: a probe beyond them comes to any of them, by hash. A socket
//! gets the probe for its own index too, which is lower than all of those; so the lowest index that
//! a slot has answered for is its own, unless that probe or answer was lost. Then an index is left
//! that nobody has: the survey is not whole, and made again.

use std::collections::BTreeMap;

use super::letter::Answer;

/// Indices that are probed at a time: fewer than letters fit in an inbox.
const CHUNK: u8 = 8;
/// Indices that can be probed, one for each slot.
const INDICES: u8 = 254;

/// One survey of the sockets of an address. It does no I/O.
#[derive(Debug)]
pub(crate) struct Survey {
    number: u64,
    /// Indices that are probed: at least as many as there are sockets.
    size: u8,
    /// The first one of the chunk under way, and the first beyond it.
    chunk: (u8, u8),
    answered: [bool; INDICES as usize],
    /// The lowest index that a slot has answered for.
    lowest: BTreeMap<u8, u8>,
}

impl Survey {
    /// A survey of `size` indices. Its number should not be guessed easily.
    pub(crate) fn new(number: u64, size: usize) -> Self {
        let size = u8::try_from(size).unwrap_or(INDICES).min(INDICES);
        let answered = [false; INDICES as usize];
        Self { number, size, chunk: (0, 0), answered, lowest: BTreeMap::new() }
    }

    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// The indices to be probed next; empty when all were.
    pub(crate) fn next_chunk(&mut self) -> std::ops::Range<u8> {
        let first = self.chunk.1;
        self.chunk = (first, first.saturating_add(CHUNK).min(self.size));
        self.chunk.0..self.chunk.1
    }

    /// Takes an answer; ignores those to other surveys.
    pub(crate) fn note(&mut self, answer: Answer) {
        let Answer { survey, index, slot } = answer;
        let Some(answered) = self.answered.get_mut(usize::from(index)) else { return };
        if survey != self.number || index >= self.chunk.1 || *answered {
            return;
        }
        *answered = true;
        let lowest = self.lowest.entry(slot).or_insert(index);
        *lowest = index.min(*lowest);
    }

    /// Whether all probes under way are answered.
    pub(crate) fn is_chunk_answered(&self) -> bool {
        let (first, end) = (usize::from(self.chunk.0), usize::from(self.chunk.1));
        self.answered[first..end].iter().all(|&answered| answered)
    }

    /// The slot at each index, as far as it is known.
    pub(crate) fn order(&self) -> Vec<Option<u8>> {
        let end = self.lowest.values().max().map_or(0, |&index| usize::from(index) + 1);
        let mut order = vec![None; end];
        for (&slot, &index) in &self.lowest {
            order[usize::from(index)] = Some(slot);
        }
        order
    }

    /// Whether the order is known to its end, as far as answers show, and has all of `expected`.
    pub(crate) fn is_whole(&self, expected: &[u8]) -> bool {
        self.order().iter().all(Option::is_some)
            && expected.iter().all(|slot| self.lowest.contains_key(slot))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The kernel's part: probes come to the sockets of `group`, those beyond it to `any`.
    fn answer_all(survey: &mut Survey, group: &[u8], any: usize, is_lost: impl Fn(u8) -> bool) {
        loop {
            let chunk = survey.next_chunk();
            if chunk.is_empty() {
                return;
            }
            for index in chunk.filter(|&index| !is_lost(index)) {
                let at = usize::from(index);
                let slot = group[if at < group.len() { at } else { any % group.len() }];
                survey.note(Answer { survey: survey.number(), index, slot });
            }
        }
    }

    fn groups() -> impl Strategy<Value = Vec<u8>> {
        Just((1..=254).collect::<Vec<u8>>())
            .prop_shuffle()
            .prop_flat_map(|all| (1..=all.len()).prop_map(move |len| all[..len].to_vec()))
    }

    proptest! {
        #[test]
        fn the_order_is_found(group in groups(), any: usize, more in 0..20_usize) {
            let mut survey = Survey::new(5, group.len() + more);
            answer_all(&mut survey, &group, any, |_| false);
            prop_assert!(survey.is_chunk_answered() && survey.is_whole(&group));
            let expected: Vec<_> = group.iter().copied().map(Some).collect();
            prop_assert_eq!(survey.order(), expected);
        }

        /// What was lost is noticed, where one whose slot is expected is concerned; and what is
        /// found of the others is right, or the survey is not whole.
        #[test]
        fn a_lost_answer_is_noticed(group in groups(), any: usize, lost: usize) {
            let lost = (lost % group.len()) as u8;
            let mut survey = Survey::new(5, group.len() + 3);
            answer_all(&mut survey, &group, any, |index| index == lost);
            prop_assert!(!survey.is_whole(&group));
        }
    }

    #[test]
    fn answers_that_nobody_asked_for_change_nothing() {
        let mut survey = Survey::new(5, 20);
        assert_eq!(survey.next_chunk(), 0..8);
        survey.note(Answer { survey: 4, index: 0, slot: 9 });
        survey.note(Answer { survey: 5, index: 8, slot: 9 });
        survey.note(Answer { survey: 5, index: 255, slot: 9 });
        assert!(survey.order().is_empty());
        survey.note(Answer { survey: 5, index: 1, slot: 9 });
        survey.note(Answer { survey: 5, index: 1, slot: 10 });
        assert_eq!(survey.order(), [None, Some(9)]);
        assert!(!survey.is_whole(&[]) && !survey.is_chunk_answered());
        assert_eq!(survey.next_chunk(), 8..16);
        assert_eq!(survey.next_chunk(), 16..20);
        assert!(survey.next_chunk().is_empty());
    }
}
