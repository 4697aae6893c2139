//! Multicast groups.

use ibverbs_api::Gid;

use crate::call::{Positive, answer};
use crate::handles::live;
use crate::memory::get;
use crate::qp::Qp;
use crate::types::{ibv_gid, ibv_qp};

/// `ibv_attach_mcast(3)`; the LID means nothing on Ethernet.
pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> Positive {
    answer("ibv_attach_mcast", || {
        // SAFETY: the program points to a GID.
        let group = Gid::from_raw(unsafe { get(gid) }?.raw);
        let qp = live::<Qp>(qp)?;
        // Held over the call, so that the list is what the facade has.
        let mut groups = qp.groups.lock();
        qp.facade.attach_multicast(group)?;
        groups.insert(group);
        Ok(())
    })
}

/// `ibv_detach_mcast(3)`; the LID means nothing on Ethernet.
pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> Positive {
    answer("ibv_detach_mcast", || {
        // SAFETY: the program points to a GID.
        let group = Gid::from_raw(unsafe { get(gid) }?.raw);
        let qp = live::<Qp>(qp)?;
        let mut groups = qp.groups.lock();
        qp.facade.detach_multicast(group)?;
        groups.remove(&group);
        Ok(())
    })
}
