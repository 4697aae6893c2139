//! The arguments, and what they ask for: options of perftest by their names, and our own.

use std::path::PathBuf;

use clap::ValueEnum;
use thiserror::Error;

use super::load::{Amount, Kind, Load, LoadError, MAX_SIZE, Operation, Service};

/// Where perftest listens.
const DEFAULT_PORT: u16 = 18515;
/// Requests under way, unless told otherwise; those of perftest.
const DEPTH: u32 = 128;
/// Receives posted, unless told otherwise; those of perftest.
const RECEIVES: u32 = 512;
/// Seconds of a round, unless told otherwise.
const SECONDS: f64 = 1.0;
/// The same, of the table: all of it fits in a minute.
const TABLE_SECONDS: f64 = 0.4;
/// Rounds, where limits are measured beside.
const ROUNDS: u32 = 3;
/// Inline data of a latency, unless told otherwise.
const INLINE: u32 = 64;
/// Bytes of messages of whose bandwidth each completes, unless told otherwise.
const LARGE: u32 = 8192;
/// Messages a completion, of smaller ones.
const MODERATION: u32 = 16;

/// Arguments of `urxe perf`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Tests: send_lat, send_bw, write_lat, write_bw, write_imm_lat, write_imm_bw, \
    read_lat, read_bw, fetch_add_lat, fetch_add_bw, cmp_swap_lat, cmp_swap_bw; also with ib_ in \
    front. Without a test: SEND, WRITE and READ, latency of 8 bytes and bandwidth of 64 KiB.\n\
    Without --server and --host both ends are in this process. A server takes everything about a \
    test from its client.\n\
    write_lat waits as ib_write_lat does, by looking at its memory.\n\
    Exit status: 0 when all data was right, 1 when anything failed, 2 when the arguments are \
    wrong."
)]
pub(crate) struct Args {
    /// What to measure.
    #[arg(value_name = "TEST", value_parser = parse_test)]
    tests: Vec<Test>,
    /// Measure with the server at HOST.
    #[arg(long, value_name = "HOST", conflicts_with = "server")]
    host: Option<String>,
    /// Serve one client.
    #[arg(long)]
    server: bool,
    /// Service: RC, UC or UD.
    #[arg(short = 'c', long, value_enum, default_value = "RC", ignore_case = true)]
    connection: Service,
    /// Bytes of a message [default: 8 of a latency, 65536 of a bandwidth; of UD at most the MTU].
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size, conflicts_with = "all")]
    size: Option<u32>,
    /// All sizes that are powers of two, from 2 bytes to 8 MiB.
    #[arg(short, long)]
    all: bool,
    /// Messages of each queue pair, instead of a time.
    #[arg(short = 'n', long, value_name = "COUNT", conflicts_with = "duration")]
    iters: Option<u64>,
    /// Seconds of a round [default: 1].
    #[arg(short = 'D', long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// Queue pairs.
    #[arg(short, long, value_name = "COUNT", default_value_t = 1)]
    qp: u32,
    /// Threads of each end, over which the queue pairs are spread.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    threads: u32,
    /// Send requests under way for a queue pair.
    #[arg(short, long, value_name = "DEPTH", default_value_t = DEPTH)]
    tx_depth: u32,
    /// Receives posted for a queue pair.
    #[arg(short, long, value_name = "DEPTH", default_value_t = RECEIVES)]
    rx_depth: u32,
    /// Requests posted at a time, as a list.
    #[arg(short = 'l', long, value_name = "COUNT", default_value_t = 1)]
    post_list: u32,
    /// Messages a completion [default: 16; of messages of 8 KiB or more 1].
    #[arg(short = 'Q', long, value_name = "COUNT")]
    cq_mod: Option<u32>,
    /// Send messages up to so many bytes inline [default: 64 of a latency, 0 of a bandwidth].
    #[arg(short = 'I', long, value_name = "BYTES")]
    inline_size: Option<u32>,
    /// READs and atomics under way.
    #[arg(short, long, value_name = "COUNT", default_value_t = 16)]
    outs: u8,
    /// Both ends send.
    #[arg(short, long)]
    bidirectional: bool,
    /// Sleep on completion events instead of polling.
    #[arg(short, long)]
    events: bool,
    /// The end that is written to or read from does not poll, as perftest's does not.
    #[arg(long)]
    idle_peer: bool,
    /// Leave the connected queue pairs alone for SECONDS after each measurement, and tell what woke up.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, hide_default_value = true)]
    idle: f64,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the port's].
    #[arg(short, long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// RDMA device [default: the one with the connection's address; rxe_lo without a host].
    #[arg(short = 'd', long, value_name = "DEVICE")]
    ib_dev: Option<String>,
    /// Port of the device.
    #[arg(short = 'i', long, default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: u8,
    /// Index of the GID to use [default: the one of the connection's address].
    #[arg(short = 'x', long, value_name = "INDEX")]
    gid_index: Option<u32>,
    /// Use IPv6.
    #[arg(short = '6', long)]
    ipv6: bool,
    /// TCP port to meet at; a server takes any free one for 0, and names it.
    #[arg(short, long, default_value_t = DEFAULT_PORT)]
    port: u16,
    /// Measure in the same rounds what sockets carry, and give each figure as a share of it; between
    /// hosts only TCP and a UDP ping-pong.
    #[arg(long, conflicts_with = "server")]
    limits: bool,
    /// The network namespace of the server on this host, for --limits: a file of /run/netns or /proc.
    #[arg(long, value_name = "FILE", requires = "limits")]
    netns: Option<PathBuf>,
    /// Rounds, of which the median counts [default: 1; with --limits 3].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Measure the cases that the project wants to reach, and say which are.
    #[arg(long, conflicts_with_all = ["server", "tests", "limits", "all", "size"])]
    table: bool,
    /// Write the results as one JSON object.
    #[arg(long)]
    json: bool,
    /// Show of each latency how many messages took how long; JSON always has that.
    #[arg(short = 'H', long, conflicts_with_all = ["server", "table"])]
    histogram: bool,
    /// Draw the results by the size of messages, and how long messages took: an SVG file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["server", "table"])]
    svg: Option<PathBuf>,
}

/// A test by its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Test {
    operation: Operation,
    kind: Kind,
}

/// What is measured where no test is named.
const ALL_TESTS: [Test; 6] = {
    const fn test(operation: Operation, kind: Kind) -> Test {
        Test { operation, kind }
    }
    [
        test(Operation::Send, Kind::Latency),
        test(Operation::WriteImm, Kind::Latency),
        test(Operation::Read, Kind::Latency),
        test(Operation::Send, Kind::Bandwidth),
        test(Operation::Write, Kind::Bandwidth),
        test(Operation::Read, Kind::Bandwidth),
    ]
};

/// What the arguments ask for.
#[derive(Debug)]
pub(super) enum Mode {
    /// Serves a client.
    Server(Meeting),
    /// Measures.
    Client(Client),
    /// Measures the table.
    Table(Client),
}

/// How an end finds its device and the other end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Meeting {
    /// The server; this process, or nobody of a server, when `None`.
    pub host: Option<String>,
    pub tcp_port: u16,
    pub device: Option<String>,
    pub port: u8,
    pub gid_index: Option<u32>,
    pub ipv6: bool,
}

/// What a client does.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Client {
    pub meeting: Meeting,
    pub loads: Vec<Load>,
    pub rounds: u32,
    /// Seconds of a round, where it is not counted in messages.
    pub seconds: f64,
    pub has_limits: bool,
    pub namespace: Option<PathBuf>,
    pub json: bool,
    pub has_histograms: bool,
    pub svg: Option<PathBuf>,
}

/// Arguments that are right one by one, but not together.
#[derive(Clone, PartialEq, Debug, Error)]
pub(super) enum UsageError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("{option} is said by the client: a server takes everything about a test from it")]
    Server { option: &'static str },
    #[error("--netns is for a server on this host: name it with --host")]
    Namespace,
}

impl Args {
    /// What is asked for.
    pub(super) fn mode(&self) -> Result<Mode, UsageError> {
        let meeting = Meeting {
            host: self.host.clone(),
            tcp_port: self.port,
            device: self.ib_dev.clone(),
            port: self.ib_port,
            gid_index: self.gid_index,
            ipv6: self.ipv6,
        };
        if self.server {
            let said = [
                (!self.tests.is_empty(), "TEST"),
                (self.size.is_some(), "-s"),
                (self.all, "-a"),
                (self.iters.is_some(), "-n"),
                (self.duration.is_some(), "-D"),
                (self.events, "-e"),
                (self.bidirectional, "-b"),
                (self.mtu.is_some(), "-m"),
            ];
            if let Some(&(_, option)) = said.iter().find(|(given, _)| *given) {
                return Err(UsageError::Server { option });
            }
            return Ok(Mode::Server(meeting));
        }
        if self.netns.is_some() && self.host.is_none() {
            return Err(UsageError::Namespace);
        }
        let client = Client {
            meeting,
            loads: if self.table { Vec::new() } else { self.loads()? },
            rounds: self.rounds.unwrap_or(if self.limits || self.table { ROUNDS } else { 1 }),
            seconds: self.duration.unwrap_or(if self.table { TABLE_SECONDS } else { SECONDS }),
            has_limits: self.limits,
            namespace: self.netns.clone(),
            json: self.json,
            has_histograms: self.histogram,
            svg: self.svg.clone(),
        };
        Ok(if self.table { Mode::Table(client) } else { Mode::Client(client) })
    }

    fn loads(&self) -> Result<Vec<Load>, UsageError> {
        let tests = if self.tests.is_empty() { &ALL_TESTS[..] } else { &self.tests };
        let mut loads = Vec::new();
        for test in tests {
            for size in self.sizes(*test) {
                let load = self.load(*test, size);
                load.check()?;
                loads.push(load);
            }
        }
        Ok(loads)
    }

    fn sizes(&self, test: Test) -> Vec<u32> {
        let default = match test {
            Test { operation, .. } if operation.is_atomic() => 8,
            Test { kind: Kind::Latency, .. } => 8,
            Test { kind: Kind::Bandwidth, .. } if self.connection == Service::Ud => 1024,
            Test { kind: Kind::Bandwidth, .. } => 65_536,
        };
        if test.operation.is_atomic() && self.all {
            return vec![default];
        }
        // A datagram fits in a packet; the smallest MTU that an interface has is 1024 here.
        let most = match (self.connection, self.mtu) {
            (Service::Ud, mtu) => mtu.unwrap_or(1024),
            (Service::Rc | Service::Uc, _) => MAX_SIZE,
        };
        match self.all {
            true => (1..=23).map(|power| 1 << power).filter(|&size| size <= most).collect(),
            false => vec![self.size.unwrap_or(default)],
        }
    }

    fn load(&self, test: Test, size: u32) -> Load {
        let is_latency = test.kind == Kind::Latency;
        Load {
            kind: test.kind,
            operation: test.operation,
            service: self.connection,
            size,
            amount: match self.iters {
                Some(count) => Amount::Messages(count),
                None => Amount::Seconds(self.duration.unwrap_or(SECONDS)),
            },
            pairs: self.qp,
            threads: self.threads,
            depth: self.tx_depth,
            receives: self.rx_depth,
            list: self.post_list,
            moderation: self.cq_mod.unwrap_or(if size < LARGE { MODERATION } else { 1 }),
            inline: self.inline_size.unwrap_or(if is_latency { INLINE } else { 0 }),
            mtu: self.mtu,
            outstanding: self.outs,
            is_both_ways: self.bidirectional,
            has_events: self.events,
            is_peer_idle: self.idle_peer,
            idle: self.idle,
        }
    }
}

/// A load as the defaults make it.
pub(super) fn default_load(operation: Operation, kind: Kind, size: u32) -> Load {
    let is_latency = kind == Kind::Latency;
    Load {
        kind,
        operation,
        service: Service::Rc,
        size,
        amount: Amount::Seconds(SECONDS),
        pairs: 1,
        threads: 1,
        depth: DEPTH,
        receives: RECEIVES,
        list: 1,
        moderation: if size < LARGE { MODERATION } else { 1 },
        inline: if is_latency { INLINE } else { 0 },
        mtu: None,
        outstanding: 16,
        is_both_ways: false,
        has_events: false,
        is_peer_idle: false,
        idle: 0.0,
    }
}

fn parse_test(text: &str) -> Result<Test, String> {
    let wrong = || format!("no test is called {text}: see the end of --help");
    let name = text.replace('-', "_");
    let name = name.strip_prefix("ib_").unwrap_or(&name);
    let (operation, kind) = name.rsplit_once('_').ok_or_else(wrong)?;
    let operation = match operation {
        "atomic" => Operation::FetchAdd,
        "cmp_swap" => Operation::CompareSwap,
        other => Operation::from_str(&other.replace('_', "-"), true).map_err(|_| wrong())?,
    };
    let kind = match kind {
        "bw" => Kind::Bandwidth,
        "lat" => Kind::Latency,
        _ => return Err(wrong()),
    };
    Ok(Test { operation, kind })
}

/// Bytes, also as 64K or 1M.
fn parse_size(text: &str) -> Result<u32, String> {
    let (number, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        _ => (text, 0),
    };
    let size = number.parse::<u32>().ok().and_then(|number| number.checked_mul(1 << shift));
    size.filter(|size| (1..=MAX_SIZE).contains(size))
        .ok_or_else(|| format!("1 to {MAX_SIZE} bytes are possible, also as 64K or 1M"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser, Debug)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn mode(arguments: &[&str]) -> Result<Mode, UsageError> {
        let arguments = ["perf"].iter().chain(arguments);
        Cli::try_parse_from(arguments).expect("clap takes it").args.mode()
    }

    fn loads(arguments: &[&str]) -> Vec<Load> {
        match mode(arguments).expect("right") {
            Mode::Client(client) => client.loads,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn tests_go_by_the_names_of_perftest_too() {
        for (name, operation, kind) in [
            ("send_bw", Operation::Send, Kind::Bandwidth),
            ("ib_write_lat", Operation::Write, Kind::Latency),
            ("write-imm-lat", Operation::WriteImm, Kind::Latency),
            ("ib_atomic_bw", Operation::FetchAdd, Kind::Bandwidth),
            ("cmp_swap_lat", Operation::CompareSwap, Kind::Latency),
        ] {
            assert_eq!(parse_test(name), Ok(Test { operation, kind }), "{name}");
        }
        for wrong in ["send", "send_x", "recv_bw", "", "_bw"] {
            assert!(parse_test(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn options_in_both_lengths() {
        let short = "write_bw -c UC -s 4K -n 5 -q 4 --threads 2 -t 8 -r 9 -l 2 -Q 3 -I 10 -o 5 -b -e \
                     -m 512";
        let long = "write_bw --connection=uc --size=4096 --iters=5 --qp=4 --threads=2 --tx-depth=8 \
                    --rx-depth=9 --post-list=2 --cq-mod=3 --inline-size=10 --outs=5 --bidirectional \
                    --events --mtu=512";
        let split = |text: &'static str| text.split_whitespace().collect::<Vec<_>>();
        let one = loads(&split(short));
        assert_eq!(one, loads(&split(long)));
        let load = &one[0];
        assert_eq!((load.pairs, load.threads, load.depth, load.receives), (4, 2, 8, 9));
        assert_eq!((load.list, load.moderation, load.inline, load.outstanding), (2, 3, 10, 5));
        assert_eq!((load.amount, load.size), (Amount::Messages(5), 4096));
        assert_eq!((load.idle, loads(&["send_lat", "--idle", "0.5"])[0].idle), (0.0, 0.5));
    }

    #[test]
    fn all_sizes() {
        let sizes: Vec<u32> = loads(&["send_bw", "-a"]).iter().map(|load| load.size).collect();
        assert_eq!((sizes.len(), sizes[0], sizes[22]), (23, 2, 8 << 20));
        assert_eq!(loads(&["send_lat", "-a", "-c", "UD"]).len(), 10);
        assert_eq!(loads(&["atomic_lat", "-a"]).len(), 1);
        assert_eq!(loads(&[]).len(), 6);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |arguments: &[&str]| mode(arguments).expect_err("refused").to_string();
        assert!(refused(&["--server", "-e"]).contains("said by the client"));
        assert!(refused(&["read_bw", "-c", "UC"]).contains("UC has no READ"));
        assert!(refused(&["send_lat", "-q", "2"]).contains("leave out -q"));
        assert!(refused(&["send_bw", "-m", "1000"]).contains("path MTU"));
        assert!(refused(&["send_bw", "--idle", "1e9"]).contains("--idle"));
        for wrong in [&["-s", "0"][..], &["-s", "9M"], &["x_bw"], &["-a", "-s", "1"]] {
            let arguments = ["perf"].iter().chain(wrong);
            assert!(Cli::try_parse_from(arguments).is_err(), "{wrong:?}");
        }
    }
}
