//! What a link is to the runtime: it carries the engine's packets to the network and back.

use std::io;
use std::ops::AddAssign;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rxe_core::packet_run::PacketRun;
use rxe_core::path::{Path, Unreachable};
use rxe_core::time::Instant;

use crate::batch::TxBatch;

/// Takes a packet that came: its addressing, and its bytes from BTH to the last pad byte.
///
/// The link has checked and removed the iCRC. The bytes are lent for the call only.
pub type Sink<'a> = dyn FnMut(&Path, &[u8]) + 'a;

/// As [`Sink`], for packets that came together.
pub type RunSink<'a> = dyn FnMut(&Path, PacketRun<'_>) + 'a;

/// Carries packets between an engine and a network.
///
/// The runtime owns a link and calls it from one thread at a time:
///
/// 1. [`transmit`](Self::transmit) whenever the engine has filled a batch, and
///    [`transmit_rest`](Self::transmit_rest) a little later when some of it is still there;
/// 2. [`receive`](Self::receive) when [`poll_fd`](Self::poll_fd) is readable, or to look;
/// 3. [`handle_timeout`](Self::handle_timeout) when [`poll_timeout`](Self::poll_timeout) is due;
/// 4. [`poll_unreachable`](Self::poll_unreachable) after each of these, until it is empty.
///
/// `now` never goes backwards. No method blocks.
pub trait Link: Send {
    /// Sends the packets of `batch` in their order, each with its iCRC, and takes them out of it.
    ///
    /// It cannot fail: a packet that does not leave the host is lost like one that the network
    /// dropped (rule R18), and counted. So the engine's recovery is the only recovery. But what
    /// the host has no room for at present is not lost yet: it stays in the batch, with all that
    /// follows it, for [`transmit_rest`](Self::transmit_rest) (rule R40).
    fn transmit(&mut self, now: Instant, batch: &mut TxBatch) -> TransmitReport;

    /// Sends what an earlier call left in the batch, to which nothing was added since.
    ///
    /// As [`transmit`](Self::transmit) in all else. Links that do something to each packet but
    /// once implement it.
    fn transmit_rest(&mut self, now: Instant, batch: &mut TxBatch) -> TransmitReport {
        self.transmit(now, batch)
    }

    /// Does one bounded round of receiving; gives each good packet to `sink`.
    ///
    /// Returns how many packets `sink` got. A return of 0 does not say that nothing waits: what
    /// came may have been dropped. Packets for slots of other shards come too, when the kernel
    /// steered them wrongly; the caller looks at the slot of the destination QPN and forwards.
    ///
    /// # Errors
    ///
    /// Those of the operating system that will not go away by themselves, such as a closed
    /// socket. Bad packets are counted instead, and so are errors of single packets.
    fn receive(&mut self, now: Instant, sink: &mut Sink<'_>) -> io::Result<usize>;

    /// As [`receive`](Self::receive), and gives good packets that came together to `sink` together:
    /// the engine takes less time for them then.
    ///
    /// Links to which packets do not come together have nothing to implement.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive).
    fn receive_runs(&mut self, now: Instant, sink: &mut RunSink<'_>) -> io::Result<usize> {
        self.receive(now, &mut |path, bytes| sink(path, PacketRun::of_one(bytes)))
    }

    /// The file descriptor that becomes readable when there is something to receive.
    ///
    /// It stays the same for the life of the link: wait on it, nothing else. It is shared, so that
    /// whoever waits needs neither the link nor its lock. `None` when the link has none.
    fn poll_fd(&self) -> Option<Arc<OwnedFd>>;

    /// Whether all that comes to its address for the slot of its shard comes to this link, whoever
    /// else gets it too.
    ///
    /// Then what another process has got and passes on came here already.
    fn hears_all(&self) -> bool {
        false
    }

    /// The next hint that a packet did not arrive, gathered by the other calls.
    ///
    /// ICMP errors are easily forged and peers restart: a hint of loss, never a failure.
    fn poll_unreachable(&mut self) -> Option<Unreachable> {
        None
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called; `None` when never.
    ///
    /// Only links that hold packets back have a timeout.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Sends what was held back until `now`; a call too early does nothing.
    fn handle_timeout(&mut self, now: Instant) {
        let _ = now;
    }

    /// Receives no more, gives what has still come to `sink`, and closes.
    ///
    /// A link that is merely dropped closes too, but what came to it for other shards is lost.
    /// Whoever has what [`poll_fd`](Self::poll_fd) returned gives it up before.
    fn close(self: Box<Self>, now: Instant, sink: &mut Sink<'_>) {
        let _ = (now, sink);
    }

    /// What happened on this link since it was made.
    fn counters(&self) -> LinkCounters;
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn transmit(&mut self, now: Instant, batch: &mut TxBatch) -> TransmitReport {
        (**self).transmit(now, batch)
    }

    fn transmit_rest(&mut self, now: Instant, batch: &mut TxBatch) -> TransmitReport {
        (**self).transmit_rest(now, batch)
    }

    fn receive(&mut self, now: Instant, sink: &mut Sink<'_>) -> io::Result<usize> {
        (**self).receive(now, sink)
    }

    fn receive_runs(&mut self, now: Instant, sink: &mut RunSink<'_>) -> io::Result<usize> {
        (**self).receive_runs(now, sink)
    }

    fn poll_fd(&self) -> Option<Arc<OwnedFd>> {
        (**self).poll_fd()
    }

    fn hears_all(&self) -> bool {
        (**self).hears_all()
    }

    fn poll_unreachable(&mut self) -> Option<Unreachable> {
        (**self).poll_unreachable()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (**self).poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        (**self).handle_timeout(now);
    }

    fn close(self: Box<Self>, now: Instant, sink: &mut Sink<'_>) {
        (*self).close(now, sink);
    }

    fn counters(&self) -> LinkCounters {
        (**self).counters()
    }
}

/// What became of a batch. What is still in it is neither sent nor lost.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TransmitReport {
    /// Packets that the link took: handed to the kernel, delivered, or held for later.
    pub sent: usize,
    /// Packets that the host dropped, which the engine recovers like any loss (rule R18).
    pub lost: usize,
}

impl TransmitReport {
    /// Packets that the call has dealt with: those that are not left for another one.
    pub const fn done(self) -> usize {
        self.sent + self.lost
    }
}

impl AddAssign for TransmitReport {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.lost += other.lost;
    }
}

/// Counts of what happened on a link since it was made; they only grow.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LinkCounters {
    /// Packets sent.
    pub sent: u64,
    /// Bytes sent, from BTH to iCRC.
    pub sent_bytes: u64,
    /// Packets given to the sink.
    pub received: u64,
    /// Bytes given to the sink, from BTH to pad.
    pub received_bytes: u64,
    /// Packets dropped because the iCRC was wrong.
    pub icrc_errors: u64,
    /// Packets dropped as too short or too long to be one, or cut off (rule R35).
    pub malformed: u64,
    /// Packets that were not for this link: another address or another encapsulation.
    pub foreign: u64,
    /// Packets lost in this host: buffers full, no route, refused by a filter (rule R18).
    pub send_errors: u64,
    /// Calls that found no room in this host, so that packets had to wait (rule R40).
    pub send_waits: u64,
    /// Calls that found a pending ICMP error and were repeated.
    pub pending_errors: u64,
    /// ICMP errors that quoted a packet of this link.
    pub unreachable: u64,
    /// Times that segmentation offload was refused and the link sent with less of it from then.
    pub gso_fallbacks: u64,
    /// Messages that the kernel dropped because the receive buffer was full, as far as it told:
    /// with the next message that comes. A message is a packet or a coalesced run of them.
    pub receive_overflows: u64,
    /// System calls that sent.
    pub send_calls: u64,
    /// System calls that received, the empty ones too.
    pub receive_calls: u64,
    /// Packets that came for other slots and were passed on to them, by the runtime.
    pub forwarded: u64,
    /// Packets that came for slots of other processes and were dropped, by the runtime: whoever has
    /// the slot could not take more. (Those for nobody's slot are the engine's to drop.)
    pub astray: u64,
    /// Faults injected: packets dropped, doubled, moved, corrupted, delayed.
    pub faults: u64,
}

impl AddAssign for LinkCounters {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.sent_bytes += other.sent_bytes;
        self.received += other.received;
        self.received_bytes += other.received_bytes;
        self.icrc_errors += other.icrc_errors;
        self.malformed += other.malformed;
        self.foreign += other.foreign;
        self.send_errors += other.send_errors;
        self.send_waits += other.send_waits;
        self.pending_errors += other.pending_errors;
        self.unreachable += other.unreachable;
        self.gso_fallbacks += other.gso_fallbacks;
        self.receive_overflows += other.receive_overflows;
        self.send_calls += other.send_calls;
        self.receive_calls += other.receive_calls;
        self.forwarded += other.forwarded;
        self.astray += other.astray;
        self.faults += other.faults;
    }
}
