//! The arguments, and what they ask for: the options of `ibv_rc_pingpong` and its family, and our
//! own.

use std::time::Duration;

use ibverbs_api::Mtu;
use thiserror::Error;

use super::exchange::SRQ_MESSAGES;
use super::local;
use super::remote::{self, Role};
use super::service::{DEFAULT_ITERS, Service};

/// Where `ibv_rc_pingpong` listens.
const DEFAULT_PORT: u16 = 18515;

/// Arguments of `urxe pingpong`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Without HOST and --server both ends are in this process: SEND, WRITE and \
    READ over the device are checked and timed, beside what bare UDP sockets carry. --server and \
    HOST play with another process, which may be ibv_rc_pingpong; with --uc, --ud, --srq or --xrc it \
    may be ibv_uc_pingpong, ibv_ud_pingpong, ibv_srq_pingpong or ibv_xsrq_pingpong.\n\
    Environment: URXE_PCAP=FILE writes every packet to FILE; URXE_FAULTS=seed=7,drop=3% loses, \
    repeats, moves, corrupts or delays packets; URXE_LINK=packet sends whole frames; URXE_GSO=off \
    sends without segmentation offload.\n\
    Exit status: 0 when all data was right, 1 when anything failed, 2 when the arguments are \
    wrong.")]
pub(crate) struct Args {
    /// Connect to the server at HOST, which may be `ibv_rc_pingpong`.
    #[arg(conflicts_with = "server")]
    host: Option<String>,
    /// Wait for a client, which may be `ibv_rc_pingpong HOST`.
    #[arg(long)]
    server: bool,
    /// An unreliable connection, as `ibv_uc_pingpong` has.
    #[arg(long, group = "service")]
    uc: bool,
    /// Datagrams of at most the port's MTU, as `ibv_ud_pingpong` has.
    #[arg(long, group = "service")]
    ud: bool,
    /// Several connections that share their receives, as `ibv_srq_pingpong` has.
    #[arg(long, group = "service")]
    srq: bool,
    /// Extended reliable connections, as `ibv_xsrq_pingpong` has; the server sends first.
    #[arg(long, group = "service")]
    xrc: bool,
    /// With --xrc and --server: clients to wait for, 1 to 256 [default: 1].
    #[arg(long, value_name = "COUNT", requires = "xrc", conflicts_with = "host",
          value_parser = clap::value_parser!(u32).range(1..=256))]
    clients: Option<u32>,
    /// With --srq: queue pairs at each end, 1 to 256 [default: 16].
    #[arg(short = 'q', long, value_name = "COUNT", requires = "srq",
          value_parser = clap::value_parser!(u32).range(1..=SRQ_MESSAGES as i64))]
    num_qp: Option<u32>,
    /// TCP port to meet at; a server takes any free one for 0, and names it.
    #[arg(short, long, default_value_t = DEFAULT_PORT)]
    port: u16,
    /// RDMA device [default: the one with the connection's address; rxe_lo without a host].
    #[arg(short = 'd', long, value_name = "DEVICE")]
    ib_dev: Option<String>,
    /// Port of the device.
    #[arg(short = 'i', long, default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: u8,
    /// Bytes of a message [default: 4096; with --ud 2048; in this process 1048576, of the bandwidth].
    #[arg(short, long, value_name = "BYTES")]
    size: Option<u32>,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: 1024; in this process 1024 and 4096].
    #[arg(short, long, value_parser = parse_mtu, conflicts_with = "ud")]
    mtu: Option<Mtu>,
    /// Receives posted at a time [default: 500]; in this process messages under way [default: 2].
    #[arg(short, long, value_name = "DEPTH", value_parser = clap::value_parser!(u32).range(1..))]
    rx_depth: Option<u32>,
    /// Exchanges; in this process of each size whose latency is taken [default: 1000; with --xrc 5].
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    iters: Option<u32>,
    /// Service level, 0 to 15; of no effect on Ethernet.
    #[arg(short = 'l', long, value_parser = clap::value_parser!(u8).range(..16))]
    sl: Option<u8>,
    /// Sleep on completion events instead of polling.
    #[arg(short, long)]
    events: bool,
    /// Index of the GID to use [default: the one of the connection's address].
    #[arg(short, long, value_name = "INDEX")]
    gid_idx: Option<u32>,
    /// Check the data of every message (in this process always).
    #[arg(short, long)]
    chk: bool,
    /// Use IPv6.
    #[arg(short = '6', long)]
    ipv6: bool,
    /// In this process: how long all bandwidths together take [default: 3].
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<Duration>,
    /// Write the results as one JSON object.
    #[arg(long)]
    json: bool,
    #[arg(short = 't', long = "ts", hide = true)]
    ts: bool,
    #[arg(short = 'o', long = "odp", hide = true)]
    odp: bool,
    #[arg(short = 'O', long = "iodp", hide = true)]
    iodp: bool,
    #[arg(short = 'P', long = "prefetch", hide = true)]
    prefetch: bool,
    #[arg(short = 'j', long = "dm", hide = true)]
    dm: bool,
    #[arg(short = 'N', long = "new_send", hide = true)]
    new_send: bool,
}

/// What the arguments ask for.
#[derive(Debug)]
pub(super) enum Mode {
    /// Both ends in this process.
    Local(local::Config),
    /// One end.
    Remote(remote::Config),
}

/// Arguments that are right one by one, but not together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub(super) enum UsageError {
    #[error(
        "-{option} ({what}) is an option of ibv_rc_pingpong that urxe does not have: leave it out"
    )]
    Unsupported { option: char, what: &'static str },
    #[error("{option} needs --server or HOST: both ends are in this process without them")]
    NeedsPeer { option: &'static str },
    #[error("{option} is for both ends in this process: leave it out with --server or HOST")]
    LocalOnly { option: &'static str },
    #[error("-s: in this process a message has 8 to 16777216 bytes, not {size}")]
    Size { size: u32 },
    #[error("-r: in this process 1 to 1024 messages are under way, not {depth}")]
    Depth { depth: u32 },
    #[error("-r {depth} is too little for {pairs} queue pairs (-q): each needs a receive")]
    TooFewReceives { depth: u32, pairs: u32 },
}

impl Args {
    /// What is asked for.
    pub(super) fn mode(&self) -> Result<Mode, UsageError> {
        let unsupported = [
            (self.ts, 't', "completion timestamps"),
            (self.odp, 'o', "on-demand paging"),
            (self.iodp, 'O', "implicit on-demand paging"),
            (self.prefetch, 'P', "prefetching on-demand pages"),
            (self.dm, 'j', "device memory"),
            (self.new_send, 'N', "the ibv_wr_* way to post"),
        ];
        for (given, option, what) in unsupported {
            if given {
                return Err(UsageError::Unsupported { option, what });
            }
        }
        match (&self.host, self.server) {
            (Some(host), _) => self.remote(Role::Client { host: host.clone() }),
            (None, true) => self.remote(Role::Server),
            (None, false) => self.local(),
        }
    }

    fn remote(&self, role: Role) -> Result<Mode, UsageError> {
        if self.seconds.is_some() {
            return Err(UsageError::LocalOnly { option: "--seconds" });
        }
        let service = self.service();
        let (depth, pairs) = (self.rx_depth.unwrap_or(500), service.pairs());
        if depth < pairs {
            return Err(UsageError::TooFewReceives { depth, pairs });
        }
        Ok(Mode::Remote(remote::Config {
            role,
            tcp_port: self.port,
            device: self.ib_dev.clone(),
            port: self.ib_port,
            gid_index: self.gid_idx,
            ipv6: self.ipv6,
            json: self.json,
            game: super::game::Rules {
                service,
                size: self.size.unwrap_or_else(|| service.default_size()),
                mtu: self.mtu.unwrap_or(Mtu::M1024),
                rx_depth: depth,
                iters: self.iters.unwrap_or_else(|| service.default_iters()),
                sl: self.sl.unwrap_or(0),
                events: self.events,
                check: self.chk,
            },
        }))
    }

    /// Which of the family is asked for; clap takes only one.
    fn service(&self) -> Service {
        match (self.uc, self.ud, self.srq, self.xrc) {
            (true, ..) => Service::Uc,
            (_, true, ..) => Service::Ud,
            (_, _, true, _) => Service::Srq { pairs: self.num_qp.unwrap_or(16) },
            (.., true) => Service::Xrc { clients: self.clients.unwrap_or(1) },
            (false, false, false, false) => Service::Rc,
        }
    }

    fn local(&self) -> Result<Mode, UsageError> {
        let needs_peer = [
            (self.port != DEFAULT_PORT, "-p"),
            (self.sl.is_some(), "-l"),
            (self.events, "-e"),
            (self.uc, "--uc"),
            (self.ud, "--ud"),
            (self.srq, "--srq"),
            (self.xrc, "--xrc"),
        ];
        if let Some(&(_, option)) = needs_peer.iter().find(|(given, _)| *given) {
            return Err(UsageError::NeedsPeer { option });
        }
        let size = self.size.unwrap_or(1 << 20);
        if !(local::MIN_SIZE..=local::MAX_SIZE).contains(&size) {
            return Err(UsageError::Size { size });
        }
        let depth = self.rx_depth.unwrap_or(local::DEFAULT_DEPTH);
        if !(1..=local::MAX_DEPTH).contains(&depth) {
            return Err(UsageError::Depth { depth });
        }
        Ok(Mode::Local(local::Config {
            device: self.ib_dev.clone().unwrap_or_else(|| "rxe_lo".to_owned()),
            port: self.ib_port,
            gid_index: self.gid_idx,
            ipv6: self.ipv6,
            mtu: self.mtu,
            size: size as usize,
            depth: depth as usize,
            iters: self.iters.unwrap_or(DEFAULT_ITERS),
            duration: self.seconds.unwrap_or(local::DEFAULT_DURATION),
            json: self.json,
        }))
    }
}

fn parse_mtu(text: &str) -> Result<Mtu, String> {
    let mtu = text.parse().ok().and_then(Mtu::from_bytes);
    mtu.ok_or_else(|| "a path MTU is 256, 512, 1024, 2048 or 4096".to_owned())
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=3600.0).contains(seconds));
    let wrong = || "a number of seconds from 0.01 to 3600".to_owned();
    seconds.map(Duration::from_secs_f64).ok_or_else(wrong)
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
        let arguments = ["pingpong"].iter().chain(arguments);
        Cli::try_parse_from(arguments).expect("clap takes it").args.mode()
    }

    fn remote(arguments: &[&str]) -> remote::Config {
        match mode(arguments).expect("right") {
            Mode::Remote(config) => config,
            Mode::Local(config) => panic!("local: {config:?}"),
        }
    }

    #[test]
    fn defaults_are_those_of_ibv_rc_pingpong() {
        let config = remote(&["10.0.0.1"]);
        assert_eq!(config.role, Role::Client { host: "10.0.0.1".to_owned() });
        assert_eq!((config.tcp_port, config.port, config.gid_index), (18515, 1, None));
        let rules = config.game;
        assert_eq!((rules.size, rules.mtu, rules.rx_depth), (4096, Mtu::M1024, 500));
        assert_eq!((rules.iters, rules.sl, rules.events, rules.check), (1000, 0, false, false));
    }

    #[test]
    fn options_in_both_lengths() {
        let long = remote(&[
            "--server",
            "--port=1",
            "--ib-dev=x",
            "--ib-port=2",
            "--size=3",
            "--mtu=256",
            "--rx-depth=4",
            "--iters=5",
            "--sl=6",
            "--events",
            "--gid-idx=7",
            "--chk",
        ]);
        let short = remote(&[
            "--server", "-p1", "-dx", "-i2", "-s3", "-m256", "-r4", "-n5", "-l6", "-e", "-g7", "-c",
        ]);
        assert_eq!(long, short);
        assert_eq!((long.role, long.gid_index, long.game.sl), (Role::Server, Some(7), 6));
    }

    #[test]
    fn each_game_of_the_family_has_its_option() {
        let service = |arguments: &[&str]| remote(arguments).game.service;
        assert_eq!(service(&["--server"]), Service::Rc);
        assert_eq!(service(&["--server", "--uc"]), Service::Uc);
        assert_eq!(service(&["--server", "--srq"]), Service::Srq { pairs: 16 });
        assert_eq!(service(&["--server", "--srq", "-q256"]), Service::Srq { pairs: 256 });
        assert_eq!(service(&["--server", "--xrc"]), Service::Xrc { clients: 1 });
        assert_eq!(service(&["--server", "--xrc", "--clients=9"]), Service::Xrc { clients: 9 });
        assert_eq!(remote(&["--server", "--xrc"]).game.iters, 5);
        let datagrams = remote(&["--server", "--ud"]).game;
        assert_eq!((datagrams.service, datagrams.size), (Service::Ud, 2048));
        for wrong in [
            &["--uc", "--srq"][..],
            &["--ud", "--uc"],
            &["--ud", "-m1024"],
            &["--xrc", "--ud"],
            &["--xrc", "--clients=0"],
            &["--clients=2"],
            &["-q2"],
            &["--srq", "-q257"],
            &["--srq", "-q0"],
        ] {
            let arguments = ["pingpong", "--server"].iter().chain(wrong);
            assert!(Cli::try_parse_from(arguments).is_err(), "{wrong:?}");
        }
        let few = mode(&["--server", "--srq", "-r", "15"]).expect_err("refused");
        assert_eq!(few, UsageError::TooFewReceives { depth: 15, pairs: 16 });
    }

    #[test]
    fn options_that_urxe_does_not_have_are_named() {
        for option in ["-t", "-o", "-O", "-P", "-j", "-N"] {
            let error = mode(&["--server", option]).expect_err("refused").to_string();
            assert!(error.starts_with(option), "{error}");
        }
    }

    #[test]
    fn options_of_the_other_mode_are_refused() {
        let refused = |arguments: &[&str]| mode(arguments).expect_err("refused").to_string();
        assert!(refused(&["-e"]).contains("-e needs --server or HOST"));
        assert!(refused(&["-p", "1"]).contains("-p needs"));
        assert!(refused(&["--uc"]).contains("--uc needs"));
        assert!(refused(&["--ud"]).contains("--ud needs"));
        assert!(refused(&["--server", "--seconds", "1"]).contains("leave it out"));
        assert!(refused(&["-s", "7"]).contains("not 7"));
        assert!(refused(&["-r", "1025"]).contains("not 1025"));
    }
}
