//! What the background thread sleeps on: sockets, a timer, and a way to wake it.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use rxe_core::cq::Notify;
use rxe_core::time::Instant;

use super::watch::Sockets;
use crate::slots::fork::Tracked;

/// A descriptor that becomes readable at each notification and counts them.
///
/// Reading takes one, so that a program that waits in poll(2) sees as many events as there are. In a
/// child after fork ([`after_fork_in_child`](crate::slots::after_fork_in_child)) it is silent.
#[derive(Debug)]
pub struct EventFd {
    /// Declared before the descriptor, so that it is dropped before.
    _tracked: Tracked,
    fd: OwnedFd,
}

impl EventFd {
    /// Makes one; closed in programs that this one executes.
    ///
    /// # Errors
    ///
    /// That of `eventfd(2)`: no descriptors left.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let fd = eventfd(0, flags)?;
        Ok(Self { _tracked: Tracked::new(&fd), fd })
    }

    /// Takes one notification; false when there is none.
    pub fn take(&self) -> bool {
        let mut count = [0; 8];
        rustix::io::read(&self.fd, &mut count).is_ok()
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Notify for EventFd {
    fn notify(&self) {
        // It can only fail when 2^64 - 2 notifications wait, which is as good as one more.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }
}

/// No timer is running.
const NEVER: u64 = u64::MAX;

/// The epoll set of one background thread.
pub(super) struct Sleeper {
    /// Declared before the descriptors, so that they are dropped before. The child of a fork must
    /// not change what the parent sleeps on.
    _tracked: [Tracked; 3],
    epoll: OwnedFd,
    /// Fires when the shard, or a link, has something to do.
    timer: OwnedFd,
    /// Fires when it is time to see whether somebody still polls.
    lease: OwnedFd,
    waker: EventFd,
    sockets: Mutex<Watched>,
    /// A socket has fired, and stays silent until it is armed again.
    disarmed: AtomicBool,
    /// When the timer fires; changed only under the lock of the shard.
    armed: AtomicU64,
    /// When the other timer fires; of the background thread.
    lease_end: AtomicU64,
}

impl fmt::Debug for Sleeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleeper").field("sockets", &self.sockets.lock().all.len()).finish()
    }
}

/// The sockets of an epoll set.
#[derive(Default)]
struct Watched {
    all: Vec<Arc<OwnedFd>>,
    /// They are out of the set until they are armed: somebody polls.
    are_away: bool,
}

/// Sockets sleep one event long: while somebody polls, they stay disarmed, since a sleeper in
/// epoll costs each packet a wake-up. Who goes on polling has them put out of the set
/// ([`Sleeper::put_away`]), since a disarmed one is called for each packet all the same.
const SOCKET: EventFlags = EventFlags::IN.union(EventFlags::ONESHOT);

/// What an event of the epoll set is about.
const TIMER: u64 = 0;
const WAKER: u64 = 1;
const SOCKETS: u64 = 2;
const LEASE: u64 = 3;

impl Sleeper {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let lease = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let waker = EventFd::new()?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        epoll::add(&epoll, &lease, EventData::new_u64(LEASE), EventFlags::IN)?;
        epoll::add(&epoll, &waker, EventData::new_u64(WAKER), EventFlags::IN)?;
        let (disarmed, armed) = (AtomicBool::new(false), AtomicU64::new(NEVER));
        let lease_end = AtomicU64::new(NEVER);
        let _tracked = [Tracked::new(&epoll), Tracked::new(&timer), Tracked::new(&lease)];
        let sockets = Mutex::default();
        Ok(Self { _tracked, epoll, timer, lease, waker, sockets, disarmed, armed, lease_end })
    }

    /// Adds a socket, armed, or as the others are while they are away.
    pub(super) fn watch(&self, socket: Arc<OwnedFd>) -> io::Result<()> {
        let mut sockets = self.sockets.lock();
        if !sockets.are_away {
            self.add(&socket)?;
        }
        sockets.all.push(socket);
        Ok(())
    }

    /// The sockets, for a thread that sleeps on them by itself; false if there are none or too many.
    pub(super) fn sockets(&self, to: &mut Sockets) -> bool {
        to.fill(&self.sockets.lock().all)
    }

    /// Lets go of a socket; does nothing for one that is not watched.
    pub(super) fn forget(&self, socket: &Arc<OwnedFd>) {
        let mut sockets = self.sockets.lock();
        let Some(index) = sockets.all.iter().position(|known| Arc::ptr_eq(known, socket)) else {
            return;
        };
        let socket = sockets.all.swap_remove(index);
        if !sockets.are_away {
            self.delete(&socket);
        }
    }

    /// Lets go of all sockets: one that is kept would go on receiving for nobody.
    pub(super) fn forget_sockets(&self) {
        let Watched { all, are_away } = &mut *self.sockets.lock();
        for socket in all.drain(..) {
            if !*are_away {
                self.delete(&socket);
            }
        }
    }

    /// Arms all sockets that fired; one that is readable already wakes the thread at once.
    pub(super) fn arm_sockets(&self) {
        // Where the thread is about to note that one has fired, it arms it itself in the end.
        if !self.disarmed.swap(false, Ordering::SeqCst) {
            return;
        }
        let Watched { all, are_away } = &mut *self.sockets.lock();
        let were_away = std::mem::take(are_away);
        for socket in &*all {
            let armed = match were_away {
                true => self.add(socket),
                false => self.rearm(socket),
            };
            // One that could not be added the last time, or was there still.
            let armed = match armed {
                Err(Errno::NOENT) => self.add(socket),
                Err(Errno::EXIST) => self.rearm(socket),
                armed => armed,
            };
            if let Err(error) = armed {
                tracing::error!(target: "rxe::net", %error, "cannot wait for a socket");
                // Whoever arms them next tries again.
                self.disarmed.store(true, Ordering::SeqCst);
            }
        }
    }

    /// Takes sockets out of the set that have fired, until they are armed: somebody polls, and goes
    /// on doing so. In the background thread.
    pub(super) fn put_away(&self) {
        if !self.disarmed.load(Ordering::Relaxed) {
            return;
        }
        let Watched { all, are_away } = &mut *self.sockets.lock();
        // Whoever has begun to arm them meanwhile goes on when the lock is free.
        if *are_away || !self.disarmed.load(Ordering::SeqCst) {
            return;
        }
        *are_away = true;
        all.iter().for_each(|socket| self.delete(socket));
    }

    fn add(&self, socket: &OwnedFd) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, socket, EventData::new_u64(SOCKETS), SOCKET)
    }

    fn rearm(&self, socket: &OwnedFd) -> rustix::io::Result<()> {
        epoll::modify(&self.epoll, socket, EventData::new_u64(SOCKETS), SOCKET)
    }

    fn delete(&self, socket: &OwnedFd) {
        if let Err(error) = epoll::delete(&self.epoll, socket) {
            tracing::error!(target: "rxe::net", %error, "cannot let go of a socket");
        }
    }

    /// Sees to it that the thread wakes at `deadline` at the latest. Under the lock of the shard.
    pub(super) fn wake_by(&self, deadline: Option<Instant>, now: Instant) {
        let deadline = deadline.map_or(NEVER, Instant::as_nanos);
        if deadline < self.armed.load(Ordering::Relaxed) {
            self.set_timer(deadline, now);
        }
    }

    /// Whether the timer wakes the thread by then. Under the lock of the shard.
    pub(super) fn wakes_by(&self, at: Instant) -> bool {
        self.armed.load(Ordering::Relaxed) <= at.as_nanos()
    }

    /// Sets the timer anew, earlier or later. Under the lock of the shard.
    pub(super) fn set_timer(&self, deadline: u64, now: Instant) {
        if self.armed.swap(deadline, Ordering::Relaxed) == deadline {
            return;
        }
        start(&self.timer, deadline, now);
    }

    /// Wakes the thread at `at`, to see whether somebody still polls, or earlier if it is to wake
    /// then anyway.
    pub(super) fn set_lease(&self, at: Instant, now: Instant) {
        if at.as_nanos() < self.lease_end.load(Ordering::Relaxed) {
            self.lease_end.store(at.as_nanos(), Ordering::Relaxed);
            start(&self.lease, at.as_nanos(), now);
        }
    }

    /// Whether the thread is going to see whether somebody still polls.
    pub(super) fn has_lease(&self) -> bool {
        self.lease_end.load(Ordering::Relaxed) != NEVER
    }

    /// Sleeps until a socket, a timer or [`Self::wake`] wakes it.
    pub(super) fn sleep(&self) -> io::Result<()> {
        let mut events = Vec::with_capacity(8);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in events {
            match event.data.u64() {
                // All of these are non-blocking: what is there is taken.
                TIMER => {
                    let _ = rustix::io::read(&self.timer, &mut [0; 8]);
                    self.armed.store(NEVER, Ordering::Relaxed);
                }
                LEASE => {
                    let _ = rustix::io::read(&self.lease, &mut [0; 8]);
                    self.lease_end.store(NEVER, Ordering::Relaxed);
                }
                WAKER => while self.waker.take() {},
                _ => self.disarmed.store(true, Ordering::SeqCst),
            }
        }
        Ok(())
    }

    /// Wakes the thread.
    pub(super) fn wake(&self) {
        self.waker.notify();
    }
}

/// Lets a timer fire at `deadline`, or never.
fn start(timer: &OwnedFd, deadline: u64, now: Instant) {
    let nanos = match deadline {
        NEVER => 0,
        // 0 would stop the timer.
        at => at.saturating_sub(now.as_nanos()).max(1),
    };
    let it_value = Timespec {
        tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: (nanos % 1_000_000_000) as _,
    };
    let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
    let spec = Itimerspec { it_interval, it_value };
    if let Err(error) = timerfd_settime(timer, TimerfdTimerFlags::empty(), &spec) {
        tracing::error!(target: "rxe::net", %error, "cannot set a timer");
    }
}
