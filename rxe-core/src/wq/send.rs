//! Send requests: as posted, and as the send queue keeps them.

use bitflags::bitflags;
use rxe_wire::{Psn, RKey};
use smallvec::SmallVec;

use super::{MAX_MESSAGE, Sge, SgeList, total_length};
use crate::ah::Destination;
use crate::qp::{QpCaps, QpState, QpType};
use crate::srq::SrqId;
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
    /// Sends a datagram to the queue pair that it names, with immediate data if given.
    SendTo {
        /// Where to (`wr.ud` of `struct ibv_send_wr`).
        to: Destination,
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
    /// Stores `swap` in eight bytes of the peer's memory if they hold `compare`
    /// (`IBV_WR_ATOMIC_CMP_AND_SWP`); what they held goes to the local buffer.
    ///
    /// All values are numbers in the byte order of the host whose memory they are in. The
    /// operation is one of the peer's processor: nothing else there sees a state in between.
    CompareSwap {
        /// The eight bytes: their address is a multiple of 8.
        remote: RemoteAddr,
        /// What they must hold.
        compare: u64,
        /// What they hold then.
        swap: u64,
    },
    /// Adds to eight bytes of the peer's memory, wrapping (`IBV_WR_ATOMIC_FETCH_AND_ADD`); what
    /// they held goes to the local buffer. See [`CompareSwap`](Self::CompareSwap).
    FetchAdd {
        /// The eight bytes: their address is a multiple of 8.
        remote: RemoteAddr,
        /// What is added.
        add: u64,
    },
}

/// One row of [`OPERATIONS`].
struct Operation {
    name: &'static str,
    /// Services that have it.
    services: &'static [QpType],
    /// Its data may be inline: it sends bytes, and has none coming back.
    inline: bool,
    wc_opcode: WcOpcode,
}

const RELIABLE: &[QpType] = &[QpType::Rc, QpType::XrcSend];
const CONNECTED: &[QpType] = &[QpType::Rc, QpType::XrcSend, QpType::Uc];
const DATAGRAM: &[QpType] = &[QpType::Ud, QpType::Gsi];

/// Operations and services, one row for each [`SendOp`] (R14). The target of XRC only receives.
const OPERATIONS: [Operation; 6] = [
    row("SEND", CONNECTED, true, WcOpcode::Send),
    row("WRITE", CONNECTED, true, WcOpcode::RdmaWrite),
    row("READ", RELIABLE, false, WcOpcode::RdmaRead),
    row("compare-and-swap", RELIABLE, false, WcOpcode::CompSwap),
    row("fetch-and-add", RELIABLE, false, WcOpcode::FetchAdd),
    row("SEND to an address", DATAGRAM, true, WcOpcode::Send),
];

const fn row(
    name: &'static str,
    services: &'static [QpType],
    inline: bool,
    wc_opcode: WcOpcode,
) -> Operation {
    Operation { name, services, inline, wc_opcode }
}

impl SendOp {
    /// Its row of the table.
    const fn row(self) -> &'static Operation {
        &OPERATIONS[match self {
            Self::Send { .. } => 0,
            Self::Write { .. } => 1,
            Self::Read { .. } => 2,
            Self::CompareSwap { .. } => 3,
            Self::FetchAdd { .. } => 4,
            Self::SendTo { .. } => 5,
        }]
    }

    pub(crate) const fn wc_opcode(self) -> WcOpcode {
        self.row().wc_opcode
    }

    pub(crate) const fn is_read(self) -> bool {
        matches!(self, Self::Read { .. })
    }

    /// The memory of an atomic.
    pub(crate) const fn atomic_target(self) -> Option<RemoteAddr> {
        match self {
            Self::CompareSwap { remote, .. } | Self::FetchAdd { remote, .. } => Some(remote),
            Self::Send { .. } | Self::SendTo { .. } | Self::Write { .. } | Self::Read { .. } => {
                None
            }
        }
    }

    /// Whether it ends by a response of its own, never by an acknowledgement (R2): it counts
    /// among `max_rd_atomic`, and fences wait for it (R10).
    pub(crate) const fn is_answered(self) -> bool {
        self.is_read() || self.atomic_target().is_some()
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
    /// The shared receive queue at the peer that it is for (`qp_type.xrc.remote_srqn`); of
    /// extended reliable connections, where each request names one. Others ignore it.
    pub srq_number: Option<SrqId>,
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
    /// A request on an extended reliable connection names no shared receive queue.
    #[error("srq_number is missing: an XRC request names the shared receive queue it is for")]
    NoSrqNumber,
    /// The message is longer than 2^31 bytes.
    #[error("a message of {len} bytes, but at most {MAX_MESSAGE} can be sent")]
    TooLong {
        /// Bytes of the message.
        len: u64,
    },
    /// The QP's service does not have the operation (R14).
    #[error("a QP of type {qp_type:?} has no {operation}: only {services:?} have it")]
    Unsupported {
        /// The QP's type.
        qp_type: QpType,
        /// The operation.
        operation: &'static str,
        /// The types that have it.
        services: &'static [QpType],
    },
    /// The operation has no data to send, so there can be none inline.
    #[error("{operation} puts what comes back into registered memory, never inline: give an SGE")]
    InlineResult {
        /// The operation.
        operation: &'static str,
    },
    /// An atomic works on eight bytes at a multiple of 8, and needs eight for what they held.
    #[error(
        "an atomic needs a remote address that is a multiple of 8 (not 0x{addr:x}) and 8 bytes \
         for the result (not {len})"
    )]
    Atomic {
        /// The remote address.
        addr: u64,
        /// Bytes that were given for the result.
        len: u64,
    },
}

impl PostSendError {
    /// The errno that `ibv_post_send` returns.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Full { .. } => crate::errno::ENOMEM,
            Self::State { .. }
            | Self::NoSrqNumber
            | Self::TooManySges { .. }
            | Self::InlineTooLong { .. }
            | Self::TooLong { .. }
            | Self::Unsupported { .. }
            | Self::InlineResult { .. }
            | Self::Atomic { .. } => crate::errno::EINVAL,
        }
    }
}

/// Bytes that an atomic works on.
pub(crate) const ATOMIC_LEN: u64 = 8;

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
    /// The shared receive queue that XRCETH names, on an extended reliable connection.
    pub(crate) srqn: Option<u32>,
    /// Set when its first packet is about to be built.
    pub(crate) started: Option<Started>,
    /// It failed on this side, and completes so once everything before it has.
    pub(crate) failed: Option<WcStatus>,
}

/// Where a request lies in the stream of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Started {
    pub(crate) first_psn: Psn,
    /// PSNs that it takes: its packets, or those of the READ's response; an atomic takes one.
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
        let &Operation { name: operation, services, inline, .. } = wr.op.row();
        if !services.contains(&qp_type) {
            return Err(PostSendError::Unsupported { qp_type, operation, services });
        }
        if !inline && matches!(wr.data, SendData::Inline(_)) {
            return Err(PostSendError::InlineResult { operation });
        }
        let srqn = match (qp_type, wr.srq_number) {
            (QpType::XrcSend, None) => return Err(PostSendError::NoSrqNumber),
            (QpType::XrcSend, Some(SrqId(number))) => Some(number),
            _ => None,
        };
        let (data, mut length) = match wr.data {
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
        if let Some(RemoteAddr { addr, .. }) = wr.op.atomic_target() {
            if length < ATOMIC_LEN || !addr.is_multiple_of(ATOMIC_LEN) {
                return Err(PostSendError::Atomic { addr, len: length });
            }
            length = ATOMIC_LEN;
        }
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
            srqn,
            started: None,
            failed: None,
        })
    }
}
