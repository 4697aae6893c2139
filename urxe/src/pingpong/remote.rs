//! One end in this process, the other in another: `--server` and HOST.

use std::io::{self, Write};
use std::net::{IpAddr, TcpStream};

use ibverbs_api::{Device, OpenOptions};
use serde_json::json;

use super::error::PingpongError;
use super::exchange::{self, ExchangeError};
use super::game::{self, Outcome, Rules, Side};
use super::port::{self, Wanted};

/// Which end this is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// Waits for a client.
    Server,
    /// Goes to a server.
    Client {
        /// Its name or address.
        host: String,
    },
}

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Config {
    pub role: Role,
    pub tcp_port: u16,
    /// The device; the one that has the address of the TCP connection when `None`.
    pub device: Option<String>,
    pub port: u8,
    /// The GID; the one of the address of the TCP connection when `None`.
    pub gid_index: Option<u32>,
    pub ipv6: bool,
    pub json: bool,
    pub game: Rules,
}

/// Meets the other end, plays, and prints as `ibv_rc_pingpong` does.
pub(super) fn run(config: &Config) -> Result<(), PingpongError> {
    // What is wrong with the environment or the name is told before anyone is waited for.
    let options = OpenOptions::from_env()?;
    let named = config.device.as_deref().map(Device::by_name).transpose()?;
    let streams = meet(config)?;
    let ip = local_ip(&streams)?;
    let device = match named {
        Some(device) => device,
        None => port::device_of(ip)?,
    };
    let context = device.open_with(options)?;
    let wanted = config.gid_index.map_or(Wanted::Near(ip), Wanted::Index);
    let gid = port::choose_gid(&context, config.port, wanted)?;
    let side = match config.role {
        Role::Server => Side::Server,
        Role::Client { .. } => Side::Client,
    };
    let mut out = io::stdout().lock();
    let mut nowhere = io::sink();
    let addresses: &mut dyn Write = if config.json { &mut nowhere } else { &mut out };
    let outcome = game::play(&context, &gid, &config.game, side, streams, addresses)?;
    if config.json {
        write_json(config, &outcome, &mut out)?;
    } else {
        write_text(&config.game, &outcome, &mut out)?;
    }
    Ok(out.flush()?)
}

/// The connection to the other end, or to each XRC client.
fn meet(config: &Config) -> Result<Vec<TcpStream>, ExchangeError> {
    match &config.role {
        Role::Client { host } => Ok(vec![exchange::connect(host, config.tcp_port, config.ipv6)?]),
        Role::Server => {
            let listener = exchange::listen(config.tcp_port, config.ipv6)?;
            let port = listener.local_addr().map_err(ExchangeError::Accept)?.port();
            eprintln!("urxe pingpong: waiting for a client on TCP port {port}");
            (0..config.game.service.clients()).map(|_| exchange::accept(&listener)).collect()
        }
    }
}

/// Our address of the (first) connection; a mapped IPv4 address as what it stands for.
fn local_ip(streams: &[TcpStream]) -> Result<IpAddr, ExchangeError> {
    let nobody = || ExchangeError::Accept(io::ErrorKind::NotConnected.into());
    Ok(streams
        .first()
        .ok_or_else(nobody)?
        .local_addr()
        .map_err(ExchangeError::Broken)?
        .ip()
        .to_canonical())
}

fn bytes(rules: &Rules) -> u64 {
    2 * u64::from(rules.size) * rules.total()
}

/// The closing lines of `ibv_rc_pingpong`.
fn write_text(rules: &Rules, outcome: &Outcome, out: &mut impl Write) -> io::Result<()> {
    let seconds = outcome.elapsed.as_secs_f64();
    let (bytes, iters) = (bytes(rules), rules.iters);
    let mbits = bytes as f64 * 8.0 / 1e6 / seconds;
    writeln!(out, "{bytes} bytes in {seconds:.2} seconds = {mbits:.2} Mbit/sec")?;
    let usec = seconds * 1e6 / f64::from(iters);
    writeln!(out, "{iters} iters in {seconds:.2} seconds = {usec:.2} usec/iter")
}

fn write_json(config: &Config, outcome: &Outcome, out: &mut impl Write) -> io::Result<()> {
    let one = |end: &exchange::Destination| {
        let mut value = json!({
            "lid": end.lid, "qpn": end.qpn.get(), "psn": end.psn.get(), "gid": end.gid.to_string(),
        });
        if let Some(xrc) = end.xrc {
            value["send_qpn"] = xrc.send_qpn.get().into();
            value["srqn"] = xrc.srqn.into();
        }
        value
    };
    let end = |end: &[exchange::Destination]| match end {
        [end] => one(end),
        many => many.iter().map(one).collect(),
    };
    let Rules { service, size, mtu, iters, check, .. } = config.game;
    let seconds = outcome.elapsed.as_secs_f64();
    let value = json!({
        "role": if config.role == Role::Server { "server" } else { "client" },
        "service": service.name(),
        "local": end(&outcome.local),
        "remote": end(&outcome.remote),
        "size": size,
        "mtu": service.has_path_mtu().then(|| mtu.bytes()),
        "iters": iters,
        "checked": check,
        "bytes": bytes(&config.game),
        "seconds": seconds,
        "usec_per_iter": seconds * 1e6 / f64::from(iters),
    });
    writeln!(out, "{value}")
}
