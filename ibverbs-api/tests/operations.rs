//! Operations beyond SEND, WRITE and READ, between contexts over the loopback interface.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod common;

use std::collections::HashSet;

use common::*;
use ibverbs_api::*;

/// A number in a buffer.
fn word(buffer: &DmaBuf, offset: usize) -> u64 {
    buffer.load_u64(offset).unwrap()
}

/// A queue pair on `server` for each client, all of one domain, connected.
fn serve(setup: &Setup, server: &End, clients: &[End]) -> Vec<QueuePair> {
    let connect_one = |client: &End| {
        let mut init = QpInit::new(QpType::Rc, &server.cq, &server.cq);
        init.caps = setup.caps;
        let qp = server.pd.create_qp(init).unwrap();
        connect(setup, (&server.context, &qp), (&client.context, &client.qp));
        qp
    };
    clients.iter().map(connect_one).collect()
}

#[test]
fn atomics_bring_what_was_there() {
    let (one, two) = pair(&Setup::default());
    let (local, far) = (one.register(64), two.register(64));
    let remote = far.remote_addr(8);
    far.buffer().fetch_add_u64(8, 40).unwrap();
    one.post(1, SendOp::FetchAdd { remote, add: 2 }, &[local.sge(0..8)]);
    let done = one.done();
    assert_eq!((done.wr_id, done.opcode, done.byte_len), (1, WcOpcode::FetchAdd, 8));
    assert_eq!((word(local.buffer(), 0), word(far.buffer(), 8)), (40, 42));
    for (compare, swap, held, after) in [(41, 7, 42, 42), (42, 7, 42, 7)] {
        one.post(2, SendOp::CompareSwap { remote, compare, swap }, &[local.sge(16..24)]);
        let done = one.done();
        assert_eq!((done.wr_id, done.opcode, done.byte_len), (2, WcOpcode::CompSwap, 8));
        assert_eq!((word(local.buffer(), 16), word(far.buffer(), 8)), (held, after));
    }
    assert_eq!(two.context.query_device().atomic_cap, AtomicCap::Global);
}

/// Three clients count to one number, while the host that has it does too; packets are lost.
/// Each addition happens exactly once: none is missing at the end, and none was seen twice.
#[test]
fn atomics_of_several_queue_pairs_happen_exactly_once() {
    const EACH: u64 = 1500;
    let setup = Setup::default();
    let mut options = options();
    options.link.faults = Some("drop=3%,dup=3%,seed=11".parse().unwrap());
    let server = End::new(&open(), &setup, None);
    let counter = server.register(8);
    let clients: Vec<End> =
        (0..3).map(|_| End::new(&open_with(options.clone()), &setup, None)).collect();
    let _served = serve(&setup, &server, &clients);
    let count = |client: &End| {
        let local = client.register(8);
        let op = SendOp::FetchAdd { remote: counter.remote_addr(0), add: 1 };
        let mut values = Vec::new();
        for number in 0..EACH {
            client.post(number, op, &[local.sge(0..8)]);
            assert_eq!(client.done().wr_id, number);
            values.push(word(local.buffer(), 0));
        }
        values
    };
    let mut seen: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            clients.iter().map(|client| scope.spawn(move || count(client))).collect();
        let add = |_| {
            std::thread::yield_now();
            counter.buffer().fetch_add_u64(0, 1).unwrap()
        };
        let own: Vec<u64> = (0..EACH).map(add).collect();
        let theirs = threads.into_iter().flat_map(|thread| thread.join().unwrap());
        own.into_iter().chain(theirs).collect()
    });
    assert_eq!(word(counter.buffer(), 0), 4 * EACH);
    let distinct: HashSet<u64> = seen.drain(..).collect();
    assert_eq!(distinct, (0..4 * EACH).collect());
    assert!(clients.iter().all(|client| client.context.link_counters().faults > 0));
    assert!(server.context.counter(Counter::duplicate_request) > 0, "nothing was repeated");
}
