//! Completion channels: a descriptor to sleep on until completions come.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rxe_core::cq::{CompletionChannel as CoreChannel, CqId};
use rxe_net::runtime::EventFd;

use crate::context::wait_readable;
use crate::error::WaitError;

/// Where the events of completion queues arrive (`struct ibv_comp_channel`).
///
/// Its descriptor is readable while events wait; put it into poll(2) or epoll(7) at will.
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    pub(crate) core: Arc<CoreChannel>,
    fd: Arc<EventFd>,
}

impl CompletionChannel {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = Arc::new(EventFd::new()?);
        Ok(Self { core: Arc::new(CoreChannel::new(fd.clone())), fd })
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
    /// # Errors
    ///
    /// [`WaitError::TimedOut`] when none comes in time.
    pub fn wait(&self, timeout: Duration) -> Result<CqId, WaitError> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(event) = self.take() {
                return Ok(event);
            }
            wait_readable(self.fd.as_fd(), deadline, timeout)?;
        }
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
