//! The elements of the work queues that user space and driver share.

use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::assert_layout;
use super::av::RxeAv;
use super::send_wr::RxeSendWr;

/// A piece of local memory (C: `struct rxe_sge`).
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct RxeSge {
    /// Address in the program's memory.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key.
    pub lkey: u32,
}

assert_layout!(RxeSge, size 16, align 8, addr at 0, length at 8, lkey at 12);

/// Where a queue can be mapped (C: `struct mminfo`).
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Mminfo {
    /// Offset for mmap.
    pub offset: u64,
    /// Length in bytes.
    pub size: u32,
    /// Padding.
    pub pad: u32,
}

assert_layout!(Mminfo, size 16, align 8, offset at 0, size at 8, pad at 12);

/// How far the memory of a work queue element is worked through (C: `struct rxe_dma_info`).
///
/// In C it ends in a union of arrays without length: scatter/gather entries, or inline data. Its
/// entries hold a u64, so the union begins at a multiple of 8, at 24, behind four bytes of padding.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C, align(8))]
pub struct RxeDmaInfo {
    /// Length of the message in bytes.
    pub length: u32,
    /// Bytes left.
    pub resid: u32,
    /// The entry that is being worked on.
    pub cur_sge: u32,
    /// How many entries there are.
    pub num_sge: u32,
    /// Bytes of the current entry that are done.
    pub sge_offset: u32,
    /// Padding that C leaves unnamed.
    pub padding: u32,
}

assert_layout!(
    RxeDmaInfo, size 24, align 8,
    length at 0, resid at 4, cur_sge at 8, num_sge at 12, sge_offset at 16, padding at 20
);

/// Fewer bytes follow an element than it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{needed} bytes of entries or inline data are announced, {have} follow the element")]
pub struct DmaDataTooShort {
    /// Bytes that the element announces.
    pub needed: u64,
    /// Bytes that follow it.
    pub have: usize,
}

impl RxeDmaInfo {
    /// The entry `index` among the bytes that follow the element.
    ///
    /// # Errors
    ///
    /// [`DmaDataTooShort`] when the entry is not wholly among them.
    pub fn sge(index: u32, following: &[u8]) -> Result<RxeSge, DmaDataTooShort> {
        let size = size_of::<RxeSge>() as u64;
        let start = u64::from(index) * size;
        let needed = start + size;
        usize::try_from(start)
            .ok()
            .and_then(|start| following.get(start..))
            .and_then(|rest| RxeSge::read_from_prefix(rest).ok())
            .map(|(sge, _)| sge)
            .ok_or(DmaDataTooShort { needed, have: following.len() })
    }

    /// The inline data among the bytes that follow the element: [`RxeDmaInfo::length`] of them.
    ///
    /// # Errors
    ///
    /// [`DmaDataTooShort`] when fewer follow.
    pub fn inline_data<'a>(&self, following: &'a [u8]) -> Result<&'a [u8], DmaDataTooShort> {
        let needed = u64::from(self.length);
        usize::try_from(self.length)
            .ok()
            .and_then(|length| following.get(..length))
            .ok_or(DmaDataTooShort { needed, have: following.len() })
    }
}

/// A send work queue element (C: `struct rxe_send_wqe`); entries or inline data follow it.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct RxeSendWqe {
    /// The work request.
    pub wr: RxeSendWr,
    /// Where to, for datagrams.
    pub av: RxeAv,
    /// Completion status, a number of `ibv_wc_status`.
    pub status: u32,
    /// State of the element in the driver.
    pub state: u32,
    /// Address in the peer's memory that comes next.
    pub iova: u64,
    /// What kind of operation it is, in flags of the driver's.
    pub mask: u32,
    /// PSN of the first packet.
    pub first_psn: u32,
    /// PSN of the last packet.
    pub last_psn: u32,
    /// Bytes acknowledged.
    pub ack_length: u32,
    /// Send sequence number.
    pub ssn: u32,
    /// Whether it counts as a READ or atomic under way.
    pub has_rd_atomic: u32,
    /// How far it is.
    pub dma: RxeDmaInfo,
}

assert_layout!(
    RxeSendWqe, size 208, align 8,
    wr at 0, av at 56, status at 144, state at 148, iova at 152, mask at 160, first_psn at 164,
    last_psn at 168, ack_length at 172, ssn at 176, has_rd_atomic at 180, dma at 184
);

/// A receive work queue element (C: `struct rxe_recv_wqe`); entries follow it.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct RxeRecvWqe {
    /// The caller's number for the request.
    pub wr_id: u64,
    /// How many entries there are.
    pub num_sge: u32,
    /// Padding.
    pub padding: u32,
    /// How far it is.
    pub dma: RxeDmaInfo,
}

assert_layout!(
    RxeRecvWqe, size 40, align 8, wr_id at 0, num_sge at 8, padding at 12, dma at 16
);
