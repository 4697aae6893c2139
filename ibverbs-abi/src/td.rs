//! Thread domains: promises that change nothing here.

use std::sync::Arc;

use ibverbs_api::ThreadDomain;

use crate::call::{Pointer, Positive, Refused, answer};
use crate::context::Context;
use crate::handles::{Held, Object, Shown, Users, object};
use crate::memory::get;
use crate::types::{ibv_context, ibv_td, ibv_td_init_attr};

/// A thread domain.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Td {
    c: Shown<ibv_td>,
    users: Users,
    pub(crate) facade: ThreadDomain,
    pub(crate) context: Held<Context>,
}

object!(Td, ibv_td, "thread domain");

/// `ibv_alloc_td(3)`, which `verbs.h` calls by a pointer.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    init: *mut ibv_td_init_attr,
) -> Pointer<ibv_td> {
    answer("ibv_alloc_td", || {
        // SAFETY: the program points to how it is to be.
        if unsafe { get(init) }?.comp_mask != 0 {
            return Err(Refused::invalid("comp_mask must be 0: a thread domain has no attributes"));
        }
        let held = Held::<Context>::get(context)?;
        let (c, facade) = (Shown::new(ibv_td { context }), held.facade()?.alloc_td());
        let td = Td { c, users: Users::default(), facade, context: held };
        Ok(Td::table().publish(Arc::new(td)))
    })
}

/// `ibv_dealloc_td(3)`: `EBUSY` while a parent domain has it.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> Positive {
    answer("ibv_dealloc_td", || Td::table().withdraw(td).map(drop))
}
