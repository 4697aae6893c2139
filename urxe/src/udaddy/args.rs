//! The arguments: those of rdmacm-utils' `udaddy`.

use clap::ValueEnum;
use rdma_cm::PortSpace;

use crate::cm::{Format, Messages, connections, port_space};

/// Where `udaddy` listens, without a choice.
pub(super) const PORT: u16 = 7174;

/// Arguments of `urxe udaddy`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "The other side may be udaddy of rdmacm-utils, on any RoCE device. -c, -C and \
    -S have to be the same at both ends. The client checks that its messages come back: as udaddy \
    does, a server sends back the 40 bytes before a message and, after them, its beginning, so all \
    but the last 40 bytes are checked.\n\
    Exit status: 0 when all data was right, 1 when anything failed, 2 when the arguments are \
    wrong."
)]
pub(crate) struct Args {
    /// Send to the server at ADDRESS; without it, be the server.
    #[arg(short = 's', value_name = "ADDRESS")]
    pub(super) server: Option<String>,
    /// Address of this host: to listen at [default: all], or to send from [default: the one that the
    /// routes choose].
    #[arg(short = 'b', value_name = "ADDRESS")]
    pub(super) bind: Option<String>,
    /// What the addresses are.
    #[arg(short, value_name = "FORMAT", default_value = "name")]
    pub(super) format: Format,
    /// Port space.
    #[arg(short = 'P', value_name = "SPACE", conflicts_with = "number")]
    pub(super) space: Option<Space>,
    /// Port space, by its number [default: 0x0111].
    #[arg(short = 'p', value_name = "NUMBER", value_parser = port_space)]
    pub(super) number: Option<PortSpace>,
    /// Pairs of queue pairs.
    #[arg(short, value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(connections()))]
    pub(super) connections: u32,
    /// Messages each way between each.
    #[arg(short = 'C', value_name = "COUNT", default_value_t = 10)]
    pub(super) count: u32,
    /// Bytes of a message; for 0 there are no messages.
    #[arg(short = 'S', value_name = "BYTES", default_value_t = 100)]
    pub(super) size: u32,
    /// Type of service: the traffic class of what the client sends.
    #[arg(short, value_name = "TOS")]
    pub(super) tos: Option<u8>,
}

/// Port spaces of datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Space {
    /// RDMA_PS_UDP.
    Udp,
    /// RDMA_PS_IPOIB.
    Ipoib,
}

impl Args {
    pub(super) fn port_space(&self) -> PortSpace {
        match (self.space, self.number) {
            (Some(Space::Ipoib), _) => PortSpace::Ipoib,
            (Some(Space::Udp), _) => PortSpace::Udp,
            (None, number) => number.unwrap_or(PortSpace::Udp),
        }
    }

    /// What is sent between each pair of queue pairs, each way.
    pub(super) fn messages(&self) -> Messages {
        // udaddy takes no bytes for no messages.
        let count = if self.size == 0 { 0 } else { self.count };
        Messages { count, size: self.size }
    }

    /// What was done, when all went well.
    pub(super) fn outcome(&self) -> String {
        let Messages { count, size } = self.messages();
        format!("{} paths, {count} messages of {size} bytes each way on each", self.connections)
    }
}
