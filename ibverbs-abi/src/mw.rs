//! Memory windows: the functions behind the slots of a context.
//!
//! The key that a window has is the one that the program sees: each binding that is posted changes
//! it there, and a program whose binding has failed puts the old one back, as `ibv_bind_mw(3)` says.

use std::sync::Arc;

use ibverbs_api::{
    AccessFlags, LKey, MemoryWindow, MwBind, MwType, RKey, SendData, SendFlags, SendOp, SendWr,
};

use crate::call::{Pointer, Positive, Refused, answer};
use crate::handles::{Held, Object, Shown, Users, live, object};
use crate::memory::get;
use crate::mr::access_flags;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::types::{ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_pd, ibv_qp};

/// A memory window.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Mw {
    c: Shown<ibv_mw>,
    users: Users,
    facade: MemoryWindow,
    pub(crate) pd: Held<Pd>,
}

object!(Mw, ibv_mw, "memory window");

impl Mw {
    /// The key that it has after all bindings that were posted.
    fn rkey(&self) -> u32 {
        // SAFETY: it is there, and this word is the program's to change.
        unsafe { (*self.c.as_ptr()).rkey }
    }

    /// Shows the program the key that it has after a binding that was posted.
    pub(crate) fn show_rkey(&self, rkey: u32) {
        // SAFETY: as for [`Self::rkey`].
        unsafe { (*self.c.as_ptr()).rkey = rkey };
    }

    /// The request that binds it under a key, if it may be bound by this queue pair.
    ///
    /// # Safety
    ///
    /// The region that `info` names is there.
    pub(crate) unsafe fn binding(
        &self,
        qp: &Qp,
        mw_type: MwType,
        rkey: u32,
        info: &ibv_mw_bind_info,
    ) -> Result<SendOp, i32> {
        if self.facade.mw_type() != mw_type || !self.pd.context.is_same(&qp.context) {
            return Err(libc::EINVAL);
        }
        let access = access_flags(info.mw_access_flags).map_err(|refused| refused.errno())?;
        // What is about the owner's own access means nothing for a window: programs give it along.
        let access = access - OWN_ACCESS;
        // Without a region, and with no length, it is unbound.
        // SAFETY: the caller's.
        let lkey = if info.mr.is_null() { 0 } else { unsafe { (*info.mr).lkey } };
        let (addr, length) = (info.addr, info.length);
        let bind = MwBind { lkey: LKey::new(lkey), addr, length, access };
        Ok(SendOp::BindMw { window: RKey::new(self.rkey()), rkey: RKey::new(rkey), bind })
    }
}

/// Access that is the owner's alone, or says how memory is registered.
const OWN_ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::MW_BIND)
    .union(AccessFlags::ON_DEMAND)
    .union(AccessFlags::RELAXED_ORDERING);

/// `ibv_alloc_mw(3)`, which `verbs.h` calls by a pointer.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: u32) -> Pointer<ibv_mw> {
    answer("ibv_alloc_mw", || {
        let held = Held::<Pd>::get(pd)?;
        let known =
            [MwType::Type1, MwType::Type2].into_iter().find(|known| *known as u32 == mw_type);
        let Some(known) = known else {
            return Err(Refused::invalid(format!("there are no memory windows of type {mw_type}")));
        };
        let facade = held.facade.alloc_mw(known)?;
        let rkey = facade.rkey().get();
        let context = held.context.handle();
        let c = Shown::new(ibv_mw { context, pd, rkey, handle: rkey >> 8, r#type: mw_type });
        let mw = Mw { c, users: Users::default(), facade, pd: held };
        Ok(Mw::table().publish(Arc::new(mw)))
    })
}

/// `ibv_dealloc_mw(3)`, which `verbs.h` calls by a pointer: bound or not.
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> Positive {
    answer("ibv_dealloc_mw", || Mw::table().withdraw(mw).map(drop))
}

/// `ibv_bind_mw(3)`, which `verbs.h` calls by a pointer for windows of type 1.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> Positive {
    answer("ibv_bind_mw", || {
        let (qp, mw) = (live::<Qp>(qp)?, live::<Mw>(mw)?);
        // SAFETY: the program points to how it is to be bound.
        let bind = unsafe { get(bind) }?;
        let old = mw.rkey();
        let rkey = old & !0xff | old.wrapping_add(1) & 0xff;
        // SAFETY: the program names a region that is there.
        let op = unsafe { mw.binding(&qp, MwType::Type1, rkey, &bind.bind_info) };
        let op = op.map_err(|errno| Refused::new(errno, "the window cannot be bound like this"))?;
        let flags = SendFlags::from_bits(bind.send_flags);
        let flags = flags.ok_or_else(|| Refused::invalid("send_flags has unknown bits"))?;
        let data = SendData::Sges(&[]);
        qp.facade.post_send(&SendWr { wr_id: bind.wr_id, op, flags, data, srq_number: None })?;
        mw.show_rkey(rkey);
        Ok(())
    })
}
