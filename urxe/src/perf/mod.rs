//! `urxe perf`: bandwidth, latency and message rate, and what sockets carry beside.
//!
//! A measurement is a [`load::Load`]. A client chooses loads and a server takes them
//! ([`session`]), over TCP, or over a pair of sockets where both are threads of this process: all
//! else is the same. They speak by lines of JSON ([`control`]). Each end makes its queue pairs
//! ([`end`]); threads keep them busy ([`worker`]), or one plays to and fro ([`latency`]). [`limits`]
//! measures what sockets carry, in the same rounds; [`table`] is what the project wants to reach.
//!
//! The contract: a figure is printed only if the data was right.

mod args;
mod control;
mod end;
mod error;
mod far;
mod histogram;
mod idle;
mod latency;
mod limits;
mod load;
mod place;
mod plot;
mod progress;
mod report;
mod session;
mod table;
mod worker;

use std::io::{self, Write};
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use ibverbs_api::{Device, GidEntry};

pub(crate) use args::Args;

use args::{Client, Meeting, Mode};
use control::Control;
use error::PerfError;
use limits::{Ground, Limit};
use load::Amount;
use progress::Progress;
use report::{Report, Row};
use session::Host;

use crate::pingpong::port::{self, Wanted};
use crate::pingpong::{PingpongError, STATUS_FAILED, STATUS_USAGE, exchange};

/// The longest that a limit is measured, in a round.
const LIMIT_TIME: Duration = Duration::from_secs(1);

/// Measures, prints, and says how it went.
pub(crate) fn run(args: &Args) -> ExitCode {
    let result = match args.mode() {
        Ok(Mode::Server(meeting)) => serve(&meeting),
        Ok(Mode::Client(client)) => measure(&client),
        Ok(Mode::Table(client)) => table::run(&client),
        Err(usage) => {
            eprintln!("urxe perf: {usage}");
            return ExitCode::from(STATUS_USAGE);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has seen enough, as with `urxe perf | head`.
        Err(PerfError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("urxe perf: {error}");
            ExitCode::from(STATUS_FAILED)
        }
    }
}

/// Serves one client.
fn serve(meeting: &Meeting) -> Result<(), PerfError> {
    let named = meeting.device.as_deref().map(Device::by_name).transpose()?;
    let listener = exchange::listen(meeting.tcp_port, meeting.ipv6).map_err(PingpongError::from)?;
    let port = listener.local_addr()?.port();
    eprintln!("urxe perf: waiting for a client on TCP port {port}");
    let stream = exchange::accept(&listener).map_err(PingpongError::from)?;
    let own = stream.local_addr()?.ip().to_canonical();
    let mut host = host(meeting, named, Some(own))?;
    session::serve(&mut host, &mut Control::over(stream))
}

/// What an end sends from; `own` is its address of the TCP connection.
fn host(meeting: &Meeting, named: Option<Device>, own: Option<IpAddr>) -> Result<Host, PerfError> {
    let device = match (named, own) {
        (Some(device), _) => device,
        (None, Some(own)) => port::device_of(own)?,
        (None, None) => Device::by_name("rxe_lo")?,
    };
    let wanted = match (meeting.gid_index, own) {
        (Some(index), _) => Wanted::Index(index),
        (None, Some(own)) => Wanted::Near(own),
        (None, None) => Wanted::Family { ipv6: meeting.ipv6 },
    };
    Host::new(device, meeting.port, wanted)
}

/// Does `work` with the server: the one at a host, or one in this process.
///
/// It gets the address of the server's end, where it is another.
fn with_server<T>(
    meeting: &Meeting,
    work: impl FnOnce(&mut Host, &mut Control, Option<IpAddr>) -> Result<T, PerfError>,
) -> Result<T, PerfError> {
    let named = meeting.device.as_deref().map(Device::by_name).transpose()?;
    if let Some(name) = &meeting.host {
        let stream =
            exchange::connect(name, meeting.tcp_port, meeting.ipv6).map_err(PingpongError::from)?;
        let own = stream.local_addr()?.ip().to_canonical();
        let peer = stream.peer_addr()?.ip().to_canonical();
        let mut host = host(meeting, named, Some(own))?;
        let mut control = Control::over(stream);
        control.greet()?;
        return work(&mut host, &mut control, Some(peer));
    }
    let server = host(meeting, named.clone(), None)?;
    let mut client = host(meeting, named, None)?;
    session::in_this_process(server, |control| work(&mut client, control, None))
}

/// Where limits are measured: beside the queue pairs.
fn ground(gid: &GidEntry, peer: Option<IpAddr>, client: &Client) -> Ground {
    let from = gid.gid.to_ip();
    Ground {
        from,
        to: peer.unwrap_or(from),
        scope_id: if gid.gid.is_link_local() { gid.ifindex } else { 0 },
        namespace: client.namespace.clone(),
        is_far: client.namespace.is_none() && peer.is_some_and(far::is_far),
    }
}

/// Measures what is asked for, and prints it.
fn measure(client: &Client) -> Result<(), PerfError> {
    let report = with_server(&client.meeting, |host, control, peer| {
        let (device, gid) = host.name()?;
        let ground = ground(&gid, peer, client);
        if client.has_limits && ground.is_far {
            eprintln!(
                "urxe perf: the bare pipe is left out: it needs both ends on this host (--netns)"
            );
        }
        let mut rows = Vec::new();
        let progress = Progress::new(client.loads.len() as u64 * u64::from(client.rounds));
        for load in &client.loads {
            let mtu = match load.mtu {
                Some(mtu) => mtu,
                None => host.largest_mtu()?.bytes() as u32,
            };
            let limits = if client.has_limits { Limit::of(load) } else { &[] };
            let possible = limits.iter().filter(|limit| !ground.is_far || far::can(**limit));
            let limits: Vec<_> = possible.copied().collect();
            let mut row = Row::new(load.clone(), mtu, &limits);
            for _ in 0..client.rounds {
                progress.step(load);
                measure_limits(&ground, control, &mut row)?;
                row.add(&session::measure(host, control, load)?);
            }
            rows.push(row);
        }
        let machine = if client.has_limits { limits::machine() } else { Vec::new() };
        progress.finish();
        let has_histograms = client.has_histograms;
        Ok(Report { device, gid: gid.gid.to_string(), rows, machine, has_histograms })
    })?;
    if let Some(file) = &client.svg {
        plot::draw(&report, file)?;
    }
    let mut out = io::stdout().lock();
    if client.json {
        writeln!(out, "{}", report.to_json())?;
    } else {
        report.write_text(&mut out)?;
    }
    Ok(out.flush()?)
}

/// One round of what a row is held against.
fn measure_limits(ground: &Ground, control: &mut Control, row: &mut Row) -> Result<(), PerfError> {
    let time = match row.load.amount {
        Amount::Seconds(seconds) => Duration::from_secs_f64(seconds).min(LIMIT_TIME),
        Amount::Messages(_) => LIMIT_TIME,
    };
    let (load, mtu) = (&row.load, row.mtu);
    for (limit, values) in &mut row.limits {
        values.push(match ground.is_far {
            true => {
                let ends = (ground.from, ground.to);
                far::measure(control, *limit, ends, load.size as usize, time)?
            }
            false => ground.measure(*limit, load, mtu, time).map_err(PerfError::Limit)?,
        });
    }
    Ok(())
}
