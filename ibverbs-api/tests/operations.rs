//! Operations beyond SEND, WRITE and READ, between contexts over the loopback interface.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod common;

use std::collections::HashSet;
use std::sync::Arc;

use common::*;
use ibverbs_api::*;

/// A number in a buffer.
fn word(buffer: &Arc<dyn Backing>, offset: usize) -> u64 {
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
    assert_ne!(two.context.query_device().atomic_cap, AtomicCap::None);
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

/// Posts a request about this end's own keys, and waits for it.
fn local(end: &End, op: SendOp) {
    end.post(70, op, &[]);
    assert_eq!(end.done().wr_id, 70);
}

/// A WRITE of one byte by a key that gives no access; the queue pair is in error afterwards.
fn refused(end: &End, local: &MemoryRegion, remote: RemoteAddr) {
    end.post(80, SendOp::Write { remote, imm: None }, &[local.sge(0..1)]);
    let completion = end.cq.wait_one(LONG).unwrap();
    assert_eq!((completion.wr_id, completion.status), (80, WcStatus::RemAccessErr));
}

#[test]
fn fast_registration_and_both_ways_to_end_it() {
    let (one, two) = pair(&Setup::default());
    let bytes = pattern(6000, 3);
    let from = one.register(8192);
    from.buffer().write_at(0, &bytes).unwrap();
    let buffer: Arc<dyn Backing> = Arc::new(DmaBuf::zeroed(16_384));
    let region = two.pd.alloc_mr(2).unwrap();
    let mut keys = HashSet::new();
    for round in 0..20_usize {
        region.map(buffer.clone(), round..round + 6000, 0x1000).unwrap();
        let (register, rkey) = region.registration(ALL);
        assert!(keys.insert(rkey), "a key of its own each time");
        local(&two, register);
        assert_eq!(region.key(), rkey);
        let remote = RemoteAddr { addr: 0x1000, rkey };
        one.post(1, SendOp::Write { remote, imm: None }, &[from.sge(0..6000)]);
        one.done();
        assert_same(&read(&buffer, round, 6000), &bytes, "the round's memory");
        if round % 2 == 0 {
            // The peer ends it itself, with its message.
            let inbox = two.register(8);
            two.recv(2, &[inbox.sge(0..8)]);
            one.post(3, SendOp::SendInvalidate { rkey }, &[from.sge(0..5)]);
            one.done();
            let got = two.done();
            assert_eq!((got.opcode, got.byte_len), (WcOpcode::Recv, 5));
            assert_eq!((got.flags, got.imm), (WcFlags::WITH_INV, rkey.get()));
        } else {
            local(&two, SendOp::LocalInvalidate { key: rkey });
        }
    }
    refused(&one, &from, RemoteAddr { addr: 0x1000, rkey: region.key() });
    let long = region.map(buffer.clone(), 0..8193, 0).unwrap_err();
    assert!(matches!(long, MapMrError::TooLong { .. }), "{long}");
    #[expect(clippy::reversed_empty_ranges, reason = "what a caller must not do")]
    let backwards = region.map(buffer.clone(), 2..1, 0).unwrap_err();
    assert!(matches!(backwards, MapMrError::Range(RegMrError::OutOfBounds { .. })));
}

#[test]
fn windows_of_both_types() {
    for mw_type in [MwType::Type1, MwType::Type2] {
        let (one, two) = pair(&Setup::default());
        let from = one.register(64);
        from.buffer().write_at(0, &[9; 64]).unwrap();
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
        let region = two.pd.register(DmaBuf::zeroed(4096), access).unwrap();
        let window = two.pd.alloc_mw(mw_type).unwrap();
        assert_eq!(window.mw_type(), mw_type);
        let part = region.window(100..164, AccessFlags::REMOTE_WRITE);
        let rkey = two.qp.bind_mw(&window, 1, SendFlags::SIGNALED, part).unwrap();
        assert_eq!(two.done().opcode, WcOpcode::BindMw);
        assert_eq!(window.rkey(), rkey);
        let remote = RemoteAddr { addr: region.addr() + 100, rkey };
        one.post(2, SendOp::Write { remote, imm: None }, &[from.sge(0..64)]);
        one.done();
        let mut expected = vec![0; 4096];
        expected[100..164].fill(9);
        assert_same(&read(region.buffer(), 0, 4096), &expected, "the window's part");
        // The region is in use until the window is gone.
        let refusal = region.deregister().unwrap_err();
        assert_eq!(refusal.errno(), 16, "EBUSY");
        let region = refusal.object;
        drop(window);
        region.deregister().unwrap();
        refused(&one, &from, remote);
    }
}

#[test]
fn dropping_a_region_ends_its_windows() {
    let (one, two) = pair(&Setup::default());
    let from = one.register(8);
    let region = two.pd.register(DmaBuf::zeroed(64), ALL | AccessFlags::MW_BIND).unwrap();
    let window = two.pd.alloc_mw(MwType::Type2).unwrap();
    let part = region.window(0..8, AccessFlags::REMOTE_WRITE | AccessFlags::ZERO_BASED);
    let rkey = two.qp.bind_mw(&window, 1, SendFlags::SIGNALED, part).unwrap();
    two.done();
    let remote = RemoteAddr { addr: 0, rkey };
    one.post(2, SendOp::Write { remote, imm: None }, &[from.sge(0..8)]);
    one.done();
    drop(region);
    refused(&one, &from, remote);
}

#[test]
fn a_binding_that_cannot_be_completes_with_an_error() {
    let (one, two) = pair(&Setup::default());
    let region = two.pd.register(DmaBuf::zeroed(64), ALL).unwrap();
    let window = two.pd.alloc_mw(MwType::Type1).unwrap();
    let part = region.window(0..8, AccessFlags::REMOTE_WRITE);
    let foreign = one.qp.bind_mw(&window, 1, SendFlags::empty(), part);
    assert_eq!(foreign, Err(BindMwError::OtherContext));
    two.qp.bind_mw(&window, 1, SendFlags::empty(), part).unwrap();
    let completion = two.cq.wait_one(LONG).unwrap();
    assert_eq!((completion.wr_id, completion.status), (1, WcStatus::MwBindErr), "no MW_BIND");
}

#[test]
fn a_window_can_be_bound_after_a_binding_that_failed_or_was_flushed() {
    let setup = Setup::default();
    let (one, two) = pair(&setup);
    let from = one.register(8);
    from.buffer().write_at(0, &[5; 8]).unwrap();
    let no_windows = two.pd.register(DmaBuf::zeroed(64), ALL).unwrap();
    let region = two.pd.register(DmaBuf::zeroed(64), ALL | AccessFlags::MW_BIND).unwrap();
    let window = two.pd.alloc_mw(MwType::Type1).unwrap();
    let first = window.rkey();
    let bad = no_windows.window(0..8, AccessFlags::REMOTE_WRITE);
    let good = region.window(0..8, AccessFlags::REMOTE_WRITE);
    // The first fails, and the second is flushed.
    two.qp.bind_mw(&window, 1, SendFlags::SIGNALED, bad).unwrap();
    two.qp.bind_mw(&window, 2, SendFlags::SIGNALED, good).unwrap();
    let statuses = [(); 2].map(|()| two.cq.wait_one(LONG).unwrap().status);
    assert_eq!(statuses, [WcStatus::MwBindErr, WcStatus::WrFlushErr]);
    assert_eq!(window.rkey(), first, "it is as it was");

    for qp in [&one.qp, &two.qp] {
        let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
        qp.modify(&reset, QpAttrMask::STATE).unwrap();
    }
    connect(&setup, (&one.context, &one.qp), (&two.context, &two.qp));
    // Two in a row: the second begins where the first will end.
    two.qp.bind_mw(&window, 3, SendFlags::SIGNALED, good).unwrap();
    let rkey = two.qp.bind_mw(&window, 4, SendFlags::SIGNALED, good).unwrap();
    two.done();
    two.done();
    assert_eq!(window.rkey(), rkey);
    let remote = RemoteAddr { addr: region.addr(), rkey };
    one.post(5, SendOp::Write { remote, imm: None }, &[from.sge(0..8)]);
    one.done();
    assert_eq!(read(region.buffer(), 0, 8), [5; 8]);
}

#[test]
fn regions_are_changed_in_place() {
    let (one, two) = pair(&Setup::default());
    let from = one.register(64);
    from.buffer().write_at(0, &[7; 64]).unwrap();
    let mut region = two.pd.register(DmaBuf::zeroed(64), AccessFlags::empty()).unwrap();
    let (first_key, first_buffer) = (region.rkey(), region.buffer().clone());
    let write = |remote| one.post(1, SendOp::Write { remote, imm: None }, &[from.sge(0..64)]);
    region.reregister(Rereg { access: Some(ALL), ..Rereg::default() }).unwrap();
    assert_eq!(region.rkey(), first_key);
    write(region.remote_addr(0));
    one.done();
    assert_eq!(read(&first_buffer, 0, 64), [7; 64]);
    let buffer: Arc<dyn Backing> = Arc::new(DmaBuf::zeroed(128));
    region.reregister(Rereg { buffer: Some(buffer.clone()), ..Rereg::default() }).unwrap();
    assert_ne!(region.rkey(), first_key);
    assert_eq!((region.len(), region.addr()), (128, buffer.addr()));
    write(region.remote_addr(64));
    one.done();
    assert_eq!(read(&buffer, 64, 64), [7; 64]);
    let foreign = one.context.alloc_pd().unwrap();
    let error = region.reregister(Rereg { pd: Some(&foreign), ..Rereg::default() }).unwrap_err();
    assert_eq!(error, ReregMrError::Registration(RegMrError::OtherDevice));
    // In another domain it is out of the queue pair's reach.
    let other = two.context.alloc_pd().unwrap();
    region.reregister(Rereg { pd: Some(&other), ..Rereg::default() }).unwrap();
    refused(&one, &from, region.remote_addr(0));
}

#[test]
fn a_refused_change_leaves_the_region() {
    let (one, two) = pair(&Setup::default());
    let mut region = two.pd.register(DmaBuf::zeroed(64), ALL).unwrap();
    let change = Rereg { access: Some(AccessFlags::REMOTE_WRITE), ..Rereg::default() };
    let error = region.reregister(change).unwrap_err();
    assert!(matches!(error, ReregMrError::Registration(RegMrError::NeedsLocalWrite { .. })));
    let from = one.register(8);
    let remote = region.remote_addr(0);
    one.post(1, SendOp::Write { remote, imm: None }, &[from.sge(0..8)]);
    one.done();
}

#[test]
fn a_null_region_skips_bytes() {
    let (one, two) = pair(&Setup::default());
    let (null, to) = (one.pd.alloc_null_mr().unwrap(), one.register(10_000));
    let far = two.register(20_000);
    let bytes = pattern(20_000, 8);
    far.buffer().write_at(0, &bytes).unwrap();
    let remote = far.remote_addr(0);
    one.post(1, SendOp::Read { remote }, &[null.sge(10_000), to.sge(0..10_000)]);
    one.done();
    assert_same(&read(to.buffer(), 0, 10_000), &bytes[10_000..], "the second half");
    one.post(2, SendOp::Write { remote, imm: None }, &[null.sge(15_000)]);
    one.done();
    let mut expected = bytes;
    expected[..15_000].fill(0);
    assert_same(&read(far.buffer(), 0, 20_000), &expected, "zeros and what was there");
}

#[test]
fn device_memory_is_written_and_read_by_peers() {
    let (one, two) = pair(&Setup::default());
    let memory = two.context.alloc_dm(8192, 6).unwrap();
    memory.write_at(4096, &[5; 10]).unwrap();
    let region = two.pd.register_dm(&memory, 4096..8192, ALL).unwrap();
    assert_eq!((region.addr(), region.len()), (0, 4096));
    let to = one.register(4096);
    one.post(1, SendOp::Read { remote: region.remote_addr(0) }, &[to.sge(0..10)]);
    one.done();
    assert_eq!(read(to.buffer(), 0, 10), [5; 10]);
    one.post(2, SendOp::Write { remote: region.remote_addr(100), imm: None }, &[to.sge(0..10)]);
    one.done();
    let mut bytes = [0; 10];
    memory.read_at(4196, &mut bytes).unwrap();
    assert_eq!(bytes, [5; 10]);
    assert!(memory.read_at(8190, &mut bytes).is_err());
    // It is of this device, and there is only so much.
    let foreign = one.pd.register_dm(&memory, 0..1, ALL).unwrap_err();
    assert_eq!(foreign, RegMrError::OtherDevice);
    let max = two.context.query_device().limits.max_dm_size;
    let error = two.context.alloc_dm(max, 0).unwrap_err();
    assert_eq!(error, AllocDmError::TooMuch { length: max, left: max - 8192 });
    drop(memory);
    assert!(two.context.alloc_dm(max, 0).is_err(), "a region still has it");
    drop(region);
    drop(two.context.alloc_dm(max, 0).unwrap());
}

#[test]
fn a_part_of_a_buffer_goes_by_addresses_of_its_own() {
    let (one, two) = pair(&Setup::default());
    let buffer: Arc<dyn Backing> = Arc::new(DmaBuf::zeroed(64));
    let access = ALL | AccessFlags::ZERO_BASED;
    let zero = two.pd.register_range(buffer.clone(), 8..16, 0x5000, access).unwrap();
    let high = two.pd.register_range(buffer.clone(), 16..24, u64::MAX - 8, ALL).unwrap();
    assert_eq!((zero.addr(), high.addr()), (0, u64::MAX - 8));
    let from = one.register(8);
    from.buffer().write_at(0, &[3; 8]).unwrap();
    for region in [&zero, &high] {
        let remote = region.remote_addr(0);
        one.post(1, SendOp::Write { remote, imm: None }, &[from.sge(0..8)]);
        one.done();
    }
    let mut expected = [0; 64];
    expected[8..24].fill(3);
    assert_eq!(read(&buffer, 0, 64), expected);
    refused(&one, &from, RemoteAddr { addr: 8, ..zero.remote_addr(0) });
    let beyond = two.pd.register_range(buffer, 60..65, 0, ALL).unwrap_err();
    assert!(matches!(beyond, RegMrError::OutOfBounds { .. }), "{beyond}");
}

#[test]
fn atomic_writes_and_flushes() {
    let (one, two) = pair(&Setup::default());
    let far = two.pd.register(DmaBuf::zeroed(64), ALL | AccessFlags::FLUSH_GLOBAL).unwrap();
    let flags = SendFlags::SIGNALED;
    let op = SendOp::AtomicWrite { remote: far.remote_addr(8) };
    let bytes = 0x0102_0304_0506_0708_u64.to_ne_bytes();
    one.qp.post_send(&wr(1, op, flags, SendData::Inline(&bytes))).unwrap();
    assert_eq!(one.done().opcode, WcOpcode::AtomicWrite);
    assert_eq!(word(far.buffer(), 8), 0x0102_0304_0506_0708);
    let placement = FlushPlacement::GLOBAL_VISIBILITY;
    for (level, length) in [(FlushLevel::Range, 64), (FlushLevel::Region, 0)] {
        let op = SendOp::Flush { remote: far.remote_addr(0), length, placement, level };
        one.post(2, op, &[]);
        assert_eq!(one.done().opcode, WcOpcode::Flush);
    }
    // No memory is known to be persistent.
    let access = ALL | AccessFlags::FLUSH_PERSISTENT;
    let error = two.pd.register(DmaBuf::zeroed(64), access).unwrap_err();
    assert_eq!(error, RegMrError::NotPersistent { access });
}

/// One side writes numbers that only grow, the other sees no number that is not whole.
#[test]
fn atomic_writes_are_never_seen_in_part() {
    const COUNT: u64 = 3000;
    let setup = Setup::default();
    let mut options = options();
    options.link.faults = Some("drop=2%,dup=2%,seed=5".parse().unwrap());
    let (one, two) = (End::new(&open_with(options), &setup, None), End::new(&open(), &setup, None));
    connect(&setup, (&one.context, &one.qp), (&two.context, &two.qp));
    let far = two.register(8);
    let spread = |number: u64| number.wrapping_mul(0x0101_0101_0101_0101);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (done, buffer) = (&done, far.buffer());
        let reader = scope.spawn(move || {
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                let value = word(buffer, 0);
                let number = value & 0xff;
                assert_eq!(value, spread(number), "bytes of two numbers");
                std::thread::yield_now();
            }
        });
        for number in 1..=COUNT {
            let op = SendOp::AtomicWrite { remote: far.remote_addr(0) };
            let bytes = spread(number & 0xff).to_ne_bytes();
            let request = wr(number, op, SendFlags::SIGNALED, SendData::Inline(&bytes));
            one.qp.post_send(&request).unwrap();
            one.done();
        }
        done.store(true, std::sync::atomic::Ordering::Release);
        reader.join().unwrap();
    });
    assert_eq!(word(far.buffer(), 0), spread(COUNT & 0xff));
    assert!(two.context.counter(Counter::duplicate_request) > 0, "nothing was repeated");
}
