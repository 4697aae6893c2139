//! Two ends of one connection, each with an opened device of its own.

use std::ops::Range;

use ibverbs_api::{
    AccessFlags, AddressVector, CompletionQueue, ConnectAttr, Context, DmaBuf, GidEntry,
    MemoryRegion, Mtu, QpCaps, QpInit, QpType, QueuePair, RecvWr, Sge, WcStatus, WorkCompletion,
};

use crate::pingpong::error::PingpongError;

/// One end: a queue pair, and a buffer of slots, each for one message.
#[derive(Debug)]
pub(super) struct End {
    pub(super) qp: QueuePair,
    pub(super) cq: CompletionQueue,
    pub(super) mr: MemoryRegion,
    /// Bytes of a slot.
    pub(super) size: usize,
}

impl End {
    fn new(context: &Context, slots: usize, size: usize) -> Result<Self, PingpongError> {
        let pd = context.alloc_pd()?;
        let work = slots as u32;
        let cq = context.create_cq(2 * work, None, 0)?;
        let caps = QpCaps {
            max_send_wr: work,
            max_recv_wr: work,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qp = pd.create_qp(QpInit { caps, ..QpInit::new(QpType::Rc, &cq, &cq) })?;
        let access =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        let mr = pd.register(DmaBuf::zeroed(slots * size), access)?;
        Ok(Self { qp, cq, mr, size })
    }

    /// Where a slot begins in the buffer.
    pub(super) fn offset(&self, slot: usize) -> usize {
        slot * self.size
    }

    /// A slot as the only piece of a work request.
    pub(super) fn sge(&self, slot: usize) -> [Sge; 1] {
        let start = self.offset(slot);
        [self.mr.sge(start..start + self.size)]
    }

    /// The receive of a slot.
    pub(super) fn receive(slot: usize, sges: &[Sge; 1]) -> RecvWr<'_> {
        RecvWr { wr_id: slot as u64, sges }
    }

    /// Posts the receives of these slots.
    pub(super) fn post_receives(&self, slots: Range<usize>) -> Result<(), PingpongError> {
        for slot in slots {
            self.qp.post_recv(Self::receive(slot, &self.sge(slot)))?;
        }
        Ok(())
    }

    /// Polls for up to `max` completions, which must all be good.
    pub(super) fn poll(
        &self,
        max: usize,
        to: &mut Vec<WorkCompletion>,
    ) -> Result<usize, PingpongError> {
        let count = self.cq.poll(max, to);
        for completion in to.iter() {
            check(completion)?;
        }
        Ok(count)
    }
}

fn check(completion: &WorkCompletion) -> Result<(), PingpongError> {
    match completion.status {
        WcStatus::Success => Ok(()),
        status => {
            // The kind of the work is not known of a failure (R54).
            let (what, after) = ("work in this process", None);
            Err(PingpongError::Completion { what, status, after })
        }
    }
}

/// Two connected ends.
#[derive(Debug)]
pub(super) struct Pair {
    /// Starts everything.
    pub(super) active: End,
    /// Receives, or is written to and read from.
    pub(super) passive: End,
}

impl Pair {
    /// Makes two ends with room for so many messages of `size` bytes, and connects them.
    pub(super) fn connect(
        contexts: &[Context; 2],
        gid: &GidEntry,
        mtu: Mtu,
        [active, passive]: [usize; 2],
        size: usize,
    ) -> Result<Self, PingpongError> {
        let active = End::new(&contexts[0], active, size)?;
        let passive = End::new(&contexts[1], passive, size)?;
        let port_num = u8::try_from(gid.port_num).unwrap_or(u8::MAX);
        let av = AddressVector { port_num, ..AddressVector::new(gid.gid, gid.gid_index) };
        active.qp.connect(&ConnectAttr::new(av, passive.qp.qpn(), mtu))?;
        passive.qp.connect(&ConnectAttr::new(av, active.qp.qpn(), mtu))?;
        Ok(Self { active, passive })
    }
}
