//! Asynchronous events.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use ibverbs_api::{AsyncEvent, Qpn, SrqId};

use crate::call::{MinusOne, Refused, answer};
use crate::context::Context;
use crate::cq::Cq;
use crate::descriptor::wait_for;
use crate::handles::{Object, live};
use crate::memory::{get, put};
use crate::qp::Qp;
use crate::srq::Srq;
use crate::types::{ibv_async_element, ibv_async_event, ibv_context};

/// `ibv_get_async_event(3)`: waits for an event, as the context's descriptor lets it.
pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> MinusOne {
    let descriptor = || {
        if event.is_null() {
            return Err(Refused::invalid("event must not be NULL"));
        }
        Ok(live::<Context>(context)?.facade()?.event_fd().as_raw_fd())
    };
    let take = || {
        let context = live::<Context>(context)?;
        let found = context.facade()?.take_read_event();
        let with_element = found.and_then(|found| Some((found, element(&context, found)?)));
        let Some((found, element)) = with_element else {
            // The object of the event is gone.
            return Ok(false);
        };
        // SAFETY: the program wants the event there.
        unsafe { put(event, ibv_async_event { element, event_type: found.event_type() }) }?;
        Ok(true)
    };
    wait_for("ibv_get_async_event", descriptor, take)
}

/// What an event is about. From now on the object waits for the acknowledgement.
fn element(context: &Arc<Context>, event: AsyncEvent) -> Option<ibv_async_element> {
    match event {
        AsyncEvent::CqErr(id) => {
            let is_it = |cq: &Cq| cq.context.is_same(context) && cq.facade.id() == id;
            let cq = Cq::table().find_and(is_it, |cq| cq.async_events.taken())?.handle();
            Some(ibv_async_element { cq })
        }
        AsyncEvent::SrqErr(id) | AsyncEvent::SrqLimitReached(id) => srq(context, id),
        AsyncEvent::QpFatal(qpn)
        | AsyncEvent::QpReqErr(qpn)
        | AsyncEvent::QpAccessErr(qpn)
        | AsyncEvent::CommEst(qpn)
        | AsyncEvent::SqDrained(qpn)
        | AsyncEvent::PathMig(qpn)
        | AsyncEvent::PathMigErr(qpn)
        | AsyncEvent::QpLastWqeReached(qpn) => qp(context, qpn),
        AsyncEvent::PortActive(port)
        | AsyncEvent::PortErr(port)
        | AsyncEvent::LidChange(port)
        | AsyncEvent::PKeyChange(port)
        | AsyncEvent::SmChange(port)
        | AsyncEvent::ClientReregister(port)
        | AsyncEvent::GidChange(port) => Some(ibv_async_element { port_num: port.into() }),
        // Of the device as a whole; also what is not known here.
        _ => Some(ibv_async_element { port_num: 0 }),
    }
}

fn srq(context: &Arc<Context>, id: SrqId) -> Option<ibv_async_element> {
    let is_it = |srq: &Srq| srq.context.is_same(context) && srq.facade.id() == id;
    let srq = Srq::table().find_and(is_it, |srq| srq.async_events.taken())?.handle();
    Some(ibv_async_element { srq })
}

fn qp(context: &Arc<Context>, qpn: Qpn) -> Option<ibv_async_element> {
    let is_it = |qp: &Qp| qp.context.is_same(context) && qp.facade.qpn() == qpn;
    let qp = Qp::table().find_and(is_it, |qp| qp.async_events.taken())?.handle();
    Some(ibv_async_element { qp })
}

/// Of which kind of object events of each type are (`enum ibv_event_type`).
enum About {
    Cq,
    Qp,
    Srq,
    Other,
}

fn about(event_type: u32) -> About {
    match event_type {
        0 => About::Cq,
        1..=7 | 16 => About::Qp,
        14 | 15 => About::Srq,
        _ => About::Other,
    }
}

/// `ibv_ack_async_event(3)`.
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    answer::<()>("ibv_ack_async_event", || {
        // SAFETY: the program points to the event.
        let event = unsafe { get(event) }?;
        acknowledge(&event)
    })
}

fn acknowledge(event: &ibv_async_event) -> Result<(), Refused> {
    // A thread that destroys the object has withdrawn it already, and waits for this.
    // SAFETY: the type says which pointer it is; it is one that `ibv_get_async_event` gave, and the
    // object stays until the event is acknowledged.
    let acks = unsafe {
        match about(event.event_type) {
            About::Cq => Cq::trusted(event.element.cq).async_events.clone(),
            About::Qp => Qp::trusted(event.element.qp).async_events.clone(),
            About::Srq => Srq::trusted(event.element.srq).async_events.clone(),
            About::Other => return Ok(()),
        }
    };
    acks.acknowledged(1);
    Ok(())
}
