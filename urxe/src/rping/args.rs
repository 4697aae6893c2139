//! The arguments: those of rdmacm-utils' `rping`.

use std::net::SocketAddr;

use crate::cm::{CmError, Format, resolve, wildcard};

/// Where `rping` listens.
const DEFAULT_PORT: u16 = 7174;
/// Bytes of a message: room for its beginning and a number.
const SIZE_MIN: i64 = 32;
/// Bytes of a message at most, as `rping` has it.
pub(super) const SIZE_MAX: usize = 64 << 10;

/// Arguments of `urxe rping`.
#[derive(clap::Args, Debug)]
#[command(after_help = "The other side may be rping of rdmacm-utils, on any RoCE device.\n\
    Exit status: 0 when all data was right, 1 when anything failed, 2 when the arguments are \
    wrong.")]
pub(crate) struct Args {
    /// Be the server.
    #[arg(short, conflicts_with = "client", required_unless_present = "client")]
    pub(super) server: bool,
    /// Be the client.
    #[arg(short, requires = "address")]
    pub(super) client: bool,
    /// Address of the server: to connect to, or to listen at [default of the server: all].
    #[arg(short, value_name = "ADDRESS")]
    pub(super) address: Option<String>,
    /// Address of this host to connect from [default: the one that the routes choose].
    #[arg(short = 'I', value_name = "ADDRESS", requires = "client")]
    pub(super) source: Option<String>,
    /// Port of the server.
    #[arg(short, default_value_t = DEFAULT_PORT)]
    pub(super) port: u16,
    /// Show the data.
    #[arg(short)]
    pub(super) verbose: bool,
    /// Check the data that comes back.
    #[arg(short = 'V')]
    pub(super) validate: bool,
    /// Tell what happens, on the standard error.
    #[arg(short)]
    pub(super) debug: bool,
    /// Messages to and fro [default: no end].
    #[arg(short = 'C', value_name = "COUNT")]
    pub(super) count: Option<u64>,
    /// Bytes of a message; the same at both ends. (The man page of rping says 100, the program 64.)
    #[arg(short = 'S', value_name = "BYTES", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(SIZE_MIN..=SIZE_MAX as i64))]
    pub(super) size: u32,
    /// As a server, serve many clients, until killed.
    #[arg(short = 'P', requires = "server")]
    pub(super) persistent: bool,
    /// Move the queue pair through its states here, not in the connection manager.
    #[arg(short = 'q')]
    pub(super) own_qp: bool,
}

impl Args {
    /// Where the server listens or is.
    pub(super) fn server_address(&self) -> Result<SocketAddr, CmError> {
        wildcard(self.address.as_deref(), self.port, Format::Name)
    }

    /// Where the client connects from, if that is said.
    pub(super) fn source_address(&self) -> Result<Option<SocketAddr>, CmError> {
        self.source.as_deref().map(|name| resolve(name, 0)).transpose()
    }
}
