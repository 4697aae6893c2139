//! Send requests: as posted, and as the send queue keeps them.

use bitflags::bitflags;
use rxe_wire::{Psn, RKey};
use smallvec::SmallVec;

use super::{MAX_MESSAGE, Sge, SgeList, total_length};
use crate::qp::{QpCaps, QpState, QpType};
use crate::wc::{WcOpcode, WcStatus};

/// Memory of the peer (`wr.rdma` of `struct ibv_send_wr`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteAddr {
    /// Address of the first byte, as the peer knows it.
    pub addr: u64,
    /// The peer's key.
    pub rkey: RKey,
}

/// What a send request does (`enum ibv_wr_opcode`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SendOp {
    /// Sends a message into the peer's next receive buffer, with immediate data if given.
    Send {
        /// Immediate data, in host order.
        imm: Option<u32>,
    },
    /// Writes to the peer's memory; with immediate data it also consumes a receive there.
    Write {
        /// Where to.
        remote: RemoteAddr,
        /// Immediate data, in host order.
        imm: Option<u32>,
    },
    /// Reads from the peer's memory.
    Read {
        /// Where from.
        remote: RemoteAddr,
    },
}

impl SendOp {
    pub(crate) const fn wc_opcode(self) -> WcOpcode {
        match self {
            Self::Send { .. } => WcOpcode::Send,
            Self::Write { .. } => WcOpcode::RdmaWrite,
            Self::Read { .. } => WcOpcode::RdmaRead,
        }
    }

    pub(crate) const fn is_read(self) -> bool {
        matches!(self, Self::Read { .. })
    }
}

bitflags! {
    /// Options of a send request (`enum ibv_send_flags`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct SendFlags: u32 {
        /// Starts only after all earlier READs and atomics are done (`IBV_SEND_FENCE`, R10).
        const FENCE = 1;
        /// Completes in the completion queue also when it succeeds (`IBV_SEND_SIGNALED`).
        const SIGNALED = 1 << 1;
        /// Raises an event at the receiver that armed for solicited ones (`IBV_SEND_SOLICITED`).
        const SOLICITED = 1 << 2;
    }
}

/// Where the bytes of a send request are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendData<'a> {
    /// In registered memory; read when packets are built, and again when they are resent.
    Sges(&'a [Sge]),
    /// Right here: copied when posted, so the buffer is free again at once (R15).
    ///
    /// Counterpart of `IBV_SEND_INLINE`.
    Inline(&'a [u8]),
}

/// A send request to post (`struct ibv_send_wr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Options.
    pub flags: SendFlags,
    /// The bytes to send, or where the bytes read go.
    pub data: SendData<'a>,
}

/// Why a send request was not taken (`ibv_post_send`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostSendError {
    /// The QP is not ready to send.
    #[error("the QP is in state {state:?}: sends can be posted from RTS on")]
    State {
        /// The QP's state.
        state: QpState,
    },
    /// The send queue is full.
    #[error("the send queue is full: {max} requests (max_send_wr) are outstanding; poll for some")]
    Full {
        /// Entries of the queue.
        max: u32,
    },
    /// Too many scatter/gather entries.
    #[error("{count} scatter/gather entries, but the QP takes at most {max} (max_send_sge)")]
    TooManySges {
        /// Entries given.
        count: usize,
        /// The QP's limit.
        max: u32,
    },
    /// Too much inline data.
    #[error("{len} bytes inline, but the QP takes at most {max} (max_inline_data)")]
    InlineTooLong {
        /// Bytes given.
        len: usize,
        /// The QP's limit.
        max: u32,
    },
    /// The message is longer than 2^31 bytes.
    #[error("a message of {len} bytes, but at most {MAX_MESSAGE} can be sent")]
    TooLong {
        /// Bytes of the message.
        len: u64,
    },
    /// The QP's service does not have the operation (R14), or READ data was to go inline.
    #[error("a QP of type {qp_type:?} cannot do this: {reason}")]
    Unsupported {
        /// The QP's type.
        qp_type: QpType,
        /// What stands against it.
        reason: &'static str,
    },
}

impl PostSendError {
    /// The errno that `ibv_post_send` returns.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Full { .. } => crate::errno::ENOMEM,
            Self::State { .. }
            | Self::TooManySges { .. }
            | Self::InlineTooLong { .. }
            | Self::TooLong { .. }
            | Self::Unsupported { .. } => crate::errno::EINVAL,
        }
    }
}

/// The bytes of a queued request.
#[derive(Clone, Debug)]
pub(crate) enum WqeData {
    Sges(SgeList),
    Inline(SmallVec<[u8; 64]>),
}

/// A send request in its queue, with what became of it.
#[derive(Clone, Debug)]
pub(crate) struct SendWqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
    pub(crate) data: WqeData,
    pub(crate) length: u32,
    /// Set when its first packet is about to be built.
    pub(crate) started: Option<Started>,
    /// It failed on this side, and completes so once everything before it has.
    pub(crate) failed: Option<WcStatus>,
}

/// Where a request lies in the stream of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Started {
    pub(crate) first_psn: Psn,
    /// PSNs that it takes: its packets, or those of the READ's response.
    pub(crate) packets: u32,
    /// Estimated cost of one packet in a receive buffer (see `window.rs`).
    pub(crate) packet_cost: u32,
    /// Cost of all packets of earlier requests, wrapping.
    pub(crate) cost_before: u64,
    /// READ only: packets asked for at once. Boundaries never move, so a READ that is asked for
    /// again ends where the first one ended, as the responder's replay needs it (R24).
    pub(crate) chunk: u32,
}

impl SendWqe {
    /// Checks a request against the QP, and makes the queue's copy of it.
    pub(crate) fn prepare(
        wr: &SendWr<'_>,
        qp_type: QpType,
        caps: &QpCaps,
        signal_all: bool,
    ) -> Result<Self, PostSendError> {
        let unsupported = |reason| Err(PostSendError::Unsupported { qp_type, reason });
        let inline = matches!(wr.data, SendData::Inline(_));
        match (qp_type, wr.op) {
            (QpType::Rc | QpType::XrcSend, SendOp::Read { .. }) if inline => {
                return unsupported("READ puts data into registered memory, never inline");
            }
            (QpType::Rc | QpType::XrcSend, _)
            | (QpType::Uc, SendOp::Send { .. } | SendOp::Write { .. })
            | (QpType::Ud | QpType::Gsi, SendOp::Send { .. }) => {}
            (QpType::Uc, SendOp::Read { .. }) => return unsupported("UC has no READ"),
            (QpType::Ud | QpType::Gsi, _) => return unsupported("UD only sends"),
            (QpType::XrcRecv, _) => return unsupported("the target of XRC only receives"),
        }
        let (data, length) = match wr.data {
            SendData::Sges(sges) => {
                if sges.len() > caps.max_send_sge as usize {
                    let (count, max) = (sges.len(), caps.max_send_sge);
                    return Err(PostSendError::TooManySges { count, max });
                }
                (WqeData::Sges(SgeList::from_slice(sges)), total_length(sges))
            }
            SendData::Inline(bytes) => {
                if bytes.len() > caps.max_inline_data as usize {
                    let (len, max) = (bytes.len(), caps.max_inline_data);
                    return Err(PostSendError::InlineTooLong { len, max });
                }
                (WqeData::Inline(SmallVec::from_slice(bytes)), bytes.len() as u64)
            }
        };
        let length = match u32::try_from(length) {
            Ok(short) if short <= MAX_MESSAGE => short,
            _ => return Err(PostSendError::TooLong { len: length }),
        };
        Ok(Self {
            wr_id: wr.wr_id,
            op: wr.op,
            signaled: signal_all || wr.flags.contains(SendFlags::SIGNALED),
            solicited: wr.flags.contains(SendFlags::SOLICITED),
            fence: wr.flags.contains(SendFlags::FENCE),
            data,
            length,
            started: None,
            failed: None,
        })
    }
}
