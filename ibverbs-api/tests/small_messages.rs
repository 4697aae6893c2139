//! Small messages: what is posted one by one leaves together, and nothing waits for ever.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod common;

use std::time::Instant;

use common::*;
use ibverbs_api::*;

/// Polls once, so that the context counts as one whose program polls.
fn poll(end: &End) -> Vec<WorkCompletion> {
    let mut found = Vec::new();
    end.cq.poll(64, &mut found);
    found
}

fn post_word(from: &End, to: &MemoryRegion, offset: usize, word: u64) {
    let op = SendOp::Write { remote: to.remote_addr(offset), imm: None };
    let word = word.to_le_bytes();
    let request = wr(offset as u64, op, SendFlags::SIGNALED, SendData::Inline(&word));
    from.qp.post_send(&request).unwrap();
}

#[test]
fn single_posts_behind_one_that_is_under_way_leave_together() {
    const COUNT: usize = 60;
    let (one, two) = pair(&Setup::default());
    let target = two.register(8 * COUNT);
    let mut least = u64::MAX;
    // On a busy machine a thread is interrupted between posts at times.
    for round in 1..=20_u64 {
        poll(&one);
        let before = one.context.link_counters().send_calls;
        for index in 0..COUNT {
            post_word(&one, &target, 8 * index, round << 32 | index as u64);
        }
        for index in 0..COUNT {
            assert_eq!(one.done().wr_id, 8 * index as u64);
            let word = target.buffer().load_u64(8 * index).unwrap();
            assert_eq!(word, round << 32 | index as u64);
        }
        least = least.min(one.context.link_counters().send_calls - before);
    }
    assert!(least <= COUNT as u64 / 3, "{least} sends at best for {COUNT} messages");
}

#[test]
fn what_is_posted_by_a_program_that_then_watches_memory_leaves_soon() {
    let (one, two) = pair(&Setup::default());
    let target = two.register(16);
    let mut slowest = Vec::new();
    for round in 1..=50 {
        poll(&one);
        let start = Instant::now();
        post_word(&one, &target, 0, round);
        post_word(&one, &target, 8, round);
        while target.buffer().load_u64(8).unwrap() != round {
            assert!(start.elapsed() < LONG, "the second message does not leave");
            std::hint::spin_loop();
        }
        slowest.push(start.elapsed());
        one.done();
        one.done();
    }
    println!("the last of two WRITEs came after {:?}", slowest);
}

#[test]
fn acknowledgements_take_no_sends_of_their_own() {
    const ROUNDS: u64 = 50;
    let (one, two) = pair(&Setup::default());
    let ends = [(&one, one.register(8)), (&two, two.register(8))];
    for (end, memory) in &ends {
        end.recv(7, &[memory.sge(0..8)]);
    }
    let counters = || ends.each_ref().map(|(end, _)| end.context.link_counters());
    let before = counters();
    let data = SendData::Inline(&[5; 8]);
    one.qp.post_send(&wr(1, SEND, SendFlags::SIGNALED, data)).unwrap();
    let mut turns = ends.iter().cycle().skip(1);
    for _ in 0..2 * ROUNDS {
        let Some((end, memory)) = turns.next() else { unreachable!() };
        while end.done().opcode != WcOpcode::Recv {}
        end.recv(7, &[memory.sge(0..8)]);
        end.qp.post_send(&wr(1, SEND, SendFlags::SIGNALED, data)).unwrap();
    }
    for (before, after) in before.into_iter().zip(counters()) {
        let (calls, packets) = (after.send_calls - before.send_calls, after.sent - before.sent);
        assert!(packets > ROUNDS, "{packets} packets: no message is acknowledged");
        assert!(calls < ROUNDS * 8 / 5, "{calls} sends, {packets} packets, {ROUNDS} messages");
    }
}

#[test]
fn messages_without_an_answer_are_acknowledged_at_once_after_an_exchange() {
    let (one, two) = pair(&Setup::default());
    let ends = [(&one, one.register(8)), (&two, two.register(8))];
    let pass = |from: &(&End, MemoryRegion), to: &(&End, MemoryRegion)| {
        to.0.recv(7, &[to.1.sge(0..8)]);
        from.0.qp.post_send(&wr(1, SEND, SendFlags::SIGNALED, SendData::Inline(&[5; 8]))).unwrap();
        while to.0.done().opcode != WcOpcode::Recv {}
    };
    for _ in 0..20 {
        pass(&ends[0], &ends[1]);
        pass(&ends[1], &ends[0]);
        // Whatever the answer has left behind leaves with the second message that gets none.
        let before = two.context.link_counters().sent;
        (0..3).for_each(|_| pass(&ends[0], &ends[1]));
        let sent = two.context.link_counters().sent - before;
        assert!(sent > 0, "three messages are not acknowledged");
    }
}

#[test]
fn an_answer_leaves_no_acknowledgement_of_another_queue_pair_behind() {
    let setup = Setup::default();
    let (one, two) = pair(&setup);
    let [third, fourth] = [&one, &two].map(|end| {
        let mut init = QpInit::new(setup.qp_type, &end.cq, &end.cq);
        init.caps = setup.caps;
        end.pd.create_qp(init).unwrap()
    });
    connect(&setup, (&one.context, &third), (&two.context, &fourth));
    let (ends, target) = ([(&one, one.register(8)), (&two, two.register(8))], two.register(8));
    let data = SendData::Inline(&[5; 8]);
    let write = SendOp::Write { remote: target.remote_addr(0), imm: None };
    let mut longest = 0;
    for _ in 0..20 {
        third.post_send(&wr(99, write, SendFlags::SIGNALED, data)).unwrap();
        let (mut is_done, mut rounds) = (false, 0);
        while !is_done {
            for ((from, _), (to, memory)) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
                to.recv(7, &[memory.sge(0..8)]);
                from.qp.post_send(&wr(1, SEND, SendFlags::SIGNALED, data)).unwrap();
                loop {
                    let completion = to.done();
                    is_done |= completion.wr_id == 99;
                    if completion.opcode == (WcOpcode::Recv {}) {
                        break;
                    }
                }
            }
            rounds += 1;
        }
        longest = longest.max(rounds);
    }
    assert!(longest <= 2, "a WRITE is acknowledged after {longest} messages of others");
}

#[test]
fn where_nobody_waits_for_acknowledgements_one_is_for_some_messages() {
    const ROUNDS: u64 = 20;
    let (one, two) = pair(&Setup::default());
    let ends = [(&one, one.register(8)), (&two, two.register(8))];
    let data = SendData::Inline(&[5; 8]);
    let mut least = u64::MAX;
    // On a busy machine a thread is interrupted between messages at times.
    for _ in 0..20 {
        let before = two.context.link_counters().sent;
        for _ in 0..ROUNDS {
            for ((from, _), (to, memory)) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
                to.recv(7, &[memory.sge(0..8)]);
                from.qp.post_send(&wr(1, SEND, SendFlags::SIGNALED, data)).unwrap();
                while to.done().opcode != WcOpcode::Recv {}
            }
        }
        least = least.min(two.context.link_counters().sent - before);
    }
    assert!(least < ROUNDS * 3 / 2, "{least} packets at best for {ROUNDS} messages");
    // All are acknowledged in the end.
    one.qp.post_send(&wr(2, SEND, SendFlags::SIGNALED, data)).unwrap();
    two.recv(7, &[ends[1].1.sge(0..8)]);
    poll(&two);
    while one.done().wr_id != 2 {
        poll(&two);
    }
}

#[test]
fn an_acknowledgement_leaves_also_when_the_program_does_nothing_more() {
    let (one, two) = pair(&Setup::default());
    let memory = two.register(8);
    let mut is_timely = false;
    // On a busy machine the thread that sends it may be late at times.
    for _ in 0..20 {
        two.recv(7, &[memory.sge(0..8)]);
        poll(&two);
        let before = one.context.counter(Counter::early_resend);
        one.qp.post_send(&wr(1, SEND, SendFlags::SIGNALED, SendData::Inline(&[5; 8]))).unwrap();
        while poll(&two).is_empty() {}
        // Only `one` is polled from now on.
        assert_eq!(one.done().wr_id, 1);
        is_timely |= one.context.counter(Counter::early_resend) == before;
    }
    assert!(is_timely, "each time it had to be asked for");
}
