//! What the project wants to reach, as cases to be measured: each beside what sockets carry in the
//! same rounds, with the ratio that is wanted.
//!
//! A case of a path MTU that the interface does not carry is left out: so the table is made once on
//! an interface of 1,500 bytes and once on one of 9,000 (`bench/figures` does both).

use std::io::{self, Write};

use serde_json::{Value, json};

use super::args::{Client, default_load};
use super::error::PerfError;
use super::limits::{Ground, Limit};
use super::load::{Amount, Kind, Load, Operation};
use super::progress::Progress;
use super::report::{Row, bytes, median};
use super::session::{self, Host};
use super::{control::Control, ground, with_server};

/// What is wanted of a case.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Wanted {
    /// This part of a bandwidth at least.
    ShareOf(Limit, f64),
    /// So many times a latency at most.
    TimesOf(Limit, f64),
    /// So many messages a second at least.
    Rate(f64),
    /// This part at least of what the same load on one queue pair and one thread carries.
    OfOnePair(f64),
}

/// One line of the table.
#[derive(Clone, PartialEq, Debug)]
struct Case {
    name: &'static str,
    load: Load,
    wanted: Wanted,
}

impl Case {
    /// What is measured beside: what it is held against, and what that comes to where it sends as
    /// RoCE must.
    fn limits(&self) -> Vec<Limit> {
        let held_against = match self.wanted {
            Wanted::ShareOf(limit, _) | Wanted::TimesOf(limit, _) => limit,
            Wanted::Rate(_) | Wanted::OfOnePair(_) => return Vec::new(),
        };
        let all = Limit::of(&self.load);
        let wanted = |limit: &&Limit| **limit == held_against || limit.sends_alike();
        all.iter().filter(wanted).copied().collect()
    }
}

/// A case that was measured.
#[derive(Clone, Debug)]
struct Line {
    case: Case,
    row: Row,
    /// Of [`Wanted::OfOnePair`]: messages a second on one queue pair, a value a round.
    one_pair: Vec<f64>,
}

/// Part of the bare pipe that WRITE and SEND must reach.
const PIPE: f64 = 0.85;
/// Part of it that READ must reach.
const READ_PIPE: f64 = 0.75;
/// How much longer than a UDP ping-pong a message may take.
const PING_PONG: f64 = 1.25;

fn bandwidth(name: &'static str, operation: Operation, size: u32, mtu: u32) -> Case {
    let is_read = operation == Operation::Read;
    let load = default_load(operation, Kind::Bandwidth, size);
    let depth = if is_read { 16 } else { load.depth };
    let wanted = Wanted::ShareOf(Limit::IcrcPipe, if is_read { READ_PIPE } else { PIPE });
    Case { name, load: Load { mtu: Some(mtu), depth, ..load }, wanted }
}

fn latency(name: &'static str, operation: Operation, has_events: bool, times: f64) -> Case {
    let load = Load { has_events, ..default_load(operation, Kind::Latency, 8) };
    let limit = if has_events { Limit::UdpBlocking } else { Limit::UdpPolling };
    Case { name, load, wanted: Wanted::TimesOf(limit, times) }
}

fn rate(name: &'static str, list: u32, moderation: u32, wanted: f64) -> Case {
    let load = default_load(Operation::Write, Kind::Bandwidth, 8);
    Case { name, load: Load { list, moderation, ..load }, wanted: Wanted::Rate(wanted) }
}

fn cases() -> Vec<Case> {
    use Operation::{Read, Send, Write, WriteImm};
    let mut cases = Vec::new();
    for mtu in [1024, 4096] {
        cases.extend([
            bandwidth("WRITE 64 KiB", Write, 64 << 10, mtu),
            bandwidth("WRITE 1 MiB", Write, 1 << 20, mtu),
            bandwidth("SEND 64 KiB", Send, 64 << 10, mtu),
            bandwidth("SEND 1 MiB", Send, 1 << 20, mtu),
            bandwidth("READ 64 KiB, 16 under way", Read, 64 << 10, mtu),
        ]);
    }
    let pairs = bandwidth("WRITE 64 KiB, 8 QPs, 2 threads", Write, 64 << 10, 1024).load;
    cases.extend([
        Case {
            name: "WRITE 64 KiB, 8 QPs, 2 threads",
            load: Load { pairs: 8, threads: 2, ..pairs },
            wanted: Wanted::OfOnePair(1.0),
        },
        latency("SEND 8 B, polling", Send, false, PING_PONG),
        latency("WRITE 8 B, polling", WriteImm, false, PING_PONG),
        latency("SEND 8 B, events", Send, true, PING_PONG),
        latency("WRITE 8 B, events", WriteImm, true, PING_PONG),
        latency("WRITE 8 B, spinning on memory", Write, false, 3.0),
        rate("WRITE 8 B, post lists", 32, 64, 3e6),
        rate("WRITE 8 B, single posts", 1, 64, 1.5e6),
    ]);
    cases
}

/// Measures all cases, and prints them.
pub(super) fn run(client: &Client) -> Result<(), PerfError> {
    let lines = with_server(&client.meeting, |host, control, peer| {
        let (_, gid) = host.name()?;
        let ground = ground(&gid, peer, client);
        if ground.is_far {
            return Err(PerfError::Far);
        }
        let largest = host.largest_mtu()?.bytes() as u32;
        let cases: Vec<_> = cases()
            .into_iter()
            .filter(|case| case.load.mtu.is_none_or(|mtu| mtu <= largest))
            .collect();
        let progress = Progress::new(cases.len() as u64 * u64::from(client.rounds));
        let seconds = client.seconds;
        let mut lines = Vec::new();
        for mut case in cases {
            case.load.amount = Amount::Seconds(seconds);
            case.load.check()?;
            let mtu = case.load.mtu.unwrap_or(largest);
            let row = Row::new(case.load.clone(), mtu, &case.limits());
            let mut line = Line { row, case: case.clone(), one_pair: Vec::new() };
            for _ in 0..client.rounds {
                progress.say(case.name.to_owned());
                line.round(host, control, &ground)?;
            }
            lines.push(line);
        }
        progress.finish();
        Ok(lines)
    })?;
    let mut out = io::stdout().lock();
    if client.json {
        writeln!(out, "{}", Value::from_iter(lines.iter().map(Line::to_json)))?;
    } else {
        write_text(&lines, &mut out)?;
    }
    Ok(out.flush()?)
}

impl Line {
    fn round(
        &mut self,
        host: &mut Host,
        control: &mut Control,
        ground: &Ground,
    ) -> Result<(), PerfError> {
        super::measure_limits(ground, control, &mut self.row)?;
        if let Wanted::OfOnePair(_) = self.case.wanted {
            let load = Load { pairs: 1, threads: 1, ..self.case.load.clone() };
            let mut row = Row::new(load.clone(), self.row.mtu, &[]);
            row.add(&session::measure(host, control, &load)?);
            self.one_pair.push(row.rate());
        }
        self.row.add(&session::measure(host, control, &self.case.load)?);
        Ok(())
    }

    /// What it is held against, as text; what it came to in the unit that is wanted, and whether it
    /// is enough.
    fn judged(&self) -> (String, f64, bool) {
        let row = &self.row;
        let against = |limit: Limit| {
            let values = row.limits.iter().find(|(own, _)| *own == limit).map(|(_, values)| values);
            let values = values.map_or(&[][..], Vec::as_slice);
            let share = row.share(limit, values).unwrap_or(f64::NAN);
            (limit.unit().show(median(values)), share)
        };
        match self.case.wanted {
            Wanted::ShareOf(limit, least) => {
                let (shown, share) = against(limit);
                (shown, share, share >= least)
            }
            Wanted::TimesOf(limit, most) => {
                let (shown, times) = against(limit);
                (shown, times, times <= most)
            }
            Wanted::Rate(least) => (String::new(), row.rate() / 1e6, row.rate() >= least),
            Wanted::OfOnePair(least) => {
                let one = median(&self.one_pair);
                let share = row.rate() / one;
                let shown = format!("{:.3} GB/s", one * f64::from(row.load.size) / 1e9);
                (shown, share, share >= least)
            }
        }
    }

    /// As text, what it is held against comes to where it sends as RoCE must, and the share of that
    /// which was reached; nothing where that is the same.
    fn sent_alike(&self) -> String {
        let values = self.row.limits.iter().find(|(limit, _)| limit.sends_alike());
        let Some((limit, values)) = values else { return String::new() };
        let share = self.row.share(*limit, values).unwrap_or(f64::NAN);
        format!("{}: {share:.2}", limit.unit().show(median(values)))
    }

    fn measured(&self) -> String {
        match (self.row.load.kind, self.case.wanted) {
            (Kind::Latency, _) => format!("{:.2} us", self.row.micros()),
            (_, Wanted::Rate(_)) => format!("{:.3} M/s", self.row.rate() / 1e6),
            (Kind::Bandwidth, _) => format!("{:.3} GB/s", self.row.bytes_per_second() / 1e9),
        }
    }

    fn wanted(&self) -> String {
        match self.case.wanted {
            Wanted::ShareOf(_, least) | Wanted::OfOnePair(least) => format!(">= {least:.2}"),
            Wanted::TimesOf(_, most) => format!("<= {most:.2}"),
            Wanted::Rate(least) => format!(">= {:.1} M/s", least / 1e6),
        }
    }

    fn against(&self) -> &'static str {
        match self.case.wanted {
            Wanted::ShareOf(limit, _) | Wanted::TimesOf(limit, _) => limit.name(),
            Wanted::Rate(_) => "",
            Wanted::OfOnePair(_) => "one QP, one thread",
        }
    }

    fn to_json(&self) -> Value {
        let (_, reached, is_enough) = self.judged();
        json!({
            "case": self.case.name, "load": self.case.load, "mtu": self.row.mtu,
            "measured": self.measured(), "against": self.against(), "wanted": self.wanted(),
            "reached": reached, "is_enough": is_enough, "sent_alike": self.sent_alike(),
            "rates": self.row.rates, "medians_us": self.row.medians,
            "bytes": bytes(self.case.load.size),
        })
    }
}

fn write_text(lines: &[Line], out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<32}{:>6}{:>13}{:>36}{:>13}{:>12}{:>9}{:>22}",
        "case", "MTU", "measured", "against", "which is", "wanted", "reached", "of it, sent alike"
    )?;
    for line in lines {
        let (shown, reached, is_enough) = line.judged();
        let (name, mtu) = (line.case.name, line.row.mtu);
        writeln!(
            out,
            "{name:<32}{mtu:>6}{:>13}{:>36}{shown:>13}{:>12}{reached:>9.2} {:<4}{:>17}",
            line.measured(),
            line.against(),
            line.wanted(),
            if is_enough { "yes" } else { "no" },
            line.sent_alike(),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(wanted: Wanted, limits: &[(Limit, f64)]) -> Line {
        let case = Case { wanted, ..bandwidth("x", Operation::Write, 1000, 1024) };
        let mut row = Row::new(case.load.clone(), 1024, &[]);
        row.limits = limits.iter().map(|&(limit, value)| (limit, vec![value])).collect();
        row.rates = vec![2e6];
        Line { case, row, one_pair: vec![1e6] }
    }

    #[test]
    fn each_case_can_be_measured_and_none_is_there_twice() {
        let cases = cases();
        for (index, case) in cases.iter().enumerate() {
            assert_eq!(case.load.check(), Ok(()), "{case:?}");
            let same = |other: &Case| other.name == case.name && other.load.mtu == case.load.mtu;
            assert_eq!(cases.iter().position(same), Some(index), "{}", case.name);
        }
        // 0.4 s for each limit and each measurement, thrice: a minute, with some room.
        assert!(cases.len() <= 18, "the table fits in a minute");
    }

    #[test]
    fn what_is_enough() {
        // 2 GB/s.
        let share =
            |least| line(Wanted::ShareOf(Limit::IcrcPipe, least), &[(Limit::IcrcPipe, 2.5e9)]);
        assert_eq!((share(0.8).judged().2, share(0.85).judged().2), (true, false));
        let rate = |least| line(Wanted::Rate(least), &[]).judged().2;
        assert_eq!((rate(1.9e6), rate(2.1e6)), (true, false));
        assert_eq!(line(Wanted::OfOnePair(1.0), &[]).judged().1, 2.0);
        let mut slow = line(Wanted::TimesOf(Limit::UdpPolling, 1.25), &[(Limit::UdpPolling, 4.0)]);
        slow.row.load.kind = Kind::Latency;
        slow.row.medians = vec![5.1];
        assert!(!slow.judged().2);
        slow.row.medians = vec![5.0];
        assert!(slow.judged().2);
        // What could not be measured is not enough.
        assert!(!line(Wanted::ShareOf(Limit::IcrcPipe, 0.1), &[]).judged().2);
    }
}
