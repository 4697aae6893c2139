//! Where messages are received.

use ibverbs_api::{AccessFlags, DmaBuf, MemoryRegion, ProtectionDomain, Sge};

use super::error::CmError;

/// Bytes before the data of a datagram.
pub(crate) const HEAD: usize = 40;
/// Messages that need no more than this together stay apart, so that each can be checked.
const APART_MAX: usize = 64 << 20;

/// Memory for messages of one length.
pub(crate) struct Inbox {
    memory: MemoryRegion,
    /// Bytes of one message, with what is before it.
    len: usize,
    slots: usize,
}

impl Inbox {
    /// For `count` messages of `len` bytes; where that is much, for one, which each overwrites.
    pub(crate) fn new(pd: &ProtectionDomain, count: u32, len: usize) -> Result<Self, CmError> {
        let count = count.max(1) as usize;
        let slots = if count.saturating_mul(len) <= APART_MAX { count } else { 1 };
        // A message of no bytes still has an address.
        let buffer = DmaBuf::zeroed((slots * len).max(1));
        Ok(Self { memory: pd.register(buffer, AccessFlags::LOCAL_WRITE)?, len, slots })
    }

    /// Where message `number` goes.
    pub(crate) fn sge(&self, number: u64) -> Sge {
        let at = self.at(number);
        self.memory.sge(at..at + self.len)
    }

    /// The first `len` bytes of the first message, with what is before it: what is sent back.
    pub(crate) fn first(&self, len: usize) -> Sge {
        self.memory.sge(0..len)
    }

    /// What has come as message `number`, from byte `from` of it on.
    pub(crate) fn read(&self, number: u64, from: usize) -> Result<Vec<u8>, CmError> {
        let mut bytes = vec![0; self.len.saturating_sub(from)];
        self.memory.buffer().read_at(self.at(number) + from, &mut bytes)?;
        Ok(bytes)
    }

    fn at(&self, number: u64) -> usize {
        (number as usize % self.slots) * self.len
    }
}
