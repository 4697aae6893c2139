//! The figures, and how they are written.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::histogram::{Histogram, PERCENTS};
use super::idle::Idleness;
use super::limits::{Limit, Unit};
use super::load::{Kind, Load};
use super::session::{Measured, elapsed};
use super::worker::Work;

/// Characters of the longest bar of a histogram.
const BAR: f64 = 50.0;

/// What one end did in a measurement.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Figures {
    /// Messages sent, all complete.
    pub sent: u64,
    /// Messages that came, where they can be counted.
    pub received: u64,
    /// How long it sent, in seconds; 0 where it sent nothing.
    pub seconds: f64,
    /// What woke up while nothing was sent, if that was asked for.
    pub idle: Option<Idleness>,
}

impl Figures {
    /// What the threads of an end did.
    pub(super) fn of(work: &[Work]) -> Self {
        Self {
            sent: work.iter().map(|work| work.sent).sum(),
            received: work.iter().map(|work| work.received).sum(),
            seconds: elapsed(work).as_secs_f64(),
            idle: None,
        }
    }

    /// `messages` a second, while it sent.
    fn rate(&self, messages: u64) -> f64 {
        if self.seconds > 0.0 { messages as f64 / self.seconds } else { 0.0 }
    }
}

/// The middle of some values, which are not all missing.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What the rounds of one load came to.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) load: Load,
    /// Bytes of the path MTU.
    pub(super) mtu: u32,
    /// Of bandwidths: messages a second that arrived, one value a round.
    pub(super) rates: Vec<f64>,
    /// Of bandwidths: messages sent, and those that arrived.
    pub(super) counts: (u64, u64),
    /// Of latencies: the times, and the median of each round in microseconds.
    pub(super) times: Histogram,
    pub(super) medians: Vec<f64>,
    /// What sockets carry, measured in the same rounds.
    pub(super) limits: Vec<(Limit, Vec<f64>)>,
    /// What woke up while all was left alone, here and at the other end, in all rounds.
    pub(super) idle: Option<[Idleness; 2]>,
}

impl Row {
    pub(super) fn new(load: Load, mtu: u32, limits: &[Limit]) -> Self {
        let limits = limits.iter().map(|&limit| (limit, Vec::new())).collect();
        let (rates, medians, times) = (Vec::new(), Vec::new(), Histogram::default());
        Self { load, mtu, rates, counts: (0, 0), times, medians, limits, idle: None }
    }

    /// Adds a round.
    pub(super) fn add(&mut self, measured: &Measured) {
        if let (Some(own), Some(peer)) = (measured.own.idle, measured.peer.idle) {
            let [own_before, peer_before] = self.idle.unwrap_or_default();
            self.idle = Some([own_before.plus(own), peer_before.plus(peer)]);
        }
        match self.load.kind {
            Kind::Latency => {
                self.medians.push(measured.times.percentile(50.0));
                self.times.add(&measured.times);
            }
            Kind::Bandwidth => {
                let mut rate = 0.0;
                for (from, to) in [(measured.own, measured.peer), (measured.peer, measured.own)] {
                    let counts = self.load.operation.takes_receive();
                    let arrived = if counts { to.received.min(from.sent) } else { from.sent };
                    rate += from.rate(arrived);
                    self.counts.0 += from.sent;
                    self.counts.1 += arrived;
                }
                self.rates.push(rate);
            }
        }
    }

    /// Messages a second.
    pub(super) fn rate(&self) -> f64 {
        median(&self.rates)
    }

    /// Bytes a second.
    pub(super) fn bytes_per_second(&self) -> f64 {
        self.rate() * f64::from(self.load.size)
    }

    /// Microseconds of a message.
    pub(super) fn micros(&self) -> f64 {
        median(&self.medians)
    }

    /// This figure over what a limit came to: bandwidths are best at 1, latencies never below it.
    pub(super) fn share(&self, limit: Limit, values: &[f64]) -> Option<f64> {
        let measured = match (self.load.kind, limit.unit()) {
            (Kind::Bandwidth, Unit::BytesPerSecond) => self.bytes_per_second(),
            (Kind::Latency, Unit::Micros) => self.micros(),
            _ => return None,
        };
        Some(measured / median(values))
    }

    fn to_json(&self) -> Value {
        let Self { load, mtu, .. } = self;
        let mut value = match load.kind {
            Kind::Latency => json!({ "latency": self.times.to_json(), "median_us": self.micros() }),
            Kind::Bandwidth => json!({
                "messages_per_second": self.rate(),
                "bytes_per_second": self.bytes_per_second(),
                "rounds": self.rates,
                "sent": self.counts.0,
                "arrived": load.operation.takes_receive().then_some(self.counts.1),
            }),
        };
        value["load"] = json!(load);
        value["mtu"] = json!(mtu);
        value["limits"] = self
            .limits
            .iter()
            .map(|(limit, values)| {
                json!({
                    "limit": limit.name(), "unit": limit.unit().name(), "value": median(values),
                    "rounds": values, "share": self.share(*limit, values),
                })
            })
            .collect();
        if let Some([own, peer]) = self.idle {
            value["idle"] = json!({ "own": own, "peer": peer });
        }
        value
    }
}

/// Everything that was measured.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) device: String,
    pub(super) gid: String,
    pub(super) rows: Vec<Row>,
    /// What does not depend on a row.
    pub(super) machine: Vec<(Limit, Vec<f64>)>,
    /// Whether the histograms of latencies are among the tables.
    pub(super) has_histograms: bool,
}

/// A number of bytes, short.
pub(super) fn bytes(count: u32) -> String {
    match count {
        count if count >= 1 << 20 && count % (1 << 20) == 0 => format!("{} MiB", count >> 20),
        count if count >= 1 << 10 && count % (1 << 10) == 0 => format!("{} KiB", count >> 10),
        count => format!("{count} B"),
    }
}

impl Report {
    /// Tables to read.
    pub(super) fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}, GID {}; all data was right", self.device, self.gid)?;
        for kind in [Kind::Latency, Kind::Bandwidth] {
            let rows: Vec<_> = self.rows.iter().filter(|row| row.load.kind == kind).collect();
            if rows.is_empty() {
                continue;
            }
            writeln!(out)?;
            match kind {
                Kind::Latency => write_latencies(out, &rows, self.has_histograms)?,
                Kind::Bandwidth => write_bandwidths(out, &rows)?,
            }
        }
        if !self.machine.is_empty() {
            writeln!(out)?;
            for (limit, values) in &self.machine {
                writeln!(out, "{:<28}{}", limit.name(), limit.unit().show(median(values)))?;
            }
        }
        Ok(())
    }

    /// One JSON object.
    pub(super) fn to_json(&self) -> Value {
        let machine: Value = self
            .machine
            .iter()
            .map(|(limit, values)| {
                json!({
                    "limit": limit.name(), "unit": limit.unit().name(), "value": median(values),
                    "rounds": values,
                })
            })
            .collect();
        json!({
            "device": self.device,
            "gid": self.gid,
            "data_right": true,
            "results": self.rows.iter().map(Row::to_json).collect::<Vec<_>>(),
            "machine": machine,
        })
    }
}

fn head(row: &Row) -> String {
    let Row { load, mtu, .. } = row;
    let (service, operation) = (load.service.name(), load.operation.name());
    let mtu = if load.service.head() > 0 { "-".to_owned() } else { mtu.to_string() };
    format!("{service:<4}{operation:<10}{:>9}{mtu:>6}", bytes(load.size))
}

fn write_latencies(out: &mut impl Write, rows: &[&Row], has_histograms: bool) -> io::Result<()> {
    writeln!(
        out,
        "latency in microseconds: SEND and WRITE one way (half of there and back), READ and atomics \
         whole"
    )?;
    write!(out, "{:<14}{:>9}{:>6}{:>9}{:>9}", "", "bytes", "MTU", "min", "mean")?;
    for percent in PERCENTS {
        write!(out, "{:>9}", format!("{percent}%"))?;
    }
    writeln!(out, "{:>10}", "max")?;
    for row in rows {
        let times = &row.times;
        write!(out, "{}{:>9.2}{:>9.2}", head(row), times.min(), times.mean())?;
        for percent in PERCENTS {
            write!(out, "{:>9.2}", times.percentile(percent))?;
        }
        writeln!(out, "{:>10.2}", times.max())?;
        if has_histograms {
            write_histogram(out, times)?;
        }
        write_limits(out, row)?;
        write_idle(out, row)?;
    }
    Ok(())
}

fn write_bandwidths(out: &mut impl Write, rows: &[&Row]) -> io::Result<()> {
    writeln!(
        out,
        "{:<14}{:>9}{:>6}{:>8}{:>12}{:>16}{:>10}",
        "bandwidth", "bytes", "MTU", "pairs", "GB/s", "messages/s", "lost"
    )?;
    for row in rows {
        let pairs = match row.load.is_both_ways {
            true => format!("2x{}", row.load.pairs),
            false => row.load.pairs.to_string(),
        };
        let (sent, arrived) = row.counts;
        let lost = match (row.load.service.is_reliable(), row.load.operation.takes_receive()) {
            (true, _) => "-".to_owned(),
            (false, true) => {
                format!("{:.2} %", 100.0 * (1.0 - arrived as f64 / sent.max(1) as f64))
            }
            // Nobody tells.
            (false, false) => "?".to_owned(),
        };
        writeln!(
            out,
            "{}{pairs:>8}{:>12.3}{:>16.0}{lost:>10}",
            head(row),
            row.bytes_per_second() / 1e9,
            row.rate()
        )?;
        write_limits(out, row)?;
        write_idle(out, row)?;
    }
    Ok(())
}

fn write_limits(out: &mut impl Write, row: &Row) -> io::Result<()> {
    for (limit, values) in &row.limits {
        let shown = limit.unit().show(median(values));
        write!(out, "      of {:<40}{shown:>14}", limit.name())?;
        match row.share(*limit, values) {
            Some(share) => writeln!(out, ": {share:.2}")?,
            None => writeln!(out)?,
        }
    }
    Ok(())
}

/// A bar for each class: the longest is of all messages.
fn write_histogram(out: &mut impl Write, times: &Histogram) -> io::Result<()> {
    for class in times.classes() {
        let (from, to, share) = (class.from, class.to, times.share(class.count));
        let bar = format!("  {}", "#".repeat((share * BAR).round() as usize));
        let (percent, bar) = (100.0 * share, bar.trim_end());
        writeln!(out, "{:>20}{from:>10.2} to {to:>9.2} us{percent:>9.3} %{bar}", "")?;
    }
    Ok(())
}

fn write_idle(out: &mut impl Write, row: &Row) -> io::Result<()> {
    let Some([own, peer]) = row.idle else { return Ok(()) };
    for (end, idleness) in [("this", own), ("the other", peer)] {
        let (seconds, shown) = (row.load.idle, idleness.show());
        writeln!(out, "      left alone for {seconds} s a round, {end} end: {shown}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::load::tests::small;
    use super::super::load::{Operation, Service};
    use super::*;

    fn figures(sent: u64, received: u64, seconds: f64) -> Figures {
        Figures { sent, received, seconds, idle: None }
    }

    fn row(kind: Kind, operation: Operation, service: Service) -> Row {
        Row::new(small(kind, operation, service), 1024, &[Limit::IcrcPipe, Limit::UdpPolling])
    }

    fn measured(own: Figures, peer: Figures) -> Measured {
        Measured { own, peer, times: Histogram::default() }
    }

    #[test]
    fn what_arrived_counts_of_both_directions() {
        let mut row = row(Kind::Bandwidth, Operation::Send, Service::Uc);
        // 100 of 200 arrived in 2 s one way, 30 of 30 in 1 s the other.
        row.add(&measured(figures(200, 30, 2.0), figures(30, 100, 1.0)));
        assert_eq!((row.rate(), row.bytes_per_second()), (80.0, 640.0));
        assert_eq!(row.counts, (230, 130));
        let mut row = self::row(Kind::Bandwidth, Operation::Write, Service::Rc);
        row.add(&measured(figures(200, 0, 2.0), figures(0, 0, 0.0)));
        assert_eq!((row.rate(), row.counts), (100.0, (200, 200)));
    }

    #[test]
    fn a_share_is_of_the_same_unit() {
        let mut row = row(Kind::Bandwidth, Operation::Write, Service::Rc);
        row.rates = vec![1e6, 3e6, 2e6];
        assert_eq!(row.share(Limit::IcrcPipe, &[4e7, 3.2e7, 1e7]), Some(0.5));
        assert_eq!(row.share(Limit::UdpPolling, &[1.0]), None);
    }

    #[test]
    fn the_tables() {
        let mut bandwidth = row(Kind::Bandwidth, Operation::Send, Service::Uc);
        bandwidth.add(&measured(figures(200_000_000, 0, 2.0), figures(0, 150_000_000, 0.0)));
        let mut latency = row(Kind::Latency, Operation::Read, Service::Rc);
        let mut times = Histogram::default();
        (1..=1000).for_each(|n| times.record(std::time::Duration::from_nanos(10 * n)));
        latency.add(&Measured { times, ..measured(figures(1000, 0, 1.0), figures(0, 0, 0.0)) });
        for row in [&mut bandwidth, &mut latency] {
            row.limits[0].1 = vec![1.2e9];
            row.limits[1].1 = vec![2.5];
        }
        let machine = vec![(Limit::Memcpy, vec![1e10])];
        let (device, gid) = ("rxe_x".to_owned(), "::1".to_owned());
        let report =
            Report { device, gid, rows: vec![bandwidth, latency], machine, has_histograms: false };
        let mut text = Vec::new();
        report.write_text(&mut text).expect("writes");
        insta::assert_snapshot!(String::from_utf8(text).expect("UTF-8"));
    }

    #[test]
    fn a_histogram_has_a_bar_for_each_class() {
        let mut times = Histogram::default();
        (0..199).for_each(|_| times.record(std::time::Duration::from_nanos(1_030)));
        times.record(std::time::Duration::from_micros(90));
        let mut text = Vec::new();
        write_histogram(&mut text, &times).expect("writes");
        let text = String::from_utf8(text).expect("UTF-8");
        let lines: Vec<_> = text.lines().map(str::trim_start).collect();
        let bar = "#".repeat(50);
        assert_eq!(
            lines,
            [
                format!("1.02 to      1.15 us   99.500 %  {bar}"),
                "81.92 to     90.11 us    0.500 %".to_owned()
            ]
        );
    }
}
