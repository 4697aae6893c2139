//! Times of messages: counted in classes, so that a million take no more room than ten.

use std::time::Duration;

use serde_json::{Value, json};

/// Classes between a power of two and the next: so a time is known to 1/128.
const PER_OCTAVE: u64 = 128;
/// What the percentiles are taken of.
pub(super) const PERCENTS: [f64; 4] = [50.0, 90.0, 99.0, 99.9];

/// How often each time was seen.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Histogram {
    counts: Vec<u64>,
    count: u64,
    /// Nanoseconds.
    sum: u128,
    min: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: Vec::new(), count: 0, sum: 0, min: u64::MAX, max: 0 }
    }
}

/// The class of a time in nanoseconds.
fn class(nanos: u64) -> usize {
    if nanos < PER_OCTAVE {
        return nanos as usize;
    }
    let shift = nanos.ilog2() - PER_OCTAVE.ilog2();
    (u64::from(shift) * PER_OCTAVE + (nanos >> shift)) as usize
}

/// The first time of a class.
fn start(class: usize) -> u64 {
    let class = class as u64;
    if class < 2 * PER_OCTAVE {
        return class;
    }
    let shift = class / PER_OCTAVE - 1;
    (PER_OCTAVE + class % PER_OCTAVE) << shift
}

impl Histogram {
    /// Counts one.
    pub(super) fn record(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX >> 1).min(u64::MAX >> 1);
        let class = class(nanos);
        if self.counts.len() <= class {
            self.counts.resize(class + 1, 0);
        }
        self.counts[class] += 1;
        self.count += 1;
        self.sum += u128::from(nanos);
        self.min = self.min.min(nanos);
        self.max = self.max.max(nanos);
    }

    /// Adds what another one counted.
    pub(super) fn add(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(own, other)| *own += other);
        self.count += other.count;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Whether there are none.
    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The shortest, in microseconds; 0 of none.
    pub(super) fn min(&self) -> f64 {
        if self.count == 0 { 0.0 } else { micros(self.min as f64) }
    }

    /// The longest, in microseconds.
    pub(super) fn max(&self) -> f64 {
        micros(self.max as f64)
    }

    /// Their mean, in microseconds; 0 of none.
    pub(super) fn mean(&self) -> f64 {
        micros(self.sum as f64 / self.count.max(1) as f64)
    }

    /// The time, in microseconds, that `percent` of them do not exceed, to 1/128; 0 of none.
    pub(super) fn percentile(&self, percent: f64) -> f64 {
        let wanted = (self.count as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (class, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                let middle = (start(class) + start(class + 1) - 1) / 2;
                return micros(middle.clamp(self.min, self.max) as f64);
            }
        }
        0.0
    }

    /// All of it: percentiles, and how many fell between one time and the next.
    pub(super) fn to_json(&self) -> Value {
        let percentiles: serde_json::Map<_, _> = PERCENTS
            .iter()
            .map(|&percent| (format!("p{percent}_us"), self.percentile(percent).into()))
            .collect();
        let classes: Vec<_> =
            self.classes().iter().map(|class| (class.from, class.count)).collect();
        let mut value = json!({
            "count": self.count, "min_us": self.min(), "mean_us": self.mean(), "max_us": self.max(),
            "histogram": classes,
        });
        if let Some(object) = value.as_object_mut() {
            object.extend(percentiles);
        }
        value
    }

    /// Coarser classes, eight an octave, without those that nothing fell into.
    pub(super) fn classes(&self) -> Vec<Class> {
        let width = (PER_OCTAVE / 8) as usize;
        let chunks = self.counts.chunks(width).enumerate();
        let classes = chunks.map(|(index, chunk)| Class {
            from: micros(start(index * width) as f64),
            to: micros(start((index + 1) * width) as f64),
            count: chunk.iter().sum(),
        });
        classes.filter(|class| class.count > 0).collect()
    }

    /// Which part of them are so many.
    pub(super) fn share(&self, count: u64) -> f64 {
        count as f64 / self.count.max(1) as f64
    }
}

/// How many messages took at least one time, and less than another.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Class {
    /// Microseconds.
    pub(super) from: f64,
    /// Microseconds.
    pub(super) to: f64,
    pub(super) count: u64,
}

fn micros(nanos: f64) -> f64 {
    nanos / 1e3
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn percentiles_of_a_hundred_times() {
        let mut times = Histogram::default();
        (1..=100).for_each(|n| times.record(Duration::from_nanos(n)));
        assert_eq!((times.min(), times.max(), times.count), (0.001, 0.1, 100));
        assert!((times.mean() - 0.0505).abs() < 1e-9, "{}", times.mean());
        assert_eq!(times.percentile(50.0), 0.05);
        assert_eq!((times.percentile(99.0), times.percentile(99.9)), (0.099, 0.1));
        let mut twice = times.clone();
        twice.add(&times);
        assert_eq!((twice.count, twice.percentile(90.0)), (200, 0.09));
        assert_eq!(twice.classes().iter().map(|class| class.count).sum::<u64>(), 200);
        // Those of less than 128 ns are 16 ns wide each.
        let first = Class { from: 0.0, to: 0.016, count: 30 };
        assert_eq!((twice.classes()[0], twice.share(first.count)), (first, 0.15));
    }

    #[test]
    fn nothing_is_no_panic() {
        let nothing = Histogram::default();
        assert_eq!((nothing.min(), nothing.max(), nothing.percentile(50.0)), (0.0, 0.0, 0.0));
        assert_eq!(nothing.to_json()["count"], 0);
    }

    proptest! {
        #[test]
        fn a_class_holds_its_times(nanos in 0u64..u64::MAX >> 1) {
            let class = class(nanos);
            prop_assert!(start(class) <= nanos && nanos < start(class + 1));
            // As wide as promised.
            prop_assert!(start(class + 1) - start(class) <= (nanos / PER_OCTAVE).max(1));
        }
    }
}
