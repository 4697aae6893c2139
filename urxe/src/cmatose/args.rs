//! The arguments: those of rdmacm-utils' `ucmatose`.

use clap::ValueEnum;
use rdma_cm::PortSpace;

use crate::cm::{Format, Messages, connections};

/// Where `ucmatose` listens.
const DEFAULT_PORT: u16 = 7471;

/// Arguments of `urxe cmatose`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "The other side may be ucmatose of rdmacm-utils, on any RoCE device. -c, -C \
    and -S have to be the same at both ends. The server checks that its messages come back.\n\
    Exit status: 0 when all data was right, 1 when anything failed, 2 when the arguments are \
    wrong."
)]
pub(crate) struct Args {
    /// Connect to the server at ADDRESS; without it, be the server.
    #[arg(short = 's', value_name = "ADDRESS")]
    pub(super) server: Option<String>,
    /// Address of this host: to listen at [default: all], or to connect from [default: the one that
    /// the routes choose].
    #[arg(short = 'b', value_name = "ADDRESS")]
    pub(super) bind: Option<String>,
    /// What the addresses are.
    #[arg(short, value_name = "FORMAT", default_value = "name")]
    pub(super) format: Format,
    /// Port space.
    #[arg(short = 'P', value_name = "SPACE", default_value = "tcp")]
    pub(super) space: Space,
    /// Connections.
    #[arg(short, value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(connections()))]
    pub(super) connections: u32,
    /// Messages each way on each connection.
    #[arg(short = 'C', value_name = "COUNT", default_value_t = 10)]
    pub(super) count: u32,
    /// Bytes of a message; for 0 there are no messages.
    #[arg(short = 'S', value_name = "BYTES", default_value_t = 100)]
    pub(super) size: u32,
    /// Type of service: the traffic class of what is sent.
    #[arg(short, value_name = "TOS")]
    pub(super) tos: Option<u8>,
    /// Port of the server.
    #[arg(short, default_value_t = DEFAULT_PORT)]
    pub(super) port: u16,
    /// Have the ends of the connections told through another channel than their beginnings.
    #[arg(short)]
    pub(super) migrate: bool,
    /// ACK timeout of the queue pairs: 4.096 µs × 2^TIMEOUT.
    #[arg(short, value_name = "TIMEOUT", value_parser = clap::value_parser!(u8).range(..32))]
    pub(super) ack_timeout: Option<u8>,
}

/// Port spaces of connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Space {
    /// RDMA_PS_TCP.
    Tcp,
    /// RDMA_PS_IB.
    Ib,
}

impl Args {
    pub(super) fn port_space(&self) -> PortSpace {
        match self.space {
            Space::Tcp => PortSpace::Tcp,
            Space::Ib => PortSpace::Ib,
        }
    }

    /// What is sent on each connection, each way.
    pub(super) fn messages(&self) -> Messages {
        // ucmatose takes no bytes for no messages.
        let count = if self.size == 0 { 0 } else { self.count };
        Messages { count, size: self.size }
    }

    /// What was done, when all went well.
    pub(super) fn outcome(&self) -> String {
        let Messages { count, size } = self.messages();
        format!(
            "{} connections, {count} messages of {size} bytes each way on each",
            self.connections
        )
    }
}
