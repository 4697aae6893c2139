//! Queue pairs.

use std::cell::UnsafeCell;
use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ibverbs_api::{Gid, QpAttrMask, QpInit, QpState, QpType, Qpn, QueuePair};
use parking_lot::Mutex;

use crate::acks::Acks;
use crate::call::{Pointer, Positive, Refused, answer};
use crate::context::Context;
use crate::cq::Cq;
use crate::handles::{Held, Object, Shown, Users, live, object};
use crate::memory::{get, put};
use crate::pd::Pd;
use crate::qp_attr::{from_facade, qp_cap, qp_caps, to_facade};
use crate::qp_ex::{self, Session};
use crate::qp_of_parent;
use crate::srq::Srq;
use crate::supplied::{Resource, SuppliedList};
use crate::types::{
    ibv_context, ibv_ece, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr,
    ibv_qp_open_attr,
};
use crate::xrcd::Xrcd;

/// What a queue pair shows: always with what an extended one does.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Block {
    pub(crate) ex: ibv_qp_ex,
    /// `wr_flush` of headers newer than Debian 12's.
    pub(crate) wr_flush: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8)>,
}

const _: () = assert!(std::mem::offset_of!(Block, wr_flush) == 352);

/// A queue pair.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) c: Shown<Block>,
    users: Users,
    pub(crate) facade: QueuePair,
    pub(crate) context: Held<Context>,
    /// Bytes of inline data that a request may have.
    pub(crate) max_inline_data: usize,
    /// Inline data of the request that is being posted, where it comes in several pieces.
    pub(crate) gathered: Gathered,
    /// What is put together by calls.
    pub(crate) session: Session,
    /// What it was made with.
    made_of: MadeOf,
    /// Multicast groups that it is in.
    pub(crate) groups: Mutex<BTreeSet<Gid>>,
    /// Asynchronous events that the program has taken.
    pub(crate) async_events: Arc<Acks>,
}

object!(Qp, ibv_qp, "queue pair", after_fork: Qp::refuse);

/// Memory for the thread that posts.
#[derive(Debug)]
pub(crate) struct Gathered(UnsafeCell<SuppliedList<u8>>);

// SAFETY: it is only reached by `for_poster`, so by the one thread that posts.
unsafe impl Sync for Gathered {}

impl Gathered {
    /// It, empty.
    ///
    /// # Safety
    ///
    /// This thread has the queue pair's lock for posting, and uses the result while it has.
    #[expect(clippy::mut_from_ref, reason = "the lock is not here")]
    pub(crate) unsafe fn for_poster(&self) -> &mut SuppliedList<u8> {
        // SAFETY: the caller's.
        let gathered = unsafe { &mut *self.0.get() };
        gathered.clear();
        gathered
    }
}

/// What a queue pair is made with: those are in use as long as it is there.
#[derive(Debug, Default)]
pub(crate) struct MadeOf {
    pub(crate) pd: Option<Held<Pd>>,
    pub(crate) send_cq: Option<Held<Cq>>,
    pub(crate) recv_cq: Option<Held<Cq>>,
    pub(crate) srq: Option<Held<Srq>>,
    pub(crate) _xrcd: Option<Held<Xrcd>>,
}

impl MadeOf {
    fn handle<T: Object>(held: &Option<Held<T>>) -> *mut T::C {
        held.as_ref().map_or(std::ptr::null_mut(), |held| held.handle())
    }
}

impl Qp {
    /// Lets the program have a queue pair that the facade has made; `ops` are those that it wants to
    /// put together by calls (src/qp_ex.rs).
    pub(crate) fn publish(
        facade: QueuePair,
        context: Held<Context>,
        made_of: MadeOf,
        init: &ibv_qp_init_attr,
        ops: u64,
    ) -> Result<*mut ibv_qp, Refused> {
        let (pd, caps) = (made_of.pd.as_ref(), facade.caps());
        let session = Session::new(ops != 0, pd, caps)?;
        let max_inline_data = caps.max_inline_data as usize;
        let gathered = SuppliedList::new(pd, max_inline_data, Resource::QueuePair)?;
        let mut block = Block { ex: ibv_qp_ex::zeroed(), wr_flush: None };
        if ops != 0 {
            qp_ex::show(&mut block);
        }
        block.ex.qp_base = ibv_qp {
            context: context.handle(),
            qp_context: init.qp_context,
            pd: MadeOf::handle(&made_of.pd),
            send_cq: MadeOf::handle(&made_of.send_cq),
            recv_cq: MadeOf::handle(&made_of.recv_cq),
            srq: MadeOf::handle(&made_of.srq),
            handle: facade.qpn().get(),
            qp_num: facade.qpn().get(),
            state: facade.state() as u32,
            qp_type: facade.qp_type() as u32,
            ..ibv_qp::zeroed()
        };
        Ok(Self::table().publish(Arc::new(Self {
            c: Shown::new(block),
            users: Users::default(),
            facade,
            context,
            max_inline_data,
            gathered: Gathered(UnsafeCell::new(gathered)),
            session,
            made_of,
            groups: Mutex::default(),
            async_events: Arc::default(),
        })))
    }

    /// Lets the program have a target of extended reliable connections, or one more handle of one.
    pub(crate) fn publish_target(
        facade: QueuePair,
        xrcd: Held<Xrcd>,
        qp_context: *mut c_void,
    ) -> Result<*mut ibv_qp, Refused> {
        let context = xrcd.context.clone();
        let made_of = MadeOf { _xrcd: Some(xrcd), ..MadeOf::default() };
        let init = ibv_qp_init_attr { qp_context, ..ibv_qp_init_attr::zeroed() };
        Self::publish(facade, context, made_of, &init, 0)
    }

    /// In the child of a fork: posting is refused.
    fn refuse(&self) {
        // SAFETY: it is there, and the child of a fork has one thread.
        let block = unsafe { &mut *self.c.as_ptr() };
        block.ex.qp_base.context = self.context.of_parent();
        qp_of_parent::refuse(block);
    }

    /// Lets the program read the state that it has.
    fn show_state(&self, state: u32) {
        // SAFETY: the queue pair is there, and this is the word that the program reads. Threads that
        // ask at the same time write it too.
        let shown = unsafe { AtomicU32::from_ptr(&raw mut (*self.c.as_ptr()).ex.qp_base.state) };
        shown.store(state, Ordering::Relaxed);
    }
}

/// The service of a new queue pair (`enum ibv_qp_type`).
pub(crate) fn qp_type(value: u32) -> Result<QpType, Refused> {
    let known = QpType::ALL.into_iter().find(|known| *known as u32 == value);
    // QP1 has a type of the kernel's own, which programs cannot ask for.
    known.filter(|known| *known != QpType::Gsi).ok_or_else(|| {
        Refused::new(libc::EOPNOTSUPP, format!("queue pairs of type {value} are not there"))
    })
}

/// Makes a queue pair that sends; what it can hold goes back into `wanted`. For `ops` see
/// [`Qp::publish`].
pub(crate) fn create(
    pd: *mut ibv_pd,
    wanted: &mut ibv_qp_init_attr,
    ops: u64,
) -> Result<*mut ibv_qp, Refused> {
    let qp_type = qp_type(wanted.qp_type)?;
    let pd = Held::<Pd>::get(pd)?;
    let send_cq = Held::<Cq>::get(wanted.send_cq)?;
    let recv_cq = match qp_type {
        QpType::XrcSend => None,
        _ => Some(Held::<Cq>::get(wanted.recv_cq)?),
    };
    let srq = Held::<Srq>::get_if_any(wanted.srq)?;
    let facade = pd.facade.create_qp(QpInit {
        qp_type,
        send_cq: send_cq.facade.clone(),
        recv_cq: recv_cq.as_ref().unwrap_or(&send_cq).facade.clone(),
        caps: qp_caps(&wanted.cap),
        signal_all: wanted.sq_sig_all != 0,
        srq: srq.as_ref().map(|srq| srq.facade.clone()),
        port_num: 1,
    })?;
    wanted.cap = qp_cap(facade.caps());
    let context = pd.context.clone();
    let made_of = MadeOf { pd: Some(pd), send_cq: Some(send_cq), recv_cq, srq, _xrcd: None };
    Qp::publish(facade, context, made_of, wanted, ops)
}

/// `ibv_create_qp(3)`: the capacities that there are go back to the program.
pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Pointer<ibv_qp> {
    answer("ibv_create_qp", || {
        // SAFETY: the program points to how it is to be.
        let mut wanted = unsafe { get(init) }?;
        let qp = create(pd, &mut wanted, 0)?;
        // SAFETY: as above. No more is written: `ibv_create_qp_ex` of verbs.h comes here too, whose
        // struct goes on where the padding of this one is.
        unsafe { (*init).cap = wanted.cap };
        Ok(qp)
    })
}

/// `IBV_QP_STATE`.
const STATE: u32 = 1;

/// `ibv_modify_qp(3)`.
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
) -> Positive {
    answer("ibv_modify_qp", || {
        let qp = live::<Qp>(qp)?;
        // SAFETY: the program points to the attributes.
        let wanted = unsafe { get(attr) }?;
        let (attr, mask) = to_facade(&wanted, attr_mask as u32)?;
        qp.facade.modify(&attr, mask.difference(without_effect(qp.facade.qp_type())))?;
        if attr_mask as u32 & STATE != 0 {
            qp.show_state(wanted.qp_state);
            if attr.state == QpState::Reset {
                qp.forget_completions();
            }
        }
        Ok(())
    })
}

impl Qp {
    /// What was not polled before a reset is gone, as with libmlx5: programs go on afterwards, and
    /// would take the flushed requests of before for those of now.
    fn forget_completions(&self) {
        let MadeOf { send_cq, recv_cq, .. } = &self.made_of;
        for cq in [send_cq, recv_cq].into_iter().flatten() {
            cq.facade.remove_of(self.facade.qpn());
        }
    }
}

/// Attributes that a half of an extended reliable connection has no use for. Programs such as
/// perftest set them all the same, and Linux passes over them (`modify_qp_mask` of its uverbs).
fn without_effect(qp_type: QpType) -> QpAttrMask {
    match qp_type {
        QpType::XrcSend => QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER,
        QpType::XrcRecv => {
            QpAttrMask::MAX_QP_RD_ATOMIC | QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY
        }
        _ => QpAttrMask::empty(),
    }
}

/// `ibv_query_qp(3)`: all attributes, whatever the mask.
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _attr_mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> Positive {
    answer("ibv_query_qp", || {
        let object = live::<Qp>(qp)?;
        let found = from_facade(&object.facade.query()?, object.facade.caps());
        object.show_state(found.qp_state);
        let shown = object.c.as_ptr();
        // SAFETY: it is there, and these words never change; not all of it is read, as the state
        // does.
        let made = unsafe {
            let shown = &raw const (*shown).ex.qp_base;
            ibv_qp_init_attr {
                qp_context: (*shown).qp_context,
                send_cq: (*shown).send_cq,
                recv_cq: (*shown).recv_cq,
                srq: (*shown).srq,
                cap: found.cap,
                qp_type: (*shown).qp_type,
                sq_sig_all: object.facade.signals_all().into(),
            }
        };
        // SAFETY: the program wants both there.
        unsafe {
            put(attr, found)?;
            put(init, made)
        }
    })
}

/// `ibv_destroy_qp(3)`: `EBUSY` while it is in a multicast group; waits until all its events are
/// acknowledged.
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> Positive {
    answer("ibv_destroy_qp", || {
        let groups = live::<Qp>(qp)?.groups.lock().len();
        if groups > 0 {
            let why = format!("the queue pair is in {groups} multicast groups: detach it first");
            return Err(Refused::new(libc::EBUSY, why));
        }
        Qp::table().withdraw(qp)?.async_events.wait();
        Ok(())
    })
}

/// Bits of `comp_mask` of `struct ibv_qp_open_attr`.
const OPEN_NUM: u32 = 1;
const OPEN_XRCD: u32 = 1 << 1;
const OPEN_CONTEXT: u32 = 1 << 2;
const OPEN_TYPE: u32 = 1 << 3;

/// `ibv_open_qp(3)`, which `verbs.h` calls by a pointer: one more handle of a target of extended
/// reliable connections, which is destroyed with the last.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> Pointer<ibv_qp> {
    answer("ibv_open_qp", || {
        // SAFETY: the program points to which it is.
        let attr = unsafe { get(attr) }?;
        let needed = OPEN_NUM | OPEN_XRCD | OPEN_TYPE;
        if attr.comp_mask & !OPEN_CONTEXT != needed {
            return Err(Refused::invalid("comp_mask must say NUM, XRCD and TYPE, and no more"));
        }
        if attr.qp_type != QpType::XrcRecv as u32 {
            return Err(Refused::invalid("only IBV_QPT_XRC_RECV can be opened"));
        }
        let xrcd = Held::<Xrcd>::get(attr.xrcd)?;
        if xrcd.context.handle() != context {
            return Err(Refused::invalid("the XRC domain belongs to another context"));
        }
        let has_context = attr.comp_mask & OPEN_CONTEXT != 0;
        let qp_context = if has_context { attr.qp_context } else { std::ptr::null_mut() };
        let facade = xrcd.facade.open_qp(Qpn::new(attr.qp_num))?;
        Qp::publish_target(facade, xrcd, qp_context)
    })
}

/// No vendor's options are agreed on here.
fn no_ece() -> Refused {
    Refused::new(libc::EOPNOTSUPP, "there are no options of vendors (ECE)")
}

/// `ibv_query_ece(3)`: there are none, and the program reads zeros.
pub(crate) unsafe extern "C" fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> Positive {
    answer("ibv_query_ece", || {
        live::<Qp>(qp)?;
        // SAFETY: the program wants them there.
        unsafe { put(ece, ibv_ece::zeroed()) }?;
        Err(no_ece())
    })
}

/// `ibv_set_ece(3)`: there are none.
pub(crate) unsafe extern "C" fn ibv_set_ece(qp: *mut ibv_qp, _ece: *mut ibv_ece) -> Positive {
    answer("ibv_set_ece", || {
        live::<Qp>(qp)?;
        Err(no_ece())
    })
}

/// `ibv_query_qp_data_in_order(3)`: 1 if what `op` writes is there in ascending order.
///
/// WRITEs and SENDs are, on connections (R61). READs are not where packets are lost: what comes
/// behind a gap is stored at once, and only their last byte is written last.
pub(crate) unsafe extern "C" fn ibv_query_qp_data_in_order(
    qp: *mut ibv_qp,
    op: u32,
    flags: u32,
) -> c_int {
    /// `IBV_WR_RDMA_WRITE`, `IBV_WR_RDMA_WRITE_WITH_IMM`, `IBV_WR_SEND`, `IBV_WR_SEND_WITH_IMM`.
    const WRITES_AND_SENDS: std::ops::RangeInclusive<u32> = 0..=3;
    let Ok(qp) = live::<Qp>(qp) else { return 0 };
    let is_connected = !matches!(qp.facade.qp_type(), QpType::Ud | QpType::Gsi);
    (flags == 0 && is_connected && WRITES_AND_SENDS.contains(&op)).into()
}
