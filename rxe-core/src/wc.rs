//! Work completions: how a work request ended. Numeric values are those of `infiniband/verbs.h`.

use std::fmt;

use bitflags::bitflags;
use rxe_wire::Qpn;

/// How a work request ended (`enum ibv_wc_status`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[repr(u32)]
pub enum WcStatus {
    /// It did what was asked.
    Success = 0,
    /// A message was longer than the receive buffer, or the limit of a message.
    LocLenErr = 1,
    /// The QP could not carry the request out.
    LocQpOpErr = 2,
    /// End-to-end context error; of reliable datagrams only.
    LocEecOpErr = 3,
    /// A local buffer is not covered by its key.
    LocProtErr = 4,
    /// Flushed: the QP was in, or went to, the error state.
    WrFlushErr = 5,
    /// A memory window could not be bound.
    MwBindErr = 6,
    /// The peer answered with something that does not fit the request.
    BadRespErr = 7,
    /// Local access error on a receive with immediate data.
    LocAccessErr = 8,
    /// The peer found the request invalid.
    RemInvReqErr = 9,
    /// The peer refused the access to its memory.
    RemAccessErr = 10,
    /// The peer could not carry the request out.
    RemOpErr = 11,
    /// The peer did not answer in time, `retry_cnt` times over.
    RetryExcErr = 12,
    /// The peer had no receive buffer, `rnr_retry` times over.
    RnrRetryExcErr = 13,
    /// Of reliable datagrams only.
    LocRddViolErr = 14,
    /// Of reliable datagrams only.
    RemInvRdReqErr = 15,
    /// The peer aborted the operation.
    RemAbortErr = 16,
    /// Of reliable datagrams only.
    InvEecnErr = 17,
    /// Of reliable datagrams only.
    InvEecStateErr = 18,
    /// A fatal error of the device.
    FatalErr = 19,
    /// The response timed out.
    RespTimeoutErr = 20,
    /// Any other error.
    GeneralErr = 21,
}

impl WcStatus {
    /// What happened, in words (counterpart of `ibv_wc_status_str`).
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::LocLenErr => "local length error",
            Self::LocQpOpErr => "local QP operation error",
            Self::LocEecOpErr => "local EE context operation error",
            Self::LocProtErr => "local protection error",
            Self::WrFlushErr => "work request flushed",
            Self::MwBindErr => "memory window bind error",
            Self::BadRespErr => "bad response",
            Self::LocAccessErr => "local access error",
            Self::RemInvReqErr => "remote: invalid request",
            Self::RemAccessErr => "remote: access refused",
            Self::RemOpErr => "remote: operation failed",
            Self::RetryExcErr => "no answer: retries exceeded",
            Self::RnrRetryExcErr => "receiver not ready: retries exceeded",
            Self::LocRddViolErr => "local RDD violation",
            Self::RemInvRdReqErr => "remote: invalid RD request",
            Self::RemAbortErr => "remote: aborted",
            Self::InvEecnErr => "invalid EE context number",
            Self::InvEecStateErr => "invalid EE context state",
            Self::FatalErr => "fatal error",
            Self::RespTimeoutErr => "response timed out",
            Self::GeneralErr => "general error",
        }
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What kind of work request ended (`enum ibv_wc_opcode`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[repr(u32)]
pub enum WcOpcode {
    /// A SEND.
    Send = 0,
    /// A WRITE.
    RdmaWrite = 1,
    /// A READ.
    RdmaRead = 2,
    /// A compare-and-swap.
    CompSwap = 3,
    /// A fetch-and-add.
    FetchAdd = 4,
    /// The binding of a memory window.
    BindMw = 5,
    /// A local invalidation.
    LocalInv = 6,
    /// A FLUSH.
    Flush = 8,
    /// An ATOMIC WRITE.
    AtomicWrite = 9,
    /// A fast registration (`IB_WC_REG_MR` of the kernel API).
    RegMr = 10,
    /// A receive that a SEND filled.
    Recv = 1 << 7,
    /// A receive that a WRITE with immediate consumed.
    RecvRdmaWithImm = 129,
}

bitflags! {
    /// What else a completion carries (`enum ibv_wc_flags`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct WcFlags: u32 {
        /// A 40-byte GRH stands before the data.
        const GRH = 1;
        /// `imm` holds immediate data.
        const WITH_IMM = 1 << 1;
        /// `imm` holds a key that was invalidated.
        const WITH_INV = 1 << 3;
    }
}

/// What stands in the 40 bytes before the data of a datagram (`enum rdma_network_type` of Linux).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
#[non_exhaustive]
pub enum NetworkType {
    /// Nothing: the completion is of no datagram.
    #[default]
    None = 0,
    /// A GRH, of RoCE v1.
    RoceV1 = 1,
    /// 20 zeros and an IPv4 header.
    Ipv4 = 2,
    /// An IPv6 header.
    Ipv6 = 3,
}

/// A work completion (`struct ibv_wc`).
///
/// When `status` is not success, only `wr_id`, `status`, `qpn` and `vendor_err` mean anything
/// (R54).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkCompletion {
    /// The work request's own identifier.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What kind it was.
    pub opcode: WcOpcode,
    /// A finer cause of an error; 0 here.
    pub vendor_err: u32,
    /// Bytes received or read; of a WRITE with immediate, bytes written (R38).
    pub byte_len: u32,
    /// Immediate data in host order, or the invalidated key, as `flags` say.
    pub imm: u32,
    /// The local QP.
    pub qpn: Qpn,
    /// The sender's QP; of datagrams only.
    pub source_qpn: Qpn,
    /// What else is there.
    pub flags: WcFlags,
    /// What stands before the data of a datagram.
    pub network_type: NetworkType,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_c_header() {
        assert_eq!(WcStatus::RetryExcErr as u32, 12);
        assert_eq!(WcStatus::RnrRetryExcErr as u32, 13);
        assert_eq!(WcStatus::GeneralErr as u32, 21);
        assert_eq!(WcOpcode::BindMw as u32, 5);
        assert_eq!(WcOpcode::LocalInv as u32, 6);
        assert_eq!(WcOpcode::Flush as u32, 8);
        assert_eq!(WcOpcode::AtomicWrite as u32, 9);
        assert_eq!(WcOpcode::RegMr as u32, 10);
        assert_eq!(WcOpcode::Recv as u32, 128);
        assert_eq!(WcOpcode::RecvRdmaWithImm as u32, 129);
        assert_eq!(WcFlags::WITH_INV.bits(), 8);
    }
}
