//! The memory table: from a key and an address to bytes, with every check on the way.
//!
//! A key is the index of a slot, in its upper 24 bits, and a random variant in its low byte. Each
//! slot has a lock of its own: copies hold it shared, deregistration takes it alone. So once
//! [`MemoryTable::deregister`] has returned, nothing touches the memory any more, and no access by
//! a key takes a lock that belongs to the whole device. Making keys valid and invalid does.

mod advise;
mod backing;
mod bytes;
mod catch;
mod device_memory;
mod dma_buf;
mod fast;
mod fault;
#[cfg(test)]
mod model;
mod objects;
mod raw;
mod region;
mod rereg;
mod user_memory;
mod window;

use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rxe_wire::{LKey, RKey};

pub use advise::{Advice, AdviseMrError};
pub use backing::{Backing, IntoBacking};
pub use catch::{CatchFaultsError, catch_faults, unblock_faults};
pub use device_memory::{AllocDmError, DeviceMemory};
pub use dma_buf::{DmaBuf, OutOfMemory};
pub use fast::{MapMrError, PAGE_SIZE};
pub use fault::Fault;
pub use objects::Mapping;
pub use region::AccessFlags;
pub use rereg::{ReregMr, ReregMrError};
pub use user_memory::UserMemory;
pub use window::{DeallocMwError, MwBind, MwType};

use crate::packet_run::PacketRun;
use crate::pd::PdId;
use crate::rng::SecretRng;
use bytes::{Bytes, Registered};
pub(crate) use objects::Holder;
use objects::Objects;
pub(crate) use region::Region;

/// Slots allocated at a time; the table grows by whole chunks, which never move.
const CHUNK: usize = 1024;

/// Why a key does not give the access asked for.
///
/// On the local side it becomes a completion error, towards a peer a NAK (rules R11, R20, R32).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AccessFault {
    /// No live registration has this key.
    #[error("key 0x{key:08x} is not registered")]
    NoSuchKey {
        /// The key that was given.
        key: u32,
    },
    /// The registration belongs to another protection domain.
    #[error("key 0x{key:08x} belongs to another protection domain than the queue pair")]
    OtherPd {
        /// The key that was given.
        key: u32,
    },
    /// The window is for another queue pair.
    #[error("key 0x{key:08x} is a window for another queue pair")]
    OtherQp {
        /// The key that was given.
        key: u32,
    },
    /// The region was not registered with the access asked for.
    #[error("key 0x{key:08x} allows {allowed:?}, but {needed:?} is needed")]
    NotAllowed {
        /// The key that was given.
        key: u32,
        /// What the region allows.
        allowed: AccessFlags,
        /// What was asked for.
        needed: AccessFlags,
    },
    /// The range is not within the region.
    #[error(
        "{len} bytes at 0x{addr:x} are not within key 0x{key:08x} (0x{iova:x}, {length} bytes)"
    )]
    OutOfRange {
        /// The key that was given.
        key: u32,
        /// First address asked for.
        addr: u64,
        /// Number of bytes asked for.
        len: u64,
        /// First address of the region.
        iova: u64,
        /// Size of the region in bytes.
        length: u64,
    },
    /// The memory itself failed under the access.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Why memory could not be registered (`ibv_reg_mr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegMrError {
    /// The range leaves the memory that was given, or wraps around.
    #[error("{length} bytes at offset {offset} leave the {size} bytes of memory given")]
    OutOfBounds {
        /// Offset of the first byte.
        offset: usize,
        /// Bytes to register.
        length: u64,
        /// Bytes there are.
        size: usize,
    },
    /// The addresses would wrap around the end of the address space.
    #[error("{length} bytes from address 0x{iova:x} on wrap around the end of the address space")]
    Wraps {
        /// Address of the first byte.
        iova: u64,
        /// Bytes to register.
        length: u64,
    },
    /// Remote writes or atomics were asked for without local write.
    #[error("{access:?}: remote write and remote atomic access also need LOCAL_WRITE")]
    NeedsLocalWrite {
        /// The access asked for.
        access: AccessFlags,
    },
    /// Persistence was asked for, which no memory here is known to have.
    #[error("{access:?}: this memory is not known to be persistent; do without FLUSH_PERSISTENT")]
    NotPersistent {
        /// The access asked for.
        access: AccessFlags,
    },
    /// The memory is of another device than the protection domain.
    #[error("the memory belongs to another context than the protection domain: allocate it there")]
    OtherDevice,
    /// The device's limit of registrations is reached.
    #[error("all {max} memory regions of the device are in use: deregister some, or raise max_mr")]
    TooMany {
        /// The limit (`max_mr`).
        max: u32,
    },
}

impl RegMrError {
    /// The errno that `ibv_reg_mr` would set.
    pub fn errno(&self) -> i32 {
        match self {
            Self::TooMany { .. } => crate::errno::ENOMEM,
            Self::OutOfBounds { .. }
            | Self::Wraps { .. }
            | Self::NeedsLocalWrite { .. }
            | Self::NotPersistent { .. }
            | Self::OtherDevice => crate::errno::EINVAL,
        }
    }
}

/// Why a registration cannot be ended (`ibv_dereg_mr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeregMrError {
    /// There is none with this key.
    #[error("key {key} is not registered")]
    NoSuchKey {
        /// The key that was given.
        key: LKey,
    },
    /// Windows are bound to it (R42).
    #[error("{windows} memory windows are bound to key {key}: unbind, invalidate or free them")]
    WindowsBound {
        /// The key that was given.
        key: LKey,
        /// How many windows.
        windows: usize,
    },
}

impl DeregMrError {
    /// The errno that `ibv_dereg_mr` returns.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoSuchKey { .. } => crate::errno::EINVAL,
            Self::WindowsBound { .. } => crate::errno::EBUSY,
        }
    }
}

/// Why a work request on keys cannot be carried out; it is told by the status of its completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum KeyError {
    #[error("key 0x{key:08x} is not the key of anything now")]
    NoSuchKey { key: u32 },
    #[error("key 0x{key:08x} is not that of {needed}")]
    WrongKind { key: u32, needed: &'static str },
    #[error("key 0x{key:08x} belongs to another protection domain than the queue pair")]
    OtherPd { key: u32 },
    #[error("key 0x{key:08x} is a window that another queue pair has bound")]
    OtherQp { key: u32 },
    #[error("key 0x{key:08x} is valid already: invalidate it first")]
    NotFree { key: u32 },
    #[error("no memory was mapped to key 0x{key:08x}")]
    NotMapped { key: u32 },
    #[error("{windows} memory windows are bound to key 0x{key:08x}")]
    WindowsBound { key: u32, windows: usize },
    #[error("0x{key:08x} is to be the key of window {window}: only the low byte may be another")]
    OtherSlot { key: u32, window: RKey },
    #[error("key 0x{key:08x}: a window of type 1 cannot be zero-based")]
    ZeroBasedType1 { key: u32 },
    #[error("key 0x{key:08x}: a window of type 2 is not bound to nothing, but invalidated")]
    EmptyType2 { key: u32 },
    #[error("no window can be bound to key 0x{key:08x}, which is zero-based")]
    ZeroBasedRegion { key: u32 },
    #[error("{access:?}: a window can only allow {max:?}")]
    Access { access: AccessFlags, max: AccessFlags },
    #[error(transparent)]
    Region(#[from] AccessFault),
    #[error(transparent)]
    Registration(#[from] RegMrError),
}

/// The keys of a registration (`lkey` and `rkey` of `struct ibv_mr`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MrKeys {
    /// Key for the host's own work requests.
    pub lkey: LKey,
    /// Key for peers.
    pub rkey: RKey,
}

#[derive(Debug, Default)]
struct Slot(RwLock<Option<Region>>);

/// Which slots are free, and the random variants of keys.
#[derive(Debug)]
struct Allocator {
    /// Free slots, each with the variant of its last key.
    free: Vec<(u32, u8)>,
    next: u32,
    rng: SecretRng,
}

impl Allocator {
    /// A variant other than the slot's last, so that a key just freed never matches again.
    fn variant(&mut self, last: Option<u8>) -> u8 {
        loop {
            let variant = self.rng.byte();
            if Some(variant) != last {
                return variant;
            }
        }
    }
}

/// All registrations of a device.
#[derive(Debug)]
pub struct MemoryTable {
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
    allocator: Mutex<Allocator>,
    /// Taken before the lock of a slot.
    objects: Mutex<Objects>,
    max: u32,
}

impl MemoryTable {
    /// Makes an empty table for at most `max` registrations (at most 2^24 - 1).
    pub(crate) fn new(max: u32, rng: SecretRng) -> Self {
        let max = max.min((1 << 24) - 1);
        let chunks = (max as usize + 1).div_ceil(CHUNK);
        Self {
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            // R44: 24 bits of index, so keys stay unique as far as the limit goes.
            // Index 0 stays unused: a key of 0 is what programs pass when they have none.
            allocator: Mutex::new(Allocator { free: Vec::new(), next: 1, rng }),
            objects: Mutex::default(),
            max,
        }
    }

    /// Registers `length` bytes of `backing` from `offset` on, under the addresses from `iova` on.
    ///
    /// With [`AccessFlags::ZERO_BASED`] the addresses count from 0, whatever `iova` is.
    ///
    /// Counterpart of `ibv_reg_mr_iova2`.
    ///
    /// # Errors
    ///
    /// [`RegMrError`] when the range is not there, the access flags contradict each other, or
    /// `max_mr` is reached.
    pub fn register(
        &self,
        pd: PdId,
        backing: Arc<dyn Backing>,
        offset: usize,
        length: u64,
        iova: u64,
        access: AccessFlags,
    ) -> Result<MrKeys, RegMrError> {
        let iova = if access.contains(AccessFlags::ZERO_BASED) { 0 } else { iova };
        check_range(&*backing, offset, length, iova)?;
        check_access(access)?;
        self.insert(pd, iova, length, access, (Some(Registered::new(backing)), offset))
    }

    /// Makes a region without memory, for the host's own requests alone: it reads as zeros, and
    /// what is written to it vanishes (`ibv_alloc_null_mr`). Its addresses are all there are.
    ///
    /// # Errors
    ///
    /// [`RegMrError::TooMany`].
    pub fn alloc_null_mr(&self, pd: PdId) -> Result<MrKeys, RegMrError> {
        self.insert(pd, 0, u64::MAX, AccessFlags::LOCAL_WRITE, (None, 0))
    }

    fn insert(
        &self,
        pd: PdId,
        iova: u64,
        length: u64,
        access: AccessFlags,
        (memory, offset): (Option<Registered>, usize),
    ) -> Result<MrKeys, RegMrError> {
        // R55: nothing fails behind this.
        let (index, variant) = self.allocate()?;
        let (access, qpn) = (access | Region::LOCAL, None);
        self.fill(index, Region { variant, pd, qpn, iova, length, access, offset, memory });
        let key = index << 8 | u32::from(variant);
        Ok(MrKeys { lkey: LKey::new(key), rkey: RKey::new(key) })
    }

    /// The low byte of a new key in place of one that ends in `last`.
    fn another_variant(&self, last: u8) -> u8 {
        self.allocator.lock().variant(Some(last))
    }

    /// Ends a registration; waits for the copies that are under way (`ibv_dereg_mr`).
    ///
    /// # Errors
    ///
    /// [`DeregMrError`] when there is no such registration, or windows are bound to it (R42);
    /// nothing has changed then.
    pub fn deregister(&self, keys: MrKeys) -> Result<(), DeregMrError> {
        let mut objects = self.objects.lock();
        let windows = objects.of_region(keys.lkey.get() >> 8).len();
        if windows > 0 {
            return Err(DeregMrError::WindowsBound { key: keys.lkey, windows });
        }
        self.end(&mut objects, keys)
    }

    /// Ends a registration with all windows that are bound to it: nothing touches the memory any
    /// more, by any key, once it has returned.
    ///
    /// # Errors
    ///
    /// [`DeregMrError::NoSuchKey`].
    pub fn revoke(&self, keys: MrKeys) -> Result<(), DeregMrError> {
        let mut objects = self.objects.lock();
        self.end(&mut objects, keys)?;
        for window in objects.of_region(keys.lkey.get() >> 8).to_vec() {
            self.unbind(&mut objects, window);
        }
        Ok(())
    }

    fn end(&self, objects: &mut Objects, keys: MrKeys) -> Result<(), DeregMrError> {
        let key = keys.lkey.get();
        let index = key >> 8;
        let is_fast = objects.fast.get(&index).is_some_and(|region| region.key == key);
        let is_valid = self.slot(index).is_some_and(|slot| {
            let guard = slot.0.read();
            guard.as_ref().is_some_and(|region| {
                region.access.contains(Region::LOCAL) && u32::from(region.variant) == key & 0xff
            })
        });
        if !is_fast && !is_valid {
            return Err(DeregMrError::NoSuchKey { key: keys.lkey });
        }
        objects.fast.remove(&index);
        self.empty(index);
        self.release(key);
        Ok(())
    }

    /// The key that a window or a region for fast registration has now, or had last, by any key
    /// that it ever had.
    pub fn current_key(&self, key: RKey) -> Option<RKey> {
        let (objects, index) = (self.objects.lock(), key.get() >> 8);
        let window = objects.windows.get(&index).map(|window| window.key);
        let region = objects.fast.get(&index).map(|region| region.key);
        window.or(region).map(RKey::new)
    }

    /// Lets a slot's memory be accessed.
    fn fill(&self, index: u32, region: Region) {
        *self.slot_or_grow(index).0.write() = Some(region);
    }

    /// Ends all access by a slot; waits for the copies that are under way.
    fn empty(&self, index: u32) {
        let region = self.slot(index).and_then(|slot| slot.0.write().take());
        drop(region);
    }

    fn is_filled(&self, index: u32) -> bool {
        self.slot(index).is_some_and(|slot| slot.0.read().is_some())
    }

    /// Frees the slot of the last key that it had.
    fn release(&self, key: u32) {
        self.allocator.lock().free.push((key >> 8, key as u8));
    }

    fn allocate(&self) -> Result<(u32, u8), RegMrError> {
        let mut allocator = self.allocator.lock();
        let (index, last) = match allocator.free.pop() {
            Some((index, last)) => (index, Some(last)),
            None if allocator.next <= self.max => {
                allocator.next += 1;
                (allocator.next - 1, None)
            }
            None => return Err(RegMrError::TooMany { max: self.max }),
        };
        Ok((index, allocator.variant(last)))
    }

    fn slot_or_grow(&self, index: u32) -> &Slot {
        let index = index as usize;
        let chunk = self.chunks[index / CHUNK]
            .get_or_init(|| (0..CHUNK).map(|_| Slot::default()).collect());
        &chunk[index % CHUNK]
    }

    fn slot(&self, index: u32) -> Option<&Slot> {
        let index = index as usize;
        self.chunks.get(index / CHUNK)?.get()?.get(index % CHUNK)
    }

    /// Checks an access by key and gives the bytes, locked against deregistration.
    ///
    /// `len` of 0 still checks key, domain and access; callers skip the check altogether where a
    /// zero length makes the key irrelevant (R28).
    pub(crate) fn access(
        &self,
        key: u32,
        pd: PdId,
        addr: u64,
        len: u64,
        needed: AccessFlags,
    ) -> Result<Span<'_>, AccessFault> {
        let guard = self.admit(key, pd, needed)?;
        let Some(region) = guard.as_ref() else { return Err(AccessFault::NoSuchKey { key }) };
        // R33: in u64, without wrapping; `iova + length` was checked when it was registered.
        let start = addr.checked_sub(region.iova);
        let inside = start
            .is_some_and(|start| start.checked_add(len).is_some_and(|end| end <= region.length));
        let (true, Some(start)) = (inside, start) else {
            let (iova, length) = (region.iova, region.length);
            return Err(AccessFault::OutOfRange { key, addr, len, iova, length });
        };
        // Fits: `start <= length`, and `offset + length` fitted a usize at registration.
        let offset = region.offset + start as usize;
        Ok(Span { guard, offset })
    }

    /// Checks a key, whatever the range.
    #[inline]
    fn admit(
        &self,
        key: u32,
        pd: PdId,
        needed: AccessFlags,
    ) -> Result<RwLockReadGuard<'_, Option<Region>>, AccessFault> {
        let Some(slot) = self.slot(key >> 8) else { return Err(AccessFault::NoSuchKey { key }) };
        let guard = slot.0.read();
        let Some(region) = guard.as_ref() else { return Err(AccessFault::NoSuchKey { key }) };
        if u32::from(region.variant) != key & 0xff {
            return Err(AccessFault::NoSuchKey { key });
        }
        if region.pd != pd {
            return Err(AccessFault::OtherPd { key });
        }
        // R32: what is asked for must be a subset of what was granted.
        if !region.access.contains(needed) {
            let (allowed, needed) = (region.access - Region::LOCAL, needed - Region::LOCAL);
            return Err(AccessFault::NotAllowed { key, allowed, needed });
        }
        Ok(guard)
    }
}

impl MemoryTable {
    /// As [`access`](Self::access), for a peer of a queue pair: a window of type 2 is for its own
    /// one alone.
    #[inline]
    pub(crate) fn access_for(
        &self,
        holder: Holder,
        key: u32,
        addr: u64,
        len: u64,
        needed: AccessFlags,
    ) -> Result<Span<'_>, AccessFault> {
        self.access(key, holder.pd, addr, len, needed)?.checked_for(holder, key)
    }

    /// As [`access_for`](Self::access_for), for all that the key gives access to.
    pub(crate) fn access_all_for(
        &self,
        holder: Holder,
        key: u32,
        needed: AccessFlags,
    ) -> Result<Span<'_>, AccessFault> {
        let guard = self.admit(key, holder.pd, needed)?;
        let offset = guard.as_ref().map_or(0, |region| region.offset);
        Span { guard, offset }.checked_for(holder, key)
    }
}

/// Checks a range of memory and the addresses that it is to go by.
fn check_range(
    backing: &dyn Backing,
    offset: usize,
    length: u64,
    iova: u64,
) -> Result<(), RegMrError> {
    let size = backing.len();
    let inside = usize::try_from(length)
        .ok()
        .and_then(|length| offset.checked_add(length))
        .is_some_and(|end| end <= size);
    if !inside {
        return Err(RegMrError::OutOfBounds { offset, length, size });
    }
    // R33.
    if iova.checked_add(length).is_none() {
        return Err(RegMrError::Wraps { iova, length });
    }
    Ok(())
}

/// Checks that access flags do not contradict each other.
fn check_access(access: AccessFlags) -> Result<(), RegMrError> {
    if access.intersects(AccessFlags::REMOTE_CHANGES) && !access.contains(AccessFlags::LOCAL_WRITE)
    {
        return Err(RegMrError::NeedsLocalWrite { access });
    }
    // rdma_rxe too refuses it for memory that is not persistent.
    if access.contains(AccessFlags::FLUSH_PERSISTENT) {
        return Err(RegMrError::NotPersistent { access });
    }
    Ok(())
}

/// What an atomic does to eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Atomic {
    CompareSwap {
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        add: u64,
    },
    /// ATOMIC WRITE: the bytes as they come.
    Store([u8; 8]),
}

/// Checked registered bytes; as long as it lives, deregistration waits.
#[derive(Debug)]
pub(crate) struct Span<'a> {
    guard: RwLockReadGuard<'a, Option<Region>>,
    offset: usize,
}

impl<'a> Span<'a> {
    #[inline]
    fn checked_for(self, holder: Holder, key: u32) -> Result<Self, AccessFault> {
        match self.guard.as_ref().and_then(|region| region.qpn) {
            Some(qpn) if qpn != holder.qpn => Err(AccessFault::OtherQp { key }),
            _ => Ok(self),
        }
    }
}

impl Span<'_> {
    /// The memory; `None` for the region that has none.
    #[inline]
    fn bytes(&self) -> Option<Bytes<'_>> {
        Some(self.guard.as_ref()?.memory.as_ref()?.bytes())
    }

    /// The region, and the offset of the span's first byte within its backing.
    fn place(&self) -> Option<(&Region, usize)> {
        Some((self.guard.as_ref()?, self.offset))
    }

    /// Touches each page of the `len` bytes of the span; the caller keeps within it.
    fn touch(&self, len: usize, to_write: bool) -> Result<(), AccessFault> {
        let Some(bytes) = self.bytes() else { return Ok(()) };
        Ok(bytes.touch(self.offset, len, to_write)?)
    }

    /// Copies the first bytes of the span out into `to`.
    pub(crate) fn read(&self, to: &mut [u8]) -> Result<(), AccessFault> {
        self.read_at(0, to)
    }

    /// Copies bytes of the span from `skip` on out into `to`; the caller keeps within the span.
    pub(crate) fn read_at(&self, skip: usize, to: &mut [u8]) -> Result<(), AccessFault> {
        let Some(bytes) = self.bytes() else {
            to.fill(0);
            return Ok(());
        };
        Ok(bytes.read(self.offset + skip, to)?)
    }

    /// As [`Self::read_at`], to behind the BTH of `packet`; also gives the sum of `packet`, where
    /// it comes cheap: see [`Bytes::read_summed`].
    #[inline]
    pub(crate) fn read_summed(
        &self,
        skip: usize,
        packet: &mut [u8],
    ) -> Result<Option<u32>, AccessFault> {
        let Some(bytes) = self.bytes() else {
            packet.iter_mut().skip(bytes::SUMMED_HEADER).for_each(|byte| *byte = 0);
            return Ok(None);
        };
        Ok(bytes.read_summed(self.offset + skip, packet)?)
    }

    /// Copies `from` into the first bytes of the span.
    pub(crate) fn write(&self, from: &[u8]) -> Result<(), AccessFault> {
        self.write_at(0, from)
    }

    /// Copies `from` into the span from `skip` on; the caller keeps within the span.
    pub(crate) fn write_at(&self, skip: usize, from: &[u8]) -> Result<(), AccessFault> {
        let Some(bytes) = self.bytes() else { return Ok(()) };
        Ok(bytes.write(self.offset + skip, from)?)
    }

    /// Copies the payloads of the first `count` packets of `run`, each `payload` bytes at its end, into
    /// the span one behind the other; the caller keeps within the span. Returns how many packets were
    /// copied before one could not be.
    pub(crate) fn write_payloads(&self, run: PacketRun<'_>, count: u32, payload: usize) -> u32 {
        let (mut written, mut at) = (0, 0);
        for packet in run.packets().take(count as usize) {
            let copied = packet
                .len()
                .checked_sub(payload)
                .and_then(|start| packet.get(start..))
                .is_some_and(|bytes| self.write_at(at, bytes).is_ok());
            if !copied {
                break;
            }
            (written, at) = (written + 1, at + payload);
        }
        written
    }

    /// Does an atomic on the first eight bytes of the span, and gives what they held.
    pub(crate) fn atomic(&self, operation: Atomic) -> Result<u64, AccessFault> {
        let Some(bytes) = self.bytes() else { return Ok(0) };
        Ok(match operation {
            Atomic::CompareSwap { compare, swap } => bytes.compare_swap(self.offset, compare, swap),
            Atomic::FetchAdd { add } => bytes.fetch_add(self.offset, add),
            Atomic::Store(value) => bytes.store_u64(self.offset, value).map(|()| 0),
        }?)
    }

    /// Makes all that was written before visible to everybody (FLUSH to global visibility).
    pub(crate) fn flush(&self) {
        // What is copied into memory is in the caches, which are coherent: what is left to do is
        // to order it before everything that comes after.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Seed;

    const PD: PdId = PdId(1);

    fn table(max: u32) -> MemoryTable {
        MemoryTable::new(max, SecretRng::new(Seed::for_test(1)))
    }

    fn region(table: &MemoryTable, len: usize, iova: u64, access: AccessFlags) -> MrKeys {
        table.register(PD, Arc::new(DmaBuf::zeroed(len)), 0, len as u64, iova, access).unwrap()
    }

    #[test]
    fn r33_ranges_do_not_wrap() {
        let table = table(16);
        let keys = region(&table, 4096, u64::MAX - 4096, AccessFlags::empty());
        let key = keys.lkey.get();
        let none = AccessFlags::empty();
        assert!(table.access(key, PD, u64::MAX - 4096, 4096, none).is_ok());
        assert!(table.access(key, PD, u64::MAX - 10, 4096, none).is_err());
        assert!(table.access(key, PD, u64::MAX - 10, u64::MAX, none).is_err());
        assert!(table.access(key, PD, 0, 1, none).is_err());
        let wrap = table.register(PD, Arc::new(DmaBuf::zeroed(2)), 0, 2, u64::MAX - 1, none);
        assert_eq!(wrap, Err(RegMrError::Wraps { iova: u64::MAX - 1, length: 2 }));
    }

    #[test]
    fn r32_access_must_be_a_subset() {
        let table = table(16);
        let keys = region(&table, 64, 0x1000, AccessFlags::REMOTE_READ);
        let key = keys.rkey.get();
        assert!(table.access(key, PD, 0x1000, 64, AccessFlags::REMOTE_READ).is_ok());
        assert!(matches!(
            table.access(key, PD, 0x1000, 64, AccessFlags::REMOTE_WRITE),
            Err(AccessFault::NotAllowed { .. })
        ));
        assert!(matches!(
            table.access(key, PdId(2), 0x1000, 64, AccessFlags::REMOTE_READ),
            Err(AccessFault::OtherPd { .. })
        ));
    }

    #[test]
    fn stale_keys_are_refused() {
        let table = table(1);
        let first = region(&table, 64, 0, AccessFlags::empty());
        assert_eq!(table.deregister(first), Ok(()));
        let again = table.deregister(first);
        assert_eq!(again, Err(DeregMrError::NoSuchKey { key: first.lkey }));
        assert_eq!(again.unwrap_err().errno(), crate::errno::EINVAL);
        let second = region(&table, 64, 0, AccessFlags::empty());
        assert_ne!(first.lkey, second.lkey);
        assert!(table.access(first.lkey.get(), PD, 0, 1, AccessFlags::empty()).is_err());
        assert!(table.access(second.lkey.get(), PD, 0, 1, AccessFlags::empty()).is_ok());
        let full = table.register(PD, Arc::new(DmaBuf::zeroed(1)), 0, 1, 0, AccessFlags::empty());
        assert_eq!(full, Err(RegMrError::TooMany { max: 1 }));
    }

    #[test]
    fn r44_keys_stay_unique_past_65536_registrations() {
        let table = table(70_000);
        let backing: Arc<dyn Backing> = Arc::new(DmaBuf::zeroed(8));
        let mut seen = std::collections::HashSet::new();
        for _ in 0..70_000 {
            let keys = table.register(PD, backing.clone(), 0, 8, 0, AccessFlags::empty()).unwrap();
            assert!(seen.insert(keys.rkey));
        }
        for keys in seen {
            assert!(table.access(keys.get(), PD, 0, 8, AccessFlags::empty()).is_ok());
        }
    }
}
