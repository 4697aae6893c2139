//! A queue pair of the simulation: how far its plan has come.

use std::collections::HashMap;
use std::sync::Arc;

use rxe_core::ah::Destination;
use rxe_core::qp::{QpState, QpType};
use rxe_core::wq::{FlushLevel, PostSendError, RemoteAddr, SendData, SendFlags, SendOp, SendWr};
use rxe_core::{Instant, QueuePair, SrqId};
use rxe_wire::hdr::FlushPlacement;

use super::cells::{CellKeys, Cells, Change};
use super::keys::Key;
use super::memory::{Memory, Place};
use super::plan::{Action, End, Flaw, Request};
use super::supply::Progress;

/// Far behind the end of any region.
const FAR: u64 = 1 << 40;

/// A queue pair, and how far its plan has come.
pub(super) struct SimQp {
    pub(super) node: usize,
    pub(super) qp: Arc<QueuePair>,
    /// Its peer; itself, where it has none.
    pub(super) peer: usize,
    /// Its memory, and where its receives come from, by their places in the world.
    pub(super) memory: usize,
    pub(super) supply: usize,
    /// What its peers may do atomics on.
    pub(super) cells: CellKeys,
    pub(super) end: End,
    /// The keys that it makes.
    pub(super) keys: Vec<Key>,
    pub(super) posted: Progress,
    /// Requests that have completed, and messages that have arrived.
    pub(super) sends_done: usize,
    pub(super) messages_done: usize,
    /// The plan of the connection has a flaw.
    pub(super) may_fail: bool,
    /// A request, or a receive, has failed: only flushes follow.
    pub(super) sends_failed: bool,
    pub(super) receives_failed: bool,
    /// Requests that were posted before it was in the error state: none of the others can do
    /// anything.
    pub(super) posted_alive: usize,
    /// The last receive of a shared queue that came, and the last message of what is not reliable.
    pub(super) last_receive: Option<usize>,
    pub(super) last_from: HashMap<usize, usize>,
    /// The shared receive queue of the peer, which XRC requests name.
    pub(super) remote_srq: Option<SrqId>,
    /// Where datagrams go.
    pub(super) destinations: HashMap<usize, [Destination; 2]>,
    /// What was seen in the peer's cells, and what compare-and-swaps compare with.
    pub(super) seen: HashMap<usize, u64>,
    compared: HashMap<usize, u64>,
    /// When the program moves it to the error state, being done with it.
    pub(super) ends_at: Option<Instant>,
    pub(super) is_over: bool,
}

impl SimQp {
    pub(super) fn new(
        node: usize,
        qp: Arc<QueuePair>,
        peer: usize,
        [memory, supply]: [usize; 2],
        cells: CellKeys,
        end: End,
    ) -> Self {
        Self {
            node,
            qp,
            peer,
            memory,
            supply,
            cells,
            end,
            keys: Vec::new(),
            posted: Progress::default(),
            sends_done: 0,
            messages_done: 0,
            may_fail: false,
            sends_failed: false,
            receives_failed: false,
            posted_alive: 0,
            last_receive: None,
            last_from: HashMap::new(),
            remote_srq: None,
            destinations: HashMap::new(),
            seen: HashMap::new(),
            compared: HashMap::new(),
            ends_at: None,
            is_over: false,
        }
    }

    pub(super) fn is_reliable(&self) -> bool {
        self.qp.qp_type().is_reliable()
    }

    pub(super) fn are_sends_done(&self) -> bool {
        self.sends_done == self.end.requests.len()
    }

    /// What a request does to a cell, once it has been posted.
    pub(super) fn change(&self, number: usize) -> Option<(usize, Change)> {
        match self.end.requests[number].action {
            Action::FetchAdd(cell, add) => Some((cell, Change::Add(add))),
            Action::CompareSwap(cell, swap) => {
                let compare = self.compared.get(&number).copied().unwrap_or(0);
                Some((cell, Change::Swap { compare, swap }))
            }
            _ => None,
        }
    }

    /// Posts the next request, if there is room for it.
    pub(super) fn post_send(
        &mut self,
        own: &Memory,
        peer: &Memory,
        peer_cells: CellKeys,
        peer_keys: &[Key],
        cells: &Cells,
    ) -> Result<bool, String> {
        let number = self.posted.count;
        if let Action::CompareSwap(cell, _) = self.end.requests[number].action {
            let compare = self.seen.get(&cell).copied().unwrap_or_else(|| cells.initial(cell));
            self.compared.insert(number, compare);
        }
        let request = &self.end.requests[number];
        let op = self.operation(number, peer, peer_cells, peer_keys)?;
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, request.signaled);
        flags.set(SendFlags::FENCE, request.fence);
        flags.set(SendFlags::SOLICITED, request.solicited);
        let is_bad = request.flaw == Some(Flaw::OwnKey);
        let lkey = if is_bad { own.stale_lkey() } else { own.lkey() };
        let sges = own.sges(&request.pieces, lkey);
        let data =
            if request.inline { SendData::Inline(&request.data) } else { SendData::Sges(&sges) };
        let wr = SendWr { wr_id: number as u64, op, flags, data, srq_number: self.remote_srq };
        let is_alive = self.qp.state() != QpState::Err;
        match self.qp.post_send(&wr) {
            Ok(()) => {
                self.posted_alive += usize::from(is_alive);
                Ok(true)
            }
            Err(PostSendError::Full { .. }) => Ok(false),
            Err(error) => Err(format!("post_send: {error}")),
        }
    }

    fn operation(
        &self,
        number: usize,
        peer: &Memory,
        peer_cells: CellKeys,
        peer_keys: &[Key],
    ) -> Result<SendOp, String> {
        let request = &self.end.requests[number];
        let Request { imm, flaw, .. } = *request;
        let spoil = |remote: RemoteAddr| match flaw {
            Some(Flaw::StaleKey) => RemoteAddr { rkey: peer.stale_rkey(), ..remote },
            Some(Flaw::LocalKey) => RemoteAddr { rkey: peer.local_rkey(), ..remote },
            Some(Flaw::OutOfRange) if request.action.wants_alignment() => {
                RemoteAddr { addr: remote.addr.wrapping_add(FAR), ..remote }
            }
            Some(Flaw::OutOfRange) => peer.remote(peer.last_byte()),
            // R28: without data the key does not matter.
            None if request.data.is_empty() && number.is_multiple_of(2) => {
                RemoteAddr { rkey: peer.stale_rkey(), ..remote }
            }
            None | Some(Flaw::OwnKey | Flaw::QueueKey | Flaw::TakenKey) => remote,
        };
        let place = |offset: usize| match request.via {
            // Whatever it names, the key is not valid any more.
            Some(key) if flaw == Some(Flaw::TakenKey) => peer_keys[key].first(),
            Some(key) => spoil(peer_keys[key].remote(offset)),
            None => spoil(peer.remote(offset)),
        };
        Ok(match request.action {
            Action::Send => SendOp::Send { imm },
            Action::Write(offset) => SendOp::Write { remote: place(offset), imm },
            Action::Read(offset) => SendOp::Read { remote: place(offset) },
            Action::FetchAdd(cell, add) => {
                SendOp::FetchAdd { remote: spoil(peer_cells.remote(cell)), add }
            }
            Action::CompareSwap(cell, swap) => {
                let compare = self.compared.get(&number).copied().unwrap_or(0);
                SendOp::CompareSwap { remote: spoil(peer_cells.remote(cell)), compare, swap }
            }
            Action::AtomicWrite(offset) => SendOp::AtomicWrite { remote: place(offset) },
            Action::Flush(Place { offset, len }) => SendOp::Flush {
                remote: peer.remote(offset),
                // Fits: messages here are short.
                length: len as u32,
                placement: FlushPlacement::GLOBAL_VISIBILITY,
                level: if number.is_multiple_of(2) {
                    FlushLevel::Range
                } else {
                    FlushLevel::Region
                },
            },
            Action::SendInvalidate(key) => SendOp::SendInvalidate { rkey: peer_keys[key].rkey() },
            Action::MakeKey(key) => self.keys[key].make(),
            Action::LocalInvalidate(key) => SendOp::LocalInvalidate { key: self.keys[key].rkey() },
            Action::SendTo(target) => {
                let both = self.destinations.get(&target).ok_or("no way there")?;
                SendOp::SendTo { to: both[usize::from(flaw == Some(Flaw::QueueKey))], imm }
            }
        })
    }
}

impl Action {
    /// Whether its place in the peer's memory must be aligned.
    pub fn wants_alignment(self) -> bool {
        matches!(self, Self::FetchAdd(..) | Self::CompareSwap(..) | Self::AtomicWrite(_))
    }
}

/// Whether a queue pair of this type sends.
pub(super) fn sends(qp_type: QpType) -> bool {
    qp_type != QpType::XrcRecv
}
