//! A model of how a program that sleeps learns of completions (`cq.rs`): push, poll, arm, channel.
//!
//! It is a copy of the protocol, not the code: the queue with its lock, the channel with its lock,
//! and the descriptor that a program sleeps on, a counter. Loom runs every interleaving.
//!
//! What must hold (R51): the program gets every completion, and never sleeps for ever while one
//! waits. The models without one part of the protocol must fail: else this file proves nothing.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::sync::{Arc, Mutex};
use loom::thread::{self, JoinHandle};

/// Which part of the protocol is left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Omit {
    Nothing,
    /// The program does not poll once more after it has armed the queue.
    LastPoll,
    /// Whether the queue is armed is looked at under one hold of the lock, and the completion put
    /// in under another.
    OneLock,
    /// The channel tells the descriptor first, and then itself.
    Order,
}

/// `Ring`: completions, and whether an event was asked for.
#[derive(Default)]
struct Ring {
    entries: usize,
    armed: bool,
}

struct Model {
    omit: Omit,
    ring: Mutex<Ring>,
    /// `CompletionChannel::pending`.
    pending: Mutex<usize>,
    /// `EventFd`: reading takes one, and poll(2) sleeps while it is 0.
    fd: Mutex<usize>,
}

impl Model {
    fn new(omit: Omit) -> Self {
        let (ring, pending, fd) = (Mutex::default(), Mutex::new(0), Mutex::new(0));
        Self { omit, ring, pending, fd }
    }

    /// `CompletionQueue::push`.
    fn push(&self) {
        if self.omit == Omit::OneLock {
            let armed = std::mem::take(&mut self.ring.lock().unwrap().armed);
            self.ring.lock().unwrap().entries += 1;
            if armed {
                self.tell();
            }
            return;
        }
        let mut ring = self.ring.lock().unwrap();
        ring.entries += 1;
        if std::mem::take(&mut ring.armed) {
            self.tell();
        }
    }

    /// `CompletionChannel::push`, with the waker's `notify`.
    fn tell(&self) {
        if self.omit == Omit::Order {
            self.notify();
            *self.pending.lock().unwrap() += 1;
        } else {
            let mut pending = self.pending.lock().unwrap();
            *pending += 1;
            self.notify();
        }
    }

    fn notify(&self) {
        *self.fd.lock().unwrap() += 1;
    }

    /// `CompletionQueue::poll`.
    fn poll(&self) -> usize {
        std::mem::take(&mut self.ring.lock().unwrap().entries)
    }

    /// `CompletionQueue::req_notify`.
    fn arm(&self) {
        self.ring.lock().unwrap().armed = true;
    }

    /// `take` of the facade's channel: first the descriptor, then the event.
    fn take(&self) -> bool {
        let mut fd = self.fd.lock().unwrap();
        *fd = fd.saturating_sub(1);
        drop(fd);
        let mut pending = self.pending.lock().unwrap();
        let taken = *pending > 0;
        *pending = pending.saturating_sub(1);
        taken
    }

    /// `wait` of the facade's channel.
    ///
    /// It stands for a sleep until the descriptor is readable: where it is not, everybody else gets
    /// done first. A program that is woken at once is one that looks later, and loom has that too.
    fn wait(&self, others: &mut Vec<JoinHandle<()>>) {
        while !self.take() {
            if *self.fd.lock().unwrap() == 0 {
                others.drain(..).for_each(|other| other.join().unwrap());
                let readable = *self.fd.lock().unwrap();
                assert!(readable > 0, "it sleeps for ever");
            }
        }
    }
}

/// A program that sleeps until it has `completions`, while shards add them.
fn run(omit: Omit, shards: usize, each: usize) {
    let mut builder = loom::model::Builder::new();
    // With three threads all interleavings take a quarter of a minute.
    builder.preemption_bound = (shards > 1).then_some(3);
    builder.check(move || {
        let model = Arc::new(Model::new(omit));
        let mut others: Vec<_> = (0..shards)
            .map(|_| {
                let model = model.clone();
                thread::spawn(move || (0..each).for_each(|_| model.push()))
            })
            .collect();
        let mut got = model.poll();
        while got < shards * each {
            model.arm();
            if omit != Omit::LastPoll {
                let more = model.poll();
                if more > 0 {
                    got += more;
                    continue;
                }
            }
            model.wait(&mut others);
            got += model.poll();
        }
        assert_eq!(got, shards * each, "none twice");
    });
}

fn fails(omit: Omit) -> bool {
    catch_unwind(AssertUnwindSafe(|| run(omit, 1, 2))).is_err()
}

#[test]
fn r51_no_event_is_lost_with_one_shard() {
    run(Omit::Nothing, 1, 2);
}

#[test]
fn r51_no_event_is_lost_with_two_shards() {
    run(Omit::Nothing, 2, 1);
}

#[test]
fn r51_who_does_not_poll_after_arming_may_sleep_for_ever() {
    assert!(fails(Omit::LastPoll));
}

#[test]
fn r51_looking_and_putting_in_must_be_one() {
    assert!(fails(Omit::OneLock));
}

#[test]
fn r51_the_descriptor_counts_no_fewer_than_there_are() {
    assert!(fails(Omit::Order));
}
