//! The games of the family: which service carries the messages, over how many queue pairs.

use ibverbs_api::QpType;

use super::exchange::SRQ_MESSAGES;

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
}

impl Service {
    /// Queue pairs of an end.
    pub(super) const fn pairs(self) -> u32 {
        match self {
            Self::Rc | Self::Uc | Self::Ud => 1,
            Self::Srq { pairs } => pairs,
        }
    }

    /// Messages of the exchange, each way.
    pub(super) const fn messages(self) -> usize {
        match self {
            Self::Rc | Self::Uc | Self::Ud => 1,
            Self::Srq { .. } => SRQ_MESSAGES,
        }
    }

    /// The service of the queue pairs.
    pub(super) const fn qp_type(self) -> QpType {
        match self {
            Self::Rc | Self::Srq { .. } => QpType::Rc,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
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
            Self::Rc | Self::Uc | Self::Srq { .. } => 0,
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
            Self::Rc | Self::Uc | Self::Srq { .. } => 4096,
        }
    }

    /// The name in JSON.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
            Self::Srq { .. } => "srq",
        }
    }
}
