//! What a process pays: no descriptors, threads or memory lost, and no wake-ups while idle.
//!
//! One test in a binary of its own, since it counts what the whole process has.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::*;
use ibverbs_api::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

#[test]
fn an_idle_process_sleeps_and_a_closed_device_leaves_nothing() {
    nothing_wakes_while_idle();
    who_polls_is_left_alone();
    nothing_is_left_after_closing();
}

/// Context switches of all threads but this one, by name.
fn switches() -> Vec<(String, u64)> {
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let mut all = Vec::new();
    for task in tasks {
        let path = task.unwrap().path();
        let name = fs::read_to_string(path.join("comm")).unwrap().trim().to_owned();
        if path.ends_with(&own) || !name.starts_with("urxe-") {
            continue;
        }
        let status = fs::read_to_string(path.join("status")).unwrap();
        let count = status
            .lines()
            .filter(|line| line.contains("ctxt_switches"))
            .map(|line| line.split_whitespace().last().unwrap().parse::<u64>().unwrap())
            .sum();
        all.push((name, count));
    }
    all.sort_unstable();
    all
}

fn nothing_wakes_while_idle() {
    let mut options = options();
    options.shards = 2;
    let contexts = [open_with(options.clone()), open_with(options)];
    let setup = Setup::default();
    let channel = contexts[1].create_channel().unwrap();
    let mut pairs = Vec::new();
    for family in [Family::V4, Family::V6, Family::V4] {
        let setup = Setup { family, ..setup.clone() };
        let one = End::new(&contexts[0], &setup, None);
        let two = End::new(&contexts[1], &setup, Some(&channel));
        connect(&setup, (&contexts[0], &one.qp), (&contexts[1], &two.qp));
        let (from, to) = (one.register(100_000), two.register(100_000));
        for id in 0..20 {
            let write = SendOp::Write { remote: to.remote_addr(0), imm: None };
            one.post(id, write, &[from.sge(0..100_000)]);
            one.post(id, SendOp::Read { remote: to.remote_addr(0) }, &[from.sge(0..100_000)]);
            one.done();
            one.done();
            two.cq.poll(1, &mut Vec::new());
        }
        // One end has polled last, the other one has armed.
        two.cq.req_notify(false);
        two.cq.poll(1, &mut Vec::new());
        pairs.push((one, two, from, to));
    }
    // Timers that were set for the traffic may still fire once.
    std::thread::sleep(Duration::from_millis(500));
    let before = switches();
    assert_eq!(before.len(), 6, "of each shard, of the slots, and of the links: {before:?}");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(switches(), before, "a thread woke up with nothing to do");
    // They do wake when there is something, for whoever does not wait by a call of ours.
    let (one, two, ..) = &pairs[0];
    two.recv(1, &[]);
    one.post(1, SEND, &[]);
    let timeout = Timespec { tv_sec: 30, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&channel, PollFlags::IN)], Some(&timeout)).unwrap(), 1);
    assert_eq!(channel.take(), Some(two.cq.id()));
    assert_ne!(switches(), before);
}

/// Timers of this process that are going to fire.
fn running_timers() -> usize {
    let files = fs::read_dir("/proc/self/fd").unwrap().filter_map(|file| {
        let path = file.ok()?.path();
        let is_timer = fs::read_link(&path).is_ok_and(|to| to.ends_with("anon_inode:[timerfd]"));
        let number = path.file_name()?.to_str()?.to_owned();
        is_timer.then(|| fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()).flatten()
    });
    files.filter(|info| info.contains("it_value: (") && !info.contains("it_value: (0, 0)")).count()
}

/// While programs poll, their background threads wake once for each lease of a millisecond, to see
/// whether they still do. The timers of queue pairs, which are shorter, are no reason to.
fn who_polls_is_left_alone() {
    let (one, two) = pair(&Setup::default());
    let (from, to) = (one.register(1 << 20), two.register(1 << 20));
    let (mut posted, mut done, mut samples, mut running) = (0, 0, 0, 0);
    let (start, mut completions) = (Instant::now(), Vec::new());
    while samples < 300 {
        assert!(start.elapsed() < Duration::from_secs(30), "{posted} posted, {done} done");
        if posted < done + 4 {
            let write = SendOp::Write { remote: to.remote_addr(0), imm: None };
            one.post(1, write, &[from.sge(0..1 << 20)]);
            posted += 1;
        }
        completions.clear();
        done += one.cq.poll(16, &mut completions);
        assert!(completions.iter().all(|wc| wc.status == WcStatus::Success));
        two.cq.poll(16, &mut completions);
        // When each end has been polled for a while.
        if done > 20 {
            samples += 1;
            running += running_timers();
        }
    }
    while done < posted {
        completions.clear();
        done += one.cq.poll(16, &mut completions);
        two.cq.poll(16, &mut completions);
    }
    // One for each end's lease; and for some of the time another one, where the machine is so busy
    // that an end does not come to poll for longer than that.
    let each = f64::from(u32::try_from(running).unwrap()) / f64::from(samples);
    assert!(each < 2.5, "of each end, {each} timers run");
    assert!(each > 0.5, "timers are seen: {each}");
}

fn count(directory: &str) -> usize {
    fs::read_dir(directory).unwrap().count()
}

/// Resident memory in KiB.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn nothing_is_left_after_closing() {
    let round = || {
        let mut options = options();
        options.shards = 2;
        let context = open_with(options);
        let channel = context.create_channel().unwrap();
        let setup = Setup::default();
        let one = End::new(&context, &setup, Some(&channel));
        let two = End::new(&context, &Setup { family: Family::V6, ..setup }, None);
        let buffer = one.register(4096);
        for (end, family) in [(&one, Family::V4), (&two, Family::V6)] {
            let setup = Setup { family, ..Setup::default() };
            let own = gid(&context, family).gid;
            end.qp.connect(&attr_to(&setup, &context, own, end.qp.qpn())).unwrap();
        }
        one.recv(1, &[buffer.sge(0..4096)]);
        one.post(2, SEND, &[buffer.sge(0..64)]);
        one.done();
        one.done();
    };
    for _ in 0..20 {
        round();
    }
    let counts = || (count("/proc/self/fd"), count("/proc/self/task"));
    // The thread that serves the slots lets go of one a moment later.
    std::thread::sleep(Duration::from_millis(100));
    let before = counts();
    // The allocator may take more for a while, as threads come and go; a leak goes on for ever.
    let grown = (0..4)
        .map(|_| {
            let memory = resident();
            (0..200).for_each(|_| round());
            resident().saturating_sub(memory)
        })
        .find(|&grown| grown < 4096)
        .unwrap_or(u64::MAX);
    eventually("as many descriptors and threads as before", || counts() == before);
    assert!(grown < 4096, "4 MiB more after each 200 devices that were opened and closed");
}
