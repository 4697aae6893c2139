//! The processors that the two ends of a measurement have.
//!
//! Where the scheduler puts both ends on one processor, a message there and back takes two changes
//! of threads; where they have one each, it takes two wake-ups, often of a processor that sleeps. And
//! of a bandwidth both ends share what is there then. A figure of the one beside a limit of the other
//! says nothing. So the two ends have the first and the last of those that they may have, as two hosts
//! would have: one processor where a message goes to and fro, half of all where each end may have
//! several threads; and so have those of limits. Whoever wants them elsewhere says so with taskset(1).

use rustix::io;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Which end of a measurement a thread is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// The one that sends first.
    Asking,
    Answering,
}

impl Side {
    /// That of the client, or of the server.
    pub(super) const fn of(is_client: bool) -> Self {
        if is_client { Self::Asking } else { Self::Answering }
    }
}

/// How many processors an end has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    /// One: it is a thread alone.
    One,
    /// Half of those that there are, and one at least.
    Half,
}

/// The processors that a thread may have, and those that it starts.
#[derive(Clone, Debug)]
pub(super) struct Allowed(io::Result<CpuSet>);

impl Allowed {
    /// Those of the calling thread.
    pub(super) fn here() -> Self {
        Self(sched_getaffinity(None))
    }

    /// How many processors an end has: [`Room::Half`].
    pub(super) fn of_an_end(&self) -> u32 {
        half(self.0.as_ref().map_or(1, |allowed| allowed.count()))
    }

    /// Gives the calling thread those of a side. Where that fails, it says so in the log, and the
    /// scheduler chooses.
    pub(super) fn pin(&self, side: Side, room: Room) -> Pinned {
        let pinned = self.0.and_then(|allowed| {
            let before = sched_getaffinity(None)?;
            sched_setaffinity(None, &processors(&allowed, side, room))?;
            Ok(before)
        });
        if let Err(error) = &pinned {
            tracing::warn!(target: "rxe::perf", %error, "the scheduler chooses the processors");
        }
        Pinned { before: pinned.ok() }
    }
}

/// As long as this lives, its thread has the processors of its end only, and so has each thread
/// that it starts meanwhile.
#[derive(Debug)]
pub(super) struct Pinned {
    /// Those that it had before; `None` where they cannot be changed.
    before: Option<CpuSet>,
}

impl Pinned {
    /// Gives the calling thread those of a side, of the ones that it may have: see [`Allowed::pin`].
    pub(super) fn to(side: Side, room: Room) -> Self {
        Allowed::here().pin(side, room)
    }

    /// Leaves the thread where it is until it ends.
    pub(super) fn stay(mut self) {
        self.before = None;
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.before
            && let Err(error) = sched_setaffinity(None, before)
        {
            tracing::warn!(target: "rxe::perf", %error, "a thread keeps its processors");
        }
    }
}

/// The processors of a side, of those that there are.
fn processors(of: &CpuSet, side: Side, room: Room) -> CpuSet {
    let mut there: Vec<_> = (0..CpuSet::MAX_CPU).filter(|&number| of.is_set(number)).collect();
    // Threads of one core go to one side: often they are as far from each other in number as can be.
    there.sort_by_cached_key(|&number| (core(number), number));
    chosen(&there, side, room)
}

/// The first one of the processors that are threads of the same core as this one; itself where the
/// system does not tell.
fn core(number: usize) -> usize {
    let path = format!("/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list");
    let list = std::fs::read_to_string(path).unwrap_or_default();
    let first: String = list.chars().take_while(char::is_ascii_digit).collect();
    first.parse().unwrap_or(number)
}

/// How many of so many processors an end has.
fn half(of: u32) -> u32 {
    (of / 2).max(1)
}

/// Those of a side, of these in their order.
fn chosen(there: &[usize], side: Side, room: Room) -> CpuSet {
    let count = match room {
        Room::One => 1,
        Room::Half => half(there.len() as u32) as usize,
    };
    let mut only = CpuSet::new();
    match side {
        Side::Asking => there.iter().take(count).for_each(|&number| only.set(number)),
        Side::Answering => there.iter().rev().take(count).for_each(|&number| only.set(number)),
    }
    only
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last() {
        for (side, room, wanted) in [
            (Side::Asking, Room::One, &[3][..]),
            (Side::Answering, Room::One, &[12]),
            (Side::Asking, Room::Half, &[3, 9]),
            (Side::Answering, Room::Half, &[8, 12]),
        ] {
            let only = chosen(&[3, 9, 5, 8, 12], side, room);
            assert_eq!(only.count() as usize, wanted.len());
            assert!(wanted.iter().all(|&number| only.is_set(number)), "{side:?}, {room:?}");
        }
        for side in [Side::Asking, Side::Answering] {
            assert!(chosen(&[7], side, Room::Half).is_set(7), "{side:?}");
        }
    }

    #[test]
    fn threads_of_a_core_are_told_by_the_first_of_them() {
        assert!(core(0) == 0);
        let none = CpuSet::MAX_CPU + 1;
        assert_eq!(core(none), none, "the system does not know it");
    }

    #[test]
    fn a_thread_that_another_one_starts_has_its_own_place() {
        let allowed = Allowed::here();
        let _pinned = allowed.pin(Side::Asking, Room::Half);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                allowed.pin(Side::Answering, Room::Half).stay();
                sched_getaffinity(None).expect("a mask")
            });
            assert_eq!(
                allowed.of_an_end(),
                (allowed.0.as_ref().expect("a mask").count() / 2).max(1)
            );
            let all = allowed.0.expect("a mask");
            let other = other.join().expect("joins");
            assert!(other == processors(&all, Side::Answering, Room::Half));
            assert_eq!(other.count(), (all.count() / 2).max(1));
        });
    }

    #[test]
    fn a_thread_has_one_processor_for_a_while() {
        let before = sched_getaffinity(None).expect("a mask");
        let pinned = Pinned::to(Side::Answering, Room::One);
        let now = sched_getaffinity(None).expect("a mask");
        assert_eq!(now.count(), 1);
        assert!(now == processors(&before, Side::Answering, Room::One));
        drop(pinned);
        assert!(sched_getaffinity(None).expect("a mask") == before);
    }
}
