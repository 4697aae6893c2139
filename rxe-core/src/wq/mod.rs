//! Work requests, and the queues they wait in.

pub(crate) mod recv;
pub(crate) mod send;
pub(crate) mod spares;

use rxe_wire::LKey;
use smallvec::SmallVec;

use crate::mem::{AccessFault, AccessFlags, MemoryTable, Region, Span};
use crate::pd::PdId;

pub use recv::{PostRecvError, RecvWr};
pub use send::{FlushLevel, PostSendError, RemoteAddr, SendData, SendFlags, SendOp, SendWr};

/// The longest message, 2^31 bytes (R53).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// One piece of a local buffer (`struct ibv_sge`, byte for byte).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Number of bytes.
    pub length: u32,
    /// Key of the region that it lies in.
    pub lkey: LKey,
}

/// A scatter/gather list as queues keep it; short ones without an allocation.
pub(crate) type SgeList = SmallVec<[Sge; 4]>;

/// The number of bytes of a scatter/gather list, which may exceed what a message can have.
pub(crate) fn total_length(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

/// Walks the pieces of `sges` that hold the bytes from `offset` to `offset + len`.
///
/// `visit` gets the address and key of each piece, and its range within the bytes asked for.
fn for_each_piece(
    sges: &[Sge],
    offset: u64,
    len: usize,
    mut visit: impl FnMut(u64, LKey, std::ops::Range<usize>) -> Result<(), AccessFault>,
) -> Result<(), AccessFault> {
    let mut skip = offset;
    let mut done = 0;
    for sge in sges {
        if done == len {
            break;
        }
        let length = u64::from(sge.length);
        if skip >= length {
            skip -= length;
            continue;
        }
        let count = (length - skip).min((len - done) as u64) as usize;
        visit(sge.addr.wrapping_add(skip), sge.lkey, done..done + count)?;
        done += count;
        skip = 0;
    }
    debug_assert_eq!(done, len, "callers ask only for bytes that the list has");
    Ok(())
}

/// Copies bytes `offset..` of a scatter/gather list into `to`, under the keys in it.
pub(crate) fn gather(
    memory: &MemoryTable,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    to: &mut [u8],
) -> Result<(), AccessFault> {
    for_each_piece(sges, offset, to.len(), |addr, lkey, range| {
        let piece = &mut to[range];
        // A region: windows are for peers.
        let needed = Region::LOCAL;
        memory.access(lkey.get(), pd, addr, piece.len() as u64, needed)?.read(piece)
    })
}

/// The bytes `offset..offset + len` of a scatter/gather list, locked for copying them piece after
/// piece; `None` where they do not lie in one entry, or its key does not allow it.
///
/// Whoever gets `None` copies by [`gather`], which finds out what is wrong with which byte.
pub(crate) fn gather_span<'a>(
    memory: &'a MemoryTable,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    len: u64,
) -> Option<Span<'a>> {
    span(memory, pd, sges, (offset, len), Region::LOCAL)
}

/// As [`gather_span`], for copying into them; whoever gets `None` does so by [`scatter`].
pub(crate) fn scatter_span<'a>(
    memory: &'a MemoryTable,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    len: u64,
) -> Option<Span<'a>> {
    span(memory, pd, sges, (offset, len), AccessFlags::LOCAL_WRITE)
}

fn span<'a>(
    memory: &'a MemoryTable,
    pd: PdId,
    sges: &[Sge],
    (offset, len): (u64, u64),
    needed: AccessFlags,
) -> Option<Span<'a>> {
    let mut skip = offset;
    for sge in sges {
        let length = u64::from(sge.length);
        if skip < length {
            // Both are at most 2^32: nothing wraps.
            let inside = skip + len <= length;
            let addr = sge.addr.wrapping_add(skip);
            let span = memory.access(sge.lkey.get(), pd, addr, len, needed);
            return if inside { span.ok() } else { None };
        }
        skip -= length;
    }
    None
}

/// Copies `from` to bytes `offset..` of a scatter/gather list, under the keys in it.
pub(crate) fn scatter(
    memory: &MemoryTable,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    from: &[u8],
) -> Result<(), AccessFault> {
    for_each_piece(sges, offset, from.len(), |addr, lkey, range| {
        let piece = &from[range];
        let needed = AccessFlags::LOCAL_WRITE;
        memory.access(lkey.get(), pd, addr, piece.len() as u64, needed)?.write(piece)
    })
}
