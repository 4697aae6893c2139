//! Waiting for completions and events together.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ibverbs_api::{CompletionChannel, CompletionQueue, Context, WcStatus, WorkCompletion};
use rdma_cm::{EventChannel, EventType};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::error::CmError;
use super::told::Told;

/// Completions that are taken at a time.
const BATCH: usize = 16;
/// How long the end of a connection may take to be told, once its work is flushed.
const PARTING: Duration = Duration::from_secs(5);

/// A completion queue with a channel of its own.
pub(crate) struct Queue {
    cq: CompletionQueue,
    channel: CompletionChannel,
}

impl Queue {
    pub(crate) fn new(context: &Context, capacity: u32) -> Result<Self, CmError> {
        let channel = context.create_channel()?;
        let cq = context.create_cq(capacity, Some(&channel), 0)?;
        Ok(Self { cq, channel })
    }

    pub(crate) fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    /// Puts completions in the place of what is in `to`, and sleeps until there are some. An event that
    /// comes before one is given back instead; after `limit` there is neither.
    pub(crate) fn wait(
        &self,
        events: &EventChannel,
        limit: Option<Duration>,
        to: &mut Vec<WorkCompletion>,
    ) -> Result<Option<Told>, CmError> {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        to.clear();
        loop {
            if self.cq.poll(BATCH, to) > 0 {
                return Ok(None);
            }
            if let Some(event) = events.take() {
                return Ok(Some(event.into()));
            }
            self.cq.req_notify(false);
            if self.cq.poll(BATCH, to) > 0 {
                return Ok(None);
            }
            let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            self.sleep(events, left)?;
        }
    }

    fn sleep(&self, events: &EventChannel, left: Option<Duration>) -> Result<(), CmError> {
        let left = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let (work, events) = (self.channel.as_fd(), events.as_fd());
        let mut fds = [PollFd::new(&work, PollFlags::IN), PollFd::new(&events, PollFlags::IN)];
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(CmError::Channel(error.into())),
        }
        while self.channel.take().is_some() {}
        Ok(())
    }
}

/// Why work failed: with the end of the connection, or by itself.
pub(crate) fn work_failed(events: &EventChannel, status: WcStatus) -> CmError {
    match events.wait(PARTING) {
        Ok(Some(event)) if event.event() == EventType::Disconnected => CmError::Disconnected,
        _ => CmError::Work(status),
    }
}
