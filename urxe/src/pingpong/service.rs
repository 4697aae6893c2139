//! The games of the family: which service carries the messages, over how many queue pairs.

use ibverbs_api::QpType;

use super::exchange::SRQ_MESSAGES;
use super::game::Side;

/// Exchanges, as of `ibv_rc_pingpong`.
pub(super) const DEFAULT_ITERS: u32 = 1000;

/// A game of the family of `ibv_*_pingpong`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Service {
    /// `ibv_rc_pingpong`: a reliable connection.
    Rc,
    /// `ibv_uc_pingpong`: an unreliable connection. A message that is lost ends the game.
    Uc,
    /// `ibv_ud_pingpong`: datagrams. One that is lost ends the game.
    Ud,
    /// `ibv_srq_pingpong`: reliable connections that share their receives.
    Srq {
        /// Queue pairs, 1 to 256.
        pairs: u32,
    },
    /// `ibv_xsrq_pingpong`: extended reliable connections from and to each client, of which all
    /// that come end in one shared receive queue. The server sends first.
    ///
    /// Ours sends to each client over that client's own connection. `ibv_xsrq_pingpong` takes turns
    /// among the connections of all, which works where its clients share a domain, on one host.
    Xrc {
        /// Clients of a server; 1 at a client.
        clients: u32,
    },
}

impl Service {
    /// Queue pairs of an end.
    pub(super) const fn pairs(self) -> u32 {
        match self {
            Self::Rc | Self::Uc | Self::Ud => 1,
            Self::Srq { pairs } => pairs,
            Self::Xrc { clients } => clients,
        }
    }

    /// Messages of the exchange, each way.
    pub(super) const fn messages(self) -> usize {
        match self {
            Self::Rc | Self::Uc | Self::Ud | Self::Xrc { .. } => 1,
            Self::Srq { .. } => SRQ_MESSAGES,
        }
    }

    /// The service of the queue pairs that send.
    pub(super) const fn qp_type(self) -> QpType {
        match self {
            Self::Rc | Self::Srq { .. } => QpType::Rc,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
            Self::Xrc { .. } => QpType::XrcSend,
        }
    }

    /// Whether the other end may want an acknowledgement again.
    pub(super) const fn is_acknowledged(self) -> bool {
        !matches!(self, Self::Uc | Self::Ud)
    }

    /// Bytes of a receive before the data: a datagram comes with its network header.
    pub(super) const fn head(self) -> usize {
        match self {
            Self::Ud => 40,
            Self::Rc | Self::Uc | Self::Srq { .. } | Self::Xrc { .. } => 0,
        }
    }

    /// Whether both ends choose a path MTU; a datagram has the port's.
    pub(super) const fn has_path_mtu(self) -> bool {
        !matches!(self, Self::Ud)
    }

    /// Bytes of a message where nothing else is said.
    pub(super) const fn default_size(self) -> u32 {
        match self {
            Self::Ud => 2048,
            Self::Rc | Self::Uc | Self::Srq { .. } | Self::Xrc { .. } => 4096,
        }
    }

    /// Messages each way where nothing else is said.
    pub(super) const fn default_iters(self) -> u32 {
        match self {
            Self::Xrc { .. } => 5,
            Self::Rc | Self::Uc | Self::Ud | Self::Srq { .. } => DEFAULT_ITERS,
        }
    }

    /// Programs that a server plays with.
    pub(super) const fn clients(self) -> u32 {
        match self {
            Self::Xrc { clients } => clients,
            Self::Rc | Self::Uc | Self::Ud | Self::Srq { .. } => 1,
        }
    }

    /// How often `iters` messages go each way: once for each client, if there are such.
    pub(super) const fn total(self, iters: u32) -> u64 {
        match self {
            Self::Xrc { clients } => iters as u64 * clients as u64,
            Self::Rc | Self::Uc | Self::Ud | Self::Srq { .. } => iters as u64,
        }
    }

    /// Who sends first.
    pub(super) const fn first(self) -> Side {
        match self {
            Self::Xrc { .. } => Side::Server,
            Self::Rc | Self::Uc | Self::Ud | Self::Srq { .. } => Side::Client,
        }
    }

    /// The name in JSON.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
            Self::Srq { .. } => "srq",
            Self::Xrc { .. } => "xrc",
        }
    }
}
