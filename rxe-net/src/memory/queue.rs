//! What a port has received and nobody has fetched yet, bounded like a socket buffer.

use std::collections::VecDeque;
use std::ops::Range;

use rxe_core::path::Path;

/// How much a receive queue takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceiveLimits {
    /// Packets.
    pub packets: usize,
    /// Bytes of memory, as the kernel would account them; see [`truesize`].
    pub truesize: usize,
}

impl ReceiveLimits {
    /// A socket with the default buffer of Linux, `net.core.rmem_default`.
    pub const SOCKET_DEFAULT: Self = Self { packets: 65_536, truesize: 212_992 };
}

impl Default for ReceiveLimits {
    fn default() -> Self {
        Self::SOCKET_DEFAULT
    }
}

/// Bytes of memory that the kernel accounts for a received frame of `len` bytes.
///
/// The descriptor, and the frame with the descriptor of its fragments in a block of a power of
/// two. An approximation, right where it was measured:
/// 212,992 bytes hold 256 tiny packets or 92 with 1 KiB of payload.
pub const fn truesize(len: usize) -> usize {
    /// `sizeof(struct sk_buff)`, rounded up to its slab.
    const DESCRIPTOR: usize = 256;
    /// `sizeof(struct skb_shared_info)`, behind the frame.
    const FRAGMENTS: usize = 320;
    /// The block that small frames come in.
    const SMALL_BLOCK: usize = 576;
    let needed = len + FRAGMENTS;
    if needed <= SMALL_BLOCK {
        DESCRIPTOR + SMALL_BLOCK
    } else {
        DESCRIPTOR + needed.next_power_of_two()
    }
}

/// A frame that arrived, and what was read of it on the way.
#[derive(Debug)]
pub(super) struct Received {
    /// The whole frame.
    pub frame: Vec<u8>,
    /// Its addressing.
    pub path: Path,
    /// Where the IP header or GRH begins and the iCRC ends.
    pub l3: Range<usize>,
    /// Where BTH begins and the last pad byte ends.
    pub packet: Range<usize>,
}

/// Frames that wait to be received.
#[derive(Debug)]
pub(super) struct ReceiveQueue {
    limits: ReceiveLimits,
    frames: VecDeque<Received>,
    truesize: usize,
}

impl ReceiveQueue {
    pub(super) const fn new(limits: ReceiveLimits) -> Self {
        Self { limits, frames: VecDeque::new(), truesize: 0 }
    }

    /// Takes a frame, or gives it back when there is no room.
    pub(super) fn push(&mut self, received: Received) -> Result<(), Received> {
        let used = self.truesize + truesize(received.frame.len());
        if self.frames.len() >= self.limits.packets || used > self.limits.truesize {
            return Err(received);
        }
        self.truesize = used;
        self.frames.push_back(received);
        Ok(())
    }

    pub(super) fn pop(&mut self) -> Option<Received> {
        let received = self.frames.pop_front()?;
        self.truesize -= truesize(received.frame.len());
        Some(received)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use gid_table::Gid;

    use super::*;

    fn received(len: usize) -> Received {
        let path = Path::new(Gid::ZERO, Gid::ZERO);
        Received { frame: vec![0; len], path, l3: 0..len, packet: 0..len }
    }

    fn capacity(limits: ReceiveLimits, len: usize) -> usize {
        let mut queue = ReceiveQueue::new(limits);
        let mut count = 0;
        while queue.push(received(len)).is_ok() {
            count += 1;
        }
        for _ in 0..count {
            assert!(queue.pop().is_some());
        }
        assert!(queue.is_empty() && queue.truesize == 0);
        count
    }

    #[test]
    fn a_default_buffer_holds_what_was_measured() {
        // Headers around the payload: Ethernet 14, IPv4 20, UDP 8, BTH 12, iCRC 4.
        assert_eq!(capacity(ReceiveLimits::SOCKET_DEFAULT, 58 + 8), 256);
        assert_eq!(capacity(ReceiveLimits::SOCKET_DEFAULT, 58 + 1024), 92);
    }

    #[test]
    fn packets_are_counted_too() {
        let limits = ReceiveLimits { packets: 3, truesize: usize::MAX };
        assert_eq!(capacity(limits, 4096), 3);
        assert_eq!(capacity(ReceiveLimits { packets: 0, ..limits }, 60), 0);
    }
}
