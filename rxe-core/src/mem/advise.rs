//! Advice about memory that will be used soon (`ibv_advise_mr`).

use super::region::{AccessFlags, Region};
use super::{AccessFault, MemoryTable};
use crate::pd::PdId;
use crate::wq::Sge;

/// Bytes touched at a time: so long deregistration may have to wait.
const STEP: u64 = 1 << 20;

/// What is to be done with memory before it is used (`enum ibv_advise_mr_advice`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum Advice {
    /// Have it there for reading (`IBV_ADVISE_MR_ADVICE_PREFETCH`).
    Prefetch = 0,
    /// Have it there for writing (`IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE`).
    PrefetchWrite = 1,
    /// Use what is there already (`IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT`); this needs nothing
    /// here, where the host's own page tables are used.
    PrefetchNoFault = 2,
}

/// Why advice cannot be followed (`ibv_advise_mr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdviseMrError {
    /// The region is not one for on-demand paging.
    #[error("key 0x{key:08x} was not registered with ON_DEMAND: advice is for such regions alone")]
    NotOnDemand {
        /// The key that was given.
        key: u32,
    },
    /// The key does not give that access, or the memory is not there.
    #[error(transparent)]
    Access(#[from] AccessFault),
}

impl AdviseMrError {
    /// The errno that `ibv_advise_mr` returns: its manual page has one for all of them.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotOnDemand { .. } | Self::Access(_) => crate::errno::EFAULT,
        }
    }
}

impl MemoryTable {
    /// Follows advice about pieces of memory, in their order, before it returns.
    ///
    /// Counterpart of `ibv_advise_mr`, with `IBV_ADVISE_MR_FLAG_FLUSH` or without.
    ///
    /// # Errors
    ///
    /// [`AdviseMrError`]; some pages may be there then. It is an error where a piece is not within
    /// its region, where parts of it are not part of the address space, and where writing is not
    /// granted but asked for.
    pub fn advise(&self, pd: PdId, advice: Advice, pieces: &[Sge]) -> Result<(), AdviseMrError> {
        for piece in pieces {
            self.advise_piece(pd, advice, piece)?;
        }
        Ok(())
    }

    fn advise_piece(&self, pd: PdId, advice: Advice, piece: &Sge) -> Result<(), AdviseMrError> {
        let Sge { addr, length, lkey } = *piece;
        let (key, length, to_write) = (lkey.get(), u64::from(length), advice.is_to_write());
        let needed =
            Region::LOCAL | if to_write { AccessFlags::LOCAL_WRITE } else { AccessFlags::empty() };
        let whole = self.access(key, pd, addr, length, needed)?;
        let is_on_demand =
            |(region, _): (&Region, usize)| region.access.contains(AccessFlags::ON_DEMAND);
        if !whole.place().is_some_and(is_on_demand) {
            return Err(AdviseMrError::NotOnDemand { key });
        }
        drop(whole);
        if advice == Advice::PrefetchNoFault {
            return Ok(());
        }
        let mut done = 0;
        while done < length {
            let len = STEP.min(length - done);
            // Checked anew: the registration may have ended.
            let span = self.access(key, pd, addr + done, len, needed)?;
            // Fits: no more than `STEP`.
            span.touch(len as usize, to_write)?;
            done += len;
        }
        Ok(())
    }
}

impl Advice {
    fn is_to_write(self) -> bool {
        self == Self::PrefetchWrite
    }
}
