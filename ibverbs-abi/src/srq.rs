//! Shared receive queues.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use ibverbs_api::{SharedReceiveQueue, SrqAttr, SrqAttrMask};

use crate::acks::Acks;
use crate::call::{Pointer, Positive, Refused, answer};
use crate::context::Context;
use crate::handles::{Held, Object, Shown, Users, live, object};
use crate::memory::{get, put};
use crate::pd::Pd;
use crate::types::{ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};

/// A shared receive queue.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Srq {
    c: Shown<ibv_srq>,
    users: Users,
    pub(crate) facade: SharedReceiveQueue,
    pub(crate) context: Held<Context>,
    _pd: Held<Pd>,
    /// Asynchronous events that the program has taken.
    pub(crate) async_events: Arc<Acks>,
}

object!(Srq, ibv_srq, "shared receive queue");

impl Srq {
    /// Lets the program have a queue that the facade has made.
    pub(crate) fn publish(
        facade: SharedReceiveQueue,
        pd: Held<Pd>,
        srq_context: *mut c_void,
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
        Self::table().publish(Arc::new(Self { c, users, facade, context, _pd: pd, async_events }))
    }
}

/// Capacities as a program asks for them when it makes a queue: the limit does not count there.
pub(crate) fn capacities(attr: &ibv_srq_attr) -> SrqAttr {
    SrqAttr { max_wr: attr.max_wr, max_sge: attr.max_sge, srq_limit: 0 }
}

/// `ibv_create_srq(3)`: the capacities that there are go back to the program.
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> Pointer<ibv_srq> {
    answer("ibv_create_srq", || {
        // SAFETY: the program points to how it is to be.
        let mut wanted = unsafe { get(init) }?;
        let held = Held::<Pd>::get(pd)?;
        let facade = held.facade.create_srq(capacities(&wanted.attr))?;
        let SrqAttr { max_wr, max_sge, .. } = facade.query();
        (wanted.attr.max_wr, wanted.attr.max_sge) = (max_wr, max_sge);
        // SAFETY: as above.
        unsafe { put(init, wanted) }?;
        Ok(Srq::publish(facade, held, wanted.srq_context))
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
