//! `urxe pingpong` between two namespaces.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use testkit::binary::urxe_binary;
use testkit::netns::{Joined, Namespace, Side};
use testkit::process::{Finished, ProcessError, Running};
use thiserror::Error;

/// For the server to listen.
const START_LIMIT: Duration = Duration::from_secs(20);
/// For the whole game, with losses, on a machine that does other things too.
const GAME_LIMIT: Duration = Duration::from_secs(120);

/// A game that did not end well.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PingpongError {
    /// One end could not be run.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// One end failed.
    #[error("{}\n{}", .0.client, .0.server)]
    Failed(Box<Played>),
}

/// Both ends of a game that ended.
#[derive(Clone, Debug)]
pub struct Played {
    /// The client's end.
    pub client: Finished,
    /// The server's end.
    pub server: Finished,
}

/// A game to be played: the server on the right, the client on the left. Data is always checked.
#[derive(Clone, Debug)]
pub struct Pingpong<'a> {
    joined: &'a Joined,
    ipv6: bool,
    arguments: Vec<String>,
    faults: Option<String>,
    links: [Option<(String, u32)>; 2],
    on_one_host: bool,
    devices: Option<String>,
    client_pcap: Option<PathBuf>,
}

impl<'a> Pingpong<'a> {
    /// A game over IPv4.
    pub const fn new(joined: &'a Joined) -> Self {
        Self {
            joined,
            ipv6: false,
            arguments: Vec::new(),
            faults: None,
            links: [None, None],
            on_one_host: false,
            devices: None,
            client_pcap: None,
        }
    }

    /// Over IPv6, or not.
    #[must_use]
    pub const fn ipv6(mut self, ipv6: bool) -> Self {
        self.ipv6 = ipv6;
        self
    }

    /// Options of both ends, with spaces between.
    #[must_use]
    pub fn options(mut self, options: &str) -> Self {
        self.arguments.extend(options.split_whitespace().map(String::from));
        self
    }

    /// What `URXE_FAULTS` says at both ends, without the seed, which differs.
    #[must_use]
    pub fn faults(mut self, faults: &str) -> Self {
        self.faults = Some(faults.to_owned());
        self
    }

    /// What `URXE_LINK` says at the client's end and at the server's, and which GID they use.
    #[must_use]
    pub fn links(mut self, client: (&str, u32), server: (&str, u32)) -> Self {
        self.links = [client, server].map(|(link, index)| Some((link.to_owned(), index)));
        self
    }

    /// With the server on the left too, at the client's own address.
    #[must_use]
    pub const fn on_one_host(mut self) -> Self {
        self.on_one_host = true;
        self
    }

    /// What `URXE_DEVICES` says at both ends.
    #[must_use]
    pub fn devices(mut self, devices: &str) -> Self {
        self.devices = Some(devices.to_owned());
        self
    }

    /// The file of `URXE_PCAP` at the client's end.
    #[must_use]
    pub fn client_pcap(mut self, file: PathBuf) -> Self {
        self.client_pcap = Some(file);
        self
    }

    /// Starts the server, which listens when this returns.
    ///
    /// # Errors
    ///
    /// That it does not.
    pub fn start_server(&self) -> Result<Running, ProcessError> {
        let Joined { left, right } = self.joined;
        let mut command = self.command(if self.on_one_host { left } else { right }, 2);
        command.arg("--server");
        let mut server = Running::start("the server", &mut command)?;
        server.wait_for_text("waiting for a client", START_LIMIT)?;
        Ok(server)
    }

    /// Starts the client.
    ///
    /// # Errors
    ///
    /// That it cannot be started.
    pub fn start_client(&self) -> Result<Running, ProcessError> {
        let mut command = self.command(&self.joined.left, 1);
        if let Some(file) = &self.client_pcap {
            command.env("URXE_PCAP", file);
        }
        let server = if self.on_one_host { Side::Left } else { Side::Right };
        let [ipv4, ipv6] = server.addresses();
        let host = if self.ipv6 { ipv6 } else { ipv4 };
        Running::start("the client", command.arg(host.to_string()))
    }

    /// Plays.
    ///
    /// # Errors
    ///
    /// That one end fails or hangs.
    pub fn play(&self) -> Result<Played, PingpongError> {
        let server = self.start_server()?;
        let client = self.start_client()?.wait(GAME_LIMIT)?;
        let played = Played { client, server: server.wait(GAME_LIMIT)? };
        if played.client.status.success() && played.server.status.success() {
            Ok(played)
        } else {
            Err(PingpongError::Failed(Box::new(played)))
        }
    }

    /// Of the client, which is number 1, or of the server, 2.
    fn command(&self, namespace: &Namespace, number: u32) -> Command {
        let mut command = namespace.command(urxe_binary());
        command.args(["pingpong", "-c"]).args(&self.arguments);
        for variable in ["URXE_FAULTS", "URXE_PCAP", "URXE_GSO", "URXE_LINK", "URXE_DEVICES"] {
            command.env_remove(variable);
        }
        if let Some((link, index)) = &self.links[number as usize - 1] {
            command.env("URXE_LINK", link).args(["-g", &index.to_string()]);
        }
        if let Some(devices) = &self.devices {
            command.env("URXE_DEVICES", devices);
        }
        if let Some(faults) = &self.faults {
            command.env("URXE_FAULTS", format!("seed={number},{faults}"));
        }
        command
    }
}
