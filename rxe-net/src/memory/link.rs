//! A link over a fabric in memory.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use gid_table::Gid;
use rxe_core::path::Unreachable;
use rxe_core::time::Instant;
use rxe_wire::icrc::check_l3;

use super::fabric::Fabric;
use super::port::{PortId, Waker};
use super::queue::Received;
use super::state::Sender;
use crate::batch::TxBatch;
use crate::faults::FaultStats;
use crate::link::{Link, LinkCounters, Sink, TransmitReport};

/// Packets that one round of receiving takes at most.
const RECEIVE_MAX: usize = 64;

/// A link attached to a port of a [`Fabric`], for the QPs of one slot.
///
/// A simulation looks after each step. A thread that sleeps is woken by the callback of
/// [`MemoryLink::set_waker`], or by a file descriptor after [`MemoryLink::open_poll_fd`]. Dropping
/// the link detaches it.
pub struct MemoryLink {
    fabric: Fabric,
    sender: Sender,
    /// The round of receiving at hand; kept for its memory.
    round: Vec<Received>,
    /// What this side counts; the fabric counts what is sent.
    received: LinkCounters,
    bell: Option<Bell>,
}

/// A file descriptor that becomes readable when the waker is called.
#[derive(Debug)]
struct Bell {
    reader: UnixStream,
    /// The same socket once more, to be shared with whoever waits.
    shared: Arc<OwnedFd>,
}

impl Bell {
    /// Takes what has rung so far; what rings later counts anew.
    fn silence(&self) {
        let mut bytes = [0; 64];
        // It ends with an error, that nothing is left; another error would come again and again.
        while (&self.reader).read(&mut bytes).is_ok_and(|count| count > 0) {}
    }
}

impl fmt::Debug for MemoryLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLink")
            .field("fabric", &self.fabric)
            .field("port", &self.port())
            .finish_non_exhaustive()
    }
}

impl MemoryLink {
    pub(super) fn new(fabric: Fabric, sender: Sender) -> Self {
        Self { fabric, sender, round: Vec::new(), received: LinkCounters::default(), bell: None }
    }

    /// The fabric it is attached to.
    pub const fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The port it is attached to.
    pub const fn port(&self) -> PortId {
        PortId(self.sender.port)
    }

    /// Receives the packets of a multicast group from now on. R49.
    ///
    /// The port's own packets to the group come too, as on a host: the engine knows its own.
    pub fn join(&self, group: Gid) {
        self.fabric.with(|state| {
            if let Some(endpoint) = state.endpoint_mut(self.sender)
                && !endpoint.groups.contains(&group)
            {
                endpoint.groups.push(group);
            }
        });
    }

    /// Receives the packets of a multicast group no more.
    pub fn leave(&self, group: Gid) {
        self.fabric.with(|state| {
            if let Some(endpoint) = state.endpoint_mut(self.sender) {
                endpoint.groups.retain(|joined| *joined != group);
            }
        });
    }

    /// Sets what is called when something has come, or [`Link::poll_timeout`] may be earlier.
    ///
    /// It is called from whatever thread sends or advances, without a lock of the fabric; to
    /// write to an eventfd or to unpark a thread is what it is for.
    pub fn set_waker(&self, waker: Option<Waker>) {
        self.fabric.with(|state| {
            if let Some(endpoint) = state.endpoint_mut(self.sender) {
                endpoint.waker = waker;
            }
        });
    }

    /// Gives the link a file descriptor for [`Link::poll_fd`]; it takes the place of the waker.
    ///
    /// # Errors
    ///
    /// Those of making a pair of sockets.
    pub fn open_poll_fd(&mut self) -> io::Result<()> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        let shared = Arc::new(OwnedFd::from(reader.try_clone()?));
        self.bell = Some(Bell { reader, shared });
        self.set_waker(Some(Arc::new(move || {
            // When it is full, it has rung and nobody has heard it yet.
            let _ = (&writer).write(&[0]);
        })));
        Ok(())
    }

    /// What the faults of its port have done to what this link sent.
    pub fn fault_stats(&self) -> FaultStats {
        self.fabric.with(|state| {
            let faults = state.endpoint(self.sender).and_then(|found| found.faults.as_ref());
            faults.map_or_else(FaultStats::default, |faults| faults.stats())
        })
    }
}

impl MemoryLink {
    /// Fetches the next packets that have come; returns how many.
    fn take_round(&mut self, now: Instant) -> usize {
        let Self { fabric, sender, round, .. } = self;
        fabric.with(|state| {
            state.recycle(round.drain(..).map(|received| received.frame));
            state.advance(now);
            let queue = state.endpoint_mut(*sender).map(|endpoint| &mut endpoint.queue);
            if let Some(queue) = queue {
                round.extend(std::iter::from_fn(|| queue.pop()).take(RECEIVE_MAX));
            }
        });
        round.len()
    }

    /// Gives the good packets fetched to the sink; returns how many.
    ///
    /// Without the lock: the sink runs the engine, and other ports go on meanwhile.
    fn give_round(&mut self, sink: &mut Sink<'_>) -> usize {
        let Self { round, received: counters, .. } = self;
        let mut given = 0;
        for Received { frame, path, l3, packet } in round.iter() {
            if !check_l3(&frame[l3.clone()]).is_ok_and(|check| check.is_good()) {
                counters.icrc_errors += 1;
                continue;
            }
            given += 1;
            counters.received += 1;
            counters.received_bytes += packet.len() as u64;
            sink(path, &frame[packet.clone()]);
        }
        given
    }
}

impl Link for MemoryLink {
    fn transmit(&mut self, now: Instant, batch: &mut TxBatch) -> TransmitReport {
        self.fabric.with(|state| state.transmit(self.sender, now, batch))
    }

    /// As the trait says; and here 0 says that nothing waits, so that a sleeper misses nothing.
    fn receive(&mut self, now: Instant, sink: &mut Sink<'_>) -> io::Result<usize> {
        self.received.receive_calls += 1;
        if let Some(bell) = &self.bell {
            bell.silence();
        }
        loop {
            // Ends: each round takes packets out of a bounded queue that time does not fill.
            let taken = self.take_round(now);
            let given = self.give_round(sink);
            if given > 0 || taken == 0 {
                return Ok(given);
            }
        }
    }

    /// One after [`MemoryLink::open_poll_fd`]; it is also readable when only the timeout changed.
    fn poll_fd(&self) -> Option<Arc<OwnedFd>> {
        self.bell.as_ref().map(|bell| Arc::clone(&bell.shared))
    }

    fn poll_unreachable(&mut self) -> Option<Unreachable> {
        self.fabric.with(|state| state.endpoint_mut(self.sender)?.unreachable.pop_front())
    }

    /// When the next thing happens in the fabric, whomever it concerns.
    fn poll_timeout(&self) -> Option<Instant> {
        self.fabric.next_event_time()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.fabric.advance(now);
    }

    fn counters(&self) -> LinkCounters {
        let mut counters = self.received;
        self.fabric.with(|state| {
            if let Some(endpoint) = state.endpoint(self.sender) {
                counters += endpoint.counters;
                counters.faults += endpoint.faults.as_ref().map_or(0, |f| f.stats().total());
            }
        });
        counters
    }
}

impl Drop for MemoryLink {
    fn drop(&mut self) {
        self.fabric.with(|state| state.detach(self.sender));
    }
}
