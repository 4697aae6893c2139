//! Completion queues that are read one completion after the other, a call for each word that the
//! program wants.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::offset_of;

use ibverbs_api::{
    Context as Facade, CqOptions, NetworkType, Qpn, WcFlags, WcOpcode, WcStatus, WorkCompletion,
};
use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;

use crate::call::{Pointer, Positive, Refused, answer, answer_fast};
use crate::cq::{Cq, CqInit};
use crate::handles::{Held, Object};
use crate::memory::get_sized;
use crate::pd::Pd;
use crate::poll::{imm_data, sl};
use crate::supplied::{Resource, SuppliedList};
use crate::types::{ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr};

/// Bits of `wc_flags` (`enum ibv_create_cq_wc_flags`).
mod wants {
    /// Byte length, immediate data, QP numbers, SLID, SL and path bits.
    pub(super) const STANDARD: u64 = 0x7f;
    pub(super) const TIMESTAMP: u64 = 1 << 7;
    pub(super) const WALLCLOCK: u64 = 1 << 11;
}

/// Bits of `comp_mask` (`enum ibv_cq_init_attr_mask`).
const ATTR_FLAGS: u32 = 1;
const ATTR_PD: u32 = 1 << 1;

/// Bits of `flags` (`enum ibv_create_cq_attr_flags`).
const SINGLE_THREADED: u32 = 1;
const IGNORE_OVERRUN: u32 = 1 << 1;

/// The completion of a queue that is being read. From `start_poll` to `end_poll` it is the thread's
/// that polls.
pub(crate) struct Reader {
    /// Held as long; not taken where the program promises to use one thread.
    lock: Option<RawMutex>,
    /// One at most.
    current: UnsafeCell<SuppliedList<Current>>,
}

/// A completion, and when it came.
#[derive(Clone, Copy)]
struct Current {
    wc: WorkCompletion,
    stamp: u64,
}

/// What a program reads that has polled nothing yet.
const NOTHING_READ: Current = Current {
    wc: WorkCompletion {
        wr_id: 0,
        status: WcStatus::Success,
        opcode: WcOpcode::Send,
        vendor_err: 0,
        byte_len: 0,
        imm: 0,
        qpn: Qpn::new(0),
        source_qpn: Qpn::new(0),
        flags: WcFlags::empty(),
        network_type: NetworkType::None,
    },
    stamp: 0,
};

// SAFETY: `current` is only used by the thread that holds the lock, or the one thread that there is.
unsafe impl Sync for Reader {}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let single_threaded = self.lock.is_none();
        f.debug_struct("Reader").field("single_threaded", &single_threaded).finish_non_exhaustive()
    }
}

impl Reader {
    /// Its memory is that of the domain's allocators, if there are any.
    pub(crate) fn new(single_threaded: bool, pd: Option<&Held<Pd>>) -> Result<Self, Refused> {
        let lock = (!single_threaded).then_some(RawMutex::INIT);
        let current = SuppliedList::new(pd, 1, Resource::CompletionQueue)?;
        Ok(Self { lock, current: UnsafeCell::new(current) })
    }

    /// Puts a completion in the place of the one that is there.
    ///
    /// # Safety
    ///
    /// The reading is this thread's.
    unsafe fn set(&self, current: Current) -> Result<(), libc::c_int> {
        // SAFETY: the caller's.
        let list = unsafe { &mut *self.current.get() };
        list.clear();
        list.extend(&[current])
    }

    /// The completion that is there; before the first one, an empty one.
    ///
    /// # Safety
    ///
    /// The reading is this thread's.
    unsafe fn get(&self) -> Current {
        // SAFETY: the caller's.
        unsafe { &*self.current.get() }.as_slice().first().copied().unwrap_or(NOTHING_READ)
    }

    fn lock(&self) {
        if let Some(lock) = &self.lock {
            lock.lock();
        }
    }

    /// Ends the reading; nothing happens if it has not begun.
    fn unlock(&self) {
        if let Some(lock) = self.lock.as_ref().filter(|lock| lock.is_locked()) {
            // SAFETY: it is locked, by this thread: programs begin and end in one.
            unsafe { lock.unlock() };
        }
    }
}

impl Cq {
    /// Fills the table of functions that read it.
    fn show_functions(&self) {
        // SAFETY: the program does not have it yet.
        let cq = unsafe { &mut *self.c.as_ptr() };
        cq.start_poll = Some(start_poll);
        cq.next_poll = Some(next_poll);
        cq.end_poll = Some(end_poll);
        cq.read_opcode = Some(read_opcode);
        cq.read_vendor_err = Some(read_vendor_err);
        cq.read_byte_len = Some(read_byte_len);
        cq.read_imm_data = Some(read_imm_data);
        cq.read_qp_num = Some(read_qp_num);
        cq.read_src_qp = Some(read_src_qp);
        cq.read_wc_flags = Some(read_wc_flags);
        cq.read_slid = Some(zero_word);
        cq.read_sl = Some(read_sl);
        cq.read_dlid_path_bits = Some(zero_byte);
        cq.read_completion_ts = Some(read_completion_ts);
        cq.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
    }

    /// In the child of a fork: polling is refused.
    pub(crate) fn refuse_to_poll(&self) {
        unsafe extern "C" fn start_poll(_: *mut ibv_cq_ex, _: *mut ibv_poll_cq_attr) -> Positive {
            Positive(libc::EINVAL)
        }
        unsafe extern "C" fn next_poll(_: *mut ibv_cq_ex) -> Positive {
            Positive(libc::EINVAL)
        }
        unsafe extern "C" fn end_poll(_: *mut ibv_cq_ex) {}
        // SAFETY: it is there, and the child of a fork has one thread.
        let cq = unsafe { &mut *self.c.as_ptr() };
        cq.context = self.context.of_parent();
        if cq.start_poll.is_some() {
            cq.start_poll = Some(start_poll);
            cq.next_poll = Some(next_poll);
            cq.end_poll = Some(end_poll);
        }
    }

    /// Shows the program a completion, if one was polled.
    ///
    /// # Safety
    ///
    /// The reading is this thread's.
    unsafe fn show(&self, polled: Option<Current>) -> Result<(), libc::c_int> {
        let current = polled.ok_or(libc::ENOENT)?;
        // SAFETY: the caller's, for both; the second is what the program sees of it.
        unsafe {
            self.reader.set(current)?;
            let shown = self.c.as_ptr();
            (*shown).wr_id = current.wc.wr_id;
            (*shown).status = current.wc.status as u32;
        }
        Ok(())
    }
}

/// `ibv_create_cq_ex(3)`, which `verbs.h` calls by a pointer.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> Pointer<ibv_cq_ex> {
    answer("ibv_create_cq_ex", || {
        // SAFETY: the program points to how it is to be, as far as `comp_mask` says.
        let attr = unsafe { get_sized(attr, ibv_cq_init_attr_ex::zeroed(), size_of_init) }?;
        let cq = Cq::create(init(context, &attr)?)?;
        cq.show_functions();
        Ok(cq.publish().cast())
    })
}

/// How much a program has of the struct, which has grown.
fn size_of_init(attr: *const ibv_cq_init_attr_ex) -> usize {
    // SAFETY: the program points to it, and has had this field in each release.
    match unsafe { (*attr).comp_mask } & ATTR_PD {
        0 => offset_of!(ibv_cq_init_attr_ex, parent_domain),
        _ => size_of::<ibv_cq_init_attr_ex>(),
    }
}

/// How a queue is to be made, if it can be.
fn init(context: *mut ibv_context, attr: &ibv_cq_init_attr_ex) -> Result<CqInit, Refused> {
    if attr.wc_flags & !(wants::STANDARD | wants::TIMESTAMP | wants::WALLCLOCK) != 0 {
        let why = "wc_flags asks for VLAN, flow tag or tag matching, which are not there";
        return Err(Refused::new(libc::EOPNOTSUPP, why));
    }
    if attr.comp_mask & !(ATTR_FLAGS | ATTR_PD) != 0 {
        return Err(Refused::invalid("comp_mask has unknown bits"));
    }
    let flags = if attr.comp_mask & ATTR_FLAGS != 0 { attr.flags } else { 0 };
    if flags & !(SINGLE_THREADED | IGNORE_OVERRUN) != 0 {
        return Err(Refused::invalid("flags has unknown bits"));
    }
    let parent_domain = match attr.comp_mask & ATTR_PD {
        0 => None,
        _ => Some(Held::<Pd>::get(attr.parent_domain)?),
    };
    if parent_domain.as_ref().is_some_and(|pd| !pd.is_parent() || pd.context.handle() != context) {
        return Err(Refused::invalid("parent_domain is no parent domain of this context"));
    }
    Ok(CqInit {
        context,
        entries: attr.cqe,
        cq_context: attr.cq_context,
        channel: attr.channel,
        vector: attr.comp_vector,
        options: CqOptions {
            timestamps: attr.wc_flags & (wants::TIMESTAMP | wants::WALLCLOCK) != 0,
            ignore_overrun: flags & IGNORE_OVERRUN != 0,
        },
        single_threaded: flags & SINGLE_THREADED != 0,
        parent_domain,
    })
}

/// The queue that a program reads.
///
/// # Safety
///
/// It is there.
unsafe fn trusted<'a>(cq: *mut ibv_cq_ex) -> &'a Cq {
    // SAFETY: the caller's; both forms of the pointer are the same.
    unsafe { Cq::trusted(cq.cast()) }
}

/// `ibv_start_poll`: receives, if no completion is there; `ENOENT` if none came.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> Positive {
    answer_fast("ibv_start_poll", || {
        // SAFETY: the program says there how it wants to poll.
        if attr.is_null() || unsafe { (*attr).comp_mask } != 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the program polls a queue that is there.
        let cq = unsafe { trusted(cq) };
        cq.reader.lock();
        let mut polled = None;
        cq.facade.poll_stamped(1, |wc, stamp| polled = Some(Current { wc, stamp }));
        // SAFETY: the lock is held.
        let shown = unsafe { cq.show(polled) };
        if shown.is_err() {
            cq.reader.unlock();
        }
        shown
    })
}

/// `ibv_next_poll`: `ENOENT` if no other completion is there.
unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> Positive {
    answer_fast("ibv_next_poll", || {
        // SAFETY: the program polls a queue that is there.
        let cq = unsafe { trusted(cq) };
        let mut polled = None;
        cq.facade.take_stamped(1, |wc, stamp| polled = Some(Current { wc, stamp }));
        // SAFETY: the program has started to poll.
        unsafe { cq.show(polled) }
    })
}

/// `ibv_end_poll`.
unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the program polls a queue that is there.
    unsafe { trusted(cq) }.reader.unlock();
}

/// The completion that a program reads.
///
/// # Safety
///
/// The queue is there, and the program has started to poll it in this thread.
unsafe fn current(cq: *mut ibv_cq_ex) -> Current {
    // SAFETY: the caller's.
    unsafe { trusted(cq).reader.get() }
}

/// Functions that read a word of the completion, each by its name and type, and how.
macro_rules! read {
    ($($name:ident -> $ty:ty: |$current:ident| $value:expr;)+) => {$(
        #[doc = concat!("`ibv_wc_", stringify!($name), "`.")]
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $ty {
            // SAFETY: the program has started to poll the queue.
            let $current = unsafe { current(cq) };
            $value
        }
    )+};
}

read! {
    read_opcode -> u32: |current| current.wc.opcode as u32;
    read_vendor_err -> u32: |current| current.wc.vendor_err;
    read_byte_len -> u32: |current| current.wc.byte_len;
    read_imm_data -> u32: |current| imm_data(&current.wc);
    read_qp_num -> u32: |current| current.wc.qpn.get();
    read_src_qp -> u32: |current| current.wc.source_qpn.get();
    read_wc_flags -> u32: |current| current.wc.flags.bits();
    read_sl -> u8: |current| sl(&current.wc);
    read_completion_ts -> u64: |current| current.stamp;
    read_completion_wallclock_ns -> u64: |current| {
        u64::try_from(Facade::wall_clock(current.stamp).as_nanos()).unwrap_or(u64::MAX)
    };
}

/// The LID of the sender, which is nothing on Ethernet.
unsafe extern "C" fn zero_word(_: *mut ibv_cq_ex) -> u32 {
    0
}

/// Path bits of the LID, which are nothing on Ethernet.
unsafe extern "C" fn zero_byte(_: *mut ibv_cq_ex) -> u8 {
    0
}
