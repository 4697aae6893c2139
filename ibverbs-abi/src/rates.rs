//! Rates: `enum ibv_rate`, multiples of 2.5 Gb/s, and Mb/s.

use std::ffi::c_int;

/// A rate: its value in the enumeration, how many times 2.5 Gb/s it is, if that is a number that the
/// C function knows, and Mb/s.
struct Rate {
    value: u32,
    multiple: Option<c_int>,
    mbps: c_int,
}

const fn rate(value: u32, multiple: c_int, mbps: c_int) -> Rate {
    Rate { value, multiple: Some(multiple), mbps }
}

const fn no_multiple(value: u32, mbps: c_int) -> Rate {
    Rate { value, multiple: None, mbps }
}

const RATES: [Rate; 23] = [
    rate(2, 1, 2_500),
    rate(5, 2, 5_000),
    rate(3, 4, 10_000),
    rate(6, 8, 20_000),
    rate(4, 12, 30_000),
    rate(7, 16, 40_000),
    rate(8, 24, 60_000),
    rate(9, 32, 80_000),
    rate(10, 48, 120_000),
    no_multiple(11, 14_062),
    no_multiple(12, 56_250),
    no_multiple(13, 112_500),
    no_multiple(14, 168_750),
    no_multiple(15, 25_781),
    no_multiple(16, 103_125),
    no_multiple(17, 206_250),
    no_multiple(18, 309_375),
    rate(19, 11, 28_125),
    rate(20, 20, 53_125),
    rate(21, 160, 425_000),
    rate(22, 240, 637_500),
    rate(23, 320, 850_000),
    rate(24, 480, 1_275_000),
];

/// `IBV_RATE_MAX`: as fast as it goes; also what is no rate.
const RATE_MAX: u32 = 0;

fn find(select: impl Fn(&Rate) -> bool) -> Option<&'static Rate> {
    RATES.iter().find(|rate| select(rate))
}

/// `ibv_rate_to_mult`: -1 for what is no multiple.
pub(crate) extern "C" fn ibv_rate_to_mult(rate: u32) -> c_int {
    find(|known| known.value == rate).and_then(|known| known.multiple).unwrap_or(-1)
}

/// `mult_to_ibv_rate`: `IBV_RATE_MAX` for what is no rate.
pub(crate) extern "C" fn mult_to_ibv_rate(multiple: c_int) -> u32 {
    find(|known| known.multiple == Some(multiple)).map_or(RATE_MAX, |known| known.value)
}

/// `ibv_rate_to_mbps`: -1 for what is no rate.
pub(crate) extern "C" fn ibv_rate_to_mbps(rate: u32) -> c_int {
    find(|known| known.value == rate).map_or(-1, |known| known.mbps)
}

/// `mbps_to_ibv_rate`: `IBV_RATE_MAX` for what is no rate.
pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> u32 {
    find(|known| known.mbps == mbps).map_or(RATE_MAX, |known| known.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for rate in 2..=24 {
            assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(rate)), rate);
            match ibv_rate_to_mult(rate) {
                -1 => assert!((11..=18).contains(&rate)),
                multiple => assert_eq!(mult_to_ibv_rate(multiple), rate),
            }
        }
        assert_eq!((ibv_rate_to_mult(0), ibv_rate_to_mbps(25)), (-1, -1));
        assert_eq!((mult_to_ibv_rate(3), mbps_to_ibv_rate(2_501)), (RATE_MAX, RATE_MAX));
        assert_eq!((ibv_rate_to_mult(7), ibv_rate_to_mbps(7)), (16, 40_000));
    }
}
