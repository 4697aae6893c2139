//! Queue pairs.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::sync::Arc;

use ibverbs_api::{Gid, QpInit, QpType, QueuePair};
use parking_lot::Mutex;

use crate::acks::Acks;
use crate::call::{Pointer, Positive, Refused, answer, missing};
use crate::context::Context;
use crate::cq::Cq;
use crate::handles::{Held, Object, Shown, Users, live, object};
use crate::memory::{get, put};
use crate::pd::Pd;
use crate::qp_attr::{from_facade, qp_cap, qp_caps, to_facade};
use crate::qp_ex::{self, Session};
use crate::srq::Srq;
use crate::types::{ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr};

missing! {
    EOPNOTSUPP as Positive:
        ibv_query_qp_data_in_order, ibv_query_ece, ibv_set_ece;
}

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
    /// What is put together by calls.
    pub(crate) session: Session,
    /// What it was made with.
    made_of: MadeOf,
    /// Multicast groups that it is in.
    pub(crate) groups: Mutex<BTreeSet<Gid>>,
    /// Asynchronous events that the program has taken.
    pub(crate) async_events: Arc<Acks>,
}

object!(Qp, ibv_qp, "queue pair");

/// What a queue pair is made with: those are in use as long as it is there.
#[derive(Debug, Default)]
pub(crate) struct MadeOf {
    pub(crate) pd: Option<Held<Pd>>,
    pub(crate) send_cq: Option<Held<Cq>>,
    pub(crate) recv_cq: Option<Held<Cq>>,
    pub(crate) srq: Option<Held<Srq>>,
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
    ) -> *mut ibv_qp {
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
        let max_inline_data = facade.caps().max_inline_data as usize;
        Self::table().publish(Arc::new(Self {
            c: Shown::new(block),
            users: Users::default(),
            facade,
            context,
            max_inline_data,
            session: Session::new(ops != 0),
            made_of,
            groups: Mutex::default(),
            async_events: Arc::default(),
        }))
    }

    /// Lets the program read the state that it has.
    fn show_state(&self, state: u32) {
        // SAFETY: the queue pair is there, and this is the word that the program reads.
        unsafe { (*self.c.as_ptr()).ex.qp_base.state = state };
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
    let made_of = MadeOf { pd: Some(pd), send_cq: Some(send_cq), recv_cq, srq };
    Ok(Qp::publish(facade, context, made_of, wanted, ops))
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
        // SAFETY: as above.
        unsafe { put(init, wanted) }?;
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
        qp.facade.modify(&attr, mask)?;
        if attr_mask as u32 & STATE != 0 {
            qp.show_state(wanted.qp_state);
        }
        Ok(())
    })
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
        // SAFETY: it is there, and these words never change.
        let shown = unsafe { (*object.c.as_ptr()).ex.qp_base };
        let made = ibv_qp_init_attr {
            qp_context: shown.qp_context,
            send_cq: shown.send_cq,
            recv_cq: shown.recv_cq,
            srq: shown.srq,
            cap: found.cap,
            qp_type: shown.qp_type,
            sq_sig_all: object.facade.signals_all().into(),
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
