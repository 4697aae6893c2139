//! Windows and a region for fast registration, whose keys requests make and take away, and the
//! check that their memory changes only while a key is valid that allows it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use rxe_core::mem::{AccessFlags, DmaBuf, MrKeys, MwBind, MwType};
use rxe_core::wc::{WcFlags, WcOpcode, WcStatus, WorkCompletion};
use rxe_core::wq::{RemoteAddr, SendOp};
use rxe_wire::{Qpn, RKey};

use super::arena::Arena;

/// Bytes of the memory of one object.
const AREA: usize = 0x1000;
/// The first so many are those that a key may be made for.
const GRANTABLE: usize = 0x800;
/// How many objects there are.
const OBJECTS: usize = 3;

/// What a request does to an object, once it completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pending {
    /// Makes a key; whether a peer may change memory by it.
    Make {
        changes: bool,
    },
    Invalidate,
}

/// A window of type 1, one of type 2, or a region for fast registration.
#[derive(Debug)]
struct Object {
    /// A key that it had; the upper 24 bits stay.
    key: RKey,
    /// What its memory holds, while no key is valid by which a peer may change it.
    frozen: Option<Vec<u8>>,
}

/// The objects of a host, with memory of their own.
#[derive(Debug)]
pub(super) struct Keys {
    buf: Arc<DmaBuf>,
    /// Of the whole memory: windows are bound to it, and nothing else is allowed.
    region: MrKeys,
    objects: [Object; OBJECTS],
    pending: HashMap<(Qpn, u64), (usize, Pending)>,
}

impl Keys {
    pub(super) fn new(arena: &Arena) -> Self {
        let (memory, pd) = (arena.device.memory(), arena.pd);
        let buf = Arc::new(DmaBuf::zeroed(OBJECTS * AREA));
        let (length, iova) = (buf.len() as u64, buf.addr());
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
        let region = memory.register(pd, buf.clone(), 0, length, iova, access).expect("all of it");
        let window = |mw_type| memory.alloc_mw(pd, mw_type).expect("there are few");
        let fast = memory.alloc_mr(pd, 1).expect("there are few");
        let place = area(2).start;
        let mapped = memory.map_mr(fast, buf.clone(), place, GRANTABLE as u64, iova + place as u64);
        mapped.expect("it is not valid yet");
        let keys = [window(MwType::Type1), window(MwType::Type2), fast.rkey];
        let objects = keys.map(|key| Object { key, frozen: Some(vec![0; AREA]) });
        Self { buf, region, objects, pending: HashMap::new() }
    }

    /// The request about an object that these numbers stand for.
    pub(super) fn request(&self, arena: &Arena, numbers: &Numbers) -> SendOp {
        let Numbers { object, kind, access, low, offset, length } = *numbers;
        let index = usize::from(object) % OBJECTS;
        let place = area(index).start;
        let now = self.current(arena, index);
        let wanted = RKey::new(now.get() & !0xff | u32::from(low));
        // Mostly the right one.
        let key = if kind & 0x80 == 0 { now } else { wanted };
        if kind.is_multiple_of(4) {
            return SendOp::LocalInvalidate { key };
        }
        let access = AccessFlags::from_bits_truncate((access & 0x3e).into());
        if index == 2 && kind & 0x40 == 0 {
            return SendOp::RegisterMr { key: wanted, access: access | AccessFlags::LOCAL_WRITE };
        }
        let offset = usize::from(offset) % GRANTABLE;
        let length = u64::from(length) % (GRANTABLE - offset + 1) as u64;
        let addr = self.buf.addr() + (place + offset) as u64;
        let bind = MwBind { lkey: self.region.lkey, addr, length, access };
        SendOp::BindMw { window: key, rkey: wanted, bind }
    }

    /// A place in the memory of an object, as a peer names it by the key that it has now; one
    /// counted from 0, if the offset's first bit is set.
    pub(super) fn remote(&self, arena: &Arena, object: u8, offset: u16) -> RemoteAddr {
        let index = usize::from(object) % OBJECTS;
        let within = u64::from(offset) % AREA as u64;
        let base =
            if offset & 0x8000 == 0 { self.buf.addr() + area(index).start as u64 } else { 0 };
        RemoteAddr { addr: base + within, rkey: self.current(arena, index) }
    }

    /// A signaled request was posted.
    ///
    /// # Panics
    ///
    /// When memory has changed that no key allowed to change.
    pub(super) fn posted(&mut self, qpn: Qpn, wr_id: u64, op: &SendOp) {
        let (key, pending) = match *op {
            SendOp::LocalInvalidate { key } => (key, Pending::Invalidate),
            SendOp::RegisterMr { key, access } => (key, make(access)),
            SendOp::BindMw { window, bind, .. } => (window, make(bind.access)),
            _ => return,
        };
        let Some(index) = self.find(key) else { return };
        self.pending.insert((qpn, wr_id), (index, pending));
        if pending == (Pending::Make { changes: true }) {
            self.check();
            self.objects[index].frozen = None;
        }
    }

    /// A work request has completed; they come in the order in which they did.
    pub(super) fn completed(&mut self, wc: &WorkCompletion) {
        let done = self.pending.remove(&(wc.qpn, wc.wr_id));
        if wc.status != WcStatus::Success {
            return;
        }
        match done {
            Some((index, Pending::Invalidate)) => {
                assert_eq!(wc.opcode, WcOpcode::LocalInv, "{wc:?}");
                self.freeze(index);
            }
            Some((_, Pending::Make { .. })) => {}
            None if wc.flags.contains(WcFlags::WITH_INV) => {
                let index = self.find(RKey::new(wc.imm));
                self.freeze(index.unwrap_or_else(|| panic!("no such key can be gone: {wc:?}")));
            }
            None => {}
        }
    }

    /// The requests of a queue pair are gone, uncompleted.
    pub(super) fn forget(&mut self, qpn: Qpn) {
        self.pending.retain(|&(of, _), _| of != qpn);
    }

    /// No key of an object is valid any more, unless a request is about to make one.
    fn freeze(&mut self, index: usize) {
        let change = (index, Pending::Make { changes: true });
        if self.objects[index].frozen.is_none() && !self.pending.values().any(|&one| one == change)
        {
            self.objects[index].frozen = Some(self.bytes(area(index)));
        }
    }

    /// Checks that nothing has changed that no key allowed to change.
    ///
    /// # Panics
    ///
    /// When something has.
    pub(super) fn check(&self) {
        for (index, object) in self.objects.iter().enumerate() {
            let bytes = self.bytes(area(index));
            let rest = &bytes[GRANTABLE..];
            assert!(rest.iter().all(|&byte| byte == 0), "memory of no key changed: {index}");
            let same = object.frozen.as_ref().is_none_or(|frozen| *frozen == bytes);
            assert!(same, "memory changed when no key allowed it: {index}");
        }
    }

    fn current(&self, arena: &Arena, index: usize) -> RKey {
        let key = self.objects[index].key;
        arena.device.memory().current_key(key).expect("it is never freed")
    }

    fn find(&self, key: RKey) -> Option<usize> {
        self.objects.iter().position(|object| object.key.get() >> 8 == key.get() >> 8)
    }

    fn bytes(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        self.buf.read_at(range.start, &mut bytes).expect("inside");
        bytes
    }
}

/// What an input says of a request about an object.
#[derive(arbitrary::Arbitrary, Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub(super) object: u8,
    pub(super) kind: u8,
    pub(super) access: u8,
    pub(super) low: u8,
    pub(super) offset: u16,
    pub(super) length: u16,
}

const fn area(index: usize) -> Range<usize> {
    index * AREA..(index + 1) * AREA
}

fn make(access: AccessFlags) -> Pending {
    Pending::Make { changes: access.intersects(AccessFlags::REMOTE_CHANGES) }
}
