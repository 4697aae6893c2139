//! The processors that the two ends of an exchange of small messages have.
//!
//! Where the scheduler puts both ends on one processor, a message there and back takes two changes
//! of threads; where they have one each, it takes two wake-ups, often of a processor that sleeps. A
//! figure of the one beside a limit of the other says nothing. So the two ends have the first and the
//! last processor of those that they may have, as two hosts would have; and so have those of limits.
//! Whoever wants them elsewhere says so with taskset(1).

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Which end of an exchange a thread is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// The one that sends first.
    Asking,
    Answering,
}

/// As long as this lives, its thread has one processor only.
#[derive(Debug)]
pub(super) struct Pinned {
    /// Those that it had before; `None` where they cannot be changed.
    before: Option<CpuSet>,
}

impl Pinned {
    /// Gives the calling thread the processor of a side. Where that fails, it says so in the log,
    /// and the scheduler chooses.
    pub(super) fn as_side(side: Side) -> Self {
        let pinned = sched_getaffinity(None).and_then(|before| {
            sched_setaffinity(None, &processor(&before, side))?;
            Ok(before)
        });
        if let Err(error) = &pinned {
            tracing::warn!(target: "rxe::perf", %error, "the scheduler chooses the processors");
        }
        Self { before: pinned.ok() }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.before
            && let Err(error) = sched_setaffinity(None, before)
        {
            tracing::warn!(target: "rxe::perf", %error, "a thread keeps its one processor");
        }
    }
}

/// The processor of a side, of those that there are.
fn processor(of: &CpuSet, side: Side) -> CpuSet {
    let mut there = (0..CpuSet::MAX_CPU).filter(|&number| of.is_set(number));
    let chosen = match side {
        Side::Asking => there.next(),
        Side::Answering => there.next_back(),
    };
    let mut only = CpuSet::new();
    if let Some(number) = chosen {
        only.set(number);
    }
    only
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last() {
        let mut some = CpuSet::new();
        [3, 5, 8].iter().for_each(|&number| some.set(number));
        for (side, wanted) in [(Side::Asking, 3), (Side::Answering, 8)] {
            let only = processor(&some, side);
            assert_eq!(only.count(), 1);
            assert!(only.is_set(wanted), "{side:?}");
        }
    }

    #[test]
    fn a_thread_has_one_processor_for_a_while() {
        let before = sched_getaffinity(None).expect("a mask");
        let pinned = Pinned::as_side(Side::Answering);
        let now = sched_getaffinity(None).expect("a mask");
        assert_eq!(now.count(), 1);
        assert!(now == processor(&before, Side::Answering));
        drop(pinned);
        assert!(sched_getaffinity(None).expect("a mask") == before);
    }
}
