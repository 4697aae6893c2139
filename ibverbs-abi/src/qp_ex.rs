//! Queue pairs whose requests are put together call by call (`ibv_wr_*`, `ibv_wr_post(3)`).
//!
//! Between `ibv_wr_start` and `ibv_wr_complete` or `ibv_wr_abort` the queue pair's [`Session`] is
//! locked; each builder ends the request before it and begins one, each setter adds to it. Whatever
//! is wrong is kept until `ibv_wr_complete`, which tells it, and posts nothing then.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem::offset_of;
use std::ptr;

use ibverbs_api::{
    FlushLevel, FlushPlacement, LKey, MwType, PostSendError, QKey, QpCaps, QpType, Qpn, RKey,
    RemoteAddr, SendBatch, SendData, SendFlags, SendOp, SendWr, Sge, SrqId,
};
use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;

use crate::ah::Ah;
use crate::call::{Pointer, Positive, Refused, answer, answer_fast};
use crate::handles::{Held, Object, live};
use crate::memory::{get, get_sized, list};
use crate::mw::Mw;
use crate::pd::Pd;
use crate::qp::{Block, Qp, create, qp_type};
use crate::supplied::{Resource, SuppliedList};
use crate::types::{
    ibv_ah, ibv_context, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_ex,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_sge,
};
use crate::xrcd::Xrcd;

/// Bits of `comp_mask` of `struct ibv_qp_init_attr_ex`.
mod given {
    pub(super) const PD: u32 = 1;
    pub(super) const XRCD: u32 = 1 << 1;
    pub(super) const CREATE_FLAGS: u32 = 1 << 2;
    pub(super) const SEND_OPS: u32 = 1 << 6;
}

/// `IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`: own multicast packets never come back.
const BLOCK_SELF_MULTICAST: u32 = 1 << 1;

/// Bits of `send_ops_flags` (`enum ibv_qp_create_send_ops_flags`).
mod sends {
    pub(super) const RDMA_WRITE: u64 = 1;
    pub(super) const RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
    pub(super) const SEND: u64 = 1 << 2;
    pub(super) const SEND_WITH_IMM: u64 = 1 << 3;
    pub(super) const RDMA_READ: u64 = 1 << 4;
    pub(super) const ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
    pub(super) const ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
    pub(super) const LOCAL_INV: u64 = 1 << 7;
    pub(super) const BIND_MW: u64 = 1 << 8;
    pub(super) const SEND_WITH_INV: u64 = 1 << 9;
    pub(super) const FLUSH: u64 = 1 << 11;
    pub(super) const ATOMIC_WRITE: u64 = 1 << 12;

    pub(super) const MESSAGES: u64 = SEND | SEND_WITH_IMM;
    pub(super) const WRITES: u64 = RDMA_WRITE | RDMA_WRITE_WITH_IMM;
    pub(super) const KEYS: u64 = LOCAL_INV | BIND_MW;
    pub(super) const RELIABLE: u64 = RDMA_READ
        | ATOMIC_CMP_AND_SWP
        | ATOMIC_FETCH_AND_ADD
        | SEND_WITH_INV
        | FLUSH
        | ATOMIC_WRITE;
}

/// What each service can be asked for.
fn supported(qp_type: QpType) -> u64 {
    match qp_type {
        QpType::Rc => sends::MESSAGES | sends::WRITES | sends::RELIABLE | sends::KEYS,
        QpType::XrcSend => sends::MESSAGES | sends::WRITES | sends::RELIABLE,
        QpType::Uc => sends::MESSAGES | sends::WRITES | sends::KEYS,
        QpType::Ud => sends::MESSAGES,
        _ => 0,
    }
}

/// `ibv_create_qp_ex(3)`, which `verbs.h` calls by a pointer.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> Pointer<ibv_qp> {
    answer("ibv_create_qp_ex", || {
        // SAFETY: the program points to how it is to be, as far as `comp_mask` says.
        let wanted = unsafe { get_sized(init, ibv_qp_init_attr_ex::zeroed(), size_of_init) }?;
        if wanted.qp_type == QpType::XrcRecv as u32 {
            return create_target(context, &wanted);
        }
        let ops = check(context, &wanted)?;
        let mut base = ibv_qp_init_attr {
            qp_context: wanted.qp_context,
            send_cq: wanted.send_cq,
            recv_cq: wanted.recv_cq,
            srq: wanted.srq,
            cap: wanted.cap,
            qp_type: wanted.qp_type,
            sq_sig_all: wanted.sq_sig_all,
        };
        let qp = create(wanted.pd, &mut base, ops)?;
        // SAFETY: as above. No more is written: what follows may be no part of the program's struct.
        unsafe { (*init).cap = base.cap };
        Ok(qp)
    })
}

/// How much a program has of the struct, which has grown.
fn size_of_init(init: *const ibv_qp_init_attr_ex) -> usize {
    // SAFETY: the program points to it, and has had this field in each release.
    match unsafe { (*init).comp_mask } {
        mask if mask & given::SEND_OPS != 0 => size_of::<ibv_qp_init_attr_ex>(),
        mask if mask & given::CREATE_FLAGS != 0 => offset_of!(ibv_qp_init_attr_ex, rwq_ind_tbl),
        _ => offset_of!(ibv_qp_init_attr_ex, create_flags),
    }
}

/// Makes a target of extended reliable connections: it belongs to an XRC domain alone.
fn create_target(
    context: *mut ibv_context,
    wanted: &ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, Refused> {
    // Programs give a protection domain and flags of 0 along, which mean nothing here.
    let unknown = wanted.comp_mask & !(given::XRCD | given::PD);
    if unknown != 0 {
        let why = format!("comp_mask has 0x{unknown:x}, which a target does not have");
        return Err(Refused::new(libc::EOPNOTSUPP, why));
    }
    if wanted.comp_mask & given::XRCD == 0 {
        return Err(Refused::invalid("a target needs an XRC domain"));
    }
    let xrcd = Held::<Xrcd>::get(wanted.xrcd)?;
    if xrcd.context.handle() != context {
        return Err(Refused::invalid("the XRC domain belongs to another context"));
    }
    let facade = xrcd.facade.create_qp()?;
    Qp::publish_target(facade, xrcd, wanted.qp_context)
}

/// Checks what is beyond an ordinary queue pair; gives the operations that the program wants to put
/// together by calls.
fn check(context: *mut ibv_context, wanted: &ibv_qp_init_attr_ex) -> Result<u64, Refused> {
    let unknown = wanted.comp_mask & !(given::PD | given::CREATE_FLAGS | given::SEND_OPS);
    if unknown != 0 {
        let why = format!("comp_mask has 0x{unknown:x}, which is not there");
        return Err(Refused::new(libc::EOPNOTSUPP, why));
    }
    if wanted.comp_mask & given::PD == 0 {
        return Err(Refused::invalid("a queue pair of this type needs a protection domain"));
    }
    if live::<Pd>(wanted.pd)?.context.handle() != context {
        return Err(Refused::invalid("the protection domain belongs to another context"));
    }
    let has_flags = wanted.comp_mask & given::CREATE_FLAGS != 0;
    if has_flags && wanted.create_flags & !BLOCK_SELF_MULTICAST != 0 {
        let why = format!("create_flags 0x{:x} are not there", wanted.create_flags);
        return Err(Refused::new(libc::EOPNOTSUPP, why));
    }
    if wanted.comp_mask & given::SEND_OPS == 0 {
        return Ok(0);
    }
    let missing = wanted.send_ops_flags & !supported(qp_type(wanted.qp_type)?);
    if missing != 0 {
        let why = format!("send_ops_flags 0x{missing:x} are not there for this type");
        return Err(Refused::new(libc::EOPNOTSUPP, why));
    }
    Ok(wanted.send_ops_flags)
}

/// `ibv_qp_to_qp_ex(3)`: NULL for one that was made without `send_ops_flags`.
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    match live::<Qp>(qp) {
        Ok(object) if object.session.is_wanted => qp.cast(),
        _ => ptr::null_mut(),
    }
}

/// Lets the program put requests together: the functions that `verbs.h` calls by pointers.
pub(crate) fn show(block: &mut Block) {
    let ex = &mut block.ex;
    ex.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    ex.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    ex.wr_local_inv = Some(wr_local_inv);
    ex.wr_rdma_read = Some(wr_rdma_read);
    ex.wr_rdma_write = Some(wr_rdma_write);
    ex.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    ex.wr_send = Some(wr_send);
    ex.wr_bind_mw = Some(wr_bind_mw);
    ex.wr_send_imm = Some(wr_send_imm);
    ex.wr_send_inv = Some(wr_send_inv);
    ex.wr_set_ud_addr = Some(wr_set_ud_addr);
    ex.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    ex.wr_set_inline_data = Some(wr_set_inline_data);
    ex.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    ex.wr_set_sge = Some(wr_set_sge);
    ex.wr_set_sge_list = Some(wr_set_sge_list);
    ex.wr_start = Some(wr_start);
    ex.wr_complete = Some(wr_complete);
    ex.wr_abort = Some(wr_abort);
    ex.wr_atomic_write = Some(wr_atomic_write);
    block.wr_flush = Some(wr_flush);
}

/// Bytes of an ATOMIC WRITE: they need no room for inline data.
const WORD: usize = 8;

/// What a thread puts together between `ibv_wr_start` and `ibv_wr_complete`.
pub(crate) struct Session {
    /// The program wants it.
    is_wanted: bool,
    /// Locked by the one call, unlocked by the other.
    lock: RawMutex,
    building: UnsafeCell<Building>,
}

// SAFETY: what is being built is only reached with the lock held, by the thread that holds it.
unsafe impl Sync for Session {}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("is_wanted", &self.is_wanted).finish_non_exhaustive()
    }
}

impl Session {
    /// For a queue pair that can hold so much; the memory is that of the domain's allocators, if
    /// there are any.
    pub(crate) fn new(
        is_wanted: bool,
        pd: Option<&Held<Pd>>,
        caps: &QpCaps,
    ) -> Result<Self, Refused> {
        let (sges, inline) = match is_wanted {
            true => (caps.max_send_sge as usize, WORD.max(caps.max_inline_data as usize)),
            false => (0, 0),
        };
        let building = Building {
            batch: SendBatch::default(),
            current: None,
            sges: SuppliedList::new(pd, sges, Resource::QueuePair)?,
            inline: SuppliedList::new(pd, inline, Resource::QueuePair)?,
            errno: 0,
        };
        let (lock, building) = (RawMutex::INIT, UnsafeCell::new(building));
        Ok(Self { is_wanted, lock, building })
    }
}

/// The requests of a session: those that are complete, and the one that setters add to.
struct Building {
    batch: SendBatch,
    current: Option<Current>,
    /// The data of the current one; one memory for all of them.
    sges: SuppliedList<Sge>,
    inline: SuppliedList<u8>,
    /// The first thing that was wrong.
    errno: c_int,
}

struct Current {
    wr_id: u64,
    flags: SendFlags,
    op: SendOp,
    is_inline: bool,
    srq_number: Option<SrqId>,
}

impl Building {
    fn clear(&mut self) {
        (self.current, self.errno) = (None, 0);
        self.batch.clear();
    }

    /// Ends the current request.
    fn finish(&mut self, qp: &Qp) -> Result<(), c_int> {
        let Some(current) = self.current.take() else { return Ok(()) };
        let Current { wr_id, flags, op, is_inline, srq_number } = current;
        let data = if is_inline {
            SendData::Inline(self.inline.as_slice())
        } else {
            SendData::Sges(self.sges.as_slice())
        };
        let request = SendWr { wr_id, op, flags, data, srq_number };
        qp.facade.prepare(&mut self.batch, &request).map_err(|error| refused(qp, &error))
    }

    /// Ends the current request and begins another one.
    fn begin(&mut self, qp: &Qp, wr_id: u64, flags: u32, op: SendOp) -> Result<(), c_int> {
        self.finish(qp)?;
        let flags = SendFlags::from_bits(flags).ok_or(libc::EINVAL)?;
        self.sges.clear();
        self.current = Some(Current { wr_id, flags, op, is_inline: false, srq_number: None });
        Ok(())
    }

    /// The request that a setter adds to.
    fn current(&mut self) -> Result<&mut Current, c_int> {
        self.current.as_mut().ok_or(libc::EINVAL)
    }
}

#[cold]
fn refused(qp: &Qp, error: &PostSendError) -> c_int {
    tracing::debug!(target: "rxe::abi", "ibv_wr_complete, QP {}: {error}", qp.facade.qpn());
    error.errno()
}

/// One call between start and complete. After an error all others do nothing.
///
/// # Safety
///
/// The queue pair is there, and this thread has called `ibv_wr_start` on it.
unsafe fn step(qp: *mut ibv_qp_ex, act: impl FnOnce(&Qp, &mut Building) -> Result<(), c_int>) {
    answer_fast::<()>("ibv_wr_post", || {
        // SAFETY: the caller's.
        let qp = unsafe { Qp::trusted(qp.cast()) };
        // SAFETY: the caller's: this thread has the lock.
        let building = unsafe { &mut *qp.session.building.get() };
        if building.errno == 0
            && let Err(errno) = act(qp, building)
        {
            building.errno = errno;
        }
        Ok(())
    });
}

/// A builder: begins a request.
///
/// # Safety
///
/// As [`step`].
unsafe fn build(qp: *mut ibv_qp_ex, op: SendOp) {
    // SAFETY: the caller's; these two the program sets before.
    let (wr_id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    // SAFETY: the caller's.
    unsafe { step(qp, |qp, building| building.begin(qp, wr_id, flags, op)) };
}

fn remote(rkey: u32, addr: u64) -> RemoteAddr {
    RemoteAddr { addr, rkey: RKey::new(rkey) }
}

/// `ibv_wr_start`.
unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the program's queue pair is there.
    let session = unsafe { &Qp::trusted(qp.cast()).session };
    session.lock.lock();
    // SAFETY: this thread has the lock.
    unsafe { &mut *session.building.get() }.clear();
}

/// Ends a session, with what `end` returns.
///
/// # Safety
///
/// As [`step`].
unsafe fn end<R>(qp: *mut ibv_qp_ex, end: impl FnOnce(&Qp, &mut Building) -> R) -> R {
    // SAFETY: the caller's.
    let qp = unsafe { Qp::trusted(qp.cast()) };
    // SAFETY: the caller's: this thread has the lock.
    let building = unsafe { &mut *qp.session.building.get() };
    let ended = end(qp, building);
    building.clear();
    // SAFETY: locked by `wr_start`, which this thread has called.
    unsafe { qp.session.lock.unlock() };
    ended
}

/// `ibv_wr_complete`: posts all requests, or none.
unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> Positive {
    answer_fast("ibv_wr_complete", || {
        let post = |qp: &Qp, building: &mut Building| {
            if building.errno != 0 {
                return Err(building.errno);
            }
            building.finish(qp)?;
            qp.facade.post_batch(&mut building.batch).map_err(|error| refused(qp, &error))
        };
        // SAFETY: the program has called `ibv_wr_start` in this thread.
        unsafe { end(qp, post) }
    })
}

/// `ibv_wr_abort`: posts nothing.
unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the program has called `ibv_wr_start` in this thread.
    unsafe { end(qp, |_, _| ()) };
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: the program has called `ibv_wr_start` in this thread.
    unsafe { build(qp, SendOp::Send { imm: None }) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    // SAFETY: the program has called `ibv_wr_start` in this thread.
    unsafe { build(qp, SendOp::Send { imm: Some(u32::from_be(imm)) }) };
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: the program has called `ibv_wr_start` in this thread.
    unsafe { build(qp, SendOp::SendInvalidate { rkey: RKey::new(rkey) }) };
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: the program has called `ibv_wr_start` in this thread.
    unsafe { build(qp, SendOp::Write { remote: remote(rkey, addr), imm: None }) };
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, imm: u32) {
    let op = SendOp::Write { remote: remote(rkey, addr), imm: Some(u32::from_be(imm)) };
    // SAFETY: the program has called `ibv_wr_start` in this thread.
    unsafe { build(qp, op) };
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: the program has called `ibv_wr_start` in this thread.
    unsafe { build(qp, SendOp::Read { remote: remote(rkey, addr) }) };
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    compare: u64,
    swap: u64,
) {
    // SAFETY: the program has called `ibv_wr_start` in this thread.
    unsafe { build(qp, SendOp::CompareSwap { remote: remote(rkey, addr), compare, swap }) };
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, add: u64) {
    // SAFETY: the program has called `ibv_wr_start` in this thread.
    unsafe { build(qp, SendOp::FetchAdd { remote: remote(rkey, addr), add }) };
}

/// `ibv_wr_bind_mw`: the program sees the new key from now on.
unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: the program has called `ibv_wr_start` in this thread, these two it sets before, and
    // the window and its region are there.
    unsafe {
        let (wr_id, flags) = ((*qp).wr_id, (*qp).wr_flags);
        step(qp, |qp, building| {
            if mw.is_null() || info.is_null() {
                return Err(libc::EINVAL);
            }
            let mw = Mw::trusted(mw);
            let op = mw.binding(qp, MwType::Type2, rkey, &*info)?;
            building.begin(qp, wr_id, flags, op)?;
            mw.show_rkey(rkey);
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: the program has called `ibv_wr_start` in this thread.
    unsafe { build(qp, SendOp::LocalInvalidate { key: RKey::new(rkey) }) };
}

/// `ibv_wr_atomic_write`: of the 8 bytes that the program points to.
unsafe extern "C" fn wr_atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    value: *const c_void,
) {
    // SAFETY: the program has called `ibv_wr_start` in this thread, and points to the 8 bytes.
    unsafe {
        build(qp, SendOp::AtomicWrite { remote: remote(rkey, addr) });
        step(qp, |_, building| {
            let word: [u8; WORD] = get(value.cast()).map_err(|refused| refused.errno())?;
            building.current()?.is_inline = true;
            building.inline.clear();
            building.inline.extend(&word)
        });
    }
}

/// `ibv_wr_flush`, of headers newer than Debian 12's.
unsafe extern "C" fn wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    length: usize,
    placement: u8,
    level: u8,
) {
    let level = match level {
        0 => Some(FlushLevel::Range),
        1 => Some(FlushLevel::Region),
        _ => None,
    };
    // A placement that is none is refused when the request is prepared.
    let placement = FlushPlacement::from_bits_retain(placement);
    let length = u32::try_from(length).ok();
    let op = level.zip(length).map(|(level, length)| SendOp::Flush {
        remote: remote(rkey, addr),
        length,
        placement,
        level,
    });
    // SAFETY: the program has called `ibv_wr_start` in this thread.
    unsafe {
        match op {
            Some(op) => build(qp, op),
            None => step(qp, |_, _| Err(libc::EINVAL)),
        }
    }
}

/// `ibv_wr_set_ud_addr`.
unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    let set = |_: &Qp, building: &mut Building| {
        let current = building.current()?;
        let SendOp::Send { imm } = current.op else { return Err(libc::EINVAL) };
        if ah.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the program's address handle is there.
        let ah = unsafe { Ah::trusted(ah) };
        current.op = SendOp::SendTo { to: ah.facade.to(Qpn::new(qpn), QKey::new(qkey)), imm };
        Ok(())
    };
    // SAFETY: the program has called `ibv_wr_start` in this thread.
    unsafe { step(qp, set) };
}

/// `ibv_wr_set_xrc_srqn`.
unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, srqn: u32) {
    let set = |_: &Qp, building: &mut Building| {
        building.current()?.srq_number = Some(SrqId(srqn));
        Ok(())
    };
    // SAFETY: the program has called `ibv_wr_start` in this thread.
    unsafe { step(qp, set) };
}

/// `ibv_wr_set_sge`.
unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let set = |_: &Qp, building: &mut Building| {
        building.current()?.is_inline = false;
        building.sges.clear();
        building.sges.extend(&[Sge { addr, length, lkey: LKey::new(lkey) }])
    };
    // SAFETY: the program has called `ibv_wr_start` in this thread.
    unsafe { step(qp, set) };
}

/// `ibv_wr_set_sge_list`.
unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, sges: *const ibv_sge) {
    let set = |_: &Qp, building: &mut Building| {
        building.current()?.is_inline = false;
        building.sges.clear();
        // SAFETY: the program has as many; its form is the engine's (src/post.rs asserts it).
        building.sges.extend(unsafe { list(sges.cast::<Sge>(), count) })
    };
    // SAFETY: the program has called `ibv_wr_start` in this thread.
    unsafe { step(qp, set) };
}

/// `ibv_wr_set_inline_data`: copied now.
unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the program has called `ibv_wr_start` in this thread, and the piece is there.
    unsafe { wr_set_inline_data_list(qp, 1, &ibv_data_buf { addr, length }) };
}

/// `ibv_wr_set_inline_data_list`: copied now.
unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    pieces: *const ibv_data_buf,
) {
    let set = |qp: &Qp, building: &mut Building| {
        building.current()?.is_inline = true;
        building.inline.clear();
        // SAFETY: the program has as many pieces.
        for piece in unsafe { list(pieces, count) } {
            let room = qp.max_inline_data.saturating_sub(building.inline.as_slice().len());
            if piece.length > room {
                return Err(libc::EINVAL);
            }
            // SAFETY: the program can read its piece.
            unsafe { building.inline.extend_from(piece.addr.cast(), piece.length) }?;
        }
        Ok(())
    };
    // SAFETY: the program has called `ibv_wr_start` in this thread.
    unsafe { step(qp, set) };
}
