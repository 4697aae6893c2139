//! The figures, and how they are written.

use std::io::{self, Write};
use std::time::Duration;

use ibverbs_api::{Gid, Mtu};
use serde_json::{Value, json};

use super::bandwidth::Operation;

/// What many measurements of a time came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Quantiles {
    pub(super) min: Duration,
    pub(super) median: Duration,
    pub(super) p99: Duration,
}

impl Quantiles {
    /// Of half of each of these times, of which there must be one at least; sorts them.
    pub(super) fn of_halves(times: &mut [Duration]) -> Self {
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() - 1) * percent / 100] / 2;
        Self { min: at(0), median: at(50), p99: at(99) }
    }
}

/// The latency of messages of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Latency {
    pub(super) size: usize,
    pub(super) one_way: Quantiles,
}

/// Bandwidths at one path MTU, in bytes a second, one value a round.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Row {
    pub(super) mtu: Mtu,
    /// What bare sockets carry.
    pub(super) raw: Vec<f64>,
    /// In the order of [`Operation::ALL`].
    pub(super) figures: [Vec<f64>; 3],
}

impl Row {
    pub(super) fn new(mtu: Mtu) -> Self {
        Self { mtu, raw: Vec::new(), figures: Default::default() }
    }
}

/// Everything that was measured.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Report {
    pub(super) device: String,
    pub(super) gid: Gid,
    pub(super) size: usize,
    pub(super) depth: usize,
    pub(super) latency_mtu: Mtu,
    pub(super) latencies: Vec<Latency>,
    pub(super) rows: Vec<Row>,
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What is carried of what the bare pipe carries: the median over the rounds, each of which sets
/// both side by side. A host that changes its speed from one round to another would else have its
/// slow rounds divided by its fast ones.
fn ratio(figures: &[f64], raw: &[f64]) -> f64 {
    let ratios: Vec<f64> = figures.iter().zip(raw).map(|(figure, raw)| figure / raw).collect();
    median(&ratios)
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

impl Report {
    /// Tables to read.
    pub(super) fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { device, gid, size, depth, latency_mtu, .. } = self;
        writeln!(out, "{device}, GID {gid}, both ends in this process; all data was right")?;
        writeln!(out)?;
        let mtu = latency_mtu.bytes();
        writeln!(out, "latency of SEND, one way, path MTU {mtu}")?;
        writeln!(out, "{:>10}{:>12}{:>12}{:>12}", "bytes", "min", "median", "p99")?;
        for Latency { size, one_way } in &self.latencies {
            write!(out, "{size:>10}")?;
            for time in [one_way.min, one_way.median, one_way.p99] {
                write!(out, "{:>9.2} us", micros(time))?;
            }
            writeln!(out)?;
        }
        writeln!(out)?;
        writeln!(
            out,
            "bandwidth of one queue pair, messages of {size} bytes, {depth} under way, and the \
             ratio to bare UDP sockets (UDP_SEGMENT, UDP_GRO) of the same round; both ends poll"
        )?;
        write!(out, "{:>10}{:>14}", "path MTU", "bare UDP")?;
        for operation in Operation::ALL {
            write!(out, "{:>19}", operation.name())?;
        }
        writeln!(out)?;
        for row in &self.rows {
            let raw = median(&row.raw);
            write!(out, "{:>10}{:>9.2} GB/s", row.mtu.bytes(), raw / 1e9)?;
            for figures in &row.figures {
                let (figure, ratio) = (median(figures), ratio(figures, &row.raw));
                write!(out, "{:>9.2} GB/s {ratio:.2}", figure / 1e9)?;
            }
            writeln!(out)?;
        }
        Ok(())
    }

    /// One JSON object.
    pub(super) fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        let latencies: Vec<Value> = self.latencies.iter().map(latency_json).collect();
        let rows: Vec<Value> = self.rows.iter().map(row_json).collect();
        let value = json!({
            "device": self.device,
            "gid": self.gid.to_string(),
            "data_right": true,
            "latency_mtu": self.latency_mtu.bytes(),
            "latency": latencies,
            "message_bytes": self.size,
            "under_way": self.depth,
            "bandwidth": rows,
        });
        writeln!(out, "{value}")
    }
}

fn latency_json(latency: &Latency) -> Value {
    let Quantiles { min, median, p99 } = latency.one_way;
    json!({
        "bytes": latency.size,
        "min_us": micros(min),
        "median_us": micros(median),
        "p99_us": micros(p99),
    })
}

fn row_json(row: &Row) -> Value {
    let raw = median(&row.raw);
    let mut value = json!({
        "mtu": row.mtu.bytes(),
        "raw_bytes_per_second": raw,
        "raw_rounds": row.raw,
    });
    for (operation, figures) in Operation::ALL.into_iter().zip(&row.figures) {
        value[operation.name().to_lowercase()] = json!({
            "bytes_per_second": median(figures),
            "ratio": ratio(figures, &row.raw),
            "rounds": figures,
        });
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_half_the_times() {
        let mut times: Vec<_> = (0..=200).rev().map(|n| Duration::from_micros(2 * n)).collect();
        let quantiles = Quantiles::of_halves(&mut times);
        let micros = Duration::from_micros;
        let wanted = Quantiles { min: micros(0), median: micros(100), p99: micros(198) };
        assert_eq!(quantiles, wanted);
        let one = Quantiles::of_halves(&mut [micros(4)]);
        assert_eq!(one, Quantiles { min: micros(2), median: micros(2), p99: micros(2) });
    }

    #[test]
    fn the_ratio_compares_figures_of_the_same_round() {
        // Of three rounds the host was slow in one: the medians of each would give 0.25.
        let (figures, raw) = ([1.0, 2.0, 1.0], [2.0, 4.0, 4.0]);
        assert!((ratio(&figures, &raw) - 0.5).abs() < f64::EPSILON);
    }

    #[test]
    fn the_text_gives_medians_and_ratios() {
        let row = Row {
            mtu: Mtu::M1024,
            raw: vec![4e9, 1e9, 5e9],
            figures: [vec![2e9, 2e9, 9e9], vec![1e9; 3], vec![3e9; 3]],
        };
        let one_way = Quantiles::of_halves(&mut [Duration::from_micros(10)]);
        let report = Report {
            device: "rxe_x".to_owned(),
            gid: Gid::ZERO,
            size: 65_536,
            depth: 16,
            latency_mtu: Mtu::M4096,
            latencies: vec![Latency { size: 8, one_way }],
            rows: vec![row],
        };
        let mut text = Vec::new();
        report.write_text(&mut text).expect("writes");
        insta::assert_snapshot!(String::from_utf8(text).expect("UTF-8"));
    }
}
