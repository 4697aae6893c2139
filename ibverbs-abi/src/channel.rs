//! Completion channels, and the events that come by them.

use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Weak};

use ibverbs_api::{CompletionChannel, CqId};
use parking_lot::Mutex;

use crate::call::{Convention, Count, MinusOne, Number, Pointer, Positive, Refused, answer};
use crate::context::Context;
use crate::cq::Cq;
use crate::descriptor::{let_block, read_one};
use crate::handles::{Held, Object, Shown, Users, live, object};
use crate::memory::put;
use crate::nap::{Nap, Slept};
use crate::types::{ibv_comp_channel, ibv_context, ibv_cq};

/// The name of the call.
const GET_CQ_EVENT: &str = "ibv_get_cq_event";

/// A completion channel.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Channel {
    c: Shown<ibv_comp_channel>,
    users: Users,
    pub(crate) facade: CompletionChannel,
    pub(crate) context: Held<Context>,
    /// The queues whose events come here.
    cqs: Mutex<HashMap<CqId, Weak<Cq>>>,
}

object!(Channel, ibv_comp_channel, "completion channel");

impl Channel {
    /// Lets events of a queue come here.
    pub(crate) fn add(&self, cq: &Arc<Cq>) {
        self.cqs.lock().insert(cq.facade.id(), Arc::downgrade(cq));
    }

    /// Lets no more events of a queue come here; those that were taken are counted.
    pub(crate) fn remove(&self, cq: &Cq) {
        self.cqs.lock().remove(&cq.facade.id());
    }

    /// The queue of an event that is being taken, unless it is gone.
    fn take(&self, id: CqId) -> Option<Arc<Cq>> {
        let cqs = self.cqs.lock();
        let cq = cqs.get(&id)?.upgrade()?;
        // Under the lock: whoever destroys the queue has not removed it yet, and will wait.
        cq.events.taken();
        Some(cq)
    }
}

/// `ibv_create_comp_channel(3)`.
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> Pointer<ibv_comp_channel> {
    answer("ibv_create_comp_channel", || {
        let held = Held::<Context>::get(context)?;
        let facade = held.facade()?.create_channel().map_err(|error| {
            Refused::new(error.raw_os_error().unwrap_or(libc::ENOMEM), error.to_string())
        })?;
        let_block(facade.as_fd())?;
        let fd = facade.as_fd().as_raw_fd();
        let c = Shown::new(ibv_comp_channel { context, fd, refcnt: 0 });
        let cqs = Mutex::default();
        let channel = Channel { c, users: Users::default(), facade, context: held, cqs };
        Ok(Channel::table().publish(Arc::new(channel)))
    })
}

/// `ibv_destroy_comp_channel(3)`: `EBUSY` while a completion queue uses it.
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(
    channel: *mut ibv_comp_channel,
) -> Positive {
    answer("ibv_destroy_comp_channel", || Channel::table().withdraw(channel).map(drop))
}

/// `ibv_get_cq_event(3)`: waits for an event, as the channel's descriptor lets it.
///
/// While it waits, the thread may be cancelled; see [`wait_for`](crate::descriptor::wait_for) for
/// what that asks of this function.
pub(crate) unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> MinusOne {
    let begin = |nap: &mut Nap| {
        if cq.is_null() || cq_context.is_null() {
            return Err(Refused::invalid("cq and cq_context must not be NULL"));
        }
        nap.begin(&live::<Channel>(channel)?.facade)
    };
    let take = || {
        let channel = live::<Channel>(channel)?;
        let Some(found) = channel.facade.take_read().and_then(|id| channel.take(id)) else {
            // The queue of the event is gone.
            return Ok(0);
        };
        // SAFETY: the program wants the queue and its own word there.
        unsafe {
            put(cq, found.handle())?;
            put(cq_context, (*found.handle()).cq_context)?;
        }
        Ok(1)
    };
    loop {
        let mut nap = Nap::default();
        let Number(fd) = answer::<Count>(GET_CQ_EVENT, || begin(&mut nap));
        if fd < 0 {
            return MinusOne::AS_ERRNO_SAYS;
        }
        let end = |nap: &Nap, slept| nap.end(&live::<Channel>(channel)?.facade, slept);
        if nap.has_sockets() {
            let slept = nap.sleep();
            match answer::<Count>(GET_CQ_EVENT, || end(&nap, slept)) {
                Number(0) => continue,
                Number(1..) => {}
                Number(_) => return MinusOne::AS_ERRNO_SAYS,
            }
        }
        let read = read_one(fd);
        if !nap.has_sockets() && nap.has_begun() {
            answer::<Count>(GET_CQ_EVENT, || end(&nap, Slept::Told));
        }
        if let Err(errno) = read {
            return MinusOne::failed(errno);
        }
        match answer::<Count>(GET_CQ_EVENT, take) {
            Number(0) => {}
            Number(1..) => return MinusOne::done(()),
            Number(_) => return MinusOne::AS_ERRNO_SAYS,
        }
    }
}

/// `ibv_ack_cq_events(3)`.
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    answer::<()>("ibv_ack_cq_events", || {
        if cq.is_null() {
            return Err(Refused::invalid("NULL is no completion queue"));
        }
        // A thread that destroys the queue has withdrawn it already, and waits for this.
        // SAFETY: the program has an event of the queue in its hands, which therefore is there.
        let events = unsafe { Cq::trusted(cq) }.events.clone();
        events.acknowledged(nevents);
        Ok(())
    })
}
