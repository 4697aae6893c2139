//! Packets that came to a socket of this shard and are not for it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use gid_table::Gid;
use rustix::net::SocketAddrUnix;
use rxe_core::path::Path;
use rxe_core::time::Instant;
use rxe_wire::mad::cm::ServiceId;

use super::gsi::{self, Claim};
use super::inbox::{Inbox, NameProbe};
use super::letter::{Answer, PacketLetter};
use super::registry::{DeviceMark, Slot, gsi_slot, gsi_slots, reader};
use super::steward::Steward;
use super::{name, service, steward};
use crate::udp::probe::{self, Probe};

/// How long it is believed whether somebody has a slot.
const BELIEVED_NANOS: u64 = 10_000_000;
/// Letters that are sent in one round of receiving at most: a peer that changes the slot with each
/// packet must not make each a system call.
const LETTERS_MAX: u32 = 32;

/// Sends a shard's misdelivered packets on to whom they are for.
#[derive(Debug)]
pub(crate) struct Detour {
    slot: u8,
    device: DeviceMark,
    inbox: Arc<Inbox>,
    steward: Arc<Steward>,
    letter: PacketLetter,
    /// Where the letter goes, and a local address that its packets were for.
    to: (u8, Gid),
    /// Letters sent in this round.
    sent: u32,
    /// A local address at which packets came in this round to a socket that is not theirs, although
    /// theirs exists.
    misdelivered_at: Option<Gid>,
    /// For each slot whether another process has it, and until when that is believed.
    known: Box<[(bool, Instant); 256]>,
    counters: DetourCounters,
}

/// What a shard has done with packets that were not for it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct DetourCounters {
    /// Packets handed to another shard of this process, or sent to another process.
    pub(crate) forwarded: u64,
    /// Packets dropped: the inbox of the slot was full, or gone.
    pub(crate) lost: u64,
}

/// What became of a packet to QP1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Passed {
    /// It is on its way, or lost.
    On,
    /// It is for this shard.
    ToSelf,
    /// Nobody says that it is for him.
    ToNobody,
}

impl Detour {
    pub(crate) fn new(slot: &Slot, device: DeviceMark) -> Self {
        Self {
            slot: slot.number(),
            device,
            inbox: slot.inbox(),
            steward: slot.steward(),
            letter: PacketLetter::default(),
            to: (0, Gid::ZERO),
            sent: 0,
            misdelivered_at: None,
            known: Box::new([(false, Instant::ZERO); 256]),
            counters: DetourCounters::default(),
        }
    }

    pub(crate) const fn counters(&self) -> DetourCounters {
        self.counters
    }

    /// Takes a packet whose slot is `destined`; false when it is this shard's after all, or
    /// nobody's: then the engine drops and counts it.
    ///
    /// It may still be on its way when this returns: [`flush`](Self::flush) ends a round.
    #[cold]
    pub(crate) fn take(&mut self, now: Instant, destined: u8, path: &Path, bytes: &[u8]) -> bool {
        match destined {
            0 => self.take_gsi(now, path, bytes),
            255 => match probe::read(path, bytes) {
                Some(probe) => {
                    self.answer(path, probe);
                    true
                }
                // The multicast QPN.
                None => false,
            },
            destined => {
                if self.hand_over(destined, path, bytes) {
                    self.misdelivered_at = Some(path.destination);
                    return true;
                }
                let is_taken = self.is_taken(now, destined);
                if is_taken {
                    self.write(destined, path, bytes);
                }
                is_taken
            }
        }
    }

    /// Gives a packet to the shard of another slot of this process, if there is one.
    fn hand_over(&mut self, slot: u8, path: &Path, bytes: &[u8]) -> bool {
        let Some(reader) = reader(slot) else { return false };
        self.counters.forwarded += 1;
        reader.hand_over(path, bytes);
        reader.wake();
        true
    }

    /// Takes a packet to QP1; false when it is this shard's, or QP0's.
    fn take_gsi(&mut self, now: Instant, path: &Path, bytes: &[u8]) -> bool {
        let claimed = match gsi::claim(bytes) {
            Claim::Slot(slot) => self.pass_to_slot(now, slot, path, bytes),
            Claim::Service(id) => self.pass_to_service(id, path, bytes),
            Claim::Everybody => {
                self.pass_to_all(now, path, bytes);
                Passed::ToNobody
            }
            Claim::Nobody => Passed::ToNobody,
        };
        match claimed {
            Passed::On => true,
            Passed::ToSelf => false,
            // For whoever got it, where there is a QP1.
            Passed::ToNobody => match gsi_slot(self.slot, self.device) {
                Some(slot) if slot != self.slot => self.hand_over(slot, path, bytes),
                _ => false,
            },
        }
    }

    fn pass_to_slot(&mut self, now: Instant, slot: u8, path: &Path, bytes: &[u8]) -> Passed {
        if slot == self.slot {
            return Passed::ToSelf;
        }
        let is_passed = self.hand_over(slot, path, bytes)
            || self.is_taken(now, slot) && self.send_one(name::of_slot(slot), path, bytes);
        if is_passed { Passed::On } else { Passed::ToNobody }
    }

    fn pass_to_service(&mut self, id: ServiceId, path: &Path, bytes: &[u8]) -> Passed {
        // Whoever serves it on this very address comes before whoever does so on all.
        for at in [Some(path.destination.to_ip()), None] {
            match service::own_slot(id, at) {
                Some(slot) if slot == self.slot => return Passed::ToSelf,
                Some(slot) if self.hand_over(slot, path, bytes) => return Passed::On,
                _ if self.send_one(name::of_service(id, at), path, bytes) => return Passed::On,
                _ => {}
            }
        }
        Passed::ToNobody
    }

    /// Gives a packet to all QP1s but the one that it is for if nobody claims it.
    fn pass_to_all(&mut self, now: Instant, path: &Path, bytes: &[u8]) {
        let first = gsi_slot(self.slot, self.device);
        for slot in gsi_slots().into_iter().filter(|&slot| Some(slot) != first) {
            self.hand_over(slot, path, bytes);
        }
        for slot in 1..=254 {
            // What a slot without a QP1 gets, it drops.
            if reader(slot).is_none() && self.is_taken(now, slot) {
                self.send_one(name::of_slot(slot), path, bytes);
            }
        }
    }

    /// Sends a packet, at once where there is room; false when nobody has the name.
    fn send_one(&mut self, to: io::Result<SocketAddrUnix>, path: &Path, bytes: &[u8]) -> bool {
        match to.and_then(|to| self.send_or_keep(&to, path, bytes)) {
            Ok(()) => self.counters.forwarded += 1,
            Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) => return false,
            Err(error) => {
                tracing::debug!(target: "rxe::net", %error, "cannot forward a packet to QP1");
                self.counters.lost += 1;
            }
        }
        true
    }

    fn send_or_keep(&mut self, to: &SocketAddrUnix, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut letter = PacketLetter::default();
        let may_send = self.sent < LETTERS_MAX && !self.steward.has_waiting(to);
        if may_send && letter.push(path, bytes) {
            self.sent += 1;
            match self.inbox.send(to, letter.bytes()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
        self.steward.keep(to, path, bytes)
    }

    /// Whether another process has the slot.
    fn is_taken(&mut self, now: Instant, slot: u8) -> bool {
        let known = &mut self.known[usize::from(slot)];
        if known.1 <= now {
            let asked =
                NameProbe::new().and_then(|names| Ok(names.is_taken(&name::of_slot(slot)?)));
            // Without an answer it may be so.
            *known = (asked.unwrap_or(true), now.plus_nanos(BELIEVED_NANOS));
        }
        known.0
    }

    /// Adds a packet to the letter to `destined`.
    fn write(&mut self, destined: u8, path: &Path, bytes: &[u8]) {
        if self.to.0 != destined {
            self.send();
        }
        if self.sent >= LETTERS_MAX {
            self.counters.lost += 1;
            return;
        }
        self.to = (destined, path.destination);
        if self.letter.push(path, bytes) {
            return;
        }
        self.send();
        if !self.letter.push(path, bytes) {
            self.counters.lost += 1;
        }
    }

    /// Sends what waits: at the end of a round of receiving.
    pub(crate) fn flush(&mut self) {
        self.send();
        self.sent = 0;
        // It says that the order of the sockets is another one than the program thinks.
        if let Some(destination) = self.misdelivered_at.take() {
            steward::alarm(destination);
        }
    }

    fn send(&mut self) {
        let count = self.letter.count() as u64;
        if count == 0 {
            return;
        }
        let (slot, destination) = self.to;
        self.sent += 1;
        let result = name::of_slot(slot).and_then(|to| self.inbox.send(&to, self.letter.bytes()));
        self.letter.clear();
        match result {
            Ok(()) => {
                self.counters.forwarded += count;
                self.misdelivered_at = Some(destination);
            }
            Err(error) => {
                tracing::trace!(target: "rxe::net", slot, %error, count, "cannot forward packets");
                self.counters.lost += count;
                // It may have gone a moment ago.
                self.known[usize::from(slot)].1 = Instant::ZERO;
            }
        }
    }

    /// Tells whoever makes a survey where the kernel has this socket.
    fn answer(&mut self, path: &Path, probe: Probe) {
        if self.sent >= LETTERS_MAX {
            return;
        }
        self.sent += 1;
        let Probe { survey, index, slot } = probe;
        steward::note_probe(path.destination, survey);
        let answer = Answer { survey, index, slot: self.slot }.write();
        if let Err(error) = name::of_slot(slot).and_then(|to| self.inbox.send(&to, &answer)) {
            tracing::debug!(target: "rxe::net", slot, %error, "cannot answer a survey");
        }
    }
}

/// The letter that asks the process of `slot` to survey an address, sent from `inbox`.
pub(crate) fn ask_for_survey(inbox: &Inbox, slot: u8, address: SocketAddr) -> io::Result<()> {
    inbox.send(&name::of_slot(slot)?, &super::letter::write_renew(address))
}
