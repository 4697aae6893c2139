//! Registered memory of the simulation, and the model of what must be in it.
//!
//! Between the places that are granted lie random bytes that nobody may touch: the model knows them
//! as well, so a byte that is written where none was granted shows.

use std::sync::Arc;

use rxe_core::Device;
use rxe_core::mem::{AccessFlags, DmaBuf, MrKeys};
use rxe_core::pd::PdId;
use rxe_core::wq::{RemoteAddr, Sge};
use rxe_wire::{LKey, RKey};

use super::dice::Dice;

/// Bytes at an offset of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Offset of the first byte.
    pub offset: usize,
    /// Number of bytes.
    pub len: usize,
}

/// Memory while it is drawn: places, and random bytes in and between them.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// The bytes before anything happens.
    pub bytes: Vec<u8>,
}

impl Layout {
    /// Sets `len` bytes apart, behind some that belong to nobody.
    pub fn alloc(&mut self, dice: &mut Dice, len: usize) -> Place {
        let guard = dice.range(1, 48) as usize;
        let offset = self.bytes.len() + guard;
        dice.fill(&mut self.bytes, guard + len);
        Place { offset, len }
    }

    /// Sets eight bytes apart at a multiple of 8.
    pub fn alloc_word(&mut self, dice: &mut Dice) -> Place {
        let end = self.bytes.len();
        dice.fill(&mut self.bytes, (end.next_multiple_of(8) - end) + 8);
        let offset = self.bytes.len();
        dice.fill(&mut self.bytes, 8);
        Place { offset, len: 8 }
    }

    /// Sets `len` bytes apart in one to four pieces, some of which may be empty.
    pub fn alloc_pieces(&mut self, dice: &mut Dice, len: usize) -> Vec<Place> {
        let count = if dice.once_in(2) { 1 } else { dice.range(1, 4) };
        let mut left = len;
        (0..count)
            .map(|index| {
                let last = index + 1 == count;
                let part = if last { left } else { dice.below(left as u64 + 1) as usize };
                left -= part;
                self.alloc(dice, part)
            })
            .collect()
    }
}

/// Splits `data` over the pieces, as far as they reach: offsets with bytes.
pub fn scattered<'a>(pieces: &[Place], data: &'a [u8]) -> Vec<(usize, &'a [u8])> {
    let mut rest = data;
    let mut parts = Vec::new();
    for piece in pieces {
        let (part, others) = rest.split_at(piece.len.min(rest.len()));
        parts.push((piece.offset, part));
        rest = others;
    }
    parts
}

/// Memory at work: registered bytes, and what must be in them.
pub(super) struct Memory {
    device: Arc<Device>,
    buf: Arc<DmaBuf>,
    iova: u64,
    /// Bytes that are certain.
    sure: Vec<u8>,
    /// What may have been written: by requests that failed, or that nobody acknowledges.
    maybe: Vec<(usize, Vec<u8>)>,
    /// Where anything may be.
    open: Vec<Place>,
    keys: MrKeys,
    /// A key of the same bytes that gives a peer nothing.
    local: MrKeys,
    /// A key that was valid once.
    stale: MrKeys,
}

impl Memory {
    /// Registers what a layout has become.
    pub(super) fn new(
        dice: &mut Dice,
        device: &Arc<Device>,
        pd: PdId,
        layout: Layout,
    ) -> Result<Self, String> {
        let sure = layout.bytes;
        let buf = Arc::new(DmaBuf::zeroed(sure.len()));
        buf.write_at(0, &sure).map_err(|fault| fault.to_string())?;
        // Any address will do: a program's buffers lie anywhere. Atomics want their places aligned.
        let iova = dice.word() >> 16 & !7;
        let register = |access: AccessFlags| {
            let keys =
                device.memory().register(pd, buf.clone(), 0, sure.len() as u64, iova, access);
            keys.map_err(|error| format!("register: {error}"))
        };
        let remote = AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::FLUSH_GLOBAL
            | AccessFlags::MW_BIND;
        let stale = register(AccessFlags::LOCAL_WRITE | remote)?;
        let keys = register(AccessFlags::LOCAL_WRITE | remote)?;
        let local = register(AccessFlags::LOCAL_WRITE)?;
        deregister(device, stale)?;
        let (maybe, open, device) = (Vec::new(), Vec::new(), device.clone());
        Ok(Self { device, buf, iova, sure, maybe, open, keys, local, stale })
    }

    /// Entries for the pieces, with a key.
    pub(super) fn sges(&self, pieces: &[Place], lkey: LKey) -> Vec<Sge> {
        let sge = |place: &Place| Sge {
            addr: self.iova.wrapping_add(place.offset as u64),
            // Fits: buffers here are of megabytes at most.
            length: place.len as u32,
            lkey,
        };
        pieces.iter().map(sge).collect()
    }

    /// The bytes themselves, for other keys.
    pub(super) fn backing(&self) -> Arc<DmaBuf> {
        self.buf.clone()
    }

    pub(super) fn lkey(&self) -> LKey {
        self.keys.lkey
    }

    pub(super) fn stale_lkey(&self) -> LKey {
        self.stale.lkey
    }

    /// An address in it, as a peer names it.
    pub(super) fn remote(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { addr: self.iova.wrapping_add(offset as u64), rkey: self.keys.rkey }
    }

    pub(super) fn local_rkey(&self) -> RKey {
        self.local.rkey
    }

    pub(super) fn stale_rkey(&self) -> RKey {
        self.stale.rkey
    }

    /// An offset of which only the first byte is still inside.
    pub(super) fn last_byte(&self) -> usize {
        self.sure.len() - 1
    }

    /// The first bytes that lie in the pieces now.
    pub(super) fn read(&self, pieces: &[Place], len: usize) -> Result<Vec<u8>, String> {
        let mut all = Vec::new();
        for piece in pieces {
            let start = all.len();
            all.resize(start + piece.len, 0);
            self.buf.read_at(piece.offset, &mut all[start..]).map_err(|fault| fault.to_string())?;
        }
        all.truncate(len);
        Ok(all)
    }

    /// Something was certainly written.
    pub(super) fn expect(&mut self, pieces: &[Place], data: &[u8]) {
        for (offset, part) in scattered(pieces, data) {
            self.sure[offset..offset + part.len()].copy_from_slice(part);
        }
    }

    /// Something may have been written, all or a part of it.
    pub(super) fn suspect(&mut self, pieces: &[Place], data: &[u8]) {
        let parts = scattered(pieces, data).into_iter().filter(|(_, part)| !part.is_empty());
        self.maybe.extend(parts.map(|(offset, part)| (offset, part.to_vec())));
    }

    /// Anything may be there.
    pub(super) fn give_up(&mut self, pieces: &[Place]) {
        self.open.extend_from_slice(pieces);
    }

    /// Compares what is there with what must be.
    pub(super) fn judge(&self) -> Result<(), String> {
        let whole = [Place { offset: 0, len: self.sure.len() }];
        let now = self.read(&whole, self.sure.len())?;
        match (0..now.len()).find(|&at| now[at] != self.sure[at] && !self.is_possible(at, now[at]))
        {
            None => Ok(()),
            Some(at) => Err(format!(
                "the byte at offset {at} is 0x{:02x}, not 0x{:02x}",
                now[at], self.sure[at]
            )),
        }
    }

    fn is_possible(&self, at: usize, byte: u8) -> bool {
        let has = |offset: usize, len: usize| (offset..offset + len).contains(&at);
        self.open.iter().any(|place| has(place.offset, place.len))
            || self
                .maybe
                .iter()
                .any(|(offset, data)| has(*offset, data.len()) && data[at - offset] == byte)
    }

    /// R42: with windows bound it cannot be deregistered.
    pub(super) fn judge_bound(&self) -> Result<(), String> {
        match self.device.memory().deregister(self.keys) {
            Err(_) => Ok(()),
            Ok(()) => Err("a region with windows was deregistered".to_owned()),
        }
    }

    /// Deregisters it: from now on nobody may touch it at all.
    pub(super) fn close(&mut self) -> Result<(), String> {
        deregister(&self.device, self.keys)?;
        deregister(&self.device, self.local)
    }
}

fn deregister(device: &Device, keys: MrKeys) -> Result<(), String> {
    device.memory().deregister(keys).map_err(|error| format!("deregister: {error}"))
}
