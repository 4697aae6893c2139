//! Completion queues.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use ibverbs_api::{CompletionQueue, CqOptions, Moderation};

use crate::acks::Acks;
use crate::call::{Pointer, Positive, Refused, answer};
use crate::channel::Channel;
use crate::context::Context;
use crate::cq_ex::Reader;
use crate::handles::{Held, Object, Shown, Users, live, object};
use crate::memory::get;
use crate::pd::Pd;
use crate::types::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_modify_cq_attr};

/// A completion queue; always with what an extended one shows.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) c: Shown<ibv_cq_ex>,
    users: Users,
    pub(crate) facade: CompletionQueue,
    pub(crate) context: Held<Context>,
    pub(crate) channel: Option<Held<Channel>>,
    /// Completion events that the program has taken.
    pub(crate) events: Arc<Acks>,
    /// Asynchronous events that the program has taken.
    pub(crate) async_events: Arc<Acks>,
    /// The completion that is being read.
    pub(crate) reader: Reader,
    _parent_domain: Option<Held<Pd>>,
}

object!(Cq, ibv_cq, "completion queue", after_fork: Cq::refuse_to_poll);

/// How a completion queue is made, by whichever call.
pub(crate) struct CqInit {
    pub(crate) context: *mut ibv_context,
    pub(crate) entries: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) vector: u32,
    pub(crate) options: CqOptions,
    /// One thread uses it (`IBV_CREATE_CQ_ATTR_SINGLE_THREADED`).
    pub(crate) single_threaded: bool,
    pub(crate) parent_domain: Option<Held<Pd>>,
}

impl Cq {
    pub(crate) fn create(init: CqInit) -> Result<Arc<Self>, Refused> {
        let context = Held::<Context>::get(init.context)?;
        let channel = Held::<Channel>::get_if_any(init.channel)?;
        if channel.as_ref().is_some_and(|channel| channel.context.handle() != init.context) {
            return Err(Refused::invalid("the channel belongs to another context"));
        }
        let facade = context.facade()?;
        let vectors = facade.query_device().num_comp_vectors;
        let vector = init.vector as usize;
        if vector >= vectors {
            let why = format!("completion vector {vector}, but there are {vectors}");
            return Err(Refused::invalid(why));
        }
        let reader = Reader::new(init.single_threaded, init.parent_domain.as_ref())?;
        let on = channel.as_ref().map(|channel| &channel.facade);
        let facade = facade.create_cq_with(init.entries, on, vector, init.options)?;
        let c = Shown::new(ibv_cq_ex {
            context: init.context,
            channel: init.channel,
            cq_context: init.cq_context,
            handle: facade.id().0,
            cqe: facade.capacity() as c_int,
            ..ibv_cq_ex::zeroed()
        });
        let (users, events, async_events) = (Users::default(), Arc::default(), Arc::default());
        Ok(Arc::new(Self {
            c,
            users,
            facade,
            context,
            channel,
            events,
            async_events,
            reader,
            _parent_domain: init.parent_domain,
        }))
    }

    /// Lets the program have it.
    pub(crate) fn publish(self: Arc<Self>) -> *mut ibv_cq {
        if let Some(channel) = &self.channel {
            channel.add(&self);
        }
        Self::table().publish(self)
    }
}

/// `ibv_create_cq(3)`.
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> Pointer<ibv_cq> {
    answer("ibv_create_cq", || {
        let entries = u32::try_from(cqe).map_err(|_| Refused::invalid("cqe is negative"))?;
        let vector = u32::try_from(comp_vector);
        let vector = vector.map_err(|_| Refused::invalid("comp_vector is negative"))?;
        let init = CqInit {
            context,
            entries,
            cq_context,
            channel,
            vector,
            options: CqOptions::default(),
            single_threaded: false,
            parent_domain: None,
        };
        Ok(Cq::create(init)?.publish())
    })
}

/// `ibv_destroy_cq(3)`: `EBUSY` while a queue pair completes there; waits until all its events are
/// acknowledged.
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> Positive {
    answer("ibv_destroy_cq", || {
        let cq = Cq::table().withdraw(cq)?;
        if let Some(channel) = &cq.channel {
            channel.remove(&cq);
        }
        cq.events.wait();
        cq.async_events.wait();
        Ok(())
    })
}

/// `ibv_resize_cq(3)`.
pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> Positive {
    answer("ibv_resize_cq", || {
        let entries = u32::try_from(cqe).map_err(|_| Refused::invalid("cqe is negative"))?;
        let object = live::<Cq>(cq)?;
        let entries = object.facade.resize(entries)?;
        // SAFETY: the queue is there, and this is the word that the program reads.
        unsafe { (*cq).cqe = entries as c_int };
        Ok(())
    })
}

/// `IBV_CQ_ATTR_MODERATE`.
const ATTR_MODERATE: u32 = 1;

/// `ibv_modify_cq(3)`, which `verbs.h` calls by a pointer.
pub(crate) unsafe extern "C" fn modify_cq(
    cq: *mut ibv_cq,
    attr: *mut ibv_modify_cq_attr,
) -> Positive {
    answer("ibv_modify_cq", || {
        // SAFETY: the program points to the attributes.
        let attr = unsafe { get(attr) }?;
        if attr.attr_mask != ATTR_MODERATE {
            return Err(Refused::new(libc::EOPNOTSUPP, "only IBV_CQ_ATTR_MODERATE can be changed"));
        }
        let (count, period_us) = (attr.moderate.cq_count, attr.moderate.cq_period);
        live::<Cq>(cq)?.facade.moderate(Moderation { count, period_us });
        Ok(())
    })
}
