//! Bytes that say which message they belong to, and where in it they stand.

/// 2^64 over the golden ratio: neighbouring words differ in about half of their bits.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

fn word(seed: u64, index: usize) -> [u8; 8] {
    let product = seed.wrapping_add(index as u64).wrapping_add(1).wrapping_mul(MULTIPLIER);
    (product ^ (product >> 29)).to_le_bytes()
}

/// Fills `to` with the bytes of `seed`.
pub(crate) fn fill(seed: u64, to: &mut [u8]) {
    for (index, chunk) in to.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(seed, index)[..chunk.len()]);
    }
}

/// The first place where `got` has other bytes than `fill` would write.
pub(crate) fn first_difference(seed: u64, got: &[u8]) -> Option<usize> {
    let index = got
        .chunks(8)
        .enumerate()
        .position(|(index, chunk)| chunk != &word(seed, index)[..chunk.len()])?;
    let start = index * 8;
    let wanted = word(seed, index);
    let within = got[start..].iter().zip(wanted).position(|(&got, wanted)| got != wanted);
    Some(start + within.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn one_wrong_byte_is_found(
            seed: u64, len in 1usize..300, at: prop::sample::Index, flip in 1u8..,
        ) {
            let mut bytes = vec![0; len];
            fill(seed, &mut bytes);
            prop_assert_eq!(first_difference(seed, &bytes), None);
            let at = at.index(len);
            bytes[at] ^= flip;
            prop_assert_eq!(first_difference(seed, &bytes), Some(at));
        }
    }

    #[test]
    fn the_bytes_of_another_message_are_found() {
        let mut bytes = [0; 4096];
        for seed in 0..1000 {
            fill(seed, &mut bytes);
            assert!(first_difference(seed + 1, &bytes).is_some_and(|at| at < 8));
            // Nor may a message look like a part of another.
            assert!(first_difference(seed, &bytes[1..]).is_some());
        }
    }
}
