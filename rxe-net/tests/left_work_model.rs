//! A model of how threads leave work to the holder of a runner's lock (`runtime/runner.rs`).
//!
//! It is a copy of the protocol, not the code: the lock is a flag that is taken by an acquiring
//! compare-and-swap and given back by a releasing store, as parking_lot does; the queues are one
//! counter; a queue pair is what was posted to it and whether it is marked as kicked. Loom runs
//! every interleaving, with every value that a load may return.
//!
//! What must hold: when all threads are done, no work is left. The model without the fence, and
//! the one whose holder does not look again, must fail: else this file proves nothing.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::sync::Arc;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicBool, AtomicUsize, fence};
use loom::thread;

/// Which part of the protocol is left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Omit {
    Nothing,
    /// The fence between giving the lock back, or leaving work, and looking.
    Fence,
    /// Looking for work after the lock was given back.
    Look,
}

struct Model {
    omit: Omit,
    locked: AtomicBool,
    /// `kicks`: queue pairs that were left to the holder.
    kicks: AtomicUsize,
    /// `QueuePair::posted`, and its mark.
    posted: AtomicUsize,
    kicked: AtomicBool,
    /// What the shard has taken over.
    taken: AtomicUsize,
}

impl Model {
    fn new(omit: Omit) -> Self {
        Self {
            omit,
            locked: AtomicBool::new(false),
            kicks: AtomicUsize::new(0),
            posted: AtomicUsize::new(0),
            kicked: AtomicBool::new(false),
            taken: AtomicUsize::new(0),
        }
    }

    fn try_lock(&self) -> bool {
        self.locked.compare_exchange(false, true, Acquire, Relaxed).is_ok()
    }

    /// `Shard::kick` under the lock: first the mark goes, then the posts are taken.
    fn take_over(&self) {
        self.kicked.store(false, Release);
        let count = self.posted.swap(0, AcqRel);
        // Only the holder of the lock writes this.
        self.taken.store(self.taken.load(Relaxed) + count, Relaxed);
    }

    /// `Runner::post` and `Runner::kick`.
    fn post(&self) {
        self.posted.fetch_add(1, AcqRel);
        if self.try_lock() {
            self.take_over();
            self.release();
        } else if !self.kicked.swap(true, AcqRel) {
            self.kicks.fetch_add(1, AcqRel);
            self.serve_left_work();
        }
    }

    /// `Runner::release`.
    fn release(&self) {
        self.locked.store(false, Release);
        if self.omit != Omit::Look {
            self.serve_left_work();
        }
    }

    /// `Runner::serve_left_work`.
    fn serve_left_work(&self) {
        loop {
            if self.omit != Omit::Fence {
                fence(SeqCst);
            }
            if self.kicks.load(Acquire) == 0 || !self.try_lock() {
                return;
            }
            while self.kicks.load(Acquire) > 0 {
                self.kicks.fetch_sub(1, AcqRel);
                self.take_over();
            }
            self.locked.store(false, Release);
        }
    }
}

/// Runs `posters` threads that post `each` times, beside one that only takes the lock for a query.
fn check(omit: Omit, posters: usize, each: usize, preemptions: Option<usize>) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || {
        let model = Arc::new(Model::new(omit));
        let threads: Vec<_> = (0..posters)
            .map(|_| {
                let model = model.clone();
                thread::spawn(move || (0..each).for_each(|_| model.post()))
            })
            .collect();
        if model.try_lock() {
            model.release();
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(model.taken.load(Relaxed), posters * each, "work was forgotten");
    });
}

fn fails(omit: Omit) -> bool {
    catch_unwind(AssertUnwindSafe(|| check(omit, 1, 1, None))).is_err()
}

#[test]
fn no_work_is_forgotten_by_one_poster_and_a_query() {
    check(Omit::Nothing, 1, 1, None);
}

#[test]
fn no_work_is_forgotten_by_several_posters() {
    check(Omit::Nothing, 2, 1, Some(3));
    check(Omit::Nothing, 1, 2, Some(3));
}

#[test]
fn the_fence_is_needed() {
    assert!(fails(Omit::Fence));
}

#[test]
fn looking_after_the_lock_was_given_back_is_needed() {
    assert!(fails(Omit::Look));
}
