//! Many threads, many queue pairs, several shards.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod common;

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use common::*;
use ibverbs_api::*;

#[test]
fn four_threads_post_to_one_queue_pair_while_two_poll() {
    const EACH: u64 = 2000;
    let setup = Setup { cqe: 16_384, ..Setup::default() };
    let (one, two) = pair(&setup);
    let buffer = two.register(64 * 8);
    for id in 0..64 {
        two.recv(id as u64, &[buffer.sge(id * 8..id * 8 + 8)]);
    }
    let (sent, received) = (AtomicU64::new(0), AtomicU64::new(0));
    let seen = Mutex::new(HashSet::new());
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let one = &one;
            scope.spawn(move || {
                for number in 0..EACH {
                    let word = (thread << 32 | number).to_le_bytes();
                    let request = wr(number, SEND, SendFlags::SIGNALED, SendData::Inline(&word));
                    loop {
                        match one.qp.post_send(&request) {
                            Ok(()) => break,
                            Err(PostSendError::Full { .. }) => std::thread::yield_now(),
                            Err(error) => panic!("{error}"),
                        }
                        assert!(start.elapsed() < LONG, "posting is stuck");
                    }
                }
            });
        }
        for end in [&one, &two] {
            let (sent, received, seen, buffer) = (&sent, &received, &seen, &buffer);
            let is_sender = std::ptr::eq(end, &raw const one);
            scope.spawn(move || {
                let mut found = Vec::new();
                let count = if is_sender { sent } else { received };
                while count.load(Ordering::Relaxed) < 4 * EACH {
                    assert!(start.elapsed() < LONG, "stuck at {count:?} ({is_sender})");
                    end.cq.poll(16, &mut found);
                    for done in found.drain(..) {
                        assert_eq!(done.status, WcStatus::Success);
                        count.fetch_add(1, Ordering::Relaxed);
                        if !is_sender {
                            let slot = done.wr_id as usize * 8;
                            let word = buffer.buffer().load_u64(slot).unwrap();
                            assert!(seen.lock().unwrap().insert(word), "{word:x} came twice");
                            end.recv(done.wr_id, &[buffer.sge(slot..slot + 8)]);
                        }
                    }
                }
            });
        }
    });
    assert_eq!(seen.lock().unwrap().len(), 4 * EACH as usize);
}

/// Queries take the same lock as posts: a post that meets one must not be forgotten.
#[test]
fn posts_are_not_lost_while_other_threads_query() {
    let (one, two) = pair(&Setup::default());
    let to = two.register(8);
    let write = SendOp::Write { remote: to.remote_addr(0), imm: None };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    one.qp.query().unwrap();
                    one.context.link_counters();
                    // A change that is refused.
                    let attr = QpAttr { state: QpState::Init, ..QpAttr::default() };
                    one.qp.modify(&attr, QpAttrMask::STATE).unwrap_err();
                }
            });
        }
        for number in 1..=1000_u64 {
            let word = number.to_le_bytes();
            let request = wr(number, write, SendFlags::SIGNALED, SendData::Inline(&word));
            one.qp.post_send(&request).unwrap();
            // Nobody polls until it has arrived: only the post itself can send it.
            let start = Instant::now();
            while to.buffer().load_u64(0).unwrap() != number {
                if start.elapsed() > LONG {
                    stop.store(true, Ordering::Relaxed);
                    panic!("post {number} was forgotten");
                }
                std::thread::yield_now();
            }
            one.done();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn many_queue_pairs() {
    const PAIRS: usize = 300;
    let setup = Setup { cqe: 4096, ..Setup::default() };
    let (active, passive) = (open(), open());
    let (pd, peer_pd) = (active.alloc_pd().unwrap(), passive.alloc_pd().unwrap());
    let cq = active.create_cq(4096, None, 0).unwrap();
    let peer_cq = passive.create_cq(4096, None, 0).unwrap();
    let to = peer_pd.register(DmaBuf::zeroed(PAIRS * 8), ALL).unwrap();
    let pairs: Vec<_> = (0..PAIRS)
        .map(|_| {
            let one = pd.create_qp(QpInit::new(QpType::Rc, &cq, &cq)).unwrap();
            let two = peer_pd.create_qp(QpInit::new(QpType::Rc, &peer_cq, &peer_cq)).unwrap();
            connect(&setup, (&active, &one), (&passive, &two));
            (one, two)
        })
        .collect();
    for round in 1..=5 {
        for (index, (one, two)) in pairs.iter().enumerate() {
            let sges = [to.sge(index * 8..index * 8 + 8)];
            two.post_recv(RecvWr { wr_id: index as u64, sges: &sges }).unwrap();
            let word = ((index as u64) << 8 | round).to_le_bytes();
            let flags = SendFlags::SIGNALED;
            one.post_send(&wr(index as u64, SEND, flags, SendData::Inline(&word))).unwrap();
        }
        for queue in [&cq, &peer_cq] {
            let mut ids = HashSet::new();
            for _ in 0..PAIRS {
                let done = queue.wait_one(LONG).unwrap();
                assert_eq!(done.status, WcStatus::Success);
                assert!(ids.insert(done.wr_id));
            }
        }
        for index in 0..PAIRS {
            let word = to.buffer().load_u64(index * 8).unwrap();
            assert_eq!(word, (index as u64) << 8 | round);
        }
    }
}

#[test]
fn queue_pairs_on_several_shards_of_one_context() {
    let mut options = options();
    options.shards = 4;
    let context = open_with(options);
    let setup = Setup::default();
    let pd = context.alloc_pd().unwrap();
    let cqs: Vec<_> = (0..5).map(|vector| context.create_cq(256, None, vector).unwrap()).collect();
    let make = |cq: &CompletionQueue| {
        let qp = pd.create_qp(QpInit::new(QpType::Rc, cq, cq)).unwrap();
        (qp, cq.clone())
    };
    // Vectors 0 and 4 are one shard of four.
    let shard_of = |i: usize| make(&cqs[i]).0.qpn().slot();
    assert_eq!(shard_of(0), shard_of(4));
    assert_eq!((0..4).map(shard_of).collect::<HashSet<_>>().len(), 4);

    let memory = pd.register(DmaBuf::zeroed(1 << 20), ALL).unwrap();
    let mut pairs = Vec::new();
    for i in 0..4 {
        for j in 0..4 {
            let (one, two) = (make(&cqs[i]), make(&cqs[j]));
            connect(&setup, (&context, &one.0), (&context, &two.0));
            pairs.push((one, two));
        }
    }
    std::thread::scope(|scope| {
        // A thread for each shard polls its own queue only, and sends from there.
        for i in 0..4 {
            let (pairs, memory) = (&pairs, &memory);
            scope.spawn(move || {
                for round in 0..50 {
                    for ((qp, cq), _) in &pairs[4 * i..4 * i + 4] {
                        let from = memory.sge(i << 16..(i << 16) + 5000);
                        let remote = memory.remote_addr((i << 16) + 20_000);
                        let op = SendOp::Write { remote, imm: None };
                        let flags = SendFlags::SIGNALED;
                        qp.post_send(&wr(round, op, flags, SendData::Sges(&[from]))).unwrap();
                        let done = cq.wait_one(LONG).unwrap();
                        assert_eq!(done.status, WcStatus::Success);
                    }
                }
            });
        }
    });
}

#[test]
fn sends_complete_on_another_vector_than_receives() {
    let mut options = options();
    options.shards = 2;
    let context = open_with(options);
    let setup = Setup::default();
    let pd = context.alloc_pd().unwrap();
    let send_cq = context.create_cq(64, None, 0).unwrap();
    let recv_cq = context.create_cq(64, None, 1).unwrap();
    let one = pd.create_qp(QpInit::new(QpType::Rc, &send_cq, &recv_cq)).unwrap();
    let two = pd.create_qp(QpInit::new(QpType::Rc, &recv_cq, &send_cq)).unwrap();
    assert_ne!(one.qpn().slot(), two.qpn().slot(), "each lives where it receives");
    connect(&setup, (&context, &one), (&context, &two));
    for id in 0..500 {
        for (from, to) in [(&one, &two), (&two, &one)] {
            to.post_recv(RecvWr { wr_id: id, sges: &[] }).unwrap();
            let flags = SendFlags::SIGNALED;
            from.post_send(&wr(id + 1000, SEND, flags, SendData::Inline(&[]))).unwrap();
            let sends_to = if std::ptr::eq(from, &raw const one) { &send_cq } else { &recv_cq };
            // Both the send of one and the receive of the other end complete in the same queue.
            let mut ids = [sends_to, sends_to].map(|cq| cq.wait_one(LONG).unwrap().wr_id);
            ids.sort_unstable();
            assert_eq!(ids, [id, id + 1000]);
        }
    }
}

/// Senders on two shards share a source port towards a third one; the kernel may coalesce what is
/// for different slots, and gives the whole to the socket of the first.
#[test]
fn every_shard_gets_its_packets_under_load() {
    let mut options = options();
    options.shards = 4;
    let (active, passive) = (open_with(options.clone()), open_with(options));
    let setup = Setup { cqe: 4096, ..Setup::default() };
    let (pd, peer_pd) = (active.alloc_pd().unwrap(), passive.alloc_pd().unwrap());
    let to = peer_pd.register(DmaBuf::zeroed(8 << 16), ALL).unwrap();
    let from = pd.register(DmaBuf::zeroed(1 << 16), ALL).unwrap();
    let bytes = pattern(1 << 16, 12);
    from.buffer().write_at(0, &bytes).unwrap();
    // All senders in one shard; the receivers on four, where nobody polls.
    let cq = active.create_cq(4096, None, 0).unwrap();
    let pairs: Vec<_> = (0..8)
        .map(|vector| {
            let peer_cq = passive.create_cq(64, None, vector).unwrap();
            let one = pd.create_qp(QpInit::new(QpType::Rc, &cq, &cq)).unwrap();
            let two = peer_pd.create_qp(QpInit::new(QpType::Rc, &peer_cq, &peer_cq)).unwrap();
            connect(&setup, (&active, &one), (&passive, &two));
            (one, two)
        })
        .collect();
    for _ in 0..10 {
        for (index, (one, _)) in pairs.iter().enumerate() {
            let op = SendOp::Write { remote: to.remote_addr(index << 16), imm: None };
            let sges = [from.sge(0..1 << 16)];
            let flags = SendFlags::SIGNALED;
            one.post_send(&wr(index as u64, op, flags, SendData::Sges(&sges))).unwrap();
        }
        for _ in &pairs {
            assert_eq!(cq.wait_one(LONG).unwrap().status, WcStatus::Success);
        }
    }
    for index in 0..8 {
        assert_same(&read(to.buffer(), index << 16, 1 << 16), &bytes, "each");
    }
}
