//! Send requests: as posted, and as the send queue keeps them.

use bitflags::bitflags;
use rxe_wire::hdr::FlushPlacement;
use rxe_wire::{Psn, RKey};

use super::spares::{InlineBytes, Spares};
use super::{MAX_MESSAGE, Sge, SgeList, total_length};
use crate::ah::Destination;
use crate::mem::{AccessFlags, MwBind};
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
    /// Sends a message, and makes a key of the peer invalid when it has arrived there
    /// (`IBV_WR_SEND_WITH_INV`).
    SendInvalidate {
        /// The key: of a region for fast registration or of a window of type 2 (R41).
        rkey: RKey,
    },
    /// Writes eight bytes to the peer's memory at once (`IBV_WR_ATOMIC_WRITE`): nobody there sees a
    /// part of them, nor before them what was written after them.
    AtomicWrite {
        /// The eight bytes: their address is a multiple of 8.
        remote: RemoteAddr,
    },
    /// Makes sure that what was written to the peer before has arrived where it must
    /// (`IBV_WR_FLUSH`). It sends no data.
    Flush {
        /// The first byte.
        remote: RemoteAddr,
        /// Number of bytes; of no effect for a whole region.
        length: u32,
        /// How far it must have come: at least one.
        placement: FlushPlacement,
        /// What is flushed.
        level: FlushLevel,
    },
    /// Makes a key of this host invalid (`IBV_WR_LOCAL_INV`): of a region for fast registration or
    /// of a window of type 2 (R41).
    ///
    /// It waits until all requests before it are complete, fenced or not, as rdma_rxe does (R10):
    /// they may use the key, and would again if they had to be resent.
    LocalInvalidate {
        /// The key.
        key: RKey,
    },
    /// Makes a region for fast registration valid (`IB_WR_REG_MR` of the kernel API), with the
    /// memory that was mapped to it.
    RegisterMr {
        /// The key that it has then, of which only the low byte may be new.
        key: RKey,
        /// What may be done to it.
        access: AccessFlags,
    },
    /// Binds a memory window (`IBV_WR_BIND_MW`; what `ibv_bind_mw` posts).
    BindMw {
        /// The key that the window has.
        window: RKey,
        /// The key that it has then, of which only the low byte may be new (R43).
        rkey: RKey,
        /// What it is bound to.
        bind: MwBind,
    },
}

/// What a FLUSH covers (`enum ib_selectivity_level`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FlushLevel {
    /// The bytes that it names.
    Range = 0,
    /// All that its key gives access to.
    Region = 1,
}

/// One row of [`OPERATIONS`].
struct Operation {
    name: &'static str,
    /// The value of `enum ibv_wr_opcode`.
    wr_opcode: u32,
    /// Services that have it.
    services: &'static [QpType],
    /// Its data may be inline: it sends bytes, and has none coming back.
    inline: bool,
    wc_opcode: WcOpcode,
}

const RELIABLE: &[QpType] = &[QpType::Rc, QpType::XrcSend];
const CONNECTED: &[QpType] = &[QpType::Rc, QpType::XrcSend, QpType::Uc];
const DATAGRAM: &[QpType] = &[QpType::Ud, QpType::Gsi];

/// Services that carry out requests on their own host's keys.
const CONNECTED_ONLY: &[QpType] = &[QpType::Rc, QpType::Uc];

/// Operations and services, one row for each [`SendOp`] (R14). The target of XRC only receives.
const OPERATIONS: [Operation; 12] = [
    row("SEND", 2, CONNECTED, true, WcOpcode::Send),
    row("WRITE", 0, CONNECTED, true, WcOpcode::RdmaWrite),
    row("READ", 4, RELIABLE, false, WcOpcode::RdmaRead),
    row("compare-and-swap", 5, RELIABLE, false, WcOpcode::CompSwap),
    row("fetch-and-add", 6, RELIABLE, false, WcOpcode::FetchAdd),
    row("SEND with invalidate", 9, RELIABLE, true, WcOpcode::Send),
    row("LOCAL_INV", 7, CONNECTED_ONLY, false, WcOpcode::LocalInv),
    // The value of the kernel's API, the only one that has it.
    row("REG_MR", 0x20, CONNECTED_ONLY, false, WcOpcode::RegMr),
    row("BIND_MW", 8, CONNECTED_ONLY, false, WcOpcode::BindMw),
    row("ATOMIC WRITE", 15, RELIABLE, true, WcOpcode::AtomicWrite),
    row("FLUSH", 14, RELIABLE, false, WcOpcode::Flush),
    row("SEND to an address", 2, DATAGRAM, true, WcOpcode::Send),
];

const fn row(
    name: &'static str,
    wr_opcode: u32,
    services: &'static [QpType],
    inline: bool,
    wc_opcode: WcOpcode,
) -> Operation {
    Operation { name, wr_opcode, services, inline, wc_opcode }
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
            Self::SendInvalidate { .. } => 5,
            Self::LocalInvalidate { .. } => 6,
            Self::RegisterMr { .. } => 7,
            Self::BindMw { .. } => 8,
            Self::AtomicWrite { .. } => 9,
            Self::Flush { .. } => 10,
            Self::SendTo { .. } => 11,
        }]
    }

    /// Whether it is about this host's keys alone: it sends nothing, and takes no PSN.
    pub(crate) const fn is_local(self) -> bool {
        matches!(self, Self::LocalInvalidate { .. } | Self::RegisterMr { .. } | Self::BindMw { .. })
    }

    /// The value of `enum ibv_wr_opcode`.
    pub const fn wr_opcode(self) -> u32 {
        let with_imm = matches!(
            self,
            Self::Send { imm: Some(_) }
                | Self::SendTo { imm: Some(_), .. }
                | Self::Write { imm: Some(_), .. }
        );
        // Those with immediate data follow those without.
        self.row().wr_opcode + with_imm as u32
    }

    pub(crate) const fn wc_opcode(self) -> WcOpcode {
        self.row().wc_opcode
    }

    pub(crate) const fn is_send(self) -> bool {
        matches!(self, Self::Send { .. } | Self::SendInvalidate { .. })
    }

    pub(crate) const fn is_read(self) -> bool {
        matches!(self, Self::Read { .. })
    }

    /// The memory of an atomic.
    pub(crate) const fn atomic_target(self) -> Option<RemoteAddr> {
        match self {
            Self::CompareSwap { remote, .. } | Self::FetchAdd { remote, .. } => Some(remote),
            _ => None,
        }
    }

    /// Whether it is answered by a response of its own: it counts among `max_rd_atomic`, and
    /// fences wait for it (R10).
    pub(crate) const fn is_answered(self) -> bool {
        self.needs_response() || matches!(self, Self::AtomicWrite { .. } | Self::Flush { .. })
    }

    /// Whether the response brings what no acknowledgement can stand for (R2). That to an ATOMIC
    /// WRITE or a FLUSH brings nothing: an acknowledgement of it, or of something after it, says
    /// as much.
    pub(crate) const fn needs_response(self) -> bool {
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
    /// The device is lost, or it is that of the process that this one was forked from.
    #[error("the device is lost, or was opened before this process was forked: open it here")]
    DeviceLost,
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
    #[error("{operation} sends no data, so it takes none inline: give SGEs, or none")]
    InlineResult {
        /// The operation.
        operation: &'static str,
    },
    /// An atomic works on eight bytes at a multiple of 8.
    #[error(
        "an atomic works on 8 bytes at a multiple of 8, but the remote address is 0x{addr:x}, and \
         the local buffer has {len} bytes"
    )]
    Atomic {
        /// The remote address.
        addr: u64,
        /// Bytes that were given for what they held, or to write.
        len: u64,
    },
    /// A FLUSH must say how far.
    #[error("FLUSH needs a placement, global visibility or persistence, but has {placement:?}")]
    Placement {
        /// What it said.
        placement: FlushPlacement,
    },
}

impl PostSendError {
    /// The errno that `ibv_post_send` returns.
    pub fn errno(&self) -> i32 {
        match self {
            Self::DeviceLost => crate::errno::EIO,
            Self::Full { .. } => crate::errno::ENOMEM,
            Self::State { .. }
            | Self::NoSrqNumber
            | Self::TooManySges { .. }
            | Self::InlineTooLong { .. }
            | Self::TooLong { .. }
            | Self::Unsupported { .. }
            | Self::InlineResult { .. }
            | Self::Placement { .. }
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
    Inline(InlineBytes),
}

impl WqeData {
    /// The queue's copy of where the bytes are, or of the bytes; and how many they are.
    fn prepare(
        wr: &SendWr<'_>,
        caps: &QpCaps,
        spares: &Spares,
    ) -> Result<(Self, u64), PostSendError> {
        match wr.data {
            SendData::Sges(sges) => {
                let (count, max) = (sges.len(), caps.max_send_sge);
                if count > max as usize {
                    return Err(PostSendError::TooManySges { count, max });
                }
                Ok((Self::Sges(spares.copy_sges(sges)), total_length(sges)))
            }
            SendData::Inline(bytes) => {
                // The word of an ATOMIC WRITE has its place in every request (R34).
                let is_word = matches!(wr.op, SendOp::AtomicWrite { .. });
                let max = if is_word { caps.max_inline_data.max(8) } else { caps.max_inline_data };
                let len = bytes.len();
                if len > max as usize {
                    return Err(PostSendError::InlineTooLong { len, max });
                }
                Ok((Self::Inline(spares.copy_bytes(bytes)), len as u64))
            }
        }
    }
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
    /// PSNs that it takes: its packets, or those of the READ's response; an atomic takes one, and
    /// what is about local keys alone takes none.
    pub(crate) packets: u32,
    /// Estimated cost of one packet in a receive buffer (see `window.rs`).
    pub(crate) packet_cost: u32,
    /// Cost of all packets of earlier requests, wrapping.
    pub(crate) cost_before: u64,
    /// SEND only: packets of earlier ones that its first packet follows in a full send.
    pub(crate) place: u32,
    /// READ only: packets asked for at once. Boundaries never move, so a READ that is asked for
    /// again ends where the first one ended, as the responder's replay needs it (R24).
    pub(crate) chunk: u32,
    /// Requests with a response that were sent before, wrapping: each part of a READ is one.
    pub(crate) answered_before: u32,
}

impl Started {
    /// One past the last packet of the part of a READ that `packet` lies in.
    pub(crate) fn part_end(&self, packet: u32) -> u32 {
        (packet / self.chunk + 1).saturating_mul(self.chunk).min(self.packets)
    }
}

impl SendWqe {
    /// Whether it is a SEND all packets of which are as long as those of others: so the next one's
    /// can leave in one send with them.
    pub(crate) fn fills_packets(&self, mtu: usize) -> bool {
        let length = self.length as usize;
        matches!(self.op, SendOp::Send { imm: None }) && length > 0 && length.is_multiple_of(mtu)
    }

    /// Checks a request against the QP, and makes the queue's copy of it.
    pub(crate) fn prepare(
        wr: &SendWr<'_>,
        qp_type: QpType,
        caps: &QpCaps,
        signal_all: bool,
        spares: &Spares,
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
        let (data, length) = WqeData::prepare(wr, caps, spares)?;
        let length = checked_length(wr.op, length)?;
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

/// Checks what an operation needs of its address and of the bytes given for it; how many of these
/// it works on.
fn checked_length(op: SendOp, given: u64) -> Result<u32, PostSendError> {
    let length = match op {
        SendOp::CompareSwap { remote: RemoteAddr { addr, .. }, .. }
        | SendOp::FetchAdd { remote: RemoteAddr { addr, .. }, .. } => {
            if given < ATOMIC_LEN || !addr.is_multiple_of(ATOMIC_LEN) {
                return Err(PostSendError::Atomic { addr, len: given });
            }
            ATOMIC_LEN
        }
        // R34.
        SendOp::AtomicWrite { remote: RemoteAddr { addr, .. } } => {
            if given != ATOMIC_LEN || !addr.is_multiple_of(ATOMIC_LEN) {
                return Err(PostSendError::Atomic { addr, len: given });
            }
            ATOMIC_LEN
        }
        SendOp::Flush { placement, .. } => {
            if placement.is_empty() || !FlushPlacement::all().contains(placement) {
                return Err(PostSendError::Placement { placement });
            }
            0
        }
        _ if op.is_local() => 0,
        _ => given,
    };
    match u32::try_from(length) {
        Ok(short) if short <= MAX_MESSAGE => Ok(short),
        _ => Err(PostSendError::TooLong { len: length }),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use gid_table::Gid;
    use rxe_wire::{QKey, Qpn};

    use super::*;
    use crate::path::Path;
    use crate::pd::PdId;

    /// All operations, in the order of the table.
    fn operations() -> [SendOp; OPERATIONS.len()] {
        let remote = RemoteAddr { addr: 0, rkey: RKey::new(0) };
        let (access, key) = (AccessFlags::empty(), remote.rkey);
        let bind = MwBind { lkey: rxe_wire::LKey::new(0), addr: 0, length: 0, access };
        let (placement, level) = (FlushPlacement::GLOBAL_VISIBILITY, FlushLevel::Range);
        let path = Path::new(Gid::ZERO, Gid::ZERO);
        let (pd, qpn, qkey) = (PdId(1), Qpn::new(1), QKey::new(1));
        let to = Destination { path, pd, qpn, qkey };
        [
            SendOp::Send { imm: None },
            SendOp::Write { remote, imm: None },
            SendOp::Read { remote },
            SendOp::CompareSwap { remote, compare: 0, swap: 0 },
            SendOp::FetchAdd { remote, add: 0 },
            SendOp::SendInvalidate { rkey: key },
            SendOp::LocalInvalidate { key },
            SendOp::RegisterMr { key, access },
            SendOp::BindMw { window: key, rkey: key, bind },
            SendOp::AtomicWrite { remote },
            SendOp::Flush { remote, length: 0, placement, level },
            SendOp::SendTo { to, imm: None },
        ]
    }

    const TYPES: [QpType; 6] =
        [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Gsi, QpType::XrcSend, QpType::XrcRecv];

    fn post(op: SendOp, qp_type: QpType, data: SendData<'_>) -> Result<SendWqe, PostSendError> {
        let srq_number = Some(SrqId(1));
        let wr = SendWr { wr_id: 1, op, flags: SendFlags::empty(), data, srq_number };
        SendWqe::prepare(&wr, qp_type, &QpCaps::default(), false, &Spares::default())
    }

    #[test]
    fn the_word_of_an_atomic_write_needs_no_room_for_inline_data() {
        let caps = QpCaps { max_inline_data: 0, ..QpCaps::default() };
        let remote = RemoteAddr { addr: 0, rkey: RKey::new(0x100) };
        let post = |op, data| {
            let flags = SendFlags::empty();
            let wr = SendWr { wr_id: 1, op, flags, data, srq_number: None };
            SendWqe::prepare(&wr, QpType::Rc, &caps, false, &Spares::default()).map(drop)
        };
        let word = SendData::Inline(&[7; 8]);
        assert_eq!(post(SendOp::AtomicWrite { remote }, word), Ok(()));
        let too_long = Err(PostSendError::InlineTooLong { len: 8, max: 0 });
        assert_eq!(post(SendOp::Write { remote, imm: None }, word), too_long);
    }

    /// R14: which service has which operation, pinned: a change to it must be seen in review.
    #[test]
    fn r14_operations_and_services() {
        let sge = Sge { addr: 0, length: 8, lkey: rxe_wire::LKey::new(0) };
        let mut text = String::new();
        for op in operations() {
            let accepted = |data: SendData<'_>| {
                let takes = |qp_type: &QpType| match post(op, *qp_type, data) {
                    Ok(_) => true,
                    Err(PostSendError::Unsupported { operation, .. }) => {
                        assert_eq!(operation, op.row().name);
                        false
                    }
                    Err(PostSendError::InlineResult { .. }) => false,
                    Err(error) => panic!("{op:?} on {qp_type:?}: {error}"),
                };
                let types = TYPES.iter().filter(|qp_type| takes(qp_type));
                types.map(|qp_type| format!("{qp_type:?}")).collect::<Vec<_>>().join(" ")
            };
            let sges = accepted(SendData::Sges(&[sge]));
            let inline = accepted(SendData::Inline(&[0; 8]));
            let (name, value, wc) = (op.row().name, op.wr_opcode(), op.wc_opcode());
            writeln!(text, "{name} = {value}: {sges}; inline: {inline}; completes as {wc:?}")
                .unwrap();
        }
        insta::assert_snapshot!(text);
    }

    #[test]
    fn values_are_those_of_the_c_header() {
        let remote = RemoteAddr { addr: 0, rkey: RKey::new(0) };
        assert_eq!(SendOp::Send { imm: Some(1) }.wr_opcode(), 3);
        assert_eq!(SendOp::Write { remote, imm: Some(1) }.wr_opcode(), 1);
        assert_eq!(SendOp::Write { remote, imm: None }.wr_opcode(), 0);
        assert_eq!(FlushLevel::Region as u8, 1);
        assert_eq!(crate::mem::MwType::Type2 as u32, 2);
        assert_eq!(AccessFlags::FLUSH_GLOBAL.bits(), 0x100);
        assert_eq!(AccessFlags::FLUSH_PERSISTENT.bits(), 0x200);
    }
}
