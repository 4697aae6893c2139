//! A program with two ends: a server, and a client that is given its address.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use testkit::netns::{Joined, Namespace, Side};
use testkit::process::{Finished, ProcessError, Running};
use thiserror::Error;

use super::Packages;

/// For the server to listen.
const START_LIMIT: Duration = Duration::from_secs(30);
/// For the whole run, on a machine that does other things too.
const RUN_LIMIT: Duration = Duration::from_secs(60);
/// For the second end, when the first has ended well.
const REST_LIMIT: Duration = Duration::from_secs(20);
/// For the other end, when one has failed: it may tell why, or wait in vain.
const GRACE: Duration = Duration::from_secs(3);
/// `TCP_LISTEN`, as /proc shows it.
const LISTEN: &str = "0A";
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Where the two ends run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Place<'a> {
    /// Both on one host, and one address.
    Loopback(&'a Namespace),
    /// On two hosts.
    Veth(&'a Joined),
}

impl Place<'_> {
    fn server(&self) -> (&Namespace, IpAddr) {
        match self {
            Self::Loopback(namespace) => (namespace, Ipv4Addr::LOCALHOST.into()),
            Self::Veth(joined) => (&joined.right, Side::Right.ipv4().into()),
        }
    }

    /// The device that both ends use; each host has one of its loopback interface too.
    pub const fn device(&self) -> &'static str {
        match self {
            Self::Loopback(_) => "rxe_lo",
            Self::Veth(_) => "rxe_eth0",
        }
    }

    fn client(&self) -> &Namespace {
        match self {
            Self::Loopback(namespace) => namespace,
            Self::Veth(joined) => &joined.left,
        }
    }
}

/// A program to be run, with its options.
#[derive(Clone, Debug)]
pub struct Case {
    /// The program, by its name in `/usr/bin`.
    pub program: String,
    /// Options that it needs in any case, with spaces between; `DEVICE` stands for the device.
    pub fixed: String,
    /// Options of both ends.
    pub options: String,
    /// Variables of the environment, of both ends; `DEVICE` stands for the device.
    pub environment: Vec<(String, String)>,
    /// Arguments that the client has after the address of the server.
    pub arguments: String,
    /// The TCP port where the server listens.
    pub port: u16,
    /// Why it does not run, in words that are printed then.
    pub missing: Option<&'static str>,
}

/// Both ends of a run that ended.
#[derive(Clone, Debug)]
pub struct Ends {
    /// The client's end.
    pub client: Finished,
    /// The server's end.
    pub server: Finished,
}

/// Why a run did not end as it should.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Failure {
    /// An end could not be run, or did not end.
    #[error("{0}")]
    Process(#[from] ProcessError),
    /// The server does not listen.
    #[error("the server does not listen at port {port}; it printed:\n{output}")]
    Deaf {
        /// The port.
        port: u16,
        /// What it printed.
        output: String,
    },
    /// One end failed.
    #[error("{failed}\nthe other end printed:\n{other}")]
    Failed {
        /// The end that failed.
        failed: Box<Finished>,
        /// What the other end printed.
        other: String,
    },
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, fixed, options, arguments, .. } = self;
        write!(f, "{program} {fixed} {options} HOST {arguments}")
    }
}

impl Case {
    /// A program whose server listens at a port; both have these options.
    pub fn new(program: &str, port: u16, fixed: &str, options: &str) -> Self {
        Self {
            program: program.to_owned(),
            fixed: fixed.to_owned(),
            options: options.to_owned(),
            environment: Vec::new(),
            arguments: String::new(),
            port,
            missing: None,
        }
    }

    /// This case, which does not run yet: an end prints `words`.
    #[must_use]
    pub const fn missing(mut self, words: &'static str) -> Self {
        self.missing = Some(words);
        self
    }

    /// Starts the server, which listens when this returns.
    ///
    /// # Errors
    ///
    /// That it does not.
    pub fn start_server(&self, place: Place<'_>, packages: &Packages) -> Result<Running, Failure> {
        let mut command = self.command(place, place.server().0, packages);
        let mut server = Running::start(&format!("server: {self}"), &mut command)?;
        let program = packages.path(&format!("/usr/bin/{}", self.program));
        let deadline = Instant::now() + START_LIMIT;
        while !listens(server.id(), &program, self.port) {
            if server.has_ended()? || Instant::now() > deadline {
                let output = server.printed();
                return Err(Failure::Deaf { port: self.port, output });
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(server)
    }

    /// Starts the client.
    ///
    /// # Errors
    ///
    /// That it cannot be started.
    pub fn start_client(&self, place: Place<'_>, packages: &Packages) -> Result<Running, Failure> {
        let mut command = self.command(place, place.client(), packages);
        command.arg(place.server().1.to_string()).args(self.arguments.split_whitespace());
        Ok(Running::start(&format!("client: {self}"), &mut command)?)
    }

    /// Runs both ends to their end.
    ///
    /// # Errors
    ///
    /// [`Failure`]: an end failed, or waits for the other for ever.
    pub fn run(&self, place: Place<'_>, packages: &Packages) -> Result<Ends, Failure> {
        let mut server = self.start_server(place, packages)?;
        let mut client = self.start_client(place, packages)?;
        let deadline = Instant::now() + RUN_LIMIT;
        while !client.has_ended()? && !server.has_ended()? && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
        if server.has_ended()? {
            let (server, client) = both(server, client)?;
            return Ok(Ends { client, server });
        }
        let (client, server) = both(client, server)?;
        Ok(Ends { client, server })
    }

    fn command(&self, place: Place<'_>, namespace: &Namespace, packages: &Packages) -> Command {
        let program = packages.path(&format!("/usr/bin/{}", self.program));
        let mut command = packages.command(namespace, &program);
        let fixed = self.fixed.replace("DEVICE", place.device());
        command.args(fixed.split_whitespace()).args(self.options.split_whitespace());
        let device = |value: &String| value.replace("DEVICE", place.device());
        command.envs(self.environment.iter().map(|(name, value)| (name, device(value))));
        command
    }
}

/// Waits for two ends, of which the first has ended or has no more time.
fn both(first: Running, second: Running) -> Result<(Finished, Finished), Failure> {
    let first = first.wait(Duration::ZERO)?;
    if first.status.success() {
        let second = second.wait(REST_LIMIT)?;
        if second.status.success() {
            return Ok((first, second));
        }
        return Err(Failure::Failed { failed: Box::new(second), other: first.to_string() });
    }
    // The other one may fail too and tell why, or wait for ever.
    let other = match second.wait(GRACE) {
        Ok(second) => second.to_string(),
        Err(error) => error.to_string(),
    };
    Err(Failure::Failed { failed: Box::new(first), other })
}

/// Whether a process, once it is this program, listens at a TCP port.
fn listens(process: u32, program: &Path, port: u16) -> bool {
    // Before that it is still on its way into its namespace.
    let itself = fs::read_link(format!("/proc/{process}/exe")).ok();
    if itself.is_none_or(|itself| itself.file_name() != program.file_name()) {
        return false;
    }
    let port = format!(":{port:04X}");
    ["tcp", "tcp6"].into_iter().any(|table| {
        let sockets = fs::read_to_string(format!("/proc/{process}/net/{table}"));
        // proc_net_tcp(5): a number, the local address, the remote one, the state.
        sockets.unwrap_or_default().lines().any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let local = fields.next().is_some_and(|local| local.ends_with(&port));
            local && fields.nth(1) == Some(LISTEN)
        })
    })
}
