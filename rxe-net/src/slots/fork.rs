//! fork(2): the child must touch nothing of what the parent is still using.
//!
//! Of the threads of a process, its child has one. Locks that others held stay locked there, and
//! sockets, epoll sets and timers are those of the parent: a child that closes a device would stop
//! the parent's. So in a child each descriptor of this crate stands for something harmless, and all
//! that is kept for a process begins anew ([`PerProcess`]). Handles of the parent answer with an
//! error ([`Generation`]).

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use crate::sys::descriptor;

/// Children of children that can still open devices.
const GENERATIONS: usize = 32;

/// How many forks lie between this process and the first one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Which process made something: this one, or one that it was forked from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Generation(u32);

impl Generation {
    /// That of this process.
    pub(crate) fn now() -> Self {
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether this process made it.
    pub(crate) fn is_now(self) -> bool {
        self == Self::now()
    }
}

/// Something that there is once for each process; a child after fork has a new one.
#[derive(Debug)]
pub(crate) struct PerProcess<T> {
    cells: [OnceLock<T>; GENERATIONS],
}

impl<T: Default> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self { cells: [const { OnceLock::new() }; GENERATIONS] }
    }

    /// That of this process.
    pub(crate) fn get(&self) -> &T {
        let generation = Generation::now().0 as usize;
        self.cells[generation.min(GENERATIONS - 1)].get_or_init(T::default)
    }
}

/// Highest number of a descriptor that can be noted, plus 1: what `fs.nr_open` allows by default.
const DESCRIPTORS: usize = 1 << 20;

/// A bit for each descriptor number that a child must give up. Memory that is never written to
/// takes no room.
static TRACKED: [AtomicU64; DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; DESCRIPTORS / 64];

/// Notes that a descriptor is of the process that made it. Drop it before the descriptor.
#[derive(Debug)]
pub(crate) struct Tracked(RawFd);

impl Tracked {
    pub(crate) fn new(fd: &impl AsFd) -> Self {
        let raw = fd.as_fd().as_raw_fd();
        if let Some((word, bit)) = place(raw) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Self(raw)
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        if let Some((word, bit)) = place(self.0) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

/// Where the bit of a descriptor is; `None` for a number too high.
fn place(raw: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(raw).ok()?;
    Some((TRACKED.get(number / 64)?, 1 << (number % 64)))
}

/// Makes a process forget the devices of the one that it was forked from.
///
/// To be called in the child, before anything else of this crate: `pthread_atfork(3)` can do it. It
/// closes the sockets and all that threads wait on, so that the parent has them for itself. Handles
/// of devices that the parent opened then answer with an error, or do nothing; drop them or not.
/// The child can open devices of its own.
///
/// It makes system calls and stores numbers, nothing else, so it may run where only
/// async-signal-safe functions may. A child that is only to execute a program does not need it: all
/// descriptors are closed on exec.
///
/// What it cannot do: memory that the parent's threads were changing when it forked stays as it was
/// then. So a child should not work with objects of the parent's devices, not even to free them.
pub fn after_fork_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    let harmless = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    for (index, word) in TRACKED.iter().enumerate() {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let raw = (index * 64) as RawFd + bits.trailing_zeros() as RawFd;
            bits &= bits - 1;
            if let Ok(harmless) = &harmless {
                // It fails only for a number that is not open, where nothing is to be given up.
                let _ = descriptor::replace(raw, harmless.as_fd());
            }
        }
    }
}
