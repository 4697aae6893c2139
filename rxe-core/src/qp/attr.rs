//! Attributes of a queue pair, and which of them each state transition needs or allows.

use bitflags::bitflags;
use gid_table::{Gid, GidEntry};
use rxe_wire::{Psn, Qpn, Service};

use crate::mem::AccessFlags;
use crate::path::Path;

/// The service of a queue pair (`enum ibv_qp_type`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[repr(u32)]
pub enum QpType {
    /// General services: QP1 of a port (`IB_QPT_GSI` of the kernel; user space has no name for it).
    Gsi = 1,
    /// Reliable connection (`IBV_QPT_RC`).
    Rc = 2,
    /// Unreliable connection (`IBV_QPT_UC`).
    Uc = 3,
    /// Unreliable datagram (`IBV_QPT_UD`).
    Ud = 4,
    /// Initiator of an extended reliable connection (`IBV_QPT_XRC_SEND`).
    XrcSend = 9,
    /// Target of an extended reliable connection (`IBV_QPT_XRC_RECV`).
    XrcRecv = 10,
}

impl QpType {
    /// All services.
    pub const ALL: [Self; 6] =
        [Self::Gsi, Self::Rc, Self::Uc, Self::Ud, Self::XrcSend, Self::XrcRecv];

    /// The service of the packets that such a queue pair sends and takes.
    pub const fn service(self) -> Service {
        match self {
            Self::Rc => Service::Rc,
            Self::Uc => Service::Uc,
            Self::Ud | Self::Gsi => Service::Ud,
            Self::XrcSend | Self::XrcRecv => Service::Xrc,
        }
    }

    /// Whether requests are acknowledged, and sent again when they are lost.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcSend | Self::XrcRecv)
    }

    /// Whether each message goes to the queue pair that its request names, by an address handle.
    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::Ud | Self::Gsi)
    }
}

/// The state of a queue pair (`enum ibv_qp_state`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum QpState {
    /// Newly made: no work is taken.
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// The send queue is being drained.
    Sqd = 4,
    /// The send queue failed; of UC and UD only.
    Sqe = 5,
    /// Everything is flushed.
    Err = 6,
}

impl QpState {
    /// All states.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    pub(crate) const fn from_u8(value: u8) -> Self {
        Self::ALL[if value < 7 { value as usize } else { 6 }]
    }
}

/// The most payload of one packet (`enum ibv_mtu`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u32)]
pub enum Mtu {
    /// 256 bytes.
    M256 = 1,
    /// 512 bytes.
    M512 = 2,
    /// 1024 bytes.
    M1024 = 3,
    /// 2048 bytes.
    M2048 = 4,
    /// 4096 bytes.
    M4096 = 5,
}

impl Mtu {
    /// All of them, smallest first.
    pub const ALL: [Self; 5] = [Self::M256, Self::M512, Self::M1024, Self::M2048, Self::M4096];

    /// The number of bytes.
    pub const fn bytes(self) -> usize {
        128 << self as usize
    }

    /// The MTU of exactly so many bytes.
    pub fn from_bytes(bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }
}

/// Where a connected QP sends to (`struct ibv_ah_attr`; LIDs and service levels mean nothing here).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AddressVector {
    /// GID of the peer's port.
    pub dgid: Gid,
    /// Index of our own GID in the port's table.
    pub sgid_index: u32,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit; 0 stands for 64.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Our port, counted from 1.
    pub port_num: u8,
    /// Service level; kept, but of no effect on Ethernet.
    pub sl: u8,
}

impl AddressVector {
    /// The path from one of our GIDs.
    pub(crate) fn path_from(&self, entry: &GidEntry) -> Path {
        Path {
            source: entry.gid,
            destination: self.dgid,
            gid_type: entry.gid_type,
            traffic_class: self.traffic_class,
            flow_label: self.flow_label & 0xf_ffff,
            hop_limit: if self.hop_limit == 0 { 64 } else { self.hop_limit },
            vlan: None,
        }
    }

    /// The plain route to `dgid` from our GID `sgid_index` of port 1.
    pub const fn new(dgid: Gid, sgid_index: u32) -> Self {
        let (flow_label, hop_limit, traffic_class, port_num, sl) = (0, 64, 0, 1, 0);
        Self { dgid, sgid_index, flow_label, hop_limit, traffic_class, port_num, sl }
    }
}

/// Which path a connection uses, and whether it would move (`enum ibv_mig_state`).
///
/// Kept and told, as Linux's driver does: nothing migrates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u32)]
pub enum MigState {
    /// The path is settled.
    #[default]
    Migrated = 0,
    /// The alternate path is being loaded.
    Rearm = 1,
    /// The connection would move to the alternate path.
    Armed = 2,
}

/// Attributes of a queue pair (`struct ibv_qp_attr`); a [`QpAttrMask`] says which ones count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpAttr {
    /// State to go to, or that it is in.
    pub state: QpState,
    /// The state that the caller believes it is in.
    pub cur_state: QpState,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// Queue key; of datagrams only.
    pub qkey: u32,
    /// First PSN expected.
    pub rq_psn: Psn,
    /// First PSN sent.
    pub sq_psn: Psn,
    /// The peer's QP.
    pub dest_qpn: Qpn,
    /// What the peer may do through this QP.
    pub access: AccessFlags,
    /// Where to.
    pub av: AddressVector,
    /// Index into the port's table of partition keys; there is one entry, the default partition.
    pub pkey_index: u16,
    /// READs and atomics outstanding at most.
    pub max_rd_atomic: u8,
    /// READs and atomics of the peer answered at once.
    pub max_dest_rd_atomic: u8,
    /// The RNR timer that the peer is told (5 bits, facts.md section 1).
    pub min_rnr_timer: u8,
    /// Our port, counted from 1.
    pub port_num: u8,
    /// Exponent of the ACK timeout (5 bits); 0 means none.
    pub timeout: u8,
    /// Times that a request is resent before it fails (3 bits).
    pub retry_cnt: u8,
    /// Times that a request is resent after RNR NAKs (3 bits); 7 means for ever (R7).
    pub rnr_retry: u8,
    /// Whether the connection would move to the alternate path; kept, of no effect.
    pub path_mig_state: MigState,
    /// The alternate path; kept, of no effect.
    pub alt_av: AddressVector,
    /// Index of the alternate path's partition key.
    pub alt_pkey_index: u16,
    /// Port of the alternate path, counted from 1.
    pub alt_port_num: u8,
    /// Exponent of the alternate path's ACK timeout (5 bits).
    pub alt_timeout: u8,
    /// In SQD: the send queue is still being drained. Told by a query, never set.
    pub sq_draining: bool,
}

impl Default for QpAttr {
    fn default() -> Self {
        Self {
            state: QpState::Reset,
            cur_state: QpState::Reset,
            path_mtu: Mtu::M1024,
            qkey: 0,
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            dest_qpn: Qpn::new(0),
            access: AccessFlags::empty(),
            av: AddressVector::new(Gid::ZERO, 0),
            pkey_index: 0,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 0,
            port_num: 1,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            path_mig_state: MigState::Migrated,
            alt_av: AddressVector::new(Gid::ZERO, 0),
            alt_pkey_index: 0,
            alt_port_num: 1,
            alt_timeout: 0,
            sq_draining: false,
        }
    }
}

bitflags! {
    /// Which attributes a call sets (`enum ibv_qp_attr_mask`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct QpAttrMask: u32 {
        /// `state`.
        const STATE = 1;
        /// `cur_state`.
        const CUR_STATE = 1 << 1;
        /// An event when the send queue is drained.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `access`.
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        const PKEY_INDEX = 1 << 4;
        /// `port_num`.
        const PORT = 1 << 5;
        /// `qkey`.
        const QKEY = 1 << 6;
        /// `av`.
        const AV = 1 << 7;
        /// `path_mtu`.
        const PATH_MTU = 1 << 8;
        /// `timeout`.
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// `alt_av`, `alt_pkey_index`, `alt_port_num` and `alt_timeout`.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `path_mig_state`.
        const PATH_MIG_STATE = 1 << 18;
        /// Capacities; not changeable here.
        const CAP = 1 << 19;
        /// `dest_qpn`.
        const DEST_QPN = 1 << 20;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_are_powers_of_two() {
        assert_eq!(Mtu::M256.bytes(), 256);
        assert_eq!(Mtu::M4096.bytes(), 4096);
        assert_eq!(Mtu::from_bytes(1024), Some(Mtu::M1024));
        assert_eq!(Mtu::from_bytes(1000), None);
    }
}
