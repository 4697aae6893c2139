//! The arguments: those of rdmacm-utils' `mckey`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use rdma_cm::{JoinState, PortSpace};

use crate::cm::{CmError, Messages, connections, pattern, port_space, resolve};

/// Arguments of `urxe mckey`.
#[derive(clap::Args, Debug)]
#[command(after_help = "The other members may be mckey of rdmacm-utils, on any RoCE device. A \
    receiver checks that all messages of a sender are alike.\n\
    Exit status: 0 when all data was right, 1 when anything failed, 2 when the arguments are \
    wrong.")]
pub(crate) struct Args {
    /// IP address of the group.
    #[arg(short = 'm', value_name = "ADDRESS", required_unless_present = "mgid")]
    group: Option<String>,
    /// Multicast GID of the group, instead of its IP address.
    #[arg(short = 'M', value_name = "MGID", conflicts_with = "group", requires = "bind")]
    mgid: Option<Ipv6Addr>,
    /// Send to the group; without it, receive.
    #[arg(short)]
    pub(super) sender: bool,
    /// Address of this host [default: the one that the routes choose].
    #[arg(short, value_name = "ADDRESS")]
    bind: Option<String>,
    /// Queue pairs that join.
    #[arg(short, value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(connections()))]
    pub(super) connections: u32,
    /// Messages of each.
    #[arg(short = 'C', value_name = "COUNT", default_value_t = 10)]
    count: u32,
    /// Bytes of a message; for 0 there are no messages.
    #[arg(short = 'S', value_name = "BYTES", default_value_t = 100)]
    size: u32,
    /// Port space, by its number: 0x0111 (UDP) or 0x0002 (IPoIB).
    #[arg(short = 'p', value_name = "NUMBER", default_value = "0x0111", value_parser = port_space)]
    pub(super) space: PortSpace,
    /// Join to send only.
    #[arg(short = 'o', requires = "sender")]
    send_only: bool,
    /// Keep messages from other receivers on this host, which the device cannot: refused.
    #[arg(short = 'l')]
    pub(super) no_loopback: bool,
}

impl Args {
    /// The group.
    pub(super) fn group(&self) -> Result<IpAddr, CmError> {
        match self.mgid {
            // An IPv4 group is an IPv6 address here too.
            Some(mgid) => Ok(IpAddr::V6(mgid).to_canonical()),
            None => Ok(resolve(self.group.as_deref().unwrap_or_default(), 0)?.ip()),
        }
    }

    /// Where it is said.
    pub(super) fn source(&self) -> Result<Option<SocketAddr>, CmError> {
        self.bind.as_deref().map(|name| resolve(name, 0)).transpose()
    }

    /// Whether the group is no IP address, so there is no way to it to be found.
    pub(super) fn is_unmapped(&self) -> bool {
        self.mgid.is_some()
    }

    pub(super) fn join_state(&self) -> JoinState {
        if self.send_only { JoinState::SendOnly } else { JoinState::FullMember }
    }

    /// What each queue pair sends or gets.
    pub(super) fn messages(&self) -> Messages {
        // mckey takes no bytes for no messages.
        let count = if self.size == 0 { 0 } else { self.count };
        Messages { count, size: self.size }
    }

    /// The data of all messages.
    pub(super) fn data(&self) -> Vec<u8> {
        pattern(0, self.size)
    }

    /// What was done, when all went well.
    pub(super) fn outcome(&self) -> String {
        let Messages { count, size } = self.messages();
        let verb = if self.sender { "sent" } else { "received" };
        format!("{} members, {count} messages of {size} bytes {verb} by each", self.connections)
    }
}
