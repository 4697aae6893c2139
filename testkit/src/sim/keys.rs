//! Keys that requests make and take away: memory windows and regions for fast registration.
//!
//! An end makes its keys by its first requests, and its peer uses them once it could have been told
//! that they are there. Later the peer may take one away by a SEND, or the end itself when the peer
//! is done with it. From then on the key must be refused.

use std::sync::Arc;

use rxe_core::Device;
use rxe_core::mem::{AccessFlags, MrKeys, MwBind, MwType};
use rxe_core::pd::PdId;
use rxe_core::wq::{RemoteAddr, SendOp};
use rxe_wire::RKey;

use super::dice::Dice;
use super::memory::{Memory, Place};

/// What has the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyKind {
    /// A memory window of type 1, which nothing takes away but the end of all.
    Window1,
    /// A memory window of type 2.
    Window,
    /// A memory window of type 2, of which the addresses count from 0.
    ZeroBasedWindow,
    /// A region for fast registration.
    Fast,
}

/// A key to be made, and the bytes that it gives.
#[derive(Clone, Copy, Debug)]
pub struct KeyPlan {
    /// What has it.
    pub kind: KeyKind,
    /// What it gives.
    pub place: Place,
    /// The peer takes it away.
    pub is_taken: bool,
    /// The last request of the peer that uses it.
    pub last_use: Option<usize>,
}

/// What a peer may do by such a key.
const GRANTED: AccessFlags = AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_READ);

/// A key of an end at work.
pub(super) struct Key {
    device: Arc<Device>,
    place: Place,
    make: SendOp,
    rkey: RKey,
    /// What frees it.
    object: Object,
    /// The address of its first byte.
    base: u64,
    /// It stands for memory now.
    pub(super) is_valid: bool,
    /// Its peer may have been told that it is there.
    pub(super) is_known: bool,
}

enum Object {
    Window(RKey),
    Region(MrKeys),
}

impl Key {
    /// Makes what the key is for; the key itself is made by a request.
    pub(super) fn new(
        dice: &mut Dice,
        device: &Arc<Device>,
        pd: PdId,
        plan: &KeyPlan,
        memory: &Memory,
    ) -> Result<Self, String> {
        let KeyPlan { kind, place, .. } = *plan;
        // The low byte of a key is free to choose; but a program that chooses the one of a stale key
        // in the same place makes that valid again.
        let low = dice.below(256) as u32;
        let with_low = |key: u32| {
            let key = RKey::new(key & !0xff | low);
            if key == memory.stale_rkey() { RKey::new(key.get() ^ 1) } else { key }
        };
        let addr = memory.remote(place.offset).addr;
        let length = place.len as u64;
        let (make, rkey, object, base) = if kind == KeyKind::Fast {
            let keys = device.memory().alloc_mr(pd, 4).map_err(|error| error.to_string())?;
            let base = dice.word() >> 16;
            let (buf, offset) = (memory.backing(), place.offset);
            let mapped = device.memory().map_mr(keys, buf, offset, length, base);
            mapped.map_err(|error| error.to_string())?;
            let key = with_low(keys.rkey.get());
            let access = AccessFlags::LOCAL_WRITE | GRANTED;
            (SendOp::RegisterMr { key, access }, key, Object::Region(keys), base)
        } else {
            let mw_type = if kind == KeyKind::Window1 { MwType::Type1 } else { MwType::Type2 };
            let window =
                device.memory().alloc_mw(pd, mw_type).map_err(|error| error.to_string())?;
            let is_zero_based = kind == KeyKind::ZeroBasedWindow;
            let mut access = GRANTED;
            access.set(AccessFlags::ZERO_BASED, is_zero_based);
            let rkey = with_low(window.get());
            let bind = MwBind { lkey: memory.lkey(), addr, length, access };
            let base = if is_zero_based { 0 } else { addr };
            (SendOp::BindMw { window, rkey, bind }, rkey, Object::Window(window), base)
        };
        let device = device.clone();
        let (is_valid, is_known) = (false, false);
        Ok(Self { device, place, make, rkey, object, base, is_valid, is_known })
    }

    /// The request that makes it.
    pub(super) fn make(&self) -> SendOp {
        self.make
    }

    pub(super) fn rkey(&self) -> RKey {
        self.rkey
    }

    /// An offset of the memory, as a peer names it by this key.
    pub(super) fn remote(&self, offset: usize) -> RemoteAddr {
        let skip = offset.wrapping_sub(self.place.offset) as u64;
        RemoteAddr { addr: self.base.wrapping_add(skip), rkey: self.rkey }
    }

    /// Whether it is a window that is bound: its region cannot go (R42).
    pub(super) fn is_bound(&self) -> bool {
        self.is_valid && matches!(self.object, Object::Window(_))
    }

    /// Its first byte.
    pub(super) fn first(&self) -> RemoteAddr {
        self.remote(self.place.offset)
    }

    /// Frees what has the key.
    pub(super) fn close(&self) -> Result<(), String> {
        match self.object {
            Object::Window(window) => {
                self.device.memory().dealloc_mw(window).map_err(|error| error.to_string())
            }
            Object::Region(keys) => {
                // Of the key that it has now, the low byte is another one.
                let key = self.device.memory().current_key(keys.rkey).unwrap_or(keys.rkey);
                let lkey = rxe_wire::LKey::new(key.get());
                let now = MrKeys { lkey, rkey: key };
                self.device.memory().deregister(now).map_err(|error| error.to_string())
            }
        }
    }
}
