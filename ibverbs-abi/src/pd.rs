//! Protection domains, thread domains and parent domains.

use std::sync::Arc;

use ibverbs_api::ProtectionDomain;

use crate::call::{Pointer, Positive, answer, missing};
use crate::context::Context;
use crate::handles::{Held, Object, Shown, Users, object};
use crate::types::{ibv_context, ibv_pd};

missing! {
    EOPNOTSUPP as Pointer<ibv_pd>:
        ibv_import_pd;
    EOPNOTSUPP as ():
        ibv_unimport_pd;
}

/// A protection domain.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Pd {
    c: Shown<ibv_pd>,
    users: Users,
    pub(crate) facade: ProtectionDomain,
    pub(crate) context: Held<Context>,
}

object!(Pd, ibv_pd, "protection domain");

/// `ibv_alloc_pd(3)`.
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> Pointer<ibv_pd> {
    answer("ibv_alloc_pd", || {
        let held = Held::<Context>::get(context)?;
        let facade = held.facade.alloc_pd()?;
        let c = Shown::new(ibv_pd { context, handle: 0 });
        let pd = Pd { c, users: Users::default(), facade, context: held };
        Ok(Pd::table().publish(Arc::new(pd)))
    })
}

/// `ibv_dealloc_pd(3)`: `EBUSY` while anything is made in it.
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> Positive {
    answer("ibv_dealloc_pd", || Pd::table().withdraw(pd).map(drop))
}
