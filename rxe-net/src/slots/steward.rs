//! The thread of a process that reads its inboxes, and keeps the steering of its addresses right.
//!
//! Who notices that packets come to wrong sockets raises an [`alarm`]. The steward then makes a
//! survey of the address and gives its sockets the program that fits. All processes on an address
//! may notice at the same time; who sees the probes of another one's survey leaves it to that one.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use gid_table::Gid;
use parking_lot::Mutex;
use rand_core::{OsRng, TryRngCore};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::SocketAddrUnix;
use rxe_core::path::Path;

use super::fork::{PerProcess, Tracked};
use super::inbox::{Inbox, Line, Received};
use super::letter::{Answer, Letter, MAX_LETTER};
use super::outbox::Outbox;
use super::registry::{foreign_slots, reader};
use super::survey::Survey;
use crate::sys::thread::spawn_deaf;
use crate::udp::probe::Prober;
use crate::udp::{holder, steer};

/// Letters taken from one inbox before the others have their turn.
const LETTERS_MAX: usize = 32;
/// How long answers to probes are waited for; on a busy machine a process may not run for so long.
const ANSWER_TIME: Duration = Duration::from_millis(30);
/// How often a survey that is not whole is made again.
const ROUNDS: u32 = 3;
/// How long after a survey the next one is made at the earliest; doubled each time that nothing had
/// changed, up to the longest.
const PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// How long one leaves an address to another process that is surveying it.
const OTHERS_TIME: Duration = Duration::from_millis(20);
/// The pause when the inboxes cannot be waited for.
const BLIND_PAUSE: Duration = Duration::from_millis(10);

static STEWARD: PerProcess<Mutex<Option<Arc<Steward>>>> = PerProcess::new();

/// The steward of this process; its thread lives from now on as long as the process.
///
/// # Errors
///
/// Those of the system: no descriptors or no thread left.
pub(crate) fn of_this_process() -> io::Result<Arc<Steward>> {
    let mut place = STEWARD.get().lock();
    if let Some(steward) = &*place {
        return Ok(steward.clone());
    }
    let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let steward = Steward {
        _tracked: Tracked::new(&waker),
        waker,
        state: Mutex::default(),
        outbox: Mutex::default(),
    };
    let steward = Arc::new(steward);
    let thread = steward.clone();
    spawn_deaf(Builder::new().name("urxe-slots".into()), move || thread.run())?;
    *place = Some(steward.clone());
    Ok(steward)
}

/// The steward, where this process has one. No lock is held when this returns.
pub(super) fn present() -> Option<Arc<Steward>> {
    STEWARD.get().lock().clone()
}

/// Notes that packets for `destination` came to sockets that are not theirs.
pub(crate) fn alarm(destination: Gid) {
    let Some(steward) = present() else { return };
    for address in steer::addresses_of(destination.to_ip()) {
        steward.plan(address, Urgency::Alarm);
    }
}

/// Asks for a survey of an address at once, where this process has a steward.
pub(crate) fn survey(address: SocketAddr) {
    if let Some(steward) = present() {
        steward.plan(address, Urgency::AtOnce);
    }
}

/// Notes that a probe of a survey came to a socket of this process.
pub(crate) fn note_probe(destination: Gid, survey: u64) {
    if let Some(steward) = present() {
        steward.leave_to_others(&steer::addresses_of(destination.to_ip()), survey);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Urgency {
    /// After the pause since the last survey, or when others should be done with theirs.
    Alarm,
    AtOnce,
}

/// Reads the inboxes of a process, and keeps the steering of its addresses right.
#[derive(Debug)]
pub(crate) struct Steward {
    _tracked: Tracked,
    waker: OwnedFd,
    state: Mutex<State>,
    /// Taken by itself.
    outbox: Mutex<Outbox>,
}

#[derive(Debug, Default)]
struct State {
    /// The inboxes, each with the slot whose shard gets what comes.
    inboxes: Vec<(u8, Arc<Inbox>)>,
    plans: HashMap<SocketAddr, Plan>,
    /// The number of the survey under way.
    own_survey: Option<u64>,
}

/// When an address is to be surveyed.
#[derive(Clone, Debug)]
struct Plan {
    due: Option<Instant>,
    urgency: Urgency,
    /// No survey before, unless it is urgent.
    quiet_until: Instant,
    pause: Duration,
    /// The order that the last survey found.
    found: Vec<Option<u8>>,
}

/// A survey under way.
struct Running {
    address: SocketAddr,
    prober: Prober,
    /// The slot that answers are sent to.
    slot: u8,
    survey: Survey,
    /// How many indices are probed.
    size: usize,
    round: u32,
    /// When answers to the present chunk are no longer waited for.
    deadline: Instant,
}

impl Steward {
    /// Reads an inbox from now on, for the shard of a slot.
    pub(super) fn serve(&self, slot: u8, inbox: Arc<Inbox>) {
        self.state.lock().inboxes.push((slot, inbox));
        self.wake();
    }

    /// Reads an inbox no more, and lets go of it soon.
    pub(super) fn dismiss(&self, inbox: &Arc<Inbox>) {
        self.state.lock().inboxes.retain(|(_, known)| !Arc::ptr_eq(known, inbox));
        self.wake();
    }

    /// The first inbox that is read of one of these slots.
    pub(super) fn inbox_of(&self, slots: &[u8]) -> Option<(u8, Arc<Inbox>)> {
        let state = self.state.lock();
        state.inboxes.iter().find(|(slot, _)| slots.contains(slot)).cloned()
    }

    /// Whether packets wait for a name: what is sent there now would arrive before them.
    pub(super) fn has_waiting(&self, to: &SocketAddrUnix) -> bool {
        self.outbox.lock().has_any_for(to)
    }

    /// Keeps a packet until there is room for it in the inbox of this name.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED` when nobody has the name, `ENOBUFS` when as much waits as may.
    pub(super) fn keep(&self, to: &SocketAddrUnix, path: &Path, bytes: &[u8]) -> io::Result<()> {
        if self.outbox.lock().keep(to, path, bytes)? {
            self.wake();
        }
        Ok(())
    }

    fn wake(&self) {
        // It can only fail when 2^64 - 2 notifications wait, which is as good as one more.
        let _ = rustix::io::write(&self.waker, &1_u64.to_ne_bytes());
    }

    fn plan(&self, address: SocketAddr, urgency: Urgency) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let plan = state.plans.entry(address).or_insert_with(|| Plan::new(now));
        let is_news = plan.due.is_none() || urgency == Urgency::AtOnce;
        if is_news {
            plan.urgency = urgency;
            plan.due = Some(match urgency {
                Urgency::Alarm => now.max(plan.quiet_until),
                Urgency::AtOnce => now,
            });
        }
        drop(state);
        if is_news {
            self.wake();
        }
    }

    /// Puts off what is not urgent while another process surveys these addresses.
    fn leave_to_others(&self, addresses: &[SocketAddr], survey: u64) {
        let until = Instant::now() + OTHERS_TIME;
        let mut state = self.state.lock();
        if state.own_survey == Some(survey) {
            return;
        }
        for address in addresses {
            if let Some(plan) = state.plans.get_mut(address) {
                plan.quiet_until = plan.quiet_until.max(until);
                if plan.urgency == Urgency::Alarm {
                    // If it did not help, another packet will go astray.
                    plan.due = None;
                }
            }
        }
    }

    fn run(&self) {
        let mut buffer = vec![0; MAX_LETTER + 1];
        let mut running: Option<Running> = None;
        let mut is_blind = false;
        loop {
            let (inboxes, due) = self.inboxes_and_due();
            let end = running.as_ref().map_or(due, |running| Some(running.deadline));
            let lines = self.outbox.lock().lines();
            match self.wait(&inboxes, &lines, end) {
                Ok(()) => is_blind = false,
                Err(error) => {
                    if !is_blind {
                        tracing::error!(target: "rxe::net", %error, "cannot wait for letters");
                    }
                    is_blind = true;
                    std::thread::sleep(BLIND_PAUSE);
                }
            }
            for (slot, inbox) in &inboxes {
                read_letters(*slot, inbox, &mut buffer, &mut |letter| match letter {
                    Letter::Packets(_) => {}
                    Letter::Answer(answer) => note(&mut running, answer),
                    Letter::Renew(address) => {
                        if steer::has(address) {
                            self.plan(address, Urgency::Alarm);
                        }
                    }
                });
            }
            drop(inboxes);
            if !lines.is_empty() {
                self.outbox.lock().send();
            }
            running = match running {
                Some(running) => self.go_on(running),
                None => self.start_what_is_due(),
            };
        }
    }

    /// The inboxes, and when the next survey is due.
    fn inboxes_and_due(&self) -> (Vec<(u8, Arc<Inbox>)>, Option<Instant>) {
        let state = self.state.lock();
        (state.inboxes.clone(), state.plans.values().filter_map(|plan| plan.due).min())
    }

    /// Waits for a letter, for room on a line, until `end`, or for a call of [`Self::wake`].
    fn wait(
        &self,
        inboxes: &[(u8, Arc<Inbox>)],
        lines: &[Arc<Line>],
        end: Option<Instant>,
    ) -> io::Result<()> {
        let read = std::iter::once(self.waker.as_fd())
            .chain(inboxes.iter().map(|(_, inbox)| inbox.as_fd()))
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let written =
            lines.iter().map(|line| PollFd::from_borrowed_fd(line.as_fd(), PollFlags::OUT));
        let mut waited: Vec<_> = read.chain(written).collect();
        let left = end.map(|end| {
            let left = end.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() }
        });
        match poll(&mut waited, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // Non-blocking: what is there is taken.
        let _ = rustix::io::read(&self.waker, &mut [0; 8]);
        Ok(())
    }

    /// Begins a survey that is due.
    fn start_what_is_due(&self) -> Option<Running> {
        let now = Instant::now();
        let address = {
            let mut state = self.state.lock();
            let due = |plan: &Plan| plan.due.is_some_and(|due| due <= now);
            let (address, plan) = state.plans.iter_mut().find(|(_, plan)| due(plan))?;
            plan.due = None;
            *address
        };
        match self.begin(address, 0) {
            Ok(Some(running)) => Some(running),
            Ok(None) => {
                self.finish(address, None);
                None
            }
            Err(error) => {
                tracing::warn!(target: "rxe::net", %address, %error, "cannot survey an address");
                self.finish(address, None);
                None
            }
        }
    }

    /// Begins a survey of an address; `None` where none is needed.
    fn begin(&self, address: SocketAddr, round: u32) -> io::Result<Option<Running>> {
        let Some(own) = steer::members_to_survey(address) else { return Ok(None) };
        // Answers come to the inbox of one of these.
        let Some((slot, _)) = self.inbox_of(&own) else { return Ok(None) };
        let number = OsRng.try_next_u64().map_err(io::Error::other)?;
        let count = match holder::sockets_on(address) {
            Ok(count) => count,
            // There are no more sockets than slots.
            Err(_) => foreign_slots()?.len() + own.len(),
        };
        // More when it did not do: some may have come meanwhile.
        let size = count + round as usize * 2;
        let mut running = Running {
            address,
            prober: Prober::open(address)?,
            slot,
            survey: Survey::new(number, size),
            size,
            round,
            deadline: Instant::now(),
        };
        self.state.lock().own_survey = Some(number);
        running.probe()?;
        Ok(Some(running))
    }

    /// Goes on with a survey when it is time to; `None` when it is over.
    fn go_on(&self, mut running: Running) -> Option<Running> {
        let is_late = running.deadline <= Instant::now();
        if !is_late && !running.survey.is_chunk_answered() {
            return Some(running);
        }
        let address = running.address;
        let next = match running.probe() {
            Ok(true) => return Some(running),
            Ok(false) => self.judge(&running),
            Err(error) => Err(error),
        };
        next.unwrap_or_else(|error| {
            tracing::warn!(target: "rxe::net", %address, %error, "cannot survey an address");
            self.finish(address, None);
            None
        })
    }

    /// Makes a program of a survey that is over, or begins it anew.
    fn judge(&self, running: &Running) -> io::Result<Option<Running>> {
        let Running { address, survey, round, size, .. } = running;
        let own = steer::members_to_survey(*address).unwrap_or_default();
        if !survey.is_whole(&own) && round + 1 < ROUNDS {
            return self.begin(*address, round + 1);
        }
        let order = survey.order();
        tracing::debug!(target: "rxe::net", %address, ?order, size, round, "surveyed");
        if order.iter().any(Option::is_some) {
            steer::install(*address, &order);
        }
        self.finish(*address, Some(order));
        Ok(None)
    }

    /// Notes that a survey is over, with what it found; and when the next one may be.
    fn finish(&self, address: SocketAddr, found: Option<Vec<Option<u8>>>) {
        let now = Instant::now();
        let is_ours = steer::has(address);
        let mut state = self.state.lock();
        state.own_survey = None;
        if !is_ours {
            state.plans.remove(&address);
            return;
        }
        let plan = state.plans.entry(address).or_insert_with(|| Plan::new(now));
        let is_change = found.as_ref().is_some_and(|found| *found != plan.found);
        plan.pause = if is_change { PAUSE } else { (plan.pause * 2).min(LONGEST_PAUSE) };
        plan.found = found.unwrap_or_default();
        plan.quiet_until = now + plan.pause;
        if let (Some(due), Urgency::Alarm) = (plan.due, plan.urgency) {
            plan.due = Some(due.max(plan.quiet_until));
        }
    }
}

impl Plan {
    fn new(now: Instant) -> Self {
        Self {
            due: None,
            urgency: Urgency::Alarm,
            quiet_until: now,
            pause: PAUSE,
            found: Vec::new(),
        }
    }
}

impl Running {
    /// Sends the next probes; false when there are none left.
    fn probe(&mut self) -> io::Result<bool> {
        let chunk = self.survey.next_chunk();
        self.deadline = Instant::now() + ANSWER_TIME;
        let is_more = !chunk.is_empty();
        for index in chunk {
            self.prober.send(index, self.survey.number(), self.slot)?;
        }
        Ok(is_more)
    }
}

fn note(running: &mut Option<Running>, answer: Answer) {
    if let Some(running) = running {
        running.survey.note(answer);
    }
}

/// Reads letters of an inbox, some at a time: gives packets to the slot, all else to `other`.
fn read_letters(slot: u8, inbox: &Inbox, buffer: &mut [u8], other: &mut dyn FnMut(Letter<'_>)) {
    for _ in 0..LETTERS_MAX {
        let bytes = match inbox.receive(buffer) {
            Ok(Received::Letter(bytes)) => bytes,
            Ok(Received::Strange) => continue,
            Ok(Received::Nothing) => return,
            Err(error) => {
                return tracing::debug!(target: "rxe::net", slot, %error, "cannot read letters");
            }
        };
        match Letter::read(bytes) {
            Some(Letter::Packets(packets)) => {
                let Some(reader) = reader(slot) else { continue };
                // Never sent on: what is not for this slot is dropped there.
                packets.for_each(|(path, bytes)| reader.hand_over(&path, bytes));
                reader.wake();
            }
            Some(letter) => other(letter),
            None => tracing::debug!(target: "rxe::net", slot, "a letter that cannot be read"),
        }
    }
}
