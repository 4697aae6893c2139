//! Event channels.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rxe_core::cq::Notify;
use rxe_net::runtime::EventFd;

use crate::event::{Event, News};
use crate::id::IdNumber;

/// Where the events of identifiers arrive (C: `struct rdma_event_channel`). Cloning gives another
/// handle to the same one.
///
/// Its descriptor is readable while events wait; put it into poll(2) or epoll(7) at will.
#[derive(Clone, Debug)]
pub struct EventChannel {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    fd: EventFd,
    news: Mutex<VecDeque<News>>,
    /// Nobody waits any more.
    is_closed: AtomicBool,
}

impl EventChannel {
    /// Makes one.
    ///
    /// # Errors
    ///
    /// That of the system: no descriptors left.
    pub fn new() -> io::Result<Self> {
        let (news, is_closed) = (Mutex::default(), AtomicBool::new(false));
        let inner = Inner { fd: EventFd::new()?, news, is_closed };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Takes the oldest event, if there is one.
    pub fn take(&self) -> Option<Event> {
        loop {
            // Under the lock an event becomes one that the program has: so whoever destroys its
            // identifier either finds it here, or waits for its acknowledgement.
            let taken = {
                let mut waiting = self.inner.news.lock();
                let news = waiting.pop_front()?;
                self.inner.fd.take();
                news.take()
            };
            match taken {
                Ok(event) => {
                    event.id().request_taken();
                    return Some(event);
                }
                Err(of_nobody) => drop(of_nobody),
            }
        }
    }

    /// Waits for an event (C: `rdma_get_cm_event`).
    ///
    /// # Errors
    ///
    /// That of poll(2), which does not fail in practice.
    pub fn get(&self) -> io::Result<Event> {
        loop {
            if let Some(event) = self.wait(Duration::from_secs(3600))? {
                return Ok(event);
            }
        }
    }

    /// Waits for an event, at most for `timeout`.
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn wait(&self, timeout: Duration) -> io::Result<Option<Event>> {
        // A timeout beyond the end of time is none.
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(event) = self.take() {
                return Ok(Some(event));
            }
            if self.inner.is_closed.load(Ordering::Acquire) {
                return Err(rustix::io::Errno::CANCELED.into());
            }
            let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            let left = left.map(|left| Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            });
            match poll(&mut [PollFd::new(&self.inner.fd, PollFlags::IN)], left.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(crate) fn push(&self, news: News) {
        tracing::debug!(target: "rxe::cm", event = ?news, "event");
        let mut waiting = self.inner.news.lock();
        waiting.push_back(news);
        // Under the lock, so that whoever takes the event finds it counted: else the descriptor would
        // count one too many for ever.
        self.inner.fd.notify();
    }

    /// Takes out the events that wait, of one identifier. They are given back, since dropping them
    /// may destroy identifiers, which the lock here must not be held for.
    pub(crate) fn remove_of(&self, id: IdNumber) -> Vec<News> {
        let mut waiting = self.inner.news.lock();
        let (of_id, others): (Vec<_>, Vec<_>) =
            waiting.drain(..).partition(|news| news.concerns(id));
        waiting.extend(others);
        of_id.iter().for_each(|_| {
            self.inner.fd.take();
        });
        of_id
    }

    /// Ends all waiting, for ever.
    pub(crate) fn close(&self) {
        self.inner.is_closed.store(true, Ordering::Release);
        self.inner.fd.notify();
    }

    /// Whether no event waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.inner.news.lock().is_empty()
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd.as_fd()
    }
}
