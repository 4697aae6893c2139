//! Handlers: events that are told by a call, as in the kernel, instead of through a channel.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard, ReentrantMutexGuard};
use rxe_wire::mad::cm::PortSpace;

use crate::channel::EventChannel;
use crate::event::Event;
use crate::id::CmId;
use crate::per_process::PerProcess;

/// Handlers that run at once at most; more wait.
const CREW_MAX: usize = 256;
/// How long a thread waits for something to do.
const CREW_STAYS: Duration = Duration::from_secs(5);

/// What a handler wants to become of the identifier of its event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It stays (0 in C). Of a request that is the new identifier, which goes with the event all the
    /// same if nobody has it: the handler keeps a clone of [`Event::id`].
    Keep,
    /// It is destroyed once the handler has returned (any other number in C). Of a request that is
    /// the new identifier: the request is refused. A handler that panics says this too.
    Destroy,
}

/// Who is called with the events of an identifier.
#[derive(Clone)]
pub(crate) struct Handler(Arc<dyn Fn(&Event) -> Verdict + Send + Sync>);

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handler")
    }
}

/// Keeps the handler of an identifier from being called.
#[must_use = "the handler is called again as soon as this is dropped"]
#[derive(Debug)]
pub struct HandlerLock<'a> {
    _guard: ReentrantMutexGuard<'a, ()>,
}

impl CmId {
    /// Makes an identifier whose events are told to `handler` (C: `rdma_create_id` of the kernel).
    ///
    /// A thread of this library calls it, one event of the identifier after the other. It may wait,
    /// and use the identifier at will; of other identifiers, other threads call the handlers.
    /// Identifiers that stand for requests of a listener have the listener's handler, which is told
    /// of the request first, and of what becomes of it only when it has returned.
    ///
    /// # Errors
    ///
    /// That of the system: no descriptor or no thread is to be had.
    pub fn create_with_handler(
        space: PortSpace,
        handler: impl Fn(&Event) -> Verdict + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Ok(Self::with_handler(&handler_channel()?, space, Some(Handler(Arc::new(handler)))))
    }

    /// Keeps its handler from being called, and waits while it is (C: `rdma_lock_handler`; dropping
    /// the lock is `rdma_unlock_handler`). A handler that calls this has the lock already.
    pub fn lock_handler(&self) -> HandlerLock<'_> {
        HandlerLock { _guard: self.inner.handling.lock() }
    }
}

/// The channel of all identifiers with handlers.
static CHANNEL: PerProcess<Mutex<Option<EventChannel>>> = PerProcess::new();

/// The channel whose events the thread of handlers takes; starts that when there is none.
fn handler_channel() -> io::Result<EventChannel> {
    let mut channel = CHANNEL.get().lock();
    if let Some(channel) = &*channel {
        return Ok(channel.clone());
    }
    let new = EventChannel::new()?;
    let own = new.clone();
    std::thread::Builder::new().name("cm handlers".to_owned()).spawn(move || call_all(&own))?;
    *channel = Some(new.clone());
    Ok(new)
}

fn call_all(channel: &EventChannel) {
    loop {
        match channel.get() {
            Ok(event) => hand_over(event),
            Err(error) => {
                tracing::error!(target: "rxe::cm", %error, "no events for handlers any more");
                return;
            }
        }
    }
}

/// Events that the handler of one identifier is still to be told, in their order.
#[derive(Debug, Default)]
pub(crate) struct Untold {
    /// A thread of the crew has them in its hands.
    has_thread: bool,
    events: VecDeque<Event>,
}

impl Untold {
    /// Of an identifier that stands for a request: nothing else is told before that.
    pub(crate) fn wait_for_request(&mut self) {
        self.has_thread = true;
    }
}

/// Has the handler of an event called by a thread of the crew, after all earlier events of the
/// identifier.
fn hand_over(event: Event) {
    let id = event.waited_by().clone();
    {
        let mut untold = id.inner.untold.lock();
        untold.events.push_back(event);
        if std::mem::replace(&mut untold.has_thread, true) {
            return;
        }
    }
    CREW.get().take_on(id);
}

/// Threads that call handlers: one for each identifier whose handler runs, since a handler may
/// sleep, and others must not wait for it.
#[derive(Default)]
struct Crew {
    work: Mutex<Work>,
    more: Condvar,
}

/// What a crew has to do.
#[derive(Default)]
struct Work {
    ids: VecDeque<CmId>,
    /// Threads, and those of them that wait for something to do.
    threads: usize,
    idle: usize,
}

/// What the parent's threads were to do, they do there; a child after fork has no thread yet.
static CREW: PerProcess<Crew> = PerProcess::new();

impl Crew {
    fn take_on(&'static self, id: CmId) {
        let mut work = self.work.lock();
        work.ids.push_back(id);
        if work.idle >= work.ids.len() {
            self.more.notify_one();
        } else if work.threads < CREW_MAX {
            let name = format!("cm handler {}", work.threads);
            match std::thread::Builder::new().name(name).spawn(|| self.work()) {
                Ok(_) => work.threads += 1,
                Err(error) => {
                    tracing::warn!(target: "rxe::cm", %error, "handlers wait for each other");
                    if work.threads == 0 {
                        let id = work.ids.pop_front();
                        drop(work);
                        id.iter().for_each(call_all_of);
                    }
                }
            }
        }
    }

    fn work(&self) {
        let mut work = self.work.lock();
        loop {
            if let Some(id) = work.ids.pop_front() {
                MutexGuard::unlocked(&mut work, || {
                    call_all_of(&id);
                    drop(id);
                });
                continue;
            }
            work.idle += 1;
            let timeout = self.more.wait_for(&mut work, CREW_STAYS);
            work.idle -= 1;
            if timeout.timed_out() && work.ids.is_empty() {
                work.threads -= 1;
                return;
            }
        }
    }
}

/// Calls the handler of an identifier with all events that it is to be told.
fn call_all_of(id: &CmId) {
    loop {
        let event = {
            let mut untold = id.inner.untold.lock();
            let event = untold.events.pop_front();
            untold.has_thread = event.is_some();
            event
        };
        match event {
            Some(event) => call(event),
            None => return,
        }
    }
}

/// Calls the handler of an event.
fn call(event: Event) {
    let (id, is_request) = (event.id().clone(), event.listen_id().is_some());
    let verdict = verdict(&event);
    drop(event);
    if verdict == Verdict::Destroy {
        id.destroy();
    }
    if is_request {
        let_go(id);
    }
}

/// What the handler of an event says.
fn verdict(event: &Event) -> Verdict {
    let told = event.waited_by();
    let Some(Handler(handler)) = &told.inner.handler else { return Verdict::Keep };
    let _lock = told.lock_handler();
    // It was destroyed while the event waited for the lock: it is told nothing any more, and what
    // it was not told of goes with it.
    if told.is_destroyed() {
        return Verdict::Destroy;
    }
    // The thread is that of other identifiers too.
    catch_unwind(AssertUnwindSafe(|| handler(event))).unwrap_or_else(|_| {
        tracing::error!(target: "rxe::cm", ?event, "the handler panicked: destroyed");
        Verdict::Destroy
    })
}

/// The handler has been told of the request that `id` stands for: what has become of it since may
/// follow.
fn let_go(id: CmId) {
    {
        let mut untold = id.inner.untold.lock();
        untold.has_thread = !untold.events.is_empty();
        if !untold.has_thread {
            return;
        }
    }
    CREW.get().take_on(id);
}
