//! Following the interfaces of this host: who wants to know is told of each change.
//!
//! One thread does it for all of a process, while there is somebody to tell. (One for each network
//! namespace, where the threads of a process are in several.) It reads netlink, so it sleeps until
//! something changes; where netlink is refused it looks again each second.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle, current, sleep};
use std::time::Duration;

use gid_table::InterfaceInfo;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rxe_core::cq::Notify;

use super::socket::RouteSocket;
use super::table::HostTable;
use super::{HostError, by_scan};
use crate::runtime::EventFd;
use crate::slots::fork::{Generation, PerProcess};
use crate::sys::thread::spawn_deaf;

/// How often a host without netlink is looked at.
const SCAN_PERIOD: Duration = Duration::from_secs(1);
/// The pause when nothing can be waited for.
const BLIND_PAUSE: Duration = Duration::from_millis(100);

/// The followers of this process, by network namespace.
static FOLLOWERS: PerProcess<Mutex<HashMap<u64, Arc<Follower>>>> = PerProcess::new();

/// Whoever is told: of all interfaces, by index, each time that one of them has changed.
type Subscriber = Box<dyn FnMut(&[InterfaceInfo]) + Send>;

/// Tells `subscriber` of the interfaces of this network namespace: as they are now, before this
/// returns, and from then on after each change, in the order of the changes.
///
/// All calls but the first come from a thread of this crate, one at a time, and all others wait for
/// the end of each. The subscriber may take locks, but must not drop a [`Following`].
///
/// # Errors
///
/// [`HostError`], when the host tells nothing by any means, or has no thread or descriptor left.
pub fn follow(
    subscriber: impl FnMut(&[InterfaceInfo]) + Send + 'static,
) -> Result<Following, HostError> {
    // Held to the end, so that the follower found does not end meanwhile.
    let mut all = FOLLOWERS.get().lock();
    let namespace = namespace_of_this_thread();
    let follower = match all.get(&namespace) {
        Some(follower) => follower.clone(),
        None => {
            let follower = Follower::start(namespace)?;
            all.insert(namespace, follower.clone());
            follower
        }
    };
    let id = follower.subscribe(Box::new(subscriber));
    Ok(Following { follower, id })
}

/// Somebody is told of changes for as long as this lives ([`follow`]); afterwards no more, not even
/// by a call that has begun: the drop waits for it.
#[derive(Debug)]
pub struct Following {
    follower: Arc<Follower>,
    id: u64,
}

impl Drop for Following {
    fn drop(&mut self) {
        // In a child after fork a thread of the parent may have the locks for ever.
        if !self.follower.generation.is_now() {
            return;
        }
        let mut all = FOLLOWERS.get().lock();
        let mut state = self.follower.state.lock();
        state.subscribers.retain(|(id, _)| *id != self.id);
        if !state.subscribers.is_empty() {
            return;
        }
        all.remove(&self.follower.namespace);
        drop((state, all));
        self.follower.end();
    }
}

/// The thread that follows, and those whom it tells.
struct Follower {
    generation: Generation,
    namespace: u64,
    is_ending: AtomicBool,
    waker: EventFd,
    state: Mutex<State>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    interfaces: Vec<InterfaceInfo>,
    subscribers: Vec<(u64, Subscriber)>,
    last_id: u64,
}

/// Where the follower learns of changes.
enum Source {
    Netlink { socket: RouteSocket, table: HostTable },
    Scan,
}

impl Follower {
    fn start(namespace: u64) -> Result<Arc<Self>, HostError> {
        let (source, interfaces) = match open_netlink() {
            Ok((socket, table)) => {
                let interfaces = table.interfaces();
                (Source::Netlink { socket, table }, interfaces)
            }
            Err(error) => (Source::Scan, scan_instead(&error)?),
        };
        let follower = Arc::new(Self {
            generation: Generation::now(),
            namespace,
            is_ending: AtomicBool::new(false),
            waker: EventFd::new().map_err(HostError::Follow)?,
            state: Mutex::new(State { interfaces, ..State::default() }),
            thread: Mutex::new(None),
        });
        let of_thread = follower.clone();
        let thread = spawn_deaf(Builder::new().name("urxe-links".into()), move || {
            of_thread.run(source);
        });
        *follower.thread.lock() = Some(thread.map_err(HostError::Follow)?);
        Ok(follower)
    }

    fn subscribe(&self, mut subscriber: Subscriber) -> u64 {
        let mut state = self.state.lock();
        subscriber(&state.interfaces);
        state.last_id += 1;
        let id = state.last_id;
        state.subscribers.push((id, subscriber));
        id
    }

    /// Ends the thread.
    fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
        self.waker.notify();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != current().id()
            && thread.join().is_err()
        {
            tracing::error!(target: "rxe::net", "the thread that follows interfaces panicked");
        }
    }

    fn run(&self, mut source: Source) {
        loop {
            if let Err(error) = self.wait(&source) {
                tracing::error!(target: "rxe::net", %error, "cannot wait for netlink");
                sleep(BLIND_PAUSE);
            }
            if self.is_ending.load(Ordering::Acquire) {
                return;
            }
            if let Err(error) = self.step(&mut source)
                && !matches!(source, Source::Scan)
            {
                tell_of_scan(&error);
                source = Source::Scan;
            }
        }
    }

    /// Sleeps until there may be a change, or [`Self::end`].
    fn wait(&self, source: &Source) -> io::Result<()> {
        let period = Timespec {
            tv_sec: i64::try_from(SCAN_PERIOD.as_secs()).unwrap_or(1),
            tv_nsec: SCAN_PERIOD.subsec_nanos().into(),
        };
        let waker = PollFd::from_borrowed_fd(self.waker.as_fd(), PollFlags::IN);
        let result = match source {
            Source::Netlink { socket, .. } => {
                let socket = PollFd::from_borrowed_fd(socket.fd(), PollFlags::IN);
                poll(&mut [waker, socket], None)
            }
            Source::Scan => poll(&mut [waker], Some(&period)),
        };
        match result {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes in what has changed, and tells of it.
    fn step(&self, source: &mut Source) -> io::Result<()> {
        match source {
            Source::Netlink { socket, table } => match socket.receive_waiting() {
                Ok(messages) => {
                    for received in messages {
                        if table.apply(received.message) {
                            self.publish(table.interfaces());
                        }
                    }
                    Ok(())
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
                // ENOBUFS: more has changed at once than the socket holds. Whatever else it is, the
                // table may be wrong now.
                Err(error) => {
                    tracing::debug!(target: "rxe::net", %error, "reads all interfaces anew");
                    *table = socket.read_table()?;
                    self.publish(table.interfaces());
                    Ok(())
                }
            },
            Source::Scan => {
                if let Ok((interfaces, _)) = by_scan(String::new()) {
                    self.publish(interfaces);
                }
                Ok(())
            }
        }
    }

    fn publish(&self, interfaces: Vec<InterfaceInfo>) {
        let mut state = self.state.lock();
        if state.interfaces == interfaces {
            return;
        }
        state.interfaces = interfaces;
        let State { interfaces, subscribers, .. } = &mut *state;
        for (_, subscriber) in subscribers {
            subscriber(interfaces);
        }
    }
}

/// A socket that is told of changes, and the table as it was when it was opened.
fn open_netlink() -> io::Result<(RouteSocket, HostTable)> {
    let mut socket = RouteSocket::open(true)?;
    let table = socket.read_table()?;
    if table.interfaces().is_empty() {
        return Err(io::Error::other("it lists no interface"));
    }
    Ok((socket, table))
}

/// The interfaces without netlink, which has failed so.
fn scan_instead(error: &io::Error) -> Result<Vec<InterfaceInfo>, HostError> {
    tell_of_scan(error);
    Ok(by_scan(error.to_string())?.0)
}

/// Says, once in a process, that changes will be seen late.
fn tell_of_scan(error: &io::Error) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        tracing::warn!(target: "rxe::net", %error,
            "netlink is refused: looks for changes of interfaces and addresses once a second");
    }
}

/// The number of the network namespace that this thread is in; 0 where `/proc` does not say.
fn namespace_of_this_thread() -> u64 {
    rustix::fs::stat("/proc/thread-self/ns/net").map_or(0, |stat| stat.st_ino)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn the_present_state_is_told_at_once() {
        let (sender, receiver) = mpsc::channel();
        let following = follow(move |interfaces: &[InterfaceInfo]| {
            let _ = sender.send(interfaces.to_vec());
        });
        let following = following.expect("a thread");
        let told = receiver.try_recv().expect("told before it returned");
        assert!(told.iter().any(|info| info.name == "lo"), "{told:?}");
        let thread = following.follower.clone();
        drop(following);
        assert!(receiver.recv().is_err(), "the subscriber is gone, and nobody told it more");
        // Another test may have followed meanwhile, and has its own.
        assert!(
            thread.is_ending.load(Ordering::Relaxed) || !thread.state.lock().subscribers.is_empty()
        );
    }

    #[test]
    fn each_change_is_told_once() {
        let follower = Follower {
            generation: Generation::now(),
            namespace: 0,
            is_ending: AtomicBool::new(false),
            waker: EventFd::new().expect("a descriptor"),
            state: Mutex::default(),
            thread: Mutex::new(None),
        };
        let told = Arc::new(Mutex::new(Vec::new()));
        let of_subscriber = told.clone();
        follower.subscribe(Box::new(move |interfaces| of_subscriber.lock().push(interfaces.len())));
        let one = InterfaceInfo { ifindex: 1, ..InterfaceInfo::default() };
        follower.publish(vec![one.clone()]);
        follower.publish(vec![one.clone()]);
        follower.publish(vec![InterfaceInfo { up: true, ..one }]);
        follower.publish(Vec::new());
        assert_eq!(*told.lock(), [0, 1, 1, 0]);
    }
}
