//! Handlers: events that are told by a call, as in the kernel, instead of through a channel.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, ReentrantMutexGuard};
use rxe_wire::mad::cm::PortSpace;

use crate::channel::EventChannel;
use crate::event::Event;
use crate::id::CmId;

/// What a handler wants to become of the identifier of its event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It stays (0 in C).
    Keep,
    /// It is destroyed once the handler has returned (any other number in C). Of a request that is
    /// the new identifier: the request is refused.
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
    /// A thread of this library calls it, one event after the other and of all such identifiers, so
    /// it must not wait for long.
    /// It may use the identifier at will. Identifiers that stand for requests of a listener have
    /// the listener's handler.
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

/// The channel of all identifiers with handlers, and the process that it belongs to.
static CHANNEL: Mutex<Option<(u32, EventChannel)>> = Mutex::new(None);

/// The channel whose events the thread of handlers takes; starts that when there is none.
fn handler_channel() -> io::Result<EventChannel> {
    let mut channel = CHANNEL.lock();
    let process = std::process::id();
    if let Some((of, channel)) = &*channel
        && *of == process
    {
        return Ok(channel.clone());
    }
    let new = EventChannel::new()?;
    let own = new.clone();
    std::thread::Builder::new().name("cm handlers".to_owned()).spawn(move || call_all(&own))?;
    // A channel that the parent of a fork had stays as it is: its events are the parent's.
    std::mem::forget(channel.replace((process, new.clone())));
    Ok(new)
}

fn call_all(channel: &EventChannel) {
    loop {
        match channel.get() {
            Ok(event) => call_or_hold(event),
            Err(error) => {
                tracing::error!(target: "rxe::cm", %error, "no events for handlers any more");
                return;
            }
        }
    }
}

/// Events whose handler was locked when they came. A thread of their own waits with them, so that
/// other identifiers go on.
#[derive(Debug, Default)]
pub(crate) struct HeldUp {
    has_thread: bool,
    events: VecDeque<Event>,
}

/// Calls the handler of an event, or has it called later if it is locked.
fn call_or_hold(event: Event) {
    let id = event.waited_by().clone();
    let mut held_up = id.inner.held_up.lock();
    if !held_up.has_thread
        && let Some(_lock) = id.inner.handling.try_lock()
    {
        drop(held_up);
        return call(event);
    }
    held_up.events.push_back(event);
    if held_up.has_thread {
        return;
    }
    held_up.has_thread = true;
    drop(held_up);
    let own = id.clone();
    let name = "cm held up".to_owned();
    if let Err(error) = std::thread::Builder::new().name(name).spawn(move || call_held_up(&own)) {
        tracing::warn!(target: "rxe::cm", %error, "all handlers wait for one");
        call_held_up(&id);
    }
}

/// Calls the handler of an identifier with all events that were held up, in their order.
fn call_held_up(id: &CmId) {
    loop {
        let event = {
            let mut held_up = id.inner.held_up.lock();
            let event = held_up.events.pop_front();
            held_up.has_thread = event.is_some();
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
    let id = event.id().clone();
    let Some(Handler(handler)) = event.waited_by().inner.handler.clone() else { return };
    let verdict = {
        let _lock = event.waited_by().lock_handler();
        // It was destroyed while the event waited for the lock: it is told nothing any more.
        if event.waited_by().is_destroyed() {
            return;
        }
        handler(&event)
    };
    drop(event);
    if verdict == Verdict::Destroy {
        id.destroy();
    }
}
