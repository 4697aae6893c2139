//! Channels: what their descriptors say, and what goes along when an identifier moves.

#![allow(clippy::unwrap_used)]

mod ends;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use ends::*;
use ibverbs_api::QpType;
use rdma_cm::{CmId, ConnParam, EventChannel, EventType, PortSpace};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

fn is_readable(channel: &EventChannel) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(channel, PollFlags::IN)], Some(&now)).unwrap() > 0
}

#[test]
fn the_descriptor_is_readable_while_events_wait_and_no_longer() {
    const EVENTS: u64 = 20_000;
    let channel = EventChannel::new().unwrap();
    let id = CmId::create(&channel, PortSpace::Tcp);
    let taken = Arc::new(AtomicU64::new(0));
    let counter = taken.clone();
    let consumer = thread::spawn(move || {
        let start = Instant::now();
        while counter.load(Ordering::SeqCst) < EVENTS {
            assert!(start.elapsed() < SOON, "{counter:?} of {EVENTS}");
            counter.fetch_add(u64::from(channel.take().is_some()), Ordering::SeqCst);
        }
        channel
    });
    // One at a time, so that the consumer stands ready for each: it must not get hold of an event
    // before that is counted.
    for number in 0..EVENTS {
        id.write_event(EventType::User, 0, number).unwrap();
        while taken.load(Ordering::SeqCst) <= number && !consumer.is_finished() {
            thread::yield_now();
        }
    }
    let channel = consumer.join().unwrap();
    assert!(!is_readable(&channel), "nothing waits");
    id.write_event(EventType::User, 0, 0).unwrap();
    assert!(is_readable(&channel));
    id.destroy();
    assert!(!is_readable(&channel));
}

#[test]
fn a_request_that_waits_moves_with_its_listener_for_good() {
    let (first, listener, port) = listener(PortSpace::Tcp);
    let (_client_channel, client) = resolved(PortSpace::Tcp, port);
    let _end = End::new(&client, QpType::Rc);
    client.connect(&ConnParam::default()).unwrap();
    let start = Instant::now();
    while !is_readable(&first) {
        assert!(start.elapsed() < SOON, "no request");
    }
    let second = EventChannel::new().unwrap();
    listener.migrate(&second);
    assert!(first.take().is_none());
    let server = expect(&second, EventType::ConnectRequest).id().clone();
    let _server_end = End::new(&server, QpType::Rc);
    server.accept(&ConnParam::default()).unwrap();
    expect(&second, EventType::Established);
}
