//! Shared receive queues.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::sync::Arc;

use ibverbs_api::{SharedReceiveQueue, SrqAttr, SrqAttrMask};

use crate::acks::Acks;
use crate::call::{Pointer, Positive, Refused, answer};
use crate::context::Context;
use crate::cq::Cq;
use crate::handles::{Held, Object, Shown, Users, live, object};
use crate::memory::{get, get_sized, put};
use crate::pd::Pd;
use crate::types::{
    ibv_context, ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex,
};
use crate::xrcd::Xrcd;

/// A shared receive queue.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Srq {
    c: Shown<ibv_srq>,
    users: Users,
    pub(crate) facade: SharedReceiveQueue,
    pub(crate) context: Held<Context>,
    _pd: Held<Pd>,
    /// For extended reliable connections: the domain, and where receives complete.
    xrc: Option<(Held<Xrcd>, Held<Cq>)>,
    /// Asynchronous events that the program has taken.
    pub(crate) async_events: Arc<Acks>,
}

object!(Srq, ibv_srq, "shared receive queue", after_fork: Srq::refuse);

impl Srq {
    /// In the child of a fork: posting is refused.
    fn refuse(&self) {
        // SAFETY: it is there, and the child of a fork has one thread.
        unsafe { (*self.c.as_ptr()).context = self.context.of_parent() };
    }

    /// Lets the program have a queue that the facade has made.
    pub(crate) fn publish(
        facade: SharedReceiveQueue,
        pd: Held<Pd>,
        srq_context: *mut c_void,
        xrc: Option<(Held<Xrcd>, Held<Cq>)>,
    ) -> *mut ibv_srq {
        let context = pd.context.clone();
        let c = Shown::new(ibv_srq {
            context: context.handle(),
            srq_context,
            pd: pd.handle(),
            handle: facade.id().0,
            ..ibv_srq::zeroed()
        });
        let (users, async_events) = (Users::default(), Arc::default());
        let _pd = pd;
        Self::table().publish(Arc::new(Self { c, users, facade, context, _pd, xrc, async_events }))
    }
}

/// Capacities as a program asks for them when it makes a queue: the limit does not count there.
pub(crate) fn capacities(attr: &ibv_srq_attr) -> SrqAttr {
    SrqAttr { max_wr: attr.max_wr, max_sge: attr.max_sge, srq_limit: 0 }
}

/// Tells the program the capacities that there are, and nothing else.
///
/// # Safety
///
/// The program wants them there.
unsafe fn show_capacities(to: *mut ibv_srq_attr, facade: &SharedReceiveQueue) {
    let SrqAttr { max_wr, max_sge, .. } = facade.query();
    // SAFETY: the caller's.
    unsafe { ((*to).max_wr, (*to).max_sge) = (max_wr, max_sge) };
}

/// `ibv_create_srq(3)`: the capacities that there are go back to the program.
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> Pointer<ibv_srq> {
    answer("ibv_create_srq", || {
        // SAFETY: the program points to how it is to be.
        let wanted = unsafe { get(init) }?;
        let held = Held::<Pd>::get(pd)?;
        let facade = held.facade.create_srq(capacities(&wanted.attr))?;
        // SAFETY: as above. `ibv_create_srq_ex` of verbs.h comes here too, whose struct goes on where
        // the padding of this one is.
        unsafe { show_capacities(&raw mut (*init).attr, &facade) };
        Ok(Srq::publish(facade, held, wanted.srq_context, None))
    })
}

/// Bits of `comp_mask` of `struct ibv_srq_init_attr_ex`.
const INIT_TYPE: u32 = 1;
const INIT_PD: u32 = 1 << 1;
const INIT_XRCD: u32 = 1 << 2;
const INIT_CQ: u32 = 1 << 3;

/// Values of `enum ibv_srq_type`.
const TYPE_BASIC: u32 = 0;
const TYPE_XRC: u32 = 1;

/// `ibv_create_srq_ex(3)`, which `verbs.h` calls by a pointer: the capacities that there are go back
/// to the program.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> Pointer<ibv_srq> {
    answer("ibv_create_srq_ex", || {
        // SAFETY: the program points to how it is to be.
        let wanted = unsafe {
            // What is behind is about tag matching, which is refused.
            let size = |_| offset_of!(ibv_srq_init_attr_ex, tm_cap);
            get_sized(init, ibv_srq_init_attr_ex::zeroed(), size)
        }?;
        if wanted.comp_mask & !(INIT_TYPE | INIT_PD | INIT_XRCD | INIT_CQ) != 0 {
            let why = "comp_mask has bits of tag matching, or unknown ones, which are not there";
            return Err(Refused::new(libc::EOPNOTSUPP, why));
        }
        if wanted.comp_mask & INIT_PD == 0 {
            return Err(Refused::invalid("a shared receive queue needs a protection domain"));
        }
        let held = Held::<Pd>::get(wanted.pd)?;
        if held.context.handle() != context {
            return Err(Refused::invalid("the protection domain belongs to another context"));
        }
        let has_type = wanted.comp_mask & INIT_TYPE != 0;
        let attr = capacities(&wanted.attr);
        let (facade, xrc) = match if has_type { wanted.srq_type } else { TYPE_BASIC } {
            TYPE_BASIC => (held.facade.create_srq(attr)?, None),
            TYPE_XRC => {
                if wanted.comp_mask & (INIT_XRCD | INIT_CQ) != INIT_XRCD | INIT_CQ {
                    let why = "a queue of type XRC needs an XRC domain and a completion queue";
                    return Err(Refused::invalid(why));
                }
                let (xrcd, cq) = (Held::<Xrcd>::get(wanted.xrcd)?, Held::<Cq>::get(wanted.cq)?);
                let facade = held.facade.create_xrc_srq(attr, &xrcd.facade, &cq.facade)?;
                (facade, Some((xrcd, cq)))
            }
            other => {
                let why = format!("shared receive queues of type {other} are not there");
                return Err(Refused::new(libc::EOPNOTSUPP, why));
            }
        };
        // SAFETY: as above.
        unsafe { show_capacities(&raw mut (*init).attr, &facade) };
        Ok(Srq::publish(facade, held, wanted.srq_context, xrc))
    })
}

/// `ibv_get_srq_num(3)`, which `verbs.h` calls by a pointer: of queues of type XRC alone.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> Positive {
    answer("ibv_get_srq_num", || {
        let srq = live::<Srq>(srq)?;
        if srq.xrc.is_none() {
            return Err(Refused::invalid("only shared receive queues of type XRC have a number"));
        }
        // SAFETY: the program wants the number there.
        unsafe { put(srq_num, srq.facade.id().0) }
    })
}

/// `ibv_modify_srq(3)`.
pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    attr_mask: c_int,
) -> Positive {
    answer("ibv_modify_srq", || {
        let mask = SrqAttrMask::from_bits(attr_mask as u32);
        let mask = mask.ok_or_else(|| Refused::invalid("attr_mask has unknown bits"))?;
        // SAFETY: the program points to the attributes.
        let ibv_srq_attr { max_wr, max_sge, srq_limit } = unsafe { get(attr) }?;
        live::<Srq>(srq)?.facade.modify(&SrqAttr { max_wr, max_sge, srq_limit }, mask)?;
        Ok(())
    })
}

/// `ibv_query_srq(3)`.
pub(crate) unsafe extern "C" fn ibv_query_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
) -> Positive {
    answer("ibv_query_srq", || {
        let SrqAttr { max_wr, max_sge, srq_limit } = live::<Srq>(srq)?.facade.query();
        // SAFETY: the program wants the attributes there.
        unsafe { put(attr, ibv_srq_attr { max_wr, max_sge, srq_limit }) }
    })
}

/// `ibv_destroy_srq(3)`: `EBUSY` while a queue pair takes from it; waits until all its events are
/// acknowledged.
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> Positive {
    answer("ibv_destroy_srq", || {
        Srq::table().withdraw(srq)?.async_events.wait();
        Ok(())
    })
}
