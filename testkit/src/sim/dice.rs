//! Random choices of a simulation, all from its seed.

/// A small generator (SplitMix64): good enough to choose scenarios, and the same everywhere.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Starts the stream of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 when `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // The bias is far below anything that a simulation could notice.
        ((u128::from(self.word()) * u128::from(end)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of `choices`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Appends `count` random bytes.
    pub fn fill(&mut self, to: &mut Vec<u8>, count: usize) {
        let end = to.len() + count;
        while to.len() < end {
            to.extend_from_slice(&self.word().to_le_bytes());
        }
        to.truncate(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_that_of_the_published_generator() {
        // First outputs of SplitMix64 for seed 1234567.
        let mut dice = Dice::new(1_234_567);
        let words = [dice.word(), dice.word(), dice.word()];
        assert_eq!(
            words,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn ranges_are_kept() {
        let mut dice = Dice::new(1);
        for _ in 0..1000 {
            assert!((3..=5).contains(&dice.range(3, 5)));
            assert_eq!(dice.range(7, 7), 7);
            assert_eq!(dice.below(0), 0);
        }
        let mut bytes = vec![9];
        dice.fill(&mut bytes, 13);
        assert_eq!(bytes.len(), 14);
    }
}
