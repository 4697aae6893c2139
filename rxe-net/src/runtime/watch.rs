//! Threads that sleep on the events of a completion channel, and run the engine themselves when a
//! packet wakes them.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rxe_core::time::Instant;

/// The sockets that a thread sleeps on at most; where a shard has more, its background thread
/// serves.
pub const SOCKETS_MAX: usize = 8;
/// A thread that was woken so often in a row for nothing shares the sockets with one that polls.
const VAIN_MAX: u32 = 3;
/// How long nobody sleeps on the sockets then.
const VAIN_NANOS: u64 = 100_000_000;
/// And how long, where much comes at a time.
const BULK_NANOS: u64 = 20_000_000;
/// Who was woken so short a time ago, will be woken again.
const USED_NANOS: u64 = 1_000_000;
/// Nobody.
const NOBODY: u64 = 0;

/// One sleep of a thread, which nothing else is called by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SleepId(u64);

impl SleepId {
    /// A new one.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(NOBODY + 1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl Default for SleepId {
    fn default() -> Self {
        Self::new()
    }
}

/// The sockets of a shard, for a thread to sleep on.
///
/// They stay open as long as this lives.
#[derive(Debug, Default)]
pub struct Sockets {
    list: [Option<Arc<OwnedFd>>; SOCKETS_MAX],
}

impl Sockets {
    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<OwnedFd>> {
        self.list.iter().flatten()
    }

    /// Those of a list; false if they are too many, or none.
    pub(super) fn fill(&mut self, from: &[Arc<OwnedFd>]) -> bool {
        if from.is_empty() || from.len() > SOCKETS_MAX {
            return false;
        }
        let from = from.iter().map(|socket| Some(socket.clone()));
        self.list.iter_mut().zip(from).for_each(|(place, socket)| *place = socket);
        true
    }
}

/// Which thread sleeps on the sockets of a shard, to run it when a packet comes.
///
/// A packet that woke the background thread, which then wakes the thread that waits for the event,
/// would cost two wake-ups. So the latter sleeps on the sockets itself: one thread for a shard,
/// since a packet wakes all that sleep on its socket. Where several threads sleep, the background
/// thread serves them all.
///
/// It keeps nothing that must be given back: a thread may end in its sleep (`pthread_cancel(3)`).
/// Its place is taken once its lease is over; and what is counted too much only makes the
/// background thread do what others could.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// The sleep of the thread that runs the shard.
    owner: AtomicU64,
    /// Threads that sleep on events alone.
    others: AtomicU32,
    /// The owner is asleep, or has ended so.
    is_asleep: AtomicBool,
    /// How often in a row the owner was woken for nothing.
    vain: AtomicU32,
    /// Nobody becomes the owner before this, in nanoseconds.
    from: AtomicU64,
    /// When the owner was last woken by a packet.
    woken: AtomicU64,
}

impl Watch {
    /// Begins a sleep: whether its thread is to run the shard. `is_leased` says that whoever did so
    /// last has done so a short time ago.
    pub(super) fn begin(&self, id: SleepId, now: Instant, is_leased: bool) -> bool {
        let owner = self.owner.load(Ordering::Acquire);
        let is_free = owner == NOBODY || owner == id.0 || !is_leased;
        let may = is_free
            && self.others.load(Ordering::SeqCst) == 0
            && now.as_nanos() >= self.from.load(Ordering::Relaxed)
            && self
                .owner
                .compare_exchange(owner, id.0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        match may {
            true => self.is_asleep.store(true, Ordering::Release),
            false => drop(self.others.fetch_add(1, Ordering::SeqCst)),
        }
        may
    }

    /// Lets the background thread serve instead, after [`Self::begin`] has said otherwise.
    pub(super) fn resign(&self, id: SleepId) {
        self.others.fetch_add(1, Ordering::SeqCst);
        self.leave(id);
    }

    /// Ends a sleep; whether others sleep still, whom the background thread is to serve.
    pub(super) fn end(&self, id: SleepId, was_running: bool) -> bool {
        if was_running {
            self.leave(id);
        } else {
            // Never below 0: the child of a fork may end a sleep that began before.
            let less = |others: u32| others.checked_sub(1);
            let _ = self.others.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        }
        self.others.load(Ordering::SeqCst) > 0
    }

    fn leave(&self, id: SleepId) {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        if self.owner.compare_exchange(id.0, NOBODY, order.0, order.1).is_ok() {
            self.is_asleep.store(false, Ordering::Release);
        }
    }

    /// Notes what the owner was woken for: packets, or nothing.
    pub(super) fn note_woken(&self, now: Instant, was_of_use: bool) {
        if was_of_use {
            self.woken.store(now.as_nanos(), Ordering::Relaxed);
            self.vain.store(0, Ordering::Relaxed);
        } else if self.vain.fetch_add(1, Ordering::Relaxed) + 1 >= VAIN_MAX {
            self.vain.store(0, Ordering::Relaxed);
            self.pause(now, VAIN_NANOS);
        }
    }

    /// Notes that the owner was woken for more than single messages.
    pub(super) fn note_bulk(&self, now: Instant) {
        self.vain.store(0, Ordering::Relaxed);
        self.pause(now, BULK_NANOS);
    }

    fn pause(&self, now: Instant, nanos: u64) {
        self.from.store(now.plus_nanos(nanos).as_nanos(), Ordering::Relaxed);
    }

    /// Whether packets wake owners these days.
    pub(super) fn is_used(&self, now: Instant) -> bool {
        now.nanos_since(Instant::from_nanos(self.woken.load(Ordering::Relaxed))) < USED_NANOS
    }

    /// Whether the owner sleeps, so that timers and calls are those of the background thread.
    pub(super) fn is_asleep(&self) -> bool {
        self.is_asleep.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(1_000_000 * millis)
    }

    #[test]
    fn one_thread_runs_a_shard_and_none_where_several_sleep() {
        let watch = Watch::default();
        let [a, b, c] = [SleepId::new(), SleepId::new(), SleepId::new()];
        assert!(watch.begin(a, at(1), true) && watch.is_asleep());
        assert!(watch.begin(a, at(1), true), "it goes on");
        assert!(!watch.begin(b, at(1), true));
        assert!(watch.end(a, true), "the other one is to be served");
        assert!(!watch.is_asleep());
        assert!(!watch.begin(c, at(1), true), "several sleep");
        assert!(watch.end(b, false));
        assert!(!watch.end(c, false));
        assert!(watch.begin(a, at(1), true));
    }

    #[test]
    fn the_place_of_a_thread_that_has_ended_in_its_sleep_is_taken() {
        let watch = Watch::default();
        let [a, b] = [SleepId::new(), SleepId::new()];
        assert!(watch.begin(a, at(1), true));
        assert!(watch.begin(b, at(1), false), "its lease is over");
        assert!(!watch.end(a, true), "it was not so dead: nothing of the other's is ended");
        assert!(watch.is_asleep());
        assert!(!watch.end(b, true) && !watch.is_asleep());
    }

    #[test]
    fn who_is_woken_for_nothing_again_and_again_leaves_it_to_others_for_a_while() {
        let watch = Watch::default();
        let id = SleepId::new();
        (0..2).for_each(|_| watch.note_woken(at(1), false));
        watch.note_woken(at(1), true);
        assert!(watch.is_used(at(1)) && !watch.is_used(at(2)));
        (0..2).for_each(|_| watch.note_woken(at(1), false));
        assert!(watch.begin(id, at(1), false));
        watch.note_woken(at(1), false);
        assert!(!watch.end(id, true));
        assert!(!watch.begin(id, at(100), false));
        assert!(!watch.end(id, false));
        assert!(watch.begin(id, at(101), false));
    }

    #[test]
    fn streams_are_left_to_the_background_thread_for_a_while() {
        let watch = Watch::default();
        let id = SleepId::new();
        assert!(watch.begin(id, at(1), false));
        watch.note_bulk(at(1));
        assert!(!watch.end(id, true));
        assert!(!watch.begin(id, at(20), false));
        assert!(!watch.end(id, false));
        assert!(watch.begin(id, at(21), false));
    }

    #[test]
    fn who_finds_that_it_cannot_is_one_of_those_who_are_served() {
        let watch = Watch::default();
        let [a, b] = [SleepId::new(), SleepId::new()];
        assert!(watch.begin(a, at(1), true));
        watch.resign(a);
        assert!(!watch.is_asleep() && !watch.begin(b, at(1), true));
        assert!(watch.end(a, false) && !watch.end(b, false));
    }

    #[test]
    fn sockets_up_to_a_number() {
        let mut sockets = Sockets::default();
        assert!(!sockets.fill(&[]));
        let null = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        assert!(sockets.fill(&vec![null.clone(); SOCKETS_MAX]));
        assert_eq!(sockets.iter().count(), SOCKETS_MAX);
        assert!(!sockets.fill(&vec![null; SOCKETS_MAX + 1]));
    }
}
