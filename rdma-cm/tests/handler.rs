//! Handlers that misbehave, or are kept from being called.

#![allow(clippy::unwrap_used)]

mod ends;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use ends::*;
use ibverbs_api::QpType;
use rdma_cm::{CmId, ConnParam, EventType, PortSpace, Verdict};

#[test]
fn a_handler_that_panics_ends_its_identifier_and_no_other() {
    let bad = CmId::create_with_handler(PortSpace::Tcp, |_| panic!("on purpose")).unwrap();
    let lock = bad.lock_handler();
    // One has another event that waits for the panic, one has not.
    bad.resolve_addr(None, lo(1)).unwrap();
    bad.resolve_route().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    drop(lock);
    let worse = CmId::create_with_handler(PortSpace::Tcp, |_| panic!("on purpose")).unwrap();
    worse.resolve_addr(None, lo(1)).unwrap();

    let (told, events) = mpsc::channel();
    let good = CmId::create_with_handler(PortSpace::Tcp, move |event| {
        told.send(event.event()).unwrap();
        Verdict::Keep
    })
    .unwrap();
    good.resolve_addr(None, lo(1)).unwrap();
    assert_eq!(events.recv_timeout(SOON), Ok(EventType::AddrResolved));
    for id in [bad, worse] {
        // It was destroyed, as by `Verdict::Destroy`, or is about to be.
        let start = Instant::now();
        while id.state_name() != "destroyed" {
            assert!(start.elapsed() < SOON, "{}", id.state_name());
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_request_is_told_before_what_becomes_of_it() {
    // Where other processes share the address, one of them may get the refusal, which nobody
    // repeats.
    let told = (0..5).find_map(|_| what_is_told_behind_a_request());
    assert_eq!(told, Some(EventType::Rejected));
}

/// A client gives up while its request waits for the lock of a listener: what that is told after the
/// request, if it is told anything.
fn what_is_told_behind_a_request() -> Option<EventType> {
    let (told, events) = mpsc::channel();
    let listener = CmId::create_with_handler(PortSpace::Tcp, move |event| {
        told.send((event.event(), event.id().clone())).unwrap();
        Verdict::Keep
    })
    .unwrap();
    listener.bind_addr(lo(0)).unwrap();
    listener.listen(0).unwrap();
    let port = listener.local_addr().unwrap().port();
    let lock = listener.lock_handler();
    let (_channel, client) = resolved(PortSpace::Tcp, port);
    let end = End::new(&client, QpType::Rc);
    client.connect(&ConnParam::default()).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    client.destroy();
    drop(end);
    assert!(events.recv_timeout(Duration::from_millis(200)).is_err(), "it is locked");
    drop(lock);
    let (event, request) = events.recv_timeout(SOON).unwrap();
    assert_eq!(event, EventType::ConnectRequest);
    let (event, id) = events.recv_timeout(Duration::from_secs(2)).ok()?;
    assert_eq!(id, request);
    Some(event)
}
