//! Completion channels: a descriptor to sleep on until completions come.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use rustix::event::{PollFd, PollFlags};
use rxe_core::cq::{CompletionChannel as CoreChannel, CqId};
use rxe_net::runtime::{EventFd, Runner, SOCKETS_MAX, SleepId, Sockets};

use crate::context::wait_for_any;
use crate::error::WaitError;

/// So many events are asked for in the belief that they will be waited for as the last one was.
const BELIEF: u8 = 3;

/// Where the events of completion queues arrive (`struct ibv_comp_channel`).
///
/// Its descriptor is readable while events wait; put it into poll(2) or epoll(7) at will. A thread
/// in [`Self::wait`] is woken by the packet itself, one in poll(2) by the thread that the packet has
/// woken: so the former sees its event sooner.
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    pub(crate) core: Arc<CoreChannel>,
    fd: Arc<EventFd>,
    sleepers: Arc<Sleepers>,
}

/// What threads that sleep on the events of a channel have to know.
#[derive(Debug, Default)]
struct Sleepers {
    /// The shards with queue pairs that complete in queues of the channel, and how often they do;
    /// also those that had some.
    runners: RwLock<Vec<(Arc<Runner>, usize)>>,
    /// For how many more events it is believed that whoever asks for one will wait for it here.
    belief: AtomicU8,
    /// The next poll that finds nothing does not look at the sockets.
    spares_look: AtomicBool,
}

/// A sleep on a channel's events, for those who sleep by a system call of their own: from
/// [`CompletionChannel::begin_sleep`] to [`CompletionChannel::end_sleep`].
#[derive(Clone, Copy, Debug)]
pub struct Sleep {
    id: SleepId,
    /// Which of the channel's shards it is about; `None` for several, or none.
    runner: Option<usize>,
    /// The thread runs this shard.
    is_running: bool,
}

impl CompletionChannel {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = Arc::new(EventFd::new()?);
        let core = Arc::new(CoreChannel::new(fd.clone()));
        Ok(Self { core, fd, sleepers: Arc::default() })
    }

    /// Counts one more queue pair of `runner` that completes in a queue of the channel.
    pub(crate) fn attach(&self, runner: &Arc<Runner>) {
        let mut runners = self.sleepers.runners.write();
        match runners.iter_mut().find(|(known, _)| Arc::ptr_eq(known, runner)) {
            Some((_, count)) => *count += 1,
            None => runners.push((runner.clone(), 1)),
        }
    }

    /// Counts one queue pair less.
    pub(crate) fn detach(&self, runner: &Arc<Runner>) {
        let mut runners = self.sleepers.runners.write();
        if let Some((_, count)) = runners.iter_mut().find(|(known, _)| Arc::ptr_eq(known, runner)) {
            *count -= 1;
        }
    }

    /// Takes the oldest event, if there is one: which completion queue it concerns.
    pub fn take(&self) -> Option<CqId> {
        // First the descriptor: it may count more events than there are (of a queue that is gone,
        // or not taken yet by another thread), never fewer; each call that finds none corrects it.
        self.fd.take();
        self.core.take()
    }

    /// As [`Self::take`], for a caller that has read the descriptor: one read is for one event, or
    /// for one of a queue that is gone.
    pub fn take_read(&self) -> Option<CqId> {
        self.core.take()
    }

    /// Waits for an event (`ibv_get_cq_event`): which completion queue it concerns.
    ///
    /// While it waits, this thread receives and processes what comes for the queue pairs that
    /// complete in queues of the channel, if they are of one shard and no other thread does so.
    ///
    /// # Errors
    ///
    /// [`WaitError::TimedOut`] when none comes in time.
    pub fn wait(&self, timeout: Duration) -> Result<CqId, WaitError> {
        let deadline = Instant::now().checked_add(timeout);
        let mut may_be = self.core.has_events();
        loop {
            if may_be && let Some(event) = self.take() {
                return Ok(event);
            }
            let mut sockets = Sockets::default();
            let sleep = self.begin_sleep(&mut sockets);
            let slept = self.sleep(&sockets, deadline, timeout);
            may_be = match slept {
                Ok(Woken::BySocket) => self.serve_sleep(sleep),
                // Also where it counts too many: then it is read until it does not.
                Ok(Woken::ByChannel) => true,
                Err(_) => false,
            };
            self.end_sleep(sleep);
            slept?;
        }
    }

    fn sleep(
        &self,
        sockets: &Sockets,
        deadline: Option<Instant>,
        timeout: Duration,
    ) -> Result<Woken, WaitError> {
        let own = || PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::IN);
        // The places that no socket takes wait for the channel a second time.
        let mut fds: [PollFd<'_>; 1 + SOCKETS_MAX] = std::array::from_fn(|_| own());
        let mut count = 1;
        for (place, socket) in fds[1..].iter_mut().zip(sockets.iter()) {
            *place = PollFd::new(socket, PollFlags::IN);
            count += 1;
        }
        wait_for_any(&mut fds[..count], deadline, timeout)?;
        match fds[1..count].iter().all(|fd| fd.revents().is_empty()) {
            true => Ok(Woken::ByChannel),
            false => Ok(Woken::BySocket),
        }
    }

    /// Whether an event waits to be taken.
    pub fn has_events(&self) -> bool {
        self.core.has_events()
    }

    /// Begins a sleep on events, of a thread that finds none: on the channel's descriptor, and on the
    /// sockets that it puts into `sockets`; none where the background thread has them.
    ///
    /// [`Self::wait`] does all of this; it is for those who sleep by another system call, which ends
    /// in other ways. When a socket is readable, [`Self::serve_sleep`] is to be called; in any case
    /// [`Self::end_sleep`] then. A thread that never comes to that leaves nothing in the way of
    /// others for longer than some milliseconds.
    pub fn begin_sleep(&self, sockets: &mut Sockets) -> Sleep {
        let id = SleepId::new();
        let runners = self.sleepers.runners.read();
        let mut used = runners.iter().enumerate().filter(|(_, (_, count))| *count > 0);
        let (runner, is_running) = match (used.next(), used.next()) {
            (Some((index, (runner, _))), None) => (Some(index), runner.begin_sleep(id, sockets)),
            _ => (None, false),
        };
        drop(runners);
        if runner.is_none() {
            self.leave_sockets();
        }
        if is_running {
            self.sleepers.belief.store(BELIEF, Ordering::Relaxed);
            self.sleepers.spares_look.store(true, Ordering::Relaxed);
        }
        Sleep { id, runner, is_running }
    }

    /// Lets the background thread have the sockets, for a thread that sleeps on the channel's
    /// descriptor alone, where it might have slept on them.
    pub fn leave_sockets(&self) {
        self.sleepers.runners.read().iter().for_each(|(runner, _)| runner.stop_polling());
    }

    /// Receives and processes what has woken the thread. Whether there is an event now.
    pub fn serve_sleep(&self, sleep: Sleep) -> bool {
        if sleep.is_running
            && let Some(runner) = self.runner_of(sleep)
        {
            runner.serve_sleep(&self.core);
        }
        self.core.has_events()
    }

    /// Ends a sleep.
    pub fn end_sleep(&self, sleep: Sleep) {
        if let Some(runner) = self.runner_of(sleep) {
            runner.end_sleep(sleep.id, sleep.is_running);
        }
    }

    fn runner_of(&self, sleep: Sleep) -> Option<Arc<Runner>> {
        let runners = self.sleepers.runners.read();
        runners.get(sleep.runner?).map(|(runner, _)| runner.clone())
    }

    /// Whether who asks for an event now is believed to wait for it by [`Self::wait`], where nobody
    /// has to be ready to wake it. If not, what comes waits for the end of a lease, as where somebody
    /// stops polling, and after some times nothing is believed any more.
    pub(crate) fn believes_in_wait(&self) -> bool {
        let less = |belief: u8| belief.checked_sub(1);
        let believes =
            self.sleepers.belief.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        self.sleepers.spares_look.store(believes, Ordering::Relaxed);
        believes
    }

    /// Whether a poll that finds nothing need not look at the sockets: the first one after a wait,
    /// and the first one after an event was asked for. Whoever has waited, and is going to wait again,
    /// looks at them then; who polls on, looks at the next poll.
    pub(crate) fn spares_look(&self) -> bool {
        self.sleepers.spares_look.load(Ordering::Relaxed)
            && self.sleepers.spares_look.swap(false, Ordering::Relaxed)
    }
}

/// What has woken a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Woken {
    ByChannel,
    BySocket,
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
