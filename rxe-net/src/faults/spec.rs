//! What faults to inject, as `URXE_FAULTS` says it.

use std::env::VarError;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The environment variable that holds a [`FaultSpec`].
pub const FAULTS_VARIABLE: &str = "URXE_FAULTS";

/// The keys, for the message about an unknown one.
const KEYS: &str = "seed, drop, dup, reorder, reorder-by, reorder-wait, corrupt, delay, \
                    delay-prob and until";

/// A probability in parts per million, so that it is exact and the same on every machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Probability(u32);

impl Probability {
    /// Never.
    pub const NEVER: Self = Self(0);
    /// Always.
    pub const ALWAYS: Self = Self(1_000_000);

    /// So many in a million, at most all.
    pub const fn from_ppm(ppm: u32) -> Self {
        Self(if ppm > 1_000_000 { 1_000_000 } else { ppm })
    }

    /// So many in a hundred, at most all.
    pub const fn from_percent(percent: u32) -> Self {
        Self::from_ppm(percent.saturating_mul(10_000))
    }

    /// Parts per million.
    pub const fn ppm(self) -> u32 {
        self.0
    }

    /// Whether a uniformly drawn word falls within this probability.
    pub(super) const fn hits(self, word: u32) -> bool {
        // The product is below 2^52, and its top part below a million.
        (word as u64 * 1_000_000) >> 32 < self.0 as u64
    }
}

/// When faults stop, so that what they broke can be seen to recover.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// So many nanoseconds after the first packet.
    Nanos(u64),
    /// After so many packets.
    Packets(u64),
}

/// What faults to inject into the packets that leave.
///
/// As text, a list of `key=value` with commas between, each key at most once:
///
/// | key | value | meaning |
/// |---|---|---|
/// | `seed` | number | which of all runs; default 0 |
/// | `drop` | `3%` | packets that vanish |
/// | `dup` | `1%` | packets that leave twice |
/// | `reorder` | `2%` | packets held back until others have passed |
/// | `reorder-by` | `3` | how many others at most; default 3 |
/// | `reorder-wait` | `1ms` | and for how long at most; default 1ms |
/// | `corrupt` | `0.1%` | packets with one bit flipped, iCRC included |
/// | `delay` | `50us` or `50us..2ms` | packets held back for a time drawn from this range |
/// | `delay-prob` | `10%` | how many of them; default 100% |
/// | `until` | `5s` or `1000packets` | when all faults stop, counted from the first packet |
///
/// Times are numbers with `ns`, `us`, `ms` or `s`. Percentages have up to four decimals.
///
/// ```
/// use rxe_net::faults::{FaultSpec, Probability};
///
/// let spec: FaultSpec = "seed=7,drop=3%,delay=50us..2ms".parse()?;
/// assert_eq!((spec.seed, spec.drop), (7, Probability::from_percent(3)));
/// assert_eq!(spec.delay_nanos, Some(50_000..=2_000_000));
/// # Ok::<(), rxe_net::faults::ParseFaultsError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FaultSpec {
    /// Which of all runs: the same seed does the same to the same packets.
    pub seed: u64,
    /// Packets that vanish.
    pub drop: Probability,
    /// Packets that leave twice.
    pub duplicate: Probability,
    /// Packets held back until others have passed.
    pub reorder: Probability,
    /// How many other packets pass at most; drawn from 1 to this, at least 1.
    pub reorder_by_max: u32,
    /// How long a packet waits for others to pass, in nanoseconds.
    pub reorder_wait_nanos: u64,
    /// Packets with one bit flipped after the iCRC was computed.
    pub corrupt: Probability,
    /// Nanoseconds that a delayed packet is held back; `None` when none is.
    pub delay_nanos: Option<RangeInclusive<u64>>,
    /// Packets that are delayed.
    pub delay: Probability,
    /// When all this stops; `None` for never.
    pub until: Option<Until>,
}

impl Default for FaultSpec {
    /// No faults at all.
    fn default() -> Self {
        Self {
            seed: 0,
            drop: Probability::NEVER,
            duplicate: Probability::NEVER,
            reorder: Probability::NEVER,
            reorder_by_max: 3,
            reorder_wait_nanos: 1_000_000,
            corrupt: Probability::NEVER,
            delay_nanos: None,
            delay: Probability::ALWAYS,
            until: None,
        }
    }
}

/// A text that is no fault specification.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParseFaultsError {
    /// A part without `=`.
    #[error("`{part}` is no fault: write key=value, such as drop=3%")]
    NoValue {
        /// The part.
        part: String,
    },
    /// A key that there is not.
    #[error("there is no fault `{key}`: the keys are {KEYS}")]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// A key given twice.
    #[error("`{key}` is given twice: give it once")]
    Twice {
        /// The key.
        key: String,
    },
    /// A value of another form or out of range.
    #[error("`{key}={value}` is no fault: {expected}")]
    Value {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
    /// The environment variable is not text.
    #[error("{FAULTS_VARIABLE} is not UTF-8 text: write key=value,key=value")]
    NotText,
}

impl FaultSpec {
    /// What `URXE_FAULTS` says; `None` when it is unset or empty.
    ///
    /// # Errors
    ///
    /// [`ParseFaultsError`], which says what would be right.
    pub fn from_env() -> Result<Option<Self>, ParseFaultsError> {
        match std::env::var(FAULTS_VARIABLE) {
            Ok(text) if text.trim().is_empty() => Ok(None),
            Ok(text) => text.parse().map(Some),
            Err(VarError::NotPresent) => Ok(None),
            Err(VarError::NotUnicode(_)) => Err(ParseFaultsError::NotText),
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), ParseFaultsError> {
        let bad = |expected| ParseFaultsError::Value {
            key: key.to_owned(),
            value: value.to_owned(),
            expected,
        };
        let percent = || {
            parse_percent(value)
                .ok_or_else(|| bad("give a percentage from 0% to 100%, such as 3% or 0.05%"))
        };
        match key {
            "seed" => {
                self.seed = value.parse().map_err(|_| bad("give a number below 2^64"))?;
            }
            "drop" => self.drop = percent()?,
            "dup" => self.duplicate = percent()?,
            "reorder" => self.reorder = percent()?,
            "reorder-by" => {
                let count = value.parse().ok().filter(|count| (1..=1000).contains(count));
                self.reorder_by_max =
                    count.ok_or_else(|| bad("give a number of packets from 1 to 1000"))?;
            }
            "reorder-wait" => {
                self.reorder_wait_nanos =
                    parse_nanos(value).ok_or_else(|| bad("give a time such as 1ms"))?;
            }
            "corrupt" => self.corrupt = percent()?,
            "delay" => {
                let range = parse_range(value);
                self.delay_nanos = Some(range.ok_or_else(|| {
                    bad("give a time such as 50us, or the least and the most: 50us..2ms")
                })?);
            }
            "delay-prob" => self.delay = percent()?,
            "until" => {
                let until = parse_until(value);
                self.until =
                    Some(until.ok_or_else(|| bad("give a time such as 5s, or 1000packets"))?);
            }
            _ => return Err(ParseFaultsError::UnknownKey { key: key.to_owned() }),
        }
        Ok(())
    }
}

impl FromStr for FaultSpec {
    type Err = ParseFaultsError;

    fn from_str(text: &str) -> Result<Self, ParseFaultsError> {
        let mut spec = Self::default();
        let mut seen: Vec<&str> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| ParseFaultsError::NoValue { part: part.to_owned() })?;
            let (key, value) = (key.trim(), value.trim());
            if seen.contains(&key) {
                return Err(ParseFaultsError::Twice { key: key.to_owned() });
            }
            seen.push(key);
            spec.set(key, value)?;
        }
        if seen.contains(&"delay-prob") && spec.delay_nanos.is_none() {
            return Err(ParseFaultsError::Value {
                key: "delay-prob".to_owned(),
                value: Percent(spec.delay).to_string(),
                expected: "it needs a delay beside it, such as delay=1ms",
            });
        }
        Ok(spec)
    }
}

impl fmt::Display for FaultSpec {
    /// The text that parses to this, for the command that replays a run.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed={}", self.seed)?;
        let faults = [("drop", self.drop), ("dup", self.duplicate), ("corrupt", self.corrupt)];
        for (key, probability) in faults {
            if probability != Probability::NEVER {
                write!(f, ",{key}={}", Percent(probability))?;
            }
        }
        let default = Self::default();
        if self.reorder != Probability::NEVER {
            write!(f, ",reorder={}", Percent(self.reorder))?;
        }
        if self.reorder_by_max != default.reorder_by_max {
            write!(f, ",reorder-by={}", self.reorder_by_max)?;
        }
        if self.reorder_wait_nanos != default.reorder_wait_nanos {
            write!(f, ",reorder-wait={}", Nanos(self.reorder_wait_nanos))?;
        }
        if let Some(delay) = &self.delay_nanos {
            write!(f, ",delay={}..{}", Nanos(*delay.start()), Nanos(*delay.end()))?;
            if self.delay != Probability::ALWAYS {
                write!(f, ",delay-prob={}", Percent(self.delay))?;
            }
        }
        match self.until {
            None => Ok(()),
            Some(Until::Nanos(nanos)) => write!(f, ",until={}", Nanos(nanos)),
            Some(Until::Packets(count)) => write!(f, ",until={count}packets"),
        }
    }
}

/// Writes a probability as a percentage, with the decimals it needs.
struct Percent(Probability);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ppm = self.0.ppm();
        let (whole, decimals) = (ppm / 10_000, ppm % 10_000);
        if decimals == 0 {
            return write!(f, "{whole}%");
        }
        let digits = format!("{decimals:04}");
        write!(f, "{whole}.{}%", digits.trim_end_matches('0'))
    }
}

/// Writes a time in the largest unit that it is a whole number of.
struct Nanos(u64);

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |&(_, nanos): &(&str, u64)| self.0.is_multiple_of(nanos);
        let (unit, nanos) = UNITS.into_iter().rev().find(whole).unwrap_or(("ns", 1));
        write!(f, "{}{unit}", self.0 / nanos)
    }
}

/// Units of time and their nanoseconds. `s` comes last: the others end with it as well.
const UNITS: [(&str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

fn parse_percent(text: &str) -> Option<Probability> {
    let ppm = parse_fixed(text.strip_suffix('%')?, 10_000)?;
    u32::try_from(ppm).ok().filter(|&ppm| ppm <= 1_000_000).map(Probability)
}

fn parse_nanos(text: &str) -> Option<u64> {
    let (number, nanos) = UNITS
        .into_iter()
        .find_map(|(unit, nanos)| text.strip_suffix(unit).map(|number| (number, nanos)))?;
    parse_fixed(number.trim_end(), nanos)
}

fn parse_range(text: &str) -> Option<RangeInclusive<u64>> {
    let (least, most) = text.split_once("..").unwrap_or((text, text));
    let range = parse_nanos(least.trim())?..=parse_nanos(most.trim())?;
    (!range.is_empty()).then_some(range)
}

fn parse_until(text: &str) -> Option<Until> {
    match text.strip_suffix("packets") {
        Some(count) => count.trim_end().parse().ok().map(Until::Packets),
        None => parse_nanos(text).map(Until::Nanos),
    }
}

/// Reads a decimal number times `scale`, a power of ten; no more decimals than the scale keeps.
fn parse_fixed(text: &str, scale: u64) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    // `parse` would take a sign as well.
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(decimals) {
        return None;
    }
    let decimals = decimals.trim_end_matches('0');
    let parts = 10_u64.checked_pow(u32::try_from(decimals.len()).ok()?)?;
    if parts > scale {
        return None;
    }
    let fraction = if decimals.is_empty() { 0 } else { decimals.parse::<u64>().ok()? };
    whole.parse::<u64>().ok()?.checked_mul(scale)?.checked_add(fraction * (scale / parts))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_key_is_read() {
        let text = " seed=7, drop=3%,dup=1%,reorder=2%,reorder-by=5,reorder-wait=1.5ms,\
                    corrupt=0.1%,delay=50us..2ms,delay-prob=12.3456%,until=5s";
        let expected = FaultSpec {
            seed: 7,
            drop: Probability::from_percent(3),
            duplicate: Probability::from_percent(1),
            reorder: Probability::from_percent(2),
            reorder_by_max: 5,
            reorder_wait_nanos: 1_500_000,
            corrupt: Probability::from_ppm(1_000),
            delay_nanos: Some(50_000..=2_000_000),
            delay: Probability::from_ppm(123_456),
            until: Some(Until::Nanos(5_000_000_000)),
        };
        assert_eq!(text.parse(), Ok(expected));
        let spec: FaultSpec = "delay=3ns,until=10packets".parse().expect("right");
        assert_eq!(spec.delay_nanos, Some(3..=3));
        assert_eq!(spec.until, Some(Until::Packets(10)));
    }

    #[test]
    fn errors_say_what_would_be_right() {
        let cases = [
            ("", "write key=value"),
            ("drop", "write key=value"),
            ("drop=3%,", "write key=value"),
            ("loss=3%", "the keys are seed, drop"),
            ("drop=3%,drop=4%", "give it once"),
            ("drop=3", "such as 3%"),
            ("drop=101%", "from 0% to 100%"),
            ("drop=-1%", "from 0% to 100%"),
            ("drop=0.00001%", "from 0% to 100%"),
            ("drop=.%", "from 0% to 100%"),
            ("seed=x", "a number below 2^64"),
            ("reorder-by=0", "from 1 to 1000"),
            ("reorder-wait=1", "such as 1ms"),
            ("delay=2ms..1ms", "50us..2ms"),
            ("delay=99999999999999s", "50us..2ms"),
            ("delay-prob=5%", "needs a delay"),
            ("until=5", "5s, or 1000packets"),
        ];
        for (text, expected) in cases {
            let error = text.parse::<FaultSpec>().expect_err(text).to_string();
            assert!(error.contains(expected), "`{text}` gives: {error}");
        }
    }

    #[test]
    fn a_probability_hits_its_share_of_words() {
        assert!(!Probability::NEVER.hits(0));
        assert!(Probability::ALWAYS.hits(u32::MAX));
        let half = Probability::from_percent(50);
        assert!(half.hits((1 << 31) - 1) && !half.hits(1 << 31));
    }

    fn probability() -> impl Strategy<Value = Probability> {
        (0..=1_000_000_u32).prop_map(Probability::from_ppm)
    }

    prop_compose! {
        fn spec()(
            seed: u64,
            [drop, duplicate, reorder, corrupt, delay] in [
                probability(), probability(), probability(), probability(), probability(),
            ],
            reorder_by_max in 1..=1000_u32,
            reorder_wait_nanos: u64,
            bounds in prop::option::of(any::<(u64, u64)>()),
            until in prop::option::of(prop_oneof![
                any::<u64>().prop_map(Until::Nanos),
                any::<u64>().prop_map(Until::Packets),
            ]),
        ) -> FaultSpec {
            let delay_nanos = bounds.map(|(a, b)| a.min(b)..=a.max(b));
            let delay = if delay_nanos.is_some() { delay } else { Probability::ALWAYS };
            FaultSpec {
                seed, drop, duplicate, reorder, reorder_by_max, reorder_wait_nanos, corrupt,
                delay_nanos, delay, until,
            }
        }
    }

    proptest! {
        #[test]
        fn text_round_trips(spec in spec()) {
            prop_assert_eq!(spec.to_string().parse(), Ok(spec));
        }

        #[test]
        fn no_text_makes_it_panic(text in "[a-z=%.,0-9 -]{0,40}") {
            let _ = text.parse::<FaultSpec>();
        }
    }
}
