//! Who has which slot: this process, by what it keeps; other processes, by the names they hold.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use rxe_core::device::Device;
use rxe_core::path::Path;
use thiserror::Error;

use super::fork::{Generation, PerProcess};
use super::inbox::{Inbox, NameProbe};
use super::name;
use super::steward::{self, Steward};

/// Slots that there are: 1 to 254. QP0 and QP1 are of slot 0, the multicast QPN is of slot 255.
const SLOTS: u32 = 254;

/// All slots of the network namespace are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "all 254 slots of this network namespace are in use: each shard of a device that a process has \
     opened takes one; close devices, or end processes that use urxe"
)]
pub struct NoSlotError;

/// Why a slot cannot be had.
#[derive(Debug, Error)]
pub(crate) enum TakeSlotError {
    /// None is free.
    #[error(transparent)]
    None(#[from] NoSlotError),
    /// The system refused a socket or a thread.
    #[error(transparent)]
    Os(#[from] io::Error),
}

/// Takes packets for a slot that came elsewhere.
pub(crate) trait Reader: Send + Sync + fmt::Debug {
    /// Takes a packet, `bytes` from BTH to pad. It may drop it.
    fn hand_over(&self, path: &Path, bytes: &[u8]);
    /// Sees to it that what was handed over is dealt with.
    fn wake(&self);
}

/// What this process has.
#[derive(Debug, Default)]
struct Own {
    /// Its slots, those too that nobody reads yet.
    taken: Mutex<Vec<u8>>,
    readers: RwLock<HashMap<u8, Weak<dyn Reader>>>,
    /// The slots whose shards have a QP1, each with its device.
    gsi: Mutex<Vec<(u8, DeviceMark)>>,
}

/// Tells devices of this process apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DeviceMark(usize);

impl DeviceMark {
    pub(crate) fn of(device: &Arc<Device>) -> Self {
        Self(Arc::as_ptr(device).addr())
    }
}

static OWN: PerProcess<Own> = PerProcess::new();

/// A slot, taken until it is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    number: u8,
    inbox: Arc<Inbox>,
    steward: Arc<Steward>,
    born: Generation,
}

impl Slot {
    /// Takes a free slot; begins to look at a random place, chosen by `seed`.
    pub(crate) fn take(seed: [u8; 32]) -> Result<Self, TakeSlotError> {
        let steward = steward::of_this_process()?;
        let own = OWN.get();
        let mut taken = own.taken.lock();
        let first = ChaCha8Rng::from_seed(seed).next_u32() % SLOTS;
        for step in 0..SLOTS {
            let number = ((first + step) % SLOTS + 1) as u8;
            // Asked too: threads of one process may be in several namespaces.
            if taken.contains(&number) {
                continue;
            }
            match Inbox::bind(&name::of_slot(number)?) {
                Ok(inbox) => {
                    let inbox = Arc::new(inbox);
                    taken.push(number);
                    steward.serve(number, inbox.clone());
                    return Ok(Self { number, inbox, steward, born: Generation::now() });
                }
                Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(NoSlotError.into())
    }

    pub(crate) const fn number(&self) -> u8 {
        self.number
    }

    /// Whether this process took it, and not one that it was forked from.
    pub(crate) fn is_ours(&self) -> bool {
        self.born.is_now()
    }

    /// What letters are sent from.
    pub(crate) fn inbox(&self) -> Arc<Inbox> {
        self.inbox.clone()
    }

    /// What keeps letters that find no room.
    pub(super) fn steward(&self) -> Arc<Steward> {
        self.steward.clone()
    }

    /// Says who takes what comes for the slot.
    pub(crate) fn publish(&self, reader: Weak<dyn Reader>) {
        OWN.get().readers.write().insert(self.number, reader);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        let own = OWN.get();
        own.readers.write().remove(&self.number);
        self.steward.dismiss(&self.inbox);
        own.gsi.lock().retain(|(number, _)| *number != self.number);
        own.taken.lock().retain(|&number| number != self.number);
    }
}

/// Who takes packets for a slot of this process.
pub(crate) fn reader(slot: u8) -> Option<Arc<dyn Reader>> {
    OWN.get().readers.read().get(&slot).and_then(Weak::upgrade)
}

/// An inbox of one of these slots, where this process reads one.
pub(crate) fn inbox_of(slots: &[u8]) -> Option<(u8, Arc<Inbox>)> {
    steward::present()?.inbox_of(slots)
}

/// Notes whether the shard of a slot has a QP1.
pub(crate) fn note_gsi(slot: u8, device: DeviceMark, is_there: bool) {
    let mut gsi = OWN.get().gsi.lock();
    gsi.retain(|(number, _)| *number != slot);
    if is_there {
        gsi.push((slot, device));
    }
}

/// The slot of this process whose QP1 gets what nobody claims: that of `slot` itself where it has
/// one, or one of the same device, or any.
pub(crate) fn gsi_slot(slot: u8, device: DeviceMark) -> Option<u8> {
    let gsi = OWN.get().gsi.lock();
    let own = gsi.iter().find(|(number, _)| *number == slot);
    let own = own.or_else(|| gsi.iter().find(|(_, mark)| *mark == device)).or_else(|| gsi.first());
    own.map(|(number, _)| *number)
}

/// The slots of this process whose shards have a QP1.
pub(crate) fn gsi_slots() -> Vec<u8> {
    OWN.get().gsi.lock().iter().map(|(number, _)| *number).collect()
}

/// The slots of other processes in this network namespace, of any user.
///
/// # Errors
///
/// That of the system call: no descriptors left.
pub(crate) fn foreign_slots() -> io::Result<Vec<u8>> {
    let names = NameProbe::new()?;
    let taken = OWN.get().taken.lock().clone();
    let mut found = Vec::new();
    for slot in (1..=SLOTS as u8).filter(|slot| !taken.contains(slot)) {
        if names.is_taken(&name::of_slot(slot)?) {
            found.push(slot);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_own(slot: u8) -> bool {
        OWN.get().taken.lock().contains(&slot)
    }

    #[test]
    fn a_slot_is_taken_once_in_the_namespace_and_free_again() {
        let seed = [7; 32];
        let one = Slot::take(seed).expect("a slot");
        let two = Slot::take(seed).expect("another");
        assert_ne!(one.number(), two.number());
        assert!(is_own(one.number()) && is_own(two.number()));
        // What another process would see.
        let names = NameProbe::new().expect("a socket");
        let address = name::of_slot(one.number()).expect("a name");
        assert!(names.is_taken(&address));
        let error = Inbox::bind(&address).expect_err("taken");
        assert_eq!(error.raw_os_error(), Some(libc::EADDRINUSE));
        let number = one.number();
        drop(one);
        assert!(!is_own(number));
        // The steward may hold the inbox for a moment.
        let start = std::time::Instant::now();
        while names.is_taken(&address) {
            assert!(start.elapsed().as_secs() < 10, "the name stays");
            std::thread::yield_now();
        }
    }

    #[test]
    fn slots_of_other_processes_are_seen() {
        // As another process would: not by this one's registry.
        let (number, inbox) = (1..=254_u8)
            .rev()
            .find_map(|slot| Some((slot, Inbox::bind(&name::of_slot(slot).ok()?).ok()?)))
            .expect("a free name");
        assert!(foreign_slots().expect("asked").contains(&number));
        drop(inbox);
        assert!(!foreign_slots().expect("asked").contains(&number));
    }
}
