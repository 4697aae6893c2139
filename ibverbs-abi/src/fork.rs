//! Processes that fork: what they ask for, and what their children must not touch.
//!
//! Memory need not be kept from children here: no device reads it behind the processor's back. The
//! parent's threads write to the parent's pages, and what a child shares is copied as ever.
//!
//! But a child has the parent's objects in its memory, without the threads that work for them, and
//! with locks that other threads held. So before a fork this thread takes the locks of all tables,
//! and in the child all tables are empty but those of devices and of contexts: each other pointer of
//! the parent is unknown there, and what is called by pointers refuses. The parent's contexts are
//! good, as under the kernel: the child opens the device for itself when it first makes something
//! with one (`opened.rs`).

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};

use parking_lot::{Mutex, MutexGuard};

use crate::call::{MinusOne, Refused, answer};

/// Something with a lock that must not be half-way through a change when the process forks.
pub(crate) trait AcrossFork: Sync {
    /// Takes the lock, and keeps it.
    fn lock(&self);

    /// Gives it back.
    ///
    /// # Safety
    ///
    /// This thread has taken it.
    unsafe fn unlock(&self);

    /// In the child: leaves the parent's objects to the parent.
    ///
    /// # Safety
    ///
    /// The lock was taken before the fork, and the process has only had this thread since.
    unsafe fn begin_anew(&self);
}

/// How much can be watched: a bit each.
const ROOM: usize = u64::BITS as usize;

/// All that must be whole when the process forks, in the order in which the locks are taken.
static WATCHED: [OnceLock<&'static dyn AcrossFork>; ROOM] = [const { OnceLock::new() }; ROOM];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Held over a fork, by the thread that forks: which of those that are watched it has locked.
static FORKING: Mutex<u64> = Mutex::new(0);

/// Adds to what must be whole when the process forks. Whatever is locked around something else must
/// be added before it. It takes no lock, so it may be called with locks held.
pub(crate) fn watch(what: &'static dyn AcrossFork) {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        // SAFETY: the three are functions that may be called at any fork.
        let failed = unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) };
        if failed != 0 {
            tracing::error!(target: "rxe::abi", "forks are not watched (errno {failed})");
        }
    });
    let added = WATCHED.get(COUNT.fetch_add(1, Ordering::AcqRel)).map(|slot| slot.set(what));
    debug_assert_eq!(added.map(|set| set.is_ok()), Some(true), "more than {ROOM} are watched");
}

/// Those that `select` says of their index.
fn watched(
    select: impl Fn(usize) -> bool,
) -> impl Iterator<Item = (usize, &'static dyn AcrossFork)> {
    let slots = WATCHED.iter().enumerate().filter(move |(index, _)| select(*index));
    slots.filter_map(|(index, slot)| slot.get().map(|&one| (index, one)))
}

/// Before a fork, in the thread that calls it.
extern "C" fn before() {
    let mut locked = FORKING.lock();
    for (index, one) in watched(|_| true) {
        one.lock();
        *locked |= 1 << index;
    }
    mem::forget(locked);
}

/// After a fork, in the parent.
extern "C" fn parent() {
    // SAFETY: `before` has taken all locks in this thread, and nobody gives them back but this.
    unsafe {
        let locked = mem::take(&mut *FORKING.data_ptr());
        watched(|index| locked & 1 << index != 0).for_each(|(_, one)| one.unlock());
        FORKING.force_unlock();
    }
}

/// After a fork, in the child.
extern "C" fn child() {
    // The sockets, and all that threads wait on.
    ibverbs_api::after_fork_in_child();
    // SAFETY: `before` has taken all locks, and a child begins with one thread.
    unsafe {
        let locked = mem::take(&mut *FORKING.data_ptr());
        watched(|index| locked & 1 << index != 0).for_each(|(_, one)| one.begin_anew());
        FORKING.force_unlock();
    }
}

/// A value with a lock, which the child of a fork has too, as it was at the fork.
pub(crate) struct Kept<T> {
    value: UnsafeCell<Mutex<T>>,
    is_watched: Once,
}

// SAFETY: the cell is only written to in the child of a fork, which has one thread.
unsafe impl<T: Send> Sync for Kept<T> {}

impl<T> fmt::Debug for Kept<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Kept<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { value: UnsafeCell::new(Mutex::new(value)), is_watched: Once::new() }
    }

    pub(crate) fn lock(&'static self) -> MutexGuard<'static, T> {
        self.is_watched.call_once(|| watch(self));
        self.mutex().lock()
    }

    fn mutex(&self) -> &Mutex<T> {
        // SAFETY: it is only written to where there is no other thread, and where nobody holds what
        // this gives.
        unsafe { &*self.value.get() }
    }
}

impl<T: Send + 'static> AcrossFork for Kept<T> {
    fn lock(&self) {
        mem::forget(self.mutex().lock());
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller's: this thread has locked it.
        unsafe { self.mutex().force_unlock() };
    }

    unsafe fn begin_anew(&self) {
        // SAFETY: the caller's: there is no other thread, and the lock was taken before the fork, so
        // the value is whole. It moves to a new lock: threads that are not here waited for the old.
        unsafe {
            let value = self.mutex().data_ptr().read();
            self.value.get().write(Mutex::new(value));
        }
    }
}

/// `ibv_fork_init(3)`: it has nothing to do.
pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `IBV_FORK_UNNEEDED`.
const UNNEEDED: u32 = 2;

/// `ibv_is_fork_initialized(3)`: registered memory may be used across a fork anyway.
pub(crate) extern "C" fn ibv_is_fork_initialized() -> u32 {
    UNNEEDED
}

/// `ibv_dontfork_range`: memory need not be kept from children.
pub(crate) extern "C" fn ibv_dontfork_range(base: *mut c_void, size: usize) -> MinusOne {
    answer("ibv_dontfork_range", || check(base, size))
}

/// `ibv_dofork_range`: the counterpart of [`ibv_dontfork_range`].
pub(crate) extern "C" fn ibv_dofork_range(base: *mut c_void, size: usize) -> MinusOne {
    answer("ibv_dofork_range", || check(base, size))
}

fn check(base: *mut c_void, size: usize) -> Result<(), Refused> {
    match base.addr().checked_add(size) {
        Some(_) => Ok(()),
        None => Err(Refused::invalid("the range goes beyond the end of memory")),
    }
}
